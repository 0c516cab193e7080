//! File steps: read, write and list, by handle and beneath the workspace.

use super::execution::{StepBudget, TIME_IS_OVER};
use crate::tree::{EntryKind, MAX_LISTED, Tree, TreeError, WorkspaceEntry};
use std::{
    io::{BufRead, BufReader},
    path::{Component, Path, PathBuf},
};

/// The most names that one step visits.
pub(super) const MAX_NAMES: usize = 10_000;
const MAX_DEPTH: usize = 64;

/// Why a file step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileStepError {
    pub(super) why: String,
    /// The path, if it leads out of the workspace.
    pub(super) outside: Option<String>,
}

impl From<String> for FileStepError {
    fn from(why: String) -> FileStepError {
        FileStepError { why, outside: None }
    }
}

impl FileStepError {
    fn outside(path: String, how: &str) -> FileStepError {
        FileStepError {
            why: format!("path escapes workspace: `{path}` {how}"),
            outside: Some(path),
        }
    }
}

const LINK_REASON: &str = "leads through a symbolic link, which nobody follows";

/// The error for a symbolic link, which is never followed, wherever it leads.
pub(super) fn link_error(path: &str) -> FileStepError {
    FileStepError::outside(shown(path), LINK_REASON)
}

fn shown(path: &str) -> String {
    path.chars()
        .take(200)
        .flat_map(char::escape_debug)
        .collect()
}

/// Converts an error of the workspace.
pub(super) fn step_error(error: &TreeError) -> FileStepError {
    match error {
        TreeError::Link { path }
        | TreeError::Kind {
            path,
            what: "a symbolic link",
            ..
        } => FileStepError::outside(path.clone(), LINK_REASON),
        other => FileStepError::from(match std::error::Error::source(other) {
            Some(cause) => format!("{other}: {cause}"),
            None => other.to_string(),
        }),
    }
}

/// Checks that a path does not leave the workspace lexically.
pub(super) fn check_path(path: &str) -> Result<&Path, FileStepError> {
    let given = Path::new(path);
    if given.is_absolute() && !given.starts_with(spec::WORKSPACE) {
        return Err(FileStepError::outside(
            shown(path),
            "lies outside /workspace",
        ));
    }
    if given.components().any(|part| part == Component::ParentDir) {
        Err(FileStepError::outside(shown(path), "contains `..`"))
    } else {
        Ok(given)
    }
}

/// Also checks that a path is no symbolic link and leads through none. This is for the error
/// message; the open call refuses links in any case.
fn without_links<'a>(tree: &Tree, path: &'a str) -> Result<&'a Path, FileStepError> {
    let clean = check_path(path)?;
    match tree.stat(clean) {
        Ok(found) if found.kind == EntryKind::Link => Err(link_error(path)),
        Err(error @ TreeError::Link { .. }) => Err(step_error(&error)),
        Ok(_) | Err(_) => Ok(clean),
    }
}

/// Writes a whole file; an existing file keeps its permissions.
pub(super) fn write(tree: &Tree, path: &str, content: &str) -> Result<String, FileStepError> {
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
    let written = written.map_err(|error| step_error(&error))?;
    Ok(format!("wrote {} bytes", written.size_bytes))
}

/// Reads lines `first` to `last` of a file. The result is at most one byte longer than the output
/// limit.
pub(super) fn read(
    tree: &Tree,
    path: &str,
    (first, last): (u64, u64),
    until: &StepBudget,
) -> Result<String, FileStepError> {
    let (file, _) = tree
        .open(without_links(tree, path)?)
        .map_err(|error| step_error(&error))?;
    let mut reader = BufReader::with_capacity(64 << 10, file);
    let mut bytes = Vec::new();
    let mut line = 1;
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

/// Lists everything below a folder, sorted, one name per line; folders end with a slash. A
/// truncated list says so.
pub(super) fn list(tree: &Tree, path: &str, until: &StepBudget) -> Result<String, FileStepError> {
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
    if text.contains(char::is_control) {
        text.escape_debug().to_string()
    } else {
        text.into_owned()
    }
}

/// Visits everything below a folder, sorted, until `visit` returns false; returns why entries were
/// left out.
pub(super) fn walk(
    tree: &Tree,
    top: &Path,
    until: &StepBudget,
    visit: &mut dyn FnMut(&Path, &WorkspaceEntry) -> bool,
) -> Result<Option<String>, FileStepError> {
    let top = top.strip_prefix(spec::WORKSPACE).unwrap_or(top);
    let mut open: Vec<(PathBuf, WorkspaceEntry)> = Vec::new();
    let mut left_out = fill(tree, top, &mut open).map_err(|error| step_error(&error))?;
    let mut count = 0;
    while let Some((path, entry)) = open.pop() {
        count += 1;
        if count > MAX_NAMES {
            return Ok(Some(format!("more than {MAX_NAMES} names")));
        }
        if until.is_over() {
            return Ok(Some(TIME_IS_OVER.to_owned()));
        }
        if !visit(&path, &entry) {
            return Ok(left_out);
        }
        if entry.kind == EntryKind::Folder {
            if path.components().count() >= MAX_DEPTH {
                left_out = Some(format!("folders deeper than {MAX_DEPTH}"));
                continue;
            }
            // The folder may have been removed, or be unreadable.
            match fill(tree, &path, &mut open) {
                Ok(more) => left_out = left_out.or(more),
                Err(TreeError::Missing { .. }) => {}
                Err(error) => left_out = Some(step_error(&error).why),
            }
        }
    }
    Ok(left_out)
}

/// Pushes the entries of a folder on the stack, so that the first name is popped first.
fn fill(
    tree: &Tree,
    folder: &Path,
    open: &mut Vec<(PathBuf, WorkspaceEntry)>,
) -> Result<Option<String>, TreeError> {
    let listing = tree.list(folder, None, MAX_LISTED.min(MAX_NAMES))?;
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
        .then(|| format!("more than {MAX_NAMES} names in a folder")))
}
