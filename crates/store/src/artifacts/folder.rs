//! Artifacts in a folder, opened by handle.
//!
//! ```text
//! artifacts/                       mode 0700
//!   .drafts/…                      versions in the making
//!   [@OWNER/]NAME/VERSION/bytes    NAME is encoded, VERSION counts 1, 2, 3, …; the machine's own have no owner
//!   [@OWNER/]NAME/VERSION/about.json
//! ```
//! `object_store` is not used here: its local backend leaves files of killed writers that its own
//! listing hides, cannot tell whether a writer lives, and resolves path strings. Here a version
//! appears by one rename of a folder, and the lock on a draft ends with its writer.

use super::{
    about::{self, About},
    checked::{Checked, Condition},
    draft::{self, ABOUT, BYTES, Draft},
    kept::{Owner, Spot, version_number},
};
use ::fs::Dir;
use rustix::fs::Mode;
use std::{
    fs::{DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::Arc,
};

const DRAFTS: &str = ".drafts";
/// Limits of one sweep: drafts examined and problems reported.
const MOST_DRAFTS: usize = 100_000;
const MOST_PROBLEMS: usize = 1000;
/// Maximum lost races; each means that another writer succeeded.
const TRIES: usize = 10_000;

/// Artifacts in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: Arc<Dir>,
    drafts: Arc<Dir>,
    pub(crate) checked: Arc<Checked>,
}

impl Folder {
    /// Opens the folder; creates it if absent. Only its owner may access it.
    pub(crate) fn open(folder: &Path) -> io::Result<Folder> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let root = Dir::open(folder)?;
        if root.status()?.st_mode & 0o077 != 0 {
            rustix::fs::fchmod(&root, Mode::RWXU)?;
        }
        let (drafts, _) = root.ensure_dir(DRAFTS, Mode::RWXU)?;
        Ok(Folder {
            root: Arc::new(root),
            drafts: Arc::new(drafts),
            checked: Arc::default(),
        })
    }

    pub(crate) fn draft(&self) -> io::Result<Draft> {
        Draft::new(&self.drafts)
    }

    /// Publishes a draft as the next version of its name, atomically.
    pub(crate) fn publish(
        &self,
        mut draft: Draft,
        owner: &Owner,
        entry: &str,
        about: &About,
    ) -> io::Result<u64> {
        draft.bytes().sync_all()?;
        // Nothing changes the file after this: its folder is renamed, not the file.
        self.checked
            .note(Condition::of(draft.bytes())?, &about.sha256);
        let mut file = draft.folder().create_file(ABOUT, Mode::RUSR | Mode::WUSR)?;
        file.write_all(&about.written()?)?;
        file.sync_all()?;
        draft.folder().sync()?;
        for _ in 0..TRIES {
            let (home, _) = self.make_home(owner)?;
            // Both folders may vanish meanwhile: `remove` removes an empty name folder.
            let (folder, made) = match home.ensure_dir(entry, Mode::RWXU) {
                Err(source) if source.kind() == io::ErrorKind::NotFound => continue,
                folder => folder?,
            };
            let newest = versions(&folder)?.into_iter().max();
            let version = newest.unwrap_or(0).saturating_add(1);
            match draft.publish(&folder, version) {
                Err(lost) if is_lost_race(&lost) => continue,
                published => published?,
            }
            folder.sync()?;
            if made {
                home.sync()?;
            }
            return Ok(version);
        }
        Err(io::Error::other(
            "too many other writers store artifacts of this name",
        ))
    }

    /// The versions of one name; none if there is no such name.
    pub(crate) fn versions(&self, owner: &Owner, entry: &str) -> io::Result<Vec<u64>> {
        let folder = self.home(owner).and_then(|home| home.open_dir(entry));
        match folder {
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            folder => versions(&folder?),
        }
    }

    /// Calls `each` for every version, and with the problem of every unreadable entry, until it
    /// returns false.
    pub(crate) fn walk(
        &self,
        owner: Option<&Owner>,
        each: &mut dyn FnMut(Result<Spot, String>) -> bool,
    ) -> io::Result<()> {
        let mut owners = match owner {
            Some(owner) => vec![owner.clone()],
            None => vec![Owner::local()],
        };
        if owner.is_none() {
            for entry in self.root.entries()? {
                owners.extend(
                    Owner::of_place(&entry?.name.to_string_lossy())
                        .filter(|owner| *owner != Owner::local()),
                );
            }
        }
        for owner in owners {
            let home = match self.home(&owner) {
                Err(absent) if absent.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => match each(Err(format!(
                    "what belongs to `{}`: {source}",
                    owner.as_str()
                ))) {
                    true => continue,
                    false => return Ok(()),
                },
                Ok(home) => home,
            };
            if !walk_home(&owner, &home, each)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Opens the bytes of a version and reads its metadata.
    pub(crate) fn look(&self, spot: &Spot) -> io::Result<(File, About)> {
        let place = self.version_folder(spot)?;
        let damaged =
            |source: io::Error| io::Error::new(io::ErrorKind::InvalidData, source.to_string());
        let open = |name: &str| place.read_file(name).map_err(damaged);
        let mut text = Vec::new();
        open(ABOUT)?
            .take(about::LONGEST)
            .read_to_end(&mut text)
            .map_err(damaged)?;
        let about = About::read(&text).map_err(damaged)?;
        let bytes = open(BYTES)?;
        let found = bytes.metadata().map_err(damaged)?;
        if !found.is_file() || found.len() != about.size_bytes {
            let what = format!(
                "it has {} bytes, {} were stored",
                found.len(),
                about.size_bytes
            );
            return Err(damaged(io::Error::other(what)));
        }
        Ok((bytes, about))
    }

    /// Size of a version; 0 if it is gone.
    pub(crate) fn weight(&self, spot: &Spot) -> u64 {
        let place = self.version_folder(spot);
        let found = place.and_then(|place| place.stat(BYTES));
        found
            .ok()
            .flatten()
            .and_then(|found| u64::try_from(found.st_size).ok())
            .unwrap_or(0)
    }

    /// Removes one version. Its number may be given again if it was the highest.
    pub(crate) fn remove(&self, spot: &Spot) -> io::Result<()> {
        let home = self.home(&spot.owner)?;
        let folder = home.open_dir(&spot.entry)?;
        draft::retire(&self.drafts, &folder, spot.version)?;
        // The name folder stays if another version is left or was just published.
        match home.remove_dir(&spot.entry) {
            Err(left) if is_lost_race(&left) => Ok(()),
            removed => removed.map(drop),
        }
    }

    /// Removes what dead writers left; returns what could not be removed, and why.
    pub(crate) fn sweep(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let drafts = self
            .drafts
            .entries()
            .map(|names| names.take(MOST_DRAFTS).collect());
        let names: Vec<_> = match drafts {
            Ok(names) => names,
            Err(source) => {
                return vec![format!("the drafts of artifacts cannot be read: {source}")];
            }
        };
        for name in names {
            let swept = name.and_then(|entry: ::fs::Entry| {
                draft::sweep(&self.drafts, &entry.name.to_string_lossy())
            });
            match swept {
                Err(source)
                    if source.kind() != io::ErrorKind::NotFound
                        && problems.len() < MOST_PROBLEMS =>
                {
                    problems.push(format!(
                        "a draft of an artifact cannot be removed: {source}"
                    ));
                }
                _ => {}
            }
        }
        problems
    }

    fn version_folder(&self, spot: &Spot) -> io::Result<Dir> {
        let folder = self.home(&spot.owner)?.open_dir(&spot.entry)?;
        folder.open_dir(spot.version.to_string())
    }

    fn home(&self, owner: &Owner) -> io::Result<Arc<Dir>> {
        match owner.place() {
            place if place.is_empty() => Ok(self.root.clone()),
            place => self.root.open_dir(place).map(Arc::new),
        }
    }

    fn make_home(&self, owner: &Owner) -> io::Result<(Arc<Dir>, bool)> {
        let place = owner.place();
        if place.is_empty() {
            return Ok((self.root.clone(), false));
        }
        let (home, made) = self.root.ensure_dir(&place, Mode::RWXU)?;
        if made {
            self.root.sync()?;
        }
        Ok((Arc::new(home), made))
    }
}

fn walk_home(
    owner: &Owner,
    home: &Dir,
    each: &mut dyn FnMut(Result<Spot, String>) -> bool,
) -> io::Result<bool> {
    for entry in home.entries()? {
        let entry = entry?.name.to_string_lossy().into_owned();
        // Reserved names, and other owners' folders.
        if entry == DRAFTS || entry.starts_with('@') {
            continue;
        }
        let found = home.open_dir(&entry).and_then(|folder| versions(&folder));
        let found = match found {
            Err(source) if source.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => match each(Err(format!("`{}`: {source}", entry.escape_debug()))) {
                true => continue,
                false => return Ok(false),
            },
            Ok(found) => found,
        };
        for version in found {
            if !each(Ok(Spot {
                owner: owner.clone(),
                entry: entry.clone(),
                version,
            })) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether a concurrent writer or remover was faster.
fn is_lost_race(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound
    )
}

/// The version numbers in a name folder; other entries are not ours.
fn versions(folder: &Dir) -> io::Result<Vec<u64>> {
    folder
        .entries()?
        .filter_map(|entry| {
            entry
                .map(|entry| version_number(entry.name.to_str()?))
                .transpose()
        })
        .collect()
}
