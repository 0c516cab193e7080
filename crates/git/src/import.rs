//! The import of the program's commits: which of its references are new, and how they are placed on
//! the host. New references are placed under `refs/airlock/RUN/` first, and nothing is ever
//! deleted. The update of the user's own references is in `ref_updates.rs` and `transaction.rs`.
//!
//! Drafts here are not those of the crate `fs`: their names are known before (`draft`, and
//! `tmp_airlock_…`, which git itself cleans up), so that recovery can remove those of a killed run.
//! Packs get the modes that git gives them.

use crate::{
    GitError, Head, ObjectFormat, ObjectId, Pack, RefMap, escape, failed,
    openat::{self, READ_DIR},
    refs,
};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// References of one import.
pub const MAX_IMPORTED_REFS: usize = 10_000;
/// Paths below one commit.
pub const MAX_PATHS: u64 = 500_000;
/// Nested folders of a commit.
pub const MAX_PATH_DEPTH: usize = 256;
/// Runs with the same name.
const MAX_TRIES: usize = 1000;
/// The content of a `.keep` file, which makes git leave a pack alone.
const KEEP_TEXT: &[u8] = b"airlock\n";

/// The references that a sandboxed git reports, unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefListing {
    /// Its references.
    pub refs: RefMap,
    /// Its `HEAD`.
    pub head: Option<Head>,
}

/// A reference that will be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRef {
    /// Its name in the program's repository.
    pub name: String,
    /// Its object on the host when the program was started.
    pub old: Option<ObjectId>,
    /// Its new object.
    pub new: ObjectId,
    /// Its name below `refs/airlock/RUN/`.
    pub below: String,
}

/// The plan of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportPlan {
    /// New references.
    pub refs: Vec<PlannedRef>,
    /// References that are not imported, and deletions, each with an escaped name and the reason.
    pub left: Vec<(String, String)>,
}

impl RefListing {
    /// Parses the text of `HEAD`, then a line `ID NAME TARGET` for each reference, with a target
    /// for symbolic ones, up to an empty line. Returns the bytes behind it.
    pub fn parse(bytes: &[u8], format: ObjectFormat) -> Result<(RefListing, &[u8]), GitError> {
        let refused = || GitError::Refused("the list of references cannot be read".to_owned());
        let mut listing = RefListing {
            refs: RefMap::default(),
            head: None,
        };
        let mut rest = bytes;
        let mut first = true;
        loop {
            let end = rest
                .iter()
                .position(|byte| *byte == b'\n')
                .ok_or_else(refused)?;
            let line = std::str::from_utf8(&rest[..end]).map_err(|_| refused())?;
            rest = &rest[end + 1..];
            if first {
                listing.head = parse_head(line, format);
                first = false;
                continue;
            }
            if line.is_empty() {
                return Ok((listing, rest));
            }
            let mut words = line.splitn(3, ' ');
            let (id, name, target) = (words.next(), words.next(), words.next());
            let id = id
                .and_then(|id| ObjectId::parse(id, format))
                .ok_or_else(refused)?;
            let name = name.ok_or_else(refused)?.to_owned();
            match target.filter(|target| !target.is_empty()) {
                None => _ = listing.refs.direct.insert(name, id),
                Some(target) => _ = listing.refs.symbolic.insert(name, target.to_owned()),
            }
            if listing.refs.direct.len() + listing.refs.symbolic.len() > refs::MAX_REFS {
                return Err(refused());
            }
        }
    }

    /// Compares the references with those that the host had.
    pub fn plan(&self, head: &Head, before: &RefMap) -> Result<ImportPlan, GitError> {
        let mut plan = ImportPlan::default();
        for (name, id) in &self.refs.direct {
            if before.direct.get(name) == Some(id) {
                continue;
            }
            let below = match name.strip_prefix("refs/") {
                Some(below) if below.starts_with("heads/") || below.starts_with("tags/") => below,
                Some("stash") => "stash",
                _ => {
                    let why = "only branches, tags and the stash are brought".to_owned();
                    plan.left.push((escape(name), why));
                    continue;
                }
            };
            if !refs::is_safe_ref_name(name) {
                let why = "the name is not taken".to_owned();
                plan.left.push((escape(name), why));
                continue;
            }
            plan.refs.push(PlannedRef {
                name: name.clone(),
                old: before.direct.get(name).cloned(),
                new: id.clone(),
                below: below.to_owned(),
            });
        }
        let is_listed =
            |name: &&String| name.starts_with("refs/heads/") || name.starts_with("refs/tags/");
        let deleted = before.direct.keys().filter(is_listed);
        let deleted = deleted.filter(|name| !self.refs.has(name));
        let why = || "it was deleted inside, and stays here".to_owned();
        plan.left.extend(deleted.map(|name| (escape(name), why())));
        if let Some(Head::Detached(id)) = &self.head
            && *head != Head::Detached(id.clone())
            && !before.direct.values().any(|known| known == id)
        {
            plan.refs.push(PlannedRef {
                name: "HEAD".to_owned(),
                old: None,
                new: id.clone(),
                below: "HEAD".to_owned(),
            });
        }
        if plan.refs.len() > MAX_IMPORTED_REFS {
            return Err(GitError::Refused(format!(
                "more than {MAX_IMPORTED_REFS} references are new"
            )));
        }
        Ok(plan)
    }
}

fn parse_head(line: &str, format: ObjectFormat) -> Option<Head> {
    match line.strip_prefix("ref:") {
        Some(name) => Some(Head::Branch(name.trim().to_owned()))
            .filter(|head| matches!(head, Head::Branch(name) if refs::is_valid_ref_name(name))),
        None => ObjectId::parse(line.trim_end(), format).map(Head::Detached),
    }
}

impl ImportPlan {
    /// Checks each new reference against the pack: branches are commits, and no commit has too many
    /// paths.
    pub fn check(&self, pack: &Pack) -> Result<(), GitError> {
        for planned in &self.refs {
            let kind = pack.kind(&planned.new);
            let is_branch = !planned.below.starts_with("tags/");
            if is_branch && kind.is_some_and(|kind| kind != crate::pack::ObjectKind::Commit) {
                let name = escape(&planned.name);
                return Err(GitError::Refused(format!("`{name}` is no commit")));
            }
            let Some(tree) = pack.tree_of(&planned.new) else {
                continue;
            };
            let paths = pack.paths(&tree, MAX_PATH_DEPTH)?;
            if paths > MAX_PATHS {
                let name = escape(&planned.name);
                return Err(GitError::Refused(format!(
                    "`{name}` has more than {MAX_PATHS} paths"
                )));
            }
        }
        Ok(())
    }
}

/// A path that new commits change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedPath<'a> {
    /// The path.
    pub path: &'a [u8],
    /// Whether a submodule is added at the path. Git reads and obeys its repository.
    pub is_new_gitlink: bool,
    /// For a new or changed symbolic link, the object with its target, in hexadecimal. A write
    /// through the link changes another file.
    pub link: Option<&'a [u8]>,
    /// For a submodule, its commit in hexadecimal.
    pub gitlink: Option<&'a [u8]>,
}

/// Parses the output of `git log --raw -z --no-abbrev --format=`.
pub fn parse_changes(text: &[u8]) -> Result<Vec<ChangedPath<'_>>, GitError> {
    const GITLINK: &[u8] = b"160000";
    const LINK: &[u8] = b"120000";
    let refused = || GitError::Refused("the list of changed paths cannot be read".to_owned());
    let mut fields = text.split(|byte| *byte == 0).peekable();
    let mut changes = Vec::new();
    while let Some(field) = fields.next() {
        // A separator between commits, or the end.
        let field = field.strip_prefix(b"\n").unwrap_or(field);
        if field.is_empty() {
            continue;
        }
        let words: Vec<_> = field.split(|byte| *byte == b' ').collect();
        let ([old, new, _, id, ..], Some(path)) = (words.as_slice(), fields.next()) else {
            return Err(refused());
        };
        let old = old.strip_prefix(b":").ok_or_else(refused)?;
        changes.push(ChangedPath {
            path,
            is_new_gitlink: *new == GITLINK && old != GITLINK,
            link: (*new == LINK).then_some(*id),
            gitlink: (*new == GITLINK).then_some(*id),
        });
    }
    Ok(changes)
}

/// References that were placed in the host's repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedRefs {
    /// The name of the run below `refs/airlock/`.
    pub run: String,
    /// The full name of each reference.
    pub refs: Vec<String>,
}

/// Places a checked and verified pack in the host's repository. A `.keep` file protects it from
/// `git gc` until [`release_pack`].
pub fn place_pack(common: BorrowedFd<'_>, pack: &Pack, bytes: &[u8]) -> Result<(), GitError> {
    if pack.is_empty() {
        return Ok(());
    }
    let modes = FileModes::of(common).map_err(failed("look at .git"))?;
    put_pack(common, pack, bytes, modes).map_err(failed("place the pack"))
}

/// Removes the `.keep` file of a pack: from now on references protect it from `git gc`. The `.keep`
/// file of another program stays.
pub fn release_pack(common: BorrowedFd<'_>, pack: &str) -> Result<(), GitError> {
    let release_pack = || -> io::Result<()> {
        let folder = openat::open(common, "objects/pack", READ_DIR)?;
        let keep = format!("{pack}.keep");
        match openat::read(&folder, &keep, KEEP_TEXT.len() as u64)? {
            Some(text) if text == KEEP_TEXT => {
                Ok(rustix::fs::unlinkat(&folder, &keep, AtFlags::empty())?)
            }
            _ => Ok(()),
        }
    };
    match release_pack() {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(failed("let go of the pack")),
    }
}

/// Places references under `refs/airlock/RUN/`. Each is written to `draft` and renamed.
pub fn place_refs(
    common: BorrowedFd<'_>,
    run: &str,
    refs: &[(String, ObjectId)],
    known: &RefMap,
    draft: &str,
) -> Result<ImportedRefs, GitError> {
    if refs.is_empty() {
        return Ok(ImportedRefs::default());
    }
    let modes = FileModes::of(common).map_err(failed("look at .git"))?;
    put_refs(common, run, refs, (known, draft), modes).map_err(failed("place the references"))
}

/// File modes derived from the git folder's own mode, so that a shared repository stays shared.
#[derive(Clone, Copy)]
pub(crate) struct FileModes(u32);

impl FileModes {
    pub(crate) fn of(folder: BorrowedFd<'_>) -> io::Result<FileModes> {
        Ok(FileModes(rustix::fs::fstat(folder)?.st_mode & 0o777))
    }

    pub(crate) fn folder(self) -> Mode {
        Mode::from_raw_mode(self.0)
    }

    pub(crate) fn file(self) -> Mode {
        Mode::from_raw_mode(self.0 & 0o666)
    }

    fn fixed(self) -> Mode {
        Mode::from_raw_mode(self.0 & 0o444)
    }
}

pub(crate) fn write_new(folder: impl AsFd, name: &str, bytes: &[u8], mode: Mode) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = File::from(openat::open(folder, name, flags)?);
    file.write_all(bytes)?;
    rustix::fs::fchmod(&file, mode)?;
    file.sync_all()
}

/// Renames the pack to its name, then the index: git ignores a pack without one.
fn put_pack(common: BorrowedFd<'_>, pack: &Pack, bytes: &[u8], modes: FileModes) -> io::Result<()> {
    let objects = openat::open(common, "objects", READ_DIR)?;
    let folder = openat::make_folder(&objects, "pack".as_ref(), modes.folder())?;
    let name = pack.name();
    if openat::open(&folder, format!("{name}.idx"), OFlags::PATH).is_ok() {
        return Ok(());
    }
    let [keep, data, index] = ["keep", "pack", "idx"].map(|end| format!("{name}.{end}"));
    let drafts = [
        format!("tmp_airlock_{name}_pack"),
        format!("tmp_airlock_{name}_idx"),
    ];
    let put = || {
        write_new(&folder, &keep, KEEP_TEXT, modes.fixed())?;
        write_new(&folder, &drafts[0], bytes, modes.fixed())?;
        write_new(&folder, &drafts[1], &pack.index(), modes.fixed())?;
        rustix::fs::renameat(&folder, &drafts[0], &folder, &data)?;
        rustix::fs::renameat(&folder, &drafts[1], &folder, &index)?;
        Ok(rustix::fs::fsync(&folder)?)
    };
    put().inspect_err(|_| {
        for name in [&keep, &drafts[0], &drafts[1], &data] {
            // A file that was not created cannot be removed.
            _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
        }
    })
}

/// Removes the incomplete pack of a killed run. A complete pack stays: without references, `git gc`
/// removes it.
pub fn clear_pack(common: BorrowedFd<'_>, pack: &str) -> Result<(), GitError> {
    if let Ok(folder) = openat::open(common, "objects/pack", READ_DIR) {
        let drafts = ["pack", "idx"].map(|end| format!("tmp_airlock_{pack}_{end}"));
        let has_index = openat::open(&folder, format!("{pack}.idx"), OFlags::PATH).is_ok();
        let half = (!has_index).then(|| format!("{pack}.pack"));
        for name in drafts.into_iter().chain(half) {
            match rustix::fs::unlinkat(&folder, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(failed("remove half a pack")(error.into())),
            }
        }
    }
    release_pack(common, pack)
}

/// Places references in a new folder of the run, so that none is overwritten.
fn put_refs(
    common: BorrowedFd<'_>,
    run: &str,
    all: &[(String, ObjectId)],
    (known, draft): (&RefMap, &str),
    modes: FileModes,
) -> io::Result<ImportedRefs> {
    let refs = openat::open(common, "refs", READ_DIR)?;
    let ours = openat::make_folder(&refs, "airlock".as_ref(), modes.folder())?;
    let (run, top) = make_run_folder(&ours, run, known, modes)?;
    let mut placed = Vec::new();
    for (below, id) in all {
        let mut folder = top.try_clone()?;
        let mut parts: Vec<_> = below.split('/').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            folder = openat::make_folder(&folder, part.as_ref(), modes.folder())?;
        }
        let text = format!("{id}\n");
        let put = write_new(common, draft, text.as_bytes(), modes.file())
            .and_then(|()| Ok(rustix::fs::renameat(common, draft, &folder, last)?));
        put.inspect_err(|_| {
            // A file that was not created cannot be removed.
            _ = rustix::fs::unlinkat(common, draft, AtFlags::empty());
        })?;
        rustix::fs::fsync(&folder)?;
        placed.push(format!("refs/airlock/{run}/{below}"));
    }
    Ok(ImportedRefs { run, refs: placed })
}

fn make_run_folder(
    ours: &OwnedFd,
    run: &str,
    known: &RefMap,
    modes: FileModes,
) -> io::Result<(String, OwnedFd)> {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let run: String = run.chars().map(plain).collect();
    for turn in 1..=MAX_TRIES {
        let name = match turn {
            1 => run.clone(),
            turn => format!("{run}-{turn}"),
        };
        let prefix = format!("refs/airlock/{name}/");
        if known.direct.keys().any(|known| known.starts_with(&prefix)) {
            continue;
        }
        match rustix::fs::mkdirat(ours, name.as_str(), modes.folder()) {
            Ok(()) => {
                let folder = openat::open(ours, &name, READ_DIR)?;
                rustix::fs::fchmod(&folder, modes.folder())?;
                return Ok((name, folder));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

/// Whether there is nothing new to import.
pub fn is_same(head: &Head, before: &RefMap, now_head: &Head, now: &RefMap) -> bool {
    let moved = matches!(now_head, Head::Detached(_)) && head != now_head;
    let known = |(name, id): (&String, &ObjectId)| before.direct.get(name) == Some(id);
    !moved && now.direct.iter().all(known)
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
