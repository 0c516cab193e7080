//! Two images from nothing: busybox, two users and airlock-init; the second with bash.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) const BASE: &str = "localhost/airlock-entry:base";
pub(crate) const WITH_BASH: &str = "localhost/airlock-entry:bash";

const APPLETS: &str = "awk cat chmod cp cut date dd echo env false find grep head id ip kill ls mkdir mkfifo mv nc \
    printf ps pwd readlink rm sed seq setsid sh sleep sort stat tail test touch tr true uniq usleep wc wget which xargs";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:Agent:/home/agent:/bin/sh\n\
    other:x:1001:1001::/home/other:/bin/sh\ntoor:x:0:0::/root:/bin/sh\n";
const GROUP: &str = "root:x:0:\nagent:x:1000:\nother:x:1001:\ntools:x:2000:agent\naudio:x:29:other,agent\nvideo:x:44:\n";

/// Makes both below a folder: their names and archives.
pub(crate) fn make(folder: &Path) -> Vec<(&'static str, PathBuf)> {
    let root = folder.join("root");
    base(&root);
    let base = archive(folder, &root, "base.tar");
    add_bash(&root);
    let with_bash = archive(folder, &root, "bash.tar");
    fs::remove_dir_all(&root).expect("it can be removed");
    vec![(BASE, base), (WITH_BASH, with_bash)]
}

fn base(root: &Path) {
    for name in [
        "bin",
        "etc",
        "proc",
        "sys",
        "dev",
        "tmp",
        "root",
        "workspace",
        "elsewhere",
        "locked",
        "home/agent",
    ] {
        fs::create_dir_all(root.join(name)).expect("a folder can be made");
    }
    let write = |name: &str, content: &[u8], mode: u32| {
        fs::write(root.join(name), content).expect("a file can be written");
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode))
            .expect("its mode can be set");
    };
    write(
        "bin/busybox",
        &fs::read("/usr/bin/busybox").expect("busybox can be read"),
        0o755,
    );
    write("airlock-init", init::LAUNCHER, 0o755);
    write("etc/passwd", PASSWD.as_bytes(), 0o644);
    write("etc/group", GROUP.as_bytes(), 0o644);
    write("bin/not-executable", b"#!/bin/sh\n", 0o644);
    write("bin/no-interpreter", b"#!/bin/absent\n", 0o755);
    write(
        "workspace/only-here",
        b"#!/bin/sh\necho found only here\n",
        0o755,
    );
    for applet in APPLETS.split_whitespace() {
        symlink("busybox", root.join("bin").join(applet)).expect("a link can be made");
    }
    for (name, mode) in [("tmp", 0o1777), ("root", 0o700), ("locked", 0o700)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode))
            .expect("its mode can be set");
    }
    for name in ["workspace", "home/agent", "elsewhere"] {
        chown(root.join(name), Some(1000), Some(1000)).expect("its owner can be set");
    }
}

/// The host's bash, and the libraries that it names.
fn add_bash(root: &Path) {
    let told = Command::new("ldd")
        .arg("/bin/bash")
        .output()
        .expect("ldd starts")
        .stdout;
    let told = String::from_utf8_lossy(&told).into_owned();
    let libraries = told.split_whitespace().filter(|word| word.starts_with('/'));
    for file in ["/bin/bash"].into_iter().chain(libraries) {
        let place = root.join(file.trim_start_matches('/'));
        fs::create_dir_all(place.parent().expect("it lies in a folder"))
            .expect("a folder can be made");
        fs::copy(file, place).expect("a file can be copied");
    }
}

fn archive(folder: &Path, root: &Path, name: &str) -> PathBuf {
    let file = folder.join(name);
    let made = Command::new("tar")
        .arg("-C")
        .arg(root)
        .arg("-cf")
        .arg(&file)
        .arg(".")
        .status();
    assert!(made.expect("tar starts").success());
    file
}
