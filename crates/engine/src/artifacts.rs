//! Artifacts of a run: collects files from the workspace into the store with owner and lineage, and
//! reads stored artifacts as inputs.
//!
//! Workspace files are read on a blocking thread; the store is called through the event loop, which
//! runs meanwhile.

use crate::{
    FileAccess, Inner,
    files::{CollectLimits, CollectReport, CollectedFile},
};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use spec::{
    ArtifactRef, ErrorCode, ErrorInfo, Id, InputSource, RunSpec, SandboxSpec, WorkspacePath,
};
use std::{
    error::Error,
    fmt::Write,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};
use store::{ArtifactError, ArtifactOwner, Lineage, NewArtifact, VersionReader};
use tokio::runtime::Handle;

/// The bytes that are passed to the store at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Collects the artifacts of one run or session.
pub(crate) struct ArtifactCollector {
    engine: Arc<Inner>,
    runtime: Handle,
    owner: ArtifactOwner,
    lineage: Lineage,
}

impl ArtifactCollector {
    /// Must be called within the runtime through which the store is called.
    pub(crate) fn new(engine: &Arc<Inner>, id: &Id, spec: &RunSpec) -> ArtifactCollector {
        let command = spec
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        let lineage = Lineage {
            command: Some(command.collect()),
            policy_hash: Some(policy_hash(spec)),
            ..Lineage::of_run(id)
        };
        ArtifactCollector {
            engine: engine.clone(),
            runtime: Handle::current(),
            owner: owner(spec),
            lineage,
        }
    }

    /// The collector of a session, whichever program wrote the files.
    pub(crate) fn of_session(engine: &Arc<Inner>, id: &Id, spec: &RunSpec) -> ArtifactCollector {
        let lineage = Lineage {
            session_id: Some(id.to_string()),
            policy_hash: Some(policy_hash(spec)),
            ..Lineage::default()
        };
        ArtifactCollector {
            lineage,
            ..ArtifactCollector::new(engine, id, spec)
        }
    }

    /// Stores the wanted files and everything in `.artifacts`, until it is cancelled. Blocks.
    pub(crate) fn collect(
        &self,
        workspace: &OwnedFd,
        wanted: &[WorkspacePath],
        bounds: CollectLimits,
        spec: &SandboxSpec,
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> io::Result<(Vec<ArtifactRef>, CollectReport)> {
        let mut kept = Vec::new();
        let rights = FileAccess::of(spec, workspace.as_fd())?;
        let mut keep = |found| {
            kept.push(self.keep(found, bounds.file_bytes, is_cancelled)?);
            Ok(())
        };
        let workspace = workspace.as_fd();
        let collected = rights.collect(workspace, wanted, bounds, is_cancelled, &mut keep)?;
        Ok((kept, collected))
    }

    fn keep(
        &self,
        mut found: CollectedFile,
        limit_bytes: u64,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<ArtifactRef, String> {
        let owner = self.owner.clone();
        let lineage = self.lineage.clone();
        let new = NewArtifact {
            owner,
            name: found.name,
            content_type: None,
            lineage,
            limit_bytes,
        };
        let mut putting = self
            .runtime
            .block_on(self.engine.artifacts.begin(new))
            .map_err(|error| describe(&error))?;
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            if is_cancelled() {
                return Err("it was cancelled".to_owned());
            }
            let count = match found.contents.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(again) if again.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("it cannot be read: {error}")),
            };
            let piece = Bytes::copy_from_slice(&buffer[..count]);
            self.runtime
                .block_on(putting.write(piece))
                .map_err(|error| describe(&error))?;
        }
        let kept = self
            .runtime
            .block_on(putting.finish(None))
            .map_err(|error| describe(&error))?;
        Ok(kept.reference())
    }

    /// Opens a stored artifact as an input. Reading it blocks.
    pub(crate) fn open(
        &self,
        name: &WorkspacePath,
        version: Option<u64>,
    ) -> Result<ArtifactReader, ErrorInfo> {
        let opening = self
            .engine
            .artifacts
            .open_version(&self.owner, name, version);
        let reading = self
            .runtime
            .block_on(opening)
            .map_err(|error| missing_artifact(&error))?;
        Ok(ArtifactReader {
            reading,
            runtime: self.runtime.clone(),
            rest: Bytes::new(),
        })
    }
}

/// The owner of the artifacts.
fn owner(spec: &RunSpec) -> ArtifactOwner {
    spec.owner
        .as_ref()
        .map(ArtifactOwner::key)
        .unwrap_or_default()
}

fn missing_artifact(error: &ArtifactError) -> ErrorInfo {
    ErrorInfo {
        code: ErrorCode::InvalidSpec,
        message: describe(error),
        hint: Some("`airlock artifact list` shows what is kept".to_owned()),
    }
}

/// Checks that the artifacts among the inputs exist.
pub(crate) async fn check_artifact_inputs(engine: &Inner, spec: &RunSpec) -> Result<(), ErrorInfo> {
    for (_, source) in &spec.inputs {
        if let InputSource::Artifact { name, version } = source {
            let opening = engine
                .artifacts
                .open_version(&owner(spec), name, *version)
                .await;
            opening.map_err(|error| missing_artifact(&error))?;
        }
    }
    Ok(())
}

/// A blocking reader of a stored artifact. The end of a damaged artifact is an error.
pub(crate) struct ArtifactReader {
    reading: VersionReader,
    runtime: Handle,
    rest: Bytes,
}

impl Read for ArtifactReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            let next = self.runtime.block_on(self.reading.next());
            self.rest = next.map_err(io::Error::other)?.unwrap_or_default();
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

fn describe(error: &ArtifactError) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// A digest of the permissions of a run: profile, backend, root, network, rules, limits, mounts,
/// user, barriers. Not of its command, variables, inputs, or workspace path. Two runs with one
/// digest had the same permissions under the same version of Airlock.
fn policy_hash(spec: &RunSpec) -> String {
    let sandbox = &spec.sandbox;
    // The mounts of the shadow repository contain the run's id, and belong to the workspace.
    let asked = |mount: &&spec::Mount| !sandbox.git.contains_key(&mount.host);
    let mounts: Vec<_> = sandbox.mounts.iter().filter(asked).collect();
    let facts: [(&str, &dyn std::fmt::Debug); 17] = [
        ("profile", &sandbox.profile),
        ("backend", &sandbox.backend),
        ("root", &sandbox.root),
        ("writable_root", &sandbox.writable_root),
        ("workspace_of_host", &sandbox.workspace.is_some()),
        ("protected", &sandbox.protected),
        ("hide", &sandbox.hide),
        ("mounts", &mounts),
        ("volumes", &sandbox.volumes),
        ("extra_mounts", &sandbox.extra_mounts),
        ("network", &sandbox.network),
        ("leads_everywhere", &sandbox.reaches_any_host),
        ("limits", &sandbox.limits),
        ("required", &sandbox.required),
        ("user", &sandbox.user),
        ("images", &spec.images),
        ("grants", &spec.grants),
    ];
    let mut text = String::from("airlock policy 1\n");
    for (name, fact) in facts {
        // Writing to a `String` cannot fail.
        _ = writeln!(text, "{name} {fact:?}");
    }
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
