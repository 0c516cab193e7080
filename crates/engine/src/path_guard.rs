//! Guards Airlock's own files: a folder that is shown to a program must not be the state folder,
//! contain it or lie in it, nor contain the operator's configuration or a key file. Only the
//! caller's paths are checked: image roots and door sockets lie in the state folder and are mounted
//! on purpose.

use crate::unix_sockets;
use spec::{
    Access, Backend, ErrorCode, ErrorInfo, FileId, InputSource, Root, RunSpec, SandboxSpec,
};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};

/// Refuses a spec that would expose the state folder, or one of `files`, to a program.
pub(crate) fn check(state: &Path, files: &[PathBuf], spec: &SandboxSpec) -> Result<(), ErrorInfo> {
    let mut shown = requested_paths(spec).into_iter();
    shown.try_for_each(|(option, path)| {
        // The mount reports why the path cannot be used.
        let Ok(real) = fs::canonicalize(path) else {
            return Ok(());
        };
        let refused = |what: &str, guarded: &Path| Err(refusal(option, path, what, guarded));
        if !is_as_admitted(spec, path, &real) {
            return Err(replaced_error(option, path));
        }
        // An unpacked image is not secret, and it is read-only as a root: `image check` uses that.
        let images = fs::canonicalize(state.join("images"));
        let is_image = option == "--image" && images.is_ok_and(|images| real.starts_with(images));
        if is_within(&real, state) && !is_image && !is_packages(spec, state, option, path, &real) {
            return refused("lies in Airlock's state folder", state);
        }
        if exposes(&real, state) {
            return refused(
                "would show the program Airlock's state, with its secrets and records:",
                state,
            );
        }
        match files.iter().find(|file| exposes(&real, file)) {
            Some(file) => refused(
                "would show the program what Airlock is configured by:",
                file,
            ),
            None => Ok(()),
        }
    })
}

/// Whether the path is a folder of packages installed for tools that is mounted read-only: it is
/// not secret either.
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

/// Whether a path still leads, through no symbolic link, to the file that was admitted.
fn is_as_admitted(spec: &SandboxSpec, path: &Path, real: &Path) -> bool {
    let same = || {
        identity(real).is_some_and(|(device, inode)| spec.admits(path, FileId { device, inode }))
    };
    if spec.allowed_paths.is_some() {
        path == real && same()
    } else {
        same() || !spec.pinned.contains_key(path)
    }
}

fn replaced_error(option: &str, path: &Path) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::PolicyDenied,
        message: format!(
            "{option} `{}` is no longer what it was when it was admitted",
            path.display()
        ),
        hint: Some("ask again once nobody moves or replaces anything on the way to it".to_owned()),
    }
}

/// A note for each requested path that goes through a symbolic link, with its target.
pub(crate) fn link_notes(spec: &RunSpec) -> Vec<String> {
    let inputs = spec.inputs.iter().filter_map(|(_, source)| match source {
        InputSource::File(path) => Some(("--input", path.as_path())),
        InputSource::Given(_) | InputSource::Artifact { .. } => None,
    });
    let is_link = |form: &Path| fs::symlink_metadata(form).is_ok_and(|found| found.is_symlink());
    let leads_elsewhere = |path: &Path| path.ancestors().any(is_link);
    let requested = requested_paths(&spec.sandbox).into_iter().chain(inputs);
    let linked = requested.filter(|(_, path)| leads_elsewhere(path));
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

/// A note for each host socket that the requested folders expose. In a workspace, sockets that may
/// not be reached are covered, and a copy of one has none.
pub(crate) fn socket_notes(spec: &SandboxSpec) -> Vec<String> {
    let mut shown = requested_paths(spec);
    shown.retain(|(option, _)| *option != "--image");
    let is_copy = spec.copy_on_write || spec.overlay.is_some();
    let is_covered = spec.backend == Backend::Native;
    let workspace = spec.workspace.iter().filter(|_| !is_copy && is_covered);
    let allowed = workspace.flat_map(|workspace| {
        let allowed = spec.protected.allowed.iter();
        allowed.map(|path| workspace.join(path.as_path()))
    });
    let allowed: Vec<_> = allowed.collect();
    if is_copy || is_covered {
        shown.retain(|(option, _)| *option != "--workspace");
    }
    shown.extend(allowed.iter().map(|path| ("--workspace", path.as_path())));
    unix_sockets::notes(&shown)
}

/// Admits a path that Airlock itself has put there.
pub(crate) fn allow_own_path(spec: &mut SandboxSpec, path: &Path) -> io::Result<()> {
    if spec.allowed_paths.is_some() {
        let found = fs::metadata(path)?;
        spec.allow_own_path(
            path,
            FileId {
                device: found.dev(),
                inode: found.ino(),
            },
        );
    }
    Ok(())
}

/// The host paths that the caller requested, each with its option.
fn requested_paths(spec: &SandboxSpec) -> Vec<(&'static str, &Path)> {
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

/// Whether a path is the guarded path or one of its ancestors.
fn exposes(shown: &Path, guarded: &Path) -> bool {
    let identity = identity(shown);
    path_forms(guarded)
        .iter()
        .flat_map(|form| form.ancestors())
        .any(|form| form == shown || has_identity(form, identity))
}

/// Whether a path is the guarded folder or lies below it.
fn is_within(shown: &Path, guarded: &Path) -> bool {
    let identity = identity(guarded);
    path_forms(guarded)
        .iter()
        .any(|form| shown.starts_with(form))
        || shown.ancestors().any(|form| has_identity(form, identity))
}

/// The absolute path and the canonical path, as far as it exists: a symbolic link on the way could
/// be redirected by whoever may write its folder.
fn path_forms(path: &Path) -> Vec<PathBuf> {
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
    let mut path_forms: Vec<_> = path.ancestors().find_map(really).into_iter().collect();
    // With `..` in it, the folders that it passes are not its ancestors.
    if !path.components().any(|part| part == Component::ParentDir) {
        path_forms.push(path);
    }
    path_forms
}

/// Compares inodes too: a bind mount may give the same folder another path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path)
        .ok()
        .map(|found| (found.dev(), found.ino()))
}

fn has_identity(path: &Path, wanted: Option<(u64, u64)>) -> bool {
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
            let allowed_paths = Some([(folder.clone(), admitted)].into());
            let mut request = spec::RunRequest {
                command: vec!["true".into()],
                allowed_paths,
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
        let path_forms: [&dyn Fn(&mut spec::RunRequest); 3] = [&workspace, &mount, &image];
        path_forms.iter().for_each(|form| look(form).unwrap());
        let unknown = look(&|request| request.workspace = Some(other.clone()));
        assert_eq!(
            unknown.unwrap_err().code,
            ErrorCode::PolicyDenied,
            "nobody looked at it"
        );
        fs::rename(&folder, top.join("moved")).unwrap();
        symlink(&other, &folder).unwrap();
        path_forms
            .iter()
            .for_each(|form| assert_eq!(look(form).unwrap_err().code, ErrorCode::PolicyDenied));
        // The very same folder, but over a link.
        fs::remove_file(&folder).unwrap();
        symlink(top.join("moved"), &folder).unwrap();
        path_forms
            .iter()
            .for_each(|form| assert_eq!(look(form).unwrap_err().code, ErrorCode::PolicyDenied));
        fs::remove_dir_all(top).unwrap();
    }
}
