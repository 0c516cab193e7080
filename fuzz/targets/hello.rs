//! The first bytes of a client at the egress door. No bytes make the reader panic; what it said of a beginning it says of
//! everything that this may become; and a name that it finds is in what was sent.

#![no_main]

use doors::egress::client_hello::{ClientHello, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes);
    // Some beginnings: all of them would make long inputs slow.
    for part in 1..8 {
        let beginning = read(&bytes[..bytes.len() * part / 8]);
        assert!(
            beginning == ClientHello::Incomplete || beginning == whole,
            "{beginning:?} became {whole:?}"
        );
    }
    // The same in a record of its own, so that everything behind the record's head is reached.
    if let Ok(length) = u16::try_from(bytes.len()) {
        _ = read(&[&[22, 3, 1][..], &length.to_be_bytes(), bytes].concat());
    }
    if let ClientHello::Tls {
        name: Some(name), ..
    } = whole
    {
        let name = name.name().expect("no address is a server's name");
        assert_eq!(name.parse().as_ref().map(spec::Host::name), Ok(Some(name)));
        assert!(bytes.len() > name.len() + 9);
    }
});
