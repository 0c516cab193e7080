//! Folders that are nobody's project: a home, the system. As a workspace they are shown whole and writable, with keys and
//! start-up files, so that one has to be confirmed.

use super::super::message::Failure;
use crate::config::Surroundings;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const SYSTEM: [&str; 4] = ["/etc", "/root", "/usr", "/var"];

/// Refuses a home, the root, a folder of the system, or one that holds any of those.
pub(in crate::cli) fn refuse_broad_workspace(
    workspace: Option<&Path>,
    surroundings: &Surroundings,
) -> Result<(), Failure> {
    let Some(workspace) = workspace else {
        return Ok(());
    };
    // By identity: a bind mount or a link may give the same folder another path.
    let identity = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let Some(wanted) = identity(workspace) else {
        return Ok(());
    };
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let home = surroundings.home().map(|home| ("your home", real(home)));
    let system = SYSTEM.map(|path| ("a folder of the system", PathBuf::from(path)));
    for (what, path) in home.into_iter().chain(system) {
        let mut ways = path.ancestors();
        if let Some(way) = ways.find(|way| identity(way) == Some(wanted)) {
            let is = if way == path { "is" } else { "holds" };
            return Err(Failure::invalid(
                format!("--workspace `{}` {is} {what}", workspace.display()),
                "give --workspace the folder of one project, or --confirm-workspace to show all of it to the program",
            ));
        }
    }
    Ok(())
}
