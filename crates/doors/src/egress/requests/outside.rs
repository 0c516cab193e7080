//! Connections to servers: dialled by what was looked at, encrypted and verified unless the program came unencrypted, and
//! kept for the next request of the same client.

use super::exchange::Upload;
use crate::{
    egress::{Egress, credential::Ready, dial::NoWay},
    tls,
    upstream::{Io, Wire},
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

/// For TLS, once the connection stands.
const TLS_TIME: Duration = Duration::from_secs(10);

/// Pushes whose lists of refs are held back at the same time.
pub(super) const MOST_PUSHES: usize = 8;

/// What the requests of a door share: how servers are verified, and room for what is held back.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(super) pushes: Arc<Semaphore>,
    ca: Option<PathBuf>,
    config: OnceLock<Arc<ClientConfig>>,
}

/// What a connection is for. Two requests share one only if all of it is the same.
#[derive(Clone, Debug)]
pub(super) struct Purpose {
    pub(super) to: Destination,
    pub(super) secure: bool,
    pub(super) may_be_private: bool,
    pub(super) credential: Option<Arc<Ready>>,
}

/// A connection that stands.
pub(super) struct Link {
    pub(super) wire: Wire<Upload>,
    pub(super) address: SocketAddr,
    pub(super) purpose: Purpose,
}

/// The connection of the last request, for the next one.
#[derive(Default)]
pub(super) struct Kept(Mutex<Option<Link>>);

impl Outside {
    pub(crate) fn new(ca: Option<PathBuf>) -> Outside {
        Outside {
            pushes: Arc::new(Semaphore::new(MOST_PUSHES)),
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

    async fn secure(&self, host: &Host, stream: TcpStream) -> Result<Io, &'static str> {
        let name = match host {
            Host::Name(name) => {
                ServerName::try_from(name.clone()).map_err(|_| "no server has such a name")?
            }
            Host::Address(address) => ServerName::from(*address),
        };
        let config = self
            .config()
            .map_err(|_| "the certificates that count here cannot be read")?;
        match timeout(TLS_TIME, TlsConnector::from(config).connect(name, stream)).await {
            Ok(Ok(secured)) => Ok(Io::Tls(Box::new(secured))),
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

impl Purpose {
    fn is(&self, other: &Purpose) -> bool {
        let same_credential = match (&self.credential, &other.credential) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        same_credential
            && (&self.to, self.secure, self.may_be_private)
                == (&other.to, other.secure, other.may_be_private)
    }
}

impl Kept {
    pub(super) fn keep(&self, link: Link) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
    }

    /// The one that was kept, if it is for the same and still lives.
    pub(super) async fn take(&self, purpose: &Purpose) -> Option<Link> {
        let mut link = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        // Also one on which a server said more than it was asked for is gone.
        (link.purpose.is(purpose) && link.wire.is_ready().await).then_some(link)
    }
}

/// A new connection.
pub(super) async fn dial(egress: &Egress, purpose: Purpose) -> Result<Link, NoWay> {
    let (stream, address) = egress
        .dialler
        .dial(&purpose.to, purpose.may_be_private)
        .await?;
    let io = match purpose.secure {
        false => Io::Plain(stream),
        true => egress
            .outside
            .secure(&purpose.to.host, stream)
            .await
            .map_err(NoWay::Failed)?,
    };
    let wire = Wire::new(io)
        .await
        .map_err(|_| NoWay::Failed("the server hung up"))?;
    Ok(Link {
        wire,
        address,
        purpose,
    })
}
