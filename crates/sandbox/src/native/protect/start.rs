//! What of a workspace mattered before the program ran: protected names, links, and files that are
//! no files. It is written down, so that whoever cleans up after a crash can compare, too.
//!
//! ```text
//! workspace HEX-OF-PATH INODE
//! began SECONDS NANOSECONDS
//! unread HEX-OF-PATH                               a folder that could not be looked into
//! artifacts                                        the folder for them was there
//! allow HEX-OF-PATH
//! protected INODE BORN MODIFIED HEX-OF-PATH [HEX-OF-TARGET]     times as SECONDS NANOSECONDS; a link has a target
//! leads INODE BORN HEX-OF-PATH                     what a protected link led to
//! link HEX-OF-PATH HEX-OF-TARGET
//! special INODE BORN HEX-OF-PATH
//! end
//! ```

use super::{beneath, names, targets, walk};
use rustix::{
    fs::{FileType, OFlags, Stat},
    time::{ClockId, clock_gettime},
};
use spec::WorkspacePath;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// Where programs put what is to be kept.
pub(super) const ARTIFACTS: &str = ".artifacts";
/// Read-only mounts that one sandbox can have of protected names.
const MAX_PROTECTED: usize = 4096;

/// A workspace as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) workspace: PathBuf,
    pub(super) inode: u64,
    /// By the clock of files.
    pub(super) began: (i64, i64),
    pub(super) allowed: Vec<PathBuf>,
    pub(super) protected: BTreeMap<PathBuf, ProtectedEntry>,
    /// What protected links led to in the workspace.
    pub(super) led: BTreeMap<PathBuf, targets::Identity>,
    /// With their targets: an inode may be another's by now.
    pub(super) links: BTreeSet<(PathBuf, OsString)>,
    /// With inode and birth.
    pub(super) special: BTreeSet<(PathBuf, u64, (i64, i64))>,
    /// Folders that could not be looked into.
    pub(super) unread: BTreeSet<PathBuf>,
    /// Whether the folder for artifacts was there.
    pub(super) had_artifacts: bool,
}

/// A protected name that was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProtectedEntry {
    pub(super) inode: u64,
    pub(super) born: (i64, i64),
    /// When its contents were changed last.
    pub(super) modified: (i64, i64),
    /// Of a link.
    pub(super) target: Option<OsString>,
}

impl Start {
    /// Looks through the workspace.
    pub(super) fn look(workspace: BorrowedFd<'_>, allowed: &[WorkspacePath]) -> io::Result<Start> {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let mut start = Start {
            workspace: beneath::path_of(workspace)?,
            inode: rustix::fs::fstat(workspace)?.st_ino,
            began: (now.tv_sec, now.tv_nsec as i64),
            allowed: allowed.iter().map(|it| it.as_path().to_owned()).collect(),
            ..Start::default()
        };
        let unread = walk::walk(workspace, |visit| start.add(visit))?;
        start.unread = unread.into_iter().map(|unread| unread.path).collect();
        start.led = targets::of_links(workspace, &start.protected);
        Ok(start)
    }

    fn add(&mut self, visit: &walk::Visit<'_>) -> io::Result<walk::Next> {
        let (path, inode) = (visit.path.to_owned(), visit.inode);
        self.had_artifacts |= path == Path::new(ARTIFACTS);
        let is_bare = || {
            visit.kind == FileType::Directory
                && is_bare_repository(visit.folder, Path::new(visit.name))
                && !self.allowed.iter().any(|it| path.starts_with(it))
        };
        if is_protected(visit.path, &self.allowed) || is_bare() {
            if self.protected.len() >= MAX_PROTECTED {
                let message = format!("it has more than {MAX_PROTECTED} protected names");
                return Err(io::Error::other(message));
            }
            let target = match visit.kind {
                FileType::Symlink => Some(read_link(visit)?),
                _ => None,
            };
            let found = beneath::look(visit.folder, visit.name)?;
            let modified = found.map_or(self.began, |found| modified(&found));
            let entry = ProtectedEntry {
                inode,
                born: beneath::born(visit.folder, visit.name)?,
                modified,
                target,
            };
            self.protected.insert(path, entry);
            return Ok(walk::Next::Pass);
        }
        match visit.kind {
            FileType::Symlink => _ = self.links.insert((path, read_link(visit)?)),
            FileType::Directory | FileType::RegularFile | FileType::Fifo => {}
            _ => {
                let born = beneath::born(visit.folder, visit.name)?;
                self.special.insert((path, inode, born));
            }
        }
        Ok(walk::Next::Enter)
    }

    pub(super) fn to_text(&self) -> String {
        let (seconds, nanoseconds) = self.began;
        let mut text = format!("workspace {} {}\n", hex(&self.workspace), self.inode);
        text += &format!("began {seconds} {nanoseconds}\n");
        for path in &self.unread {
            text += &format!("unread {}\n", hex(path));
        }
        if self.had_artifacts {
            text += "artifacts\n";
        }
        for path in &self.allowed {
            text += &format!("allow {}\n", hex(path));
        }
        for (path, entry) in &self.protected {
            let (inode, born, modified) = (entry.inode, words(entry.born), words(entry.modified));
            let target = entry.target.as_ref().map(|it| format!(" {}", hex(it)));
            text += &format!(
                "protected {inode} {born} {modified} {}{}\n",
                hex(path),
                target.unwrap_or_default()
            );
        }
        for (path, (inode, born)) in &self.led {
            text += &format!("leads {inode} {} {}\n", words(*born), hex(path));
        }
        for (path, target) in &self.links {
            text += &format!("link {} {}\n", hex(path), hex(target));
        }
        for (path, inode, born) in &self.special {
            text += &format!("special {inode} {} {}\n", words(*born), hex(path));
        }
        text + "end\n"
    }

    /// Nothing if the text is not whole.
    pub(super) fn parse(text: &str) -> Option<Start> {
        let mut start = Start::default();
        let mut lines = text.strip_suffix("end\n")?.lines();
        let mut first = lines.next()?.strip_prefix("workspace ")?.split(' ');
        start.workspace = from_hex(first.next()?)?;
        start.inode = first.next()?.parse().ok()?;
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["began", seconds, nanoseconds] => start.began = from_words(seconds, nanoseconds)?,
                ["unread", path] => _ = start.unread.insert(from_hex(path)?),
                ["artifacts"] => start.had_artifacts = true,
                ["allow", path] => start.allowed.push(from_hex(path)?),
                [
                    "protected",
                    inode,
                    born,
                    born_rest,
                    modified,
                    modified_rest,
                    path,
                    ref target @ ..,
                ] => {
                    let target = target
                        .first()
                        .map(|it| from_hex(it))
                        .map(|it| it.map(Into::into));
                    let target: Option<OsString> = match target {
                        Some(target) => Some(target?),
                        None => None,
                    };
                    let entry = ProtectedEntry {
                        inode: inode.parse().ok()?,
                        born: from_words(born, born_rest)?,
                        modified: from_words(modified, modified_rest)?,
                        target,
                    };
                    start.protected.insert(from_hex(path)?, entry);
                }
                ["leads", inode, born, born_rest, path] => {
                    let identity = (inode.parse().ok()?, from_words(born, born_rest)?);
                    _ = start.led.insert(from_hex(path)?, identity);
                }
                ["link", path, target] => {
                    _ = start
                        .links
                        .insert((from_hex(path)?, from_hex(target)?.into()));
                }
                ["special", inode, born, born_rest, path] => {
                    let born = from_words(born, born_rest)?;
                    let special = (from_hex(path)?, inode.parse().ok()?, born);
                    _ = start.special.insert(special);
                }
                _ => return None,
            }
        }
        Some(start)
    }
}

/// Whether a name is protected, and not allowed after all.
pub(super) fn is_protected(path: &Path, allowed: &[PathBuf]) -> bool {
    let is_allowed = allowed.iter().any(|it| path.starts_with(it));
    !is_allowed && names::find_last(path).is_some()
}

/// The names by which git knows a repository.
pub const REPOSITORY: [&str; 4] = [names::HEAD, COMMON, "objects", "refs"];
/// It names the folder in which the rest of a repository is.
const COMMON: &str = "commondir";

/// Whether git takes a folder that has these names for a repository.
pub fn is_repository(has: impl Fn(&str) -> bool) -> bool {
    has(names::HEAD) && (has(COMMON) || (has("objects") && has("refs")))
}

/// Whether git takes this folder for a repository.
pub(super) fn is_bare_repository(folder: impl AsFd, path: &Path) -> bool {
    is_repository(|name| beneath::open(&folder, path.join(name), OFlags::PATH).is_ok())
}

pub(super) fn modified(found: &Stat) -> (i64, i64) {
    (found.st_mtime, found.st_mtime_nsec as i64)
}

pub(super) fn read_link(visit: &walk::Visit<'_>) -> io::Result<OsString> {
    let target = rustix::fs::readlinkat(visit.folder.as_fd(), visit.name, Vec::new())?;
    Ok(OsStr::from_bytes(target.to_bytes()).to_owned())
}

fn words((seconds, nanoseconds): (i64, i64)) -> String {
    format!("{seconds} {nanoseconds}")
}

fn from_words(seconds: &str, nanoseconds: &str) -> Option<(i64, i64)> {
    Some((seconds.parse().ok()?, nanoseconds.parse().ok()?))
}

fn hex(text: impl AsRef<OsStr>) -> String {
    let bytes = text.as_ref().as_bytes().iter();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<PathBuf> {
    let digit = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digit).collect();
    bytes.map(|bytes| Path::new(OsStr::from_bytes(&bytes)).to_owned())
}
