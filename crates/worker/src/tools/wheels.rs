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
/// Names that are looked at to find them.
const MOST_NAMES: usize = 1 << 16;
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

    /// With what can be read of these. One that was known and cannot be read for a moment leaves all as they were.
    fn with(
        mut self,
        names: Vec<String>,
        known: &Wheels,
        read: impl Fn(&str, &mut u64) -> Result<String, Problem>,
    ) -> Result<Wheels, Problem> {
        let mut left = MOST_BYTES;
        for (place, name) in names.into_iter().enumerate() {
            // One that does not fit takes nothing from those behind it.
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
                    // Another stamp than that of what is there: so it is tried again at the next look.
                    self.stamp.0 ^= u64::from(problem.is_passing) << (place % MOST_FILES);
                    self.problems.push(problem);
                }
            }
        }
        Ok(self)
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

/// The same, of what the machine says, which need not be for what the file is.
fn unread_now(name: &str, error: &io::Error) -> Problem {
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
    match Errno::from_io_error(error).is_some_and(|error| passing.contains(&error)) {
        true => Problem {
            hint: "it is tried again".to_owned(),
            ..unread(name, error).passing()
        },
        false => unread(name, error),
    }
}

/// What a folder of these is like now.
fn stamp(folder: &Path, names: &[String], misnamed: &[Problem]) -> Stamp {
    if names.is_empty() && misnamed.is_empty() {
        return Stamp::default();
    }
    let mut digest = Sha256::new();
    misnamed
        .iter()
        .for_each(|problem| digest.update(&problem.message));
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
    let (mut names, mut others): (Vec<_>, Vec<_>) = listed(folder, MOST_NAMES)?
        .into_iter()
        .partition(|name| is_name(name) && name.len() <= LONGEST_NAME);
    if names.len() > MOST_FILES {
        let message = format!(
            "wheels/ has {} wheels; it may have {MOST_FILES}",
            names.len()
        );
        return Err(Problem::new(
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
        Problem::new(message, "give it the name that it was built with")
    };
    let misnamed = others.iter().take(MOST_FILES).map(misnamed).collect();
    Ok((names, misnamed))
}

/// Whatever is called like a wheel there. Half of them would be as if somebody had removed the others.
fn listed(folder: &Path, most: usize) -> Result<Vec<String>, Problem> {
    let unlisted = |error: io::Error| {
        Problem::new(
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
        if count >= most {
            let message = format!("wheels/ has more than {most} names, and is not looked at");
            return Err(Problem::new(message, "put nothing but wheels there"));
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

/// A regular file, through no link.
fn open(folder: &Path, name: &str) -> Result<File, Problem> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let handle = openat(CWD, folder.join(name), flags, Mode::empty());
    let file = File::from(handle.map_err(|error| match error {
        Errno::LOOP => unread(name, &"it is a link"),
        other => unread_now(name, &other.into()),
    })?);
    match file.metadata() {
        Ok(found) if found.is_file() => Ok(file),
        Ok(_) => Err(unread(name, &"it is no file")),
        Err(error) => Err(unread_now(name, &error)),
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
        let why = format!(
            "with it there are more than {} MiB of wheels",
            MOST_BYTES >> 20
        );
        let hint = "put fewer there, or mount a folder of packages";
        Problem {
            hint: hint.to_owned(),
            ..unread(name, &why)
        }
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
            Err(error) => return Err(unread_now(name, &error)),
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
        huge.set_len(MOST_BYTES + 1).unwrap();
        let found = Wheels::look(&top, &Wheels::default()).unwrap();
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
            Wheels::look(&top, &found),
            Ok(found.clone()),
            "and it stays told"
        );
        fs::remove_file(top.join("link-1.0-py3-none-any.whl")).unwrap();
        fs::write(top.join("link-1.0-py3-none-any.whl"), "y").unwrap();
        let found = Wheels::look(&top, &found).unwrap();
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
                &mut MOST_BYTES.clone(),
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
        for count in 0..MOST_FILES {
            File::create(top.join(format!("w{count}-1.0-py3-none-any.whl"))).unwrap();
        }
        let found = Wheels::look(&top, &Wheels::default()).unwrap();
        assert_eq!((found.files.len(), found.problems.len()), (MOST_FILES, 0));
        assert_eq!(
            listed(&top, 2000 + MOST_FILES).unwrap().len(),
            MOST_FILES,
            "the control"
        );
        let told = listed(&top, 1999 + MOST_FILES).unwrap_err();
        assert!(told.message.contains("more than 2063 names"), "{told}");
        fs::remove_dir_all(top).unwrap();
    }
}
