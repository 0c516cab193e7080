//! Parses a unified diff. Text between changes, such as a commit message, is skipped; a malformed
//! change is refused.

use super::{DiffError, FileOperation, FilePatch, Hunk, HunkLine, LineKind, MAX_FILES};

/// Parses a diff.
pub(crate) fn parse(diff: &str) -> Result<Vec<FilePatch<'_>>, DiffError> {
    let mut reader = DiffReader {
        lines: diff.as_bytes().split(|byte| *byte == b'\n').collect(),
        at: 0,
    };
    // The part behind the last newline is not a line.
    if reader.lines.last().is_some_and(|line| line.is_empty()) {
        reader.lines.pop();
    }
    let mut changes = Vec::new();
    while let Some(line) = reader.peek() {
        let change = match line {
            line if line.starts_with(b"diff --git ") => Some(reader.git()?),
            line if line.starts_with(b"--- ") && reader.is_new_name(1) => Some(reader.plain()?),
            line if line.starts_with(b"@@ ") => return Err(reader.shape("is a hunk of no file")),
            line if is_binary(line) => {
                return Err(DiffError::Binary {
                    path: "?".to_owned(),
                });
            }
            _ => {
                reader.at += 1;
                None
            }
        };
        changes.extend(change);
        if changes.len() > MAX_FILES {
            return Err(DiffError::TooMany);
        }
    }
    if changes.is_empty() {
        Err(DiffError::Empty)
    } else {
        Ok(changes)
    }
}

fn is_binary(line: &[u8]) -> bool {
    line.starts_with(b"GIT binary patch")
        || (line.starts_with(b"Binary files ") && line.ends_with(b" differ"))
}

struct DiffReader<'a> {
    lines: Vec<&'a [u8]>,
    at: usize,
}

/// The extended header lines of git.
#[derive(Default)]
struct Header {
    created: bool,
    deleted: bool,
    mode: Option<String>,
    renamed: [Option<String>; 2],
    copied: [Option<String>; 2],
}

/// A name in a header, and whether its timestamp is the epoch, which marks a file that does not
/// exist.
struct HeaderName {
    path: Option<String>,
    is_old: bool,
}

impl<'a> DiffReader<'a> {
    fn peek(&self) -> Option<&'a [u8]> {
        self.lines.get(self.at).copied()
    }

    fn shape(&self, why: &'static str) -> DiffError {
        DiffError::Shape {
            line: self.at + 1,
            why,
        }
    }

    fn is_new_name(&self, ahead: usize) -> bool {
        self.lines
            .get(self.at + ahead)
            .is_some_and(|line| line.starts_with(b"+++ "))
    }

    /// `--- OLD` and `+++ NEW`, with an optional tab and timestamp.
    fn names(&mut self) -> Result<[HeaderName; 2], DiffError> {
        let old = self.name(b"--- ")?;
        let new = self.name(b"+++ ")?;
        Ok([old, new])
    }

    fn name(&mut self, prefix: &[u8]) -> Result<HeaderName, DiffError> {
        let line = self.peek().and_then(|line| line.strip_prefix(prefix));
        let line = line.ok_or_else(|| self.shape("is not the name that belongs here"))?;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (name, date) = match line.iter().position(|byte| *byte == b'\t') {
            Some(tab) if !line.starts_with(b"\"") => (&line[..tab], &line[tab + 1..]),
            _ => (line, &b""[..]),
        };
        let path = unquoted(name).ok_or_else(|| self.shape("has a name that cannot be read"))?;
        self.at += 1;
        let is_old = date.starts_with(b"1970-01-01 ") || date.starts_with(b"1969-12-31 ");
        Ok(HeaderName {
            path: (path != "/dev/null").then_some(path),
            is_old,
        })
    }

    fn plain(&mut self) -> Result<FilePatch<'a>, DiffError> {
        let [old, new] = self.names()?;
        let [from, to] = stripped([old.path, new.path]);
        let (hunks, [before, after]) = self.hunks()?;
        if hunks.is_empty() {
            return Err(self.shape("should be a hunk"));
        }
        let what = match (from, to) {
            (None, None) => return Err(self.shape("follows a change of no file")),
            (None, Some(path)) => FileOperation::Create(path),
            (Some(path), None) => FileOperation::Delete(path),
            (Some(_), Some(path)) if before == 0 && old.is_old => FileOperation::Create(path),
            (Some(path), Some(_)) if after == 0 && new.is_old => FileOperation::Delete(path),
            (Some(_), Some(path)) => FileOperation::Modify(path),
        };
        Ok(FilePatch {
            what,
            executable: None,
            hunks,
        })
    }

    fn git(&mut self) -> Result<FilePatch<'a>, DiffError> {
        let first = self.at;
        let line = self
            .peek()
            .and_then(|line| line.strip_prefix(b"diff --git "))
            .unwrap_or_default();
        let own = repeated_name(line);
        self.at += 1;
        let header = self.header()?;
        let shown = || own.clone().unwrap_or_else(|| "?".to_owned());
        if self.peek().is_some_and(is_binary) {
            return Err(DiffError::Binary { path: shown() });
        }
        let executable = match header.mode.as_deref() {
            None => None,
            Some("100644" | "100664") => Some(false),
            Some("100755") => Some(true),
            Some(_) => return Err(DiffError::Special { path: shown() }),
        };
        let named =
            self.peek().is_some_and(|line| line.starts_with(b"--- ")) && self.is_new_name(1);
        let [from, to] = if named {
            let [old, new] = self.names()?;
            stripped([old.path, new.path])
        } else {
            [own.clone(), own.clone()]
        };
        let hunks = if named { self.hunks()?.0 } else { Vec::new() };
        let bad = |why| DiffError::Shape {
            line: first + 1,
            why,
        };
        let unnamed = || bad("names no file that can be read");
        let what = match header {
            Header {
                renamed: [Some(from), Some(to)],
                ..
            } => FileOperation::Rename { from, to },
            Header {
                copied: [Some(from), Some(to)],
                ..
            } => FileOperation::Copy { from, to },
            Header { created: true, .. } => FileOperation::Create(to.ok_or_else(unnamed)?),
            Header { deleted: true, .. } => FileOperation::Delete(from.ok_or_else(unnamed)?),
            _ => match (from, to) {
                (None, Some(path)) => FileOperation::Create(path),
                (Some(path), None) => FileOperation::Delete(path),
                (_, to) => FileOperation::Modify(to.ok_or_else(unnamed)?),
            },
        };
        match (&what, hunks.is_empty(), executable) {
            (FileOperation::Modify(_), true, None) => Err(bad("changes nothing")),
            _ => Ok(FilePatch {
                what,
                executable,
                hunks,
            }),
        }
    }

    fn header(&mut self) -> Result<Header, DiffError> {
        let mut header = Header::default();
        while let Some(line) = self.peek() {
            let text = std::str::from_utf8(line).map_err(|_| self.shape("is no text"))?;
            let text = text.strip_suffix('\r').unwrap_or(text);
            let name = |rest: &str| {
                unquoted(rest.as_bytes())
                    .map(Some)
                    .ok_or_else(|| self.shape("has a name that cannot be read"))
            };
            let after = |prefix: &str| text.strip_prefix(prefix);
            if let Some(mode) = after("new file mode ") {
                (header.created, header.mode) = (true, Some(mode.to_owned()));
            } else if let Some(mode) = after("deleted file mode ") {
                // A mode that is not of a regular file is refused as well.
                (header.deleted, header.mode) = (true, Some(mode.to_owned()));
            } else if let Some(mode) = after("new mode ") {
                header.mode = Some(mode.to_owned());
            } else if let Some(rest) = after("rename from ") {
                header.renamed[0] = name(rest)?;
            } else if let Some(rest) = after("rename to ") {
                header.renamed[1] = name(rest)?;
            } else if let Some(rest) = after("copy from ") {
                header.copied[0] = name(rest)?;
            } else if let Some(rest) = after("copy to ") {
                header.copied[1] = name(rest)?;
            } else if ![
                "old mode ",
                "similarity index ",
                "dissimilarity index ",
                "index ",
            ]
            .iter()
            .any(|known| text.starts_with(known))
            {
                break;
            }
            self.at += 1;
        }
        Ok(header)
    }

    /// The hunks that follow, and their numbers of lines before and after.
    fn hunks(&mut self) -> Result<(Vec<Hunk<'a>>, [usize; 2]), DiffError> {
        let mut hunks = Vec::new();
        let mut lines = [0; 2];
        while let Some(line) = self.peek().filter(|line| line.starts_with(b"@@ ")) {
            let [(start, before), (_, after)] =
                range(line).ok_or_else(|| self.shape("is no head of a hunk"))?;
            self.at += 1;
            let read = self.hunk_lines(before, after)?;
            // A hunk without old lines names the line that it follows.
            let at = if before == 0 {
                start
            } else {
                start.saturating_sub(1)
            };
            hunks.push(Hunk { at, lines: read });
            lines = [lines[0] + before, lines[1] + after];
        }
        Ok((hunks, lines))
    }

    fn hunk_lines(
        &mut self,
        mut before: usize,
        mut after: usize,
    ) -> Result<Vec<HunkLine<'a>>, DiffError> {
        let mut lines = Vec::new();
        while before > 0 || after > 0 {
            let line = self
                .peek()
                .ok_or_else(|| self.shape("is missing: the hunk is cut"))?;
            let (kind, text) = match line.split_first() {
                Some((b' ', text)) => (LineKind::Same, text),
                Some((b'-', text)) => (LineKind::Gone, text),
                Some((b'+', text)) => (LineKind::New, text),
                // Tools that strip trailing blanks turn an empty context line into this.
                None => (LineKind::Same, line),
                Some((b'\r', [])) => (LineKind::Same, line),
                Some(_) => return Err(self.shape("is no line of a hunk")),
            };
            let uses = [kind != LineKind::New, kind != LineKind::Gone].map(usize::from);
            let less = |count: usize, used| count.checked_sub(used);
            let (Some(less_before), Some(less_after)) =
                (less(before, uses[0]), less(after, uses[1]))
            else {
                return Err(self.shape("is more than the hunk says that it has"));
            };
            (before, after) = (less_before, less_after);
            self.at += 1;
            let ends = !self.peek().is_some_and(|line| line.starts_with(b"\\ "));
            self.at += usize::from(!ends);
            lines.push(HunkLine { kind, text, ends });
        }
        Ok(lines)
    }
}

/// `@@ -START[,COUNT] +START[,COUNT] @@`
fn range(line: &[u8]) -> Option<[(usize, usize); 2]> {
    let rest = std::str::from_utf8(line).ok()?.strip_prefix("@@ -")?;
    let (old, rest) = rest.split_once(" +")?;
    let (new, _) = rest.split_once(" @@")?;
    Some([pair(old)?, pair(new)?])
}

fn pair(text: &str) -> Option<(usize, usize)> {
    let number = |text: &str| {
        text.parse::<u32>()
            .ok()
            .filter(|_| !text.starts_with('+'))
            .map(|number| number as usize)
    };
    match text.split_once(',') {
        None => Some((number(text)?, 1)),
        Some((start, count)) => Some((number(start)?, number(count)?)),
    }
}

/// Removes git's `a/` and `b/` prefixes, if both are there.
fn stripped([old, new]: [Option<String>; 2]) -> [Option<String>; 2] {
    let without = |name: &Option<String>, prefix: &str| match name {
        None => Some(None),
        Some(name) => name.strip_prefix(prefix).map(|name| Some(name.to_owned())),
    };
    match (without(&old, "a/"), without(&new, "b/")) {
        (Some(old), Some(new)) => [old, new],
        _ => [old, new],
    }
}

/// The name that stands twice behind `diff --git`, if both are equal.
fn repeated_name(line: &[u8]) -> Option<String> {
    let line = std::str::from_utf8(line).ok()?;
    let line = line.strip_suffix('\r').unwrap_or(line);
    let halves = line
        .match_indices(' ')
        .map(|(at, _)| (&line[..at], &line[at + 1..]));
    halves
        .filter_map(|(old, new)| Some([unquoted(old.as_bytes())?, unquoted(new.as_bytes())?]))
        .map(|[old, new]| stripped([Some(old), Some(new)]))
        .find_map(|[old, new]| (old == new).then_some(old).flatten())
}

/// A plain name, or one in C-style quotes.
fn unquoted(name: &[u8]) -> Option<String> {
    let Some(quoted) = name.strip_prefix(b"\"") else {
        return std::str::from_utf8(name)
            .ok()
            .filter(|name| !name.is_empty())
            .map(str::to_owned);
    };
    let mut bytes = Vec::new();
    let mut rest = quoted.iter().copied();
    loop {
        match rest.next()? {
            b'"' => break,
            b'\\' => bytes.push(escaped(&mut rest)?),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|name| !name.is_empty())
}

fn escaped(rest: &mut impl Iterator<Item = u8>) -> Option<u8> {
    Some(match rest.next()? {
        b'a' => 7,
        b'b' => 8,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 11,
        b'f' => 12,
        b'r' => b'\r',
        byte @ (b'"' | b'\\') => byte,
        first @ b'0'..=b'3' => {
            let digit = |byte: u8| (b'0'..=b'7').contains(&byte).then(|| byte - b'0');
            (first - b'0') * 64 + digit(rest.next()?)? * 8 + digit(rest.next()?)?
        }
        _ => return None,
    })
}
