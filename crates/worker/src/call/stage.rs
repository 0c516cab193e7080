//! What goes into a box: the files of a request, checked and loaded before anything runs. One that is missing, or that has a
//! name which could lead elsewhere, ends the call; no tool runs without its files.

use super::{handle::Workspace, places};
use crate::{
    artifacts::{Scope, Shelf},
    wire::{
        code::{Code, Refusal},
        request::Invoke,
    },
};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
};

/// The longest name, and the longest part of one, in bytes.
const LONGEST_NAME: usize = 1024;
const LONGEST_PART: usize = 255;
/// Folders within folders.
const DEEPEST: usize = 16;

/// A file as the tool is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) filename: String,
    pub(crate) mime_type: String,
    pub(crate) version: i64,
}

impl File {
    /// Where it is inside.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", places::inside(places::INPUT), self.filename)
    }
}

/// Files that were found.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// As the request calls them.
    pub(crate) by_key: BTreeMap<String, File>,
    /// What is written, by name: of two of one name the later.
    pub(crate) bytes: BTreeMap<String, Bytes>,
}

/// Takes the files out of a request: those that came with it, then those that it refers to, which win.
pub(crate) async fn find(
    shelf: &Shelf,
    scope: &Scope,
    invoke: &mut Invoke,
    most: u64,
) -> Result<Staged, Refusal> {
    let (preloaded, references) =
        (std::mem::take(&mut invoke.preloaded), std::mem::take(&mut invoke.references));
    let names = preloaded.values().map(|file| &file.filename);
    names.chain(references.values().map(|file| &file.filename)).try_for_each(|name| check(name))?;
    let mut staged = Staged::default();
    for (key, file) in preloaded {
        let told = File { filename: file.filename.clone(), mime_type: file.mime_type, version: file.version };
        staged.by_key.insert(key, told);
        staged.bytes.insert(file.filename, file.content.into());
    }
    let mut left = left(&staged, most)?;
    for (key, reference) in references {
        let found = shelf.load(scope, &reference.filename, reference.version, left).await;
        let found = found.map_err(|error| {
            refuse(format!("the file `{}` cannot be had: {error}", shown(&reference.filename)))
        })?;
        let told =
            File { filename: reference.filename.clone(), mime_type: found.mime_type, version: found.version };
        staged.by_key.insert(key, told);
        staged.bytes.insert(reference.filename, found.bytes);
        left = self::left(&staged, most)?;
    }
    Ok(staged)
}

/// How many bytes there may be more.
fn left(staged: &Staged, most: u64) -> Result<u64, Refusal> {
    let total: u64 = staged.bytes.values().map(|bytes| bytes.len() as u64).sum();
    most.checked_sub(total).ok_or_else(|| {
        refuse(format!("the files of this call have {total} bytes, and may have {most} together"))
    })
}

/// Writes them.
pub(crate) fn put(workspace: &Workspace, staged: &Staged) -> Result<(), Refusal> {
    if staged.bytes.is_empty() {
        return Ok(());
    }
    let input = workspace
        .open_folder(places::INPUT)
        .map_err(|error| refuse(format!("the folder for files cannot be used: {error}")))?;
    staged.bytes.iter().try_for_each(|(name, bytes)| {
        put_one(workspace, &input, name, bytes)
            .map_err(|error| refuse(format!("the file `{}` cannot be put into place: {error}", shown(name))))
    })
}

fn put_one(workspace: &Workspace, input: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (folders, last) = match name.rsplit_once('/') {
        Some((folders, last)) => (Some(folders), last),
        None => (None, name),
    };
    let mut folder = None::<OwnedFd>;
    for part in folders.iter().flat_map(|folders| folders.split('/')) {
        folder = Some(workspace.enter_folder(folder.as_ref().unwrap_or(input).as_fd(), part)?);
    }
    workspace.make_file(folder.as_ref().unwrap_or(input).as_fd(), last, 0o644, bytes)
}

/// Refuses a name that is no relative path of plain parts.
fn check(name: &str) -> Result<(), Refusal> {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.len() <= LONGEST_PART
            && !part.chars().any(|letter| letter == '\\' || letter.is_control())
    };
    match name.len() <= LONGEST_NAME && name.split('/').count() <= DEEPEST && name.split('/').all(is_plain) {
        true => Ok(()),
        false => Err(refuse(format!("`{}` cannot be the name of a file", shown(name)))),
    }
}

fn refuse(message: String) -> Refusal {
    Refusal::new(Code::ArtifactError, message)
}

/// A stranger's name, fit for a message.
pub(crate) fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(100).flat_map(char::escape_debug).collect();
    if name.chars().nth(100).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let (long, deep) = ("x".repeat(256), ["a"; 17].join("/"));
        for bad in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            "a\\b",
            "a\nb",
            "a\0b",
            &long,
            &deep,
        ] {
            assert!(check(bad).is_err_and(|refusal| refusal.code == Code::ArtifactError), "{bad:?}");
        }
        for good in ["cat.png", "a/b.txt", "user:notes.md", "ünï.txt", "..x", "-rf", ".hidden"] {
            assert!(check(good).is_ok(), "{good:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_that_passes_stays_beneath(name in "[a./\\\\\u{1}\u{e4}]{0,24}") {
            if check(&name).is_ok() {
                prop_assert!(Path::new(&name).components().all(|part| matches!(part, Component::Normal(_))));
            }
        }
    }
}
