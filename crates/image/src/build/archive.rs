//! Writes built images as one archive: an OCI layout, which for a single platform `docker load`
//! accepts, too.

use super::{BuildError, BuiltImage};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use spec::{Digest, ImageRef, Timestamp};
use std::{
    fs::File,
    io::{self, Read, Write},
};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Writes images with one name, one for each platform.
pub fn write_archive(
    to: &mut impl Write,
    name: &ImageRef,
    images: &[BuiltImage],
) -> Result<(), BuildError> {
    let mut archive = Archive { to };
    archive.document_entry(
        "oci-layout",
        &text(&json!({ "imageLayoutVersion": "1.0.0" })),
    )?;
    let mut manifests = Vec::new();
    for image in images {
        manifests.push(archive.image(image)?);
    }
    let named = |descriptor: Value| {
        let mut descriptor = descriptor;
        let tag = name.tag().unwrap_or("latest");
        descriptor["annotations"] = json!({ "io.containerd.image.name": name.to_string(), "org.opencontainers.image.ref.name": tag });
        descriptor
    };
    let top = match &manifests[..] {
        [only] => {
            archive.docker(name, images)?;
            named(only.clone())
        }
        several => {
            let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": several });
            named(archive.document(INDEX, &index)?)
        }
    };
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [top] });
    archive.document_entry("index.json", &text(&index))?;
    archive.end()
}

/// The digest of a finished hash.
pub(super) fn digest_of(hash: Sha256) -> Digest {
    let hex: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // 32 bytes are 64 digits.
    Digest::new(&format!("sha256:{hex}"))
        .unwrap_or_else(|| unreachable!("a hash of SHA-256 is a digest"))
}

fn text(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn failed(source: io::Error) -> BuildError {
    BuildError::Io {
        what: "write the archive".to_owned(),
        source,
    }
}

struct Archive<'a, W: Write> {
    to: &'a mut W,
}

impl<W: Write> Archive<'_, W> {
    /// Writes layer, configuration and manifest; returns the manifest's descriptor.
    fn image(&mut self, image: &BuiltImage) -> Result<Value, BuildError> {
        let name = format!("blobs/sha256/{}", image.digest.hex());
        let mut layer = File::open(&image.layer).map_err(failed)?;
        self.entry(&name, image.bytes, &mut layer)?;
        let config = self.document(CONFIG, &configuration(image))?;
        let layer =
            json!({ "mediaType": LAYER, "digest": image.digest.as_str(), "size": image.bytes });
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer] });
        let mut descriptor = self.document(MANIFEST, &manifest)?;
        descriptor["platform"] =
            json!({ "os": "linux", "architecture": image.platform.architecture() });
        Ok(descriptor)
    }

    /// Writes Docker's `manifest.json`, for daemons that do not read OCI layouts.
    fn docker(&mut self, name: &ImageRef, images: &[BuiltImage]) -> Result<(), BuildError> {
        let entry = |image: &BuiltImage| {
            let config = digest_of(Sha256::new_with_prefix(text(&configuration(image))));
            json!({
                "Config": format!("blobs/sha256/{}", config.hex()),
                "RepoTags": [name.familiar()],
                "Layers": [format!("blobs/sha256/{}", image.digest.hex())],
            })
        };
        let all: Vec<_> = images.iter().map(entry).collect();
        self.document_entry("manifest.json", &text(&json!(all)))
    }

    /// Writes a document as a blob; returns its descriptor.
    fn document(&mut self, kind: &str, value: &Value) -> Result<Value, BuildError> {
        let bytes = text(value);
        let digest = digest_of(Sha256::new_with_prefix(&bytes));
        self.document_entry(&format!("blobs/sha256/{}", digest.hex()), &bytes)?;
        Ok(json!({ "mediaType": kind, "digest": digest.as_str(), "size": bytes.len() }))
    }

    fn document_entry(&mut self, name: &str, bytes: &[u8]) -> Result<(), BuildError> {
        self.entry(name, bytes.len() as u64, &mut &bytes[..])
    }

    fn entry(&mut self, name: &str, bytes: u64, from: &mut impl Read) -> Result<(), BuildError> {
        self.to.write_all(&header(name, bytes)).map_err(failed)?;
        let copied = io::copy(&mut from.take(bytes), self.to).map_err(failed)?;
        if copied != bytes {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        let padding = bytes.next_multiple_of(512) - bytes;
        self.to
            .write_all(&[0; 512][..padding as usize])
            .map_err(failed)
    }

    fn end(self) -> Result<(), BuildError> {
        self.to
            .write_all(&[0; 1024])
            .and_then(|()| self.to.flush())
            .map_err(failed)
    }
}

fn configuration(image: &BuiltImage) -> Value {
    let config = &image.config;
    let created = Timestamp(image.epoch * 1000).to_string();
    json!({
        "architecture": image.platform.architecture(),
        "os": "linux",
        "created": created,
        "config": {
            "User": config.user,
            "Env": config.env,
            "Entrypoint": config.entrypoint,
            "Cmd": config.cmd,
            "WorkingDir": config.working_dir,
            "Labels": config.labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [image.digest.as_str()] },
        "history": [{ "created": created, "created_by": "airlock image build" }],
    })
}

/// A ustar header for a regular file of root. Paths here are short.
fn header(name: &str, bytes: u64) -> [u8; 512] {
    let mut header = [0; 512];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000644\x000000000\x000000000\0");
    put(124, format!("{bytes:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}
