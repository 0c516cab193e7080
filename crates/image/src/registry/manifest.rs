//! Manifests and indexes as registries send them: read strictly, since everything else follows from them.
//!
//! One document must not be both (CVE-2021-41190): what one reader takes for an index and another for a manifest
//! would be two images under one digest.

use super::platform::Platform;
use serde::Deserialize;
use spec::Digest;

/// The most bytes of a manifest or index.
pub const LARGEST_MANIFEST: u64 = 4 << 20;
/// The most layers of an image; the kernel could not stack more either.
pub const MOST_LAYERS: usize = 128;
/// The most manifests of an index.
const MOST_MANIFESTS: usize = 1024;
/// The most bytes of an image's configuration.
const LARGEST_CONFIG: u64 = 4 << 20;

/// What is asked for, in `Accept`.
pub const MANIFEST_TYPES: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIG_TYPES: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYER_TYPES: [&str; 5] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];

/// A document that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// A choice between manifests.
    Index(Vec<Choice>),
    /// One image.
    Manifest(Manifest),
}

/// A manifest that an index offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The manifest.
    pub manifest: Blob,
    /// What it is made for, if that is said.
    pub platform: Option<Platform>,
}

/// What an image is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// How it wants to be run.
    pub config: Blob,
    /// Its files, the lowest first.
    pub layers: Vec<Blob>,
}

/// Bytes by their digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// What they are.
    pub media_type: String,
    /// What they must hash to.
    pub digest: Digest,
    /// How many there must be.
    pub size: u64,
}

/// Why a document is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum Unfit {
    #[error("it is not a manifest: {0}")]
    Malformed(String),
    #[error("it is a manifest of schema 1, which has been retired")]
    Schema1,
    #[error("it has the type `{0}`, which is no image")]
    NoImage(String),
    #[error("it is an index and a manifest at once")]
    Ambiguous,
    #[error("its layer has the type `{0}`, and may not be given away by registries")]
    Foreign(String),
    #[error("its layer has the type `{0}`, which is not known here")]
    Layer(String),
    #[error("it has {count} {what}; at most {most} are taken")]
    TooMany { what: &'static str, count: usize, most: usize },
    #[error("its {what} has {size} bytes; at most {most} are taken")]
    TooLarge { what: &'static str, size: u64, most: u64 },
    #[error("its digest `{0}` is not sha256")]
    Digest(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: u64,
    media_type: Option<String>,
    config: Option<RawBlob>,
    layers: Option<Vec<RawBlob>>,
    manifests: Option<Vec<RawBlob>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawBlob {
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<RawPlatform>,
}

/// Of an index entry, or of an image's configuration.
#[derive(Deserialize)]
struct RawPlatform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

/// Reads a document. `content_type` is what the registry said it is; where it says nothing, the document does.
pub fn read(bytes: &[u8], content_type: Option<&str>) -> Result<Document, Unfit> {
    let content_type = content_type.map(essence).filter(|kind| kind.starts_with("application/vnd."));
    for kind in content_type.iter().copied() {
        check_known(kind)?;
    }
    let raw: Raw = serde_json::from_slice(bytes).map_err(|error| Unfit::Malformed(error.to_string()))?;
    if raw.schema_version == 1 {
        return Err(Unfit::Schema1);
    }
    if raw.schema_version != 2 {
        return Err(Unfit::Malformed(format!("its schema version is {}", raw.schema_version)));
    }
    let said = raw.media_type.as_deref();
    said.map_or(Ok(()), check_known)?;
    let kinds = said.into_iter().chain(content_type);
    let is_index = raw.manifests.is_some();
    if (is_index && (raw.layers.is_some() || raw.config.is_some()))
        || kinds.into_iter().any(|kind| [OCI_INDEX, DOCKER_LIST].contains(&kind) != is_index)
    {
        return Err(Unfit::Ambiguous);
    }
    match (raw.manifests, raw.config, raw.layers) {
        (Some(manifests), _, _) => index(manifests).map(Document::Index),
        (None, Some(config), Some(layers)) => manifest(config, layers).map(Document::Manifest),
        (None, _, _) => Err(Unfit::Malformed("it has no configuration, or no layers".to_owned())),
    }
}

/// The platform that an image's configuration names.
pub fn platform_of_config(bytes: &[u8]) -> Result<Platform, Unfit> {
    let raw: RawPlatform =
        serde_json::from_slice(bytes).map_err(|error| Unfit::Malformed(error.to_string()))?;
    Ok(raw.checked())
}

/// What a document that was read is called: as the registry called it, if that was one of the names.
pub fn media_type(document: &Document, content_type: Option<&str>) -> &'static str {
    let said = content_type.map(essence).unwrap_or_default();
    MANIFEST_TYPES.into_iter().find(|known| *known == said).unwrap_or(match document {
        Document::Index(_) => OCI_INDEX,
        Document::Manifest(_) => OCI_MANIFEST,
    })
}

fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

fn check_known(kind: &str) -> Result<(), Unfit> {
    match kind {
        known if MANIFEST_TYPES.contains(&known) => Ok(()),
        old if old.starts_with("application/vnd.docker.distribution.manifest.v1+") => Err(Unfit::Schema1),
        other => Err(Unfit::NoImage(shown(other))),
    }
}

fn index(manifests: Vec<RawBlob>) -> Result<Vec<Choice>, Unfit> {
    few("manifests", manifests.len(), MOST_MANIFESTS)?;
    let choice = |mut raw: RawBlob| {
        let platform = raw.platform.take().map(RawPlatform::checked);
        Ok(Choice { manifest: raw.checked()?, platform })
    };
    manifests.into_iter().map(choice).collect()
}

fn manifest(config: RawBlob, layers: Vec<RawBlob>) -> Result<Manifest, Unfit> {
    few("layers", layers.len(), MOST_LAYERS)?;
    let config = config.checked()?;
    if !CONFIG_TYPES.contains(&config.media_type.as_str()) {
        return Err(Unfit::NoImage(shown(&config.media_type)));
    }
    if config.size > LARGEST_CONFIG {
        return Err(Unfit::TooLarge { what: "configuration", size: config.size, most: LARGEST_CONFIG });
    }
    let layers = layers.into_iter().map(layer).collect::<Result<_, _>>()?;
    Ok(Manifest { config, layers })
}

fn layer(raw: RawBlob) -> Result<Blob, Unfit> {
    let layer = raw.checked()?;
    match layer.media_type.as_str() {
        known if LAYER_TYPES.contains(&known) => Ok(layer),
        kept if kept.contains("nondistributable") || kept.contains("foreign") => {
            Err(Unfit::Foreign(shown(kept)))
        }
        other => Err(Unfit::Layer(shown(other))),
    }
}

fn few(what: &'static str, count: usize, most: usize) -> Result<(), Unfit> {
    match count <= most {
        true => Ok(()),
        false => Err(Unfit::TooMany { what, count, most }),
    }
}

impl RawBlob {
    fn checked(self) -> Result<Blob, Unfit> {
        let digest = Digest::new(&self.digest).ok_or_else(|| Unfit::Digest(shown(&self.digest)))?;
        Ok(Blob { media_type: self.media_type, digest, size: self.size })
    }
}

impl RawPlatform {
    fn checked(self) -> Platform {
        let variant = self.variant.filter(|variant| !variant.is_empty());
        Platform { os: self.os, architecture: self.architecture, variant }
    }
}

/// A stranger's text, short enough for a message.
fn shown(text: &str) -> String {
    text.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn blob(kind: &str) -> Value {
        json!({ "mediaType": kind, "digest": DIGEST, "size": 3 })
    }

    fn an_image() -> Value {
        json!({ "schemaVersion": 2, "config": blob(CONFIG_TYPES[0]), "layers": [blob(LAYER_TYPES[1])] })
    }

    fn with(key: &str, value: Value) -> Value {
        let mut image = an_image();
        image[key] = value;
        image
    }

    fn refused(document: &Value, content_type: Option<&str>) -> Unfit {
        read(document.to_string().as_bytes(), content_type).expect_err(&document.to_string())
    }

    #[test]
    fn images_and_indexes_of_both_families_are_read() {
        for kind in [None, Some(OCI_MANIFEST), Some(DOCKER_MANIFEST), Some("application/json; charset=x")] {
            let read = read(an_image().to_string().as_bytes(), kind).unwrap();
            let Document::Manifest(manifest) = read else { panic!("{read:?}") };
            assert_eq!((manifest.config.size, manifest.layers.len()), (3, 1));
        }
        let mut arm = blob(OCI_MANIFEST);
        arm["platform"] = json!({ "os": "linux", "architecture": "arm64", "variant": "v8" });
        let index =
            json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [arm, blob(OCI_MANIFEST)] });
        let Ok(Document::Index(choices)) = read(index.to_string().as_bytes(), Some(OCI_INDEX)) else {
            panic!()
        };
        assert_eq!(choices[0].platform, Some("linux/arm64/v8".parse().unwrap()));
        assert_eq!(choices[1].platform, None);
    }

    #[test]
    fn a_document_that_is_two_things_is_refused() {
        assert_eq!(refused(&with("manifests", json!([])), None), Unfit::Ambiguous);
        assert_eq!(refused(&an_image(), Some(OCI_INDEX)), Unfit::Ambiguous);
        assert_eq!(refused(&with("mediaType", json!(DOCKER_LIST)), None), Unfit::Ambiguous);
        let twice = an_image().to_string().replacen('{', "{\"layers\":[],", 1);
        assert!(matches!(read(twice.as_bytes(), None), Err(Unfit::Malformed(_))));
    }

    #[test]
    fn what_is_old_foreign_or_no_image_is_refused_by_name() {
        let old = "application/vnd.docker.distribution.manifest.v1+prettyjws";
        assert_eq!(refused(&with("schemaVersion", json!(1)), None), Unfit::Schema1);
        assert_eq!(refused(&an_image(), Some(old)), Unfit::Schema1);
        let chart = "application/vnd.cncf.helm.config.v1+json";
        assert_eq!(refused(&with("config", blob(chart)), None), Unfit::NoImage(chart.into()));
        for kind in [
            "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        ] {
            assert_eq!(refused(&with("layers", json!([blob(kind)])), None), Unfit::Foreign(kind.into()));
        }
        assert_eq!(refused(&with("layers", json!([blob("x/y")])), None), Unfit::Layer("x/y".into()));
        let mut other = blob(CONFIG_TYPES[0]);
        other["digest"] = json!("sha512:00");
        assert_eq!(refused(&with("config", other), None), Unfit::Digest("sha512:00".into()));
    }

    #[test]
    fn layers_and_bytes_are_bounded() {
        let layers = |count| with("layers", Value::Array(vec![blob(LAYER_TYPES[0]); count]));
        assert!(read(layers(MOST_LAYERS).to_string().as_bytes(), None).is_ok());
        let many = Unfit::TooMany { what: "layers", count: MOST_LAYERS + 1, most: MOST_LAYERS };
        assert_eq!(refused(&layers(MOST_LAYERS + 1), None), many);
        let mut large = blob(CONFIG_TYPES[0]);
        large["size"] = json!(LARGEST_CONFIG + 1);
        assert!(matches!(refused(&with("config", large), None), Unfit::TooLarge { .. }));
        assert!(matches!(
            refused(&with("config", json!({ "mediaType": "", "digest": DIGEST, "size": -1 })), None),
            Unfit::Malformed(_)
        ));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..400) {
            _ = read(&bytes, None);
            let text = an_image().to_string();
            _ = read(&text.as_bytes()[..cut.min(text.len())], Some(OCI_MANIFEST));
        }
    }
}
