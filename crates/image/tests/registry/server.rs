//! A scripted HTTP server on loopback: one thread per connection, one request per connection.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Headers, with names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// Writes the response.
type Handler = dyn Fn(&Ask, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Ask>>>,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn new(
        handler: impl Fn(&Ask, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (log, end, handler): (Arc<Mutex<Vec<Ask>>>, _, Arc<Handler>) =
            (Arc::clone(&asked), Arc::clone(&stop), Arc::new(handler));
        let accepting = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                let log = Arc::clone(&log);
                let handler = Arc::clone(&handler);
                thread::spawn(move || serve(stream, &log, &*handler));
            }
        });
        Server {
            address,
            asked,
            stop,
            accepting: Some(accepting),
        }
    }

    /// The name of an image on this server.
    pub(crate) fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    /// The requests received so far.
    pub(crate) fn asked(&self) -> Vec<Ask> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        _ = TcpStream::connect(self.address);
        _ = self.accepting.take().unwrap().join();
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<Ask>>, handler: &Handler) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    // Anything but HTTP is the start of TLS: like most plain HTTP servers, this one responds in
    // plain HTTP.
    let mut stream = stream;
    match read(&mut reader) {
        Some(ask) => {
            log.lock().unwrap().push(ask.clone());
            // Many tests are about clients that disconnect.
            _ = handler(&ask, &mut stream);
        }
        None => _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Ask> {
    let mut first = [0];
    reader
        .read_exact(&mut first)
        .ok()
        .filter(|()| first[0].is_ascii_uppercase())?;
    let mut line = String::from(char::from(first[0]));
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let method = words.next()?;
    let path = words.next()?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    let length = headers
        .get("content-length")
        .map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Ask {
        method,
        path,
        headers,
        body: String::from_utf8(body).ok()?,
    })
}

/// A response with these header lines.
pub(crate) fn reply(
    stream: &mut TcpStream,
    status: u16,
    headers: &[&str],
    body: &[u8],
) -> std::io::Result<()> {
    let length = format!("Content-Length: {}", body.len());
    head(stream, status, &[headers, &[length.as_str()]].concat())?;
    stream.write_all(body)
}

/// The head of a response alone.
pub(crate) fn head(stream: &mut TcpStream, status: u16, headers: &[&str]) -> std::io::Result<()> {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    stream.write_all(format!("HTTP/1.1 {status} X\r\nConnection: close\r\n{lines}\r\n").as_bytes())
}
