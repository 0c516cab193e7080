//! Accepts connections at the door's listeners and finds their destination: an HTTP or SOCKS proxy
//! client names it, a transparently redirected connection was dialled to it.

use super::{
    Egress,
    forward::{self, ForwardTarget},
    requests::{self, RequestScope},
    responses,
    responses::Body,
    socks, splice,
};
use crate::{connections::ConnectionHandle, http_server};
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

/// Time limit for a request head.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Backlog of the listening socket.
const LISTEN_BACKLOG: i32 = 1024;
/// After a failed accept: long enough not to spin, short enough not to be noticed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// How clients reach a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerKind {
    /// As a proxy: the client names the destination.
    Proxy,
    /// As a transparent proxy: the client dialled the destination; `redirected` if by an nftables
    /// redirect, where the kernel knows the original address.
    Transparent { redirected: bool },
}

/// Accepts connections until the task is aborted.
pub(crate) fn listen(
    egress: Arc<Egress>,
    kind: ListenerKind,
    listener: net::TcpListener,
) -> io::Result<tokio::task::JoinHandle<()>> {
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, LISTEN_BACKLOG)?;
    let listener = TcpListener::from_std(listener)?;
    Ok(tokio::spawn(async move {
        loop {
            if egress.connection_slots.available_permits() == 0 {
                egress.log.mark_limit_hit();
            }
            let permit = egress.connection_slots.clone().acquire_owned().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    let egress = egress.clone();
                    tokio::spawn(async move {
                        let _permit = permit;
                        serve_connection(egress, kind, stream).await;
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
            }
        }
    }))
}

/// Serves one connection.
async fn serve_connection(egress: Arc<Egress>, kind: ListenerKind, stream: TcpStream) {
    let handle = Arc::new(ConnectionHandle::default());
    if !handle.join(&egress.connections) {
        return;
    }
    splice::prepare(&stream);
    // Boxed, so that a connection holds only the state of its present phase.
    let start = match kind {
        ListenerKind::Proxy => Box::pin(accept_proxy(&egress, &handle, stream)).await,
        ListenerKind::Transparent { redirected } => {
            Box::pin(accept_transparent(&egress, &handle, stream, redirected)).await
        }
    };
    if let Some((stream, buffered, target)) = start {
        Box::pin(forward::forward(egress, handle, stream, buffered, target)).await;
    }
}

type ForwardStart = Option<(TcpStream, Bytes, ForwardTarget)>;

/// A transparent connection: the dialled address is the destination.
async fn accept_transparent(
    egress: &Arc<Egress>,
    handle: &Arc<ConnectionHandle>,
    stream: TcpStream,
    redirected: bool,
) -> ForwardStart {
    let to = destination(egress, &stream, redirected)?;
    if to.port == 80 {
        return Some((stream, Bytes::new(), ForwardTarget::plain(to)));
    }
    match handle
        .unless_ended(forward::open(egress, "connect", to))
        .await?
    {
        Ok(target) => Some((stream, Bytes::new(), target)),
        Err(_) => {
            handle.unless_ended(forward::reject(stream)).await;
            None
        }
    }
}

/// The intended destination: the name that the dialled address was made up for, else the bare
/// address.
fn destination(egress: &Egress, stream: &TcpStream, redirected: bool) -> Option<Destination> {
    let reached = stream.local_addr().ok()?;
    let dialled = if redirected {
        match reached {
            SocketAddr::V4(_) => sockopt::ip_original_dst(stream).map(SocketAddr::V4),
            SocketAddr::V6(_) => sockopt::ipv6_original_dst(stream).map(SocketAddr::V6),
        }
        .ok()?
    } else {
        reached
    };
    Some(Destination {
        host: egress.host_at(dialled.ip()),
        port: dialled.port(),
    })
}

/// A proxy client: HTTP or SOCKS.
async fn accept_proxy(
    egress: &Arc<Egress>,
    handle: &Arc<ConnectionHandle>,
    stream: TcpStream,
) -> ForwardStart {
    let mut first = [0];
    let peeked = tokio::time::timeout(HEAD_TIMEOUT, stream.peek(&mut first));
    match handle.unless_ended(peeked).await? {
        Ok(Ok(1)) if first[0] == socks::VERSION => handle
            .unless_ended(tokio::time::timeout(
                HEAD_TIMEOUT * 4,
                socks::handshake(egress, stream),
            ))
            .await?
            .ok()?,
        Ok(Ok(1)) => serve_requests(egress, handle, stream).await,
        _ => None,
    }
}

/// Serves proxy requests until one is a CONNECT.
async fn serve_requests(
    egress: &Arc<Egress>,
    handle: &Arc<ConnectionHandle>,
    stream: TcpStream,
) -> ForwardStart {
    let target: Mutex<Option<ForwardTarget>> = Mutex::default();
    let scope = requests::RequestProxy::new(egress.clone(), handle.clone(), RequestScope::Proxy);
    let service = service_fn(|request: Request<Incoming>| {
        let scope = &scope;
        let target = &target;
        Box::pin(async move {
            Ok::<_, Infallible>(match *request.method() {
                Method::CONNECT => connect(egress, request, target).await,
                _ => scope.answer(request).await,
            })
        })
    });
    let mut connection =
        http_server::builder(HEAD_TIMEOUT).serve_connection(TokioIo::new(stream), service);
    // If a tunnel was opened, the connection is the client's; else there is nobody to report an
    // error to.
    let served = handle.unless_ended(&mut connection).await;
    let parts = connection.into_parts();
    let stream = parts.io.into_inner();
    let buffered = parts.read_buf;
    let target = target.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (served, target) {
        (Some(Ok(())), Some(target)) => Some((stream, buffered, target)),
        (Some(_), _) if !scope.was_cut() => None,
        (_, _) => {
            forward::reset(&stream);
            None
        }
    }
}

/// Handles `CONNECT HOST:PORT`.
async fn connect(
    egress: &Arc<Egress>,
    request: Request<Incoming>,
    slot: &Mutex<Option<ForwardTarget>>,
) -> Response<Body> {
    // Host and port only: other servers read `http://HOST:PORT` here as another kind of request.
    let named = request
        .uri()
        .authority()
        .filter(|_| request.uri().scheme().is_none());
    let target = named.map(http::uri::Authority::as_str).unwrap_or_default();
    let to: Destination = match target.parse() {
        // The address may be a fake one.
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
            egress.log.refused("CONNECT", target, &refusal);
            return responses::bad_request(&refusal.reason);
        }
    };
    if has_body(&request) {
        return responses::bad_request("CONNECT has no body");
    }
    let host = to.host.clone();
    let what = format!("CONNECT {to}");
    match forward::open(egress, "CONNECT", to).await {
        Ok(target) => {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(target);
            let mut answer = Response::new(responses::full(""));
            *answer.status_mut() = StatusCode::OK;
            answer
        }
        Err(dial_error) => responses::dial_failed(&what, &egress.run, Some(&host), &dial_error),
    }
}

/// Whether the request announces a body: what follows would not be what it seems.
fn has_body(request: &Request<Incoming>) -> bool {
    let headers = request.headers();
    headers.contains_key(http::header::TRANSFER_ENCODING)
        || headers
            .get(http::header::CONTENT_LENGTH)
            .is_some_and(|length| length != "0")
}
