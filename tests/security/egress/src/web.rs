//! The servers of a world: whatever address is dialled, they answer there, for every name, and record what came. Which
//! answers there are: `answers.rs`.

use crate::{answers, rewound::Rewound, trust::Trust};
use bytes::Bytes;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::watch,
};
use tokio_rustls::LazyConfigAcceptor;

/// Ports with HTTP over TLS.
pub const TLS_PORTS: [u16; 2] = [443, 8443];
/// Ports with HTTP.
pub const HTTP_PORTS: [u16; 2] = [80, 8080];
/// Ports where bytes come back as they are; at 22 the server speaks first, as SSH does.
pub const ECHO_PORTS: [u16; 5] = [7, 22, 25, 5432, 6379];
/// Where datagrams come back as they are.
pub const DATAGRAM_PORT: u16 = 7;
/// What is said first at port 22.
pub const BANNER: &str = "SSH-2.0-world\r\n";
const LONGEST_HEAD: usize = 1 << 20;
/// What is kept of a body.
const KEPT: usize = 64 << 10;

/// A connection that arrived, at whatever address.
#[derive(Clone, Debug)]
pub struct Connection {
    /// What was dialled.
    pub to: SocketAddr,
    /// Whose name the client asked for in TLS, if it spoke TLS and did.
    pub sni: Option<String>,
    /// The first bytes, behind TLS: up to the end of the first head.
    pub first: Vec<u8>,
}

/// A request that arrived.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Request {
    /// Which of [`World::connections`](crate::World::connections).
    pub connection: usize,
    pub to: SocketAddr,
    pub tls: bool,
    pub sni: Option<String>,
    /// The `Host` header, without a port.
    pub host: String,
    pub method: String,
    /// As it stood on the wire.
    pub target: String,
    /// Names in small letters, in order.
    pub headers: Vec<(String, String)>,
    /// Its beginning.
    pub body: Vec<u8>,
    /// How many bytes of body arrived.
    pub body_bytes: u64,
}

impl Request {
    /// The one header of that name; none if there is none, panics if there are two.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self
            .headers
            .iter()
            .filter(|(own, _)| own == name)
            .map(|(_, value)| value.as_str());
        let first = all.next();
        assert_eq!(all.next(), None, "{name} twice: {self:?}");
        first
    }
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) connections: Vec<Connection>,
    pub(crate) requests: Vec<Request>,
    pub(crate) datagrams: Vec<Vec<u8>>,
}

/// Who is let in: requests to this host below this path have this header, or are answered 401.
#[derive(Clone, Debug)]
pub(crate) struct Required {
    pub(crate) host: String,
    pub(crate) below: String,
    pub(crate) header: String,
    pub(crate) value: String,
}

/// What all connections share.
pub(crate) struct Web {
    pub(crate) trust: Trust,
    /// Repositories lie below it.
    pub(crate) git: PathBuf,
    release: watch::Sender<()>,
    log: Mutex<Log>,
    changed: Condvar,
    tables: Mutex<Tables>,
}

/// What tests ordered.
#[derive(Default)]
pub(crate) struct Tables {
    /// Bytes that are the whole answer, by host.
    pub(crate) verbatim: BTreeMap<String, Bytes>,
    pub(crate) required: Vec<Required>,
    /// By host and path: type and content.
    pub(crate) files: BTreeMap<(String, String), (String, Bytes)>,
}

fn free<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Web {
    pub(crate) fn new(trust: Trust, git: PathBuf) -> Web {
        Web {
            trust,
            git,
            release: watch::Sender::new(()),
            log: Mutex::default(),
            changed: Condvar::new(),
            tables: Mutex::default(),
        }
    }

    /// Lets go on what is held.
    pub(crate) fn release(&self) {
        self.release.send_replace(());
    }

    /// The next time that it is let go on.
    pub(crate) fn released(&self) -> impl Future<Output = ()> + use<> {
        let mut seen = self.release.subscribe();
        // The world ends, else.
        async move { _ = seen.changed().await }
    }

    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        free(&self.tables)
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        free(&self.log)
    }

    /// Changes the log and wakes whoever waits for that.
    pub(crate) fn note<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let told = change(&mut self.log());
        self.changed.notify_all();
        told
    }

    /// Waits until the log is as wanted.
    #[track_caller]
    pub(crate) fn wait<T>(&self, longest: Duration, wanted: impl Fn(&Log) -> Option<T>) -> T {
        let deadline = Instant::now() + longest;
        let mut log = self.log();
        loop {
            if let Some(found) = wanted(&log) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "it did not come: {log:#?}");
            log = self
                .changed
                .wait_timeout(log, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// What came of a request's body.
    pub(crate) fn came(&self, request: usize, bytes: &[u8]) {
        self.note(|log| {
            // It may have been cleared away meanwhile.
            let Some(request) = log.requests.get_mut(request) else {
                return;
            };
            request.body_bytes += bytes.len() as u64;
            let room = KEPT.saturating_sub(request.body.len());
            request.body.extend(&bytes[..bytes.len().min(room)]);
        });
    }

    /// What is known of a connection; it may have been cleared away meanwhile.
    fn change(&self, number: usize, change: impl FnOnce(&mut Connection)) {
        self.note(|log| log.connections.get_mut(number).map(change));
    }

    fn connected(&self, to: SocketAddr) -> usize {
        let to = SocketAddr::new(to.ip().to_canonical(), to.port());
        self.note(|log| {
            log.connections.push(Connection {
                to,
                sni: None,
                first: Vec::new(),
            });
            log.connections.len() - 1
        })
    }
}

/// How a port is served.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Speech {
    Tls,
    Http,
    Echo,
}

/// Takes connections for ever.
pub(crate) async fn serve(listener: TcpListener, speech: Speech, web: Arc<Web>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let web = web.clone();
        // Whatever goes wrong with one: the log says what came.
        tokio::spawn(async move { connection(stream, speech, web).await });
    }
}

async fn connection(mut stream: TcpStream, speech: Speech, web: Arc<Web>) -> Option<()> {
    let to = stream.local_addr().ok()?;
    let number = web.connected(to);
    stream.set_nodelay(true).ok()?;
    match speech {
        Speech::Http => talk(stream, number, false, web).await,
        Speech::Echo => {
            if to.port() == 22 {
                stream.write_all(BANNER.as_bytes()).await.ok()?;
            }
            echo(stream, number, &web).await
        }
        Speech::Tls => {
            let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream)
                .await
                .ok()?;
            let sni = hello.client_hello().server_name().map(str::to_owned);
            web.change(number, |connection| connection.sni.clone_from(&sni));
            let name = sni.unwrap_or_else(|| to.ip().to_canonical().to_string());
            let stream = hello.into_stream(web.trust.server(&name)).await.ok()?;
            talk(stream, number, true, web).await
        }
    }
}

async fn echo(mut stream: TcpStream, number: usize, web: &Web) -> Option<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let size = stream
            .read(&mut buffer)
            .await
            .ok()
            .filter(|size| *size > 0)?;
        web.change(number, |connection| {
            let room = KEPT.saturating_sub(connection.first.len());
            connection.first.extend(&buffer[..size.min(room)]);
        });
        stream.write_all(&buffer[..size]).await.ok()?;
    }
}

/// Sends datagrams back for ever.
pub(crate) async fn serve_datagrams(socket: UdpSocket, web: Arc<Web>) {
    let mut buffer = [0; 2048];
    loop {
        let Ok((size, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        web.note(|log| log.datagrams.push(buffer[..size].to_vec()));
        // Whoever sent it may be gone.
        _ = socket.send_to(&buffer[..size], from).await;
    }
}

/// HTTP, once the first head has been written down as it came.
async fn talk<S>(mut stream: S, number: usize, tls: bool, web: Arc<Web>) -> Option<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let first = first_head(&mut stream).await?;
    web.change(number, |connection| connection.first.clone_from(&first));
    let verbatim = web.tables().verbatim.get(&host_of(&first)).cloned();
    if let Some(bytes) = verbatim {
        stream.write_all(&bytes).await.ok()?;
        return stream.shutdown().await.ok();
    }
    let io = TokioIo::new(Rewound::new(first.into(), stream));
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let web = web.clone();
        async move { answers::answer(request, number, tls, &web).await }
    });
    http1::Builder::new()
        .serve_connection(io, service)
        .with_upgrades()
        .await
        .ok()
}

async fn first_head<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Vec<u8>> {
    let (mut first, mut buffer) = (Vec::new(), [0; 4096]);
    while first.len() < LONGEST_HEAD && !first.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read(&mut buffer).await.ok()? {
            0 => break,
            size => first.extend(&buffer[..size]),
        }
    }
    Some(first)
}

/// The host that a head names, without a port.
fn host_of(head: &[u8]) -> String {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let value = text.lines().find_map(|line| line.strip_prefix("host:"));
    without_port(value.unwrap_or_default().trim()).to_owned()
}

/// A host without the port behind it.
pub(crate) fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.contains(':') =>
        {
            name
        }
        _ => host,
    }
}
