//! References: reading them from a git folder by handle, and the rules for names from a program.

use crate::{GitError, ObjectFormat, ObjectId, failed, openat};
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd},
};

/// References of one repository that are read.
pub const MAX_REFS: usize = 100_000;
/// Names in `refs` that are visited.
const MAX_VISITED: usize = 4 * MAX_REFS;
/// Bytes of `packed-refs`.
const MAX_PACKED_BYTES: u64 = 64 << 20;
/// Bytes of a file that holds one reference.
const MAX_LOOSE_BYTES: u64 = 4096;
/// Nested folders in `refs`.
const MAX_DEPTH: usize = 16;
/// Bytes of a name from a program.
const MAX_NAME_BYTES: usize = 240;

/// The target of `HEAD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// A branch, which need not exist yet.
    Branch(String),
    /// A commit.
    Detached(ObjectId),
}

impl Head {
    /// Parses the text of the file `HEAD`; none if it names nothing.
    pub fn parse(bytes: &[u8], format: ObjectFormat) -> Option<Head> {
        match parse_loose(bytes, format)? {
            Reference::Direct(id) => Some(Head::Detached(id)),
            Reference::Symbolic(name) => Some(Head::Branch(name)),
        }
    }

    /// The text of the file `HEAD`.
    pub fn text(&self) -> String {
        match self {
            Head::Branch(name) => format!("ref: {name}\n"),
            Head::Detached(id) => format!("{id}\n"),
        }
    }
}

/// The references of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefMap {
    /// Those that name an object.
    pub direct: BTreeMap<String, ObjectId>,
    /// Those that name another reference.
    pub symbolic: BTreeMap<String, String>,
}

/// The content of a reference's file.
enum Reference {
    Direct(ObjectId),
    Symbolic(String),
}

/// Reads `HEAD` of a git folder.
pub fn read_head(folder: BorrowedFd<'_>, format: ObjectFormat) -> Result<Head, GitError> {
    let bytes = openat::read(folder, "HEAD", MAX_LOOSE_BYTES).map_err(failed("read HEAD"))?;
    let bytes = bytes.ok_or_else(|| GitError::Unsupported("there is no HEAD".to_owned()))?;
    Head::parse(&bytes, format)
        .ok_or_else(|| GitError::Unsupported("HEAD cannot be read".to_owned()))
}

/// Reads one reference as git does: from its own file, otherwise from `packed-refs`.
pub fn read_one(
    folder: BorrowedFd<'_>,
    name: &str,
    format: ObjectFormat,
) -> Result<Option<ObjectId>, GitError> {
    let what = || failed(format!("read {name}"));
    match openat::read(folder, name, MAX_LOOSE_BYTES) {
        Ok(None) => {}
        Ok(Some(bytes)) => match parse_loose(&bytes, format) {
            Some(Reference::Direct(id)) => return Ok(Some(id)),
            _ => return Err(GitError::Unsupported(format!("{name} names no object"))),
        },
        // The name is a folder whose references are all packed, or `refs/heads/a` is a file and
        // `refs/heads/a/b` is read.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotADirectory) => {}
        Err(error) => {
            if openat::open(folder, name, openat::READ_DIR).is_err() {
                return Err(what()(error));
            }
        }
    }
    let packed = openat::read(folder, "packed-refs", MAX_PACKED_BYTES).map_err(what())?;
    let mut refs = RefMap::from_packed(&packed.unwrap_or_default(), format)?;
    Ok(refs.direct.remove(name))
}

impl RefMap {
    /// Reads packed and loose references of a git folder. Other files and invalid names are left
    /// out.
    pub fn read(folder: BorrowedFd<'_>, format: ObjectFormat) -> Result<RefMap, GitError> {
        let packed = openat::read(folder, "packed-refs", MAX_PACKED_BYTES);
        let packed = packed.map_err(failed("read packed-refs"))?;
        let mut refs = RefMap::from_packed(&packed.unwrap_or_default(), format)?;
        let top = match openat::open(folder, "refs", openat::READ_DIR) {
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(refs),
            top => top.map_err(failed("open refs"))?,
        };
        let mut left = MAX_VISITED;
        refs.add_loose(top.as_fd(), "refs", format, &mut left, 0)?;
        Ok(refs)
    }

    /// Parses a file `packed-refs`.
    pub fn from_packed(packed: &[u8], format: ObjectFormat) -> Result<RefMap, GitError> {
        let mut refs = RefMap::default();
        refs.add_packed(packed, format)?;
        Ok(refs)
    }

    fn add_packed(&mut self, packed: &[u8], format: ObjectFormat) -> Result<(), GitError> {
        for line in packed.split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else {
                continue;
            };
            // Comments, and the objects to which annotated tags lead.
            if line.starts_with(['#', '^']) || line.is_empty() {
                continue;
            }
            let parsed = line.split_once(' ').and_then(|(id, name)| {
                Some((
                    ObjectId::parse(id, format)?,
                    is_valid_ref_name(name).then_some(name)?,
                ))
            });
            if let Some((id, name)) = parsed {
                self.insert(name, Reference::Direct(id))?;
            }
        }
        Ok(())
    }

    fn add_loose(
        &mut self,
        folder: BorrowedFd<'_>,
        above: &str,
        format: ObjectFormat,
        left: &mut usize,
        depth: usize,
    ) -> Result<(), GitError> {
        for name in openat::names(folder).map_err(failed(format!("list {above}")))? {
            let Some(part) = name.to_str().filter(|part| !part.ends_with(".lock")) else {
                continue;
            };
            let full = format!("{above}/{part}");
            *left = left.saturating_sub(1);
            if *left == 0 || depth > MAX_DEPTH {
                let why = "its references are too many, or nested too deep".to_owned();
                return Err(GitError::Unsupported(why));
            }
            match openat::open(folder, part, openat::READ_DIR) {
                Ok(below) => self.add_loose(below.as_fd(), &full, format, left, depth + 1)?,
                Err(_) => {
                    let read = openat::read(folder, part, MAX_LOOSE_BYTES).ok().flatten();
                    let read = read.and_then(|bytes| parse_loose(&bytes, format));
                    if let (Some(reference), true) = (read, is_valid_ref_name(&full)) {
                        self.insert(&full, reference)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn insert(&mut self, name: &str, reference: Reference) -> Result<(), GitError> {
        if self.direct.len() + self.symbolic.len() >= MAX_REFS {
            return Err(GitError::Unsupported(format!(
                "it has more than {MAX_REFS} references"
            )));
        }
        match reference {
            Reference::Direct(id) => _ = self.direct.insert(name.to_owned(), id),
            Reference::Symbolic(target) => {
                self.direct.remove(name);
                self.symbolic.insert(name.to_owned(), target);
            }
        }
        Ok(())
    }

    /// Whether a reference exists.
    pub fn has(&self, name: &str) -> bool {
        self.direct.contains_key(name) || self.symbolic.contains_key(name)
    }

    /// The commit of a `HEAD`; none if its branch has none yet.
    pub fn at<'a>(&'a self, head: &'a Head) -> Option<&'a ObjectId> {
        match head {
            Head::Branch(name) => self.direct.get(name),
            Head::Detached(id) => Some(id),
        }
    }

    /// The direct references as a file `packed-refs`.
    pub fn packed(&self) -> String {
        let lines = self
            .direct
            .iter()
            .map(|(name, id)| format!("{id} {name}\n"));
        std::iter::once("# pack-refs with: sorted \n".to_owned())
            .chain(lines)
            .collect()
    }
}

fn parse_loose(bytes: &[u8], format: ObjectFormat) -> Option<Reference> {
    let text = std::str::from_utf8(bytes).ok()?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    match text.strip_prefix("ref:") {
        Some(target) => {
            let target = target.trim();
            is_valid_ref_name(target).then(|| Reference::Symbolic(target.to_owned()))
        }
        None => ObjectId::parse(text.trim_end(), format).map(Reference::Direct),
    }
}

/// Whether a text is the full name of a reference by the rules of `git check-ref-format`.
pub fn is_valid_ref_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock") && part != "@"
    };
    let bad = |c: char| c.is_ascii_control() || " ~^:?*[\\".contains(c);
    name.starts_with("refs/")
        && name.len() <= 1024
        && name.split('/').all(part)
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
        && !name.contains(bad)
}

/// Whether a name from a program is accepted under `refs/airlock`. Beyond the format it may have
/// nothing that a terminal, a shell or git takes for something else.
pub fn is_safe_ref_name(name: &str) -> bool {
    // Names are printed in commands that the user copies into a shell.
    let reads_as_plain = |c: char| c.is_alphanumeric() || "-_./+@=%#,".contains(c);
    let part = |part: &str| {
        let is_id = [40, 64].contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
        !part.starts_with('-') && !is_id && part != "HEAD" && !part.ends_with("_HEAD")
    };
    is_valid_ref_name(name)
        && name.len() <= MAX_NAME_BYTES
        && name.chars().all(reads_as_plain)
        && name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    const ID: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

    fn scratch(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("airlock-refs-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("refs/heads/a")).unwrap();
        folder
    }

    fn read(folder: &PathBuf) -> Result<RefMap, GitError> {
        let handle = fs::File::open(folder).unwrap();
        RefMap::read(handle.as_fd(), ObjectFormat::Sha1)
    }

    #[test]
    fn names_of_programs_are_judged() {
        for good in [
            "refs/heads/main",
            "refs/heads/feat/x-1",
            "refs/tags/v1.0",
            "refs/heads/größe",
        ] {
            assert!(is_safe_ref_name(good), "{good}");
        }
        for bad in [
            "main",
            "refs/heads/-x",
            "refs/heads/HEAD",
            "refs/heads/FETCH_HEAD",
            "refs/heads/.x",
            "refs/heads/x.lock",
            "refs/heads/a..b",
            "refs/heads/a//b",
            "refs/heads/a/",
            "refs/heads/a b",
            "refs/heads/a;b",
            "refs/heads/$(a)",
            "refs/heads/a'b",
            "refs/heads/a\u{1b}[31m",
            "refs/heads/a\u{202e}b",
            "refs/heads/@",
            "refs/heads/a@{1}",
            "refs/heads/../../config",
            &format!("refs/heads/{ID}"),
            &format!("refs/heads/{}", "x".repeat(300)),
        ] {
            assert!(!is_safe_ref_name(bad), "{bad}");
        }
    }

    #[test]
    fn loose_references_win_over_packed_ones_and_links_are_not_followed() {
        let folder = scratch("read");
        let other = ID.replace('4', "5");
        let packed = format!(
            "# pack-refs with: peeled\n{ID} refs/heads/main\n{ID} refs/tags/t\n^{other}\n{ID} refs/heads/..\n"
        );
        fs::write(folder.join("packed-refs"), packed).unwrap();
        fs::write(folder.join("refs/heads/main"), format!("{other}\n")).unwrap();
        fs::write(folder.join("refs/heads/a/b"), "ref: refs/heads/main\n").unwrap();
        fs::write(folder.join("refs/heads/junk"), "junk").unwrap();
        symlink("main", folder.join("refs/heads/link")).unwrap();
        symlink("/etc", folder.join("refs/linked")).unwrap();
        let refs = read(&folder).unwrap();
        let packed =
            format!("# pack-refs with: sorted \n{other} refs/heads/main\n{ID} refs/tags/t\n");
        assert_eq!(refs.packed(), packed);
        let again = RefMap::from_packed(packed.as_bytes(), ObjectFormat::Sha1).unwrap();
        assert_eq!(again.direct, refs.direct);
        assert_eq!(
            refs.symbolic,
            BTreeMap::from([("refs/heads/a/b".to_owned(), "refs/heads/main".to_owned())])
        );
        fs::remove_file(folder.join("packed-refs")).unwrap();
        symlink("/etc/passwd", folder.join("packed-refs")).unwrap();
        assert!(read(&folder).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_fifo_as_head_is_not_waited_for() {
        let folder = scratch("fifo");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.join("HEAD"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        );
        made.unwrap();
        let handle = fs::File::open(&folder).unwrap();
        assert!(read_head(handle.as_fd(), ObjectFormat::Sha1).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}
