//! What the servers of a world answer, by path, whatever the host:
//!
//! | path | answer |
//! |---|---|
//! | `/echo` | the request: its line, its headers, its body |
//! | `/echo/chunked` | the same in pieces of five bytes |
//! | `/echo/gzip` | the same, packed, whatever was asked for |
//! | `/echo/error` | the same with status 500 |
//! | `/echo/headers` | each header of the request as `x-echo-NAME` |
//! | `/echo/trailers` | the same as trailers |
//! | `/redirect?URL` | 302 to there |
//! | `/status/418` | that status |
//! | `/bytes/1000` | so many bytes |
//! | `/slow/5/200` | five pieces, 200 ms apart |
//! | `/hold` | its head at once, its body when the test says `release` |
//! | `/socket` | with `Upgrade`: 101, then all bytes come back |
//! | anything else | `HOST says hello` |

use crate::{
    git,
    web::{Request, Web, without_port},
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::{HeaderMap, Response, StatusCode, body::Incoming, header, http::request::Parts};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    io::Write,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};

/// A body that is sent piece by piece.
#[derive(Debug)]
pub(crate) struct Pieces {
    next: mpsc::Receiver<Frame<Bytes>>,
    /// Its length, where it is known.
    size: Option<u64>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.next.poll_recv(context).map(|frame| frame.map(Ok))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.size.map_or_else(
            http_body::SizeHint::default,
            http_body::SizeHint::with_exact,
        )
    }
}

/// A body in one piece, of known length.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> Pieces {
    let bytes = bytes.into();
    let (sender, next) = mpsc::channel(1);
    let size = Some(bytes.len() as u64);
    _ = sender.try_send(Frame::data(bytes));
    Pieces { next, size }
}

/// A body that somebody else sends.
pub(crate) fn streamed() -> (mpsc::Sender<Frame<Bytes>>, Pieces) {
    let (sender, next) = mpsc::channel(1);
    (sender, Pieces { next, size: None })
}

type Answer = Response<Pieces>;

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(whole(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("text/plain"),
    );
    answer
}

/// Writes the request down and answers it.
pub(crate) async fn answer(
    request: hyper::Request<Incoming>,
    connection: usize,
    tls: bool,
    web: &Web,
) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    // From now on, since whoever sees it in the log may say so.
    let released = web.released();
    let number = note(&head, connection, tls, web);
    let host = host(&head);
    if !is_let_in(&head, &host, web) {
        let mut answer = plain(StatusCode::UNAUTHORIZED, "who are you?\n");
        let realm = header::HeaderValue::from_static("Basic realm=\"world\"");
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, realm);
        return Ok(answer);
    }
    let file = web
        .tables()
        .files
        .get(&(host.clone(), head.uri.path().to_owned()))
        .cloned();
    Ok(match file {
        Some((kind, content)) => {
            let mut answer = plain(StatusCode::OK, content);
            answer
                .headers_mut()
                .insert(header::CONTENT_TYPE, kind.parse().expect("a content type"));
            answer
        }
        None if git::is_about(&head, web) => git::answer(&head, body, number, web).await,
        None if head.uri.path() == "/hold" => hold(released),
        None => by_path(head, body, number, &host, web).await,
    })
}

/// The host that a request names.
fn host(head: &Parts) -> String {
    let named = head
        .headers
        .get(header::HOST)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    without_port(named).to_ascii_lowercase()
}

fn note(head: &Parts, connection: usize, tls: bool, web: &Web) -> usize {
    let text = |value: &header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), text(value)))
        .collect();
    web.note(|log| {
        let known = log.connections.get(connection);
        let to = known.map_or_else(|| ([0, 0, 0, 0], 0).into(), |known| known.to);
        let sni = known.and_then(|known| known.sni.clone());
        let (method, target) = (head.method.to_string(), head.uri.to_string());
        let host = host(head);
        let (body, body_bytes) = (Vec::new(), 0);
        log.requests.push(Request {
            connection,
            to,
            tls,
            sni,
            host,
            method,
            target,
            headers,
            body,
            body_bytes,
        });
        log.requests.len() - 1
    })
}

fn is_let_in(head: &Parts, host: &str, web: &Web) -> bool {
    let tables = web.tables();
    let mut asked = tables
        .required
        .iter()
        .filter(|one| one.host == host && head.uri.path().starts_with(&one.below))
        .peekable();
    let fits = |one: &crate::web::Required| {
        head.headers
            .get(&one.header)
            .is_some_and(|own| own.as_bytes() == one.value.as_bytes())
    };
    asked.peek().is_none() || asked.any(fits)
}

async fn by_path(mut head: Parts, body: Incoming, number: usize, host: &str, web: &Web) -> Answer {
    let path = head.uri.path().to_owned();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let argument = |at: usize| {
        parts
            .get(at)
            .and_then(|part| part.parse::<u64>().ok())
            .unwrap_or(0)
    };
    match parts[0] {
        "echo" => echo(&head, body, number, parts.get(1).copied(), web).await,
        "redirect" => {
            let mut answer = plain(StatusCode::FOUND, "elsewhere\n");
            let to = head
                .uri
                .query()
                .unwrap_or_default()
                .parse()
                .expect("a place");
            answer.headers_mut().insert(header::LOCATION, to);
            answer
        }
        "status" => plain(
            StatusCode::from_u16(argument(1) as u16).expect("a status"),
            "as you wish\n",
        ),
        "bytes" => {
            drain(body, number, web).await;
            many(argument(1))
        }
        "slow" => slow(argument(1), Duration::from_millis(argument(2))),
        "socket" if head.headers.contains_key(header::UPGRADE) => upgrade(&mut head),
        _ => {
            drain(body, number, web).await;
            plain(StatusCode::OK, format!("{host} says hello\n"))
        }
    }
}

/// Reads a body to its end; its beginning.
async fn drain(mut body: Incoming, number: usize, web: &Web) -> Vec<u8> {
    let mut kept = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        web.came(number, &bytes);
        if kept.len() < 1 << 20 {
            kept.extend(&bytes);
        }
    }
    kept
}

async fn echo(head: &Parts, body: Incoming, number: usize, how: Option<&str>, web: &Web) -> Answer {
    let body = drain(body, number, web).await;
    let mut text = format!("{} {}\n", head.method, head.uri).into_bytes();
    for (name, value) in &head.headers {
        text.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\n"].concat());
    }
    text.extend([b"\n".as_slice(), &body].concat());
    match how {
        Some("chunked") => in_pieces(
            text.chunks(5)
                .map(Bytes::copy_from_slice)
                .map(Frame::data)
                .collect(),
        ),
        Some("gzip") => {
            let mut packer = GzEncoder::new(Vec::new(), Compression::default());
            packer.write_all(&text).expect("it fits");
            let mut answer = plain(StatusCode::OK, packer.finish().expect("it fits"));
            answer.headers_mut().insert(
                header::CONTENT_ENCODING,
                header::HeaderValue::from_static("gzip"),
            );
            answer
        }
        Some("error") => plain(StatusCode::INTERNAL_SERVER_ERROR, text),
        Some("headers") => {
            let mut answer = plain(StatusCode::OK, "see above\n");
            answer.headers_mut().extend(echoed(&head.headers));
            answer
        }
        Some("trailers") => {
            let mut answer = in_pieces(vec![
                Frame::data(Bytes::from("see below\n")),
                Frame::trailers(echoed(&head.headers)),
            ]);
            let names: Vec<_> = echoed(&head.headers)
                .keys()
                .map(|name| name.to_string())
                .collect();
            answer
                .headers_mut()
                .insert(header::TRAILER, names.join(", ").parse().expect("names"));
            answer
        }
        _ => plain(StatusCode::OK, text),
    }
}

fn echoed(headers: &HeaderMap) -> HeaderMap {
    let name = |name: &header::HeaderName| {
        format!("x-echo-{name}")
            .parse::<header::HeaderName>()
            .expect("a name")
    };
    headers
        .iter()
        .map(|(own, value)| (name(own), value.clone()))
        .collect()
}

/// A body of unknown length.
fn in_pieces(frames: Vec<Frame<Bytes>>) -> Answer {
    let (sender, body) = streamed();
    tokio::spawn(async move {
        for frame in frames {
            if sender.send(frame).await.is_err() {
                return;
            }
        }
    });
    Response::new(body)
}

/// So many bytes, with their number in the head.
fn many(count: u64) -> Answer {
    const PIECE: u64 = 64 << 10;
    let (sender, next) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut left = count;
        let piece = Bytes::from(vec![b'x'; PIECE as usize]);
        while left > 0 {
            let size = left.min(PIECE);
            if sender
                .send(Frame::data(piece.slice(..size as usize)))
                .await
                .is_err()
            {
                return;
            }
            left -= size;
        }
    });
    Response::new(Pieces {
        next,
        size: Some(count),
    })
}

fn slow(pieces: u64, apart: Duration) -> Answer {
    let (sender, body) = streamed();
    tokio::spawn(async move {
        for piece in 0..pieces {
            if sender
                .send(Frame::data(Bytes::from(format!("piece {piece}\n"))))
                .await
                .is_err()
            {
                return;
            }
            tokio::time::sleep(apart).await;
        }
    });
    Response::new(body)
}

/// A first piece at once, the last when the test says so.
fn hold(released: impl Future<Output = ()> + Send + 'static) -> Answer {
    let (sender, body) = streamed();
    tokio::spawn(async move {
        if sender
            .send(Frame::data(Bytes::from("held\n")))
            .await
            .is_ok()
        {
            released.await;
            _ = sender.send(Frame::data(Bytes::from("released\n"))).await;
        }
    });
    Response::new(body)
}

fn upgrade(head: &mut Parts) -> Answer {
    let mut answer = Response::new(whole(Bytes::new()));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let kind = head
        .headers
        .get(header::UPGRADE)
        .cloned()
        .expect("it was asked for");
    answer.headers_mut().insert(header::UPGRADE, kind);
    answer.headers_mut().insert(
        header::CONNECTION,
        header::HeaderValue::from_static("upgrade"),
    );
    let mut request = hyper::Request::new(());
    std::mem::swap(request.extensions_mut(), &mut head.extensions);
    let coming = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let Ok(stream) = coming.await else { return };
        let (mut stream, mut buffer) = (TokioIo::new(stream), vec![0; 4096]);
        while let Ok(size @ 1..) = stream.read(&mut buffer).await {
            if stream.write_all(&buffer[..size]).await.is_err() {
                return;
            }
        }
    });
    answer
}
