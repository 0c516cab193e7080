//! The engine's end of a program's pseudo-terminal: input, output and window size.

use crate::stdio::nonblocking;
use rustix::{
    pty::{OpenptFlags, ioctl_tiocgptpeer},
    termios::{Winsize, tcsetwinsize},
};
use spec::TerminalSize;
use std::{io, os::fd::OwnedFd};
use tokio::net::unix::pipe;

/// The terminal of a run, for the user in front of it.
#[derive(Debug)]
pub struct Terminal {
    /// Keyboard input. Dropping it sends nothing, not even an end of file.
    pub input: pipe::Sender,
    /// The terminal's window.
    pub window: TerminalWindow,
}

/// The window of a terminal.
#[derive(Debug)]
pub struct TerminalWindow(OwnedFd);

impl TerminalWindow {
    /// Sets the size; programs in the foreground get SIGWINCH.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let ws_row = size.rows;
        let ws_col = size.columns;
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

/// The parts of a terminal: its output, the program's end, and the rest.
pub(crate) struct TerminalParts {
    pub(crate) shown: pipe::Receiver,
    pub(crate) inside: OwnedFd,
    pub(crate) terminal: Terminal,
}

/// Splits the engine's end of a terminal. Asynchronous pipe types serve for it: they only read,
/// write and wait.
pub(crate) fn split_terminal(ours: OwnedFd, size: TerminalSize) -> io::Result<TerminalParts> {
    let ours = nonblocking(ours)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let inside = ioctl_tiocgptpeer(&ours, flags)?;
    let shown = pipe::Receiver::from_owned_fd_unchecked(ours.try_clone()?)?;
    let input = pipe::Sender::from_owned_fd_unchecked(ours.try_clone()?)?;
    let window = TerminalWindow(ours);
    window.resize(size)?;
    Ok(TerminalParts {
        shown,
        inside,
        terminal: Terminal { input, window },
    })
}
