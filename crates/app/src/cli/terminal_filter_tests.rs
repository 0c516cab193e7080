//! Claims about what reaches a terminal. The oracle reads the output by itself and shares nothing with the filter.

use super::*;
use proptest::{collection::vec, prelude::*, sample::select};
use std::collections::BTreeMap;

/// All of it, in one piece, to the end.
fn shown(level: FilterLevel, input: &[u8]) -> String {
    let mut screen = TerminalFilter::new(level);
    let mut out = screen.show(input);
    out.extend(screen.finish());
    String::from_utf8(out).expect("the output is UTF-8")
}

/// What a text consists of, for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Character(char),
    /// An escape sequence without a `[`.
    Short(String),
    /// What stands between `ESC [` and the last character, and that one.
    Control(String, char),
}

fn parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = text.chars();
    while let Some(first) = rest.next() {
        parts.push(match first {
            '\x1b' => sequence(&mut rest),
            other => Part::Character(other),
        });
    }
    parts
}

fn sequence(rest: &mut std::str::Chars<'_>) -> Part {
    let mut body = String::new();
    for character in rest {
        let control = body.starts_with('[');
        let last = if control {
            ('@'..='~').contains(&character)
        } else {
            character != '[' && ('0'..='~').contains(&character)
        };
        match (last, control) {
            (true, true) => return Part::Control(body[1..].to_owned(), character),
            (true, false) => return Part::Short(format!("{body}{character}")),
            (false, _) => body.push(character),
        }
    }
    panic!("a sequence without an end: {body:?}")
}

fn is_plain(character: char) -> bool {
    !character.is_control() || "\n\t\r\x08".contains(character)
}

const HOSTILE: [&str; 30] = [
    "\x1b]52;c;cm0gLXJmIH4K\x07", // clipboard
    "\x1b]52;c;?\x1b\\",          // and back
    "\x1b]0;rm -rf ~\x07",        // title …
    "\x1b[21t",                   // … typed
    "\x1b[20t",
    "\x1b[3;0;0t", // window
    "\x1b[22;0;0t",
    "\x1bP$q\"p\x1b\\",                 // DECRQSS
    "\x1bP+q544e\x1b\\",                // termcap
    "\x1bP1000p%extended-output\x1b\\", // tmux
    "\x1b_Gi=1,a=q;AAAA\x1b\\",         // graphics
    "\x1b^private\x1b\\",
    "\x1bXstring\x1b\\",
    "\x1bktitle\x1b\\",
    "\x1b]10;?\x07", // colours
    "\x1b]4;1;?\x1b\\",
    "\x1b]1337;File=name=eA==:AAAA\x07",
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "\x05",      // answerback
    "\x1b[201~", // the end of a paste
    "\x1b[>q",   // version
    "\x1b[?2031h",
    "\x1b[2h",  // keyboard locked
    "\x1b[3J",  // what scrolled away
    "\x1bc",    // everything
    "\x1b[5i",  // printer
    "\x1b%@",   // not UTF-8 any more
    "\x1b[?3h", // 132 columns
    "\u{9d}52;c;eA==\u{9c}",
    "\u{9b}21t",
];

#[test]
fn what_is_hostile_is_shown_for_what_it_is_among_lines() {
    for hostile in HOSTILE {
        let seen = shown(FilterLevel::Lines, hostile.as_bytes());
        assert!(seen.chars().all(is_plain), "{hostile:?} became {seen:?}");
        assert!(
            seen.starts_with(['^', '\u{fffd}']),
            "{hostile:?} became {seen:?}"
        );
    }
    assert_eq!(
        shown(FilterLevel::Lines, b"a\x1b]0;t\x07b\x7f\0\x1b[2J"),
        "a^[]0;t^Gb^?^@^[[2J"
    );
    assert_eq!(
        shown(FilterLevel::Lines, b"\x1b[31m\x1b[4;38;2;1;2;3mx\x1b[0my\n"),
        "\x1b[31m\x1b[4;38;2;1;2;3mx\x1b[0my\n"
    );
}

#[test]
fn what_is_hostile_does_not_reach_a_whole_screen() {
    for hostile in HOSTILE {
        let seen = shown(FilterLevel::FullScreen, format!("<{hostile}>").as_bytes());
        let rest: String = seen
            .chars()
            .filter(|character| !"<>\u{fffd}".contains(*character))
            .collect();
        // Of 8-bit controls, which nobody uses in UTF-8, and of links the words remain.
        assert!(
            ["", "link", "52;c;eA==", "21t"].contains(&rest.as_str()),
            "{hostile:?} became {seen:?}"
        );
        assert!(
            seen.starts_with('<') && seen.ends_with('>'),
            "{hostile:?} became {seen:?}"
        );
    }
}

#[test]
fn programs_that_use_the_whole_screen_find_what_they_need() {
    for needed in [
        "\x1b[H\x1b[2J\x1b[10;20H\x1b[K\x1b[?25l\x1b[?25h",
        "\x1b[?1049h\x1b[?2004h\x1b[?1006;1002h\x1b[?1006;1002l\x1b[?2004l\x1b[?1049l",
        "\x1b[6n\x1b[5n\x1b[c\x1b[0c\x1b[>c\x1b[?6n",
        "\x1b7\x1b[2;10r\x1bM\x1bD\x1b[r\x1b8\x1b=\x1b>",
        "\x1b(0lqk\x1b(B\x0e\x0f\x07\x1b[!p",
        "\x1b[4h\x1b[4l\x1b[2 q\x1b[0 q\x1b[3L\x1b[2M\x1b[5P\x1b[4@\x1b[3X\x1b[s\x1b[u\x1b[7b",
        "\x1b[1;38:2::255:0:0;4:3mä€𝄞\x1b[m\r\n",
    ] {
        assert_eq!(shown(FilterLevel::FullScreen, needed.as_bytes()), needed);
    }
}

#[test]
fn what_a_program_left_changed_is_put_back_and_nothing_else() {
    assert_eq!(shown(FilterLevel::FullScreen, b"plain\r\n"), "plain\r\n");
    let vim = "\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[1;31m\x1b[2;9r\x1b=\x1b(0\x1b[4 q\x1b[4h";
    let undone = "\x1b[?1049l\x1b[?2004l\x1b[?25h\x1b[4l\x1b>\x1b7\x1b[r\x1b8\x0f\x1b(B\x1b)B\x1b[0 q\x1b[0m";
    assert_eq!(
        shown(FilterLevel::FullScreen, vim.as_bytes()),
        format!("{vim}{undone}")
    );
    assert_eq!(
        shown(FilterLevel::Lines, b"\x1b[31mred"),
        "\x1b[31mred\x1b[0m"
    );
}

#[test]
fn bytes_that_are_no_text_are_replaced() {
    for bytes in [
        &b"\x9b"[..],
        b"\xff",
        b"\xc2\x9b",
        b"\xe2\x82",
        b"\xed\xa0",
        b"\xc0",
        b"\xf5",
    ] {
        for level in [FilterLevel::Lines, FilterLevel::FullScreen] {
            let seen = shown(level, bytes);
            assert!(
                seen.chars().all(|character| character == '\u{fffd}'),
                "{bytes:x?} became {seen:?}"
            );
        }
    }
}

#[test]
fn a_sequence_without_an_end_takes_no_memory() {
    for level in [FilterLevel::Lines, FilterLevel::FullScreen] {
        for start in ["\x1b[", "\x1b]52;", "\x1b(", "\x1bP"] {
            let mut screen = TerminalFilter::new(level);
            screen.show(start.as_bytes());
            for _ in 0..1000 {
                screen.show(&b"1;2;3 ".repeat(100));
            }
            assert!(
                screen.pending.capacity() <= 2 * MAX_SEQUENCE_BYTES,
                "{start:?}: {}",
                screen.pending.capacity()
            );
        }
    }
}

/// Pieces from which sequences arise, and any bytes at all.
fn output() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"\x1b",
        b"\x1b[",
        b"\x1b]",
        b"\x1bP",
        b"\x1b\\",
        b"\x07",
        b"?",
        b">",
        b";",
        b":",
        b"0",
        b"1",
        b"4",
        b"6",
        b"25",
        b"1049",
        b"2004",
        b"48",
        b"99999",
        b"m",
        b"h",
        b"l",
        b"n",
        b"c",
        b"r",
        b"J",
        b"t",
        b"~",
        b" q",
        b"!p",
        b"(",
        b"0",
        b"B",
        b"\x0e",
        b"\x0f",
        b"\x05",
        b"\x18",
        b"\xc2",
        b"\x9b",
        b"\xe2\x82\xac",
        b"text\r\n",
    ];
    let word = select(words).prop_map(<[u8]>::to_vec);
    let hostile = select(HOSTILE.to_vec()).prop_map(|text| text.as_bytes().to_vec());
    let any = vec(any::<u8>(), 0..4);
    vec(prop_oneof![6 => word, 2 => hostile, 2 => any], 0..40).prop_map(|pieces| pieces.concat())
}

fn level() -> impl Strategy<Value = FilterLevel> {
    select(vec![FilterLevel::Lines, FilterLevel::FullScreen])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_makes_no_difference_where_the_output_is_cut(level in level(), bytes in output(), size in 1usize..5) {
        let mut screen = TerminalFilter::new(level);
        let mut out: Vec<u8> = bytes.chunks(size).flat_map(|chunk| screen.show(chunk)).collect();
        out.extend(screen.finish());
        prop_assert_eq!(String::from_utf8(out).unwrap(), shown(level, &bytes));
    }

    #[test]
    fn what_was_shown_can_be_shown_again(level in level(), bytes in output()) {
        let once = shown(level, &bytes);
        prop_assert_eq!(shown(level, once.as_bytes()), once);
    }

    #[test]
    fn among_lines_there_is_text_and_colour_and_nothing_else(bytes in output()) {
        for part in parts(&shown(FilterLevel::Lines, &bytes)) {
            match part {
                Part::Character(character) => prop_assert!(is_plain(character), "{:?}", character),
                Part::Control(numbers, 'm') => prop_assert!(numbers.chars().all(|c| "0123456789;:".contains(c))),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn a_whole_screen_gets_no_sequence_that_is_not_named_here(bytes in output()) {
        for part in parts(&shown(FilterLevel::FullScreen, &bytes)) {
            let fits = match &part {
                Part::Character(character) => is_plain(*character) || "\x07\x0b\x0c\x0e\x0f".contains(*character),
                Part::Short(text) => ["7", "8", "D", "E", "M", "=", ">", "(0", "(A", "(B", ")0", ")A", ")B"]
                    .contains(&text.as_str()),
                Part::Control(text, last) => {
                    let numbers = text.trim_start_matches(['?', '>']).trim_end_matches([' ', '!']);
                    let marks = text.replacen(numbers, "", 1);
                    let digits = if *last == 'm' { "0123456789;:" } else { "0123456789;" };
                    numbers.chars().all(|c| digits.contains(c))
                        && match marks.as_str() {
                            "" => "@ABCDEFGHIJKLMPSTXZ`abcdefhlmnrsu".contains(*last),
                            "?" => "hlJKn".contains(*last),
                            ">" => *last == 'c',
                            " " => *last == 'q',
                            "!" => *last == 'p',
                            _ => false,
                        }
                }
            };
            prop_assert!(fits, "{:?}", part);
        }
    }

    #[test]
    fn afterwards_every_mode_is_as_it_was(bytes in output()) {
        let mut modes = BTreeMap::new();
        let mut styled = false;
        for part in parts(&shown(FilterLevel::FullScreen, &bytes)) {
            match part {
                Part::Control(text, last @ ('h' | 'l')) => {
                    for mode in text.trim_start_matches('?').split([';', ':']) {
                        modes.insert(mode.parse::<u32>().unwrap(), last == 'h');
                    }
                }
                Part::Control(numbers, 'm') => styled = numbers.chars().any(|c| !"0;".contains(c)),
                _ => {}
            }
        }
        modes.remove(&1048);
        let changed: Vec<_> = modes.iter().filter(|(mode, on)| **on != [7, 25].contains(*mode)).collect();
        prop_assert!(changed.is_empty() && !styled, "{:?} {}", changed, styled);
    }

    #[test]
    fn plain_text_stays_as_it_is(level in level(), text in "\\PC{0,20}[\t\r\n]?\\PC{0,20}") {
        prop_assert_eq!(shown(level, text.as_bytes()), text);
    }
}
