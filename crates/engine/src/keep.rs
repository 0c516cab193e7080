//! A run and the store of artifacts: what it keeps, whose that is and where it comes from, and what it starts with.
//!
//! Files of a workspace are read by whoever may block; the store is asked through the event loop, which runs meanwhile.

use crate::{
    Inner, Rights,
    files::{Bounds, Collected, Found},
};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use spec::{ArtifactRef, ErrorCode, ErrorInfo, Id, RunSpec, SandboxSpec, WorkspacePath};
use std::{
    error::Error,
    fmt::Write,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};
use store::{Lineage, New, Owner, Reading, StoreError};
use tokio::runtime::Handle;

/// What is handed to the store at a time.
const PIECE: usize = 256 << 10;

/// Keeps artifacts for one run.
pub(crate) struct Keeper {
    engine: Arc<Inner>,
    runtime: Handle,
    owner: Owner,
    lineage: Lineage,
}

impl Keeper {
    /// Must be called within the runtime that the store is asked through.
    pub(crate) fn new(engine: &Arc<Inner>, id: &Id, spec: &RunSpec) -> Keeper {
        let command = spec
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        let lineage = Lineage {
            command: Some(command.collect()),
            policy_hash: Some(policy_hash(spec)),
            ..Lineage::of_run(id)
        };
        let owner = spec.owner.as_ref().map(Owner::key).unwrap_or_default();
        Keeper {
            engine: engine.clone(),
            runtime: Handle::current(),
            owner,
            lineage,
        }
    }

    /// For what a session keeps: whatever program wrote it.
    pub(crate) fn of_session(engine: &Arc<Inner>, id: &Id, spec: &RunSpec) -> Keeper {
        let lineage = Lineage {
            session_id: Some(id.to_string()),
            policy_hash: Some(policy_hash(spec)),
            ..Lineage::default()
        };
        Keeper {
            lineage,
            ..Keeper::new(engine, id, spec)
        }
    }

    /// Keeps what is wanted, and what lies in `.artifacts`. Blocks.
    pub(crate) fn collect(
        &self,
        workspace: &OwnedFd,
        wanted: &[WorkspacePath],
        bounds: Bounds,
        spec: &SandboxSpec,
    ) -> io::Result<(Vec<ArtifactRef>, Collected)> {
        let mut kept = Vec::new();
        let rights = Rights::of(spec, workspace.as_fd())?;
        let collected = rights.collect(workspace.as_fd(), wanted, bounds, &mut |found| {
            kept.push(self.keep(found, bounds.file_bytes)?);
            Ok(())
        })?;
        Ok((kept, collected))
    }

    fn keep(&self, mut found: Found, limit_bytes: u64) -> Result<ArtifactRef, String> {
        let (owner, lineage) = (self.owner.clone(), self.lineage.clone());
        let new = New {
            owner,
            name: found.name,
            content_type: None,
            lineage,
            limit_bytes,
        };
        let mut putting = self
            .runtime
            .block_on(self.engine.artifacts.begin(new))
            .map_err(|error| in_words(&error))?;
        let mut buffer = vec![0; PIECE];
        loop {
            let count = match found.contents.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(again) if again.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("it cannot be read: {error}")),
            };
            let piece = Bytes::copy_from_slice(&buffer[..count]);
            self.runtime
                .block_on(putting.write(piece))
                .map_err(|error| in_words(&error))?;
        }
        let kept = self
            .runtime
            .block_on(putting.finish(None))
            .map_err(|error| in_words(&error))?;
        Ok(kept.reference())
    }

    /// Opens a kept artifact as an input. Reading it blocks.
    pub(crate) fn open(
        &self,
        name: &WorkspacePath,
        version: Option<u64>,
    ) -> Result<Input, ErrorInfo> {
        let opening = self
            .engine
            .artifacts
            .open_version(&self.owner, name, version);
        let reading = self.runtime.block_on(opening).map_err(|error| ErrorInfo {
            code: ErrorCode::InvalidSpec,
            message: in_words(&error),
            hint: Some("`airlock artifact list` shows what is kept".to_owned()),
        })?;
        Ok(Input {
            reading,
            runtime: self.runtime.clone(),
            rest: Bytes::new(),
        })
    }
}

/// A kept artifact, read by whoever may block. The end of a damaged one is an error.
pub(crate) struct Input {
    reading: Reading,
    runtime: Handle,
    rest: Bytes,
}

impl Read for Input {
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

fn in_words(error: &StoreError) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// A digest of what a run may do: profile, backend, root, network, rules, limits, mounts, user, barriers. Not of what it
/// runs, its variables, its inputs, or which folder is its workspace. Two runs with one digest had the same permissions
/// under the same version of Airlock.
fn policy_hash(spec: &RunSpec) -> String {
    let sandbox = &spec.sandbox;
    // What stands for the repository of the workspace is called by the run's name, and goes with the workspace.
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
        ("leads_everywhere", &sandbox.leads_everywhere),
        ("limits", &sandbox.limits),
        ("required", &sandbox.required),
        ("user", &sandbox.user),
        ("images", &spec.images),
        ("grants", &spec.grants),
    ];
    let mut text = String::from("airlock policy 1\n");
    for (name, fact) in facts {
        // A text takes whatever is written to it.
        _ = writeln!(text, "{name} {fact:?}");
    }
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
