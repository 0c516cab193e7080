//! Connections to a provider: where they may lead, how they are secured, and which are kept for the next call.

mod io;
mod wire;

pub(crate) use io::Io;
pub(crate) use wire::{NoAnswer, Piece, Wire};

use crate::{
    catalogue::Provider,
    dialect::Dialect,
    scrub::Reflection,
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

/// Connections that wait for the next call, at most.
const MOST_IDLE: usize = 64;
/// Providers hang up after a minute or so; a connection is not kept up to that.
const LONGEST_IDLE: Duration = Duration::from_secs(50);

/// A provider, ready to be called.
pub(crate) struct Upstream {
    pub(crate) provider: Arc<Provider>,
    /// The headers of every request, the credential among them.
    headers: HeaderMap,
    /// Finds the credential in what comes back.
    reflection: Option<Reflection>,
    /// Before every path: empty, or begins with a slash and does not end with one.
    prefix: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    host: String,
    port: u16,
    idle: Mutex<Vec<Wire>>,
}

/// Why a provider cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// Its address is no URL we can use.
    #[error("the address of the provider `{provider}` cannot be used: {why}")]
    Base {
        /// Which provider.
        provider: String,
        /// Why.
        why: &'static str,
    },
    /// Its credential cannot be sent.
    #[error("the credential of the provider `{provider}` cannot be used: {source}")]
    Key {
        /// Which provider.
        provider: String,
        /// Why.
        source: BadSecret,
    },
    /// Its certificates cannot be checked.
    #[error("cannot set up TLS for the provider `{provider}`")]
    Tls {
        /// Which provider.
        provider: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why there is no connection. The program is told the kind and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoConnection {
    /// The name leads nowhere, or nowhere that is allowed.
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
    /// Puts the credential into place. Nothing is dialled.
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
        let tls = match plain {
            true => None,
            false => {
                let config = tls::client_config(provider.ca.as_deref()).map_err(|error| {
                    UpstreamError::Tls {
                        provider: name.clone(),
                        source: error.into(),
                    }
                })?;
                let server = ServerName::try_from(host.clone())
                    .map_err(|_| bad("its host is not a name"))?;
                Some((config, server))
            }
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
        let reflection = key
            .map(|key| credential(&provider, key, &mut headers))
            .transpose()?;
        // Both ways of writing it are common: with and without the version that our paths begin with.
        let prefix = base
            .path()
            .trim_end_matches('/')
            .trim_end_matches("/v1")
            .to_owned();
        let idle = Mutex::default();
        Ok(Upstream {
            provider,
            headers,
            reflection,
            prefix,
            tls,
            host,
            port,
            idle,
        })
    }

    /// The headers of every request.
    pub(crate) fn headers(&self) -> HeaderMap {
        self.headers.clone()
    }

    /// The path of a request.
    pub(crate) fn path(&self, target: &str) -> String {
        format!("{}{target}", self.prefix)
    }

    /// What must never come back.
    pub(crate) fn reflection(&self) -> Option<&Reflection> {
        self.reflection.as_ref()
    }

    /// A connection that was kept, or a new one. The flag says which: a kept one may have died unnoticed.
    pub(crate) async fn connect(&self) -> Result<(Wire, bool), NoConnection> {
        while let Some(mut wire) = self.take_idle() {
            if wire.is_ready().await {
                return Ok((wire, true));
            }
        }
        let dialled = timeout(self.provider.patience.connect, self.dial()).await;
        Ok((dialled.map_err(|_| NoConnection::TimedOut)??, false))
    }

    /// Keeps a connection whose answer has been read to its end.
    pub(crate) fn keep(&self, mut wire: Wire) {
        wire.idle_since = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(wire);
        }
    }

    /// The one used last: the others may then grow old and go.
    fn take_idle(&self) -> Option<Wire> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let wire = idle.pop()?;
        match wire.idle_since.elapsed() < LONGEST_IDLE {
            true => Some(wire),
            // Those below are older still.
            false => {
                idle.clear();
                None
            }
        }
    }

    /// Resolves once, looks at every address, dials one that was looked at.
    async fn dial(&self) -> Result<Wire, NoConnection> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port));
        let found = found.await.map_err(|_| NoConnection::Address)?;
        let allowed: Vec<SocketAddr> = found.filter(|address| self.may_dial(address)).collect();
        let mut failed = NoConnection::Address;
        for address in allowed {
            match TcpStream::connect(address).await {
                Ok(stream) => return self.secure(stream).await,
                Err(_) => failed = NoConnection::Refused,
            }
        }
        Err(failed)
    }

    /// Decides on the address, not the name: a name may lead to the metadata service.
    fn may_dial(&self, address: &SocketAddr) -> bool {
        let ip = address.ip();
        !address::is_metadata(ip) && (self.provider.allow_private || address::is_public(ip))
    }

    async fn secure(&self, stream: TcpStream) -> Result<Wire, NoConnection> {
        // Without it the small writes of a request wait for acknowledgements that wait for them.
        stream
            .set_nodelay(true)
            .map_err(|_| NoConnection::Refused)?;
        let io = match &self.tls {
            None => Io::Plain(stream),
            Some((config, server)) => {
                let secured = TlsConnector::from(config.clone())
                    .connect(server.clone(), stream)
                    .await;
                Io::Tls(Box::new(secured.map_err(|_| NoConnection::Tls)?))
            }
        };
        Wire::new(io).await.map_err(|_| NoConnection::Refused)
    }
}

fn credential(
    provider: &Provider,
    key: Secret,
    headers: &mut HeaderMap,
) -> Result<Reflection, UpstreamError> {
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
    Ok(Reflection::new(&key))
}
