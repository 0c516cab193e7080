//! Our end of a run's terminal: what is typed there, what is shown, and how large it is.

use crate::streams::nonblocking;
use rustix::{
    pty::{OpenptFlags, ioctl_tiocgptpeer},
    termios::{Winsize, tcsetwinsize},
};
use spec::TerminalSize;
use std::{io, os::fd::OwnedFd};
use tokio::net::unix::pipe;

/// The terminal of a run, for whoever sits before it.
#[derive(Debug)]
pub struct Terminal {
    /// What is typed. Dropping it types nothing, not even an end.
    pub input: pipe::Sender,
    /// Its window.
    pub window: Window,
}

/// The window of a terminal.
#[derive(Debug)]
pub struct Window(OwnedFd);

impl Window {
    /// Changes its size; programs in the foreground get SIGWINCH.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let (ws_row, ws_col) = (size.rows, size.columns);
        Ok(tcsetwinsize(
            &self.0,
            Winsize {
                ws_row,
                ws_col,
                ws_xpixel: 0,
                ws_ypixel: 0,
            },
        )?)
    }
}

/// A terminal taken apart: what is shown on it, the program's end, and the rest.
pub(crate) struct Parts {
    pub(crate) shown: pipe::Receiver,
    pub(crate) inside: OwnedFd,
    pub(crate) terminal: Terminal,
}

/// From our end of a terminal. As asynchronous files those of pipes do: they only read, write and wait.
pub(crate) fn take_apart(ours: OwnedFd, size: TerminalSize) -> io::Result<Parts> {
    let ours = nonblocking(ours)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let inside = ioctl_tiocgptpeer(&ours, flags)?;
    let shown = pipe::Receiver::from_owned_fd_unchecked(ours.try_clone()?)?;
    let input = pipe::Sender::from_owned_fd_unchecked(ours.try_clone()?)?;
    let window = Window(ours);
    window.resize(size)?;
    Ok(Parts {
        shown,
        inside,
        terminal: Terminal { input, window },
    })
}
