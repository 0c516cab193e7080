//! One cgroup directory: its files, its processes, its removal.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long killing or removing may take: a process in the kernel dies when it leaves it.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest page of any Linux; the kernel rounds memory limits down to whole pages.
const MAX_PAGE_BYTES: u64 = 64 << 10;
/// Deeper or wider trees are not ours.
const MAX_DEPTH: usize = 32;
const MAX_DIRS: usize = 100_000;

/// The text of one of its files, without the last line break.
pub(super) fn read(dir: &Path, file: &str) -> io::Result<String> {
    let mut text = fs::read_to_string(dir.join(file))?;
    text.truncate(text.trim_end().len());
    Ok(text)
}

/// The counters of one cgroup. Each file is opened once: a warm run ends with nothing but reads.
#[derive(Debug)]
pub(super) struct CounterFiles {
    dir: PathBuf,
    open: Mutex<BTreeMap<&'static str, File>>,
}

impl CounterFiles {
    pub(super) fn new(dir: PathBuf) -> CounterFiles {
        CounterFiles {
            dir,
            open: Mutex::default(),
        }
    }

    /// A file with one number.
    pub(super) fn number(&self, file: &'static str) -> Option<u64> {
        self.read(file)?.trim_end().parse().ok()
    }

    /// One value of a file with lines `name value`.
    pub(super) fn keyed(&self, file: &'static str, name: &str) -> Option<u64> {
        value(&self.read(file)?, name)
    }

    /// One read returns the whole file, and fresh values each time.
    fn read(&self, file: &'static str) -> Option<String> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let from = match open.entry(file) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(File::open(self.dir.join(file)).ok()?),
        };
        let mut bytes = vec![0; 2048];
        let count = from.read_at(&mut bytes, 0).ok()?;
        bytes.truncate(count);
        String::from_utf8(bytes).ok()
    }
}

pub(super) fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

/// Writes into a file that must exist: creating one would mean that this is no cgroup.
pub(super) fn write(dir: &Path, file: &str, text: &str) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(dir.join(file))?
        .write_all(text.as_bytes())
}

/// Writes a limit and reads it back: only then it is in force.
pub(super) fn set(dir: &Path, file: &str, limit: &str) -> io::Result<()> {
    set_as(dir, file, limit, |back| back == limit)
}

/// The same for bytes.
pub(super) fn set_bytes(dir: &Path, file: &str, limit: u64) -> io::Result<()> {
    set_as(dir, file, &limit.to_string(), |back| {
        back.parse()
            .is_ok_and(|back: u64| back <= limit && limit - back < MAX_PAGE_BYTES)
    })
}

fn set_as(dir: &Path, file: &str, limit: &str, took: impl Fn(&str) -> bool) -> io::Result<()> {
    let named = |source: io::Error| io::Error::new(source.kind(), format!("`{file}`: {source}"));
    write(dir, file, limit).map_err(named)?;
    let back = read(dir, file).map_err(named)?;
    if took(&back) {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "`{file}` was set to `{limit}` and reads back `{back}`"
        )))
    }
}

/// The processes in it, as numbered in this process's pid namespace; 0 is one from outside.
pub(super) fn processes(dir: &Path) -> io::Result<Vec<i32>> {
    Ok(read(dir, "cgroup.procs")?
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect())
}

/// The directories below it, deepest first.
pub(super) fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![(dir.to_owned(), 0)];
    while let Some((dir, depth)) = next.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        let inner = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        for path in inner
            .map(|entry| entry.path())
            .take(MAX_DIRS.saturating_sub(found.len()))
        {
            found.push((path.clone(), depth));
            if depth < MAX_DEPTH {
                next.push((path, depth + 1));
            }
        }
    }
    found.sort_by_key(|(_, depth)| std::cmp::Reverse(*depth));
    found.into_iter().map(|(path, _)| path).collect()
}

/// Kills all processes in it and below, and returns when it is empty.
pub(super) fn kill(dir: &Path) -> io::Result<()> {
    retry_while_busy(Instant::now() + BUSY_TIMEOUT, || {
        let mut living = 0;
        for dir in below(dir).iter().map(PathBuf::as_path).chain([dir]) {
            living += kill_once(dir)?;
        }
        match living {
            0 => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
        }
    })
}

/// One round; returns the number of processes. A removed cgroup has none.
fn kill_once(dir: &Path) -> io::Result<usize> {
    let listed = match processes(dir) {
        Err(error) if gone(&error) => return Ok(0),
        listed => listed?,
    };
    if listed.is_empty() || write(dir, "cgroup.kill", "1").is_ok() {
        return Ok(listed.len());
    }
    // v1, or v2 before 5.14. Pids are reused: only a process that is still listed once we have its
    // pidfd is meant.
    let held: Vec<_> = listed
        .iter()
        .filter_map(|pid| {
            Some((
                *pid,
                pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()?,
            ))
        })
        .collect();
    let still = processes(dir)?;
    for (_, process) in held.iter().filter(|(pid, _)| still.contains(pid)) {
        match pidfd_send_signal(process, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(listed.len())
}

/// Kills its processes and removes the directory with everything below it. Absent is fine.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    kill(dir)?;
    remove_when_empty(dir, Instant::now() + BUSY_TIMEOUT)
}

/// Removes several as soon as they are empty, and kills nothing; returns the results.
pub(super) fn remove_empty(dirs: Vec<PathBuf>) -> Vec<(PathBuf, io::Result<()>)> {
    let until = Instant::now() + BUSY_TIMEOUT;
    let attempt = |at: PathBuf| (at.clone(), remove_when_empty(&at, until));
    dirs.into_iter().map(attempt).collect()
}

fn remove_when_empty(dir: &Path, until: Instant) -> io::Result<()> {
    retry_while_busy(until, || match remove_now(dir) {
        // A cgroup with cgroups below it says "busy", just as with processes in it.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            below(dir).iter().try_for_each(|dir| remove_now(dir))?;
            remove_now(dir)
        }
        done => done,
    })
}

/// One attempt. Absent is fine.
fn remove_now(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if gone(&error) => Ok(()),
        done => done,
    }
}

/// Reading a cgroup that is being removed fails with ENODEV.
pub(super) fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

/// Retries while the error is "busy", with growing pauses. A v1 cgroup has no event for its end.
pub(super) fn retry_while_busy(
    until: Instant,
    mut attempt: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let mut pause = Duration::from_micros(100);
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
            }
            done => return done,
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        let events = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0";
        assert_eq!(value(events, "oom_kill"), Some(1));
        assert_eq!(value(events, "oom"), Some(2));
        assert_eq!(
            value("oom_kill_disable 0\nunder_oom 0\noom_kill 3", "oom_kill"),
            Some(3)
        );
    }

    #[test]
    fn odd_contents_give_no_value() {
        for odd in [
            "",
            "oom_kill",
            "oom_kill ",
            "oom_kill x",
            "oom_kill -1",
            "oom_kill 99999999999999999999",
            "x\0y",
        ] {
            assert_eq!(value(odd, "oom_kill"), None, "{odd:?}");
        }
    }

    #[test]
    fn a_limit_that_was_accepted_but_does_not_read_back_is_an_error() {
        assert!(set(Path::new("/dev"), "null", "5").is_err()); // takes everything, keeps nothing
        assert!(set_bytes(Path::new("/dev"), "null", 4096).is_err());
        let kept = std::env::temp_dir().join(format!("airlock-kept-{}", std::process::id()));
        fs::write(&kept, "").unwrap();
        assert!(set(Path::new("/"), kept.to_str().unwrap(), "5").is_ok());
        fs::remove_file(kept).unwrap();
    }

    #[test]
    fn nothing_is_written_where_there_is_no_such_file() {
        let dir = std::env::temp_dir();
        let error = write(&dir, "memory.max.of-no-cgroup", "1").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(!dir.join("memory.max.of-no-cgroup").exists());
    }
}
