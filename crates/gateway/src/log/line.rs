//! One log line: bounded in length, and always a single line.

use serde_json::{Map, Value};
use spec::{LogFormat as Format, LogLevel as Level, Timestamp};
use std::fmt::Write;

/// Limits of the text and of each field.
const MAX_TEXT_BYTES: usize = 4096;
const MAX_FIELD_BYTES: usize = 256;

/// A log line.
#[derive(Clone, Debug)]
pub(crate) struct LogLine {
    pub(crate) at: Timestamp,
    pub(crate) level: Level,
    /// The kind of event: `request`, `run`, `node_boot`, …
    pub(crate) what: &'static str,
    /// The text.
    pub(crate) about: String,
    pub(crate) fields: LogFields,
}

/// Structured fields; empty ones are left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogFields {
    pub(crate) status: String,
    pub(crate) ms: Option<f64>,
    pub(crate) key: String,
    pub(crate) tenant: String,
    pub(crate) run: String,
    pub(crate) task: String,
    pub(crate) job: String,
    pub(crate) trace: String,
}

impl LogLine {
    pub(crate) fn new(
        level: Level,
        what: &'static str,
        about: impl Into<String>,
        fields: LogFields,
    ) -> LogLine {
        LogLine {
            at: engine::now(),
            level,
            what,
            about: about.into(),
            fields,
        }
    }

    /// A warning for the operator.
    pub(crate) fn warn(about: impl Into<String>) -> LogLine {
        LogLine::new(Level::Warn, "server", about, LogFields::default())
    }

    /// The line with its newline.
    pub(super) fn rendered(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Json => self.json(),
        }
    }

    /// The text format.
    pub(crate) fn text(&self) -> String {
        format!("{} {}\n", self.at, self.record())
    }

    /// The text without the time.
    pub(crate) fn record(&self) -> String {
        let mut text = match self.level {
            Level::Info => String::new(),
            level => format!("{}: ", level.name()),
        };
        text.push_str(&printable(&self.about, MAX_TEXT_BYTES));
        let LogFields {
            status, ms, key, ..
        } = &self.fields;
        if !status.is_empty() {
            _ = write!(text, " {}", printable(status, MAX_FIELD_BYTES));
        }
        if let Some(ms) = ms {
            _ = write!(text, " {ms:.1}ms");
        }
        if !key.is_empty() {
            _ = write!(text, " {}", printable(key, MAX_FIELD_BYTES));
        }
        for (name, value) in self.names() {
            _ = write!(text, " {name}={}", printable(value, MAX_FIELD_BYTES));
        }
        text
    }

    fn json(&self) -> String {
        let mut object = Map::new();
        let mut add = |name: &str, value: Value| _ = object.insert(name.to_owned(), value);
        add("at", self.at.to_string().into());
        add("level", self.level.name().into());
        add("what", self.what.into());
        add("about", printable(&self.about, MAX_TEXT_BYTES).into());
        let LogFields {
            status, ms, key, ..
        } = &self.fields;
        let words = [("status", status), ("key", key)];
        let words = words
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .chain(self.names());
        for (name, value) in words {
            // An HTTP status is written as a number.
            let number = value.parse::<u16>().ok().filter(|_| name == "status");
            add(
                name,
                number.map_or_else(|| printable(value, MAX_FIELD_BYTES).into(), Value::from),
            );
        }
        if let Some(ms) = ms {
            add("ms", ((ms * 10.0).round() / 10.0).into());
        }
        Value::Object(object).to_string() + "\n"
    }

    fn names(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let LogFields {
            tenant,
            run,
            task,
            job,
            trace,
            ..
        } = &self.fields;
        let all = [
            ("tenant", tenant),
            ("run", run),
            ("task", task),
            ("job", job),
            ("trace", trace),
        ];
        all.into_iter().filter(|(_, value)| !value.is_empty())
    }
}

/// Escapes control characters and newlines, and truncates.
fn printable(text: &str, max: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(max));
    for character in text.chars() {
        let start = shown.len();
        if is_plain(character) {
            shown.push(character)
        } else {
            shown.extend(character.escape_unicode())
        }
        if shown.len() > max {
            shown.truncate(start);
            shown.push('…');
            break;
        }
    }
    shown
}

/// Excludes control characters, and characters that change the text direction or break the line.
fn is_plain(character: char) -> bool {
    !character.is_control()
        && !matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200b}'..='\u{200f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(about: &str) -> LogLine {
        let fields = LogFields {
            status: "200".into(),
            ms: Some(2.06),
            key: "k1".into(),
            run: "r".into(),
            ..LogFields::default()
        };
        LogLine {
            at: Timestamp(0),
            ..LogLine::new(Level::Info, "request", about, fields)
        }
    }

    #[test]
    fn a_line_is_the_same_in_words_and_as_an_object() {
        let line = line("GET /v1/runs");
        assert_eq!(
            line.text(),
            "1970-01-01T00:00:00.000Z GET /v1/runs 200 2.1ms k1 run=r\n"
        );
        let object: Value = serde_json::from_str(&line.rendered(Format::Json)).unwrap();
        let wanted = serde_json::json!({
            "at": "1970-01-01T00:00:00.000Z", "level": "info", "what": "request", "about": "GET /v1/runs",
            "status": 200, "ms": 2.1, "key": "k1", "run": "r",
        });
        assert_eq!(object, wanted);
    }

    #[test]
    fn no_words_end_a_line_or_steer_a_terminal_or_have_no_end() {
        for evil in [
            "a\nb",
            "a\u{1b}[2Jb",
            "a\u{9b}31mb",
            "a\u{202e}b",
            "a\u{2028}b",
            "a\r\u{7}b",
        ] {
            for format in [Format::Text, Format::Json] {
                let shown = line(evil).rendered(format);
                assert_eq!(shown.matches('\n').count(), 1, "{shown:?}");
                let plain = shown.trim_end_matches('\n').chars().all(is_plain);
                assert!(plain, "{shown:?}");
            }
        }
        let long = line(&"\u{1}".repeat(100_000)).text();
        assert!(
            long.len() < MAX_TEXT_BYTES + 200 && long.contains('…'),
            "{}",
            long.len()
        );
        assert!(line("plain").text().contains("plain"));
    }
}
