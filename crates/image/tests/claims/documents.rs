//! Archives and layouts as tools write them, and invalid ones.

use crate::common::{
    Archive, HERE, Layer, OCI_INDEX, OCI_MANIFEST, World, blob_name, descriptor, digest, tar_of,
    told, tree_of,
};
use image::{ImageError, ImageLimits, ImageSource, LoadOutcome};
use serde_json::json;
use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

fn small() -> Archive {
    Archive::new(&[Layer::new().file("a", "1"), Layer::new().file("b", "2")])
}

fn load(world: &World, source: ImageSource, name: Option<&str>) -> Result<LoadOutcome, ImageError> {
    let name = name.map(|name| name.parse().unwrap());
    world
        .images()
        .load(source, name, &ImageLimits::default(), &mut |_| {})
}

fn load_bytes(world: &World, bytes: &[u8], name: Option<&str>) -> Result<LoadOutcome, ImageError> {
    fs::write(world.path("archive"), bytes).unwrap();
    load(world, ImageSource::Path(world.path("archive")), name)
}

fn refused(bytes: &[u8]) -> String {
    let world = World::new();
    let told = told(&load_bytes(&world, bytes, Some("test")).unwrap_err());
    assert_eq!(world.in_store(), Vec::<String>::new());
    told
}

/// The same image in all layouts is one tree.
#[test]
fn an_image_is_the_same_however_it_is_packed() {
    let world = World::new();
    let archive = small();
    let folder = world.path("layout");
    for (name, bytes) in archive.blobs() {
        fs::create_dir_all(folder.join(&name).parent().unwrap()).unwrap();
        fs::write(folder.join(name), bytes).unwrap();
    }
    let index =
        json!({ "schemaVersion": 2, "manifests": [descriptor(OCI_MANIFEST, &archive.manifest())] });
    fs::write(folder.join("index.json"), index.to_string()).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&archive.oci()).unwrap();
    let zstd = zstd::encode_all(&archive.saved(&[])[..], 3).unwrap();
    let first = load_bytes(&world, &archive.oci(), Some("oci")).unwrap();
    assert!(first.fresh);
    let others = [
        load(&world, ImageSource::Path(folder), Some("folder")).unwrap(),
        load_bytes(&world, &archive.saved(&["saved:1", "saved:2"]), None).unwrap(),
        load_bytes(&world, &gzip.finish().unwrap(), Some("gzip")).unwrap(),
        load_bytes(&world, &zstd, Some("zstd")).unwrap(),
    ];
    for other in &others {
        assert_eq!(
            (other.fresh, other.image.root()),
            (false, first.image.root())
        );
        assert_eq!(tree_of(&other.image), ["a 444 1", "b 444 2"]);
    }
    let names: Vec<_> = first
        .image
        .names()
        .iter()
        .map(spec::ImageRef::familiar)
        .collect();
    let expected = [
        "folder:latest",
        "gzip:latest",
        "oci:latest",
        "saved:1",
        "saved:2",
        "zstd:latest",
    ];
    assert_eq!(names, expected);
    assert_eq!(world.in_store().len(), 1);
}

#[test]
fn an_archive_may_come_through_a_pipe() {
    let world = World::new();
    fs::write(world.path("archive"), small().oci()).unwrap();
    let mut cat = Command::new("cat")
        .arg(world.path("archive"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pipe: std::os::fd::OwnedFd = cat.stdout.take().unwrap().into();
    let loaded = load(&world, ImageSource::File(File::from(pipe)), Some("piped")).unwrap();
    assert!(cat.wait().unwrap().success());
    assert_eq!(tree_of(&loaded.image), ["a 444 1", "b 444 2"]);
    assert_eq!(
        world.in_store().len(),
        1,
        "what was kept on the way is gone"
    );
}

#[test]
fn layers_that_docker_saved_as_links_are_followed_within_the_archive() {
    let archive = Archive::new(&[Layer::new().file("a", "1"), Layer::new().file("a", "1")]);
    let saved = |target: &str| {
        let config = archive.configuration();
        let name = format!("{}.json", &digest(&config)[7..]);
        let manifest = json!([{ "Config": name, "RepoTags": ["x:1"], "Layers": ["one/layer.tar", "two/layer.tar"] }]);
        let files = [
            ("one/layer.tar".to_owned(), archive.layers[0].clone()),
            (name, config),
            (
                "manifest.json".to_owned(),
                manifest.to_string().into_bytes(),
            ),
        ];
        let mut all = tar_of(&files);
        all.truncate(all.len() - 1024);
        Layer(all).symlink("two/layer.tar", target).bytes()
    };
    let world = World::new();
    assert!(load_bytes(&world, &saved("../one/layer.tar"), None).is_ok());
    for target in [
        "../../../../etc/passwd",
        "/etc/passwd",
        "../two/layer.tar",
        "nothing",
    ] {
        assert!(refused(&saved(target)).contains("is missing"), "{target}");
    }
}

#[test]
fn a_folder_is_read_through_no_link() {
    let world = World::new();
    let archive = small();
    fs::create_dir_all(world.path("layout/blobs")).unwrap();
    fs::create_dir(world.path("elsewhere")).unwrap();
    for (name, bytes) in archive.blobs() {
        fs::write(
            world
                .path("elsewhere")
                .join(PathBuf::from(name).file_name().unwrap()),
            bytes,
        )
        .unwrap();
    }
    let index =
        json!({ "schemaVersion": 2, "manifests": [descriptor(OCI_MANIFEST, &archive.manifest())] });
    fs::write(world.path("layout/index.json"), index.to_string()).unwrap();
    std::os::unix::fs::symlink(world.path("elsewhere"), world.path("layout/blobs/sha256")).unwrap();
    let refused =
        told(&load(&world, ImageSource::Path(world.path("layout")), Some("x")).unwrap_err());
    assert!(refused.contains("cannot read"), "{refused}");
    fs::remove_file(world.path("layout/blobs/sha256")).unwrap();
    fs::rename(world.path("elsewhere"), world.path("layout/blobs/sha256")).unwrap();
    assert!(load(&world, ImageSource::Path(world.path("layout")), Some("x")).is_ok());
}

/// An archive of these blobs with this list on top.
fn with_index(blobs: &[Vec<u8>], manifests: serde_json::Value) -> Vec<u8> {
    let mut files: Vec<_> = blobs
        .iter()
        .map(|bytes| (blob_name(bytes), bytes.clone()))
        .collect();
    let index = json!({ "schemaVersion": 2, "manifests": manifests });
    files.push(("index.json".to_owned(), index.to_string().into_bytes()));
    tar_of(&files)
}

fn for_platform(bytes: &[u8], os: &str, architecture: &str) -> serde_json::Value {
    let mut described = descriptor(OCI_MANIFEST, bytes);
    described["platform"] = json!({ "os": os, "architecture": architecture });
    described
}

#[test]
fn of_several_platforms_this_machines_is_taken_and_its_absence_is_told() {
    let here = small();
    let blobs: Vec<_> = here.blobs().into_iter().map(|(_, bytes)| bytes).collect();
    let other = for_platform(b"not in the archive", "linux", "s390x");
    let note = for_platform(b"about it", "unknown", "unknown");
    let all = json!([other, note, for_platform(&here.manifest(), "linux", HERE)]);
    let world = World::new();
    assert!(load_bytes(&world, &with_index(&blobs, all.clone()), Some("flat")).is_ok());
    // The same image behind another index, whose digest becomes a name, too.
    let inner = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": all })
        .to_string()
        .into_bytes();
    let top = json!([descriptor(OCI_INDEX, &inner)]);
    let nested = load_bytes(
        &world,
        &with_index(&[blobs, vec![inner.clone()]].concat(), top),
        Some("deep"),
    )
    .unwrap();
    assert_eq!(nested.image.digest().as_str(), digest(&here.manifest()));
    let by_index = format!("deep@{}", digest(&inner));
    assert!(
        world
            .images()
            .find(&by_index.parse().unwrap())
            .unwrap()
            .is_some()
    );
    // An image for this platform may be missing below an index, if another one is there.
    let twice = json!([
        for_platform(b"not here", "linux", HERE),
        for_platform(&here.manifest(), "linux", HERE)
    ]);
    let inner = json!({ "schemaVersion": 2, "manifests": twice })
        .to_string()
        .into_bytes();
    let top = json!([descriptor(OCI_INDEX, &inner)]);
    let blobs: Vec<_> = here
        .blobs()
        .into_iter()
        .map(|(_, bytes)| bytes)
        .chain([inner.clone()])
        .collect();
    assert!(load_bytes(&world, &with_index(&blobs, top.clone()), Some("one-of-two")).is_ok());
    assert!(refused(&with_index(&[inner], top)).ends_with("is missing"));
    let many: Vec<_> = (0..50)
        .map(|number| for_platform(b"", "linux", &format!("a{}", number % 40)))
        .collect();
    let elsewhere = refused(&with_index(&[], json!(many)));
    assert_eq!(
        elsewhere.matches("linux/a").count() - elsewhere.matches("linux/amd64").count(),
        16,
        "{elsewhere}"
    );
    let elsewhere = refused(&with_index(&[], json!([other, note])));
    assert!(
        elsewhere.contains("but for linux/s390x") && elsewhere.contains(HERE),
        "{elsewhere}"
    );
    let mut foreign = small();
    foreign.architecture = "s390x".to_owned();
    assert!(refused(&foreign.oci()).contains("but for linux/s390x"));
    assert!(refused(&foreign.saved(&[])).contains("but for linux/s390x"));
}

#[test]
fn long_lists_are_refused_before_they_are_kept() {
    let archive = small();
    let names = |count| {
        (0..count)
            .map(|number| format!("x:{number}"))
            .collect::<Vec<_>>()
    };
    let saved =
        |names: &[String]| archive.saved(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let told = told(&load_bytes(&World::new(), &saved(&names(129)), None).unwrap_err());
    assert_eq!(told, "the image has more than 128 names");
    assert_eq!(
        load_bytes(&World::new(), &saved(&names(128)), None)
            .unwrap()
            .image
            .names()
            .len(),
        128
    );
    let layers = vec![descriptor("application/vnd.oci.image.layer.v1.tar", b""); 129];
    let mut manifest: serde_json::Value = serde_json::from_slice(&archive.manifest()).unwrap();
    manifest["layers"] = json!(layers);
    let long = manifest.to_string().into_bytes();
    // Named twice, so that neither is selected.
    let index = with_index(
        std::slice::from_ref(&long),
        json!([
            descriptor(OCI_MANIFEST, &long),
            descriptor(OCI_MANIFEST, &long)
        ]),
    );
    assert!(refused(&index).contains("more than 128 layers"));
}

#[test]
fn of_several_images_one_has_to_be_named() {
    let one = small();
    let two = Archive::new(&[Layer::new().file("c", "3")]);
    let named = |archive: &Archive, name: &str| {
        let mut described = descriptor(OCI_MANIFEST, &archive.manifest());
        described["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        described
    };
    let blobs: Vec<_> = one
        .blobs()
        .into_iter()
        .chain(two.blobs())
        .map(|(_, bytes)| bytes)
        .collect();
    let both = with_index(&blobs, json!([named(&one, "one:1"), named(&two, "two:1")]));
    let world = World::new();
    let told = load_bytes(&world, &both, None).unwrap_err().to_string();
    assert_eq!(told, "there are 2 images in it: one:1, two:1");
    assert_eq!(
        tree_of(&load_bytes(&world, &both, Some("two:1")).unwrap().image),
        ["c 444 3"]
    );
    let bare = with_index(&blobs, json!([named(&one, "latest")]));
    assert!(
        matches!(load_bytes(&world, &bare, None), Err(ImageError::Unnamed)),
        "a bare tag is no name"
    );
    assert!(load_bytes(&world, &bare, Some("mine")).is_ok());
}

#[test]
fn a_blob_that_is_not_what_was_promised_is_refused() {
    let archive = small();
    let spoilt = |name: String, change: &dyn Fn(&mut Vec<u8>)| {
        let mut blobs = archive.blobs();
        let (_, bytes) = blobs.iter_mut().find(|(other, _)| *other == name).unwrap();
        change(bytes);
        let index = json!({ "schemaVersion": 2, "manifests": [descriptor(OCI_MANIFEST, &archive.manifest())] });
        blobs.push(("index.json".to_owned(), index.to_string().into_bytes()));
        refused(&tar_of(&blobs))
    };
    let flip = |bytes: &mut Vec<u8>| {
        // In a layer, the contents of its file.
        let at = 512.min(bytes.len() - 1);
        bytes[at] ^= 1;
    };
    for bytes in [
        archive.layers[1].clone(),
        archive.configuration(),
        archive.manifest(),
    ] {
        assert!(spoilt(blob_name(&bytes), &flip).contains("does not match its digest"));
        assert!(spoilt(blob_name(&bytes), &|bytes| bytes.push(b' ')).contains("should have"));
    }
    let mut blobs = archive.blobs();
    blobs.retain(|(name, _)| *name != blob_name(&archive.layers[0]));
    let index =
        json!({ "schemaVersion": 2, "manifests": [descriptor(OCI_MANIFEST, &archive.manifest())] });
    blobs.push(("index.json".to_owned(), index.to_string().into_bytes()));
    assert!(refused(&tar_of(&blobs)).contains("is missing"));
}

#[test]
fn a_saved_configuration_has_the_digest_that_is_its_name() {
    let archive = small();
    let good = archive.saved(&["x:1"]);
    let text = String::from_utf8_lossy(&archive.configuration()).into_owned();
    let at = good
        .windows(text.len())
        .position(|window| window == text.as_bytes())
        .unwrap();
    let mut bad = good.clone();
    bad[at + text.len() - 1] = b' ';
    bad[at + text.len() - 2] = b'}';
    assert!(load_bytes(&World::new(), &good, None).is_ok());
    let told = refused(&bad);
    assert!(
        told.contains("does not match its digest") || told.contains("EOF"),
        "{told}"
    );
}

#[test]
fn kinds_that_are_not_unpacked_are_named() {
    let mut archive = small();
    let mut told = |media_type: &str| {
        archive.media_type = media_type.to_owned();
        refused(&archive.oci())
    };
    assert!(
        told("application/vnd.oci.image.layer.v1.tar+gzip+encrypted")
            .contains("an encrypted layer is not supported")
    );
    assert!(told("application/vnd.oci.image.layer.v1.tar+br").contains("a layer is not supported"));
    assert!(told("text/plain").contains("a layer is not supported: `text/plain`"));
    let first = json!({ "schemaVersion": 1, "name": "x", "fsLayers": [] })
        .to_string()
        .into_bytes();
    let described = json!([descriptor(OCI_MANIFEST, &first)]);
    assert!(refused(&with_index(&[first], described)).contains("schema 1"));
    let chart = json!({ "schemaVersion": 2, "layers": [],
        "config": descriptor("application/vnd.cncf.helm.config.v1+json", b"{}") });
    let chart = chart.to_string().into_bytes();
    let described = json!([for_platform(&chart, "linux", HERE)]);
    assert!(refused(&with_index(&[chart], described)).contains("no image"));
}

#[test]
fn what_is_no_image_is_refused() {
    for (bytes, words) in [
        (b"".to_vec(), "neither `index.json` nor `manifest.json`"),
        (
            Layer::new().file("x", "").bytes(),
            "neither `index.json` nor `manifest.json`",
        ),
        (b"hello".to_vec(), "middle of an entry"),
        (b"\x1f\x8bhello".to_vec(), "cannot read the archive"),
        (
            Layer::new().file("index.json", "{}").bytes(),
            "neither an index nor a manifest",
        ),
        (Layer::new().file("index.json", "[").bytes(), "index.json"),
        (
            Layer::new().file("manifest.json", "[]").bytes(),
            "it lists none",
        ),
        (
            Layer::new()
                .file("index.json", &format!("{{\"x\":{}", "[".repeat(100_000)))
                .bytes(),
            "EOF while parsing",
        ),
        (
            Layer::new()
                .file("index.json", &" ".repeat(5 << 20))
                .bytes(),
            "more than 4M",
        ),
    ] {
        let told = refused(&bytes);
        assert!(told.contains(words), "{words}: {told}");
    }
    let mut fewer = small();
    fewer.diff_ids.pop();
    assert!(refused(&fewer.oci()).contains("it has 2 layers, its configuration 1"));
    assert!(refused(&fewer.saved(&[])).contains("2 layers are listed, and configured 1"));
}

#[test]
fn a_pinned_name_takes_only_what_it_pins() {
    let world = World::new();
    let archive = small();
    let pin = |digest: &str| format!("x:1@{digest}");
    let told = load_bytes(&world, &archive.oci(), Some(&pin(&digest(b"other"))))
        .unwrap_err()
        .to_string();
    assert!(told.contains("does not match its digest"), "{told}");
    assert!(
        world
            .images()
            .find(&"x:1".parse().unwrap())
            .unwrap()
            .is_none()
    );
    load_bytes(
        &world,
        &archive.oci(),
        Some(&pin(&digest(&archive.manifest()))),
    )
    .unwrap();
    assert!(
        world
            .images()
            .find(&"x:1".parse().unwrap())
            .unwrap()
            .is_some()
    );
}
