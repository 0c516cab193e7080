//! The other end of a bridge: a small HTTP server in the test itself, which keeps what it was asked.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{Arc, Mutex, mpsc},
    thread,
};

/// What was asked, whole: head and body.
#[derive(Clone, Default)]
pub(crate) struct ReceivedRequests(Arc<Mutex<Vec<String>>>);

impl ReceivedRequests {
    /// All of it, so far.
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().expect("nobody panics with it").clone()
    }

    fn keep(&self, request: String) {
        self.0.lock().expect("nobody panics with it").push(request);
    }
}

/// Serves on a socket that everybody may use. It says its name at `/health`, has `/v1/models`, streams at `/stream`
/// (each event when `next` is told), echoes bodies at `/echo`, and knows nothing else.
pub(crate) fn on_socket(
    path: &Path,
    name: &'static str,
    next: Option<mpsc::Receiver<()>>,
) -> ReceivedRequests {
    let listener = UnixListener::bind(path).expect("a socket can be made");
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("its mode can be set");
    let (asked, next) = (ReceivedRequests::default(), Arc::new(Mutex::new(next)));
    let kept = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (kept, next) = (kept.clone(), next.clone());
            let other = UnixStream::try_clone(&stream).expect("a socket can be shared");
            thread::spawn(move || answer(stream, other, name, &kept, &next));
        }
    });
    asked
}

/// The same on a port of the host's loopback.
pub(crate) fn on_port(name: &'static str) -> (u16, ReceivedRequests) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let asked = ReceivedRequests::default();
    let kept = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let kept = kept.clone();
            let other = TcpStream::try_clone(&stream).expect("a socket can be shared");
            thread::spawn(move || answer(stream, other, name, &kept, &Mutex::new(None)));
        }
    });
    (port, asked)
}

fn answer(
    from: impl Read,
    mut to: impl Write,
    name: &str,
    asked: &ReceivedRequests,
    next: &Mutex<Option<mpsc::Receiver<()>>>,
) {
    let mut from = BufReader::new(from);
    let Ok((head, body)) = read(&mut from) else {
        return;
    };
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    asked.keep(format!("{head}{body}"));
    let (status, text) = match path.as_str() {
        "/health" => ("200 OK", format!("{name}\n")),
        "/v1/models" => ("200 OK", "{\"data\":[]}\n".to_owned()),
        "/echo" => ("200 OK", body),
        "/stream" => return stream(&mut to, next).unwrap_or_default(),
        _ => ("404 Not Found", "no\n".to_owned()),
    };
    // It claims to keep the connection, as careless servers do, and hangs up.
    _ = write!(
        to,
        "HTTP/1.1 {status}\r\nConnection: keep-alive\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
}

fn stream(to: &mut impl Write, next: &Mutex<Option<mpsc::Receiver<()>>>) -> io::Result<()> {
    to.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")?;
    let next = next.lock().expect("nobody panics with it");
    for event in 1..=3 {
        writeln!(to, "data: {event}")?;
        to.flush()?;
        if let Some(next) = next.as_ref() {
            next.recv().map_err(io::Error::other)?;
        }
    }
    Ok(())
}

fn read(from: &mut impl BufRead) -> io::Result<(String, String)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    from.read_exact(&mut body)?;
    if lower.contains("transfer-encoding: chunked") {
        let mut size = String::new();
        while size != "0\r\n" {
            size.clear();
            from.read_line(&mut size)?;
            let count = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
            let mut chunk = vec![0; count + 2];
            from.read_exact(&mut chunk)?;
            body.extend_from_slice(&chunk[..count]);
        }
    }
    Ok((head, String::from_utf8_lossy(&body).into_owned()))
}
