//! Socket addresses, as they lie in the memory of a hostile program. No bytes make the reader panic; what it takes
//! for an address is what the standard library would write, and is never loopback by one spelling only.

#![no_main]

use init::watched_syscalls;
use libfuzzer_sys::fuzz_target;
use std::net::IpAddr;

fuzz_target!(|bytes: &[u8]| {
    let Some(address) = watched_syscalls::destination(bytes) else {
        return;
    };
    assert_eq!(address.port().to_be_bytes(), bytes[2..4]);
    match address.ip() {
        IpAddr::V4(v4) => assert_eq!(v4.octets(), bytes[4..8]),
        IpAddr::V6(v6) => assert_eq!(v6.octets(), bytes[8..24]),
    }
    assert_eq!(
        watched_syscalls::is_outside_sandbox(address.ip()),
        watched_syscalls::is_outside_sandbox(address.ip().to_canonical())
    );
    assert_eq!(
        address.to_string().parse(),
        Ok(address),
        "it is told as it is"
    );
});
