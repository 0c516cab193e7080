//! Selects the image to load: from the documents of an archive or folder to one configuration and
//! its layers, for this platform. Every document is verified against the digest that refers to it.

use crate::{
    document::{self, Descriptor, DockerManifest, Document, ImageConfiguration, Platform},
    error::{ImageError, shown},
    layer::Layer,
    limits::ImageLimits,
    source::{SourceFiles, blob_path, check_digest, digest_of},
};
use spec::{Digest, ImageRef};

const INDEX: &str = "index.json";
const DOCKER_MANIFEST: &str = "manifest.json";
/// An index may refer to further indexes.
const MAX_DOCUMENTS: usize = 256;
const MAX_INDEX_DEPTH: usize = 4;
/// Maximum platforms named by one error.
const MAX_PLATFORMS_SHOWN: usize = 16;
/// Annotations in which tools store an image's name.
const NAME_ANNOTATIONS: [&str; 2] = [
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];

/// One image, ready to be unpacked.
#[derive(Debug)]
pub(crate) struct LoadPlan {
    /// The image id: the digest of its configuration.
    pub(crate) id: Digest,
    /// Digests of the index and the manifest; empty for Docker's older format.
    pub(crate) digests: Vec<Digest>,
    pub(crate) configuration: ImageConfiguration,
    pub(crate) layers: Vec<Layer>,
    /// Names that the source states.
    pub(crate) names: Vec<ImageRef>,
}

/// An image of the source that may be selected.
struct Candidate {
    digests: Vec<Digest>,
    config: Descriptor,
    layers: Vec<Descriptor>,
    names: Vec<ImageRef>,
}

/// Selects the image; `name` chooses if there are several.
pub(crate) fn plan(
    files: &SourceFiles,
    name: Option<&ImageRef>,
    limits: &ImageLimits,
) -> Result<LoadPlan, ImageError> {
    let plan = if files.has(INDEX) {
        plan_from_index(files, name, limits)?
    } else if files.has(DOCKER_MANIFEST) {
        plan_from_docker_manifest(files, name)?
    } else {
        let why = format!("neither `{INDEX}` nor `{DOCKER_MANIFEST}` is in it");
        return Err(ImageError::malformed("this is no image", why));
    };
    let layers = plan.layers.len();
    let ids = plan.configuration.diff_ids.len();
    check_layers(layers, limits)?;
    if layers != ids {
        let why = format!("its manifest has {layers} layers, its configuration {ids}");
        return Err(ImageError::malformed("the image", why));
    }
    if plan.configuration.platform.runs_here() {
        Ok(plan)
    } else {
        Err(wrong_platform(vec![
            plan.configuration.platform.to_string(),
        ]))
    }
}

fn check_layers(count: usize, limits: &ImageLimits) -> Result<(), ImageError> {
    if count <= limits.layers {
        Ok(())
    } else {
        Err(ImageError::Limit {
            what: "the image".to_owned(),
            limit: format!("{} layers", limits.layers),
        })
    }
}

fn wrong_platform(found: Vec<String>) -> ImageError {
    ImageError::Platform {
        wanted: Platform::here().to_string(),
        found,
    }
}

/// The only image, or the one with this name.
fn select<T>(
    mut all: Vec<T>,
    name: Option<&ImageRef>,
    names: impl Fn(&T) -> Vec<ImageRef>,
) -> Result<T, ImageError> {
    if all.len() > 1 {
        let wanted = all
            .iter()
            .position(|one| name.is_some_and(|name| names(one).contains(name)));
        let called = |one: &T| match &*names(one) {
            [] => "one without a name".to_owned(),
            some => some
                .iter()
                .map(ImageRef::familiar)
                .collect::<Vec<_>>()
                .join(" or "),
        };
        let several = || ImageError::Several {
            names: all.iter().take(20).map(called).collect(),
        };
        let wanted = wanted.ok_or_else(several)?;
        return Ok(all.swap_remove(wanted));
    }
    all.pop()
        .ok_or_else(|| ImageError::malformed("this is no image", "it lists none"))
}

fn plan_from_docker_manifest(
    files: &SourceFiles,
    name: Option<&ImageRef>,
) -> Result<LoadPlan, ImageError> {
    let names = |docker_manifest: &DockerManifest| {
        docker_manifest
            .repo_tags
            .iter()
            .filter_map(|tag| tag.parse().ok())
            .collect::<Vec<_>>()
    };
    let docker_manifest = select(
        document::docker_manifest(&files.read(DOCKER_MANIFEST)?)?,
        name,
        names,
    )?;
    let bytes = files.read(&docker_manifest.config)?;
    let id = digest_of(&bytes);
    // The file name is the digest, in either layout.
    if let Some(named) = digest_in(
        docker_manifest
            .config
            .strip_suffix(".json")
            .unwrap_or(&docker_manifest.config),
    ) {
        check_digest(&shown(docker_manifest.config.as_bytes()), &named, &id)?;
    }
    let configuration = document::configuration(&shown(docker_manifest.config.as_bytes()), &bytes)?;
    let layer = |(name, diff_id): (&String, &Digest)| {
        let size = files.file(name)?.size();
        let blob = name
            .starts_with("blobs/")
            .then(|| digest_in(name))
            .flatten()
            .map(|digest| (digest, size));
        Ok(Layer {
            name: name.clone(),
            blob,
            diff_id: diff_id.clone(),
        })
    };
    if docker_manifest.layers.len() != configuration.diff_ids.len() {
        let why = format!(
            "{} layers are listed, and configured {}",
            docker_manifest.layers.len(),
            configuration.diff_ids.len()
        );
        return Err(ImageError::malformed("the image", why));
    }
    let layers = docker_manifest
        .layers
        .iter()
        .zip(&configuration.diff_ids)
        .map(layer)
        .collect::<Result<_, ImageError>>()?;
    Ok(LoadPlan {
        id,
        digests: Vec::new(),
        names: names(&docker_manifest),
        configuration,
        layers,
    })
}

/// The digest in the last component of a path.
fn digest_in(name: &str) -> Option<Digest> {
    Digest::new(&format!("sha256:{}", name.rsplit('/').next()?))
}

fn plan_from_index(
    files: &SourceFiles,
    name: Option<&ImageRef>,
    limits: &ImageLimits,
) -> Result<LoadPlan, ImageError> {
    let Document::Index(top) = document::document(INDEX, &files.read(INDEX)?)? else {
        return Err(ImageError::malformed(INDEX, "it is no index"));
    };
    let candidates = Vec::new();
    let other_platforms = Vec::new();
    let mut search = CandidateSearch {
        files,
        limits,
        read: 0,
        candidates,
        other_platforms,
        missing: None,
    };
    for descriptor in &top {
        search.descend(descriptor, &[], &annotated_names(descriptor), 1)?;
    }
    if search.candidates.is_empty()
        && let Some(missing) = search.missing
    {
        return Err(ImageError::Missing(format!("`{missing}`")));
    }
    if search.candidates.is_empty() && !search.other_platforms.is_empty() {
        return Err(wrong_platform(search.other_platforms));
    }
    let found = select(search.candidates, name, |candidate| candidate.names.clone())?;
    found.config.check_configuration()?;
    let bytes = files.read_blob(&found.config.digest, found.config.size)?;
    let configuration = document::configuration("the configuration", &bytes)?;
    found.layers.iter().try_for_each(Descriptor::check_layer)?;
    let layers = found
        .layers
        .iter()
        .zip(&configuration.diff_ids)
        .map(|(layer, diff_id)| Layer {
            name: blob_path(&layer.digest),
            blob: Some((layer.digest.clone(), layer.size)),
            diff_id: diff_id.clone(),
        });
    let layers: Vec<_> = layers.collect();
    if layers.len() != found.layers.len() {
        let why = format!(
            "it has {} layers, its configuration {}",
            found.layers.len(),
            configuration.diff_ids.len()
        );
        return Err(ImageError::malformed("the manifest", why));
    }
    Ok(LoadPlan {
        id: found.config.digest,
        digests: found.digests,
        names: found.names,
        configuration,
        layers,
    })
}

fn annotated_names(descriptor: &Descriptor) -> Vec<ImageRef> {
    let notes = NAME_ANNOTATIONS
        .iter()
        .filter_map(|key| descriptor.annotations.get(*key));
    // An annotation without registry and repository is only a tag.
    let whole = notes.filter(|text| text.contains([':', '/']));
    let mut names: Vec<ImageRef> = whole.filter_map(|text| text.parse().ok()).collect();
    names.dedup();
    names
}

struct CandidateSearch<'a> {
    files: &'a SourceFiles,
    limits: &'a ImageLimits,
    read: usize,
    candidates: Vec<Candidate>,
    /// Platforms that this machine cannot run, the first few.
    other_platforms: Vec<String>,
    /// A document that an index names and the source lacks.
    missing: Option<String>,
}

impl CandidateSearch<'_> {
    fn descend(
        &mut self,
        descriptor: &Descriptor,
        above: &[Digest],
        names: &[ImageRef],
        depth: usize,
    ) -> Result<(), ImageError> {
        if let Some(platform) = &descriptor.platform
            && !platform.runs_here()
        {
            // Entries for the platform `unknown` are attestations, not images.
            if platform.os != "unknown" {
                self.add_platform(platform);
            }
            return Ok(());
        }
        if !descriptor.is_document() {
            let kind = format!("`{}`", shown(descriptor.media_type.as_bytes()));
            return Err(ImageError::Unsupported {
                what: "an entry of the index".to_owned(),
                kind,
            });
        }
        // Tools that copy one image of an index leave the others out.
        let name = blob_path(&descriptor.digest);
        if !above.is_empty() && !self.files.has(&name) {
            self.missing = Some(name);
            return Ok(());
        }
        self.read += 1;
        if self.read > MAX_DOCUMENTS || depth > MAX_INDEX_DEPTH {
            let limit =
                format!("{MAX_DOCUMENTS} documents or {MAX_INDEX_DEPTH} indexes in one another");
            return Err(ImageError::Limit {
                what: "the image".to_owned(),
                limit,
            });
        }
        let bytes = self.files.read_blob(&descriptor.digest, descriptor.size)?;
        let digests = [above, std::slice::from_ref(&descriptor.digest)].concat();
        match document::document("a manifest", &bytes)? {
            Document::Index(all) => all
                .iter()
                .try_for_each(|one| self.descend(one, &digests, names, depth + 1)),
            Document::Manifest { config, layers } => self.candidate(
                descriptor,
                Candidate {
                    digests,
                    config,
                    layers,
                    names: names.to_vec(),
                },
            ),
        }
    }

    fn add_platform(&mut self, platform: &Platform) {
        let platform = platform.to_string();
        if self.other_platforms.len() < MAX_PLATFORMS_SHOWN
            && !self.other_platforms.contains(&platform)
        {
            self.other_platforms.push(platform);
        }
    }

    /// If the index does not state a manifest's platform, its configuration does.
    fn candidate(
        &mut self,
        descriptor: &Descriptor,
        candidate: Candidate,
    ) -> Result<(), ImageError> {
        // Checked here for every candidate: an index may name a long list of layers many times.
        check_layers(candidate.layers.len(), self.limits)?;
        if descriptor.platform.is_none() && candidate.config.check_configuration().is_ok() {
            let bytes = self
                .files
                .read_blob(&candidate.config.digest, candidate.config.size)?;
            let platform = document::configuration("the configuration", &bytes)?.platform;
            if !platform.runs_here() {
                self.add_platform(&platform);
                return Ok(());
            }
        }
        self.candidates.push(candidate);
        Ok(())
    }
}
