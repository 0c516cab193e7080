//! Where the fuzzer starts for what reads strangers' words at the egress door.

/// Hosts in many spellings, with ports, and patterns with a host below them.
pub fn hosts() -> Vec<Vec<u8>> {
    let texts = [
        "Example.COM.",
        "xn--bcher-kva.example",
        "0x7f.1",
        "017700000001",
        "[::ffff:10.0.0.1]",
        "::1",
        "a.example:443",
        "[fe80::1]:80",
        "*.example.com\nx.example.com",
        "*\n1.1.1.1",
        "*.x.a.com\n*.a.com",
        "_a-b.c1\n_A-b.c1.",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Paths, each after a pattern.
pub fn request_paths() -> Vec<Vec<u8>> {
    let texts = [
        "/a/b",
        "/**\n/a/../b/./c",
        "/repos/*/x/**\n/repos/o%2fp/x/y",
        "/a*b/c\n/a%41b/c",
        "/x\n/%2e%2e/x;y",
        "/a/\n/a//b",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A question for an address, with options, and one about something else.
pub fn questions() -> Vec<Vec<u8>> {
    let first = b"\x12\x34\x01\x20\0\x01\0\0\0\0\0\x01\x03www\x07Example\x03com\0\0\x01\0\x01";
    let options = b"\0\0\x29\x04\xd0\0\0\0\0\0\x06\0\x0a\0\x02xy";
    let second = b"\0\0\x01\0\0\x01\0\0\0\0\0\0\x01a\x01b\0\0\x1c\0\x01";
    vec![[&first[..], options].concat(), second.to_vec()]
}

/// First messages of TLS: in one record, in two, with a hidden name, without any.
pub fn hellos() -> Vec<Vec<u8>> {
    let name = counted(2, &[&[0][..], &counted(2, b"a.example")].concat());
    let named = [&[0, 0][..], &counted(2, &name)].concat();
    let others = b"\x1a\x1a\0\0\xfe\x0d\0\x02xx".to_vec();
    let opening = [
        &[3, 3][..],
        &[7; 32],
        &counted(1, &[9; 8]),
        b"\0\x04\x2a\x2a\x13\x01\x01\0",
    ]
    .concat();
    let message = |extensions: &[u8]| {
        let body = [opening.clone(), counted(2, extensions)].concat();
        [vec![1], counted(3, &body)].concat()
    };
    let record = |part: &[u8]| [vec![22, 3, 1], counted(2, part)].concat();
    let both = message(&[named.clone(), others].concat());
    let (first, second) = both.split_at(50);
    vec![
        record(&both),
        [record(first), record(second)].concat(),
        record(&message(&named)),
        message(&named),
    ]
}

fn counted(width: usize, bytes: &[u8]) -> Vec<u8> {
    [&bytes.len().to_be_bytes()[8 - width..], bytes].concat()
}
