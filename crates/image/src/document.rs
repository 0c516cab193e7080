//! Parsers for the documents of an image: Docker's `manifest.json`, OCI's index and manifest, and
//! the configuration. Input is untrusted: anything unknown is refused by name, nothing is guessed.

use crate::error::{ImageError, shown};
use serde::Deserialize;
use spec::{Digest, ImageConfig};
use std::collections::BTreeMap;

/// Platform of an image.
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

/// Reference from one document to another document or a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Media type.
    pub media_type: String,
    /// Digest of the contents.
    pub digest: Digest,
    /// Size in bytes.
    pub size: u64,
    /// Platform, if stated.
    pub platform: Option<Platform>,
    /// Annotations; may include a name.
    pub annotations: BTreeMap<String, String>,
}

/// An index or a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// An index: documents to choose from.
    Index(Vec<Descriptor>),
    /// A manifest: one image.
    Manifest {
        /// The configuration.
        config: Descriptor,
        /// The layers, lowest first.
        layers: Vec<Descriptor>,
    },
}

/// The configuration of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageConfiguration {
    /// Platform of the image.
    pub platform: Platform,
    /// Time of creation, as the image states it.
    pub created: Option<String>,
    /// Digests of the uncompressed layers, lowest first.
    pub diff_ids: Vec<Digest>,
    /// Default command, user, environment and labels.
    pub config: ImageConfig,
}

/// An entry of Docker's `manifest.json`: one image of an archive made by `docker save`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DockerManifest {
    /// Path of the configuration in the archive.
    pub config: String,
    /// `NAME:TAG`
    #[serde(default, deserialize_with = "or_default")]
    pub repo_tags: Vec<String>,
    /// Paths of the layers in the archive, lowest first.
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
    config: RawConfig,
}

#[derive(Deserialize)]
struct RawRoot {
    #[serde(default, deserialize_with = "or_default")]
    diff_ids: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawConfig {
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

/// Go writes empty values as `null`.
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

/// Parses the `manifest.json` of an archive made by `docker save`.
pub fn docker_manifest(bytes: &[u8]) -> Result<Vec<DockerManifest>, ImageError> {
    parsed("manifest.json", bytes)
}

/// Media types of indexes and manifests, of OCI and of Docker.
pub(crate) const DOCUMENT_TYPES: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// Refuses a media type that is neither an index nor a manifest, or is obsolete.
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
    /// Whether this media type fits the document. A document that one reader takes for an index and
    /// another for a manifest would be two images with one digest (CVE-2021-41190).
    pub(crate) fn has_media_type(&self, kind: &str) -> bool {
        let [oci_index, oci_manifest, docker_list, docker_manifest] = DOCUMENT_TYPES;
        match self {
            Document::Index(_) => kind == oci_index || kind == docker_list,
            Document::Manifest { .. } => kind == oci_manifest || kind == docker_manifest,
        }
    }
}

/// Parses an index or a manifest.
pub fn document(what: &str, bytes: &[u8]) -> Result<Document, ImageError> {
    let raw: RawDocument = parsed(what, bytes)?;
    if raw.schema_version == 1 {
        return Err(schema_1(what));
    }
    if !raw.media_type.is_empty() {
        check_type(what, &raw.media_type)?;
    }
    let validated = |all: Vec<RawDescriptor>| {
        all.into_iter()
            .map(|raw| raw.validated(what))
            .collect::<Result<Vec<_>, _>>()
    };
    let document = match (raw.manifests, raw.config, raw.layers) {
        (Some(all), None, None) => Document::Index(validated(all)?),
        (None, Some(config), Some(layers)) => Document::Manifest {
            config: config.validated(what)?,
            layers: validated(layers)?,
        },
        _ => {
            return Err(ImageError::malformed(
                what,
                "it is neither an index nor a manifest",
            ));
        }
    };
    if raw.media_type.is_empty() || document.has_media_type(&raw.media_type) {
        Ok(document)
    } else {
        Err(ImageError::malformed(
            what,
            "it does not match its media type",
        ))
    }
}

/// Parses the configuration of an image.
pub fn configuration(what: &str, bytes: &[u8]) -> Result<ImageConfiguration, ImageError> {
    let raw: RawConfiguration = parsed(what, bytes)?;
    let diff_ids = raw
        .rootfs
        .diff_ids
        .iter()
        .map(|text| digest(what, text))
        .collect::<Result<_, _>>()?;
    let RawConfig {
        user,
        env,
        entrypoint,
        cmd,
        working_dir,
        labels,
    } = raw.config;
    Ok(ImageConfiguration {
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
    fn validated(self, what: &str) -> Result<Descriptor, ImageError> {
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
    /// Whether it refers to another index or manifest.
    pub(crate) fn is_document(&self) -> bool {
        DOCUMENT_TYPES.contains(&self.media_type.as_str())
    }

    /// Refuses anything but an image configuration: registries store other artifacts, too.
    pub(crate) fn check_configuration(&self) -> Result<(), ImageError> {
        match self.media_type.as_str() {
            "application/vnd.oci.image.config.v1+json"
            | "application/vnd.docker.container.image.v1+json" => Ok(()),
            other => Err(unsupported("this, which is no image", other)),
        }
    }

    /// Refuses anything but a layer. The compression is detected from the first bytes.
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
    /// The platform of this program.
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

    /// Whether this machine can run the platform's programs.
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
