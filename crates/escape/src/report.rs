//! What the escape suite prints: a table for people, JSON for programs.

use super::{LEFT_OUT, internal};
use escape::{Controlled, Row, Verdict};
use serde::Serialize;
use spec::ErrorInfo;
use std::io::{self, Write};

/// Writes data to stdout. A reader that has left is no failure.
pub(crate) fn print(text: &str) -> Result<(), ErrorInfo> {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(internal(format!(
            "cannot write to standard output: {error}"
        ))),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints one JSON value on a line of its own. JSON allows the controls from U+007F to U+009F as they are; a terminal obeys
/// them, so they are escaped.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), ErrorInfo> {
    let text = serde_json::to_string(value)
        .map_err(|error| internal(format!("cannot write the result as JSON: {error}")))?;
    print(&(without_controls(&text) + "\n"))
}

fn without_controls(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if ('\u{7f}'..='\u{9f}').contains(&character) {
            escaped += &format!("\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Text that can neither steer a terminal nor reorder or break a line.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// The rows for people: a table, the reasons that it has no room for, and the count.
pub(crate) fn table(rows: &[Row], attacked: &str) -> String {
    let titles = rows
        .iter()
        .map(|row| row.title.chars().count())
        .chain(["attack".len()])
        .max()
        .unwrap_or(0);
    let line = |id: &str, title: &str, cells: [&str; 3]| {
        let [airlock, control, bwrap] = cells;
        let text = format!("{id:<4}  {title:<titles$}  {airlock:<9}  {control:<8}  {bwrap}");
        format!("{}\n", text.trim_end())
    };
    let mut text = line("case", "attack", [attacked, "control", "bwrap"]);
    for row in rows {
        text += &line(
            row.id,
            row.title,
            [
                short(&row.airlock),
                of_control(&row.control),
                short(&row.bwrap),
            ],
        );
    }
    let notes: Vec<_> = rows.iter().flat_map(notes).collect();
    if !notes.is_empty() {
        text += &format!("\n{}\n", notes.join("\n"));
    }
    text + &count(rows)
}

fn short(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Blocked => "blocked",
        Verdict::Detected(_) => "detected",
        Verdict::Escaped(_) => "ESCAPED",
        Verdict::NotApplicable(_) => "n.a.",
        Verdict::Broken(_) => "BROKEN",
    }
}

fn of_control(control: &Controlled) -> &'static str {
    match control {
        Controlled::Succeeded => "works",
        Controlled::Failed(_) => "FAILED",
        Controlled::NotRun(_) => "not run",
    }
}

/// The reasons that the table has no room for.
fn notes(row: &Row) -> Vec<String> {
    let of_verdict = |verdict: &Verdict| match verdict {
        Verdict::Blocked => None,
        Verdict::Detected(why)
        | Verdict::Escaped(why)
        | Verdict::NotApplicable(why)
        | Verdict::Broken(why) => Some(why.clone()),
    };
    let control = match &row.control {
        Controlled::Succeeded => None,
        Controlled::Failed(why) | Controlled::NotRun(why) => Some(why.clone()),
    };
    let airlock = of_verdict(&row.airlock);
    // Once is enough.
    let control = control.filter(|_| !matches!(row.airlock, Verdict::NotApplicable(_)));
    let bwrap =
        of_verdict(&row.bwrap).filter(|why| airlock.as_ref() != Some(why) && why != LEFT_OUT);
    let all = [("airlock", airlock), ("control", control), ("bwrap", bwrap)];
    let told = all.into_iter().filter_map(|(who, why)| Some((who, why?)));
    told.map(|(who, why)| format!("{} {who}: {}", row.id, printable(&why)))
        .collect()
}

fn count(rows: &[Row]) -> String {
    let of = |wanted: &str| {
        rows.iter()
            .filter(|row| short(&row.airlock) == wanted)
            .count()
    };
    let controls = |wanted: &str| {
        rows.iter()
            .filter(|row| of_control(&row.control) == wanted)
            .count()
    };
    let peer = rows
        .iter()
        .filter(|row| short(&row.bwrap) == "ESCAPED")
        .count();
    format!(
        "\n{} cases: {} blocked, {} detected, {} escaped, {} not applicable, {} broken; \
         controls: {} work, {} failed, {} not run; bwrap: {peer} escaped\n",
        rows.len(),
        of("blocked"),
        of("detected"),
        of("ESCAPED"),
        of("n.a."),
        of("BROKEN"),
        controls("works"),
        controls("FAILED"),
        controls("not run"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_stand_below_the_table_and_cannot_steer_the_terminal() {
        let row = Row {
            id: "A6",
            title: "links",
            airlock: Verdict::Escaped("it said \x1b[2J".to_owned()),
            control: Controlled::Succeeded,
            bwrap: Verdict::Blocked,
            duration_ms: 1,
        };
        let wanted = "\
case  attack  airlock    control   bwrap
A6    links   ESCAPED    works     blocked

A6 airlock: it said \\u{1b}[2J

1 cases: 0 blocked, 0 detected, 1 escaped, 0 not applicable, 0 broken; controls: 1 work, 0 failed, 0 not run; \
bwrap: 0 escaped
";
        assert_eq!(table(&[row], "airlock"), wanted);
    }

    #[test]
    fn text_of_an_attack_cannot_steer_the_terminal() {
        let hostile = "a\x1b[2J\nb\u{202e}\u{9b}\u{e0041} \u{e4} `x` \"y\" 'z' \\";
        assert_eq!(
            printable(hostile),
            "a\\u{1b}[2J\\nb\\u{202e}\\u{9b}\\u{e0041} \u{e4} `x` \"y\" 'z' \\"
        );
        let json = serde_json::to_string("\u{9b}2J\u{7f} \u{e4}\x1b").unwrap();
        let shown = without_controls(&json);
        assert!(!shown.contains(char::is_control), "{shown:?}");
        assert_eq!(
            serde_json::from_str::<String>(&shown).unwrap(),
            "\u{9b}2J\u{7f} \u{e4}\x1b"
        );
    }
}
