//! Which file a path stood for when somebody decided on it. Whoever may write a folder on the way can turn the path
//! elsewhere; a file's identity stays.

use std::{collections::BTreeMap, path::PathBuf};

/// A file or folder of the host, whatever path leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// The file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// Host paths, and what they must turn out to be. A path that is not among them must not be shown at all.
pub type Exact = BTreeMap<PathBuf, FileId>;
