//! Images to be measured with, as `docker save` writes them: one layer, and nothing said about how to run it.

use serde_json::json;
use sha2::{Digest, Sha256};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where an image of ours would be found, by everybody: with a registry that nobody is asked for.
pub(crate) const NAME: &str = "localhost/airlock-bench:latest";
/// A layer's file in the folder that its archive is made in.
pub(crate) const LAYER: &str = "layer.tar";

/// Passes bytes on and keeps their digest: an image names its layers by what they are as plain tar.
pub(crate) struct Hashed<W> {
    to: W,
    hash: Sha256,
}

impl<W: Write> Hashed<W> {
    pub(crate) fn new(to: W) -> Hashed<W> {
        Hashed {
            to,
            hash: Sha256::new(),
        }
    }

    pub(crate) fn finish(mut self) -> io::Result<String> {
        self.to.flush()?;
        Ok(self
            .hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Makes the layer of a folder with a tree, and returns its digest.
pub(crate) fn layer_of(tree: &Path, folder: &Path) -> io::Result<String> {
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(tree)
        .args(["--owner=0", "--group=0", "--numeric-owner", "-c", "."]);
    let told = tar.stdin(Stdio::null()).output()?;
    if !told.status.success() {
        return Err(io::Error::other(
            String::from_utf8_lossy(&told.stderr).into_owned(),
        ));
    }
    let mut layer = Hashed::new(fs::File::create(folder.join(LAYER))?);
    layer.write_all(&told.stdout)?;
    layer.finish()
}

/// Makes the archive of an image whose layer lies in this folder.
pub(crate) fn save(folder: &Path, layer_digest: &str) -> io::Result<PathBuf> {
    let config = json!({
        "architecture": architecture(), "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_digest}")] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [NAME], "Layers": [LAYER] }]);
    fs::write(folder.join("config.json"), config.to_string())?;
    fs::write(folder.join("manifest.json"), manifest.to_string())?;
    let archive = folder.join("image.tar");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(folder).arg("-cf").arg(&archive).args([
        "manifest.json",
        "config.json",
        LAYER,
    ]);
    match tar.stdin(Stdio::null()).status()?.success() {
        true => Ok(archive),
        false => Err(io::Error::other("`tar` could not write it")),
    }
}

/// As container engines call this machine.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
