//! Staging: the files of a request are checked and written to the sandbox before anything runs. A
//! missing file or an unsafe name fails the call; no tool runs without its files.

use super::{
    memory_budget::{self, MemoryBudget, MemoryLease},
    paths,
    workspace::Workspace,
};
use crate::{
    artifacts::{ArtifactContent, ArtifactScope, ArtifactStore},
    wire::{
        code::{CallRefusal, MeshErrorCode},
        request::{ArtifactReference, Invoke, PreloadedFile},
    },
};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

/// Maximum length of a name and of one path component, in bytes.
const MAX_NAME_BYTES: usize = 1024;
const MAX_PART_BYTES: usize = 255;
/// Maximum depth of folders.
const MAX_DEPTH: usize = 16;
/// Larger files are written on a blocking thread.
const INLINE_WRITE_BYTES: usize = 1 << 20;

/// A staged file as the tool sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StagedFile {
    pub(crate) filename: String,
    pub(crate) mime_type: String,
    pub(crate) version: i64,
}

impl StagedFile {
    /// Path inside the sandbox.
    pub(crate) fn path(&self) -> String {
        format!(
            "{}/{}",
            paths::in_sandbox(paths::INPUT_FOLDER),
            self.filename
        )
    }
}

/// Files to be staged.
#[derive(Debug)]
pub(crate) struct StagingPlan {
    preloaded: BTreeMap<String, (StagedFile, Bytes)>,
    references: BTreeMap<String, ArtifactReference>,
    /// Maximum total size in bytes.
    limit: u64,
}

/// Staged files by the keys of the request, and their total size.
#[derive(Debug, Default)]
pub(crate) struct StagedFiles {
    pub(crate) by_key: BTreeMap<String, StagedFile>,
    pub(crate) bytes: u64,
}

/// Why staging failed.
#[derive(Debug)]
pub(crate) enum StageError {
    /// A file cannot be loaded.
    File(CallRefusal),
    /// The sandbox does not take the file; another one may.
    Sandbox(CallRefusal),
}

impl From<StageError> for CallRefusal {
    fn from(why: StageError) -> CallRefusal {
        match why {
            StageError::File(refusal) | StageError::Sandbox(refusal) => refusal,
        }
    }
}

/// Source of referenced files, and the deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageSource<'a> {
    pub(crate) store: &'a ArtifactStore,
    pub(crate) scope: &'a ArtifactScope,
    pub(crate) budget: &'a MemoryBudget,
    /// End of the call's timeout.
    pub(crate) until: Instant,
}

impl StagingPlan {
    /// Takes the files out of a request: those in it and those that it refers to; a reference wins.
    pub(crate) fn of(invoke: &mut Invoke, limit: u64) -> Result<StagingPlan, CallRefusal> {
        let preloaded = std::mem::take(&mut invoke.preloaded);
        let references = std::mem::take(&mut invoke.references);
        let names = preloaded.values().map(|file| &file.filename);
        names
            .chain(references.values().map(|file| &file.filename))
            .try_for_each(|name| check(name))?;
        let one = |(key, file): (String, PreloadedFile)| {
            let staged = StagedFile {
                filename: file.filename,
                mime_type: file.mime_type,
                version: file.version,
            };
            (key, (staged, Bytes::from(file.content)))
        };
        let plan = StagingPlan {
            preloaded: preloaded.into_iter().map(one).collect(),
            references,
            limit,
        };
        plan.left(
            plan.preloaded
                .values()
                .map(|(_, bytes)| bytes.len() as u64)
                .sum(),
        )?;
        Ok(plan)
    }

    /// Bytes that are left of the maximum.
    fn left(&self, total: u64) -> Result<u64, CallRefusal> {
        let limit = self.limit;
        limit.checked_sub(total).ok_or_else(|| {
            refuse(format!(
                "the files of this call have {total} bytes, and may have {limit} together"
            ))
        })
    }

    /// Loads and writes the files one by one: only one is in memory, within the budget of all
    /// calls. A repetition uses the same versions.
    pub(crate) async fn put(
        &mut self,
        workspace: &Workspace,
        from: StageSource<'_>,
    ) -> Result<StagedFiles, StageError> {
        let mut staged = StagedFiles::default();
        let mut references = std::mem::take(&mut self.references);
        let done = self
            .put_all(workspace, from, &mut references, &mut staged)
            .await;
        self.references = references;
        done.map(|()| staged)
    }

    async fn put_all(
        &self,
        workspace: &Workspace,
        from: StageSource<'_>,
        references: &mut BTreeMap<String, ArtifactReference>,
        staged: &mut StagedFiles,
    ) -> Result<(), StageError> {
        if self.preloaded.is_empty() && references.is_empty() {
            return Ok(());
        }
        let input = workspace
            .open_folder(paths::INPUT_FOLDER)
            .map_err(|error| {
                StageError::Sandbox(refuse(format!(
                    "the folder for files cannot be used: {error}"
                )))
            })?;
        let input = Arc::new(input);
        // Of several files with one name the last is written.
        let own = self
            .preloaded
            .iter()
            .map(|(key, (file, _))| (file.filename.clone(), (false, key.clone())));
        let others = references
            .iter()
            .map(|(key, file)| (file.filename.clone(), (true, key.clone())));
        let last: BTreeMap<String, (bool, String)> = own.chain(others).collect();
        let is_last = |name: &str, key: &str, is_reference| {
            last.get(name)
                .is_some_and(|last| last.0 == is_reference && last.1 == key)
        };
        for (key, (file, bytes)) in &self.preloaded {
            if is_last(&file.filename, key, false) {
                staged.bytes += bytes.len() as u64;
                write(workspace, &input, &file.filename, bytes.clone(), None).await?;
            }
            staged.by_key.insert(key.clone(), file.clone());
        }
        for (key, reference) in references {
            let left = self.left(staged.bytes).map_err(StageError::File)?;
            let (found, lease) = from.load(reference, left).await.map_err(StageError::File)?;
            reference.version = Some(found.version);
            let filename = reference.filename.clone();
            if is_last(&filename, key, true) {
                staged.bytes += found.bytes.len() as u64;
                write(workspace, &input, &filename, found.bytes, Some(lease)).await?;
            }
            let staged_file = StagedFile {
                filename,
                mime_type: found.mime_type,
                version: found.version,
            };
            staged.by_key.insert(key.clone(), staged_file);
        }
        Ok(())
    }
}

impl StageSource<'_> {
    /// Loads a file after leasing memory for the size that the store reports.
    async fn load(
        &self,
        reference: &ArtifactReference,
        left: u64,
    ) -> Result<(ArtifactContent, MemoryLease), CallRefusal> {
        let ArtifactReference { filename, version } = reference;
        let bad = |why: String| {
            refuse(format!(
                "the file `{}` cannot be had: {why}",
                escape_name(filename)
            ))
        };
        let sized = self.store.size(self.scope, filename, *version);
        let sized = self
            .in_time(sized, "the store did not answer")
            .await
            .map_err(bad)?;
        let (version, size) = sized.map_err(|error| bad(error.to_string()))?;
        let limit = left.min(memory_budget::MAX_BYTES);
        if size > limit {
            return Err(bad(format!(
                "it has {size} bytes, and at most {limit} are taken"
            )));
        }
        let otherwise = format!(
            "files of other calls took the memory for its {size} bytes, and gave none back"
        );
        let lease = self
            .in_time(self.budget.lease(size), &otherwise)
            .await
            .map_err(bad)?;
        let loaded = self.store.load(self.scope, filename, Some(version), size);
        let otherwise = format!("the store did not send its {size} bytes");
        let loaded = self.in_time(loaded, &otherwise).await.map_err(bad)?;
        Ok((loaded.map_err(|error| bad(error.to_string()))?, lease))
    }

    /// Gives each step half of the remaining time, so that a slow store is reported as such and not
    /// as a slow tool.
    async fn in_time<T>(
        &self,
        step: impl Future<Output = T>,
        otherwise: &str,
    ) -> Result<T, String> {
        let time = self.until.saturating_duration_since(Instant::now()) / 2;
        let done = tokio::time::timeout(time, step).await;
        done.map_err(|_| format!("{otherwise} within {:.1} s", time.as_secs_f32()))
    }
}

/// Writes a file, on a blocking thread if it is large.
async fn write(
    workspace: &Workspace,
    input: &Arc<OwnedFd>,
    name: &str,
    bytes: Bytes,
    lease: Option<MemoryLease>,
) -> Result<(), StageError> {
    let bad = |why: String| {
        StageError::Sandbox(refuse(format!(
            "the file `{}` cannot be put into place: {why}",
            escape_name(name)
        )))
    };
    if bytes.len() <= INLINE_WRITE_BYTES {
        return put_one(workspace, input, name, &bytes).map_err(|error| bad(error.to_string()));
    }
    let workspace = workspace.clone();
    let input = input.clone();
    let own = name.to_owned();
    let putting = move || {
        let put = put_one(&workspace, &input, &own, &bytes);
        drop((bytes, lease));
        put
    };
    let put = tokio::task::spawn_blocking(putting)
        .await
        .map_err(|error| bad(error.to_string()))?;
    put.map_err(|error| bad(error.to_string()))
}

fn put_one(workspace: &Workspace, input: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (folders, last) = match name.rsplit_once('/') {
        Some((folders, last)) => (Some(folders), last),
        None => (None, name),
    };
    let mut folder = None::<OwnedFd>;
    for part in folders.iter().flat_map(|folders| folders.split('/')) {
        folder = Some(workspace.enter_folder(folder.as_ref().unwrap_or(input).as_fd(), part)?);
    }
    workspace.make_file(folder.as_ref().unwrap_or(input).as_fd(), last, 0o644, bytes)
}

/// Refuses anything but a relative path of plain components.
fn check(name: &str) -> Result<(), CallRefusal> {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.len() <= MAX_PART_BYTES
            && !part
                .chars()
                .any(|letter| letter == '\\' || letter.is_control())
    };
    if name.len() <= MAX_NAME_BYTES
        && name.split('/').count() <= MAX_DEPTH
        && name.split('/').all(is_plain)
    {
        Ok(())
    } else {
        Err(refuse(format!(
            "`{}` cannot be the name of a file",
            escape_name(name)
        )))
    }
}

fn refuse(message: String) -> CallRefusal {
    CallRefusal::new(MeshErrorCode::ArtifactError, message)
}

/// Escapes an untrusted name for a message.
pub(crate) fn escape_name(name: &str) -> String {
    let mut escape_name: String = name
        .chars()
        .take(100)
        .flat_map(char::escape_debug)
        .collect();
    if name.chars().nth(100).is_some() {
        escape_name.push('…');
    }
    escape_name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = "x".repeat(256);
        let deep = ["a"; 17].join("/");
        for bad in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            "a\\b",
            "a\nb",
            "a\0b",
            &long,
            &deep,
        ] {
            assert!(
                check(bad).is_err_and(|refusal| refusal.code == MeshErrorCode::ArtifactError),
                "{bad:?}"
            );
        }
        for good in [
            "cat.png",
            "a/b.txt",
            "user:notes.md",
            "ünï.txt",
            "..x",
            "-rf",
            ".hidden",
        ] {
            assert!(check(good).is_ok(), "{good:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_that_passes_stays_beneath(name in "[a./\\\\\u{1}\u{e4}]{0,24}") {
            if check(&name).is_ok() {
                prop_assert!(Path::new(&name).components().all(|part| matches!(part, Component::Normal(_))));
            }
        }
    }
}
