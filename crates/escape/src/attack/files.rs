//! Attacks on files and paths.

use super::{call, claim, hold, others, say, sys, tell};
use std::{
    ffi::CString,
    fs,
    io::Write,
    os::{
        fd::AsRawFd,
        unix::fs::{OpenOptionsExt, PermissionsExt, symlink},
        unix::{net::UnixListener, process::CommandExt},
    },
    path::Path,
};

pub(super) fn attack(name: &str, arguments: &[&str]) -> Option<()> {
    match (name, arguments) {
        ("magic-links", [path]) => magic_links(path),
        ("plant", names) => names.iter().for_each(|name| plant(Path::new(name))),
        _ => return None,
    }
    Some(())
}

fn c_path(path: &str) -> CString {
    CString::new(path).unwrap_or_default()
}

/// The host's path through every link of the kernel's that leads to a root or a folder.
fn magic_links(path: &str) {
    let folder = fs::File::open("/");
    let number = folder.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let up = "/..".repeat(12);
    let mut ways = vec![
        format!("/proc/self/root{path}"),
        format!("/proc/thread-self/root{path}"),
        format!("/proc/self/cwd{up}{path}"),
        format!("/proc/self/fd/{number}{up}{path}"),
        format!("/dev/fd/{number}{up}{path}"),
    ];
    ways.extend(
        others()
            .iter()
            .flat_map(|pid| [format!("/proc/{pid}/root{path}"), format!("/proc/{pid}/cwd{up}{path}")]),
    );
    ways.iter().for_each(|way| tell(way));
}

/// A file with that name, whatever it takes.
fn plant(path: &Path) {
    if let Some(parent) = path.parent() {
        _ = fs::create_dir_all(parent);
    }
    if fs::write(path, "of the program").is_err() {
        _ = fs::remove_dir_all(path);
        _ = fs::remove_file(path);
        let beside = path.with_extension("planted");
        _ = fs::write(&beside, "of the program");
        _ = fs::rename(beside, path);
    }
}
