//! Middleware of every request: checks `Host` and `Origin` (DNS rebinding, cross-origin pages),
//! authenticates the API key, checks the scope and writes the audit entry. After the response it
//! writes the access log, metrics and trace.

use crate::{
    Caller, Gateway, Problem, Scope,
    audit::RequestAudit,
    connections::ActiveRequest,
    key_watch::KeyWatch,
    log::{self, Level, LogFields, LogLine},
    request_slots::RequestSlot,
    trace::{self, SpanContext},
};
use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderValue, StatusCode, Uri,
    header::{AUTHORIZATION, CONNECTION, HOST, ORIGIN, WWW_AUTHENTICATE},
};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

/// Routes that need no API key.
const PUBLIC_ROUTES: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];
const HEALTH: &str = "/healthz";
pub(crate) const UNMATCHED: &str = "unmatched";

/// Addresses of a connection; none for a unix socket, which no browser can reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) addresses: Option<(SocketAddr, SocketAddr)>,
}

impl ConnectionInfo {
    fn local(self) -> Option<SocketAddr> {
        self.addresses.map(|(local, _)| local)
    }
}

/// The active request of a connection, and its slot. Released by the last holder: a WebSocket
/// outlives its request.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionUse(
    pub(crate) Arc<ActiveRequest>,
    #[allow(dead_code, reason = "held")] pub(crate) Option<RequestSlot>,
);

/// Checks a request, runs its handler, and records the result.
pub(crate) async fn handle(
    State(gateway): State<Gateway>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let started_us = engine::now_us();
    let span_context = gateway.tracer().start_span(request.headers());
    let method = request.method().clone();
    let is_worker_api = crate::node::is_worker_path(request.uri().path());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or(UNMATCHED, MatchedPath::as_str);
    let authenticated = authenticate(&gateway, &request, route)
        .and_then(|caller| mark_connection(&request, caller));
    let caller = authenticated.as_ref().ok().cloned().flatten();
    let take_slot = |caller: Option<Caller>| match caller {
        Some(caller) => gateway
            .request_slots()
            .take(&caller.tenant, &method, route)
            .map(|slot| Some((caller, slot))),
        None => Ok(None),
    };
    let mut audit = RequestAudit::of(&request, route, caller.as_ref());
    // The scope is checked before the body is read.
    let check_scope = |caller: Option<Caller>| match (&caller, required_scope(route)) {
        (Some(asking), Some(scope)) => asking.require(scope).map(|()| caller),
        _ => Ok(caller),
    };
    let passed = match authenticated.and_then(check_scope).and_then(take_slot) {
        Ok(Some((caller, slot))) => {
            let target = (route, request.uri().path());
            audit
                .record_allowed(&gateway, &caller, target)
                .await
                .map(|()| Some((caller, slot)))
        }
        other => other,
    };
    let mut response = match passed {
        Ok(Some((caller, slot))) => {
            if let Some(connection_use) = request.extensions_mut().get_mut::<ConnectionUse>() {
                connection_use.1 = Some(slot.clone());
            }
            let validity = caller.validity.clone();
            request.extensions_mut().insert(caller);
            if let Some(span_context) = &span_context {
                request.extensions_mut().insert(span_context.clone());
            }
            slot.hold(respond_while_valid(validity, next.run(request)).await)
        }
        Ok(None) => next.run(request).await,
        Err(problem) => refused(problem),
    };
    audit.record_refusal(&gateway, caller.as_ref(), &response);
    if is_worker_api {
        response = crate::node::with_worker_error_type(response);
    }
    gateway.metrics().request(&method, route, response.status());
    let summary = RequestSummary {
        method: method.as_str(),
        route,
        caller: caller.as_ref(),
        span_context: span_context.as_ref(),
    };
    // Unauthenticated requests do not fill the span queue.
    if let (Some(span_context), Some(_)) = (&span_context, &caller) {
        let ended_us = started_us + started.elapsed().as_micros() as u64;
        summary.trace(
            &gateway,
            span_context,
            response.status(),
            (started_us, ended_us),
        );
        if let Ok(value) = HeaderValue::try_from(span_context.traceparent()) {
            response.headers_mut().insert("traceresponse", value);
        }
    }
    if caller.is_none() {
        // Connections of unauthenticated requests are closed.
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if !gateway.quiet() && log::is_enabled(Level::Info) {
        summary.log(response.status(), started.elapsed().as_secs_f64() * 1000.0);
    }
    response
}

/// What is logged of a request: the route template instead of the path, and the key's id instead of
/// its token.
struct RequestSummary<'a> {
    method: &'a str,
    route: &'a str,
    caller: Option<&'a Caller>,
    span_context: Option<&'a SpanContext>,
}

impl RequestSummary<'_> {
    fn log(&self, status: StatusCode, ms: f64) {
        let of = |part: fn(&Caller) -> &str| self.caller.map_or("", part).to_owned();
        let key = of(|caller| &caller.key);
        let fields = LogFields {
            status: status.as_u16().to_string(),
            ms: Some(ms),
            key: if key.is_empty() { "-".to_owned() } else { key },
            tenant: of(|caller| &caller.tenant),
            trace: self
                .span_context
                .map(SpanContext::trace)
                .unwrap_or_default(),
            ..LogFields::default()
        };
        let about = format!("{} {}", self.method, self.route);
        log::write(LogLine::new(Level::Info, "request", about, fields));
    }

    fn trace(
        &self,
        gateway: &Gateway,
        span_context: &SpanContext,
        status: StatusCode,
        time: trace::TimeRange,
    ) {
        let mut attributes = vec![
            trace::text("http.request.method", self.method),
            trace::text("http.route", self.route),
            trace::number("http.response.status_code", i64::from(status.as_u16())),
        ];
        if let Some(caller) = self.caller {
            attributes.extend([
                trace::text("airlock.tenant", &caller.tenant),
                trace::text("airlock.key", &caller.key),
            ]);
        }
        let name = format!("{} {}", self.method, self.route);
        gateway.tracer().record_request(
            span_context,
            &name,
            time,
            status.is_server_error(),
            attributes,
        );
    }
}

/// The response, or 401 if the key ends before it is there. The body ends with the key, too.
async fn respond_while_valid(
    validity: KeyWatch,
    answer: impl Future<Output = Response>,
) -> Response {
    tokio::select! {
        biased;
        response = answer => validity.guard_response(response),
        () = validity.clone().expired() => refused(unauthorized(INVALID_KEY)),
    }
}

fn refused(problem: Problem) -> Response<Body> {
    let unauthorized = problem.status() == StatusCode::UNAUTHORIZED;
    let mut response = problem.into_response();
    if unauthorized {
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Authenticates a request; `None` for routes that need no key.
fn authenticate(
    gateway: &Gateway,
    request: &Request,
    route: &str,
) -> Result<Option<Caller>, Problem> {
    let connection = request.extensions().get::<ConnectionInfo>().copied();
    let connection = connection.unwrap_or(ConnectionInfo { addresses: None });
    let allowed_hosts = AllowedHosts {
        local: connection.local(),
        extra: gateway.hosts(),
    };
    check_size(request)?;
    allowed_hosts.check(request.headers(), request.uri())?;
    let token = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| bearer(value.as_bytes()));
    match token {
        // Liveness does not depend on the database.
        _ if route == HEALTH => Ok(None),
        Some(token) => match gateway.keys().authenticate(token)? {
            Some(caller) => Ok(Some(caller)),
            None => Err(unauthorized(INVALID_KEY)),
        },
        None if PUBLIC_ROUTES.contains(&route) => Ok(None),
        None => Err(unauthorized("a key is needed")),
    }
}

/// Records the tenant of the connection. Reserved connections serve only admins.
fn mark_connection(request: &Request, caller: Option<Caller>) -> Result<Option<Caller>, Problem> {
    let Some(ConnectionUse(active_request, _)) = request.extensions().get::<ConnectionUse>() else {
        return Ok(caller);
    };
    if let Some(caller) = &caller {
        active_request.set_tenant(&caller.tenant);
    }
    if active_request.is_reserved && !caller.as_ref().is_some_and(Caller::is_admin) {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "quota_exceeded",
            "too many connections are open",
            Some("close one, or try later".to_owned()),
        )
        .with_retry_after(1));
    }
    Ok(caller)
}

/// The scope that a route requires; its handler may require more.
fn required_scope(route: &str) -> Option<Scope> {
    let under = |start: &str| {
        route
            .strip_prefix(start)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    [
        ("/v1/runs", Scope::Runs),
        ("/v1/jobs", Scope::Runs),
        ("/v1/worker/admin", Scope::Admin),
        ("/v1/worker/capability", Scope::Admin),
        ("/v1/worker/sessions", Scope::Sandboxes),
        ("/v1/worker", Scope::Runs),
        ("/v1/workflow", Scope::Runs),
        ("/v1/sandboxes", Scope::Sandboxes),
        ("/v1/workspaces", Scope::Sandboxes),
        ("/v1/artifacts", Scope::Artifacts),
        ("/v1/images", Scope::Images),
        ("/v1/usage", Scope::Usage),
        ("/v1/audit", Scope::Usage),
        ("/v1/keys", Scope::Admin),
    ]
    .into_iter()
    .find_map(|(start, scope)| under(start).then_some(scope))
}

const INVALID_KEY: &str = "this key is not known, has expired or was revoked";

fn unauthorized(what: &str) -> Problem {
    let hint = "send `Authorization: Bearer TOKEN`; an admin makes keys at /v1/keys or with `airlock key create`";
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        what,
        Some(hint.to_owned()),
    )
}

/// Checks the header size: the HTTP parser accepts slightly more than its limit.
fn check_size(request: &Request) -> Result<(), Problem> {
    let target = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    let lines = request
        .headers()
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4);
    if target + lines.sum::<usize>() <= crate::server::MAX_HEADER_BYTES {
        Ok(())
    } else {
        Err(Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "quota_exceeded",
            "the headers are too large",
            Some("send at most 32 KiB of them".to_owned()),
        ))
    }
}

/// The token after `Bearer `.
fn bearer(value: &[u8]) -> Option<&str> {
    let (word, rest) = value.split_at_checked(7)?;
    let token = word
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| rest.trim_ascii())?;
    std::str::from_utf8(token).ok()
}

/// The names in `Host` and `Origin` that are this server.
struct AllowedHosts<'a> {
    /// Local address of the connection; none for a unix socket.
    local: Option<SocketAddr>,
    /// Configured names, with a port or for every port.
    extra: &'a [String],
}

impl AllowedHosts<'_> {
    fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
        let host_headers = headers
            .get_all(HOST)
            .iter()
            .map(|host| host.to_str().unwrap_or_default());
        let written = uri.authority().map(|authority| authority.as_str());
        let mut hosts: Vec<_> = host_headers.chain(written).collect();
        hosts.dedup();
        let is_for_us = match hosts.as_slice() {
            [one] => self.local.is_none() || self.is_own(one),
            _ => false,
        };
        if !is_for_us {
            return Err(forbidden(
                "this server is not called that",
                "address it as localhost or by its address and port, or add the name to `hosts` under [serve]",
            ));
        }
        for origin in headers.get_all(ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            let authority = origin
                .strip_prefix("http://")
                .or_else(|| origin.strip_prefix("https://"));
            if !authority.is_some_and(|authority| self.is_own(authority)) {
                return Err(forbidden(
                    "pages of other origins may not call this server",
                    BROWSER_HINT,
                ));
            }
        }
        // Browsers set this header for requests that another site's page made.
        let sites = headers.get_all("sec-fetch-site");
        if sites
            .iter()
            .all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"))
        {
            Ok(())
        } else {
            Err(forbidden(
                "pages of other sites may not call this server",
                BROWSER_HINT,
            ))
        }
    }

    /// Whether the authority is this server. An IP address is safe from DNS rebinding; a name is
    /// accepted only if it is configured.
    fn is_own(&self, authority: &str) -> bool {
        let (host, port) = split_authority(authority);
        let named = self.extra.iter().any(|name| {
            let (known, its_port) = split_authority(name);
            known.eq_ignore_ascii_case(host) && its_port.is_none_or(|its| port == Some(its))
        });
        let Some(local) = self.local else {
            return named;
        };
        let default = matches!(local.port(), 80 | 443) && port.is_none();
        let here = host.eq_ignore_ascii_case("localhost")
            || host
                .trim_matches(['[', ']'])
                .parse::<IpAddr>()
                .is_ok_and(|ip| {
                    let ip = ip.to_canonical();
                    ip.is_loopback() || ip == local.ip().to_canonical()
                });
        named || (here && (default || port == Some(local.port())))
    }
}

const BROWSER_HINT: &str =
    "call it from a program, or add the page's host to `hosts` under [serve]";

fn forbidden(what: &str, hint: &str) -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        what,
        Some(hint.to_owned()),
    )
}

/// Splits host and port; an invalid port yields an empty host, which matches nothing.
fn split_authority(authority: &str) -> (&str, Option<u16>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            match port.parse().ok().filter(|_| digits) {
                Some(port) => (host, Some(port)),
                None => ("", None),
            }
        }
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &str)], uri: &str) -> bool {
        let extra = ["box.example".to_owned(), "other.example:8443".to_owned()];
        let allowed_hosts = AllowedHosts {
            local: Some("127.0.0.1:7070".parse().unwrap()),
            extra: &extra,
        };
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        allowed_hosts.check(&headers, &uri.parse().unwrap()).is_ok()
    }

    #[test]
    fn only_our_own_names_with_our_port_are_ours() {
        for host in [
            "localhost:7070",
            "LOCALHOST:7070",
            "127.0.0.1:7070",
            "[::1]:7070",
            "127.9.9.9:7070",
        ] {
            assert!(check(&[("host", host)], "/"), "{host}");
        }
        for host in ["box.example", "box.example:1", "other.example:8443"] {
            assert!(check(&[("host", host)], "/"), "{host}");
        }
        let strangers = [
            "evil.example:7070",
            "localhost",
            "localhost:80",
            "127.0.0.1",
            "10.0.0.1:7070",
            "",
        ];
        for host in strangers.into_iter().chain([
            "localhost:7070.evil",
            "other.example:1",
            "localhost:x",
            "127.0.0.1:+7070",
        ]) {
            assert!(!check(&[("host", host)], "/"), "{host}");
        }
        assert!(!check(&[], "/"), "somebody must be meant");
        assert!(!check(
            &[("host", "localhost:7070")],
            "http://evil.example/"
        ));
        assert!(check(
            &[("host", "localhost:7070")],
            "http://localhost:7070/"
        ));
    }

    #[test]
    fn pages_of_others_are_refused_and_our_own_are_not() {
        let with = |name, value| check(&[("host", "localhost:7070"), (name, value)], "/");
        assert!(with("origin", "http://localhost:7070") && with("origin", "https://box.example"));
        for origin in [
            "null",
            "http://localhost:3000",
            "http://evil.example",
            "file://",
            "localhost:7070",
        ] {
            assert!(!with("origin", origin), "{origin}");
        }
        assert!(with("sec-fetch-site", "same-origin") && with("sec-fetch-site", "none"));
        assert!(!with("sec-fetch-site", "cross-site") && !with("sec-fetch-site", "same-site"));
    }

    #[test]
    fn a_bearer_is_found_in_any_case() {
        assert_eq!(bearer(b"bEaReR  x "), Some("x"));
        assert_eq!(bearer(b"Basic x"), None);
        assert_eq!(bearer(b"Bear"), None);
    }
}
