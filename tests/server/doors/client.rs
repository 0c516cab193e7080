//! A client that sees bytes: what an HTTP library would mend or hide is what these tests are about.

use serde_json::Value;
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

/// Longer than anything here takes; a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where calls are taken.
#[derive(Clone, Debug)]
pub enum Door {
    /// A TCP listener.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// How the bytes of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As the framing promised.
    Whole,
    /// Before that.
    Short,
    /// By a reset.
    Reset,
}

/// An answer, whole or not.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Answer {
    /// 0 if there was none.
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub ending: Ending,
    /// Everything, as it came.
    pub raw: Vec<u8>,
}

/// A request; the body is left away if it is null.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Vec<u8> {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: door\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

trait Connection: Read + Write + Send + std::fmt::Debug {
    fn wait(&self, patience: Duration);
}

impl Connection for TcpStream {
    fn wait(&self, patience: Duration) {
        self.set_read_timeout(Some(patience))
            .expect("a timeout can be set");
    }
}

impl Connection for UnixStream {
    fn wait(&self, patience: Duration) {
        self.set_read_timeout(Some(patience))
            .expect("a timeout can be set");
    }
}

/// A connection, and what came on it so far.
#[derive(Debug)]
pub struct Stream {
    connection: Box<dyn Connection>,
    came: Vec<u8>,
}

impl Door {
    fn connect(&self) -> Box<dyn Connection> {
        match self {
            Door::Tcp(address) => Box::new(TcpStream::connect(address).expect("it listens")),
            Door::Unix(path) => Box::new(UnixStream::connect(path).expect("it listens")),
        }
    }

    /// Whether anybody listens.
    pub fn is_open(&self) -> bool {
        match self {
            Door::Tcp(address) => TcpStream::connect(address).is_ok(),
            Door::Unix(path) => UnixStream::connect(path).is_ok(),
        }
    }

    /// Sends a request and leaves the connection open.
    pub fn open(&self, request: &[u8]) -> Stream {
        let mut connection = self.connect();
        connection.wait(PATIENCE);
        // Refused early, it may not have been read to its end.
        _ = connection.write_all(request);
        Stream {
            connection,
            came: Vec::new(),
        }
    }

    /// Sends a request and reads the one answer.
    pub fn ask(&self, request: &[u8]) -> Answer {
        let end = request
            .windows(2)
            .position(|two| two == b"\r\n")
            .expect("a request has lines");
        let (first, rest) = request.split_at(end);
        self.open(&[first, b"\r\nconnection: close", rest].concat())
            .finish()
    }
}

impl Stream {
    /// Sends another request on the same connection.
    pub fn send(&mut self, request: &[u8]) {
        self.connection.write_all(request).expect("it is read");
    }

    /// Reads until these words have come.
    pub fn until(&mut self, words: &str) {
        let mut buffer = [0; 4096];
        while !self
            .came
            .windows(words.len())
            .any(|part| part == words.as_bytes())
        {
            let count = self.connection.read(&mut buffer).expect("it goes on");
            assert!(
                count > 0,
                "it ended before `{words}`: {}",
                String::from_utf8_lossy(&self.came)
            );
            self.came.extend_from_slice(&buffer[..count]);
        }
    }

    /// Reads what comes first, if anything does.
    pub fn first_bytes(&mut self) {
        let mut buffer = [0; 4096];
        let count = self.connection.read(&mut buffer).unwrap_or(0);
        self.came.extend_from_slice(&buffer[..count]);
    }

    /// What came so far.
    pub fn came(&self) -> &[u8] {
        &self.came
    }

    /// Reads until these two bytes have come behind so many others, or nothing more; keeps nothing. How much came.
    pub fn discard_until(mut self, end: &[u8; 2], behind: usize) -> usize {
        let (mut buffer, mut count, mut last) = (vec![0; 1 << 16], 0, 0);
        while let Ok(read @ 1..) = self.connection.read(&mut buffer) {
            let is_end = |two: &[u8]| two == end;
            let found = buffer[..read].windows(2).any(is_end) || [last, buffer[0]] == *end;
            (count, last) = (count + read, buffer[read - 1]);
            if found && count > behind {
                break;
            }
        }
        count
    }

    /// Reads what has come to its end, which must be there already: nothing is waited for.
    pub fn finish_at_once(self) -> Answer {
        self.connection.wait(Duration::from_millis(1));
        self.finish()
    }

    /// Reads to the end of the connection.
    pub fn finish(mut self) -> Answer {
        let reset = match self.connection.read_to_end(&mut self.came) {
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
            Err(error) => panic!(
                "it does not end: {error}: {}",
                String::from_utf8_lossy(&self.came)
            ),
        };
        let mut answer = Answer::parse(&self.came);
        if reset {
            answer.ending = Ending::Reset;
        }
        answer
    }
}

impl Answer {
    /// Its header, if it came.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(one, _)| one == name)
            .map(|(_, value)| value.as_str())
    }

    /// Its body.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Its body.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Status, headers and body, without what the clock says.
    pub fn without_date(&self) -> (u16, Vec<(String, String)>, String) {
        let headers = self
            .headers
            .iter()
            .filter(|(name, _)| name != "date")
            .cloned()
            .collect();
        (self.status, headers, self.text())
    }

    fn parse(bytes: &[u8]) -> Answer {
        let mut answer = Answer {
            status: 0,
            headers: Vec::new(),
            body: Vec::new(),
            ending: Ending::Short,
            raw: bytes.to_vec(),
        };
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            return answer;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        answer.status = head[9..12].parse().expect("a status");
        let fields = head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "));
        answer.headers = fields
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let rest = &bytes[end + 4..];
        match answer
            .header("content-length")
            .map(|length| length.parse::<usize>().expect("a length"))
        {
            Some(length) => {
                answer.body = rest[..length.min(rest.len())].to_vec();
                answer.ending = if rest.len() >= length {
                    Ending::Whole
                } else {
                    Ending::Short
                };
            }
            None => answer.dechunk(rest),
        }
        answer
    }

    fn dechunk(&mut self, mut rest: &[u8]) {
        while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
            let size = std::str::from_utf8(&rest[..line]).ok();
            let size = size
                .and_then(|text| usize::from_str_radix(text, 16).ok())
                .expect("a chunk");
            let Some(chunk) = rest.get(line + 2..line + 2 + size) else {
                return;
            };
            self.body.extend_from_slice(chunk);
            rest = rest.get(line + 4 + size..).unwrap_or_default();
            if size == 0 {
                self.ending = Ending::Whole;
                return;
            }
        }
    }
}
