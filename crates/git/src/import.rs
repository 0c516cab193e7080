//! What came of the program's commits: which references it has, which of them are new, and how they arrive on the host.
//! Everything new arrives under `refs/airlock/RUN/` first, and nothing is ever deleted; what moves beyond that, and how, is
//! in `moves.rs` and `transaction.rs`.
//!
//! Drafts here are not those of `fs`: their names are known before (`draft`, `tmp_airlock_…`, which git's own cleaning knows),
//! so that a journal can remove what a killed run left, and packs get the modes that git gives them.

use crate::{
    GitError, Head, ObjectFormat, ObjectId, Pack, RefMap, escape, failed,
    handle::{self, FOLDER},
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

/// References that one import brings.
pub const MOST_BROUGHT: usize = 10_000;
/// Paths below one commit.
pub const MOST_PATHS: u64 = 500_000;
/// Folders below each other in a commit.
pub const DEEPEST_PATH: usize = 256;
/// Runs of one name that may have brought something.
const MOST_TRIES: usize = 1000;
/// In the file by which git leaves a pack alone.
const KEPT_BY: &[u8] = b"airlock\n";

/// What a sandboxed git says there is. All of it is a stranger's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its references.
    pub refs: RefMap,
    /// Its `HEAD`.
    pub head: Option<Head>,
}

/// A reference that is to be brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRef {
    /// What the program called it.
    pub name: String,
    /// What it was on the host when the program began.
    pub old: Option<ObjectId>,
    /// What it is now.
    pub new: ObjectId,
    /// Its name below `refs/airlock/RUN/`.
    pub below: String,
}

/// What is to be brought, and what is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What is new.
    pub refs: Vec<PlannedRef>,
    /// Names that are not taken, or whose deletion is not, escaped, with the reason.
    pub left: Vec<(String, String)>,
}

impl Listing {
    /// Reads `HEAD`, as the file has it, then a line `ID NAME TARGET` for each reference, the target where it is
    /// symbolic, until an empty line. Gives back what follows.
    pub fn parse(bytes: &[u8], format: ObjectFormat) -> Result<(Listing, &[u8]), GitError> {
        let refused = || GitError::Refused("the list of references cannot be read".to_owned());
        let mut listing = Listing {
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
            if listing.refs.direct.len() + listing.refs.symbolic.len() > refs::MOST_REFS {
                return Err(refused());
            }
        }
    }

    /// What is new beside what the host had.
    pub fn plan(&self, head: &Head, before: &RefMap) -> Result<Plan, GitError> {
        let mut plan = Plan::default();
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
            if !refs::is_acceptable(name) {
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
        match plan.refs.len() > MOST_BROUGHT {
            true => Err(GitError::Refused(format!(
                "more than {MOST_BROUGHT} references are new"
            ))),
            false => Ok(plan),
        }
    }
}

fn parse_head(line: &str, format: ObjectFormat) -> Option<Head> {
    match line.strip_prefix("ref:") {
        Some(name) => Some(Head::Branch(name.trim().to_owned()))
            .filter(|head| matches!(head, Head::Branch(name) if refs::is_format(name))),
        None => ObjectId::parse(line.trim_end(), format).map(Head::Detached),
    }
}

impl Plan {
    /// Holds each new tip against the pack: branches are commits, and none has more paths than a disk should hold.
    pub fn check(&self, pack: &Pack) -> Result<(), GitError> {
        for planned in &self.refs {
            let kind = pack.kind(&planned.new);
            let is_branch = !planned.below.starts_with("tags/");
            if is_branch && kind.is_some_and(|kind| kind != crate::pack::Kind::Commit) {
                let name = escape(&planned.name);
                return Err(GitError::Refused(format!("`{name}` is no commit")));
            }
            let Some(tree) = pack.tree_of(&planned.new) else {
                continue;
            };
            let paths = pack.paths(&tree, DEEPEST_PATH)?;
            if paths > MOST_PATHS {
                let name = escape(&planned.name);
                return Err(GitError::Refused(format!(
                    "`{name}` has more than {MOST_PATHS} paths"
                )));
            }
        }
        Ok(())
    }
}

/// A path that new commits change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// As the folders have it.
    pub path: &'a [u8],
    /// Whether another repository is to lie there from now on: git then looks into it, and obeys it.
    pub is_new_gitlink: bool,
    /// Where a symbolic link is made or changed, the object that says where it leads, in hexadecimal: what is written
    /// through it lands elsewhere.
    pub link: Option<&'a [u8]>,
    /// The commit of another repository that is to lie there, in hexadecimal.
    pub gitlink: Option<&'a [u8]>,
}

/// Reads what `git log --raw -z --no-abbrev --format=` prints.
pub fn parse_changes(text: &[u8]) -> Result<Vec<Change<'_>>, GitError> {
    const GITLINK: &[u8] = b"160000";
    const LINK: &[u8] = b"120000";
    let refused = || GitError::Refused("the list of changed paths cannot be read".to_owned());
    let mut fields = text.split(|byte| *byte == 0).peekable();
    let mut changes = Vec::new();
    while let Some(field) = fields.next() {
        // Between commits, and at the end.
        let field = field.strip_prefix(b"\n").unwrap_or(field);
        if field.is_empty() {
            continue;
        }
        let words: Vec<_> = field.split(|byte| *byte == b' ').collect();
        let ([old, new, _, id, ..], Some(path)) = (words.as_slice(), fields.next()) else {
            return Err(refused());
        };
        let old = old.strip_prefix(b":").ok_or_else(refused)?;
        changes.push(Change {
            path,
            is_new_gitlink: *new == GITLINK && old != GITLINK,
            link: (*new == LINK).then_some(*id),
            gitlink: (*new == GITLINK).then_some(*id),
        });
    }
    Ok(changes)
}

/// What was put into a repository of the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The name of the run below `refs/airlock/`.
    pub run: String,
    /// The full name of each reference.
    pub refs: Vec<String>,
}

/// Puts a checked and verified pack into a repository of the host's. From then on a file keeps `git gc` from it, until
/// [`let_go`].
pub fn place_pack(common: BorrowedFd<'_>, pack: &Pack, bytes: &[u8]) -> Result<(), GitError> {
    if pack.is_empty() {
        return Ok(());
    }
    let modes = Modes::of(common).map_err(failed("look at .git"))?;
    put_pack(common, pack, bytes, modes).map_err(failed("place the pack"))
}

/// References keep the pack from now on; without them `git gc` may take it. Nothing is done for one that another keeps.
pub fn let_go(common: BorrowedFd<'_>, pack: &str) -> Result<(), GitError> {
    let let_go = || -> io::Result<()> {
        let folder = handle::open(common, "objects/pack", FOLDER)?;
        let keep = format!("{pack}.keep");
        match handle::read(&folder, &keep, KEPT_BY.len() as u64)? {
            Some(text) if text == KEPT_BY => {
                Ok(rustix::fs::unlinkat(&folder, &keep, AtFlags::empty())?)
            }
            _ => Ok(()),
        }
    };
    match let_go() {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(failed("let go of the pack")),
    }
}

/// Puts references below `refs/airlock/RUN/`. Each is written as `draft` first.
pub fn place_refs(
    common: BorrowedFd<'_>,
    run: &str,
    refs: &[(String, ObjectId)],
    known: &RefMap,
    draft: &str,
) -> Result<Placed, GitError> {
    if refs.is_empty() {
        return Ok(Placed::default());
    }
    let modes = Modes::of(common).map_err(failed("look at .git"))?;
    put_refs(common, run, refs, (known, draft), modes).map_err(failed("place the references"))
}

/// As those of the git folder itself: a repository that is shared stays so.
#[derive(Clone, Copy)]
pub(crate) struct Modes(u32);

impl Modes {
    pub(crate) fn of(folder: BorrowedFd<'_>) -> io::Result<Modes> {
        Ok(Modes(rustix::fs::fstat(folder)?.st_mode & 0o777))
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
    let mut file = File::from(handle::open(folder, name, flags)?);
    file.write_all(bytes)?;
    rustix::fs::fchmod(&file, mode)?;
    file.sync_all()
}

/// The pack under its name, the index last: without it git does not look at the pack.
fn put_pack(common: BorrowedFd<'_>, pack: &Pack, bytes: &[u8], modes: Modes) -> io::Result<()> {
    let objects = handle::open(common, "objects", FOLDER)?;
    let folder = handle::make_folder(&objects, "pack".as_ref(), modes.folder())?;
    let name = pack.name();
    if handle::open(&folder, format!("{name}.idx"), OFlags::PATH).is_ok() {
        return Ok(());
    }
    let [keep, data, index] = ["keep", "pack", "idx"].map(|end| format!("{name}.{end}"));
    let drafts = [
        format!("tmp_airlock_{name}_pack"),
        format!("tmp_airlock_{name}_idx"),
    ];
    let put = || {
        write_new(&folder, &keep, KEPT_BY, modes.fixed())?;
        write_new(&folder, &drafts[0], bytes, modes.fixed())?;
        write_new(&folder, &drafts[1], &pack.index(), modes.fixed())?;
        rustix::fs::renameat(&folder, &drafts[0], &folder, &data)?;
        rustix::fs::renameat(&folder, &drafts[1], &folder, &index)?;
        Ok(rustix::fs::fsync(&folder)?)
    };
    put().inspect_err(|_| {
        for name in [&keep, &drafts[0], &drafts[1], &data] {
            // What was not made is not there.
            _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
        }
    })
}

/// What of a pack a killed run may have left half made. What is whole stays: nothing leads to it, so that git takes it.
pub fn clear_pack(common: BorrowedFd<'_>, pack: &str) -> Result<(), GitError> {
    if let Ok(folder) = handle::open(common, "objects/pack", FOLDER) {
        let drafts = ["pack", "idx"].map(|end| format!("tmp_airlock_{pack}_{end}"));
        let has_index = handle::open(&folder, format!("{pack}.idx"), OFlags::PATH).is_ok();
        let half = (!has_index).then(|| format!("{pack}.pack"));
        for name in drafts.into_iter().chain(half) {
            match rustix::fs::unlinkat(&folder, &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(failed("remove half a pack")(error.into())),
            }
        }
    }
    let_go(common, pack)
}

/// The folder of a run is new, so that no reference is overwritten.
fn put_refs(
    common: BorrowedFd<'_>,
    run: &str,
    all: &[(String, ObjectId)],
    (known, draft): (&RefMap, &str),
    modes: Modes,
) -> io::Result<Placed> {
    let refs = handle::open(common, "refs", FOLDER)?;
    let ours = handle::make_folder(&refs, "airlock".as_ref(), modes.folder())?;
    let (run, top) = make_run_folder(&ours, run, known, modes)?;
    let mut placed = Vec::new();
    for (below, id) in all {
        let mut folder = top.try_clone()?;
        let mut parts: Vec<_> = below.split('/').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            folder = handle::make_folder(&folder, part.as_ref(), modes.folder())?;
        }
        let text = format!("{id}\n");
        let put = write_new(common, draft, text.as_bytes(), modes.file())
            .and_then(|()| Ok(rustix::fs::renameat(common, draft, &folder, last)?));
        put.inspect_err(|_| {
            // What was not made is not there.
            _ = rustix::fs::unlinkat(common, draft, AtFlags::empty());
        })?;
        rustix::fs::fsync(&folder)?;
        placed.push(format!("refs/airlock/{run}/{below}"));
    }
    Ok(Placed { run, refs: placed })
}

fn make_run_folder(
    ours: &OwnedFd,
    run: &str,
    known: &RefMap,
    modes: Modes,
) -> io::Result<(String, OwnedFd)> {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let run: String = run.chars().map(plain).collect();
    for turn in 1..=MOST_TRIES {
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
                let folder = handle::open(ours, &name, FOLDER)?;
                rustix::fs::fchmod(&folder, modes.folder())?;
                return Ok((name, folder));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EXIST.into())
}

/// Whether nothing that could be brought is new.
pub fn is_same(head: &Head, before: &RefMap, now_head: &Head, now: &RefMap) -> bool {
    let moved = matches!(now_head, Head::Detached(_)) && head != now_head;
    let known = |(name, id): (&String, &ObjectId)| before.direct.get(name) == Some(id);
    !moved && now.direct.iter().all(known)
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
