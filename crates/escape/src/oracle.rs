//! What the host sees of processes, whoever they say they are.

use crate::{Finding, peer};
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::PathBuf,
};

/// Everybody in the host's process table.
pub(crate) fn all_processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The processes of an attack, by the marker in its command line.
pub(crate) fn attacks_with(marker: &str) -> Vec<u32> {
    let pids = all_processes().into_iter();
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        peer::is_attack(&line)
            && line
                .windows(marker.len())
                .any(|part| part == marker.as_bytes())
    })
    .collect()
}

/// The value of a line of `/proc/PID/status`.
pub(crate) fn status(pid: u32, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| {
        Some(
            line.strip_prefix(name)?
                .strip_prefix(':')?
                .trim()
                .to_owned(),
        )
    })
}

/// A namespace of a process.
pub(crate) fn namespace(pid: u32, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// What lies behind each descriptor of a process.
pub(crate) fn descriptors(pid: u32) -> Vec<(u32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let described = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((
            number,
            fs::read_link(entry.path())
                .ok()?
                .to_string_lossy()
                .into_owned(),
        ))
    });
    described.collect()
}

/// Whether a process holds a descriptor whose name has this part.
pub(crate) fn holds(pid: u32, part: &str) -> Finding {
    let found = descriptors(pid)
        .into_iter()
        .find(|(number, name)| *number > 2 && name.contains(part));
    found.map_or(Finding::Nothing, |(_, name)| {
        Finding::Escape(format!("it holds {name}"))
    })
}

/// The locks of files that these processes hold.
pub(crate) fn locks_of(pids: &[u32]) -> u64 {
    let entries = pids
        .iter()
        .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fdinfo")).ok())
        .flatten()
        .flatten();
    let told = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    told.map(|text| {
        let lines = text.lines();
        lines.filter(|line| line.starts_with("lock:")).count() as u64
    })
    .sum()
}

/// The numbers of the devices that a process holds open, beyond its standard streams.
pub(crate) fn devices(pid: u32) -> Vec<(u32, u32)> {
    let beyond = descriptors(pid)
        .into_iter()
        .filter(|(number, _)| *number > 2);
    let looked =
        beyond.filter_map(|(number, _)| fs::metadata(format!("/proc/{pid}/fd/{number}")).ok());
    let devices = looked
        .filter(|found| found.file_type().is_char_device() || found.file_type().is_block_device());
    devices
        .map(|found| (libc::major(found.rdev()), libc::minor(found.rdev())))
        .collect()
}

/// Whether any file below a folder has this text.
pub(crate) fn folder_has(folder: &std::path::Path, text: &str) -> std::io::Result<bool> {
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => left.push(entry.path()),
                kind if kind.is_file() => {
                    let found = fs::read(entry.path())?;
                    if found
                        .windows(text.len().max(1))
                        .any(|part| part == text.as_bytes())
                    {
                        return Ok(true);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(false)
}

/// Threads of a process.
pub(crate) fn tasks(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .count()
}

fn mib_of(pid: u32, name: &str) -> u64 {
    let text = status(pid, name).unwrap_or_default();
    text.trim_end_matches("kB")
        .trim()
        .parse::<u64>()
        .unwrap_or(0)
        >> 10
}

/// Memory that a process holds now.
pub(crate) fn resident_mib(pid: u32) -> u64 {
    mib_of(pid, "VmRSS")
}

/// The most it ever held.
pub(crate) fn peak_mib(pid: u32) -> u64 {
    mib_of(pid, "VmHWM")
}

/// Where a folder of a box is, seen from the host.
fn inside(pid: u32, place: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root/{place}"))
}

/// What the files right below a folder of a box take.
pub(crate) fn folder_mib(pid: u32, place: &str) -> u64 {
    let entries = fs::read_dir(inside(pid, place))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| entry.metadata().ok())
        .map(|found| found.blocks() * 512)
        .sum::<u64>()
        >> 20
}

/// How many they are.
pub(crate) fn folder_count(pid: u32, place: &str) -> usize {
    fs::read_dir(inside(pid, place))
        .into_iter()
        .flatten()
        .count()
}

/// The processes that may be the first of an attack's box: its parent, and siblings that are number 1 somewhere.
pub(crate) fn first_processes(pid: u32) -> Vec<u32> {
    let Some(parent) = status(pid, "PPid") else {
        return Vec::new();
    };
    let is_first = |other: &u32| {
        let number = status(*other, "NSpid").unwrap_or_default();
        let nested =
            number.split_whitespace().count() > 1 && number.split_whitespace().last() == Some("1");
        nested && (status(*other, "PPid").as_ref() == Some(&parent) || other.to_string() == parent)
    };
    all_processes().into_iter().filter(is_first).collect()
}

/// Ended processes that the attack or the first process of its box should have reaped.
pub(crate) fn zombies_of_box(pid: u32) -> usize {
    let mut parents: Vec<_> = first_processes(pid).iter().map(u32::to_string).collect();
    parents.push(pid.to_string());
    let is_zombie = |other: &u32| {
        status(*other, "State").is_some_and(|state| state.starts_with('Z'))
            && status(*other, "PPid").is_some_and(|parent| parents.contains(&parent))
    };
    all_processes().into_iter().filter(is_zombie).count()
}

/// The control groups on the host whose name has this part.
pub(crate) fn cgroups_with(part: &str) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(next) = left.pop() {
        // Others come and go meanwhile.
        let entries = fs::read_dir(&next).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(folders.map(|entry| entry.path()));
        found.extend(next.to_string_lossy().contains(part).then_some(next));
    }
    found
}
