//! Writers for tar and OCI layouts, valid or not, and an image store that is removed with its test.

use image::{ImageError, ImageLimits, ImageSource, ImageStore, LoadOutcome, StoredImage};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

/// A temporary folder.
pub(crate) struct World {
    pub(crate) folder: PathBuf,
}

impl World {
    pub(crate) fn new() -> World {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "airlock-image-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o755).create(&folder).unwrap();
        World { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn images(&self) -> ImageStore {
        ImageStore::open(self.path("images")).unwrap()
    }

    /// Writes an archive of these layers and loads it as `test`.
    pub(crate) fn load(&self, layers: &[Layer]) -> Result<LoadOutcome, ImageError> {
        self.load_with(&Archive::new(layers), &ImageLimits::default())
    }

    pub(crate) fn load_with(
        &self,
        archive: &Archive,
        limits: &ImageLimits,
    ) -> Result<LoadOutcome, ImageError> {
        let path = self.path("archive.tar");
        fs::write(&path, archive.oci()).unwrap();
        self.images().load(
            ImageSource::Path(path),
            Some("test".parse().unwrap()),
            limits,
            &mut |_| {},
        )
    }

    /// The error of loading these layers, in one line.
    pub(crate) fn refused(&self, layers: &[Layer]) -> String {
        told(&self.load(layers).expect_err("it is refused"))
    }

    /// Names of everything in the store, drafts included.
    pub(crate) fn in_store(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path("images"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "names" && name != ".lock")
            .collect();
        names.sort();
        names
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// An error with its causes.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text += &format!(": {next}");
        cause = next.source();
    }
    text
}

/// Every path of a tree as `path mode contents`, `path/ mode`, `path -> target`.
pub(crate) fn tree(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let about = fs::symlink_metadata(&path).unwrap();
            let mode = about.permissions().mode() & 0o7777;
            if about.is_symlink() {
                found.push(format!(
                    "{name} -> {}",
                    fs::read_link(&path).unwrap().display()
                ));
            } else if about.is_dir() {
                found.push(format!("{name}/ {mode:o}"));
                left.push(path);
            } else {
                let contents = fs::read(&path).map_or("?".into(), |bytes| {
                    String::from_utf8_lossy(&bytes).into_owned()
                });
                found.push(format!("{name} {mode:o} {contents}"));
            }
        }
    }
    found.sort();
    found
}

pub(crate) fn tree_of(stored: &StoredImage) -> Vec<String> {
    tree(stored.root())
}

/// A tar archive being written.
#[derive(Clone, Default)]
pub(crate) struct Layer(pub(crate) Vec<u8>);

/// One header, with fields that a test may change.
#[derive(Clone)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) flag: u8,
    pub(crate) link: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: u64,
    pub(crate) size: u64,
}

impl Default for Entry<'_> {
    fn default() -> Self {
        Entry {
            name: b"x",
            flag: b'0',
            link: b"",
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 1_700_000_000,
            size: 0,
        }
    }
}

impl Layer {
    pub(crate) fn new() -> Layer {
        Layer::default()
    }

    pub(crate) fn file(self, name: &str, contents: &str) -> Layer {
        self.owned(name, contents, 0o644, 0, 0)
    }

    pub(crate) fn owned(self, name: &str, contents: &str, mode: u32, uid: u32, gid: u32) -> Layer {
        let size = contents.len() as u64;
        let entry = Entry {
            name: name.as_bytes(),
            mode,
            uid,
            gid,
            size,
            ..Entry::default()
        };
        self.entry(&entry).contents(contents.as_bytes())
    }

    pub(crate) fn folder(self, name: &str) -> Layer {
        self.owned_folder(name, 0o755, 0, 0)
    }

    pub(crate) fn owned_folder(self, name: &str, mode: u32, uid: u32, gid: u32) -> Layer {
        self.entry(&Entry {
            name: name.as_bytes(),
            flag: b'5',
            mode,
            uid,
            gid,
            ..Entry::default()
        })
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Layer {
        let name = name.as_bytes();
        let link = target.as_bytes();
        self.entry(&Entry {
            name,
            link,
            flag: b'2',
            mode: 0o777,
            ..Entry::default()
        })
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Layer {
        self.entry(&Entry {
            name: name.as_bytes(),
            link: target.as_bytes(),
            flag: b'1',
            ..Entry::default()
        })
    }

    pub(crate) fn special(self, name: &str, flag: u8) -> Layer {
        self.entry(&Entry {
            name: name.as_bytes(),
            flag,
            ..Entry::default()
        })
    }

    /// A pax header with these records for the next entry.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Layer {
        let mut bytes = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            bytes.extend_from_slice(format!("{length} {key}=").as_bytes());
            bytes.extend_from_slice(value);
            bytes.push(b'\n');
        }
        let entry = Entry {
            name: b"pax",
            flag: b'x',
            size: bytes.len() as u64,
            ..Entry::default()
        };
        self.entry(&entry).contents(&bytes)
    }

    /// GNU's header for the long name (`L`) or target (`K`) of the next entry.
    pub(crate) fn long(self, flag: u8, text: &[u8]) -> Layer {
        let text = [text, b"\0"].concat();
        let entry = Entry {
            name: b"././@LongLink",
            flag,
            size: text.len() as u64,
            ..Entry::default()
        };
        self.entry(&entry).contents(&text)
    }

    /// A header without contents.
    pub(crate) fn entry(mut self, entry: &Entry<'_>) -> Layer {
        let mut block = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, entry.name);
        put(100, format!("{:07o}\0", entry.mode).as_bytes());
        put(108, format!("{:07o}\0", entry.uid).as_bytes());
        put(116, format!("{:07o}\0", entry.gid).as_bytes());
        put(124, format!("{:011o} ", entry.size).as_bytes());
        put(136, format!("{:011o} ", entry.mtime).as_bytes());
        put(156, &[entry.flag]);
        put(157, entry.link);
        put(257, b"ustar\x0000");
        self.0.extend_from_slice(&summed(block));
        self
    }

    /// Contents, padded to whole blocks.
    pub(crate) fn contents(mut self, bytes: &[u8]) -> Layer {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().div_ceil(512) * 512, 0);
        self
    }

    /// The whole archive.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&self.0[..], &[0; 1024]].concat()
    }
}

/// Adds the checksum.
pub(crate) fn summed(mut block: [u8; 512]) -> [u8; 512] {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// An image of some layers, in the layouts that tools write.
#[derive(Clone)]
pub(crate) struct Archive {
    /// Layers as stored; compressed or not.
    pub(crate) layers: Vec<Vec<u8>>,
    pub(crate) diff_ids: Vec<String>,
    pub(crate) config: serde_json::Value,
    pub(crate) architecture: String,
    pub(crate) media_type: String,
}

pub(crate) const HERE: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    "amd64"
};
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";

impl Archive {
    pub(crate) fn new(layers: &[Layer]) -> Archive {
        let layers: Vec<_> = layers.iter().map(Layer::bytes).collect();
        Archive {
            diff_ids: layers.iter().map(|layer| digest(layer)).collect(),
            layers,
            config: serde_json::json!({}),
            architecture: HERE.to_owned(),
            media_type: "application/vnd.oci.image.layer.v1.tar".to_owned(),
        }
    }

    pub(crate) fn with_user(mut self, user: &str) -> Archive {
        self.config["User"] = user.into();
        self
    }

    pub(crate) fn configuration(&self) -> Vec<u8> {
        let document = serde_json::json!({
            "os": "linux", "architecture": self.architecture, "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": self.diff_ids },
        });
        document.to_string().into_bytes()
    }

    pub(crate) fn manifest(&self) -> Vec<u8> {
        let config = self.configuration();
        let layers: Vec<_> = self
            .layers
            .iter()
            .map(|layer| descriptor(&self.media_type, layer))
            .collect();
        let document = serde_json::json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config), "layers": layers,
        });
        document.to_string().into_bytes()
    }

    /// The manifest and everything that it refers to, by name.
    pub(crate) fn blobs(&self) -> Vec<(String, Vec<u8>)> {
        let all = self
            .layers
            .iter()
            .cloned()
            .chain([self.configuration(), self.manifest()]);
        all.map(|bytes| (blob_name(&bytes), bytes)).collect()
    }

    /// The image in OCI layout.
    pub(crate) fn oci(&self) -> Vec<u8> {
        let index = serde_json::json!({
            "schemaVersion": 2, "manifests": [descriptor(OCI_MANIFEST, &self.manifest())],
        });
        let mut files = self.blobs();
        files.push(("index.json".to_owned(), index.to_string().into_bytes()));
        files.push((
            "oci-layout".to_owned(),
            b"{\"imageLayoutVersion\":\"1.0.0\"}".to_vec(),
        ));
        tar_of(&files)
    }

    /// The image as older versions of `docker save` wrote it.
    pub(crate) fn saved(&self, tags: &[&str]) -> Vec<u8> {
        let config = self.configuration();
        let name = format!("{}.json", &digest(&config)[7..]);
        let layers: Vec<_> = (0..self.layers.len())
            .map(|number| format!("{number:064}/layer.tar"))
            .collect();
        let manifest = serde_json::json!([{ "Config": name, "RepoTags": tags, "Layers": layers }]);
        let mut files: Vec<_> = layers
            .into_iter()
            .zip(self.layers.iter().cloned())
            .collect();
        files.push((name, config));
        files.push((
            "manifest.json".to_owned(),
            manifest.to_string().into_bytes(),
        ));
        tar_of(&files)
    }
}

pub(crate) fn blob_name(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", &digest(bytes)[7..])
}

pub(crate) fn descriptor(media_type: &str, bytes: &[u8]) -> serde_json::Value {
    serde_json::json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

pub(crate) fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let add = |layer: Layer, (name, bytes): &(String, Vec<u8>)| {
        let entry = Entry {
            name: name.as_bytes(),
            size: bytes.len() as u64,
            ..Entry::default()
        };
        layer.entry(&entry).contents(bytes)
    };
    files.iter().fold(Layer::new(), add).bytes()
}
