//! Loading: unpacks an archive or folder into a draft and publishes it in the store.

use crate::{
    draft::{Draft, ROOT},
    error::{ImageError, shown},
    layer,
    limits::{ImageLimits, LimitCounter},
    load_plan::{self, LoadPlan},
    metadata::{ImageMetadata, NameRecord},
    rootfs::{RootfsBuilder, UnpackError},
    source::{ImageSource, SourceFiles},
    store::{ImageStore, StoredImage},
    tar::{TarInput, TarReader},
    user,
};
use spec::ImageRef;
use std::io::Write;

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// The layer being unpacked, from 1.
    pub layer: usize,
    /// Number of layers.
    pub layers: usize,
    /// Uncompressed bytes read so far, of all layers.
    pub bytes: u64,
}

/// Result of loading.
#[derive(Debug)]
pub struct LoadOutcome {
    /// The image, locked against removal.
    pub image: StoredImage,
    /// Whether it was unpacked now, or existed already.
    pub fresh: bool,
}

/// Bytes between two progress reports.
const PROGRESS_INTERVAL_BYTES: u64 = 4 << 20;
/// Each name is a file of the store, and all are written while the store is locked.
const MAX_NAMES: usize = 128;

impl ImageStore {
    /// Loads an image and gives it this name, or otherwise its own names.
    pub fn load(
        &self,
        source: ImageSource,
        name: Option<ImageRef>,
        limits: &ImageLimits,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadOutcome, ImageError> {
        let failed = || ImageError::store("begin a new image");
        let draft = Draft::new(&self.folder).map_err(failed())?;
        let naming = Draft::new(&self.folder).map_err(failed())?;
        self.load_into(draft, &naming, source, name, limits, progress)
    }

    fn load_into(
        &self,
        draft: Draft,
        naming: &Draft,
        source: ImageSource,
        name: Option<ImageRef>,
        limits: &ImageLimits,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadOutcome, ImageError> {
        let (files, plan, names) = self.prepare(&draft, source, name.as_ref(), limits)?;
        // Locked from here on, so that it cannot be removed before it has its new name.
        let there = names
            .first()
            .and_then(|named| self.open_image(named).ok().flatten());
        let fresh = there.is_none();
        if fresh {
            unpack(&draft, &files, &plan, limits, progress)?;
        }
        let lock = self.lock()?;
        if fresh {
            self.publish(draft, &plan.id)?
        } else {
            drop(draft)
        }
        for named in &names {
            self.name(naming.folder(), named)?;
        }
        let gone = || ImageError::Missing("the image that was just loaded".to_owned());
        let first = names.first().ok_or(ImageError::Unnamed)?;
        let image = self.open_image(first)?.ok_or_else(gone)?;
        drop(lock);
        Ok(LoadOutcome { image, fresh })
    }

    /// Everything that can be checked before a layer is read.
    fn prepare(
        &self,
        draft: &Draft,
        source: ImageSource,
        name: Option<&ImageRef>,
        limits: &ImageLimits,
    ) -> Result<(SourceFiles, LoadPlan, Vec<NameRecord>), ImageError> {
        let spool = || {
            draft
                .spool()
                .map_err(ImageError::store("keep the archive while it is read"))
        };
        let files = SourceFiles::open(source, limits, spool)?;
        let plan = load_plan::plan(&files, name, limits)?;
        let names = names(&plan, name)?;
        Ok((files, plan, names))
    }
}

fn names(plan: &LoadPlan, name: Option<&ImageRef>) -> Result<Vec<NameRecord>, ImageError> {
    let given: Vec<_> = match name {
        Some(name) => vec![name.clone()],
        None => plan.names.clone(),
    };
    let named = |reference: &ImageRef| {
        let named = NameRecord {
            name: stored_name(reference),
            image: plan.id.to_string(),
            digests: plan.digests.iter().map(ToString::to_string).collect(),
        };
        match reference.digest() {
            Some(digest) if !named.has(digest) => Err(ImageError::Digest {
                what: format!("the image for `{}`", reference.familiar()),
                expected: digest.to_string(),
                found: named.digests.last().unwrap_or(&named.image).clone(),
            }),
            _ => Ok(named),
        }
    };
    match given.len() {
        0 => Err(ImageError::Unnamed),
        1..=MAX_NAMES => given.iter().map(named).collect(),
        _ => Err(ImageError::Limit {
            what: "the image".to_owned(),
            limit: format!("{MAX_NAMES} names"),
        }),
    }
}

/// A name with a tag is stored without its digest, which is stored separately.
fn stored_name(reference: &ImageRef) -> String {
    match reference.tag() {
        Some(tag) => format!("{}/{}:{tag}", reference.registry(), reference.repository()),
        None => reference.to_string(),
    }
}

fn unpack(
    draft: &Draft,
    files: &SourceFiles,
    plan: &LoadPlan,
    limits: &ImageLimits,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<(), ImageError> {
    let failed = || ImageError::store("write the image");
    let mut tree = RootfsBuilder::new(draft.make(ROOT).map_err(failed())?);
    let mut meter = LimitCounter::new(limits);
    let layers = plan.layers.len();
    let mut before = 0;
    let mut plain = 0;
    for (number, layer) in plan.layers.iter().enumerate() {
        let what = format!("layer {}", number + 1);
        let file = files.file(&layer.name)?;
        tree.next_layer(number);
        let mut reported = 0;
        let mut report = |bytes: u64| {
            if bytes == 0 || bytes - reported >= PROGRESS_INTERVAL_BYTES {
                reported = bytes;
                progress(LoadProgress {
                    layer: number + 1,
                    layers,
                    bytes: before + bytes,
                });
            }
        };
        let mut read = 0;
        layer::unpack(file, layer, limits, &mut plain, &what, |chunks| {
            read = apply_layer(chunks, &mut tree, &mut meter, number + 1, &mut report)?;
            Ok(())
        })?;
        before += read;
    }
    let (resolved_user, user) = user::resolve(tree.root(), &plan.configuration.config.user)?;
    let left_out = tree.left_out;
    let totals = tree.apply_permissions(&resolved_user).map_err(failed())?;
    draft.drop_spool().map_err(failed())?;
    let metadata = ImageMetadata {
        id: plan.id.to_string(),
        platform: plan.configuration.platform.clone(),
        created: plan.configuration.created.clone(),
        diff_ids: plan
            .configuration
            .diff_ids
            .iter()
            .map(ToString::to_string)
            .collect(),
        config: plan.configuration.config.clone(),
        user: user.map(|user| (user.uid, user.gid)),
        size_bytes: totals.bytes,
        files: totals.files,
        left_out,
    };
    write_about(draft, &metadata).map_err(failed())
}

fn write_about(draft: &Draft, metadata: &ImageMetadata) -> std::io::Result<()> {
    draft.metadata().write_all(&serde_json::to_vec(metadata)?)?;
    draft.metadata().sync_all()
}

/// Applies all entries of a layer to the tree; returns the bytes of tar read.
fn apply_layer<R: TarInput>(
    from: &mut R,
    tree: &mut RootfsBuilder,
    meter: &mut LimitCounter<'_>,
    layer: usize,
    report: &mut dyn FnMut(u64),
) -> Result<u64, ImageError> {
    let mut tar = TarReader::new(from);
    let unreadable = |source| ImageError::Tar {
        what: format!("layer {layer}"),
        source,
    };
    report(0);
    while let Some(header) = tar.next().map_err(unreadable)? {
        meter.entry(header.size)?;
        let entry = || shown(&header.path);
        tree.add(&header, &mut tar)
            .map_err(|trouble| match trouble {
                UnpackError::Refused(why) => ImageError::Entry {
                    layer,
                    entry: entry(),
                    why,
                },
                UnpackError::Write(source) => ImageError::Write {
                    layer,
                    entry: entry(),
                    source,
                },
                UnpackError::Read(source) => unreadable(source),
            })?;
        meter.count(tree.take_implied())?;
        report(tar.position().max(1));
    }
    Ok(tar.position())
}
