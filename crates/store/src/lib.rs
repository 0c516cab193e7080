//! What must last: artifacts in a folder.

use std::path::PathBuf;

/// Artifacts in a folder.
#[derive(Clone, Debug)]
pub struct Artifacts {
    #[allow(dead_code)]
    folder: PathBuf,
}
