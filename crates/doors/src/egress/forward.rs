//! Forwards client connections to allowed destinations: as a tunnel, as plain HTTP requests, or
//! with TLS interception.

use super::{
    Egress,
    client_hello::{self, ClientHello},
    dial::DialError,
    log::LogEntry,
    policy::{Permission, Refusal},
    prefixed_stream::PrefixedStream,
    requests::{self, RequestScope},
    splice::{self, SpliceError},
};
use crate::connections::ConnectionHandle;
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

/// Time limit for the client's first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest ClientHello, with post-quantum keys.
const MAX_HELLO_BYTES: usize = 64 << 10;
/// A fatal TLS alert: access denied.
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// An allowed destination and how to forward to it.
pub(crate) struct ForwardTarget {
    to: Destination,
    mode: ForwardMode,
}

/// How a connection is forwarded.
enum ForwardMode {
    /// Raw bytes over an open connection.
    Tunnel(Box<Tunnel>, TcpStream),
    /// Plain HTTP; each request is checked.
    Plain,
    /// TLS is terminated here and the requests in it are checked.
    Inspect,
}

impl ForwardTarget {
    /// A plain HTTP destination: each request is checked and answered on its own.
    pub(crate) fn plain(to: Destination) -> ForwardTarget {
        ForwardTarget {
            to,
            mode: ForwardMode::Plain,
        }
    }
}

/// Checks the rules, counts and dials. Failures are logged here.
pub(crate) async fn open(
    egress: &Arc<Egress>,
    operation: &str,
    to: Destination,
) -> Result<ForwardTarget, DialError> {
    let refused = |refusal: Refusal| {
        egress.log.refused(operation, &to.to_string(), &refusal);
        DialError::Refused(refusal)
    };
    let permission = egress.evaluate(&to).map_err(refused)?;
    let mode = match (permission.looks_inside(), to.port) {
        // Requests are checked and counted one by one.
        (_, 80) => ForwardMode::Plain,
        (true, _) => ForwardMode::Inspect,
        (false, _) => {
            egress.begin(permission.first()).map_err(refused)?;
            let mut tunnel = Box::new(Tunnel::new(egress.clone(), to.clone(), permission));
            match tunnel.dial().await {
                Ok(server) => ForwardMode::Tunnel(tunnel, server),
                Err(DialError::Refused(refusal)) => {
                    tunnel.ending = TunnelEnd::Refused;
                    return Err(refused(refusal));
                }
                Err(failed) => return Err(failed),
            }
        }
    };
    Ok(ForwardTarget { to, mode })
}

/// Serves a client until one side or the rules end the connection.
pub(crate) async fn forward(
    egress: Arc<Egress>,
    handle: Arc<ConnectionHandle>,
    client: TcpStream,
    buffered: Bytes,
    target: ForwardTarget,
) {
    let ForwardTarget { to, mode } = target;
    match mode {
        ForwardMode::Plain => {
            let scope = RequestScope::To { to, secure: false };
            requests::serve(
                egress,
                handle,
                PrefixedStream {
                    buffered,
                    stream: client,
                },
                scope,
            )
            .await;
        }
        ForwardMode::Inspect => {
            let client = PrefixedStream {
                buffered,
                stream: client,
            };
            if let Some(Some(secured)) = handle.unless_ended(secure(&egress, client, &to)).await {
                requests::serve(
                    egress,
                    handle,
                    secured,
                    RequestScope::To { to, secure: true },
                )
                .await;
            }
        }
        ForwardMode::Tunnel(tunnel, server) => tunnel.run(&handle, client, buffered, server).await,
    }
}

/// Rejects a client, with a TLS alert if it speaks TLS.
pub(crate) async fn reject(mut client: TcpStream) {
    let mut first = BytesMut::new();
    match read_hello(&mut client, &mut first).await {
        // The client need not read it.
        Some(ClientHello::Tls { .. }) => drop(client.write_all(&ACCESS_DENIED).await),
        _ => reset(&client),
    }
}

/// Closes with a reset: it means "refused" where a normal close would invite a retry, and drops
/// what the kernel still buffers.
pub(crate) fn reset(stream: &TcpStream) {
    // If this fails there is nothing to send.
    _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Terminates TLS with a certificate that only this run's programs trust.
async fn secure(
    egress: &Arc<Egress>,
    mut client: PrefixedStream,
    to: &Destination,
) -> Option<TlsStream<PrefixedStream>> {
    let mut buffered = BytesMut::from(&client.buffered[..]);
    let hello = read_hello(&mut client.stream, &mut buffered).await?;
    client.buffered = buffered.freeze();
    // ECH or not, the certificate is made for the outer name.
    let checked = check_hello(&to.host, &hello, true, true);
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
        Ok(config) => timeout(HELLO_TIMEOUT, TlsAcceptor::from(config).accept(client))
            .await
            .ok()?
            .ok(),
        Err(refusal) => {
            egress.log.refused("inspect", &to.to_string(), &refusal);
            // The client need not read it.
            _ = client.stream.write_all(&ACCESS_DENIED).await;
            None
        }
    }
}

/// How a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TunnelEnd {
    /// The client left before sending anything.
    Unused,
    /// The connection to the server failed.
    Failed(&'static str),
    Complete,
    Broken,
    /// Refused; the refusal has its own log line.
    Refused,
    /// A traffic limit was exceeded.
    Spent,
    /// The rules changed.
    Disallowed,
    /// The run ended.
    Ended,
}

impl TunnelEnd {
    fn name(self) -> &'static str {
        match self {
            TunnelEnd::Unused => "the client did not wait",
            TunnelEnd::Failed(why) => why,
            TunnelEnd::Complete => "complete",
            TunnelEnd::Broken => "broken off",
            TunnelEnd::Refused => "refused",
            TunnelEnd::Spent => "a limit is spent",
            TunnelEnd::Disallowed => "no longer allowed",
            TunnelEnd::Ended => "ended with its run",
        }
    }
}

/// A tunnel from the moment it is dialled. Dropping it writes its log line, however it ended.
struct Tunnel {
    egress: Arc<Egress>,
    to: Destination,
    permission: Permission,
    address: Option<SocketAddr>,
    begun: Instant,
    sent: AtomicU64,
    received: AtomicU64,
    ending: TunnelEnd,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let verdict = match self.ending {
            TunnelEnd::Refused => return,
            TunnelEnd::Failed(_) => "failed",
            _ if self.permission.learned => "learn",
            _ => "allow",
        };
        let entry = LogEntry {
            operation: "tunnel".to_owned(),
            target: self.to.to_string(),
            verdict,
            rule: self.permission.first().rule.name.clone(),
            address: self
                .address
                .map(|address| address.ip().to_string())
                .unwrap_or_default(),
            detail: self.ending.name().to_owned(),
            sent: *self.sent.get_mut(),
            received: *self.received.get_mut(),
            duration_ms: self.begun.elapsed().as_millis() as u64,
            ..LogEntry::default()
        };
        // The bytes have passed already. After a failed write the log admits nothing more.
        _ = self.egress.log.write(&entry);
    }
}

impl Tunnel {
    fn new(egress: Arc<Egress>, to: Destination, permission: Permission) -> Tunnel {
        let address = None;
        let begun = Instant::now();
        let ending = TunnelEnd::Unused;
        Tunnel {
            egress,
            to,
            permission,
            address,
            begun,
            sent: 0.into(),
            received: 0.into(),
            ending,
        }
    }

    /// Dials and then checks the rules again, which may have changed meanwhile.
    async fn dial(&mut self) -> Result<TcpStream, DialError> {
        let dialled = self
            .egress
            .dialer
            .dial(&self.to, self.permission.allows_private())
            .await;
        let (server, address) = dialled.inspect_err(|dial_error| {
            if let DialError::Failed(why) = dial_error {
                self.ending = TunnelEnd::Failed(why);
            }
        })?;
        self.address = Some(address);
        match self.is_allowed(None) {
            Some(_) => Ok(server),
            None => Err(DialError::Refused(Refusal::new(
                &self.permission.first().rule.name,
                "the rules have changed meanwhile",
                "nothing",
            ))),
        }
    }

    async fn run(
        mut self,
        handle: &Arc<ConnectionHandle>,
        mut client: TcpStream,
        buffered: Bytes,
        mut server: TcpStream,
    ) {
        let count = |direction, bytes: usize| {
            let total = if direction == super::Direction::Out {
                &self.sent
            } else {
                &self.received
            };
            total.fetch_add(bytes as u64, Ordering::Relaxed);
            self.egress
                .count(self.permission.first(), direction, bytes)
                .is_ok()
        };
        let serving = self.serve(&mut client, buffered, &mut server, &count);
        let ending = handle
            .unless_ended(serving)
            .await
            .unwrap_or(TunnelEnd::Ended);
        self.ending = ending;
        if matches!(
            ending,
            TunnelEnd::Ended | TunnelEnd::Disallowed | TunnelEnd::Spent | TunnelEnd::Broken
        ) {
            reset(&client);
            reset(&server);
        }
    }

    /// Serves the tunnel and returns how it ended.
    async fn serve(
        &self,
        client: &mut TcpStream,
        buffered: Bytes,
        server: &mut TcpStream,
        count: &(impl Fn(super::Direction, usize) -> bool + Sync),
    ) -> TunnelEnd {
        let mut first = BytesMut::from(&buffered[..]);
        let hello = match self.read_first_message(client, &mut first, server).await {
            Ok(hello) => hello,
            Err(ending) => return ending,
        };
        if let Some(hello) = &hello
            && let Err(refusal) = self.check(hello)
        {
            self.egress
                .log
                .refused("tunnel", &self.to.to_string(), &refusal);
            // The client need not read it.
            _ = client.write_all(&ACCESS_DENIED).await;
            return TunnelEnd::Refused;
        }
        if self.permission.learned {
            self.egress.log.learn(&self.to);
        }
        let name = match hello {
            Some(ClientHello::Tls { name, .. }) => name,
            _ => None,
        };
        let relaying = async {
            if !first.is_empty() {
                if count(super::Direction::Out, first.len()) {
                    server
                        .write_all(&first)
                        .await
                        .map_err(|_| SpliceError::Broken)?
                } else {
                    return Err(SpliceError::Spent);
                }
            }
            splice::relay(client, server, count).await
        };
        tokio::select! {
            biased;
            () = self.no_longer_allowed(name.as_ref()) => TunnelEnd::Disallowed,
            relayed = relaying => match relayed {
                Ok(()) => TunnelEnd::Complete,
                Err(SpliceError::Broken) => TunnelEnd::Broken,
                Err(SpliceError::Spent) => TunnelEnd::Spent,
            },
        }
    }

    /// The first message of the client; `None` if the server speaks first or the client sends
    /// nothing.
    async fn read_first_message(
        &self,
        client: &mut TcpStream,
        first: &mut BytesMut,
        server: &mut TcpStream,
    ) -> Result<Option<ClientHello>, TunnelEnd> {
        if self.must_be_tls() {
            return read_hello(client, first)
                .await
                .map(Some)
                .ok_or(TunnelEnd::Unused);
        }
        let mut one = [0];
        let mut other = [0];
        // In some protocols the server speaks first.
        let client_speaks = if first.is_empty() {
            tokio::select! {
                _ = client.peek(&mut one) => true,
                _ = server.peek(&mut other) => false,
                () = self.no_longer_allowed(None) => return Err(TunnelEnd::Disallowed),
            }
        } else {
            true
        };
        if client_speaks {
            Ok(read_hello(client, first).await)
        } else {
            Ok(None)
        }
    }

    /// On port 443 a client must name its server, unless the rule allows any host.
    fn must_be_tls(&self) -> bool {
        self.to.port == 443 && !self.allows_any_host()
    }

    /// Whether the rule is for all hosts.
    fn allows_any_host(&self) -> bool {
        self.permission.first().rule.host == HostPattern::Any
    }

    /// Whether the client asks for the host that it is allowed to reach.
    fn check(&self, hello: &ClientHello) -> Result<(), Refusal> {
        let may_hide = self.permission.first().rule.allow_hidden_name;
        check_hello(&self.to.host, hello, self.must_be_tls(), may_hide)?;
        match (&self.to.host, hello) {
            // For a bare address only the client says which server it wants: check that name
            // against the rules, too.
            (Host::Address(_), ClientHello::Tls { name, hidden }) if !self.permission.learned => {
                match (name, hidden) {
                    (Some(name), false) => self.evaluate_name(name),
                    // Without a name the client could reach a host that the rules treat
                    // differently; not if they name this very address.
                    _ if self.allows_any_host() && self.egress.has_rules_by_name() => {
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

    fn evaluate_name(&self, name: &Host) -> Result<(), Refusal> {
        let named = Destination {
            host: name.clone(),
            port: self.to.port,
        };
        match self.egress.evaluate(&named)? {
            now if now.looks_inside() => Err(Refusal::new(
                &now.first().rule.name,
                format!("requests to {name} are looked at, so it must be asked for by its name"),
                "nothing",
            )),
            _ => Ok(()),
        }
    }

    /// Whether the current rules would allow this tunnel, and until when.
    fn is_allowed(&self, name: Option<&Host>) -> Option<Option<Instant>> {
        let now = self
            .egress
            .evaluate(&self.to)
            .ok()
            .filter(|now| !now.looks_inside())?;
        let private = self.permission.allows_private() && !now.allows_private();
        let by_name = matches!(self.to.host, Host::Address(_)) && !self.permission.learned;
        let other = by_name && name.is_some_and(|name| self.evaluate_name(name).is_err());
        (!private && !other).then(|| now.until())
    }

    /// Waits until the rules no longer allow this tunnel.
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
                // The sender is the door itself, which outlives its tunnels.
                _ = changed.changed() => {}
                () = falls => {}
            }
        }
    }
}

/// Reads until the server name is known or certainly missing; `None` if the client sends nothing.
async fn read_hello(client: &mut TcpStream, bytes: &mut BytesMut) -> Option<ClientHello> {
    let reading = async {
        loop {
            match client_hello::read(bytes) {
                ClientHello::Incomplete if bytes.len() < MAX_HELLO_BYTES => {}
                ClientHello::Incomplete => return Some(ClientHello::Invalid),
                hello => return Some(hello),
            }
            match client.read_buf(bytes).await {
                Ok(0) | Err(_) if bytes.is_empty() => return None,
                Ok(0) | Err(_) => return Some(ClientHello::Invalid),
                Ok(_) => {}
            }
        }
    };
    timeout(HELLO_TIMEOUT, reading)
        .await
        .unwrap_or(Some(ClientHello::Invalid))
}

/// Whether a client asks for the host that it is allowed to reach.
fn check_hello(
    host: &Host,
    hello: &ClientHello,
    must_be_tls: bool,
    may_hide: bool,
) -> Result<(), Refusal> {
    let refuse = |reason: String, allow: &str| Err(Refusal::new("server name", reason, allow));
    match (hello, host) {
        (ClientHello::Tls { hidden: true, .. }, Host::Name(_)) if !may_hide => refuse(
            format!(
                "the connection hides the server's name (Encrypted Client Hello), which must be {host}"
            ),
            "a rule with allow_hidden_name = true; or have the browser not hide it (Chromium: --disable-features=EncryptedClientHello)",
        ),
        (
            ClientHello::Tls {
                name: Some(name), ..
            },
            Host::Name(_),
        ) if name != host => refuse(
            format!("the connection is to {host} and asks for {name}"),
            "nothing",
        ),
        (ClientHello::Tls { name: None, .. }, Host::Name(_)) => refuse(
            format!("the connection to {host} names no server"),
            "nothing",
        ),
        (ClientHello::Tls { .. }, _) => Ok(()),
        (ClientHello::NotTls, _) if !must_be_tls => Ok(()),
        (ClientHello::NotTls, _) => {
            refuse(format!("what was sent to {host} is not TLS"), "nothing")
        }
        (ClientHello::Incomplete | ClientHello::Invalid, _) => refuse(
            format!("what was sent to {host} is no beginning of TLS"),
            "nothing",
        ),
    }
}

impl ConnectionHandle {
    /// Runs a future unless the session ends first.
    pub(crate) async fn unless_ended<T>(&self, doing: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = doing => Some(done),
            () = self.wait_ending() => None,
            () = self.wait_cut() => None,
        }
    }
}
