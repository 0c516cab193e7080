//! Relays bytes between two TCP connections with splice(2). A pipe is held only while bytes are in
//! it, so that a thousand idle tunnels cost next to nothing.

use super::traffic_limits::Direction;
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

/// Bytes per splice, and the pipe size.
const CHUNK_BYTES: usize = 256 << 10;
/// Idle pipes that are kept.
const MAX_IDLE_PIPES: usize = 32;
/// When no file descriptor is left for a pipe: long enough not to spin, short enough not to be
/// noticed.
const PIPE_RETRY_DELAY: Duration = Duration::from_millis(20);

/// TCP keepalive: idle time before the first probe.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// How long one side may be silent after the other has ended.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Why a relay stopped.
#[derive(Debug)]
pub(crate) enum SpliceError {
    /// A socket failed.
    Broken,
    /// A traffic limit was exceeded.
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
                    // If the pipe stays small, more calls move the same bytes.
                    _ = fcntl_setpipe_size(&write, CHUNK_BYTES);
                    return Pipe { read, write };
                }
                Err(_) => tokio::time::sleep(PIPE_RETRY_DELAY).await,
            }
        }
    }

    /// Only an empty pipe may be returned: bytes in it would go to another tunnel.
    fn give_back(self) {
        let mut pipes = PIPES.lock().unwrap_or_else(PoisonError::into_inner);
        if pipes.len() < MAX_IDLE_PIPES {
            pipes.push(self);
        }
    }
}

/// Sets the socket options of a proxied connection.
pub(crate) fn prepare(stream: &TcpStream) {
    // A failure of any of these leaves the connection slower but as safe. Without TCP_NODELAY small
    // writes wait for delayed acknowledgements.
    _ = stream.set_nodelay(true);
    // Detects peers that vanished.
    _ = sockopt::set_socket_keepalive(stream, true);
    _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
    // An urgent byte would stop splice(2) from moving what follows it.
    _ = sockopt::set_socket_oobinline(stream, true);
}

/// Relays bytes in both directions until both sides have ended. `count` is called before bytes are
/// forwarded and says whether they may be.
pub(crate) async fn relay(
    client: &TcpStream,
    server: &TcpStream,
    count: &(impl Fn(Direction, usize) -> bool + Sync),
) -> Result<(), SpliceError> {
    let moved = AtomicU64::new(0);
    let count = |direction, bytes| {
        moved.fetch_add(1, Ordering::Relaxed);
        count(direction, bytes)
    };
    let mut out = pin!(pump(client, server, |bytes| count(Direction::Out, bytes)));
    let mut back = pin!(pump(server, client, |bytes| count(Direction::In, bytes)));
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

/// After one side has ended, the other may continue, but with an idle timeout.
async fn unless_silent(
    mut rest: Pin<&mut impl Future<Output = Result<(), SpliceError>>>,
    moved: &AtomicU64,
) -> Result<(), SpliceError> {
    loop {
        let before = moved.load(Ordering::Relaxed);
        match timeout(IDLE_TIMEOUT, &mut rest).await {
            Ok(ended) => return ended,
            Err(_) if moved.load(Ordering::Relaxed) == before => return Err(SpliceError::Broken),
            Err(_) => {}
        }
    }
}

/// Relays one direction until its end, which is forwarded as a shutdown.
async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    count: impl Fn(usize) -> bool,
) -> Result<(), SpliceError> {
    let broken = |_| SpliceError::Broken;
    loop {
        from.readable().await.map_err(broken)?;
        let pipe = Pipe::take().await;
        loop {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            let moved = from.try_io(Interest::READABLE, || {
                Ok(splice(from, None, &pipe.write, None, CHUNK_BYTES, flags)?)
            });
            match moved {
                Ok(0) => {
                    pipe.give_back();
                    // The other side may be closed already.
                    _ = rustix::net::shutdown(to, rustix::net::Shutdown::Write);
                    return Ok(());
                }
                Ok(bytes) if count(bytes) => {
                    drain(&pipe, bytes, to).await.map_err(broken)?;
                    // Yields to other tasks where both sides are always ready.
                    tokio::task::coop::consume_budget().await;
                }
                Ok(_) => return Err(SpliceError::Spent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(SpliceError::Broken),
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
            let count = |direction, bytes| {
                if direction == Direction::Out {
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
        assert!(matches!(relaying.await.unwrap(), Err(SpliceError::Spent)));
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        assert!(got.is_empty());
    }
}
