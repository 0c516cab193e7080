//! A walk through a workspace: each folder by descriptor, no link followed, with bounded memory.
//!
//! It is depth-first. A folder is opened through its parent's descriptor, so that a deep tree costs
//! no more than a flat one; only the last `MAX_HANDLES` parents stay open, and one further up is
//! opened again by its path when the walk returns to it. A large folder is read in batches, so that
//! memory does not grow with it.
//!
//! It differs from the walk of `fs`: a visited file may be moved away at once, a folder whose owner
//! removed his own permissions is opened all the same, an unreadable one is reported and skipped,
//! and no limit leaves the rest unseen.

use super::beneath;
use rustix::{
    fs::{FileType, RawDir, SeekFrom},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    vec,
};

/// Names that a workspace may have at its start.
pub(super) const MAX_NAMES: usize = 4_000_000;
/// Names of one folder that are in memory at the same time.
const BATCH: usize = 1 << 16;
/// Folders of one path that are open at the same time.
const MAX_HANDLES: usize = 64;
/// Bytes of a path, with the NUL behind it, that the kernel takes (`PATH_MAX`). What lies deeper cannot be named and
/// counts as unread.
pub(super) const MAX_PATH_BYTES: usize = 4096;
/// Bytes of the paths of folders that could not be looked into.
const MAX_UNREAD_BYTES: usize = 1 << 26;
/// Bytes of names that one call reads.
const READ_BYTES: usize = 32 << 10;

/// File systems that hold no files of users, and may be endless.
const KERNEL_FILE_SYSTEMS: [u64; 10] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x1cd1,      // devpts
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x4249_4e4d, // binfmt_misc
];

/// One visited name.
pub(super) struct WalkEntry<'a> {
    /// The folder that contains it.
    pub(super) folder: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// Relative to the workspace.
    pub(super) path: &'a Path,
    pub(super) kind: FileType,
    pub(super) inode: u64,
}

/// What to do with a visited folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkStep {
    Enter,
    Pass,
}

/// Folders that could not be looked into.
#[derive(Debug, Default)]
pub(super) struct UnreadFolders {
    pub(super) folders: Vec<(PathBuf, io::Error)>,
    /// Beyond those whose paths together have `MAX_UNREAD_BYTES`.
    pub(super) more: usize,
    bytes: usize,
}

impl UnreadFolders {
    fn add(&mut self, path: &Path, why: io::Error) {
        self.bytes += path.as_os_str().len();
        if self.bytes > MAX_UNREAD_BYTES {
            self.more += 1;
        } else {
            self.folders.push((path.to_owned(), why));
        }
    }
}

/// Opens a folder in another one, or below it.
type OpenFolder<'a> = &'a mut dyn FnMut(BorrowedFd<'_>, &Path) -> io::Result<OwnedFd>;

/// Visits every name below `root`, parents first; gives back what could not be read. Beyond `MAX_NAMES` it fails.
pub(super) fn walk(
    root: BorrowedFd<'_>,
    mut visit: impl FnMut(&WalkEntry<'_>) -> io::Result<WalkStep>,
) -> io::Result<UnreadFolders> {
    let mut names = 0;
    walk_all(root, |it| {
        names += 1;
        if names > MAX_NAMES {
            return Err(io::Error::other(format!("more than {MAX_NAMES} names")));
        }
        visit(it)
    })
}

/// The same for any number of names. Memory is bounded, time is not.
pub(super) fn walk_all(
    root: BorrowedFd<'_>,
    visit: impl FnMut(&WalkEntry<'_>) -> io::Result<WalkStep>,
) -> io::Result<UnreadFolders> {
    let mut open = |folder: BorrowedFd<'_>, path: &Path| beneath::open_folder(folder, path);
    walk_in_batches(root, BATCH, &mut open, visit)
}

fn walk_in_batches(
    root: BorrowedFd<'_>,
    batch: usize,
    open: OpenFolder<'_>,
    mut visit: impl FnMut(&WalkEntry<'_>) -> io::Result<WalkStep>,
) -> io::Result<UnreadFolders> {
    let mut walk = Walk {
        root,
        open,
        levels: Vec::new(),
        path: PathBuf::new(),
        batch,
        buffer: Box::new_uninit_slice(READ_BYTES),
        unread: UnreadFolders::default(),
    };
    walk.enter(None);
    while let Some(level) = walk.levels.last_mut() {
        let Some(entry) = level.names.next() else {
            if level.read_to.is_some() {
                walk.read_on();
            } else {
                walk.leave();
            }
            continue;
        };
        let Some(folder) = &level.handle else {
            return Err(io::Error::other("a folder was closed too early"));
        };
        walk.path.push(&entry.name);
        let next = visit(&WalkEntry {
            folder: folder.as_fd(),
            name: &entry.name,
            path: &walk.path,
            kind: entry.kind,
            inode: entry.inode,
        })?;
        match (entry.kind, next) {
            (FileType::Directory, WalkStep::Enter) => walk.enter(Some(&entry.name)),
            _ => _ = walk.path.pop(),
        }
    }
    Ok(walk.unread)
}

struct Walk<'a> {
    root: BorrowedFd<'a>,
    open: OpenFolder<'a>,
    levels: Vec<WalkLevel>,
    /// Of what is looked at, relative to the root.
    path: PathBuf,
    batch: usize,
    buffer: Box<[MaybeUninit<u8>]>,
    unread: UnreadFolders,
}

/// A folder on the current path.
struct WalkLevel {
    /// Closed while the walk is far below it.
    handle: Option<OwnedFd>,
    /// Device and inode.
    id: (u64, u64),
    names: vec::IntoIter<DirEntry>,
    /// Where the next batch begins; none once the folder is read to its end.
    read_to: Option<u64>,
}

struct DirEntry {
    name: OsString,
    kind: FileType,
    inode: u64,
}

impl Walk<'_> {
    /// Enters the folder at `path`: this name in its parent, or the root.
    fn enter(&mut self, name: Option<&OsStr>) {
        let level = self
            .open(name)
            .and_then(|folder| read_level(folder, self.batch, &mut self.buffer));
        match level {
            Ok(level) => {
                self.levels.push(level);
                if let Some(far) = self.levels.len().checked_sub(MAX_HANDLES + 1) {
                    self.levels[far].handle = None;
                }
            }
            Err(why) => {
                self.unread.add(&self.path, why);
                self.path.pop();
            }
        }
    }

    /// Reads the next batch of a large folder.
    fn read_on(&mut self) {
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        if let Err(why) = level.read_on(self.batch, &mut self.buffer) {
            level.read_to = None;
            self.unread.add(&self.path, why);
        }
    }

    fn open(&mut self, name: Option<&OsStr>) -> io::Result<OwnedFd> {
        if self.path.as_os_str().len() >= MAX_PATH_BYTES {
            return Err(Errno::NAMETOOLONG.into());
        }
        let above = self.levels.last().and_then(|level| level.handle.as_ref());
        match (name, above) {
            (Some(name), Some(above)) => (self.open)(above.as_fd(), Path::new(name)),
            _ => (self.open)(self.root, &self.path),
        }
    }

    /// Returns to the parent folder, which is opened again if it was closed.
    fn leave(&mut self) {
        self.levels.pop();
        self.path.pop();
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        let is_done = level.names.len() == 0 && level.read_to.is_none();
        if level.handle.is_some() || is_done {
            return;
        }
        let opened = (self.open)(self.root, &self.path).and_then(|folder| {
            if id(&folder)? == level.id {
                Ok(folder)
            } else {
                Err(io::Error::other("it was replaced meanwhile"))
            }
        });
        match opened {
            Ok(folder) => level.handle = Some(folder),
            Err(why) => {
                level.names = Vec::new().into_iter();
                level.read_to = None;
                self.unread.add(&self.path, why);
            }
        }
    }
}

fn id(folder: &OwnedFd) -> io::Result<(u64, u64)> {
    let status = rustix::fs::fstat(folder)?;
    Ok((status.st_dev, status.st_ino))
}

fn read_level(
    folder: OwnedFd,
    batch: usize,
    buffer: &mut [MaybeUninit<u8>],
) -> io::Result<WalkLevel> {
    let system = rustix::fs::fstatfs(&folder)?;
    let is_kernels = KERNEL_FILE_SYSTEMS.contains(&(system.f_type as u64 & 0xffff_ffff));
    let mut level = WalkLevel {
        id: id(&folder)?,
        handle: Some(folder),
        names: Vec::new().into_iter(),
        read_to: None,
    };
    if !is_kernels {
        level.read_to = Some(0);
        level.read_on(batch, buffer)?;
    }
    Ok(level)
}

impl WalkLevel {
    /// Reads all further names of the folder before any of them is changed, or a batch of them.
    fn read_on(&mut self, batch: usize, buffer: &mut [MaybeUninit<u8>]) -> io::Result<()> {
        let (Some(folder), Some(mut read_to)) = (&self.handle, self.read_to) else {
            return Ok(());
        };
        rustix::fs::seek(folder, SeekFrom::Start(read_to))?;
        let mut names = Vec::new();
        let mut entries = RawDir::new(folder, buffer);
        let is_end = loop {
            let Some(entry) = entries.next() else {
                break true;
            };
            let entry = entry?;
            read_to = entry.next_entry_cookie();
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            let (kind, inode) = (entry.file_type(), entry.ino());
            if let Some(kind) = kind_of(folder, &name, kind)? {
                names.push(DirEntry { name, kind, inode });
            }
            if names.len() >= batch {
                break false;
            }
        };
        self.read_to = (!is_end).then_some(read_to);
        // So that reports have an order.
        names.sort_by(|a, b| a.name.cmp(&b.name));
        self.names = names.into_iter();
        Ok(())
    }
}

/// The type of a file, also where the file system does not report it; none if it is gone, and for
/// `.` and `..`.
fn kind_of(folder: &OwnedFd, name: &OsStr, told: FileType) -> io::Result<Option<FileType>> {
    match told {
        _ if matches!(name.as_bytes(), b"." | b"..") => Ok(None),
        FileType::Unknown => Ok(beneath::look(folder, name)?.map(|found| beneath::kind(&found))),
        kind => Ok(Some(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::PathBuf};

    /// More than the walk keeps open.
    const DEPTH: usize = 2 * MAX_HANDLES + 3;

    /// Removed when the test ends.
    struct Tree(PathBuf);

    impl Tree {
        /// Nested folders `m`, each with a file before and after it.
        fn new(name: &str) -> Tree {
            let name = format!("airlock-walk-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            let mut folder = root.clone();
            for _ in 0..=DEPTH {
                fs::create_dir(&folder).unwrap();
                fs::write(folder.join("a"), "").unwrap();
                fs::write(folder.join("z"), "").unwrap();
                folder.push("m");
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn deep(depth: usize, name: &str) -> PathBuf {
        let mut path: PathBuf = std::iter::repeat_n("m", depth).collect();
        path.push(name);
        path
    }

    #[test]
    fn a_walk_that_comes_back_from_far_below_goes_on_where_it_was() {
        let tree = Tree::new("deep");
        let root = fs::File::open(&tree.0).unwrap();
        let mut seen = Vec::new();
        let unread = walk(root.as_fd(), |visit| {
            let found = beneath::look(visit.folder, visit.name)?.unwrap();
            assert_eq!(found.st_ino, visit.inode);
            assert_eq!(
                found.st_ino,
                rustix::fs::lstat(tree.0.join(visit.path))?.st_ino
            );
            seen.push(visit.path.to_owned());
            Ok(WalkStep::Enter)
        });
        assert!(unread.unwrap().folders.is_empty());
        let down = (0..DEPTH).flat_map(|depth| [deep(depth, "a"), deep(depth, "m")]);
        let last = [deep(DEPTH, "a"), deep(DEPTH, "z")];
        let up = (0..DEPTH).rev().map(|depth| deep(depth, "z"));
        let all: Vec<_> = down.chain(last).chain(up).collect();
        assert_eq!(seen, all);
    }

    /// The parts of the paths that the kernel looks up for a walk, and how often it is asked.
    fn look_ups(root: &fs::File) -> (usize, usize) {
        let (mut asked, mut parts) = (0, 0);
        let mut open = |folder: BorrowedFd<'_>, path: &Path| {
            asked += 1;
            parts += path.iter().count();
            beneath::open_folder(folder, path)
        };
        let unread = walk_in_batches(root.as_fd(), BATCH, &mut open, |_| Ok(WalkStep::Enter));
        assert!(unread.unwrap().folders.is_empty());
        (asked, parts)
    }

    #[test]
    fn each_folder_is_looked_up_once_in_the_one_above_however_long_its_path() {
        let tree = Tree::new("lookups");
        let root = fs::File::open(&tree.0).unwrap();
        // Of the way back only what was too far to be held open is looked up once more, from the top.
        let far = DEPTH + 1 - MAX_HANDLES;
        let chain = (1 + DEPTH + far, DEPTH + (0..far).sum::<usize>());
        assert_eq!(look_ups(&root), chain);
        let many = 500;
        let folder = tree.0.join(deep(DEPTH - 1, ""));
        for number in 0..many {
            fs::create_dir(folder.join(format!("f{number}"))).unwrap();
        }
        assert_eq!(look_ups(&root), (chain.0 + many, chain.1 + many));
    }

    #[test]
    fn a_flood_of_folders_that_cannot_be_read_is_counted_and_not_kept() {
        let mut unread = UnreadFolders::default();
        let long = Path::new("x").join("m".repeat(MAX_PATH_BYTES));
        let bytes = long.as_os_str().len();
        let kept = MAX_UNREAD_BYTES / bytes;
        for _ in 0..kept + 7 {
            unread.add(&long, Errno::NAMETOOLONG.into());
        }
        assert_eq!((unread.folders.len(), unread.more), (kept, 7));
    }

    #[test]
    fn a_large_folder_is_visited_whole_though_it_is_read_in_batches_and_loses_names_meanwhile() {
        let tree = Tree::new("batches");
        let many: Vec<_> = (0..5000).map(|number| format!("name-{number}")).collect();
        for name in &many {
            fs::write(tree.0.join(name), "").unwrap();
        }
        let root = fs::File::open(&tree.0).unwrap();
        let (mut seen, mut deepest) = (Vec::new(), 0);
        let mut open = |folder: BorrowedFd<'_>, path: &Path| beneath::open_folder(folder, path);
        let unread = walk_in_batches(root.as_fd(), 100, &mut open, |visit| {
            deepest = deepest.max(visit.path.iter().count());
            if visit.path.iter().count() == 1 && visit.kind == FileType::RegularFile {
                fs::remove_file(tree.0.join(visit.path))?;
                seen.push(visit.name.to_owned());
            }
            Ok(WalkStep::Enter)
        });
        assert!(unread.unwrap().folders.is_empty());
        let ordered = seen.is_sorted();
        assert!(!ordered, "all were read at once: nothing was tried");
        seen.sort();
        let mut all: Vec<OsString> = many.iter().map(OsString::from).collect();
        all.extend(["a".into(), "z".into()]);
        all.sort();
        assert_eq!(seen, all);
        assert_eq!(deepest, DEPTH + 1);
    }

    #[test]
    fn a_folder_that_was_replaced_while_the_walk_was_far_below_is_not_gone_on_with() {
        let tree = Tree::new("replaced");
        let root = fs::File::open(&tree.0).unwrap();
        let mut seen = Vec::new();
        let unread = walk(root.as_fd(), |visit| {
            if visit.path == deep(DEPTH, "a") {
                let replaced = tree.0.join("m/m");
                fs::rename(&replaced, tree.0.join("moved"))?;
                fs::create_dir(&replaced)?;
                fs::write(replaced.join("z"), "another")?;
            }
            seen.push(visit.path.to_owned());
            Ok(WalkStep::Enter)
        });
        let unread = unread.unwrap().folders.into_iter();
        let unread: Vec<_> = unread.map(|(path, _)| path).collect();
        // The root and its first folder are unchanged; those below the replaced one are gone.
        let far = DEPTH - MAX_HANDLES;
        let gone: Vec<_> = (2..=far).rev().map(|depth| deep(depth - 1, "m")).collect();
        assert_eq!(unread, gone);
        let up = seen.iter().filter(|path| path.ends_with("z"));
        let up: Vec<_> = up.cloned().collect();
        let kept = (far + 1..=DEPTH).rev().chain([1, 0]);
        assert_eq!(up, kept.map(|depth| deep(depth, "z")).collect::<Vec<_>>());
    }
}
