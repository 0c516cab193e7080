//! Artifacts: named, numbered, immutable files.
//!
//! ```text
//! artifacts/                 mode 0700
//!   .drafts/…                versions in the making
//!   NAME/VERSION/bytes       NAME is encoded, VERSION counts 1, 2, 3, …
//!   NAME/VERSION/about.json  name, size, digest, time, run
//! ```

use crate::{
    about::{About, Content},
    beneath,
    draft::{self, ABOUT, BYTES, Draft},
    names,
};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use sha2::{Digest, Sha256};
use spec::{ArtifactRef, Id, Timestamp, WorkspacePath};
use std::{
    fs::{DirBuilder, File},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::DirBuilderExt},
    },
    path::PathBuf,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

const DRAFTS: &str = ".drafts";
/// What one listing shows at most.
const LONGEST_LISTING: usize = 100_000;
/// What one listing or sweep complains about at most.
const MOST_PROBLEMS: usize = 1000;
/// Each lost race means that another writer won one.
const TRIES: usize = 10_000;

/// Artifacts in a folder.
#[derive(Clone, Debug)]
pub struct Artifacts {
    root: Arc<OwnedFd>,
    drafts: Arc<OwnedFd>,
}

/// One kept version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name: where it lay in the workspace.
    pub name: WorkspacePath,
    /// Counts from 1.
    pub version: u64,
    /// Its length.
    pub size_bytes: u64,
    /// Its digest, in hexadecimal.
    pub sha256: String,
    /// When it was kept.
    pub kept_at: Timestamp,
    /// The run that made it.
    pub run_id: Option<String>,
}

/// What is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by name, then version.
    pub kept: Vec<Kept>,
    /// Entries that could not be read, and why.
    pub problems: Vec<String>,
    /// There is more than one listing shows.
    pub cut: bool,
}

/// Why an artifact could not be kept, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder itself.
    #[error("cannot open the artifact folder `{}`", folder.display())]
    Folder {
        /// Where it should be.
        folder: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Writing failed.
    #[error("cannot keep artifact `{}`", shown(name))]
    Keep {
        /// Which one.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What should be kept could not be read.
    #[error("cannot read what should be kept as artifact `{}`", shown(name))]
    Source {
        /// Which one.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Too large.
    #[error("artifact `{}` is larger than {limit_bytes} bytes", shown(name))]
    TooLarge {
        /// Which one.
        name: WorkspacePath,
        /// What it may have.
        limit_bytes: u64,
    },
    /// No such artifact.
    #[error("no artifact is called `{}`{}", shown(name), version.map_or(String::new(), |n| format!(" in version {n}")))]
    Missing {
        /// What was asked for.
        name: WorkspacePath,
        /// In which version, if one was named.
        version: Option<u64>,
    },
    /// What is kept is not what was kept.
    #[error("artifact `{}`, version {version}, is damaged: {why}", shown(name))]
    Damaged {
        /// Which one.
        name: WorkspacePath,
        /// In which version.
        version: u64,
        /// What is wrong.
        why: String,
    },
    /// Reading or removing what is kept failed.
    #[error("cannot {what} artifact `{}`", shown(name))]
    Access {
        /// `read` or `remove`.
        what: &'static str,
        /// Which one.
        name: WorkspacePath,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl Artifacts {
    /// Opens the folder; makes it if absent. Nobody but its owner may look into it.
    pub fn open(folder: PathBuf) -> Result<Artifacts, StoreError> {
        open_root(&folder).map_err(|source| StoreError::Folder { folder, source })
    }

    /// Keeps what `source` gives as the next version of `name`, unless it is longer than the limit.
    pub fn put(
        &self,
        name: &WorkspacePath,
        run_id: Option<&Id>,
        source: &mut dyn Read,
        limit_bytes: u64,
    ) -> Result<ArtifactRef, StoreError> {
        let failed = |source| StoreError::Keep { name: name.clone(), source };
        let draft = Draft::new(&self.drafts).map_err(failed)?;
        let kept = fill(&draft, name, source, limit_bytes).and_then(|content| {
            let about = About::new(name, content, now(), run_id.map(|id| id.as_str().to_owned()));
            let version = self.publish(&draft, name, &about).map_err(failed)?;
            Ok(reference(name, version, &about))
        });
        if kept.is_err() {
            draft.discard();
        }
        kept
    }

    /// What is kept.
    pub fn list(&self) -> Listing {
        let mut listing = Listing::default();
        if let Err(source) = self.list_into(&mut listing) {
            listing.complain(format!("the artifact folder cannot be read: {source}"));
        }
        listing.kept.sort_by(|one, other| (&one.name, one.version).cmp(&(&other.name, other.version)));
        listing
    }

    /// Opens one version, the newest if none is named.
    pub fn open_version(
        &self,
        name: &WorkspacePath,
        version: Option<u64>,
    ) -> Result<(File, Kept), StoreError> {
        let missing = || StoreError::Missing { name: name.clone(), version };
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => missing(),
            _ => StoreError::Access { what: "read", name: name.clone(), source },
        };
        let folder = self.name_folder(name).map_err(failed)?;
        let number = match version {
            Some(number) => number,
            None => newest(&folder).map_err(failed)?.ok_or_else(missing)?,
        };
        let damaged = |why: String| StoreError::Damaged { name: name.clone(), version: number, why };
        let place = beneath::open_folder(&folder, number.to_string()).map_err(failed)?;
        let (bytes, kept) = read_version(&place, number).map_err(|source| damaged(source.to_string()))?;
        match kept.name == *name {
            true => Ok((bytes, kept)),
            false => Err(damaged(format!("it was kept as `{}`", shown(&kept.name)))),
        }
    }

    /// Removes one version, or all of them; says how many. The highest number may be given again.
    pub fn remove(&self, name: &WorkspacePath, version: Option<u64>) -> Result<usize, StoreError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => StoreError::Missing { name: name.clone(), version },
            _ => StoreError::Access { what: "remove", name: name.clone(), source },
        };
        let folder = self.name_folder(name).map_err(failed)?;
        let doomed = match version {
            Some(number) => vec![number],
            None => versions(&folder).collect::<io::Result<Vec<_>>>().map_err(failed)?,
        };
        for number in &doomed {
            draft::retire(&self.drafts, &folder, *number).map_err(failed)?;
        }
        // Stays if a version is left, or came meanwhile.
        match rustix::fs::unlinkat(&*self.root, name_of(name), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(doomed.len()),
            Err(source) => Err(failed(source.into())),
        }
    }

    /// Removes what dead writers left; gives back what could not be removed, and why.
    pub fn sweep(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let drafts = beneath::names(&self.drafts).map(|names| names.take(LONGEST_LISTING).collect());
        let names: Vec<_> = match drafts {
            Ok(names) => names,
            Err(source) => return vec![format!("the drafts of artifacts cannot be read: {source}")],
        };
        for name in names {
            let swept = name.and_then(|name| draft::sweep(&self.drafts, &name.to_string_lossy()));
            match swept {
                Err(source) if source.kind() != io::ErrorKind::NotFound && problems.len() < MOST_PROBLEMS => {
                    problems.push(format!("a draft of an artifact cannot be removed: {source}"));
                }
                _ => {}
            }
        }
        problems
    }

    fn name_folder(&self, name: &WorkspacePath) -> io::Result<OwnedFd> {
        beneath::open_folder(&self.root, name_of(name))
    }

    fn publish(&self, draft: &Draft<'_>, name: &WorkspacePath, about: &About) -> io::Result<u64> {
        let file = beneath::open(&draft.folder, ABOUT, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        about.write(&File::from(file))?;
        rustix::fs::fsync(&draft.folder)?;
        for _ in 0..TRIES {
            // Both may vanish meanwhile: `remove` takes an empty name folder away.
            let (folder, made) = match beneath::make_folder(&self.root, &name_of(name)) {
                Err(source) if source.kind() == io::ErrorKind::NotFound => continue,
                folder => folder?,
            };
            let version = newest(&folder)?.unwrap_or(0).saturating_add(1);
            match draft.publish(&folder, version) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOENT) => continue,
                published => published?,
            }
            rustix::fs::fsync(&folder)?;
            if made {
                rustix::fs::fsync(&*self.root)?;
            }
            return Ok(version);
        }
        Err(io::Error::other("too many others keep artifacts of this name"))
    }

    fn list_into(&self, listing: &mut Listing) -> io::Result<()> {
        for entry in beneath::names(&self.root)? {
            let entry = entry?;
            if entry.to_bytes() == DRAFTS.as_bytes() {
                continue;
            }
            let text = entry.to_string_lossy().into_owned();
            let outcome = beneath::open_folder(&self.root, &text)
                .and_then(|folder| list_versions(&text, &folder, listing));
            match outcome {
                Err(source) if source.kind() == io::ErrorKind::NotFound => {}
                Err(source) => listing.complain(format!("`{}`: {source}", text.escape_debug())),
                Ok(()) => {}
            }
            if listing.cut {
                break;
            }
        }
        Ok(())
    }
}

impl Listing {
    fn complain(&mut self, problem: String) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

fn open_root(folder: &PathBuf) -> io::Result<Artifacts> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(folder, flags, Mode::empty())?;
    if rustix::fs::fstat(&root)?.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(&root, Mode::RWXU)?;
    }
    let (drafts, _) = beneath::make_folder(&root, DRAFTS)?;
    Ok(Artifacts { root: Arc::new(root), drafts: Arc::new(drafts) })
}

fn fill(
    draft: &Draft<'_>,
    name: &WorkspacePath,
    source: &mut dyn Read,
    limit_bytes: u64,
) -> Result<Content, StoreError> {
    let unreadable = |source| StoreError::Source { name: name.clone(), source };
    let unwritable = |source| StoreError::Keep { name: name.clone(), source };
    let mut buffer = vec![0; 128 << 10];
    let (mut size_bytes, mut digest) = (0, Sha256::new());
    loop {
        let count = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(again) if again.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => return Err(unreadable(source)),
        };
        size_bytes += count as u64;
        if size_bytes > limit_bytes {
            return Err(StoreError::TooLarge { name: name.clone(), limit_bytes });
        }
        digest.update(&buffer[..count]);
        (&draft.bytes).write_all(&buffer[..count]).map_err(unwritable)?;
    }
    draft.bytes.sync_all().map_err(unwritable)?;
    Ok(Content { size_bytes, sha256: names::hexadecimal(&digest.finalize()) })
}

fn list_versions(entry: &str, folder: &OwnedFd, listing: &mut Listing) -> io::Result<()> {
    for version in versions(folder) {
        let version = version?;
        if listing.kept.len() >= LONGEST_LISTING {
            listing.cut = true;
            return Ok(());
        }
        let place = match beneath::open_folder(folder, version.to_string()) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => continue,
            place => place,
        };
        match place.and_then(|place| read_version(&place, version)) {
            Ok((_, kept)) if name_of(&kept.name) == entry => listing.kept.push(kept),
            Ok(_) => {
                listing.complain(format!("`{entry}`, version {version}: it was kept under another name"))
            }
            Err(source) => {
                listing.complain(format!("`{}`, version {version}: {source}", entry.escape_debug()))
            }
        }
    }
    Ok(())
}

fn read_version(place: &OwnedFd, version: u64) -> io::Result<(File, Kept)> {
    let about = About::read(File::from(beneath::open(place, ABOUT, OFlags::RDONLY | OFlags::NONBLOCK)?))?;
    let bytes = File::from(beneath::open(place, BYTES, OFlags::RDONLY | OFlags::NONBLOCK)?);
    let found = bytes.metadata()?;
    if !found.is_file() || found.len() != about.size_bytes {
        let length = found.len();
        return Err(io::Error::other(format!("{length} bytes are there, {} were kept", about.size_bytes)));
    }
    let name = about.name().ok_or_else(|| io::Error::other("what is written beside it has no name"))?;
    let kept = Kept {
        name,
        version,
        size_bytes: about.size_bytes,
        sha256: about.sha256,
        kept_at: Timestamp(about.kept_at_ms),
        run_id: about.run_id,
    };
    Ok((bytes, kept))
}

/// The version numbers in a name folder; what is no number is not ours.
fn versions(folder: &OwnedFd) -> impl Iterator<Item = io::Result<u64>> {
    let (names, failed) = match beneath::names(folder) {
        Ok(names) => (Some(names), None),
        Err(source) => (None, Some(Err(source))),
    };
    failed.into_iter().chain(names.into_iter().flatten().filter_map(|name| match name {
        Ok(name) => {
            let number = name.to_str().ok()?.parse().ok().filter(|number| *number > 0)?;
            (name.to_bytes() == u64::to_string(&number).as_bytes()).then_some(Ok(number))
        }
        Err(source) => Some(Err(source)),
    }))
}

fn newest(folder: &OwnedFd) -> io::Result<Option<u64>> {
    versions(folder).try_fold(None, |newest, version| Ok(newest.max(Some(version?))))
}

fn name_of(name: &WorkspacePath) -> String {
    names::folder_name(name.as_path().as_os_str().as_bytes())
}

fn reference(name: &WorkspacePath, version: u64, about: &About) -> ArtifactRef {
    ArtifactRef {
        name: name.as_path().to_string_lossy().into_owned(),
        version,
        size_bytes: about.size_bytes,
        sha256: about.sha256.clone(),
    }
}

fn shown(name: &WorkspacePath) -> String {
    name.as_path().to_string_lossy().escape_debug().to_string()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    u64::try_from(since).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "artifacts_tests.rs"]
mod tests;
