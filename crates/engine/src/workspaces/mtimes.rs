//! Chooses the mtime of committed files: the program's, unless git could take the file for
//! unchanged. Git compares contents only if size or mtime differ from its index, so a file with new
//! contents must not get an mtime that the index may have.

use super::{base::Baseline, diff::AssessedChange, diff::ChangeKind, tree::FileKind};
use ::git::{Config, GitFolders, ObjectFormat, snapshot::DotGit};
use rustix::fs::{Mode, OFlags};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// The largest configuration file.
const MAX_SETTINGS: u64 = 4 << 20;

/// An mtime in seconds and nanoseconds.
type Mtime = (i64, i64);

/// The facts by which mtimes are chosen.
pub(super) struct ModificationTimes<'a> {
    /// The second in which the run began: the index may have any mtime up to it, in whole seconds.
    start: i64,
    now: Mtime,
    base: &'a Baseline,
    tracked: TrackedNames,
}

/// The paths that the index may have.
enum TrackedNames {
    All,
    These(BTreeSet<PathBuf>),
}

impl<'a> ModificationTimes<'a> {
    /// `folder` is the path of the folder, and `user` its owner.
    pub(super) fn of(
        base: &'a Baseline,
        assessed: &[&AssessedChange],
        made_at_ms: u64,
        folder: &Path,
        user: u32,
    ) -> ModificationTimes<'a> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or((0, 0), |now| {
            (now.as_secs() as i64, now.subsec_nanos().into())
        });
        let mut times = ModificationTimes {
            start: (made_at_ms / 1000) as i64,
            now,
            base,
            tracked: TrackedNames::All,
        };
        let asked = assessed.iter().filter(|one| times.depends_on_git(one));
        let asked: BTreeSet<_> = asked.map(|one| one.change.path.as_path()).collect();
        if !asked.is_empty() {
            // An unreadable index may have every path.
            let found = tracked(folder, user, &asked);
            times.tracked = found.unwrap_or(TrackedNames::All);
        }
        times
    }

    fn depends_on_git(&self, one: &AssessedChange) -> bool {
        let is_new = one.change.kind == FileKind::File && !self.base.contains_key(&one.change.path);
        is_new && one.change.what != ChangeKind::Removed && one.source.modified.0 <= self.start
    }

    /// The mtime of a file.
    pub(super) fn choose(&self, one: &AssessedChange) -> Mtime {
        let (theirs, path) = (one.source.modified, one.change.path.as_path());
        if theirs > self.now {
            return self.now;
        }
        let is_known = || match &self.tracked {
            TrackedNames::All => true,
            TrackedNames::These(these) => these.contains(path),
        };
        let is_old = theirs.0 <= self.start;
        if is_old && (self.base.contains_key(path) || self.has_other_repository(path) || is_known())
        {
            return self.now;
        }
        theirs
    }

    /// Whether a path is in a nested repository, whose index is not read.
    fn has_other_repository(&self, path: &Path) -> bool {
        let above = path.ancestors().skip(1);
        let mut above = above.filter(|above| !above.as_os_str().is_empty());
        above.any(|above| self.base.contains_key(&above.join(".git")))
    }
}

/// Those of the paths that the index of the folder's repository has.
fn tracked(folder: &Path, user: u32, asked: &BTreeSet<&Path>) -> io::Result<TrackedNames> {
    for above in folder.ancestors() {
        let Ok(opened) = open_folder(above) else {
            return Ok(TrackedNames::All);
        };
        let host = match DotGit::find(opened.as_fd(), above, user) {
            Ok(DotGit::Absent) => continue,
            Ok(DotGit::Folder(host) | DotGit::File(host)) => host,
            Err(_) => return Ok(TrackedNames::All),
        };
        if has_split_index(&host)? {
            return Ok(TrackedNames::All);
        }
        let inside = folder.strip_prefix(above).unwrap_or(Path::new(""));
        let below = |path: &[u8]| {
            let path = Path::new(OsStr::from_bytes(path));
            path.strip_prefix(inside).ok().map(Path::to_owned)
        };
        let wanted = |path: &[u8]| below(path).is_some_and(|path| asked.contains(path.as_path()));
        let found = ::git::tracked_paths(&host, format_of(&host)?, wanted)?;
        let found = found
            .iter()
            .filter_map(|path| below(path.as_os_str().as_bytes()));
        return Ok(TrackedNames::These(found.collect()));
    }
    Ok(TrackedNames::These(BTreeSet::new()))
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Whether a part of the index is in a shared index file.
fn has_split_index(host: &GitFolders) -> io::Result<bool> {
    let mut names = ::fs::Dir::from_fd(host.git.as_fd()).entries()?;
    names.try_fold(false, |found, entry| {
        let name = entry?.name;
        Ok(found || name.as_bytes().starts_with(b"sharedindex."))
    })
}

fn format_of(host: &GitFolders) -> io::Result<ObjectFormat> {
    let mut text = Vec::new();
    ::fs::Dir::from_fd(&host.common)
        .read_file("config")?
        .take(MAX_SETTINGS)
        .read_to_end(&mut text)?;
    let config = Config::parse(&text);
    Ok(match config.last("extensions", "objectformat") {
        Some("sha256") => ObjectFormat::Sha256,
        _ => ObjectFormat::Sha1,
    })
}
