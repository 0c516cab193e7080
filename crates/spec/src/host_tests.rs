use super::*;
use proptest::prelude::*;

fn host(text: &str) -> Result<Host, BadHost> {
    text.parse()
}

#[test]
fn a_host_has_one_spelling() {
    for (text, one) in [
        ("Example.COM", "example.com"),
        ("a.example.com.", "a.example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("_acme.example.com", "_acme.example.com"),
        ("127.1", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0177.0.0.1.", "127.0.0.1"),
        ("[::ffff:127.0.0.1]", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("[2606:4700::1111]", "[2606:4700::1111]"),
    ] {
        assert_eq!(host(text).unwrap().to_string(), one, "{text}");
    }
}

#[test]
fn what_somebody_could_read_otherwise_is_no_host() {
    let long = "a".repeat(64);
    let longest = format!("{}.com", "a.".repeat(130));
    for text in [
        "",
        ".",
        "..",
        "a..b",
        ".a",
        "a..",
        "1.2.3.4..",
        "evil\0.allowed.com",
        "evil%00.allowed.com",
        "a b",
        "a\tb",
        "a\r\nb",
        "user@host",
        "host#x",
        "host?x",
        "host/x",
        "host\\x",
        "bücher.example",
        "example\u{3002}com",
        "-a.com",
        "a-.com",
        "1.2.3.4.5",
        "256.1.1.1",
        "a.08",
        "a.0x1",
        "[fe80::1%eth0]",
        "fe80::1%1",
        "[::1",
        "a:b",
        "*.a",
        &long,
        &longest,
    ] {
        assert!(host(text).is_err(), "{text:?} is {:?}", host(text));
    }
}

#[test]
fn a_destination_needs_a_port() {
    let to = |text: &str| text.parse::<Destination>().map(|to| to.to_string());
    assert_eq!(to("Example.com:443").unwrap(), "example.com:443");
    assert_eq!(to("[::1]:80").unwrap(), "[::1]:80");
    for text in [
        "a", "a:", "a:0", "a:65536", "a:+1", "a: 1", "a:000443", "::1:80", ":80", "a:1:2",
        "a:99999", "[::1]80",
    ] {
        assert!(text.parse::<Destination>().is_err(), "{text}");
    }
}

#[test]
fn a_pattern_matches_whole_labels() {
    let matches = |pattern: &str, text: &str| {
        pattern
            .parse::<HostPattern>()
            .unwrap()
            .matches(&text.parse().unwrap())
    };
    assert!(
        matches("*.example.com", "a.example.com") && matches("*.example.com", "a.b.EXAMPLE.com.")
    );
    assert!(
        matches("example.com", "example.com.")
            && matches("*", "1.2.3.4")
            && matches("10.1", "10.0.0.1")
    );
    for (pattern, text) in [
        ("*.example.com", "example.com"),
        ("*.example.com", "example.com.evil"),
        ("*.example.com", "evilexample.com"),
        ("example.com", "a.example.com"),
        ("example.com", "example.com.evil"),
        ("*.0.0.127.in-addr.arpa", "127.0.0.1"),
    ] {
        assert!(!matches(pattern, text), "{pattern} {text}");
    }
    for text in ["", "*.", "a.*", "*a.com", "*.*.com", "*.1.2.3.4", "**"] {
        assert!(text.parse::<HostPattern>().is_err(), "{text}");
    }
}

#[test]
fn a_pattern_is_within_another_if_nothing_falls_out() {
    let within = |one: &str, other: &str| {
        one.parse::<HostPattern>()
            .unwrap()
            .is_within(&other.parse::<HostPattern>().unwrap())
    };
    assert!(
        within("a.b.c", "*.b.c")
            && within("*.a.b.c", "*.b.c")
            && within("*.b.c", "*.b.c")
            && within("a", "*")
    );
    assert!(
        !within("*", "*.c")
            && !within("*.b.c", "*.a.b.c")
            && !within("b.c", "*.b.c")
            && !within("*.b", "b")
    );
    assert!(!within("*.ab.c", "*.b.c"));
}

proptest! {
    #[test]
    fn one_spelling_is_its_own(text in "\\PC{0,40}|[a-zA-Z0-9.:_\\[\\]-]{0,40}") {
        if let Ok(host) = host(&text) {
            let one = host.to_string();
            prop_assert_eq!(self::host(&one).unwrap(), host);
            prop_assert!(one.bytes().all(|byte| byte.is_ascii_graphic() && !b"@#?/\\%*".contains(&byte)));
        }
    }
}
