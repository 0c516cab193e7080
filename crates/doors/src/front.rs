//! The door of a service for whoever has a token: one listener for all sessions. The token decides whose call it is.

use crate::{
    admin,
    line::Line,
    registry::Registry,
    relay::{self, Outgoing},
    serve::{self, Answers, Listener},
    session::Session,
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
const MOST_CONNECTIONS: usize = 8192;
/// A connection on which nobody has shown a token is hung up on when so many came after it: whoever opens them by the
/// thousand shuts out only those like himself.
const MOST_STRANGERS: usize = 512;

struct Front {
    registry: Arc<Registry>,
    connections: Arc<Semaphore>,
    /// The last to come, oldest first.
    latest: Mutex<VecDeque<Weak<Line>>>,
}

impl Registry {
    /// Serves whoever calls at this listener as the session whose token they have, until the task is ended.
    pub fn serve(self: &Arc<Registry>, listener: Listener) -> io::Result<JoinHandle<()>> {
        let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let latest = Mutex::default();
        serve::listen(
            Arc::new(Front {
                registry: self.clone(),
                connections,
                latest,
            }),
            listener,
        )
    }
}

impl Answers for Front {
    async fn answer(
        self: Arc<Self>,
        line: Arc<Line>,
        request: Request<Incoming>,
    ) -> Response<Outgoing> {
        let (head, body) = request.into_parts();
        // Before anybody is asked for a token: who looks for it here is at the wrong door, whoever it is.
        if admin::is_admins(head.uri.path()) {
            return relay::refusal(None, &relay::no_such_path());
        }
        match self.whose(&head) {
            Some(session) if has_room(&session, &line) => {
                relay::serve(session, line, Request::from_parts(head, body)).await
            }
            Some(_) => relay::refusal(None, &relay::too_many_connections()),
            None if is_health(&head) => health(),
            None => relay::unauthorized_at(&head),
        }
    }

    fn arrived(&self, line: &Arc<Line>) -> bool {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.push_back(Arc::downgrade(line));
        if latest.len() > MOST_STRANGERS
            && let Some(oldest) = latest.pop_front().and_then(|line| line.upgrade())
        {
            oldest.cut_if_strange();
        }
        true
    }

    fn connections(&self) -> &Arc<Semaphore> {
        &self.connections
    }

    fn head_time(&self) -> Duration {
        self.registry.setup().doors.catalogue().bounds.header_time
    }
}

impl Front {
    /// The first credential decides; none is like a wrong one, and looked for as long.
    fn whose(&self, head: &Parts) -> Option<Arc<Session>> {
        self.registry
            .find(token::presented(head).next().unwrap_or_default())
    }
}

/// One session cannot take all connections from the others.
fn has_room(session: &Session, line: &Line) -> bool {
    let most = session.doors.catalogue().bounds.connections;
    line.serves(&session.crowd) || session.crowd.count() < most
}

fn is_health(head: &Parts) -> bool {
    matches!(head.uri.path(), "/health" | "/v1/health" | "/healthz")
        && (head.method == Method::GET || head.method == Method::HEAD)
}

/// That somebody is there, and nothing else.
fn health() -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::whole("{\"status\":\"ok\"}"));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
