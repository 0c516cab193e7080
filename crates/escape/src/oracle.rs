//! What the host sees of processes, whoever they say they are.

use crate::{Found, peer};
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::PathBuf,
};

/// The processes of an attack, by the marker in its command line.
pub(crate) fn attacks_with(marker: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        peer::is_attack(&line) && line.windows(marker.len()).any(|part| part == marker.as_bytes())
    })
    .collect()
}

/// The value of a line of `/proc/PID/status`.
pub(crate) fn status(pid: u32, name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

/// A namespace of a process.
pub(crate) fn namespace(pid: u32, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// What lies behind each descriptor of a process.
pub(crate) fn descriptors(pid: u32) -> Vec<(u32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let described = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
    });
    described.collect()
}

/// Whether a process holds a descriptor whose name has this part.
pub(crate) fn holds(pid: u32, part: &str) -> Found {
    let found = descriptors(pid).into_iter().find(|(number, name)| *number > 2 && name.contains(part));
    found.map_or(Found::Nothing, |(_, name)| Found::Escape(format!("it holds {name}")))
}

/// The numbers of the devices that a process holds open, beyond its standard streams.
pub(crate) fn devices(pid: u32) -> Vec<(u32, u32)> {
    let beyond = descriptors(pid).into_iter().filter(|(number, _)| *number > 2);
    let looked = beyond.filter_map(|(number, _)| fs::metadata(format!("/proc/{pid}/fd/{number}")).ok());
    let devices =
        looked.filter(|found| found.file_type().is_char_device() || found.file_type().is_block_device());
    devices.map(|found| (libc::major(found.rdev()), libc::minor(found.rdev()))).collect()
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
                    if found.windows(text.len().max(1)).any(|part| part == text.as_bytes()) {
                        return Ok(true);
                    }
                }
                _ => {}
            }
        }
    }
    Ok(false)
}
