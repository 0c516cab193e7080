//! The admin API: who may use the doors of a service, and what they used. On a unix socket for our own user, or behind
//! a token on a TCP listener; never where sessions call.

mod answers;
mod check;
mod problem;
mod words;

use crate::{
    line::Line,
    place,
    registry::Registry,
    relay::Outgoing,
    secret::Secret,
    serve::{self, Answers, Listener},
    token,
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use problem::Problem;
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

/// A request's body.
const LARGEST_BODY: usize = 64 << 10;
/// What it may take to arrive, as the head before it.
const PATIENCE: Duration = Duration::from_secs(10);
const MOST_CONNECTIONS: usize = 64;
/// The socket's name where sessions have theirs.
const SOCKET: &str = "admin.sock";

/// Whoever answers at one of the admin's listeners.
struct Desk {
    registry: Arc<Registry>,
    connections: Arc<Semaphore>,
    /// Asked for by everybody; none on a socket that only our own user reaches.
    token: Option<[u8; 32]>,
}

/// A socket with the admin API.
#[derive(Debug)]
pub struct AdminSocket {
    task: JoinHandle<()>,
    folder: OwnedFd,
    name: String,
}

type Answered = Result<(StatusCode, Value), Problem>;

/// Whether a path is the admin's. `/v1/health` is everybody's.
pub(crate) fn is_admins(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    parts.next() == Some("v1")
        && matches!(
            parts.next(),
            Some("sessions" | "sandboxes" | "usage" | "check" | "reload")
        )
}

impl Registry {
    /// The admin API on a unix socket: at this path, or beside the sockets of sessions.
    pub fn serve_admin(self: &Arc<Registry>, path: Option<&Path>) -> io::Result<AdminSocket> {
        let (folder, name) = match path {
            None => (self.place().handle().try_clone_to_owned()?, SOCKET),
            Some(path) => {
                let name = path.file_name().and_then(|name| name.to_str());
                let parent = path
                    .parent()
                    .filter(|parent| !parent.as_os_str().is_empty());
                let folder = place::open_folder(CWD, parent.unwrap_or(Path::new(".")))?;
                (
                    folder,
                    name.ok_or_else(|| io::Error::other("it is no path of a socket"))?,
                )
            }
        };
        place::remove_stale(folder.as_fd(), name)?;
        let listener = place::bind(folder.as_fd(), name, Mode::from_raw_mode(0o600))?;
        let task = serve::listen(Arc::new(self.desk(None)), Listener::Unix(listener))?;
        Ok(AdminSocket {
            task,
            folder,
            name: name.to_owned(),
        })
    }

    /// The admin API behind a token.
    pub fn serve_admin_behind(
        self: &Arc<Registry>,
        listener: TcpListener,
        token: &Secret,
    ) -> io::Result<JoinHandle<()>> {
        serve::listen(Arc::new(self.desk(Some(token))), Listener::Tcp(listener))
    }

    fn desk(self: &Arc<Registry>, token: Option<&Secret>) -> Desk {
        let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        Desk {
            registry: self.clone(),
            connections,
            token: token.map(|token| Sha256::digest(token.expose()).into()),
        }
    }
}

impl AdminSocket {
    /// Takes no more calls, and removes the socket.
    pub fn close(self) {
        self.task.abort();
        // One that stays leads nowhere, and is removed at the next start.
        _ = unlinkat(&self.folder, self.name.as_str(), AtFlags::empty());
    }
}

impl Answers for Desk {
    async fn answer(
        self: Arc<Self>,
        _line: Arc<Line>,
        request: Request<Incoming>,
    ) -> Response<Outgoing> {
        let (head, body) = request.into_parts();
        let answered = match self.knows(&head) {
            true => self.route(&head, body).await,
            false => Err(Problem::unauthorized()),
        };
        match answered {
            Ok((status, value)) => respond(status, "application/json", &value),
            Err(problem) => respond(
                problem.status(),
                "application/problem+json",
                &problem.document(),
            ),
        }
    }

    /// Our own user, and root.
    fn admits(&self, peer: &UnixStream) -> bool {
        peer.peer_cred()
            .is_ok_and(|peer| peer.uid() == geteuid().as_raw() || peer.uid() == 0)
    }

    fn connections(&self) -> &Arc<Semaphore> {
        &self.connections
    }

    fn head_time(&self) -> Duration {
        PATIENCE
    }
}

fn respond(status: StatusCode, kind: &'static str, value: &Value) -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::whole(value.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // The answer to a registration has a token in it.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The body; it may hold a key.
async fn read(body: Incoming) -> Result<Zeroizing<Vec<u8>>, Problem> {
    match timeout(PATIENCE, Limited::new(body, LARGEST_BODY).collect()).await {
        Ok(Ok(body)) => Ok(Zeroizing::new(body.to_bytes().to_vec())),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(Problem::new(
            413,
            "request_too_large",
            format!("the body is larger than {LARGEST_BODY} bytes"),
        )),
        Ok(Err(_)) => Err(Problem::new(400, "invalid_request", "the body broke off")),
        Err(_) => Err(Problem::new(
            408,
            "request_timeout",
            "the body did not arrive in time",
        )),
    }
}

impl Desk {
    /// Hashes what is presented, even if that is nothing, and compares all of it.
    fn knows(&self, head: &Parts) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let presented = head.headers.get(header::AUTHORIZATION);
        let presented = presented
            .and_then(|value| token::bearer(value.as_bytes()))
            .unwrap_or_default();
        Sha256::digest(presented).as_slice().ct_eq(token).into()
    }

    async fn route(&self, head: &Parts, body: Incoming) -> Answered {
        let parts: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        match (parts.as_slice(), &head.method) {
            (["v1", "sessions"], &Method::POST) => self.register(body).await,
            (["v1", "sessions"], &Method::GET) => {
                let sessions: Vec<_> = self.registry.list().iter().map(answers::session).collect();
                Ok((StatusCode::OK, json!({ "sessions": sessions })))
            }
            (["v1", "sessions", which], &Method::GET) => self
                .view(which)
                .map(|view| (StatusCode::OK, answers::session(&view))),
            (["v1", "sessions", which, "usage"], &Method::GET) => self
                .view(which)
                .map(|view| (StatusCode::OK, answers::usage_of(&view))),
            (["v1", "sessions", which], &Method::DELETE) => {
                let ended = self
                    .registry
                    .revoke(which)
                    .await
                    .ok_or_else(Problem::no_session)?;
                Ok((StatusCode::OK, answers::revoked(&ended)))
            }
            (["v1", "sandboxes", sandbox, "sessions"], &Method::DELETE) => {
                let revoked = self.registry.revoke_sandbox(sandbox).await;
                let answer =
                    json!({ "status": "revoked", "sandbox_id": sandbox, "revoked": revoked });
                Ok((StatusCode::OK, answer))
            }
            (["v1", "usage"], &Method::GET) => Ok((StatusCode::OK, answers::usage(&self.registry))),
            (["v1", "check"], &Method::POST) => self.check(body).await,
            (["v1", "reload"], &Method::POST) => match self.registry.reload() {
                Ok(()) => Ok((StatusCode::OK, json!({ "status": "reloaded" }))),
                Err(why) => Err(Problem::new(422, "invalid_configuration", why)
                    .hint("mend it; what was read before is still in force")),
            },
            (["v1", "health"] | ["health"] | ["healthz"], &Method::GET) => {
                let sessions = self.registry.list().len();
                Ok((
                    StatusCode::OK,
                    json!({ "status": "ok", "sessions": sessions }),
                ))
            }
            (path, _) => Err(Problem::no_route(path)),
        }
    }

    fn view(&self, which: &str) -> Result<crate::registry::View, Problem> {
        self.registry.view(which).ok_or_else(Problem::no_session)
    }

    async fn register(&self, body: Incoming) -> Answered {
        let order = words::order(&read(body).await?)?;
        let registered = self
            .registry
            .register(order)
            .await
            .map_err(Problem::register)?;
        Ok((StatusCode::CREATED, answers::registered(&registered)))
    }

    async fn check(&self, body: Incoming) -> Answered {
        let asked: words::Check = words::parse(&read(body).await?)?;
        let session = self
            .registry
            .session(&asked.session)
            .ok_or_else(Problem::no_session)?;
        Ok((StatusCode::OK, check::decide(&session, &asked)?))
    }
}
