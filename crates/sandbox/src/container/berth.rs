//! What a container gets of ours: a folder with our init and the socket that it calls, mounted read-only. The socket is
//! gone before anything of the image runs.

use rustix::{
    fs::{CWD, Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use spec::Id;
use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};
use tokio::{io::Interest, net::UnixDatagram};

/// Where they lie in the state folder.
pub(super) const FOLDER: &str = "containers";
/// One copy of init for all of them; no run can have this name.
const INIT: &str = ".init";
const NAMES: [&str; 3] = ["init", "seccomp.json", "socket"];

/// The folder of one container.
#[derive(Debug)]
pub(super) struct Berth {
    path: PathBuf,
    /// To tokio a datagram socket: something to wait for.
    listener: UnixDatagram,
}

impl Berth {
    pub(super) fn make(state: &Path, run: &Id) -> io::Result<Berth> {
        let path = fs::canonicalize(state)?.join(FOLDER).join(run.as_str());
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700).create(state.join(FOLDER))?;
        // Anybody may enter: nobody but the container gets here, its user is not ours, and the folder above is shut.
        fs::DirBuilder::new().mode(0o755).create(&path)?;
        let made = furnish(state, &path);
        if made.is_err() {
            // What could not be removed, the sweep finds by the run's record.
            _ = clear(&path);
        }
        Ok(Berth { listener: made?, path })
    }

    /// As the container engine has to call it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the container's first process: the connection, and its pid as we see it. Then nobody can call again.
    pub(super) async fn called(&self) -> io::Result<(OwnedFd, i32)> {
        let accept = || Ok(rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC)?);
        let channel = self.listener.async_io(Interest::READABLE, accept).await?;
        fs::remove_file(self.path.join("socket"))?;
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both)?;
        let peer = rustix::net::sockopt::socket_peercred(&channel)?;
        Ok((channel, peer.pid.as_raw_nonzero().get()))
    }

    /// Whether everything is gone.
    pub(super) fn remove(self) -> bool {
        clear(&self.path).is_ok()
    }
}

/// Removes what a dead owner left.
pub(super) fn remove(state: &Path, run: &Id) -> io::Result<()> {
    clear(&state.join(FOLDER).join(run.as_str()))
}

fn clear(folder: &Path) -> io::Result<()> {
    let gone = |done: io::Result<()>| match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    NAMES.iter().try_for_each(|name| gone(fs::remove_file(folder.join(name))))?;
    gone(fs::remove_dir(folder))
}

fn furnish(state: &Path, folder: &Path) -> io::Result<UnixDatagram> {
    // Whatever the caller's mask is, the container's user must be able to enter.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    fs::hard_link(our_init(state)?, folder.join("init"))?;
    fs::write(folder.join("seccomp.json"), super::order::profile().to_string())?;
    listen(folder)
}

/// The one copy of init in this state folder, written anew if it is another version's.
fn our_init(state: &Path) -> io::Result<PathBuf> {
    let path = state.join(FOLDER).join(INIT);
    if fs::read(&path).is_ok_and(|found| found == init::LAUNCHER) {
        return Ok(path);
    }
    let draft = state.join(FOLDER).join(format!("{INIT}-{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o555).open(&draft)?;
    io::Write::write_all(&mut file, init::LAUNCHER)?;
    file.set_permissions(fs::Permissions::from_mode(0o555))?;
    drop(file);
    fs::rename(&draft, &path)?;
    Ok(path)
}

/// By the handle of its folder: a path of any depth is too long for a socket's name.
fn listen(folder: &Path) -> io::Result<UnixDatagram> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
    let kind = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, kind, None)?;
    let name = SocketAddrUnix::new(format!("/proc/self/fd/{}/socket", handle.as_raw_fd()))?;
    rustix::net::bind(&socket, &name)?;
    fs::set_permissions(folder.join("socket"), fs::Permissions::from_mode(0o666))?;
    match rustix::net::listen(&socket, 1) {
        Ok(()) => UnixDatagram::from_std(socket.into()),
        Err(error) => Err(error.into()),
    }
}
