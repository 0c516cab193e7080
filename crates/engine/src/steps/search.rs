//! Looks for a pattern in the files of a workspace. Patterns are regular expressions that are matched in linear time, within
//! bounds of their size and of the lines that they are tried on.

use super::{
    bench::{OVER, Until},
    files::{self, Wrong, checked, told, walk},
};
use crate::tree::{EntryKind, Tree};
use regex::bytes::{Regex, RegexBuilder};
use std::{
    io::Read,
    path::{Path, PathBuf},
};

/// How much memory a compiled pattern may take; with the bound of a line, this bounds the time of a match.
const LARGEST_PATTERN: usize = 256 << 10;
/// What of a line is looked at, in bytes.
const LONGEST_LINE: usize = 64 << 10;
/// What of a matching line is shown, in characters.
const LONGEST_SHOWN: usize = 500;
/// How large a file is looked at, and how much of all of them.
const LARGEST_FILE: u64 = 16 << 20;
const MOST_BYTES: u64 = 256 << 20;
const MOST_MATCHES: usize = 10_000;

/// A pattern of the caller's.
pub(super) fn pattern(text: &str) -> Result<Regex, String> {
    let built = RegexBuilder::new(text)
        .size_limit(LARGEST_PATTERN)
        .dfa_size_limit(LARGEST_PATTERN)
        .build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "is a pattern that is too large".to_owned(),
        _ => "is no pattern that can be matched in linear time (the syntax of RE2)".to_owned(),
    })
}

/// Which files: `*`, `?`, `**` and `{a,b}`; by name, or by path if there is a slash in it.
#[derive(Debug)]
pub(super) struct Glob {
    by_path: bool,
    regex: Regex,
}

pub(super) fn glob(text: &str) -> Result<Glob, String> {
    let (mut regex, mut open, mut rest) = (String::from("^(?:"), 0, text);
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
    fn takes(&self, path: &Path) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let name = if self.by_path {
            Some(path.as_os_str())
        } else {
            path.file_name()
        };
        name.is_some_and(|name| self.regex.is_match(name.as_bytes()))
    }
}

/// Matching lines, as `PATH:LINE:TEXT`. What is left out is said at the end.
pub(super) fn search(
    tree: &Tree,
    text: &str,
    path: &str,
    include: Option<&str>,
    until: &Until,
) -> Result<String, Wrong> {
    let regex = pattern(text).map_err(|why| format!("the pattern {why}"))?;
    let glob = include
        .map(glob)
        .transpose()
        .map_err(|why| format!("the glob {why}"))?;
    let top = checked(path)?;
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
    let found = tree.stat(top).map_err(|error| told(&error))?;
    let more = match found.kind {
        EntryKind::File => {
            search.look(inside);
            None
        }
        EntryKind::Link => return Err(files::by_link(path)),
        EntryKind::Folder | EntryKind::Special => walk(tree, top, until, &mut |path, entry| {
            let below: PathBuf = path.strip_prefix(inside).unwrap_or(path).to_owned();
            if entry.kind == EntryKind::File && glob.as_ref().is_none_or(|glob| glob.takes(&below))
            {
                return search.look(path);
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
    until: &'a Until,
    output: String,
    matches: usize,
    bytes: u64,
    left_out: Option<String>,
}

impl Search<'_> {
    /// Looks into one file; false once there is enough.
    fn look(&mut self, path: &Path) -> bool {
        // One that went, or that nobody may read, has no match to show.
        let Ok((file, entry)) = self.tree.open(path) else {
            return true;
        };
        if entry.size_bytes > LARGEST_FILE {
            self.left_out = Some(format!("files of more than {LARGEST_FILE} bytes"));
            return true;
        }
        let mut bytes = Vec::new();
        if file.take(LARGEST_FILE).read_to_end(&mut bytes).is_err() || is_binary(&bytes) {
            return true;
        }
        self.bytes += bytes.len() as u64;
        if self.bytes > MOST_BYTES {
            self.left_out = Some(format!("more than {MOST_BYTES} bytes of files"));
            return false;
        }
        let lines = bytes.split(|byte| *byte == b'\n').enumerate();
        lines
            .into_iter()
            .all(|(number, line)| self.try_line(path, number + 1, line))
    }

    fn try_line(&mut self, path: &Path, number: usize, line: &[u8]) -> bool {
        if self.until.is_over() {
            self.left_out = Some(OVER.to_owned());
            return false;
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > LONGEST_LINE {
            self.left_out = Some(format!(
                "lines of more than {LONGEST_LINE} bytes are looked at up to there"
            ));
        }
        let line = &line[..line.len().min(LONGEST_LINE)];
        if !self.regex.is_match(line) {
            return true;
        }
        self.matches += 1;
        if self.matches > MOST_MATCHES {
            self.left_out = Some(format!("more than {MOST_MATCHES} matches"));
            return false;
        }
        let text: String = String::from_utf8_lossy(line)
            .chars()
            .take(LONGEST_SHOWN)
            .collect();
        self.output
            .push_str(&format!("{}:{number}:{text}\n", files::name(path)));
        self.output.len() <= self.until.room
    }
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(8 << 10)].contains(&0)
}
