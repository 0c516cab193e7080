//! Bytes between two connections, moved by the kernel. A pipe is held only while bytes are on their way, so that a
//! thousand idle tunnels cost next to nothing.

use super::limits::Way;
use rustix::net::sockopt;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::{
    io,
    os::fd::OwnedFd,
    pin::{Pin, pin},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{io::Interest, net::TcpStream, time::timeout};

/// Moved at once.
const PIECE: usize = 256 << 10;
/// Pipes that wait for the next bytes, at most.
const MOST_PIPES: usize = 32;
/// Without a descriptor for a pipe: long enough not to spin, short enough not to be noticed.
const BREATH: Duration = Duration::from_millis(20);

/// After so long without a byte, whether there is still somebody is asked.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Of the side that still may speak.
const LONGEST_SILENCE: Duration = Duration::from_secs(300);

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

/// How a connection is to behave, whoever made it.
pub(crate) fn prepare(stream: &TcpStream) {
    // Where one of them fails, the connection is a little worse and as safe.
    // Without it small writes wait for acknowledgements that wait for them.
    _ = stream.set_nodelay(true);
    // Somebody who is gone without a word is noticed.
    _ = sockopt::set_socket_keepalive(stream, true);
    _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
    // An urgent byte would stop the kernel from moving what comes behind it.
    _ = sockopt::set_socket_oobinline(stream, true);
}

/// Moves bytes both ways until both sides have ended. `count` is told of bytes before they go on, and says whether they may.
pub(crate) async fn relay(
    client: &TcpStream,
    server: &TcpStream,
    count: &(impl Fn(Way, usize) -> bool + Sync),
) -> Result<(), Stopped> {
    let moved = AtomicU64::new(0);
    let count = |way, bytes| {
        moved.fetch_add(1, Ordering::Relaxed);
        count(way, bytes)
    };
    let mut out = pin!(pump(client, server, |bytes| count(Way::Out, bytes)));
    let mut back = pin!(pump(server, client, |bytes| count(Way::In, bytes)));
    tokio::select! {
        ended = &mut out => {
            ended?;
            unless_silent(back, &moved).await
        }
        ended = &mut back => {
            ended?;
            unless_silent(out, &moved).await
        }
    }
}

/// When one side has said its last word, the other may go on, but not be silent for ever.
async fn unless_silent(
    mut rest: Pin<&mut impl Future<Output = Result<(), Stopped>>>,
    moved: &AtomicU64,
) -> Result<(), Stopped> {
    loop {
        let before = moved.load(Ordering::Relaxed);
        match timeout(LONGEST_SILENCE, &mut rest).await {
            Ok(ended) => return ended,
            Err(_) if moved.load(Ordering::Relaxed) == before => return Err(Stopped::Broken),
            Err(_) => {}
        }
    }
}

/// One way, to its end, which is passed on.
async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    count: impl Fn(usize) -> bool,
) -> Result<(), Stopped> {
    let broken = |_| Stopped::Broken;
    loop {
        from.readable().await.map_err(broken)?;
        let pipe = Pipe::take().await;
        loop {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            let moved = from.try_io(Interest::READABLE, || {
                Ok(splice(from, None, &pipe.write, None, PIECE, flags)?)
            });
            match moved {
                Ok(0) => {
                    pipe.give_back();
                    // The other side may have gone already.
                    _ = rustix::net::shutdown(to, rustix::net::Shutdown::Write);
                    return Ok(());
                }
                Ok(bytes) if count(bytes) => {
                    drain(&pipe, bytes, to).await.map_err(broken)?;
                    // Others want to be served, too, where both sides are always ready.
                    tokio::task::coop::consume_budget().await;
                }
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
        let moved = to.try_io(Interest::WRITABLE, || {
            Ok(splice(&pipe.read, None, to, None, bytes, flags)?)
        });
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
        let near = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
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
        assert_eq!(
            (last.as_str(), relaying.await.unwrap()),
            ("thanks", whole.len())
        );
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
