//! HTTP client for one repository of one registry: TLS except on loopback, credentials for this
//! registry only, few redirects, and a timeout on every wait.

use super::{
    auth,
    credentials::Credentials,
    error::PullError,
    timeouts::{AttemptError, RegistryTimeouts, TimedBody},
};
use reqwest::{
    Response, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER},
};
use serde::Deserialize;
use spec::{DEFAULT_REGISTRY, ImageRef};
use std::{
    error::Error,
    io::{self, ErrorKind},
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::timeout;

/// Maximum redirects for one response.
const MAX_REDIRECTS: usize = 5;
/// Maximum bytes read of an error response.
const MAX_REASON_BYTES: u64 = 16 << 10;
/// API host of the default registry.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// Allowed transport to a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TLS; a registry on a loopback address may use plain HTTP.
    Secure,
    /// Plain HTTP, at any address.
    PlainHttp,
}

/// A client for one repository.
pub(super) struct Client {
    pub(super) http: reqwest::Client,
    /// `https://HOST/v2/REPOSITORY/`
    base: Url,
    pub(super) name: ImageRef,
    transport: Transport,
    pub(super) credentials: Option<Credentials>,
    authorization: Mutex<Option<HeaderValue>>,
    pub(super) timeouts: RegistryTimeouts,
}

impl Client {
    /// Determines the transport. Whether the image exists is not checked yet.
    pub(super) async fn connect(
        name: &ImageRef,
        transport: Transport,
        credentials: Option<Credentials>,
        timeouts: RegistryTimeouts,
    ) -> Result<Client, PullError> {
        let http = http(&timeouts)?;
        let base_url = base(name, "https")?;
        let name = name.clone();
        let authorization = Mutex::new(None);
        let mut client = Client {
            http,
            base: base_url,
            name,
            transport,
            credentials,
            authorization,
            timeouts,
        };
        let plain = match transport {
            Transport::PlainHttp => true,
            Transport::Secure => is_loopback(&client.base) && !client.speaks_tls().await,
        };
        if plain {
            client.base = base(&client.name, "http")?;
        }
        Ok(client)
    }

    /// Whether the server speaks TLS. An untrusted certificate counts as TLS: it must never lead to
    /// plain HTTP.
    async fn speaks_tls(&self) -> bool {
        let Ok(Err(error)) =
            timeout(self.timeouts.idle, self.http.get(self.base.clone()).send()).await
        else {
            return true;
        };
        let silent = |error: &io::Error| {
            [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&error.kind())
        };
        !causes(&error).any(|cause| match cause.downcast_ref::<rustls::Error>() {
            Some(tls) => matches!(tls, rustls::Error::InvalidMessage(_)),
            None => cause.downcast_ref::<io::Error>().is_some_and(silent),
        })
    }

    /// URL of a path in the repository.
    pub(super) fn url(&self, path: &str) -> Result<Url, PullError> {
        self.base
            .join(path)
            .map_err(|error| PullError::Unreachable {
                host: self.name.registry().to_owned(),
                why: error.to_string(),
            })
    }

    /// One attempt of a GET request, with authentication if requested, following redirects.
    pub(super) async fn get(
        &self,
        url: &Url,
        headers: &HeaderMap,
        what: &str,
    ) -> Result<Response, AttemptError> {
        let response = self.follow(url, headers, what).await?;
        let response = match response.status() {
            StatusCode::UNAUTHORIZED if self.is_home(response.url()) => {
                let fresh = auth::answer(self, &response, what).await?;
                *self
                    .authorization
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = Some(fresh);
                self.follow(url, headers, what).await?
            }
            _ => response,
        };
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            _ => Err(self.refusal(response, what).await),
        }
    }

    async fn follow(
        &self,
        url: &Url,
        headers: &HeaderMap,
        what: &str,
    ) -> Result<Response, AttemptError> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.http.get(url.clone()).headers(headers.clone());
            // Credentials are sent to the registry only, not to hosts that it redirects to.
            if self.is_home(&url) {
                let known = self
                    .authorization
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                request = known.into_iter().fold(request, |request, value| {
                    request.header(AUTHORIZATION, value)
                });
            }
            let response = self.send(request, &url).await?;
            url = match response.status().as_u16() {
                301 | 302 | 303 | 307 | 308 => self.redirect(&url, &response, what)?,
                _ => return Ok(response),
            };
        }
        Err(self
            .protocol(
                &url,
                what,
                format!("it redirects more than {MAX_REDIRECTS} times"),
            )
            .into())
    }

    /// Sends a request; the response headers must arrive before the timeout.
    pub(super) async fn send(
        &self,
        request: reqwest::RequestBuilder,
        url: &Url,
    ) -> Result<Response, AttemptError> {
        match timeout(self.timeouts.idle, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(unreachable(&error, url)),
            Err(_) => {
                let why = format!("no response within {} s", self.timeouts.idle.as_secs_f32());
                Err(AttemptError::transient(PullError::Unreachable {
                    host: host(url),
                    why,
                }))
            }
        }
    }

    fn redirect(&self, from: &Url, response: &Response, what: &str) -> Result<Url, PullError> {
        let location = response
            .headers()
            .get(LOCATION)
            .and_then(|value| value.to_str().ok());
        let Some(to) = location.and_then(|location| from.join(location).ok()) else {
            return Err(self.protocol(from, what, "its redirect has no valid address"));
        };
        self.check_next(from, &to, what)?;
        Ok(to)
    }

    /// Checks a redirect or token server from `from` to `to`.
    pub(super) fn check_next(&self, from: &Url, to: &Url, what: &str) -> Result<(), PullError> {
        let refused =
            |why: &str| Err(self.protocol(from, what, format!("it leads to {}, {why}", shown(to))));
        let plain_allowed = is_loopback(to) || self.transport == Transport::PlainHttp;
        match to.scheme() {
            _ if !to.username().is_empty() || to.password().is_some() => {
                refused("with credentials in it")
            }
            // Services of this machine trust local clients; a remote server must not use us to
            // reach them.
            _ if is_this_machine(to) && !is_this_machine(&self.base) => {
                refused("which is on this machine")
            }
            "https" => Ok(()),
            "http" if from.scheme() == "http" && plain_allowed => Ok(()),
            "http" => refused("which is plain http"),
            _ => refused("which is not http"),
        }
    }

    fn is_home(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    /// Converts an error response.
    pub(super) async fn refusal(&self, response: Response, what: &str) -> AttemptError {
        let status = response.status();
        let from = response.url().clone();
        let wait = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        let registry = self.name.registry().to_owned();
        let what = what.to_owned();
        let reason = reason(response, &self.timeouts).await;
        match status.as_u16() {
            401 | 403 => PullError::Denied {
                registry,
                what,
                reason,
            }
            .into(),
            404 => PullError::Missing { registry, what }.into(),
            transient @ (408 | 429 | 500 | 502 | 503 | 504) => AttemptError::Transient {
                error: PullError::Status {
                    host: host(&from),
                    status: transient,
                    what,
                    reason,
                },
                wait: wait.map(Duration::from_secs),
            },
            status => PullError::Status {
                host: host(&from),
                status,
                what,
                reason,
            }
            .into(),
        }
    }

    pub(super) fn protocol(&self, from: &Url, what: &str, why: impl Into<String>) -> PullError {
        PullError::Protocol {
            host: host(from),
            what: what.to_owned(),
            why: why.into(),
        }
    }
}

/// An HTTP client without proxies, redirects, retries or referer.
fn http(timeouts: &RegistryTimeouts) -> Result<reqwest::Client, PullError> {
    // Installs the TLS provider; it may be installed already.
    _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .user_agent(concat!("airlock/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(timeouts.connect)
        .referer(false)
        .no_proxy();
    builder.build().map_err(|error| {
        let source = io::Error::other(root_cause(&error));
        PullError::local(
            "prepare TLS with the certificate authorities of this system",
            source,
        )
    })
}

fn base(name: &ImageRef, scheme: &str) -> Result<Url, PullError> {
    let host = match name.registry() {
        DEFAULT_REGISTRY => DOCKER_HUB_HOST,
        other => other,
    };
    let parsed = Url::parse(&format!("{scheme}://{host}/v2/{}/", name.repository()));
    parsed.map_err(|error| PullError::Unreachable {
        host: host.to_owned(),
        why: error.to_string(),
    })
}

/// Whether the address is loopback, by number or by the reserved name `localhost`.
fn is_loopback(url: &Url) -> bool {
    address(url).map_or(url.host_str() == Some("localhost"), |address| {
        address.is_loopback()
    })
}

/// Also includes the unspecified address, which reaches this machine.
fn is_this_machine(url: &Url) -> bool {
    is_loopback(url) || address(url).is_some_and(|address| address.is_unspecified())
}

fn address(url: &Url) -> Option<IpAddr> {
    let host = url
        .host_str()?
        .trim_start_matches('[')
        .trim_end_matches(']');
    host.parse()
        .ok()
        .map(|address: IpAddr| address.to_canonical())
}

/// Host and port, for messages.
pub(super) fn host(url: &Url) -> String {
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    format!("{}{port}", url.host_str().unwrap_or_default())
}

/// The URL without its path and query, which may contain signatures.
fn shown(url: &Url) -> String {
    format!("{}://{}", url.scheme(), host(url))
}

/// The registry's error message as `: MESSAGE`, or nothing.
async fn reason(response: Response, timeouts: &RegistryTimeouts) -> String {
    #[derive(Deserialize)]
    struct Reasons {
        errors: Vec<Reason>,
    }
    #[derive(Deserialize)]
    struct Reason {
        message: String,
    }
    let json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !json {
        return String::new();
    }
    let Ok(bytes) = TimedBody::new(response, timeouts)
        .all(MAX_REASON_BYTES)
        .await
    else {
        return String::new();
    };
    let reasons = serde_json::from_slice(&bytes)
        .map(|Reasons { errors }| errors)
        .unwrap_or_default();
    match reasons.first() {
        Some(reason) => format!(": {}", reason.message.chars().take(200).collect::<String>()),
        None => String::new(),
    }
}

fn unreachable(error: &reqwest::Error, url: &Url) -> AttemptError {
    let host = host(url);
    let why = root_cause(error);
    let tls = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidMessage(_)) => PullError::PlainHttp { host }.into(),
        Some(tls) => PullError::Untrusted {
            host,
            why: tls.to_string(),
        }
        .into(),
        None if error.is_dns() => PullError::Unreachable { host, why }.into(),
        None => AttemptError::transient(PullError::Unreachable { host, why }),
    }
}

/// An error and all its causes, including those wrapped in `io::Error`.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let inside = error
            .downcast_ref::<io::Error>()
            .and_then(|error| error.get_ref());
        inside
            .map(|inside| inside as &(dyn Error + 'static))
            .or_else(|| error.source())
    })
}

/// Message of the root cause: the errors above it add no detail.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    causes(error)
        .last()
        .map(|cause| cause.to_string().chars().take(300).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_by_the_address_however_it_is_written() {
        let url = |host: &str| Url::parse(&format!("http://{host}/")).unwrap();
        for host in [
            "127.0.0.1",
            "127.8.9.1:5000",
            "localhost:1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "0x7f.1",
            "LOCALHOST",
        ] {
            assert!(is_loopback(&url(host)), "{host}");
        }
        for host in [
            "0.0.0.0",
            "128.0.0.1",
            "localhost.example",
            "127.0.0.1.example",
            "[::2]",
            "[::]",
            "[::ffff:1.2.3.4]",
        ] {
            assert!(!is_loopback(&url(host)), "{host}");
        }
        assert!(
            is_this_machine(&url("0.0.0.0"))
                && is_this_machine(&url("[::]"))
                && !is_this_machine(&url("1.2.3.4"))
        );
    }

    #[test]
    fn names_lead_to_the_registry_and_nowhere_else() {
        let of = |name: &str| base(&name.parse().unwrap(), "https").unwrap().to_string();
        assert_eq!(
            of("debian"),
            "https://registry-1.docker.io/v2/library/debian/"
        );
        assert_eq!(of("r.example:5000/a/b"), "https://r.example:5000/v2/a/b/");
    }

    #[tokio::test]
    async fn nobody_leads_us_to_plain_http_or_into_this_machine_from_outside() {
        let client = |transport, scheme| {
            let name: ImageRef = "r.example/x".parse().unwrap();
            let timeouts = RegistryTimeouts::default();
            Client {
                http: http(&timeouts).unwrap(),
                base: base(&name, scheme).unwrap(),
                name,
                transport,
                credentials: None,
                authorization: Mutex::new(None),
                timeouts,
            }
        };
        let may = |client: &Client, to: &str| {
            client
                .check_next(&client.base, &Url::parse(to).unwrap(), "x")
                .map_err(|error| error.to_string())
        };
        let secure = client(Transport::Secure, "https");
        assert_eq!(may(&secure, "https://cdn.example/x?signature=s"), Ok(()));
        let refused = may(&secure, "http://cdn.example/x?signature=s").unwrap_err();
        assert!(
            refused.ends_with("it leads to http://cdn.example, which is plain http"),
            "{refused}"
        );
        let plain = client(Transport::PlainHttp, "http");
        assert_eq!(
            [
                may(&plain, "http://cdn.example"),
                may(&plain, "https://cdn.example")
            ],
            [Ok(()), Ok(())]
        );
        for (client, scheme) in [(&secure, "https"), (&plain, "http")] {
            for host in [
                "127.0.0.1:1",
                "localhost",
                "[::1]",
                "0.0.0.0",
                "[::ffff:127.0.0.1]",
            ] {
                let refused = may(client, &format!("{scheme}://{host}/")).unwrap_err();
                assert!(refused.ends_with("which is on this machine"), "{refused}");
            }
        }
    }
}
