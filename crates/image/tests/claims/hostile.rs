//! Hostile layers: each is refused by name and leaves nothing in the store or outside; a valid twin
//! of it loads.

use crate::common::{Archive, Entry, Layer, World, told, tree_of};
use image::ImageLimits;
use std::fs;

/// Refuses `bad` with this message, and loads `good`.
fn refused_but_for(bad: &[Layer], words: &str, good: &[Layer]) {
    let world = World::new();
    fs::write(world.path("canary"), "alive").unwrap();
    let before = fs::read_dir(&world.folder).unwrap().count();
    let refused = world.refused(bad);
    assert!(refused.contains(words), "{refused}");
    assert!(!refused.contains(char::is_control), "{refused:?}");
    assert_eq!(
        world.in_store(),
        Vec::<String>::new(),
        "nothing stays of what was refused"
    );
    assert_eq!(fs::read_to_string(world.path("canary")).unwrap(), "alive");
    assert_eq!(
        fs::read_dir(&world.folder).unwrap().count(),
        before + 2,
        "an archive and the store, and no more"
    );
    world
        .load(good)
        .unwrap_or_else(|error| panic!("the twin loads: {}", told(&error)));
}

#[test]
fn a_name_cannot_lead_out() {
    for name in [
        "../canary",
        "a/../../canary",
        "a/..",
        "..",
        "./../canary",
        "/../canary",
    ] {
        refused_but_for(
            &[Layer::new().file(name, "x")],
            "`..`",
            &[Layer::new().file("a/b", "x")],
        );
    }
}

#[test]
fn an_absolute_name_begins_at_the_root_of_the_image() {
    let world = World::new();
    let outside = world.path("outside").display().to_string();
    let loaded = world
        .load(&[Layer::new()
            .file(&outside, "x")
            .symlink("/l", "/etc/passwd")])
        .unwrap();
    assert!(!world.path("outside").exists());
    let inside = loaded.image.root().join(outside.trim_start_matches('/'));
    assert_eq!(fs::read_to_string(inside).unwrap(), "x");
}

#[test]
fn a_file_through_a_link_stays_in_the_image() {
    let world = World::new();
    let outside = world.path("target");
    fs::create_dir(&outside).unwrap();
    let up = format!("{}{}", "../".repeat(15), outside.display());
    for (name, target) in [("abs", outside.display().to_string()), ("up", up)] {
        let layers = [
            Layer::new().symlink(name, &target),
            Layer::new().file(&format!("{name}/x"), "in"),
        ];
        let loaded = world.load(&layers).unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{name}");
        let inside = loaded
            .image
            .root()
            .join(outside.strip_prefix("/").unwrap())
            .join("x");
        assert_eq!(fs::read_to_string(inside).unwrap(), "in");
    }
}

#[test]
fn a_file_over_a_link_replaces_the_link_and_not_its_target() {
    let world = World::new();
    fs::write(world.path("canary"), "alive").unwrap();
    let target = world.path("canary").display().to_string();
    let loaded = world
        .load(&[Layer::new().symlink("l", &target).file("l", "new")])
        .unwrap();
    assert_eq!(tree_of(&loaded.image), ["l 444 new"]);
    assert_eq!(fs::read_to_string(world.path("canary")).unwrap(), "alive");
}

#[test]
fn whiteouts_do_not_reach_out() {
    let world = World::new();
    fs::create_dir(world.path("folder")).unwrap();
    fs::write(world.path("folder/canary"), "alive").unwrap();
    let folder = world.path("folder").display().to_string();
    let lower = Layer::new()
        .symlink("l", &folder)
        .folder("d/")
        .file("d/x", "");
    let upper = Layer::new()
        .file("l/.wh.canary", "")
        .file("l/.wh..wh..opq", "")
        .file("d/.wh.x", "")
        .file(".wh.l", "");
    let loaded = world.load(&[lower, upper]).unwrap();
    assert_eq!(tree_of(&loaded.image), ["d/ 755"]);
    assert_eq!(
        fs::read_to_string(world.path("folder/canary")).unwrap(),
        "alive"
    );
    for name in [".wh.", ".wh..", ".wh...", "a/.wh..."] {
        let good = [Layer::new().folder("a/"), Layer::new().file(".wh.a", "")];
        refused_but_for(
            &[Layer::new().folder("a/"), Layer::new().file(name, "")],
            "hides no name",
            &good,
        );
    }
    refused_but_for(
        &[Layer::new().file(".wh.a/b", "")],
        "the name of a whiteout",
        &[Layer::new().file("wh.a/b", "")],
    );
}

#[test]
fn hard_links_lead_to_files_of_the_image_only() {
    let good = [Layer::new().file("a", "x").hard_link("b", "a")];
    let world = World::new();
    fs::write(world.path("secret"), "secret").unwrap();
    let outside = world.path("secret").display().to_string();
    let link = Layer::new()
        .symlink("d", &world.folder.display().to_string())
        .hard_link("b", "d/secret");
    for (layer, words) in [
        (Layer::new().hard_link("b", &outside), "that is not there"),
        (Layer::new().hard_link("b", "nothing"), "leads to nothing"),
        (Layer::new().hard_link("b", "../../secret"), "`..`"),
        (Layer::new().hard_link("b", "/"), "leads to the root"),
        (Layer::new().folder("d/").hard_link("b", "d"), "no file"),
        (link, "that is not there"),
    ] {
        refused_but_for(&[layer], words, &good);
    }
}

#[test]
fn the_root_stays_a_folder() {
    for layer in [
        Layer::new().symlink("./", "/etc"),
        Layer::new().file(".", ""),
        Layer::new().special("/", b'3'),
    ] {
        refused_but_for(
            &[layer],
            "replaces the root",
            &[Layer::new().owned_folder("./", 0o700, 0, 0)],
        );
    }
}

#[test]
fn names_are_bounded_and_have_no_nul() {
    let named = |bytes: &[u8]| Layer::new().pax(&[("path", bytes)]).file("x", "");
    let fits = "a/".repeat(200) + &"f".repeat(255);
    let good = [named(fits.as_bytes())];
    refused_but_for(&[named(&[b'f'; 256])], "longer than 255", &good);
    refused_but_for(
        &[named("a/b".repeat(2000).as_bytes())],
        "longer than 4096",
        &good,
    );
    refused_but_for(
        &[named("a/".repeat(256).as_bytes())],
        "deeper than 255",
        &good,
    );
    refused_but_for(&[named(b"a\0b")], "NUL", &good);
    let link = |target: &[u8]| Layer::new().pax(&[("linkpath", target)]).symlink("l", "x");
    refused_but_for(&[link(b"a\0b")], "NUL", &[link(b"a")]);
    refused_but_for(&[link(&[b'x'; 5000])], "too long", &[link(&[b'x'; 4000])]);
    refused_but_for(
        &[Layer::new().symlink("l", "")],
        "empty",
        &[Layer::new().symlink("l", "x")],
    );
}

#[test]
fn links_in_circles_end() {
    let circle = Layer::new()
        .symlink("a", "b")
        .symlink("b", "a")
        .file("a/x", "");
    refused_but_for(
        &[circle],
        "too many symbolic links",
        &[Layer::new()
            .symlink("a", "b")
            .symlink("b", "c")
            .file("a/x", "")],
    );
    let through = Layer::new().file("f", "").file("f/x", "");
    refused_but_for(
        &[through],
        "no folder",
        &[Layer::new().folder("f/").file("f/x", "")],
    );
}

#[test]
fn a_tree_cannot_grow_deeper_by_links_than_by_names() {
    // Each link adds two hundred folders.
    let step = "d/".repeat(200);
    let mut layer = Layer::new();
    for number in 0..3 {
        let from = format!("l{number}");
        let to = format!("l{}", number + 1);
        let name = if number == 0 {
            step.clone()
        } else {
            format!("{from}/{step}")
        };
        layer = layer
            .pax(&[("path", format!("{name}x").as_bytes())])
            .file("x", "");
        let target = if number == 0 {
            step.clone()
        } else {
            format!("{from}/{step}")
        };
        layer = layer
            .pax(&[("linkpath", target.as_bytes())])
            .symlink(&to, "x");
    }
    let good = Layer::new()
        .pax(&[("path", format!("{step}x").as_bytes())])
        .file("x", "");
    refused_but_for(&[layer], "deeper than 255", &[good]);
}

fn load_with(layers: &[Layer], limits: &ImageLimits) -> Result<(), String> {
    let world = World::new();
    let loaded = world
        .load_with(&Archive::new(layers), limits)
        .map(drop)
        .map_err(|error| told(&error));
    if loaded.is_err() {
        assert_eq!(world.in_store(), Vec::<String>::new());
    }
    loaded
}

#[test]
fn each_bound_is_named_when_it_is_hit_and_what_just_fits_loads() {
    let limits = ImageLimits {
        unpacked_bytes: 1 << 20,
        file_bytes: 1 << 16,
        entries: 20,
        layers: 3,
    };
    let many = |count: usize| {
        (0..count).fold(Layer::new(), |layer, number| {
            layer.file(&number.to_string(), "")
        })
    };
    // One name with 19 folders.
    let deep = |name: &str| Layer::new().file(&format!("{}{name}", "d/".repeat(19)), "");
    let large = |size: usize| Layer::new().file("large", &"x".repeat(size));
    let wide = |count| {
        (0..count).fold(Layer::new(), |layer, number| {
            layer.file(&format!("{number}"), &"x".repeat(1 << 16))
        })
    };
    let hole = |size| super::layers::gnu_sparse(b"hole", size, &[], b"");
    for (bad, words, good) in [
        (
            vec![many(21)],
            "the image has more than 20 entries",
            vec![many(20)],
        ),
        (
            vec![many(11), many(10)],
            "the image has more than 20 entries",
            vec![many(10), many(10)],
        ),
        (
            vec![deep("e/f")],
            "the image has more than 20 entries",
            vec![deep("f")],
        ),
        (
            vec![large((1 << 16) + 1)],
            "a file in it has more than 64K",
            vec![large(1 << 16)],
        ),
        (
            vec![wide(8), wide(9)],
            "has more than 1M",
            vec![wide(8), wide(7)],
        ),
        (
            vec![hole((1 << 16) + 1)],
            "a file in it has more than 64K",
            vec![hole(1 << 16)],
        ),
        (
            vec![many(1); 4],
            "the image has more than 3 layers",
            vec![many(1); 3],
        ),
    ] {
        let refused = load_with(&bad, &limits).unwrap_err();
        assert!(refused.contains(words), "{refused}");
        load_with(&good, &limits).unwrap();
    }
}

#[test]
fn a_bomb_ends_at_the_bound_in_little_time_and_memory() {
    let limits = ImageLimits {
        unpacked_bytes: 8 << 20,
        ..ImageLimits::default()
    };
    let gzip = |bytes: &[u8]| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, bytes).unwrap();
        gzip.finish().unwrap()
    };
    // A gigabyte of zeros, a mebibyte at a time: in one file, and after the end of the archive.
    let zeros = gzip(&[0; 1 << 20]).repeat(1024);
    let compressed = |start: &[u8]| [gzip(start), zeros.clone()].concat();
    let file = Layer::new()
        .entry(&Entry {
            name: b"bomb",
            size: 1 << 30,
            ..Entry::default()
        })
        .0;
    for (bytes, words) in [
        (compressed(&file), "8M"),
        (compressed(&Layer::new().bytes()), "8M"),
    ] {
        let world = World::new();
        let mut archive = Archive::new(&[Layer::new()]);
        archive.layers = vec![bytes];
        let refused = told(&world.load_with(&archive, &limits).unwrap_err());
        assert!(refused.contains(words), "{refused}");
        assert_eq!(world.in_store(), Vec::<String>::new());
    }
    // Five mebibytes after the end of each: one layer fits, two do not.
    let small = || Layer([Layer::new().bytes(), vec![0; 5 << 20]].concat());
    load_with(&[small()], &limits).unwrap();
    let refused = load_with(&[small(), small()], &limits).unwrap_err();
    assert!(
        refused.contains("the image, decompressed, has more than 8M"),
        "{refused}"
    );
    let holes = super::layers::gnu_sparse(b"hole", 1 << 34, &[], b"");
    let refused = load_with(&[holes], &ImageLimits::default()).unwrap_err();
    assert!(
        refused.contains("a file in it has more than 8G"),
        "{refused}"
    );
}

#[test]
fn holes_that_contradict_themselves_are_refused() {
    let sparse = |pieces: &[(u64, u64)], stored: &[u8]| {
        super::layers::gnu_sparse(b"s", 1000, pieces, stored)
    };
    let good = [sparse(&[(0, 2), (500, 2)], b"abcd")];
    for bad in [
        sparse(&[(500, 2), (0, 2)], b"abcd"),
        sparse(&[(0, 2), (1, 2)], b"abcd"),
        sparse(&[(999, 2)], b"ab"),
        sparse(&[(0, 2)], b"abcd"),
        sparse(&[(0, 4), (500, 4)], b"abcd"),
    ] {
        refused_but_for(&[bad], "holes of a file are malformed", &good);
    }
}

#[test]
fn what_is_no_tar_is_refused() {
    let good = [Layer::new().file("a", "x")];
    let cut = |layer: Layer, by: usize| Layer(layer.0[..layer.0.len() - by].to_vec());
    let mut spoilt = Layer::new().file("a", "x");
    spoilt.0[0] = b'b';
    refused_but_for(&[spoilt], "checksum", &good);
    // Two zero blocks end an archive, so the header here describes a file that is not there.
    let short = Layer::new().entry(&Entry {
        name: b"a",
        size: 5000,
        ..Entry::default()
    });
    refused_but_for(&[short], "middle of an entry", &good);
    refused_but_for(
        &[cut(Layer::new().file("a", "x").file("b", ""), 100)],
        "middle of an entry",
        &good,
    );
    refused_but_for(
        &[Layer::new().special("a", b'Z')],
        "unknown type `Z`",
        &good,
    );
    let huge = Layer::new().entry(&Entry {
        name: b"p",
        flag: b'x',
        size: 2 << 20,
        ..Entry::default()
    });
    refused_but_for(&[huge], "longer than 1 MiB", &good);
    refused_but_for(
        &[Layer::new()
            .entry(&Entry {
                flag: b'x',
                size: 3,
                ..Entry::default()
            })
            .contents(b"9 a")],
        "pax",
        &good,
    );
}

#[test]
fn words_of_a_layer_do_not_steer_a_terminal() {
    let world = World::new();
    let refused = world.refused(&[Layer::new().file("../\x1b[2J\n", "")]);
    assert!(
        refused.contains("u{1b}[2J") && !refused.contains(char::is_control),
        "{refused:?}"
    );
}

#[test]
fn many_files_and_deep_folders_load_and_go() {
    let world = World::new();
    let mut layer = Layer::new();
    for number in 0..20_000 {
        layer = layer.file(&format!("d{}/{number}", number % 50), "");
    }
    let deep = "d/".repeat(250);
    layer = layer
        .pax(&[("path", format!("{deep}x").as_bytes())])
        .file("x", "");
    let loaded = world.load(&[layer]).unwrap();
    assert_eq!(loaded.image.files(), 20_001);
    drop(loaded);
    world.images().remove(&"test".parse().unwrap()).unwrap();
    assert_eq!(world.in_store(), Vec::<String>::new());
}
