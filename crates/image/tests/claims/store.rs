//! Claims about the store with valid images: load, find, list, remove, and recovery after a crash.

use crate::common::{self, Archive, Layer, World, tree_of};
use image::{ImageError, ImageLimits, ImageSource, ImageStore, LoadOutcome};
use std::{fs, os::unix::fs::PermissionsExt};

#[test]
fn what_is_loaded_is_found_by_its_name_and_its_digests_and_by_no_other() {
    let world = World::new();
    let archive = Archive::new(&[Layer::new().folder("etc/").file("etc/motd", "hello")]);
    let loaded = world.load_with(&archive, &ImageLimits::default()).unwrap();
    assert!(loaded.fresh);
    assert_eq!(tree_of(&loaded.image), ["etc/ 755", "etc/motd 444 hello"]);
    let images = world.images();
    let found = |name: &str| images.find(&name.parse().unwrap()).unwrap();
    let id = common::digest(&archive.configuration());
    let manifest = common::digest(&archive.manifest());
    for name in [
        "test",
        "test:latest",
        "docker.io/library/test",
        &format!("test@{id}"),
        &format!("test@{manifest}"),
    ] {
        let stored = found(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(
            (stored.id().as_str(), stored.digest().as_str()),
            (id.as_str(), manifest.as_str())
        );
        assert_eq!(
            (stored.size_bytes(), stored.files(), stored.user()),
            (5, 1, None)
        );
        assert_eq!(stored.names(), [named("test")]);
        assert_eq!(stored.root(), loaded.image.root());
    }
    let other = format!("test@sha256:{}", "0".repeat(64));
    for name in ["test:1", "other", &other, &format!("other@{id}")] {
        assert!(found(name).is_none(), "{name}");
    }
}

fn named(name: &str) -> spec::ImageRef {
    name.parse().unwrap()
}

fn load_as(world: &World, archive: &Archive, name: &str) -> LoadOutcome {
    let path = world.path(&format!("{name}.tar"));
    fs::write(&path, archive.oci()).unwrap();
    world
        .images()
        .load(
            ImageSource::Path(path),
            Some(named(name)),
            &ImageLimits::default(),
            &mut |_| {},
        )
        .unwrap()
}

#[test]
fn an_image_goes_with_its_last_name_and_not_while_it_is_used() {
    let world = World::new();
    let archive = Archive::new(&[Layer::new().file("a", "x")]);
    drop(load_as(&world, &archive, "one"));
    let held = load_as(&world, &archive, "two").image;
    let images = world.images();
    let removed = images.remove(&named("one")).unwrap();
    assert_eq!(
        (removed.names, removed.images.len()),
        (vec![named("one")], 0),
        "it has another name"
    );
    assert!(matches!(
        images.remove(&named("two")),
        Err(ImageError::InUse(_))
    ));
    assert_eq!(tree_of(&held), ["a 444 x"], "nothing was done to it");
    assert!(
        images.find(&named("two")).unwrap().is_some(),
        "and it kept its name"
    );
    drop(held);
    let removed = images.remove(&named("two")).unwrap();
    assert_eq!(
        (removed.names, removed.images.len(), removed.freed_bytes),
        (vec![named("two")], 1, 1)
    );
    assert_eq!(world.in_store(), Vec::<String>::new());
    assert!(matches!(
        images.remove(&named("two")),
        Err(ImageError::NotFound { .. })
    ));
}

#[test]
fn a_name_moves_to_the_image_that_was_loaded_last() {
    let world = World::new();
    drop(load_as(
        &world,
        &Archive::new(&[Layer::new().file("a", "old")]),
        "x",
    ));
    let new = load_as(&world, &Archive::new(&[Layer::new().file("a", "new")]), "x").image;
    let images = world.images();
    assert_eq!(images.find(&named("x")).unwrap().unwrap().id(), new.id());
    assert_eq!(world.in_store().len(), 2);
    assert_eq!(images.sweep(), Vec::<String>::new());
    assert_eq!(world.in_store().len(), 1, "the one without a name is swept");
    assert_eq!(tree_of(&new), ["a 444 new"]);
}

#[test]
fn a_list_shows_each_name_and_what_is_damaged() {
    let world = World::new();
    let archive = Archive::new(&[Layer::new().file("a", "xyz")]);
    let image = load_as(&world, &archive, "b").image;
    drop(load_as(&world, &archive, "a"));
    let listing = world.images().list().unwrap();
    let shown: Vec<_> = listing
        .images
        .iter()
        .map(|one| (one.name.familiar(), one.size_bytes))
        .collect();
    assert_eq!(
        shown,
        [("a:latest".to_owned(), 3), ("b:latest".to_owned(), 3)]
    );
    assert_eq!(listing.problems, Vec::<String>::new());
    // Power loss before the file is on disk.
    fs::write(image.root().parent().unwrap().join("image.json"), "").unwrap();
    let listing = world.images().list().unwrap();
    assert_eq!(
        (listing.images.len(), listing.problems.len()),
        (0, 2),
        "{listing:?}"
    );
    drop(image);
    let again = load_as(&world, &archive, "a");
    assert!(again.fresh, "what is damaged is loaded anew");
    assert_eq!(world.images().list().unwrap().images.len(), 2);
}

#[test]
fn drafts_are_swept_when_their_owner_is_gone_and_not_before() {
    let world = World::new();
    let images = world.images();
    let scratch = images.scratch().unwrap();
    fs::write(scratch.path().join("blob"), "x").unwrap();
    assert_eq!(
        (images.sweep(), world.in_store().len()),
        (vec![], 1),
        "its owner lives"
    );
    drop(scratch);
    assert_eq!((images.sweep(), world.in_store().len()), (vec![], 0));
    let scratch = images.scratch().unwrap();
    scratch.discard();
    assert_eq!(world.in_store().len(), 0);
}

#[test]
fn many_may_load_find_and_remove_at_the_same_time() {
    let world = World::new();
    let archives: Vec<_> = (0..3)
        .map(|number| Archive::new(&[Layer::new().file("a", &number.to_string())]))
        .collect();
    let paths: Vec<_> = archives
        .iter()
        .enumerate()
        .map(|(number, archive)| {
            let path = world.path(&format!("{number}.tar"));
            fs::write(&path, archive.oci()).unwrap();
            path
        })
        .collect();
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let world = &world;
            let paths = &paths;
            scope.spawn(move || {
                let images = world.images();
                for round in 0..10 {
                    let number = (worker + round) % 3;
                    let source = ImageSource::Path(paths[number].clone());
                    let name = named(&format!("x{number}"));
                    let loaded = images
                        .load(
                            source,
                            Some(name.clone()),
                            &ImageLimits::default(),
                            &mut |_| {},
                        )
                        .unwrap();
                    assert_eq!(tree_of(&loaded.image), [format!("a 444 {number}")]);
                    match images.remove(&name) {
                        Err(ImageError::InUse(_) | ImageError::NotFound { .. }) => {}
                        removed => panic!("it is held: {removed:?}"),
                    }
                    drop(loaded);
                    if let Some(found) = images.find(&name).unwrap() {
                        assert_eq!(tree_of(&found), [format!("a 444 {number}")]);
                    }
                    let _ = images.remove(&name);
                    assert_eq!(images.sweep(), Vec::<String>::new());
                }
            });
        }
    });
    let images = world.images();
    assert_eq!(images.sweep(), Vec::<String>::new());
    assert_eq!(world.in_store().len(), images.list().unwrap().images.len());
}

#[test]
fn a_name_that_is_not_there_offers_those_that_are_near() {
    let world = World::new();
    drop(load_as(&world, &Archive::new(&[Layer::new()]), "agent"));
    let missing = world.images().get(&named("agnet")).unwrap_err();
    assert_eq!(missing.hint(), "did you mean `agent:latest`?");
}

#[test]
fn a_store_of_somebody_elses_is_not_opened() {
    let world = World::new();
    drop(world.images());
    fs::set_permissions(world.path("images"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(ImageStore::open(world.path("images")).is_err());
    fs::set_permissions(world.path("images"), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(ImageStore::open(world.path("images")).is_ok());
}
