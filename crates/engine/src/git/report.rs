//! Reports an import: the entry of the result, and the note with the git commands for the user.

use super::{
    Repository,
    ref_update::{NOT_IN_FOLDER, RefUpdateResult, UpdateCandidates, head_words},
    verification::{PairVerification, Verification},
};
use ::git::{Head, ImportPlan, RefMap, escape, import::ImportedRefs};
use spec::{GitHead, GitImport, GitIndex, GitOmission, GitRef, Id, MAX_LISTED_CHANGES};

/// The most commands in one note.
const MAX_COMMANDS: usize = 3;
/// The most moved references in one note.
const MAX_NAMED: usize = 5;

/// The outcome of importing one repository.
pub(super) struct ImportOutcome<'a> {
    pub(super) repository: &'a Repository,
    pub(super) plan: &'a ImportPlan,
    pub(super) candidates: &'a UpdateCandidates,
    pub(super) facts: &'a Verification,
    /// Numbers of objects and bytes.
    pub(super) size: (usize, usize),
    pub(super) placed: ImportedRefs,
    /// None where nothing was to move.
    pub(super) moved: Option<RefUpdateResult>,
    /// The run whose layer has the files, if the folder does not have them.
    pub(super) kept_by: Option<&'a Id>,
    pub(super) inside: Option<&'a Head>,
    /// The current state of the host's repository.
    pub(super) now: (Option<Head>, RefMap),
}

/// The path of a repository in a result.
pub(super) fn path_of(repository: &Repository) -> String {
    match repository.place.as_str() {
        "" => ".git".to_owned(),
        place => escape(&format!(".git/{place}")),
    }
}

pub(super) fn report(outcome: &ImportOutcome<'_>) -> GitImport {
    let plan = outcome.plan;
    let refs = plan.refs.iter().zip(&outcome.placed.refs).enumerate();
    let refs = refs.map(|(number, (planned, placed))| {
        let verdict = outcome.moved.as_ref().map(|moved| &moved.refs[number]);
        let moved = matches!(verdict, Some(Ok(())));
        GitRef {
            name: planned.name.clone(),
            old: planned.old.as_ref().map(ToString::to_string),
            new: planned.new.to_string(),
            placed: match moved {
                true => planned.name.clone(),
                false => placed.clone(),
            },
            moved,
            why: verdict.and_then(|verdict| verdict.clone().err()),
        }
    });
    let left = plan.left.iter().take(MAX_LISTED_CHANGES);
    let left = left.map(|(what, why)| GitOmission {
        what: what.clone(),
        why: why.clone(),
    });
    let heads = outcome.inside.zip(outcome.now.0.as_ref());
    let heads = heads.filter(|_| outcome.moved.is_some());
    let (objects, bytes) = outcome.size;
    GitImport {
        path: path_of(outcome.repository),
        objects: objects as u64,
        bytes: bytes as u64,
        refs: refs.collect(),
        touches: outcome.facts.touches.clone(),
        commits: outcome.facts.commits.clone(),
        head: heads.map(|(inside, host)| GitHead {
            inside: head_words(inside),
            host: head_words(host),
        }),
        index: outcome
            .moved
            .as_ref()
            .map_or(GitIndex::Kept, |moved| moved.index),
        not_brought: left.collect(),
    }
}

/// One line: what was imported, what was updated, and the commands for the rest.
pub(super) fn note(outcome: &ImportOutcome<'_>, import: &GitImport) -> Option<String> {
    let path = match outcome.repository.place.as_str() {
        "" => String::new(),
        place => format!(" in `{}`", escape(place)),
    };
    let Some(moved) = &outcome.moved else {
        return note_beside(outcome, import, &path);
    };
    if let Some(why) = &moved.half_done {
        return Some(format!(
            "git{path}: not everything could be moved: {why}; the next command of Airlock ends it"
        ));
    }
    let mut parts: Vec<_> = (0..import.refs.len())
        .filter_map(|number| moved_words(outcome, import, number))
        .collect();
    if parts.len() > MAX_NAMED {
        let more = parts.len() - MAX_NAMED;
        parts.truncate(MAX_NAMED);
        parts.push(format!("{more} more"));
    }
    let now = outcome.now.0.as_ref();
    if now.is_some_and(|now| *now != outcome.repository.snapshot.head) && now == outcome.inside {
        parts.extend(now.map(|now| format!("HEAD at {}", short_head(now))));
    }
    let aside: Vec<_> = import.refs.iter().filter(|one| !one.moved).collect();
    let listed = aside
        .iter()
        .take(MAX_COMMANDS)
        .map(|one| aside_words(outcome, import, one));
    let listed: Vec<_> = listed.collect();
    if !aside.is_empty() {
        parts.push(format!("{} kept aside: {}", aside.len(), listed.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("git{path}: {}", parts.join("; ")))
}

/// The words for a reference that was updated.
fn moved_words(outcome: &ImportOutcome<'_>, import: &GitImport, number: usize) -> Option<String> {
    let one = import.refs.get(number).filter(|one| one.moved)?;
    let branch = one.name.strip_prefix("refs/heads/");
    let short = branch.or(one.name.strip_prefix("refs/tags/"))?;
    let short = escape(short);
    if one.old.is_none() {
        return Some(format!("{short} new"));
    }
    let facts = facts_of(outcome, number)?;
    Some(match (facts.is_forward, facts.commits) {
        (true, 1) => format!("{short} +1 commit"),
        (true, commits) => format!("{short} +{commits} commits"),
        (false, _) => {
            let below = &outcome.plan.refs.get(number)?.below;
            let run = &outcome.placed.run;
            format!("{short} rewritten, before it was refs/airlock/{run}/before/{below}")
        }
    })
}

fn facts_of<'a>(outcome: &ImportOutcome<'a>, number: usize) -> Option<&'a PairVerification> {
    let asked = outcome.candidates.pair_of(number)?;
    outcome.facts.pairs.get(asked)
}

fn short_head(head: &Head) -> String {
    let words = head_words(head);
    match words.strip_prefix("refs/heads/") {
        Some(short) => short.to_owned(),
        None => words.chars().take(12).collect(),
    }
}

/// The words for a reference that was not, with the command that takes it over, if that is
/// advisable.
fn aside_words(outcome: &ImportOutcome<'_>, import: &GitImport, one: &GitRef) -> String {
    let why = one.why.as_deref().unwrap_or("beside");
    let number = import.refs.iter().position(|other| other == one);
    let facts = number.and_then(|number| facts_of(outcome, number));
    let is_risky = match facts {
        Some(facts) => facts.check_risk().is_err(),
        None => !import.touches.is_empty(),
    };
    let told = format!("{} ({why})", one.placed);
    match is_risky {
        true => format!("{told}: read it before you take it over"),
        false => format!("{told}: {}", command(one, outcome, facts)),
    }
}

/// The note where nothing was updated: the commands that take the commits over.
fn note_beside(outcome: &ImportOutcome<'_>, import: &GitImport, path: &str) -> Option<String> {
    let head = outcome.now.0.as_ref();
    if let Some(first) = import.touches.first() {
        let placed = &import.refs.first()?.placed;
        return Some(format!(
            "git: the program's commits have arrived under `{placed}`, but change what git or your tools obey, `{first}` \
             for one: read them before you take them over"
        ));
    }
    let is_open = |one: &&GitRef| matches!(head, Some(Head::Branch(name)) if *name == one.name);
    let (open, others): (Vec<_>, Vec<_>) = import.refs.iter().partition(is_open);
    let commands = open
        .into_iter()
        .chain(others)
        .map(|one| command(one, outcome, None));
    let shown: Vec<_> = commands.take(MAX_COMMANDS).collect();
    let more = import.refs.len().saturating_sub(shown.len());
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more, see `git for-each-ref refs/airlock`"),
    };
    let (list, first) = (
        shown.join(", "),
        match outcome.kept_by {
            // Without its files, a new commit would look as if the user had reverted them.
            Some(run) => format!("after `airlock workspace commit {run}` "),
            None => String::new(),
        },
    );
    (!shown.is_empty()).then(|| {
        format!(
            "git{path}: the program's commits have arrived; {first}take them over with {list}{more}"
        )
    })
}

/// The one command that takes over a reference.
fn command(one: &GitRef, outcome: &ImportOutcome<'_>, facts: Option<&PairVerification>) -> String {
    let (head, now) = &outcome.now;
    let placed = &one.placed;
    let known = now.direct.get(&one.name).map(ToString::to_string);
    let is_open = matches!(head, Some(Head::Branch(name)) if *name == one.name);
    // A fast-forward that was not applied may differ in files: the user's changes are stashed
    // first.
    let resets = known == one.old && !facts.is_some_and(|facts| facts.is_forward);
    let branch = one.name.strip_prefix("refs/heads/");
    let tag = one.name.strip_prefix("refs/tags/");
    let is_in_folder = one.why.as_deref() != Some(NOT_IN_FOLDER);
    match (branch, tag) {
        // The user's changes are stashed, and reapplied once the program's files are there.
        (Some(_), _) if is_open && resets && !is_in_folder => {
            format!("`git rebase --autostash --onto {placed} HEAD`")
        }
        (Some(_), _) if is_open && resets => format!("`git reset {placed}`"),
        (Some(_), _) if is_open => format!("`git merge --autostash {placed}`"),
        // Under its own name it would be ambiguous with a tag or branch of the user's.
        (Some(name), _) if now.direct.contains_key(&format!("refs/tags/{name}")) => {
            format!("`git log {placed}`")
        }
        (None, Some(name)) if now.direct.contains_key(&format!("refs/heads/{name}")) => {
            format!("`git log {placed}`")
        }
        (Some(name), _) if known.is_none() => format!("`git branch {name} {placed}`"),
        (Some(name), _) => format!("`git fetch . {placed}:refs/heads/{name}`"),
        (None, Some(name)) => format!("`git tag {name} {placed}`"),
        (None, None) if one.name == "refs/stash" => format!("`git stash apply {placed}`"),
        (None, None) => format!("`git log {placed}`"),
    }
}
