//! The image of the tests, from nothing but what this machine has: busybox under all of its names, the libraries of a
//! Rust program, the users of a box.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

const FOLDERS: [&str; 8] = [
    "dev",
    "etc",
    "proc",
    "run",
    "sys",
    "tmp",
    "usr/bin",
    "usr/share",
];
const LINKS: [(&str, &str); 4] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
];
/// As in a root of our own.
const PASSWD: &str = "agent:x:1000:1000::/workspace:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";
const GROUP: &str = "agent:x:1000:\nnogroup:x:65534:\n";

/// An archive of its root.
pub(crate) fn archive() -> Vec<u8> {
    let told = Command::new("mktemp")
        .arg("-d")
        .output()
        .expect("mktemp starts")
        .stdout;
    let root = PathBuf::from(String::from_utf8_lossy(&told).trim_end());
    furnish(&root);
    let packed = Command::new("tar")
        .args(["--owner=0", "--group=0", "-cC"])
        .arg(&root)
        .arg(".")
        .output();
    fs::remove_dir_all(&root).expect("it can be removed");
    let packed = packed.expect("tar starts");
    assert!(
        packed.status.success(),
        "{}",
        String::from_utf8_lossy(&packed.stderr)
    );
    packed.stdout
}

fn furnish(root: &Path) {
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).expect("a mode");
    FOLDERS
        .iter()
        .for_each(|name| fs::create_dir_all(root.join(name)).expect("a folder"));
    for (name, target) in LINKS {
        fs::create_dir_all(root.join(target)).expect("a folder");
        symlink(target, root.join(name)).expect("a link");
    }
    for (name, text) in [("etc/passwd", PASSWD), ("etc/group", GROUP)] {
        fs::write(root.join(name), text).expect("a file");
    }
    add_busybox(&root.join("usr/bin"));
    add_libraries(root);
}

fn add_busybox(folder: &Path) {
    let places = ["/bin/busybox", "/usr/bin/busybox"];
    let busybox = places
        .iter()
        .find(|path| Path::new(path).exists())
        .expect("prerequisite: busybox-static");
    fs::copy(busybox, folder.join("busybox")).expect("a copy");
    fs::set_permissions(folder.join("busybox"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let names = Command::new(busybox)
        .arg("--list")
        .output()
        .expect("busybox starts")
        .stdout;
    let names = String::from_utf8_lossy(&names).into_owned();
    names
        .lines()
        .filter(|name| *name != "busybox")
        .for_each(|name| symlink("busybox", folder.join(name)).expect("a link"));
}

/// Parts of the C library that a larger program may want, too.
const FURTHER: [&str; 4] = [
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
];

/// Those of this very program, and what lies beside them: every test, probe and command of ours has the same.
fn add_libraries(root: &Path) {
    let own = std::env::current_exe().expect("an own path");
    let told = Command::new("ldd")
        .arg(own)
        .output()
        .expect("ldd starts")
        .stdout;
    let told = String::from_utf8_lossy(&told).into_owned();
    let own: Vec<_> = told
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect();
    let beside = own
        .iter()
        .flat_map(|library| FURTHER.map(|name| library.with_file_name(name)));
    let all: BTreeSet<_> = own
        .iter()
        .cloned()
        .chain(beside)
        .filter(|path| path.exists())
        .collect();
    for library in all {
        let place = root.join(library.strip_prefix("/").expect("a path from the root"));
        fs::create_dir_all(place.parent().expect("it lies in a folder")).expect("a folder");
        fs::copy(library, place).expect("a copy");
    }
}
