//! Webhook client: posts one message to a URL that a tenant named. A literal address is checked
//! before anything is resolved; a name is resolved once, every address is checked, and only a
//! checked address is dialled (SSRF protection). Redirects are not followed.

use crate::{
    egress::{DialError, Dialer, Internet},
    tls,
    upstream::{HttpConnection, MaybeTlsStream},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri,
    header::{CONNECTION, HOST, USER_AGENT},
};
use http_body_util::Full;
use rustls::pki_types::ServerName;
use spec::{Destination, Host, address};
use std::{fmt, path::PathBuf, time::Duration};
use tokio_rustls::TlsConnector;

/// Timeout of a whole delivery: resolution, connection, TLS, request and response head.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest URL.
pub const MAX_URL_BYTES: usize = 2048;

/// Where webhooks may be sent.
#[derive(Clone, Debug, Default)]
pub struct WebhookClientSettings {
    /// Allows private addresses and this machine. Metadata services are never allowed.
    pub allow_private: bool,
    /// Allows http://.
    pub allow_plain_http: bool,
    /// The operator's own hosts, which may have private addresses; at this port, or at the default
    /// port of the scheme.
    pub hosts: Vec<(Host, Option<u16>)>,
    /// CA certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
}

/// Delivers webhooks.
#[derive(Debug)]
pub struct WebhookClient {
    settings: WebhookClientSettings,
    dialer: Dialer,
}

/// A validated URL whose name has not been resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookTarget {
    to: Destination,
    encrypted: bool,
    authority: String,
    target: String,
    allows_private: bool,
}

/// Why a URL is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidWebhookUrl {
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// Why a delivery failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryError {
    /// The target is not allowed; a retry is useless.
    Refused(String),
    /// A retry may succeed.
    Failed(String),
}

impl fmt::Display for DeliveryError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (DeliveryError::Refused(why) | DeliveryError::Failed(why)) = self;
        out.write_str(why)
    }
}

impl WebhookClient {
    /// A client with these settings.
    pub fn new(settings: WebhookClientSettings, internet: Internet) -> WebhookClient {
        WebhookClient {
            settings,
            dialer: Dialer::new(internet),
        }
    }

    /// Validates a URL without resolving its name: a DNS query is already a message.
    pub fn check(&self, url: &str) -> Result<WebhookTarget, InvalidWebhookUrl> {
        let bad = |why: &str, hint: &str| InvalidWebhookUrl {
            message: format!("the address cannot be used: {why}"),
            hint: hint.to_owned(),
        };
        let form = "write https://HOST/PATH, in ASCII, without a user and without `#`";
        let plain = url.bytes().all(|byte| byte.is_ascii_graphic());
        if url.len() > MAX_URL_BYTES || !plain || url.contains('#') {
            return Err(bad("it is too long, or has what no address has", form));
        }
        let uri: Uri = url.parse().map_err(|_| bad("it is no URL", form))?;
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if self.settings.allow_plain_http => false,
            Some("http") => {
                let hint =
                    "use https://, or let the operator set allow_plain_http under [webhooks]";
                return Err(bad("http:// is readable for everybody on the way", hint));
            }
            _ => return Err(bad("it does not begin with https://", form)),
        };
        let authority = uri
            .authority()
            .filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(|| bad("it names no host, or a user", form))?;
        let host: Host = authority
            .host()
            .parse()
            .map_err(|error| bad(&format!("{error}"), "name a host by its name"))?;
        let usual = if encrypted { 443 } else { 80 };
        // An invalid port number looks like no port.
        let says_port = authority.as_str().len() > authority.host().len();
        let port = match (authority.port_u16(), says_port, encrypted) {
            (Some(0), ..) | (None, true, _) => return Err(bad("its port is none", form)),
            (Some(port), ..) => port,
            (None, false, _) => usual,
        };
        let is_own = |(own, at): &(Host, Option<u16>)| *own == host && at.unwrap_or(usual) == port;
        let allows_private = self.settings.allow_private || self.settings.hosts.iter().any(is_own);
        check_literal_host(&host, allows_private).map_err(|why| {
            bad(
                &why,
                "use a public address, or let the operator list HOST:PORT under [webhooks] hosts",
            )
        })?;
        let target = uri
            .path_and_query()
            .map_or("/", |target| target.as_str())
            .to_owned();
        let authority = authority.as_str().to_owned();
        Ok(WebhookTarget {
            to: Destination { host, port },
            encrypted,
            authority,
            target,
            allows_private,
        })
    }

    /// Posts a message of a tenant's and returns the response status; the response body is not read.
    pub async fn deliver(
        &self,
        tenant: &str,
        receiver: &WebhookTarget,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<u16, DeliveryError> {
        let sent =
            tokio::time::timeout(DELIVERY_TIMEOUT, self.post(tenant, receiver, headers, body))
                .await;
        sent.unwrap_or_else(|_| {
            Err(failed(format!(
                "no answer came within {} s",
                DELIVERY_TIMEOUT.as_secs()
            )))
        })
    }

    async fn post(
        &self,
        tenant: &str,
        to: &WebhookTarget,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<u16, DeliveryError> {
        let dialled = self
            .dialer
            .dial_for(Some(tenant), &to.to, to.allows_private)
            .await;
        let (stream, _) = dialled.map_err(|dial_error| match dial_error {
            DialError::Refused(_) => DeliveryError::Refused(private(&to.to.host)),
            DialError::Failed(why) => failed(format!("{}: {why}", to.to)),
        })?;
        let io = if to.encrypted {
            MaybeTlsStream::Tls(Box::new(self.secure(stream, &to.to.host).await?))
        } else {
            MaybeTlsStream::Plain(stream)
        };
        let lost = || failed("the connection broke before there was an answer".to_owned());
        let mut connection = HttpConnection::new(io).await.map_err(|_| lost())?;
        let answer = connection
            .send(request(to, headers, body)?)
            .await
            .map_err(|_| lost())?;
        // Only the status matters; the connection is dropped.
        Ok(answer.status().as_u16())
    }

    async fn secure(
        &self,
        stream: tokio::net::TcpStream,
        host: &Host,
    ) -> Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>, DeliveryError> {
        let config = tls::client_config(self.settings.ca.as_deref())
            .map_err(|error| failed(format!("no certificate can be checked: {error}")))?;
        let name = match host {
            Host::Name(name) => ServerName::try_from(name.trim_end_matches('.').to_owned()),
            Host::Address(address) => Ok(ServerName::from(*address)),
        };
        let name =
            name.map_err(|_| failed(format!("{host} is no name that a certificate can have")))?;
        let secured = TlsConnector::from(config).connect(name, stream).await;
        secured.map_err(|error| failed(format!("TLS with {host} failed: {error}")))
    }
}

fn request(
    to: &WebhookTarget,
    mut headers: HeaderMap,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, DeliveryError> {
    let unfit = |_| DeliveryError::Refused("the address cannot stand in a request".to_owned());
    headers.insert(
        HOST,
        HeaderValue::try_from(&to.authority).map_err(|error| unfit(error.into()))?,
    );
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("airlock/", env!("CARGO_PKG_VERSION"))),
    );
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(&to.target)
        .body(Full::new(body))
        .map_err(unfit)?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Checks a host without resolving it. The resolved address is checked later.
fn check_literal_host(host: &Host, allows_private: bool) -> Result<(), String> {
    let is_bad = match host {
        Host::Name(name) => address::is_metadata_name(name),
        Host::Address(found) => {
            address::is_metadata(*found) || !(allows_private || address::is_public(*found))
        }
    };
    if is_bad { Err(private(host)) } else { Ok(()) }
}

fn private(host: &Host) -> String {
    format!("{host} is at a private, loopback, link-local or reserved address")
}

fn failed(why: String) -> DeliveryError {
    DeliveryError::Failed(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(settings: WebhookClientSettings) -> WebhookClient {
        WebhookClient::new(settings, Internet::default())
    }

    #[test]
    fn what_an_address_says_is_looked_at_before_anything_is_asked() {
        let strict = client(WebhookClientSettings::default());
        let found = strict.check("https://hooks.example:8443/a?b=c").unwrap();
        assert_eq!(
            (found.to.port, found.target.as_str(), found.encrypted),
            (8443, "/a?b=c", true)
        );
        assert_eq!(strict.check("https://hooks.example").unwrap().target, "/");
        for bad in [
            "",
            "hooks.example",
            "ftp://hooks.example/",
            "http://hooks.example/",
            "https://user@hooks.example/",
            "https://hooks.example/#part",
            "https://hooks.example/ä",
            "https://hooks.example/a b",
            "https://hooks.example:0/",
            "https://hooks.example:99999/",
            "https://127.0.0.1/",
            "https://0x7f.1/",
            "https://2130706433/",
            "https://[::1]/",
            "https://[::ffff:10.0.0.1]/",
            "https://169.254.169.254/",
            "https://metadata.google.internal/",
            "https:///path",
            "unix:/run/docker.sock",
        ] {
            assert!(strict.check(bad).is_err(), "{bad}");
        }
        assert!(
            strict
                .check(&format!(
                    "https://hooks.example/{}",
                    "x".repeat(MAX_URL_BYTES)
                ))
                .is_err()
        );
    }

    #[test]
    fn what_the_operator_allows_is_allowed_and_a_metadata_service_never_is() {
        let open = client(WebhookClientSettings {
            allow_private: true,
            allow_plain_http: true,
            ..Default::default()
        });
        assert!(open.check("http://127.0.0.1:9/x").is_ok());
        assert!(open.check("http://169.254.169.254/latest").is_err());
        let [one, two] = ["10.0.0.7", "10.0.0.9"].map(|host| host.parse().unwrap());
        let hosts = vec![(one, None), (two, Some(8443))];
        let listed = client(WebhookClientSettings {
            hosts,
            allow_plain_http: true,
            ..Default::default()
        });
        for good in [
            "https://10.0.0.7/x",
            "https://10.0.0.7:443/x",
            "http://10.0.0.7/x",
            "https://10.0.0.9:8443/x",
        ] {
            assert!(listed.check(good).is_ok(), "{good}");
        }
        for bad in [
            "https://10.0.0.8/x",
            "https://10.0.0.7:22/x",
            "https://10.0.0.7:80/x",
            "https://10.0.0.9/x",
            "https://10.0.0.9:8444/x",
        ] {
            assert!(listed.check(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_this_machine_is_not_dialled() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!(
            "http://localhost:{}/",
            listener.local_addr().unwrap().port()
        );
        let strict = client(WebhookClientSettings {
            allow_plain_http: true,
            ..Default::default()
        });
        let receiver = strict.check(&url).unwrap();
        let refused = strict
            .deliver("tenant", &receiver, HeaderMap::new(), Bytes::new())
            .await;
        assert!(
            matches!(refused, Err(DeliveryError::Refused(_))),
            "{refused:?}"
        );
        assert!(listener.accept().is_err(), "nobody came");
    }
}
