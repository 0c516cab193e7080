//! Run records: one locked file per run in `STATE/runs`. The lock ends with its owner, so a process
//! that gets the lock may clean up.

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use sandbox::{container::ContainerBackend, native::NativeBackend};
use spec::{Id, Timestamp};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::{
        fd::AsRawFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The timeout for a container engine to remove what a dead run left.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest socket path in a record.
const MAX_SOCKET_PATH_BYTES: usize = 4096;
const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

/// The records of a state folder.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    state: PathBuf,
}

/// The locked record of one run.
#[derive(Debug)]
pub(crate) struct Record {
    id: Id,
    path: PathBuf,
    _lock: File,
}

/// The socket of the run's container engine, if it has one.
fn read_socket(file: &File) -> io::Result<Option<PathBuf>> {
    let mut text = vec![0; MAX_SOCKET_PATH_BYTES];
    let count = file.read_at(&mut text, 0)?;
    text.truncate(count);
    Ok((!text.is_empty()).then(|| PathBuf::from(OsString::from_vec(text))))
}

/// Removes the containers and staging files of a run, and containers of runs without a record:
/// their owner died while the engine was about to create them.
async fn remove_containers(
    containers: &ContainerBackend,
    socket: &Path,
    run: &Id,
    known: &(dyn Fn(&str) -> bool + Sync),
) -> Result<(), String> {
    let failed = |error: sandbox::SandboxError| error.info().message;
    let found = containers.left_over(socket).await.map_err(failed)?;
    for (of, ids) in found {
        // Checked after the list was read: a run writes its record before it creates a container.
        for id in ids.iter().filter(|_| of == run.as_str() || !known(&of)) {
            containers.remove(socket, id).await.map_err(failed)?;
        }
    }
    containers
        .remove_leftovers(run)
        .map_err(|error| error.to_string())
}

/// Blocks on a future from any thread, with an event loop of its own.
fn block_on_new_runtime<T: Send>(
    work: impl Future<Output = Result<T, String>> + Send,
) -> Result<T, String> {
    let alone = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let work = async { tokio::time::timeout(SWEEP_TIMEOUT, work).await };
        let late = |_| Err("the container engine did not answer in time".to_owned());
        runtime
            .map_err(|error| error.to_string())?
            .block_on(work)
            .unwrap_or_else(late)
    };
    std::thread::scope(|threads| threads.spawn(alone).join())
        .unwrap_or_else(|_| Err("the sweep failed".to_owned()))
}

/// What a sweep removed.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct SweepReport {
    /// Removed runs whose owner was gone.
    pub runs: Vec<String>,
    /// The number of runs whose owner is alive.
    pub live: usize,
    /// What else was done.
    pub notes: Vec<String>,
    /// What could not be removed, and why.
    pub problems: Vec<String>,
}

impl Records {
    pub(crate) fn open(state: PathBuf) -> io::Result<Records> {
        let mut folder = fs::DirBuilder::new();
        folder
            .recursive(true)
            .mode(0o700)
            .create(state.join("runs"))?;
        for folder in [state.clone(), state.join("runs")] {
            check_owner(&folder)?;
        }
        Ok(Records { state })
    }

    /// The folder of the records.
    pub(crate) fn folder(&self) -> PathBuf {
        self.state.join("runs")
    }

    /// Whether there is a record of this run; true also if that cannot be determined.
    pub(crate) fn has(&self, id: &Id) -> bool {
        self.path(id).try_exists().unwrap_or(true)
    }

    fn path(&self, id: &Id) -> PathBuf {
        self.state.join("runs").join(id.as_str())
    }

    /// Creates and locks the record of a run; `AlreadyExists` if a live run has the id. Leftovers
    /// of an earlier run with the id are removed first.
    pub(crate) fn take(
        &self,
        id: &Id,
        native: &NativeBackend,
        containers: &ContainerBackend,
    ) -> io::Result<Record> {
        let path = self.path(id);
        let file = match self.create_locked(&path) {
            Some(file) => file,
            None => {
                let file = take_over(&path)?;
                native
                    .remove_leftovers(id)
                    .map_err(|error| io::Error::other(error.to_string()))?;
                if let Some(socket) = read_socket(&file)? {
                    let known = |_: &str| true;
                    block_on_new_runtime(remove_containers(containers, &socket, id, &known))
                        .map_err(io::Error::other)?;
                    file.set_len(0)?;
                }
                file
            }
        };
        Ok(Record {
            id: id.clone(),
            path,
            _lock: file,
        })
    }

    /// A new file that is locked before it gets its name, so that a sweep never sees it without an
    /// owner. None if the name is taken, or without O_TMPFILE support.
    fn create_locked(&self, path: &Path) -> Option<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file =
            rustix::fs::open(self.state.join("runs"), flags, Mode::RUSR | Mode::WUSR).ok()?;
        let file = File::from(file);
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        let locked = lock(&file).ok()?;
        let linked = rustix::fs::linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW).is_ok();
        (locked && linked).then_some(file)
    }

    /// Removes the leftovers of runs whose owner is gone.
    pub(crate) fn sweep(
        &self,
        native: &NativeBackend,
        containers: &ContainerBackend,
    ) -> SweepReport {
        let mut swept = SweepReport::default();
        let entries = match fs::read_dir(self.state.join("runs")) {
            Ok(entries) => entries,
            Err(error) => {
                swept
                    .problems
                    .push(format!("the run records cannot be read: {error}"));
                return swept;
            }
        };
        let mut unresponsive = BTreeSet::new();
        for entry in entries.flatten() {
            let Some(id) = entry
                .file_name()
                .to_str()
                .and_then(|name| Id::new(name).ok())
            else {
                continue;
            };
            match self.sweep_one(&id, native, containers, &mut unresponsive) {
                Ok(Some(true)) => swept.runs.push(id.to_string()),
                Ok(Some(false)) => swept.live += 1,
                Ok(None) => {}
                Err(problem) => swept.problems.push(problem),
            }
        }
        let workspaces = native.sweep_workspaces();
        swept.notes.extend(workspaces.notes);
        swept.problems.extend(workspaces.problems);
        swept
    }

    /// True if the run was removed, false if its owner is alive, none if it ended meanwhile. A
    /// container engine in `unresponsive` is not asked again: every start waits for the sweep.
    fn sweep_one(
        &self,
        id: &Id,
        native: &NativeBackend,
        containers: &ContainerBackend,
        unresponsive: &mut BTreeSet<PathBuf>,
    ) -> Result<Option<bool>, String> {
        let path = self.path(id);
        let failed = |error: io::Error| format!("run {id}: {error}");
        let file = match OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(NOFOLLOW)
            .open(&path)
        {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if !lock(&file).map_err(failed)? {
            return Ok(Some(false));
        }
        if !same_file(&file, &path) {
            return Ok(None);
        }
        native
            .remove_leftovers(id)
            .map_err(|error| format!("run {id}: {error}"))?;
        if let Some(socket) = read_socket(&file).map_err(failed)? {
            let known =
                |run: &str| Id::new(run).is_ok_and(|run| run != *id && self.path(&run).exists());
            if unresponsive.contains(&socket) {
                return Err(format!(
                    "run {id}: `{}` was not asked again",
                    socket.display()
                ));
            }
            if let Err(why) =
                block_on_new_runtime(remove_containers(containers, &socket, id, &known))
            {
                unresponsive.insert(socket);
                return Err(format!("run {id}: {why}"));
            }
        }
        fs::remove_file(&path).map_err(failed)?;
        Ok(Some(true))
    }
}

impl Record {
    /// Writes the socket of the container engine that is about to create something for this run.
    pub(crate) fn write_socket(&self, socket: &Path) -> io::Result<()> {
        (&self._lock).write_all(socket.as_os_str().as_bytes())
    }

    /// Like [`Record::abandon`], for a run in a container engine.
    pub(crate) async fn abandon_container(
        self,
        native: &NativeBackend,
        containers: &ContainerBackend,
    ) -> io::Result<()> {
        if let Some(socket) = read_socket(&self._lock)? {
            // The sweep finds by this record what could not be removed.
            if remove_containers(containers, &socket, &self.id, &|_| true)
                .await
                .is_err()
            {
                return Ok(());
            }
        }
        self.abandon(native)
    }

    /// Removes the record of a run that left nothing. A record that is only dropped is found by the
    /// sweep.
    pub(crate) fn close(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// Removes the leftovers of a run that did not start, and its record. If that fails, the record
    /// stays for the sweep.
    pub(crate) fn abandon(self, native: &NativeBackend) -> io::Result<()> {
        match native.remove_leftovers(&self.id) {
            Ok(()) => self.close(),
            Err(_) => Ok(()),
        }
    }
}

/// Locks the record of a dead run, or a new one.
fn take_over(path: &Path) -> io::Result<File> {
    loop {
        let mut how = OpenOptions::new();
        how.read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(NOFOLLOW);
        let file = how.open(path)?;
        if !lock(&file)? {
            return Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "a run with this id is under way",
            ));
        }
        // A sweep may have removed the file between open and lock.
        if same_file(&file, path) {
            return Ok(file);
        }
    }
}

/// Refuses a folder that other users can write: they could decide what a sweep removes.
fn check_owner(folder: &Path) -> io::Result<()> {
    let found = fs::metadata(folder)?;
    let us = rustix::process::geteuid().as_raw();
    let others_write = found.mode() & 0o022 != 0;
    match (found.uid() == us, others_write) {
        (true, false) => Ok(()),
        (true, true) => Err(io::Error::other("others may write to it")),
        (false, _) => Err(io::Error::other(format!(
            "it belongs to user {}, not to {us}",
            found.uid()
        ))),
    }
}

/// Whether the owner of a run is alive.
pub(crate) fn has_owner(state: &Path, id: &Id) -> bool {
    let path = state.join("runs").join(id.as_str());
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(NOFOLLOW)
        .open(path);
    file.is_ok_and(|file| lock(&file).is_ok_and(|taken| !taken))
}

/// Tries to lock a file; false if another process has the lock.
fn lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(found)) => (held.dev(), held.ino()) == (found.dev(), found.ino()),
        _ => false,
    }
}

/// The wall clock time in milliseconds.
pub fn now() -> Timestamp {
    Timestamp(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64),
    )
}

/// The wall clock time in microseconds.
pub fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as u64)
}

/// A new ULID: 48 bits of milliseconds and 80 random bits, in Crockford's base 32, sortable by
/// time.
pub fn fresh_id() -> Id {
    const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let mut chance = [0; 10];
    let filled = rustix::rand::getrandom(&mut chance, rustix::rand::GetRandomFlags::empty());
    assert_eq!(
        filled,
        Ok(chance.len()),
        "the kernel has chance for ten bytes"
    );
    let chance = chance
        .iter()
        .fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    let bits = u128::from(now().0 & 0xffff_ffff_ffff) << 80 | chance;
    let text: String = (0..26)
        .rev()
        .map(|place| char::from(DIGITS[(bits >> (5 * place)) as usize & 31]))
        .collect();
    Id::new(&text).expect("its digits are those of an id")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox::container::EngineSockets;
    use std::os::unix::fs::PermissionsExt;

    fn records(name: &str) -> Records {
        let state =
            std::env::temp_dir().join(format!("airlock-records-{name}-{}", std::process::id()));
        Records::open(state).unwrap()
    }

    /// Drops a record as if its owner had died. A child of another test may have a copy of the
    /// descriptor until it execs.
    fn die(record: Record) {
        rustix::fs::flock(&record._lock, FlockOperation::Unlock).unwrap();
    }

    #[test]
    fn a_living_run_keeps_its_id_and_is_not_swept() {
        let records = records("live");
        let native = NativeBackend::new(records.state.clone());
        let containers = ContainerBackend::new(records.state.clone(), EngineSockets::default());
        let id = Id::new("one").unwrap();
        let record = records.take(&id, &native, &containers).unwrap();
        assert_eq!(
            records.take(&id, &native, &containers).unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
        let swept = records.sweep(&native, &containers);
        assert_eq!((swept.runs, swept.live), (vec![], 1));
        die(record);
        let swept = records.sweep(&native, &containers);
        assert_eq!((swept.runs, swept.live), (vec!["one".to_owned()], 0));
        die(records.take(&id, &native, &containers).unwrap());
        records
            .take(&id, &native, &containers)
            .unwrap()
            .close()
            .unwrap();
        assert!(records.sweep(&native, &containers).runs.is_empty());
        fs::remove_dir_all(records.state).unwrap();
    }

    #[test]
    fn a_run_that_begins_during_a_sweep_is_not_taken_for_a_dead_one() {
        let records = records("race");
        let native = NativeBackend::new(records.state.clone());
        let containers = ContainerBackend::new(records.state.clone(), EngineSockets::default());
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(
                        records.sweep(&native, &containers).runs,
                        Vec::<String>::new()
                    );
                }
            });
            for number in 0..500 {
                let record = records.take(
                    &Id::new(&format!("run-{number}")).unwrap(),
                    &native,
                    &containers,
                );
                // The sweeper must stop even if this fails.
                over.store(
                    record.is_err() || number == 499,
                    std::sync::atomic::Ordering::Relaxed,
                );
                record.unwrap().close().unwrap();
            }
        });
        fs::remove_dir_all(records.state).unwrap();
    }

    #[test]
    fn a_container_engine_that_hangs_is_waited_for_once() {
        let records = records("silent");
        let native = NativeBackend::new(records.state.clone());
        let containers = ContainerBackend::new(records.state.clone(), EngineSockets::default());
        let socket = records.state.join("socket");
        let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for id in ["one", "two", "three"] {
            let record = records
                .take(&Id::new(id).unwrap(), &native, &containers)
                .unwrap();
            record.write_socket(&socket).unwrap();
        }
        let swept = records.sweep(&native, &containers);
        assert_eq!(
            (swept.runs.len(), swept.problems.len()),
            (0, 3),
            "{swept:?}"
        );
        let spared = swept
            .problems
            .iter()
            .filter(|problem| problem.ends_with("was not asked again"));
        assert_eq!(spared.count(), 2, "{swept:?}");
        assert_eq!(
            fs::read_dir(records.folder()).unwrap().count(),
            3,
            "a later sweep finds them"
        );
        fs::remove_dir_all(records.state).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused_and_no_link_in_it_is_followed() {
        let state = records("owner").state;
        fs::set_permissions(&state, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(Records::open(state.clone()).is_err());
        fs::set_permissions(&state, fs::Permissions::from_mode(0o750)).unwrap();
        let records = Records::open(state.clone()).unwrap();
        let (elsewhere, id) = (state.join("elsewhere"), Id::new("planted").unwrap());
        std::os::unix::fs::symlink(&elsewhere, records.path(&id)).unwrap();
        let containers = ContainerBackend::new(records.state.clone(), EngineSockets::default());
        assert!(
            records
                .take(&id, &NativeBackend::new(records.state.clone()), &containers)
                .is_err()
        );
        assert!(!elsewhere.exists());
        fs::remove_dir_all(state).unwrap();
    }

    #[test]
    fn fresh_ids_differ_and_sort_by_time() {
        let (one, other) = (fresh_id(), fresh_id());
        assert_ne!(one, other);
        assert_eq!(one.as_str().len(), 26);
        assert_eq!(one.as_str()[..6], other.as_str()[..6]);
    }
}
