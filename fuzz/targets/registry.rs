//! What a registry sends before anything can be checked by a digest: its `WWW-Authenticate` header, then, after a NUL,
//! what it calls a document and the document. No bytes make the readers panic, and what they take is within the bounds.

#![no_main]

use image::{
    document::Document,
    registry::{
        challenge::{self, Challenge},
        manifest,
    },
};
use libfuzzer_sys::fuzz_target;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fuzz_target!(|input: &[u8]| {
    let middle = input
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(input.len());
    let (header, document) = input.split_at(middle);
    if let Ok(header) = std::str::from_utf8(header) {
        check_challenges(header);
    }
    let document = document.get(1..).unwrap_or_default();
    let called = |kind| manifest::read("it", document, kind).ok();
    let free = called(None);
    if let Some(Document::Manifest { config, layers }) = &free {
        assert!(layers.len() <= 128 && config.size <= 4 << 20);
        let kept = |kind: &str| kind.contains("foreign") || kind.contains("nondistributable");
        assert!(!layers.iter().any(|layer| kept(&layer.media_type)));
    }
    // Under one name it is at most one thing, and the same as under none.
    let (index, image) = (called(Some(INDEX)), called(Some(MANIFEST)));
    assert!(index.is_none() || image.is_none());
    assert_eq!(index.or(image), free);
});

fn check_challenges(header: &str) {
    for challenge in challenge::parse(header) {
        match challenge {
            Challenge::Basic => assert!(header.to_ascii_lowercase().contains("basic")),
            Challenge::Bearer { realm, service } => {
                assert!(realm.len() + service.map_or(0, |service| service.len()) <= header.len());
            }
        }
    }
}
