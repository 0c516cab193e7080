//! The documents of an image: Docker's list of what an archive holds, OCI's index and manifest, and the configuration.
//! Read from bytes of strangers: what is not understood is named, and nothing is guessed.

use crate::error::{ImageError, shown};
use serde::Deserialize;
use spec::{Digest, ImageConfig};
use std::collections::BTreeMap;

/// Which machines an image is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
pub struct Platform {
    /// `linux`
    pub os: String,
    /// `amd64`, `arm64`
    pub architecture: String,
    /// `v8`; often empty.
    #[serde(default)]
    pub variant: String,
}

/// What a document points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// What kind of document or layer it is.
    pub media_type: String,
    /// What its bytes hash to.
    pub digest: Digest,
    /// How many bytes it has.
    pub size: u64,
    /// Which machines it is for, if that is said.
    pub platform: Option<Platform>,
    /// Notes, a name among them.
    pub annotations: BTreeMap<String, String>,
}

/// An index or a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// Others to choose from.
    Index(Vec<Descriptor>),
    /// One image.
    Manifest {
        /// Its configuration.
        config: Descriptor,
        /// Its layers, the lowest first.
        layers: Vec<Descriptor>,
    },
}

/// What the configuration of an image says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The machines it is for.
    pub platform: Platform,
    /// When it was made, in its own words.
    pub created: Option<String>,
    /// What its layers hash to as plain tar, the lowest first.
    pub diff_ids: Vec<Digest>,
    /// How it wants to be run.
    pub config: ImageConfig,
}

/// One image of an archive that `docker save` made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Saved {
    /// The name of its configuration in the archive.
    pub config: String,
    /// `NAME:TAG`
    #[serde(default, deserialize_with = "or_default")]
    pub repo_tags: Vec<String>,
    /// The names of its layers in the archive, the lowest first.
    #[serde(default, deserialize_with = "or_default")]
    pub layers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default, deserialize_with = "or_default")]
    platform: Option<Platform>,
    #[serde(default, deserialize_with = "or_default")]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    #[serde(default)]
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    manifests: Option<Vec<RawDescriptor>>,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
struct RawConfiguration {
    os: String,
    architecture: String,
    #[serde(default, deserialize_with = "or_default")]
    variant: String,
    created: Option<String>,
    rootfs: RawRoot,
    #[serde(default, deserialize_with = "or_default")]
    config: RawRun,
}

#[derive(Deserialize)]
struct RawRoot {
    #[serde(default, deserialize_with = "or_default")]
    diff_ids: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawRun {
    #[serde(default, deserialize_with = "or_default")]
    user: String,
    #[serde(default, deserialize_with = "or_default")]
    env: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    entrypoint: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    cmd: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    working_dir: String,
    #[serde(default, deserialize_with = "or_default")]
    labels: BTreeMap<String, String>,
}

/// `null` is how Go writes what is empty.
fn or_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

fn parsed<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T, ImageError> {
    let bad =
        |error: serde_json::Error| ImageError::malformed(what, shown(error.to_string().as_bytes()));
    serde_json::from_slice(bytes).map_err(bad)
}

/// Reads the `manifest.json` of an archive that `docker save` made.
pub fn saved(bytes: &[u8]) -> Result<Vec<Saved>, ImageError> {
    parsed("manifest.json", bytes)
}

/// What indexes and manifests are called, by OCI and by Docker.
pub(crate) const DOCUMENT_TYPES: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// That something is called an index or a manifest, and none of old.
pub(crate) fn check_type(what: &str, kind: &str) -> Result<(), ImageError> {
    match kind {
        known if DOCUMENT_TYPES.contains(&known) => Ok(()),
        old if old.starts_with("application/vnd.docker.distribution.manifest.v1") => {
            Err(schema_1(what))
        }
        other => {
            let kind = format!("`{}`, which is no image", shown(other.as_bytes()));
            Err(ImageError::Unsupported {
                what: what.to_owned(),
                kind,
            })
        }
    }
}

fn schema_1(what: &str) -> ImageError {
    let kind = "a manifest of schema 1, which names no configuration".to_owned();
    ImageError::Unsupported {
        what: what.to_owned(),
        kind,
    }
}

impl Document {
    /// Whether this is a name for it. One that is an index to one reader and a manifest to another would be two images
    /// under one digest (CVE-2021-41190).
    pub(crate) fn is_called(&self, kind: &str) -> bool {
        let [oci_index, oci_manifest, docker_list, docker_manifest] = DOCUMENT_TYPES;
        match self {
            Document::Index(_) => kind == oci_index || kind == docker_list,
            Document::Manifest { .. } => kind == oci_manifest || kind == docker_manifest,
        }
    }
}

/// Reads an index or a manifest.
pub fn document(what: &str, bytes: &[u8]) -> Result<Document, ImageError> {
    let raw: RawDocument = parsed(what, bytes)?;
    if raw.schema_version == 1 {
        return Err(schema_1(what));
    }
    if !raw.media_type.is_empty() {
        check_type(what, &raw.media_type)?;
    }
    let checked = |all: Vec<RawDescriptor>| {
        all.into_iter()
            .map(|raw| raw.checked(what))
            .collect::<Result<Vec<_>, _>>()
    };
    let document = match (raw.manifests, raw.config, raw.layers) {
        (Some(all), None, None) => Document::Index(checked(all)?),
        (None, Some(config), Some(layers)) => Document::Manifest {
            config: config.checked(what)?,
            layers: checked(layers)?,
        },
        _ => {
            return Err(ImageError::malformed(
                what,
                "it is neither an index nor a manifest",
            ));
        }
    };
    match raw.media_type.is_empty() || document.is_called(&raw.media_type) {
        true => Ok(document),
        false => Err(ImageError::malformed(
            what,
            "it is not what it calls itself",
        )),
    }
}

/// Reads the configuration of an image.
pub fn configuration(what: &str, bytes: &[u8]) -> Result<Configuration, ImageError> {
    let raw: RawConfiguration = parsed(what, bytes)?;
    let diff_ids = raw
        .rootfs
        .diff_ids
        .iter()
        .map(|text| digest(what, text))
        .collect::<Result<_, _>>()?;
    let RawRun {
        user,
        env,
        entrypoint,
        cmd,
        working_dir,
        labels,
    } = raw.config;
    Ok(Configuration {
        platform: Platform {
            os: raw.os,
            architecture: raw.architecture,
            variant: raw.variant,
        },
        created: raw.created,
        diff_ids,
        config: ImageConfig {
            user,
            env,
            entrypoint,
            cmd,
            working_dir,
            labels,
        },
    })
}

fn digest(what: &str, text: &str) -> Result<Digest, ImageError> {
    Digest::new(text).ok_or_else(|| {
        let kind = format!(
            "the digest `{}`; only sha256 is known",
            shown(text.as_bytes())
        );
        ImageError::Unsupported {
            what: what.to_owned(),
            kind,
        }
    })
}

impl RawDescriptor {
    fn checked(self, what: &str) -> Result<Descriptor, ImageError> {
        Ok(Descriptor {
            digest: digest(what, &self.digest)?,
            media_type: self.media_type,
            size: self.size,
            platform: self.platform,
            annotations: self.annotations,
        })
    }
}

impl Descriptor {
    /// Whether it points to another index or manifest that can be read.
    pub(crate) fn is_document(&self) -> bool {
        DOCUMENT_TYPES.contains(&self.media_type.as_str())
    }

    /// That it points to the configuration of an image, and not to something else that registries also keep.
    pub(crate) fn check_configuration(&self) -> Result<(), ImageError> {
        match self.media_type.as_str() {
            "application/vnd.oci.image.config.v1+json"
            | "application/vnd.docker.container.image.v1+json" => Ok(()),
            other => Err(unsupported("this, which is no image", other)),
        }
    }

    /// That it points to a layer. How it is compressed, its first bytes say.
    pub(crate) fn check_layer(&self) -> Result<(), ImageError> {
        let (kind, compression) = self
            .media_type
            .split_once('+')
            .unwrap_or((&self.media_type, ""));
        let known = matches!(
            kind,
            "application/vnd.oci.image.layer.v1.tar"
                | "application/vnd.oci.image.layer.nondistributable.v1.tar"
        ) && matches!(compression, "" | "gzip" | "zstd");
        let docker = matches!(
            self.media_type.as_str(),
            "application/vnd.docker.image.rootfs.diff.tar"
                | "application/vnd.docker.image.rootfs.diff.tar.gzip"
                | "application/vnd.docker.image.rootfs.diff.tar.zstd"
                | "application/vnd.docker.image.rootfs.foreign.diff.tar"
                | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
        );
        if self.media_type.contains("encrypted") {
            return Err(unsupported("an encrypted layer", &self.media_type));
        }
        if known || docker {
            Ok(())
        } else {
            Err(unsupported("a layer", &self.media_type))
        }
    }
}

fn unsupported(what: &str, kind: &str) -> ImageError {
    ImageError::Unsupported {
        what: what.to_owned(),
        kind: format!("`{}`", shown(kind.as_bytes())),
    }
}

impl Platform {
    /// The one that this program was built for.
    pub fn here() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Platform {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: String::new(),
        }
    }

    /// Whether its programs run here.
    pub(crate) fn runs_here(&self) -> bool {
        Platform::here().takes(self)
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slash = if self.variant.is_empty() { "" } else { "/" };
        let text = format!("{}/{}{slash}{}", self.os, self.architecture, self.variant);
        f.write_str(&shown(text.as_bytes()))
    }
}
