//! Prints patches: unchanged for other programs; coloured and escaped on a terminal.

use super::{escaped, pager};
use crate::{
    cli::{Failure, message, message::Message},
    config::ProcessEnv,
};
use engine::workspaces::Patch;
use serde_json::{Value, json};
use std::{
    ffi::OsStr,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

const RESET: &str = "\x1b[0m";
/// The maximum of notes about changes that are not in the patch.
const MAX_NOTES: usize = 20;

/// Writes a patch. The exit status is 1 if it is incomplete.
pub(super) fn write(patch: &Patch, env: &ProcessEnv) -> Result<u8, Failure> {
    if io::stdout().is_terminal() {
        let terminal_text = terminal_text(&patch.text, has_colour(env));
        pager::page(&terminal_text, env)?;
    } else {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(&patch.text).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                let words = format!("cannot write to standard output: {error}");
                return Err(Failure::internal(words));
            }
            Ok(()) | Err(_) => {}
        }
    }
    let mut notes = omitted_notes(&patch.held, patch.held_total, "after `# ` in the patch");
    notes.extend(omitted_notes(
        &patch.omitted,
        patch.omitted_total,
        "not in the patch",
    ));
    message::print(&notes);
    Ok(u8::from(patch.omitted_total > 0))
}

fn omitted_notes(some: &[(PathBuf, String)], total: usize, how: &str) -> Vec<Message> {
    let line = |(path, reason): &(PathBuf, String)| {
        Message::Note(format!("{how}: `{}`: {reason}", super::name(path)))
    };
    let mut lines: Vec<_> = some.iter().take(MAX_NOTES).map(line).collect();
    if total > lines.len() {
        let more = total - lines.len();
        lines.push(Message::Note(format!("{how}: {more} more")));
    }
    lines
}

/// The patch as JSON.
pub(super) fn value(patch: &Patch) -> Value {
    let omitted = patch
        .omitted
        .iter()
        .map(|(path, reason)| super::UnappliedChange {
            path: path.clone(),
            reason: reason.clone(),
            conflict: false,
            why: None,
        });
    let omitted: Vec<_> = omitted.collect();
    let (text, base64) = match std::str::from_utf8(&patch.text) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(spec::base64(&patch.text))),
    };
    json!({
        "text": text, "base64": base64, "omitted": omitted, "omitted_total": patch.omitted_total,
        "held_back_total": patch.held_total,
    })
}

/// Whether colours are wanted (`NO_COLOR`, `TERM=dumb`).
pub(super) fn has_colour(env: &ProcessEnv) -> bool {
    env.variable("NO_COLOR").is_none() && env.variable("TERM") != Some(OsStr::new("dumb"))
}

/// Colours and escapes a patch for a terminal.
pub(super) fn terminal_text(text: &[u8], has_colour: bool) -> String {
    let mut terminal_text = String::with_capacity(text.len() + text.len() / 4);
    let mut hunk = Hunk::default();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let colour = hunk.colour(line);
        match colour.filter(|_| has_colour) {
            Some(colour) => {
                terminal_text.push_str(colour);
                escaped(line, &mut terminal_text);
                terminal_text.push_str(RESET);
            }
            None => escaped(line, &mut terminal_text),
        }
        terminal_text.push('\n');
    }
    terminal_text
}

/// The remaining lines of a hunk. Inside a hunk, the program chose everything after the first
/// character.
#[derive(Default)]
struct Hunk {
    old: usize,
    new: usize,
}

impl Hunk {
    fn colour(&mut self, line: &[u8]) -> Option<&'static str> {
        const BOLD: &str = "\x1b[1m";
        const RED: &str = "\x1b[31m";
        const GREEN: &str = "\x1b[32m";
        const YELLOW: &str = "\x1b[33m";
        const CYAN: &str = "\x1b[36m";
        if self.old + self.new == 0 {
            if let Some(hunk) = Hunk::parse_header(line) {
                *self = hunk;
                return Some(CYAN);
            }
            return match line.first() {
                Some(b'#') => Some(YELLOW),
                Some(b'\\') => None,
                _ => Some(BOLD),
            };
        }
        match line.first() {
            Some(b'-') => {
                self.old = self.old.saturating_sub(1);
                Some(RED)
            }
            Some(b'+') => {
                self.new = self.new.saturating_sub(1);
                Some(GREEN)
            }
            Some(b'\\') => None,
            _ => {
                self.old = self.old.saturating_sub(1);
                self.new = self.new.saturating_sub(1);
                None
            }
        }
    }

    /// Parses `@@ -1,2 +3 @@`.
    fn parse_header(line: &[u8]) -> Option<Hunk> {
        let line = std::str::from_utf8(line).ok()?.strip_prefix("@@ -")?;
        let (old, new) = line.strip_suffix(" @@")?.split_once(" +")?;
        let count = |range: &str| match range.split_once(',') {
            Some((_, count)) => count.parse().ok(),
            None => Some(1),
        };
        Some(Hunk {
            old: count(old)?,
            new: count(new)?,
        })
    }
}

/// Prints a patch on stderr, beside a question about it.
pub(super) fn print_to_stderr(text: &[u8], env: &ProcessEnv) {
    message::print_plain(&terminal_text(text, has_colour(env)));
}

/// Normalises paths from the command line.
pub(super) fn clean_paths(given: &[PathBuf]) -> Vec<PathBuf> {
    // `src/` and `./src` are `src`.
    let clean = |path: &PathBuf| {
        let parts = path.components();
        let parts = parts.filter(|part| *part != std::path::Component::CurDir);
        parts.collect::<PathBuf>()
    };
    let clean_paths = given.iter().map(clean);
    clean_paths.filter(|path| path != Path::new("")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_sequences_reach_a_terminal() {
        let text = b"--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n--- \x1b[2J\xe2\x80\xae\n-\r\xff\n+a\tb\n# y: kept\n";
        let plain = "--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n--- \\u{1b}[2J\\u{202e}\n-\\r\\xff\n+a\tb\n# y: kept\n";
        assert_eq!(terminal_text(text, false), plain);
        let lines = terminal_text(text, true);
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines[0], "\x1b[1m--- a/x\x1b[0m");
        assert!(
            lines[3].starts_with("\x1b[31m--- "),
            "a removed line that looks like a header is a removed line"
        );
        assert_eq!(lines[6], "\x1b[33m# y: kept\x1b[0m");
    }

    #[test]
    fn a_path_is_what_it_means() {
        let given = ["./src/".into(), "a//b".into(), ".".into()];
        assert_eq!(clean_paths(&given), [Path::new("src"), Path::new("a/b")]);
    }
}
