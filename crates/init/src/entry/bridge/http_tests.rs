//! What of a request passes, and how.

use super::*;
use crate::entry::bridge::url;
use proptest::prelude::*;

fn rewrite(url: &str) -> RequestRewrite {
    let token = Token::new(b"t0ken".to_vec()).unwrap();
    RequestRewrite::new(url::parse(url.as_bytes()).unwrap(), token)
}

/// Passes a request on in pieces of a size: what the other end gets, how far it was read, what is left.
fn passed(
    request: &[u8],
    size: usize,
    rewrite: &RequestRewrite,
) -> Result<(Vec<u8>, RequestState, Vec<u8>), BridgeRequestError> {
    let mut state = RequestState::Head;
    let mut inbox = Vec::new();
    let mut up = Vec::new();
    let mut sent = Vec::new();
    for piece in request.chunks(size) {
        inbox.extend_from_slice(piece);
        state.advance(&mut inbox, &mut up, rewrite)?;
        sent.append(&mut up);
    }
    Ok((sent, state, inbox))
}

fn at_once(request: &str) -> Result<(String, RequestState), BridgeRequestError> {
    let (sent, state, _) = passed(request.as_bytes(), 1 << 20, &rewrite("http://up:9"))?;
    Ok((String::from_utf8(sent).unwrap(), state))
}

#[test]
fn the_token_takes_the_place_of_whatever_the_program_sent() {
    let request = "GET /v1/models?a=%2F HTTP/1.1\r\nHost: localhost:8080\r\nauthorization: Bearer fake\r\n\
        X-API-Key: fake\r\nAccept:  */* \r\nConnection: keep-alive\r\nAuthorization: again\r\n\r\n";
    let expected = "GET /v1/models?a=%2F HTTP/1.1\r\nHost: up:9\r\nConnection: close\r\n\
        Authorization: Bearer t0ken\r\nAccept: */*\r\n\r\n";
    assert_eq!(
        at_once(request).unwrap(),
        (expected.to_owned(), RequestState::Done)
    );
}

#[test]
fn bodies_pass_as_they_are_and_nothing_behind_them() {
    let length = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /second HTTP/1.1\r\nHost: a\r\n\r\n";
    let chunks =
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n1F\r\n\
        0123456789012345678901234567890\r\n0\r\n\r\nGET /second";
    for (request, end) in [
        (&length[..], &b"\r\n\r\nhello"[..]),
        (&chunks[..], b"567890\r\n0\r\n\r\n"),
    ] {
        for size in [1, 2, 3, 7, 1000] {
            let (sent, state, left) = passed(request, size, &rewrite("http://up")).unwrap();
            assert_eq!(state, RequestState::Done);
            assert!(sent.ends_with(end), "{:?}", String::from_utf8_lossy(&sent));
            assert!(
                left.starts_with(b"GET /second") || b"GET /second".starts_with(left.as_slice())
            );
        }
    }
}

#[test]
fn what_two_readers_could_read_differently_is_refused() {
    let head = |lines: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
    let wrong = [
        head("Content-Length: 5\r\nContent-Length: 5"),
        head("Content-Length: 5, 5"),
        head("Content-Length: +5"),
        head("Content-Length: 0x5"),
        head("Content-Length: -1"),
        head("Content-Length: 9999999999999999999"),
        head("Content-Length:"),
        head("Content-Length: 5\r\nTransfer-Encoding: chunked"),
        head("Transfer-Encoding: gzip, chunked"),
        head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
        head("Transfer-Encoding: identity"),
        head("Transfer-Encoding : chunked"),
        head("Transfer-Encoding:\x0bchunked"),
        head("A: b\r\n folded"),
        head(" A: b"),
        head("A\0: b"),
        head("A: b\0c"),
        head("A: b\rc"),
        head("A: b\nContent-Length: 5"),
        head(": b"),
        head("no colon"),
        head("Host: b"),
        head("Connection: close, authorization"),
        "POST / HTTP/1.1\r\nA: b\r\n\r\n".into(),
        "POST / HTTP/1.0\r\nHost: a\r\n\r\n".into(),
        "POST  / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "POST / / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "POST http://b/ HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "POST * HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "P(ST / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "\r\nPOST / HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "POST /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n".into(),
    ];
    for request in wrong {
        assert!(
            matches!(at_once(&request), Err(BridgeRequestError::Malformed(_))),
            "{request:?}"
        );
    }
    let chunked = |body: &str| head("Transfer-Encoding: chunked") + body;
    for body in [
        "5;x\r\n",
        " 5\r\n",
        "5\n",
        "\r\n",
        "-1\r\n",
        "5\r\nhelloX",
        "5\r\nhello\n",
        "0\r\nA: b\r\n\r\n",
    ] {
        assert!(
            matches!(
                at_once(&chunked(body)),
                Err(BridgeRequestError::Malformed(_))
            ),
            "{body:?}"
        );
    }
    assert!(
        at_once(&chunked("5\r\nhello\r\n0\r\n\r\n")).is_ok(),
        "the control"
    );
}

#[test]
fn tunnels_and_heads_without_end_are_refused() {
    let unsupported =
        |request: &str| matches!(at_once(request), Err(BridgeRequestError::Unsupported(_)));
    assert!(unsupported(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    ));
    for method in ["CONNECT", "TRACE", "trace"] {
        assert!(
            unsupported(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n")),
            "{method}"
        );
    }
    assert_eq!(
        at_once(&format!("GET /{} HTTP", "a".repeat(MAX_HEAD_BYTES))),
        Err(BridgeRequestError::TooLarge)
    );
    let many = "A: b\r\n".repeat(MAX_HEADERS + 1);
    assert_eq!(
        at_once(&format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")),
        Err(BridgeRequestError::TooLarge)
    );
}

#[test]
fn no_path_leads_out_of_a_prefix() {
    let rewrite = rewrite("http://up/team/a/");
    let of = |path: &str| {
        passed(
            format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes(),
            1 << 20,
            &rewrite,
        )
    };
    let (sent, ..) = of("/v1/..a/x?up=../").unwrap();
    assert!(sent.starts_with(b"GET /team/a/v1/..a/x?up=../ HTTP/1.1\r\nHost: up\r\n"));
    for path in [
        "/..",
        "/../b",
        "/a/%2e%2E/b",
        "/a/.%2e",
        "/a\\..\\b",
        "/a%2f..%2fb",
        "/%252e%252e/b",
        "/..;x/b",
        "/./b",
    ] {
        assert!(of(path).is_err(), "{path}");
    }
}

#[test]
fn answers_pass_as_they_come_and_say_that_they_are_the_last() {
    let mut state = ResponseState::Head;
    let mut to = Vec::new();
    let mut from = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\n\
        Content-Type: text/event-stream\r\n\r\ndata: 1\n"
        .to_vec();
    state.advance(&mut from, &mut to).unwrap();
    let expected = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
        Connection: close\r\n\r\ndata: 1\n";
    assert_eq!(
        (String::from_utf8(to).unwrap(), state),
        (expected.to_owned(), ResponseState::Body)
    );
    for wrong in [
        "SSH-2.0-x\r\n\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 20\r\n\r\n",
    ] {
        let answered = ResponseState::Head.advance(&mut wrong.as_bytes().to_vec(), &mut Vec::new());
        assert!(
            matches!(answered, Err(BridgeRequestError::Upstream(_))),
            "{wrong:?}"
        );
    }
}

#[test]
fn heads_that_only_say_go_on_wait_for_room() {
    let one = "HTTP/1.1 100 Continue\r\n\r\n";
    let mut to = Vec::new();
    for _ in 0..3 {
        ResponseState::Head
            .advance(&mut one.repeat(4000).into_bytes(), &mut to)
            .unwrap();
    }
    assert!(
        (BUFFER_BYTES..BUFFER_BYTES + one.len()).contains(&to.len()),
        "{}",
        to.len()
    );
}

#[test]
fn a_full_buffer_waits_and_loses_nothing() {
    let rewrite = rewrite("http://up");
    let body = vec![b'x'; 3 * BUFFER_BYTES];
    let head = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut state = RequestState::Head;
    let mut from = [head.as_bytes(), &body].concat();
    let mut to = Vec::new();
    let mut sent = Vec::new();
    while state != RequestState::Done || !to.is_empty() {
        state.advance(&mut from, &mut to, &rewrite).unwrap();
        assert!(to.len() <= BUFFER_BYTES + MAX_HEAD_BYTES);
        sent.extend(to.drain(..to.len().min(1000)));
    }
    assert!(sent.ends_with(&body) && from.is_empty());
}

proptest! {
    #[test]
    fn where_it_is_cut_changes_nothing(
        name in "[A-Za-z-]{1,12}", value in "[ -~]{0,20}", body in proptest::collection::vec(any::<u8>(), 0..50),
        size in 1usize..40, chunked in any::<bool>(),
    ) {
        let framing = if chunked {
"Transfer-Encoding: chunked".to_owned()
} else {
format!("Content-Length: {}", body.len())
};
        let body = match chunked {
            true if body.is_empty() => b"0\r\n\r\n".to_vec(),
            true => [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat(),
            false => body,
        };
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n{name}: {value}\r\n\r\n");
        let request = [head.as_bytes(), &body].concat();
        let whole = passed(&request, request.len(), &rewrite("http://up"));
        prop_assert_eq!(&whole, &passed(&request, size, &rewrite("http://up")));
        if let Ok((sent, state, left)) = whole {
            let tokens = sent.windows(7).filter(|part| part == b"Bearer ").count();
            prop_assert_eq!((state, left.len()), (RequestState::Done, 0));
            prop_assert!(sent.ends_with(&body) && tokens >= 1);
        }
    }
}
