//! Standard streams of a program: pipes, or a terminal on all three.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};
use tokio::{io::AsyncReadExt, net::unix::pipe, sync::watch};

/// More than the kernel buffers for a terminal; that size cannot be queried.
const MAX_TERMINAL_BUFFER: usize = 256 << 10;

/// The program's ends of its streams, and the readers.
pub(crate) struct Streams {
    pub(crate) inside: [OwnedFd; 3],
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: Option<pipe::Receiver>,
}

/// Reads one output stream of a program.
pub(crate) struct OutputReader {
    pipe: pipe::Receiver,
    ended: watch::Receiver<bool>,
    /// The bytes that may still be the program's own, once it has ended.
    left: Option<usize>,
}

impl OutputReader {
    /// Reads to the end of the stream, or until `ended` says that the program is gone.
    pub(crate) fn new(pipe: pipe::Receiver, ended: watch::Receiver<bool>) -> OutputReader {
        OutputReader {
            pipe,
            ended,
            left: None,
        }
    }

    /// The next bytes; none at the end. A program may have passed its end of the pipe to another
    /// process: then only what is in the pipe when the program ends is still its own output.
    pub(crate) async fn next(&mut self, buffer: &mut [u8]) -> usize {
        if self.left.is_none() {
            tokio::select! {
                read = self.pipe.read(buffer) => return read.unwrap_or(0),
                Ok(_) = self.ended.wait_for(|ended| *ended) => {
                    self.left = Some(rustix::pipe::fcntl_getpipe_size(&self.pipe).unwrap_or(MAX_TERMINAL_BUFFER));
                }
            }
        }
        let left = self.left.unwrap_or(0);
        let most = buffer.len().min(left);
        let read = rustix::io::read(&self.pipe, &mut buffer[..most]).unwrap_or(0);
        self.left = Some(left - read);
        read
    }

    /// Whether the write end is closed everywhere.
    pub(crate) fn is_over(&self) -> bool {
        matches!(rustix::io::read(&self.pipe, &mut [0; 1]), Ok(0))
    }

    /// Reads and discards what other processes write: a full pipe would block them, a closed one
    /// would kill them with SIGPIPE.
    pub(crate) async fn drain(mut self) {
        let mut buffer = vec![0; 4096];
        while let Ok(1..) = self.pipe.read(&mut buffer).await {}
    }
}

/// A pipe for standard input: the engine's end and the program's.
pub(crate) fn input_pipe() -> io::Result<(pipe::Sender, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((
        pipe::Sender::from_owned_fd_unchecked(nonblocking(write)?)?,
        read,
    ))
}

pub(crate) fn connect_pipes(input: Option<OwnedFd>) -> io::Result<Streams> {
    let input = match input {
        Some(input) => input,
        None => File::open("/dev/null")?.into(),
    };
    let (stdout, out_write) = output_pipe()?;
    let (stderr, err_write) = output_pipe()?;
    Ok(Streams {
        inside: [input, out_write, err_write],
        stdout,
        stderr: Some(stderr),
    })
}

pub(crate) fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((
        pipe::Receiver::from_owned_fd_unchecked(nonblocking(read)?)?,
        write,
    ))
}

pub(crate) fn nonblocking(end: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(end.as_fd(), true)?;
    Ok(end)
}
