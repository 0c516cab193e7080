//! What the first process of a container reads: its command, the image's users, a name server's answer. No bytes make a
//! reader panic; arguments lose nothing; nobody is root who was not named so.
//!
//! The first byte says what the rest is read as.

#![no_main]

use init::entry::{
    bridge::{resolver, url},
    command, user,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    match kind {
        b'j' => check_json(bytes),
        b'w' => check_words(bytes),
        b'u' => check_users(bytes),
        b'a' => check_answer(bytes),
        b'l' => _ = url::parse(bytes),
        _ => {}
    }
});

/// What is accepted is written again, and read as the same.
fn check_json(bytes: &[u8]) {
    let Ok(list) = command::parse_json(bytes) else {
        return;
    };
    let escaped = |argument: &Vec<u8>| {
        let text = str::from_utf8(argument).expect("JSON is text");
        let units: String = text
            .encode_utf16()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect();
        assert!(!argument.contains(&0));
        format!("\"{units}\"")
    };
    let again = list.iter().map(escaped).collect::<Vec<_>>().join(",");
    let again = format!("[{again}]");
    // Six letters for each: what was just short enough is too long now.
    if again.len() <= 128 << 10 {
        assert_eq!(command::parse_json(again.as_bytes()), Ok(list));
    }
}

fn check_words(bytes: &[u8]) {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let words: Vec<_> = command::split(bytes).collect();
    assert!(
        words
            .iter()
            .all(|word| !word.is_empty() && !word.iter().any(is_space))
    );
    assert_eq!(
        words.concat(),
        bytes
            .iter()
            .copied()
            .filter(|byte| !is_space(byte))
            .collect::<Vec<_>>()
    );
}

/// `WANTED NUL PASSWD NUL GROUP`.
fn check_users(bytes: &[u8]) {
    let mut parts = bytes.splitn(3, |byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    let (Ok(wanted), passwd, group) = (str::from_utf8(next()), next(), next()) else {
        return;
    };
    let Ok(found) = user::resolve(wanted, passwd, group) else {
        return;
    };
    let named = wanted.split(':').next().unwrap_or_default();
    let is_zero = !named.is_empty() && named.bytes().all(|byte| byte == b'0');
    assert!(found.uid != 0 || named == "root" || is_zero, "{found:?}");
    assert!(found.uid != u32::MAX && found.groups.first() == Some(&found.gid));
    assert!(found.groups.len() <= 1024 && !found.groups.contains(&u32::MAX));
    assert!(found.home.is_none_or(|home| home.starts_with(b"/")));
}

/// Also as what follows a question that was asked, which is how far an answer gets.
fn check_answer(bytes: &[u8]) {
    for kind in [resolver::RecordType::A, resolver::RecordType::Aaaa] {
        let asked = resolver::question("a.b", 7, kind);
        _ = resolver::answer(bytes, &asked, kind);
        let mut message = [&asked[..], bytes].concat();
        (message[2], message[7]) = (0x81, 3);
        assert!(
            resolver::answer(&message, &asked, kind).is_some(),
            "it is an answer"
        );
    }
    _ = (resolver::from_hosts(bytes, "a.b"), resolver::server(bytes));
}
