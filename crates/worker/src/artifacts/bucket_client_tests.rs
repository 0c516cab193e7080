use super::*;
use crate::artifacts::INVALID_KEY_MARK;
use crate::artifacts::fake_s3::{self, FakeResponse, FakeS3};
use std::collections::{BTreeMap, BTreeSet};

fn remote(
    kind: BucketKind,
    endpoint: Option<&str>,
    credentials: BucketCredentials,
) -> BucketConfig {
    BucketConfig {
        kind,
        bucket: "bucket".to_owned(),
        region: "us-east-1".to_owned(),
        endpoint: endpoint.map(str::to_owned),
        credentials,
    }
}

fn keys() -> BucketCredentials {
    let (key, secret) = ("AKIDSECRET".to_owned(), "hushSECRET".to_owned());
    BucketCredentials::Keys {
        key,
        secret,
        token: Some("tokenSECRET".to_owned()),
    }
}

#[test]
fn nothing_that_opens_a_bucket_is_printed() {
    let broken = "{\"private_key\": \"hushSECRET\", \"client_email\": 7}";
    let all = [
        remote(BucketKind::S3, None, keys()),
        remote(
            BucketKind::Gcs,
            None,
            BucketCredentials::ServiceAccount(broken.to_owned()),
        ),
        remote(BucketKind::S3, Some("https://me:hushSECRET@host"), keys()),
    ];
    let [good, account, address] = all.each_ref().map(BucketClient::open);
    let opened = good.unwrap();
    let printed = format!("{opened:?} {:?} {:?}", all[0], all[1]);
    assert!(!printed.contains("SECRET"), "{printed}");
    for refused in [account, address] {
        let why = refused.unwrap_err().0;
        assert!(
            !why.contains("SECRET") && why.starts_with("the bucket `bucket` cannot be used"),
            "{why}"
        );
    }
}

#[test]
fn addresses_and_credentials_must_fit() {
    let machine = || BucketCredentials::Machine;
    assert!(
        BucketClient::open(&remote(
            BucketKind::S3,
            Some("http://10.0.0.1:9000"),
            keys()
        ))
        .is_ok()
    );
    assert!(
        BucketClient::open(&remote(
            BucketKind::Gcs,
            Some("http://127.0.0.1:1"),
            machine()
        ))
        .is_ok()
    );
    let bad = [
        remote(BucketKind::Gcs, Some("http://10.0.0.1"), machine()),
        remote(
            BucketKind::Gcs,
            Some("http://127.0.0.1.example.org"),
            machine(),
        ),
        remote(BucketKind::S3, Some("10.0.0.1:9000"), keys()),
        remote(BucketKind::S3, Some("ftp://host"), keys()),
        remote(BucketKind::Gcs, None, keys()),
        remote(
            BucketKind::S3,
            None,
            BucketCredentials::File("/nothing".to_owned()),
        ),
        BucketConfig {
            bucket: String::new(),
            ..remote(BucketKind::S3, None, keys())
        },
    ];
    for bad in bad {
        assert!(BucketClient::open(&bad).is_err(), "{bad:?}");
    }
}

#[tokio::test]
async fn what_the_client_would_not_survive_is_refused_at_the_start() {
    let keys = |key: &str, secret: &str, token: &str| {
        let [key, secret, token] = [key, secret, token].map(str::to_owned);
        remote(
            BucketKind::S3,
            Some("http://127.0.0.1:1"),
            BucketCredentials::Keys {
                key,
                secret,
                token: Some(token),
            },
        )
    };
    let good = keys("AKID", "s/+= ü", "t/+=");
    assert!(BucketClient::open(&good).is_ok(), "the control");
    let mut bad = vec![
        keys("AK\nID", "s", "t"),
        keys("AKIDé", "s", "t"),
        keys("AKID", "s\n", "t"),
        keys("AKID", "s", "t\nx"),
        keys("AKID", "s", "t\u{fffd}"),
        BucketConfig {
            bucket: "a b".to_owned(),
            ..good.clone()
        },
        BucketConfig {
            bucket: "a/../b".to_owned(),
            ..good.clone()
        },
        BucketConfig {
            region: "a\nb".to_owned(),
            ..good.clone()
        },
        remote(BucketKind::S3, None, {
            let (role, token_file) = ("r".repeat(70_000), "/nothing".to_owned());
            BucketCredentials::WebIdentity { role, token_file }
        }),
    ];
    let addresses = [
        "http://",
        "http:///",
        "http://a b",
        "http://a\n",
        "http://h:99999",
        "http://h:x",
        "http://[::1",
        "http://é",
        "http://a<b",
        "http://h\\x",
        "http://h?x",
        "http://h#x",
        "http://1.2.3.999",
    ];
    let with = |address: &str| BucketConfig {
        endpoint: Some(address.to_owned()),
        ..good.clone()
    };
    bad.extend(addresses.map(with));
    for bad in &bad {
        assert!(BucketClient::open(bad).is_err(), "{bad:?}");
    }
    // Whatever is not refused can be asked for something.
    for fine in [
        "http://127.0.0.1:1/%",
        "http://127.0.0.1:1/{x}",
        "http://127.0.0.1:1/a//b;c'd",
        "http://[::1]:1/",
        "http://LOCALHOST:1",
    ] {
        let store = BucketClient::open(&with(fine)).unwrap();
        assert!(
            store.get("a", GetOptions::default()).await.is_err(),
            "{fine}: nobody is there"
        );
    }
}

#[test]
fn kinds_have_names_and_azure_is_refused() {
    assert_eq!(BucketKind::named("s3"), Ok(BucketKind::S3));
    assert_eq!(BucketKind::named("gcs"), Ok(BucketKind::Gcs));
    assert!(
        BucketKind::named("azure")
            .unwrap_err()
            .0
            .contains("Azure is not spoken to")
    );
    assert!(BucketKind::named("S3").is_err());
}

#[tokio::test]
async fn a_server_that_is_away_is_said_to_be_so_without_its_address() {
    // Nobody listens on a port that was just given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let store = BucketClient::open(&remote(
        BucketKind::S3,
        Some(&format!("http://127.0.0.1:{port}")),
        keys(),
    ))
    .unwrap();
    let error = store.get("a", GetOptions::default()).await.unwrap_err();
    let told = cause(&error);
    assert!(
        told.contains("does not answer") && told.contains("refused"),
        "{told}"
    );
    assert!(
        !told.contains("SECRET") && !told.contains(&port.to_string()),
        "{told}"
    );
}

fn objects(keys: &[&str]) -> BTreeMap<String, String> {
    keys.iter()
        .map(|key| ((*key).to_owned(), "bytes".to_owned()))
        .collect()
}

/// What is beneath `a`.
async fn listed(fake: &FakeS3, limit: usize, patience: Duration) -> Result<Vec<String>, String> {
    let store = BucketClient::open(&fake.remote()).unwrap();
    let mut found = Vec::new();
    let mut each = |rest: &str, _: &ObjectMeta| {
        found.push(rest.to_owned());
        true
    };
    store
        .list("a", limit, patience, &mut each)
        .await
        .map_err(|error| cause(&error))?;
    Ok(found)
}

#[tokio::test]
async fn a_server_cannot_send_us_elsewhere() {
    for status in [301, 302, 303, 307, 308] {
        let inside = FakeS3::serve(|_| FakeResponse::Answer(200, "of the inside".to_owned()));
        let (to, here) = (
            format!("{}/latest/meta-data", inside.address),
            objects(&["a/plain"]),
        );
        let fake = FakeS3::serve(move |asked| match asked.path.ends_with("plain") {
            true => fake_s3::bucket(&here, asked),
            false => FakeResponse::Redirect(status, to.clone()),
        });
        let store = BucketClient::open(&fake.remote()).unwrap();
        let plain = store.get("a/plain", GetOptions::default()).await.unwrap();
        assert_eq!(plain.bytes().await.unwrap(), "bytes", "the control");
        let head = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let put = store.put("a/moved", "ours".into(), PutOptions::default());
        let all = [
            store
                .get("a/moved", GetOptions::default())
                .await
                .map(drop)
                .map_err(|error| cause(&error)),
            store
                .get("a/moved", head)
                .await
                .map(drop)
                .map_err(|error| cause(&error)),
            put.await.map_err(|error| cause(&error)),
            listed(&fake, 9, RESPONSE_TIMEOUT).await.map(drop),
        ];
        for told in all {
            let told = told.unwrap_err();
            assert!(
                told.contains(&format!("sends us elsewhere (status {status})")),
                "{told}"
            );
        }
        assert_eq!(inside.count(), 0, "nobody went there");
    }
}

#[tokio::test]
async fn keys_that_cannot_be_named_are_gone_around() {
    let odd = ["../x", "/b", "k10/./", "k57//", "z/..", "z\tz"].map(str::to_owned);
    let good: BTreeSet<String> = (0..100).map(|count| format!("k{count:02}")).collect();
    let many = (0..100).map(|count| format!("k{count:02}//odd"));
    let all = odd.into_iter().chain(good.iter().cloned()).chain(many);
    let here = all
        .map(|rest| (format!("a/{rest}"), String::new()))
        .collect();
    let fake = FakeS3::serve(move |asked| fake_s3::bucket(&here, asked));
    let found = listed(&fake, 1000, RESPONSE_TIMEOUT).await.unwrap();
    let (odd, plain): (BTreeSet<_>, BTreeSet<_>) = found
        .into_iter()
        .partition(|rest| rest.contains(INVALID_KEY_MARK));
    assert_eq!((odd.len(), plain), (106, good));
}

#[tokio::test]
async fn a_listing_ends_whatever_the_server_says() {
    let entry = |key: &str| {
        format!(
            "<Contents><Key>{key}</Key><Size>0</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
        )
    };
    let page = |inner: &str| {
        let next = "<NextContinuationToken>on</NextContinuationToken>";
        let text = format!("<ListBucketResult>{inner}{next}</ListBucketResult>");
        FakeS3::serve(move |_| FakeResponse::Answer(200, text.clone()))
    };
    let elsewhere = page(&entry("other/key").repeat(100));
    let patience = Duration::from_secs(300);
    let told = listed(&elsewhere, 5000, patience).await.unwrap_err();
    assert!(told.contains("more than 5000 objects"), "{told}");
    let long = "x".repeat(70_000);
    for next in [
        long.clone(),
        format!("<![CDATA[{}]]>", long.replace("xxxx", "x<x>")),
        "x<!-- -->".repeat(9),
    ] {
        let next = format!("<NextContinuationToken>{next}</NextContinuationToken>");
        let text = format!("<ListBucketResult>{next}</ListBucketResult>");
        let told = listed(
            &FakeS3::serve(move |_| FakeResponse::Answer(200, text.clone())),
            9,
            patience,
        )
        .await;
        assert!(
            told.as_ref()
                .is_err_and(|why| why.contains("its listing has a piece")),
            "{told:?}"
        );
    }
    let told = listed(&page(""), 5000, Duration::from_millis(500))
        .await
        .unwrap_err();
    assert!(told.contains("not done within"), "{told}");
    let told = listed(&FakeS3::serve(|_| FakeResponse::Rave), 5000, patience)
        .await
        .unwrap_err();
    assert!(told.contains("says more than"), "{told}");
    let told = listed(
        &FakeS3::serve(|_| FakeResponse::Hang),
        5000,
        Duration::from_millis(50),
    )
    .await
    .unwrap_err();
    assert!(told.contains("not done within"), "{told}");
    let here = objects(&["a/x", "a/y"]);
    let fine = FakeS3::serve(move |asked| fake_s3::bucket(&here, asked));
    assert_eq!(
        listed(&fine, 2, patience).await.unwrap(),
        ["x", "y"],
        "the control"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up_in_time() {
    let fake = FakeS3::serve(|_| FakeResponse::Hang);
    let store = BucketClient::open(&fake.remote()).unwrap();
    let started = tokio::time::Instant::now();
    assert!(store.get("a", GetOptions::default()).await.is_err());
    assert!(started.elapsed() <= RESPONSE_TIMEOUT + Duration::from_secs(1));
    let started = tokio::time::Instant::now();
    assert!(
        store
            .put("a", "bytes".into(), PutOptions::default())
            .await
            .is_err()
    );
    assert!(started.elapsed() <= RESPONSE_TIMEOUT + Duration::from_secs(1));
}

#[tokio::test]
async fn a_body_may_take_long_but_must_not_stop() {
    let here = objects(&["a"]);
    let fake = FakeS3::serve(move |asked| match asked.path.as_str() {
        "/bucket/a" => fake_s3::bucket(&here, asked),
        _ => FakeResponse::Stop,
    });
    let store = BucketClient::open(&fake.remote()).unwrap();
    let slow = store.get("a", GetOptions::default()).await.unwrap();
    let stopped = store.get("b", GetOptions::default()).await.unwrap();
    tokio::time::pause();
    let mut pieces = stopped.into_stream();
    let next = next_chunk(std::future::poll_fn(|context| {
        pieces.as_mut().poll_next(context)
    }))
    .await;
    assert!(next.unwrap_err().to_string().contains("not done within"));
    tokio::time::advance(Duration::from_secs(3600)).await;
    tokio::time::resume();
    assert_eq!(slow.bytes().await.unwrap(), "bytes");
}
