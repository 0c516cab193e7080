//! What is known of a kept version, and what was known of it before: whose it is, and where it comes from.

use crate::names;
use spec::{ArtifactRef, Id, Timestamp, WorkspacePath};
use std::path::Path;

/// Whoever is at this machine itself, without a key.
const LOCAL: &str = "local";
/// What is kept of a command.
const MOST_ARGUMENTS: usize = 64;
const LONGEST_ARGUMENT: usize = 1024;

/// Whose artifacts: names of two owners never meet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(String);

impl Owner {
    /// Whoever is at this machine itself.
    pub fn local() -> Owner {
        Owner(LOCAL.to_owned())
    }

    /// Whoever has the key with this identifier.
    pub fn key(id: &Id) -> Owner {
        Owner(id.as_str().to_owned())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its place; no encoded artifact name contains `@`. The machine's own have none, as they were before there were keys.
    pub(crate) fn place(&self) -> String {
        match self.0 == LOCAL {
            true => String::new(),
            false => format!("@{}", self.0),
        }
    }

    /// Whose place it is, if it is one.
    pub(crate) fn of_place(place: &str) -> Option<Owner> {
        match place.strip_prefix('@') {
            None => place.is_empty().then(Owner::local),
            Some(key) => Id::new(key)
                .ok()
                .filter(|id| id.as_str() != LOCAL)
                .map(|id| Owner::key(&id)),
        }
    }
}

impl Default for Owner {
    fn default() -> Owner {
        Owner::local()
    }
}

/// Where an artifact comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Lineage {
    /// The run that made it.
    pub run_id: Option<String>,
    /// The session that it was made in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// What was run; cut where it is long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The digest of what the run was allowed to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_hash: Option<String>,
}

impl Lineage {
    /// Of what a run made.
    pub fn of_run(run_id: &Id) -> Lineage {
        Lineage {
            run_id: Some(run_id.as_str().to_owned()),
            ..Lineage::default()
        }
    }

    pub(crate) fn bounded(mut self) -> Lineage {
        let cut = |argument: String| argument.chars().take(LONGEST_ARGUMENT).collect();
        self.command = self
            .command
            .map(|words| words.into_iter().take(MOST_ARGUMENTS).map(cut).collect());
        self
    }
}

/// What is to be kept.
#[derive(Clone, Debug)]
pub struct New {
    /// Whose it will be.
    pub owner: Owner,
    /// How it will be called.
    pub name: WorkspacePath,
    /// What its bytes are; guessed from its name if nobody says.
    pub content_type: Option<String>,
    /// Where it comes from.
    pub lineage: Lineage,
    /// No longer than this, and than the store allows.
    pub limit_bytes: u64,
}

impl New {
    /// Something of this machine's own, without a history.
    pub fn local(name: WorkspacePath) -> New {
        let (owner, lineage) = (Owner::local(), Lineage::default());
        New {
            owner,
            name,
            content_type: None,
            lineage,
            limit_bytes: u64::MAX,
        }
    }
}

/// One kept version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Whose it is.
    pub owner: Owner,
    /// Its name: where it lay in the workspace.
    pub name: WorkspacePath,
    /// Counts from 1.
    pub version: u64,
    /// Its length.
    pub size_bytes: u64,
    /// Its digest, in hexadecimal.
    pub sha256: String,
    /// What its bytes are.
    pub content_type: String,
    /// When it was kept.
    pub kept_at: Timestamp,
    /// Where it comes from.
    pub lineage: Lineage,
}

impl Kept {
    /// As results of runs name it.
    pub fn reference(&self) -> ArtifactRef {
        ArtifactRef {
            name: self.name.as_path().to_string_lossy().into_owned(),
            version: self.version,
            size_bytes: self.size_bytes,
            sha256: self.sha256.clone(),
        }
    }
}

/// What kind of bytes a name promises. Says nothing of what they are: readers must not believe it either.
pub(crate) fn guessed(name: &Path) -> &'static str {
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

/// Whether it can stand in a header, and in one line.
pub(crate) fn is_content_type(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text.contains('/')
        && text.bytes().all(|byte| matches!(byte, 0x20..=0x7e))
}

/// One version by its place alone; what is written beside it has not been read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    pub(crate) owner: Owner,
    /// The encoded name.
    pub(crate) entry: String,
    pub(crate) version: u64,
}

impl Spot {
    pub(crate) fn new(owner: &Owner, name: &WorkspacePath, version: u64) -> Spot {
        Spot {
            owner: owner.clone(),
            entry: names::folder_name(bytes_of(name)),
            version,
        }
    }

    /// As a text that a listing can go on after.
    pub(crate) fn cursor(&self) -> String {
        format!("{}:{}:{}", self.owner.as_str(), self.entry, self.version)
    }

    pub(crate) fn of_cursor(text: &str) -> Option<Spot> {
        let mut parts = text.splitn(3, ':');
        let owner = Owner::key(&Id::new(parts.next()?).ok()?);
        let entry = parts.next()?.to_owned();
        Some(Spot {
            owner,
            entry,
            version: parts.next()?.parse().ok()?,
        })
    }
}

pub(crate) fn bytes_of(name: &WorkspacePath) -> &[u8] {
    use std::os::unix::ffi::OsStrExt;
    name.as_path().as_os_str().as_bytes()
}

/// A version number as we write it; anything else is not ours.
pub(crate) fn version_number(text: &str) -> Option<u64> {
    text.parse()
        .ok()
        .filter(|number: &u64| *number > 0 && number.to_string() == text)
}
