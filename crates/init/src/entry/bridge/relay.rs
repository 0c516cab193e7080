//! The bridge's event loop: one process, a bounded number of connections with bounded buffers.
//!
//! ```text
//! program ─▶ 127.0.0.1:PORT ─▶ [inbox ─ request ─▶ up] ─▶ upstream        plain: bytes both ways, ends kept
//!         ◀─                ◀─ [down ◀─ response ─ outbox] ◀─             with a token: one request each
//! ```

use super::{
    BridgeTarget,
    http::{BUFFER_BYTES, BridgeRequestError, RequestRewrite, RequestState, ResponseState},
    url::UpstreamAddress,
};
use crate::sys;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{self, AddressFamily, Shutdown, SocketFlags, SocketType},
    process::{Resource, getrlimit},
};
use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

const MAX_CONNECTIONS: usize = 64;
/// A model may be silent for long before its first word.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// How long the head of a request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection is read after its response, so that closing it does not lose the response.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often one connection is served before the next.
const MAX_STEPS_PER_TURN: usize = 32;
/// How often the kernel probes a silent client.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How soon a socket with a full queue is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The connection to the upstream.
enum UpstreamLink {
    None,
    Open(OwnedFd),
}

/// A buffer of one direction, whether its source has ended, and whether the end was passed on.
#[derive(Default)]
struct RelayBuffer {
    bytes: Vec<u8>,
    ended: bool,
    end_sent: bool,
}

struct Connection {
    client: OwnedFd,
    upstream_link: UpstreamLink,
    up: RelayBuffer,
    down: RelayBuffer,
    exchange: Option<HttpExchange>,
    deadline: Instant,
    /// Its turn ended with work left.
    has_more: bool,
    /// The upstream has stopped reading; further bytes of the client are dropped.
    upstream_closed: bool,
    /// The response is complete; the connection is only read for a moment.
    lingers: bool,
}

/// The HTTP state of a connection with a token.
#[derive(Default)]
struct HttpExchange {
    request: RequestState,
    response: ResponseState,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// The whole response is in `down`; the upstream is not needed any more.
    answered: bool,
}

/// The connection is over.
struct ConnectionEnd;

/// Serves until the process that holds the other end of `lifeline` ends.
pub(super) fn serve(listener: &OwnedFd, lifeline: &OwnedFd, target: &BridgeTarget) {
    let mut connections = Vec::new();
    let most = max_connections();
    loop {
        let (ready, due) = match wait(listener, lifeline, &connections, connections.len() < most) {
            Some(ready) => ready,
            None => return,
        };
        let now = Instant::now();
        let mut turns = ready.into_iter();
        connections.retain_mut(|connection: &mut Connection| {
            let ready = turns.next().unwrap_or(false);
            let late = now >= connection.deadline;
            !late && (!ready && !connection.is_due() || connection.turn(target).is_ok())
        });
        if due {
            accept(listener, &mut connections, most, target);
        }
    }
}

/// Each connection needs two descriptors. A connection that is accepted and cannot be served, or a
/// queue that cannot be emptied, would make the loop spin.
fn max_connections() -> usize {
    const OURS: u64 = 8;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit.saturating_sub(OURS) / 2)
        .unwrap_or(usize::MAX)
        .clamp(1, MAX_CONNECTIONS)
}

/// Waits for events: which connections have some, and whether one is to be accepted. `None` at the
/// end.
fn wait(
    listener: &OwnedFd,
    lifeline: &OwnedFd,
    connections: &[Connection],
    has_room: bool,
) -> Option<(Vec<bool>, bool)> {
    let mut polled = vec![PollFd::new(lifeline, PollFlags::IN)];
    polled.push(PollFd::new(
        listener,
        if has_room {
            PollFlags::IN
        } else {
            PollFlags::empty()
        },
    ));
    let mut owners = Vec::new();
    for (number, connection) in connections.iter().enumerate() {
        for (descriptor, events) in connection.poll_events() {
            polled.push(PollFd::from_borrowed_fd(descriptor, events));
            owners.push(number);
        }
    }
    let now = Instant::now();
    let soonest = connections.iter().map(Connection::due).min();
    let limit = soonest.map(|due| due.saturating_duration_since(now));
    let limit = limit.map(|limit| Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    });
    match poll(&mut polled, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => return None,
    }
    if !polled[0].revents().is_empty() {
        return None;
    }
    let mut ready = vec![false; connections.len()];
    for (number, polled) in owners.iter().zip(&polled[2..]) {
        ready[*number] |= !polled.revents().is_empty();
    }
    Some((ready, has_room && !polled[1].revents().is_empty()))
}

fn accept(
    listener: &OwnedFd,
    connections: &mut Vec<Connection>,
    most: usize,
    target: &BridgeTarget,
) {
    while connections.len() < most {
        let Ok(client) = net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        else {
            return;
        };
        enable_keepalive(&client);
        let mut connection = Connection::new(client, target.rewrite.is_some());
        if connection.turn(target).is_ok() {
            connections.push(connection);
        }
    }
}

/// Enables TCP keepalive, so that the connection of a client that disappeared is closed after a
/// minute.
fn enable_keepalive(client: &OwnedFd) {
    use net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl};
    // Without it only the idle timeout applies.
    _ = set_socket_keepalive(client, true)
        .and_then(|()| set_tcp_keepidle(client, KEEPALIVE_INTERVAL))
        .and_then(|()| set_tcp_keepintvl(client, KEEPALIVE_INTERVAL));
}

/// Reads once, if the buffer has room. `Ok(false)` if there was nothing.
fn fill(
    from: BorrowedFd<'_>,
    bytes: &mut Vec<u8>,
    ended: &mut bool,
) -> Result<bool, ConnectionEnd> {
    let mut chunk = [0; 16 << 10];
    let room = BUFFER_BYTES.saturating_sub(bytes.len()).min(chunk.len());
    if room == 0 || *ended {
        return Ok(false);
    }
    match rustix::io::read(from, &mut chunk[..room]) {
        Ok(0) => {
            *ended = true;
            Ok(true)
        }
        Ok(count) => {
            bytes.extend_from_slice(&chunk[..count]);
            Ok(true)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(_) => Err(ConnectionEnd),
    }
}

fn drain(to: BorrowedFd<'_>, bytes: &mut Vec<u8>) -> Result<bool, ConnectionEnd> {
    if bytes.is_empty() {
        return Ok(false);
    }
    match net::send(to, bytes, net::SendFlags::NOSIGNAL) {
        Ok(count) => {
            bytes.drain(..count);
            Ok(true)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(_) => Err(ConnectionEnd),
    }
}

/// Shuts the sink down once its source has ended and all bytes are passed on.
fn pass_end(to: BorrowedFd<'_>, flow: &mut RelayBuffer) {
    if flow.ended && flow.bytes.is_empty() && !flow.end_sent {
        // It fails for a peer that is gone, which the other direction notices.
        _ = net::shutdown(to, Shutdown::Write);
        flow.end_sent = true;
    }
}

impl Connection {
    fn new(client: OwnedFd, with_token: bool) -> Connection {
        let limit = if with_token {
            HEAD_TIMEOUT
        } else {
            IDLE_TIMEOUT
        };
        Connection {
            client,
            upstream_link: UpstreamLink::None,
            up: RelayBuffer::default(),
            down: RelayBuffer::default(),
            exchange: with_token.then(HttpExchange::default),
            deadline: Instant::now() + limit,
            has_more: false,
            upstream_closed: false,
            lingers: false,
        }
    }

    /// The descriptors that it polls, and for which events.
    fn poll_events(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut poll_events = Vec::new();
        let mut add_event = |descriptor, reads: bool, writes: bool, ends: bool| {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, reads);
            events.set(PollFlags::OUT, writes);
            // Without an event the kernel would still report a hangup, again and again.
            if !events.is_empty() || ends {
                poll_events.push((descriptor, events));
            }
        };
        let (reads_client, reads_upstream) = match &self.exchange {
            _ if self.lingers => (!self.up.ended, false),
            Some(it) => {
                let wants = it.request != RequestState::Done
                    && !it.answered
                    && it.inbox.len() < BUFFER_BYTES;
                (
                    wants && !self.up.ended,
                    !it.answered && it.outbox.len() < BUFFER_BYTES && !self.down.ended,
                )
            }
            None => (
                !self.up.ended && self.up.bytes.len() < BUFFER_BYTES,
                !self.down.ended && self.down.bytes.len() < BUFFER_BYTES,
            ),
        };
        add_event(
            self.client.as_fd(),
            reads_client,
            !self.down.bytes.is_empty(),
            self.waits_for_answer(),
        );
        match &self.upstream_link {
            UpstreamLink::None => {}
            UpstreamLink::Open(upstream) => add_event(
                upstream.as_fd(),
                reads_upstream,
                !self.up.bytes.is_empty(),
                false,
            ),
        }
        poll_events
    }

    fn wants_upstream(&self) -> bool {
        matches!(self.upstream_link, UpstreamLink::None)
            && !self.lingers
            && self
                .exchange
                .as_ref()
                .is_none_or(|it| it.request != RequestState::Head && !it.answered)
    }

    fn due(&self) -> Instant {
        match &self.upstream_link {
            _ if self.has_more => Instant::now(),
            UpstreamLink::None if self.wants_upstream() => {
                (Instant::now() + RETRY_INTERVAL).min(self.deadline)
            }
            UpstreamLink::None | UpstreamLink::Open(_) => self.deadline,
        }
    }

    fn is_due(&self) -> bool {
        self.has_more || self.wants_upstream()
    }

    /// Does all that can be done now, so that a non-empty buffer always waits for a kernel event;
    /// bounded, so that the other connections get their turn.
    fn turn(&mut self, target: &BridgeTarget) -> Result<(), ConnectionEnd> {
        for _ in 0..MAX_STEPS_PER_TURN {
            self.has_more = self.step(target)?;
            if !self.has_more {
                break;
            }
        }
        Ok(())
    }

    fn waits_for_answer(&self) -> bool {
        self.exchange
            .as_ref()
            .is_some_and(|it| it.request == RequestState::Done && !it.answered)
    }

    /// Whether the client is gone, and not only done with sending. That would be noticed only after
    /// the response, and abandoned connections would fill the bridge.
    fn is_abandoned(&self) -> bool {
        self.waits_for_answer() && !matches!(net::sockopt::socket_error(&self.client), Ok(Ok(())))
    }

    /// Returns whether any bytes were moved.
    fn step(&mut self, target: &BridgeTarget) -> Result<bool, ConnectionEnd> {
        if self.is_abandoned() {
            return Err(ConnectionEnd);
        }
        let mut moved = self.read_client(target)?;
        if self.wants_upstream() {
            self.connect(target)?;
        }
        moved |= self.use_upstream()?;
        moved |= drain(self.client.as_fd(), &mut self.down.bytes)?;
        if moved && !self.is_waiting_for_head() && !self.lingers {
            self.deadline = Instant::now() + IDLE_TIMEOUT;
        }
        self.finish()?;
        Ok(moved)
    }

    fn is_waiting_for_head(&self) -> bool {
        self.exchange
            .as_ref()
            .is_some_and(|it| it.request == RequestState::Head && !it.answered)
    }

    fn read_client(&mut self, target: &BridgeTarget) -> Result<bool, ConnectionEnd> {
        if self.lingers || self.upstream_closed {
            let mut nothing = Vec::new();
            return fill(self.client.as_fd(), &mut nothing, &mut self.up.ended);
        }
        let Some(exchange) = &mut self.exchange else {
            return fill(self.client.as_fd(), &mut self.up.bytes, &mut self.up.ended);
        };
        if exchange.request == RequestState::Done || exchange.answered {
            return Ok(false);
        }
        let moved = fill(self.client.as_fd(), &mut exchange.inbox, &mut self.up.ended)?;
        let advanced = target.rewrite.as_ref().map(|rewrite: &RequestRewrite| {
            exchange
                .request
                .advance(&mut exchange.inbox, &mut self.up.bytes, rewrite)
        });
        if let Some(Err(refused)) = advanced {
            self.refuse(refused)?;
        } else if self.up.ended
            && exchange.request != RequestState::Done
            && self.up.bytes.len() < BUFFER_BYTES
        {
            return Err(ConnectionEnd); // it ended in the middle of its request
        }
        Ok(moved)
    }

    /// Responds in place of the upstream, unless its response has begun.
    fn refuse(&mut self, refused: BridgeRequestError) -> Result<(), ConnectionEnd> {
        let Some(exchange) = &mut self.exchange else {
            return Err(ConnectionEnd);
        };
        if exchange.response != ResponseState::Head || exchange.answered {
            return Err(ConnectionEnd);
        }
        self.down.bytes.extend_from_slice(&refused.response());
        (self.down.ended, exchange.answered) = (true, true);
        self.upstream_link = UpstreamLink::None;
        Ok(())
    }

    fn connect(&mut self, target: &BridgeTarget) -> Result<(), ConnectionEnd> {
        match open(&target.address) {
            // The program may have put a socket of its own there, to get the token.
            Ok(upstream)
                if target.rewrite.is_some() && target.outside && !is_outside(&upstream) =>
            {
                return self.refuse(BridgeRequestError::Upstream(
                    "the socket is not the control plane's any more",
                ));
            }
            Ok(upstream) => self.upstream_link = UpstreamLink::Open(upstream),
            Err(Errno::AGAIN) => {} // its queue is full
            Err(_) => {
                return self.refuse(BridgeRequestError::Upstream(
                    "the control plane cannot be reached",
                ));
            }
        }
        Ok(())
    }

    fn use_upstream(&mut self) -> Result<bool, ConnectionEnd> {
        let UpstreamLink::Open(upstream) = &self.upstream_link else {
            return Ok(false);
        };
        let upstream = upstream.as_fd();
        let up = &mut self.up;
        let down = &mut self.down;
        let Some(exchange) = &mut self.exchange else {
            let sent = drain(upstream, &mut up.bytes);
            let read = fill(upstream, &mut down.bytes, &mut down.ended);
            if sent.is_err() || read.is_err() {
                // The upstream may have responded and closed before it read everything: its
                // response counts.
                up.bytes.clear();
                self.upstream_closed = true;
            }
            down.ended |= read.is_err();
            pass_end(upstream, up);
            return Ok(sent.unwrap_or(false) | read.unwrap_or(false));
        };
        // After its response the upstream may stop reading: only its response counts then.
        let sent = drain(upstream, &mut up.bytes);
        let read = fill(upstream, &mut exchange.outbox, &mut down.ended);
        if sent.is_err() {
            up.bytes.clear();
            exchange.request = RequestState::Done;
        }
        let advanced = exchange
            .response
            .advance(&mut exchange.outbox, &mut down.bytes);
        let began = exchange.response == ResponseState::Body;
        exchange.answered = began && down.ended && exchange.outbox.is_empty();
        let broken = read.is_err() || (sent.is_err() && !began && !matches!(read, Ok(true)));
        match (advanced, broken || (down.ended && !began)) {
            (Err(refused), _) => self.refuse_late(refused),
            (Ok(()), true) => self.refuse_late(BridgeRequestError::Upstream(
                "the control plane cannot be reached, or hung up",
            )),
            (Ok(()), false) => Ok(sent.unwrap_or(false) | read.unwrap_or(false)),
        }
    }

    fn refuse_late(&mut self, refused: BridgeRequestError) -> Result<bool, ConnectionEnd> {
        self.refuse(refused).map(|()| true)
    }

    /// Passes ends on; the connection is over when nothing is left to do.
    fn finish(&mut self) -> Result<(), ConnectionEnd> {
        let is_said = match &self.exchange {
            Some(exchange) => exchange.answered && self.down.bytes.is_empty(),
            None => {
                pass_end(self.client.as_fd(), &mut self.down);
                self.down.end_sent && (self.upstream_closed || self.up.end_sent)
            }
        };
        if is_said && !self.lingers {
            pass_end(self.client.as_fd(), &mut self.down);
            self.upstream_link = UpstreamLink::None;
            self.lingers = true;
            self.deadline = Instant::now() + LINGER_TIMEOUT;
        }
        if self.lingers && self.up.ended {
            Err(ConnectionEnd)
        } else {
            Ok(())
        }
    }
}

/// Whether the peer of a unix socket is in another pid namespace: then the kernel has no pid for it
/// here.
pub(super) fn is_outside(socket: &OwnedFd) -> bool {
    // The pid is the first field of the option.
    matches!(
        sys::socket_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED),
        Ok(0)
    )
}

/// Starts a connection; an error of TCP shows on first use, one of a unix socket at once.
pub(super) fn open(address: &UpstreamAddress) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let begin = |family, address: &dyn Fn(&OwnedFd) -> Result<(), Errno>| {
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        match address(&socket) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error),
        }
    };
    match address {
        UpstreamAddress::Unix(path) => {
            let address = net::SocketAddrUnix::new(path.as_slice())?;
            begin(AddressFamily::UNIX, &|socket| {
                net::connect(socket, &address)
            })
        }
        UpstreamAddress::Ip(address) => {
            let family = if address.is_ipv4() {
                AddressFamily::INET
            } else {
                AddressFamily::INET6
            };
            let address: SocketAddr = *address;
            begin(family, &|socket| net::connect(socket, &address))
        }
        // It was looked up before the program started.
        UpstreamAddress::Name(..) => Err(Errno::INVAL),
    }
}
