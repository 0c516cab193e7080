//! File leases: the kernel refuses a lease while another process has the file open, and delays an
//! open that conflicts with it until the lease is released.

use crate::sys;
use std::{io, os::fd::BorrowedFd};

/// What a lease conflicts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// Writers. The file must have been opened for reading only.
    Read,
    /// Every open by another process.
    Write,
}

/// A lease on a file, released on drop, also where a forked child still has the descriptor.
#[derive(Debug)]
pub struct FileLease<'a>(BorrowedFd<'a>);

impl<'a> FileLease<'a> {
    /// Takes a lease. `WouldBlock` if another process has the file open; `PermissionDenied` if
    /// another user owns it; other errors where the file system has no leases.
    pub fn take(file: BorrowedFd<'a>, kind: LeaseKind) -> io::Result<FileLease<'a>> {
        // A process that breaks the lease signals its holder: SIGIO would end the process, SIGURG
        // is ignored.
        sys::set_signal(file, libc::SIGURG)?;
        let lease = match kind {
            LeaseKind::Read => libc::F_RDLCK,
            LeaseKind::Write => libc::F_WRLCK,
        };
        sys::set_lease(file, lease)?;
        Ok(FileLease(file))
    }
}

impl Drop for FileLease<'_> {
    fn drop(&mut self) {
        // It fails only if the kernel revoked the lease after 45 seconds.
        _ = sys::set_lease(self.0, libc::F_UNLCK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, File},
        io::ErrorKind,
        os::fd::AsFd,
        thread,
    };

    fn place(name: &str) -> std::path::PathBuf {
        let path =
            std::env::temp_dir().join(format!("airlock-lease-{name}-{}", std::process::id()));
        fs::write(&path, "text").unwrap();
        path
    }

    fn refused(file: &File, kind: LeaseKind) -> Option<ErrorKind> {
        FileLease::take(file.as_fd(), kind)
            .err()
            .map(|error| error.kind())
    }

    #[test]
    fn who_has_a_file_open_is_seen_by_a_lease() {
        let path = place("seen");
        let file = File::open(&path).unwrap();
        assert_eq!(
            [LeaseKind::Read, LeaseKind::Write].map(|kind| refused(&file, kind)),
            [None, None]
        );
        let reader = File::open(&path).unwrap();
        let expected = [None, Some(ErrorKind::WouldBlock)];
        assert_eq!(
            [LeaseKind::Read, LeaseKind::Write].map(|kind| refused(&file, kind)),
            expected
        );
        drop(reader);
        let writer = File::options().append(true).open(&path).unwrap();
        assert_eq!(refused(&file, LeaseKind::Read), Some(ErrorKind::WouldBlock));
        drop(writer);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_lease_that_is_broken_kills_nobody_and_holds_the_breaker_up() {
        let path = place("broken");
        let file = File::open(&path).unwrap();
        let lease = FileLease::take(file.as_fd(), LeaseKind::Write).unwrap();
        // Fails at once, and sends the signal all the same.
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
        let opened = rustix::fs::open(&path, flags, rustix::fs::Mode::empty());
        assert_eq!(opened.err(), Some(rustix::io::Errno::WOULDBLOCK));
        let waiting = {
            let path = path.clone();
            thread::spawn(move || File::open(path).is_ok())
        };
        drop(lease);
        assert!(waiting.join().unwrap());
        fs::remove_file(path).unwrap();
    }
}
