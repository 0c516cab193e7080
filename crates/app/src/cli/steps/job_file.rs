//! Reads the job file and writes the result file, both the caller's.

use super::super::message::Failure;
use ::fs::Dir;
use rustix::fs::Mode;
use serde::Serialize;
use spec::MAX_JOB_BYTES;
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
};

/// Reads one byte more than the maximum, which reveals a longer job.
fn read_bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_JOB_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        Err(io::Error::other("it is a folder"))
    } else {
        read_bounded(file)
    }
}

pub(super) fn read_stdin() -> io::Result<Vec<u8>> {
    read_bounded(io::stdin().lock())
}

/// Writes the result atomically where the folder allows it, so that a reader never sees half of it.
pub(super) fn write(path: &Path, result: &impl Serialize) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let message = format!("cannot write the result to `{}`: {error}", path.display());
        Failure::invalid(
            message,
            "choose a file that you may write with --result FILE",
        )
    };
    let mut text = serde_json::to_vec(result).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    let special = fs::symlink_metadata(path).is_ok_and(|found| !found.is_file());
    let done = match special {
        true => fs::write(path, &text),
        // In a folder without write permission, an existing file is written in place.
        false => replace(path, &text).or_else(|_| fs::write(path, &text)),
    };
    done.map_err(failed)
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mode = Mode::from_raw_mode(0o644);
    Dir::open(folder)?.replace(name, mode, |file| file.write_all(text))
}
