//! After the program: what it committed arrives in the host's repository, or nothing does.

use super::{
    Hold, Repository,
    boxes::{Order, told},
    in_words,
};
use crate::{Inner, making::internal};
use ::git::{Bounds, GitError, Head, Listing, Pack, Plan, RefMap, escape, import, refs};
use sandbox::native::protect;
use spec::{GitImport, GitLeft, GitRef, Id, ProtectedNames};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::Path,
    sync::Arc,
};

/// Commands that one note names.
const MOST_COMMANDS: usize = 3;
/// Paths to beware of that a result names.
const MOST_TOUCHED: usize = 100;

/// Brings what is new in each repository, submodules first, and gives the folder back: removed, or kept where something
/// could not be brought.
pub(crate) async fn settle(
    engine: &Arc<Inner>,
    run: &Id,
    hold: Hold,
    ran: bool,
) -> (Vec<GitImport>, Vec<String>) {
    let (mut imports, mut notes) = (Vec::new(), Vec::new());
    if ran {
        for repository in hold.repositories.iter().rev() {
            match bring(engine, run, &hold, repository).await {
                Ok(None) => {}
                Ok(Some(import)) => {
                    notes.extend(note(&hold, repository, &import));
                    imports.push(import);
                }
                Err(why) => {
                    let what = match repository.place.as_str() {
                        "" => ".git".to_owned(),
                        place => escape(&format!(".git/{place}")),
                    };
                    let left = GitLeft { what, why };
                    imports.push(GitImport {
                        path: left.what.clone(),
                        not_brought: vec![left],
                        ..GitImport::default()
                    });
                }
            }
        }
    }
    let folder = hold.folder;
    let failed = imports
        .iter()
        .find(|import| import.refs.is_empty() && !import.not_brought.is_empty());
    let given_back = match failed.and_then(|import| import.not_brought.first()) {
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
    (imports, notes)
}

/// One repository; none if nothing in it is new.
async fn bring(
    engine: &Arc<Inner>,
    run: &Id,
    hold: &Hold,
    repository: &Repository,
) -> Result<Option<GitImport>, String> {
    if is_untouched(hold, repository) {
        return Ok(None);
    }
    let format = repository.snapshot.format;
    let (folder, empty) = (hold.folder.shown(), hold.folder.empty());
    let order = |told| Order {
        engine,
        repository,
        folder: &folder,
        empty: &empty,
        told,
    };
    let lay_out = |files: Vec<(&'static str, Vec<u8>)>, more: &[(&str, &[u8])]| {
        let files = files.iter().map(|(name, bytes)| (*name, bytes.as_slice()));
        let files: Vec<_> = files.chain(more.iter().copied()).collect();
        hold.folder
            .lay_out("told", &files)
            .map_err(|error| error.to_string())
    };
    let output = order(lay_out(told(repository, None), &[])?)
        .export()
        .await?;
    let (output, read) = tokio::task::spawn_blocking({
        let (head, before) = (
            repository.snapshot.head.clone(),
            repository.snapshot.refs.clone(),
        );
        move || {
            let read = check(&output, format, &head, &before).map_err(|error| in_words(&error));
            (output, read)
        }
    })
    .await
    .map_err(|error| internal(error.to_string()).message)?;
    let (plan, pack, at) = read?;
    if plan.refs.is_empty() {
        return Ok(None);
    }
    let bytes = &output[at..];
    let (name, index) = (pack.name(), pack.index());
    let [data, list] = ["pack", "idx"].map(|end| format!("objects/pack/{name}.{end}"));
    let packed: Vec<(&str, &[u8])> = match pack.is_empty() {
        true => Vec::new(),
        false => vec![(&data, bytes), (&list, &index)],
    };
    let changes = order(lay_out(told(repository, Some(&plan)), &packed)?)
        .verify()
        .await?;
    let touches = touches(&changes, &hold.names).map_err(|error| in_words(&error))?;
    let placed = place(hold, repository, run, (&pack, bytes), &plan)?;
    let report = report(repository, &plan, placed, (&pack, bytes));
    Ok(Some(GitImport { touches, ..report }))
}

/// Whether the program's references are what they were. What cannot be read is for the box to say.
fn is_untouched(hold: &Hold, repository: &Repository) -> bool {
    let snapshot = &repository.snapshot;
    let Ok(folder) = hold.folder.open(&repository.place) else {
        return false;
    };
    let head = refs::read_head(folder.as_fd(), snapshot.format);
    let now = RefMap::read(folder.as_fd(), snapshot.format);
    match (head, now) {
        (Ok(head), Ok(now)) => import::is_same(&snapshot.head, &snapshot.refs, &head, &now),
        _ => false,
    }
}

/// Reads what box A printed: the list, what is new in it, and the pack with the place at which it begins.
fn check(
    output: &[u8],
    format: ::git::ObjectFormat,
    head: &Head,
    before: &RefMap,
) -> Result<(Plan, Pack, usize), GitError> {
    let (listing, rest) = Listing::parse(output, format)?;
    let plan = listing.plan(head, before)?;
    let pack = Pack::check(rest, format, &Bounds::DEFAULT)?;
    plan.check(&pack)?;
    Ok((plan, pack, output.len() - rest.len()))
}

/// Protected names that new commits change, places where another repository is to lie, and symbolic links: git or an editor
/// would obey what lies there, or write elsewhere, once the commits are taken over.
fn touches(changes: &[u8], names: &ProtectedNames) -> Result<Vec<String>, GitError> {
    let all = import::parse_changes(changes)?.into_iter();
    let risky = all.filter(|change| {
        let path = Path::new(OsStr::from_bytes(change.path));
        change.is_new_gitlink || change.is_new_link || protect::find(path, names).is_some()
    });
    let paths: BTreeSet<_> = risky
        .map(|change| escape(&String::from_utf8_lossy(change.path)))
        .collect();
    Ok(paths.into_iter().take(MOST_TOUCHED).collect())
}

/// As the owner of the folder, and only if the repository is still the one that the program's was made from.
fn place(
    hold: &Hold,
    repository: &Repository,
    run: &Id,
    (pack, bytes): (&Pack, &[u8]),
    plan: &Plan,
) -> Result<Vec<String>, String> {
    let common = repository.host.common.as_fd();
    let put = || -> io::Result<Result<Vec<String>, GitError>> {
        let here = rustix::fs::fstat(common)?;
        let there = rustix::fs::stat(&repository.host.path)?;
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino) {
            return Err(io::Error::other("the repository was replaced meanwhile"));
        }
        let known = RefMap::read(common, repository.snapshot.format);
        let placed = known.and_then(|known| {
            import::place(common, run.as_str(), Some((pack, bytes)), plan, &known)
        });
        Ok(placed)
    };
    hold.rights
        .act(put)
        .map_err(|error| error.to_string())?
        .map_err(|error| in_words(&error))
}

fn report(
    repository: &Repository,
    plan: &Plan,
    placed: Vec<String>,
    (pack, bytes): (&Pack, &[u8]),
) -> GitImport {
    let refs = plan
        .refs
        .iter()
        .zip(placed)
        .map(|(planned, placed)| GitRef {
            name: planned.name.clone(),
            old: planned.old.as_ref().map(ToString::to_string),
            new: planned.new.to_string(),
            placed,
        });
    let left = plan.left.iter().map(|(what, why)| GitLeft {
        what: what.clone(),
        why: why.clone(),
    });
    GitImport {
        path: match repository.place.as_str() {
            "" => ".git".to_owned(),
            place => escape(&format!(".git/{place}")),
        },
        objects: pack.len() as u64,
        bytes: bytes.len() as u64,
        refs: refs.collect(),
        touches: Vec::new(),
        not_brought: left.collect(),
    }
}

/// What arrived, with the command that takes it over.
fn note(hold: &Hold, repository: &Repository, import: &GitImport) -> Option<String> {
    let format = repository.snapshot.format;
    let now = hold.rights.act(|| {
        let head = refs::read_head(repository.host.git.as_fd(), format).ok();
        let refs = RefMap::read(repository.host.common.as_fd(), format);
        Ok((head, refs.unwrap_or_default()))
    });
    let (head, now) = now.unwrap_or_default();
    if let Some(first) = import.touches.first() {
        let placed = &import.refs.first()?.placed;
        return Some(format!(
            "git: the program's commits have arrived under `{placed}`, but change what git or your tools obey, `{first}` \
             for one: read them before you take them over"
        ));
    }
    let is_open = |one: &&GitRef| matches!(&head, Some(Head::Branch(name)) if *name == one.name);
    let (open, others): (Vec<_>, Vec<_>) = import.refs.iter().partition(is_open);
    let commands = open
        .into_iter()
        .chain(others)
        .map(|one| command(one, head.as_ref(), &now));
    let shown: Vec<_> = commands.take(MOST_COMMANDS).collect();
    let more = import.refs.len().saturating_sub(shown.len());
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more, see `git for-each-ref refs/airlock`"),
    };
    let path = match repository.place.as_str() {
        "" => String::new(),
        place => format!(" in `{}`", escape(place)),
    };
    let list = shown.join(", ");
    (!shown.is_empty()).then(|| {
        format!("git{path}: the program's commits have arrived; take them over with {list}{more}")
    })
}

/// The one command that makes a reference the user's own.
fn command(one: &GitRef, head: Option<&Head>, now: &RefMap) -> String {
    let placed = &one.placed;
    let known = now.direct.get(&one.name).map(ToString::to_string);
    let is_open = matches!(head, Some(Head::Branch(name)) if *name == one.name);
    let branch = one.name.strip_prefix("refs/heads/");
    let tag = one.name.strip_prefix("refs/tags/");
    match (branch, tag) {
        (Some(_), _) if is_open && known == one.old => format!("`git reset {placed}`"),
        (Some(_), _) if is_open => format!("`git merge --autostash {placed}`"),
        // Under its own name it would stand before another one of the user's.
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
