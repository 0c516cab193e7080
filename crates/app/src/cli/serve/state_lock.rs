//! Allows one server per state folder: a file lock that dies with its owner and names it.

use super::Failure;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use spec::ErrorCode;
use std::{
    fs::{DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::DirBuilderExt,
    path::Path,
};

/// Longer than the owner's line.
const MAX_LOCK_FILE_BYTES: u64 = 4096;

/// Held while a server uses the state folder.
#[derive(Debug)]
pub(super) struct StateLock(File);

impl StateLock {
    /// Takes the lock, or fails with the name of its owner.
    pub(super) fn take(state: &Path) -> Result<StateLock, Failure> {
        let path = state.join("serve.lock");
        let failed = |message: String, hint: &str| Failure {
            code: ErrorCode::StartFailed,
            message,
            hint: hint.to_owned(),
        };
        let opened = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state)
            .and_then(|()| {
                let flags = OFlags::CREATE
                    | OFlags::RDWR
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC
                    | OFlags::NONBLOCK;
                Ok(File::from(openat(
                    CWD,
                    &path,
                    flags,
                    Mode::from_raw_mode(0o600),
                )?))
            });
        let file = opened.map_err(|error| {
            let message = format!("cannot use `{}`: {error}", path.display());
            failed(
                message,
                "choose a state folder that you may write with --state DIR",
            )
        })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(StateLock(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut who = String::new();
                // The owner may not have written its line yet.
                _ = (&file).take(MAX_LOCK_FILE_BYTES).read_to_string(&mut who);
                let who = if who.is_empty() {
                    "another server"
                } else {
                    who.trim()
                };
                let message = format!(
                    "a server for `{}` is already running: {}",
                    state.display(),
                    who.escape_debug()
                );
                Err(failed(
                    message,
                    "stop the other server, or choose another folder with --state DIR",
                ))
            }
            Err(error) => {
                let message = format!(
                    "cannot lock `{}`: {}",
                    path.display(),
                    io::Error::from(error)
                );
                Err(failed(
                    message,
                    "choose a state folder on a disk of this machine with --state DIR",
                ))
            }
        }
    }

    /// Writes the owner's line. It is informative only, so that errors are ignored.
    pub(super) fn write_owner(&self, address: &str) {
        let mut file = &self.0;
        _ = file.set_len(0);
        _ = writeln!(file, "process {} at {address}", std::process::id());
    }
}
