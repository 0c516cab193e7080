//! How much an image may be. Each bound is far above honest images and far below what hurts a machine.

use spec::Size;

use crate::error::ImageError;

/// The bounds of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// All files together as they are on disk, holes included; and all layers together as tar.
    pub unpacked_bytes: u64,
    /// One file.
    pub file_bytes: u64,
    /// Entries of all layers together, with the folders that only a name leads through.
    pub entries: u64,
    /// Layers.
    pub layers: usize,
}

/// A path from the root of an image, in bytes, as the kernel has it.
pub(crate) const LONGEST_PATH: usize = 4096;
/// One name of a path.
pub(crate) const LONGEST_NAME: usize = 255;
/// Folders within folders; also after symbolic links are followed.
pub(crate) const DEEPEST: usize = 255;
/// An index, a manifest or a configuration.
pub(crate) const LONGEST_DOCUMENT: u64 = 4 << 20;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            unpacked_bytes: 16 << 30,
            file_bytes: 8 << 30,
            entries: 1_000_000,
            layers: 128,
        }
    }
}

/// Counts down while layers are unpacked.
#[derive(Debug)]
pub(crate) struct Meter<'a> {
    limits: &'a Limits,
    bytes: u64,
    entries: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(limits: &'a Limits) -> Self {
        Meter {
            limits,
            bytes: 0,
            entries: 0,
        }
    }

    /// One more entry, with a file of this size.
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

    /// So many more of what a layer makes: a name of a few bytes can lead through hundreds of new folders.
    pub(crate) fn count(&mut self, entries: u64) -> Result<(), ImageError> {
        self.entries += entries;
        match self.entries > self.limits.entries {
            true => limit("the image", format!("{} entries", self.limits.entries)),
            false => Ok(()),
        }
    }
}

fn limit(what: &str, limit: String) -> Result<(), ImageError> {
    Err(ImageError::Limit {
        what: what.to_owned(),
        limit,
    })
}
