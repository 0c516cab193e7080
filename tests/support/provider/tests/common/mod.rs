//! A client that sees bytes: what an HTTP library would mend or hide is what these tests are about.
#![allow(dead_code, reason = "each test file uses its part")]

use provider::{Provider, Settings};
use serde_json::Value;
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

pub(crate) const KEY: &str = "real-key";

/// How the bytes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// As the framing promised.
    Whole,
    /// Before that.
    Short,
    /// With bytes that the framing does not know.
    Long,
    /// By a reset.
    Reset,
    /// A chunk was none.
    BadChunk,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) ending: Ending,
    /// Chunks, if it came in such.
    pub(crate) chunks: Vec<Vec<u8>>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(one, _)| one == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The JSON of every `data:` line but `[DONE]`.
    pub(crate) fn data(&self) -> Vec<Value> {
        let text = self.text();
        let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
        data.map(str::trim)
            .filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).expect("data is JSON"))
            .collect()
    }

    /// The names of its events.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = self.text();
        text.lines()
            .filter_map(|line| line.strip_prefix("event: "))
            .map(str::to_owned)
            .collect()
    }

    /// The JSON of every line.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text()
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line is JSON"))
            .collect()
    }
}

/// A provider that lets `KEY` in.
pub(crate) fn start() -> Provider {
    Provider::start(Settings {
        keys: vec![KEY.to_owned()],
        ..Settings::default()
    })
}

/// A request with the key in every header that a dialect knows.
pub(crate) fn request(method: &str, path: &str, body: &Value) -> String {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    format!(
        "{method} {path} HTTP/1.1\r\nhost: mock\r\nauthorization: Bearer {KEY}\r\nx-api-key: {KEY}\r\n\
         x-goog-api-key: {KEY}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends it and leaves the connection open.
pub(crate) fn open(provider: &Provider, request: &str) -> TcpStream {
    let mut socket = TcpStream::connect(provider.address()).expect("it listens");
    socket.write_all(request.as_bytes()).expect("it reads");
    socket
}

pub(crate) fn post(provider: &Provider, path: &str, body: &Value) -> Answer {
    read(open(provider, &request("POST", path, body)))
}

pub(crate) fn get(provider: &Provider, path: &str) -> Answer {
    read(open(provider, &request("GET", path, &Value::Null)))
}

/// Reads until the connection ends.
pub(crate) fn read(mut socket: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let reset = match socket.read_to_end(&mut bytes) {
        Ok(_) => false,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        Err(error) => panic!("{error}"),
    };
    let mut answer = parse(&bytes);
    if reset {
        answer.ending = Ending::Reset;
    }
    answer
}

fn parse(bytes: &[u8]) -> Answer {
    let mut answer = Answer {
        status: 0,
        headers: Vec::new(),
        body: Vec::new(),
        ending: Ending::Short,
        chunks: Vec::new(),
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
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let rest = &bytes[end + 4..];
    match answer
        .header("content-length")
        .map(|length| length.parse::<usize>().expect("a length"))
    {
        Some(length) => {
            answer.ending = match rest.len().cmp(&length) {
                std::cmp::Ordering::Less => Ending::Short,
                std::cmp::Ordering::Equal => Ending::Whole,
                std::cmp::Ordering::Greater => Ending::Long,
            };
            answer.body = rest[..length.min(rest.len())].to_vec();
        }
        None => dechunk(rest, &mut answer),
    }
    answer
}

fn dechunk(mut rest: &[u8], answer: &mut Answer) {
    loop {
        let Some(line) = rest.windows(2).position(|two| two == b"\r\n") else {
            return;
        };
        let size = std::str::from_utf8(&rest[..line])
            .ok()
            .and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(size) = size else {
            return answer.ending = Ending::BadChunk;
        };
        let Some(chunk) = rest.get(line + 2..line + 2 + size) else {
            return;
        };
        rest = &rest[(line + 4 + size).min(rest.len())..];
        if size == 0 {
            answer.ending = if rest.is_empty() {
                Ending::Whole
            } else {
                Ending::Long
            };
            return;
        }
        answer.body.extend_from_slice(chunk);
        answer.chunks.push(chunk.to_vec());
    }
}
