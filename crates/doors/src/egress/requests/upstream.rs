//! Connections to servers: dialled to checked addresses, with verified TLS unless the program came
//! without TLS, and kept for the next request of the same client.

use super::exchange::Upload;
use crate::{
    egress::{Egress, credential::ResolvedCredential, dial::DialError},
    tls,
    upstream::{HttpConnection, MaybeTlsStream},
};
use rustls::{ClientConfig, pki_types::ServerName};
use spec::{Destination, Host};
use std::{
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};
use tokio_rustls::TlsConnector;

/// Timeout of the TLS handshake.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// Concurrent pushes whose ref lists are held back.
pub(super) const MAX_PUSHES: usize = 8;

/// State that all requests of a door share: TLS verification, and memory for held pushes.
#[derive(Debug)]
pub(crate) struct UpstreamSettings {
    pub(super) pushes: Arc<Semaphore>,
    ca: Option<PathBuf>,
    config: OnceLock<Arc<ClientConfig>>,
}

/// What a connection may be used for. Two requests share one only if all fields are equal.
#[derive(Clone, Debug)]
pub(super) struct ConnectionKey {
    pub(super) to: Destination,
    pub(super) secure: bool,
    pub(super) allows_private: bool,
    pub(super) credential: Option<Arc<ResolvedCredential>>,
}

/// An open connection.
pub(super) struct UpstreamConnection {
    pub(super) connection: HttpConnection<Upload>,
    pub(super) address: SocketAddr,
    pub(super) connection_key: ConnectionKey,
}

/// The idle connection of the last request.
#[derive(Default)]
pub(super) struct IdleSlot(Mutex<Option<UpstreamConnection>>);

impl UpstreamSettings {
    pub(crate) fn new(ca: Option<PathBuf>) -> UpstreamSettings {
        UpstreamSettings {
            pushes: Arc::new(Semaphore::new(MAX_PUSHES)),
            ca,
            config: OnceLock::new(),
        }
    }

    fn config(&self) -> Result<Arc<ClientConfig>, tls::TlsError> {
        match self.config.get() {
            Some(known) => Ok(known.clone()),
            None => {
                let config = tls::client_config(self.ca.as_deref())?;
                Ok(self.config.get_or_init(|| config).clone())
            }
        }
    }

    async fn secure(&self, host: &Host, stream: TcpStream) -> Result<MaybeTlsStream, &'static str> {
        let name = match host {
            Host::Name(name) => {
                ServerName::try_from(name.clone()).map_err(|_| "no server has such a name")?
            }
            Host::Address(address) => ServerName::from(*address),
        };
        let config = self
            .config()
            .map_err(|_| "the certificates that count here cannot be read")?;
        match timeout(
            TLS_TIMEOUT,
            TlsConnector::from(config).connect(name, stream),
        )
        .await
        {
            Ok(Ok(secured)) => Ok(MaybeTlsStream::Tls(Box::new(secured))),
            Ok(Err(error)) => Err(why(&error)),
            Err(_) => Err("the server does not answer in TLS"),
        }
    }
}

fn why(error: &io::Error) -> &'static str {
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(_)) => {
            "the server's certificate is not one of that host, or of nobody who is trusted; nothing was sent"
        }
        _ => "the server and the door could not agree on TLS",
    }
}

impl ConnectionKey {
    fn is(&self, other: &ConnectionKey) -> bool {
        let same_credential = match (&self.credential, &other.credential) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        same_credential
            && (&self.to, self.secure, self.allows_private)
                == (&other.to, other.secure, other.allows_private)
    }
}

impl IdleSlot {
    pub(super) fn keep(&self, upstream_connection: UpstreamConnection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(upstream_connection);
    }

    /// The idle connection, if its key matches and it is alive.
    pub(super) async fn take(&self, connection_key: &ConnectionKey) -> Option<UpstreamConnection> {
        let mut upstream_connection = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        // A server that sent unrequested bytes has broken the connection, too.
        (upstream_connection.connection_key.is(connection_key)
            && upstream_connection.connection.is_ready().await)
            .then_some(upstream_connection)
    }
}

/// Opens a new connection.
pub(super) async fn dial(
    egress: &Egress,
    connection_key: ConnectionKey,
) -> Result<UpstreamConnection, DialError> {
    let (stream, address) = egress
        .dialer
        .dial(&connection_key.to, connection_key.allows_private)
        .await?;
    let io = if connection_key.secure {
        egress
            .upstream
            .secure(&connection_key.to.host, stream)
            .await
            .map_err(DialError::Failed)?
    } else {
        MaybeTlsStream::Plain(stream)
    };
    let connection = HttpConnection::new(io)
        .await
        .map_err(|_| DialError::Failed("the server hung up"))?;
    Ok(UpstreamConnection {
        connection,
        address,
        connection_key,
    })
}
