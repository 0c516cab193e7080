//! What is read out of pushes, and what is not.

use super::*;
use proptest::prelude::*;

const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";
const NONE: &str = "0000000000000000000000000000000000000000";
const CAPABILITIES: &str = " report-status-v2 side-band-64k object-format=sha1 agent=git/2.47.3";

fn repository(push: &[&str], update: bool, delete: bool) -> Repository {
    let push = push
        .iter()
        .map(|pattern| pattern.parse().unwrap())
        .collect();
    Repository {
        path: "acme/app".to_owned(),
        fetch: true,
        push,
        update,
        delete,
        credential: None,
    }
}

fn agent() -> PushRequest {
    PushRequest::new(&repository(&["refs/heads/agent/*"], true, false))
}

fn body(lines: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines {
        pkt_line::put(&mut out, line.as_bytes());
    }
    pkt_line::put_flush(&mut out);
    out
}

/// As git sends them: the first with capabilities.
fn commands(commands: &[(&str, &str, &str)]) -> Vec<u8> {
    let line = |(at, (old, new, name)): (usize, &(&str, &str, &str))| match at {
        0 => format!("{old} {new} {name}\0{CAPABILITIES}"),
        _ => format!("{old} {new} {name}"),
    };
    body(&commands.iter().enumerate().map(line).collect::<Vec<_>>())
}

fn reason(mut push: PushRequest, body: &[u8]) -> String {
    match push.feed(body) {
        PushDecision::Refused(denied) => {
            assert!(
                push.into_held().is_empty(),
                "nothing of a refused push is forwarded"
            );
            denied.reason
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn allowed_refs_pass_wherever_the_body_is_cut() {
    let list = commands(&[
        (NONE, NEW, "refs/heads/agent/a"),
        (OLD, NEW, "refs/heads/agent/b"),
        (NONE, OLD, "refs/heads/agent/c/d"),
    ]);
    let whole = [&list[..], b"PACK\0\0\0\x02"].concat();
    for size in 1..=whole.len() {
        let mut push = agent();
        let mut rest = whole.chunks(size);
        let fed: Vec<u8> = rest
            .by_ref()
            .scan(false, |done, piece| {
                if *done {
                    return None;
                }
                *done = push.feed(piece) == PushDecision::Allowed;
                Some(piece.to_vec())
            })
            .flatten()
            .collect();
        assert!(
            fed.len() >= list.len() && fed.len() < list.len() + size,
            "decided at the end of the list"
        );
        let changes: Vec<_> = push
            .commands()
            .iter()
            .map(|command| command.change)
            .collect();
        assert_eq!(
            changes,
            [RefChange::Create, RefChange::Update, RefChange::Create]
        );
        assert_eq!(push.into_held(), fed);
    }
}

#[test]
fn a_probe_is_nothing_but_a_flush() {
    let mut push = agent();
    assert_eq!(push.feed(b"000"), PushDecision::Incomplete);
    assert_eq!(push.feed(b"0009a"), PushDecision::Probe);
    let second = commands(&[(NONE, NEW, "refs/heads/main")]);
    assert_eq!(push.feed(&second), PushDecision::Probe);
    assert_eq!(push.into_held(), b"0000", "no second list goes along");
}

#[test]
fn one_ref_that_is_not_allowed_refuses_all() {
    let good = (NONE, NEW, "refs/heads/agent/a");
    for (bad, words) in [
        (
            (NONE, NEW, "refs/heads/main"),
            "refs/heads/main may not be written, only refs/heads/agent/*",
        ),
        (
            (NONE, NEW, "refs/tags/agent/a"),
            "refs/tags/agent/a may not be written, only refs/heads/agent/*",
        ),
        (
            (OLD, NONE, "refs/heads/agent/b"),
            "refs/heads/agent/b may not be removed",
        ),
        (
            (NONE, NONE, "refs/heads/agent/b"),
            "refs/heads/agent/b may not be removed",
        ),
        (good, "the push cannot be understood: it names a ref twice"),
    ] {
        assert_eq!(reason(agent(), &commands(&[good, bad])), words);
        assert_eq!(
            reason(agent(), &commands(&[bad, bad, good])),
            if bad == good {
                "the push cannot be understood: it names a ref twice"
            } else {
                words
            }
        );
    }
    assert_eq!(agent().feed(&commands(&[good])), PushDecision::Allowed);
}

#[test]
fn what_an_entry_says_of_moving_and_removing_holds() {
    let fed = |update, delete, old, new| {
        PushRequest::new(&repository(&["refs/heads/x"], update, delete)).feed(&commands(&[(
            old,
            new,
            "refs/heads/x",
        )]))
    };
    let allowed = |decision| decision == PushDecision::Allowed;
    assert!(allowed(fed(false, false, NONE, NEW)));
    assert!(allowed(fed(true, false, OLD, NEW)) && !allowed(fed(false, true, OLD, NEW)));
    assert!(allowed(fed(false, true, OLD, NONE)) && !allowed(fed(true, false, OLD, NONE)));
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let first = format!("{NONE} {NEW} refs/heads/agent/a\0{CAPABILITIES}");
    let main = format!("{NONE} {NEW} refs/heads/main");
    let long = "3".repeat(64);
    for lines in [
        vec![
            first.clone(),
            format!("{NONE} {NEW} refs/heads/agent/b\0{main}"),
        ],
        vec![
            first.clone(),
            format!("{NONE} {NEW} refs/heads/agent/b\n{main}\n"),
        ],
        vec![format!("{NONE} {NEW} refs/heads/agent/b\n{main}")],
        vec![format!("{first}\0{main}")],
        vec![format!("{first}\n{main}")],
        vec![format!("{first}\tpush-options")],
        vec![format!("{first} push-options")],
        vec![format!("{first} push-cert=x")],
        vec![format!("{first} object-format=sha1")],
        vec![format!("{first} something-new")],
        vec![format!("push-cert\0{CAPABILITIES}"), first.clone()],
        vec![first.clone(), format!("shallow {OLD}")],
        vec![format!("shallow {OLD}\0{CAPABILITIES}")],
        vec![format!("shallow {OLD} {OLD}"), first.clone()],
        vec![format!("shallow {long}"), first.clone()],
        vec![format!("{long} {long} refs/heads/agent/a\0{CAPABILITIES}")],
        vec![format!("{long} {long} refs/heads/agent/a")],
        vec![format!(
            "{NONE} {NEW} refs/heads/agent/a\0object-format=sha256"
        )],
        vec![format!("{NONE} {long} refs/heads/agent/a")],
        vec![format!("{NONE}  {NEW} refs/heads/agent/a")],
        vec![format!("{NONE} {NEW}  refs/heads/agent/a")],
        vec![format!("{NONE}\t{NEW} refs/heads/agent/a")],
        vec![format!(
            "{} {NEW} refs/heads/agent/a",
            OLD.replace('1', "A")
        )],
        vec![format!("{NONE} {NEW} refs/heads/agent/../main")],
        vec![format!("{NONE} {NEW} ")],
        vec![format!("{NONE} {NEW}")],
        vec!["\n".to_owned()],
    ] {
        let why = reason(agent(), &body(&lines));
        assert!(
            why.starts_with("the push cannot be understood: "),
            "{why}: {lines:?}"
        );
    }
    let shallow = [format!("shallow {OLD}\n"), format!("{first}\n")];
    assert_eq!(agent().feed(&body(&shallow)), PushDecision::Allowed);
    let zeros = "0".repeat(64);
    let sha256 = [format!(
        "{zeros} {long} refs/heads/agent/a\0report-status object-format=sha256"
    )];
    assert_eq!(agent().feed(&body(&sha256)), PushDecision::Allowed);
}

#[test]
fn lengths_that_lie_let_nothing_pass() {
    let hidden = commands(&[(NONE, NEW, "refs/heads/main")]);
    let good = commands(&[(NONE, NEW, "refs/heads/agent/a")]);
    let good = &good[..good.len() - 4];
    for head in [
        &b"0001"[..],
        b"0002",
        b"0003",
        b"0004",
        b"fff1",
        b"ffff",
        b" 000",
        b"+00f",
        b"0x0f",
    ] {
        reason(agent(), &[good, head, &hidden].concat());
    }
    // A line that swallows the end of the list, and one that ends before its words do.
    let longer = [b"00c0", &good[4..], b"0000"].concat();
    assert_eq!(agent().feed(&longer), PushDecision::Incomplete);
    reason(agent(), &[b"0010", &good[4..], b"0000"].concat());
}

#[test]
fn lists_are_bounded() {
    let line = |at: usize| match at {
        0 => format!("{NONE} {NEW} refs/heads/agent/{at}\0{CAPABILITIES}"),
        _ => format!("{NONE} {NEW} refs/heads/agent/{at}"),
    };
    let lines: Vec<_> = (0..=MAX_COMMANDS).map(line).collect();
    assert_eq!(
        agent().feed(&body(&lines[..MAX_COMMANDS])),
        PushDecision::Allowed
    );
    assert!(reason(agent(), &body(&lines)).contains("more than 2048"));
    let mut push = agent();
    let shallow = body(&vec![format!("shallow {OLD}"); 1000]);
    let endless = shallow[..shallow.len() - 4].iter().copied().cycle();
    let pieces = endless.take(2 << 20).collect::<Vec<_>>();
    let last = pieces
        .chunks(1000)
        .map(|piece| push.feed(piece))
        .find(|decision| *decision != PushDecision::Incomplete);
    assert!(
        matches!(last, Some(PushDecision::Refused(denied)) if denied.reason.contains("longer than 256 KiB"))
    );
    assert!(push.held.len() <= MAX_BYTES + 1000);
}

#[test]
fn a_refusal_names_every_ref_in_the_bands_that_were_asked_for() {
    let two = [
        (NONE, NEW, "refs/heads/agent/a"),
        (NONE, NEW, "refs/heads/main"),
    ];
    let report = "000eunpack ok\n\
                  0048ng refs/heads/agent/a airlock: another ref of this push was refused\n\
                  005cng refs/heads/main airlock: refs/heads/main may not be written, only refs/heads/agent/*\n0000";
    let refused = |body: &[u8]| {
        let mut push = agent();
        let PushDecision::Refused(denied) = push.feed(body) else {
            panic!("it passed")
        };
        push.refusal(&denied)
            .map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let plain = String::from_utf8(commands(&two)).unwrap();
    let swap = |from: &str, to: &str| {
        let line = format!(
            "{NONE} {NEW} refs/heads/agent/a\0{}",
            CAPABILITIES.replace(from, to)
        );
        body(&[line, format!("{NONE} {NEW} refs/heads/main")])
    };
    assert_eq!(refused(&swap("side-band-64k", "")).as_deref(), Some(report));
    assert_eq!(refused(&swap("report-status-v2", "")), None);
    assert_eq!(refused(b"zzzz"), None);
    let banded = refused(plain.as_bytes()).unwrap();
    let (words, rest) = banded.split_once("airlock: What would allow it: ").unwrap();
    assert!(
        words.contains("\u{2}airlock: the push was refused: refs/heads/main may not be written"),
        "{words}"
    );
    assert!(rest.ends_with(&format!("\u{1}{report}0000")), "{rest}");
}

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    let object = prop_oneof![Just(NONE), Just(NEW), Just(OLD)];
    let name = prop_oneof![
        4 => "refs/heads/agent/[a-c./]{1,3}",
        1 => Just("refs/heads/main".to_owned()),
        1 => "refs/tags/[a-b]",
        1 => "\\PC{0,8}",
    ];
    let end = prop_oneof![4 => Just(""), 1 => Just("\n"), 1 => Just("\0report-status"), 1 => Just("\0 x")];
    let line = (object.clone(), object, name, end)
        .prop_map(|(old, new, name, end)| format!("{old} {new} {name}{end}"));
    let lines = prop::collection::vec(line, 0..4);
    (
        lines,
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
    )
        .prop_map(|(lines, flips)| {
            let mut body = body(&lines);
            for (at, byte) in flips {
                let at = at.index(body.len());
                body[at] = byte;
            }
            body
        })
}

/// Another reading of the same bytes, by somebody who believes every length and looks at nothing else.
fn refs_of(mut bytes: &[u8]) -> Vec<(String, bool)> {
    let mut refs = Vec::new();
    loop {
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..4]).unwrap(), 16).unwrap();
        if length == 0 {
            return refs;
        }
        let line = &bytes[4..length];
        let line =
            String::from_utf8_lossy(line.split(|byte| [0, b'\n'].contains(byte)).next().unwrap());
        if let Some((objects, name)) = line
            .rsplit_once(' ')
            .filter(|_| !line.starts_with("shallow"))
        {
            refs.push((name.to_owned(), objects.ends_with(NONE)));
        }
        bytes = &bytes[length..];
    }
}

proptest! {
    #[test]
    fn whatever_passes_has_only_allowed_changes(body in any_body(), cut in 1..50usize) {
        let mut whole = agent();
        let decision = whole.feed(&body);
        if decision == PushDecision::Allowed {
            let refs = refs_of(&body);
            prop_assert_eq!(refs.len(), whole.commands().len());
            for (name, deletes) in refs {
                prop_assert!(name.starts_with("refs/heads/agent/") && !deletes, "{}", name);
            }
        }
        let mut cutting = agent();
        let last = body.chunks(cut).map(|piece| cutting.feed(piece)).find(|decision| *decision != PushDecision::Incomplete);
        prop_assert_eq!(last.unwrap_or(PushDecision::Incomplete), decision);
    }

    #[test]
    fn no_bytes_are_too_much(body in prop::collection::vec(any::<u8>(), 0..200)) {
        agent().feed(&body);
    }
}
