//! The load. Reads just enough HTTP to know that an answer is whole.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const PIECE: usize = 256 << 10;
const LONGEST_HEAD: usize = 64 << 10;

/// A kept connection.
pub(crate) struct Client {
    stream: TcpStream,
    host: SocketAddr,
    key: String,
    /// What came after the answer that was read last.
    rest: Vec<u8>,
}

/// What was answered, without its body.
struct Head {
    status: u16,
    length: Option<u64>,
}

impl Client {
    /// A new one, with this key if there is any.
    pub(crate) fn open(host: SocketAddr, key: &str) -> io::Result<Client> {
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client {
            stream,
            host,
            key: key.to_owned(),
            rest: Vec::new(),
        })
    }

    /// One request with a short body, and the whole body of its answer, which must be a good one.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<Vec<u8>> {
        let mut request = self.head(method, path, body.len() as u64);
        request.push_str(body);
        self.stream.write_all(request.as_bytes())?;
        self.answer()
    }

    /// Sends so many bytes as a file.
    pub(crate) fn put(&mut self, path: &str, bytes: u64) -> io::Result<()> {
        let head = self.head("PUT", path, bytes);
        self.stream.write_all(head.as_bytes())?;
        let piece = vec![b'x'; PIECE];
        let mut left = bytes;
        while left > 0 {
            let part = left.min(PIECE as u64);
            self.stream.write_all(&piece[..part as usize])?;
            left -= part;
        }
        self.answer().map(drop)
    }

    /// Takes a file, which must have so many bytes.
    pub(crate) fn get(&mut self, path: &str, bytes: u64) -> io::Result<()> {
        let request = self.head("GET", path, 0);
        self.stream.write_all(request.as_bytes())?;
        let head = self.read_head()?;
        if head.status != 200 || head.length != Some(bytes) {
            return Err(io::Error::other(format!(
                "{} with {:?} bytes",
                head.status, head.length
            )));
        }
        let mut left = bytes - self.rest.len() as u64;
        self.rest.clear();
        let mut piece = vec![0; PIECE];
        while left > 0 {
            match self.stream.read(&mut piece)? {
                0 => return Err(io::Error::other("the connection ended too early")),
                bytes => left -= bytes as u64,
            }
        }
        Ok(())
    }

    fn head(&self, method: &str, path: &str, length: u64) -> String {
        let Client { host, key, .. } = self;
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
        )
    }

    fn answer(&mut self) -> io::Result<Vec<u8>> {
        let head = self.read_head()?;
        let Some(length) = head.length else {
            return Err(io::Error::other("an answer without a length"));
        };
        while (self.rest.len() as u64) < length {
            self.more()?;
        }
        let body: Vec<_> = self.rest.drain(..length as usize).collect();
        match head.status {
            200..300 => Ok(body),
            status => Err(io::Error::other(format!(
                "{status}: {}",
                String::from_utf8_lossy(&body)
            ))),
        }
    }

    fn read_head(&mut self) -> io::Result<Head> {
        loop {
            if let Some(end) = self.rest.windows(4).position(|four| four == b"\r\n\r\n") {
                let text = String::from_utf8_lossy(&self.rest[..end]).into_owned();
                self.rest.drain(..end + 4);
                return Head::read(&text)
                    .ok_or_else(|| io::Error::other(format!("not HTTP: {text}")));
            }
            if self.rest.len() > LONGEST_HEAD {
                return Err(io::Error::other("headers without an end"));
            }
            self.more()?;
        }
    }

    fn more(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 << 10];
        match self.stream.read(&mut piece)? {
            0 => Err(io::Error::other(
                "the connection ended before the answer did",
            )),
            bytes => {
                self.rest.extend_from_slice(&piece[..bytes]);
                Ok(())
            }
        }
    }
}

impl Head {
    fn read(text: &str) -> Option<Head> {
        let mut lines = text.lines();
        let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let length = lines.filter_map(|line| line.split_once(':'));
        let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let length = length
            .next()
            .and_then(|(_, value)| value.trim().parse().ok());
        // What has no body says no length.
        Some(Head {
            status,
            length: if matches!(status, 204 | 304) {
                Some(0)
            } else {
                length
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    /// Answers one request after the other on one connection with these words, in small pieces.
    fn server(answers: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let mut asked = Vec::new();
                let mut byte = [0];
                while !asked.ends_with(b"\r\n\r\n") {
                    stream.read_exact(&mut byte).unwrap();
                    asked.extend(byte);
                }
                answer
                    .as_bytes()
                    .chunks(5)
                    .for_each(|piece| stream.write_all(piece).unwrap());
            }
        });
        address
    }

    #[test]
    fn answers_are_read_whole_and_bad_ones_are_errors() {
        let address = server(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        ]);
        let mut client = Client::open(address, "key").unwrap();
        assert_eq!(client.ask("GET", "/", "").unwrap(), b"hello");
        assert_eq!(client.ask("DELETE", "/", "").unwrap(), b"");
        assert_eq!(
            client.ask("GET", "/", "").unwrap_err().to_string(),
            "404: none"
        );
        client.get("/", 3).unwrap();
        assert!(client.get("/", 4).is_err(), "a file of another size");
    }
}
