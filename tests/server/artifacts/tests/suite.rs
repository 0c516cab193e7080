//! What every place for artifacts promises.

use artifacts_tests::{Ground, all_of, get, key, name, put, put_as};
use bytes::Bytes;
use spec::{ArtifactLimits, Retention};
use std::time::Duration;
use store::{ArtifactError, ArtifactOwner, ArtifactQuery, ByteRange, Lineage, NewArtifact};

const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

async fn versions(artifacts: &store::Artifacts, at: &str) -> Vec<u64> {
    let at = name(at);
    let listing = artifacts
        .list(ArtifactQuery {
            name: &|found| *found == at,
            ..ArtifactQuery::all(None)
        })
        .await;
    assert_eq!(listing.problems, Vec::<String>::new());
    listing.kept.iter().map(|kept| kept.version).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_comes_back_in_numbered_versions_with_its_history() {
    for ground in Ground::all("versions").await {
        let artifacts = ground.usual();
        let lineage = Lineage {
            command: Some(vec!["make".into(), "a/out.txt".into()]),
            policy_hash: Some("00ff".into()),
            session_id: Some("s-1".into()),
            run_id: Some("run-1".into()),
        };
        let new = NewArtifact {
            lineage: lineage.clone(),
            ..NewArtifact::local(name("a/out.txt"))
        };
        let kept = put_as(&artifacts, new, b"abc").await.unwrap();
        assert_eq!(
            (kept.version, kept.size_bytes, kept.sha256.as_str()),
            (1, 3, ABC),
            "{ground:?}"
        );
        assert_eq!(
            (kept.content_type.as_str(), &kept.lineage),
            ("text/plain; charset=utf-8", &lineage)
        );
        let typed = NewArtifact {
            content_type: Some("x/y".into()),
            ..NewArtifact::local(name("a/out.txt"))
        };
        assert_eq!(put_as(&artifacts, typed, b"").await.unwrap().version, 2);
        assert_eq!(get(&artifacts, "a/out.txt", None).await.unwrap(), b"");
        assert_eq!(get(&artifacts, "a/out.txt", Some(1)).await.unwrap(), b"abc");
        let owner = ArtifactOwner::local();
        let listing = artifacts.list(ArtifactQuery::all(Some(&owner))).await;
        assert_eq!(
            (listing.kept.len(), listing.problems.len()),
            (2, 0),
            "{listing:?}"
        );
        assert_eq!(
            (&listing.kept[0], listing.kept[1].content_type.as_str()),
            (&kept, "x/y")
        );
        let of_run = artifacts
            .list(ArtifactQuery {
                run_id: Some("run-1"),
                ..ArtifactQuery::all(None)
            })
            .await;
        assert_eq!(of_run.kept, [kept]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_are_those_that_were_asked_for() {
    for ground in Ground::all("ranges").await {
        let artifacts = ground.usual();
        put(&artifacts, "x", b"0123456789").await.unwrap();
        for (part, expected) in [
            (ByteRange::From(2, Some(4)), "234"),
            (ByteRange::From(7, None), "789"),
            (ByteRange::From(0, Some(99)), "0123456789"),
            (ByteRange::Last(3), "789"),
        ] {
            let reading = artifacts
                .open_version(&ArtifactOwner::local(), &name("x"), None)
                .await
                .unwrap();
            assert_eq!(
                all_of(reading.only(part).unwrap()).await.unwrap(),
                expected.as_bytes(),
                "{part:?}"
            );
        }
        let reading = artifacts
            .open_version(&ArtifactOwner::local(), &name("x"), None)
            .await
            .unwrap();
        assert!(matches!(
            reading.only(ByteRange::From(10, None)),
            Err(ArtifactError::Range { size_bytes: 10, .. })
        ));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_removed_or_was_never_there_is_missing() {
    for ground in Ground::all("removal").await {
        let artifacts = ground.usual();
        let owner = ArtifactOwner::local();
        for bytes in [b"1", b"2", b"3"] {
            put(&artifacts, "x", bytes).await.unwrap();
        }
        for (asked, version) in [("absent", None), ("x", Some(4)), ("x", Some(0))] {
            let error = artifacts
                .open_version(&owner, &name(asked), version)
                .await
                .unwrap_err();
            assert!(
                matches!(error, ArtifactError::Missing { .. }),
                "{ground:?} {asked} {version:?} {error:?}"
            );
            let error = artifacts
                .remove(&owner, &name(asked), version)
                .await
                .unwrap_err();
            assert!(
                matches!(error, ArtifactError::Missing { .. }),
                "{ground:?} {asked} {version:?} {error:?}"
            );
        }
        assert_eq!(
            artifacts.remove(&owner, &name("x"), Some(2)).await.unwrap(),
            1
        );
        assert_eq!(versions(&artifacts, "x").await, [1, 3]);
        assert_eq!(artifacts.remove(&owner, &name("x"), None).await.unwrap(), 2);
        assert_eq!(versions(&artifacts, "x").await, Vec::<u64>::new());
        if let Ground::Gcs(fake) = &ground {
            assert_eq!(fake.keys(), Vec::<String>::new(), "their bytes, too");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_at_the_same_time_get_different_versions() {
    for ground in Ground::all("races").await {
        let artifacts = ground.usual();
        let writers: Vec<_> = (0..4_u8)
            .map(|writer| {
                let artifacts = artifacts.clone();
                tokio::spawn(async move {
                    for round in 0..5_u8 {
                        put(&artifacts, "same", &[writer, round]).await.unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        assert_eq!(
            versions(&artifacts, "same").await,
            (1..=20).collect::<Vec<_>>(),
            "{ground:?}"
        );
        let mut all = Vec::new();
        for version in 1..=20 {
            all.push(get(&artifacts, "same", Some(version)).await.unwrap());
        }
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 20, "nobody's bytes are lost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_owners_never_meet() {
    for ground in Ground::all("owners").await {
        let artifacts = ground.usual();
        let (one, other) = (key("ak_one"), key("ak_two"));
        for (owner, bytes) in [
            (&one, b"one"),
            (&other, b"two"),
            (&ArtifactOwner::local(), b"own"),
        ] {
            let new = NewArtifact {
                owner: owner.clone(),
                ..NewArtifact::local(name("x"))
            };
            assert_eq!(
                put_as(&artifacts, new, bytes).await.unwrap().version,
                1,
                "{ground:?}"
            );
        }
        let reading = artifacts
            .open_version(&one, &name("x"), None)
            .await
            .unwrap();
        assert_eq!(all_of(reading).await.unwrap(), b"one");
        assert_eq!(get(&artifacts, "x", None).await.unwrap(), b"own");
        let listing = artifacts.list(ArtifactQuery::all(Some(&other))).await;
        assert_eq!(
            listing
                .kept
                .iter()
                .map(|kept| &kept.owner)
                .collect::<Vec<_>>(),
            [&other]
        );
        assert_eq!(artifacts.list(ArtifactQuery::all(None)).await.kept.len(), 3);
        artifacts.remove(&one, &name("x"), None).await.unwrap();
        assert_eq!(artifacts.list(ArtifactQuery::all(None)).await.kept.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_show_everything_once() {
    for ground in Ground::all("pages").await {
        let artifacts = ground.usual();
        for at in ["b", "a/x", "c"] {
            put(&artifacts, at, b"1").await.unwrap();
            put(&artifacts, at, b"2").await.unwrap();
        }
        let (mut after, mut seen) = (None::<String>, Vec::new());
        loop {
            let page = artifacts
                .list(ArtifactQuery {
                    limit: 4,
                    after: after.as_deref(),
                    ..ArtifactQuery::all(None)
                })
                .await;
            seen.extend(page.kept.into_iter().map(|kept| (kept.name, kept.version)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen.len(), 6, "{ground:?} {seen:?}");
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 6);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_bytes_are_found_and_named() {
    let mut proven = 0;
    for ground in Ground::all("damage").await {
        let artifacts = ground.usual();
        put(&artifacts, "x", b"abc").await.unwrap();
        assert_eq!(get(&artifacts, "x", None).await.unwrap(), b"abc");
        if ground.damage("x", b"abd") {
            let error = get(&artifacts, "x", None).await.unwrap_err();
            assert!(
                matches!(error, ArtifactError::Damaged { version: 1, .. }),
                "{ground:?} {error:?}"
            );
            ground.damage("x", b"ab");
            let error = get(&artifacts, "x", None).await.unwrap_err();
            assert!(
                matches!(error, ArtifactError::Damaged { version: 1, .. }),
                "{ground:?} {error:?}"
            );
            proven += 1;
        }
    }
    assert!(proven >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_digest_than_the_announced_one_keeps_nothing() {
    for ground in Ground::all("digests").await {
        let artifacts = ground.usual();
        for (expected, good) in [("00".repeat(32), false), (ABC.to_uppercase(), true)] {
            let mut putting = artifacts
                .begin(NewArtifact::local(name("x")))
                .await
                .unwrap();
            putting.write(Bytes::from_static(b"abc")).await.unwrap();
            let kept = putting.finish(Some(&expected)).await;
            assert_eq!(kept.is_ok(), good, "{ground:?} {kept:?}");
        }
        assert_eq!(versions(&artifacts, "x").await, [1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_held_and_named() {
    let limits = ArtifactLimits {
        bytes: 10,
        names: 2,
        versions: 2,
        total_bytes: 25,
        ..ArtifactLimits::default()
    };
    for ground in Ground::all("limits").await {
        let artifacts = ground.open(limits, Retention::default());
        let error = put(&artifacts, "a", &[0; 11]).await.unwrap_err();
        assert!(
            matches!(
                error,
                ArtifactError::TooLarge {
                    limit_bytes: 10,
                    ..
                }
            ),
            "{error:?}"
        );
        put(&artifacts, "a", &[0; 10]).await.unwrap();
        put(&artifacts, "a", &[0; 1]).await.unwrap();
        let error = put(&artifacts, "a", b"").await.unwrap_err();
        assert!(
            matches!(
                error,
                ArtifactError::Quota {
                    limit: 2,
                    what: "versions of this name",
                    ..
                }
            ),
            "{error:?}"
        );
        put(&artifacts, "b", &[0; 10]).await.unwrap();
        let error = put(&artifacts, "b", &[0; 5]).await.unwrap_err();
        assert!(
            matches!(
                error,
                ArtifactError::Quota {
                    limit: 25,
                    what: "bytes in all",
                    ..
                }
            ),
            "{error:?}"
        );
        put(&artifacts, "b", &[0; 4]).await.unwrap();
        let error = put(&artifacts, "c", b"").await.unwrap_err();
        assert!(
            matches!(
                error,
                ArtifactError::Quota {
                    limit: 2,
                    what: "names",
                    ..
                }
            ),
            "own ones count at once: {error:?}"
        );
        // Somebody else, who counts anew.
        let artifacts = if matches!(ground, Ground::Memory) {
            continue;
        } else {
            ground.open(limits, Retention::default())
        };
        let error = put(&artifacts, "c", b"").await.unwrap_err();
        assert!(
            matches!(
                error,
                ArtifactError::Quota {
                    limit: 2,
                    what: "names",
                    ..
                }
            ),
            "{error:?}"
        );
        artifacts
            .remove(&ArtifactOwner::local(), &name("a"), None)
            .await
            .unwrap();
        assert_eq!(
            get(&artifacts, "b", None).await.unwrap(),
            [0; 4],
            "{ground:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_owner_cannot_use_up_what_all_have() {
    let limits = ArtifactLimits {
        total_bytes: 40,
        ..ArtifactLimits::default()
    };
    for ground in Ground::all("owners").await {
        let keep = async |artifacts: &store::Artifacts, owner: &str, count: usize| {
            let owner = ArtifactOwner::key(&spec::Id::new(owner).unwrap());
            let new = NewArtifact {
                owner,
                name: name(&format!("n{count}")),
                content_type: None,
                lineage: Lineage::default(),
                limit_bytes: u64::MAX,
            };
            let mut putting = artifacts.begin(new).await?;
            putting.write(vec![0; count].into()).await?;
            putting.finish(None).await
        };
        let artifacts = ground.open(limits, Retention::default());
        keep(&artifacts, "greedy", 9).await.unwrap();
        let error = keep(&artifacts, "greedy", 2).await.unwrap_err();
        assert!(
            matches!(
                error,
                ArtifactError::Quota {
                    limit: 10,
                    what: "bytes of one owner",
                    ..
                }
            ),
            "{error:?}"
        );
        keep(&artifacts, "modest", 10).await.unwrap();
        keep(&artifacts, "greedy", 1).await.unwrap();
        if matches!(ground, Ground::Memory) {
            continue;
        }
        // Somebody else, who counts anew.
        let artifacts = ground.open(limits, Retention::default());
        assert!(keep(&artifacts, "modest", 1).await.is_err(), "{ground:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_owner_cannot_use_up_the_names_that_all_have() {
    let limits = ArtifactLimits {
        names: 8,
        ..ArtifactLimits::default()
    };
    for ground in Ground::all("names").await {
        let begin = async |artifacts: &store::Artifacts, owner: &str, called: &str| {
            let owner = ArtifactOwner::key(&spec::Id::new(owner).unwrap());
            artifacts
                .begin(NewArtifact {
                    owner,
                    ..NewArtifact::local(name(called))
                })
                .await
        };
        let is_full = |error: &ArtifactError| {
            matches!(
                error,
                ArtifactError::Quota {
                    limit: 2,
                    what: "names of one owner",
                    ..
                }
            )
        };
        let artifacts = ground.open(limits, Retention::default());
        let (one, two) = (
            begin(&artifacts, "greedy", "1").await.unwrap(),
            begin(&artifacts, "greedy", "2").await.unwrap(),
        );
        let error = begin(&artifacts, "greedy", "3").await.unwrap_err();
        assert!(
            is_full(&error),
            "names are taken before they are written: {error:?}"
        );
        one.finish(None).await.unwrap();
        // What is not kept takes no name.
        drop(two);
        begin(&artifacts, "greedy", "3")
            .await
            .unwrap()
            .finish(None)
            .await
            .unwrap();
        let error = begin(&artifacts, "greedy", "4").await.unwrap_err();
        assert!(is_full(&error), "{ground:?} {error:?}");
        begin(&artifacts, "greedy", "3")
            .await
            .unwrap()
            .finish(None)
            .await
            .expect("another version is no name");
        begin(&artifacts, "modest", "4")
            .await
            .unwrap()
            .finish(None)
            .await
            .expect("somebody else has a share");
        let owner = ArtifactOwner::key(&spec::Id::new("greedy").unwrap());
        artifacts.remove(&owner, &name("1"), None).await.unwrap();
        begin(&artifacts, "greedy", "4")
            .await
            .unwrap()
            .finish(None)
            .await
            .unwrap();
        if matches!(ground, Ground::Memory) {
            continue;
        }
        // Somebody else, who counts anew; and who is told by the operator what one owner may have.
        let artifacts = ground.open(limits, Retention::default());
        assert!(
            is_full(&begin(&artifacts, "greedy", "5").await.unwrap_err()),
            "{ground:?}"
        );
        let wide = ArtifactLimits {
            owner_names: Some(3),
            ..limits
        };
        begin(&ground.open(wide, Retention::default()), "greedy", "5")
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_to_be_kept_any_longer_goes() {
    for ground in Ground::all("retention").await {
        let few = ground.open(
            ArtifactLimits::default(),
            Retention {
                keep_versions: Some(2),
                keep_for: None,
            },
        );
        for bytes in [b"1", b"2", b"3"] {
            put(&few, "x", bytes).await.unwrap();
        }
        assert_eq!(versions(&few, "x").await, [2, 3], "{ground:?}");
        assert_eq!(get(&few, "x", None).await.unwrap(), b"3");
        if matches!(ground, Ground::Memory) {
            continue;
        }
        let hour = ground.open(
            ArtifactLimits::default(),
            Retention {
                keep_versions: None,
                keep_for: Some(Duration::from_secs(3600)),
            },
        );
        assert_eq!(hour.tidy().await, (0, vec![]), "{ground:?}");
        let moment = ground.open(
            ArtifactLimits::default(),
            Retention {
                keep_versions: None,
                keep_for: Some(Duration::from_millis(1)),
            },
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(moment.tidy().await, (2, vec![]), "{ground:?}");
        assert_eq!(versions(&moment, "x").await, Vec::<u64>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_stops_in_the_middle_is_not_seen() {
    for ground in Ground::all("crashes").await {
        let artifacts = ground.usual();
        let mut putting = artifacts
            .begin(NewArtifact::local(name("x")))
            .await
            .unwrap();
        putting.write(Bytes::from(vec![7; 9 << 20])).await.unwrap();
        assert_eq!(versions(&artifacts, "x").await, Vec::<u64>::new());
        drop(putting);
        assert_eq!(versions(&artifacts, "x").await, Vec::<u64>::new());
        assert_eq!(artifacts.tidy().await.1, Vec::<String>::new());
        assert_eq!(
            put(&artifacts, "x", b"next").await.unwrap().version,
            1,
            "{ground:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_nobody_names_are_swept_when_they_are_old() {
    let ground = Ground::Gcs(artifacts_tests::Fake::start().await);
    let Ground::Gcs(fake) = &ground else {
        panic!("the fake")
    };
    let artifacts = ground.usual();
    put(&artifacts, "x", b"abc").await.unwrap();
    let before = fake.keys();
    let orphans = [
        "test/x/bytes/0123456789abcdef0123456789abcdef",
        "test/@ak_one/y/bytes/00000000000000000000000000000000",
    ];
    orphans.iter().for_each(|key| fake.plant(key, b"left"));
    fake.plant("test/not-ours", b"stays");
    assert_eq!(artifacts.tidy().await, (2, vec![]));
    let mut expected = before;
    expected.push("test/not-ours".to_owned());
    expected.sort();
    assert_eq!(fake.keys(), expected);
    assert_eq!(get(&artifacts, "x", None).await.unwrap(), b"abc");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_are_kept_as_themselves() {
    let long = format!("{}/{}", "d".repeat(250), "f".repeat(250));
    let names = [
        "a b/ü%2F..%00",
        "@ak_one/x",
        ".drafts/x",
        "x/1/about.json",
        "bytes/bytes",
        "~",
        "a?b#c&d=e+f",
        "\n\"<>&'",
        &long,
    ];
    for ground in Ground::all("names").await {
        // The fake writes its listing without escaping; that is not what is shown here.
        let artifacts = ground.usual();
        for at in names {
            assert_eq!(
                put(&artifacts, at, at.as_bytes()).await.unwrap().version,
                1,
                "{ground:?} {at}"
            );
        }
        for at in names {
            assert_eq!(
                get(&artifacts, at, None).await.unwrap(),
                at.as_bytes(),
                "{ground:?} {at}"
            );
        }
        let listing = artifacts
            .list(ArtifactQuery::all(Some(&ArtifactOwner::local())))
            .await;
        assert_eq!(
            (listing.kept.len(), listing.problems.len()),
            (names.len(), 0),
            "{ground:?} {listing:?}"
        );
    }
}
