//! Accepts connections within the limit, with optional TLS, and serves HTTP/1.1 until idle or
//! shutdown.

use crate::{
    Gateway,
    connections::{ConnectionSlot, Connections},
    held_body::{fits_one_slice, hold_until_sent},
    middleware::{ConnectionInfo, ConnectionUse},
    write_timeout::{TrackedBody, UnreadFlag, WriteTimeoutStream},
};
use axum::{Router, body::Body};
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// Maximum size and number of request headers.
pub(crate) const MAX_HEADER_BYTES: usize = 32 << 10;
const MAX_HEADERS: usize = 100;
/// TLS handshake timeout.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, such as on file descriptor exhaustion.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

const BUSY_RESPONSE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 149\r\n\r\n{\"type\":\"urn:airlock:quota_exceeded\",\"status\":503,\"title\":\"too many \
connections are open\",\"detail\":\"close one, or try later\",\"code\":\"quota_exceeded\"}";

/// The listening socket.
#[derive(Debug)]
pub enum HttpListener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

/// The TLS configuration of the server.
#[derive(Clone)]
pub struct ServerTls(TlsAcceptor);

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Tls(..)")
    }
}

/// Why the TLS certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    /// A file cannot be read.
    #[error("cannot read `{0}`: {1}")]
    File(String, rustls::pki_types::pem::Error),
    /// Certificate and key are invalid or do not match.
    #[error("the certificate and its key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

impl ServerTls {
    /// Loads a certificate chain and its key, both PEM.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<ServerTls, ServerTlsError> {
        let failed = |path: &Path, error| ServerTlsError::File(path.display().to_string(), error);
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| failed(certificate, error))?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(ServerTls(TlsAcceptor::from(Arc::new(config))))
    }
}

/// Serves until `stop` is set; then lets connections finish within the grace period.
pub(crate) async fn serve(
    gateway: &Gateway,
    listener: HttpListener,
    tls: Option<ServerTls>,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) {
    let router = crate::router(gateway);
    let slots = Connections::new(gateway.bounds().connections);
    let mut connections = JoinSet::new();
    let spec::ServerLimits {
        header_timeout,
        write_timeout,
        ..
    } = *gateway.bounds();
    let context = ConnectionContext {
        router,
        header_timeout,
        write_timeout,
        stop: stop.clone(),
    };
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                crate::log_warning(format_args!("airlock: cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                continue;
            }
        };
        let Some(slot) = slots.admit(accepted.peer()) else {
            accepted.reject(tls.is_some());
            continue;
        };
        let context = context.clone();
        let tls = tls.clone();
        connections.spawn(async move {
            tokio::select! {
                () = slot.closed() => {}
                () = context.handle(accepted, tls, slot.clone()) => {}
            }
        });
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, finished).await.is_err() {
        connections.shutdown().await;
    }
}

enum AcceptedStream {
    Tcp(TcpStream, SocketAddr),
    Unix(tokio::net::UnixStream),
}

impl AcceptedStream {
    fn peer(&self) -> Option<IpAddr> {
        match self {
            AcceptedStream::Tcp(_, peer) => Some(peer.ip()),
            AcceptedStream::Unix(_) => None,
        }
    }

    /// Answers 503 without waiting for the client.
    fn reject(self, encrypted: bool) {
        // A client that does not read the answer sees the connection close.
        _ = match self {
            AcceptedStream::Tcp(stream, _) if !encrypted => stream.try_write(BUSY_RESPONSE),
            AcceptedStream::Unix(stream) => stream.try_write(BUSY_RESPONSE),
            AcceptedStream::Tcp(..) => Ok(0),
        };
    }
}

async fn accept(listener: &HttpListener) -> io::Result<AcceptedStream> {
    match listener {
        HttpListener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            // Responses are small and must not wait for Nagle's algorithm.
            _ = stream.set_nodelay(true);
            Ok(AcceptedStream::Tcp(stream, peer))
        }
        HttpListener::Unix(listener) => Ok(AcceptedStream::Unix(listener.accept().await?.0)),
    }
}

/// What each connection needs.
#[derive(Clone)]
struct ConnectionContext {
    router: Router,
    header_timeout: Duration,
    write_timeout: Duration,
    stop: watch::Receiver<bool>,
}

impl ConnectionContext {
    async fn handle(
        self,
        accepted: AcceptedStream,
        tls: Option<ServerTls>,
        slot: Arc<ConnectionSlot>,
    ) {
        match (accepted, tls) {
            (AcceptedStream::Unix(stream), _) => {
                self.serve(stream, ConnectionInfo { addresses: None }, slot)
                    .await
            }
            (AcceptedStream::Tcp(stream, peer), tls) => {
                let Ok(local) = stream.local_addr() else {
                    return;
                };
                let connection = ConnectionInfo {
                    addresses: Some((local, peer)),
                };
                match tls {
                    None => self.serve(stream, connection, slot).await,
                    Some(ServerTls(acceptor)) => {
                        let handshake =
                            tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
                        // After a failed handshake no answer can be sent.
                        if let Ok(Ok(stream)) = handshake {
                            self.serve(stream, connection, slot).await;
                        }
                    }
                }
            }
        }
    }

    async fn serve(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        connection: ConnectionInfo,
        slot: Arc<ConnectionSlot>,
    ) {
        let unread = UnreadFlag::default();
        let router = self.router;
        let stream = WriteTimeoutStream::new(stream, self.write_timeout, unread.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(connection);
            let busy = Arc::new(slot.begin());
            request
                .extensions_mut()
                .insert(ConnectionUse(busy.clone(), None));
            let mut router = router.clone();
            let request = request.map(|body| Body::new(TrackedBody::new(body, &unread)));
            async move {
                let response: Response<Body> =
                    tower_service::Service::call(&mut router, request).await?;
                // A connection counts as active while it sends.
                Ok::<_, Infallible>(if fits_one_slice(response.body()) {
                    response
                } else {
                    response.map(|body| hold_until_sent(body, busy))
                })
            }
        });
        let http = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_timeout)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        tokio::pin!(http);
        tokio::select! {
            // Connection errors are not logged: they are the client's.
            _ = http.as_mut() => return,
            _ = self.stop.wait_for(|stop| *stop) => http.as_mut().graceful_shutdown(),
        }
        _ = http.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_a_full_server_is_as_long_as_it_says() {
        let text = std::str::from_utf8(BUSY_RESPONSE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{}",
            body.len()
        );
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
