//! Watches the mount table of a sandbox: host tools detach the read-only mount of a protected name
//! when they replace the file by a rename, or remove the folder. The mount is put back at once,
//! with the programs stopped.
//!
//! ```text
//! mount table changed ─ which mounts are gone or moved? ─ launcher: stop, mount, continue ─ check the file
//! ```
//!
//! The table does not show a file that is moved away with its mount, nor a hidden one that is
//! created again: every `CHECK_INTERVAL` the names are compared, too.
//!
//! This is detection: until the mount is back, the program can write. The file's state is recorded;
//! if it is changed afterwards, through a descriptor from that time, it is taken out of the
//! workspace when the sandbox ends. Where the mount cannot be put back, the sandbox ends at once.

use super::{
    launcher::Channel,
    protect::{self, Bind, FileState, ReplacedFile},
};
use init::{
    plan::{RemountName, RemountPlan},
    protocol::{self, RemountedName, Report, SandboxCommand},
    submounts::unescaped,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CString, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::FileExt,
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::JoinHandle,
};

/// Bytes of the mount table: some ten thousand mounts.
const MAX_TABLE_BYTES: usize = 8 << 20;
/// No mount has this id.
const NO_MOUNT: u64 = 0;
/// How often putting a mount back is tried: a program can use up what the process for that needs.
/// Then the sandbox ends.
const MAX_TRIES: u32 = 100;
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// How often changes that the table does not show are looked for: a moved protected file, a hidden
/// one that comes back.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// ReplacedFile names that are recorded for one sandbox. Later ones are taken out like unknown files.
const MAX_REPLACED: usize = 10_000;

/// The mount watch of one sandbox. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct MountWatch {
    task: JoinHandle<()>,
    found: Arc<Mutex<WatchFindings>>,
}

/// What the watch has found.
#[derive(Debug, Default)]
pub(super) struct WatchFindings {
    /// Files that the host put in place of protected names.
    pub(super) replaced: Vec<ReplacedFile>,
    /// What could not be done.
    pub(super) problems: Vec<String>,
}

impl MountWatch {
    /// Starts to watch these names of a workspace.
    pub(super) fn start(
        table: OwnedFd,
        channel: Weak<Channel>,
        workspace: OwnedFd,
        names: Vec<Bind>,
    ) -> io::Result<MountWatch> {
        #[expect(
            deprecated,
            reason = "sound for a File, which owns its descriptor; what replaces it is unsafe for all"
        )]
        let table = AsyncFd::with_interest(File::from(table), Interest::PRIORITY)?;
        let found = Arc::new(Mutex::new(WatchFindings::default()));
        let mounts = mounts_below_workspace(&read_table(table.get_ref())?);
        let ids = mounts.into_iter().map(|(id, path)| (path, id));
        let ids: BTreeMap<PathBuf, u64> = ids.collect();
        let watched = names.into_iter().filter_map(|name| {
            let id = *ids.get(&name.path)?;
            let hidden = name.hidden;
            Some((name.path, WatchedMount { id, hidden }))
        });
        let watcher = MountWatcher {
            table,
            channel,
            workspace,
            watched: watched.collect(),
            found: found.clone(),
        };
        let task = tokio::spawn(watcher.watch());
        Ok(MountWatch { task, found })
    }

    /// Ends the watch; returns its findings.
    pub(super) async fn stop(mut self) -> WatchFindings {
        self.task.abort();
        // It was aborted: the result is of no interest.
        _ = (&mut self.task).await;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *found)
    }
}

impl Drop for MountWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct MountWatcher {
    table: AsyncFd<File>,
    /// Weak: a sandbox ends when its last owner drops it.
    channel: Weak<Channel>,
    workspace: OwnedFd,
    /// By path in the workspace.
    watched: BTreeMap<PathBuf, WatchedMount>,
    found: Arc<Mutex<WatchFindings>>,
}

/// The mount of one name.
#[derive(Clone, Copy)]
struct WatchedMount {
    id: u64,
    hidden: bool,
}

impl MountWatcher {
    async fn watch(mut self) {
        let mut tries = 0;
        loop {
            // The kernel reports every change since the table was opened, also those that were read
            // since.
            let changed =
                tokio::time::timeout(CHECK_INTERVAL, self.table.ready(Interest::PRIORITY));
            match changed.await {
                Ok(Ok(mut changed)) => changed.clear_ready(),
                Ok(Err(error)) => return self.give_up(&error),
                Err(_) => {}
            }
            let began = Instant::now();
            while let Err(error) = self.put_back(began).await {
                tries += 1;
                if tries == MAX_TRIES {
                    return self.give_up(&error);
                }
                tokio::time::sleep(RETRY_AFTER).await;
            }
            tries = 0;
        }
    }

    /// Without its protection the program must not continue.
    fn give_up(&self, error: &io::Error) {
        self.note(|found| {
            found.problems.push(format!(
                "a tool of the host replaced protected names of the workspace, and they could not be made read-only \
                 again: {error}; the sandbox was ended"
            ));
        });
        if let Some(channel) = self.channel.upgrade() {
            // A launcher that is gone took the sandbox with it.
            _ = channel.command(SandboxCommand::Destroy);
        }
    }

    /// Mounts the names that are not mounted any more where they were.
    async fn put_back(&mut self, began: Instant) -> io::Result<()> {
        let mounts = mounts_below_workspace(&read_table(self.table.get_ref())?);
        let is_gone = |(path, it): &(&PathBuf, &WatchedMount)| mounts.get(&it.id) != Some(path);
        let gone = self.watched.iter().filter(is_gone);
        let gone: Vec<(PathBuf, WatchedMount)> =
            gone.map(|(path, it)| (path.clone(), *it)).collect();
        // A detached name that does not exist is not watched any more: the program may not create
        // it. One that was moved is watched on, and so is a hidden one: it may come back.
        let is_moved = |it: &WatchedMount| mounts.contains_key(&it.id);
        let (gone, absent): (Vec<_>, Vec<_>) =
            gone.into_iter().partition(|(path, _)| self.is_there(path));
        for (path, it) in absent {
            if !it.hidden && !is_moved(&it) {
                self.watched.remove(&path);
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        let old_mounts: BTreeSet<u64> = mounts.keys().copied().collect();
        let mounted = self.remount(&gone).await?;
        let exposed = began.elapsed();
        let mounts = mounts_below_workspace(&read_table(self.table.get_ref())?);
        let known = mounts.into_iter().map(|(id, path)| (path, id));
        let known: BTreeMap<PathBuf, u64> = known.collect();
        for (number, (path, WatchedMount { id: old, hidden })) in (0..).zip(gone) {
            // Without a reply for it, the file is gone again: the next turn notices.
            let Some(mounted) = mounted.iter().find(|it| it.number == number) else {
                continue;
            };
            // Without an id it was detached again, and the table has changed again.
            let id = known.get(&path).copied().unwrap_or(NO_MOUNT);
            self.watched
                .insert(path.clone(), WatchedMount { id, hidden });
            let look = || FileState::look(self.workspace.as_fd(), &path)?.as_of(mounted);
            // A file in the place of one that was moved away may be the program's.
            let is_known = !hidden && !old_mounts.contains(&old);
            let file = if is_known { look() } else { None };
            let replaced = ReplacedFile {
                file,
                path,
                hidden,
                exposed,
            };
            self.note(|found| {
                if found.replaced.len() < MAX_REPLACED {
                    found.replaced.push(replaced);
                }
            });
        }
        Ok(())
    }

    /// Whether a file is there that can be mounted on.
    fn is_there(&self, path: &Path) -> bool {
        protect::is_file_or_folder(self.workspace.as_fd(), path)
    }

    async fn remount(&self, names: &[(PathBuf, WatchedMount)]) -> io::Result<Vec<RemountedName>> {
        let name = |(path, it): &(PathBuf, WatchedMount)| {
            let path = CString::new(path.as_os_str().as_bytes())?;
            let hidden = it.hidden;
            io::Result::Ok(RemountName { path, hidden })
        };
        let names = names.iter().map(name).collect::<Result<_, _>>()?;
        let plan = RemountPlan { names };
        let (ours, theirs) = protocol::pair()?;
        // Without an owner the channel's sandbox is being released.
        let Some(channel) = self.channel.upgrade() else {
            return Ok(Vec::new());
        };
        channel.send_plan(SandboxCommand::Remount, &plan, &[theirs.as_fd()])?;
        drop((channel, theirs));
        let answer = Channel::new(ours)?;
        // For a frozen sandbox this waits, and so do its programs.
        match answer.report().await? {
            Some((Report::Remounted(mounted), _)) => Ok(mounted),
            Some((Report::Failed(failure), _)) => Err(io::Error::from_raw_os_error(failure.errno)),
            // The child was killed; if with the sandbox, this watch ends as well.
            Some(_) | None => Err(io::Error::other("the process for it was killed")),
        }
    }

    fn note(&self, add: impl FnOnce(&mut WatchFindings)) {
        add(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn read_table(table: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        match table.read_at(&mut piece, bytes.len() as u64)? {
            0 => return Ok(bytes),
            read => bytes.extend_from_slice(&piece[..read]),
        }
        if bytes.len() > MAX_TABLE_BYTES {
            return Err(io::Error::other("the mount table is too long"));
        }
    }
}

/// The mounts below the workspace, by id, relative to it.
fn mounts_below_workspace(table: &[u8]) -> BTreeMap<u64, PathBuf> {
    let lines = table.split(|byte| *byte == b'\n');
    let mounts = lines.filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let place = PathBuf::from(OsString::from_vec(unescaped(fields.nth(3)?)));
        let below = place.strip_prefix(spec::WORKSPACE).ok()?.to_owned();
        Some((id, below)).filter(|(_, below)| !below.as_os_str().is_empty())
    });
    mounts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_is_read_as_the_kernel_writes_it() {
        let table = b"21 1 8:1 / / rw - ext4 /dev/a rw\n\
            33 21 8:1 /w /workspace rw - ext4 /dev/a rw\n\
            34 33 8:1 /w/a\\040b/.envrc /workspace/a\\040b/.envrc ro - ext4 /dev/a rw\n\
            35 33 8:1 /w/\\134x /workspace/\\134x ro - ext4 /dev/a rw\n\
            36 21 8:1 /w /workspaces/x ro - ext4 /dev/a rw\nrubbish\n";
        let found = mounts_below_workspace(table);
        let expected = [
            (34, PathBuf::from("a b/.envrc")),
            (35, PathBuf::from("\\x")),
        ];
        assert_eq!(found, expected.into());
    }
}
