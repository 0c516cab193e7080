//! Wheels next to the manifest, which are for every tool. An unusable one is left out and reported.

use super::{
    Stamp,
    locate::{digest_metadata, truncate_digest},
    problem::{ToolProblem, word},
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

const MAX_FILES: usize = 64;
/// Directory entries that are examined.
const MAX_NAMES: usize = 1 << 16;
const MAX_BYTES: u64 = 512 << 20;
const MAX_NAME_BYTES: usize = 200;

/// Wheels of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wheels {
    folder: PathBuf,
    /// Digest of their state: other wheels have another stamp.
    pub(crate) stamp: Stamp,
    /// Digest of the content, by name.
    pub(crate) files: BTreeMap<String, String>,
    /// Problems of those that were left out.
    pub(crate) problems: Vec<ToolProblem>,
}

impl Wheels {
    /// Scans a folder, which may be absent. Known wheels are read again only if they changed.
    pub(crate) fn scan(folder: &Path, known: &Wheels) -> Result<Wheels, ToolProblem> {
        let (names, misnamed) = names(folder)?;
        let stamp = stamp(folder, &names, &misnamed);
        if stamp == known.stamp && known.folder == folder {
            return Ok(known.clone());
        }
        let looked = Wheels {
            folder: folder.to_owned(),
            stamp,
            files: BTreeMap::new(),
            problems: misnamed,
        };
        looked.with(names, known, |name, left| {
            open(folder, name).and_then(|file| read(name, file, left, |_| Ok(())))
        })
    }

    /// Adds the wheels that can be read. A temporary error of a known wheel keeps all as they were.
    fn with(
        mut self,
        names: Vec<String>,
        known: &Wheels,
        read: impl Fn(&str, &mut u64) -> Result<String, ToolProblem>,
    ) -> Result<Wheels, ToolProblem> {
        let mut left = MAX_BYTES;
        for (place, name) in names.into_iter().enumerate() {
            // One that does not fit uses nothing of the limit.
            let mut rest = left;
            match read(&name, &mut rest) {
                Ok(content) => {
                    left = rest;
                    self.files.insert(name, content);
                }
                Err(problem) if problem.is_passing && known.files.contains_key(&name) => {
                    return Err(problem);
                }
                Err(problem) => {
                    // A different stamp, so that the next scan tries again.
                    self.stamp.0 ^= u64::from(problem.is_passing) << (place % MAX_FILES);
                    self.problems.push(problem);
                }
            }
        }
        Ok(self)
    }

    /// Copies the wheels into a sandbox, if they have not changed.
    pub(crate) fn put_into(&self, tree: &Tree, place: &Path) -> Result<(), ToolProblem> {
        let mut left = MAX_BYTES;
        for (name, content) in &self.files {
            let failed = |error: engine::tree::TreeError| unreadable(name, &error).passing();
            let mut upload = tree.put(&place.join(name), true).map_err(failed)?;
            let write = |bytes: &[u8]| upload.write(bytes).map_err(failed);
            if read(name, open(&self.folder, name)?, &mut left, write)? != *content {
                let message = format!("the wheel `{}` changed while it was read", word(name));
                return Err(ToolProblem::new(message, "it is tried again").passing());
            }
            upload.publish().map_err(failed)?;
        }
        Ok(())
    }
}

fn unreadable(name: &str, why: &dyn std::fmt::Display) -> ToolProblem {
    let message = format!("the wheel `{}` cannot be read: {why}", word(name));
    ToolProblem::new(message, "put it there again; tools that import it fail")
}

/// A read error of the system, which may be temporary.
fn unreadable_now(name: &str, error: &io::Error) -> ToolProblem {
    use Errno as E;
    let passing = [
        E::IO,
        E::STALE,
        E::INTR,
        E::AGAIN,
        E::MFILE,
        E::NFILE,
        E::NOMEM,
    ];
    if Errno::from_io_error(error).is_some_and(|error| passing.contains(&error)) {
        ToolProblem {
            hint: "it is tried again".to_owned(),
            ..unreadable(name, error).passing()
        }
    } else {
        unreadable(name, error)
    }
}

/// Stamp of a folder of wheels.
fn stamp(folder: &Path, names: &[String], misnamed: &[ToolProblem]) -> Stamp {
    if names.is_empty() && misnamed.is_empty() {
        return Stamp::default();
    }
    let mut digest = Sha256::new();
    misnamed
        .iter()
        .for_each(|problem| digest.update(&problem.message));
    for name in names {
        digest.update(name);
        digest_metadata(&mut digest, &folder.join(name));
    }
    Stamp(truncate_digest(digest))
}

/// File name characters of PEP 427.
fn is_name(name: &str) -> bool {
    let is_sign = |letter: char| letter.is_ascii_alphanumeric() || "._+!-".contains(letter);
    name.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && name.chars().all(is_sign)
}

/// Valid wheel names, and problems of the others.
fn names(folder: &Path) -> Result<(Vec<String>, Vec<ToolProblem>), ToolProblem> {
    let (mut names, mut others): (Vec<_>, Vec<_>) = listed(folder, MAX_NAMES)?
        .into_iter()
        .partition(|name| is_name(name) && name.len() <= MAX_NAME_BYTES);
    if names.len() > MAX_FILES {
        let message = format!(
            "wheels/ has {} wheels; it may have {MAX_FILES}",
            names.len()
        );
        return Err(ToolProblem::new(
            message,
            "put fewer there, or mount a folder of packages",
        ));
    }
    names.sort();
    others.sort();
    let misnamed = |name: &String| {
        let message = format!(
            "`{}` in wheels/ has no name of a wheel, and is left out",
            word(name)
        );
        ToolProblem::new(message, "give it the name that it was built with")
    };
    let misnamed = others.iter().take(MAX_FILES).map(misnamed).collect();
    Ok((names, misnamed))
}

/// Lists wheel files. A partial list is an error: it would look as if the others had been removed.
fn listed(folder: &Path, limit: usize) -> Result<Vec<String>, ToolProblem> {
    let unlisted = |error: io::Error| {
        ToolProblem::new(
            format!("wheels/ cannot be read: {error}"),
            "let the worker read it",
        )
    };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(unlisted)?,
    };
    let mut names = Vec::new();
    for (count, entry) in entries.enumerate() {
        if count >= limit {
            let message = format!("wheels/ has more than {limit} names, and is not looked at");
            return Err(ToolProblem::new(message, "put nothing but wheels there"));
        }
        let name = entry
            .map_err(unlisted)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        if name.ends_with(".whl") {
            names.push(name);
        }
    }
    Ok(names)
}

/// Opens a regular file, not through a link.
fn open(folder: &Path, name: &str) -> Result<File, ToolProblem> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let handle = openat(CWD, folder.join(name), flags, Mode::empty());
    let file = File::from(handle.map_err(|error| match error {
        Errno::LOOP => unreadable(name, &"it is a link"),
        other => unreadable_now(name, &other.into()),
    })?);
    match file.metadata() {
        Ok(found) if found.is_file() => Ok(file),
        Ok(_) => Err(unreadable(name, &"it is no file")),
        Err(error) => Err(unreadable_now(name, &error)),
    }
}

/// Computes the digest of a file and passes its bytes to `each`.
fn read(
    name: &str,
    mut file: File,
    left: &mut u64,
    mut each: impl FnMut(&[u8]) -> Result<(), ToolProblem>,
) -> Result<String, ToolProblem> {
    let too_much = || {
        let why = format!(
            "with it there are more than {} MiB of wheels",
            MAX_BYTES >> 20
        );
        let hint = "put fewer there, or mount a folder of packages";
        ToolProblem {
            hint: hint.to_owned(),
            ..unreadable(name, &why)
        }
    };
    if file.metadata().is_ok_and(|found| found.len() > *left) {
        return Err(too_much());
    }
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable_now(name, &error)),
        };
        *left = left.checked_sub(count as u64).ok_or_else(too_much)?;
        digest.update(&buffer[..count]);
        each(&buffer[..count])?;
    }
    Ok(digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
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
        std::os::unix::fs::symlink(
            "good-1.0-py3-none-any.whl",
            top.join("link-1.0-py3-none-any.whl"),
        )
        .unwrap();
        let huge = File::create(top.join("huge-1.0-py3-none-any.whl")).unwrap();
        huge.set_len(MAX_BYTES + 1).unwrap();
        let found = Wheels::scan(&top, &Wheels::default()).unwrap();
        assert_eq!(
            found.files.keys().collect::<Vec<_>>(),
            ["good-1.0-py3-none-any.whl"]
        );
        let told: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
        let named = ["`my wheel (1).whl`", "`dir-1.0", "`huge-1.0", "`link-1.0"];
        assert_eq!(told.len(), named.len(), "{told:?}");
        assert!(
            told.iter()
                .zip(named)
                .all(|(told, name)| told.contains(name)),
            "{told:?}"
        );
        assert!(
            told[3].contains("a link") && told[2].contains("512 MiB"),
            "{told:?}"
        );
        assert_eq!(
            Wheels::scan(&top, &found),
            Ok(found.clone()),
            "and it stays told"
        );
        fs::remove_file(top.join("link-1.0-py3-none-any.whl")).unwrap();
        fs::write(top.join("link-1.0-py3-none-any.whl"), "y").unwrap();
        let found = Wheels::scan(&top, &found).unwrap();
        assert_eq!((found.files.len(), found.problems.len()), (2, 3));
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn one_that_cannot_be_read_for_a_moment_is_tried_again() {
        // The kernel says EIO of the first page of our memory.
        let broken = || {
            read(
                "b.whl",
                File::open("/proc/self/mem").unwrap(),
                &mut MAX_BYTES.clone(),
                |_| Ok(()),
            )
        };
        let problem = broken().unwrap_err();
        assert!(problem.is_passing, "{problem}");
        let none = open(Path::new("/nowhere"), "b.whl").unwrap_err();
        assert!(!none.is_passing, "the control: {none}");

        let fresh = || Wheels {
            stamp: Stamp(8),
            ..Wheels::default()
        };
        let names = || vec!["a.whl".to_owned(), "b.whl".to_owned()];
        let fine = |name: &str, _: &mut u64| Ok(name.to_owned());
        let flawed = |name: &str, _: &mut u64| {
            if name == "b.whl" {
                broken()
            } else {
                Ok(name.to_owned())
            }
        };
        let without = fresh().with(names(), &Wheels::default(), flawed).unwrap();
        assert_eq!(
            without.files.keys().collect::<Vec<_>>(),
            ["a.whl"],
            "others are there"
        );
        assert_eq!(without.problems, std::slice::from_ref(&problem));
        assert_ne!(without.stamp, Stamp(8), "so it is looked at again");
        let whole = fresh().with(names(), &without, fine).unwrap();
        assert_eq!((whole.files.len(), whole.stamp), (2, Stamp(8)));
        assert_eq!(
            fresh().with(names(), &whole, flawed),
            Err(problem),
            "those of before stay"
        );
        let missing = |_: &str, _: &mut u64| Err(none.clone());
        assert_eq!(
            fresh().with(names(), &whole, missing).unwrap().stamp,
            Stamp(8),
            "the control"
        );
    }

    #[test]
    fn wheels_are_found_behind_many_other_files_and_too_many_are_told() {
        let top = std::env::temp_dir().join(format!("airlock-wheels-many-{}", std::process::id()));
        fs::create_dir_all(&top).unwrap();
        for count in 0..2000 {
            File::create(top.join(format!("note-{count}.txt"))).unwrap();
        }
        for count in 0..MAX_FILES {
            File::create(top.join(format!("w{count}-1.0-py3-none-any.whl"))).unwrap();
        }
        let found = Wheels::scan(&top, &Wheels::default()).unwrap();
        assert_eq!((found.files.len(), found.problems.len()), (MAX_FILES, 0));
        assert_eq!(
            listed(&top, 2000 + MAX_FILES).unwrap().len(),
            MAX_FILES,
            "the control"
        );
        let told = listed(&top, 1999 + MAX_FILES).unwrap_err();
        assert!(told.message.contains("more than 2063 names"), "{told}");
        fs::remove_dir_all(top).unwrap();
    }
}
