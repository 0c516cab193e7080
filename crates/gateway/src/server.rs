//! Connections: accepted within a bound, with TLS if there is a certificate, each served until it is idle or the server ends.

use crate::{
    Gateway,
    gate::{Connection, Place},
    patience::{Patient, Unread, Watched},
};
use axum::{Router, body::Body};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::{io, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// The most that the headers of a request may take, and their number.
pub(crate) const HEADER_BYTES: usize = 32 << 10;
const MOST_HEADERS: usize = 100;
/// How long a handshake may take.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(10);
/// Between two tries to accept, when the machine has run out of something.
const PAUSE: Duration = Duration::from_millis(50);

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
connection: close\r\ncontent-length: 149\r\n\r\n{\"type\":\"urn:airlock:quota_exceeded\",\"status\":503,\"title\":\"too many \
connections are open\",\"detail\":\"close one, or try later\",\"code\":\"quota_exceeded\"}";

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

/// What connections are encrypted with.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Tls(..)")
    }
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file.
    #[error("cannot read `{0}`: {1}")]
    File(String, rustls::pki_types::pem::Error),
    /// What is in them.
    #[error("the certificate and its key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

impl Tls {
    /// From a chain of certificates and the key of the first, both PEM.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        let failed = |path: &Path, error| TlsError::File(path.display().to_string(), error);
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
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }
}

/// Accepts and serves until it is told to stop; then lets connections finish what they do, for this long.
pub(crate) async fn serve(
    gateway: &Gateway,
    listener: Listener,
    tls: Option<Tls>,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) {
    let router = crate::router(gateway);
    let room = Arc::new(Semaphore::new(gateway.bounds().connections));
    let mut connections = JoinSet::new();
    let spec::Bounds {
        header_time,
        write_time,
        ..
    } = *gateway.bounds();
    let context = Context {
        router,
        header_time,
        write_time,
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
                crate::say(format_args!("airlock: cannot accept a connection: {error}"));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            accepted.turn_away(tls.is_some());
            continue;
        };
        let (context, tls) = (context.clone(), tls.clone());
        connections.spawn(context.attend(accepted, tls, Place(Arc::new(permit), None)));
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, finished).await.is_err() {
        connections.shutdown().await;
    }
}

enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(tokio::net::UnixStream),
}

impl Accepted {
    /// Names the bound, without waiting for anybody.
    fn turn_away(self, encrypted: bool) {
        // Whoever does not read it sees the connection close.
        _ = match self {
            Accepted::Tcp(stream, _) if !encrypted => stream.try_write(BUSY),
            Accepted::Unix(stream) => stream.try_write(BUSY),
            Accepted::Tcp(..) => Ok(0),
        };
    }
}

async fn accept(listener: &Listener) -> io::Result<Accepted> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            // Answers are small and go out at once.
            _ = stream.set_nodelay(true);
            Ok(Accepted::Tcp(stream, peer))
        }
        Listener::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0)),
    }
}

/// What every connection needs.
#[derive(Clone)]
struct Context {
    router: Router,
    header_time: Duration,
    write_time: Duration,
    stop: watch::Receiver<bool>,
}

impl Context {
    async fn attend(self, accepted: Accepted, tls: Option<Tls>, place: Place) {
        match (accepted, tls) {
            (Accepted::Unix(stream), _) => {
                self.serve(stream, Connection { addresses: None }, place)
                    .await
            }
            (Accepted::Tcp(stream, peer), tls) => {
                let Ok(local) = stream.local_addr() else {
                    return;
                };
                let connection = Connection {
                    addresses: Some((local, peer)),
                };
                match tls {
                    None => self.serve(stream, connection, place).await,
                    Some(Tls(acceptor)) => {
                        let shaken =
                            tokio::time::timeout(LONGEST_HANDSHAKE, acceptor.accept(stream)).await;
                        // Who cannot shake hands cannot be answered either.
                        if let Ok(Ok(stream)) = shaken {
                            self.serve(stream, connection, place).await;
                        }
                    }
                }
            }
        }
    }

    async fn serve(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        connection: Connection,
        place: Place,
    ) {
        let unread = Unread::default();
        let (router, stream) = (
            self.router,
            Patient::new(stream, self.write_time, unread.clone()),
        );
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(connection);
            request.extensions_mut().insert(place.clone());
            let mut router = router.clone();
            let request = request.map(|body| Body::new(Watched::new(body, &unread)));
            async move { tower_service::Service::call(&mut router, request).await }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_time)
            .max_headers(MOST_HEADERS)
            .max_buf_size(HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        tokio::pin!(served);
        tokio::select! {
            // A connection that breaks is the client's business.
            _ = served.as_mut() => return,
            _ = self.stop.wait_for(|stop| *stop) => served.as_mut().graceful_shutdown(),
        }
        _ = served.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_a_full_server_is_as_long_as_it_says() {
        let text = std::str::from_utf8(BUSY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{}",
            body.len()
        );
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
