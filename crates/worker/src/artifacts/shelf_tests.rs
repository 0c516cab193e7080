use super::*;
use bytes::Bytes;
use object_store::memory::InMemory;
use std::collections::BTreeSet;

fn ana() -> Scope {
    Scope { app: "agent".to_owned(), user: "ana".to_owned(), session: "s".to_owned() }
}

fn bucket() -> Shelf {
    let bucket = Bucket::new(Store::of(Arc::new(InMemory::new())));
    Shelf { kept: Kept::Bucket(Arc::new(bucket)), sharing: Arc::new(Sharing::App) }
}

#[tokio::test]
async fn memory_and_buckets_count_versions_and_keep_whose_they_are() {
    for shelf in [Shelf::memory(), bucket()] {
        let save = async |scope: &Scope, name: &str, bytes: &'static str| {
            shelf.save(scope, name, "text/plain", bytes.into()).await.unwrap()
        };
        assert_eq!(save(&ana(), "a", "one").await, 0);
        assert_eq!(save(&ana(), "a", "two").await, 1);
        let bob = Scope { user: "bob".to_owned(), ..ana() };
        assert_eq!(save(&bob, "a", "bob's").await, 0);
        let two = Version { version: 1, mime_type: "text/plain".to_owned(), bytes: "two".into() };
        assert_eq!(shelf.load(&ana(), "a", None, 3).await.unwrap(), two);
        assert_eq!(shelf.load(&ana(), "a", Some(0), 3).await.unwrap().bytes, "one");
        assert_eq!(shelf.load(&bob, "a", None, 9).await.unwrap().bytes, "bob's");
        let elsewhere = Scope { session: "t".to_owned(), ..ana() };
        let missing = shelf.load(&elsewhere, "a", None, 9).await.unwrap_err();
        assert_eq!(missing.0, "`a` cannot be read: there is no such file");
        assert!(shelf.load(&ana(), "a", Some(2), 9).await.unwrap_err().0.contains("no version 2"));
        assert!(shelf.load(&ana(), "a", None, 2).await.unwrap_err().0.contains("3 bytes, and at most 2"));
        assert_eq!(save(&ana(), "user:u", "everywhere").await, 0);
        assert_eq!(shelf.load(&elsewhere, "user:u", None, 99).await.unwrap().bytes, "everywhere");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_two_writers_of_a_bucket_get_the_same_version() {
    let shelf = bucket();
    let mut writers = Vec::new();
    for count in 0..64_usize {
        let (shelf, bytes) = (shelf.clone(), Bytes::from(count.to_string()));
        writers.push(tokio::spawn(async move {
            (shelf.save(&ana(), "a", "text/plain", bytes.clone()).await.unwrap(), bytes)
        }));
    }
    let mut versions = BTreeSet::new();
    for writer in writers {
        let (version, bytes) = writer.await.unwrap();
        assert!(versions.insert(version), "{version} twice");
        assert_eq!(shelf.load(&ana(), "a", Some(version), 9).await.unwrap().bytes, bytes);
    }
}

#[tokio::test]
async fn memory_that_is_full_refuses_and_forgets_nothing() {
    let settings = Settings { place: Place::Memory { most: 1000 }, sharing: Sharing::App };
    let shelf = Shelf::open(settings).unwrap();
    assert_eq!(shelf.save(&ana(), "a", "x/y", vec![1; 500].into()).await, Ok(0));
    let full = shelf.save(&ana(), "b", "x/y", vec![1; 500].into()).await.unwrap_err();
    assert_eq!(full.0, "`b` cannot be kept: the memory for artifacts is full: 1000 bytes at most");
    assert_eq!(shelf.load(&ana(), "a", None, 500).await.unwrap().bytes.len(), 500);
}

#[tokio::test]
async fn agents_of_a_namespace_share_and_others_do_not() {
    let open = |sharing| Shelf::open(Settings { place: Place::Memory { most: 1 << 20 }, sharing }).unwrap();
    let other = Scope { app: "other".to_owned(), ..ana() };
    let shared = open(Sharing::named("namespace", None, "my/org").unwrap());
    shared.save(&ana(), "a", "x/y", "for all".into()).await.unwrap();
    assert_eq!(shared.load(&other, "a", None, 99).await.unwrap().bytes, "for all");
    let own = open(Sharing::named("app", None, "my/org").unwrap());
    own.save(&ana(), "a", "x/y", "for one".into()).await.unwrap();
    assert!(own.load(&other, "a", None, 99).await.is_err());
}

#[test]
fn the_scope_is_one_of_three_words() {
    let named = |scope, value| Sharing::named(scope, value, "ns");
    assert_eq!(named("namespace", None), Ok(Sharing::Namespace("ns".to_owned())));
    assert_eq!(named("namespace", Some("")), Ok(Sharing::Namespace("ns".to_owned())));
    assert_eq!(named("custom", Some("c")), Ok(Sharing::Namespace("c".to_owned())));
    assert_eq!(named("app", None), Ok(Sharing::App));
    for (scope, value) in [("custom", None), ("app", Some("x")), ("", None), ("Namespace", None)] {
        assert!(named(scope, value).is_err(), "{scope} {value:?}");
    }
}

#[test]
fn a_namespace_that_cannot_be_a_name_is_refused_at_the_start() {
    let settings =
        Settings { place: Place::Memory { most: 1 }, sharing: Sharing::Namespace("a/../b".to_owned()) };
    let refused = Shelf::open(settings).unwrap_err();
    assert_eq!(refused.0, "the scope `a/../b` has a part that is no name");
}

#[tokio::test]
async fn a_size_is_known_before_the_bytes_are_had() {
    let base = std::env::temp_dir().join(format!("airlock-size-{}", beneath::unique().unwrap()));
    let folder = Settings { place: Place::Folder(base.clone()), sharing: Sharing::App };
    for shelf in [Shelf::memory(), bucket(), Shelf::open(folder).unwrap()] {
        for bytes in ["one", "three"] {
            shelf.save(&ana(), "a", "text/plain", bytes.into()).await.unwrap();
        }
        assert_eq!(shelf.size(&ana(), "a", None).await, Ok((1, 5)));
        assert_eq!(shelf.size(&ana(), "a", Some(0)).await, Ok((0, 3)));
        assert!(shelf.size(&ana(), "a", Some(2)).await.unwrap_err().0.contains("no version 2"));
        assert!(shelf.size(&ana(), "b", None).await.unwrap_err().0.contains("no such file"));
        assert!(shelf.size(&ana(), "a", Some(-1)).await.unwrap_err().0.contains("count from 0"));
    }
    std::fs::remove_dir_all(base).unwrap();
}
