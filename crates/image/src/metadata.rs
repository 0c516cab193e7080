//! The JSON files of the store: metadata of an image, and records of its names.

use crate::document::Platform;
use serde::{Deserialize, Serialize};
use spec::{Digest, ImageConfig};

/// `image.json`: the metadata of a stored image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageMetadata {
    pub(crate) id: String,
    pub(crate) platform: Platform,
    pub(crate) created: Option<String>,
    pub(crate) diff_ids: Vec<String>,
    pub(crate) config: ImageConfig,
    /// Numeric user, if the image names one that is not root.
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) size_bytes: u64,
    pub(crate) files: u64,
    /// Devices and pipes that were not unpacked.
    pub(crate) left_out: u64,
}

/// A file in `names/`: one name of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameRecord {
    /// The full name, with registry and tag.
    pub(crate) name: String,
    /// Image id: the digest of its configuration.
    pub(crate) image: String,
    /// Digests of the image at registries: of an index, then of a manifest.
    pub(crate) digests: Vec<String>,
}

impl NameRecord {
    /// The digest of the manifest; the image id if none is known.
    pub(crate) fn digest(&self) -> Option<Digest> {
        Digest::new(self.digests.last().unwrap_or(&self.image))
    }

    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.image == digest.as_str() || self.digests.iter().any(|one| one == digest.as_str())
    }
}
