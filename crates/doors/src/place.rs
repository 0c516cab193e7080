//! The folder of sockets: one folder a session, `doors/ID/llm.sock`, to be shown to one container and no other.
//!
//! Everything goes by handles: a path may be longer than a socket's address, and means another thing the second time.

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

/// The letter that a session's name begins with, and the bytes behind it.
const ID_BEGINS: char = 's';
const ID_BYTES: usize = 10;
/// What can lie in a session's folder.
const SOCKETS: [&str; 2] = ["llm.sock", "inference.sock"];

/// The folder of sockets.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    folder: OwnedFd,
}

/// A new name for a session. Random, so that none is ever used again, whatever was forgotten.
pub(crate) fn fresh_id() -> Result<String, token::NoRandom> {
    Ok(format!("{ID_BEGINS}{}", token::random_hex::<ID_BYTES>()?))
}

fn is_id(name: &[u8]) -> bool {
    let [first, rest @ ..] = name else {
        return false;
    };
    *first == ID_BEGINS as u8
        && rest.len() == 2 * ID_BYTES
        && rest.iter().all(u8::is_ascii_hexdigit)
}

/// Binds a socket in a folder that is open, whatever its path is.
pub(crate) fn bind(folder: BorrowedFd<'_>, name: &str, mode: Mode) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(by_handle(folder, name))?;
    chmodat(folder, name, mode, AtFlags::empty())?;
    Ok(listener)
}

fn by_handle(folder: BorrowedFd<'_>, name: &str) -> PathBuf {
    Path::new("/proc/self/fd")
        .join(folder.as_raw_fd().to_string())
        .join(name)
}

/// Opens a folder, not a link to one.
pub(crate) fn open_folder(at: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    Ok(openat(at, path, flags, Mode::empty())?)
}

/// Removes a socket that nobody serves any more. One that is served, or that is no socket, is left and told.
pub(crate) fn remove_stale(folder: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let found = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        found => found?,
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(io::Error::other(
            "something that is no socket is there already",
        ));
    }
    match UnixStream::connect(by_handle(folder, name)) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Ok(unlinkat(folder, name, AtFlags::empty())?)
        }
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::other("somebody serves it already")),
    }
}

impl Place {
    /// Opens the folder, which is made if absent, and removes what sessions of a dead owner left.
    pub(crate) fn open(path: &Path) -> io::Result<Place> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let folder = open_folder(CWD, path)?;
        let found = fstat(&folder)?;
        if found.st_uid != geteuid().as_raw() || found.st_mode & 0o022 != 0 {
            return Err(io::Error::other("others could put something into it"));
        }
        let place = Place {
            path: path.to_owned(),
            folder,
        };
        place.sweep()?;
        Ok(place)
    }

    fn sweep(&self) -> io::Result<()> {
        let entries: Result<Vec<_>, _> = Dir::read_from(&self.folder)?.collect();
        for entry in entries?
            .iter()
            .filter(|entry| is_id(entry.file_name().to_bytes()))
        {
            // What a container put beside its socket stays, and keeps nobody from being served.
            if let Ok(id) = entry.file_name().to_str() {
                _ = self.remove(id);
            }
        }
        Ok(())
    }

    /// The folder's handle.
    pub(crate) fn handle(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// A socket in a folder of its own. For another user the folder can be passed through, but not read or written.
    pub(crate) fn socket(
        &self,
        id: &str,
        name: &str,
        user: Option<u32>,
    ) -> io::Result<(UnixListener, PathBuf)> {
        let mode = if user.is_some() { 0o711 } else { 0o700 };
        mkdirat(&self.folder, id, Mode::from_raw_mode(0o700))?;
        let folder = open_folder(self.folder.as_fd(), Path::new(id))?;
        let made = bind(folder.as_fd(), name, Mode::from_raw_mode(0o600)).and_then(|listener| {
            if let Some(user) = user {
                chownat(
                    &folder,
                    name,
                    Some(Uid::from_raw(user)),
                    None,
                    AtFlags::SYMLINK_NOFOLLOW,
                )?;
            }
            // Not by mkdir alone: that asks the umask.
            chmodat(
                &self.folder,
                id,
                Mode::from_raw_mode(mode),
                AtFlags::empty(),
            )?;
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

    /// Removes a session's folder with its sockets; that there is none is as good.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        let folder = match open_folder(self.folder.as_fd(), Path::new(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            folder => folder?,
        };
        for name in SOCKETS {
            match unlinkat(&folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(unlinkat(&self.folder, id, AtFlags::REMOVEDIR)?)
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
        let place = Place::open(&path).unwrap();
        let id = fresh_id().unwrap();
        let (listener, socket) = place.socket(&id, "llm.sock", None).unwrap();
        assert!(socket.as_os_str().len() > 108);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&path), mode(&path.join(&id)), mode(&socket)),
            (0o700, 0o700, 0o600)
        );
        assert!(
            UnixStream::connect(by_handle(place.folder.as_fd(), &format!("{id}/llm.sock"))).is_ok()
        );
        assert_eq!(
            place.socket(&id, "llm.sock", None).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        drop(listener);
        // As after a crash: only what is ours goes.
        fs::write(path.join("run.sock"), "").unwrap();
        let place = Place::open(&path).unwrap();
        assert!(!path.join(&id).exists() && path.join("run.sock").exists());
        place.remove(&id).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(
            Place::open(&path).is_err(),
            "where others can write is no place for sockets"
        );
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_stale_socket_is_removed_and_a_served_one_is_not() {
        let root = std::env::temp_dir().join(format!("airlock-stale-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let folder = open_folder(CWD, &root).unwrap();
        let served = bind(folder.as_fd(), "a", Mode::from_raw_mode(0o600)).unwrap();
        assert!(remove_stale(folder.as_fd(), "a").is_err());
        drop(served);
        remove_stale(folder.as_fd(), "a").unwrap();
        remove_stale(folder.as_fd(), "a").unwrap();
        fs::write(root.join("a"), "a file").unwrap();
        assert!(
            remove_stale(folder.as_fd(), "a").is_err(),
            "what is no socket is not ours"
        );
        fs::remove_dir_all(&root).unwrap();
    }
}
