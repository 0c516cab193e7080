//! What goes into a box: the files of a request, checked and put there before anything runs. One that is missing, or that has a
//! name which could lead elsewhere, ends the call; no tool runs without its files.

use super::{
    budget::{self, Budget, Lease},
    handle::Workspace,
    places,
};
use crate::{
    artifacts::{Scope, Shelf, Version},
    wire::{
        code::{Code, Refusal},
        request::{Invoke, Preloaded, Reference},
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

/// The longest name, and the longest part of one, in bytes.
const LONGEST_NAME: usize = 1024;
const LONGEST_PART: usize = 255;
/// Folders within folders.
const DEEPEST: usize = 16;
/// What is written at once; more is left to another thread.
const LITTLE: usize = 1 << 20;

/// A file as the tool is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) filename: String,
    pub(crate) mime_type: String,
    pub(crate) version: i64,
}

impl File {
    /// Where it is inside.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", places::inside(places::INPUT), self.filename)
    }
}

/// What is to be put into a box.
#[derive(Debug)]
pub(crate) struct Plan {
    preloaded: BTreeMap<String, (File, Bytes)>,
    references: BTreeMap<String, Reference>,
    /// Bytes of all files together.
    most: u64,
}

/// What was put there: files as the request calls them, and their bytes together.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    pub(crate) by_key: BTreeMap<String, File>,
    pub(crate) bytes: u64,
}

/// Why it was not.
#[derive(Debug)]
pub(crate) enum Unstaged {
    /// A file cannot be had.
    File(Refusal),
    /// The box does not take it; another may.
    Place(Refusal),
}

impl From<Unstaged> for Refusal {
    fn from(why: Unstaged) -> Refusal {
        match why {
            Unstaged::File(refusal) | Unstaged::Place(refusal) => refusal,
        }
    }
}

/// Where files come from, and until when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) shelf: &'a Shelf,
    pub(crate) scope: &'a Scope,
    pub(crate) budget: &'a Budget,
    /// The end of the call's time.
    pub(crate) until: Instant,
}

impl Plan {
    /// Takes the files out of a request: those that came with it, and those that it refers to, which win.
    pub(crate) fn of(invoke: &mut Invoke, most: u64) -> Result<Plan, Refusal> {
        let (preloaded, references) = (
            std::mem::take(&mut invoke.preloaded),
            std::mem::take(&mut invoke.references),
        );
        let names = preloaded.values().map(|file| &file.filename);
        names
            .chain(references.values().map(|file| &file.filename))
            .try_for_each(|name| check(name))?;
        let one = |(key, file): (String, Preloaded)| {
            let told = File {
                filename: file.filename,
                mime_type: file.mime_type,
                version: file.version,
            };
            (key, (told, Bytes::from(file.content)))
        };
        let plan = Plan {
            preloaded: preloaded.into_iter().map(one).collect(),
            references,
            most,
        };
        plan.left(
            plan.preloaded
                .values()
                .map(|(_, bytes)| bytes.len() as u64)
                .sum(),
        )?;
        Ok(plan)
    }

    /// How many bytes there may be more.
    fn left(&self, total: u64) -> Result<u64, Refusal> {
        let most = self.most;
        most.checked_sub(total).ok_or_else(|| {
            refuse(format!(
                "the files of this call have {total} bytes, and may have {most} together"
            ))
        })
    }

    /// Loads and writes one after the other: so no more than one is in memory, within the budget of all calls. Done again, it
    /// is the same versions.
    pub(crate) async fn put(
        &mut self,
        workspace: &Workspace,
        from: Source<'_>,
    ) -> Result<Staged, Unstaged> {
        let mut staged = Staged::default();
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
        from: Source<'_>,
        references: &mut BTreeMap<String, Reference>,
        staged: &mut Staged,
    ) -> Result<(), Unstaged> {
        if self.preloaded.is_empty() && references.is_empty() {
            return Ok(());
        }
        let input = workspace.open_folder(places::INPUT).map_err(|error| {
            Unstaged::Place(refuse(format!(
                "the folder for files cannot be used: {error}"
            )))
        })?;
        let input = Arc::new(input);
        // Of several of one name the last is written.
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
            let left = self.left(staged.bytes).map_err(Unstaged::File)?;
            let (found, lease) = from.load(reference, left).await.map_err(Unstaged::File)?;
            reference.version = Some(found.version);
            let filename = reference.filename.clone();
            if is_last(&filename, key, true) {
                staged.bytes += found.bytes.len() as u64;
                write(workspace, &input, &filename, found.bytes, Some(lease)).await?;
            }
            let told = File {
                filename,
                mime_type: found.mime_type,
                version: found.version,
            };
            staged.by_key.insert(key.clone(), told);
        }
        Ok(())
    }
}

impl Source<'_> {
    /// A file, and what it takes of the budget: as much as it has, which the store is asked first.
    async fn load(&self, reference: &Reference, left: u64) -> Result<(Version, Lease), Refusal> {
        let Reference { filename, version } = reference;
        let bad = |why: String| {
            refuse(format!(
                "the file `{}` cannot be had: {why}",
                shown(filename)
            ))
        };
        let sized = self.shelf.size(self.scope, filename, *version);
        let sized = self
            .in_time(sized, "the store did not answer")
            .await
            .map_err(bad)?;
        let (version, size) = sized.map_err(|error| bad(error.to_string()))?;
        let most = left.min(budget::MOST);
        if size > most {
            return Err(bad(format!(
                "it has {size} bytes, and at most {most} are taken"
            )));
        }
        let otherwise = format!(
            "files of other calls took the memory for its {size} bytes, and gave none back"
        );
        let lease = self
            .in_time(self.budget.lease(size), &otherwise)
            .await
            .map_err(bad)?;
        let loaded = self.shelf.load(self.scope, filename, Some(version), size);
        let otherwise = format!("the store did not send its {size} bytes");
        let loaded = self.in_time(loaded, &otherwise).await.map_err(bad)?;
        Ok((loaded.map_err(|error| bad(error.to_string()))?, lease))
    }

    /// Each step has half of what is left of the call's time when it begins: no tool that was never run is said to have been
    /// too slow.
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

/// Writes one, on another thread if it is not little.
async fn write(
    workspace: &Workspace,
    input: &Arc<OwnedFd>,
    name: &str,
    bytes: Bytes,
    lease: Option<Lease>,
) -> Result<(), Unstaged> {
    let bad = |why: String| {
        Unstaged::Place(refuse(format!(
            "the file `{}` cannot be put into place: {why}",
            shown(name)
        )))
    };
    if bytes.len() <= LITTLE {
        return put_one(workspace, input, name, &bytes).map_err(|error| bad(error.to_string()));
    }
    let (workspace, input, own) = (workspace.clone(), input.clone(), name.to_owned());
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

/// Refuses a name that is no relative path of plain parts.
fn check(name: &str) -> Result<(), Refusal> {
    let is_plain = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.len() <= LONGEST_PART
            && !part
                .chars()
                .any(|letter| letter == '\\' || letter.is_control())
    };
    match name.len() <= LONGEST_NAME
        && name.split('/').count() <= DEEPEST
        && name.split('/').all(is_plain)
    {
        true => Ok(()),
        false => Err(refuse(format!(
            "`{}` cannot be the name of a file",
            shown(name)
        ))),
    }
}

fn refuse(message: String) -> Refusal {
    Refusal::new(Code::ArtifactError, message)
}

/// A stranger's name, fit for a message.
pub(crate) fn shown(name: &str) -> String {
    let mut shown: String = name
        .chars()
        .take(100)
        .flat_map(char::escape_debug)
        .collect();
    if name.chars().nth(100).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::{Component, Path};

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let (long, deep) = ("x".repeat(256), ["a"; 17].join("/"));
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
                check(bad).is_err_and(|refusal| refusal.code == Code::ArtifactError),
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
