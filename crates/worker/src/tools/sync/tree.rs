//! The folder of tools, and what of it was brought: by handles, never through a symbolic link.
//!
//! ```text
//! FOLDER/.airlock-sync/lock          one worker at a time
//! FOLDER/.airlock-sync/table.json    what was brought, with its marks; says so before it is there
//! FOLDER/.airlock-sync/UNIQUE        on its way; what a crash leaves is swept by the next cycle
//! FOLDER/…                           tools
//! ```

use super::{ancestors, refusal};
use crate::artifacts::{beneath, names};
use ::fs::Dir;
use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
};

/// Names that are ours begin so: nobody's tools.
pub(in crate::tools) const OURS: &str = ".airlock-";
const OWN: &str = ".airlock-sync";
const LOCK: &str = "lock";
const TABLE: &str = "table.json";
const LONGEST_TABLE: u64 = 64 << 20;

/// An object that shall be a file.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// What tells it from what it was before.
    pub(super) mark: String,
    pub(super) size: u64,
    pub(super) e_tag: Option<String>,
}

/// A file that is here but not in its place.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) path: String,
    pub(super) draft: String,
}

/// What there is to do.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Not here as it is wanted.
    pub(super) changed: Vec<String>,
    /// Here from somebody else, and not what is wanted.
    pub(super) foreign: Vec<String>,
}

/// What was brought, by path.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Table {
    files: BTreeMap<String, Entry>,
    /// Somebody else's files that are not what is wanted, as was seen with the object at hand: it is not fetched for that again.
    #[serde(default)]
    foreign: BTreeMap<String, Differing>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// Empty while it is on its way.
    mark: String,
    size: u64,
}

/// An object and a file, as they were when they differed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Differing {
    mark: String,
    stamp: String,
}

/// The folder, held by a lock.
#[derive(Debug)]
pub(super) struct Tree {
    base: Dir,
    own: Dir,
    lock: File,
    table: Table,
}

/// A program that is being started may have a copy of the lock until it is another program; it must not keep it.
impl Drop for Tree {
    fn drop(&mut self) {
        _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

impl Tree {
    /// Opens the folder; makes it if absent. Drafts of before are removed.
    pub(super) fn open(folder: &Path) -> io::Result<Tree> {
        let base = beneath::base(folder)?;
        let own = beneath::own_folder(&base, OWN)?;
        let lock = beneath::open(&own, LOCK, OFlags::RDWR | OFlags::CREATE)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(io::Error::other("another worker is at it")),
            locked => locked?,
        }
        sweep(&own)?;
        let table = Table::read(&own);
        Ok(Tree {
            base,
            own,
            lock,
            table,
        })
    }

    /// What of it is not here, or not as it is wanted.
    pub(super) fn changes(&self, wanted: &BTreeMap<String, Wanted>) -> Changes {
        let mut changes = Changes::default();
        for (path, object) in wanted {
            let entry = Entry {
                mark: object.mark.clone(),
                size: object.size,
            };
            match self.table.files.get(path) {
                Some(known) if *known == entry && self.size(path) == Some(object.size) => {}
                None if self.is_known_to_differ(path, object) => changes.foreign.push(path.clone()),
                _ => changes.changed.push(path.clone()),
            }
        }
        changes
    }

    /// A file of its own for what is on its way.
    pub(super) fn draft(&self) -> io::Result<(String, File)> {
        let name = beneath::unique()?;
        let file = beneath::create(&self.own, &name)?;
        Ok((name, file))
    }

    /// Puts everything into its place: code before manifests, which name it, and takes away what vanished at last. What was
    /// done is written down even if not all could be. Comes back with the paths where somebody else's files stay.
    pub(super) fn apply(
        mut self,
        wanted: &BTreeMap<String, Wanted>,
        fetched: Vec<Fetched>,
    ) -> io::Result<Vec<String>> {
        let (fetched, foreign): (Vec<Fetched>, Vec<Fetched>) =
            fetched.into_iter().partition(|file| self.may_put(file));
        let foreign: Vec<String> = foreign.into_iter().map(|file| file.path).collect();
        if !foreign.is_empty() {
            self.remember(&foreign, wanted)?;
        }
        self.change_all(wanted, fetched)?;
        Ok(foreign)
    }

    fn remember(
        &mut self,
        foreign: &[String],
        wanted: &BTreeMap<String, Wanted>,
    ) -> io::Result<()> {
        for path in foreign {
            if let (Some(object), Some(stamp)) = (wanted.get(path), self.foreign(path)) {
                self.table.foreign.insert(
                    path.clone(),
                    Differing {
                        mark: object.mark.clone(),
                        stamp,
                    },
                );
            }
        }
        self.table
            .foreign
            .retain(|path, _| wanted.contains_key(path));
        self.table.write(&self.own)
    }

    fn change_all(
        &mut self,
        wanted: &BTreeMap<String, Wanted>,
        fetched: Vec<Fetched>,
    ) -> io::Result<()> {
        let vanished: Vec<String> = self
            .table
            .files
            .keys()
            .filter(|path| !wanted.contains_key(*path))
            .cloned()
            .collect();
        if fetched.is_empty() && vanished.is_empty() {
            return Ok(());
        }
        for file in &fetched {
            self.table.files.insert(file.path.clone(), Entry::default());
        }
        // Before it is so: what a crash leaves is known to be ours.
        self.table.write(&self.own)?;
        let applied = self.change(wanted, fetched, vanished);
        self.table.write(&self.own)?;
        applied
    }

    fn change(
        &mut self,
        wanted: &BTreeMap<String, Wanted>,
        mut fetched: Vec<Fetched>,
        vanished: Vec<String>,
    ) -> io::Result<()> {
        let folders: BTreeSet<&str> = wanted.keys().flat_map(|path| ancestors(path)).collect();
        let in_the_way = |path: &String| {
            folders.contains(path.as_str())
                || ancestors(path).any(|folder| wanted.contains_key(folder))
        };
        let (first, mut last): (Vec<String>, Vec<String>) =
            vanished.into_iter().partition(in_the_way);
        first.iter().try_for_each(|path| self.take_away(path))?;
        fetched.sort_by_key(|file| is_manifest(&file.path));
        for file in &fetched {
            let named = |error| io::Error::other(format!("{}: {error}", names::shown(&file.path)));
            self.put(file).map_err(named)?;
            if let Some(object) = wanted.get(&file.path) {
                let entry = Entry {
                    mark: object.mark.clone(),
                    size: object.size,
                };
                self.table.files.insert(file.path.clone(), entry);
            }
        }
        last.sort_by_key(|path| !is_manifest(path));
        last.iter().try_for_each(|path| self.take_away(path))
    }

    fn put(&self, file: &Fetched) -> io::Result<()> {
        let draft = beneath::read(&self.own, &file.draft)?;
        rustix::fs::fchmod(&draft, Mode::from_raw_mode(mode(&draft)?))?;
        let (folders, name) = split(&file.path);
        let mut folder = self.base.try_clone()?;
        for part in folders.into_iter().flat_map(|folders| folders.split('/')) {
            folder = beneath::make_folder(&folder, part)?;
        }
        // An empty folder may be left from a file in it; one that is not empty is somebody else's, and stays.
        match self.own.rename(&file.draft, &folder, name) {
            Err(there) if there.kind() == io::ErrorKind::IsADirectory => {
                folder.remove_dir(name)?;
                self.own.rename(&file.draft, &folder, name)
            }
            moved => moved,
        }
    }

    /// Whether its place is ours or free, or has just its bytes.
    fn may_put(&self, file: &Fetched) -> bool {
        if self.table.files.contains_key(&file.path) || self.foreign(&file.path).is_none() {
            return true;
        }
        let here = beneath::read(&self.base, &file.path);
        let draft = beneath::read(&self.own, &file.draft);
        here.and_then(|here| is_same(here, draft?)).unwrap_or(false)
    }

    /// Whether something is there that is not the object. One of the same size is looked at more closely when that is here.
    fn is_known_to_differ(&self, path: &str, object: &Wanted) -> bool {
        let Some(stamp) = self.foreign(path) else {
            return false;
        };
        let now = Differing {
            mark: object.mark.clone(),
            stamp,
        };
        self.size(path) != Some(object.size) || self.table.foreign.get(path) == Some(&now)
    }

    /// What is there and is no folder: what tells it from what it was before. Folders are never replaced, unless they are
    /// empty.
    fn foreign(&self, path: &str) -> Option<String> {
        let found = self.base.stat(path).ok()??;
        (FileType::from_raw_mode(found.st_mode) != FileType::Directory).then(|| {
            format!(
                "{} {} {}.{:09}",
                found.st_ino, found.st_size, found.st_ctime, found.st_ctime_nsec
            )
        })
    }

    fn take_away(&mut self, path: &str) -> io::Result<()> {
        remove(&self.base, path)?;
        self.table.files.remove(path);
        Ok(())
    }

    fn size(&self, path: &str) -> Option<u64> {
        let found = beneath::read(&self.base, path).ok()?.metadata().ok()?;
        found.is_file().then_some(found.len())
    }
}

impl Table {
    /// One that cannot be read is as good as none: everything is brought again, and nothing is taken away.
    fn read(own: &Dir) -> Table {
        let mut text = Vec::new();
        let read = beneath::read(own, TABLE)
            .and_then(|file| file.take(LONGEST_TABLE).read_to_end(&mut text));
        let mut table: Table = read
            .ok()
            .and_then(|_| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        // Whoever wrote it: no path in it may lead elsewhere.
        table.files.retain(|path, _| refusal(path).is_none());
        table
    }

    fn write(&self, own: &Dir) -> io::Result<()> {
        let bytes = serde_json::to_vec(self)?;
        own.replace(TABLE, Mode::RUSR | Mode::WUSR, |file| {
            file.write_all(&bytes)
        })
    }
}

fn is_same(one: File, other: File) -> io::Result<bool> {
    let (mut one, mut other) = (BufReader::new(one), BufReader::new(other));
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let common = left.len().min(right.len());
        if common == 0 || left[..common] != right[..common] {
            return Ok(left.is_empty() && right.is_empty());
        }
        one.consume(common);
        other.consume(common);
    }
}

fn sweep(own: &Dir) -> io::Result<()> {
    for entry in own.entries()? {
        match entry?.name.to_str() {
            Some(LOCK | TABLE) | None => {}
            Some(name) => drop(own.remove_file(name)?),
        }
    }
    Ok(())
}

/// Removes a file, and the folders that are empty without it. What somebody put in its place is not ours to remove.
fn remove(base: &Dir, path: &str) -> io::Result<()> {
    let (mut rest, mut is_file) = (path, true);
    loop {
        let (folders, name) = split(rest);
        let folder = match folders {
            Some(folders) => beneath::open_folder(base, folders),
            None => base.try_clone(),
        };
        let Ok(folder) = folder else { return Ok(()) };
        let removed = if is_file {
            folder.remove_file(name)
        } else {
            folder.remove_dir(name)
        };
        match (removed, folders) {
            (Ok(_), Some(folders)) => (rest, is_file) = (folders, false),
            (Ok(_), None) => return Ok(()),
            (Err(error), _) if is_others(&error) => return Ok(()),
            (Err(error), _) => return Err(error),
        }
    }
}

/// Whether something is left that is not ours: a folder with something in it, or another kind of thing.
fn is_others(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
    )
}

fn split(path: &str) -> (Option<&str>, &str) {
    match path.rsplit_once('/') {
        Some((folders, name)) => (Some(folders), name),
        None => (None, path),
    }
}

/// What may name other files.
fn is_manifest(path: &str) -> bool {
    path.ends_with(".yaml") || path.ends_with(".yml")
}

/// Programs may be run; objects have no mode of their own.
fn mode(file: &File) -> io::Result<u32> {
    let mut start = Vec::new();
    file.take(4).read_to_end(&mut start)?;
    Ok(if start.starts_with(b"#!") || start == b"\x7fELF" {
        0o755
    } else {
        0o644
    })
}
