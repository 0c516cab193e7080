//! Wheels that lie beside the manifest: all of them are for every tool.

use super::{
    Stamp,
    place::{of_file, short},
    problem::{Problem, word},
};
use engine::tree::Tree;
use rustix::fs::{CWD, Mode, OFlags, openat};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

const MOST_FILES: usize = 64;
const MOST_BYTES: u64 = 512 << 20;
const LONGEST_NAME: usize = 200;

/// The wheels of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wheels {
    folder: PathBuf,
    /// What they are like: other wheels have another stamp.
    pub(crate) stamp: Stamp,
    /// By name; a digest of each.
    pub(crate) files: BTreeMap<String, String>,
}

impl Wheels {
    /// Those of a folder, which need not be there. What was known is read again only where it changed.
    pub(crate) fn look(folder: &Path, known: &Wheels) -> Result<Wheels, Problem> {
        let names = names(folder)?;
        let mut digest = Sha256::new();
        for name in &names {
            digest.update(name);
            of_file(&mut digest, &folder.join(name));
        }
        let stamp = if names.is_empty() { Stamp::default() } else { Stamp(short(digest)) };
        if stamp == known.stamp && known.folder == folder {
            return Ok(known.clone());
        }
        let mut left = MOST_BYTES;
        let mut files = BTreeMap::new();
        for name in names {
            let file = open(folder, &name)?;
            files.insert(name.clone(), read(&name, file, &mut left, |_| Ok(()))?);
        }
        Ok(Wheels { folder: folder.to_owned(), stamp, files })
    }

    /// Puts them into a box, if they still are what they were.
    pub(crate) fn put_into(&self, tree: &Tree, place: &Path) -> Result<(), Problem> {
        let mut left = MOST_BYTES;
        for (name, content) in &self.files {
            let failed = |error: engine::tree::TreeError| unread(name, &error);
            let mut upload = tree.put(&place.join(name), true).map_err(failed)?;
            let write = |bytes: &[u8]| upload.write(bytes).map_err(failed);
            if read(name, open(&self.folder, name)?, &mut left, write)? != *content {
                let message = format!("the wheel `{}` changed while it was read", word(name));
                return Err(Problem::new(message, "it is tried again"));
            }
            upload.publish().map_err(failed)?;
        }
        Ok(())
    }
}

fn unread(name: &str, why: &dyn std::fmt::Display) -> Problem {
    Problem::new(format!("the wheel `{}` cannot be read: {why}", word(name)), "put it there again")
}

/// As PEP 427 has them.
fn is_name(name: &str) -> bool {
    let is_sign = |letter: char| letter.is_ascii_alphanumeric() || "._+!-".contains(letter);
    name.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && name.chars().all(is_sign)
}

fn names(folder: &Path) -> Result<Vec<String>, Problem> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(Problem::new(format!("wheels/ cannot be read: {error}"), "let the worker read it"));
        }
    };
    let mut names = Vec::new();
    for entry in entries.take(16 * MOST_FILES).flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".whl") {
            continue;
        }
        if !is_name(&name) || name.len() > LONGEST_NAME {
            let message = format!("`{}` in wheels/ has no name of a wheel", word(&name));
            return Err(Problem::new(message, "give it the name that it was built with"));
        }
        names.push(name);
    }
    if names.len() > MOST_FILES {
        let message = format!("wheels/ has {} wheels; it may have {MOST_FILES}", names.len());
        return Err(Problem::new(message, "put fewer there, or mount a folder of packages"));
    }
    names.sort();
    Ok(names)
}

/// A regular file, through no link.
fn open(folder: &Path, name: &str) -> Result<File, Problem> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let handle = openat(CWD, folder.join(name), flags, Mode::empty());
    let file = File::from(handle.map_err(|error| unread(name, &error))?);
    match file.metadata() {
        Ok(found) if found.is_file() => Ok(file),
        Ok(_) => Err(unread(name, &"it is no file")),
        Err(error) => Err(unread(name, &error)),
    }
}

/// Gives a digest of a file, and its bytes to `each`.
fn read(
    name: &str,
    mut file: File,
    left: &mut u64,
    mut each: impl FnMut(&[u8]) -> Result<(), Problem>,
) -> Result<String, Problem> {
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 256 << 10]);
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unread(name, &error)),
        };
        *left = left.checked_sub(count as u64).ok_or_else(|| {
            let message = format!("wheels/ has more than {} MiB of wheels", MOST_BYTES >> 20);
            Problem::new(message, "put fewer there, or mount a folder of packages")
        })?;
        digest.update(&buffer[..count]);
        each(&buffer[..count])?;
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
