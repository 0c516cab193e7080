//! Cleanup at the end of a run in a mounted workspace: what the program created, replaced or linked
//! under a protected name is taken out, as are links that lead out, devices and sockets. Set-id
//! bits are cleared. What existed at the start stays.

use super::{
    FileState, ReplacedFile, beneath,
    held::{self, HeldFolder, HeldThing},
    link_targets, names,
    snapshot::{self, WorkspaceSnapshot},
    walk::{self, WalkEntry, WalkStep},
};
use rustix::{
    fs::{AtFlags, FileType, OFlags},
    io::Errno,
};
use spec::{HoldReason, ProtectedNames};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

/// Folders of the system: virtual environments link to programs there.
const SYSTEM_FOLDERS: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/lib64"];

/// Names in the notes that could not be checked or taken out.
pub(super) const MAX_PROBLEMS: usize = 100;

/// Paths of one kind that are kept for a note.
const MAX_PATHS: usize = 1000;

/// Paths for a note: of a flood of them the first.
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) first: BTreeSet<PathBuf>,
    /// Whether there were more.
    pub(super) is_cut: bool,
}

impl Paths {
    fn add(&mut self, path: &Path) {
        if self.first.len() < MAX_PATHS {
            self.first.insert(path.to_owned());
        } else {
            self.is_cut |= !self.first.contains(path);
        }
    }
}

/// What was found besides what was taken out.
#[derive(Debug, Default)]
pub(super) struct CleanupFindings {
    /// Noted names that changed.
    pub(super) noted: Paths,
    /// Names of editors and agents that were made among installed packages.
    pub(super) spared: usize,
    /// Protected files that were there and have other contents.
    pub(super) changed: Paths,
    /// Files that lost their set-id bits.
    pub(super) cleared: Paths,
    /// What could not be done, of the first `MAX_PROBLEMS`.
    pub(super) problems: Vec<String>,
    pub(super) problem_count: usize,
    /// Part of the workspace was not checked.
    pub(super) unfinished: bool,
}

/// Compares a workspace with its snapshot, and takes out what does not belong there.
pub(super) fn settle(
    workspace: BorrowedFd<'_>,
    start: &WorkspaceSnapshot,
    replaced: &[ReplacedFile],
    artifacts_kept: bool,
    hold: &mut HeldFolder,
) -> CleanupFindings {
    let most = walk::MAX_NAMES;
    settle_looking_at(most, workspace, start, replaced, artifacts_kept, hold)
}

/// Enters new folders only for this many names.
fn settle_looking_at(
    most: usize,
    workspace: BorrowedFd<'_>,
    start: &WorkspaceSnapshot,
    replaced: &[ReplacedFile],
    artifacts_kept: bool,
    hold: &mut HeldFolder,
) -> CleanupFindings {
    let mut settling = WorkspaceCleaner {
        names_left: most,
        known: start
            .protected
            .values()
            .filter(|entry| entry.target.is_none())
            .map(|entry| ((entry.inode, entry.born), entry.modified))
            .collect(),
        longest_link: start
            .links
            .iter()
            .map(|(path, _)| path.as_os_str().len())
            .max()
            .unwrap_or(0),
        workspace,
        start,
        replaced,
        artifacts_kept,
        hold,
        findings: CleanupFindings::default(),
    };
    // The engine may be root; the folder's owner gets his permissions back.
    if let Err(error) = beneath::open_for_owner(workspace) {
        settling.problem(Path::new(""), &error);
    }
    // Taking a file out can make a folder readable that was not, or leave one that never is.
    let unread = walk::walk_all(workspace, |visit| Ok(settling.judge(visit)));
    match unread {
        Ok(unread) => settling.take_unread(workspace, unread),
        Err(error) => {
            settling.findings.unfinished = true;
            settling.problem(Path::new("."), &error);
        }
    }
    settling.restore_links(workspace);
    settling.remove_inputs(workspace);
    settling.take_new_targets(workspace);
    settling.findings
}

struct WorkspaceCleaner<'a> {
    /// When none is left, new folders are not entered any more, but taken out whole. Old folders
    /// always are: adding to them costs the program more than checking costs us.
    names_left: usize,
    workspace: BorrowedFd<'a>,
    start: &'a WorkspaceSnapshot,
    /// Bytes of the longest path of a link in the snapshot.
    longest_link: usize,
    /// Protected files and folders of the snapshot, by inode and birth time, with their
    /// modification time.
    known: BTreeMap<(u64, (i64, i64)), (i64, i64)>,
    /// Files that the host put in place of some of them.
    replaced: &'a [ReplacedFile],
    /// All files in the artifacts folder were collected.
    artifacts_kept: bool,
    hold: &'a mut HeldFolder,
    findings: CleanupFindings,
}

impl WorkspaceCleaner<'_> {
    fn judge(&mut self, visit: &WalkEntry<'_>) -> WalkStep {
        self.names_left = self.names_left.saturating_sub(1);
        match self.reason(visit) {
            EntryVerdict::Stays(next) => next,
            EntryVerdict::Remove => {
                let thing = self.thing(visit.path, HoldReason::Artifacts);
                let removed = self
                    .is_in_place(visit)
                    .and_then(|()| self.hold.remove_folder(visit.folder, visit.name, thing));
                if let Err(error) = removed {
                    self.problem(visit.path, &error);
                }
                WalkStep::Pass
            }
            EntryVerdict::Hold(why) => {
                match self.is_in_place(visit) {
                    Ok(()) => self.take(visit.folder, visit.name, visit.path, why),
                    Err(error) => self.problem(visit.path, &error),
                }
                WalkStep::Pass
            }
        }
    }

    /// A folder may be moved out of the workspace during the walk: nothing is changed there.
    fn is_in_place(&self, visit: &WalkEntry<'_>) -> io::Result<()> {
        let above = visit.path.parent().unwrap_or(Path::new(""));
        let there = rustix::fs::fstat(beneath::open_folder(self.workspace, above)?)?;
        let here = rustix::fs::fstat(visit.folder)?;
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) {
            Ok(())
        } else {
            Err(io::Error::other("its folder was moved meanwhile"))
        }
    }

    fn reason(&mut self, visit: &WalkEntry<'_>) -> EntryVerdict {
        let (path, names) = (visit.path, &self.start.names);
        if self.was_there(visit) || self.was_put_there(visit) {
            return EntryVerdict::Stays(WalkStep::Pass);
        }
        if snapshot::is_protected(path, names) || is_new_head(visit, names) {
            return EntryVerdict::Hold(HoldReason::ProtectedName);
        }
        if names::is_spared(path, names) && self.is_new(visit) {
            self.findings.spared += 1;
        }
        match visit.kind {
            FileType::Directory
                if path == Path::new(snapshot::ARTIFACTS) && !self.start.had_artifacts =>
            {
                self.judge_artifacts(visit)
            }
            FileType::Directory if self.names_left == 0 && self.is_surely_new(visit) => {
                EntryVerdict::Hold(HoldReason::Unreadable)
            }
            // At once: a list of them would have no bound.
            FileType::Directory if self.is_newly_too_deep(visit.path) => {
                EntryVerdict::Hold(HoldReason::Unreadable)
            }
            FileType::Directory => {
                if names::is_environment(path) && self.is_new(visit) {
                    self.findings.noted.add(path);
                }
                EntryVerdict::Stays(WalkStep::Enter)
            }
            FileType::RegularFile => {
                self.look_at_file(visit);
                EntryVerdict::Stays(WalkStep::Pass)
            }
            FileType::Fifo => EntryVerdict::Stays(WalkStep::Pass),
            FileType::Symlink => match snapshot::read_link(visit) {
                Ok(target)
                    if self
                        .start
                        .links
                        .contains(&(path.to_owned(), target.clone())) =>
                {
                    EntryVerdict::Stays(WalkStep::Pass)
                }
                Ok(target) => judge_link(path, &target, names)
                    .or_else(|| self.judge_way(path, &target))
                    .map_or(EntryVerdict::Stays(WalkStep::Pass), EntryVerdict::Hold),
                Err(_) => EntryVerdict::Hold(HoldReason::LinkOut),
            },
            _ if self.is_old_special(visit) => EntryVerdict::Stays(WalkStep::Pass),
            _ => EntryVerdict::Hold(HoldReason::SpecialFile),
        }
    }

    /// Why a link is taken out that leads through one of the owner's links, which may lead
    /// anywhere.
    fn judge_way(&self, path: &Path, target: &OsStr) -> Option<HoldReason> {
        let inside = resolve_inside(path, target)?;
        // Paths of programs can have thousands of folders, those of the owner's links do not.
        let mut above = inside
            .ancestors()
            .filter(|above| above.as_os_str().len() <= self.longest_link);
        above.find_map(|above| {
            let first = (above.to_owned(), OsString::new());
            let (link, target) = self.start.links.range(first..).next()?;
            let is_it = link == above;
            is_it
                .then(|| judge_link(link, target, &self.start.names))
                .flatten()
        })
    }

    /// Collected artifacts are removed; others are held, because nothing else keeps them. Another
    /// run with the same folder may still write there.
    fn judge_artifacts(&self, visit: &WalkEntry<'_>) -> EntryVerdict {
        let is_empty = || {
            let folder = beneath::open_folder(visit.folder, Path::new(visit.name))?;
            ::fs::Dir::from_fd(folder).is_empty()
        };
        if self.hold.is_shared(&self.start.workspace) {
            EntryVerdict::Stays(WalkStep::Pass)
        } else if self.artifacts_kept || is_empty().unwrap_or(false) {
            EntryVerdict::Remove
        } else {
            EntryVerdict::Hold(HoldReason::Artifacts)
        }
    }

    /// Whether it is a protected name of the host: mounted read-only for the program, wherever its
    /// folder was moved, or a link with the same target as before.
    fn was_there(&mut self, visit: &WalkEntry<'_>) -> bool {
        if visit.kind == FileType::Symlink {
            let entry = self.start.protected.get(visit.path);
            let was = entry.and_then(|entry| entry.target.as_ref());
            return was.is_some_and(|was| snapshot::read_link(visit).is_ok_and(|now| now == *was));
        }
        let inodes = (visit.inode, (i64::MIN, 0))..=(visit.inode, (i64::MAX, 0));
        // The birth time costs a system call per name, so only candidates are checked.
        if self.known.range(inodes).next().is_none() {
            return false;
        }
        let Ok(born) = beneath::born(visit.folder, visit.name) else {
            return false;
        };
        let modified = self.known.get(&(visit.inode, born)).copied();
        if let Some(modified) = modified {
            self.look_at_known(visit, modified);
        }
        modified.is_some()
    }

    /// Whether a host tool put it there while the program ran, and it was not changed since.
    fn was_put_there(&self, visit: &WalkEntry<'_>) -> bool {
        let mut here = self.replaced.iter().filter(|it| it.path == visit.path);
        here.next_back()
            .and_then(|it| it.file)
            .is_some_and(|file| FileState::in_folder(visit.folder, visit.name) == Some(file))
    }

    /// Whether it was created after the start. A file that cannot be read is not counted.
    fn is_new(&self, visit: &WalkEntry<'_>) -> bool {
        beneath::born(visit.folder, visit.name).is_ok_and(|born| born >= self.start.began)
    }

    /// The same, only where the file system has birth times.
    fn is_surely_new(&self, visit: &WalkEntry<'_>) -> bool {
        let born = beneath::birth(visit.folder, visit.name);
        born.is_ok_and(|born| born.is_some_and(|born| born >= self.start.began))
    }

    /// Whether no call can name what is in a folder, which was not so at the start.
    fn is_newly_too_deep(&self, folder: &Path) -> bool {
        folder.as_os_str().len() >= walk::MAX_PATH_BYTES && !self.start.unread.contains(folder)
    }

    fn is_old_special(&self, visit: &WalkEntry<'_>) -> bool {
        beneath::born(visit.folder, visit.name).is_ok_and(|born| {
            let special = (visit.path.to_owned(), visit.inode, born);
            self.start.special.contains(&special)
        })
    }

    /// The host may have changed it; so may the program, where a file has another hard link in the
    /// workspace.
    fn look_at_known(&mut self, visit: &WalkEntry<'_>, modified: (i64, i64)) {
        if visit.kind == FileType::RegularFile
            && let Ok(Some(found)) = beneath::look(visit.folder, visit.name)
            && snapshot::modified(&found) != modified
        {
            self.findings.changed.add(visit.path);
        }
    }

    fn look_at_file(&mut self, visit: &WalkEntry<'_>) {
        let found = match beneath::look(visit.folder, visit.name) {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => return self.problem(visit.path, &error),
        };
        if (found.st_ctime, found.st_ctime_nsec as i64) < self.start.began {
            return;
        }
        if found.st_mode & 0o6000 != 0 {
            match self.is_in_place(visit).and_then(|()| clear_set_id(visit)) {
                Ok(()) => self.findings.cleared.add(visit.path),
                Err(error) => self.problem(visit.path, &error),
            }
        }
        let noted = names::is_noted(visit.path).then_some(visit.path);
        let noted = noted.or_else(|| names::environment(visit.path));
        if let Some(noted) = noted {
            self.findings.noted.add(noted);
        }
    }

    /// Takes folders out that the program made unreadable, because their contents are unknown.
    /// Folders that were unreadable before are not the program's.
    fn take_unread(&mut self, workspace: BorrowedFd<'_>, unread: walk::UnreadFolders) {
        self.findings.problem_count += unread.more;
        // The paths of these are not known: the next sweep looks again.
        self.findings.unfinished |= unread.more > 0;
        for (path, why) in unread.folders {
            if self.start.unread.contains(&path) {
                continue;
            }
            let is_hidden = matches!(
                Errno::from_io_error(&why),
                Some(Errno::ACCESS | Errno::PERM)
            );
            let Some(name) = path.file_name().filter(|_| is_hidden) else {
                self.findings.unfinished |= path.as_os_str().is_empty();
                self.problem(&path, &why);
                continue;
            };
            let parent = path.parent().unwrap_or(Path::new(""));
            match beneath::open_folder(workspace, parent) {
                Ok(parent) => self.take(parent.as_fd(), name, &path, HoldReason::Unreadable),
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.problem(&path, &error),
            }
        }
    }

    fn take(&mut self, folder: BorrowedFd<'_>, name: &OsStr, path: &Path, why: HoldReason) {
        let thing = self.thing(path, why);
        if let Err(error) = self.hold.take(folder, name, thing) {
            self.problem(path, &error);
        }
    }

    fn thing(&self, path: &Path, why: HoldReason) -> HeldThing {
        HeldThing {
            path: path.as_os_str().as_bytes().to_owned(),
            why,
            workspace: self.start.workspace.as_os_str().as_bytes().to_owned(),
        }
    }

    /// A protected link cannot be mounted read-only, so it is restored if it is gone.
    fn restore_links(&mut self, workspace: BorrowedFd<'_>) {
        let links = self.start.protected.iter();
        let links = links.filter_map(|(path, entry)| Some((path, entry.target.as_ref()?)));
        for (path, target) in links {
            let (Some(name), parent) = (path.file_name(), path.parent().unwrap_or(Path::new("")))
            else {
                continue;
            };
            let Ok(parent) = beneath::open_folder(workspace, parent) else {
                continue;
            };
            if matches!(beneath::look(&parent, name), Ok(None))
                && let Err(error) = rustix::fs::symlinkat(target, &parent, name)
            {
                self.problem(path, &error.into());
            }
        }
    }

    /// Removes the input files that were put in for the program, whatever it made of them, and the
    /// folders created for them if they are empty.
    fn remove_inputs(&mut self, workspace: BorrowedFd<'_>) {
        let inputs = self.start.inputs.iter().map(|path| (path, false));
        let folders = self.start.folders.iter().rev().map(|path| (path, true));
        for (path, is_folder) in inputs.chain(folders) {
            let (Some(name), parent) = (path.file_name(), path.parent().unwrap_or(Path::new("")))
            else {
                continue;
            };
            let Ok(parent) = beneath::open_folder(workspace, parent) else {
                continue;
            };
            if is_folder {
                // A folder with files of the program stays.
                _ = rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR);
            } else if let Err(error) = held::remove(parent.as_fd(), name) {
                self.problem(path, &error);
            }
        }
    }

    /// The target of a protected link is obeyed like the link: it must be the same file as before.
    fn take_new_targets(&mut self, workspace: BorrowedFd<'_>) {
        let start = self.start;
        let links = start.protected.iter();
        for (path, _) in links.filter(|(_, entry)| entry.target.is_some()) {
            let Some(inside) = beneath::target_inside(workspace, path) else {
                continue;
            };
            let now = link_targets::identity(workspace, &inside);
            let is_known = now.is_none_or(|now| self.known.contains_key(&now));
            let is_allowed = start.names.allows(&inside);
            let parent = inside.parent().unwrap_or(Path::new(""));
            if is_known || is_allowed || now.as_ref() == start.led.get(path) {
                continue;
            }
            match beneath::open_folder(workspace, parent) {
                Ok(parent) => {
                    let name = inside.file_name().unwrap_or_default();
                    self.take(parent.as_fd(), name, &inside, HoldReason::ProtectedName);
                }
                Err(error) => self.problem(&inside, &error),
            }
        }
    }

    fn problem(&mut self, path: &Path, error: &io::Error) {
        self.findings.problem_count += 1;
        if self.findings.problem_count > MAX_PROBLEMS {
            return;
        }
        let path = if path.as_os_str().is_empty() {
            ".".to_owned()
        } else {
            path.to_string_lossy().escape_debug().to_string()
        };
        self.findings.problems.push(format!(
            "`{path}` in the workspace could not be checked or taken out: {error}; look at it before you use the folder"
        ));
    }
}

enum EntryVerdict {
    Stays(WalkStep),
    /// It was Airlock's own.
    Remove,
    Hold(HoldReason),
}

/// Another run may exchange names meanwhile: the mode is read and set through one descriptor.
fn clear_set_id(visit: &WalkEntry<'_>) -> io::Result<()> {
    let file = beneath::open(visit.folder, Path::new(visit.name), OFlags::PATH)?;
    let found = rustix::fs::fstat(&file)?;
    match beneath::kind(&found) {
        FileType::RegularFile => beneath::set_mode(file, found.st_mode & 0o1777),
        _ => Err(io::Error::other("it was exchanged meanwhile")),
    }
}

/// Without its `HEAD` no folder is a repository.
fn is_new_head(visit: &WalkEntry<'_>, names: &ProtectedNames) -> bool {
    visit
        .name
        .as_bytes()
        .eq_ignore_ascii_case(names::HEAD.as_bytes())
        && snapshot::is_bare_repository(visit.folder, Path::new("."))
        && !names.allows(visit.path)
}

/// Why a link at `path` is taken out, if it is.
fn judge_link(path: &Path, target: &OsStr, names: &ProtectedNames) -> Option<HoldReason> {
    if names::find_below(path, names).is_some() && !names.allows(path) {
        return Some(HoldReason::LinkToProtected);
    }
    if Path::new(target).is_absolute() {
        return (!leads_to_system(path, Path::new(target))).then_some(HoldReason::LinkOut);
    }
    match resolve_inside(path, target) {
        None => Some(HoldReason::LinkOut),
        Some(inside) => {
            let protected = names::protects(&inside, names).is_some();
            protected.then_some(HoldReason::LinkToProtected)
        }
    }
}

/// Programs of the system, which only root can change. Root's own tools could be led to overwrite
/// them, so as root only interpreters of virtual environments may be linked.
fn leads_to_system(path: &Path, target: &Path) -> bool {
    let plain = target
        .components()
        .all(|part| !matches!(part, Component::ParentDir));
    let in_system = plain
        && SYSTEM_FOLDERS
            .iter()
            .any(|folder| target.starts_with(folder));
    let name = path.file_name().unwrap_or_default().as_bytes();
    let in_bin = path.parent().and_then(Path::file_name) == Some(OsStr::new("bin"));
    let is_interpreter = in_bin && name.starts_with(b"python");
    in_system && (is_interpreter || !rustix::process::geteuid().is_root())
}

/// The target of a link by its text alone, relative to the workspace. `..` may only begin the
/// target, where the parents are known to be folders, and never lead above the top.
pub fn resolve_inside(path: &Path, target: &OsStr) -> Option<PathBuf> {
    let mut place = path.parent()?.to_owned();
    let mut leading = true;
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir if leading => {
                if !place.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            Component::Normal(name) => {
                leading = false;
                place.push(name);
            }
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::{super::hidden_files::HiddenFileCover, *};
    use spec::{HiddenFiles, Id};
    use std::fs;

    #[test]
    fn a_flood_of_names_hides_nothing_in_old_folders_and_new_ones_go_whole() {
        let name = format!("airlock-settle-flood-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let workspace = folder.join("workspace");
        fs::create_dir_all(workspace.join("old/below")).unwrap();
        let handle = fs::File::open(&workspace).unwrap();
        let nothing = HiddenFiles::none();
        let (names, mut hiding) = (ProtectedNames::default(), HiddenFileCover::new(&nothing));
        // The snapshot uses the coarse clock, which is behind the times of files.
        let now = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
            (now.tv_sec, now.tv_nsec as i64)
        };
        let made = beneath::born(&handle, "old/below").unwrap();
        while now() <= made {
            std::thread::yield_now();
        }
        let start = WorkspaceSnapshot::look(handle.as_fd(), &names, &mut hiding).unwrap();
        let run = Id::new("run").unwrap();
        let mut hold = HeldFolder::create(&folder.join("state"), &run, &start.to_text()).unwrap();
        for place in [".aaa", "old/.aaa", "old/below/.aaa"] {
            fs::create_dir_all(workspace.join(place)).unwrap();
            for number in 0..20 {
                fs::write(workspace.join(place).join(number.to_string()), "").unwrap();
            }
        }
        for place in ["", "old", "old/below", "new"] {
            fs::create_dir_all(workspace.join(place)).unwrap();
            fs::write(workspace.join(place).join(".envrc"), "evil").unwrap();
            fs::write(workspace.join(place).join("fine"), "").unwrap();
        }
        let found = settle_looking_at(15, handle.as_fd(), &start, &[], false, &mut hold);
        assert!(!found.unfinished && found.problems.is_empty(), "{found:?}");
        let held = hold.close().unwrap();
        let mut held: Vec<_> = held.iter().map(|it| (it.path.as_str(), it.why)).collect();
        held.sort_by_key(|it| it.0);
        let expected = [
            (".envrc", HoldReason::ProtectedName),
            ("new", HoldReason::Unreadable),
            ("old/.aaa", HoldReason::Unreadable),
            ("old/.envrc", HoldReason::ProtectedName),
            ("old/below/.aaa", HoldReason::Unreadable),
            ("old/below/.envrc", HoldReason::ProtectedName),
        ];
        assert_eq!(held, expected);
        // It was entered before the names were used up.
        assert!(workspace.join(".aaa/19").exists());
        assert!(workspace.join("old/below/fine").exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn links_are_judged_by_where_they_lead() {
        let names = ProtectedNames::default();
        let judge = |path: &str, target: &str| judge_link(path.as_ref(), target.as_ref(), &names);
        assert_eq!(judge("a", "b"), None);
        assert_eq!(judge("a/b/c", "../../d"), None);
        assert_eq!(judge("a/b", "../../d"), Some(HoldReason::LinkOut));
        assert_eq!(judge("a", "/etc/passwd"), Some(HoldReason::LinkOut));
        assert_eq!(judge("a", "b/../../c"), Some(HoldReason::LinkOut));
        assert_eq!(
            judge("a/b", "../.git/config"),
            Some(HoldReason::LinkToProtected)
        );
        assert_eq!(
            judge("a/.github", "mine"),
            Some(HoldReason::LinkToProtected)
        );
        assert_eq!(judge("x", ".ENVRC"), Some(HoldReason::LinkToProtected));
        assert_eq!(
            judge(".config", "settings"),
            Some(HoldReason::LinkToProtected)
        );
        assert_eq!(judge("a", "/usr/../etc/passwd"), Some(HoldReason::LinkOut));
        assert_eq!(judge(".venv/bin/python3", "/usr/bin/python3"), None);
    }
}
