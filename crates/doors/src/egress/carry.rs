//! A connection to a destination that the rules know, from the first byte to the last, whichever way it came in.

use super::{
    Egress,
    books::Entry,
    dial::NoWay,
    hello::{self, Hello},
    policy::{Passage, Refusal, Standing},
    requests::{self, Scope},
    rewound::Rewound,
    tunnel::{self, Stopped},
};
use crate::line::Line;
use bytes::{Bytes, BytesMut};
use spec::{Destination, Host};
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
use tokio_rustls::TlsAcceptor;

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
    Tunnel { server: TcpStream, address: SocketAddr, passage: Passage, begun: Instant },
    /// Requests without encryption, each judged by itself.
    Plain,
    /// TLS that ends here, and requests in it.
    Inspect,
}

impl Opened {
    /// Somewhere that speaks plain HTTP: each request is judged by itself, and is told what comes of it.
    pub(crate) fn plain(to: Destination) -> Opened {
        Opened { to, opening: Opening::Plain }
    }
}

/// Judges, counts and dials. What does not come about is written down here.
pub(crate) async fn open(egress: &Egress, operation: &str, to: Destination) -> Result<Opened, NoWay> {
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
            let begun = Instant::now();
            egress.begin(passage.first()).map_err(refused)?;
            let dialled = egress.dialler.dial(&to, passage.may_be_private()).await;
            let (server, address) = dialled.map_err(|no_way| match no_way {
                NoWay::Refused(refusal) => refused(refusal),
                NoWay::Failed(why) => {
                    let entry = entry(operation, &to, passage.first(), "failed");
                    // Nothing passed.
                    _ = egress.books.write(&Entry { detail: why.to_owned(), ..entry });
                    NoWay::Failed(why)
                }
            })?;
            Opening::Tunnel { server, address, passage, begun }
        }
    };
    Ok(Opened { to, opening })
}

pub(crate) fn entry(operation: &str, to: &Destination, standing: &Standing, verdict: &'static str) -> Entry {
    Entry {
        operation: operation.to_owned(),
        target: to.to_string(),
        verdict,
        rule: standing.rule.name.clone(),
        ..Entry::default()
    }
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
            requests::serve(egress, line, Rewound { early, stream: client }, scope).await;
        }
        Opening::Inspect => inspect(egress, line, Rewound { early, stream: client }, to).await,
        Opening::Tunnel { server, address, passage, begun } => {
            let tunnel = Tunnel { egress, to, passage, address, begun };
            tunnel.run(&line, client, early, server).await;
        }
    }
}

/// Tells a client that it may not, in words of TLS if that is what it speaks.
pub(crate) async fn turn_away(mut client: TcpStream) {
    let mut first = BytesMut::new();
    match read_hello(&mut client, &mut first).await {
        // Whether it hears it is its own business.
        Hello::Tls { .. } => drop(client.write_all(&ACCESS_DENIED).await),
        _ => reset(&client),
    }
}

/// A reset says "refused" where a plain end would say "come again"; and what the kernel still holds is not sent.
pub(crate) fn reset(stream: &TcpStream) {
    // If this fails there is nothing to send.
    _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// TLS ends here, with a certificate that only this run's programs trust.
async fn inspect(egress: Arc<Egress>, line: Arc<Line>, mut client: Rewound, to: Destination) {
    let mut early = BytesMut::from(&client.early[..]);
    let found = read_hello(&mut client.stream, &mut early).await;
    client.early = early.freeze();
    // Encrypted or not, the name outside is the one that a certificate is made for.
    if let Err(refusal) = check_hello(&to.host, &found, true, true) {
        return refuse_hello(&egress, &to, client.stream, &refusal).await;
    }
    let Some(config) = egress.authority.as_ref().and_then(|authority| authority.server(&to.host)) else {
        let refusal = Refusal::new("inspect", "this run has no certificate for that host", "nothing");
        return refuse_hello(&egress, &to, client.stream, &refusal).await;
    };
    let accepting = timeout(HELLO_TIME, TlsAcceptor::from(config).accept(client));
    let Ok(Ok(secured)) =
        line.unless_ended(accepting).await.unwrap_or(Ok(Err(std::io::ErrorKind::Other.into())))
    else {
        return;
    };
    requests::serve(egress, line, secured, Scope::To { to, secure: true }).await;
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Complete,
    Broken,
    /// The client asked for another server.
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
            Ending::Complete => "complete",
            Ending::Broken => "broken off",
            Ending::Refused => "the server name was refused",
            Ending::Spent => "a limit is spent",
            Ending::Disallowed => "no longer allowed",
            Ending::Ended => "ended with its run",
        }
    }
}

/// A tunnel that stands.
struct Tunnel {
    egress: Arc<Egress>,
    to: Destination,
    passage: Passage,
    address: SocketAddr,
    begun: Instant,
}

impl Tunnel {
    async fn run(self, line: &Arc<Line>, mut client: TcpStream, early: Bytes, mut server: TcpStream) {
        let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
        let count = |way, bytes: usize| {
            let total = if way == super::Way::Out { &sent } else { &received };
            total.fetch_add(bytes as u64, Ordering::Relaxed);
            self.egress.count(self.passage.first(), way, bytes).is_ok()
        };
        let serving = self.serve(&mut client, early, &mut server, &count);
        let ending = line.unless_ended(serving).await.unwrap_or(Ending::Ended);
        if matches!(ending, Ending::Ended | Ending::Disallowed | Ending::Spent) {
            reset(&client);
            reset(&server);
        }
        let verdict = if self.passage.learned { "learn" } else { "allow" };
        let entry = Entry {
            address: self.address.ip().to_string(),
            detail: ending.name().to_owned(),
            sent: sent.into_inner(),
            received: received.into_inner(),
            duration_ms: self.begun.elapsed().as_millis() as u64,
            ..entry("tunnel", &self.to, self.passage.first(), verdict)
        };
        // It has passed; what cannot be written stops the next one.
        _ = self.egress.books.write(&entry);
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
        let must_be_tls = self.to.port == 443;
        let (mut one, mut other) = ([0], [0]);
        // On other ports the server may speak first, and a client may take its time.
        let client_speaks = match must_be_tls || !first.is_empty() {
            true => true,
            false => tokio::select! {
                _ = client.peek(&mut one) => true,
                _ = server.peek(&mut other) => false,
                () = self.no_longer_allowed() => return Ending::Disallowed,
            },
        };
        let found = match client_speaks {
            true => Some(read_hello(client, &mut first).await),
            false => None,
        };
        if let Some(found) = &found {
            let rule = &self.passage.first().rule;
            let checked = check_hello(&self.to.host, found, must_be_tls, rule.allow_hidden_name);
            if let Err(refusal) = checked.and_then(|()| self.check_other_name(found)) {
                self.egress.books.refused("tunnel", &self.to.to_string(), &refusal);
                // Whether it hears it is its own business.
                _ = client.write_all(&ACCESS_DENIED).await;
                return Ending::Refused;
            }
        }
        if self.passage.learned {
            self.egress.books.learn(&self.to);
        }
        if !first.is_empty()
            && (!count(super::Way::Out, first.len()) || server.write_all(&first).await.is_err())
        {
            return Ending::Spent;
        }
        drop(first);
        tokio::select! {
            relayed = tunnel::relay(client, server, count) => match relayed {
                Ok(()) => Ending::Complete,
                Err(Stopped::Broken) => Ending::Broken,
                Err(Stopped::Spent) => Ending::Spent,
            },
            () = self.no_longer_allowed() => Ending::Disallowed,
        }
    }

    /// By a bare address, the server's name is what the client says it is: then the rules have a say in that, too.
    fn check_other_name(&self, found: &Hello) -> Result<(), Refusal> {
        match (&self.to.host, found) {
            (Host::Address(_), Hello::Tls { name: Some(name), .. }) if !self.passage.learned => {
                let named = Destination { host: name.clone(), port: self.to.port };
                self.egress.judge(&named).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// Waits until the rules, as they are then, would not let this tunnel be made.
    async fn no_longer_allowed(&self) {
        let mut changed = self.egress.changed.subscribe();
        loop {
            let falls = match self.egress.judge(&self.to) {
                Ok(now) if !now.looks_inside() => now.until(),
                _ => return,
            };
            let falls = async {
                match falls {
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

/// Reads until it is clear whom the client wants to talk to, or that it does not say.
async fn read_hello(client: &mut TcpStream, bytes: &mut BytesMut) -> Hello {
    let reading = async {
        loop {
            match hello::read(bytes) {
                Hello::More if bytes.len() < LONGEST_HELLO => {}
                Hello::More => return Hello::Bad,
                found => return found,
            }
            match client.read_buf(bytes).await {
                Ok(0) | Err(_) => return Hello::Bad,
                Ok(_) => {}
            }
        }
    };
    timeout(HELLO_TIME, reading).await.unwrap_or(Hello::Bad)
}

/// Whether a client asks for the host that it was let out to.
fn check_hello(host: &Host, found: &Hello, must_be_tls: bool, may_hide: bool) -> Result<(), Refusal> {
    let refuse = |reason: String, allow: &str| Err(Refusal::new("server name", reason, allow));
    match (found, host) {
        (Hello::Tls { hidden: true, .. }, Host::Name(_)) if !may_hide => refuse(
            format!("the connection hides the server's name (Encrypted Client Hello), which must be {host}"),
            "a rule with allow_hidden_name = true in the configuration",
        ),
        (Hello::Tls { name: Some(name), .. }, Host::Name(_)) if name != host => {
            refuse(format!("the connection is to {host} and asks for {name}"), "nothing")
        }
        (Hello::Tls { name: None, .. }, Host::Name(_)) => {
            refuse(format!("the connection to {host} names no server"), "nothing")
        }
        (Hello::Tls { .. }, _) => Ok(()),
        (Hello::Plain, _) if !must_be_tls => Ok(()),
        (Hello::Plain, _) => {
            refuse(format!("what was sent to {host} is not TLS"), "a rule that names another port")
        }
        (Hello::More | Hello::Bad, _) => {
            refuse(format!("what was sent to {host} is no beginning of TLS"), "nothing")
        }
    }
}

async fn refuse_hello(egress: &Egress, to: &Destination, mut client: TcpStream, refusal: &Refusal) {
    egress.books.refused("inspect", &to.to_string(), refusal);
    // Whether it hears it is its own business.
    _ = client.write_all(&ACCESS_DENIED).await;
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
