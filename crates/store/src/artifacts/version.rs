//! A stored version: its owner, name, metadata and lineage.

use crate::name_encoding;
use spec::{ArtifactRef, Id, Timestamp, WorkspacePath};
use std::path::Path;

/// Owner name of local users, who have no API key.
const LOCAL_OWNER: &str = "local";
/// Limits of a stored command: arguments, and characters of each.
const MAX_ARGUMENTS: usize = 64;
const MAX_ARGUMENT_CHARS: usize = 1024;

/// Owner of artifacts. Names of different owners are separate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArtifactOwner(String);

impl ArtifactOwner {
    /// The local user.
    pub fn local() -> ArtifactOwner {
        ArtifactOwner(LOCAL_OWNER.to_owned())
    }

    /// The holder of the API key with this id.
    pub fn key(id: &Id) -> ArtifactOwner {
        ArtifactOwner(id.as_str().to_owned())
    }

    /// The owner's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The owner's folder; no encoded artifact name contains `@`. The local owner has none, as
    /// before there were keys.
    pub(crate) fn folder_name(&self) -> String {
        if self.0 == LOCAL_OWNER {
            String::new()
        } else {
            format!("@{}", self.0)
        }
    }

    /// The owner of a folder, if it is one's.
    pub(crate) fn from_folder_name(folder_name: &str) -> Option<ArtifactOwner> {
        match folder_name.strip_prefix('@') {
            None => folder_name.is_empty().then(ArtifactOwner::local),
            Some(key) => Id::new(key)
                .ok()
                .filter(|id| id.as_str() != LOCAL_OWNER)
                .map(|id| ArtifactOwner::key(&id)),
        }
    }
}

impl Default for ArtifactOwner {
    fn default() -> ArtifactOwner {
        ArtifactOwner::local()
    }
}

/// Origin of an artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Lineage {
    /// The run that created it.
    pub run_id: Option<String>,
    /// The session in which it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The command; cut where it is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Digest of the run's policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_hash: Option<String>,
}

impl Lineage {
    /// The lineage of a run's artifact.
    pub fn of_run(run_id: &Id) -> Lineage {
        Lineage {
            run_id: Some(run_id.as_str().to_owned()),
            ..Lineage::default()
        }
    }

    pub(crate) fn bounded(mut self) -> Lineage {
        let cut = |argument: String| argument.chars().take(MAX_ARGUMENT_CHARS).collect();
        self.command = self
            .command
            .map(|words| words.into_iter().take(MAX_ARGUMENTS).map(cut).collect());
        self
    }
}

/// An artifact to be stored.
#[derive(Clone, Debug)]
pub struct NewArtifact {
    /// Owner.
    pub owner: ArtifactOwner,
    /// Name.
    pub name: WorkspacePath,
    /// MIME type; guessed from the name if absent.
    pub content_type: Option<String>,
    /// Origin.
    pub lineage: Lineage,
    /// Maximum size in bytes, in addition to the store's own limit.
    pub limit_bytes: u64,
}

impl NewArtifact {
    /// An artifact of the local user, without a lineage.
    pub fn local(name: WorkspacePath) -> NewArtifact {
        let owner = ArtifactOwner::local();
        let lineage = Lineage::default();
        NewArtifact {
            owner,
            name,
            content_type: None,
            lineage,
            limit_bytes: u64::MAX,
        }
    }
}

/// One stored version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredArtifact {
    /// Owner.
    pub owner: ArtifactOwner,
    /// Name: its path in the workspace.
    pub name: WorkspacePath,
    /// Version number, from 1.
    pub version: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// MIME type.
    pub content_type: String,
    /// Time of storage.
    pub kept_at: Timestamp,
    /// Origin.
    pub lineage: Lineage,
}

impl StoredArtifact {
    /// The reference that results of runs contain.
    pub fn reference(&self) -> ArtifactRef {
        ArtifactRef {
            name: self.name.as_path().to_string_lossy().into_owned(),
            version: self.version,
            size_bytes: self.size_bytes,
            sha256: self.sha256.clone(),
        }
    }
}

/// MIME type by the extension of a name. It says nothing about the bytes, and readers must not rely
/// on it.
pub(crate) fn guess_content_type(name: &Path) -> &'static str {
    let extension = name
        .extension()
        .and_then(|text| text.to_str())
        .map(str::to_ascii_lowercase);
    match extension.as_deref().unwrap_or_default() {
        "txt" | "log" | "md" | "patch" | "diff" => "text/plain; charset=utf-8",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "xml" => "application/xml",
        "json" => "application/json",
        "jsonl" | "ndjson" => "application/x-ndjson",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "zst" => "application/zstd",
        "tar" => "application/x-tar",
        "wasm" => "application/wasm",
        _ => "application/octet-stream",
    }
}

/// Whether the text is valid in an HTTP header.
pub(crate) fn is_content_type(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text.contains('/')
        && text.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
}

/// Location of one version; its metadata has not been read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArtifactVersion {
    pub(crate) owner: ArtifactOwner,
    /// The encoded name.
    pub(crate) entry: String,
    pub(crate) version: u64,
}

impl ArtifactVersion {
    pub(crate) fn new(
        owner: &ArtifactOwner,
        name: &WorkspacePath,
        version: u64,
    ) -> ArtifactVersion {
        ArtifactVersion {
            owner: owner.clone(),
            entry: name_encoding::folder_name(name_bytes(name)),
            version,
        }
    }

    /// The cursor of a listing that continues after this version.
    pub(crate) fn cursor(&self) -> String {
        format!("{}:{}:{}", self.owner.as_str(), self.entry, self.version)
    }

    pub(crate) fn from_cursor(text: &str) -> Option<ArtifactVersion> {
        let mut parts = text.splitn(3, ':');
        let owner = ArtifactOwner::key(&Id::new(parts.next()?).ok()?);
        let entry = parts.next()?.to_owned();
        Some(ArtifactVersion {
            owner,
            entry,
            version: parts.next()?.parse().ok()?,
        })
    }
}

pub(crate) fn name_bytes(name: &WorkspacePath) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    name.as_path().as_os_str().as_bytes()
}

/// Parses a version number in our own format only.
pub(crate) fn parse_version(text: &str) -> Option<u64> {
    text.parse()
        .ok()
        .filter(|number: &u64| *number > 0 && number.to_string() == text)
}
