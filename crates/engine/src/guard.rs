//! Keeps what Airlock itself lives by out of boxes: a folder that is shown to a program must not be the state folder, hold
//! it or lie in it, nor hold the operator's file or a file with a key. Only what the caller asked for is looked at: roots
//! of stored images and sockets of doors lie in the state folder, and are shown on purpose.

use crate::unix_sockets;
use spec::{Access, ErrorCode, ErrorInfo, FileId, InputSource, Root, RunSpec, SandboxSpec};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

/// Refuses a spec that would show the state folder, or one of `files`, to a program.
pub(crate) fn check(state: &Path, files: &[PathBuf], spec: &SandboxSpec) -> Result<(), ErrorInfo> {
    let mut shown = asked(spec).into_iter();
    shown.try_for_each(|(option, path)| {
        // Whoever mounts it says why it cannot be had.
        let Ok(real) = fs::canonicalize(path) else {
            return Ok(());
        };
        let refused = |what: &str, guarded: &Path| Err(refusal(option, path, what, guarded));
        if !is_exact(spec, path, &real) {
            return Err(replaced(option, path));
        }
        // An unpacked image is no secret, and read-only as a root: `image check` looks at it so.
        let images = fs::canonicalize(state.join("images"));
        let is_image = option == "--image" && images.is_ok_and(|images| real.starts_with(images));
        if lies_in(&real, state) && !is_image && !is_packages(spec, state, option, path, &real) {
            return refused("lies in Airlock's state folder", state);
        }
        if shows(&real, state) {
            return refused(
                "would show the program Airlock's state, with its secrets and records:",
                state,
            );
        }
        match files.iter().find(|file| shows(&real, file)) {
            Some(file) => refused(
                "would show the program what Airlock is configured by:",
                file,
            ),
            None => Ok(()),
        }
    })
}

/// Whether it is a folder of packages that were installed for tools, and is only read: no secret either.
fn is_packages(spec: &SandboxSpec, state: &Path, option: &str, path: &Path, real: &Path) -> bool {
    let is_read = spec
        .mounts
        .iter()
        .all(|mount| mount.host != path || mount.access == Access::ReadOnly);
    let packages = fs::canonicalize(state.join("worker/packages"));
    option == "--mount"
        && is_read
        && packages.is_ok_and(|packages| real.parent() == Some(&packages))
}

/// Whether a path that was admitted for somebody else leads, through no link, to what it led to then.
fn is_exact(spec: &SandboxSpec, path: &Path, real: &Path) -> bool {
    let same = || {
        identity(real).is_some_and(|(device, inode)| spec.admits(path, FileId { device, inode }))
    };
    match spec.exact.is_some() {
        true => path == real && same(),
        false => same() || !spec.pinned.contains_key(path),
    }
}

fn replaced(option: &str, path: &Path) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::PolicyDenied,
        message: format!(
            "{option} `{}` is no longer what it was when it was admitted",
            path.display()
        ),
        hint: Some("ask again once nobody moves or replaces anything on the way to it".to_owned()),
    }
}

/// Where paths that were asked for lead, of those that go through a symbolic link.
pub(crate) fn link_notes(spec: &RunSpec) -> Vec<String> {
    let inputs = spec.inputs.iter().filter_map(|(_, source)| match source {
        InputSource::File(path) => Some(("--input", path.as_path())),
        InputSource::Given(_) | InputSource::Artifact { .. } => None,
    });
    let is_link = |way: &Path| fs::symlink_metadata(way).is_ok_and(|found| found.is_symlink());
    let leads_elsewhere = |path: &Path| path.ancestors().any(is_link);
    let asked = asked(&spec.sandbox).into_iter().chain(inputs);
    let linked = asked.filter(|(_, path)| leads_elsewhere(path));
    let note = |(option, path): (&str, &Path)| {
        let real = fs::canonicalize(path).ok()?;
        Some(format!(
            "{option} `{}` leads to `{}`",
            path.display(),
            real.display()
        ))
    };
    linked.filter_map(note).collect()
}

/// Sockets of the host that the asked-for folders show.
pub(crate) fn socket_notes(spec: &SandboxSpec) -> Vec<String> {
    let mut shown = asked(spec);
    shown.retain(|(option, _)| *option != "--image");
    unix_sockets::notes(&shown)
}

/// Lets a spec show what Airlock itself has put there.
pub(crate) fn add_own(spec: &mut SandboxSpec, path: &Path) -> io::Result<()> {
    if spec.exact.is_some() {
        let found = fs::metadata(path)?;
        spec.add_own(
            path,
            FileId {
                device: found.dev(),
                inode: found.ino(),
            },
        );
    }
    Ok(())
}

/// What a caller wants to be seen inside, with the option that says so.
fn asked(spec: &SandboxSpec) -> Vec<(&'static str, &Path)> {
    let root = match &spec.root {
        Root::Folder(folder) => Some(("--image", folder.as_path())),
        Root::Host | Root::Image(_) => None,
    };
    let workspace = spec
        .workspace
        .as_deref()
        .map(|folder| ("--workspace", folder));
    let mounts = spec
        .mounts
        .iter()
        .map(|mount| ("--mount", mount.host.as_path()));
    root.into_iter().chain(workspace).chain(mounts).collect()
}

/// Whether a shown path is a guarded one, or on the way to it.
fn shows(shown: &Path, guarded: &Path) -> bool {
    let identity = identity(shown);
    ways(guarded)
        .iter()
        .flat_map(|way| way.ancestors())
        .any(|way| way == shown || is(way, identity))
}

/// Whether a shown path is below a guarded folder; the folder itself counts.
fn lies_in(shown: &Path, guarded: &Path) -> bool {
    let identity = identity(guarded);
    ways(guarded).iter().any(|way| shown.starts_with(way))
        || shown.ancestors().any(|way| is(way, identity))
}

/// A path as it was given and as it really is, as far as it exists: a link on the way could be turned elsewhere by whoever
/// may write the folder it stands in.
fn ways(path: &Path) -> Vec<PathBuf> {
    let Ok(path) = std::path::absolute(path) else {
        return vec![path.to_owned()];
    };
    let really = |known: &Path| {
        Some(
            fs::canonicalize(known)
                .ok()?
                .join(path.strip_prefix(known).unwrap_or(known)),
        )
    };
    let mut ways: Vec<_> = path.ancestors().find_map(really).into_iter().collect();
    // With `..` in it, what it goes through is not what it lies in.
    if !path.components().any(|part| part == Component::ParentDir) {
        ways.push(path);
    }
    ways
}

/// By identity, too: a bind mount of the host's may give the same folder another path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path)
        .ok()
        .map(|found| (found.dev(), found.ino()))
}

fn is(path: &Path, wanted: Option<(u64, u64)>) -> bool {
    wanted.is_some() && identity(path) == wanted
}

fn refusal(option: &str, path: &Path, what: &str, guarded: &Path) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::PolicyDenied,
        message: format!(
            "{option} `{}` {what} `{}`",
            path.display(),
            guarded.display()
        ),
        hint: Some(format!(
            "give {option} another folder, or keep Airlock's own apart (--state, --config)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_no_longer_what_was_admitted_is_refused() {
        let top = std::env::temp_dir().join(format!("airlock-exact-{}", std::process::id()));
        let (folder, other) = (top.join("folder"), top.join("other"));
        [&folder, &other]
            .iter()
            .for_each(|path| fs::create_dir_all(path).unwrap());
        let found = fs::metadata(&folder).unwrap();
        let admitted = FileId {
            device: found.dev(),
            inode: found.ino(),
        };
        let look = |change: &dyn Fn(&mut spec::RunRequest)| {
            let exact = Some([(folder.clone(), admitted)].into());
            let mut request = spec::RunRequest {
                command: vec!["true".into()],
                exact,
                ..spec::RunRequest::default()
            };
            change(&mut request);
            check(
                &top.join("state"),
                &[],
                &spec::Policy::default().admit(request).unwrap().sandbox,
            )
        };
        let workspace = |request: &mut spec::RunRequest| request.workspace = Some(folder.clone());
        let mount = |request: &mut spec::RunRequest| {
            request.mounts = vec![format!("{}:/m", folder.display()).into()];
        };
        let image = |request: &mut spec::RunRequest| request.image = Some(folder.clone());
        let ways: [&dyn Fn(&mut spec::RunRequest); 3] = [&workspace, &mount, &image];
        ways.iter().for_each(|way| look(way).unwrap());
        let unknown = look(&|request| request.workspace = Some(other.clone()));
        assert_eq!(
            unknown.unwrap_err().code,
            ErrorCode::PolicyDenied,
            "nobody looked at it"
        );
        fs::rename(&folder, top.join("moved")).unwrap();
        symlink(&other, &folder).unwrap();
        ways.iter()
            .for_each(|way| assert_eq!(look(way).unwrap_err().code, ErrorCode::PolicyDenied));
        // The very same folder, but over a link.
        fs::remove_file(&folder).unwrap();
        symlink(top.join("moved"), &folder).unwrap();
        ways.iter()
            .for_each(|way| assert_eq!(look(way).unwrap_err().code, ErrorCode::PolicyDenied));
        fs::remove_dir_all(top).unwrap();
    }
}
