//! What the store does with honest images: load, find, list, remove, and what stays after a crash.

use crate::common::{self, Archive, Layer, World, tree_of};
use image::Limits;

#[test]
fn what_is_loaded_is_found_by_its_name_and_its_digests_and_by_no_other() {
    let world = World::new();
    let archive = Archive::new(&[Layer::new().folder("etc/").file("etc/motd", "hello")]);
    let loaded = world.load_with(&archive, &Limits::default()).unwrap();
    assert!(loaded.fresh);
    assert_eq!(tree_of(&loaded.image), ["etc/ 755", "etc/motd 444 hello"]);
    let images = world.images();
    let found = |name: &str| images.find(&name.parse().unwrap()).unwrap();
    let (id, manifest) = (common::digest(&archive.configuration()), common::digest(&archive.manifest()));
    for name in
        ["test", "test:latest", "docker.io/library/test", &format!("test@{id}"), &format!("test@{manifest}")]
    {
        let stored = found(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!((stored.id().as_str(), stored.digest().as_str()), (id.as_str(), manifest.as_str()));
        assert_eq!((stored.size_bytes(), stored.files(), stored.user()), (5, 1, None));
        assert_eq!(stored.names(), ["test".parse().unwrap()]);
        assert_eq!(stored.root(), loaded.image.root());
    }
    let other = format!("test@sha256:{}", "0".repeat(64));
    for name in ["test:1", "other", &other, &format!("other@{id}")] {
        assert!(found(name).is_none(), "{name}");
    }
}
