//! Limits of an image's size. Each is far above real images and far below what harms a machine.

use spec::Size;

use crate::error::ImageError;

/// The limits of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Bytes of all files on disk, holes included; and of all layers as tar.
    pub unpacked_bytes: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Entries of all layers, including folders created only because a path leads through them.
    pub entries: u64,
    /// Number of layers.
    pub layers: usize,
}

/// Bytes of a path from the image's root, as in the kernel.
pub(crate) const MAX_PATH_BYTES: usize = 4096;
/// Bytes of one path component.
pub(crate) const MAX_COMPONENT_BYTES: usize = 255;
/// Depth of folders, also after symbolic links are followed.
pub(crate) const MAX_DEPTH: usize = 255;
/// Bytes of an index, a manifest or a configuration.
pub(crate) const MAX_DOCUMENT_BYTES: u64 = 4 << 20;

impl Default for ImageLimits {
    fn default() -> Self {
        ImageLimits {
            unpacked_bytes: 16 << 30,
            file_bytes: 8 << 30,
            entries: 1_000_000,
            layers: 128,
        }
    }
}

/// Counts what layers unpack against the limits.
#[derive(Debug)]
pub(crate) struct LimitCounter<'a> {
    limits: &'a ImageLimits,
    bytes: u64,
    entries: u64,
}

impl<'a> LimitCounter<'a> {
    pub(crate) fn new(limits: &'a ImageLimits) -> Self {
        LimitCounter {
            limits,
            bytes: 0,
            entries: 0,
        }
    }

    /// Counts one entry with a file of this size.
    pub(crate) fn entry(&mut self, size: u64) -> Result<(), ImageError> {
        self.count(1)?;
        self.bytes = self.bytes.saturating_add(size);
        if size > self.limits.file_bytes {
            return limit("a file in it", Size(self.limits.file_bytes).to_string());
        }
        if self.bytes > self.limits.unpacked_bytes {
            return limit(
                "the image, unpacked,",
                Size(self.limits.unpacked_bytes).to_string(),
            );
        }
        Ok(())
    }

    /// Counts further entries: a short path can create hundreds of folders.
    pub(crate) fn count(&mut self, entries: u64) -> Result<(), ImageError> {
        self.entries += entries;
        if self.entries > self.limits.entries {
            limit("the image", format!("{} entries", self.limits.entries))
        } else {
            Ok(())
        }
    }
}

fn limit(what: &str, limit: String) -> Result<(), ImageError> {
    Err(ImageError::Limit {
        what: what.to_owned(),
        limit,
    })
}
