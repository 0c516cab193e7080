//! What a program writes, on its way to the caller's terminal. No bytes make the filter panic or hold more than a
//! little of them back; where they are cut changes nothing; what comes out is text without controls but the known
//! ones, and comes out the same when it goes in again.
//!
//! The first byte says which level, the second where the rest is cut. The command is no library, so that this
//! target takes the module from its file.

#![no_main]

#[path = "../../crates/app/src/cli/terminal_filter.rs"]
#[allow(dead_code, reason = "what the command alone uses")]
mod terminal_filter;

use libfuzzer_sys::fuzz_target;
use terminal_filter::{FilterLevel, TerminalFilter};

fuzz_target!(|input: &[u8]| {
    let [level, cut, bytes @ ..] = input else {
        return;
    };
    let level = if level % 2 == 0 {
        FilterLevel::Lines
    } else {
        FilterLevel::FullScreen
    };
    let whole = shown(level, &[bytes]);
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    assert_eq!(shown(level, &[first, second]), whole, "where it is cut");
    assert_eq!(shown(level, &[whole.as_bytes()]), whole, "a second time");
    whole
        .chars()
        .for_each(|character| assert!(may_pass(level, character), "{character:?}"));
    match level {
        FilterLevel::Lines => check_colours(&whole),
        FilterLevel::FullScreen => assert!(
            ![
                "\x1b]", "\x1bP", "\x1bX", "\x1b^", "\x1b_", "\x1bk", "\x1bc"
            ]
            .iter()
            .any(|words| whole.contains(words))
        ),
    }
});

fn shown(level: FilterLevel, pieces: &[&[u8]]) -> String {
    let mut screen = TerminalFilter::new(level);
    let mut out: Vec<u8> = pieces.iter().flat_map(|piece| screen.show(piece)).collect();
    out.extend(screen.finish());
    String::from_utf8(out).expect("the output is UTF-8")
}

fn may_pass(level: FilterLevel, character: char) -> bool {
    let more = if level == FilterLevel::FullScreen {
        "\x07\x0b\x0c\x0e\x0f"
    } else {
        ""
    };
    !character.is_control() || "\x1b\n\t\r\x08".contains(character) || more.contains(character)
}

fn check_colours(text: &str) {
    for after in text.split('\x1b').skip(1) {
        let end = after.find('m').expect("a colour has an end");
        assert!(
            after.starts_with('[') && after[1..end].chars().all(|c| "0123456789;:".contains(c)),
            "{after:?}"
        );
    }
}
