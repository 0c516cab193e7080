//! Determines the destination of a request. Request line, Host header and connection must agree.

use super::RequestScope;
use http::{HeaderMap, StatusCode, Uri, Version, header::HOST, request::Parts};
use spec::{BadHost, Destination};

/// The destination of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestTarget {
    /// The door itself.
    Door,
    /// Another host; whether with TLS.
    At(Destination, bool),
}

/// The destination is ambiguous or not allowed here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadTarget {
    pub(super) status: StatusCode,
    pub(super) reason: String,
}

fn bad_target(status: StatusCode, reason: impl Into<String>) -> BadTarget {
    BadTarget {
        status,
        reason: reason.into(),
    }
}

/// Determines the destination of a request.
pub(super) fn resolve_target(
    scope: &RequestScope,
    head: &Parts,
) -> Result<RequestTarget, BadTarget> {
    match scope {
        RequestScope::Proxy if head.uri.scheme().is_none() && head.uri.authority().is_none() => {
            Ok(RequestTarget::Door)
        }
        RequestScope::Proxy => {
            let to = absolute(&head.uri)?;
            check_host(&head.headers, head.version, &to)?;
            Ok(RequestTarget::At(to, false))
        }
        RequestScope::To { to, secure } => {
            if let Some(scheme) = head.uri.scheme_str() {
                let same = scheme == if *secure { "https" } else { "http" };
                let named = authority(&head.uri, to.port)?;
                if !same || named != *to {
                    return Err(misdirected(to, &format!("{scheme}://{named}")));
                }
            } else if head.uri.authority().is_some() {
                return Err(bad_target(
                    StatusCode::BAD_REQUEST,
                    "that method has no place here",
                ));
            }
            check_host(&head.headers, head.version, to)?;
            Ok(RequestTarget::At(to.clone(), *secure))
        }
    }
}

/// The absolute form `http://HOST[:PORT]/…` of proxy requests.
fn absolute(uri: &Uri) -> Result<Destination, BadTarget> {
    match uri.scheme_str() {
        Some("http") => authority(uri, 80),
        Some("https") => Err(bad_target(
            StatusCode::FORBIDDEN,
            "https:// is asked for by CONNECT HOST:PORT, so that the encryption is between you and the server",
        )),
        _ => Err(bad_target(
            StatusCode::BAD_REQUEST,
            "only http:// can be asked for in this way",
        )),
    }
}

fn authority(uri: &Uri, port: u16) -> Result<Destination, BadTarget> {
    let text = uri
        .authority()
        .map(http::uri::Authority::as_str)
        .unwrap_or_default();
    // User information before the host is rejected, even where the host parser would do so.
    if text.contains('@') {
        return Err(bad_target(
            StatusCode::BAD_REQUEST,
            "there is a user before the host: name it in a header",
        ));
    }
    destination(text, port).map_err(|bad| bad_target(StatusCode::BAD_REQUEST, bad.to_string()))
}

/// Parses `HOST` or `HOST:PORT`.
fn destination(text: &str, port: u16) -> Result<Destination, BadHost> {
    let has_port = text
        .rfind(':')
        .is_some_and(|colon| !text[colon..].contains(']'));
    if has_port {
        text.parse()
    } else {
        Ok(Destination {
            host: text.parse()?,
            port,
        })
    }
}

/// The Host header must name the destination exactly once: a server behind a load balancer goes by
/// it.
fn check_host(headers: &HeaderMap, version: Version, to: &Destination) -> Result<(), BadTarget> {
    let mut named = headers.get_all(HOST).iter();
    match (named.next(), named.next()) {
        (None, _) if version == Version::HTTP_10 => Ok(()),
        (Some(one), None) => {
            let text = one.to_str().unwrap_or_default();
            match destination(text, to.port) {
                Ok(named) if named == *to => Ok(()),
                _ => Err(misdirected(to, text)),
            }
        }
        _ => Err(bad_target(
            StatusCode::BAD_REQUEST,
            "a request names its host exactly once",
        )),
    }
}

fn misdirected(to: &Destination, named: &str) -> BadTarget {
    let named: String = named.chars().take(200).collect();
    bad_target(
        StatusCode::MISDIRECTED_REQUEST,
        format!(
            "the connection is to {to} and the request to `{}`",
            named.escape_debug()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn aimed(scope: &RequestScope, target: &str, hosts: &[&str]) -> Result<RequestTarget, u16> {
        let mut request = Request::builder().uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        resolve_target(scope, &request.body(()).unwrap().into_parts().0)
            .map_err(|bad_target| bad_target.status.as_u16())
    }

    #[test]
    fn a_proxy_goes_where_the_first_line_says_if_the_header_agrees() {
        let at = |text: &str| Ok(RequestTarget::At(text.parse().unwrap(), false));
        let aimed = |target: &str, hosts: &[&str]| aimed(&RequestScope::Proxy, target, hosts);
        assert_eq!(aimed("http://A.com./x", &["a.com"]), at("a.com:80"));
        assert_eq!(
            aimed("http://a.com:8080/x", &["a.com:8080"]),
            at("a.com:8080")
        );
        assert_eq!(aimed("http://[::1]/x", &["[::1]"]), at("[::1]:80"));
        assert_eq!(aimed("http://0x7f.1/x", &["127.0.0.1"]), at("127.0.0.1:80"));
        assert_eq!(aimed("/v1/rules", &["door:3128"]), Ok(RequestTarget::Door));
        for (target, hosts, status) in [
            ("http://a.com/x", &["b.com"] as &[&str], 421),
            ("http://a.com/x", &["a.com:81"], 421),
            ("http://a.com/x", &["a.com", "a.com"], 400),
            ("http://a.com/x", &[], 400),
            ("http://b@a.com/x", &["a.com"], 400),
            ("https://a.com/x", &["a.com"], 403),
            ("ftp://a.com/x", &["a.com"], 400),
        ] {
            assert_eq!(aimed(target, hosts), Err(status), "{target} {hosts:?}");
        }
    }

    #[test]
    fn a_connection_to_one_host_has_requests_to_that_host_only() {
        let scope = RequestScope::To {
            to: "a.com:443".parse().unwrap(),
            secure: true,
        };
        let at = Ok(RequestTarget::At("a.com:443".parse().unwrap(), true));
        for (target, host) in [
            ("/x", "a.com"),
            ("/x", "A.COM.:443"),
            ("https://a.com/x", "a.com"),
            ("//b.com/x", "a.com"),
        ] {
            assert_eq!(aimed(&scope, target, &[host]), at, "{target} {host}");
        }
        for (target, host) in [
            ("/x", "b.com"),
            ("/x", "a.com:80"),
            ("/x", "a.com@b.com"),
            ("/x", ""),
            ("https://b.com/x", "a.com"),
            ("http://a.com/x", "a.com"),
            ("https://a.com:444/x", "a.com"),
        ] {
            assert_eq!(aimed(&scope, target, &[host]), Err(421), "{target} {host}");
        }
        assert_eq!(aimed(&scope, "/x", &["a.com", "b.com"]), Err(400));
    }
}
