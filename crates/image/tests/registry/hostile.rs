//! Hostile registries: slow, lying or redirecting. Each trick is refused, and a pull from the same
//! server without the trick succeeds.

use crate::{
    image::{
        DOCKER_MANIFEST, Image, MANIFEST, arrives, descriptor, digest, here, refused, request,
        small,
    },
    server::{Ask, Server, head, reply},
};
use image::registry::{PullError, PullEvent, PullOptions, RegistryTimeouts, Transport};
use serde_json::json;
use std::{
    io::{self, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

const KIND: &str = "Content-Type: application/vnd.oci.image.manifest.v1+json";

/// Answers like a correct registry with one image.
fn honest(image: &Image, ask: &Ask, stream: &mut TcpStream) -> io::Result<()> {
    if ask.path.contains("/manifests/") {
        return reply(stream, 200, &[KIND], &image.manifest());
    }
    match image
        .blobs
        .iter()
        .find(|blob| ask.path.ends_with(digest(blob).as_str()))
    {
        Some(blob) => reply(stream, 200, &[], blob),
        None => reply(stream, 404, &[], b""),
    }
}

/// A correct server, except for requests whose path contains `trick`.
fn lying(
    image: &Image,
    trick: &str,
    answer: impl Fn(&Ask, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> Server {
    let image = image.clone();
    let trick = trick.to_owned();
    Server::new(move |ask, stream| {
        if ask.path.contains(&trick) {
            answer(ask, stream)
        } else {
            honest(&image, ask, stream)
        }
    })
}

fn plain(server: &Server) -> PullOptions {
    request(&server.name("x:1"))
}

/// The path of the last layer.
fn layer(image: &Image) -> String {
    format!("blobs/{}", digest(image.blobs.last().unwrap()))
}

#[tokio::test]
async fn an_honest_registry_is_pulled_from() {
    let image = small();
    arrives(&plain(&lying(&image, "no trick", |_, _| Ok(()))), &image).await;
}

#[tokio::test]
async fn a_blob_with_other_bytes_is_refused() {
    let image = small();
    let server = lying(&image, &layer(&image), |_, stream| {
        reply(stream, 200, &[], b"THE second layer")
    });
    refused(
        &plain(&server),
        "does not match its digest: its digest is sha256:",
    )
    .await;
    assert_eq!(
        server
            .asked()
            .iter()
            .filter(|ask| ask.path.contains(&layer(&image)))
            .count(),
        1,
        "once is enough"
    );
}

#[tokio::test]
async fn a_blob_of_another_size_is_refused() {
    let image = small();
    let longer = lying(&image, &layer(&image), |_, stream| {
        reply(stream, 200, &[], b"the second layer!")
    });
    refused(&plain(&longer), "it should have 16 bytes and has 17").await;
    let shorter = lying(&image, &layer(&image), |_, stream| {
        reply(stream, 200, &[], b"the second laye")
    });
    refused(&plain(&shorter), "it should have 16 bytes and has 15").await;
}

#[tokio::test]
async fn an_endless_body_ends_at_the_size_that_was_told() {
    let image = small();
    let endless = |_: &Ask, stream: &mut TcpStream| {
        head(stream, 200, &[KIND])?;
        loop {
            stream.write_all(&[b'x'; 4096])?;
        }
    };
    refused(
        &plain(&lying(&image, &layer(&image), endless)),
        "more than its 16 bytes came",
    )
    .await;
    refused(
        &plain(&lying(&image, "manifests", endless)),
        "bytes; the maximum is 4194304",
    )
    .await;
}

#[tokio::test]
async fn a_huge_manifest_is_not_read() {
    let server = lying(&small(), "manifests", |_, stream| {
        head(stream, 200, &[KIND, "Content-Length: 4194305"])
    });
    refused(
        &plain(&server),
        "the answer has 4194305 bytes; the maximum is 4194304",
    )
    .await;
}

#[tokio::test]
async fn a_manifest_for_another_digest_is_refused() {
    let asked = small();
    let sent = Image::new(here(), &[b"another"]);
    let server = lying(&sent, "no trick", |_, _| Ok(()));
    refused(
        &request(&server.name(&format!("x@{}", asked.digest()))),
        "does not match its digest",
    )
    .await;
    arrives(
        &request(&server.name(&format!("x@{}", sent.digest()))),
        &sent,
    )
    .await;
    let told = sent.manifest();
    let contradiction = lying(&sent, "manifests", move |_, stream| {
        let other = format!("Docker-Content-Digest: sha256:{}", "0".repeat(64));
        reply(stream, 200, &[KIND, &other], &told)
    });
    refused(&plain(&contradiction), "and the registry states sha256:000").await;
}

#[tokio::test]
async fn an_index_whose_manifest_is_another_or_an_index_again_is_refused() {
    let image = small();
    let index = |bytes: &[u8]| {
        let mut entry = descriptor(MANIFEST, bytes);
        entry["platform"] = json!({ "os": "linux", "architecture": here() });
        json!({ "schemaVersion": 2, "manifests": [entry] })
            .to_string()
            .into_bytes()
    };
    let kind = "Content-Type: application/vnd.oci.image.index.v1+json";
    let of = |bytes: Vec<u8>| {
        lying(&image, "manifests/1", move |_, stream| {
            reply(stream, 200, &[kind], &bytes)
        })
    };
    arrives(&plain(&of(index(&image.manifest()))), &image).await;
    refused(&plain(&of(index(&image.manifest()[1..]))), "bytes and has").await;
    let inner = index(&image.manifest());
    let outer = index(&inner);
    let nested = Server::new(move |ask, stream| {
        reply(
            stream,
            200,
            &[kind],
            if ask.path.ends_with("/1") {
                &outer
            } else {
                &inner
            },
        )
    });
    refused(&plain(&nested), "it refers to another index").await;
}

#[tokio::test]
async fn old_foreign_and_odd_manifests_are_refused_by_name() {
    let image = small();
    let of = |document: serde_json::Value, kind: &'static str| {
        lying(&image, "manifests", move |_, stream| {
            reply(
                stream,
                200,
                &[&format!("Content-Type: {kind}")],
                document.to_string().as_bytes(),
            )
        })
    };
    arrives(&plain(&of(image.manifest.clone(), MANIFEST)), &image).await;
    let old = json!({ "schemaVersion": 1, "fsLayers": [] });
    let kind = "application/vnd.docker.distribution.manifest.v1+prettyjws";
    refused(&plain(&of(old, kind)), "schema 1").await;
    let mut foreign = image.manifest.clone();
    foreign["layers"][0]["mediaType"] =
        json!("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip");
    foreign["layers"][0]["urls"] = json!(["https://example.com/layer"]);
    refused(&plain(&of(foreign, MANIFEST)), "may not give away").await;
    let mut both = image.manifest.clone();
    both["manifests"] = json!([]);
    refused(
        &plain(&of(both, MANIFEST)),
        "neither an index nor a manifest",
    )
    .await;
    let mut many = image.manifest.clone();
    many["layers"] = json!(vec![image.manifest["layers"][0].clone(); 129]);
    refused(&plain(&of(many, MANIFEST)), "has more than 128 layers").await;
    refused(&plain(&of(json!("hello"), DOCKER_MANIFEST)), "invalid type").await;
    let mut greedy = image.manifest.clone();
    greedy["layers"][0]["size"] = json!(u64::MAX);
    refused(&plain(&of(greedy, MANIFEST)), "bytes; the maximum is").await;
}

#[tokio::test]
async fn redirects_are_followed_without_credentials_and_not_for_ever() {
    let image = small();
    let strict = Server::new({
        let image = image.clone();
        move |ask, stream| {
            honest(
                &image,
                &Ask {
                    path: ask.path.replace("?signature=s", ""),
                    ..ask.clone()
                },
                stream,
            )
        }
    });
    let there = strict.address;
    let server = lying(&image, &layer(&image), move |ask, stream| {
        if ask.headers.contains_key("authorization") {
            reply(
                stream,
                307,
                &[&format!("Location: http://{there}{}?signature=s", ask.path)],
                b"",
            )
        } else {
            reply(stream, 401, &["WWW-Authenticate: Basic realm=\"x\""], b"")
        }
    });
    let mut request = plain(&server);
    request.credentials = Some(image::registry::Credentials::Password {
        user: "me".into(),
        password: image::registry::RegistrySecret::new("hunter2"),
    });
    arrives(&request, &image).await;
    let seen = strict.asked();
    assert!(
        !seen.is_empty()
            && seen
                .iter()
                .all(|ask| !ask.headers.contains_key("authorization")),
        "{seen:?}"
    );
    let around = lying(&image, &layer(&image), |ask, stream| {
        reply(
            stream,
            302,
            &[&format!("Location: {}?again", ask.path)],
            b"",
        )
    });
    refused(&plain(&around), "redirects more than 5 times").await;
    let count = around
        .asked()
        .iter()
        .filter(|ask| ask.path.contains(&layer(&image)))
        .count();
    assert_eq!(count, 6);
}

#[tokio::test]
async fn a_redirect_leads_to_no_other_scheme_and_carries_no_credentials() {
    let image = small();
    for (location, why) in [
        ("file:///etc/passwd", "which is not http"),
        ("http://192.0.2.1/x", "which is plain http"),
        ("http://user:word@127.0.0.1/x", "with credentials in it"),
        ("http://", "its redirect has no valid address"),
    ] {
        let server = lying(&image, &layer(&image), move |_, stream| {
            reply(stream, 302, &[&format!("Location: {location}")], b"")
        });
        refused(&plain(&server), why).await;
    }
}

#[tokio::test]
async fn a_slow_drip_is_given_up() {
    let image = Image::new(here(), &[&[7; 100_000]]);
    let drip = |_: &Ask, stream: &mut TcpStream| {
        head(stream, 200, &["Content-Length: 100000"])?;
        loop {
            stream.write_all(&[7])?;
            stream.flush()?;
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let swift = lying(&image, "no trick", |_, _| Ok(()));
    let mut request = plain(&swift);
    arrives(&request, &image).await;
    let server = lying(&image, &layer(&image), drip);
    request.name = server.name("x:1").parse().unwrap();
    request.timeouts = RegistryTimeouts {
        idle: Duration::from_secs(1),
        attempts: 2,
        ..request.timeouts
    };
    let began = Instant::now();
    refused(&request, "less than 1 KiB came in 1 s").await;
    assert!(began.elapsed() < Duration::from_secs(15));
    let silent = lying(&image, "manifests", |_, _| {
        std::thread::sleep(Duration::from_secs(5));
        Ok(())
    });
    request.name = silent.name("x:1").parse().unwrap();
    refused(&request, "no response within 1 s").await;
}

#[tokio::test]
async fn a_body_that_breaks_off_is_gone_on_with_where_it_was() {
    let bytes: Vec<u8> = (0..50_000u32).map(|at| (at % 251) as u8).collect();
    let image = Image::new(here(), &[&bytes]);
    let sent = bytes.clone();
    let server = lying(&image, &layer(&image), move |ask, stream| {
        let from = ask.headers.get("range").map_or(0, |range| {
            range
                .strip_prefix("bytes=")
                .unwrap()
                .strip_suffix('-')
                .unwrap()
                .parse()
                .unwrap()
        });
        let rest = &sent[from..];
        let length = format!("Content-Length: {}", rest.len());
        let range = format!(
            "Content-Range: bytes {from}-{}/{}",
            sent.len() - 1,
            sent.len()
        );
        match from {
            0 => head(stream, 200, &[&length])?,
            _ => head(stream, 206, &[&length, &range])?,
        }
        stream.write_all(&rest[..rest.len().min(20_000)])
    });
    let outcome = arrives(&plain(&server), &image).await;
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
    assert_eq!(received, outcome.pulled.bytes, "nothing came twice");
    let ranges: Vec<_> = server
        .asked()
        .iter()
        .filter_map(|ask| ask.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges, ["bytes=20000-", "bytes=40000-"]);
}

#[tokio::test]
async fn a_server_without_ranges_sends_it_all_again_and_one_with_wrong_ranges_is_refused() {
    let image = Image::new(here(), &[&[7; 50_000]]);
    let count = AtomicUsize::new(0);
    let whole = lying(&image, &layer(&image), move |_, stream| {
        let part = if count.fetch_add(1, Ordering::Relaxed) == 0 {
            20_000
        } else {
            50_000
        };
        head(stream, 200, &["Content-Length: 50000"])?;
        stream.write_all(&vec![7; part])
    });
    let outcome = arrives(&plain(&whole), &image).await;
    assert!(
        outcome.events.contains(&PullEvent::Lost(20_000)),
        "{:?}",
        outcome.events
    );
    let wrong = lying(&image, &layer(&image), move |ask, stream| {
        match ask.headers.get("range") {
            None => {
                head(stream, 200, &["Content-Length: 50000"])?;
                stream.write_all(&[7; 20_000])
            }
            Some(_) => reply(
                stream,
                206,
                &["Content-Range: bytes 0-49999/50000"],
                &[7; 50_000],
            ),
        }
    });
    refused(&plain(&wrong), "it is not the requested range").await;
}

#[tokio::test]
async fn a_body_that_always_breaks_off_is_given_up() {
    let image = Image::new(here(), &[&[7; 50_000]]);
    let server = lying(&image, &layer(&image), move |ask, stream| {
        let from = ask
            .headers
            .get("range")
            .map_or(0, |range| range[6..range.len() - 1].parse::<u64>().unwrap());
        match from {
            0 => head(stream, 200, &["Content-Length: 50000"])?,
            _ => head(
                stream,
                206,
                &[&format!("Content-Range: bytes {from}-49999/50000")],
            )?,
        }
        stream.write_all(&[7])
    });
    let request = plain(&server);
    let error = refused(&request, "interrupted").await;
    assert!(matches!(error, PullError::Interrupted { .. }), "{error:?}");
    let tries = server
        .asked()
        .iter()
        .filter(|ask| ask.path.contains(&layer(&image)))
        .count();
    assert_eq!(tries, request.timeouts.attempts as usize);
}

#[tokio::test]
async fn a_busy_registry_is_asked_again_when_it_says_and_not_if_that_is_too_long() {
    let image = small();
    let busy_once = |wait: &'static str| {
        let count = Arc::new(AtomicUsize::new(0));
        let image = image.clone();
        Server::new(
            move |ask, stream| match count.fetch_add(1, Ordering::Relaxed) {
                0 => reply(stream, 429, &[&format!("Retry-After: {wait}")], b""),
                _ => honest(&image, ask, stream),
            },
        )
    };
    let began = Instant::now();
    arrives(&plain(&busy_once("1")), &image).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    refused(
        &plain(&busy_once("61")),
        "requests a pause of 61 s; the maximum is 60 s",
    )
    .await;
    let down = lying(&image, "manifests", |_, stream| {
        reply(stream, 503, &[], b"")
    });
    refused(&plain(&down), "answered 503").await;
    let reason = br#"{"errors":[{"code":"X","message":"under\u001b[2J repair"}]}"#;
    let why = lying(&image, "manifests", move |_, stream| {
        reply(stream, 418, &["Content-Type: application/json"], reason)
    });
    refused(&plain(&why), "answered 418 for manifest `1` of `x`: under").await;
}

#[tokio::test]
async fn plain_http_is_for_this_machine_or_when_it_is_asked_for() {
    let image = small();
    let server = lying(&image, "no trick", |_, _| Ok(()));
    // This address leads to this machine, and is not loopback.
    let mut away = request(&server.name("x:1").replace("127.0.0.1", "0.0.0.0"));
    let error = refused(&away, "does not speak TLS").await;
    assert!(
        matches!(error, PullError::PlainHttp { .. }) && error.hint().contains("--plain-http"),
        "{error:?}"
    );
    assert_eq!(server.asked().len(), 0, "nothing was said in plain http");
    away.transport = Transport::PlainHttp;
    arrives(&away, &image).await;
}
