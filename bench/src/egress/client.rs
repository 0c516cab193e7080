//! The load. Reads just enough HTTP to know that an answer is whole.

use crate::egress::{
    origin::{BODY, KEY, NAME, Origin, SEND},
    ways::{Entry, Way},
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const PIECE: usize = 256 << 10;

/// A connection to the server, by the name that a proxy is told.
pub(crate) fn open(entry: Entry, server: SocketAddr, name: &str) -> io::Result<TcpStream> {
    let (Entry::Server | Entry::Relay(_)) = entry else {
        return ask_proxy(entry, server, name);
    };
    connect(entry, server)
}

fn connect(entry: Entry, server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(match entry {
        Entry::Server => server,
        Entry::Relay(address) | Entry::Proxy(address) => address,
    })?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn ask_proxy(entry: Entry, server: SocketAddr, name: &str) -> io::Result<TcpStream> {
    let mut stream = connect(entry, server)?;
    stream.write_all(format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n").as_bytes())?;
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Err(io::Error::other("the proxy hung up")),
            bytes => head.extend_from_slice(&piece[..bytes]),
        }
    }
    match head.get(8..12) {
        Some(b" 200") => Ok(stream),
        _ => Err(io::Error::other(
            String::from_utf8_lossy(&head).into_owned(),
        )),
    }
}

/// Takes this many bytes from the server; how long that took.
pub(crate) fn take(stream: &mut TcpStream, bytes: u64) -> io::Result<Duration> {
    let mut piece = vec![0; PIECE];
    let begun = Instant::now();
    stream.write_all(&[&[SEND][..], &bytes.to_be_bytes()].concat())?;
    let mut left = bytes;
    while left > 0 {
        match stream.read(&mut piece)? {
            0 => return Err(io::Error::other("the connection ended too early")),
            bytes => left -= bytes as u64,
        }
    }
    Ok(begun.elapsed())
}

/// Says something and waits until it comes back.
pub(crate) fn echo(stream: &mut TcpStream, words: &[u8]) -> io::Result<()> {
    stream.write_all(words)?;
    stream.read_exact(&mut vec![0; words.len()])
}

/// The first message of TLS, as programs send it.
pub(crate) fn hello() -> io::Result<Vec<u8>> {
    let config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    // By an address, as tunnels are asked for here: without a name in it.
    let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// A kept connection for requests over TLS.
pub(crate) struct Secure {
    stream: StreamOwned<ClientConnection, TcpStream>,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Secure {
    pub(crate) fn open(way: &Way, ca: &Path, origin: &Origin) -> io::Result<Secure> {
        let name = format!("{NAME}:{}", origin.secure.port());
        let stream = open(way.entry, origin.secure, &name)?;
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_file_iter(ca).map_err(io::Error::other)?;
        for certificate in certificates {
            roots
                .add(certificate.map_err(io::Error::other)?)
                .map_err(io::Error::other)?;
        }
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let connection =
            ClientConnection::new(Arc::new(config), server).map_err(io::Error::other)?;
        // Nobody between, nobody who puts the credential in.
        let key = match way.entry {
            Entry::Server | Entry::Relay(_) => format!("authorization: Bearer {KEY}\r\n"),
            Entry::Proxy(_) => String::new(),
        };
        let request =
            format!("GET /one HTTP/1.1\r\nhost: {name}\r\naccept: */*\r\n{key}\r\n").into_bytes();
        Ok(Secure {
            stream: StreamOwned::new(connection, stream),
            request,
            answer: Vec::new(),
        })
    }

    /// One request and its whole answer, which must be a good one.
    pub(crate) fn ask(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.request)?;
        self.answer.clear();
        let mut piece = [0; 4096];
        loop {
            let end = self.answer.windows(4).position(|four| four == b"\r\n\r\n");
            match end {
                Some(_) if !self.answer.starts_with(b"HTTP/1.1 200") => {
                    return Err(io::Error::other(
                        String::from_utf8_lossy(&self.answer).into_owned(),
                    ));
                }
                Some(end) if self.answer.len() == end + 4 + BODY => return Ok(()),
                _ => {}
            }
            match self.stream.read(&mut piece)? {
                0 => {
                    return Err(io::Error::other(
                        "the connection ended before the answer did",
                    ));
                }
                bytes => self.answer.extend_from_slice(&piece[..bytes]),
            }
        }
    }
}
