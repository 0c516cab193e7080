//! Files that are put into the workspace before a run, and those that are stored after it.

use super::{RunRequest, SpecError, error::shown, invalid};
use crate::WorkspacePath;
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Paths of the workspace that one request may name as artifacts.
pub const MAX_ARTIFACT_PATHS: usize = 1000;

/// The source of an input file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// A file on the host.
    File(PathBuf),
    /// A stored artifact.
    Artifact {
        /// Its name.
        name: WorkspacePath,
        /// Its version; the newest without one.
        version: Option<u64>,
    },
    /// Bytes that came with the request.
    Given(Arc<[u8]>),
}

pub(super) fn inputs(request: &RunRequest) -> Result<Vec<(WorkspacePath, InputSource)>, SpecError> {
    let path = |name: &Path| {
        WorkspacePath::new(name).map_err(|why| invalid(why, "give the input another name"))
    };
    let given = request.inline_inputs.iter();
    let given = given.map(|(name, bytes)| Ok((path(name)?, InputSource::Given(bytes.clone()))));
    let kept = request
        .artifact_inputs
        .iter()
        .map(|(name, artifact, version)| {
            Ok((
                path(name)?,
                InputSource::Artifact {
                    name: path(artifact)?,
                    version: *version,
                },
            ))
        });
    request
        .inputs
        .iter()
        .map(|text| input(text))
        .chain(given)
        .chain(kept)
        .collect()
}

/// `NAME=FILE` or `NAME=artifact:NAME[@VERSION]`.
pub(super) fn input(text: &OsStr) -> Result<(WorkspacePath, InputSource), SpecError> {
    let hint = "write --input NAME=FILE, or NAME=artifact:NAME[@VERSION] for a kept artifact";
    let bytes = text.as_bytes();
    let bad = || invalid(format!("`{}` is not an input", shown(text)), hint);
    let equals = bytes
        .iter()
        .position(|byte| *byte == b'=')
        .ok_or_else(bad)?;
    let (name, source) = (
        OsStr::from_bytes(&bytes[..equals]),
        OsStr::from_bytes(&bytes[equals + 1..]),
    );
    let name = WorkspacePath::new(Path::new(name)).map_err(|why| invalid(why, hint))?;
    let source = match source.as_bytes().strip_prefix(b"artifact:") {
        Some(kept) => artifact(kept).ok_or_else(bad)?,
        None if source.is_empty() => return Err(bad()),
        None => InputSource::File(PathBuf::from(source)),
    };
    Ok((name, source))
}

/// `NAME[@VERSION]`. An `@` without a number behind it belongs to the name.
fn artifact(text: &[u8]) -> Option<InputSource> {
    let versioned = text.iter().rposition(|byte| *byte == b'@').and_then(|at| {
        let version = std::str::from_utf8(&text[at + 1..]).ok()?.parse().ok()?;
        Some((&text[..at], Some(version)))
    });
    let (name, version) = versioned.unwrap_or((text, None));
    let name = WorkspacePath::new(Path::new(OsStr::from_bytes(name))).ok()?;
    Some(InputSource::Artifact { name, version })
}

/// Inputs that must be removed from the workspace's folder again. A fresh workspace is removed as a
/// whole, and inputs in a layer that is kept are among its changes.
pub(super) fn transient_inputs(
    request: &RunRequest,
    inputs: &[(WorkspacePath, InputSource)],
) -> Vec<WorkspacePath> {
    let reaches_folder = request.workspace.is_some() && !request.copy_on_write;
    let names = inputs
        .iter()
        .filter(|_| reaches_folder)
        .map(|(name, _)| name);
    names.cloned().collect()
}

pub(super) fn artifacts(paths: &[PathBuf]) -> Result<Vec<WorkspacePath>, SpecError> {
    if paths.len() > MAX_ARTIFACT_PATHS {
        return Err(invalid(
            format!("more than {MAX_ARTIFACT_PATHS} artifacts"),
            "name the folder that holds them instead",
        ));
    }
    workspace_paths(paths, "--artifact")
}

pub(super) fn workspace_paths(
    paths: &[PathBuf],
    option: &str,
) -> Result<Vec<WorkspacePath>, SpecError> {
    let hint = format!("give {option} a path relative to /workspace");
    paths
        .iter()
        .map(|path| WorkspacePath::new(path).map_err(|bad| invalid(bad, &hint)))
        .collect()
}
