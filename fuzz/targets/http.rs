//! Requests of a hostile program to the bridge. No bytes make it panic or hold back without bound; where they are cut
//! changes nothing; what is passed on has one reading, with our credential and no other.
//!
//! The first byte says where the rest is cut.

#![no_main]

use init::entry::{
    bridge::{
        http::{BridgeRequestError, RequestRewrite, RequestState, ResponseState},
        url,
    },
    environment::Token,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((cut, bytes)) = input.split_first() else {
        return;
    };
    let whole = pass(bytes, bytes.len().max(1));
    assert_eq!(
        whole,
        pass(bytes, usize::from(*cut).max(1)),
        "where it is cut changes nothing"
    );
    if let Ok((sent, state)) = whole
        && state != RequestState::Head
    {
        check(&sent, &state);
    }
    let mut answer = bytes.to_vec();
    _ = ResponseState::default().advance(&mut answer, &mut Vec::new());
});

fn pass(bytes: &[u8], size: usize) -> Result<(Vec<u8>, RequestState), BridgeRequestError> {
    let url = url::parse(b"http://up/prefix").expect("it is a URL");
    let token = Token::new(b"t0ken".to_vec()).expect("it is a token");
    let rewrite = RequestRewrite::new(url, token);
    let (mut state, mut inbox, mut up, mut sent) =
        (RequestState::Head, Vec::new(), Vec::new(), Vec::new());
    for piece in bytes.chunks(size) {
        inbox.extend_from_slice(piece);
        state.advance(&mut inbox, &mut up, &rewrite)?;
        sent.append(&mut up);
    }
    Ok((sent, state))
}

fn check(sent: &[u8], state: &RequestState) {
    let end = sent
        .windows(4)
        .position(|part| part == b"\r\n\r\n")
        .expect("a head is whole");
    let head = str::from_utf8(&sent[..end])
        .unwrap_or_default()
        .to_ascii_lowercase();
    if head.is_empty() {
        return; // values may be any bytes
    }
    let named = |name: &str| {
        head.split("\r\n")
            .skip(1)
            .filter(|line| line.starts_with(name))
            .count()
    };
    assert!(
        head.split(' ')
            .nth(1)
            .is_some_and(|path| path.starts_with("/prefix/")),
        "{head}"
    );
    assert_eq!(
        [
            named("authorization:"),
            named("host:"),
            named("connection:")
        ],
        [1, 1, 1],
        "{head}"
    );
    assert!(
        head.split("\r\n")
            .any(|line| line == "authorization: bearer t0ken"),
        "{head}"
    );
    assert!(
        named("content-length:") + named("transfer-encoding:") <= 1,
        "{head}"
    );
    assert_eq!(
        named("x-api-key:") + named("upgrade:") + named("proxy-authorization:"),
        0,
        "{head}"
    );
    // And nothing follows the end of the body.
    let body = &sent[end + 4..];
    if *state == RequestState::Done && named("transfer-encoding:") == 1 {
        assert!(body.ends_with(b"0\r\n\r\n"));
    } else if *state == RequestState::Done {
        let length = head
            .split("\r\n")
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        assert_eq!(body.len(), length.unwrap_or(0));
    }
}
