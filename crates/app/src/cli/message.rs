//! Messages on stderr: one line each, prefixed with `airlock:`, so that they cannot be taken for
//! the program's own output.

use crate::config::ConfigError;
use spec::{ErrorCode, ErrorInfo, SpecError};
use std::io::{self, Write};

/// Why a command failed: error code, message and hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: ErrorCode,
    pub(super) message: String,
    pub(super) hint: String,
}

/// One line on stderr, with its prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Error(String),
    Usage(String),
    Hint(String),
    Note(String),
}

impl Failure {
    pub(super) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure {
            code: ErrorCode::InvalidSpec,
            message: message.into(),
            hint: hint.into(),
        }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        let hint = "`airlock doctor` shows what this host gives".to_owned();
        Failure {
            code: ErrorCode::Internal,
            message: message.into(),
            hint,
        }
    }

    pub(super) fn lines(&self) -> Vec<Message> {
        vec![
            Message::Error(self.message.clone()),
            Message::Hint(self.hint.clone()),
        ]
    }

    pub(super) fn info(&self) -> ErrorInfo {
        ErrorInfo {
            code: self.code,
            message: self.message.clone(),
            hint: Some(self.hint.clone()),
        }
    }
}

impl From<SpecError> for Failure {
    fn from(error: SpecError) -> Self {
        Failure {
            code: error.code,
            message: error.message,
            hint: error.hint,
        }
    }
}

impl From<spec::ErrorInfo> for Failure {
    fn from(error: spec::ErrorInfo) -> Self {
        Failure {
            code: error.code,
            message: error.message,
            hint: error.hint.unwrap_or_default(),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure {
            code: ErrorCode::InvalidSpec,
            message: error.message,
            hint: error.hint,
        }
    }
}

impl From<engine::EngineError> for Failure {
    fn from(error: engine::EngineError) -> Self {
        let message = match &error.source {
            Some(cause) => format!("{}: {cause}", error.message),
            None => error.message,
        };
        Failure {
            code: ErrorCode::StartFailed,
            message,
            hint: error.hint,
        }
    }
}

/// Writes the messages to stderr in one call. A write error is ignored: there is no other stream.
pub(super) fn print(lines: &[Message]) {
    let _ = io::stderr().lock().write_all(render(lines).as_bytes());
}

/// Writes text without a prefix, for output that is meant to be copied. The caller escapes control
/// characters.
pub(super) fn print_plain(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Writes messages after the program's stderr, whose last line may lack a newline.
pub(super) fn print_below(written: &[u8], lines: &[Message]) {
    if !lines.is_empty() && written.last().is_some_and(|byte| *byte != b'\n') {
        let _ = io::stderr().lock().write_all(b"\n");
    }
    print(lines);
}

/// The messages as text. A message with an empty text is omitted.
pub(super) fn render(lines: &[Message]) -> String {
    let shown = lines.iter().map(|line| match line {
        Message::Error(text) => ("error", text),
        Message::Usage(text) => ("usage", text),
        Message::Hint(text) => ("hint", text),
        Message::Note(text) => ("note", text),
    });
    shown
        .filter(|(_, text)| !text.is_empty())
        .map(|(kind, text)| format!("airlock: {kind}: {}\n", printable(text)))
        .collect()
}

/// Escapes control characters and characters that change the order of text.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || changes_order(character) {
            shown.extend(character.escape_default())
        } else {
            shown.push(character)
        }
    }
    shown
}

/// Invisible characters that change how their neighbours are displayed.
fn changes_order(character: char) -> bool {
    matches!(character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{061c}'
            // Tags and variation selectors: invisible text that only machines read.
            | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_an_error_line_and_a_hint_line() {
        let failure = Failure::invalid("no profile is called `x`", "the profiles are a, b");
        let text =
            "airlock: error: no profile is called `x`\nairlock: hint: the profiles are a, b\n";
        assert_eq!(render(&failure.lines()), text);
    }

    #[test]
    fn nothing_in_a_message_can_steer_the_terminal_or_start_a_line() {
        let hostile = "a\x1b[2Jb\nairlock: note: all is well\u{202e}\u{9b}c\r\x07 ä `x` \"y\"";
        let shown = printable(hostile);
        assert_eq!(
            shown,
            "a\\u{1b}[2Jb\\nairlock: note: all is well\\u{202e}\\u{9b}c\\r\\u{7} ä `x` \"y\""
        );
        assert_eq!(
            render(&[Message::Error(hostile.to_owned())])
                .matches('\n')
                .count(),
            1
        );
    }

    /// Nobody sees them, and a model reads them.
    #[test]
    fn tags_and_variants_are_shown_by_their_numbers() {
        let shown = printable("a\u{e0041}b\u{e007f}c\u{e0100}");
        assert_eq!(shown, "a\\u{e0041}b\\u{e007f}c\\u{e0100}");
    }

    #[test]
    fn a_cause_is_told_with_its_error() {
        let source = Some(io::Error::from(io::ErrorKind::PermissionDenied));
        let error = engine::EngineError {
            message: "cannot create `/x`".into(),
            hint: "use --state".into(),
            source,
        };
        assert_eq!(
            Failure::from(error).message,
            "cannot create `/x`: permission denied"
        );
    }
}
