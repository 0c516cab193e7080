//! A program's standard streams: pipes, or a terminal on all three.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};
use tokio::{io::AsyncReadExt, net::unix::pipe, sync::watch};

/// What a terminal holds back, and then some; it has no size that could be asked for.
const MOST_IN_TERMINAL: usize = 256 << 10;

/// Where a program's streams lead, before it has them.
pub(crate) struct Streams {
    pub(crate) inside: [OwnedFd; 3],
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: Option<pipe::Receiver>,
}

/// A stream of a program's output, being read.
pub(crate) struct Reading {
    pipe: pipe::Receiver,
    ended: watch::Receiver<bool>,
    /// What may still be its own, once it has ended.
    left: Option<usize>,
}

impl Reading {
    /// Reads to the end of the stream, or until `ended` says that the program is gone.
    pub(crate) fn new(pipe: pipe::Receiver, ended: watch::Receiver<bool>) -> Reading {
        Reading {
            pipe,
            ended,
            left: None,
        }
    }

    /// The next bytes; none at the end. The end of the stream and that of the program differ when a program has handed its
    /// end of the pipe to somebody else: then only what lies in the pipe at its end is still its own.
    pub(crate) async fn next(&mut self, buffer: &mut [u8]) -> usize {
        if self.left.is_none() {
            tokio::select! {
                read = self.pipe.read(buffer) => return read.unwrap_or(0),
                Ok(_) = self.ended.wait_for(|ended| *ended) => {
                    self.left = Some(rustix::pipe::fcntl_getpipe_size(&self.pipe).unwrap_or(MOST_IN_TERMINAL));
                }
            }
        }
        let left = self.left.unwrap_or(0);
        let most = buffer.len().min(left);
        let read = rustix::io::read(&self.pipe, &mut buffer[..most]).unwrap_or(0);
        self.left = Some(left - read);
        read
    }

    /// Whether nobody has the other end any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(rustix::io::read(&self.pipe, &mut [0; 1]), Ok(0))
    }

    /// Reads on for whoever still writes, and throws it away: a full pipe would stop him, a closed one kill him.
    pub(crate) async fn drain(mut self) {
        let mut buffer = vec![0; 4096];
        while let Ok(1..) = self.pipe.read(&mut buffer).await {}
    }
}

/// For a program's standard input: our end, and the program's.
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
