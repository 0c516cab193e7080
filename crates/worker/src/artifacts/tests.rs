use super::*;
use bytes::Bytes;
use object_store::memory::InMemory;
use std::collections::BTreeSet;

fn ana() -> ArtifactScope {
    ArtifactScope {
        app: "agent".to_owned(),
        user: "ana".to_owned(),
        session: "s".to_owned(),
    }
}

fn bucket() -> ArtifactStore {
    let bucket = Bucket::new(BucketClient::of(Arc::new(InMemory::new())));
    ArtifactStore {
        kept: Backend::Bucket(Arc::new(bucket)),
        sharing: Arc::new(Sharing::App),
    }
}

#[tokio::test]
async fn memory_and_buckets_count_versions_and_keep_whose_they_are() {
    for store in [ArtifactStore::memory(), bucket()] {
        let save = async |scope: &ArtifactScope, name: &str, bytes: &'static str| {
            store
                .save(scope, name, "text/plain", bytes.into())
                .await
                .unwrap()
        };
        assert_eq!(save(&ana(), "a", "one").await, 0);
        assert_eq!(save(&ana(), "a", "two").await, 1);
        let bob = ArtifactScope {
            user: "bob".to_owned(),
            ..ana()
        };
        assert_eq!(save(&bob, "a", "bob's").await, 0);
        let two = ArtifactContent {
            version: 1,
            mime_type: "text/plain".to_owned(),
            bytes: "two".into(),
        };
        assert_eq!(store.load(&ana(), "a", None, 3).await.unwrap(), two);
        assert_eq!(
            store.load(&ana(), "a", Some(0), 3).await.unwrap().bytes,
            "one"
        );
        assert_eq!(store.load(&bob, "a", None, 9).await.unwrap().bytes, "bob's");
        let elsewhere = ArtifactScope {
            session: "t".to_owned(),
            ..ana()
        };
        let missing = store.load(&elsewhere, "a", None, 9).await.unwrap_err();
        assert_eq!(missing.0, "`a` cannot be read: there is no such file");
        assert!(
            store
                .load(&ana(), "a", Some(2), 9)
                .await
                .unwrap_err()
                .0
                .contains("no version 2")
        );
        assert!(
            store
                .load(&ana(), "a", None, 2)
                .await
                .unwrap_err()
                .0
                .contains("3 bytes, and at most 2")
        );
        assert_eq!(save(&ana(), "user:u", "everywhere").await, 0);
        assert_eq!(
            store
                .load(&elsewhere, "user:u", None, 99)
                .await
                .unwrap()
                .bytes,
            "everywhere"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_two_writers_of_a_bucket_get_the_same_version() {
    let store = bucket();
    let mut writers = Vec::new();
    for count in 0..64_usize {
        let (store, bytes) = (store.clone(), Bytes::from(count.to_string()));
        writers.push(tokio::spawn(async move {
            (
                store
                    .save(&ana(), "a", "text/plain", bytes.clone())
                    .await
                    .unwrap(),
                bytes,
            )
        }));
    }
    let mut versions = BTreeSet::new();
    for writer in writers {
        let (version, bytes) = writer.await.unwrap();
        assert!(versions.insert(version), "{version} twice");
        assert_eq!(
            store
                .load(&ana(), "a", Some(version), 9)
                .await
                .unwrap()
                .bytes,
            bytes
        );
    }
}

#[tokio::test]
async fn a_slow_upload_of_one_tenant_holds_up_nobody_else() {
    let nothing = Default::default();
    let (begun, begins) = std::sync::mpsc::channel();
    let store = fake_s3::FakeS3::serve(move |asked| match asked.method.as_str() {
        "PUT" if asked.path.contains("/slow/") => {
            _ = begun.send(());
            fake_s3::FakeResponse::Hang
        }
        "PUT" => fake_s3::FakeResponse::Answer(200, String::new()),
        _ => fake_s3::bucket(&nothing, asked),
    });
    let settings = ArtifactStoreSettings {
        place: ArtifactLocation::Bucket(store.remote()),
        sharing: Sharing::App,
    };
    let store = ArtifactStore::open(settings).unwrap();
    let slow = store.clone();
    let slow = tokio::spawn(async move { slow.save(&ana(), "slow", "x/y", "a".into()).await });
    let wait = move || begins.recv().map(|()| begins).unwrap();
    let begins = tokio::task::spawn_blocking(wait).await.unwrap();
    let bob = ArtifactScope {
        user: "bob".to_owned(),
        ..ana()
    };
    let patience = std::time::Duration::from_secs(10);
    let saved = tokio::time::timeout(patience, store.save(&bob, "b", "x/y", "b".into())).await;
    assert_eq!(saved, Ok(Ok(0)));
    assert!(!slow.is_finished(), "the control: it still goes on");
    // This server writes over what is there: those of one name wait for each other.
    assert!(store.weakness().is_some());
    let same =
        tokio::time::timeout(patience / 10, store.save(&ana(), "slow", "x/y", "c".into())).await;
    assert!(
        same.is_err() && begins.try_recv().is_err(),
        "it has not begun"
    );
    slow.abort();
}

#[tokio::test]
async fn memory_that_is_full_forgets_the_oldest_of_whoever_has_most() {
    // A version weighs some 800 bytes: five of a user's, and ten of all.
    let settings = ArtifactStoreSettings {
        place: ArtifactLocation::Memory { limit: 8200 },
        sharing: Sharing::App,
    };
    let store = ArtifactStore::open(settings).unwrap();
    let of = |user: &str| ArtifactScope {
        user: user.to_owned(),
        ..ana()
    };
    let save = async |user: &str, name: &str| {
        store
            .save(&of(user), name, "x/y", vec![1; 500].into())
            .await
            .unwrap()
    };
    let has = async |user: &str, name: &str, version| {
        store
            .load(&of(user), name, Some(version), 500)
            .await
            .is_ok()
    };
    assert_eq!([save("bob", "b").await, save("bob", "b").await], [0, 1]);
    assert_eq!(store.weakness(), None);
    for version in 0..20 {
        let session = ArtifactScope {
            session: format!("s{version}"),
            ..of("ana")
        };
        assert_eq!(
            store.save(&session, "a", "x/y", vec![1; 500].into()).await,
            Ok(0),
            "{version}"
        );
        assert_eq!(save("ana", "a").await, version, "they go on counting");
    }
    assert!(
        store
            .weakness()
            .is_some_and(|told| told.contains("forgotten"))
    );
    assert!(has("ana", "a", 19).await && !has("ana", "a", 0).await);
    assert!(has("bob", "b", 0).await, "not for her");

    // Others together fill the rest, and she, who has most, makes room.
    for user in ["c", "d", "e", "f", "g"] {
        save(user, "x").await;
        assert!(has("bob", "b", 0).await && has(user, "x", 0).await && has("ana", "a", 19).await);
    }
    let large = store
        .save(&of("h"), "l", "x/y", vec![1; 4100].into())
        .await
        .unwrap_err();
    assert_eq!(
        large.0,
        "`l` cannot be kept: of the memory for artifacts one user has at most 4100 bytes"
    );
    assert!(
        has("bob", "b", 0).await && has("g", "x", 0).await,
        "nothing was forgotten for it"
    );
}

#[tokio::test]
async fn agents_of_a_namespace_share_and_others_do_not() {
    let open = |sharing| {
        ArtifactStore::open(ArtifactStoreSettings {
            place: ArtifactLocation::Memory { limit: 1 << 20 },
            sharing,
        })
        .unwrap()
    };
    let other = ArtifactScope {
        app: "other".to_owned(),
        ..ana()
    };
    let shared = open(Sharing::named("namespace", None, "my/org").unwrap());
    shared
        .save(&ana(), "a", "x/y", "for all".into())
        .await
        .unwrap();
    assert_eq!(
        shared.load(&other, "a", None, 99).await.unwrap().bytes,
        "for all"
    );
    let own = open(Sharing::named("app", None, "my/org").unwrap());
    own.save(&ana(), "a", "x/y", "for one".into())
        .await
        .unwrap();
    assert!(own.load(&other, "a", None, 99).await.is_err());
}

#[test]
fn the_scope_is_one_of_three_words() {
    let named = |scope, value| Sharing::named(scope, value, "ns");
    assert_eq!(
        named("namespace", None),
        Ok(Sharing::Namespace("ns".to_owned()))
    );
    assert_eq!(
        named("namespace", Some("")),
        Ok(Sharing::Namespace("ns".to_owned()))
    );
    assert_eq!(
        named("custom", Some("c")),
        Ok(Sharing::Namespace("c".to_owned()))
    );
    assert_eq!(named("app", None), Ok(Sharing::App));
    for (scope, value) in [
        ("custom", None),
        ("app", Some("x")),
        ("", None),
        ("Namespace", None),
    ] {
        assert!(named(scope, value).is_err(), "{scope} {value:?}");
    }
}

#[test]
fn a_namespace_that_cannot_be_a_name_is_refused_at_the_start() {
    let settings = ArtifactStoreSettings {
        place: ArtifactLocation::Memory { limit: 1 },
        sharing: Sharing::Namespace("a/../b".to_owned()),
    };
    let refused = ArtifactStore::open(settings).unwrap_err();
    assert_eq!(refused.0, "the scope `a/../b` has a part that is no name");
}

#[tokio::test]
async fn a_size_is_known_before_the_bytes_are_had() {
    let base =
        std::env::temp_dir().join(format!("airlock-size-{}", openat::random_name().unwrap()));
    let folder = ArtifactStoreSettings {
        place: ArtifactLocation::Folder(base.clone()),
        sharing: Sharing::App,
    };
    for store in [
        ArtifactStore::memory(),
        bucket(),
        ArtifactStore::open(folder).unwrap(),
    ] {
        for bytes in ["one", "three"] {
            store
                .save(&ana(), "a", "text/plain", bytes.into())
                .await
                .unwrap();
        }
        assert_eq!(store.size(&ana(), "a", None).await, Ok((1, 5)));
        assert_eq!(store.size(&ana(), "a", Some(0)).await, Ok((0, 3)));
        assert!(
            store
                .size(&ana(), "a", Some(2))
                .await
                .unwrap_err()
                .0
                .contains("no version 2")
        );
        assert!(
            store
                .size(&ana(), "b", None)
                .await
                .unwrap_err()
                .0
                .contains("no such file")
        );
        assert!(
            store
                .size(&ana(), "a", Some(-1))
                .await
                .unwrap_err()
                .0
                .contains("count from 0")
        );
    }
    std::fs::remove_dir_all(base).unwrap();
}
