//! The staging folder of a container: our init, fake `/proc` files, and the socket that it connects
//! to, mounted read-only. The socket is removed before anything of the image runs.

use crate::native::{fake_proc, root};
use init::plan::RootEntryKind;
use rustix::{
    fs::{CWD, Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use spec::{Id, Limits};
use std::{
    ffi::OsStr,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink},
        },
    },
    path::{Path, PathBuf},
};
use tokio::{io::Interest, net::UnixDatagram};

/// Their folder in the state folder.
pub(super) const FOLDER: &str = "containers";
/// One copy of init for all of them; no run can have this name.
const INIT: &str = ".init";
const FILES: [&str; 7] = [
    "init",
    DRAFT,
    "seccomp.json",
    "socket",
    HOSTS,
    RESOLVER,
    HIDDEN,
];
/// Init, before it becomes the shared copy.
const DRAFT: &str = "init.draft";
/// The hosts file, for an engine that does not set up its network.
pub(super) const HOSTS: &str = "hosts";
/// The resolver settings of a sandbox with an egress door.
pub(super) const RESOLVER: &str = "resolv.conf";
/// Covers a hidden file; `EMPTY` a hidden folder.
pub(super) const HIDDEN: &str = "hidden";
pub(super) const EMPTY: &str = "empty";
/// The fake files, below the same paths as in a native root.
pub(super) const MACHINE: &str = "machine";

/// The staging folder of one container.
#[derive(Debug)]
pub(super) struct StagingDir {
    path: PathBuf,
    /// To tokio a datagram socket: something to wait for.
    listener: UnixDatagram,
}

impl StagingDir {
    pub(super) fn make(state: &Path, run: &Id, limits: &Limits) -> io::Result<StagingDir> {
        let path = fs::canonicalize(state)?.join(FOLDER).join(run.as_str());
        let mut private = fs::DirBuilder::new();
        private
            .recursive(true)
            .mode(0o700)
            .create(state.join(FOLDER))?;
        // All users may enter: nothing but the container gets here, its user is not ours, and the
        // parent folder is closed.
        fs::DirBuilder::new().mode(0o755).create(&path)?;
        let made =
            describe_machine(&path.join(MACHINE), limits).and_then(|()| furnish(state, &path));
        if made.is_err() {
            // The sweep finds by the run's record what could not be removed.
            _ = clear(&path);
        }
        Ok(StagingDir {
            listener: made?,
            path,
        })
    }

    /// The path that the container engine mounts.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the container's first process: its connection, and its pid in our namespace.
    /// Further connections are impossible.
    pub(super) async fn called(&self) -> io::Result<(OwnedFd, i32)> {
        let accept = || {
            Ok(rustix::net::accept_with(
                &self.listener,
                SocketFlags::CLOEXEC,
            )?)
        };
        let channel = self.listener.async_io(Interest::READABLE, accept).await?;
        fs::remove_file(self.path.join("socket"))?;
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both)?;
        let peer = rustix::net::sockopt::socket_peercred(&channel)?;
        Ok((channel, peer.pid.as_raw_nonzero().get()))
    }

    /// Returns whether everything was removed.
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
    FILES
        .iter()
        .try_for_each(|name| gone(fs::remove_file(folder.join(name))))?;
    gone(fs::remove_dir_all(folder.join(MACHINE)))?;
    gone(fs::remove_dir(folder.join(EMPTY)))?;
    gone(fs::remove_dir(folder))
}

fn furnish(state: &Path, folder: &Path) -> io::Result<UnixDatagram> {
    let_everybody(folder, 0o755)?;
    put_init(state, folder)?;
    fs::write(
        folder.join("seccomp.json"),
        super::create_request::profile().to_string(),
    )?;
    for (name, content) in [(HOSTS, root::HOSTS), (RESOLVER, root::RESOLVER)] {
        fs::write(folder.join(name), content)?;
        let_everybody(&folder.join(name), 0o644)?;
    }
    fs::write(folder.join(HIDDEN), "")?;
    let_everybody(&folder.join(HIDDEN), 0o000)?;
    fs::create_dir(folder.join(EMPTY))?;
    let_everybody(&folder.join(EMPTY), 0o555)?;
    listen(folder)
}

/// The machine looks as large as the limits.
fn describe_machine(folder: &Path, limits: &Limits) -> io::Result<()> {
    let make = |path: &Path| fs::create_dir(path).and_then(|()| let_everybody(path, 0o755));
    ["", "run", fake_proc::COVER_FOLDER, "sys"]
        .iter()
        .try_for_each(|name| make(&folder.join(name)))?;
    for place in
        fake_proc::root_entries(limits).map_err(|error| io::Error::other(error.to_string()))?
    {
        let path = folder.join(OsStr::from_bytes(place.path.to_bytes()));
        let content = place.content.to_bytes();
        match place.kind {
            RootEntryKind::Link => symlink(OsStr::from_bytes(content), &path)?,
            RootEntryKind::File => {
                fs::write(&path, content).and_then(|()| let_everybody(&path, 0o644))?
            }
            _ => make(&path)?,
        }
    }
    Ok(())
}

/// Whatever the caller's umask is, the container's user must get access.
fn let_everybody(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Init for one container: a hard link to the one copy in this state folder, which is replaced if
/// it is of another version. Its draft is in the folder of this run: no other process writes there,
/// and a sweep finds it.
fn put_init(state: &Path, folder: &Path) -> io::Result<()> {
    let shared = state.join(FOLDER).join(INIT);
    let own = folder.join("init");
    let draft = folder.join(DRAFT);
    if fs::read(&shared).is_ok_and(|found| found == init::LAUNCHER) {
        return fs::hard_link(&shared, &own);
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o555)
        .open(&draft)?;
    io::Write::write_all(&mut file, init::LAUNCHER)?;
    file.set_permissions(fs::Permissions::from_mode(0o555))?;
    drop(file);
    fs::hard_link(&draft, &own)?;
    fs::rename(&draft, &shared)
}

/// By the descriptor of its folder: a deep path is too long for a socket address.
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
