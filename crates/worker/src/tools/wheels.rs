//! Wheels that lie beside the manifest: all of them are for every tool. One that cannot be used is left out, and named.

use super::{
    Stamp,
    place::{of_file, short},
    problem::{Problem, word},
};
use engine::tree::Tree;
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
};
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
    /// What is wrong with those that are left out.
    pub(crate) problems: Vec<Problem>,
}

impl Wheels {
    /// Those of a folder, which need not be there. What was known is read again only where it changed.
    pub(crate) fn look(folder: &Path, known: &Wheels) -> Result<Wheels, Problem> {
        let (names, misnamed) = names(folder)?;
        let stamp = stamp(folder, &names, &misnamed);
        if stamp == known.stamp && known.folder == folder {
            return Ok(known.clone());
        }
        let mut looked =
            Wheels { folder: folder.to_owned(), stamp, files: BTreeMap::new(), problems: misnamed };
        let mut left = MOST_BYTES;
        for name in names {
            // One that does not fit takes nothing from those behind it.
            let mut rest = left;
            match open(folder, &name).and_then(|file| read(&name, file, &mut rest, |_| Ok(()))) {
                Ok(content) => {
                    left = rest;
                    looked.files.insert(name, content);
                }
                Err(problem) if problem.is_passing => return Err(problem),
                Err(problem) => looked.problems.push(problem),
            }
        }
        Ok(looked)
    }

    /// Puts them into a box, if they still are what they were.
    pub(crate) fn put_into(&self, tree: &Tree, place: &Path) -> Result<(), Problem> {
        let mut left = MOST_BYTES;
        for (name, content) in &self.files {
            let failed = |error: engine::tree::TreeError| unread(name, &error).passing();
            let mut upload = tree.put(&place.join(name), true).map_err(failed)?;
            let write = |bytes: &[u8]| upload.write(bytes).map_err(failed);
            if read(name, open(&self.folder, name)?, &mut left, write)? != *content {
                let message = format!("the wheel `{}` changed while it was read", word(name));
                return Err(Problem::new(message, "it is tried again").passing());
            }
            upload.publish().map_err(failed)?;
        }
        Ok(())
    }
}

fn unread(name: &str, why: &dyn std::fmt::Display) -> Problem {
    let message = format!("the wheel `{}` cannot be read: {why}", word(name));
    Problem::new(message, "put it there again; tools that import it fail")
}

/// What a folder of these is like now.
fn stamp(folder: &Path, names: &[String], misnamed: &[Problem]) -> Stamp {
    if names.is_empty() && misnamed.is_empty() {
        return Stamp::default();
    }
    let mut digest = Sha256::new();
    misnamed.iter().for_each(|problem| digest.update(&problem.message));
    for name in names {
        digest.update(name);
        of_file(&mut digest, &folder.join(name));
    }
    Stamp(short(digest))
}

/// As PEP 427 has them.
fn is_name(name: &str) -> bool {
    let is_sign = |letter: char| letter.is_ascii_alphanumeric() || "._+!-".contains(letter);
    name.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && name.chars().all(is_sign)
}

/// Those that may be wheels, and what is wrong with the names of others.
fn names(folder: &Path) -> Result<(Vec<String>, Vec<Problem>), Problem> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) => {
            return Err(Problem::new(format!("wheels/ cannot be read: {error}"), "let the worker read it"));
        }
    };
    let names = entries.take(16 * MOST_FILES).flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let names = names.filter(|name| name.ends_with(".whl"));
    let (mut names, mut others): (Vec<_>, Vec<_>) =
        names.partition(|name| is_name(name) && name.len() <= LONGEST_NAME);
    if names.len() > MOST_FILES {
        let message = format!("wheels/ has {} wheels; it may have {MOST_FILES}", names.len());
        return Err(Problem::new(message, "put fewer there, or mount a folder of packages"));
    }
    names.sort();
    others.sort();
    let misnamed = |name: &String| {
        let message = format!("`{}` in wheels/ has no name of a wheel, and is left out", word(name));
        Problem::new(message, "give it the name that it was built with")
    };
    let misnamed = others.iter().take(MOST_FILES).map(misnamed).collect();
    Ok((names, misnamed))
}

/// A regular file, through no link.
fn open(folder: &Path, name: &str) -> Result<File, Problem> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let handle = openat(CWD, folder.join(name), flags, Mode::empty());
    let file = File::from(handle.map_err(|error| match error {
        Errno::LOOP => unread(name, &"it is a link"),
        // Not for what it is: those before it would have failed as well.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => unread(name, &error).passing(),
        other => unread(name, &other),
    })?);
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
    let too_much = || {
        let why = format!("with it there are more than {} MiB of wheels", MOST_BYTES >> 20);
        let hint = "put fewer there, or mount a folder of packages";
        Problem { hint: hint.to_owned(), ..unread(name, &why) }
    };
    if file.metadata().is_ok_and(|found| found.len() > *left) {
        return Err(too_much());
    }
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 256 << 10]);
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unread(name, &error)),
        };
        *left = left.checked_sub(count as u64).ok_or_else(too_much)?;
        digest.update(&buffer[..count]);
        each(&buffer[..count])?;
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_misnamed_or_no_file_is_left_out_alone_and_named() {
        let top = std::env::temp_dir().join(format!("airlock-wheels-{}", std::process::id()));
        fs::create_dir_all(top.join("dir-1.0-py3-none-any.whl")).unwrap();
        fs::write(top.join("good-1.0-py3-none-any.whl"), "x").unwrap();
        fs::write(top.join("my wheel (1).whl"), "x").unwrap();
        std::os::unix::fs::symlink("good-1.0-py3-none-any.whl", top.join("link-1.0-py3-none-any.whl"))
            .unwrap();
        let huge = File::create(top.join("huge-1.0-py3-none-any.whl")).unwrap();
        huge.set_len(MOST_BYTES + 1).unwrap();
        let found = Wheels::look(&top, &Wheels::default()).unwrap();
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["good-1.0-py3-none-any.whl"]);
        let told: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
        let named = ["`my wheel (1).whl`", "`dir-1.0", "`huge-1.0", "`link-1.0"];
        assert_eq!(told.len(), named.len(), "{told:?}");
        assert!(told.iter().zip(named).all(|(told, name)| told.contains(name)), "{told:?}");
        assert!(told[3].contains("a link") && told[2].contains("512 MiB"), "{told:?}");
        assert_eq!(Wheels::look(&top, &found), Ok(found.clone()), "and it stays told");
        fs::remove_file(top.join("link-1.0-py3-none-any.whl")).unwrap();
        fs::write(top.join("link-1.0-py3-none-any.whl"), "y").unwrap();
        let found = Wheels::look(&top, &found).unwrap();
        assert_eq!((found.files.len(), found.problems.len()), (2, 3));
        fs::remove_dir_all(top).unwrap();
    }
}
