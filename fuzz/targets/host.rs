//! Hosts as strangers write them. No text makes the canonicaliser panic; what it takes has one spelling, which is taken
//! again as the same, whether alone, with a port or as a pattern; and no name in it is an address to somebody else.

#![no_main]

use libfuzzer_sys::fuzz_target;
use spec::{Destination, Host, HostPattern};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(host) = text.parse::<Host>() {
        check(&host, text);
    }
    if let Ok(to) = text.parse::<Destination>() {
        assert_eq!(to.to_string().parse(), Ok(to.clone()), "{text:?}");
        let (host, _) = text.rsplit_once(':').expect("there is a port");
        assert_eq!(host.parse(), Ok(to.host), "{text:?}");
    }
    let mut lines = text.splitn(2, '\n');
    let (Some(one), other) = (lines.next(), lines.next().unwrap_or_default()) else {
        return;
    };
    let Ok(pattern) = one.parse::<HostPattern>() else {
        return;
    };
    assert_eq!(pattern.to_string().parse(), Ok(pattern.clone()), "{one:?}");
    assert!(pattern.is_within(&pattern) && pattern.is_within(&HostPattern::Any));
    if let Ok(host) = other.parse::<Host>() {
        let alone = HostPattern::Exactly(host.clone());
        assert_eq!(
            alone.is_within(&pattern),
            pattern.matches(&host),
            "{one:?} {other:?}"
        );
    }
    if let Ok(wider) = other.parse::<HostPattern>()
        && pattern.is_within(&wider)
        && let HostPattern::Below(suffix) = &pattern
    {
        let below = Host::Name(format!("x.{suffix}"));
        assert!(wider.matches(&below), "{one:?} is within {other:?}");
    }
});

fn check(host: &Host, text: &str) {
    let shown = host.to_string();
    assert_eq!(shown.parse().as_ref(), Ok(host), "{text:?}");
    match host {
        Host::Name(name) => {
            let plain = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte)
            };
            assert!(
                name.bytes().all(plain) && !name.ends_with('.') && name.len() <= 253,
                "{name}"
            );
            assert!(name.parse::<std::net::IpAddr>().is_err(), "{name}");
            assert!(
                name.eq_ignore_ascii_case(text.strip_suffix('.').unwrap_or(text)),
                "{name} {text:?}"
            );
        }
        Host::Address(address) => assert_eq!(address.to_canonical(), *address),
    }
    assert!(HostPattern::Exactly(host.clone()).matches(host));
}
