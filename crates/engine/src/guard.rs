//! Keeps what Airlock itself lives by out of boxes: a folder that is shown to a program must not be the state folder, hold
//! it or lie in it, nor hold the operator's file or a file with a key. Only what the caller asked for is looked at: roots
//! of stored images and sockets of doors lie in the state folder, and are shown on purpose.

use spec::{ErrorCode, ErrorInfo, Root, SandboxSpec};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

/// Refuses a spec that would show the state folder, or one of `files`, to a program.
pub(crate) fn check(state: &Path, files: &[PathBuf], spec: &SandboxSpec) -> Result<(), ErrorInfo> {
    let mut shown = asked(spec).into_iter();
    shown.try_for_each(|(option, path)| {
        // Whoever mounts it says why it cannot be had.
        let Ok(real) = fs::canonicalize(path) else { return Ok(()) };
        let refused = |what: &str, guarded: &Path| Err(refusal(option, path, what, guarded));
        // An unpacked image is no secret, and read-only as a root: `image check` looks at it so.
        let images = fs::canonicalize(state.join("images"));
        let is_image = option == "--image" && images.is_ok_and(|images| real.starts_with(images));
        if lies_in(&real, state) && !is_image {
            return refused("lies in Airlock's state folder", state);
        }
        if shows(&real, state) {
            return refused("would show the program Airlock's state, with its secrets and records:", state);
        }
        match files.iter().find(|file| shows(&real, file)) {
            Some(file) => refused("would show the program what Airlock is configured by:", file),
            None => Ok(()),
        }
    })
}

/// What a caller wants to be seen inside, with the option that says so.
fn asked(spec: &SandboxSpec) -> Vec<(&'static str, &Path)> {
    let root = match &spec.root {
        Root::Folder(folder) => Some(("--image", folder.as_path())),
        Root::Host | Root::Image(_) => None,
    };
    let workspace = spec.workspace.as_deref().map(|folder| ("--workspace", folder));
    let mounts = spec.mounts.iter().map(|mount| ("--mount", mount.host.as_path()));
    root.into_iter().chain(workspace).chain(mounts).collect()
}

/// Whether a shown path is a guarded one, or on the way to it.
fn shows(shown: &Path, guarded: &Path) -> bool {
    let identity = identity(shown);
    ways(guarded).iter().flat_map(|way| way.ancestors()).any(|way| way == shown || is(way, identity))
}

/// Whether a shown path is below a guarded folder; the folder itself counts.
fn lies_in(shown: &Path, guarded: &Path) -> bool {
    let identity = identity(guarded);
    ways(guarded).iter().any(|way| shown.starts_with(way)) || shown.ancestors().any(|way| is(way, identity))
}

/// A path as it was given and as it really is, as far as it exists: a link on the way could be turned elsewhere by whoever
/// may write the folder it stands in.
fn ways(path: &Path) -> Vec<PathBuf> {
    let Ok(path) = std::path::absolute(path) else { return vec![path.to_owned()] };
    let really =
        |known: &Path| Some(fs::canonicalize(known).ok()?.join(path.strip_prefix(known).unwrap_or(known)));
    let mut ways: Vec<_> = path.ancestors().find_map(really).into_iter().collect();
    // With `..` in it, what it goes through is not what it lies in.
    if !path.components().any(|part| part == Component::ParentDir) {
        ways.push(path);
    }
    ways
}

/// By identity, too: a bind mount of the host's may give the same folder another path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn is(path: &Path, wanted: Option<(u64, u64)>) -> bool {
    wanted.is_some() && identity(path) == wanted
}

fn refusal(option: &str, path: &Path, what: &str, guarded: &Path) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::PolicyDenied,
        message: format!("{option} `{}` {what} `{}`", path.display(), guarded.display()),
        hint: Some(format!("give {option} another folder, or keep Airlock's own apart (--state, --config)")),
    }
}
