//! One message to an address that a stranger named, such as a webhook's. What an address says is looked at before its name
//! is looked up; the name is looked up once, every address that it leads to is looked at, and one that was looked at is
//! dialled. A redirect is an answer like any other: it is not followed.

use crate::{
    egress::{Dialler, Internet, NoWay},
    tls,
    upstream::{Io, Wire},
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

/// All of one message: names, dialling, TLS, the request and the head of its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest address.
pub const LONGEST_ADDRESS: usize = 2048;

/// Where messages may go.
#[derive(Clone, Debug, Default)]
pub struct CourierSettings {
    /// Also to private addresses and to this machine. Never to a metadata service.
    pub allow_private: bool,
    /// Also without TLS.
    pub allow_plain_http: bool,
    /// Hosts of the operator's own, which may be at private addresses; at this port, or at that of their scheme.
    pub hosts: Vec<(Host, Option<u16>)>,
    /// Certificates to believe receivers by, instead of the system's.
    pub ca: Option<PathBuf>,
}

/// Carries messages.
#[derive(Debug)]
pub struct Courier {
    settings: CourierSettings,
    dialler: Dialler,
}

/// An address that a message may be sent to, as far as can be said without looking its name up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    to: Destination,
    encrypted: bool,
    authority: String,
    target: String,
    may_be_private: bool,
}

/// Why an address is none for messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadReceiver {
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// What became of a message that was not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// It may not go there, now or later.
    Refused(String),
    /// Another time it may arrive.
    Failed(String),
}

impl fmt::Display for Undelivered {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Undelivered::Refused(why) | Undelivered::Failed(why)) = self;
        out.write_str(why)
    }
}

impl Courier {
    /// One that keeps to these settings.
    pub fn new(settings: CourierSettings, internet: Internet) -> Courier {
        Courier {
            settings,
            dialler: Dialler::new(internet),
        }
    }

    /// Whether messages may go to this address. No name is looked up: a question is a message, too.
    pub fn check(&self, url: &str) -> Result<Receiver, BadReceiver> {
        let bad = |why: &str, hint: &str| BadReceiver {
            message: format!("the address cannot be used: {why}"),
            hint: hint.to_owned(),
        };
        let form = "write https://HOST/PATH, in ASCII, without a user and without `#`";
        let plain = url.bytes().all(|byte| byte.is_ascii_graphic());
        if url.len() > LONGEST_ADDRESS || !plain || url.contains('#') {
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
        // What is no number that a port can be is not told from none otherwise.
        let says_port = authority.as_str().len() > authority.host().len();
        let port = match (authority.port_u16(), says_port, encrypted) {
            (Some(0), ..) | (None, true, _) => return Err(bad("its port is none", form)),
            (Some(port), ..) => port,
            (None, false, _) => usual,
        };
        let is_own = |(own, at): &(Host, Option<u16>)| *own == host && at.unwrap_or(usual) == port;
        let may_be_private = self.settings.allow_private || self.settings.hosts.iter().any(is_own);
        refuse_early(&host, may_be_private).map_err(|why| {
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
        Ok(Receiver {
            to: Destination { host, port },
            encrypted,
            authority,
            target,
            may_be_private,
        })
    }

    /// Posts a message. What the receiver answered is not read beyond its status.
    pub async fn deliver(
        &self,
        receiver: &Receiver,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<u16, Undelivered> {
        let sent = tokio::time::timeout(PATIENCE, self.post(receiver, headers, body)).await;
        sent.unwrap_or_else(|_| {
            Err(failed(format!(
                "no answer came within {} s",
                PATIENCE.as_secs()
            )))
        })
    }

    async fn post(
        &self,
        to: &Receiver,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<u16, Undelivered> {
        let dialled = self.dialler.dial(&to.to, to.may_be_private).await;
        let (stream, _) = dialled.map_err(|no_way| match no_way {
            NoWay::Refused(_) => Undelivered::Refused(private(&to.to.host)),
            NoWay::Failed(why) => failed(format!("{}: {why}", to.to)),
        })?;
        let io = match to.encrypted {
            false => Io::Plain(stream),
            true => Io::Tls(Box::new(self.secure(stream, &to.to.host).await?)),
        };
        let lost = || failed("the connection broke before there was an answer".to_owned());
        let mut wire = Wire::new(io).await.map_err(|_| lost())?;
        let answer = wire
            .send(request(to, headers, body)?)
            .await
            .map_err(|_| lost())?;
        // The rest of the answer is nobody's business: the connection ends here.
        Ok(answer.status().as_u16())
    }

    async fn secure(
        &self,
        stream: tokio::net::TcpStream,
        host: &Host,
    ) -> Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>, Undelivered> {
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
    to: &Receiver,
    mut headers: HeaderMap,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, Undelivered> {
    let unfit = |_| Undelivered::Refused("the address cannot stand in a request".to_owned());
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

/// What is known of a host by its word alone. The address that its name leads to decides, later.
fn refuse_early(host: &Host, may_be_private: bool) -> Result<(), String> {
    let is_bad = match host {
        Host::Name(name) => address::is_metadata_name(name),
        Host::Address(found) => {
            address::is_metadata(*found) || !(may_be_private || address::is_public(*found))
        }
    };
    match is_bad {
        true => Err(private(host)),
        false => Ok(()),
    }
}

fn private(host: &Host) -> String {
    format!("{host} is at a private, loopback, link-local or reserved address")
}

fn failed(why: String) -> Undelivered {
    Undelivered::Failed(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn courier(settings: CourierSettings) -> Courier {
        Courier::new(settings, Internet::default())
    }

    #[test]
    fn what_an_address_says_is_looked_at_before_anything_is_asked() {
        let strict = courier(CourierSettings::default());
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
                    "x".repeat(LONGEST_ADDRESS)
                ))
                .is_err()
        );
    }

    #[test]
    fn what_the_operator_allows_is_allowed_and_a_metadata_service_never_is() {
        let open = courier(CourierSettings {
            allow_private: true,
            allow_plain_http: true,
            ..Default::default()
        });
        assert!(open.check("http://127.0.0.1:9/x").is_ok());
        assert!(open.check("http://169.254.169.254/latest").is_err());
        let [one, two] = ["10.0.0.7", "10.0.0.9"].map(|host| host.parse().unwrap());
        let hosts = vec![(one, None), (two, Some(8443))];
        let listed = courier(CourierSettings {
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
        let strict = courier(CourierSettings {
            allow_plain_http: true,
            ..Default::default()
        });
        let receiver = strict.check(&url).unwrap();
        let refused = strict
            .deliver(&receiver, HeaderMap::new(), Bytes::new())
            .await;
        assert!(
            matches!(refused, Err(Undelivered::Refused(_))),
            "{refused:?}"
        );
        assert!(listener.accept().is_err(), "nobody came");
    }
}
