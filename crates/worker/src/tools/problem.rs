//! A problem of a tool, for the operator: where, what, and how to fix it. One short line, whatever
//! the file contains.

use std::fmt;

/// Characters of an untrusted word in a message.
const MAX_WORD_CHARS: usize = 64;
/// Characters of an external error message.
const MAX_REASON_CHARS: usize = 600;

/// A problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ToolProblem {
    /// Line of the manifest, if it is the cause.
    pub line: Option<u64>,
    /// Tool or entry, if it concerns one.
    pub tool: Option<String>,
    /// What is wrong, with its consequence.
    pub message: String,
    /// How to fix it.
    pub hint: String,
    /// Whether it may pass without a change.
    pub is_passing: bool,
}

impl ToolProblem {
    /// A problem of the whole manifest.
    pub fn new(message: impl fmt::Display, hint: impl fmt::Display) -> ToolProblem {
        ToolProblem {
            message: message.to_string(),
            hint: hint.to_string(),
            ..ToolProblem::default()
        }
    }

    /// Marks the problem as temporary: for example a machine without space or time.
    pub fn passing(self) -> ToolProblem {
        ToolProblem {
            is_passing: true,
            ..self
        }
    }

    /// Adds the tool.
    pub fn of(self, tool: &str) -> ToolProblem {
        ToolProblem {
            tool: Some(word(tool)),
            ..self
        }
    }

    /// Adds the manifest's line.
    pub fn at(self, line: u64) -> ToolProblem {
        ToolProblem {
            line: (line > 0).then_some(line),
            ..self
        }
    }
}

impl fmt::Display for ToolProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tool) = &self.tool {
            write!(out, "tool `{tool}`: ")?;
        }
        out.write_str(&self.message)?;
        if let Some(line) = self.line {
            write!(out, " (line {line} of the manifest)")?;
        }
        if self.hint.is_empty() {
            Ok(())
        } else {
            write!(out, "; {}", self.hint)
        }
    }
}

/// An untrusted word, sanitized and truncated.
pub(crate) fn word(text: &str) -> String {
    cut(text, MAX_WORD_CHARS)
}

/// An external error message on one line, sanitized and truncated.
pub(crate) fn reason(text: &str) -> String {
    cut(
        &text.split_whitespace().collect::<Vec<_>>().join(" "),
        MAX_REASON_CHARS,
    )
}

fn cut(text: &str, longest: usize) -> String {
    let mut letters = text.chars();
    let begun: String = letters.by_ref().take(longest).collect();
    let rest = if letters.next().is_some() { "…" } else { "" };
    let shown: String = begun.chars().map(shown).collect();
    format!("{shown}{rest}")
}

/// Escapes characters that would break a line or control a terminal. Quotes and backslashes stay
/// readable.
fn shown(letter: char) -> String {
    let is_plain = letter == '"' || letter == '\'' || letter == '\\';
    if is_plain {
        letter.to_string()
    } else {
        letter.escape_debug().to_string()
    }
}
