//! Takes calls at listeners and reads requests off connections. The request line, headers and framing are hyper's
//! business; what is asked is the relay's.

use crate::{
    line::Line,
    relay::{self, Outgoing},
    session::Session,
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

/// Headers of one request.
const MOST_HEADERS: usize = 100;
/// All of them together, and what is read at once.
pub(crate) const LARGEST_HEAD: usize = 64 << 10;
/// Connections that may wait to be taken. Of a burst beyond that some are not heard, and try again after a whole second.
const MOST_WAITING: i32 = 4096;
/// After a failed accept (no descriptors left): long enough not to spin, short enough not to be noticed.
const BREATH: Duration = Duration::from_millis(20);

/// Where calls come in.
#[derive(Debug)]
pub enum Listener {
    /// On a loopback inside, or of this machine.
    Tcp(net::TcpListener),
    /// In a folder that is shown inside.
    Unix(unix::net::UnixListener),
}

/// Who answers what comes in at a listener.
pub(crate) trait Answers: Send + Sync + 'static {
    /// The answer to one request on this line.
    fn answer(
        self: Arc<Self>,
        line: Arc<Line>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Outgoing>> + Send;

    /// Whether this peer of a unix socket may speak at all.
    fn admits(&self, _peer: &UnixStream) -> bool {
        true
    }

    /// A connection has come, of which nothing is known yet; whether it is served.
    fn arrived(&self, _line: &Arc<Line>) -> bool {
        true
    }

    /// How many connections at once.
    fn connections(&self) -> &Arc<Semaphore>;

    /// How long a request's head may take.
    fn head_time(&self) -> Duration;
}

impl Answers for Session {
    async fn answer(
        self: Arc<Self>,
        line: Arc<Line>,
        request: Request<Incoming>,
    ) -> Response<Outgoing> {
        relay::serve(self, line, request).await
    }

    /// So that a session's end is also that of lines which never said anything.
    fn arrived(&self, line: &Arc<Line>) -> bool {
        line.enter(&self.crowd)
    }

    fn connections(&self) -> &Arc<Semaphore> {
        &self.connections
    }

    fn head_time(&self) -> Duration {
        self.doors.catalogue.bounds.header_time
    }
}

/// Takes calls until the task is ended.
pub(crate) fn listen<A: Answers>(
    answers: Arc<A>,
    listener: Listener,
) -> io::Result<JoinHandle<()>> {
    match listener {
        Listener::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            rustix::net::listen(&listener, MOST_WAITING)?;
            let listener = TcpListener::from_std(listener)?;
            Ok(tokio::spawn(async move {
                loop {
                    let permit = answers.connections().clone().acquire_owned().await;
                    match listener.accept().await {
                        Ok((stream, _)) => {
                            // Without it small frames wait for acknowledgements that wait for them.
                            let ready = stream.set_nodelay(true).is_ok();
                            let task = converse(answers.clone(), stream);
                            tokio::spawn(async move {
                                let _permit = permit;
                                if ready {
                                    task.await;
                                }
                            });
                        }
                        Err(_) => tokio::time::sleep(BREATH).await,
                    }
                }
            }))
        }
        Listener::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = UnixListener::from_std(listener)?;
            Ok(tokio::spawn(async move {
                loop {
                    let permit = answers.connections().clone().acquire_owned().await;
                    match listener.accept().await {
                        Ok((stream, _)) if !answers.admits(&stream) => {}
                        Ok((stream, _)) => {
                            let task = converse(answers.clone(), stream);
                            tokio::spawn(async move {
                                let _permit = permit;
                                task.await;
                            });
                        }
                        Err(_) => tokio::time::sleep(BREATH).await,
                    }
                }
            }))
        }
    }
}

/// One connection, to its end.
async fn converse<A: Answers, S: AsyncRead + AsyncWrite + AsFd + Unpin>(
    answers: Arc<A>,
    stream: S,
) {
    let line = Arc::new(Line::default());
    if !answers.arrived(&line) {
        return;
    }
    let head_time = answers.head_time();
    let service = service_fn(|request| {
        let (answers, line) = (answers.clone(), line.clone());
        // On its own: what it needs is given back with the head of the answer, not with the connection.
        Box::pin(async move {
            Ok::<_, Infallible>(match head_size(&request) {
                0..=LARGEST_HEAD => answers.answer(line, request).await,
                _ => relay::refusal(None, &relay::head_too_large(LARGEST_HEAD)),
            })
        })
    });
    let builder = builder(head_time);
    let mut connection = builder.serve_connection(TokioIo::new(stream), service);
    let is_cut = tokio::select! {
        // Whatever ended it: there is nobody to tell.
        _ = &mut connection => false,
        () = line.cut() => true,
        () = line.stalled() => true,
    };
    if is_cut {
        // The kernel would go on sending what it holds. If this fails there is nothing to send.
        let stream = connection.into_parts().io.into_inner();
        _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    }
}

/// How requests are read at every door: what their heads may be, and how long they may take.
pub(crate) fn builder(head_time: Duration) -> Builder {
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .max_headers(MOST_HEADERS)
        .max_buf_size(LARGEST_HEAD);
    builder
}

/// hyper looks at the size between two reads, and the last one may have brought more.
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
