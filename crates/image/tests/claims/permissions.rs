//! File permissions: those of the image's own user, for everybody alike.

use crate::common::{Archive, Layer, World, told, tree_of};
use image::ImageLimits;
use spec::User;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nagent:x:1234:500::/:/bin/sh\nboss:x:0:0::/:\n";
const GROUP: &str = "root:x:0:\nagents:x:500:\nextra:x:600:other,agent\nlast:x:700:\n";

/// Files of many owners; their modes under each user are the claim.
fn layers() -> Vec<Layer> {
    vec![
        Layer::new()
            .folder("etc/")
            .owned("etc/group", GROUP, 0o644, 0, 0)
            .owned("roots", "", 0o640, 0, 0)
            .owned("own", "", 0o600, 1234, 0)
            .owned("denied", "", 0o077, 1234, 500)
            .owned("primary", "", 0o750, 0, 500)
            .owned("extra", "", 0o060, 0, 600)
            .owned("zero", "", 0o070, 0, 0)
            .owned("thousand", "", 0o700, 1000, 1000)
            .owned_folder("shut/", 0o700, 0, 0),
        // The user table of the last layer counts.
        Layer::new().owned("etc/passwd", PASSWD, 0o644, 0, 0),
    ]
}

fn loaded_as(user: &str) -> Result<(Option<User>, Vec<String>), String> {
    let world = World::new();
    let archive = Archive::new(&layers()).with_user(user);
    let loaded = world
        .load_with(&archive, &ImageLimits::default())
        .map_err(|error| told(&error))?;
    let tree = tree_of(&loaded.image);
    let short = |line: &String| {
        line.split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let modes = tree
        .iter()
        .map(short)
        .filter(|line| !line.starts_with("etc"));
    Ok((loaded.image.user(), modes.collect()))
}

fn modes(all: [&str; 8]) -> Vec<String> {
    let names = [
        "denied", "extra", "own", "primary", "roots", "shut/", "thousand", "zero",
    ];
    names
        .iter()
        .zip(all)
        .map(|(name, mode)| format!("{name} {mode}"))
        .collect()
}

#[test]
fn a_file_gives_everybody_what_its_mode_gives_the_images_user() {
    let agent = User {
        uid: 1234,
        gid: 500,
    };
    let as_agent = modes(["0", "666", "666", "555", "0", "700", "0", "0"]);
    for user in ["agent", "1234"] {
        assert_eq!(
            loaded_as(user),
            Ok((Some(agent), as_agent.clone())),
            "{user}"
        );
    }
    // A named group replaces all others.
    let last = modes(["0", "0", "666", "0", "0", "700", "0", "0"]);
    assert_eq!(
        loaded_as("agent:last"),
        Ok((
            Some(User {
                uid: 1234,
                gid: 700
            }),
            last
        ))
    );
    let zero = modes(["0", "0", "666", "0", "444", "700", "0", "777"]);
    assert_eq!(
        loaded_as("agent:0"),
        Ok((Some(User { uid: 1234, gid: 0 }), zero))
    );
    // The group of an unknown number is 0.
    let stranger = modes(["777", "0", "0", "0", "444", "700", "0", "777"]);
    assert_eq!(
        loaded_as("4321"),
        Ok((Some(User { uid: 4321, gid: 0 }), stranger))
    );
}

#[test]
fn without_a_user_and_for_root_it_is_the_boxs_own() {
    let nobody = modes(["777", "0", "0", "0", "0", "700", "777", "0"]);
    for user in ["", "root", "0", "0:0", "root:agents", "boss"] {
        assert_eq!(loaded_as(user), Ok((None, nobody.clone())), "{user}");
    }
}

#[test]
fn a_file_that_its_owner_may_not_read_either_can_have_several_names() {
    // In a separate thread, because dropped capabilities cannot be regained: root would be allowed
    // all the same.
    let ordinary = std::thread::spawn(|| {
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        rustix::thread::set_capabilities(None, sets).unwrap();
        let layer = Layer::new()
            .owned("a", "secret", 0o600, 0, 0)
            .hard_link("b", "a");
        let loaded = World::new()
            .load(&[layer.owned("c", "", 0o644, 0, 0)])
            .map_err(|error| told(&error));
        loaded.map(|loaded| loaded.image.files())
    });
    assert_eq!(ordinary.join().unwrap(), Ok(2));
}

#[test]
fn a_user_that_is_not_there_is_told() {
    for (user, words) in [
        ("nobody-here", "/etc/passwd has no such user"),
        ("agent:nothing", "/etc/group has no such group"),
        ("4294967295", "reserved"),
        ("99999999999", "no such user"),
        ("\x1b[2J", "no such user"),
    ] {
        let told = loaded_as(user).unwrap_err();
        assert!(
            told.contains(words) && !told.contains(char::is_control),
            "{told:?}"
        );
    }
}

#[test]
fn a_table_is_found_as_a_program_in_the_image_would_find_it() {
    let world = World::new();
    std::fs::write(world.path("passwd"), "agent:x:1:1::/:\n").unwrap();
    let outside = world.path("passwd").display().to_string();
    // A link to a file of the host: the image has no such file.
    let layer = Layer::new().folder("etc/").symlink("etc/passwd", &outside);
    let archive = Archive::new(&[layer]).with_user("agent");
    assert!(world.load_with(&archive, &ImageLimits::default()).is_err());
    let layer = Layer::new()
        .symlink("etc", "/config")
        .file("config/passwd", PASSWD)
        .file("config/group", GROUP);
    let archive = Archive::new(&[layer]).with_user("agent");
    let loaded = world.load_with(&archive, &ImageLimits::default()).unwrap();
    assert_eq!(
        loaded.image.user(),
        Some(User {
            uid: 1234,
            gid: 500
        })
    );
}
