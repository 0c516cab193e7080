//! Checks of a manifest or index from a registry. `document.rs` parses the documents; this module
//! checks what only a registry can get wrong: the media type, and what it offers.

use crate::{
    document::{self, DOCUMENT_TYPES, Descriptor, Document},
    error::{ImageError, shown},
    limits::{ImageLimits, MAX_DOCUMENT_BYTES},
};

/// Maximum manifests of an index.
const MAX_MANIFESTS: usize = 1024;

/// Parses a document. `content_type` is the registry's; it may be absent, but must not contradict
/// the document.
pub fn read(what: &str, bytes: &[u8], content_type: Option<&str>) -> Result<Document, ImageError> {
    let called = content_type
        .map(essence)
        .filter(|kind| kind.starts_with("application/vnd."));
    if let Some(kind) = called {
        document::check_type(what, kind)?;
    }
    let document = document::document(what, bytes)?;
    if called.is_some_and(|kind| !document.has_media_type(kind)) {
        return Err(ImageError::malformed(
            what,
            "it does not match the media type from the registry",
        ));
    }
    match &document {
        Document::Index(manifests) => {
            check_count(what, "manifests", manifests.len(), MAX_MANIFESTS)?
        }
        Document::Manifest { config, layers } => {
            check_count(what, "layers", layers.len(), ImageLimits::default().layers)?;
            config.check_configuration()?;
            if config.size > MAX_DOCUMENT_BYTES {
                return Err(limit(
                    "the configuration",
                    format!("{MAX_DOCUMENT_BYTES} bytes"),
                ));
            }
            layers.iter().try_for_each(check_layer)?;
        }
    }
    Ok(document)
}

/// The media type of a parsed document: the registry's, if it is one of the known types.
pub(super) fn media_type(document: &Document, content_type: Option<&str>) -> &'static str {
    let said = content_type.map(essence).unwrap_or_default();
    let called = DOCUMENT_TYPES.into_iter().find(|known| *known == said);
    called
        .or(DOCUMENT_TYPES
            .into_iter()
            .find(|known| document.has_media_type(known)))
        .unwrap_or_default()
}

fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Refuses non-distributable layers, which would have to be fetched from any URL that they name.
fn check_layer(layer: &Descriptor) -> Result<(), ImageError> {
    layer.check_layer()?;
    if layer.media_type.contains("nondistributable") || layer.media_type.contains("foreign") {
        Err(ImageError::Unsupported {
            what: "a layer that registries may not give away".to_owned(),
            kind: format!("`{}`", shown(layer.media_type.as_bytes())),
        })
    } else {
        Ok(())
    }
}

fn check_count(what: &str, of: &str, count: usize, most: usize) -> Result<(), ImageError> {
    if count <= most {
        Ok(())
    } else {
        Err(limit(what, format!("{most} {of}")))
    }
}

fn limit(what: &str, limit: String) -> ImageError {
    ImageError::Limit {
        what: what.to_owned(),
        limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const OCI_INDEX: &str = DOCUMENT_TYPES[0];
    const OCI_MANIFEST: &str = DOCUMENT_TYPES[1];
    const DOCKER_LIST: &str = DOCUMENT_TYPES[2];
    const DOCKER_MANIFEST: &str = DOCUMENT_TYPES[3];
    const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

    fn blob(kind: &str) -> Value {
        json!({ "mediaType": kind, "digest": DIGEST, "size": 3 })
    }

    fn an_image() -> Value {
        json!({ "schemaVersion": 2, "config": blob(CONFIG), "layers": [blob(LAYER)] })
    }

    fn with(key: &str, value: Value) -> Value {
        let mut image = an_image();
        image[key] = value;
        image
    }

    fn taken(document: &Value, content_type: Option<&str>) -> Document {
        read("it", document.to_string().as_bytes(), content_type).unwrap()
    }

    #[track_caller]
    fn refused(document: &Value, content_type: Option<&str>, why: &str) {
        let error = read("it", document.to_string().as_bytes(), content_type)
            .expect_err(why)
            .to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn images_and_indexes_of_both_families_are_read() {
        for kind in [
            None,
            Some(OCI_MANIFEST),
            Some(DOCKER_MANIFEST),
            Some("application/json; charset=x"),
        ] {
            let read = taken(&an_image(), kind);
            assert!(
                matches!(&read, Document::Manifest { config, layers } if config.size == 3 && layers.len() == 1)
            );
            assert_eq!(
                media_type(&read, kind),
                if kind == Some(DOCKER_MANIFEST) {
                    DOCKER_MANIFEST
                } else {
                    OCI_MANIFEST
                }
            );
        }
        let mut arm = blob(OCI_MANIFEST);
        arm["platform"] = json!({ "os": "linux", "architecture": "arm64", "variant": "v8" });
        let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [arm, blob(OCI_MANIFEST)] });
        let Document::Index(choices) = taken(&index, Some(OCI_INDEX)) else {
            panic!()
        };
        let platforms: Vec<_> = choices.into_iter().map(|choice| choice.platform).collect();
        assert_eq!(platforms, [Some("linux/arm64/v8".parse().unwrap()), None]);
    }

    #[test]
    fn a_document_that_is_two_things_is_refused() {
        refused(
            &with("manifests", json!([])),
            None,
            "neither an index nor a manifest",
        );
        refused(
            &an_image(),
            Some(OCI_INDEX),
            "it does not match the media type from the registry",
        );
        refused(
            &with("mediaType", json!(DOCKER_LIST)),
            None,
            "does not match its media type",
        );
        let twice = an_image().to_string().replacen('{', "{\"layers\":[],", 1);
        assert!(
            read("it", twice.as_bytes(), None)
                .unwrap_err()
                .to_string()
                .contains("duplicate field")
        );
    }

    #[test]
    fn what_is_old_foreign_or_no_image_is_refused_by_name() {
        refused(&with("schemaVersion", json!(1)), None, "schema 1");
        refused(
            &an_image(),
            Some("application/vnd.docker.distribution.manifest.v1+prettyjws"),
            "schema 1",
        );
        let chart = "application/vnd.cncf.helm.config.v1+json";
        refused(&with("config", blob(chart)), None, chart);
        refused(&an_image(), Some(chart), chart);
        for kind in [
            "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        ] {
            refused(
                &with("layers", json!([blob(kind)])),
                None,
                "may not give away",
            );
        }
        refused(&with("layers", json!([blob("x/y")])), None, "x/y");
        let mut other = blob(CONFIG);
        other["digest"] = json!("sha512:00");
        refused(&with("config", other), None, "sha512:00");
    }

    #[test]
    fn layers_and_bytes_are_bounded() {
        let layers = |count| with("layers", Value::Array(vec![blob(LAYER); count]));
        taken(&layers(128), None);
        refused(&layers(129), None, "more than 128 layers");
        let mut large = blob(CONFIG);
        large["size"] = json!(MAX_DOCUMENT_BYTES + 1);
        refused(
            &with("config", large),
            None,
            "the configuration has more than",
        );
        let mut odd = blob(CONFIG);
        odd["size"] = json!(-1);
        refused(&with("config", odd), None, "invalid value");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..400) {
            _ = read("it", &bytes, None);
            let text = an_image().to_string();
            _ = read("it", &text.as_bytes()[..cut.min(text.len())], Some(OCI_MANIFEST));
        }
    }
}
