//! What the store writes down: about an image, and about a name.

use crate::document::Platform;
use serde::{Deserialize, Serialize};
use spec::{Digest, ImageConfig};

/// `image.json`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) id: String,
    pub(crate) platform: Platform,
    pub(crate) created: Option<String>,
    pub(crate) diff_ids: Vec<String>,
    pub(crate) config: ImageConfig,
    /// Numeric, if the image names one that is not root.
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) size_bytes: u64,
    pub(crate) files: u64,
    /// Devices and pipes that were not unpacked.
    pub(crate) left_out: u64,
}

/// A file in `names/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    /// Complete.
    pub(crate) name: String,
    /// The image's id.
    pub(crate) image: String,
    /// Digests by which registries know it: of an index, then of a manifest.
    pub(crate) digests: Vec<String>,
}

impl Named {
    /// The last that led to it.
    pub(crate) fn digest(&self) -> Option<Digest> {
        Digest::new(self.digests.last().unwrap_or(&self.image))
    }

    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.image == digest.as_str() || self.digests.iter().any(|one| one == digest.as_str())
    }
}
