//! Reads a unified diff into changes. What stands between them, such as a commit's message, is passed over; what looks like
//! part of a change and is not is refused.

use super::{BadDiff, Change, Hunk, Line, LineKind, MOST_FILES, What};

/// Reads a diff.
pub(crate) fn parse(diff: &str) -> Result<Vec<Change<'_>>, BadDiff> {
    let mut reader = Reader {
        lines: diff.as_bytes().split(|byte| *byte == b'\n').collect(),
        at: 0,
    };
    // Behind the last newline is no line.
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
                return Err(BadDiff::Binary {
                    path: "?".to_owned(),
                });
            }
            _ => {
                reader.at += 1;
                None
            }
        };
        changes.extend(change);
        if changes.len() > MOST_FILES {
            return Err(BadDiff::TooMany);
        }
    }
    match changes.is_empty() {
        true => Err(BadDiff::Empty),
        false => Ok(changes),
    }
}

fn is_binary(line: &[u8]) -> bool {
    line.starts_with(b"GIT binary patch")
        || (line.starts_with(b"Binary files ") && line.ends_with(b" differ"))
}

struct Reader<'a> {
    lines: Vec<&'a [u8]>,
    at: usize,
}

/// What the lines before git's hunks say.
#[derive(Default)]
struct Header {
    created: bool,
    deleted: bool,
    mode: Option<String>,
    renamed: [Option<String>; 2],
    copied: [Option<String>; 2],
}

/// A name in a header, and whether it comes with the date of a file that never was.
struct Named {
    path: Option<String>,
    is_old: bool,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a [u8]> {
        self.lines.get(self.at).copied()
    }

    fn shape(&self, why: &'static str) -> BadDiff {
        BadDiff::Shape {
            line: self.at + 1,
            why,
        }
    }

    fn is_new_name(&self, ahead: usize) -> bool {
        self.lines
            .get(self.at + ahead)
            .is_some_and(|line| line.starts_with(b"+++ "))
    }

    /// `--- OLD` and `+++ NEW`, with the tab and date that may follow.
    fn names(&mut self) -> Result<[Named; 2], BadDiff> {
        let old = self.name(b"--- ")?;
        let new = self.name(b"+++ ")?;
        Ok([old, new])
    }

    fn name(&mut self, prefix: &[u8]) -> Result<Named, BadDiff> {
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
        Ok(Named {
            path: (path != "/dev/null").then_some(path),
            is_old,
        })
    }

    fn plain(&mut self) -> Result<Change<'a>, BadDiff> {
        let [old, new] = self.names()?;
        let [from, to] = stripped([old.path, new.path]);
        let (hunks, [before, after]) = self.hunks()?;
        if hunks.is_empty() {
            return Err(self.shape("should be a hunk"));
        }
        let what = match (from, to) {
            (None, None) => return Err(self.shape("follows a change of no file")),
            (None, Some(path)) => What::Create(path),
            (Some(path), None) => What::Delete(path),
            (Some(_), Some(path)) if before == 0 && old.is_old => What::Create(path),
            (Some(path), Some(_)) if after == 0 && new.is_old => What::Delete(path),
            (Some(_), Some(path)) => What::Modify(path),
        };
        Ok(Change {
            what,
            executable: None,
            hunks,
        })
    }

    fn git(&mut self) -> Result<Change<'a>, BadDiff> {
        let first = self.at;
        let line = self
            .peek()
            .and_then(|line| line.strip_prefix(b"diff --git "))
            .unwrap_or_default();
        let own = both(line);
        self.at += 1;
        let header = self.header()?;
        let shown = || own.clone().unwrap_or_else(|| "?".to_owned());
        if self.peek().is_some_and(is_binary) {
            return Err(BadDiff::Binary { path: shown() });
        }
        let executable = match header.mode.as_deref() {
            None => None,
            Some("100644" | "100664") => Some(false),
            Some("100755") => Some(true),
            Some(_) => return Err(BadDiff::Special { path: shown() }),
        };
        let named =
            self.peek().is_some_and(|line| line.starts_with(b"--- ")) && self.is_new_name(1);
        let [from, to] = match named {
            true => {
                let [old, new] = self.names()?;
                stripped([old.path, new.path])
            }
            false => [own.clone(), own.clone()],
        };
        let hunks = if named { self.hunks()?.0 } else { Vec::new() };
        let bad = |why| BadDiff::Shape {
            line: first + 1,
            why,
        };
        let unnamed = || bad("names no file that can be read");
        let what = match header {
            Header {
                renamed: [Some(from), Some(to)],
                ..
            } => What::Rename { from, to },
            Header {
                copied: [Some(from), Some(to)],
                ..
            } => What::Copy { from, to },
            Header { created: true, .. } => What::Create(to.ok_or_else(unnamed)?),
            Header { deleted: true, .. } => What::Delete(from.ok_or_else(unnamed)?),
            _ => match (from, to) {
                (None, Some(path)) => What::Create(path),
                (Some(path), None) => What::Delete(path),
                (_, to) => What::Modify(to.ok_or_else(unnamed)?),
            },
        };
        match (&what, hunks.is_empty(), executable) {
            (What::Modify(_), true, None) => Err(bad("changes nothing")),
            _ => Ok(Change {
                what,
                executable,
                hunks,
            }),
        }
    }

    fn header(&mut self) -> Result<Header, BadDiff> {
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
                // One that is neither a file nor executable is refused as well.
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

    /// All hunks that follow, and how many lines they have before and after.
    fn hunks(&mut self) -> Result<(Vec<Hunk<'a>>, [usize; 2]), BadDiff> {
        let (mut hunks, mut lines) = (Vec::new(), [0; 2]);
        while let Some(line) = self.peek().filter(|line| line.starts_with(b"@@ ")) {
            let [(start, before), (_, after)] =
                range(line).ok_or_else(|| self.shape("is no head of a hunk"))?;
            self.at += 1;
            let read = self.hunk_lines(before, after)?;
            // A hunk without lines of its own names the line that it follows.
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
    ) -> Result<Vec<Line<'a>>, BadDiff> {
        let mut lines = Vec::new();
        while before > 0 || after > 0 {
            let line = self
                .peek()
                .ok_or_else(|| self.shape("is missing: the hunk is cut"))?;
            let (kind, text) = match line.split_first() {
                Some((b' ', text)) => (LineKind::Same, text),
                Some((b'-', text)) => (LineKind::Gone, text),
                Some((b'+', text)) => (LineKind::New, text),
                // Whoever takes spaces away at the ends of lines makes this of an empty one.
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
            lines.push(Line { kind, text, ends });
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

/// Git's `a/` and `b/` belong to no name, if both are there.
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

/// The name that stands twice behind `diff --git`, if it does.
fn both(line: &[u8]) -> Option<String> {
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

/// A name as it is, or in C's quotes.
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
