//! The load: connections that ask, wait for the whole answer, and ask again. Reads just enough HTTP to know that an answer
//! is whole and how many tokens are in it.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where to ask, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

impl Target {
    /// The bytes of a chat call.
    pub(crate) fn chat(&self, body: &str) -> Vec<u8> {
        let (address, token, length) = (self.address, &self.token, body.len());
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

/// The body of a chat call with a prompt of this many bytes.
pub(crate) fn body(model: &str, stream: bool, prompt: usize) -> String {
    let prompt = "word ".repeat(prompt.div_ceil(5));
    let message = serde_json::json!({ "role": "user", "content": prompt });
    serde_json::json!({ "model": model, "stream": stream, "messages": [message] }).to_string()
}

/// One answer, as it came.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) whole: Duration,
    /// Until the first token was there.
    pub(crate) first: Duration,
    pub(crate) tokens: usize,
    /// How long stamped tokens were under way, in microseconds.
    pub(crate) delays: Vec<f64>,
}

/// A connection that is kept.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Known as soon as the head is there.
    end: Option<End>,
}

/// Where an answer ends.
#[derive(Clone, Copy, Debug)]
enum End {
    At(usize),
    LastChunk,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Connection> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Connection {
            socket,
            buffer: Vec::with_capacity(16 << 10),
            end: None,
        })
    }

    /// Asks and waits for the whole answer, which must be a good one; how many tokens it has.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> io::Result<usize> {
        self.send(request).await?;
        self.rest().await?;
        Ok(count(&decoded(&self.buffer)))
    }

    /// The same, and looks at the clock whenever something comes.
    pub(crate) async fn ask_timed(&mut self, request: &[u8]) -> io::Result<Reply> {
        let mut reply = Reply::default();
        let mut seen = 0;
        let start = self.send(request).await?;
        while !self.is_whole() {
            self.read().await?;
            if reply.first.is_zero() && find(&self.buffer, b"tok").is_some() {
                reply.first = start.elapsed();
            }
            note_delays(&self.buffer, &mut seen, &mut reply.delays);
        }
        reply.whole = start.elapsed();
        reply.tokens = count(&decoded(&self.buffer));
        check(&self.buffer)?;
        Ok(reply)
    }

    /// Asks and waits for the first token only.
    pub(crate) async fn ask_for_first(&mut self, request: &[u8]) -> io::Result<()> {
        self.send(request).await?;
        while find(&self.buffer, b"tok").is_none() {
            self.read().await?;
        }
        check(&self.buffer)
    }

    /// Waits for the rest.
    pub(crate) async fn rest(&mut self) -> io::Result<()> {
        while !self.is_whole() {
            self.read().await?;
        }
        check(&self.buffer)
    }

    async fn send(&mut self, request: &[u8]) -> io::Result<Instant> {
        self.buffer.clear();
        self.end = None;
        let start = Instant::now();
        self.socket.write_all(request).await?;
        Ok(start)
    }

    async fn read(&mut self) -> io::Result<()> {
        let read = timeout(PATIENCE, self.socket.read_buf(&mut self.buffer)).await;
        match read.map_err(|_| io::Error::other("nothing came for a minute"))?? {
            0 => Err(io::Error::other(
                "the connection ended before the answer did",
            )),
            _ => Ok(()),
        }
    }

    fn is_whole(&mut self) -> bool {
        self.end = self.end.or_else(|| end(&self.buffer));
        match self.end {
            None => false,
            Some(End::At(end)) => self.buffer.len() >= end,
            Some(End::LastChunk) => self.buffer.ends_with(b"\r\n0\r\n\r\n"),
        }
    }
}

/// By its own head: as long as it says, or up to the last chunk.
fn end(answer: &[u8]) -> Option<End> {
    let end = find(answer, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse::<usize>().ok());
    Some(length.map_or(End::LastChunk, |length| End::At(end + 4 + length)))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

fn check(answer: &[u8]) -> io::Result<()> {
    if answer.starts_with(b"HTTP/1.1 200") {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&answer[..answer.len().min(400)]).into_owned();
    Err(io::Error::other(format!(
        "not what was asked for: {}",
        text.replace("\r\n", " | ")
    )))
}

/// The body without its chunks.
fn decoded(answer: &[u8]) -> Vec<u8> {
    let Some(end) = find(answer, b"\r\n\r\n") else {
        return Vec::new();
    };
    let (head, mut rest) = (&answer[..end], &answer[end + 4..]);
    if !String::from_utf8_lossy(head)
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        return rest.to_vec();
    }
    let mut body = Vec::with_capacity(rest.len());
    while let Some(line) = find(rest, b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..line]);
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let Some(chunk) = rest
            .get(line + 2..line + 2 + size)
            .filter(|chunk| !chunk.is_empty())
        else {
            break;
        };
        body.extend_from_slice(chunk);
        rest = rest.get(line + 4 + size..).unwrap_or_default();
    }
    body
}

/// Tokens: `tok` with a digit behind.
fn count(body: &[u8]) -> usize {
    body.windows(4)
        .filter(|four| four.starts_with(b"tok") && four[3].is_ascii_digit())
        .count()
}

/// Stamps are the longest numbers that a token can have.
const STAMP: usize = 19;

/// Notes how old the stamps are that came since last time. A stamp cut by a chunk is not noted; there is always the next.
fn note_delays(answer: &[u8], seen: &mut usize, delays: &mut Vec<f64>) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    while let Some(at) = find(&answer[*seen..], b"tok") {
        let start = *seen + at + 3;
        let Some(digits) = answer.get(start..start + STAMP) else {
            return;
        };
        *seen = start;
        let stamp = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| text.parse::<u128>().ok());
        delays.extend(stamp.map(|stamp| now.saturating_sub(stamp) as f64 / 1e3));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use provider::{Fault, Provider, Script, Settings};

    fn ask(script: Script, body: &str) -> io::Result<Reply> {
        let provider = Provider::start(Settings {
            script,
            ..Settings::default()
        });
        let target = Target {
            address: provider.address(),
            token: "any".to_owned(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut connection = Connection::open(target.address).await?;
            // Twice: a kept connection begins anew.
            let tokens = connection.ask(&target.chat(body)).await?;
            let reply = connection.ask_timed(&target.chat(body)).await?;
            assert_eq!(reply.tokens, tokens);
            Ok(reply)
        })
    }

    #[test]
    fn every_token_of_a_stream_is_counted_however_it_is_cut() {
        let body = body("mock-tokens-64", true, 2000);
        assert_eq!(ask(Script::default(), &body).unwrap().tokens, 64);
        let cut = Script {
            split: Some(3),
            ..Script::default()
        };
        assert_eq!(ask(cut, &body).unwrap().tokens, 64);
        assert_eq!(
            ask(Fault::Cut(3).into(), &body)
                .unwrap_err()
                .to_string()
                .split(' ')
                .next(),
            Some("the")
        );
    }

    #[test]
    fn an_answer_that_is_none_is_a_failure() {
        let status = Fault::Status {
            code: 503,
            retry_after: None,
            bills: false,
        };
        assert!(
            ask(status.into(), &body("m", false, 10))
                .unwrap_err()
                .to_string()
                .contains("503")
        );
        assert_eq!(
            ask(Script::default(), &body("m", false, 10))
                .unwrap()
                .tokens,
            8
        );
    }

    #[test]
    fn stamps_tell_how_long_tokens_were_under_way() {
        let reply = ask(Script::default(), &body("mock-tokens-5-stamp-1", true, 10)).unwrap();
        assert_eq!((reply.tokens, reply.delays.len()), (5, 5));
        assert!(
            reply
                .delays
                .iter()
                .all(|delay| *delay > 0.0 && *delay < 60e6)
        );
    }
}
