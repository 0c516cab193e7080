//! What can be seen from the host: processes, cgroups, mounts.

use crate::PATIENCE;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, Signal},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

/// Numbers of all processes.
pub fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc can be read").flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Processes that carry this text among their arguments or variables.
pub fn carrying(text: &str) -> Vec<i32> {
    let carries = |pid: &i32| {
        ["cmdline", "environ"].iter().any(|file| {
            let found = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            found
                .windows(text.len())
                .any(|window| window == text.as_bytes())
        })
    };
    processes().into_iter().filter(carries).collect()
}

/// Programs of this run, by the variable that every one of them is given.
pub fn programs_of(run: &str) -> Vec<i32> {
    carrying(&format!("AIRLOCK_RUN_ID={run}"))
}

/// The first argument of a process; empty for a zombie.
pub fn name(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(line.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// State and parent of a process.
fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

/// The parent of a process.
pub fn parent(pid: i32) -> Option<i32> {
    state_and_parent(pid).map(|(_, parent)| parent)
}

/// Children of `parent` that have ended and wait to be reaped.
pub fn zombies_of(parent: i32) -> Vec<i32> {
    let ended = |pid: &i32| state_and_parent(*pid) == Some(('Z', parent));
    processes().into_iter().filter(ended).collect()
}

/// The living processes below `root`, whoever adopted them in between.
pub fn descendants(root: i32) -> BTreeSet<i32> {
    let all: BTreeMap<i32, (char, i32)> = processes()
        .into_iter()
        .filter_map(|pid| Some((pid, state_and_parent(pid)?)))
        .collect();
    let below = |mut pid: i32| {
        while let Some((_, parent)) = all.get(&pid) {
            if *parent == root {
                return true;
            }
            pid = *parent;
        }
        false
    };
    let living = all
        .iter()
        .filter(|(_, (state, _))| *state != 'Z')
        .map(|(pid, _)| *pid);
    living.filter(|pid| below(*pid)).collect()
}

/// A handle on a process.
pub fn hold(pid: i32) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Kills a process by its handle; whether it was still there.
pub fn kill(process: &OwnedFd) -> bool {
    rustix::process::pidfd_send_signal(process, Signal::KILL).is_ok()
}

/// Kills a process by its handle and waits for its death, so that whoever watches it sees that before anything that is asked
/// later; whether it was still there.
pub fn kill_and_wait(process: &OwnedFd) -> bool {
    if !kill(process) {
        return false;
    }
    let patience = Timespec::try_from(PATIENCE).expect("a minute");
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    let ready = rustix::event::poll(&mut ended, Some(&patience)).expect("it can be watched");
    assert_eq!(ready, 1, "it dies within {PATIENCE:?}");
    true
}

/// Cgroups whose name has this text in it.
pub fn cgroups_naming(text: &str) -> Vec<PathBuf> {
    let (mut found, mut next) = (Vec::new(), vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(folder) = next.pop() {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name().to_string_lossy().contains(text) {
                found.push(entry.path());
            }
            next.push(entry.path());
        }
    }
    found
}

/// How the cgroups and containers of a state folder's runs are marked: by its place on disk and when it was made.
pub fn owner(state: &Path) -> String {
    let found = fs::metadata(state).expect("a state folder");
    let made = found
        .created()
        .expect("tests lie where folders know their age");
    let made = made
        .duration_since(UNIX_EPOCH)
        .expect("it is not that old")
        .as_nanos();
    format!("{:x}-{:x}-{made:x}", found.dev(), found.ino())
}

/// Lines of the host's mount table that name this path.
pub fn mounts_naming(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the mount table can be read");
    let path = path.display().to_string();
    table
        .lines()
        .filter(|line| line.contains(&path))
        .map(str::to_owned)
        .collect()
}

/// Everything below a folder, relative to it.
pub fn listing(folder: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut next) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(inner) = next.pop() {
        for entry in fs::read_dir(&inner).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                next.push(entry.path());
            }
            found.insert(
                entry
                    .path()
                    .strip_prefix(folder)
                    .expect("it is below")
                    .to_owned(),
            );
        }
    }
    found
}

/// The namespaces that these processes are in.
pub fn namespaces(of: &BTreeSet<i32>) -> BTreeSet<PathBuf> {
    let kinds = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let links = of
        .iter()
        .flat_map(|pid| kinds.map(|kind| format!("/proc/{pid}/ns/{kind}")));
    links.filter_map(|link| fs::read_link(link).ok()).collect()
}

/// The most memory a process ever held, in KiB.
pub fn peak_kib(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}
