//! The snapshot of a workspace before the program ran: protected names, links and special files. It
//! is written to disk, so that the cleanup after a crash can compare, too.
//!
//! ```text
//! workspace HEX-OF-PATH INODE
//! began SECONDS NANOSECONDS
//! unread HEX-OF-PATH                               a folder that could not be looked into
//! artifacts                                        the folder for them was there
//! allow HEX-OF-PATH                                what may be written after all
//! add HEX-OF-NAME                                  what else is protected; remove: what is not
//! named HEX-OF-PATH                                what the configuration of git names
//! input HEX-OF-PATH                                a file that is put in, and was not there
//! folder HEX-OF-PATH                               a folder that is made for one
//! protected INODE BORN MODIFIED HEX-OF-PATH [HEX-OF-TARGET]     times as SECONDS NANOSECONDS; a link has a target
//! leads INODE BORN HEX-OF-PATH                     what a protected link led to
//! link HEX-OF-PATH HEX-OF-TARGET
//! special INODE BORN HEX-OF-PATH
//! end
//! ```

use super::{
    beneath, held::MAX_START_BYTES, hidden_files::HiddenFileCover, link_targets, names, walk,
};
use rustix::{
    fs::{FileType, OFlags, Stat},
    time::{ClockId, clock_gettime},
};
use spec::{ProtectedNames, WorkspacePath};
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

/// The folder in which programs leave files to be collected.
pub(super) const ARTIFACTS: &str = ".artifacts";
/// Read-only mounts of protected names in one sandbox.
const MAX_PROTECTED: usize = 4096;
/// Bytes of a line besides its paths.
const LINE_BYTES: usize = 64;

/// The state of a workspace at the start of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkspaceSnapshot {
    pub(super) workspace: PathBuf,
    pub(super) inode: u64,
    /// By the coarse clock, which is never ahead of the times of files: a later file has no earlier
    /// time, and a file from the same tick may count as new.
    pub(super) began: (i64, i64),
    /// The protected names.
    pub(super) names: ProtectedNames,
    pub(super) protected: BTreeMap<PathBuf, ProtectedEntry>,
    /// The targets of protected links in the workspace.
    pub(super) led: BTreeMap<PathBuf, link_targets::InodeBirth>,
    /// With their targets: an inode may be reused.
    pub(super) links: BTreeSet<(PathBuf, OsString)>,
    /// With inode and birth time.
    pub(super) special: BTreeSet<(PathBuf, u64, (i64, i64))>,
    /// Folders that could not be read.
    pub(super) unread: BTreeSet<PathBuf>,
    /// Whether the artifacts folder existed.
    pub(super) had_artifacts: bool,
    /// Input files that did not exist, and do not stay.
    pub(super) inputs: BTreeSet<PathBuf>,
    /// Folders that are created for them.
    pub(super) folders: BTreeSet<PathBuf>,
}

/// A protected name at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProtectedEntry {
    pub(super) inode: u64,
    pub(super) born: (i64, i64),
    /// When its contents or permissions changed last.
    pub(super) modified: (i64, i64),
    /// Of a link.
    pub(super) target: Option<OsString>,
}

impl WorkspaceSnapshot {
    /// Scans the workspace.
    pub(super) fn look(
        workspace: BorrowedFd<'_>,
        names: &ProtectedNames,
        hiding: &mut HiddenFileCover<'_>,
    ) -> io::Result<WorkspaceSnapshot> {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let mut start = WorkspaceSnapshot {
            workspace: beneath::path_of(workspace)?,
            inode: rustix::fs::fstat(workspace)?.st_ino,
            began: (now.tv_sec, now.tv_nsec as i64),
            names: names.clone(),
            ..WorkspaceSnapshot::default()
        };
        let mut text_bytes = 0;
        let unread = walk::walk(workspace, |visit| {
            let hides = hiding.hides(visit, visit.path)?;
            let next = start.add(visit, &mut text_bytes)?;
            Ok(if hides { walk::WalkStep::Pass } else { next })
        })?;
        if unread.more > 0 {
            return Err(io::Error::other("too many folders cannot be looked into"));
        }
        start.unread = unread.folders.into_iter().map(|(path, _)| path).collect();
        hiding.look_into(workspace, &start)?;
        start.led = link_targets::of_links(workspace, &start.protected);
        Ok(start)
    }

    /// Records which inputs do not exist yet.
    pub(super) fn expect(&mut self, workspace: BorrowedFd<'_>, inputs: &[WorkspacePath]) {
        let is_absent = |path: &Path| beneath::open(workspace, path, OFlags::PATH).is_err();
        for input in inputs {
            let input = input.as_path();
            if is_absent(input) {
                self.inputs.insert(input.to_owned());
            }
            let folders = input.ancestors().skip(1);
            let folders = folders.filter(|it| !it.as_os_str().is_empty() && is_absent(it));
            self.folders.extend(folders.map(Path::to_owned));
        }
    }

    /// Protected folders that are no repositories.
    pub(super) fn settings_folders(&self) -> impl Iterator<Item = &PathBuf> {
        let is_settings = |path: &&PathBuf| {
            names::find_last(path, &self.names).is_some_and(|found| found.is_settings())
        };
        self.protected.keys().filter(is_settings)
    }

    /// Protected folders that are git repositories.
    pub(super) fn repositories(&self) -> impl Iterator<Item = &PathBuf> {
        let is_repository = |path: &&PathBuf| {
            path.file_name()
                .is_some_and(|name| name.eq_ignore_ascii_case(".git"))
        };
        self.protected.keys().filter(is_repository)
    }

    /// Counts the bytes that writing the entries takes, so that an unbounded number of them fails
    /// before it is in memory.
    fn add(
        &mut self,
        visit: &walk::WalkEntry<'_>,
        text_bytes: &mut usize,
    ) -> io::Result<walk::WalkStep> {
        let (path, inode) = (visit.path, visit.inode);
        self.had_artifacts |= visit.name == ARTIFACTS && path == Path::new(ARTIFACTS);
        let is_bare = || {
            visit.kind == FileType::Directory
                && is_bare_repository(visit.folder, Path::new(visit.name))
                && !self.names.allows(path)
        };
        if is_protected(visit.path, &self.names) || is_bare() {
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
            self.protected.insert(path.to_owned(), entry);
            return Ok(walk::WalkStep::Pass);
        }
        match visit.kind {
            FileType::Symlink => {
                let target = read_link(visit)?;
                count_text(text_bytes, path, &target)?;
                self.links.insert((path.to_owned(), target));
            }
            FileType::Directory | FileType::RegularFile | FileType::Fifo => {}
            _ => {
                let born = beneath::born(visit.folder, visit.name)?;
                count_text(text_bytes, path, OsStr::new(""))?;
                self.special.insert((path.to_owned(), inode, born));
            }
        }
        Ok(walk::WalkStep::Enter)
    }

    /// Removes entries that a run without cleanup may have created: below its workspace only what
    /// its own snapshot has counts. Otherwise one run could let another keep what it planted.
    pub(super) fn leave_out_news_of(&mut self, earlier: &WorkspaceSnapshot) {
        let own = self.workspace.clone();
        // The path in the other workspace, unless its state there is unknown or free.
        let place = |path: &PathBuf| {
            let place = own.join(path);
            let place = place.strip_prefix(&earlier.workspace).ok()?.to_owned();
            let is_unread = earlier.unread.iter().any(|top| place.starts_with(top));
            let is_open = is_unread || earlier.names.allows(&place);
            (!is_open).then_some(place)
        };
        let known = |path: &PathBuf, entry: &ProtectedEntry| {
            place(path).is_none_or(|place| match &entry.target {
                Some(_) => {
                    earlier.protected.get(&place).map(|it| &it.target) == Some(&entry.target)
                }
                None => earlier
                    .protected
                    .values()
                    .any(|it| (it.inode, it.born) == (entry.inode, entry.born)),
            })
        };
        self.protected.retain(|path, entry| known(path, entry));
        self.links.retain(|(path, target)| {
            place(path).is_none_or(|place| earlier.links.contains(&(place, target.clone())))
        });
        self.special.retain(|(path, inode, born)| {
            place(path).is_none_or(|place| earlier.special.contains(&(place, *inode, *born)))
        });
        self.had_artifacts &= earlier.had_artifacts || own != earlier.workspace;
        self.began = self.began.min(earlier.began);
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
        let mut list = |word: &str, path: &OsStr| text += &format!("{word} {}\n", hex(path));
        for (word, paths) in [("allow", &self.names.allowed), ("named", &self.names.paths)] {
            paths
                .iter()
                .for_each(|path| list(word, path.as_path().as_os_str()));
        }
        for (word, names) in [("add", &self.names.added), ("remove", &self.names.removed)] {
            names.iter().for_each(|name| list(word, name.as_ref()));
        }
        for (word, paths) in [("input", &self.inputs), ("folder", &self.folders)] {
            paths.iter().for_each(|path| list(word, path.as_os_str()));
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

    /// None if the text is incomplete.
    pub(super) fn parse(text: &str) -> Option<WorkspaceSnapshot> {
        let mut start = WorkspaceSnapshot::default();
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
                ["allow", path] => start.names.allowed.push(path_from_hex(path)?),
                ["named", path] => start.names.paths.push(path_from_hex(path)?),
                ["add", name] => start.names.added.push(text_from_hex(name)?),
                ["remove", name] => start.names.removed.push(text_from_hex(name)?),
                ["input", path] => _ = start.inputs.insert(from_hex(path)?),
                ["folder", path] => _ = start.folders.insert(from_hex(path)?),
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

fn count_text(bytes: &mut usize, path: &Path, target: &OsStr) -> io::Result<()> {
    *bytes += LINE_BYTES + 2 * (path.as_os_str().len() + target.len());
    if *bytes > MAX_START_BYTES {
        Err(io::Error::other(
            "it has too many links, sockets or devices",
        ))
    } else {
        Ok(())
    }
}

/// The workspace in the first line of a snapshot.
pub(super) fn workspace_of(line: &str) -> Option<PathBuf> {
    from_hex(line.strip_prefix("workspace ")?.split(' ').next()?)
}

/// Whether a name is protected and not allowed.
pub(super) fn is_protected(path: &Path, names: &ProtectedNames) -> bool {
    !names.allows(path) && names::find_last(path, names).is_some()
}

/// The names by which git recognizes a repository.
pub const REPOSITORY: [&str; 4] = [names::HEAD, COMMON, "objects", "refs"];
/// It names the folder of the rest of a repository.
const COMMON: &str = "commondir";

/// Whether git takes a folder with these names for a repository.
pub fn is_repository(has: impl Fn(&str) -> bool) -> bool {
    has(names::HEAD) && (has(COMMON) || (has("objects") && has("refs")))
}

/// Whether git takes this folder for a repository.
pub(super) fn is_bare_repository(folder: impl AsFd, path: &Path) -> bool {
    is_repository(|name| beneath::open(&folder, path.join(name), OFlags::PATH).is_ok())
}

/// By the change time: a program can set any modification time.
pub(super) fn modified(found: &Stat) -> (i64, i64) {
    (found.st_ctime, found.st_ctime_nsec as i64)
}

pub(super) fn read_link(visit: &walk::WalkEntry<'_>) -> io::Result<OsString> {
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

fn path_from_hex(text: &str) -> Option<WorkspacePath> {
    WorkspacePath::new(&from_hex(text)?).ok()
}

fn text_from_hex(text: &str) -> Option<String> {
    from_hex(text)?.into_os_string().into_string().ok()
}

fn from_hex(text: &str) -> Option<PathBuf> {
    let digit = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(digit).collect();
    bytes.map(|bytes| Path::new(OsStr::from_bytes(&bytes)).to_owned())
}
