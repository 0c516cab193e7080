//! Searches the files of a workspace for a regular expression, which is matched in linear time,
//! with limits on pattern, line and file sizes.

use super::{
    execution::{StepBudget, TIME_IS_OVER},
    files::{self, FileStepError, check_path, step_error, walk},
};
use crate::tree::{EntryKind, Tree};
use regex::bytes::{Regex, RegexBuilder};
use std::{
    io::Read,
    path::{Path, PathBuf},
};

/// The memory limit of a compiled pattern; with the line limit it bounds the time of a match.
const MAX_PATTERN_BYTES: usize = 256 << 10;
/// The bytes of a line that are searched.
const MAX_LINE_BYTES: usize = 64 << 10;
/// The characters of a matching line that are shown.
const MAX_SHOWN_CHARACTERS: usize = 500;
/// The largest file that is searched, and the most bytes of all files.
const MAX_FILE_BYTES: u64 = 16 << 20;
const MAX_TOTAL_BYTES: u64 = 256 << 20;
const MAX_MATCHES: usize = 10_000;

/// Compiles the caller's pattern.
pub(super) fn pattern(text: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(text)
        .size_limit(MAX_PATTERN_BYTES)
        .dfa_size_limit(MAX_PATTERN_BYTES)
        .build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "is a pattern that is too large".to_owned(),
        _ => "is no pattern that can be matched in linear time (the syntax of RE2)".to_owned(),
    })
}

/// A file filter: `*`, `?`, `**` and `{a,b}`; by path if it contains a slash, otherwise by name.
#[derive(Debug)]
pub(super) struct Glob {
    by_path: bool,
    regex: Regex,
}

pub(super) fn glob(text: &str) -> Result<Glob, String> {
    let mut regex = String::from("^(?:");
    let mut open = 0;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (length, part) = match first {
            '*' if rest.starts_with("**/") => (3, "(?:.*/)?".to_owned()),
            '*' if rest.starts_with("**") => (2, ".*".to_owned()),
            '*' => (1, "[^/]*".to_owned()),
            '?' => (1, "[^/]".to_owned()),
            '{' if open == 0 => (1, "(?:".to_owned()),
            '}' if open == 1 => (1, ")".to_owned()),
            ',' if open == 1 => (1, "|".to_owned()),
            '[' | ']' | '{' | '}' | '\\' => {
                return Err("has more in it than *, ?, ** and {a,b}".to_owned());
            }
            other => (other.len_utf8(), regex::escape(&other.to_string())),
        };
        open = match first {
            '{' => 1,
            '}' => 0,
            _ => open,
        };
        regex.push_str(&part);
        rest = &rest[length..];
    }
    if open != 0 {
        return Err("has a brace without its other half".to_owned());
    }
    let regex = pattern(&format!("(?s){regex})$")).map_err(|_| "is too large".to_owned())?;
    Ok(Glob {
        by_path: text.contains('/'),
        regex,
    })
}

impl Glob {
    fn matches(&self, path: &Path) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let name = if self.by_path {
            Some(path.as_os_str())
        } else {
            path.file_name()
        };
        name.is_some_and(|name| self.regex.is_match(name.as_bytes()))
    }
}

/// Searches files; returns matches as `PATH:LINE:TEXT`, with a last line if some were left out.
pub(super) fn search(
    tree: &Tree,
    text: &str,
    path: &str,
    include: Option<&str>,
    until: &StepBudget,
) -> Result<String, FileStepError> {
    let regex = pattern(text).map_err(|why| format!("the pattern {why}"))?;
    let glob = include
        .map(glob)
        .transpose()
        .map_err(|why| format!("the glob {why}"))?;
    let top = check_path(path)?;
    let inside = top.strip_prefix(spec::WORKSPACE).unwrap_or(top);
    let mut search = Search {
        tree,
        regex,
        until,
        output: String::new(),
        matches: 0,
        bytes: 0,
        left_out: None,
    };
    let found = tree.stat(top).map_err(|error| step_error(&error))?;
    let more = match found.kind {
        EntryKind::File => {
            search.search_file(inside);
            None
        }
        EntryKind::Link => return Err(files::link_error(path)),
        EntryKind::Folder | EntryKind::Special => walk(tree, top, until, &mut |path, entry| {
            let below: PathBuf = path.strip_prefix(inside).unwrap_or(path).to_owned();
            if entry.kind == EntryKind::File
                && glob.as_ref().is_none_or(|glob| glob.matches(&below))
            {
                return search.search_file(path);
            }
            true
        })?,
    };
    let mut output = search.output;
    output.extend(
        search
            .left_out
            .or(more)
            .map(|why| format!("[truncated: {why}]\n")),
    );
    Ok(output)
}

struct Search<'a> {
    tree: &'a Tree,
    regex: Regex,
    until: &'a StepBudget,
    output: String,
    matches: usize,
    bytes: u64,
    left_out: Option<String>,
}

impl Search<'_> {
    /// Searches one file; returns false once there is enough output.
    fn search_file(&mut self, path: &Path) -> bool {
        // A file that was removed or is unreadable has no match.
        let Ok((file, entry)) = self.tree.open(path) else {
            return true;
        };
        if entry.size_bytes > MAX_FILE_BYTES {
            self.left_out = Some(format!("files of more than {MAX_FILE_BYTES} bytes"));
            return true;
        }
        let mut bytes = Vec::new();
        if file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).is_err() || is_binary(&bytes) {
            return true;
        }
        self.bytes += bytes.len() as u64;
        if self.bytes > MAX_TOTAL_BYTES {
            self.left_out = Some(format!("more than {MAX_TOTAL_BYTES} bytes of files"));
            return false;
        }
        let lines = bytes.split(|byte| *byte == b'\n').enumerate();
        lines
            .into_iter()
            .all(|(number, line)| self.match_line(path, number + 1, line))
    }

    fn match_line(&mut self, path: &Path, number: usize, line: &[u8]) -> bool {
        if self.until.is_over() {
            self.left_out = Some(TIME_IS_OVER.to_owned());
            return false;
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > MAX_LINE_BYTES {
            self.left_out = Some(format!(
                "lines of more than {MAX_LINE_BYTES} bytes are looked at up to there"
            ));
        }
        let line = &line[..line.len().min(MAX_LINE_BYTES)];
        if !self.regex.is_match(line) {
            return true;
        }
        self.matches += 1;
        if self.matches > MAX_MATCHES {
            self.left_out = Some(format!("more than {MAX_MATCHES} matches"));
            return false;
        }
        let text: String = String::from_utf8_lossy(line)
            .chars()
            .take(MAX_SHOWN_CHARACTERS)
            .collect();
        self.output
            .push_str(&format!("{}:{number}:{text}\n", files::name(path)));
        self.output.len() <= self.until.room
    }
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(8 << 10)].contains(&0)
}
