use super::*;
use proptest::prelude::*;
use rustls::{ClientConfig, ClientConnection, RootCertStore, pki_types::ServerName};
use std::sync::Arc;

fn tls(name: &str) -> ClientHello {
    ClientHello::Tls {
        name: Some(name.parse().unwrap()),
        hidden: false,
    }
}

const NAMELESS: ClientHello = ClientHello::Tls {
    name: None,
    hidden: false,
};

/// The ClientHello of a real client.
fn real(host: &str, with_name: bool) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = builder
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.enable_sni = with_name;
    let host = ServerName::try_from(host.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), host).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

fn counted(width: usize, bytes: &[u8]) -> Vec<u8> {
    let mut all = bytes.len().to_be_bytes()[8 - width..].to_vec();
    all.extend_from_slice(bytes);
    all
}

fn extension(kind: u16, value: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &counted(2, value)].concat()
}

/// A server_name extension with these entries.
fn names(entries: &[(u8, &str)]) -> Vec<u8> {
    let entry = |(kind, name): &(u8, &str)| [&[*kind][..], &counted(2, name.as_bytes())].concat();
    extension(
        0,
        &counted(2, &entries.iter().flat_map(entry).collect::<Vec<_>>()),
    )
}

fn named(name: &str) -> Vec<u8> {
    names(&[(0, name)])
}

fn grease() -> Vec<u8> {
    extension(0x1a1a, &[0])
}

/// Version, random, session, suites including a GREASE value, no compression.
fn opening() -> Vec<u8> {
    [
        &[3, 3][..],
        &[7; 32],
        &counted(1, &[9; 32]),
        &counted(2, &[0x2a, 0x2a, 0x13, 1]),
        &[1, 0],
    ]
    .concat()
}

fn message(body: &[u8]) -> Vec<u8> {
    [&[1][..], &counted(3, body)].concat()
}

fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
    message(&[opening(), counted(2, &extensions.concat())].concat())
}

/// Splits into records of at most this size.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    message
        .chunks(size)
        .flat_map(|part| [&[22, 3, 1][..], &counted(2, part)].concat())
        .collect()
}

fn said(extensions: &[Vec<u8>]) -> ClientHello {
    read(&records(&hello(extensions), 16 << 10))
}

/// Incomplete before the last byte, then this result, whatever follows.
fn says_at_the_end(bytes: &[u8], expected: &ClientHello) {
    for end in 0..bytes.len() {
        assert_eq!(read(&bytes[..end]), ClientHello::Incomplete, "at {end}");
    }
    assert_eq!(read(bytes), *expected);
    assert_eq!(
        read(&[bytes, &[23, 3, 3, 0, 1, 0]].concat()),
        *expected,
        "early data follows"
    );
}

#[test]
fn a_real_client_is_understood_at_its_last_byte() {
    says_at_the_end(&real("Example.com", true), &tls("example.com"));
    says_at_the_end(&real("example.com", false), &NAMELESS);
    says_at_the_end(&real("192.0.2.1", true), &NAMELESS);
}

#[test]
fn a_name_is_found_wherever_it_is() {
    let keys = extension(51, &[5; 1300]);
    let far = hello(&[
        grease(),
        keys,
        extension(21, &[0; 17000]),
        named("xn--bcher-kva.example"),
        grease(),
    ]);
    says_at_the_end(&records(&far, 16 << 10), &tls("xn--bcher-kva.example"));
    let small = hello(&[grease(), named("a.example.com")]);
    for size in [small.len() / 15 + 1, 40, small.len() - 1] {
        says_at_the_end(&records(&small, size), &tls("a.example.com"));
    }
    let first_is_tiny = [
        records(&small[..1], 1),
        records(&small[1..3], 2),
        records(&small[3..], 4096),
    ]
    .concat();
    says_at_the_end(&first_is_tiny, &tls("a.example.com"));
}

#[test]
fn a_message_without_extensions_names_nobody() {
    assert_eq!(read(&records(&message(&opening()), 4096)), NAMELESS);
    assert_eq!(said(&[]), NAMELESS);
}

#[test]
fn a_hidden_name_is_seen_to_be_hidden() {
    let hiding = extension(0xfe0d, &[0; 200]);
    let name = Some("outer.example".parse().unwrap());
    assert_eq!(
        said(&[named("outer.example"), hiding.clone()]),
        ClientHello::Tls { name, hidden: true }
    );
    assert_eq!(
        said(&[hiding]),
        ClientHello::Tls {
            name: None,
            hidden: true
        }
    );
}

#[test]
fn a_name_that_two_could_read_differently_is_none() {
    assert_eq!(said(&[named("a.example")]), tls("a.example"));
    let bad = [
        names(&[(0, "a.example"), (0, "b.example")]),
        names(&[(0, "a.example"), (1, "x")]),
        names(&[(1, "a.example")]),
        names(&[]),
        [named("a.example"), named("a.example")].concat(),
        named(""),
        named("a.example\0.b.example"),
        named("a..example"),
        named("bücher.example"),
        named("127.0.0.1"),
        named("2130706433"),
        named("[::1]"),
        extension(0, &[]),
        extension(0, &[&counted(2, &[0, 0, 1, b'a'])[..], b"x"].concat()),
        extension(0, &[0, 9, 0, 0, 1, b'a']),
        extension(0, &[0, 4, 0, 0, 2, b'a']),
    ];
    for extension in bad {
        assert_eq!(
            said(std::slice::from_ref(&extension)),
            ClientHello::Invalid,
            "{extension:02x?}"
        );
    }
}

#[test]
fn lengths_that_lie_and_other_messages_are_refused() {
    let good = hello(&[named("a.example")]);
    assert_eq!(read(&records(&good, 4096)), tls("a.example"), "the control");
    let trailing = message(&[&good[4..], b"x"].concat());
    let unfinished = message(&good[4..good.len() - 1]);
    let no_suites = message(&[&[3, 3][..], &[7; 32], &[0], &[0, 0], &[1, 0]].concat());
    let long_session = message(
        &[
            &[3, 3][..],
            &[7; 32],
            &counted(1, &[0; 33]),
            &[0, 2, 19, 1],
            &[1, 0],
        ]
        .concat(),
    );
    for body in [
        trailing,
        unfinished,
        no_suites,
        long_session,
        message(&[]),
        message(&opening()[..20]),
    ] {
        assert_eq!(
            read(&records(&body, 4096)),
            ClientHello::Invalid,
            "{body:02x?}"
        );
    }
    let many = hello(&[named("a.example"), extension(21, &[0; 40])]);
    assert_eq!(
        read(&records(&many, 4)),
        ClientHello::Invalid,
        "more records than anybody needs"
    );
    let start: [&[u8]; 8] = [
        &[22, 2],
        &[22, 3, 1, 0, 0],
        &[22, 3, 1, 0x40, 1],
        &[22, 3, 1, 0, 4, 2],
        &[22, 3, 1, 0, 4, 1, 1, 0, 0],
        &[22, 3, 1, 0, 1, 1, 20, 3, 3],
        &[21, 3, 3, 0, 2, 1, 0],
        &[20, 3],
    ];
    for start in start {
        assert_eq!(read(start), ClientHello::Invalid, "{start:02x?}");
    }
}

#[test]
fn what_does_not_begin_like_tls_is_plain() {
    for plain in [
        &b"GET / HTTP/1.1"[..],
        b"SSH-2.0-x",
        b"\0",
        &[0x80, 46, 1, 3, 1],
        &[20, 4],
        &[255; 3],
    ] {
        assert_eq!(read(plain), ClientHello::NotTls, "{plain:02x?}");
    }
    assert_eq!(read(&[]), ClientHello::Incomplete);
}

/// A final result for a prefix is the result for every continuation.
fn is_steady(bytes: &[u8]) {
    let mut before = ClientHello::Incomplete;
    for end in 0..=bytes.len() {
        let now = read(&bytes[..end]);
        assert!(
            before == ClientHello::Incomplete || now == before,
            "at {end}: {before:?} became {now:?}"
        );
        before = now;
    }
}

proptest! {
    #[test]
    fn nothing_panics_and_nothing_is_taken_back(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        size in 1..64_usize,
    ) {
        is_steady(&bytes);
        is_steady(&records(&bytes, size));
        is_steady(&records(&message(&bytes), size));
        is_steady(&records(&message(&[opening(), bytes].concat()), size));
    }

    #[test]
    fn a_changed_byte_panics_nobody(at in any::<prop::sample::Index>(), byte in any::<u8>(), size in 12..200_usize) {
        let mut bytes = records(&hello(&[grease(), named("a.example"), grease()]), size);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        is_steady(&bytes);
    }
}
