//! An internet of the suite's own, for boxes with an egress door: every name leads somewhere, every address that is
//! dialled lies here, and everything that arrives is written down. No packet leaves this machine.

use crate::{Trouble, world::World};
use doors::egress;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Where names lead of which nothing else is said.
pub(crate) const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 66));
/// Whoever is silent for so long has said all.
const SILENCE: Duration = Duration::from_millis(400);
/// Nothing that arrives is longer.
const LONGEST: usize = 4 << 20;

/// All of it. Its listeners live as long as this process.
#[derive(Clone, Debug)]
pub(crate) struct Internet {
    seen: Arc<Observed>,
    /// Who answers at every address but this machine's own.
    server: SocketAddr,
}

#[derive(Debug)]
struct Observed {
    /// What answers say.
    secret: String,
    /// Answers in their order; the last one stays.
    names: Mutex<BTreeMap<String, VecDeque<Vec<IpAddr>>>>,
    asked: Mutex<Vec<String>>,
    dialled: Mutex<Vec<SocketAddr>>,
    /// Addresses of this machine, beside its loopback, at which somebody listens.
    own: Mutex<Vec<IpAddr>>,
    /// Who answers at port 443, if that is somebody else.
    secured: Mutex<Option<SocketAddr>>,
    /// Connections and datagrams, byte by byte.
    heard: Mutex<Vec<Vec<u8>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Internet {
    pub(crate) fn new(world: &World) -> Result<Internet, Trouble> {
        let seen = Arc::new(Observed {
            secret: world.secret(),
            names: Mutex::default(),
            asked: Mutex::default(),
            dialled: Mutex::default(),
            own: Mutex::default(),
            secured: Mutex::default(),
            heard: Mutex::default(),
        });
        let server = serve(&seen, (Ipv4Addr::LOCALHOST, 0).into())?;
        Ok(Internet { seen, server })
    }

    /// One more server of it, at an address of this machine.
    pub(crate) fn listen(&self, at: impl Into<SocketAddr>) -> Result<u16, Trouble> {
        let at = serve(&self.seen, at.into())?;
        locked(&self.seen.own).push(at.ip());
        Ok(at.port())
    }

    /// Has port 443 of every address speak TLS, with this certificate.
    pub(crate) fn secure(&self, config: Arc<ServerConfig>) -> Result<(), Trouble> {
        let (listener, seen) = (
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
            self.seen.clone(),
        );
        *locked(&self.seen.secured) = Some(listener.local_addr()?);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                _ = attend_secured(&seen, config.clone(), stream);
            }
        });
        Ok(())
    }

    /// The same for datagrams.
    pub(crate) fn listen_for_datagrams(&self, at: IpAddr) -> Result<u16, Trouble> {
        let (socket, seen) = (UdpSocket::bind((at, 0))?, self.seen.clone());
        let port = socket.local_addr()?.port();
        std::thread::spawn(move || {
            let mut bytes = [0; 2048];
            while let Ok(length) = socket.recv(&mut bytes) {
                locked(&seen.heard).push(bytes[..length].to_vec());
            }
        });
        Ok(port)
    }

    /// Where a name leads: one answer after the other.
    pub(crate) fn resolves(&self, name: &str, answers: &[IpAddr]) {
        let answers = answers.iter().map(|answer| vec![*answer]).collect();
        locked(&self.seen.names).insert(name.to_owned(), answers);
    }

    /// What a door is opened with, so that this is all it reaches.
    pub(crate) fn settings(&self) -> egress::EgressSettings {
        let (asking, dialling, server) = (self.seen.clone(), self.seen.clone(), self.server);
        let internet = egress::Internet::dangerously_replace(
            move |name| asking.resolve(name),
            move |address| dialling.locate(address, server),
        );
        egress::EgressSettings {
            internet,
            ..egress::EgressSettings::default()
        }
    }

    /// Whether this arrived anywhere, in whatever is sent, or in a name that was asked for.
    pub(crate) fn heard(&self, text: &str) -> bool {
        let within = |bytes: &Vec<u8>| {
            bytes
                .windows(text.len().max(1))
                .any(|part| part == text.as_bytes())
        };
        locked(&self.seen.heard).iter().any(within)
            || self.asked().iter().any(|name| name.contains(text))
    }

    /// The names that were asked for.
    pub(crate) fn asked(&self) -> Vec<String> {
        locked(&self.seen.asked).clone()
    }

    /// The addresses that were dialled.
    pub(crate) fn dialled(&self) -> Vec<SocketAddr> {
        locked(&self.seen.dialled).clone()
    }

    /// The heads of requests that arrived, by whichever framing their server goes.
    pub(crate) fn requests(&self) -> Vec<String> {
        locked(&self.seen.heard)
            .iter()
            .flat_map(|bytes| requests(bytes).0)
            .collect()
    }
}

impl Observed {
    fn resolve(&self, name: &str) -> Vec<IpAddr> {
        locked(&self.asked).push(name.to_owned());
        let mut names = locked(&self.names);
        match names.get_mut(name) {
            Some(answers) if answers.len() > 1 => answers.pop_front().unwrap_or_default(),
            Some(answers) => answers.front().cloned().unwrap_or_default(),
            None => vec![ELSEWHERE],
        }
    }

    /// This machine's own are really there; all others are the server's.
    fn locate(&self, address: SocketAddr, server: SocketAddr) -> SocketAddr {
        locked(&self.dialled).push(address);
        let ip = address.ip().to_canonical();
        let ours = ip.is_loopback() || locked(&self.own).contains(&ip);
        let secured = locked(&self.secured).filter(|_| address.port() == 443);
        if ours {
            address
        } else {
            secured.unwrap_or(server)
        }
    }
}

fn serve(seen: &Arc<Observed>, at: SocketAddr) -> io::Result<SocketAddr> {
    let (listener, seen) = (TcpListener::bind(at)?, seen.clone());
    let at = listener.local_addr()?;
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let seen = seen.clone();
            std::thread::spawn(move || attend(&seen, stream));
        }
    });
    Ok(at)
}

/// One connection: what is said is written down as it comes, and answered request by request.
fn attend(seen: &Observed, mut stream: TcpStream) -> Option<()> {
    // Behind a door it may take a while until whoever asked knows that we are there.
    stream.set_read_timeout(Some(SILENCE * 5)).ok()?;
    let number = {
        let mut heard = locked(&seen.heard);
        heard.push(Vec::new());
        heard.len() - 1
    };
    let (mut answered, mut bytes) = (0, vec![0; 64 << 10]);
    loop {
        let count = match stream.read(&mut bytes) {
            Ok(0) => return None,
            Ok(count) => count,
            Err(_) => 0,
        };
        let all = {
            let mut heard = locked(&seen.heard);
            let own = heard.get_mut(number)?;
            own.extend(&bytes[..count]);
            own.clone()
        };
        let (heads, rest) = requests(&all);
        for head in heads.get(answered..).unwrap_or_default() {
            stream
                .write_all(answer(head, &seen.secret).as_bytes())
                .ok()?;
        }
        answered = heads.len();
        let last = heads
            .last()
            .map(|head| head.to_ascii_lowercase())
            .unwrap_or_default();
        let over = answered > 0 && rest == 0 && last.contains("connection: close");
        let silent = count == 0 && !last.contains("upgrade:");
        if over || silent || all.len() > LONGEST || all.first() == Some(&22) {
            _ = stream
                .write_all(seen.secret.as_bytes())
                .ok()
                .filter(|()| answered == 0);
            return Some(());
        }
        if count == 0 {
            // Upgraded, and silent.
            stream.write_all(seen.secret.as_bytes()).ok()?;
            return Some(());
        }
        stream.set_read_timeout(Some(SILENCE)).ok()?;
    }
}

/// One request in TLS.
fn attend_secured(seen: &Observed, config: Arc<ServerConfig>, stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE * 5))?;
    let server = ServerConnection::new(config).map_err(io::Error::other)?;
    let mut secured = StreamOwned::new(server, stream);
    let mut bytes = [0; 4096];
    let count = secured.read(&mut bytes)?;
    locked(&seen.heard).push(bytes[..count].to_vec());
    secured.write_all(page("200 OK", &seen.secret).as_bytes())?;
    secured.conn.send_close_notify();
    secured.flush()
}

/// The heads of all whole requests, and how many bytes follow.
fn requests(bytes: &[u8]) -> (Vec<String>, usize) {
    let (mut heads, mut rest) = (Vec::new(), bytes);
    while let Some(end) = find(rest, b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&rest[..end]).into_owned();
        let lower = head.to_ascii_lowercase();
        if !lower
            .lines()
            .next()
            .unwrap_or_default()
            .contains(" http/1.")
        {
            break;
        }
        let body = &rest[end + 4..];
        let length = match lower.contains("transfer-encoding:") {
            true => find(body, b"0\r\n\r\n").map(|end| end + 5),
            false => Some(
                header(&head, "content-length")
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0),
            ),
        };
        match length.filter(|length| *length <= body.len()) {
            Some(length) => rest = &body[length..],
            None => break,
        }
        heads.push(head);
    }
    (heads, rest.len())
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (own, value) = line.split_once(':')?;
        own.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

/// A page with the secret; by the path also one that leads elsewhere, or that has all that was said in the request.
fn answer(head: &str, secret: &str) -> String {
    let path = head.split(' ').nth(1).unwrap_or_default();
    if header(head, "upgrade").is_some() {
        let kind = header(head, "upgrade").unwrap_or_default();
        return format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: {kind}\r\n\r\n"
        );
    }
    if let Some((_, to)) = path.split_once("to=") {
        return format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
    }
    let echoed = header(head, "authorization").unwrap_or_default();
    match path.split('/').nth(1).unwrap_or_default() {
        "echo-header" => {
            format!("HTTP/1.1 200 OK\r\nX-Echo: {echoed}\r\nContent-Length: 0\r\n\r\n")
        }
        "echo-error" => page("500 Broken", head),
        "echo-location" => {
            format!("HTTP/1.1 302 Found\r\nLocation: /?{echoed}\r\nContent-Length: 0\r\n\r\n")
        }
        "echo-chunks" => {
            let chunks = head.as_bytes().chunks(7).map(String::from_utf8_lossy);
            let chunks: String = chunks
                .map(|part| format!("{:x}\r\n{part}\r\n", part.len()))
                .collect();
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
        }
        "echo" => page("200 OK", head),
        _ => page("200 OK", secret),
    }
}

fn page(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
