//! Files that were removed from mounted workspaces at the end of runs, since host tools would obey
//! them. They are held in the state until the user decides.

use sandbox::native::protect::{self, HeldThing};
use spec::Id;
use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// A held file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldEntry {
    /// The run.
    pub run: String,
    /// The workspace folder.
    pub workspace: PathBuf,
    /// The path in the workspace.
    pub path: PathBuf,
    /// The reason.
    pub why: spec::HoldReason,
    /// The path of the held file, if it could be kept and was not put back.
    pub kept: Option<PathBuf>,
}

/// The held files of all runs, or of one.
pub fn list(state: &Path, run: Option<&Id>) -> io::Result<Vec<HeldEntry>> {
    let lists = protect::held_lists(state)?.into_iter();
    let wanted = lists.filter(|(name, _)| run.is_none_or(|run| run.as_str() == name));
    let held = wanted.flat_map(|(run, things)| {
        let things = things.into_iter().enumerate();
        things.map(move |(place, thing)| HeldEntry {
            kept: protect::held_path(state, &run, place),
            workspace: to_path(&thing.workspace),
            path: to_path(&thing.path),
            why: thing.why,
            run: run.clone(),
        })
    });
    Ok(held.collect())
}

/// Puts a held file back.
pub fn take(state: &Path, run: &Id, path: &Path) -> io::Result<()> {
    let mut lists = protect::held_lists(state)?.into_iter();
    let things = lists.find(|(name, _)| name == run.as_str());
    let things = things.map(|(_, things)| things).unwrap_or_default();
    let is_it = |thing: &HeldThing| to_path(&thing.path) == path;
    let place = things.iter().position(is_it);
    let place = place.ok_or_else(|| io::Error::other("nothing of that name is held"))?;
    protect::take_back(state, run.as_str(), place, &things[place])
}

/// Removes the held files of a run.
pub fn discard(state: &Path, run: &Id) -> io::Result<()> {
    protect::discard_held(state, run.as_str())
}

fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}
