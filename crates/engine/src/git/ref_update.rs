//! Updates branches, index and `HEAD` of the host's repository, where the program's changes were
//! applied to the folder.
//!
//! All commits are under `refs/airlock/RUN/` by then. So a conflict, a late failure or a crash
//! loses no commit: it stays there, with the reason.

use super::{
    AppliedCheck, Repository, ShadowRepository, describe,
    import::{CheckedExport, fresh_draft, write_input},
    journal::Journal,
    sandboxes::{CommitPair, GitTask, OldCommit, index_input},
    verification::{PairVerification, Verification},
};
use crate::{Inner, record};
use ::git::{
    GitError, GitFolders, Head, HostState, ImportPlan, ObjectId, PlannedRef, RefListing, RefMap,
    Transaction, check_index,
    import::ImportedRefs,
    ref_updates::{self, MAX_UPDATED_REFS, RefUpdateContext, check_ref_update},
    transaction::{
        IndexFile, ReflogLine, TransactionStep, TransactionTarget, index_checksum,
        remove_airlock_ref,
    },
};
use spec::{GitIndex, Id};
use std::{collections::BTreeSet, io, os::fd::AsFd, sync::Arc, time::Duration};

/// The timeout for locks of the user's own git processes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason when files are not as the program left them.
pub(super) const NOT_IN_FOLDER: &str = "a file of it was not applied, or was changed here";

/// The new state of `HEAD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadMove {
    /// Its new contents.
    to: Head,
    /// Its old and new commit.
    pair: CommitPair,
}

/// What may be updated, as far as that is known without the locks.
#[derive(Debug)]
pub(super) struct UpdateDecision {
    /// For each planned reference.
    pub(super) refs: Vec<Result<(), String>>,
    /// The new `HEAD`, with the index, if it moves.
    pub(super) head: Option<HeadMove>,
    /// Branches that the user has checked out: they move with `HEAD` and index, or stay.
    members: Vec<usize>,
    /// `HEAD` at the time of the decision.
    here: Head,
}

/// The old commit of a branch that is rewritten.
#[derive(Debug)]
pub(super) struct RewrittenRef {
    /// The number of the planned reference.
    number: usize,
    /// The name below `refs/airlock/RUN/`.
    pub(super) below: String,
    pub(super) id: ObjectId,
}

/// The result of an update.
#[derive(Debug)]
pub(super) struct RefUpdateResult {
    /// For each planned reference.
    pub(super) refs: Vec<Result<(), String>>,
    pub(super) index: GitIndex,
    /// What is incomplete, if anything is: the journal stays.
    pub(super) half_done: Option<String>,
}

/// What task B verifies before an update: one pair for each reference that could move, and one for
/// `HEAD`.
#[derive(Debug, Default)]
pub(super) struct UpdateCandidates {
    pub(super) pairs: Vec<CommitPair>,
    /// The planned references of the pairs.
    refs: Vec<usize>,
    /// The new `HEAD`, or why it cannot move.
    head: Option<Result<HeadMove, String>>,
}

impl UpdateCandidates {
    pub(super) fn new(
        repository: &Repository,
        listing: &RefListing,
        plan: &ImportPlan,
    ) -> UpdateCandidates {
        let snapshot = &repository.snapshot;
        let is_open = |planned: &PlannedRef| {
            let is = |head: &Head| matches!(head, Head::Branch(name) if *name == planned.name);
            is(&snapshot.head) || listing.head.as_ref().is_some_and(is)
        };
        let mut refs: Vec<_> = (0..plan.refs.len()).collect();
        refs.sort_by_key(|number| !is_open(&plan.refs[*number]));
        refs.truncate(MAX_UPDATED_REFS);
        let pair = |number: &usize| {
            let planned = &plan.refs[*number];
            let old = planned.old.clone();
            CommitPair {
                new: planned.new.clone(),
                old: old.map_or(OldCommit::Absent, OldCommit::Commit),
            }
        };
        let head = head_move(repository, listing);
        let of_head = head.iter().flatten().map(|head| head.pair.clone());
        UpdateCandidates {
            pairs: refs.iter().map(pair).chain(of_head).collect(),
            refs,
            head,
        }
    }

    /// The number of the pair of a planned reference.
    pub(super) fn pair_of(&self, number: usize) -> Option<usize> {
        self.refs.iter().position(|asked| *asked == number)
    }

    /// Whether `HEAD` moved inside.
    pub(super) fn moves_head(&self) -> bool {
        matches!(self.head, Some(Ok(_)))
    }
}

/// The new `HEAD`: none if it stays, an error if it cannot follow. A detached `HEAD` of the
/// workspace's own repository never moves.
fn head_move(repository: &Repository, listing: &RefListing) -> Option<Result<HeadMove, String>> {
    let snapshot = &repository.snapshot;
    let is_top = repository.place.is_empty();
    let Some(inside) = &listing.head else {
        return Some(Err("where the program left HEAD cannot be read".to_owned()));
    };
    match (&snapshot.head, inside) {
        (Head::Detached(_), _) if is_top => return None,
        (Head::Branch(_), Head::Detached(_)) => {
            return Some(Err("the program left HEAD detached".to_owned()));
        }
        _ => {}
    }
    let old = snapshot.commit();
    let Some(new) = listing.refs.at(inside) else {
        let is_unborn = old.is_none() && *inside == snapshot.head;
        let why = || Err("the program ended on a branch without a commit".to_owned());
        return (!is_unborn).then(why);
    };
    if *inside == snapshot.head && old == Some(new) {
        return None;
    }
    Some(Ok(HeadMove {
        to: inside.clone(),
        pair: CommitPair {
            new: new.clone(),
            old: old.cloned().map_or(OldCommit::Empty, OldCommit::Commit),
        },
    }))
}

/// The parameters of the import of one repository.
#[derive(Clone, Copy)]
pub(super) struct Import<'a> {
    pub(super) engine: &'a Arc<Inner>,
    pub(super) run: &'a Id,
    pub(super) shadow: &'a ShadowRepository,
    pub(super) repository: &'a Repository,
    pub(super) arrival: &'a CheckedExport,
    pub(super) facts: &'a Verification,
}

impl Import<'_> {
    fn plan(&self) -> &ImportPlan {
        &self.arrival.plan
    }

    fn read_host(&self) -> Result<HostState, String> {
        let format = self.repository.snapshot.format;
        self.act(|host| HostState::read(host, format))
    }

    fn names(&self) -> BTreeSet<String> {
        let refs = self.plan().refs.iter();
        refs.map(|planned| planned.name.clone()).collect()
    }

    /// Decides what may be updated.
    pub(super) fn decide(&self, is_applied: &AppliedCheck<'_>) -> Result<UpdateDecision, String> {
        let (candidates, now) = (&self.arrival.candidates, self.read_host()?);
        let brought = self.names();
        let surroundings = self.surroundings(&now, &brought);
        let too_many = || Err(format!("more than {MAX_UPDATED_REFS} references are new"));
        let judge = |(number, planned): (usize, &PlannedRef)| {
            if planned.name == "HEAD" {
                return Err("a detached HEAD stays where it is".to_owned());
            }
            let facts = candidates
                .pair_of(number)
                .and_then(|asked| self.facts.pairs.get(asked));
            facts.map_or_else(too_many, PairVerification::check_risk)?;
            check_ref_update(planned, &surroundings)
        };
        let refs: Vec<_> = self.plan().refs.iter().enumerate().map(judge).collect();
        let mut decision = UpdateDecision {
            members: self.checked_out_branches(&now),
            refs,
            head: None,
            here: now.head.clone(),
        };
        let head = match &candidates.head {
            // A branch that is checked out here now must not move under the user, wherever `HEAD`
            // is inside.
            _ if now.head != self.repository.snapshot.head => {
                Err("HEAD was moved here meanwhile".to_owned())
            }
            None => Ok(None),
            Some(Err(why)) => Err(why.clone()),
            Some(Ok(head)) => self
                .check_head(head, &now, &decision, is_applied)
                .map(|()| Some(head.clone())),
        };
        match head {
            Ok(head) => decision.head = head,
            Err(why) => decision.keep_head(&why),
        }
        if let Some(head) = &decision.head
            && let Some(number) = self.detached(head)
        {
            decision.refs[number] = Ok(());
            decision.members.push(number);
        }
        Ok(decision)
    }

    fn surroundings<'a>(
        &'a self,
        now: &'a HostState,
        brought: &'a BTreeSet<String>,
    ) -> RefUpdateContext<'a> {
        let remotes = &self.repository.snapshot.settings.remotes;
        RefUpdateContext {
            now,
            remotes,
            imported: brought,
        }
    }

    /// The planned reference for a detached `HEAD`.
    fn detached(&self, head: &HeadMove) -> Option<usize> {
        let is_detached = matches!(head.to, Head::Detached(_));
        let mut refs = self.plan().refs.iter();
        refs.position(|planned| is_detached && planned.name == "HEAD")
    }

    fn checked_out_branches(&self, now: &HostState) -> Vec<usize> {
        let open = [&self.repository.snapshot.head, &now.head];
        let is_open = |planned: &PlannedRef| {
            let is = |head: &&Head| matches!(head, Head::Branch(name) if *name == planned.name);
            open.iter().any(is)
        };
        let refs = self.plan().refs.iter().enumerate();
        refs.filter(|(_, planned)| is_open(planned))
            .map(|(number, _)| number)
            .collect()
    }

    /// Whether index and `HEAD` may move.
    fn check_head(
        &self,
        head: &HeadMove,
        now: &HostState,
        decision: &UpdateDecision,
        is_applied: &AppliedCheck<'_>,
    ) -> Result<(), String> {
        if let Some(operation) = now.operation {
            return Err(format!("{operation} is in progress"));
        }
        if let Head::Branch(name) = &now.head
            && now.refs.symbolic.contains_key(name)
        {
            return Err("HEAD leads to a branch that leads to another".to_owned());
        }
        for member in &decision.members {
            decision.refs[*member].clone()?;
        }
        if let Head::Branch(name) = &head.to {
            let mut refs = self.plan().refs.iter();
            let brought = refs.position(|planned| planned.name == *name);
            if let Some(number) = brought {
                decision.refs[number].clone()?;
            }
            let is_here = now.refs.direct.get(name) == Some(&head.pair.new);
            let short = name.strip_prefix("refs/heads/").unwrap_or(name);
            if brought.is_none() && (!is_here || !name.starts_with("refs/heads/")) {
                return Err(format!("the branch `{}` is not here", ::git::escape(short)));
            }
            is_free(name, now)?;
        }
        let facts = self.facts.pairs.last().ok_or("HEAD was not looked at")?;
        facts.check_risk()?;
        self.check_files(facts, is_applied)
    }

    /// Whether the folder has every file that belongs to the new commit.
    fn check_files(
        &self,
        facts: &PairVerification,
        is_applied: &AppliedCheck<'_>,
    ) -> Result<(), String> {
        let Some(worktree) = &self.repository.worktree else {
            return Err("where its files are is not known".to_owned());
        };
        let mut paths: Vec<_> = facts.paths.iter().map(|path| worktree.join(path)).collect();
        for (path, wanted) in &facts.gitlinks {
            let place = worktree.join(path);
            let mut modules = self.shadow.repositories.iter();
            let module = modules.find(|module| module.worktree.as_ref() == Some(&place));
            let Some(module) = module else {
                paths.push(place);
                continue;
            };
            let (host, format) = (&module.host, module.snapshot.format);
            let read = self.shadow.rights.act(|| Ok(HostState::read(host, format)));
            let at = read.ok().and_then(Result::ok);
            let at = at.and_then(|now| now.refs.at(&now.head).cloned());
            if at.is_none() || at != *wanted {
                let path = ::git::escape(&path.to_string_lossy());
                return Err(format!("the submodule `{path}` is not at that commit here"));
            }
        }
        match is_applied(&paths) {
            Ok(true) => Ok(()),
            Ok(false) => Err(NOT_IN_FOLDER.to_owned()),
            Err(error) => Err(format!("the folder could not be compared: {error}")),
        }
    }

    /// The old commits of branches that are rewritten: they are kept under `before/`.
    pub(super) fn before(&self, decision: &UpdateDecision) -> Vec<RewrittenRef> {
        let asked = self.arrival.candidates.refs.iter().zip(&self.facts.pairs);
        let rewritten =
            asked.filter(|(number, facts)| decision.refs[**number].is_ok() && !facts.is_forward);
        let refs = rewritten.filter_map(|(number, _)| {
            let planned = &self.plan().refs[*number];
            Some(RewrittenRef {
                number: *number,
                below: format!("before/{}", planned.below),
                id: planned.old.clone()?,
            })
        });
        refs.collect()
    }

    /// Removes the `before/` references of branches that stay.
    fn drop_before(
        &self,
        before: &[RewrittenRef],
        moved: &[Result<(), String>],
        placed: &ImportedRefs,
    ) {
        let placed = placed.refs.iter().skip(moved.len());
        for (before, name) in before.iter().zip(placed) {
            if moved[before.number].is_err() {
                // A reference that stays is harmless.
                _ = self.act(|host| remove_airlock_ref(host, name, &before.id));
            }
        }
    }

    /// Updates the references. One that cannot be updated stays under `refs/airlock/`, with the
    /// reason.
    pub(super) async fn carry_out(
        &self,
        mut decision: UpdateDecision,
        (placed, before): (&ImportedRefs, &[RewrittenRef]),
        journal: &Journal<'_>,
    ) -> RefUpdateResult {
        let mut index = GitIndex::Kept;
        let mut merged = None;
        if let Some(head) = decision.head.clone()
            && self.changes_files()
        {
            match self.merge_index(&head).await {
                Ok((word, before, bytes)) => {
                    index = word;
                    merged = Some((before, bytes));
                }
                Err(why) => decision.keep_head(&why),
            }
        }
        let mut half_done = None;
        // A second attempt without `HEAD` and index, if those caused the failure.
        for _ in 0..2 {
            if decision.is_empty() {
                break;
            }
            let with_head = decision.head.is_some();
            match self.update_refs(&decision, placed, merged.as_ref(), journal) {
                Ok(()) => break,
                Err(UpdateError::HalfDone(why)) => {
                    half_done = Some(why);
                    break;
                }
                Err(UpdateError::NothingDone(why)) => match with_head {
                    true => decision.keep_head(&why),
                    false => decision.keep_all(&why),
                },
            }
        }
        if half_done.is_none() {
            self.drop_before(before, &decision.refs, placed);
        }
        RefUpdateResult {
            index: match decision.head {
                Some(_) => index,
                None => GitIndex::Kept,
            },
            refs: decision.refs,
            half_done,
        }
    }

    /// Whether the checked-out files differ.
    fn changes_files(&self) -> bool {
        let facts = self.facts.pairs.last();
        facts.is_some_and(|facts| !(facts.paths.is_empty() && facts.gitlinks.is_empty()))
    }

    /// Task C: the merged index, and the one that it was computed from.
    async fn merge_index(
        &self,
        head: &HeadMove,
    ) -> Result<(GitIndex, Option<IndexFile>, Vec<u8>), String> {
        let format = self.repository.snapshot.format;
        let before = self.act(IndexFile::read)?;
        let input = index_input(self.repository, &head.pair, before.as_ref());
        let task = GitTask {
            engine: self.engine,
            repository: self.repository,
            folder: &self.shadow.folder,
            input: write_input(self.shadow, &input, &[])?,
        };
        let output = task.index().await?;
        let words = [
            (&b"moved\n"[..], GitIndex::Moved),
            (b"superseded\n", GitIndex::Superseded),
        ];
        let found = words.into_iter().find_map(|(line, word)| {
            let bytes = output.strip_prefix(line)?;
            Some((word, bytes))
        });
        let (word, bytes) = found.ok_or("the new index cannot be read")?;
        let checked = check_index(bytes, format).map_err(|error| describe(&error))?;
        Ok((word, before, checked))
    }

    /// Writes the repository as the owner of the folder, and the journal as this process.
    fn update_refs(
        &self,
        decision: &UpdateDecision,
        placed: &ImportedRefs,
        index: Option<&(Option<IndexFile>, Vec<u8>)>,
        journal: &Journal<'_>,
    ) -> Result<(), UpdateError> {
        let index = index.filter(|_| decision.head.is_some());
        let transaction = self.transaction(decision, placed, index);
        let unwritten =
            |error: io::Error| UpdateError::NothingDone(format!("its journal: {error}"));
        journal.plan(&transaction).map_err(unwritten)?;
        let locked = self.act(|host| {
            let before = index.and_then(|(before, _)| before.as_ref());
            let bytes = index.map(|(_, bytes)| bytes.as_slice());
            transaction.write_drafts(host, bytes, before)?;
            transaction.lock(host, LOCK_TIMEOUT)?;
            transaction.compare(host)
        });
        let locked = locked
            .map_err(UpdateError::NothingDone)
            .and_then(|()| self.recheck(decision))
            .and_then(|()| journal.decide().map_err(unwritten));
        if let Err(failed) = locked {
            // Stale locks would block the user's git: failing to release them is the more important
            // error.
            let taken_back = journal.take_back().map_err(|error| error.to_string());
            let released = taken_back.and_then(|()| self.act(|host| transaction.release(host)));
            return Err(released.map_or_else(UpdateError::HalfDone, |()| failed));
        }
        let done = self.act(|host| {
            transaction.apply(host)?;
            transaction.release(host)
        });
        done.map_err(UpdateError::HalfDone)
    }

    /// Runs a closure on the repository as the owner of the folder.
    fn act<T: Send>(
        &self,
        work: impl FnOnce(&GitFolders) -> Result<T, GitError> + Send,
    ) -> Result<T, String> {
        let host = &self.repository.host;
        let done = self.shadow.rights.act(|| Ok(work(host)));
        done.map_err(|error| error.to_string())?
            .map_err(|error| describe(&error))
    }

    /// Checks what no lock protects: operations in progress, other worktrees, conflicting names.
    fn recheck(&self, decision: &UpdateDecision) -> Result<(), UpdateError> {
        let now = self.read_host().map_err(UpdateError::NothingDone)?;
        let brought = self.names();
        let surroundings = self.surroundings(&now, &brought);
        let moving = self.plan().refs.iter().zip(&decision.refs);
        let moving = moving.filter(|(planned, verdict)| verdict.is_ok() && planned.name != "HEAD");
        for (planned, _) in moving {
            check_ref_update(planned, &surroundings).map_err(UpdateError::NothingDone)?;
        }
        if let Some(HeadMove {
            to: Head::Branch(name),
            ..
        }) = &decision.head
        {
            is_free(name, &now).map_err(UpdateError::NothingDone)?;
        }
        match now.operation {
            Some(operation) => Err(UpdateError::NothingDone(format!(
                "{operation} is in progress"
            ))),
            None => Ok(()),
        }
    }

    fn transaction(
        &self,
        decision: &UpdateDecision,
        placed: &ImportedRefs,
        index: Option<&(Option<IndexFile>, Vec<u8>)>,
    ) -> Transaction {
        let snapshot = &self.repository.snapshot;
        let format = snapshot.format;
        let mut steps = Vec::new();
        if let Some((before, bytes)) = index {
            steps.push(TransactionStep {
                target: TransactionTarget::Index,
                old: before.as_ref().map(|before| before.checksum(format)),
                new: Some(index_checksum(bytes, format)),
            });
        }
        let (mut logs, mut aside) = (Vec::new(), Vec::new());
        let line = |target, old: Option<&ObjectId>, new: &ObjectId, begin| ReflogLine {
            target,
            begin,
            line: ref_updates::reflog_line(
                (old, new),
                &snapshot.settings.who,
                record::now().0 / 1000,
                &format!("airlock: run {}", self.run),
            ),
        };
        let begins = snapshot.settings.begins_logs;
        let all = self.plan().refs.iter().zip(&decision.refs);
        for ((planned, _), placed) in all
            .zip(&placed.refs)
            .filter(|((_, verdict), _)| verdict.is_ok())
        {
            aside.push((placed.clone(), planned.new.clone()));
            if planned.name == "HEAD" {
                continue;
            }
            let target = TransactionTarget::Ref(planned.name.clone());
            steps.push(TransactionStep {
                target: target.clone(),
                old: planned.old.as_ref().map(ToString::to_string),
                new: Some(planned.new.to_string()),
            });
            let begin = begins && planned.name.starts_with("refs/heads/");
            logs.push(line(target, planned.old.as_ref(), &planned.new, begin));
        }
        let text = |head: &Head| match head {
            Head::Branch(name) => format!("ref: {name}"),
            Head::Detached(id) => id.to_string(),
        };
        let old = text(&decision.here);
        let new = decision.head.as_ref().map(|head| text(&head.to));
        if let Some(head) = &decision.head {
            if let Head::Branch(name) = &head.to
                && !self.names().contains(name)
            {
                steps.push(unchanged_step(name, &head.pair.new));
            }
            logs.push(line(
                TransactionTarget::Head,
                snapshot.commit(),
                &head.pair.new,
                begins,
            ));
        }
        // Locked in any case: a branch must not be checked out while it moves without its index.
        steps.push(TransactionStep {
            target: TransactionTarget::Head,
            new: new.filter(|new| *new != old),
            old: Some(old),
        });
        Transaction {
            drafts: fresh_draft(),
            format,
            steps,
            logs,
            airlock_refs: aside,
            pack: None,
        }
    }
}

/// Whether no other worktree has a branch checked out.
fn is_free(name: &str, now: &HostState) -> Result<(), String> {
    if !now.open_elsewhere.contains(name) {
        return Ok(());
    }
    let short = name.strip_prefix("refs/heads/").unwrap_or(name);
    let short = ::git::escape(short);
    Err(format!("`{short}` is open in another worktree"))
}

/// A step that locks a branch without changing it.
fn unchanged_step(name: &str, at: &ObjectId) -> TransactionStep {
    TransactionStep {
        target: TransactionTarget::Ref(name.to_owned()),
        old: Some(at.to_string()),
        new: None,
    }
}

enum UpdateError {
    /// Nothing was changed.
    NothingDone(String),
    /// The journal says what is left to do.
    HalfDone(String),
}

impl UpdateDecision {
    fn is_empty(&self) -> bool {
        self.head.is_none() && self.refs.iter().all(Result::is_err)
    }

    fn keep_head(&mut self, why: &str) {
        self.head = None;
        for member in &self.members {
            if self.refs[*member].is_ok() {
                self.refs[*member] = Err(why.to_owned());
            }
        }
    }

    /// Gives up all updates.
    fn keep_all(&mut self, why: &str) {
        let left = self.refs.iter_mut().filter(|verdict| verdict.is_ok());
        left.for_each(|verdict| *verdict = Err(why.to_owned()));
    }
}

/// `HEAD` for a result.
pub(super) fn head_words(head: &Head) -> String {
    match head {
        Head::Branch(name) => ::git::escape(name),
        Head::Detached(id) => id.to_string(),
    }
}

/// The current state of the host's repository, as far as it can be read.
pub(super) fn host_now(
    shadow: &ShadowRepository,
    repository: &Repository,
) -> (Option<Head>, RefMap) {
    let format = repository.snapshot.format;
    let read = shadow.rights.act(|| {
        let head = ::git::refs::read_head(repository.host.git.as_fd(), format).ok();
        let refs = RefMap::read(repository.host.common.as_fd(), format);
        Ok((head, refs.unwrap_or_default()))
    });
    read.unwrap_or_default()
}
