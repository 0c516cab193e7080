//! The identity of a file. A user who can write a folder on the way can make a path lead elsewhere;
//! device and inode show whether the path still leads to the file that was checked.

use std::{collections::BTreeMap, path::PathBuf};

/// The identity of a file or folder on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// The device of its file system.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
}

/// Host paths with the identity that each must have when it is opened.
pub type PinnedPaths = BTreeMap<PathBuf, FileId>;
