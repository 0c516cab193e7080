//! Requests on their way to the control plane, one per connection. A request whose framing two
//! parsers could read differently is refused; the token is added, all else passes byte for byte.
//!
//! The end of a response is the end of its connection, which `Connection: close` asks for; so only
//! its head is parsed.

use super::{super::environment::Token, url::ControlPlaneUrl};

const MAX_HEAD_BYTES: usize = 32 << 10;
const MAX_HEADERS: usize = 128;
/// The bytes that a buffer takes before its source has to wait.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BridgeRequestError {
    /// It is not valid HTTP/1.1, or ambiguous.
    Malformed(&'static str),
    /// Its head is too large.
    TooLarge,
    /// Tunnels and other protocols are not supported.
    Unsupported(&'static str),
    /// The upstream cannot be reached, or does not speak HTTP.
    Upstream(&'static str),
}

impl BridgeRequestError {
    /// The whole response for this error.
    pub fn response(self) -> Vec<u8> {
        let (status, message) = match self {
            BridgeRequestError::Malformed(why) => ("400 Bad Request", why),
            BridgeRequestError::TooLarge => (
                "431 Request Header Fields Too Large",
                "the head is larger than 32 KiB",
            ),
            BridgeRequestError::Unsupported(why) => ("501 Not Implemented", why),
            BridgeRequestError::Upstream(why) => ("502 Bad Gateway", why),
        };
        let body = format!("{{\"error\":{{\"message\":\"airlock-init: {message}\"}}}}\n");
        let head = "Content-Type: application/json\r\nConnection: close";
        format!(
            "HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }
}

/// What is changed in every request.
#[derive(Debug)]
pub struct RequestRewrite {
    host: String,
    prefix: String,
    token: Token,
}

impl RequestRewrite {
    /// For requests to this URL.
    pub fn new(url: ControlPlaneUrl, token: Token) -> RequestRewrite {
        RequestRewrite {
            host: url.host,
            prefix: url.prefix,
            token,
        }
    }
}

/// How far a request has been read.
#[derive(Debug, Default, PartialEq)]
pub enum RequestState {
    /// Its head is incomplete.
    #[default]
    Head,
    /// So many bytes of its body are missing.
    Length(u64),
    /// Its body is chunked.
    Chunks(ChunkState),
    /// It is complete. What follows it is never read.
    Done,
}

/// How far a chunked body has been read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChunkState {
    /// Before the size of a chunk.
    Size,
    /// So many bytes of a chunk and its line end are missing.
    Data(u64),
    /// Before the empty line that ends the body.
    End,
}

impl RequestState {
    /// Moves complete and valid bytes from one buffer to the other, as far as that has room.
    pub fn advance(
        &mut self,
        from: &mut Vec<u8>,
        to: &mut Vec<u8>,
        rewrite: &RequestRewrite,
    ) -> Result<(), BridgeRequestError> {
        loop {
            let before = from.len();
            *self = match self {
                RequestState::Head => match take_head(from)? {
                    Some(head) => {
                        let head = RequestHead::parse(&head)?;
                        head.write(rewrite, to)?;
                        head.body
                    }
                    None => RequestState::Head,
                },
                RequestState::Length(left) => match pass(from, to, *left) {
                    0 => RequestState::Done,
                    left => RequestState::Length(left),
                },
                RequestState::Chunks(chunk) => match chunk.advance(from, to)? {
                    Some(chunk) => RequestState::Chunks(chunk),
                    None => RequestState::Done,
                },
                RequestState::Done => RequestState::Done,
            };
            if from.len() == before {
                return Ok(());
            }
        }
    }
}

/// Moves up to `left` bytes; returns how many are left.
fn pass(from: &mut Vec<u8>, to: &mut Vec<u8>, left: u64) -> u64 {
    let room = BUFFER_BYTES.saturating_sub(to.len()).min(from.len());
    let count = usize::try_from(left).unwrap_or(usize::MAX).min(room);
    to.extend(from.drain(..count));
    left - count as u64
}

impl ChunkState {
    /// The next state; `None` at the end. Unchanged if more bytes, or more room, are needed.
    fn advance(
        self,
        from: &mut Vec<u8>,
        to: &mut Vec<u8>,
    ) -> Result<Option<ChunkState>, BridgeRequestError> {
        match self {
            ChunkState::Size => {
                let Some(line) = take_line(from)? else {
                    return Ok(Some(self));
                };
                let size = chunk_size(&line)
                    .ok_or(BridgeRequestError::Malformed("a chunk has a bad size"))?;
                to.extend_from_slice(&line);
                Ok(Some(if size == 0 {
                    ChunkState::End
                } else {
                    ChunkState::Data(size + 2)
                }))
            }
            ChunkState::Data(left @ 1..=2) => {
                let end = &b"\r\n"[2 - left as usize..];
                let count = from.len().min(end.len());
                if from[..count] != end[..count] {
                    return Err(BridgeRequestError::Malformed(
                        "a chunk is longer than its size",
                    ));
                }
                to.extend(from.drain(..count));
                let left = left - count as u64;
                Ok(Some(if left == 0 {
                    ChunkState::Size
                } else {
                    ChunkState::Data(left)
                }))
            }
            ChunkState::Data(left) => Ok(Some(ChunkState::Data(pass(from, to, left - 2) + 2))),
            ChunkState::End => {
                let Some(line) = take_line(from)? else {
                    return Ok(Some(self));
                };
                match line.as_slice() {
                    b"\r\n" => {
                        to.extend_from_slice(&line);
                        Ok(None)
                    }
                    _ => Err(BridgeRequestError::Malformed("trailers are not passed on")),
                }
            }
        }
    }
}

/// Digits alone: extensions are a classic way to make two parsers differ.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(line.strip_suffix(b"\r\n")?).ok()?;
    let plain =
        (1..=15).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| plain)
}

/// A short line with its end, as in chunked bodies.
fn take_line(from: &mut Vec<u8>) -> Result<Option<Vec<u8>>, BridgeRequestError> {
    const MAX_LINE_BYTES: usize = 32;
    match from
        .iter()
        .take(MAX_LINE_BYTES)
        .position(|byte| *byte == b'\n')
    {
        Some(end) => Ok(Some(from.drain(..=end).collect())),
        None if from.len() >= MAX_LINE_BYTES => Err(BridgeRequestError::Malformed(
            "a line of a chunked body is too long",
        )),
        None => Ok(None),
    }
}

/// A head with its empty line, once it is complete.
fn take_head(from: &mut Vec<u8>) -> Result<Option<Vec<u8>>, BridgeRequestError> {
    let window = &from[..from.len().min(MAX_HEAD_BYTES)];
    match window.windows(4).position(|part| part == b"\r\n\r\n") {
        Some(end) => Ok(Some(from.drain(..end + 4).collect())),
        None if from.len() >= MAX_HEAD_BYTES => Err(BridgeRequestError::TooLarge),
        None => Ok(None),
    }
}

/// The head of a request with one reading only.
#[derive(Debug)]
struct RequestHead<'a> {
    method: &'a [u8],
    target: &'a [u8],
    /// The headers that are passed on.
    headers: Vec<(&'a [u8], &'a [u8])>,
    /// The framing of its body.
    body: RequestState,
}

fn is_token(text: &[u8]) -> bool {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_token)
}

fn trim(value: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let start = value
        .iter()
        .position(|byte| !is_space(byte))
        .unwrap_or(value.len());
    let end = value
        .iter()
        .rposition(|byte| !is_space(byte))
        .map_or(start, |end| end + 1);
    &value[start..end]
}

/// Hop-by-hop headers, and credentials, which are ours to set.
const REMOVED_HEADERS: [&str; 12] = [
    "host",
    "connection",
    "proxy-connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
];

impl<'a> RequestHead<'a> {
    fn parse(head: &'a [u8]) -> Result<RequestHead<'a>, BridgeRequestError> {
        let mut lines = lines(head)?.into_iter();
        let (method, target) = request_line(lines.next().unwrap_or_default())?;
        let headers = lines.map(header).collect::<Result<Vec<_>, _>>()?;
        if headers.len() > MAX_HEADERS {
            return Err(BridgeRequestError::TooLarge);
        }
        let all = |wanted: &str| -> Vec<_> {
            let named = headers
                .iter()
                .filter(|(name, _)| name.eq_ignore_ascii_case(wanted.as_bytes()));
            named.map(|(_, value)| *value).collect()
        };
        if all("host").len() != 1 {
            return Err(BridgeRequestError::Malformed(
                "there must be one Host header",
            ));
        }
        if !all("upgrade").is_empty() {
            return Err(BridgeRequestError::Unsupported(
                "upgrades to other protocols are not passed on",
            ));
        }
        check_connection(&all("connection"))?;
        let body = body(&all("content-length"), &all("transfer-encoding"))?;
        let passes = |(name, _): &(&[u8], &[u8])| {
            !REMOVED_HEADERS
                .iter()
                .any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
        };
        Ok(RequestHead {
            method,
            target,
            headers: headers.into_iter().filter(passes).collect(),
            body,
        })
    }

    fn write(&self, rewrite: &RequestRewrite, to: &mut Vec<u8>) -> Result<(), BridgeRequestError> {
        if !rewrite.prefix.is_empty() && leaves_prefix(self.target) {
            return Err(BridgeRequestError::Malformed(
                "the path leads out of its prefix",
            ));
        }
        let parts: [&[u8]; 9] = [
            self.method,
            b" ",
            rewrite.prefix.as_bytes(),
            self.target,
            b" HTTP/1.1\r\nHost: ",
            rewrite.host.as_bytes(),
            b"\r\nConnection: close\r\nAuthorization: Bearer ",
            rewrite.token.expose(),
            b"\r\n",
        ];
        parts.iter().for_each(|part| to.extend_from_slice(part));
        for (name, value) in &self.headers {
            [*name, b": ", *value, b"\r\n"]
                .iter()
                .for_each(|part| to.extend_from_slice(part));
        }
        to.extend_from_slice(b"\r\n");
        Ok(())
    }
}

/// The lines of a head without their ends; a lone CR or LF, or a NUL, is an attack.
fn lines(head: &[u8]) -> Result<Vec<&[u8]>, BridgeRequestError> {
    let mut lines: Vec<_> = head.split(|byte| *byte == b'\n').collect();
    // Splitting leaves an empty string behind the last line end, and the empty line before it.
    lines.truncate(lines.len() - 1);
    let mut whole = lines.into_iter().map(|line| {
        let line = line
            .strip_suffix(b"\r")
            .filter(|line| !line.contains(&b'\r') && !line.contains(&0));
        line.ok_or(BridgeRequestError::Malformed("lines must end with CRLF"))
    });
    let mut lines = whole.by_ref().collect::<Result<Vec<_>, _>>()?;
    lines.pop();
    Ok(lines)
}

fn request_line(line: &[u8]) -> Result<(&[u8], &[u8]), BridgeRequestError> {
    let parts: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let [method, target, b"HTTP/1.1"] = parts[..] else {
        return Err(BridgeRequestError::Malformed(
            "the first line must be METHOD PATH HTTP/1.1",
        ));
    };
    if !is_token(method) {
        return Err(BridgeRequestError::Malformed("the method is malformed"));
    }
    // In any case: some servers ignore it, and an echo of the request would show the token.
    if [&b"CONNECT"[..], b"TRACE"]
        .iter()
        .any(|other| method.eq_ignore_ascii_case(other))
    {
        return Err(BridgeRequestError::Unsupported(
            "CONNECT and TRACE are not passed on",
        ));
    }
    if target.first() != Some(&b'/')
        || !target.iter().all(u8::is_ascii_graphic)
        || target.contains(&b'#')
    {
        return Err(BridgeRequestError::Malformed(
            "the path must begin with / and be visible ASCII",
        ));
    }
    Ok((method, target))
}

fn header(line: &[u8]) -> Result<(&[u8], &[u8]), BridgeRequestError> {
    let middle = line.iter().position(|byte| *byte == b':').unwrap_or(0);
    let (name, value) = line.split_at(middle);
    let value = trim(value.get(1..).unwrap_or_default());
    let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    if is_token(name) && value.iter().all(is_text) {
        Ok((name, value))
    } else {
        Err(BridgeRequestError::Malformed("a header is malformed"))
    }
}

/// The header can name others that are to be removed: ours must not be among them.
fn check_connection(values: &[&[u8]]) -> Result<(), BridgeRequestError> {
    let known = |option: &[u8]| {
        [&b""[..], b"close", b"keep-alive", b"te"]
            .iter()
            .any(|known| option.eq_ignore_ascii_case(known))
    };
    let mut options = values
        .iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(trim);
    if options.all(known) {
        Ok(())
    } else {
        Err(BridgeRequestError::Malformed(
            "Connection may only say close or keep-alive",
        ))
    }
}

fn body(lengths: &[&[u8]], encodings: &[&[u8]]) -> Result<RequestState, BridgeRequestError> {
    match (lengths, encodings) {
        ([], []) => Ok(RequestState::Done),
        ([length], []) => {
            let digits = std::str::from_utf8(length).ok();
            let digits = digits.filter(|text| (1..=18).contains(&text.len()));
            let plain = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            match plain.and_then(|text| text.parse().ok()) {
                Some(0) => Ok(RequestState::Done),
                Some(length) => Ok(RequestState::Length(length)),
                None => Err(BridgeRequestError::Malformed(
                    "Content-Length must be one plain number",
                )),
            }
        }
        ([], [encoding]) if encoding.eq_ignore_ascii_case(b"chunked") => {
            Ok(RequestState::Chunks(ChunkState::Size))
        }
        ([], _) => Err(BridgeRequestError::Malformed(
            "Transfer-Encoding may only say chunked",
        )),
        _ => Err(BridgeRequestError::Malformed(
            "the length of the body must be said once",
        )),
    }
}

/// Whether a path has a `.` or `..` segment, in any spelling that some server accepts.
fn leaves_prefix(target: &[u8]) -> bool {
    let path = target
        .split(|byte| *byte == b'?')
        .next()
        .unwrap_or_default();
    let mut plain = path.to_ascii_lowercase();
    // Twice, because some servers decode twice.
    for _ in 0..2 {
        plain = [
            (&b"%25"[..], b'%'),
            (b"%2e", b'.'),
            (b"%2f", b'/'),
            (b"%5c", b'/'),
            (b"\\", b'/'),
        ]
        .into_iter()
        .fold(plain, |text, (from, to)| replace(&text, from, to));
    }
    plain
        .split(|byte| *byte == b'/')
        .any(|part| part == b"." || part == b".." || part.starts_with(b"..;"))
}

fn replace(text: &[u8], from: &[u8], to: u8) -> Vec<u8> {
    let mut found = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, others)) = rest.split_first() {
        match rest.strip_prefix(from) {
            Some(after) => {
                found.push(to);
                rest = after;
            }
            None => {
                found.push(*first);
                rest = others;
            }
        }
    }
    found
}

/// How far a response has been read.
#[derive(Debug, Default, PartialEq)]
pub enum ResponseState {
    /// Its head is incomplete.
    #[default]
    Head,
    /// All further bytes are its body.
    Body,
}

impl ResponseState {
    /// Moves bytes as far as there is room. For the client each response is the last of its
    /// connection.
    pub fn advance(
        &mut self,
        from: &mut Vec<u8>,
        to: &mut Vec<u8>,
    ) -> Result<(), BridgeRequestError> {
        // Interim responses may come without end.
        while *self == ResponseState::Head && to.len() < BUFFER_BYTES {
            let Some(head) = take_head(from)
                .map_err(|_| BridgeRequestError::Upstream("its answer has too large a head"))?
            else {
                return Ok(());
            };
            *self = pass_head(&head, to)?;
        }
        pass(from, to, u64::MAX);
        Ok(())
    }
}

fn pass_head(head: &[u8], to: &mut Vec<u8>) -> Result<ResponseState, BridgeRequestError> {
    let mut lines = lines(head)
        .map_err(|_| BridgeRequestError::Upstream("its answer is not HTTP"))?
        .into_iter();
    let first = lines.next().unwrap_or_default();
    let interim = match first {
        [
            b'H',
            b'T',
            b'T',
            b'P',
            b'/',
            b'1',
            b'.',
            b'0' | b'1',
            b' ',
            kind @ b'1'..=b'5',
            rest @ ..,
        ] if rest.len() >= 2 && rest[..2].iter().all(u8::is_ascii_digit) => *kind == b'1',
        _ => return Err(BridgeRequestError::Upstream("its answer is not HTTP")),
    };
    if interim && first[10..].starts_with(b"01") {
        return Err(BridgeRequestError::Upstream(
            "it answered with another protocol",
        ));
    }
    let between_two = ["connection", "keep-alive", "proxy-connection", "upgrade"];
    let passes = |line: &&[u8]| {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        !between_two
            .iter()
            .any(|other| trim(name).eq_ignore_ascii_case(other.as_bytes()))
    };
    for line in [first].into_iter().chain(lines.filter(passes)) {
        to.extend_from_slice(line);
        to.extend_from_slice(b"\r\n");
    }
    if interim {
        to.extend_from_slice(b"\r\n");
        return Ok(ResponseState::Head);
    }
    to.extend_from_slice(b"Connection: close\r\n\r\n");
    Ok(ResponseState::Body)
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
