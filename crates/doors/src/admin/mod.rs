//! The admin API of the doors service: registers and revokes sessions and reports their usage. It
//! is served on a unix socket for our own user, or on a TCP listener behind a token; never on the
//! listeners that sessions call.
//!
//! The bodies of requests are in `requests.rs`.

mod check;
mod problem;
mod requests;
mod responses;

use crate::{
    connections::ConnectionHandle,
    http_server::{self, DoorListener, RequestHandler},
    registry::Registry,
    relay::ResponseBody,
    secret::Secret,
    socket_dir, token,
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use problem::AdminProblem;
use rustix::{
    fs::{AtFlags, CWD, Mode, unlinkat},
    process::geteuid,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    io,
    net::TcpListener,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};
use subtle::ConstantTimeEq;
use tokio::{net::UnixStream, sync::Semaphore, task::JoinHandle, time::timeout};
use zeroize::Zeroizing;

/// Largest request body.
const MAX_BODY_BYTES: usize = 64 << 10;
/// Time limit for the request head, and again for the body.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_CONNECTIONS: usize = 64;
/// Name of the admin socket inside the directory of session sockets.
const SOCKET: &str = "admin.sock";

/// Request handler of one admin listener.
struct AdminHandler {
    registry: Arc<Registry>,
    connection_slots: Arc<Semaphore>,
    /// SHA-256 of the token that every request must present; `None` on a socket that only our own
    /// user can reach.
    token: Option<[u8; 32]>,
}

/// A unix socket that serves the admin API.
#[derive(Debug)]
pub struct AdminSocket {
    task: JoinHandle<()>,
    folder: OwnedFd,
    name: String,
}

type AdminResult = Result<(StatusCode, Value), AdminProblem>;

/// Whether a path belongs to the admin API. `/v1/health` does not: everybody may call it.
pub(crate) fn is_admin_path(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    parts.next() == Some("v1")
        && matches!(
            parts.next(),
            Some("sessions" | "sandboxes" | "usage" | "check" | "reload")
        )
}

impl Registry {
    /// Serves the admin API on a unix socket: at this path, or beside the sockets of sessions.
    pub fn serve_admin(self: &Arc<Registry>, path: Option<&Path>) -> io::Result<AdminSocket> {
        let (folder, name) = match path {
            None => (self.socket_dir().handle().try_clone_to_owned()?, SOCKET),
            Some(path) => {
                let name = path.file_name().and_then(|name| name.to_str());
                let parent = path
                    .parent()
                    .filter(|parent| !parent.as_os_str().is_empty());
                let folder = socket_dir::open_dir(CWD, parent.unwrap_or(Path::new(".")))?;
                (
                    folder,
                    name.ok_or_else(|| io::Error::other("it is no path of a socket"))?,
                )
            }
        };
        socket_dir::remove_stale(folder.as_fd(), name)?;
        let listener = socket_dir::bind(folder.as_fd(), name, Mode::from_raw_mode(0o600))?;
        let task = http_server::listen(Arc::new(self.handler(None)), DoorListener::Unix(listener))?;
        Ok(AdminSocket {
            task,
            folder,
            name: name.to_owned(),
        })
    }

    /// Serves the admin API on a TCP listener; every request must present the token.
    pub fn serve_admin_tcp(
        self: &Arc<Registry>,
        listener: TcpListener,
        token: &Secret,
    ) -> io::Result<JoinHandle<()>> {
        http_server::listen(
            Arc::new(self.handler(Some(token))),
            DoorListener::Tcp(listener),
        )
    }

    fn handler(self: &Arc<Registry>, token: Option<&Secret>) -> AdminHandler {
        let connection_slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        AdminHandler {
            registry: self.clone(),
            connection_slots,
            token: token.map(|token| Sha256::digest(token.expose()).into()),
        }
    }
}

impl AdminSocket {
    /// Stops serving and removes the socket.
    pub fn close(self) {
        self.task.abort();
        // A socket that stays refuses connections, and is removed at the next start.
        _ = unlinkat(&self.folder, self.name.as_str(), AtFlags::empty());
    }
}

impl RequestHandler for AdminHandler {
    async fn handle(
        self: Arc<Self>,
        _handle: Arc<ConnectionHandle>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        let result = if self.is_authorized(&head) {
            self.route(&head, body).await
        } else {
            Err(AdminProblem::unauthorized())
        };
        match result {
            Ok((status, value)) => respond(status, "application/json", &value),
            Err(problem) => respond(
                problem.status(),
                "application/problem+json",
                &problem.document(),
            ),
        }
    }

    /// Accepts our own user and root (`SO_PEERCRED`).
    fn accepts_peer(&self, peer: &UnixStream) -> bool {
        peer.peer_cred()
            .is_ok_and(|peer| peer.uid() == geteuid().as_raw() || peer.uid() == 0)
    }

    fn connection_slots(&self) -> &Arc<Semaphore> {
        &self.connection_slots
    }

    fn header_timeout(&self) -> Duration {
        READ_TIMEOUT
    }
}

fn respond(status: StatusCode, kind: &'static str, value: &Value) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full(value.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // The response to a registration contains a session token.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Reads the request body. It may contain an API key, so the buffer is wiped.
async fn read(body: Incoming) -> Result<Zeroizing<Vec<u8>>, AdminProblem> {
    match timeout(READ_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(Zeroizing::new(body.to_bytes().to_vec())),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(AdminProblem::new(
            413,
            "request_too_large",
            format!("the body is larger than {MAX_BODY_BYTES} bytes"),
        )),
        Ok(Err(_)) => Err(AdminProblem::new(
            400,
            "invalid_request",
            "the body broke off",
        )),
        Err(_) => Err(AdminProblem::new(
            408,
            "request_timeout",
            "the body did not arrive in time",
        )),
    }
}

impl AdminHandler {
    /// Compares hashes in constant time, also when no token is presented.
    fn is_authorized(&self, head: &Parts) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let presented = head.headers.get(header::AUTHORIZATION);
        let presented = presented
            .and_then(|value| token::bearer_token(value.as_bytes()))
            .unwrap_or_default();
        Sha256::digest(presented).as_slice().ct_eq(token).into()
    }

    async fn route(&self, head: &Parts, body: Incoming) -> AdminResult {
        let parts: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        match (parts.as_slice(), &head.method) {
            (["v1", "sessions"], &Method::POST) => self.register(body).await,
            (["v1", "sessions"], &Method::GET) => {
                let sessions: Vec<_> = self
                    .registry
                    .list()
                    .iter()
                    .map(responses::session)
                    .collect();
                Ok((StatusCode::OK, json!({ "sessions": sessions })))
            }
            (["v1", "sessions", id_or_token], &Method::GET) => self
                .view(id_or_token)
                .map(|view| (StatusCode::OK, responses::session(&view))),
            (["v1", "sessions", id_or_token, "usage"], &Method::GET) => self
                .view(id_or_token)
                .map(|view| (StatusCode::OK, responses::usage_of(&view))),
            (["v1", "sessions", id_or_token], &Method::DELETE) => {
                let ended = self
                    .registry
                    .revoke(id_or_token)
                    .await
                    .ok_or_else(AdminProblem::no_session)?;
                Ok((StatusCode::OK, responses::revoked(&ended)))
            }
            (["v1", "sandboxes", sandbox, "sessions"], &Method::DELETE) => {
                let revoked = self.registry.revoke_sandbox(sandbox).await;
                let answer =
                    json!({ "status": "revoked", "sandbox_id": sandbox, "revoked": revoked });
                Ok((StatusCode::OK, answer))
            }
            (["v1", "usage"], &Method::GET) => {
                Ok((StatusCode::OK, responses::usage(&self.registry)))
            }
            (["v1", "check"], &Method::POST) => self.check(body).await,
            (["v1", "reload"], &Method::POST) => match self.registry.reload() {
                Ok(()) => Ok((StatusCode::OK, json!({ "status": "reloaded" }))),
                Err(why) => Err(AdminProblem::new(422, "invalid_configuration", why)
                    .hint("mend it; what was read before is still in force")),
            },
            (["v1", "health"] | ["health"] | ["healthz"], &Method::GET) => {
                let sessions = self.registry.list().len();
                Ok((
                    StatusCode::OK,
                    json!({ "status": "ok", "sessions": sessions }),
                ))
            }
            (path, _) => Err(AdminProblem::no_route(path)),
        }
    }

    fn view(&self, id_or_token: &str) -> Result<crate::registry::SessionInfo, AdminProblem> {
        self.registry
            .view(id_or_token)
            .ok_or_else(AdminProblem::no_session)
    }

    async fn register(&self, body: Incoming) -> AdminResult {
        let new_session = requests::new_session(&read(body).await?)?;
        let registered = self
            .registry
            .register(new_session)
            .await
            .map_err(AdminProblem::register)?;
        Ok((StatusCode::CREATED, responses::registered(&registered)))
    }

    async fn check(&self, body: Incoming) -> AdminResult {
        let request: requests::CheckBody = requests::parse(&read(body).await?)?;
        let session = self
            .registry
            .session(&request.session)
            .ok_or_else(AdminProblem::no_session)?;
        Ok((StatusCode::OK, check::decide(&session, &request)?))
    }
}
