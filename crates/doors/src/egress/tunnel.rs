//! Bytes between two connections, moved by the kernel. A pipe is held only while bytes are on their way, so that a
//! thousand idle tunnels cost next to nothing.

use super::limits::Way;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::{
    io,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{io::Interest, net::TcpStream};

/// Moved at once.
const PIECE: usize = 256 << 10;
/// Pipes that wait for the next bytes, at most.
const MOST_PIPES: usize = 32;
/// Without a descriptor for a pipe: long enough not to spin, short enough not to be noticed.
const BREATH: Duration = Duration::from_millis(20);

/// Why bytes stopped.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// One side failed.
    Broken,
    /// More than may pass.
    Spent,
}

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

static PIPES: Mutex<Vec<Pipe>> = Mutex::new(Vec::new());

impl Pipe {
    async fn take() -> Pipe {
        loop {
            if let Some(pipe) = PIPES.lock().unwrap_or_else(PoisonError::into_inner).pop() {
                return pipe;
            }
            match pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) {
                Ok((read, write)) => {
                    // If it stays small, more calls move the same bytes.
                    _ = fcntl_setpipe_size(&write, PIECE);
                    return Pipe { read, write };
                }
                Err(_) => tokio::time::sleep(BREATH).await,
            }
        }
    }

    /// Only an empty one may be given back: the next bytes in it are somebody else's.
    fn give_back(self) {
        let mut pipes = PIPES.lock().unwrap_or_else(PoisonError::into_inner);
        if pipes.len() < MOST_PIPES {
            pipes.push(self);
        }
    }
}

/// Moves bytes both ways until both sides have ended. `count` is told of bytes before they go on, and says whether they may.
pub(crate) async fn relay(
    client: &TcpStream,
    server: &TcpStream,
    count: &(impl Fn(Way, usize) -> bool + Sync),
) -> Result<(), Stopped> {
    let out = pump(client, server, |bytes| count(Way::Out, bytes));
    let back = pump(server, client, |bytes| count(Way::In, bytes));
    tokio::try_join!(out, back).map(|_| ())
}

/// One way, to its end, which is passed on.
async fn pump(from: &TcpStream, to: &TcpStream, count: impl Fn(usize) -> bool) -> Result<(), Stopped> {
    let broken = |_| Stopped::Broken;
    loop {
        from.readable().await.map_err(broken)?;
        let pipe = Pipe::take().await;
        loop {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            let moved =
                from.try_io(Interest::READABLE, || Ok(splice(from, None, &pipe.write, None, PIECE, flags)?));
            match moved {
                Ok(0) => {
                    pipe.give_back();
                    // The other side may have gone already.
                    _ = rustix::net::shutdown(to, rustix::net::Shutdown::Write);
                    return Ok(());
                }
                Ok(bytes) if count(bytes) => drain(&pipe, bytes, to).await.map_err(broken)?,
                Ok(_) => return Err(Stopped::Spent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(Stopped::Broken),
            }
        }
        pipe.give_back();
    }
}

async fn drain(pipe: &Pipe, mut bytes: usize, to: &TcpStream) -> io::Result<()> {
    while bytes > 0 {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let moved = to.try_io(Interest::WRITABLE, || Ok(splice(&pipe.read, None, to, None, bytes, flags)?));
        match moved {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => bytes -= moved,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn every_byte_arrives_and_each_side_ends_by_itself() {
        let ((mut client, near), (far, mut server)) = (pair().await, pair().await);
        let sent = AtomicUsize::new(0);
        let relaying = tokio::spawn(async move {
            let count = |way, bytes| {
                if way == Way::Out {
                    sent.fetch_add(bytes, Ordering::Relaxed);
                }
                true
            };
            relay(&near, &far, &count).await.unwrap();
            sent.into_inner()
        });
        let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        let whole = bytes.clone();
        let reading = tokio::spawn(async move {
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            // After the client said its last word.
            server.write_all(b"thanks").await.unwrap();
            got
        });
        client.write_all(&bytes).await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(reading.await.unwrap(), whole);
        let mut last = String::new();
        client.read_to_string(&mut last).await.unwrap();
        assert_eq!((last.as_str(), relaying.await.unwrap()), ("thanks", whole.len()));
    }

    #[tokio::test]
    async fn nothing_goes_on_beyond_a_limit() {
        let ((mut client, near), (far, mut server)) = (pair().await, pair().await);
        let relaying = tokio::spawn(async move { relay(&near, &far, &|_, _| false).await });
        client.write_all(b"secret").await.unwrap();
        assert!(matches!(relaying.await.unwrap(), Err(Stopped::Spent)));
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        assert!(got.is_empty());
    }
}
