//! What valid layers contain, and how they change each other.

use crate::common::{Archive, Entry, Layer, World, tree_of};
use image::ImageLimits;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    time::{Duration, SystemTime},
};

fn lay(layers: &[Layer]) -> Vec<String> {
    let world = World::new();
    let loaded = world.load(layers).unwrap();
    tree_of(&loaded.image)
}

#[test]
fn an_upper_layer_replaces_adds_and_hides() {
    let lower = Layer::new()
        .folder("a/")
        .file("a/kept", "1")
        .file("a/hidden", "2")
        .file("a/replaced", "3")
        .folder("b/")
        .folder("b/c/")
        .file("b/c/deep", "4");
    let upper = Layer::new()
        .file("a/.wh.hidden", "")
        .file("a/replaced", "5")
        .file("a/new", "6")
        .file(".wh.b", "");
    assert_eq!(
        lay(&[lower, upper]),
        ["a/ 755", "a/kept 444 1", "a/new 444 6", "a/replaced 444 5"]
    );
}

#[test]
fn an_opaque_folder_hides_all_that_lies_below_it_and_nothing_of_its_own_layer() {
    let lower = Layer::new()
        .folder("a/")
        .file("a/old", "")
        .folder("a/both/")
        .file("a/both/old", "");
    // The marker may come before or after the layer's own entries.
    let first = Layer::new()
        .folder("a/")
        .file("a/.wh..wh..opq", "")
        .file("a/both/new", "x");
    let last = Layer::new()
        .folder("a/")
        .file("a/both/new", "x")
        .file("a/.wh..wh..opq", "");
    for upper in [first, last] {
        assert_eq!(
            lay(&[lower.clone(), upper]),
            ["a/ 755", "a/both/ 755", "a/both/new 444 x"]
        );
    }
}

#[test]
fn the_contents_of_a_file_are_never_headers_whatever_the_file_is_called() {
    let hidden = Layer::new().file("hidden", "x").0;
    let file = Entry {
        name: b"file/",
        size: hidden.len() as u64,
        ..Entry::default()
    };
    let of_old = Entry {
        name: b"folder/",
        flag: 0,
        ..Entry::default()
    };
    let laid = lay(&[Layer::new().entry(&file).contents(&hidden).entry(&of_old)]);
    let names: Vec<_> = laid
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(names, ["file", "folder/"]);
}

#[test]
fn a_whiteout_is_for_lower_layers_only() {
    let own = Layer::new()
        .file("a", "own")
        .symlink("l", "a")
        .folder("d/")
        .file("d/x", "own")
        .file(".wh.a", "")
        .file(".wh.l", "")
        .file(".wh.d", "");
    let lower = Layer::new()
        .file("a", "lower")
        .file("l", "lower")
        .folder("d/")
        .file("d/x", "lower")
        .file("d/y", "lower");
    assert_eq!(
        lay(&[lower, own.clone()]),
        ["a 444 own", "d/ 755", "d/x 444 own", "l -> a"]
    );
    assert_eq!(
        lay(&[own]),
        ["a 444 own", "d/ 755", "d/x 444 own", "l -> a"]
    );
}

#[test]
fn a_whiteout_of_nothing_does_nothing_and_old_bookkeeping_is_left_out() {
    let upper = Layer::new()
        .file(".wh.nothing", "")
        .file("no/such/.wh.folder", "")
        .folder(".wh..wh.plnk/")
        .file(".wh..wh.plnk/1.2", "x");
    assert_eq!(lay(&[Layer::new().file("a", ""), upper]), ["a 444 "]);
}

#[test]
fn whatever_a_name_was_before_the_last_entry_counts() {
    let kinds = |name: &str| {
        let file = Layer::new().file(name, "f");
        let folder = Layer::new()
            .folder(&format!("{name}/"))
            .file(&format!("{name}/in"), "i");
        let link = Layer::new().symlink(name, "elsewhere");
        [
            (file, vec!["x 444 f"]),
            (folder, vec!["x/ 755", "x/in 444 i"]),
            (link, vec!["x -> elsewhere"]),
        ]
    };
    for (first, _) in kinds("x") {
        for (second, expected) in kinds("x") {
            assert_eq!(
                lay(&[first.clone(), second.clone()]),
                expected,
                "in two layers"
            );
            let both = Layer([first.0.clone(), second.0].concat());
            assert_eq!(lay(&[both]), expected, "in one layer");
        }
    }
}

#[test]
fn a_folder_that_comes_again_keeps_what_is_in_it_and_takes_the_new_rights() {
    let lower = Layer::new().owned_folder("d/", 0o700, 0, 0).file("d/x", "");
    let upper = Layer::new().owned_folder("d/", 0o755, 0, 0);
    assert_eq!(lay(&[lower.clone(), upper]), ["d/ 755", "d/x 444 "]);
    assert_eq!(lay(&[lower]), ["d/ 700", "d/x 444 "]);
}

#[test]
fn files_may_come_through_links_to_folders_of_the_image() {
    let lower = Layer::new()
        .folder("usr/")
        .folder("usr/lib/")
        .symlink("lib", "usr/lib")
        .symlink("abs", "/usr/lib");
    let upper = Layer::new()
        .file("lib/one", "1")
        .file("abs/two", "2")
        .file("lib/new/three", "3");
    let expected = [
        "abs -> /usr/lib",
        "lib -> usr/lib",
        "usr/ 755",
        "usr/lib/ 755",
        "usr/lib/new/ 755",
        "usr/lib/new/three 444 3",
        "usr/lib/one 444 1",
        "usr/lib/two 444 2",
    ];
    assert_eq!(lay(&[lower, upper]), expected);
}

#[test]
fn a_link_to_a_folder_that_is_missing_leads_to_a_new_one() {
    let layer = Layer::new()
        .folder("var/")
        .symlink("var/run", "../run")
        .file("var/run/pid", "7");
    assert_eq!(
        lay(&[layer]),
        ["run/ 755", "run/pid 444 7", "var/ 755", "var/run -> ../run"]
    );
}

#[test]
fn a_folder_over_a_link_replaces_it_as_docker_does() {
    let lower = Layer::new()
        .folder("usr/")
        .file("usr/x", "")
        .symlink("lib", "usr");
    let upper = Layer::new().folder("lib/").file("lib/y", "");
    assert_eq!(
        lay(&[lower, upper]),
        ["lib/ 755", "lib/y 444 ", "usr/ 755", "usr/x 444 "]
    );
}

#[test]
fn hard_links_share_a_file_and_are_not_written_through() {
    let world = World::new();
    let lower = Layer::new()
        .file("a", "one")
        .hard_link("b", "a")
        .hard_link("c", "/a")
        .symlink("s", "a")
        .hard_link("t", "s");
    let upper = Layer::new().file("b", "two").hard_link("a", "a");
    let loaded = world.load(&[lower, upper]).unwrap();
    assert_eq!(
        tree_of(&loaded.image),
        ["a 444 one", "b 444 two", "c 444 one", "s -> a", "t -> a"]
    );
    let inode = |name: &str| {
        fs::symlink_metadata(loaded.image.root().join(name))
            .unwrap()
            .ino()
    };
    assert!(inode("a") == inode("c") && inode("a") != inode("b") && inode("s") == inode("t"));
    assert_eq!(
        (loaded.image.size_bytes(), loaded.image.files()),
        (6, 2),
        "each file is counted once"
    );
}

#[test]
fn devices_and_pipes_are_left_out_and_counted_and_hide_what_they_cover() {
    let world = World::new();
    let lower = Layer::new().file("d", "lower").file("kept", "");
    let upper = Layer::new()
        .special("d", b'3')
        .special("e", b'4')
        .special("p", b'6');
    let loaded = world.load(&[lower, upper]).unwrap();
    assert_eq!(tree_of(&loaded.image), ["kept 444 "]);
    assert_eq!(loaded.image.left_out(), 3);
}

#[test]
fn long_names_are_read_in_both_ways_of_writing_them() {
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    let gnu = Layer::new().long(b'L', long.as_bytes()).file("short", "g");
    let target = "t".repeat(300);
    let pax = Layer::new()
        .pax(&[("path", long.as_bytes())])
        .file("short", "p");
    let link = Layer::new()
        .long(b'K', target.as_bytes())
        .symlink("l", "short");
    let folder = format!("{}/ 755", "d".repeat(120));
    assert_eq!(lay(&[gnu]), [folder.clone(), format!("{long} 444 g")]);
    assert_eq!(lay(&[pax]), [folder, format!("{long} 444 p")]);
    assert_eq!(lay(&[link]), [format!("l -> {target}")]);
}

#[test]
fn times_are_kept_and_set_user_bits_are_not() {
    let world = World::new();
    let layer = Layer::new()
        .owned_folder("d/", 0o2755, 0, 0)
        .owned("d/su", "x", 0o4755, 0, 0)
        .owned_folder("tmp/", 0o1777, 0, 0);
    let loaded = world.load(&[layer]).unwrap();
    assert_eq!(
        tree_of(&loaded.image),
        ["d/ 755", "d/su 555 x", "tmp/ 1777"]
    );
    for name in ["d", "d/su"] {
        let time = fs::metadata(loaded.image.root().join(name))
            .unwrap()
            .modified()
            .unwrap();
        assert_eq!(
            time,
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            "{name}"
        );
    }
}

#[test]
fn a_file_with_holes_is_whole_in_each_way_of_writing_it() {
    let size = 3_000_000_u64;
    let expected = |name: &str, world: &World, layer: Layer| {
        let loaded = world.load(&[layer]).unwrap();
        let bytes = fs::read(loaded.image.root().join("sparse")).unwrap();
        assert_eq!(bytes.len() as u64, size, "{name}");
        assert_eq!(
            (
                &bytes[1_000_000..1_000_003],
                bytes.iter().filter(|byte| **byte != 0).count()
            ),
            (&b"abc"[..], 3)
        );
        let used = fs::metadata(loaded.image.root().join("sparse"))
            .unwrap()
            .blocks()
            * 512;
        assert!(used < 100_000, "{name}: {used}");
        world
            .images()
            .remove(&"test".parse().unwrap())
            .expect_err("it is held");
        drop(loaded);
        world.images().remove(&"test".parse().unwrap()).unwrap();
    };
    let world = World::new();
    let records: [(&str, &[u8]); 3] = [
        ("GNU.sparse.name", b"sparse"),
        ("GNU.sparse.size", b"3000000"),
        ("GNU.sparse.map", b"1000000,3,3000000,0"),
    ];
    expected("0.1", &world, Layer::new().pax(&records).file("x", "abc"));
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"sparse"),
        ("GNU.sparse.realsize", b"3000000"),
    ];
    let mut stored = b"1\n1000000\n3\n".to_vec();
    stored.resize(512, 0);
    stored.extend_from_slice(b"abc");
    expected(
        "1.0",
        &world,
        Layer::new()
            .pax(&records)
            .file("x", str::from_utf8(&stored).unwrap()),
    );
    expected(
        "gnu",
        &world,
        gnu_sparse(b"sparse", size, &[(1_000_000, 3)], b"abc"),
    );
}

/// A sparse file in GNU's old format.
pub(crate) fn gnu_sparse(name: &[u8], size: u64, pieces: &[(u64, u64)], stored: &[u8]) -> Layer {
    let entry = Entry {
        name,
        flag: b'S',
        size: stored.len() as u64,
        ..Entry::default()
    };
    let mut layer = Layer::new().entry(&entry);
    let mut block: [u8; 512] = layer.0[..512].try_into().unwrap();
    block[257..265].copy_from_slice(b"ustar  \0");
    for (number, (at, length)) in pieces.iter().enumerate() {
        let field = format!("{at:011o} {length:011o} ");
        block[386 + 24 * number..410 + 24 * number].copy_from_slice(field.as_bytes());
    }
    block[483..495].copy_from_slice(format!("{size:012o}").as_bytes());
    layer.0 = crate::common::summed(block).to_vec();
    layer.contents(stored)
}

#[test]
fn layers_may_be_compressed_and_are_checked_as_both() {
    let plain = Archive::new(&[Layer::new().file("a", "hello")]);
    let tar = plain.layers[0].clone();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &tar).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(&tar[..], 3).unwrap();
    for (end, bytes) in [("", tar.clone()), ("+gzip", gzip), ("+zstd", zstd)] {
        let world = World::new();
        let mut archive = plain.clone();
        archive.media_type += end;
        archive.layers = vec![bytes];
        let loaded = world.load_with(&archive, &ImageLimits::default()).unwrap();
        assert_eq!(tree_of(&loaded.image), ["a 444 hello"]);
        assert_eq!(
            loaded.image.id().as_str(),
            crate::common::digest(&plain.configuration()),
            "{end}"
        );
        drop(loaded);
        world.images().remove(&"test".parse().unwrap()).unwrap();
        archive.diff_ids = vec![crate::common::digest(b"other")];
        let refused = world
            .load_with(&archive, &ImageLimits::default())
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("decompressed, does not match its digest"),
            "{refused}"
        );
        assert_eq!(world.in_store(), Vec::<String>::new());
    }
}

#[test]
fn what_boxes_cover_by_their_own_is_kept_as_the_image_has_it() {
    let layer = Layer::new()
        .symlink("dev", "/etc")
        .file("proc", "file")
        .symlink("tmp", "var/tmp")
        .file("workspace", "")
        .symlink("sys", "nowhere");
    let upper = Layer::new().special("dev/null", b'3').file("tmp/x", "in");
    let expected = [
        "dev -> /etc",
        "etc/ 755",
        "proc 444 file",
        "sys -> nowhere",
        "tmp -> var/tmp",
        "var/ 755",
        "var/tmp/ 755",
        "var/tmp/x 444 in",
        "workspace 444 ",
    ];
    assert_eq!(lay(&[layer, upper]), expected);
}
