//! Refuses symbolic links below the current folder unless `--follow-links` is given. A program that
//! could write there in an earlier run may have planted one, and the same command line would then
//! mount or read its target. The lookup does not use `fs`, which stays beneath a folder: a caller
//! may name paths above it with `..`.

use super::super::message::Failure;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use spec::{FileId, InputSource, Root, RunSpec};
use std::path::{Path, PathBuf};

/// An identity that matches no file: a later lookup of that path is refused.
const NO_FILE: FileId = FileId {
    device: 0,
    inode: 0,
};

/// Refuses links, and records the identity of every other path for later lookups.
pub(in crate::cli) fn pin(spec: &mut RunSpec, current_folder: &Path) -> Result<(), Failure> {
    for (option, path) in named_paths(spec) {
        if let Some(found) = resolve(current_folder, option, &path)? {
            spec.sandbox.pinned.insert(path, found);
        }
    }
    Ok(())
}

/// Refuses an input file that is reached through a link.
pub(super) fn refuse_input(current_folder: &Path, path: &Path) -> Result<(), Failure> {
    resolve(current_folder, "--input", path).map(drop)
}

fn named_paths(spec: &RunSpec) -> Vec<(&'static str, PathBuf)> {
    let sandbox = &spec.sandbox;
    let workspace = sandbox.workspace.iter().map(|path| ("--workspace", path));
    let mounts = sandbox.mounts.iter().map(|mount| ("--mount", &mount.host));
    let image = match &sandbox.root {
        Root::Folder(folder) => Some(("--image", folder)),
        Root::Host | Root::Image(_) => None,
    };
    let inputs = spec.inputs.iter().filter_map(|(_, source)| match source {
        InputSource::File(path) => Some(("--input", path)),
        InputSource::Given(_) | InputSource::Artifact { .. } => None,
    });
    let all = workspace.chain(mounts).chain(image).chain(inputs);
    all.map(|(option, path)| (option, path.clone())).collect()
}

/// The identity of a path resolved without links; `None` outside the current folder.
fn resolve(current_folder: &Path, option: &str, path: &Path) -> Result<Option<FileId>, Failure> {
    // In `/`, links of the system are expected, and nobody works there.
    if current_folder.parent().is_none() {
        return Ok(None);
    }
    let below = match path.strip_prefix(current_folder) {
        Ok(below) => below,
        Err(_) if path.is_relative() => path,
        Err(_) => return Ok(None),
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    let from = rustix::fs::openat(CWD, current_folder, flags, Mode::empty());
    let dot = Path::new(".");
    let below = if below.as_os_str().is_empty() {
        dot
    } else {
        below
    };
    let found = from
        .and_then(|from| rustix::fs::openat2(from, below, flags, Mode::empty(), resolve))
        .and_then(rustix::fs::fstat);
    match found {
        Ok(found) => Ok(Some(FileId {
            device: found.st_dev,
            inode: found.st_ino,
        })),
        Err(rustix::io::Errno::LOOP) => Err(symlink_refusal(current_folder, option, below)),
        // The code that opens the path reports the error.
        Err(_) => Ok(Some(NO_FILE)),
    }
}

fn symlink_refusal(current_folder: &Path, option: &str, below: &Path) -> Failure {
    let mut way = PathBuf::new();
    let mut link = None;
    for part in below.components() {
        way.push(part);
        if let Ok(target) = std::fs::read_link(current_folder.join(&way)) {
            link = Some((way.clone(), target));
            break;
        }
    }
    let shown = |path: &Path| path.to_string_lossy().escape_debug().to_string();
    let through = match link {
        Some((link, target)) if link == below => {
            format!("is a symbolic link to `{}`", shown(&target))
        }
        Some((link, target)) => format!(
            "goes through the symbolic link `{}` to `{}`",
            shown(&link),
            shown(&target)
        ),
        None => "goes through a symbolic link".to_owned(),
    };
    Failure::invalid(
        format!("{option} `{}` {through}", shown(below)),
        "an earlier run may have created it: give the target's path, or --follow-links if you trust the link",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn only_links_below_the_current_folder_are_refused() {
        let top = std::env::temp_dir().join(format!("airlock-links-{}", std::process::id()));
        let here = top.join("here");
        fs::create_dir_all(here.join("real/deep")).unwrap();
        fs::create_dir_all(top.join("secret")).unwrap();
        symlink("../secret", here.join("planted")).unwrap();
        symlink("here", top.join("above")).unwrap();
        let said = |path: &str| resolve(&here, "--mount", Path::new(path)).map_err(|it| it.message);
        assert!(matches!(said("real/deep"), Ok(Some(found)) if found != NO_FILE));
        assert!(matches!(said("../secret"), Ok(Some(found)) if found != NO_FILE));
        assert_eq!(said("absent").unwrap(), Some(NO_FILE));
        let link = "--mount `planted` is a symbolic link to `../secret`";
        assert_eq!(said("planted").unwrap_err(), link);
        assert_eq!(
            said(&here.join("planted").to_string_lossy()).unwrap_err(),
            link
        );
        let through = "--mount `real/../planted/x` goes through the symbolic link `real/../planted` to `../secret`";
        assert_eq!(said("real/../planted/x").unwrap_err(), through);
        assert_eq!(said(&top.join("above").to_string_lossy()).unwrap(), None);
        fs::remove_dir_all(top).unwrap();
    }
}
