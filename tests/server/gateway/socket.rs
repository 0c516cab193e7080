//! The client's side of a WebSocket, from the frames up.

use crate::{Client, Stream};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// One WebSocket.
#[derive(Debug)]
pub struct Socket {
    stream: Stream,
}

/// What came.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Frame {
    Text(Value),
    Bytes(Vec<u8>),
    Ping,
    Close,
}

impl Socket {
    /// Opens one; the status of the answer if it is refused.
    pub fn open(client: &Client, path: &str, headers: &[(&str, &str)]) -> Result<Socket, u16> {
        let own = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let mut stream =
            client.open(&client.request("GET", path, &[headers, &own].concat(), &Value::Null));
        match stream.head() {
            Some((101, _)) => Ok(Socket { stream }),
            Some((status, _)) => Err(status),
            None => Err(0),
        }
    }

    /// Sends bytes to be typed.
    pub fn keys(&mut self, bytes: &[u8]) {
        self.send(2, bytes);
    }

    /// Sends a text frame.
    pub fn say(&mut self, said: &Value) {
        self.send(1, said.to_string().as_bytes());
    }

    fn send(&mut self, kind: u8, bytes: &[u8]) {
        let mut frame = vec![0x80 | kind];
        match bytes.len() {
            short @ 0..=125 => frame.push(0x80 | short as u8),
            long @ 126..=65535 => {
                frame.push(0x80 | 126);
                frame.extend((long as u16).to_be_bytes());
            }
            longer => {
                frame.push(0x80 | 127);
                frame.extend((longer as u64).to_be_bytes());
            }
        }
        let mask = [1, 2, 3, 4];
        frame.extend(mask);
        frame.extend(
            bytes
                .iter()
                .zip(mask.iter().cycle())
                .map(|(byte, mask)| byte ^ mask),
        );
        self.stream.send(&frame);
    }

    /// The next frame; none if the connection was cut. Pings are answered.
    pub fn frame(&mut self) -> Option<Frame> {
        loop {
            let (kind, bytes) = self.raw()?;
            return match kind {
                1 => Some(Frame::Text(
                    serde_json::from_slice(&bytes).expect("text frames are JSON"),
                )),
                2 => Some(Frame::Bytes(bytes)),
                8 => Some(Frame::Close),
                9 => {
                    self.send(10, &bytes);
                    Some(Frame::Ping)
                }
                _ => continue,
            };
        }
    }

    fn raw(&mut self) -> Option<(u8, Vec<u8>)> {
        let head = self.take(2)?;
        assert_eq!(head[0] & 0x70, 0, "nothing was agreed on");
        let length = match head[1] {
            126 => u64::from(u16::from_be_bytes(self.take(2)?.try_into().expect("two"))),
            127 => u64::from_be_bytes(self.take(8)?.try_into().expect("eight")),
            short => u64::from(short),
        };
        Some((head[0] & 15, self.take(length as usize)?))
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.stream.rest.len() < count {
            if !self.stream.read() {
                return None;
            }
        }
        Some(self.stream.rest.drain(..count).collect())
    }

    /// Reads until this text was shown; all that was shown.
    pub fn until(&mut self, wanted: &str) -> String {
        let (mut shown, end) = (Vec::new(), Instant::now() + PATIENCE);
        while !String::from_utf8_lossy(&shown).contains(wanted) {
            // Pings go on for ever.
            let late = Instant::now() > end;
            match self.frame().filter(|_| !late) {
                Some(Frame::Bytes(bytes)) => shown.extend(bytes),
                Some(Frame::Text(_) | Frame::Ping) => {}
                end => panic!(
                    "`{wanted}` was not shown before {end:?}: {}",
                    String::from_utf8_lossy(&shown)
                ),
            }
        }
        String::from_utf8_lossy(&shown).into_owned()
    }
}
