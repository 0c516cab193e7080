//! Pulls from a real registry, and refusals.

use crate::{
    docker_registry::{Registry, available},
    image::{
        Folder, INDEX, Image, MANIFEST, arrives, attempt, descriptor, refused, request, small,
    },
};
use image::registry::PullEvent;
use serde_json::json;

async fn with_small() -> Option<(Folder, Registry, Image)> {
    if !available() {
        return None;
    }
    let storage = Folder::new();
    let registry = Registry::start(&storage.0, "", "");
    let image = small();
    registry.push("team/tool", "1.2", &image).await;
    Some((storage, registry, image))
}

#[tokio::test]
async fn an_image_comes_by_its_tag_and_by_its_digest() {
    let Some((_storage, registry, image)) = with_small().await else {
        return;
    };
    let outcome = arrives(&request(&registry.name("team/tool:1.2")), &image).await;
    let bytes = image
        .blobs
        .iter()
        .map(|blob| blob.len() as u64)
        .sum::<u64>();
    assert_eq!((outcome.pulled.bytes, outcome.pulled.layers), (bytes, 2));
    assert_eq!(outcome.pulled.digest, image.digest());
    let received: u64 = outcome
        .events
        .iter()
        .map(|event| {
            if let PullEvent::Received(n) = event {
                *n
            } else {
                0
            }
        })
        .sum();
    assert_eq!(
        (outcome.events.first(), received),
        (Some(&PullEvent::Started { bytes, blobs: 3 }), bytes)
    );
    assert_eq!(
        outcome
            .events
            .iter()
            .filter(|event| matches!(event, PullEvent::Blob { .. }))
            .count(),
        3
    );
    arrives(
        &request(&registry.name(&format!("team/tool@{}", image.digest()))),
        &image,
    )
    .await;
    let localhost = registry
        .name("team/tool:1.2")
        .replace("127.0.0.1", "localhost");
    arrives(&request(&localhost), &image).await;
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let Some((_storage, registry, image)) = with_small().await else {
        return;
    };
    arrives(&request(&registry.name("team/tool:1.2")), &image).await;
    refused(
        &request(&registry.name("team/tool:1.3")),
        "has no manifest `1.3` of `team/tool`",
    )
    .await;
    let digest = format!("team/tool@sha256:{}", "0".repeat(64));
    refused(
        &request(&registry.name(&digest)),
        "has no manifest `sha256:000",
    )
    .await;
}

#[tokio::test]
async fn of_an_index_the_manifest_of_the_platform_comes() {
    let Some((_storage, registry, _)) = with_small().await else {
        return;
    };
    let amd = Image::new("amd64", &[b"amd"]);
    let arm = Image::new("arm64", &[b"arm"]);
    let mut entries = Vec::new();
    for (image, architecture) in [(&amd, "amd64"), (&arm, "arm64")] {
        registry.push("team/both", architecture, image).await;
        let mut entry = descriptor(MANIFEST, &image.manifest());
        entry["platform"] = json!({ "os": "linux", "architecture": architecture });
        entries.push(entry);
    }
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries })
        .to_string()
        .into_bytes();
    let digest = crate::image::digest(&index);
    registry.push_manifest("team/both", "1", INDEX, index).await;
    for (platform, image) in [
        ("linux/amd64", &amd),
        ("linux/arm64", &arm),
        ("linux/arm64/v8", &arm),
    ] {
        let mut request = request(&registry.name("team/both:1"));
        request.platform = platform.parse().unwrap();
        assert_eq!(arrives(&request, image).await.pulled.digest, digest);
    }
    let mut by_digest = request(&registry.name(&format!("team/both@{digest}")));
    by_digest.platform = "linux/arm64".parse().unwrap();
    arrives(&by_digest, &arm).await;
    let mut absent = request(&registry.name("team/both:1"));
    absent.platform = "linux/riscv64".parse().unwrap();
    refused(
        &absent,
        "is not for linux/riscv64, but for linux/amd64, linux/arm64",
    )
    .await;
    // An image without an index has its platform in the configuration.
    let mut alone = request(&registry.name("team/both:arm64"));
    alone.platform = "linux/amd64".parse().unwrap();
    refused(&alone, "is not for linux/amd64, but for linux/arm64").await;
}

#[tokio::test]
async fn an_image_larger_than_the_bound_is_refused_before_it_comes() {
    let Some((_storage, registry, image)) = with_small().await else {
        return;
    };
    let mut request = request(&registry.name("team/tool:1.2"));
    request.max_bytes = image.blobs.iter().map(|blob| blob.len() as u64).sum();
    arrives(&request, &image).await;
    request.max_bytes -= 1;
    refused(&request, "bytes; the maximum is").await;
}

#[tokio::test]
async fn layers_that_are_the_same_and_layers_that_are_empty_come_once() {
    let Some((_storage, registry, _)) = with_small().await else {
        return;
    };
    let twice = Image::new(crate::image::here(), &[b"same", b"", b"same"]);
    registry.push("team/twice", "1", &twice).await;
    let outcome = arrives(&request(&registry.name("team/twice:1")), &twice).await;
    assert_eq!((outcome.pulled.layers, outcome.files.len()), (3, 6));
}

#[tokio::test]
async fn many_large_layers_come_whole() {
    let Some((_storage, registry, _)) = with_small().await else {
        return;
    };
    let bytes: Vec<Vec<u8>> = (0u8..9)
        .map(|seed| {
            (0..600 << 10)
                .map(|at: u32| (at >> 7) as u8 ^ seed)
                .collect()
        })
        .collect();
    let layers: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    let large = Image::new(crate::image::here(), &layers);
    registry.push("team/large", "1", &large).await;
    arrives(&request(&registry.name("team/large:1")), &large).await;
}

#[tokio::test]
async fn a_registry_that_is_not_there_is_said_to_be() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = attempt(&request(&format!("{address}/x")))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot reach `{address}`: Connection refused (os error 111)")
    );
}
