//! The HTTP client: one request per connection. A refusal becomes its problem document.

use super::ServerAddress;
use bytes::{Bytes, BytesMut};
use doors::Secret;
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT},
};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream, lookup_host},
    sync::mpsc,
};
use tokio_rustls::TlsConnector;

/// The timeout of connecting, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The default timeout of a response's head.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// The default timeout between two chunks of a response body.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum size of a response that is kept in memory.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
const MAX_PROBLEM_BYTES: usize = 64 << 10;

/// A server, and the key for it.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: ServerAddress,
    pub(crate) key: Option<Secret>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The timeout between two chunks of a response body.
    pub(crate) idle_timeout: Duration,
}

/// A request.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    method: Method,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: UnsyncBoxBody<Bytes, io::Error>,
    response_timeout: Duration,
}

/// A response whose head has arrived.
#[derive(Debug)]
pub(crate) struct ClientResponse {
    response: Response<Incoming>,
    address: ServerAddress,
    idle_timeout: Duration,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    /// The connection failed.
    #[error("cannot reach the server at {address}: {source}")]
    Unreachable {
        address: ServerAddress,
        source: io::Error,
    },
    /// The certificate is not trusted.
    #[error("the server at {address} is not trusted: {cause}")]
    Untrusted {
        address: ServerAddress,
        cause: &'static str,
    },
    /// The connection broke after it was made.
    #[error("the connection to the server at {address} broke: {cause}")]
    Broken {
        address: ServerAddress,
        cause: String,
    },
    /// The server did not respond in time.
    #[error("the server at {address} does not answer")]
    TimedOut { address: ServerAddress },
    /// The server refused the request.
    #[error("{}", .0.title)]
    Refused(Box<Problem>),
    /// The response is not that of an Airlock server.
    #[error("the server at {address} is not an Airlock server: {cause}")]
    NotAirlock {
        address: ServerAddress,
        cause: String,
    },
    /// A local file or stream failed.
    #[error("{0}")]
    Local(String),
}

/// A problem document.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Problem {
    pub(crate) status: u16,
    pub(crate) title: String,
    pub(crate) detail: Option<String>,
    pub(crate) code: String,
    pub(crate) instance: Option<String>,
}

impl RemoteError {
    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            RemoteError::Unreachable { .. }
            | RemoteError::Broken { .. }
            | RemoteError::TimedOut { .. } => true,
            RemoteError::Refused(problem) => {
                problem.status == 503 && problem.code == "quota_exceeded"
            }
            RemoteError::Untrusted { .. }
            | RemoteError::NotAirlock { .. }
            | RemoteError::Local(_) => false,
        }
    }
}

impl ClientRequest {
    /// A request without a body. Parts of the path that come from a user must be encoded by
    /// [`segment`], [`segments`] or [`query`].
    pub(crate) fn new(method: Method, path: impl Into<String>) -> ClientRequest {
        let body = Full::default()
            .map_err(|never| match never {})
            .boxed_unsync();
        ClientRequest {
            method,
            path: path.into(),
            headers: Vec::new(),
            body,
            response_timeout: RESPONSE_TIMEOUT,
        }
    }

    pub(crate) fn get(path: impl Into<String>) -> ClientRequest {
        ClientRequest::new(Method::GET, path)
    }

    /// Sets a JSON body.
    pub(crate) fn json(self, value: &serde_json::Value) -> ClientRequest {
        let body = Full::from(value.to_string())
            .map_err(|never| match never {})
            .boxed_unsync();
        ClientRequest { body, ..self }.header(CONTENT_TYPE, "application/json")
    }

    /// Sets a body from memory.
    pub(crate) fn bytes(self, bytes: Bytes) -> ClientRequest {
        self.body(
            Full::new(bytes)
                .map_err(|never| match never {})
                .boxed_unsync(),
        )
    }

    /// Sets a streamed body.
    pub(crate) fn body(self, body: UnsyncBoxBody<Bytes, io::Error>) -> ClientRequest {
        ClientRequest { body, ..self }
    }

    /// Adds a header; an invalid value is omitted.
    pub(crate) fn header(mut self, name: HeaderName, value: &str) -> ClientRequest {
        self.headers
            .extend(HeaderValue::try_from(value).ok().map(|value| (name, value)));
        self
    }

    /// Sets the timeout of the response's head.
    pub(crate) fn response_timeout(self, response_timeout: Duration) -> ClientRequest {
        ClientRequest {
            response_timeout,
            ..self
        }
    }
}

/// Percent-encodes one path segment or query value.
pub(crate) fn segment(bytes: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    bytes
        .iter()
        .map(|&byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// Percent-encodes a path, keeping its slashes.
pub(crate) fn segments(bytes: &[u8]) -> String {
    let parts: Vec<_> = bytes.split(|byte| *byte == b'/').map(segment).collect();
    parts.join("/")
}

/// Builds a query string; `None` values are omitted.
pub(crate) fn query(pairs: &[(&str, Option<String>)]) -> String {
    let given = pairs
        .iter()
        .filter_map(|(name, value)| value.as_ref().map(|value| (name, value)));
    let written: Vec<_> = given
        .map(|(name, value)| format!("{name}={}", segment(value.as_bytes())))
        .collect();
    if written.is_empty() {
        String::new()
    } else {
        format!("?{}", written.join("&"))
    }
}

/// Bytes read from a file at once.
const CHUNK_BYTES: usize = 256 << 10;

/// A body that is read while it is sent, at the server's pace.
pub(crate) fn upload(
    from: impl io::Read + Send + 'static,
    length: Option<u64>,
) -> UnsyncBoxBody<Bytes, io::Error> {
    UploadBody {
        chunks: read_ahead(from),
        length,
    }
    .boxed_unsync()
}

/// Reads in a blocking thread, a few chunks ahead of the receiver.
pub(crate) fn read_ahead(
    mut from: impl io::Read + Send + 'static,
) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, chunks) = mpsc::channel(2);
    tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let chunk = match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => Ok(Bytes::copy_from_slice(&buffer[..count])),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = chunk.is_err();
            if sender.blocking_send(chunk).is_err() || failed {
                return;
            }
        }
    });
    chunks
}

struct UploadBody {
    chunks: mpsc::Receiver<io::Result<Bytes>>,
    length: Option<u64>,
}

impl hyper::body::Body for UploadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.chunks
            .poll_recv(context)
            .map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// A connection over TCP, TLS or a unix socket.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Connection for S {}

impl Client {
    /// Sends a request and parses the response as JSON.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        ask: ClientRequest,
    ) -> Result<T, RemoteError> {
        self.read(&self.send(ask).await?.text().await?)
    }

    /// Parses a response as JSON.
    pub(crate) fn read<T: DeserializeOwned>(&self, text: &[u8]) -> Result<T, RemoteError> {
        serde_json::from_slice(text)
            .map_err(|error| self.not_airlock(format!("its response cannot be read: {error}")))
    }

    /// Sends a request. A refusal is an error.
    pub(crate) async fn send(&self, ask: ClientRequest) -> Result<ClientResponse, RemoteError> {
        let response_timeout = ask.response_timeout;
        let request = self.request(ask)?;
        let stream = self.dial().await?;
        let broken = |error: hyper::Error| self.broken(&error);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        // The connection task ends with the response body or the runtime.
        tokio::spawn(connection);
        let response = tokio::time::timeout(response_timeout, sender.send_request(request)).await;
        let response = response.map_err(|_| RemoteError::TimedOut {
            address: self.address.clone(),
        })?;
        let response = response.map_err(broken)?;
        let answer = ClientResponse {
            response,
            address: self.address.clone(),
            idle_timeout: self.idle_timeout,
        };
        match answer.response.status() {
            status if status.is_success() => Ok(answer),
            status => Err(answer.problem(status).await),
        }
    }

    fn request(
        &self,
        ask: ClientRequest,
    ) -> Result<Request<UnsyncBoxBody<Bytes, io::Error>>, RemoteError> {
        let mut request = Request::builder()
            .method(ask.method)
            .uri(&ask.path)
            .header(HOST, self.address.authority())
            .header(USER_AGENT, concat!("airlock/", env!("CARGO_PKG_VERSION")));
        if let Some(value) = self.authorization()? {
            request = request.header(AUTHORIZATION, value);
        }
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        request
            .body(ask.body)
            .map_err(|error| RemoteError::Local(format!("the request is not valid: {error}")))
    }

    /// The `Authorization` header.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>, RemoteError> {
        let Some(key) = &self.key else {
            return Ok(None);
        };
        let mut value =
            HeaderValue::from_bytes(&[b"Bearer ", key.expose()].concat()).map_err(|_| {
                RemoteError::Local(
                    "the key has a character that a header cannot contain".to_owned(),
                )
            })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Connects to the server, with TLS if its address requires it.
    pub(crate) async fn dial(&self) -> Result<Box<dyn Connection>, RemoteError> {
        let failed = |source| RemoteError::Unreachable {
            address: self.address.clone(),
            source,
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(Ok(connected)) => Ok(connected),
            Ok(Err(error)) => Err(match super::certificate_verifier::refusal(&error) {
                Some(cause) => RemoteError::Untrusted {
                    address: self.address.clone(),
                    cause,
                },
                None => failed(error),
            }),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        match &self.address {
            ServerAddress::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            ServerAddress::Plain(host) => Ok(Box::new(connect_tcp(host).await?)),
            ServerAddress::Encrypted(host) => {
                let config = self
                    .tls
                    .clone()
                    .ok_or_else(|| io::Error::other("TLS is not configured"))?;
                let name = ServerName::try_from(host.name.clone()).map_err(io::Error::other)?;
                Ok(Box::new(
                    TlsConnector::from(config)
                        .connect(name, connect_tcp(host).await?)
                        .await?,
                ))
            }
        }
    }

    fn broken(&self, error: &hyper::Error) -> RemoteError {
        broken(&self.address, error)
    }

    pub(crate) fn not_airlock(&self, cause: impl Into<String>) -> RemoteError {
        RemoteError::NotAirlock {
            address: self.address.clone(),
            cause: cause.into(),
        }
    }
}

fn broken(address: &ServerAddress, error: &hyper::Error) -> RemoteError {
    if error.is_parse() && matches!(address, ServerAddress::Plain(_)) {
        return RemoteError::NotAirlock {
            address: address.clone(),
            cause: "its response is not HTTP; a server with TLS needs https://".to_owned(),
        };
    }
    let cause =
        std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    RemoteError::Broken {
        address: address.clone(),
        cause,
    }
}

async fn connect_tcp(host: &super::address::ServerHost) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::HostUnreachable);
    for address in lookup_host((host.name.as_str(), host.port))
        .await?
        .filter(|address| host.may_dial(address))
    {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Keystrokes are sent at once.
                _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl ClientResponse {
    /// A number in a header.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }

    /// A header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The next chunk of the body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, RemoteError> {
        loop {
            let frame =
                tokio::time::timeout(self.idle_timeout, self.response.body_mut().frame()).await;
            let frame = frame.map_err(|_| RemoteError::TimedOut {
                address: self.address.clone(),
            })?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken(&self.address, &error)),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// The whole body.
    pub(crate) async fn text(self) -> Result<Bytes, RemoteError> {
        self.up_to(MAX_RESPONSE_BYTES).await
    }

    async fn up_to(mut self, most: usize) -> Result<Bytes, RemoteError> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            if all.len() + chunk.len() > most {
                let cause = format!("its response is longer than {most} bytes");
                return Err(RemoteError::NotAirlock {
                    address: self.address,
                    cause,
                });
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }

    async fn problem(self, status: StatusCode) -> RemoteError {
        let address = self.address.clone();
        let body = match self.up_to(MAX_PROBLEM_BYTES).await {
            Ok(body) => body,
            Err(error) => return error,
        };
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) if !problem.title.is_empty() => RemoteError::Refused(Box::new(Problem {
                status: status.as_u16(),
                ..problem
            })),
            _ => RemoteError::NotAirlock {
                address,
                cause: format!("it responds with {status}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_named_stays_within_its_part_of_an_address() {
        let odd = "a b/c?d#e%2f\u{e4}\n".as_bytes();
        assert_eq!(segment(odd), "a%20b%2Fc%3Fd%23e%252f%C3%A4%0A");
        assert_eq!(segments(odd), "a%20b/c%3Fd%23e%252f%C3%A4%0A");
        assert_eq!(segments(b"/a//b/"), "/a//b/");
        let pairs = [
            ("name", Some("a&b=c/d".to_owned())),
            ("run", None),
            ("by", Some("day".to_owned())),
        ];
        assert_eq!(query(&pairs), "?name=a%26b%3Dc%2Fd&by=day");
        assert_eq!(query(&[("run", None)]), "");
    }

    #[test]
    fn a_key_does_not_print() {
        let key = Secret::new(b"alk_canary".to_vec()).ok();
        let client = Client {
            address: ServerAddress::parse("http://localhost:1").unwrap(),
            key,
            tls: None,
            idle_timeout: IDLE_TIMEOUT,
        };
        let value = client.authorization().unwrap().unwrap();
        assert_eq!(value.as_bytes(), b"Bearer alk_canary");
        let request = client.request(ClientRequest::get("/x")).unwrap();
        assert!(!format!("{client:?}{value:?}{request:?}").contains("canary"));
    }
}
