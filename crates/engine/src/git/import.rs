//! Imports the program's commits into the host's repository after the run, completely or not at
//! all.

use super::{
    FilesLocation, Repository, ShadowRepository, describe,
    journal::Journal,
    ref_update::{Import, RefUpdateResult, RewrittenRef, UpdateCandidates, host_now},
    report::{ImportOutcome, note, path_of, report},
    risk::RiskCheck,
    sandboxes::{GitTask, InputFiles, export_input, verify_input},
    verification::Verification,
};
use crate::{Inner, provision::internal};
use ::git::{
    GitError, Head, ImportPlan, ObjectId, Pack, PackLimits, RefListing, RefMap,
    import::{self, ImportedRefs},
    refs,
};
use spec::{GitImport, GitOmission, Id};
use std::{
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Imports each repository, submodules first, and releases the shadow folder: it is removed, or
/// kept if something could not be imported. Where the program's changes were applied to the folder,
/// references without a conflict are updated; otherwise everything stays under `refs/airlock/`.
pub(crate) async fn import_commits(
    engine: &Arc<Inner>,
    run: &Id,
    shadow: ShadowRepository,
    ran: bool,
    files: FilesLocation<'_>,
) -> (Vec<GitImport>, Vec<String>) {
    let (mut imports, mut notes, mut failed) = (Vec::new(), Vec::new(), None);
    if ran {
        for repository in shadow.repositories.iter().rev() {
            match import_repository(engine, run, &shadow, repository, files).await {
                Ok(None) => {}
                Ok(Some((import, note))) => {
                    notes.extend(note);
                    imports.push(import);
                }
                Err(why) => {
                    let what = path_of(repository);
                    let left = GitOmission { what, why };
                    failed.get_or_insert(left.clone());
                    imports.push(GitImport {
                        path: left.what.clone(),
                        not_brought: vec![left],
                        ..GitImport::default()
                    });
                }
            }
        }
    }
    notes.extend(release_folder(shadow, failed.as_ref()));
    (imports, notes)
}

fn release_folder(shadow: ShadowRepository, failed: Option<&GitOmission>) -> Vec<String> {
    let (folder, mut notes) = (shadow.folder, Vec::new());
    let given_back = match failed {
        None => folder.remove(),
        Some(left) => {
            let kept = folder.path().display().to_string();
            notes.push(format!(
                "git: nothing was brought from `{}`: {}; it is kept in `{kept}`, not for git on this machine",
                left.what, left.why
            ));
            folder.keep().map(drop)
        }
    };
    if let Err(error) = given_back {
        notes.push(format!("the git folder of the run: {error}"));
    }
    notes
}

/// The program's references and objects, checked as far as that is possible without git.
pub(super) struct CheckedExport {
    listing: RefListing,
    pub(super) plan: ImportPlan,
    pack: Pack,
    /// The output of task A, and the offset of the pack in it.
    output: Vec<u8>,
    at: usize,
    pub(super) candidates: UpdateCandidates,
}

impl CheckedExport {
    fn bytes(&self) -> &[u8] {
        &self.output[self.at..]
    }

    fn is_empty(&self) -> bool {
        self.plan.refs.is_empty() && !self.candidates.moves_head()
    }
}

/// Writes the input folder of a task into the shadow folder.
pub(super) fn write_input(
    shadow: &ShadowRepository,
    input: &InputFiles,
    more: &[(&str, &[u8])],
) -> Result<PathBuf, String> {
    let files = input
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    let files: Vec<_> = files.chain(more.iter().copied()).collect();
    let made = shadow.folder.write_input("told", &files);
    made.map_err(|error| error.to_string())
}

/// A unique name that git ignores.
pub(super) fn fresh_draft() -> String {
    format!("airlock-{}", crate::fresh_id())
}

/// Imports one repository; returns the report and a note, or none if nothing is new.
async fn import_repository(
    engine: &Arc<Inner>,
    run: &Id,
    shadow: &ShadowRepository,
    repository: &Repository,
    files: FilesLocation<'_>,
) -> Result<Option<(GitImport, Option<String>)>, String> {
    let is_applied = matches!(files, FilesLocation::Applied(_));
    if is_untouched(shadow, repository, is_applied) {
        return Ok(None);
    }
    let task = |input| GitTask {
        engine,
        repository,
        folder: &shadow.folder,
        input,
    };
    let output = task(write_input(shadow, &export_input(repository), &[])?)
        .export()
        .await?;
    let mut arrival = check(repository, output).await?;
    if is_applied {
        arrival.candidates = UpdateCandidates::new(repository, &arrival.listing, &arrival.plan);
    }
    if arrival.is_empty() {
        return Ok(None);
    }
    let input = verify_input(repository, &arrival.plan, &arrival.candidates.pairs);
    let (name, index) = (arrival.pack.name(), arrival.pack.index());
    let [data, list] = ["pack", "idx"].map(|end| format!("objects/pack/{name}.{end}"));
    let packed: Vec<(&str, &[u8])> = match arrival.pack.is_empty() {
        true => Vec::new(),
        false => vec![(&data, arrival.bytes()), (&list, &index)],
    };
    let said = task(write_input(shadow, &input, &packed)?).verify().await?;
    let format = repository.snapshot.format;
    let facts = shadow.rights.act(|| {
        let worktree = repository.worktree.as_deref().unwrap_or(Path::new(""));
        let risk = RiskCheck::new(&shadow.names, worktree, shadow.workspace.as_fd());
        Ok(Verification::parse(
            &said,
            &arrival.candidates.pairs,
            format,
            &risk,
        ))
    });
    let facts = facts
        .map_err(|error| error.to_string())?
        .map_err(|error| describe(&error))?;
    let import = Import {
        engine,
        run,
        shadow,
        repository,
        arrival: &arrival,
        facts: &facts,
    };
    let (placed, moved) = place_and_update(import, files).await?;
    let outcome = ImportOutcome {
        repository,
        plan: &arrival.plan,
        candidates: &arrival.candidates,
        facts: &facts,
        size: (arrival.pack.len(), arrival.bytes().len()),
        placed,
        moved,
        kept_by: matches!(files, FilesLocation::Kept).then_some(run),
        inside: arrival.listing.head.as_ref(),
        now: host_now(shadow, repository),
    };
    let import = report(&outcome);
    let note = note(&outcome, &import);
    Ok(Some((import, note)))
}

/// Places the pack and the references under `refs/airlock/`, and updates what may be updated.
async fn place_and_update(
    import: Import<'_>,
    files: FilesLocation<'_>,
) -> Result<(ImportedRefs, Option<RefUpdateResult>), String> {
    let (shadow, repository) = (import.shadow, import.repository);
    let decision = match files {
        FilesLocation::Applied(is_applied) => Some(import.decide(is_applied)?),
        FilesLocation::Live | FilesLocation::Kept => None,
    };
    let (draft, pack) = (fresh_draft(), import.arrival.pack.name());
    shadow
        .folder
        .sync()
        .map_err(|error| format!("cannot write its journal: {error}"))?;
    let journal = Journal::begin(shadow.folder.journal(), &repository.host, &draft, &pack);
    let journal = journal.map_err(|error| format!("cannot write its journal: {error}"))?;
    let common = repository.host.common.as_fd();
    let before = decision.as_ref().map(|decision| import.before(decision));
    let before = before.unwrap_or_default();
    let placed = place(&import, &before, &draft);
    let moved = match (decision, &placed) {
        (Some(decision), Ok(placed)) => {
            let placed = (placed, before.as_slice());
            Some(import.carry_out(decision, placed, &journal).await)
        }
        _ => None,
    };
    if moved
        .as_ref()
        .is_some_and(|moved| moved.half_done.is_some())
    {
        return placed.map(|placed| (placed, moved));
    }
    // From here on the references keep the objects; without them `git gc` may remove them.
    let let_go = || Ok(import::release_pack(common, &pack));
    let let_go = shadow.rights.act(let_go).map_err(|error| error.to_string());
    let closed = let_go.and_then(|let_go| let_go.map_err(|error| describe(&error)));
    let closed = closed.and_then(|()| journal.close().map_err(|error| error.to_string()));
    // The first error says more.
    let placed = placed?;
    closed.map(|()| (placed, moved))
}

/// Whether the program's references are unchanged. If they cannot be read, task A decides.
pub(super) fn is_untouched(
    shadow: &ShadowRepository,
    repository: &Repository,
    is_staged: bool,
) -> bool {
    let snapshot = &repository.snapshot;
    let Ok(folder) = shadow.folder.open(&repository.place) else {
        return false;
    };
    let head = refs::read_head(folder.as_fd(), snapshot.format);
    let now = RefMap::read(folder.as_fd(), snapshot.format);
    match (head, now) {
        (Ok(head), Ok(now)) => {
            import::is_same(&snapshot.head, &snapshot.refs, &head, &now)
                && (!is_staged || head == snapshot.head)
        }
        _ => false,
    }
}

/// Parses and checks the output of task A on a blocking thread: the references, what is new, and
/// the pack.
async fn check(repository: &Repository, output: Vec<u8>) -> Result<CheckedExport, String> {
    let snapshot = &repository.snapshot;
    let format = snapshot.format;
    let (head, before): (Head, RefMap) = (snapshot.head.clone(), snapshot.refs.clone());
    let read = move || -> Result<CheckedExport, GitError> {
        let (listing, rest) = RefListing::parse(&output, format)?;
        let plan = listing.plan(&head, &before)?;
        let pack = Pack::check(rest, format, &PackLimits::DEFAULT)?;
        plan.check(&pack)?;
        let at = output.len() - rest.len();
        Ok(CheckedExport {
            listing,
            plan,
            pack,
            output,
            at,
            candidates: UpdateCandidates::default(),
        })
    };
    tokio::task::spawn_blocking(read)
        .await
        .map_err(|error| internal(error.to_string()).message)?
        .map_err(|error| describe(&error))
}

/// Places the pack as the owner of the folder, if the repository is still the one that was
/// shadowed.
fn place(
    import: &Import<'_>,
    before: &[RewrittenRef],
    draft: &str,
) -> Result<ImportedRefs, String> {
    let (repository, arrival) = (import.repository, import.arrival);
    let common = repository.host.common.as_fd();
    let planned = arrival.plan.refs.iter();
    let mut refs: Vec<(String, ObjectId)> = planned
        .map(|planned| (planned.below.clone(), planned.new.clone()))
        .collect();
    refs.extend(before.iter().map(|one| (one.below.clone(), one.id.clone())));
    let put = || -> io::Result<Result<ImportedRefs, GitError>> {
        let here = rustix::fs::fstat(common)?;
        let there = rustix::fs::stat(&repository.host.path)?;
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino) {
            return Err(io::Error::other("the repository was replaced meanwhile"));
        }
        let known = RefMap::read(common, repository.snapshot.format);
        Ok(known.and_then(|known| {
            import::place_pack(common, &arrival.pack, arrival.bytes())?;
            import::place_refs(common, import.run.as_str(), &refs, &known, draft)
        }))
    };
    let placed = import.shadow.rights.act(put);
    placed
        .map_err(|error| error.to_string())?
        .map_err(|error| describe(&error))
}
