//! Steps on files: read, write and list, by handle and beneath the workspace.

use super::bench::{OVER, Until};
use crate::tree::{Entry, EntryKind, MOST_LISTED, Tree, TreeError};
use std::{
    io::{BufRead, BufReader},
    path::{Component, Path, PathBuf},
};

/// Names that one step lists or looks at.
pub(super) const MOST_NAMES: usize = 10_000;
const DEEPEST: usize = 64;

/// Why something cannot be done with files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) why: String,
    /// The path that leads out of the workspace, if it is that.
    pub(super) outside: Option<String>,
}

impl From<String> for Wrong {
    fn from(why: String) -> Wrong {
        Wrong { why, outside: None }
    }
}

impl Wrong {
    fn outside(path: String, how: &str) -> Wrong {
        Wrong {
            why: format!("path escapes workspace: `{path}` {how}"),
            outside: Some(path),
        }
    }
}

const BY_LINK: &str = "leads through a symbolic link, which nobody follows";

/// Of a path that is a link: nobody follows it, so that it does not matter where it leads.
pub(super) fn by_link(path: &str) -> Wrong {
    Wrong::outside(shown(path), BY_LINK)
}

fn shown(path: &str) -> String {
    path.chars()
        .take(200)
        .flat_map(char::escape_debug)
        .collect()
}

/// An error of the workspace, in words.
pub(super) fn told(error: &TreeError) -> Wrong {
    match error {
        TreeError::Link { path }
        | TreeError::Kind {
            path,
            what: "a symbolic link",
            ..
        } => Wrong::outside(path.clone(), BY_LINK),
        other => Wrong::from(match std::error::Error::source(other) {
            Some(cause) => format!("{other}: {cause}"),
            None => other.to_string(),
        }),
    }
}

/// A path that by its words alone does not leave the workspace.
pub(super) fn checked(path: &str) -> Result<&Path, Wrong> {
    let given = Path::new(path);
    if given.is_absolute() && !given.starts_with(spec::WORKSPACE) {
        return Err(Wrong::outside(shown(path), "lies outside /workspace"));
    }
    match given.components().any(|part| part == Component::ParentDir) {
        true => Err(Wrong::outside(shown(path), "contains `..`")),
        false => Ok(given),
    }
}

/// The same, of a path that leads through no link either. What is made of it afterwards is refused where it is opened; this is
/// for the words.
fn without_links<'a>(tree: &Tree, path: &'a str) -> Result<&'a Path, Wrong> {
    let clean = checked(path)?;
    match tree.stat(clean) {
        Ok(found) if found.kind == EntryKind::Link => Err(by_link(path)),
        Err(error @ TreeError::Link { .. }) => Err(told(&error)),
        Ok(_) | Err(_) => Ok(clean),
    }
}

/// Writes a file whole; one that is there keeps its permissions.
pub(super) fn write(tree: &Tree, path: &str, content: &str) -> Result<String, Wrong> {
    let path = without_links(tree, path)?;
    let mode = tree
        .stat(path)
        .ok()
        .filter(|found| found.kind == EntryKind::File)
        .map(|found| found.mode);
    let written = tree.put(path, true).and_then(|mut file| {
        if let Some(mode) = mode {
            file.set_mode(mode);
        }
        file.write(content.as_bytes())?;
        file.publish()
    });
    let written = written.map_err(|error| told(&error))?;
    Ok(format!("wrote {} bytes", written.size_bytes))
}

/// Lines of a file, both ends included, as they are. More than there is room for is cut one byte behind it.
pub(super) fn read(
    tree: &Tree,
    path: &str,
    (first, last): (u64, u64),
    until: &Until,
) -> Result<String, Wrong> {
    let (file, _) = tree
        .open(without_links(tree, path)?)
        .map_err(|error| told(&error))?;
    let (mut reader, mut bytes, mut line) =
        (BufReader::with_capacity(64 << 10, file), Vec::new(), 1);
    while line <= last && bytes.len() <= until.room {
        let piece = reader
            .fill_buf()
            .map_err(|error| format!("`{}` cannot be read: {error}", shown(path)))?;
        if piece.is_empty() || until.is_over() {
            break;
        }
        let end = piece.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(piece.len(), |end| end + 1);
        if line >= first {
            bytes.extend_from_slice(&piece[..count]);
        }
        reader.consume(count);
        line += u64::from(end.is_some());
    }
    bytes.truncate(until.room + 1);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Everything below a folder, one name a line, sorted; folders end with a slash. What is cut says so.
pub(super) fn list(tree: &Tree, path: &str, until: &Until) -> Result<String, Wrong> {
    let mut output = String::new();
    let more = walk(
        tree,
        without_links(tree, path)?,
        until,
        &mut |place, found| {
            let mark = match found.kind {
                EntryKind::File => "",
                EntryKind::Folder => "/",
                EntryKind::Link => "@",
                EntryKind::Special => "=",
            };
            output.push_str(&format!("{}{mark}\n", name(place)));
            output.len() <= until.room
        },
    )?;
    output.extend(more.map(|why| format!("[truncated: {why}]\n")));
    Ok(output)
}

/// A path on one line.
pub(super) fn name(path: &Path) -> String {
    let text = path.to_string_lossy();
    match text.contains(char::is_control) {
        true => text.escape_debug().to_string(),
        false => text.into_owned(),
    }
}

/// Looks at everything below a folder, sorted, until `visit` has enough; says why something was left out.
pub(super) fn walk(
    tree: &Tree,
    top: &Path,
    until: &Until,
    visit: &mut dyn FnMut(&Path, &Entry) -> bool,
) -> Result<Option<String>, Wrong> {
    let top = top.strip_prefix(spec::WORKSPACE).unwrap_or(top);
    let mut open: Vec<(PathBuf, Entry)> = Vec::new();
    let mut left_out = fill(tree, top, &mut open).map_err(|error| told(&error))?;
    let mut count = 0;
    while let Some((path, entry)) = open.pop() {
        count += 1;
        if count > MOST_NAMES {
            return Ok(Some(format!("more than {MOST_NAMES} names")));
        }
        if until.is_over() {
            return Ok(Some(OVER.to_owned()));
        }
        if !visit(&path, &entry) {
            return Ok(left_out);
        }
        if entry.kind == EntryKind::Folder {
            if path.components().count() >= DEEPEST {
                left_out = Some(format!("folders deeper than {DEEPEST}"));
                continue;
            }
            // It may have gone meanwhile, or be nobody's to read.
            match fill(tree, &path, &mut open) {
                Ok(more) => left_out = left_out.or(more),
                Err(TreeError::Missing { .. }) => {}
                Err(error) => left_out = Some(told(&error).why),
            }
        }
    }
    Ok(left_out)
}

/// Puts what is in a folder on the stack, so that the first name comes off first.
fn fill(
    tree: &Tree,
    folder: &Path,
    open: &mut Vec<(PathBuf, Entry)>,
) -> Result<Option<String>, TreeError> {
    let listing = tree.list(folder, None, MOST_LISTED.min(MOST_NAMES))?;
    let found = listing
        .entries
        .into_iter()
        .rev()
        .map(|entry| (folder.join(&entry.name), entry));
    open.extend(found.map(|(path, entry)| {
        (
            path.components()
                .filter(|part| *part != Component::CurDir)
                .collect(),
            entry,
        )
    }));
    Ok(listing
        .more
        .then(|| format!("more than {MOST_NAMES} names in a folder")))
}
