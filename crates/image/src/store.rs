//! The image store of a machine: each image unpacked as one tree.
//!
//! ```text
//! images/sha256-HEX/{root/, image.json}   HEX is the digest of the configuration, which fixes layers and platform:
//!                                         however an image came here, it is one tree
//! images/names/HEX                        HEX is that of the name; which image it is, and its digests elsewhere
//! images/.draft-…                         in the making or going; see draft.rs
//! images/.lock                            held for a moment while names change or trees appear and go
//! ```
//! Every change is one rename or unlink, so a crash leaves a consistent store and at most something
//! to sweep.

use crate::{
    document::Platform,
    draft::{self, Draft},
    error::{ImageError, shown},
    metadata::{ImageMetadata, NameRecord},
    suggestions::suggest,
};
use ::fs::Dir;
use rustix::fs::{FlockOperation, Mode, OFlags};
use spec::{Digest, ImageConfig, ImageRef, User};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

const NAMES: &str = "names";
const LOCK: &str = ".lock";
pub(crate) const MAX_METADATA_BYTES: u64 = 16 << 20;
/// Attempts if an image is removed between finding its name and locking it.
const MAX_ATTEMPTS: usize = 16;

/// The image store.
#[derive(Clone, Debug)]
pub struct ImageStore {
    path: PathBuf,
    pub(crate) folder: Arc<Dir>,
    pub(crate) names: Arc<Dir>,
}

/// An image that is locked against removal while this value lives.
#[derive(Debug)]
pub struct StoredImage {
    root: PathBuf,
    id: Digest,
    digest: Digest,
    metadata: ImageMetadata,
    images: ImageStore,
    _lock: File,
}

/// One name of an image, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageSummary {
    /// The name.
    pub name: ImageRef,
    /// Digest of its manifest if known, otherwise of its configuration.
    pub digest: Digest,
    /// Image id: the digest of its configuration.
    pub id: Digest,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// Platform.
    pub platform: Platform,
    /// Time of creation, as the image states it.
    pub created: Option<String>,
}

/// All names, and what could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageListing {
    /// Sorted by name.
    pub images: Vec<ImageSummary>,
    /// One line for each problem.
    pub problems: Vec<String>,
}

/// Result of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageRemoval {
    /// Names that were removed.
    pub names: Vec<ImageRef>,
    /// Images that were removed, because no name was left.
    pub images: Vec<Digest>,
    /// Bytes freed.
    pub freed_bytes: u64,
}

/// A temporary folder of the store for an image being pulled; swept when its owner is gone.
#[derive(Debug)]
pub struct ScratchFolder {
    path: PathBuf,
    draft: Draft,
}

impl ScratchFolder {
    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folder.
    pub fn discard(self) {
        drop(self.draft);
    }
}

impl StoredImage {
    /// The root file system: owners are irrelevant, devices are absent; must not be written to.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The image's default command, user and environment.
    pub fn config(&self) -> &ImageConfig {
        &self.metadata.config
    }

    /// The user that the image names, unless it is root.
    pub fn user(&self) -> Option<User> {
        self.metadata.user.map(|(uid, gid)| User { uid, gid })
    }

    /// Digest of its manifest if known, otherwise of its configuration.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Image id: the digest of its configuration, independent of its source.
    pub fn id(&self) -> &Digest {
        &self.id
    }

    /// All current names of the image.
    pub fn names(&self) -> Vec<ImageRef> {
        let all = self.images.all_names(&mut Vec::new()).unwrap_or_default();
        let own = all.iter().filter(|named| named.image == self.id.as_str());
        let mut names: Vec<_> = own.filter_map(|named| named.name.parse().ok()).collect();
        names.sort();
        names
    }

    /// Bytes of its files, each counted once.
    pub fn size_bytes(&self) -> u64 {
        self.metadata.size_bytes
    }

    /// Number of files.
    pub fn files(&self) -> u64 {
        self.metadata.files
    }

    /// Devices and pipes of its layers that were not unpacked.
    pub fn left_out(&self) -> u64 {
        self.metadata.left_out
    }

    /// Platform.
    pub fn platform(&self) -> &Platform {
        &self.metadata.platform
    }

    /// Time of creation, as the image states it.
    pub fn created(&self) -> Option<&str> {
        self.metadata.created.as_deref()
    }

    /// Digests of the uncompressed layers, lowest first.
    pub fn diff_ids(&self) -> &[String] {
        &self.metadata.diff_ids
    }
}

impl ImageStore {
    /// Opens the store in this folder, and creates the folder if it is absent.
    pub fn open(folder: PathBuf) -> Result<ImageStore, ImageError> {
        let failed = || ImageError::store(format!("open the images in `{}`", folder.display()));
        let names = folder.join(NAMES);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&names)
            .map_err(failed())?;
        check_owner(&folder).map_err(failed())?;
        let opened = Dir::open(&folder).map_err(failed())?;
        let names = opened.open_dir(NAMES).map_err(failed())?;
        Ok(ImageStore {
            path: folder,
            folder: Arc::new(opened),
            names: Arc::new(names),
        })
    }

    /// The image of this name. For a reference with a digest, the manifest or configuration must
    /// have that digest.
    pub fn find(&self, reference: &ImageRef) -> Result<Option<StoredImage>, ImageError> {
        for _ in 0..MAX_ATTEMPTS {
            let Some(named) = self.matching(reference)?.into_iter().next() else {
                return Ok(None);
            };
            if let Some(stored) = self.open_image(&named)? {
                return Ok(Some(stored));
            }
        }
        Ok(None)
    }

    /// The same; an error if there is none.
    pub fn get(&self, reference: &ImageRef) -> Result<StoredImage, ImageError> {
        self.find(reference)?
            .ok_or_else(|| self.not_found(reference))
    }

    fn not_found(&self, reference: &ImageRef) -> ImageError {
        let names: Vec<_> = self.list().map(|all| all.images).unwrap_or_default();
        let names = names.iter().map(|listed| listed.name.familiar());
        ImageError::NotFound {
            name: reference.familiar(),
            suggestions: suggest(&reference.familiar(), names),
        }
    }

    /// Lists all names.
    pub fn list(&self) -> Result<ImageListing, ImageError> {
        let mut listing = ImageListing::default();
        for named in self.all_names(&mut listing.problems)? {
            let metadata = Digest::new(&named.image).map(|id| (self.metadata(&id), id));
            match (metadata, named.name.parse(), named.digest()) {
                (Some((Ok(metadata), id)), Ok(name), Some(digest)) => {
                    listing.images.push(ImageSummary {
                        name,
                        digest,
                        id,
                        size_bytes: metadata.size_bytes,
                        platform: metadata.platform,
                        created: metadata.created,
                    })
                }
                (Some((Err(error), _)), ..) => {
                    listing.problems.push(format!(
                        "`{}` cannot be used: {error}",
                        shown(named.name.as_bytes())
                    ));
                }
                _ => listing
                    .problems
                    .push("a name in the store is damaged".to_owned()),
            }
        }
        listing
            .images
            .sort_by(|one, other| one.name.cmp(&other.name));
        Ok(listing)
    }

    /// Removes a name; its image is removed with its last name. Fails without a change if a run
    /// uses the image.
    pub fn remove(&self, reference: &ImageRef) -> Result<ImageRemoval, ImageError> {
        let lock = self.lock()?;
        let names = self.matching(reference)?;
        let Some(first) = names.first() else {
            return Err(self.not_found(reference));
        };
        let gone = |named: &NameRecord| named.image == first.image && names.contains(named);
        let stays = self
            .all_names(&mut Vec::new())?
            .iter()
            .any(|named| named.image == first.image && !gone(named));
        let retired = match (stays, Digest::new(&first.image)) {
            (false, Some(id)) => self.lock_for_removal(&id, reference)?,
            _ => None,
        };
        let mut removed = ImageRemoval::default();
        for named in names.iter().filter(|named| gone(named)) {
            self.remove_name(&named.name)?;
            removed.names.extend(named.name.parse().ok());
        }
        let Some((folder, metadata, id)) = retired else {
            return Ok(removed);
        };
        removed.freed_bytes = self.metadata(&id).map_or(0, |metadata| metadata.size_bytes);
        let failed = || ImageError::store("remove an image");
        let name = draft::retire(&self.folder, &folder, &tree_name(&id)).map_err(failed())?;
        drop(lock);
        draft::remove_retired(&self.folder, &folder, &name).map_err(failed())?;
        drop(metadata);
        removed.images.push(id);
        Ok(removed)
    }

    /// Removes what crashes left: drafts without an owner, images without a name. Returns what
    /// could not be removed.
    pub fn sweep(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match self.sweepable() {
            Ok((drafts, trees)) => {
                for name in drafts {
                    if let Err(error) = draft::sweep(&self.folder, &name) {
                        problems.push(format!(
                            "the draft `{}` of an image: {error}",
                            shown(name.as_bytes())
                        ));
                    }
                }
                problems.extend(
                    trees
                        .iter()
                        .filter_map(|id| self.sweep_tree(id).err())
                        .map(|error| error.to_string()),
                );
            }
            Err(error) => problems.push(format!("the images cannot be listed: {error}")),
        }
        problems
    }

    /// Creates a temporary folder for a pull.
    pub fn scratch(&self) -> Result<ScratchFolder, ImageError> {
        let failed = || ImageError::store("make a folder for an image on its way");
        let draft = Draft::new(&self.folder).map_err(failed())?;
        draft.make("layout").map_err(failed())?;
        let path = self.path.join(draft.name()).join("layout");
        Ok(ScratchFolder { path, draft })
    }

    fn sweepable(&self) -> io::Result<(Vec<OsString>, Vec<Digest>)> {
        let mut drafts = Vec::new();
        let mut trees = Vec::new();
        for entry in self.folder.entries()? {
            let name = entry?.name;
            let hex = name.to_str().and_then(|name| name.strip_prefix("sha256-"));
            trees.extend(hex.and_then(|hex| Digest::new(&format!("sha256:{hex}"))));
            if draft::is_draft(&name) {
                drafts.push(name);
            }
        }
        Ok((drafts, trees))
    }

    fn sweep_tree(&self, id: &Digest) -> Result<(), ImageError> {
        let lock = self.lock()?;
        if self
            .all_names(&mut Vec::new())?
            .iter()
            .any(|named| named.image == id.as_str())
        {
            return Ok(());
        }
        let failed = || ImageError::store("remove an image without a name");
        let Some((folder, metadata)) = self.open_tree(id).map_err(failed())? else {
            return Ok(());
        };
        if !::fs::try_lock(&metadata).map_err(failed())? {
            return Ok(());
        }
        let name = draft::retire(&self.folder, &folder, &tree_name(id)).map_err(failed())?;
        drop(lock);
        draft::remove_retired(&self.folder, &folder, &name).map_err(failed())
    }

    /// Takes the store's lock, which is held briefly and released when its owner ends.
    pub(crate) fn lock(&self) -> Result<File, ImageError> {
        let failed = || ImageError::store("lock the images");
        let flags = OFlags::RDWR | OFlags::CREATE;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = self.folder.open_file(LOCK, flags, mode).map_err(failed())?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .map_err(|errno| failed()(errno.into()))?;
        Ok(file)
    }

    /// Locks the tree that is to be removed, so that no run can start with it.
    fn lock_for_removal(
        &self,
        id: &Digest,
        reference: &ImageRef,
    ) -> Result<Option<(Dir, File, Digest)>, ImageError> {
        let failed = || ImageError::store("remove an image");
        let Some((folder, metadata)) = self.open_tree(id).map_err(failed())? else {
            return Ok(None);
        };
        if ::fs::try_lock(&metadata).map_err(failed())? {
            Ok(Some((folder, metadata, id.clone())))
        } else {
            Err(ImageError::InUse(reference.familiar()))
        }
    }

    /// Publishes a tree, unless it exists already.
    pub(crate) fn publish(&self, mut draft: Draft, id: &Digest) -> Result<(), ImageError> {
        let failed = || ImageError::store("put the image in its place");
        match draft.publish(&tree_name(id)) {
            Ok(()) => Ok(()),
            Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {
                if self.metadata(id).is_ok() {
                    return Ok(());
                }
                // The existing tree is damaged, for example by power loss; ours is complete.
                if let Some((folder, _)) = self.open_tree(id).map_err(failed())? {
                    let old =
                        draft::retire(&self.folder, &folder, &tree_name(id)).map_err(failed())?;
                    draft.publish(&tree_name(id)).map_err(failed())?;
                    draft::remove_retired(&self.folder, &folder, &old).map_err(failed())?;
                }
                Ok(())
            }
            Err(source) => Err(failed()(source)),
        }
    }

    fn open_tree(&self, id: &Digest) -> io::Result<Option<(Dir, File)>> {
        let found = self
            .folder
            .open_dir(tree_name(id))
            .and_then(|folder| Ok((folder.read_file(draft::METADATA_FILE)?, folder)));
        match found {
            Ok((metadata, folder)) => Ok(Some((folder, metadata))),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(source),
        }
    }

    pub(crate) fn metadata(&self, id: &Digest) -> Result<ImageMetadata, ImageError> {
        let failed = || ImageError::store(format!("read the image {id}"));
        let gone = || failed()(io::ErrorKind::NotFound.into());
        let (_, metadata) = self.open_tree(id).map_err(failed())?.ok_or_else(gone)?;
        read_about(&metadata, id)
    }

    /// Opens and locks the image of a name; `None` if it has just been removed.
    pub(crate) fn open_image(&self, named: &NameRecord) -> Result<Option<StoredImage>, ImageError> {
        let damaged = || ImageError::malformed("a name in the store", "it is damaged");
        let id = Digest::new(&named.image).ok_or_else(damaged)?;
        let digest = named.digest().ok_or_else(damaged)?;
        let failed = || ImageError::store(format!("hold the image {id}"));
        let Some((folder, lock)) = self.open_tree(&id).map_err(failed())? else {
            return Ok(None);
        };
        rustix::fs::flock(&lock, FlockOperation::LockShared)
            .map_err(|errno| failed()(errno.into()))?;
        if !self
            .folder
            .is_entry(tree_name(&id), &folder)
            .map_err(failed())?
        {
            return Ok(None);
        }
        let metadata = read_about(&lock, &id)?;
        let root = self.path.join(tree_name(&id)).join("root");
        Ok(Some(StoredImage {
            root,
            digest,
            metadata,
            images: self.clone(),
            id,
            _lock: lock,
        }))
    }
}

fn read_about(file: &File, id: &Digest) -> Result<ImageMetadata, ImageError> {
    let damaged =
        |why: String| ImageError::malformed(format!("the image {id} in the store is damaged"), why);
    let mut bytes = Vec::new();
    file.take(MAX_METADATA_BYTES)
        .read_to_end(&mut bytes)
        .map_err(ImageError::store(format!("read the image {id}")))?;
    let metadata: ImageMetadata =
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if metadata.id == id.as_str() {
        Ok(metadata)
    } else {
        Err(damaged("it says that it is another".to_owned()))
    }
}

/// Folder name of an image.
pub(crate) fn tree_name(id: &Digest) -> String {
    format!("sha256-{}", id.hex())
}

/// A user who can write to the store decides what runs start from.
fn check_owner(folder: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != us {
        return Err(io::Error::other(format!(
            "it belongs to user {}, not to {us}",
            found.uid()
        )));
    }
    match found.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(io::Error::other("others may write to it")),
    }
}
