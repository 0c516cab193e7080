//! Requests that are looked at one by one: at the proxy, to port 80, and inside TLS that ends here.

use super::{Egress, answer, answer::Body};
use crate::line::Line;
use http::{Request, Response};
use hyper::body::Incoming;
use spec::Destination;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// Where the requests of a connection may go.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// Wherever each of them says: a proxy.
    Proxy,
    /// To this destination and no other.
    To {
        /// The destination.
        to: Destination,
        /// Whether it came encrypted, and so must go on encrypted.
        secure: bool,
    },
}

/// The requests of one connection.
pub(crate) struct Conversation {
    egress: Arc<Egress>,
    line: Arc<Line>,
    scope: Scope,
}

impl Conversation {
    pub(crate) fn new(egress: Arc<Egress>, line: Arc<Line>, scope: Scope) -> Conversation {
        Conversation { egress, line, scope }
    }

    /// The answer to one request.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let _ = (&self.egress, &self.line, &self.scope, request);
        answer::bad("not built")
    }
}

/// Serves requests until the connection ends.
pub(crate) async fn serve<S>(egress: Arc<Egress>, line: Arc<Line>, io: S, scope: Scope)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let _ = (egress, line, io, scope);
}
