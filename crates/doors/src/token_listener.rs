//! The listener of the doors service: one for all sessions. The presented token selects the
//! session.

use crate::{
    admin,
    connections::ConnectionHandle,
    http_server::{self, DoorListener, RequestHandler},
    registry::Registry,
    relay::{self, ResponseBody},
    session::DoorSession,
    token,
};
use http::{HeaderValue, Method, Request, Response, header, request::Parts};
use hyper::body::Incoming;
use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};
use tokio::{sync::Semaphore, task::JoinHandle};

/// Connections of all sessions together.
const MAX_CONNECTIONS: usize = 8192;
/// The oldest connection without a token is closed once this many newer ones exist: a flood of them
/// only shuts out itself.
const MAX_UNAUTHENTICATED: usize = 512;

struct TokenListener {
    registry: Arc<Registry>,
    connection_slots: Arc<Semaphore>,
    /// The newest connections, oldest first.
    unauthenticated: Mutex<VecDeque<Weak<ConnectionHandle>>>,
}

impl Registry {
    /// Serves this listener until the task is aborted; the token of a request selects its session.
    pub fn serve(self: &Arc<Registry>, listener: DoorListener) -> io::Result<JoinHandle<()>> {
        let connection_slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let unauthenticated = Mutex::default();
        http_server::listen(
            Arc::new(TokenListener {
                registry: self.clone(),
                connection_slots,
                unauthenticated,
            }),
            listener,
        )
    }
}

impl RequestHandler for TokenListener {
    async fn handle(
        self: Arc<Self>,
        handle: Arc<ConnectionHandle>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let (head, body) = request.into_parts();
        // Before authentication: the admin API is never served here, whoever calls.
        if admin::is_admin_path(head.uri.path()) {
            return relay::refusal(None, &relay::no_such_path());
        }
        match self.authenticate(&head) {
            Some(session) if has_room(&session, &handle) => {
                relay::serve(session, handle, Request::from_parts(head, body)).await
            }
            Some(_) => relay::refusal(None, &relay::too_many_connections()),
            None if is_health(&head) => health(),
            None => relay::unauthorized_at(&head),
        }
    }

    fn on_connect(&self, handle: &Arc<ConnectionHandle>) -> bool {
        let mut unauthenticated = self
            .unauthenticated
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        unauthenticated.push_back(Arc::downgrade(handle));
        if unauthenticated.len() > MAX_UNAUTHENTICATED
            && let Some(oldest) = unauthenticated
                .pop_front()
                .and_then(|handle| handle.upgrade())
        {
            oldest.close_if_unauthenticated();
        }
        true
    }

    fn connection_slots(&self) -> &Arc<Semaphore> {
        &self.connection_slots
    }

    fn header_timeout(&self) -> Duration {
        self.registry
            .setup()
            .doors
            .catalogue()
            .limits
            .header_timeout
    }
}

impl TokenListener {
    /// The first credential decides. A missing one is looked up like a wrong one, in the same time.
    fn authenticate(&self, head: &Parts) -> Option<Arc<DoorSession>> {
        self.registry.find(
            token::presented_credentials(head)
                .next()
                .unwrap_or_default(),
        )
    }
}

/// One session must not take all connections.
fn has_room(session: &DoorSession, handle: &ConnectionHandle) -> bool {
    let most = session.doors.catalogue().limits.max_connections;
    handle.is_in(&session.connections) || session.connections.count() < most
}

fn is_health(head: &Parts) -> bool {
    matches!(head.uri.path(), "/health" | "/v1/health" | "/healthz")
        && (head.method == Method::GET || head.method == Method::HEAD)
}

/// Liveness only, no details.
fn health() -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::full("{\"status\":\"ok\"}"));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
