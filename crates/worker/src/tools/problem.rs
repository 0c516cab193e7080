//! What is wrong with a tool, for whoever looks after it: where, what, and what to do. On one line, and short, whatever the
//! file that it was found in says.

use std::fmt;

/// What is told of a stranger's word, in characters.
const LONGEST_WORD: usize = 64;
/// What is told of what somebody else says is wrong, in characters.
const LONGEST_REASON: usize = 600;

/// Something is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The manifest's line, where one is to blame.
    pub line: Option<u64>,
    /// The tool or entry, where one is.
    pub tool: Option<String>,
    /// What is wrong, and what follows from it.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// It may be gone another time, though nobody changed what it is about.
    pub is_passing: bool,
}

impl Problem {
    /// One of the whole manifest.
    pub fn new(message: impl fmt::Display, hint: impl fmt::Display) -> Problem {
        Problem {
            message: message.to_string(),
            hint: hint.to_string(),
            ..Problem::default()
        }
    }

    /// The same, of a moment: a machine without room or time.
    pub fn passing(self) -> Problem {
        Problem {
            is_passing: true,
            ..self
        }
    }

    /// The same, of one tool.
    pub fn of(self, tool: &str) -> Problem {
        Problem {
            tool: Some(word(tool)),
            ..self
        }
    }

    /// The same, with the manifest's line.
    pub fn at(self, line: u64) -> Problem {
        Problem {
            line: (line > 0).then_some(line),
            ..self
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tool) = &self.tool {
            write!(out, "tool `{tool}`: ")?;
        }
        out.write_str(&self.message)?;
        if let Some(line) = self.line {
            write!(out, " (line {line} of the manifest)")?;
        }
        match self.hint.is_empty() {
            true => Ok(()),
            false => write!(out, "; {}", self.hint),
        }
    }
}

/// A stranger's word, fit for one line of a message.
pub(crate) fn word(text: &str) -> String {
    cut(text, LONGEST_WORD)
}

/// What somebody else said, fit for one line of a message.
pub(crate) fn reason(text: &str) -> String {
    cut(
        &text.split_whitespace().collect::<Vec<_>>().join(" "),
        LONGEST_REASON,
    )
}

fn cut(text: &str, longest: usize) -> String {
    let mut letters = text.chars();
    let begun: String = letters.by_ref().take(longest).collect();
    let rest = if letters.next().is_some() { "…" } else { "" };
    format!("{}{rest}", begun.escape_debug())
}
