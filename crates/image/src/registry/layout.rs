//! The OCI layout into which an image is pulled, in a private folder.
//!
//! ```text
//! FOLDER/oci-layout  index.json  blobs/sha256/HEX      (HEX.part until its digest was checked)
//! ```
//! `index.json` is written last: without it no tool accepts the folder as an image.

use ::fs::Dir;
use rustix::fs::Mode;
use spec::Digest;
use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// An OCI layout being written.
#[derive(Debug)]
pub(super) struct Layout {
    folder: Dir,
    blobs: Dir,
}

impl Layout {
    /// Starts a layout in an empty folder.
    pub(super) fn new(path: &Path) -> io::Result<Layout> {
        let folder = Dir::open_no_follow(path)?;
        folder.create_dir("blobs", Mode::RWXU)?;
        folder.create_dir("blobs/sha256", Mode::RWXU)?;
        let blobs = folder.open_dir("blobs/sha256")?;
        Ok(Layout { folder, blobs })
    }

    /// Creates a file for unverified bytes.
    pub(super) fn create_partial(&self, digest: &Digest) -> io::Result<File> {
        self.blobs.create_file(partial_name(digest), OWNER_ONLY)
    }

    /// Gives verified bytes their final name.
    pub(super) fn finish_blob(&self, digest: &Digest) -> io::Result<()> {
        self.blobs
            .rename(partial_name(digest), &self.blobs, digest.hex())
    }

    /// Stores verified bytes.
    pub(super) fn write(&self, digest: &Digest, bytes: &[u8]) -> io::Result<()> {
        self.create_partial(digest)?.write_all(bytes)?;
        self.finish_blob(digest)
    }

    /// Reads a stored blob; for small ones only.
    pub(super) fn read(&self, digest: &Digest) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.blobs
            .read_file(digest.hex())?
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the index, which completes the layout.
    pub(super) fn finish(&self, index: &serde_json::Value) -> io::Result<()> {
        let write = |name: &str, text: &str| -> io::Result<()> {
            self.folder
                .create_file(name, OWNER_ONLY)?
                .write_all(text.as_bytes())
        };
        write("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        write("index.json", &index.to_string())
    }
}

fn partial_name(digest: &Digest) -> String {
    format!("{}.part", digest.hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_their_name_only_once_they_are_kept() {
        let path = std::env::temp_dir().join(format!("airlock-layout-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let layout = Layout::new(&path).unwrap();
        let digest = Digest::new(&format!("sha256:{}", "0".repeat(64))).unwrap();
        let file = path.join("blobs/sha256").join(digest.hex());
        layout.create_partial(&digest).unwrap();
        assert!(
            !file.exists() && layout.create_partial(&digest).is_err(),
            "a second writer is refused"
        );
        layout.finish_blob(&digest).unwrap();
        assert!(
            file.exists() && Layout::new(&path).is_err(),
            "a folder is used once"
        );
        std::fs::remove_dir_all(&path).unwrap();
    }
}
