//! A client that sees bytes: what an HTTP library would mend or hide is what these tests are about.

use serde_json::Value;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

/// Longer than anything here takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a server listens.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Client {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// An answer.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Answer {
    /// 0 if there was none.
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

trait Connection: Read + Write + Send + std::fmt::Debug {}
impl Connection for TcpStream {}
impl Connection for UnixStream {}

/// A connection on which something was asked.
#[derive(Debug)]
pub struct Stream {
    connection: Box<dyn Connection>,
    /// What came and was not looked at yet.
    pub rest: Vec<u8>,
}

impl Client {
    /// The name by which it is addressed.
    pub fn host(&self) -> String {
        match self {
            Client::Tcp(address) => address.to_string(),
            Client::Unix(_) => "localhost".to_owned(),
        }
    }

    /// A request; the body is left away if it is null. A `host` among the headers stands for the usual one.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Vec<u8> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let own = headers.iter().any(|(name, _)| *name == "host");
        let host = if own {
            String::new()
        } else {
            format!("host: {}\r\n", self.host())
        };
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let length = body.len();
        format!("{method} {path} HTTP/1.1\r\n{host}{headers}content-length: {length}\r\n\r\n{body}")
            .into_bytes()
    }

    /// Sends these bytes.
    pub fn open(&self, bytes: &[u8]) -> Stream {
        self.try_open(bytes).expect("the server listens")
    }

    /// Sends these bytes to a server that may be dead.
    pub fn try_open(&self, bytes: &[u8]) -> io::Result<Stream> {
        let mut connection: Box<dyn Connection> = match self {
            Client::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Box::new(stream)
            }
            Client::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Box::new(stream)
            }
        };
        // A server that refuses early may not read all of it.
        _ = connection.write_all(bytes);
        Ok(Stream {
            connection,
            rest: Vec::new(),
        })
    }
}

impl Stream {
    /// Sends more.
    pub fn send(&mut self, bytes: &[u8]) {
        _ = self.connection.write_all(bytes);
    }

    /// Reads some more; false at the end.
    pub fn read(&mut self) -> bool {
        let mut buffer = [0; 65536];
        loop {
            match self.connection.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    self.rest.extend_from_slice(&buffer[..count]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing comes"),
                Err(_) => return false,
            }
        }
    }

    /// The head of the answer: its status and headers.
    pub fn head(&mut self) -> Option<(u16, Vec<(String, String)>)> {
        let end = loop {
            match self.rest.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                Some(end) => break end,
                None if !self.read() => return None,
                None => {}
            }
        };
        let head = String::from_utf8_lossy(&self.rest[..end]).into_owned();
        self.rest.drain(..end + 4);
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        Some((status, lines.filter_map(header).collect()))
    }

    /// The whole answer; the connection can be used again.
    pub fn answer(&mut self) -> Answer {
        let Some((status, headers)) = self.head() else {
            return Answer {
                status: 0,
                headers: Vec::new(),
                body: std::mem::take(&mut self.rest),
            };
        };
        let find = |name: &str| {
            headers
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
        };
        let body = match (
            find("content-length").and_then(|length| length.parse::<usize>().ok()),
            status,
        ) {
            (Some(length), _) => {
                while self.rest.len() < length && self.read() {}
                self.rest.drain(..length.min(self.rest.len())).collect()
            }
            (None, 204 | 304) => Vec::new(),
            (None, _) if find("transfer-encoding").is_some() => self.chunks(),
            (None, _) => {
                while self.read() {}
                std::mem::take(&mut self.rest)
            }
        };
        Answer {
            status,
            headers,
            body,
        }
    }

    /// The next piece of a body that comes in pieces; none at its end.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let end = loop {
            match self.rest.windows(2).position(|bytes| bytes == b"\r\n") {
                Some(end) => break end,
                None if !self.read() => return None,
                None => {}
            }
        };
        let size = usize::from_str_radix(std::str::from_utf8(&self.rest[..end]).ok()?, 16).ok()?;
        while self.rest.len() < end + 2 + size + 2 {
            if !self.read() {
                return None;
            }
        }
        let piece = self.rest[end + 2..end + 2 + size].to_vec();
        self.rest.drain(..end + 2 + size + 2);
        (size > 0).then_some(piece)
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        while let Some(piece) = self.chunk() {
            body.extend(piece);
        }
        body
    }
}

impl Answer {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON: {}", self.text()))
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}
