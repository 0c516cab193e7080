//! Counts the file locks of a sandbox: kernel memory that no cgroup counts and no resource limit
//! bounds any more.
//!
//! A POSIX lock (`F_SETLK`) belongs to a file table. The seccomp filter lets no two processes share
//! one and refuses open file description locks (`F_OFD_SETLK`), so `/proc/PID/fdinfo` lists every
//! lock for as long as it is held. Not `/proc/locks`: reading it is quadratic in the locks of the
//! whole machine, and blocks all of them. A `flock` lock is one per open file, which the memory
//! limit counts.

use rustix::{
    fs::{Dir, Mode, OFlags, openat},
    io::Errno,
    time::ClockId,
};
use std::{
    collections::BTreeSet,
    fs,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

/// More than programs need: about 10 MB of kernel memory.
pub const MAX_FILE_LOCKS: u64 = 50_000;
/// The CPU time of one count: enough for some 100,000 open files. A sandbox that takes longer
/// cannot be held to a limit.
const MAX_COUNT_TIME: Duration = Duration::from_millis(500);
/// How often the list of processes, or of threads, is read until it has no new entry.
const MAX_ROUNDS: usize = 8;
/// Without locks, `fdinfo` has some 100 bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// Counts the locks of one sandbox. It blocks: not for an async thread.
#[derive(Debug)]
pub struct FileLocks {
    cgroup: PathBuf,
    /// Whether this process may inspect every process of the sandbox; then one that it cannot
    /// inspect is suspicious.
    sees_all: bool,
}

/// The result of a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCount {
    /// The locks held. LockCounter ends above the limit.
    pub locks: u64,
    /// Whether some could not be counted.
    pub is_incomplete: bool,
    /// The processes of the sandbox, with our own.
    pub processes: usize,
    /// The CPU time of the count.
    pub took: Duration,
}

impl LockCount {
    /// Whether a sandbox may not have that many.
    pub fn is_over(&self) -> bool {
        self.locks > MAX_FILE_LOCKS || self.took > MAX_COUNT_TIME
    }
}

impl FileLocks {
    /// For the processes of this cgroup.
    pub(crate) fn new(cgroup: PathBuf, sees_all: bool) -> FileLocks {
        FileLocks { cgroup, sees_all }
    }

    /// Counts the locks now.
    pub fn count(&self) -> LockCount {
        let mut counting = LockCounter {
            sees_all: self.sees_all,
            began: cpu_time(),
            buffer: vec![0; BUFFER_BYTES],
            count: LockCount::default(),
        };
        let mut seen = BTreeSet::new();
        for _ in 0..MAX_ROUNDS {
            let new: Vec<i32> = self.processes().difference(&seen).copied().collect();
            if new.is_empty() {
                break;
            }
            for pid in new {
                seen.insert(pid);
                counting.add_process(pid);
                if counting.count.is_over() {
                    break;
                }
            }
        }
        LockCount {
            processes: seen.len(),
            ..counting.count
        }
    }

    /// The number of processes, with our own.
    pub fn process_count(&self) -> usize {
        self.processes().len()
    }

    fn processes(&self) -> BTreeSet<i32> {
        let listed = fs::read_to_string(self.cgroup.join("cgroup.procs")).unwrap_or_default();
        listed.lines().filter_map(|pid| pid.parse().ok()).collect()
    }
}

struct LockCounter {
    sees_all: bool,
    began: Duration,
    buffer: Vec<u8>,
    count: LockCount,
}

impl LockCounter {
    fn add_process(&mut self, pid: i32) {
        let process = PathBuf::from(format!("/proc/{pid}"));
        match self.add_files_of(&process) {
            // The process is gone, and its locks with it.
            Err(Errno::NOENT | Errno::SRCH) => {}
            // Its first thread has ended, or it has no open files.
            Ok(0) => self.add_threads(&process),
            Ok(_) => {}
            Err(_) if self.sees_all && !is_ours(&process) => self.count.is_incomplete = true,
            Err(_) => {}
        }
        self.count.took = cpu_time().saturating_sub(self.began);
    }

    /// All threads share the files: those of any living one will do.
    fn add_threads(&mut self, process: &Path) {
        let mut seen = BTreeSet::new();
        for _ in 0..MAX_ROUNDS {
            let Ok(threads) = fs::read_dir(process.join("task")) else {
                return;
            };
            let threads: BTreeSet<PathBuf> = threads.flatten().map(|it| it.path()).collect();
            let new: Vec<PathBuf> = threads.difference(&seen).cloned().collect();
            if new.is_empty() {
                return;
            }
            for thread in new {
                if self.add_files_of(&thread).is_ok_and(|files| files > 0) {
                    return;
                }
                seen.insert(thread);
            }
        }
        // Threads come and go faster than they can be read.
        self.count.is_incomplete = true;
    }

    /// Returns the number of open files.
    fn add_files_of(&mut self, process: &Path) -> rustix::io::Result<usize> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(process.join("fdinfo"), flags, Mode::empty())?;
        let mut files = 0;
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            if entry.file_name().to_bytes().starts_with(b".") {
                continue;
            }
            files += 1;
            // A failure means that the file was closed, and its locks with it.
            if let Ok(file) = openat(
                folder.as_fd(),
                entry.file_name(),
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            ) {
                self.add_locks_of(&file);
            }
            if self.count.locks > MAX_FILE_LOCKS {
                break;
            }
        }
        Ok(files)
    }

    fn add_locks_of(&mut self, file: &OwnedFd) {
        let mut lines = LockLines::default();
        loop {
            match rustix::io::read(file, &mut self.buffer[..]) {
                Ok(read) => {
                    self.count.locks += lines.add(&self.buffer[..read]);
                    // The kernel returns all there is, or as much as fits.
                    if read < self.buffer.len() || self.count.locks > MAX_FILE_LOCKS {
                        return;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// Counts lines that begin with `lock:` in a text that comes in parts.
#[derive(Debug, Default)]
struct LockLines {
    /// The matched length of the word on the current line; none once it cannot match.
    matched: Option<usize>,
    begun: bool,
}

impl LockLines {
    fn add(&mut self, text: &[u8]) -> u64 {
        const WORD: &[u8] = b"lock:";
        if !std::mem::replace(&mut self.begun, true) {
            self.matched = Some(0);
        }
        let mut found = 0;
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(matched) = self.matched {
                let fits = rest[0] == WORD[matched];
                self.matched = fits.then_some(matched + 1);
                if self.matched == Some(WORD.len()) {
                    found += 1;
                    self.matched = None;
                }
                if fits {
                    rest = &rest[1..];
                    continue;
                }
            }
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                return found;
            };
            self.matched = Some(0);
            rest = &rest[end + 1..];
        }
        found
    }
}

/// Whether it is a process of Airlock: pid 1 of its namespace, or one outside of that. An ordinary
/// user's engine may not inspect those.
fn is_ours(process: &Path) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers: Vec<_> = numbers.unwrap_or_default().split_whitespace().collect();
    // Ours, the launcher's, the sandbox's.
    numbers.len() < 3 || numbers.last() == Some(&"1")
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(rustix::time::clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &[u8] = b"pos:\t0\nflags:\t0100002\nmnt_id:\t31\nino:\t7\n\
        lock:\t1: POSIX  ADVISORY  WRITE 24 00:22:7 2 2\nlock:\t2: POSIX  ADVISORY  WRITE 24 00:22:7 0 0\n";

    #[test]
    fn locks_are_counted_by_lines_wherever_the_text_is_cut() {
        for cut in 0..=INFO.len() {
            let mut lines = LockLines::default();
            let (first, second) = INFO.split_at(cut);
            assert_eq!(lines.add(first) + lines.add(second), 2, "cut at {cut}");
        }
        let without = b"pos:\t0\nflags:\t02\nblock:\t1\nlocks:\t2\n lock:\t3\n";
        assert_eq!(LockLines::default().add(without), 0);
        assert_eq!(LockLines::default().add(b"lock:\t1: FLOCK\n"), 1);
    }

    /// A fake cgroup: a folder with a list of processes is all that is read of one.
    fn of_processes(pids: &str) -> LockCount {
        let folder = std::env::temp_dir().join(format!("airlock-locks-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), pids).unwrap();
        let count = FileLocks::new(folder.clone(), true).count();
        fs::remove_dir_all(folder).unwrap();
        count
    }

    #[test]
    fn locks_of_a_process_are_found_and_those_of_one_that_is_gone_are_not() {
        let path = std::env::temp_dir().join(format!("airlock-locked-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        let own = std::process::id().to_string();
        let before = of_processes(&own).locks;
        file.lock().unwrap();
        let count = of_processes(&own);
        fs::remove_file(&path).unwrap();
        assert_eq!((count.locks, count.processes), (before + 1, 1));
        assert!(!count.is_incomplete && !count.is_over());
        let nobody = of_processes("2147483647\n");
        assert_eq!((nobody.locks, nobody.is_incomplete), (0, false));
    }
}
