//! The directory of session sockets: one subdirectory per session, `doors/ID/llm.sock`, to be
//! mounted into one container and no other. Everything is accessed by file descriptor: a path may
//! be longer than a socket address allows, and can be replaced between two uses.

use crate::token;
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, chownat, fstat, mkdirat, openat,
        statat, unlinkat,
    },
    io::Errno,
    process::{Uid, geteuid},
};
use std::{
    fs::DirBuilder,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{
            fs::DirBuilderExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

/// Prefix of session ids, and the number of random bytes that follow.
const ID_PREFIX: char = 's';
const ID_BYTES: usize = 10;
/// Socket names in a session's directory.
const SOCKETS: [&str; 2] = ["llm.sock", "inference.sock"];

/// The directory of session sockets.
#[derive(Debug)]
pub(crate) struct SocketDir {
    path: PathBuf,
    dir: OwnedFd,
}

/// A new session id. Random, so that no id is ever reused.
pub(crate) fn generate_id() -> Result<String, token::RandomError> {
    Ok(format!("{ID_PREFIX}{}", token::random_hex::<ID_BYTES>()?))
}

fn is_id(name: &[u8]) -> bool {
    let [first, rest @ ..] = name else {
        return false;
    };
    *first == ID_PREFIX as u8
        && rest.len() == 2 * ID_BYTES
        && rest.iter().all(u8::is_ascii_hexdigit)
}

/// Binds a socket in an open directory, however long its path is.
pub(crate) fn bind(dir: BorrowedFd<'_>, name: &str, mode: Mode) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path_by_fd(dir, name))?;
    chmodat(dir, name, mode, AtFlags::empty())?;
    Ok(listener)
}

fn path_by_fd(dir: BorrowedFd<'_>, name: &str) -> PathBuf {
    Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(name)
}

/// Opens a directory, but no symbolic link.
pub(crate) fn open_dir(at: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    Ok(openat(at, path, flags, Mode::empty())?)
}

/// Removes a socket without a listener. A live socket, or a file that is no socket, is an error.
pub(crate) fn remove_stale(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let found = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        found => found?,
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(io::Error::other(
            "something that is no socket is there already",
        ));
    }
    match UnixStream::connect(path_by_fd(dir, name)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(unlinkat(dir, name, AtFlags::empty())?)
        }
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("somebody serves it already")),
    }
}

impl SocketDir {
    /// Opens the directory, which is created if absent, and removes the sockets of dead owners.
    pub(crate) fn open(path: &Path) -> io::Result<SocketDir> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let dir = open_dir(CWD, path)?;
        let found = fstat(&dir)?;
        if found.st_uid != geteuid().as_raw() || found.st_mode & 0o022 != 0 {
            return Err(io::Error::other("others could put something into it"));
        }
        let socket_dir = SocketDir {
            path: path.to_owned(),
            dir,
        };
        socket_dir.sweep()?;
        Ok(socket_dir)
    }

    fn sweep(&self) -> io::Result<()> {
        let entries: Result<Vec<_>, _> = Dir::read_from(&self.dir)?.collect();
        for entry in entries?
            .iter()
            .filter(|entry| is_id(entry.file_name().to_bytes()))
        {
            // Files that a container left beside its socket stay, and do no harm.
            if let Ok(id) = entry.file_name().to_str() {
                _ = self.remove(id);
            }
        }
        Ok(())
    }

    /// The directory's file descriptor.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Creates a socket in its own directory. Another user may traverse the directory, but not read
    /// or write it.
    pub(crate) fn socket(
        &self,
        id: &str,
        name: &str,
        user: Option<u32>,
    ) -> io::Result<(UnixListener, PathBuf)> {
        let mode = if user.is_some() { 0o711 } else { 0o700 };
        mkdirat(&self.dir, id, Mode::from_raw_mode(0o700))?;
        let dir = open_dir(self.dir.as_fd(), Path::new(id))?;
        let made = bind(dir.as_fd(), name, Mode::from_raw_mode(0o600)).and_then(|listener| {
            if let Some(user) = user {
                chownat(
                    &dir,
                    name,
                    Some(Uid::from_raw(user)),
                    None,
                    AtFlags::SYMLINK_NOFOLLOW,
                )?;
            }
            // mkdir alone would apply the umask.
            chmodat(&self.dir, id, Mode::from_raw_mode(mode), AtFlags::empty())?;
            Ok(listener)
        });
        match made {
            Ok(listener) => Ok((listener, self.path.join(id).join(name))),
            Err(error) => {
                self.remove(id)?;
                Err(error)
            }
        }
    }

    /// Removes a session's directory with its sockets, if it exists.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        let dir = match open_dir(self.dir.as_fd(), Path::new(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            dir => dir?,
        };
        for name in SOCKETS {
            match unlinkat(&dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(unlinkat(&self.dir, id, AtFlags::REMOVEDIR)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn a_session_has_a_folder_of_its_own_however_long_the_path_and_nothing_stays() {
        let deep =
            "a-long-name-of-a-folder-that-makes-paths-longer-than-the-address-of-a-socket-can-be";
        let root = std::env::temp_dir().join(format!("airlock-place-{}", std::process::id()));
        let path = root.join(deep).join("doors");
        let socket_dir = SocketDir::open(&path).unwrap();
        let id = generate_id().unwrap();
        let (listener, socket) = socket_dir.socket(&id, "llm.sock", None).unwrap();
        assert!(socket.as_os_str().len() > 108);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&path), mode(&path.join(&id)), mode(&socket)),
            (0o700, 0o700, 0o600)
        );
        assert!(
            UnixStream::connect(path_by_fd(
                socket_dir.dir.as_fd(),
                &format!("{id}/llm.sock")
            ))
            .is_ok()
        );
        assert_eq!(
            socket_dir.socket(&id, "llm.sock", None).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        drop(listener);
        // As after a crash: only what is ours goes.
        fs::write(path.join("run.sock"), "").unwrap();
        let socket_dir = SocketDir::open(&path).unwrap();
        assert!(!path.join(&id).exists() && path.join("run.sock").exists());
        socket_dir.remove(&id).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(
            SocketDir::open(&path).is_err(),
            "where others can write is no place for sockets"
        );
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_stale_socket_is_removed_and_a_served_one_is_not() {
        let root = std::env::temp_dir().join(format!("airlock-stale-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let dir = open_dir(CWD, &root).unwrap();
        let served = bind(dir.as_fd(), "a", Mode::from_raw_mode(0o600)).unwrap();
        assert!(remove_stale(dir.as_fd(), "a").is_err());
        drop(served);
        remove_stale(dir.as_fd(), "a").unwrap();
        remove_stale(dir.as_fd(), "a").unwrap();
        fs::write(root.join("a"), "a file").unwrap();
        assert!(
            remove_stale(dir.as_fd(), "a").is_err(),
            "what is no socket is not ours"
        );
        fs::remove_dir_all(&root).unwrap();
    }
}
