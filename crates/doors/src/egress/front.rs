//! Takes connections at the door's listeners and finds out where they want to go: a proxy is told, and what passes by
//! was dialled there.

use super::{
    Egress, answer,
    answer::Body,
    carry::{self, Opened, carry},
    requests::{self, Scope},
    socks, tunnel,
};
use crate::{line::Line, serve};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use spec::{Destination, Host};
use std::{
    convert::Infallible,
    io,
    net::{self, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};

/// How long a request's head may take.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(10);
/// Connections that may wait to be taken.
const MOST_WAITING: i32 = 1024;
/// After a failed accept: long enough not to spin, short enough not to be noticed.
const BREATH: Duration = Duration::from_millis(20);

/// Where a connection came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// At the proxy: it will say where it wants to go.
    Proxy,
    /// On its way to somewhere else; whether the kernel led it here, and so knows where that is.
    Passing { redirected: bool },
}

/// Takes connections until the task is ended.
pub(crate) fn listen(
    egress: Arc<Egress>,
    entrance: Entrance,
    listener: net::TcpListener,
) -> io::Result<tokio::task::JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, MOST_WAITING)?;
    let listener = TcpListener::from_std(listener)?;
    Ok(tokio::spawn(async move {
        loop {
            if egress.connections.available_permits() == 0 {
                egress.books.note_limit();
            }
            let permit = egress.connections.clone().acquire_owned().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    let egress = egress.clone();
                    tokio::spawn(async move {
                        let _permit = permit;
                        converse(egress, entrance, stream).await;
                    });
                }
                Err(_) => tokio::time::sleep(BREATH).await,
            }
        }
    }))
}

/// One connection, to its end.
async fn converse(egress: Arc<Egress>, entrance: Entrance, stream: TcpStream) {
    let line = Arc::new(Line::default());
    if !line.enter(&egress.crowd) {
        return;
    }
    tunnel::prepare(&stream);
    // Boxed, so that a connection holds what its present state needs, and no more.
    let begun = match entrance {
        Entrance::Proxy => Box::pin(greet(&egress, &line, stream)).await,
        Entrance::Passing { redirected } => {
            Box::pin(pass(&egress, &line, stream, redirected)).await
        }
    };
    if let Some((stream, early, opened)) = begun {
        Box::pin(carry(egress, line, stream, early, opened)).await;
    }
}

type Begun = Option<(TcpStream, Bytes, Opened)>;

/// What was dialled is where it wants to go.
async fn pass(
    egress: &Arc<Egress>,
    line: &Arc<Line>,
    stream: TcpStream,
    redirected: bool,
) -> Begun {
    let to = destination(egress, &stream, redirected)?;
    if to.port == 80 {
        return Some((stream, Bytes::new(), Opened::plain(to)));
    }
    match line
        .unless_ended(carry::open(egress, "connect", to))
        .await?
    {
        Ok(opened) => Some((stream, Bytes::new(), opened)),
        Err(_) => {
            line.unless_ended(carry::turn_away(stream)).await;
            None
        }
    }
}

/// Where the program meant to go: by the name that it asked for, else by the bare address.
fn destination(egress: &Egress, stream: &TcpStream, redirected: bool) -> Option<Destination> {
    let reached = stream.local_addr().ok()?;
    let meant = match redirected {
        true => match reached {
            SocketAddr::V4(_) => sockopt::ip_original_dst(stream).map(SocketAddr::V4),
            SocketAddr::V6(_) => sockopt::ipv6_original_dst(stream).map(SocketAddr::V6),
        }
        .ok()?,
        false => reached,
    };
    Some(Destination {
        host: egress.host_at(meant.ip()),
        port: meant.port(),
    })
}

/// A client that knows of the door: HTTP, or SOCKS.
async fn greet(egress: &Arc<Egress>, line: &Arc<Line>, stream: TcpStream) -> Begun {
    let mut first = [0];
    let peeked = tokio::time::timeout(HEAD_TIME, stream.peek(&mut first));
    match line.unless_ended(peeked).await? {
        Ok(Ok(1)) if first[0] == socks::VERSION => line
            .unless_ended(tokio::time::timeout(
                HEAD_TIME * 4,
                socks::greet(egress, stream),
            ))
            .await?
            .ok()?,
        Ok(Ok(1)) => serve_requests(egress, line, stream).await,
        _ => None,
    }
}

/// Requests, until one asks for a connection of its own.
async fn serve_requests(egress: &Arc<Egress>, line: &Arc<Line>, stream: TcpStream) -> Begun {
    let opened: Mutex<Option<Opened>> = Mutex::default();
    let scope = requests::Conversation::new(egress.clone(), line.clone(), Scope::Proxy);
    let service = service_fn(|request: Request<Incoming>| {
        let (scope, opened) = (&scope, &opened);
        Box::pin(async move {
            Ok::<_, Infallible>(match *request.method() {
                Method::CONNECT => connect(egress, request, opened).await,
                _ => scope.answer(request).await,
            })
        })
    });
    let mut connection = serve::builder(HEAD_TIME).serve_connection(TokioIo::new(stream), service);
    // Whatever ended it: if a connection was opened it is the client's, else there is nobody to tell.
    let served = line.unless_ended(&mut connection).await;
    let parts = connection.into_parts();
    let (stream, early) = (parts.io.into_inner(), parts.read_buf);
    let opened = opened.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (served, opened) {
        (Some(Ok(())), Some(opened)) => Some((stream, early, opened)),
        (Some(_), _) if !scope.was_cut() => None,
        (_, _) => {
            carry::reset(&stream);
            None
        }
    }
}

/// `CONNECT HOST:PORT`.
async fn connect(
    egress: &Arc<Egress>,
    request: Request<Incoming>,
    slot: &Mutex<Option<Opened>>,
) -> Response<Body> {
    // A host and a port alone: what follows `http://HOST:PORT` others read as another kind of request.
    let named = request
        .uri()
        .authority()
        .filter(|_| request.uri().scheme().is_none());
    let target = named.map(http::uri::Authority::as_str).unwrap_or_default();
    let to: Destination = match target.parse() {
        // An address may have been made up here for a name.
        Ok(Destination {
            host: Host::Address(address),
            port,
        }) => Destination {
            host: egress.host_at(address),
            port,
        },
        Ok(to) => to,
        Err(bad) => {
            let refusal = super::Refusal::new("host", bad.to_string(), "nothing");
            egress.books.refused("CONNECT", target, &refusal);
            return answer::bad(&refusal.reason);
        }
    };
    if has_body(&request) {
        return answer::bad("CONNECT has no body");
    }
    let host = to.host.clone();
    let what = format!("CONNECT {to}");
    match carry::open(egress, "CONNECT", to).await {
        Ok(opened) => {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
            let mut answer = Response::new(answer::full(""));
            *answer.status_mut() = StatusCode::OK;
            answer
        }
        Err(no_way) => answer::no_way(&what, &egress.run, Some(&host), &no_way),
    }
}

/// Whether a request claims to have one: what would follow is not what it seems.
fn has_body(request: &Request<Incoming>) -> bool {
    let headers = request.headers();
    headers.contains_key(http::header::TRANSFER_ENCODING)
        || headers
            .get(http::header::CONTENT_LENGTH)
            .is_some_and(|length| length != "0")
}
