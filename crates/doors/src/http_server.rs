//! HTTP/1 server of the doors: accepts connections on TCP and unix listeners, and hands requests to
//! a `RequestHandler`. Parsing and framing are hyper's.

use crate::{
    connections::ConnectionHandle,
    relay::{self, ResponseBody},
    session::DoorSession,
};
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1::Builder, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    io, net,
    os::{fd::AsFd, unix},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinHandle,
};

/// Headers per request.
const MAX_HEADERS: usize = 100;
/// Largest request head; also the read buffer.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
/// Backlog of the listening socket. Connections beyond it are dropped in a burst, and the client
/// retries after a whole second.
const LISTEN_BACKLOG: i32 = 4096;
/// After a failed accept (no file descriptors left): long enough not to spin, short enough not to
/// be noticed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// A listener of a door.
#[derive(Debug)]
pub enum DoorListener {
    /// On loopback inside the sandbox, or on this machine.
    Tcp(net::TcpListener),
    /// In a directory that is mounted into the sandbox.
    Unix(unix::net::UnixListener),
}

/// Handles the requests of a listener.
pub(crate) trait RequestHandler: Send + Sync + 'static {
    /// Handles one request on this connection.
    fn handle(
        self: Arc<Self>,
        handle: Arc<ConnectionHandle>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;

    /// Whether this peer of a unix socket may connect.
    fn accepts_peer(&self, _peer: &UnixStream) -> bool {
        true
    }

    /// Called for a new connection; false closes it.
    fn on_connect(&self, _handle: &Arc<ConnectionHandle>) -> bool {
        true
    }

    /// Limits concurrent connections.
    fn connection_slots(&self) -> &Arc<Semaphore>;

    /// Time limit for a request head.
    fn header_timeout(&self) -> Duration;
}

impl RequestHandler for DoorSession {
    async fn handle(
        self: Arc<Self>,
        handle: Arc<ConnectionHandle>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        relay::serve(self, handle, request).await
    }

    /// So that ending a session also closes connections without a request.
    fn on_connect(&self, handle: &Arc<ConnectionHandle>) -> bool {
        handle.join(&self.connections)
    }

    fn connection_slots(&self) -> &Arc<Semaphore> {
        &self.connection_slots
    }

    fn header_timeout(&self) -> Duration {
        self.doors.catalogue.limits.header_timeout
    }
}

/// Accepts connections until the task is aborted.
pub(crate) fn listen<A: RequestHandler>(
    handler: Arc<A>,
    listener: DoorListener,
) -> io::Result<JoinHandle<()>> {
    match listener {
        DoorListener::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            rustix::net::listen(&listener, LISTEN_BACKLOG)?;
            let listener = TcpListener::from_std(listener)?;
            Ok(tokio::spawn(async move {
                loop {
                    let permit = handler.connection_slots().clone().acquire_owned().await;
                    match listener.accept().await {
                        Ok((stream, _)) => {
                            // Without TCP_NODELAY small frames wait for delayed acknowledgements.
                            let ready = stream.set_nodelay(true).is_ok();
                            let task = serve_connection(handler.clone(), stream);
                            tokio::spawn(async move {
                                let _permit = permit;
                                if ready {
                                    task.await;
                                }
                            });
                        }
                        Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
                    }
                }
            }))
        }
        DoorListener::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            Ok(tokio::spawn(async move {
                loop {
                    let permit = handler.connection_slots().clone().acquire_owned().await;
                    match listener.accept().await {
                        Ok((stream, _)) if !handler.accepts_peer(&stream) => {}
                        Ok((stream, _)) => {
                            let task = serve_connection(handler.clone(), stream);
                            tokio::spawn(async move {
                                let _permit = permit;
                                task.await;
                            });
                        }
                        Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
                    }
                }
            }))
        }
    }
}

/// Serves one connection.
async fn serve_connection<A: RequestHandler, S: AsyncRead + AsyncWrite + AsFd + Unpin>(
    handler: Arc<A>,
    stream: S,
) {
    let handle = Arc::new(ConnectionHandle::default());
    if !handler.on_connect(&handle) {
        return;
    }
    let header_timeout = handler.header_timeout();
    let service = service_fn(|request| {
        let handler = handler.clone();
        let handle = handle.clone();
        // Boxed: its memory is released with the response head, not with the connection.
        Box::pin(async move {
            Ok::<_, Infallible>(match head_size(&request) {
                0..=MAX_HEAD_BYTES => handler.handle(handle, request).await,
                _ => relay::refusal(None, &relay::head_too_large(MAX_HEAD_BYTES)),
            })
        })
    });
    let builder = builder(header_timeout);
    let mut connection = builder.serve_connection(TokioIo::new(stream), service);
    let is_cut = tokio::select! {
        // An error has nobody to be reported to.
        _ = &mut connection => false,
        () = handle.wait_cut() => true,
        () = handle.wait_stalled() => true,
    };
    if is_cut {
        // A reset drops what the kernel still buffers. If this fails there is nothing to send.
        let stream = connection.into_parts().io.into_inner();
        _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    }
}

/// The hyper settings of every door: limits and timeout of request heads.
pub(crate) fn builder(header_timeout: Duration) -> Builder {
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES);
    builder
}

/// hyper checks the size between two reads, and the last read may exceed it.
fn head_size(request: &Request<Incoming>) -> usize {
    let target = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    let headers = request
        .headers()
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len());
    target + headers.sum::<usize>()
}
