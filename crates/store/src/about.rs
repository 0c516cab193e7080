//! What is written beside the bytes of a version: a small JSON file.

use crate::names;
use spec::WorkspacePath;
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// A name has at most 4000 bytes; JSON makes at most six characters of one.
const LONGEST: u64 = 64 << 10;

#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct About {
    name: Name,
    pub(crate) size_bytes: u64,
    pub(crate) sha256: String,
    pub(crate) kept_at_ms: u64,
    pub(crate) run_id: Option<String>,
}

/// JSON knows only text, file names are bytes.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Bytes { percent_encoded: String },
}

/// What is known of the bytes themselves.
pub(crate) struct Content {
    pub(crate) size_bytes: u64,
    pub(crate) sha256: String,
}

impl About {
    pub(crate) fn new(
        name: &WorkspacePath,
        content: Content,
        kept_at_ms: u64,
        run_id: Option<String>,
    ) -> Self {
        let bytes = name.as_path().as_os_str().as_bytes();
        let name = match std::str::from_utf8(bytes) {
            Ok(text) => Name::Text(text.to_owned()),
            Err(_) => Name::Bytes { percent_encoded: names::percent_encoded(bytes) },
        };
        About { name, size_bytes: content.size_bytes, sha256: content.sha256, kept_at_ms, run_id }
    }

    /// The name it was kept under, unless the file says something that is no name.
    pub(crate) fn name(&self) -> Option<WorkspacePath> {
        let bytes = match &self.name {
            Name::Text(text) => text.clone().into_bytes(),
            Name::Bytes { percent_encoded } => names::percent_decoded(percent_encoded)?,
        };
        WorkspacePath::new(Path::new(OsStr::from_bytes(&bytes))).ok()
    }

    pub(crate) fn read(file: File) -> io::Result<About> {
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }

    pub(crate) fn write(&self, file: &File) -> io::Result<()> {
        serde_json::to_writer(file, self)?;
        file.sync_all()
    }
}
