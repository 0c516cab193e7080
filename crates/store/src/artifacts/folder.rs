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
    digest_cache::{DigestCache, FileStamp},
    draft::{self, BYTES, Draft, METADATA_FILE},
    metadata::{self, Metadata},
    version::{ArtifactOwner, ArtifactVersion, parse_version},
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
const MAX_DRAFTS: usize = 100_000;
const MAX_PROBLEMS: usize = 1000;
/// Maximum lost races; each means that another writer succeeded.
const MAX_ATTEMPTS: usize = 10_000;

/// Artifacts in a folder.
#[derive(Clone, Debug)]
pub(crate) struct FolderBackend {
    root: Arc<Dir>,
    drafts: Arc<Dir>,
    pub(crate) digest_cache: Arc<DigestCache>,
}

impl FolderBackend {
    /// Opens the folder; creates it if absent. Only its owner may access it.
    pub(crate) fn open(folder: &Path) -> io::Result<FolderBackend> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let root = Dir::open(folder)?;
        if root.status()?.st_mode & 0o077 != 0 {
            rustix::fs::fchmod(&root, Mode::RWXU)?;
        }
        let (drafts, _) = root.ensure_dir(DRAFTS, Mode::RWXU)?;
        Ok(FolderBackend {
            root: Arc::new(root),
            drafts: Arc::new(drafts),
            digest_cache: Arc::default(),
        })
    }

    pub(crate) fn draft(&self) -> io::Result<Draft> {
        Draft::new(&self.drafts)
    }

    /// Publishes a draft as the next version of its name, atomically.
    pub(crate) fn publish(
        &self,
        mut draft: Draft,
        owner: &ArtifactOwner,
        entry: &str,
        metadata: &Metadata,
    ) -> io::Result<u64> {
        draft.bytes().sync_all()?;
        // Nothing changes the file after this: its folder is renamed, not the file.
        self.digest_cache
            .note(FileStamp::of(draft.bytes())?, &metadata.sha256);
        let mut file = draft
            .folder()
            .create_file(METADATA_FILE, Mode::RUSR | Mode::WUSR)?;
        file.write_all(&metadata.await_pending_write()?)?;
        file.sync_all()?;
        draft.folder().sync()?;
        for _ in 0..MAX_ATTEMPTS {
            let (owner_folder, _) = self.ensure_owner_folder(owner)?;
            // Both folders may vanish meanwhile: `remove` removes an empty name folder.
            let (folder, made) = match owner_folder.ensure_dir(entry, Mode::RWXU) {
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
                owner_folder.sync()?;
            }
            return Ok(version);
        }
        Err(io::Error::other(
            "too many other writers store artifacts of this name",
        ))
    }

    /// The versions of one name; none if there is no such name.
    pub(crate) fn versions(&self, owner: &ArtifactOwner, entry: &str) -> io::Result<Vec<u64>> {
        let folder = self
            .owner_folder(owner)
            .and_then(|owner_folder| owner_folder.open_dir(entry));
        match folder {
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            folder => versions(&folder?),
        }
    }

    /// Calls `each` for every version, and with the problem of every unreadable entry, until it
    /// returns false.
    pub(crate) fn walk(
        &self,
        owner: Option<&ArtifactOwner>,
        each: &mut dyn FnMut(Result<ArtifactVersion, String>) -> bool,
    ) -> io::Result<()> {
        let mut owners = match owner {
            Some(owner) => vec![owner.clone()],
            None => vec![ArtifactOwner::local()],
        };
        if owner.is_none() {
            for entry in self.root.entries()? {
                owners.extend(
                    ArtifactOwner::from_folder_name(&entry?.name.to_string_lossy())
                        .filter(|owner| *owner != ArtifactOwner::local()),
                );
            }
        }
        for owner in owners {
            let owner_folder = match self.owner_folder(&owner) {
                Err(absent) if absent.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => {
                    if each(Err(format!(
                        "what belongs to `{}`: {source}",
                        owner.as_str()
                    ))) {
                        continue;
                    } else {
                        return Ok(());
                    }
                }
                Ok(owner_folder) => owner_folder,
            };
            if !walk_owner_folder(&owner, &owner_folder, each)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Opens the bytes of a version and reads its metadata.
    pub(crate) fn open_version_files(
        &self,
        location: &ArtifactVersion,
    ) -> io::Result<(File, Metadata)> {
        let folder_name = self.version_folder(location)?;
        let damaged =
            |source: io::Error| io::Error::new(io::ErrorKind::InvalidData, source.to_string());
        let open = |name: &str| folder_name.read_file(name).map_err(damaged);
        let mut text = Vec::new();
        open(METADATA_FILE)?
            .take(metadata::MAX_BYTES)
            .read_to_end(&mut text)
            .map_err(damaged)?;
        let metadata = Metadata::read(&text).map_err(damaged)?;
        let bytes = open(BYTES)?;
        let found = bytes.metadata().map_err(damaged)?;
        if !found.is_file() || found.len() != metadata.size_bytes {
            let what = format!(
                "it has {} bytes, {} were stored",
                found.len(),
                metadata.size_bytes
            );
            return Err(damaged(io::Error::other(what)));
        }
        Ok((bytes, metadata))
    }

    /// Size of a version; 0 if it is gone.
    pub(crate) fn usage(&self, location: &ArtifactVersion) -> u64 {
        let folder_name = self.version_folder(location);
        let found = folder_name.and_then(|folder_name| folder_name.stat(BYTES));
        found
            .ok()
            .flatten()
            .and_then(|found| u64::try_from(found.st_size).ok())
            .unwrap_or(0)
    }

    /// Removes one version. Its number may be given again if it was the highest.
    pub(crate) fn remove(&self, location: &ArtifactVersion) -> io::Result<()> {
        let owner_folder = self.owner_folder(&location.owner)?;
        let folder = owner_folder.open_dir(&location.entry)?;
        draft::retire(&self.drafts, &folder, location.version)?;
        // The name folder stays if another version is left or was just published.
        match owner_folder.remove_dir(&location.entry) {
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
            .map(|names| names.take(MAX_DRAFTS).collect());
        let names: Vec<_> = match drafts {
            Ok(names) => names,
            Err(source) => {
                return vec![format!("the drafts of artifacts cannot be read: {source}")];
            }
        };
        for name in names {
            let swept = name.and_then(|entry: ::fs::DirEntry| {
                draft::sweep(&self.drafts, &entry.name.to_string_lossy())
            });
            match swept {
                Err(source)
                    if source.kind() != io::ErrorKind::NotFound
                        && problems.len() < MAX_PROBLEMS =>
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

    fn version_folder(&self, location: &ArtifactVersion) -> io::Result<Dir> {
        let folder = self
            .owner_folder(&location.owner)?
            .open_dir(&location.entry)?;
        folder.open_dir(location.version.to_string())
    }

    fn owner_folder(&self, owner: &ArtifactOwner) -> io::Result<Arc<Dir>> {
        match owner.folder_name() {
            folder_name if folder_name.is_empty() => Ok(self.root.clone()),
            folder_name => self.root.open_dir(folder_name).map(Arc::new),
        }
    }

    fn ensure_owner_folder(&self, owner: &ArtifactOwner) -> io::Result<(Arc<Dir>, bool)> {
        let folder_name = owner.folder_name();
        if folder_name.is_empty() {
            return Ok((self.root.clone(), false));
        }
        let (owner_folder, made) = self.root.ensure_dir(&folder_name, Mode::RWXU)?;
        if made {
            self.root.sync()?;
        }
        Ok((Arc::new(owner_folder), made))
    }
}

fn walk_owner_folder(
    owner: &ArtifactOwner,
    owner_folder: &Dir,
    each: &mut dyn FnMut(Result<ArtifactVersion, String>) -> bool,
) -> io::Result<bool> {
    for entry in owner_folder.entries()? {
        let entry = entry?.name.to_string_lossy().into_owned();
        // Reserved names, and other owners' folders.
        if entry == DRAFTS || entry.starts_with('@') {
            continue;
        }
        let found = owner_folder
            .open_dir(&entry)
            .and_then(|folder| versions(&folder));
        let found = match found {
            Err(source) if source.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => {
                if each(Err(format!("`{}`: {source}", entry.escape_debug()))) {
                    continue;
                } else {
                    return Ok(false);
                }
            }
            Ok(found) => found,
        };
        for version in found {
            if !each(Ok(ArtifactVersion {
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
                .map(|entry| parse_version(entry.name.to_str()?))
                .transpose()
        })
        .collect()
}
