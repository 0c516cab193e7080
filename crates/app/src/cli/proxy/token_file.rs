//! The admin token's file: read if it exists, created if not.

use super::super::message::Failure;
use doors::{Secret, SessionToken};
use rustix::{
    fs::{CWD, Mode, OFlags, fstat, openat},
    io::Errno,
    process::geteuid,
};
use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

const MAX_TOKEN_FILE_BYTES: u64 = 4096;
/// A shorter token could be guessed.
const MIN_TOKEN_BYTES: usize = 32;

/// Reads the token without its newline, or creates one.
pub(super) fn read_or_make(path: &Path) -> Result<Secret, Failure> {
    let failed = |error: io::Error| bad(path, &error.to_string());
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match openat(CWD, path, flags | OFlags::RDONLY, Mode::empty()) {
        Ok(file) => read(path, File::from(file)),
        Err(Errno::NOENT) => {
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            let made = openat(CWD, path, flags, Mode::from_raw_mode(0o600));
            let token = SessionToken::generate()
                .map_err(|error| bad(path, &error.to_string()))?
                .expose();
            let mut file = File::from(made.map_err(|error| failed(error.into()))?);
            writeln!(file, "{}", *token).map_err(failed)?;
            check_token(path, token.as_bytes().to_vec())
        }
        Err(error) => Err(failed(error.into())),
    }
}

fn read(path: &Path, file: File) -> Result<Secret, Failure> {
    let found = fstat(&file).map_err(|error| bad(path, &error.to_string()))?;
    if found.st_mode & 0o077 != 0 || found.st_uid != geteuid().as_raw() {
        return Err(bad(
            path,
            "other users can read it, or it belongs to another user",
        ));
    }
    let mut token = Vec::new();
    file.take(MAX_TOKEN_FILE_BYTES)
        .read_to_end(&mut token)
        .map_err(|error| bad(path, &error.to_string()))?;
    check_token(path, token)
}

fn check_token(path: &Path, token: Vec<u8>) -> Result<Secret, Failure> {
    let token = Secret::new(token).map_err(|error| bad(path, &error.to_string()))?;
    let bytes = token.expose();
    if bytes.len() >= MIN_TOKEN_BYTES && bytes.iter().all(u8::is_ascii_graphic) {
        Ok(token)
    } else {
        Err(bad(
            path,
            "it does not hold a token of 32 or more printable characters",
        ))
    }
}

fn bad(path: &Path, why: &str) -> Failure {
    let message = format!(
        "`{}` cannot be used as the admin's token: {why}",
        path.display()
    );
    Failure::invalid(
        message,
        "remove it so that one is created, or make it private: chmod 600 FILE",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn a_token_is_made_once_and_one_that_others_know_is_refused() {
        let path = std::env::temp_dir().join(format!("airlock-admin-token-{}", std::process::id()));
        let read = || read_or_make(&path).map(|token| token.expose().to_vec());
        let made = read().unwrap();
        assert_eq!((made.len(), read().unwrap()), (72, made));
        let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        set(0o640);
        assert!(
            read_or_make(&path)
                .unwrap_err()
                .message
                .contains("other users can read it")
        );
        set(0o600);
        fs::write(&path, "short\n").unwrap();
        assert!(
            read_or_make(&path)
                .unwrap_err()
                .message
                .contains("32 or more")
        );
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(read_or_make(&path).is_err(), "a link is not followed");
        fs::remove_file(&path).unwrap();
    }
}
