//! Splits a Containerfile into instructions and parses their arguments.

use super::RecipeError;

/// One instruction with its continued lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// Line number, from 1.
    pub(super) line: usize,
    /// Name in capitals.
    pub(super) name: String,
    /// The arguments; continued lines are joined as Docker joins them.
    pub(super) text: String,
}

/// All instructions. Comments and empty lines are dropped, also within continued lines.
pub(super) fn instructions(text: &str) -> Result<Vec<Instruction>, RecipeError> {
    let mut all: Vec<Instruction> = Vec::new();
    let mut continued = false;
    for (index, line) in text.lines().enumerate() {
        let bad = |what: &str| RecipeError {
            line: index + 1,
            what: what.to_owned(),
        };
        let trimmed = line.trim();
        if trimmed.contains(|c: char| c.is_control() && c != '\t') {
            return Err(bad("there is a control character"));
        }
        if let Some(comment) = trimmed.strip_prefix('#') {
            let directive = comment
                .split('=')
                .next()
                .unwrap_or_default()
                .trim()
                .to_ascii_lowercase();
            match directive.as_str() {
                "escape" | "syntax" if all.is_empty() => {
                    return Err(bad(&format!(
                        "the directive `{directive}` is not known here"
                    )));
                }
                _ => continue,
            }
        }
        if trimmed.is_empty() {
            continue;
        }
        let (body, goes_on) = match trimmed.strip_suffix('\\') {
            Some(body) => (body, true),
            None => (trimmed, false),
        };
        match (continued, all.last_mut()) {
            (true, Some(last)) => last.text.push_str(body),
            _ => {
                let (name, rest) = body.split_once(char::is_whitespace).unwrap_or((body, ""));
                let name = name.to_ascii_uppercase();
                let text = rest.trim_start().to_owned();
                all.push(Instruction {
                    line: index + 1,
                    name,
                    text,
                });
            }
        }
        continued = goes_on;
    }
    for instruction in &mut all {
        instruction.text.truncate(instruction.text.trim_end().len());
        if instruction.text.is_empty() {
            return Err(instruction.bad(format!("{} says nothing", instruction.name)));
        }
    }
    match (continued, all.last()) {
        (true, Some(last)) => {
            Err(last.bad("its last line is continued, and no line follows".to_owned()))
        }
        _ => Ok(all),
    }
}

impl Instruction {
    pub(super) fn bad(&self, what: String) -> RecipeError {
        RecipeError {
            line: self.line,
            what,
        }
    }

    /// Other builders substitute `$` in every instruction but `RUN`.
    fn refuse_variables(&self) -> Result<(), RecipeError> {
        if self.text.contains('$') {
            Err(self.bad(format!(
                "`$` is not replaced in {} here: write the value",
                self.name
            )))
        } else {
            Ok(())
        }
    }

    pub(super) fn one_word(&self) -> Result<String, RecipeError> {
        self.refuse_variables()?;
        if self
            .text
            .contains(|c: char| c.is_whitespace() || c == '"' || c == '\'')
        {
            Err(self.bad(format!("{} takes one plain word", self.name)))
        } else {
            Ok(self.text.clone())
        }
    }

    /// The name of a variable, without a default value.
    pub(super) fn variable(&self) -> Result<String, RecipeError> {
        if is_variable(&self.text) {
            Ok(self.text.clone())
        } else {
            Err(self.bad("write ARG NAME, of A-Z a-z 0-9 _".to_owned()))
        }
    }

    pub(super) fn absolute(&self, path: &str) -> Result<String, RecipeError> {
        let plain = |part: &str| !matches!(part, "" | "." | "..");
        let word = !path.contains(|c: char| c.is_whitespace() || "$\"'".contains(c));
        match path.strip_prefix('/') {
            Some(rest) if word && rest.split('/').all(plain) => Ok(path.to_owned()),
            _ => Err(self.bad(format!("`{path}` is not a plain absolute path"))),
        }
    }

    /// A JSON list of strings: the only form without a shell.
    pub(super) fn list(&self) -> Result<Vec<String>, RecipeError> {
        serde_json::from_str(&self.text).map_err(|_| {
            self.bad(format!(
                "{} takes a JSON list: [\"program\", \"argument\"]",
                self.name
            ))
        })
    }

    /// `NAME=VALUE NAME="VALUE WITH SPACES"`.
    pub(super) fn pairs(&self) -> Result<Vec<(String, String)>, RecipeError> {
        self.refuse_variables()?;
        let mut pairs = Vec::new();
        let mut rest = self.text.as_str();
        while !rest.is_empty() {
            let wrong = || self.bad(format!("write {} NAME=VALUE, or NAME=\"VALUE\"", self.name));
            let (name, after) = rest.split_once('=').ok_or_else(wrong)?;
            let fits = match self.name.as_str() {
                "ENV" => is_variable(name),
                _ => {
                    !name.is_empty()
                        && !name.contains(|c: char| c.is_whitespace() || "\"'\\".contains(c))
                }
            };
            let (value, after) = value(after).filter(|_| fits).ok_or_else(wrong)?;
            pairs.push((name.to_owned(), value.to_owned()));
            rest = after.trim_start();
        }
        Ok(pairs)
    }
}

fn is_variable(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !text.is_empty() && text.bytes().all(fits) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Splits off a value, in double quotes or without, from the rest.
fn value(text: &str) -> Option<(&str, &str)> {
    let (value, after) = match text.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"')?,
        None => text.split_at(text.find(char::is_whitespace).unwrap_or(text.len())),
    };
    let ends = after.is_empty() || after.starts_with(char::is_whitespace);
    let quoted = text.starts_with('"');
    (ends && !value.contains('\\') && (quoted || !value.contains(['"', '\''])))
        .then_some((value, after))
}
