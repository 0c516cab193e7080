//! The changes in a layer as a patch for `git apply` and `patch -p1`.
//!
//! ```text
//! diff --git a/PATH b/PATH        of each file and link; names are quoted as git does
//! # PATH: REASON                  what a commit would leave, or a patch cannot express, behind `# `
//! ```
//!
//! The old side is the folder as it is now. Both sides are read by handle and up to a limit, since
//! they are untrusted.

use super::{
    Diff, LayerError, OpenLayer,
    diff::{AssessedChange, ChangeKind, LayerChange},
    failed,
    review::{LayerSummary, Review},
    tree::{self, FileKind, FileState},
};
use rustix::fs::OFlags;
use similar::{Algorithm, DiffOp, capture_diff_slices_deadline, group_diff_ops};
use spec::Id;
use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The largest patch.
pub const MAX_PATCH_BYTES: usize = 16 << 20;
/// The largest file that is compared line by line.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The timeouts for comparing one file and all files; a file that takes longer is shown as
/// replaced.
const FILE_DIFF_TIMEOUT: Duration = Duration::from_secs(1);
const DIFF_TIMEOUT: Duration = Duration::from_secs(20);
/// The context lines around a change.
const CONTEXT: usize = 3;
/// The bytes in which git looks for NUL to detect binary files.
const BINARY_CHECK_BYTES: usize = 8000;
/// The most files that are listed as left out.
const MAX_NAMED: usize = 100;

/// The changes as text.
#[derive(Debug, Default)]
pub struct Patch {
    /// The patch. A hostile program chose every byte in it but the first of each line.
    pub text: Vec<u8>,
    /// The first changes that are too large to be in it, and why.
    pub omitted: Vec<(PathBuf, String)>,
    /// The number of those.
    pub omitted_total: usize,
    /// The first changes that are commented out, and why a commit would leave them.
    pub held: Vec<(PathBuf, String)>,
    /// The number of those.
    pub held_total: usize,
}

/// The changes, and a patch of at most `max_bytes`; with `only`, those at these paths and below.
pub fn patch(
    state: &Path,
    id: &Id,
    only: &[PathBuf],
    max_bytes: usize,
) -> Result<(Diff, Patch), LayerError> {
    let opened = OpenLayer::open(state, id)?;
    let summary = LayerSummary::of(&opened);
    let Some(review) = Review::open(state, opened)? else {
        return Ok((summary.of_nothing(), Patch::default()));
    };
    let mut compared = review.compare()?;
    let is_wanted = |path: &Path| only.is_empty() || only.iter().any(|it| path.starts_with(it));
    compared.assessed.retain(|one| is_wanted(&one.change.path));
    compared.unknown.retain(|(path, _)| is_wanted(path));
    let writing = || {
        let mut writer = PatchWriter::new(&review, max_bytes);
        writer.write_all(&compared.assessed);
        Ok(writer.patch)
    };
    let written = review.rights.act(writing);
    let patch = written.map_err(failed("look at what the program left"))?;
    Ok((summary.of_changes(&review, compared), patch))
}

/// One side of a change: a file or a link.
struct PatchSide {
    is_link: bool,
    mode: u32,
    body: Result<Vec<u8>, String>,
}

impl PatchSide {
    /// The mode in git's notation.
    fn mode(&self) -> &'static str {
        match (self.is_link, self.mode & 0o100 != 0) {
            (true, _) => "120000",
            (false, true) => "100755",
            (false, false) => "100644",
        }
    }
}

/// The text of one change, and why its contents are missing.
#[derive(Default)]
struct Section {
    text: Vec<u8>,
    too_large: Option<String>,
}

struct PatchWriter<'a> {
    review: &'a Review,
    until: Instant,
    room: usize,
    patch: Patch,
}

impl<'a> PatchWriter<'a> {
    fn new(review: &'a Review, room: usize) -> PatchWriter<'a> {
        PatchWriter {
            review,
            until: Instant::now() + DIFF_TIMEOUT,
            room,
            patch: Patch::default(),
        }
    }

    fn write_all(&mut self, wanted: &[AssessedChange]) {
        // What replaces a folder comes behind the removal of its contents.
        let mut later: Vec<(&AssessedChange, Section)> = Vec::new();
        for (number, one) in wanted.iter().enumerate() {
            while let Some((above, _)) = later.last()
                && !one.change.path.starts_with(&above.change.path)
                && let Some((above, section)) = later.pop()
            {
                self.add(above, section);
            }
            let next = wanted.get(number + 1);
            let has_below = next.is_some_and(|it| it.change.path.starts_with(&one.change.path));
            let section = self.section(one, has_below);
            if has_below
                && one.change.what == ChangeKind::Replaced
                && one.change.kind != FileKind::Folder
            {
                later.push((one, section));
            } else {
                self.add(one, section);
            }
        }
        while let Some((above, section)) = later.pop() {
            self.add(above, section);
        }
        let more = self.patch.omitted_total;
        if self.room == 0 && more > 1 {
            let text = format!("# {} more changes are not shown\n", more - 1);
            self.patch.text.extend_from_slice(text.as_bytes());
        }
    }

    fn add(&mut self, one: &AssessedChange, section: Section) {
        let change = &one.change;
        let held = change.left_out.as_ref().or(change.conflict.as_ref());
        let text = match held {
            Some(reason) => {
                self.patch.held_total += 1;
                if self.patch.held.len() < MAX_NAMED {
                    self.patch.held.push((change.path.clone(), reason.clone()));
                }
                commented(&change.path, reason, &section.text)
            }
            None => section.text,
        };
        if let Some(reason) = section.too_large {
            self.omit(&change.path, reason);
        }
        if self.room == 0 {
            return self.omit(&change.path, String::new());
        }
        if text.len() > self.room {
            self.room = 0;
            let stub = stub_header(&change.path, "the patch is too large");
            self.patch.text.extend_from_slice(&stub);
            return self.omit(&change.path, "the patch is too large".to_owned());
        }
        self.room -= text.len();
        self.patch.text.extend_from_slice(&text);
    }

    fn omit(&mut self, path: &Path, reason: String) {
        self.patch.omitted_total += 1;
        if self.patch.omitted.len() < MAX_NAMED && !reason.is_empty() {
            self.patch.omitted.push((path.to_owned(), reason));
        }
    }

    fn section(&self, one: &AssessedChange, has_below: bool) -> Section {
        let change = &one.change;
        if one.is_done {
            return comment_section(&change.path, "the folder has it already");
        }
        if self.room == 0 {
            return Section::default();
        }
        let old = self.old(one);
        let new = self.new_side(change);
        if let (None, None) = (&old, &new) {
            return self.without_contents(change, has_below);
        }
        let until = self.until.min(Instant::now() + FILE_DIFF_TIMEOUT);
        match (old, new) {
            // `patch` cannot change a link, but removes and creates one.
            (Some(old), Some(new)) if old.is_link || new.is_link => {
                let mut section = file_section(&change.path, Some(&old), None, until);
                let made = file_section(&change.path, None, Some(&new), until);
                section.text.extend(made.text);
                section.too_large = section.too_large.or(made.too_large);
                section
            }
            (old, new) => {
                let section = file_section(&change.path, old.as_ref(), new.as_ref(), until);
                let is_mode = change.what == ChangeKind::Mode && section.text.is_empty();
                match old.filter(|_| is_mode) {
                    Some(old) => {
                        let words = format!("permissions {:03o} -> {:03o}", old.mode, change.mode);
                        comment_section(&change.path, &words)
                    }
                    None => section,
                }
            }
        }
    }

    /// Folders and special files, which a patch cannot express.
    fn without_contents(&self, change: &LayerChange, has_below: bool) -> Section {
        let words = match (change.kind, change.what) {
            (FileKind::Other, ChangeKind::Removed) => "a pipe, socket or device was removed",
            (FileKind::Other, _) => "it is a pipe, a socket or a device",
            (_, ChangeKind::Mode) => {
                let words = format!("permissions {:03o}", change.mode);
                return comment_section(&change.path, &words);
            }
            // The entries in it say so.
            _ if has_below => return Section::default(),
            (_, ChangeKind::Removed) => "the folder was removed",
            (_, ChangeKind::Added | ChangeKind::Replaced | ChangeKind::Changed) => "a new folder",
        };
        comment_section(&change.path, words)
    }

    /// The folder's version of what the program saw at the start: hidden and newer files are not
    /// disclosed.
    fn old(&self, one: &AssessedChange) -> Option<PatchSide> {
        let path = &one.change.path;
        let was = self.review.known.base.get(path)?;
        let Some(folder) = &self.review.folder else {
            let body = match was.kind {
                FileKind::Link => Ok(was.target.as_bytes().to_vec()),
                FileKind::File => Err("the folder is not there to be compared".to_owned()),
                FileKind::Folder | FileKind::Other => return None,
            };
            return Some(PatchSide {
                is_link: was.kind == FileKind::Link,
                mode: was.mode,
                body,
            });
        };
        let FileState {
            kind, mode, target, ..
        } = one.found.as_ref().filter(|now| now.kind == was.kind)?;
        self.side(folder.as_fd(), path, (*kind, *mode), target.as_deref())
    }

    /// The program's version.
    fn new_side(&self, change: &LayerChange) -> Option<PatchSide> {
        if change.what == ChangeKind::Removed {
            return None;
        }
        let Review {
            upper,
            folder,
            tree,
            ..
        } = self.review;
        let moved = upper
            .as_ref()
            .and_then(|upper| upper.moved.get(&change.path));
        let (side, path) = match (moved, folder) {
            (Some(old), Some(folder)) => (folder.as_fd(), old),
            _ => (tree.as_fd(), &change.path),
        };
        let target = change.target.as_deref();
        self.side(side, path, (change.kind, change.mode), target)
    }

    fn side(
        &self,
        side: BorrowedFd<'_>,
        path: &Path,
        (kind, mode): (FileKind, u32),
        target: Option<&std::ffi::OsStr>,
    ) -> Option<PatchSide> {
        let body = match kind {
            FileKind::File => contents(side, path),
            FileKind::Link => Ok(target.unwrap_or_default().as_bytes().to_vec()),
            FileKind::Folder | FileKind::Other => return None,
        };
        Some(PatchSide {
            is_link: kind == FileKind::Link,
            mode,
            body,
        })
    }
}

/// The contents of a regular file up to the limit, or why they are missing.
fn contents(side: BorrowedFd<'_>, path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: io::Error| format!("it cannot be read: {error}");
    let file = tree::open(side, path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(unreadable)?;
    let found = rustix::fs::fstat(&file).map_err(|error| unreadable(error.into()))?;
    if tree::kind(&found) != FileKind::File {
        return Err("it is no file any more".to_owned());
    }
    let mut bytes = Vec::new();
    let read = File::from(file)
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes);
    read.map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("it is larger than {} MiB", MAX_FILE_BYTES >> 20));
    }
    Ok(bytes)
}

/// A comment line.
fn comment_section(path: &Path, words: &str) -> Section {
    let mut text = b"# ".to_vec();
    text.extend(quoted("", path));
    text.extend_from_slice(format!(": {}\n", one_line(words)).as_bytes());
    Section {
        text,
        too_large: None,
    }
}

/// No tool interprets lines that begin with `#`.
fn commented(path: &Path, reason: &str, section: &[u8]) -> Vec<u8> {
    let mut text = comment_section(path, reason).text;
    for line in section.split_inclusive(|byte| *byte == b'\n') {
        if !line.starts_with(b"# ") {
            text.extend_from_slice(b"# ");
        }
        text.extend_from_slice(line);
    }
    text
}

fn one_line(words: &str) -> String {
    words.chars().fold(String::new(), |mut line, character| {
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
        line
    })
}

/// A header without a change: `git apply` refuses a patch that contains one.
fn stub_header(path: &Path, why: &str) -> Vec<u8> {
    let (a, b) = (quoted("a/", path), quoted("b/", path));
    let why = one_line(why);
    let parts: [&[u8]; 9] = [
        b"diff --git ",
        &a,
        b" ",
        &b,
        b"\nFiles ",
        &a,
        b" and ",
        &b,
        b" differ: ",
    ];
    let mut text = parts.concat();
    text.extend_from_slice(why.as_bytes());
    text.push(b'\n');
    text
}

/// The section of a file or link that is new, removed or changed.
fn file_section(
    path: &Path,
    old: Option<&PatchSide>,
    new: Option<&PatchSide>,
    until: Instant,
) -> Section {
    let mut bodies = [old, new]
        .into_iter()
        .flatten()
        .map(|side| side.body.as_ref());
    if let Some(Err(why)) = bodies.find(|body| body.is_err()) {
        return Section {
            text: stub_header(path, why),
            too_large: Some(why.clone()),
        };
    }
    let body = |side: Option<&'_ PatchSide>| -> Vec<u8> {
        let body = side.and_then(|side| side.body.as_ref().ok());
        body.cloned().unwrap_or_default()
    };
    let (before, after) = (body(old), body(new));
    let header = modes(old, new);
    if header.is_empty() && before == after {
        return Section::default();
    }
    let (a, b) = (quoted("a/", path), quoted("b/", path));
    let mut text = [b"diff --git ", &a[..], b" ", &b, b"\n"].concat();
    text.extend_from_slice(header.as_bytes());
    let nowhere = b"/dev/null".to_vec();
    let from = if old.is_some() { a } else { nowhere.clone() };
    let to = if new.is_some() { b } else { nowhere };
    if before == after {
        if old.is_none() {
            text.extend_from_slice(b"index 0000000..e69de29\n");
        } else if new.is_none() {
            text.extend_from_slice(b"index e69de29..0000000\n");
        }
    } else if is_binary(&before) || is_binary(&after) {
        text.extend([b"Binary files ", &from[..], b" and ", &to, b" differ\n"].concat());
    } else {
        for (mark, name) in [("--- ", &from), ("+++ ", &to)] {
            text.extend_from_slice(mark.as_bytes());
            text.extend_from_slice(name);
            // Otherwise `patch` would take the rest for a timestamp.
            if name.contains(&b' ') {
                text.push(b'\t');
            }
            text.push(b'\n');
        }
        write_hunks(&before, &after, until, &mut text);
    }
    Section {
        text,
        too_large: None,
    }
}

fn modes(old: Option<&PatchSide>, new: Option<&PatchSide>) -> String {
    match (old.map(PatchSide::mode), new.map(PatchSide::mode)) {
        (None, Some(mode)) => format!("new file mode {mode}\n"),
        (Some(mode), None) => format!("deleted file mode {mode}\n"),
        (Some(old), Some(new)) if old != new => format!("old mode {old}\nnew mode {new}\n"),
        _ => String::new(),
    }
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(BINARY_CHECK_BYTES).any(|byte| *byte == 0)
}

fn write_hunks(old: &[u8], new: &[u8], until: Instant, out: &mut Vec<u8>) {
    let lines =
        |text| -> Vec<&[u8]> { <[u8]>::split_inclusive(text, |byte| *byte == b'\n').collect() };
    let (old, new) = (lines(old), lines(new));
    let changes = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(until));
    for group in group_diff_ops(changes, CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let range = |start: usize, end: usize| match end - start {
            0 => format!("{start},0"),
            1 => format!("{}", start + 1),
            count => format!("{},{count}", start + 1),
        };
        let before = range(first.old_range().start, last.old_range().end);
        let after = range(first.new_range().start, last.new_range().end);
        out.extend_from_slice(format!("@@ -{before} +{after} @@\n").as_bytes());
        for change in &group {
            write_lines(change, (&old, &new), out);
        }
    }
}

fn write_lines(change: &DiffOp, (old, new): (&[&[u8]], &[&[u8]]), out: &mut Vec<u8>) {
    if let DiffOp::Equal { .. } = change {
        return write_marked(b' ', &old[change.old_range()], out);
    }
    write_marked(b'-', &old[change.old_range()], out);
    write_marked(b'+', &new[change.new_range()], out);
}

fn write_marked(mark: u8, lines: &[&[u8]], out: &mut Vec<u8>) {
    for line in lines {
        out.push(mark);
        out.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            out.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

/// A name as git writes it, in quotes if it has special bytes.
fn quoted(side: &str, path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if bytes.iter().all(is_plain) {
        return [side.as_bytes(), bytes].concat();
    }
    let mut name = format!("\"{side}").into_bytes();
    for byte in bytes {
        match byte {
            b'"' | b'\\' => name.extend([b'\\', *byte]),
            b'\n' => name.extend(b"\\n"),
            b'\t' => name.extend(b"\\t"),
            _ if is_plain(byte) => name.push(*byte),
            _ => name.extend(format!("\\{byte:03o}").into_bytes()),
        }
    }
    name.push(b'"');
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunks(old: &str, new: &str) -> String {
        let mut out = Vec::new();
        let until = Instant::now() + Duration::from_secs(60);
        write_hunks(old.as_bytes(), new.as_bytes(), until, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn hunks_count_lines_as_patch_does() {
        assert_eq!(hunks("", "a\n"), "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(hunks("a\nb\n", ""), "@@ -1,2 +0,0 @@\n-a\n-b\n");
        assert_eq!(
            hunks("a\nb", "a\nc\n"),
            "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n"
        );
    }

    #[test]
    fn a_carriage_return_ends_no_line() {
        assert_eq!(hunks("a\rb\n", "a\rc\n"), "@@ -1 +1 @@\n-a\rb\n+a\rc\n");
    }

    #[test]
    fn names_are_quoted_as_git_quotes_them() {
        let name = |bytes: &[u8]| {
            let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
            String::from_utf8(quoted("a/", path)).unwrap()
        };
        assert_eq!(name(b"x y"), "a/x y");
        assert_eq!(name(b"x\ny\"\\\xff"), r#""a/x\ny\"\\\377""#);
    }

    #[test]
    fn what_is_behind_a_mark_is_no_patch() {
        let path = Path::new(".envrc");
        let text = commented(path, "no\nway", b"diff --git a/.envrc b/.envrc\n+x\n");
        let text = String::from_utf8(text).unwrap();
        assert!(text.lines().all(|line| line.starts_with("# ")), "{text}");
    }
}
