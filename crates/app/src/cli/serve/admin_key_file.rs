//! The admin key's file: read if it exists, created if not.

use super::{Failure, key_failure};
use gateway::{ApiKeys, ApiToken, Scope};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fstat, openat},
    io::Errno,
    process::geteuid,
};
use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

const MAX_KEY_FILE_BYTES: u64 = 4096;

/// Ensures that the file holds a valid admin key.
pub(super) fn read_or_make(path: &Path, keys: &ApiKeys) -> Result<(), Failure> {
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match openat(CWD, path, flags | OFlags::RDONLY, Mode::empty()) {
        Ok(file) => {
            let token = read(path, File::from(file))?;
            keys.adopt_admin(&token)
                .map_err(|error| bad(path, &error.to_string()))
        }
        Err(Errno::NOENT) => {
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            let file = openat(CWD, path, flags, Mode::from_raw_mode(0o600));
            let mut file = File::from(file.map_err(|error| cannot_create(path, error))?);
            let (_, token) = keys
                .create("admin", None, &[Scope::Admin], None)
                .map_err(|error| key_failure(&error))?;
            writeln!(file, "{}", token.expose()).map_err(|error| bad(path, &error.to_string()))
        }
        Err(error) => Err(bad(path, &io::Error::from(error).to_string())),
    }
}

fn read(path: &Path, file: File) -> Result<ApiToken, Failure> {
    let metadata = fstat(&file).map_err(|error| bad(path, &io::Error::from(error).to_string()))?;
    if FileType::from_raw_mode(metadata.st_mode) != FileType::RegularFile {
        return Err(bad(path, "it is not a regular file"));
    }
    if metadata.st_mode & 0o077 != 0 || metadata.st_uid != geteuid().as_raw() {
        return Err(bad(
            path,
            "other users can read it, or it belongs to another user",
        ));
    }
    let mut text = String::new();
    file.take(MAX_KEY_FILE_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| bad(path, &error.to_string()))?;
    ApiToken::parse(text.trim()).ok_or_else(|| {
        bad(
            path,
            "it does not hold a key as `airlock key create` prints it",
        )
    })
}

/// The file is missing and cannot be created.
fn cannot_create(path: &Path, error: Errno) -> Failure {
    let message = format!(
        "cannot create `{}` for the admin's key: {}",
        path.display(),
        io::Error::from(error)
    );
    Failure::invalid(
        message,
        "name a file in a folder that exists and that you may write to",
    )
}

fn bad(path: &Path, why: &str) -> Failure {
    let message = format!(
        "`{}` cannot be used as the admin's key: {why}",
        path.display()
    );
    Failure::invalid(
        message,
        "remove it so that one is created, or make it private: chmod 600 FILE",
    )
}
