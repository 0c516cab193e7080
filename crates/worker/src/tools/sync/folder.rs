//! The synced tools folder and the table of what was synced, accessed by descriptors and never
//! through symbolic links.
//!
//! ```text
//! FOLDER/.airlock-sync/lock          one worker at a time
//! FOLDER/.airlock-sync/table.json    synced files with their marks; written before the files
//! FOLDER/.airlock-sync/UNIQUE        drafts; leftovers of a crash are swept by the next cycle
//! FOLDER/…                           tools
//! ```

use super::{ancestors, refusal};
use crate::artifacts::{names, openat};
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

/// Prefix of our own names.
pub(in crate::tools) const RESERVED_PREFIX: &str = ".airlock-";
const SYNC_FOLDER: &str = ".airlock-sync";
const LOCK: &str = "lock";
const TABLE: &str = "table.json";
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// An object that should be a file.
#[derive(Clone, Debug)]
pub(super) struct RemoteObject {
    /// Version of the object: entity tag or modification time.
    pub(super) mark: String,
    pub(super) size: u64,
    pub(super) e_tag: Option<String>,
}

/// A downloaded draft.
#[derive(Debug)]
pub(super) struct Download {
    pub(super) path: String,
    pub(super) draft: String,
}

/// Work to do.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Missing or outdated files.
    pub(super) changed: Vec<String>,
    /// Paths of somebody else's files that differ.
    pub(super) foreign: Vec<String>,
}

/// Synced files, by path.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SyncTable {
    files: BTreeMap<String, SyncedFile>,
    /// Somebody else's files that were found to differ from the object: it is not downloaded again
    /// to compare.
    #[serde(default)]
    foreign: BTreeMap<String, ForeignFile>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SyncedFile {
    /// Empty while the file is being written.
    mark: String,
    size: u64,
}

/// Versions of an object and a file that differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ForeignFile {
    mark: String,
    stamp: String,
}

/// The folder, locked.
#[derive(Debug)]
pub(super) struct SyncedFolder {
    base: Dir,
    own: Dir,
    lock: File,
    table: SyncTable,
}

/// A child process may inherit the lock until its exec; it must not keep it.
impl Drop for SyncedFolder {
    fn drop(&mut self) {
        _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

impl SyncedFolder {
    /// Opens the folder, creates it if absent, and removes old drafts.
    pub(super) fn open(folder: &Path) -> io::Result<SyncedFolder> {
        let base = openat::open_base(folder)?;
        let own = openat::ensure_private_folder(&base, SYNC_FOLDER)?;
        let lock = openat::open(&own, LOCK, OFlags::RDWR | OFlags::CREATE)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(io::Error::other("another worker is at it")),
            locked => locked?,
        }
        sweep(&own)?;
        let table = SyncTable::read(&own);
        Ok(SyncedFolder {
            base,
            own,
            lock,
            table,
        })
    }

    /// Compares the folder with the bucket.
    pub(super) fn changes(&self, wanted: &BTreeMap<String, RemoteObject>) -> Changes {
        let mut changes = Changes::default();
        for (path, object) in wanted {
            let entry = SyncedFile {
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

    /// Creates a draft.
    pub(super) fn draft(&self) -> io::Result<(String, File)> {
        let name = openat::random_name()?;
        let file = openat::create_file(&self.own, &name)?;
        Ok((name, file))
    }

    /// Applies the changes: code before manifests, which refer to it, and deletions last. The table
    /// is updated even if not all changes succeed. Returns the paths where somebody else's files
    /// stay.
    pub(super) fn apply(
        mut self,
        wanted: &BTreeMap<String, RemoteObject>,
        fetched: Vec<Download>,
    ) -> io::Result<Vec<String>> {
        let (fetched, foreign): (Vec<Download>, Vec<Download>) =
            fetched.into_iter().partition(|file| self.may_put(file));
        let foreign: Vec<String> = foreign.into_iter().map(|file| file.path).collect();
        if !foreign.is_empty() {
            self.remember(&foreign, wanted)?;
        }
        self.apply_changes(wanted, fetched)?;
        Ok(foreign)
    }

    fn remember(
        &mut self,
        foreign: &[String],
        wanted: &BTreeMap<String, RemoteObject>,
    ) -> io::Result<()> {
        for path in foreign {
            if let (Some(object), Some(stamp)) = (wanted.get(path), self.foreign(path)) {
                self.table.foreign.insert(
                    path.clone(),
                    ForeignFile {
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

    fn apply_changes(
        &mut self,
        wanted: &BTreeMap<String, RemoteObject>,
        fetched: Vec<Download>,
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
            self.table
                .files
                .insert(file.path.clone(), SyncedFile::default());
        }
        // Written first, so that after a crash the files are known to be ours.
        self.table.write(&self.own)?;
        let applied = self.change(wanted, fetched, vanished);
        self.table.write(&self.own)?;
        applied
    }

    fn change(
        &mut self,
        wanted: &BTreeMap<String, RemoteObject>,
        mut fetched: Vec<Download>,
        vanished: Vec<String>,
    ) -> io::Result<()> {
        let folders: BTreeSet<&str> = wanted.keys().flat_map(|path| ancestors(path)).collect();
        let in_the_way = |path: &String| {
            folders.contains(path.as_str())
                || ancestors(path).any(|folder| wanted.contains_key(folder))
        };
        let (first, mut last): (Vec<String>, Vec<String>) =
            vanished.into_iter().partition(in_the_way);
        first.iter().try_for_each(|path| self.delete(path))?;
        fetched.sort_by_key(|file| is_manifest(&file.path));
        for file in &fetched {
            let named = |error| io::Error::other(format!("{}: {error}", names::shown(&file.path)));
            self.put(file).map_err(named)?;
            if let Some(object) = wanted.get(&file.path) {
                let entry = SyncedFile {
                    mark: object.mark.clone(),
                    size: object.size,
                };
                self.table.files.insert(file.path.clone(), entry);
            }
        }
        last.sort_by_key(|path| !is_manifest(path));
        last.iter().try_for_each(|path| self.delete(path))
    }

    fn put(&self, file: &Download) -> io::Result<()> {
        let draft = openat::open_file(&self.own, &file.draft)?;
        rustix::fs::fchmod(&draft, Mode::from_raw_mode(mode(&draft)?))?;
        let (folders, name) = split(&file.path);
        let mut folder = self.base.try_clone()?;
        for part in folders.into_iter().flat_map(|folders| folders.split('/')) {
            folder = openat::ensure_folder(&folder, part)?;
        }
        // An empty folder may be left over; one that is not empty belongs to somebody else.
        match self.own.rename(&file.draft, &folder, name) {
            Err(there) if there.kind() == io::ErrorKind::IsADirectory => {
                folder.remove_dir(name)?;
                self.own.rename(&file.draft, &folder, name)
            }
            moved => moved,
        }
    }

    /// Whether the path is ours or free, or has the same content.
    fn may_put(&self, file: &Download) -> bool {
        if self.table.files.contains_key(&file.path) || self.foreign(&file.path).is_none() {
            return true;
        }
        let here = openat::open_file(&self.base, &file.path);
        let draft = openat::open_file(&self.own, &file.draft);
        here.and_then(|here| is_same(here, draft?)).unwrap_or(false)
    }

    /// Whether somebody else's file is known to differ. One of the same size is compared after a
    /// download.
    fn is_known_to_differ(&self, path: &str, object: &RemoteObject) -> bool {
        let Some(stamp) = self.foreign(path) else {
            return false;
        };
        let now = ForeignFile {
            mark: object.mark.clone(),
            stamp,
        };
        self.size(path) != Some(object.size) || self.table.foreign.get(path) == Some(&now)
    }

    /// Version of an existing entry that is not a folder. Folders are replaced only if they are
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

    fn delete(&mut self, path: &str) -> io::Result<()> {
        remove(&self.base, path)?;
        self.table.files.remove(path);
        Ok(())
    }

    fn size(&self, path: &str) -> Option<u64> {
        let found = openat::open_file(&self.base, path).ok()?.metadata().ok()?;
        found.is_file().then_some(found.len())
    }
}

impl SyncTable {
    /// Reads the table. Without a valid one everything is downloaded again, and nothing is deleted.
    fn read(own: &Dir) -> SyncTable {
        let mut text = Vec::new();
        let read = openat::open_file(own, TABLE)
            .and_then(|file| file.take(MAX_TABLE_BYTES).read_to_end(&mut text));
        let mut table: SyncTable = read
            .ok()
            .and_then(|_| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        // The table is untrusted, too: no path may lead elsewhere.
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
    let mut one = BufReader::new(one);
    let mut other = BufReader::new(other);
    loop {
        let left = one.fill_buf()?;
        let right = other.fill_buf()?;
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

/// Removes a file and the folders that become empty. An entry that somebody replaced is left.
fn remove(base: &Dir, path: &str) -> io::Result<()> {
    let mut rest = path;
    let mut is_file = true;
    loop {
        let (folders, name) = split(rest);
        let folder = match folders {
            Some(folders) => openat::open_folder(base, folders),
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
            (Err(error), _) if is_foreign(&error) => return Ok(()),
            (Err(error), _) => return Err(error),
        }
    }
}

/// Whether an entry is not ours: a folder that is not empty, or another type.
fn is_foreign(error: &io::Error) -> bool {
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

/// Files that may refer to others.
fn is_manifest(path: &str) -> bool {
    path.ends_with(".yaml") || path.ends_with(".yml")
}

/// File mode: programs are executable; objects have no mode.
fn mode(file: &File) -> io::Result<u32> {
    let mut start = Vec::new();
    file.take(4).read_to_end(&mut start)?;
    Ok(if start.starts_with(b"#!") || start == b"\x7fELF" {
        0o755
    } else {
        0o644
    })
}
