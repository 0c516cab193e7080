//! Artifacts in a folder, by handles.
//!
//! ```text
//! artifacts/                       mode 0700
//!   .drafts/…                      versions in the making
//!   [@OWNER/]NAME/VERSION/bytes    NAME is encoded, VERSION counts 1, 2, 3, …; the machine's own have no owner
//!   [@OWNER/]NAME/VERSION/about.json
//! ```
//! Not through `object_store`: its local store leaves files of killed writers that its own listing hides, does not
//! know whether a writer lives, and walks by path. Here a version appears by one rename of a whole folder, and the
//! lock on a draft dies with its writer.

use super::{
    about::{self, About},
    checked::{Checked, Condition},
    draft::{self, ABOUT, BYTES, Draft},
    kept::{Owner, Spot, version_number},
};
use crate::beneath;
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{DirBuilder, File},
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::Path,
    sync::Arc,
};

const DRAFTS: &str = ".drafts";
/// What one sweep looks at and complains about at most.
const MOST_DRAFTS: usize = 100_000;
const MOST_PROBLEMS: usize = 1000;
/// Each lost race means that another writer won one.
const TRIES: usize = 10_000;

/// Artifacts in a folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: Arc<OwnedFd>,
    drafts: Arc<OwnedFd>,
    pub(crate) checked: Arc<Checked>,
}

impl Folder {
    /// Opens the folder; makes it if absent. Nobody but its owner may look into it.
    pub(crate) fn open(folder: &Path) -> io::Result<Folder> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(folder, flags, Mode::empty())?;
        if rustix::fs::fstat(&root)?.st_mode & 0o077 != 0 {
            rustix::fs::fchmod(&root, Mode::RWXU)?;
        }
        let (drafts, _) = beneath::make_folder(&root, DRAFTS)?;
        Ok(Folder {
            root: Arc::new(root),
            drafts: Arc::new(drafts),
            checked: Arc::default(),
        })
    }

    pub(crate) fn draft(&self) -> io::Result<Draft> {
        Draft::new(&self.drafts)
    }

    /// Makes a draft the next version of its name, all at once.
    pub(crate) fn publish(
        &self,
        mut draft: Draft,
        owner: &Owner,
        entry: &str,
        about: &About,
    ) -> io::Result<u64> {
        draft.bytes.sync_all()?;
        // Nothing changes it after this: its folder is moved, not the file.
        self.checked
            .note(Condition::of(&draft.bytes)?, &about.sha256);
        let file = File::from(beneath::open(
            &draft.folder,
            ABOUT,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        )?);
        (&file).write_all(&about.written()?)?;
        file.sync_all()?;
        rustix::fs::fsync(&draft.folder)?;
        for _ in 0..TRIES {
            let (home, _) = self.make_home(owner)?;
            // Both may vanish meanwhile: `remove` takes an empty name folder away.
            let (folder, made) = match beneath::make_folder(&home, entry) {
                Err(source) if source.kind() == io::ErrorKind::NotFound => continue,
                folder => folder?,
            };
            let newest = versions(&folder)?.into_iter().max();
            let version = newest.unwrap_or(0).saturating_add(1);
            match draft.publish(&folder, version) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOENT) => continue,
                published => published?,
            }
            rustix::fs::fsync(&folder)?;
            if made {
                rustix::fs::fsync(&*home)?;
            }
            return Ok(version);
        }
        Err(io::Error::other(
            "too many others keep artifacts of this name",
        ))
    }

    /// The versions of one name; none if there is no such name.
    pub(crate) fn versions(&self, owner: &Owner, entry: &str) -> io::Result<Vec<u64>> {
        let folder = self
            .home(owner)
            .and_then(|home| beneath::open_folder(&home, entry));
        match folder {
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            folder => versions(&folder?),
        }
    }

    /// Calls `each` with every version there is, and what is there instead of one, until it says that it is enough.
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
            for name in beneath::names(&self.root)? {
                owners.extend(
                    Owner::of_place(&name?.to_string_lossy())
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

    /// The bytes of a version, and what is written beside them.
    pub(crate) fn look(&self, spot: &Spot) -> io::Result<(File, About)> {
        let place = self.version_folder(spot)?;
        let damaged =
            |source: io::Error| io::Error::new(io::ErrorKind::InvalidData, source.to_string());
        let open =
            |name| beneath::open(&place, name, OFlags::RDONLY | OFlags::NONBLOCK).map_err(damaged);
        let mut text = Vec::new();
        File::from(open(ABOUT)?)
            .take(about::LONGEST)
            .read_to_end(&mut text)
            .map_err(damaged)?;
        let about = About::read(&text).map_err(damaged)?;
        let bytes = File::from(open(BYTES)?);
        let found = bytes.metadata().map_err(damaged)?;
        if !found.is_file() || found.len() != about.size_bytes {
            let what = format!(
                "{} bytes are there, {} were kept",
                found.len(),
                about.size_bytes
            );
            return Err(damaged(io::Error::other(what)));
        }
        Ok((bytes, about))
    }

    /// How much a version weighs; nothing if it is gone.
    pub(crate) fn weight(&self, spot: &Spot) -> u64 {
        let place = self.version_folder(spot);
        let found = place.and_then(|place| {
            Ok(rustix::fs::statat(
                &place,
                BYTES,
                AtFlags::SYMLINK_NOFOLLOW,
            )?)
        });
        found
            .ok()
            .and_then(|found| u64::try_from(found.st_size).ok())
            .unwrap_or(0)
    }

    /// Removes one version. Its number may be given again if it was the highest.
    pub(crate) fn remove(&self, spot: &Spot) -> io::Result<()> {
        let home = self.home(&spot.owner)?;
        let folder = beneath::open_folder(&home, &spot.entry)?;
        draft::retire(&self.drafts, &folder, spot.version)?;
        // Stays if a version is left, or came meanwhile.
        match rustix::fs::unlinkat(&*home, &spot.entry, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(source) => Err(source.into()),
        }
    }

    /// Removes what dead writers left; gives back what could not be removed, and why.
    pub(crate) fn sweep(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let drafts = beneath::names(&self.drafts).map(|names| names.take(MOST_DRAFTS).collect());
        let names: Vec<_> = match drafts {
            Ok(names) => names,
            Err(source) => {
                return vec![format!("the drafts of artifacts cannot be read: {source}")];
            }
        };
        for name in names {
            let swept = name.and_then(|name| draft::sweep(&self.drafts, &name.to_string_lossy()));
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

    fn version_folder(&self, spot: &Spot) -> io::Result<OwnedFd> {
        let folder = beneath::open_folder(&*self.home(&spot.owner)?, &spot.entry)?;
        beneath::open_folder(&folder, spot.version.to_string())
    }

    fn home(&self, owner: &Owner) -> io::Result<Arc<OwnedFd>> {
        match owner.place() {
            place if place.is_empty() => Ok(self.root.clone()),
            place => beneath::open_folder(&self.root, place).map(Arc::new),
        }
    }

    fn make_home(&self, owner: &Owner) -> io::Result<(Arc<OwnedFd>, bool)> {
        let place = owner.place();
        if place.is_empty() {
            return Ok((self.root.clone(), false));
        }
        let (home, made) = beneath::make_folder(&self.root, &place)?;
        if made {
            rustix::fs::fsync(&*self.root)?;
        }
        Ok((Arc::new(home), made))
    }
}

fn walk_home(
    owner: &Owner,
    home: &OwnedFd,
    each: &mut dyn FnMut(Result<Spot, String>) -> bool,
) -> io::Result<bool> {
    for entry in beneath::names(home)? {
        let entry = entry?.to_string_lossy().into_owned();
        // Ours, and other owners'.
        if entry == DRAFTS || entry.starts_with('@') {
            continue;
        }
        let found = beneath::open_folder(home, &entry).and_then(|folder| versions(&folder));
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

/// The version numbers in a name folder; what is no number is not ours.
fn versions(folder: &OwnedFd) -> io::Result<Vec<u64>> {
    let names = beneath::names(folder)?;
    names
        .filter_map(|name| {
            name.map(|name| version_number(name.to_str().ok()?))
                .transpose()
        })
        .collect()
}
