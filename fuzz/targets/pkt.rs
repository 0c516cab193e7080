//! The body of a push, by a program that would rather write elsewhere. Where it is cut changes nothing; what passes has
//! only allowed changes, read a second time by simpler means; what is held back is bounded.
//!
//! The first byte says where it is cut.

#![no_main]

use doors::egress::git::{RefChange, PushDecision, PushRequest};
use libfuzzer_sys::fuzz_target;
use spec::Repository;

fuzz_target!(|input: &[u8]| {
    let [cut, body @ ..] = input else { return };
    let (whole, allowed) = read(body, body.len().max(1));
    let (pieces, _) = read(body, usize::from(*cut).max(1));
    assert_eq!(whole, pieces, "where it is cut changes nothing");
    let Some(held) = allowed else { return };
    assert_eq!(held, body, "what passes is what came");
    let refs = refs(body);
    assert!(!refs.is_empty(), "a probe is not a push");
    for (name, new) in refs {
        assert!(
            name.starts_with(b"refs/heads/agent/") && !name.windows(2).any(|two| two == b".."),
            "{name:?}"
        );
        assert!(new.iter().any(|digit| *digit != b'0'), "nothing is removed");
    }
});

fn read(body: &[u8], size: usize) -> (PushDecision, Option<Vec<u8>>) {
    let repository = Repository {
        path: "acme/app".to_owned(),
        fetch: true,
        push: vec!["refs/heads/agent/*".parse().expect("a pattern")],
        update: true,
        delete: false,
        credential: None,
    };
    let mut push = PushRequest::new(&repository);
    let decision = body
        .chunks(size)
        .map(|piece| push.feed(piece))
        .find(|decision| *decision != PushDecision::Incomplete);
    let decision = decision.unwrap_or(PushDecision::Incomplete);
    if let PushDecision::Refused(denied) = &decision {
        let report = push.refusal(denied).unwrap_or_default();
        assert!(report.is_empty() || report.ends_with(b"0000"));
    }
    assert!(
        decision != PushDecision::Allowed
            || push
                .commands()
                .iter()
                .all(|one| one.change != RefChange::Delete)
    );
    let held = (decision == PushDecision::Allowed).then(|| push.into_held());
    (decision, held)
}

/// The refs of a list, and what becomes of them, by somebody who trusts every length.
fn refs(mut body: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut refs = Vec::new();
    loop {
        let length = std::str::from_utf8(&body[..4]).expect("digits");
        let length = usize::from_str_radix(length, 16).expect("digits");
        if length == 0 {
            return refs;
        }
        let line = body[4..length]
            .split(|byte| [0, b'\n'].contains(byte))
            .next()
            .unwrap_or_default();
        if !line.starts_with(b"shallow ") {
            let mut words = line.splitn(3, |byte| *byte == b' ').skip(1);
            let new = words.next().unwrap_or_default();
            refs.push((words.next().unwrap_or_default(), new));
        }
        body = &body[length..];
    }
}
