//! The bridge at work: one process, one loop, a bounded number of connections with bounded buffers.
//!
//! ```text
//! program ─▶ 127.0.0.1:PORT ─▶ [inbox ─ request ─▶ up] ─▶ upstream        plain: bytes both ways, ends kept
//!         ◀─                ◀─ [down ◀─ response ─ outbox] ◀─             with a token: one request each
//! ```

use super::{
    Door,
    http::{BUFFER, Refused, Request, Response, Rewrite},
    url::Address,
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

const MOST_CONNECTIONS: usize = 64;
/// A model may think for long before it says a word.
const LONGEST_SILENCE: Duration = Duration::from_secs(30 * 60);
/// How long the head of a request may take.
const LONGEST_HEAD: Duration = Duration::from_secs(30);
/// How long we listen to one that was answered, so that the answer is not lost by our hanging up.
const LINGER: Duration = Duration::from_secs(2);
/// How often one connection is served before the next.
const MOST_STEPS: usize = 32;
/// How often a silent client is asked whether it is there.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How soon a socket whose queue is full is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// The other end of a connection, as far as we are with it.
enum Link {
    None,
    Open(OwnedFd),
}

/// What goes one way, and whether its source has ended and its sink been told.
#[derive(Default)]
struct Flow {
    bytes: Vec<u8>,
    ended: bool,
    told: bool,
}

struct Connection {
    client: OwnedFd,
    link: Link,
    up: Flow,
    down: Flow,
    exchange: Option<Exchange>,
    deadline: Instant,
    /// It had its turn, and was not done.
    has_more: bool,
    /// The other end has stopped listening; what the client still says is dropped.
    deaf: bool,
    /// All is said; we only listen on for a moment.
    lingers: bool,
}

/// What a request with a token needs besides.
#[derive(Default)]
struct Exchange {
    request: Request,
    response: Response,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// All of the answer is in `down`; the upstream is not needed any more.
    answered: bool,
}

/// Why a connection is over.
struct Over;

/// Serves until the process whose end of `lifeline` is the other one ends.
pub(super) fn serve(listener: &OwnedFd, lifeline: &OwnedFd, door: &Door) {
    let (mut connections, most) = (Vec::new(), most_connections());
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
            !late && (!ready && !connection.is_due() || connection.turn(door).is_ok())
        });
        if due {
            accept(listener, &mut connections, most, door);
        }
    }
}

/// Two descriptors each, besides the few that we have: one that is accepted and cannot be served, or a queue that cannot
/// be emptied, would keep us busy for nothing.
fn most_connections() -> usize {
    const OURS: u64 = 8;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit.saturating_sub(OURS) / 2)
        .unwrap_or(usize::MAX)
        .clamp(1, MOST_CONNECTIONS)
}

/// Waits for something to do: which connections have it, and whether one is to be accepted. `None` when it is over.
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
        for (descriptor, events) in connection.wishes() {
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

fn accept(listener: &OwnedFd, connections: &mut Vec<Connection>, most: usize, door: &Door) {
    while connections.len() < most {
        let Ok(client) = net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        else {
            return;
        };
        ask_whether_alive(&client);
        let mut connection = Connection::new(client, door.rewrite.is_some());
        if connection.turn(door).is_ok() {
            connections.push(connection);
        }
    }
}

/// Has the kernel ask the client from time to time; one that has hung up is forgotten there after a minute, and says so.
fn ask_whether_alive(client: &OwnedFd) {
    use net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl};
    // Without it, only the longest silence counts.
    _ = set_socket_keepalive(client, true)
        .and_then(|()| set_tcp_keepidle(client, ASK_EVERY))
        .and_then(|()| set_tcp_keepintvl(client, ASK_EVERY));
}

/// Reads once, if there is room. `Ok(false)` when there was nothing.
fn fill(from: BorrowedFd<'_>, bytes: &mut Vec<u8>, ended: &mut bool) -> Result<bool, Over> {
    let mut chunk = [0; 16 << 10];
    let room = BUFFER.saturating_sub(bytes.len()).min(chunk.len());
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
        Err(_) => Err(Over),
    }
}

fn drain(to: BorrowedFd<'_>, bytes: &mut Vec<u8>) -> Result<bool, Over> {
    if bytes.is_empty() {
        return Ok(false);
    }
    match net::send(to, bytes, net::SendFlags::NOSIGNAL) {
        Ok(count) => {
            bytes.drain(..count);
            Ok(true)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(_) => Err(Over),
    }
}

/// Tells the sink that its source has ended, once all is passed on.
fn pass_end(to: BorrowedFd<'_>, flow: &mut Flow) {
    if flow.ended && flow.bytes.is_empty() && !flow.told {
        // It fails for one that is gone, of which the other direction hears.
        _ = net::shutdown(to, Shutdown::Write);
        flow.told = true;
    }
}

impl Connection {
    fn new(client: OwnedFd, with_token: bool) -> Connection {
        let limit = if with_token {
            LONGEST_HEAD
        } else {
            LONGEST_SILENCE
        };
        Connection {
            client,
            link: Link::None,
            up: Flow::default(),
            down: Flow::default(),
            exchange: with_token.then(Exchange::default),
            deadline: Instant::now() + limit,
            has_more: false,
            deaf: false,
            lingers: false,
        }
    }

    /// Which descriptors it waits for, and for what.
    fn wishes(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut wishes = Vec::new();
        let mut wish = |descriptor, reads: bool, writes: bool, ends: bool| {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, reads);
            events.set(PollFlags::OUT, writes);
            // Without a wish the kernel would still tell of an end, again and again.
            if !events.is_empty() || ends {
                wishes.push((descriptor, events));
            }
        };
        let (reads_client, reads_upstream) = match &self.exchange {
            _ if self.lingers => (!self.up.ended, false),
            Some(it) => {
                let wants = it.request != Request::Done && !it.answered && it.inbox.len() < BUFFER;
                (
                    wants && !self.up.ended,
                    !it.answered && it.outbox.len() < BUFFER && !self.down.ended,
                )
            }
            None => (
                !self.up.ended && self.up.bytes.len() < BUFFER,
                !self.down.ended && self.down.bytes.len() < BUFFER,
            ),
        };
        wish(
            self.client.as_fd(),
            reads_client,
            !self.down.bytes.is_empty(),
            self.waits_for_answer(),
        );
        match &self.link {
            Link::None => {}
            Link::Open(upstream) => wish(
                upstream.as_fd(),
                reads_upstream,
                !self.up.bytes.is_empty(),
                false,
            ),
        }
        wishes
    }

    fn wants_link(&self) -> bool {
        matches!(self.link, Link::None)
            && !self.lingers
            && self
                .exchange
                .as_ref()
                .is_none_or(|it| it.request != Request::Head && !it.answered)
    }

    fn due(&self) -> Instant {
        match &self.link {
            _ if self.has_more => Instant::now(),
            Link::None if self.wants_link() => (Instant::now() + RETRY).min(self.deadline),
            Link::None | Link::Open(_) => self.deadline,
        }
    }

    fn is_due(&self) -> bool {
        self.has_more || self.wants_link()
    }

    /// Does all that can be done now, so that whatever waits in a buffer waits for the kernel to tell us something;
    /// up to a bound, so that the others have their turn.
    fn turn(&mut self, door: &Door) -> Result<(), Over> {
        for _ in 0..MOST_STEPS {
            self.has_more = self.step(door)?;
            if !self.has_more {
                break;
            }
        }
        Ok(())
    }

    fn waits_for_answer(&self) -> bool {
        self.exchange
            .as_ref()
            .is_some_and(|it| it.request == Request::Done && !it.answered)
    }

    /// Whether the client is gone, and not only done with speaking. Nobody would hear of that before the answer comes,
    /// and connections that nobody wants any more would fill the bridge.
    fn is_abandoned(&self) -> bool {
        self.waits_for_answer() && !matches!(net::sockopt::socket_error(&self.client), Ok(Ok(())))
    }

    /// Whether anything was moved.
    fn step(&mut self, door: &Door) -> Result<bool, Over> {
        if self.is_abandoned() {
            return Err(Over);
        }
        let mut moved = self.read_client(door)?;
        if self.wants_link() {
            self.connect(door)?;
        }
        moved |= self.use_link()?;
        moved |= drain(self.client.as_fd(), &mut self.down.bytes)?;
        if moved && !self.is_waiting_for_head() && !self.lingers {
            self.deadline = Instant::now() + LONGEST_SILENCE;
        }
        self.finish()?;
        Ok(moved)
    }

    fn is_waiting_for_head(&self) -> bool {
        self.exchange
            .as_ref()
            .is_some_and(|it| it.request == Request::Head && !it.answered)
    }

    fn read_client(&mut self, door: &Door) -> Result<bool, Over> {
        if self.lingers || self.deaf {
            let mut nothing = Vec::new();
            return fill(self.client.as_fd(), &mut nothing, &mut self.up.ended);
        }
        let Some(exchange) = &mut self.exchange else {
            return fill(self.client.as_fd(), &mut self.up.bytes, &mut self.up.ended);
        };
        if exchange.request == Request::Done || exchange.answered {
            return Ok(false);
        }
        let moved = fill(self.client.as_fd(), &mut exchange.inbox, &mut self.up.ended)?;
        let advanced = door.rewrite.as_ref().map(|rewrite: &Rewrite| {
            exchange
                .request
                .advance(&mut exchange.inbox, &mut self.up.bytes, rewrite)
        });
        if let Some(Err(refused)) = advanced {
            self.refuse(refused)?;
        } else if self.up.ended && exchange.request != Request::Done && self.up.bytes.len() < BUFFER
        {
            return Err(Over); // it ended in the middle of its request
        }
        Ok(moved)
    }

    /// Answers in place of the other end, unless that has begun to.
    fn refuse(&mut self, refused: Refused) -> Result<(), Over> {
        let Some(exchange) = &mut self.exchange else {
            return Err(Over);
        };
        if exchange.response != Response::Head || exchange.answered {
            return Err(Over);
        }
        self.down.bytes.extend_from_slice(&refused.response());
        (self.down.ended, exchange.answered) = (true, true);
        self.link = Link::None;
        Ok(())
    }

    fn connect(&mut self, door: &Door) -> Result<(), Over> {
        match open(&door.address) {
            // The program may have put a socket of its own in that place, to be sent the token.
            Ok(upstream) if door.rewrite.is_some() && door.outside && !is_outside(&upstream) => {
                return self.refuse(Refused::Upstream(
                    "the socket is not the control plane's any more",
                ));
            }
            Ok(upstream) => self.link = Link::Open(upstream),
            Err(Errno::AGAIN) => {} // its queue is full
            Err(_) => return self.refuse(Refused::Upstream("the control plane cannot be reached")),
        }
        Ok(())
    }

    fn use_link(&mut self) -> Result<bool, Over> {
        let Link::Open(upstream) = &self.link else {
            return Ok(false);
        };
        let (upstream, up, down) = (upstream.as_fd(), &mut self.up, &mut self.down);
        let Some(exchange) = &mut self.exchange else {
            let (sent, read) = (
                drain(upstream, &mut up.bytes),
                fill(upstream, &mut down.bytes, &mut down.ended),
            );
            if sent.is_err() || read.is_err() {
                // It may have answered and hung up before it had heard everything: the answer counts.
                up.bytes.clear();
                self.deaf = true;
            }
            down.ended |= read.is_err();
            pass_end(upstream, up);
            return Ok(sent.unwrap_or(false) | read.unwrap_or(false));
        };
        // One that has answered may have stopped listening: only what it says counts then.
        let sent = drain(upstream, &mut up.bytes);
        let read = fill(upstream, &mut exchange.outbox, &mut down.ended);
        if sent.is_err() {
            up.bytes.clear();
            exchange.request = Request::Done;
        }
        let advanced = exchange
            .response
            .advance(&mut exchange.outbox, &mut down.bytes);
        let began = exchange.response == Response::Body;
        exchange.answered = began && down.ended && exchange.outbox.is_empty();
        let broken = read.is_err() || (sent.is_err() && !began && !matches!(read, Ok(true)));
        match (advanced, broken || (down.ended && !began)) {
            (Err(refused), _) => self.refuse_late(refused),
            (Ok(()), true) => self.refuse_late(Refused::Upstream(
                "the control plane cannot be reached, or hung up",
            )),
            (Ok(()), false) => Ok(sent.unwrap_or(false) | read.unwrap_or(false)),
        }
    }

    fn refuse_late(&mut self, refused: Refused) -> Result<bool, Over> {
        self.refuse(refused).map(|()| true)
    }

    /// Passes ends on; over when nothing is left to do.
    fn finish(&mut self) -> Result<(), Over> {
        let is_said = match &self.exchange {
            Some(exchange) => exchange.answered && self.down.bytes.is_empty(),
            None => {
                pass_end(self.client.as_fd(), &mut self.down);
                self.down.told && (self.deaf || self.up.told)
            }
        };
        if is_said && !self.lingers {
            pass_end(self.client.as_fd(), &mut self.down);
            self.link = Link::None;
            self.lingers = true;
            self.deadline = Instant::now() + LINGER;
        }
        if self.lingers && self.up.ended {
            Err(Over)
        } else {
            Ok(())
        }
    }
}

/// Whether the listener at the other end of a socket in the file system is of another pid namespace than ours: the
/// kernel has no number for it here.
pub(super) fn is_outside(socket: &OwnedFd) -> bool {
    // The process is the first field of what is asked for.
    matches!(
        sys::socket_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED),
        Ok(0)
    )
}

/// Begins a connection; whether it stands shows when it is used. For a socket in the file system it does at once.
pub(super) fn open(address: &Address) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let begin = |family, address: &dyn Fn(&OwnedFd) -> Result<(), Errno>| {
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        match address(&socket) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error),
        }
    };
    match address {
        Address::Unix(path) => {
            let address = net::SocketAddrUnix::new(path.as_slice())?;
            begin(AddressFamily::UNIX, &|socket| {
                net::connect(socket, &address)
            })
        }
        Address::Ip(address) => {
            let family = if address.is_ipv4() {
                AddressFamily::INET
            } else {
                AddressFamily::INET6
            };
            let address: SocketAddr = *address;
            begin(family, &|socket| net::connect(socket, &address))
        }
        // Looked up before the program began.
        Address::Name(..) => Err(Errno::INVAL),
    }
}
