//! What every request passes before anything of it is carried out: is it meant for us (a page in a browser may have been
//! lent our address by DNS), does it come from a page of somebody else's, and who is asking. And what is told of it
//! afterwards: one line, and numbers.

use crate::{
    Caller, Gateway, Problem, Scope,
    audit::Told,
    log::{self, Fields, Level, Line},
    trace::{self, Spot},
    turns::Turn,
    validity::Validity,
};
use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderValue, StatusCode, Uri,
    header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE},
};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};
use tokio::sync::OwnedSemaphorePermit;

/// Asked before anybody can have a key.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];
const HEALTH: &str = "/healthz";
pub(crate) const UNMATCHED: &str = "unmatched";

/// How a connection came; none for a unix socket, which no browser reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) addresses: Option<(SocketAddr, SocketAddr)>,
}

impl Connection {
    fn local(self) -> Option<SocketAddr> {
        self.addresses.map(|(local, _)| local)
    }
}

/// Its place among the connections. It is given back when the last one who holds this is done: a WebSocket goes on after
/// its request.
#[derive(Clone, Debug)]
pub(crate) struct Place(
    #[allow(dead_code, reason = "held")] pub(crate) Arc<OwnedSemaphorePermit>,
    #[allow(dead_code, reason = "held")] pub(crate) Option<Turn>,
);

/// Lets a request in, or says why not; then tells of it.
pub(crate) async fn pass(
    State(gateway): State<Gateway>,
    mut request: Request,
    next: Next,
) -> Response {
    let (begun, begun_us) = (Instant::now(), engine::now_us());
    let spot = gateway.tracer().begin(request.headers());
    let method = request.method().clone();
    let of_the_node = crate::node::is_its_path(request.uri().path());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or(UNMATCHED, MatchedPath::as_str);
    let admitted = admit(&gateway, &request, route);
    let caller = admitted.as_ref().ok().cloned().flatten();
    let turn = |caller: Option<Caller>| match caller {
        Some(caller) => gateway
            .turns()
            .take(&caller.tenant, &method, route)
            .map(|turn| Some((caller, turn))),
        None => Ok(None),
    };
    let mut told = Told::of(&request, route, caller.as_ref());
    // Before anything of the body is read.
    let scope = |caller: Option<Caller>| match (&caller, needed(route)) {
        (Some(asking), Some(scope)) => asking.require(scope).map(|()| caller),
        _ => Ok(caller),
    };
    let passed = match admitted.and_then(scope).and_then(turn) {
        Ok(Some((caller, turn))) => {
            let of = (route, request.uri().path());
            told.allowed(&gateway, &caller, of)
                .await
                .map(|()| Some((caller, turn)))
        }
        other => other,
    };
    let mut response = match passed {
        Ok(Some((caller, turn))) => {
            if let Some(place) = request.extensions_mut().get_mut::<Place>() {
                place.1 = Some(turn.clone());
            }
            let validity = caller.validity.clone();
            request.extensions_mut().insert(caller);
            if let Some(spot) = &spot {
                request.extensions_mut().insert(spot.clone());
            }
            turn.keep(while_good(validity, next.run(request)).await)
        }
        Ok(None) => next.run(request).await,
        Err(problem) => refused(problem),
    };
    told.refused(&gateway, caller.as_ref(), &response);
    if of_the_node {
        response = crate::node::in_its_words(response);
    }
    gateway.metrics().request(&method, route, response.status());
    let seen = Seen {
        method: method.as_str(),
        route,
        caller: caller.as_ref(),
        spot: spot.as_ref(),
    };
    // Whoever has no key does not fill the queue of those who have.
    if let (Some(spot), Some(_)) = (&spot, &caller) {
        seen.trace(
            &gateway,
            spot,
            response.status(),
            (begun_us, begun_us + begun.elapsed().as_micros() as u64),
        );
        if let Ok(value) = HeaderValue::try_from(spot.written()) {
            response.headers_mut().insert("traceresponse", value);
        }
    }
    if !gateway.quiet() && log::wants(Level::Info) {
        seen.log(response.status(), begun.elapsed().as_secs_f64() * 1000.0);
    }
    response
}

/// What is told of a request: never more of its path than the route's own words, and of its key the name.
struct Seen<'a> {
    method: &'a str,
    route: &'a str,
    caller: Option<&'a Caller>,
    spot: Option<&'a Spot>,
}

impl Seen<'_> {
    fn log(&self, status: StatusCode, ms: f64) {
        let of = |part: fn(&Caller) -> &str| self.caller.map_or("", part).to_owned();
        let key = of(|caller| &caller.key);
        let fields = Fields {
            status: status.as_u16().to_string(),
            ms: Some(ms),
            key: if key.is_empty() { "-".to_owned() } else { key },
            tenant: of(|caller| &caller.tenant),
            trace: self.spot.map(Spot::trace).unwrap_or_default(),
            ..Fields::default()
        };
        let about = format!("{} {}", self.method, self.route);
        log::tell(Line::new(Level::Info, "request", about, fields));
    }

    fn trace(&self, gateway: &Gateway, spot: &Spot, status: StatusCode, time: trace::Time) {
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
        gateway
            .tracer()
            .request(spot, &name, time, status.is_server_error(), attributes);
    }
}

/// The answer, unless the key ends before it; what the answer still sends ends with it, too.
async fn while_good(validity: Validity, answer: impl Future<Output = Response>) -> Response {
    tokio::select! {
        biased;
        response = answer => validity.guard(response),
        () = validity.clone().over() => refused(unauthorized(NOT_GOOD)),
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

/// Who is asking; nobody where anybody may.
fn admit(gateway: &Gateway, request: &Request, route: &str) -> Result<Option<Caller>, Problem> {
    let connection = request.extensions().get::<Connection>().copied();
    let connection = connection.unwrap_or(Connection { addresses: None });
    let names = Names {
        local: connection.local(),
        more: gateway.hosts(),
    };
    check_size(request)?;
    names.check(request.headers(), request.uri())?;
    let token = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| bearer(value.as_bytes()));
    match token {
        // Whether we live is no question of the database.
        _ if route == HEALTH => Ok(None),
        Some(token) => match gateway.keys().recognise(token)? {
            Some(caller) => Ok(Some(caller)),
            None => Err(unauthorized(NOT_GOOD)),
        },
        None if OPEN.contains(&route) => Ok(None),
        None => Err(unauthorized("a key is needed")),
    }
}

/// What every request to a route needs; the route may ask for more.
fn needed(route: &str) -> Option<Scope> {
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

const NOT_GOOD: &str = "this key is not known, has expired or was revoked";

fn unauthorized(what: &str) -> Problem {
    let hint = "send `Authorization: Bearer TOKEN`; an admin makes keys at /v1/keys or with `airlock key create`";
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        what,
        Some(hint.to_owned()),
    )
}

/// What reads requests lets some more through than it is told.
fn check_size(request: &Request) -> Result<(), Problem> {
    let target = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    let lines = request
        .headers()
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4);
    match target + lines.sum::<usize>() <= crate::server::HEADER_BYTES {
        true => Ok(()),
        false => Err(Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "quota_exceeded",
            "the headers are too large",
            Some("send at most 32 KiB of them".to_owned()),
        )),
    }
}

/// What stands behind `Bearer `.
fn bearer(value: &[u8]) -> Option<&str> {
    let (word, rest) = value.split_at_checked(7)?;
    let token = word
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| rest.trim_ascii())?;
    std::str::from_utf8(token).ok()
}

/// The names under which we may be addressed.
struct Names<'a> {
    /// Where this connection ends; none for a unix socket.
    local: Option<SocketAddr>,
    /// Further ones, with a port or for every port.
    more: &'a [String],
}

impl Names<'_> {
    fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
        let told = headers
            .get_all(HOST)
            .iter()
            .map(|host| host.to_str().unwrap_or_default());
        let written = uri.authority().map(|authority| authority.as_str());
        let mut hosts: Vec<_> = told.chain(written).collect();
        hosts.dedup();
        let meant = match hosts.as_slice() {
            [one] => self.local.is_none() || self.ours(one),
            _ => false,
        };
        if !meant {
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
            if !authority.is_some_and(|authority| self.ours(authority)) {
                return Err(forbidden(
                    "pages of other origins may not call this server",
                    PAGES,
                ));
            }
        }
        // What a browser says of a request that a page of somebody else's made.
        let sites = headers.get_all("sec-fetch-site");
        match sites
            .iter()
            .all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"))
        {
            true => Ok(()),
            false => Err(forbidden(
                "pages of other sites may not call this server",
                PAGES,
            )),
        }
    }

    /// Whether that is us. An address cannot be lent to another page; a name can.
    fn ours(&self, authority: &str) -> bool {
        let (host, port) = split(authority);
        let named = self.more.iter().any(|name| {
            let (known, its_port) = split(name);
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

const PAGES: &str = "call it from a program, or add the page's host to `hosts` under [serve]";

fn forbidden(what: &str, hint: &str) -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        what,
        Some(hint.to_owned()),
    )
}

/// Host and port; a port that is none makes a host that nobody has.
fn split(authority: &str) -> (&str, Option<u16>) {
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
        let more = ["box.example".to_owned(), "other.example:8443".to_owned()];
        let names = Names {
            local: Some("127.0.0.1:7070".parse().unwrap()),
            more: &more,
        };
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect();
        names.check(&headers, &uri.parse().unwrap()).is_ok()
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
