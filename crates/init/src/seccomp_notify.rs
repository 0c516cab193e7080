//! Seccomp user notification, the engine's side: receives notifications of system calls, reads
//! their arguments, responds.
//!
//! A call waits in the kernel until the response. There is one response to it: a response with an
//! error denies the call, whatever the memory of the program holds afterwards.

use crate::sys;
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// `PATH_MAX`, with its NUL.
const MAX_PATH_BYTES: usize = 4096;
/// Pages have this size or a multiple of it.
const PAGE_BYTES: u64 = 4096;

/// A system call that waits for a response.
#[derive(Clone, Copy, Debug)]
pub struct SeccompNotification {
    /// The kernel's id of this call, never reused.
    pub id: u64,
    /// The calling thread, in this process's pid namespace.
    pub pid: u32,
    /// The system call number.
    pub number: libc::c_long,
    /// The arguments at the time of the call.
    pub arguments: [u64; 6],
}

/// The response to a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationResponse {
    /// The kernel executes the call, with what is in memory by then: only right where nothing has
    /// to be denied here.
    Continue,
    /// The call fails with this error and is not executed.
    Errno(i32),
}

/// The listener flags that this kernel knows; none if it has no listeners.
pub(crate) fn listener_flags() -> Option<u64> {
    // With the second flag a signal does not interrupt a call whose notification was received.
    let known = [
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
    ];
    known
        .into_iter()
        .find(|flags| sys::filter_flags_known(*flags))
}

/// Waits for the next notification; `None` when no process is left under the filter.
pub fn receive(listener: impl AsFd) -> io::Result<Option<SeccompNotification>> {
    use rustix::event::{PollFd, PollFlags};
    loop {
        let mut heard = [PollFd::new(&listener, PollFlags::IN)];
        match rustix::event::poll(&mut heard, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        match heard[0].revents() {
            some if some.contains(PollFlags::IN) => {}
            // A signal interrupted the poll.
            PollFlags::ERR => continue,
            _ => return Ok(None),
        }
        match sys::receive_notification(listener.as_fd()) {
            // The caller was killed, or a signal interrupted the call, before the notification was
            // received.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
            other => return other.map(Some),
        }
    }
}

/// Delays all calls for this long, or until no process is left under the filter.
pub fn delay(listener: impl AsFd, time: Duration) {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let Ok(time) = Timespec::try_from(time) else {
        return;
    };
    // An early wake-up is harmless: the debt is computed again after the next call.
    _ = rustix::event::poll(
        &mut [PollFd::new(&listener, PollFlags::empty())],
        Some(&time),
    );
}

/// Responds to a notification. Fails if the call no longer waits: then nothing was decided.
pub fn answer(
    listener: impl AsFd,
    notification: &SeccompNotification,
    answer: NotificationResponse,
) -> io::Result<()> {
    sys::answer_notification(listener.as_fd(), notification.id, answer)
}

/// Lets the kernel run caller and listener on the same CPU in turn, since they never run at the
/// same time. Older kernels cannot.
pub fn enable_sync_wakeup(listener: &OwnedFd) {
    _ = sys::enable_sync_wakeup(listener.as_fd());
}

/// Bytes of the memory of a waiting thread; fewer than asked for where the mapping ends.
pub fn memory(pid: u32, address: u64, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let count = sys::read_memory(pid, address, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// A path in the memory of a waiting thread, within `PATH_MAX`.
pub fn path(pid: u32, address: u64) -> io::Result<CString> {
    let mut bytes = Vec::with_capacity(256);
    while bytes.len() < MAX_PATH_BYTES {
        let from = address.wrapping_add(bytes.len() as u64);
        // Never across a page boundary: the next page may not be mapped.
        let most = (PAGE_BYTES - from % PAGE_BYTES).min((MAX_PATH_BYTES - bytes.len()) as u64);
        let part = memory(pid, from, most as usize)?;
        if part.is_empty() {
            break;
        }
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(&part[..end]);
            return Ok(CString::new(bytes)?);
        }
        bytes.extend_from_slice(&part);
    }
    Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
}

/// Whether socket options choose the interface, instead of the address.
pub fn has_fixed_device(socket: BorrowedFd<'_>) -> bool {
    const CHOICES: [(i32, i32); 3] = [
        (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX),
        (libc::IPPROTO_IP, libc::IP_UNICAST_IF),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF),
    ];
    // Sockets of the other family lack some of them.
    CHOICES.iter().any(|(level, name)| {
        sys::socket_option(socket, *level, *name).is_ok_and(|chosen| chosen != 0)
    })
}

/// Gives this thread the file access rights of these ids until it ends; the rest of the process is
/// unchanged.
pub fn use_file_ids(uid: u32, gid: u32) -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    sys::set_file_ids(uid, gid)
}

/// Sends a listener to the launcher. Runs in a vfork child: allocates nothing.
pub(crate) fn send_listener(to: BorrowedFd<'_>, listener: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let handles = [listener];
    control.push(SendAncillaryMessage::ScmRights(&handles));
    sendmsg(
        to,
        &[io::IoSlice::new(&[0])],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// The listener that a child has sent, if it did.
pub(crate) fn receive_listener(from: BorrowedFd<'_>) -> Option<OwnedFd> {
    crate::protocol::receive::<u8>(from).ok()??.1.pop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp;
    use rustix::{
        fs::{CWD, Mode, OFlags},
        io::Errno,
        mount::UnmountFlags,
    };

    /// The results of a refused call, of a watched call and of installing a second listener, in a
    /// thread under the filter. The engine's thread must not be under the filter itself.
    fn under_filter(
        engine: impl FnOnce(OwnedFd) + Send + 'static,
    ) -> ([Option<Errno>; 2], Option<i32>) {
        let (send_listener, listener) = std::sync::mpsc::sync_channel(0);
        let engine = std::thread::spawn(move || engine(listener.recv().unwrap()));
        let program = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            let flags = listener_flags().expect("a kernel with listeners");
            // The filter ends with this thread.
            let listener = sys::install_filter(&seccomp::program(), flags)
                .unwrap()
                .unwrap();
            send_listener.send(listener).unwrap();
            let refused = rustix::mount::unmount(c"/none", UnmountFlags::empty()).err();
            let watched = rustix::fs::openat(CWD, c"/none", OFlags::WRONLY, Mode::empty()).err();
            let allow = libc::sock_filter {
                code: 6,
                jt: 0,
                jf: 0,
                k: 0x7fff_0000,
            };
            let second = sys::install_filter(&[allow], libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
            (
                [refused, watched],
                second.err().and_then(|error| error.raw_os_error()),
            )
        });
        let answers = program.join().unwrap();
        engine.join().unwrap();
        answers
    }

    #[test]
    fn without_an_engine_calls_fail() {
        assert_eq!(under_filter(drop).0, [Some(Errno::NOSYS); 2]);
    }

    /// The listener installed last responds first and could let every call continue.
    #[test]
    fn with_an_engine_or_without_nobody_under_the_filter_comes_to_listen() {
        assert_eq!(under_filter(drop).1, Some(libc::EBUSY));
        assert_eq!(under_filter(obliging).1, Some(libc::EBUSY));
    }

    fn obliging(listener: OwnedFd) {
        while let Ok(Some(notification)) = receive(&listener) {
            answer(&listener, &notification, NotificationResponse::Continue).unwrap();
        }
    }

    #[test]
    fn calls_come_to_what_the_engine_answers_and_are_seen_as_they_were_made() {
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = seen.clone();
        let engine = move |listener: OwnedFd| {
            enable_sync_wakeup(&listener);
            while let Ok(Some(notification)) = receive(&listener) {
                let (at, reply) = match notification.number {
                    libc::SYS_umount2 => (0, NotificationResponse::Errno(libc::EPERM)),
                    _ => (1, NotificationResponse::Continue),
                };
                let found = path(notification.pid, notification.arguments[at]).unwrap();
                noted.lock().unwrap().push((notification.number, found));
                answer(&listener, &notification, reply).unwrap();
                assert!(
                    answer(&listener, &notification, reply).is_err(),
                    "it is answered once"
                );
            }
        };
        assert_eq!(
            under_filter(engine).0,
            [Some(Errno::PERM), Some(Errno::NOENT)]
        );
        let none = c"/none".to_owned();
        assert_eq!(
            *seen.lock().unwrap(),
            [(libc::SYS_umount2, none.clone()), (libc::SYS_openat, none)]
        );
    }

    #[test]
    fn a_path_ends_where_its_memory_or_the_kernels_patience_does() {
        let own = std::process::id();
        let long = [&[b'x'; 5000][..], &[0]].concat();
        assert_eq!(
            path(own, long[905..].as_ptr() as u64)
                .unwrap()
                .as_bytes()
                .len(),
            4095
        );
        assert!(path(own, long[904..].as_ptr() as u64).is_err());
        assert!(path(own, 8).is_err());
        assert_eq!(memory(own, long.as_ptr() as u64, 3).unwrap(), b"xxx");
    }
}
