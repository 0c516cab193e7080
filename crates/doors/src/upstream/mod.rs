//! Connections to a model provider: address checks, TLS, and the pool of idle connections.

mod http_connection;
mod maybe_tls_stream;

pub(crate) use http_connection::{HttpConnection, ResponseChunk, SendError};
pub(crate) use maybe_tls_stream::MaybeTlsStream;

use crate::{
    catalogue::Provider,
    dialect::Dialect,
    scrub::CredentialPatterns,
    secret::{BadSecret, Secret},
    tls,
};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT_ENCODING, AUTHORIZATION, HOST, USER_AGENT},
    uri::Scheme,
};
use rustls::{ClientConfig, pki_types::ServerName};
use spec::address;
use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

/// Idle connections that are kept.
const MAX_IDLE: usize = 64;
/// Providers close idle connections after about a minute; stay below that.
const MAX_IDLE_TIME: Duration = Duration::from_secs(50);

/// A provider, ready to be called.
pub(crate) struct Upstream {
    pub(crate) provider: Arc<Provider>,
    /// Headers of every request, including the credential.
    headers: HeaderMap,
    /// Finds the credential in responses.
    patterns: Option<CredentialPatterns>,
    /// Path prefix: empty, or with a leading and without a trailing slash.
    prefix: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    host: String,
    port: u16,
    idle: Mutex<Vec<IdleConnection>>,
}

/// An idle connection, reserved for the tenant that used it: a provider that sends one response too
/// many would otherwise give it to another tenant.
struct IdleConnection {
    tenant: String,
    connection: HttpConnection,
}

/// Why a provider cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// Its base URL is invalid.
    #[error("the address of the provider `{provider}` cannot be used: {why}")]
    Base {
        /// Name of the provider.
        provider: String,
        /// What is wrong.
        why: &'static str,
    },
    /// Its credential cannot be sent.
    #[error("the credential of the provider `{provider}` cannot be used: {source}")]
    Key {
        /// Name of the provider.
        provider: String,
        /// The cause.
        source: BadSecret,
    },
    /// The CA certificates cannot be loaded.
    #[error("cannot set up TLS for the provider `{provider}`")]
    Tls {
        /// Name of the provider.
        provider: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why there is no connection. The program is told only the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectError {
    /// The name does not resolve to an allowed address.
    Address,
    Refused,
    Tls,
    TimedOut,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Upstream({})", self.provider.name)
    }
}

impl Upstream {
    /// Prepares headers and TLS. Nothing is dialled.
    pub(crate) fn new(
        provider: Arc<Provider>,
        key: Option<Secret>,
    ) -> Result<Upstream, UpstreamError> {
        let name = provider.name.clone();
        let bad = |why| UpstreamError::Base {
            provider: name.clone(),
            why,
        };
        let base = &provider.base;
        let plain = match base.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => false,
            Some(scheme) if *scheme == Scheme::HTTP && provider.allow_plain_http => true,
            _ => {
                return Err(bad(
                    "it must begin with https:// (or http:// with allow_plain_http)",
                ));
            }
        };
        let authority = base.authority().ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') || base.query().is_some() {
            return Err(bad("it must be a plain address without user and query"));
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let port = base.port_u16().unwrap_or(if plain { 80 } else { 443 });
        let tls = if plain {
            None
        } else {
            let config =
                tls::client_config(provider.ca.as_deref()).map_err(|error| UpstreamError::Tls {
                    provider: name.clone(),
                    source: error.into(),
                })?;
            let server =
                ServerName::try_from(host.clone()).map_err(|_| bad("its host is not a name"))?;
            Some((config, server))
        };
        let mut headers = HeaderMap::new();
        let host_header =
            HeaderValue::from_str(authority.as_str()).map_err(|_| bad("its host is not a name"))?;
        headers.insert(HOST, host_header);
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("airlock/", env!("CARGO_PKG_VERSION"))),
        );
        let patterns = key
            .map(|key| insert_credential(&provider, key, &mut headers))
            .transpose()?;
        // Base URLs are written with and without the version that our paths start with.
        let prefix = base
            .path()
            .trim_end_matches('/')
            .trim_end_matches("/v1")
            .to_owned();
        let idle = Mutex::default();
        Ok(Upstream {
            provider,
            headers,
            patterns,
            prefix,
            tls,
            host,
            port,
            idle,
        })
    }

    /// Headers of every request.
    pub(crate) fn headers(&self) -> HeaderMap {
        self.headers.clone()
    }

    /// The upstream path of a target.
    pub(crate) fn path(&self, target: &str) -> String {
        format!("{}{target}", self.prefix)
    }

    /// What must be redacted in responses.
    pub(crate) fn patterns(&self) -> Option<&CredentialPatterns> {
        self.patterns.as_ref()
    }

    /// An idle connection of this tenant, or a new one. The flag says that it was idle: it may have
    /// died unnoticed.
    pub(crate) async fn connect(
        &self,
        tenant: &str,
    ) -> Result<(HttpConnection, bool), ConnectError> {
        while let Some(mut connection) = self.take_idle(tenant) {
            if connection.is_ready().await {
                return Ok((connection, true));
            }
        }
        let dialled = timeout(self.provider.timeouts.connect, self.dial()).await;
        Ok((dialled.map_err(|_| ConnectError::TimedOut)??, false))
    }

    /// Keeps a connection whose response was read to its end, for the same tenant.
    pub(crate) fn keep_idle(&self, mut connection: HttpConnection, tenant: &str) {
        connection.idle_since = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // Evicts the oldest, so that connections of inactive tenants do not fill the pool.
        if idle.len() == MAX_IDLE {
            idle.remove(0);
        }
        idle.push(IdleConnection {
            tenant: tenant.to_owned(),
            connection,
        });
    }

    /// The most recently used: the others may then age out.
    fn take_idle(&self, tenant: &str) -> Option<HttpConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|idle_connection| {
            idle_connection.connection.idle_since.elapsed() < MAX_IDLE_TIME
        });
        let last = idle
            .iter()
            .rposition(|idle_connection| idle_connection.tenant == tenant)?;
        Some(idle.remove(last).connection)
    }

    /// Resolves the name once and dials an allowed address.
    async fn dial(&self) -> Result<HttpConnection, ConnectError> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port));
        let found = found.await.map_err(|_| ConnectError::Address)?;
        let allowed: Vec<SocketAddr> = found.filter(|address| self.may_dial(address)).collect();
        let mut failed = ConnectError::Address;
        for address in allowed {
            match TcpStream::connect(address).await {
                Ok(stream) => return self.secure(stream).await,
                Err(_) => failed = ConnectError::Refused,
            }
        }
        Err(failed)
    }

    /// Decides on the address, not the name: a name may resolve to the metadata service.
    fn may_dial(&self, address: &SocketAddr) -> bool {
        let ip = address.ip();
        !address::is_metadata(ip) && (self.provider.allow_private || address::is_public(ip))
    }

    async fn secure(&self, stream: TcpStream) -> Result<HttpConnection, ConnectError> {
        // Without TCP_NODELAY the small writes of a request wait for delayed acknowledgements.
        stream
            .set_nodelay(true)
            .map_err(|_| ConnectError::Refused)?;
        let io = match &self.tls {
            None => MaybeTlsStream::Plain(stream),
            Some((config, server)) => {
                let secured = TlsConnector::from(config.clone())
                    .connect(server.clone(), stream)
                    .await;
                MaybeTlsStream::Tls(Box::new(secured.map_err(|_| ConnectError::Tls)?))
            }
        };
        HttpConnection::new(io)
            .await
            .map_err(|_| ConnectError::Refused)
    }
}

fn insert_credential(
    provider: &Provider,
    key: Secret,
    headers: &mut HeaderMap,
) -> Result<CredentialPatterns, UpstreamError> {
    let bad = |source| UpstreamError::Key {
        provider: provider.name.clone(),
        source,
    };
    key.check_header().map_err(bad)?;
    let (name, before): (HeaderName, &[u8]) = match provider.dialect {
        Dialect::OpenAi | Dialect::Ollama => (AUTHORIZATION, b"Bearer "),
        Dialect::Anthropic => (HeaderName::from_static("x-api-key"), b""),
        Dialect::Gemini => (HeaderName::from_static("x-goog-api-key"), b""),
    };
    let value = zeroize::Zeroizing::new([before, key.expose()].concat());
    let mut value = HeaderValue::from_bytes(&value).map_err(|_| bad(BadSecret::NotHeader))?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(CredentialPatterns::new(&key))
}
