//! Loading: unpacks an archive or folder into a draft and publishes it in the store.

use crate::{
    about::{About, Named},
    draft::{Draft, ROOT},
    error::{ImageError, shown},
    layer,
    limits::{Limits, Meter},
    parts::{Parts, Source},
    plan::{self, Plan},
    store::{Images, Stored},
    tar::{Input, Tar},
    tree::{Tree, Trouble},
    user,
};
use spec::ImageRef;
use std::io::Write;

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The layer being unpacked, from 1.
    pub layer: usize,
    /// Number of layers.
    pub layers: usize,
    /// Uncompressed bytes read so far, of all layers.
    pub bytes: u64,
}

/// Result of loading.
#[derive(Debug)]
pub struct Loaded {
    /// The image, locked against removal.
    pub image: Stored,
    /// Whether it was unpacked now, or existed already.
    pub fresh: bool,
}

/// Bytes between two progress reports.
const STRIDE: u64 = 4 << 20;
/// Each name is a file of the store, and all are written while the store is locked.
const MOST_NAMES: usize = 128;

impl Images {
    /// Loads an image and gives it this name, or otherwise its own names.
    pub fn load(
        &self,
        source: Source,
        name: Option<ImageRef>,
        limits: &Limits,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Loaded, ImageError> {
        let failed = || ImageError::store("begin a new image");
        let draft = Draft::new(&self.folder).map_err(failed())?;
        let naming = Draft::new(&self.folder).map_err(failed())?;
        self.load_into(draft, &naming, source, name, limits, progress)
    }

    fn load_into(
        &self,
        draft: Draft,
        naming: &Draft,
        source: Source,
        name: Option<ImageRef>,
        limits: &Limits,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Loaded, ImageError> {
        let (parts, plan, names) = self.prepare(&draft, source, name.as_ref(), limits)?;
        // Locked from here on, so that it cannot be removed before it has its new name.
        let there = names
            .first()
            .and_then(|named| self.hold(named).ok().flatten());
        let fresh = there.is_none();
        if fresh {
            unpack(&draft, &parts, &plan, limits, progress)?;
        }
        let lock = self.lock()?;
        match fresh {
            true => self.publish(draft, &plan.id)?,
            false => drop(draft),
        }
        for named in &names {
            self.name(naming.folder(), named)?;
        }
        let gone = || ImageError::Missing("the image that was just loaded".to_owned());
        let first = names.first().ok_or(ImageError::Unnamed)?;
        let image = self.hold(first)?.ok_or_else(gone)?;
        drop(lock);
        Ok(Loaded { image, fresh })
    }

    /// Everything that can be checked before a layer is read.
    fn prepare(
        &self,
        draft: &Draft,
        source: Source,
        name: Option<&ImageRef>,
        limits: &Limits,
    ) -> Result<(Parts, Plan, Vec<Named>), ImageError> {
        let spool = || {
            draft
                .spool()
                .map_err(ImageError::store("keep the archive while it is read"))
        };
        let parts = Parts::open(source, limits, spool)?;
        let plan = plan::plan(&parts, name, limits)?;
        let names = names(&plan, name)?;
        Ok((parts, plan, names))
    }
}

fn names(plan: &Plan, name: Option<&ImageRef>) -> Result<Vec<Named>, ImageError> {
    let given: Vec<_> = match name {
        Some(name) => vec![name.clone()],
        None => plan.names.clone(),
    };
    let named = |reference: &ImageRef| {
        let named = Named {
            name: kept_name(reference),
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
        1..=MOST_NAMES => given.iter().map(named).collect(),
        _ => Err(ImageError::Limit {
            what: "the image".to_owned(),
            limit: format!("{MOST_NAMES} names"),
        }),
    }
}

/// A name with a tag is stored without its digest, which is stored separately.
fn kept_name(reference: &ImageRef) -> String {
    match reference.tag() {
        Some(tag) => format!("{}/{}:{tag}", reference.registry(), reference.repository()),
        None => reference.to_string(),
    }
}

fn unpack(
    draft: &Draft,
    parts: &Parts,
    plan: &Plan,
    limits: &Limits,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), ImageError> {
    let failed = || ImageError::store("write the image");
    let mut tree = Tree::new(draft.make(ROOT).map_err(failed())?);
    let (mut meter, layers) = (Meter::new(limits), plan.layers.len());
    let (mut before, mut plain) = (0, 0);
    for (number, layer) in plan.layers.iter().enumerate() {
        let what = format!("layer {}", number + 1);
        let part = parts.part(&layer.name)?;
        tree.next_layer(number);
        let mut told = 0;
        let mut tell = |bytes: u64| {
            if bytes == 0 || bytes - told >= STRIDE {
                told = bytes;
                progress(Progress {
                    layer: number + 1,
                    layers,
                    bytes: before + bytes,
                });
            }
        };
        let mut read = 0;
        layer::unpack(part, layer, limits, &mut plain, &what, |chunks| {
            read = lay(chunks, &mut tree, &mut meter, number + 1, &mut tell)?;
            Ok(())
        })?;
        before += read;
    }
    let (person, user) = user::resolve(tree.root(), &plan.configuration.config.user)?;
    let left_out = tree.left_out;
    let totals = tree.settle(&person).map_err(failed())?;
    draft.drop_spool().map_err(failed())?;
    let about = About {
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
    write_about(draft, &about).map_err(failed())
}

fn write_about(draft: &Draft, about: &About) -> std::io::Result<()> {
    draft.about().write_all(&serde_json::to_vec(about)?)?;
    draft.about().sync_all()
}

/// Applies all entries of a layer to the tree; returns the bytes of tar read.
fn lay<R: Input>(
    from: &mut R,
    tree: &mut Tree,
    meter: &mut Meter<'_>,
    layer: usize,
    tell: &mut dyn FnMut(u64),
) -> Result<u64, ImageError> {
    let mut tar = Tar::new(from);
    let unreadable = |source| ImageError::Tar {
        what: format!("layer {layer}"),
        source,
    };
    tell(0);
    while let Some(header) = tar.next().map_err(unreadable)? {
        meter.entry(header.size)?;
        let entry = || shown(&header.path);
        tree.add(&header, &mut tar)
            .map_err(|trouble| match trouble {
                Trouble::Refused(why) => ImageError::Entry {
                    layer,
                    entry: entry(),
                    why,
                },
                Trouble::Write(source) => ImageError::Write {
                    layer,
                    entry: entry(),
                    source,
                },
                Trouble::Read(source) => unreadable(source),
            })?;
        meter.count(tree.take_implied())?;
        tell(tar.position().max(1));
    }
    Ok(tar.position())
}
