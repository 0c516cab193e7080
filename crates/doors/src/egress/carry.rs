//! A connection to a destination that the rules know, from the first byte to the last, whichever way it came in.

use super::{
    Egress,
    books::Entry,
    dial::NoWay,
    hello::{self, Hello},
    policy::{Passage, Refusal},
    requests::{self, Scope},
    rewound::Rewound,
    tunnel::{self, Stopped},
};
use crate::line::Line;
use bytes::{Bytes, BytesMut};
use spec::{Destination, Host, HostPattern};
use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// What a client has to say whom it wants to talk to.
const HELLO_TIME: Duration = Duration::from_secs(5);
/// The first message of TLS, with keys that quantum computers do not break.
const LONGEST_HELLO: usize = 64 << 10;
/// A fatal alert of TLS: access denied.
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// A destination that may be talked to.
pub(crate) struct Opened {
    to: Destination,
    opening: Opening,
}

/// What a destination is opened as.
enum Opening {
    /// Bytes, to a connection that stands.
    Tunnel(Box<Tunnel>, TcpStream),
    /// Requests without encryption, each judged by itself.
    Plain,
    /// TLS that ends here, and requests in it.
    Inspect,
}

impl Opened {
    /// Somewhere that speaks plain HTTP: each request is judged by itself, and is told what comes of it.
    pub(crate) fn plain(to: Destination) -> Opened {
        Opened {
            to,
            opening: Opening::Plain,
        }
    }
}

/// Judges, counts and dials. What does not come about is written down here.
pub(crate) async fn open(
    egress: &Arc<Egress>,
    operation: &str,
    to: Destination,
) -> Result<Opened, NoWay> {
    let refused = |refusal: Refusal| {
        egress.books.refused(operation, &to.to_string(), &refusal);
        NoWay::Refused(refusal)
    };
    let passage = egress.judge(&to).map_err(refused)?;
    let opening = match (passage.looks_inside(), to.port) {
        // Requests are judged and counted one by one.
        (_, 80) => Opening::Plain,
        (true, _) => Opening::Inspect,
        (false, _) => {
            egress.begin(passage.first()).map_err(refused)?;
            let mut tunnel = Box::new(Tunnel::new(egress.clone(), to.clone(), passage));
            match tunnel.dial().await {
                Ok(server) => Opening::Tunnel(tunnel, server),
                Err(NoWay::Refused(refusal)) => {
                    tunnel.ending = Ending::Refused;
                    return Err(refused(refusal));
                }
                Err(failed) => return Err(failed),
            }
        }
    };
    Ok(Opened { to, opening })
}

/// Serves a client at a destination that was opened, until one of them ends it, or the rules do.
pub(crate) async fn carry(
    egress: Arc<Egress>,
    line: Arc<Line>,
    client: TcpStream,
    early: Bytes,
    opened: Opened,
) {
    let Opened { to, opening } = opened;
    match opening {
        Opening::Plain => {
            let scope = Scope::To { to, secure: false };
            requests::serve(
                egress,
                line,
                Rewound {
                    early,
                    stream: client,
                },
                scope,
            )
            .await;
        }
        Opening::Inspect => {
            let client = Rewound {
                early,
                stream: client,
            };
            if let Some(Some(secured)) = line.unless_ended(secure(&egress, client, &to)).await {
                requests::serve(egress, line, secured, Scope::To { to, secure: true }).await;
            }
        }
        Opening::Tunnel(tunnel, server) => tunnel.run(&line, client, early, server).await,
    }
}

/// Tells a client that it may not, in words of TLS if that is what it speaks.
pub(crate) async fn turn_away(mut client: TcpStream) {
    let mut first = BytesMut::new();
    match read_hello(&mut client, &mut first).await {
        // Whether it hears it is its own business.
        Some(Hello::Tls { .. }) => drop(client.write_all(&ACCESS_DENIED).await),
        _ => reset(&client),
    }
}

/// A reset says "refused" where a plain end would say "come again"; and what the kernel still holds is not sent.
pub(crate) fn reset(stream: &TcpStream) {
    // If this fails there is nothing to send.
    _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// TLS ends here, with a certificate that only this run's programs trust.
async fn secure(
    egress: &Arc<Egress>,
    mut client: Rewound,
    to: &Destination,
) -> Option<TlsStream<Rewound>> {
    let mut early = BytesMut::from(&client.early[..]);
    let found = read_hello(&mut client.stream, &mut early).await?;
    client.early = early.freeze();
    // Encrypted or not, the name outside is the one that a certificate is made for.
    let checked = check_hello(&to.host, &found, true, true);
    let config = checked.and_then(|()| {
        let config = egress
            .authority
            .as_ref()
            .and_then(|authority| authority.server(&to.host));
        config.ok_or_else(|| {
            Refusal::new(
                "inspect",
                "this run has no certificate for that host",
                "nothing",
            )
        })
    });
    match config {
        Ok(config) => timeout(HELLO_TIME, TlsAcceptor::from(config).accept(client))
            .await
            .ok()?
            .ok(),
        Err(refusal) => {
            egress.books.refused("inspect", &to.to_string(), &refusal);
            // Whether it hears it is its own business.
            _ = client.stream.write_all(&ACCESS_DENIED).await;
            None
        }
    }
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The client went before there was anything to say.
    Unused,
    /// There was nobody at the other end.
    Failed(&'static str),
    Complete,
    Broken,
    /// It was refused, and has a line of its own that says why.
    Refused,
    /// A limit was hit.
    Spent,
    /// The rules changed.
    Disallowed,
    /// With its run.
    Ended,
}

impl Ending {
    fn name(self) -> &'static str {
        match self {
            Ending::Unused => "the client did not wait",
            Ending::Failed(why) => why,
            Ending::Complete => "complete",
            Ending::Broken => "broken off",
            Ending::Refused => "refused",
            Ending::Spent => "a limit is spent",
            Ending::Disallowed => "no longer allowed",
            Ending::Ended => "ended with its run",
        }
    }
}

/// A tunnel, from the moment that it is dialled. It is written down when it goes, whatever ends it.
struct Tunnel {
    egress: Arc<Egress>,
    to: Destination,
    passage: Passage,
    address: Option<SocketAddr>,
    begun: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    ending: Ending,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let verdict = match self.ending {
            Ending::Refused => return,
            Ending::Failed(_) => "failed",
            _ if self.passage.learned => "learn",
            _ => "allow",
        };
        let entry = Entry {
            operation: "tunnel".to_owned(),
            target: self.to.to_string(),
            verdict,
            rule: self.passage.first().rule.name.clone(),
            address: self
                .address
                .map(|address| address.ip().to_string())
                .unwrap_or_default(),
            detail: self.ending.name().to_owned(),
            sent: *self.sent.get_mut(),
            received: *self.received.get_mut(),
            duration_ms: self.begun.elapsed().as_millis() as u64,
            ..Entry::default()
        };
        // It has passed. After a line that could not be written, nothing passes any more.
        _ = self.egress.books.write(&entry);
    }
}

impl Tunnel {
    fn new(egress: Arc<Egress>, to: Destination, passage: Passage) -> Tunnel {
        let (address, begun, ending) = (None, Instant::now(), Ending::Unused);
        Tunnel {
            egress,
            to,
            passage,
            address,
            begun,
            sent: 0.into(),
            received: 0.into(),
            ending,
        }
    }

    /// The rules may have changed meanwhile.
    async fn dial(&mut self) -> Result<TcpStream, NoWay> {
        let dialled = self
            .egress
            .dialler
            .dial(&self.to, self.passage.may_be_private())
            .await;
        let (server, address) = dialled.inspect_err(|no_way| {
            if let NoWay::Failed(why) = no_way {
                self.ending = Ending::Failed(why);
            }
        })?;
        self.address = Some(address);
        match self.is_allowed(None) {
            Some(_) => Ok(server),
            None => Err(NoWay::Refused(Refusal::new(
                &self.passage.first().rule.name,
                "the rules have changed meanwhile",
                "nothing",
            ))),
        }
    }

    async fn run(
        mut self,
        line: &Arc<Line>,
        mut client: TcpStream,
        early: Bytes,
        mut server: TcpStream,
    ) {
        let count = |way, bytes: usize| {
            let total = if way == super::Way::Out {
                &self.sent
            } else {
                &self.received
            };
            total.fetch_add(bytes as u64, Ordering::Relaxed);
            self.egress.count(self.passage.first(), way, bytes).is_ok()
        };
        let serving = self.serve(&mut client, early, &mut server, &count);
        let ending = line.unless_ended(serving).await.unwrap_or(Ending::Ended);
        self.ending = ending;
        if matches!(
            ending,
            Ending::Ended | Ending::Disallowed | Ending::Spent | Ending::Broken
        ) {
            reset(&client);
            reset(&server);
        }
    }

    /// How it ended.
    async fn serve(
        &self,
        client: &mut TcpStream,
        early: Bytes,
        server: &mut TcpStream,
        count: &(impl Fn(super::Way, usize) -> bool + Sync),
    ) -> Ending {
        let mut first = BytesMut::from(&early[..]);
        let found = match self.listen(client, &mut first, server).await {
            Ok(found) => found,
            Err(ending) => return ending,
        };
        if let Some(found) = &found
            && let Err(refusal) = self.check(found)
        {
            self.egress
                .books
                .refused("tunnel", &self.to.to_string(), &refusal);
            // Whether it hears it is its own business.
            _ = client.write_all(&ACCESS_DENIED).await;
            return Ending::Refused;
        }
        if self.passage.learned {
            self.egress.books.learn(&self.to);
        }
        let name = match found {
            Some(Hello::Tls { name, .. }) => name,
            _ => None,
        };
        let relaying = async {
            if !first.is_empty() {
                match count(super::Way::Out, first.len()) {
                    true => server
                        .write_all(&first)
                        .await
                        .map_err(|_| Stopped::Broken)?,
                    false => return Err(Stopped::Spent),
                }
            }
            tunnel::relay(client, server, count).await
        };
        tokio::select! {
            biased;
            () = self.no_longer_allowed(name.as_ref()) => Ending::Disallowed,
            relayed = relaying => match relayed {
                Ok(()) => Ending::Complete,
                Err(Stopped::Broken) => Ending::Broken,
                Err(Stopped::Spent) => Ending::Spent,
            },
        }
    }

    /// What the client begins with; nothing if the server speaks first, or the client says nothing at all.
    async fn listen(
        &self,
        client: &mut TcpStream,
        first: &mut BytesMut,
        server: &mut TcpStream,
    ) -> Result<Option<Hello>, Ending> {
        if self.must_be_tls() {
            return read_hello(client, first)
                .await
                .map(Some)
                .ok_or(Ending::Unused);
        }
        let (mut one, mut other) = ([0], [0]);
        // The server may speak first, and a client may take its time.
        let client_speaks = match first.is_empty() {
            false => true,
            true => tokio::select! {
                _ = client.peek(&mut one) => true,
                _ = server.peek(&mut other) => false,
                () = self.no_longer_allowed(None) => return Err(Ending::Disallowed),
            },
        };
        match client_speaks {
            true => Ok(read_hello(client, first).await),
            false => Ok(None),
        }
    }

    /// What goes to the usual port must say whom it is for, unless it may be for anybody.
    fn must_be_tls(&self) -> bool {
        self.to.port == 443 && !self.may_be_anybody()
    }

    /// Whether the rule is for all hosts.
    fn may_be_anybody(&self) -> bool {
        self.passage.first().rule.host == HostPattern::Any
    }

    /// Whether the client asks for the host that it was let out to.
    fn check(&self, found: &Hello) -> Result<(), Refusal> {
        let may_hide = self.passage.first().rule.allow_hidden_name;
        check_hello(&self.to.host, found, self.must_be_tls(), may_hide)?;
        match (&self.to.host, found) {
            // By a bare address, the server's name is what the client says it is: the rules have a say in that, too.
            (Host::Address(_), Hello::Tls { name, hidden }) if !self.passage.learned => {
                match (name, hidden) {
                    (Some(name), false) => self.judge_name(name),
                    // Somebody whom the rules treat otherwise could hide there; not if they name this very address.
                    _ if self.may_be_anybody() && self.egress.has_rules_by_name() => {
                        Err(Refusal::new(
                            "server name",
                            format!(
                                "the connection to {} does not say which server it is for",
                                self.to.host
                            ),
                            "nothing",
                        ))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn judge_name(&self, name: &Host) -> Result<(), Refusal> {
        let named = Destination {
            host: name.clone(),
            port: self.to.port,
        };
        match self.egress.judge(&named)? {
            now if now.looks_inside() => Err(Refusal::new(
                &now.first().rule.name,
                format!("requests to {name} are looked at, so it must be asked for by its name"),
                "nothing",
            )),
            _ => Ok(()),
        }
    }

    /// Whether the rules, as they are now, would let this tunnel be made; until when.
    fn is_allowed(&self, name: Option<&Host>) -> Option<Option<Instant>> {
        let now = self
            .egress
            .judge(&self.to)
            .ok()
            .filter(|now| !now.looks_inside())?;
        let private = self.passage.may_be_private() && !now.may_be_private();
        let by_name = matches!(self.to.host, Host::Address(_)) && !self.passage.learned;
        let other = by_name && name.is_some_and(|name| self.judge_name(name).is_err());
        (!private && !other).then(|| now.until())
    }

    /// Waits until the rules, as they are then, would not let this tunnel be made.
    async fn no_longer_allowed(&self, name: Option<&Host>) {
        let mut changed = self.egress.changed.subscribe();
        while let Some(until) = self.is_allowed(name) {
            let falls = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The door itself is the sender; while there is a tunnel there is a door.
                _ = changed.changed() => {}
                () = falls => {}
            }
        }
    }
}

/// Reads until it is clear whom the client wants to talk to, or that it does not say; nothing if it says nothing at all.
async fn read_hello(client: &mut TcpStream, bytes: &mut BytesMut) -> Option<Hello> {
    let reading = async {
        loop {
            match hello::read(bytes) {
                Hello::More if bytes.len() < LONGEST_HELLO => {}
                Hello::More => return Some(Hello::Bad),
                found => return Some(found),
            }
            match client.read_buf(bytes).await {
                Ok(0) | Err(_) if bytes.is_empty() => return None,
                Ok(0) | Err(_) => return Some(Hello::Bad),
                Ok(_) => {}
            }
        }
    };
    timeout(HELLO_TIME, reading)
        .await
        .unwrap_or(Some(Hello::Bad))
}

/// Whether a client asks for the host that it was let out to.
fn check_hello(
    host: &Host,
    found: &Hello,
    must_be_tls: bool,
    may_hide: bool,
) -> Result<(), Refusal> {
    let refuse = |reason: String, allow: &str| Err(Refusal::new("server name", reason, allow));
    match (found, host) {
        (Hello::Tls { hidden: true, .. }, Host::Name(_)) if !may_hide => refuse(
            format!(
                "the connection hides the server's name (Encrypted Client Hello), which must be {host}"
            ),
            "a rule with allow_hidden_name = true; or have the browser not hide it (Chromium: --disable-features=EncryptedClientHello)",
        ),
        (
            Hello::Tls {
                name: Some(name), ..
            },
            Host::Name(_),
        ) if name != host => refuse(
            format!("the connection is to {host} and asks for {name}"),
            "nothing",
        ),
        (Hello::Tls { name: None, .. }, Host::Name(_)) => refuse(
            format!("the connection to {host} names no server"),
            "nothing",
        ),
        (Hello::Tls { .. }, _) => Ok(()),
        (Hello::Plain, _) if !must_be_tls => Ok(()),
        (Hello::Plain, _) => refuse(format!("what was sent to {host} is not TLS"), "nothing"),
        (Hello::More | Hello::Bad, _) => refuse(
            format!("what was sent to {host} is no beginning of TLS"),
            "nothing",
        ),
    }
}

impl Line {
    /// What comes of something, unless the session ends before.
    pub(crate) async fn unless_ended<T>(&self, doing: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = doing => Some(done),
            () = self.asked() => None,
            () = self.cut() => None,
        }
    }
}
