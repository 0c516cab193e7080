//! The metadata file beside the bytes of a version, in JSON.

use super::version::{self, ArtifactVersion, Lineage, NewArtifact, StoredArtifact};
use crate::name_encoding;
use spec::{Timestamp, WorkspacePath};
use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt, path::Path};

/// A name has at most 4000 bytes, each of at most six characters in JSON; a command has less than
/// 64 KiB.
pub(crate) const MAX_BYTES: u64 = 512 << 10;

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Metadata {
    name: EncodedName,
    pub(crate) size_bytes: u64,
    pub(crate) sha256: String,
    kept_at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(flatten)]
    lineage: Lineage,
    /// Name of the object with the bytes, in a bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<String>,
}

/// File names are bytes, JSON strings are text.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum EncodedName {
    Text(String),
    Bytes { percent_encoded: String },
}

/// Size and digest of the bytes.
#[derive(Clone, Debug)]
pub(crate) struct ContentDigest {
    pub(crate) size_bytes: u64,
    pub(crate) sha256: String,
}

impl Metadata {
    pub(crate) fn new(new: &NewArtifact, content: ContentDigest, now: Timestamp) -> Self {
        let bytes = version::name_bytes(&new.name);
        let name = match std::str::from_utf8(bytes) {
            Ok(text) => EncodedName::Text(text.to_owned()),
            Err(_) => EncodedName::Bytes {
                percent_encoded: name_encoding::percent_encoded(bytes),
            },
        };
        Metadata {
            name,
            size_bytes: content.size_bytes,
            sha256: content.sha256,
            kept_at_ms: now.0,
            content_type: new.content_type.clone(),
            lineage: new.lineage.clone().bounded(),
            bytes: None,
        }
    }

    pub(crate) fn read(text: &[u8]) -> io::Result<Metadata> {
        Ok(serde_json::from_slice(text)?)
    }

    pub(crate) fn await_pending_write(&self) -> io::Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }

    /// The stored artifact at this version's path, unless the metadata was written for another
    /// name.
    pub(crate) fn into_stored(self, location: &ArtifactVersion) -> io::Result<StoredArtifact> {
        let name = self
            .name()
            .ok_or_else(|| io::Error::other("its metadata has no valid name"))?;
        if name_encoding::folder_name(version::name_bytes(&name)) != location.entry {
            return Err(io::Error::other("it was stored under another name"));
        }
        let guess_content_type = || version::guess_content_type(name.as_path()).to_owned();
        let content_type = self
            .content_type
            .filter(|text| version::is_content_type(text))
            .unwrap_or_else(guess_content_type);
        Ok(StoredArtifact {
            owner: location.owner.clone(),
            version: location.version,
            size_bytes: self.size_bytes,
            sha256: self.sha256,
            content_type,
            kept_at: Timestamp(self.kept_at_ms),
            lineage: self.lineage,
            name,
        })
    }

    /// The stored name, if it is valid.
    fn name(&self) -> Option<WorkspacePath> {
        let bytes = match &self.name {
            EncodedName::Text(text) => text.clone().into_bytes(),
            EncodedName::Bytes { percent_encoded } => {
                name_encoding::percent_decoded(percent_encoded)?
            }
        };
        WorkspacePath::new(Path::new(OsStr::from_bytes(&bytes))).ok()
    }
}
