//! Filters a hostile program's output for the caller's terminal. Only sequences that are known to
//! be harmless pass.
//!
//! ```text
//!            ┌── part of a character ──▶ Character ──┐
//! Ground ────┤        ┌─ [ ──▶ Control ── final ─────┼──▶ Ground, passed on whole or not at all
//!            └─ ESC ──┼─ ]PX^_k ──▶ Words ── end ────┤
//!                     └─ other ──────────────────────┘
//! ```
//!
//! Sequences may be split anywhere. Memory is bounded, the output is always UTF-8, and filtering
//! the output again changes nothing.

/// What a program may do to the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterLevel {
    /// Lines in colour. Everything else is shown as `^[` and the like.
    Lines,
    /// The whole screen: cursor movement, erasing, queries of the cursor. Everything else is
    /// dropped, above all sequences that make a terminal type text of the program's choice, reach
    /// the clipboard, or outlive the run.
    FullScreen,
}

/// The filter of one output stream.
#[derive(Debug)]
pub(crate) struct TerminalFilter {
    level: FilterLevel,
    state: ParserState,
    /// The incomplete sequence or character.
    pending: Vec<u8>,
    changes: TerminalChanges,
    queried: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    Ground,
    /// Inside a UTF-8 character, with this many bytes missing.
    Character(u8),
    Escape,
    Control,
    /// A control sequence that is too long or malformed, skipped to its end.
    Skip,
    /// A control string for the terminal (title, clipboard, colours, …), dropped to its end.
    ControlString,
}

/// Terminal state that the program has changed and not restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TerminalChanges {
    /// One bit for each of [`MODES`].
    modes: u32,
    style: bool,
    region: bool,
    insert: bool,
    keypad: bool,
    /// One bit each: shifted to the second character set, first set changed, second set changed.
    letters: u8,
    cursor: bool,
}

/// Private modes that may be switched, and whether they are on by default. Modes of alternate
/// screens come first, because they must be restored first.
const MODES: [(u16, bool); 21] = [
    (1049, false), // other screen, with the cursor saved
    (1047, false),
    (47, false),
    (2004, false), // marks around what is pasted
    (1006, false), // how the mouse is reported
    (1015, false),
    (1005, false),
    (1003, false), // what of the mouse is reported
    (1002, false),
    (1000, false),
    (9, false),
    (1004, false), // focus
    (1007, false), // the wheel as arrows
    (2026, false), // show at once
    (1, false),    // arrow keys
    (66, false),   // keypad
    (5, false),    // reversed
    (6, false),    // origin
    (12, false),   // blinking cursor
    (7, true),     // wrap
    (25, true),    // cursor
];
/// Saves and restores the cursor, so that nothing needs to be restored.
const SAVE_CURSOR: u16 = 1048;

/// Longer than every sequence that passes.
const MAX_SEQUENCE_BYTES: usize = 128;
/// Digits of one number. Larger numbers exceed every terminal, and some are repeat counts.
const MAX_DIGITS: usize = 5;
const REPLACEMENT: &str = "\u{fffd}";
const ESC: u8 = 0x1b;

impl TerminalFilter {
    pub(crate) fn new(level: FilterLevel) -> TerminalFilter {
        TerminalFilter {
            level,
            state: ParserState::Ground,
            pending: Vec::new(),
            changes: TerminalChanges::default(),
            queried: false,
        }
    }

    /// Filters bytes and returns what may be shown.
    pub(crate) fn show(&mut self, input: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(input.len());
        let mut rest = input;
        while let Some((first, more)) = rest.split_first() {
            if self.state == ParserState::Ground {
                let plain = rest
                    .iter()
                    .take_while(|byte| matches!(byte, b' '..=b'~'))
                    .count();
                out.extend_from_slice(&rest[..plain]);
                rest = &rest[plain..];
                if plain > 0 {
                    continue;
                }
            }
            self.take(*first, &mut out);
            rest = more;
        }
        out
    }

    /// Filters the rest at the end of the output, and restores the terminal.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        self.give_up(&mut out);
        out.extend(self.undo());
        self.changes = TerminalChanges::default();
        out
    }

    /// Sequences that restore the terminal. Only changed state is included, because some of them
    /// move the cursor.
    pub(crate) fn undo(&self) -> Vec<u8> {
        let mut out = String::new();
        for (number, (mode, on)) in MODES.iter().enumerate() {
            if self.changes.modes >> number & 1 == 1 {
                out.push_str(&format!("\x1b[?{mode}{}", if *on { 'h' } else { 'l' }));
            }
        }
        let TerminalChanges {
            modes: _,
            style,
            region,
            insert,
            keypad,
            letters,
            cursor,
        } = self.changes;
        let rest = [
            (insert, "\x1b[4l"),
            (keypad, "\x1b>"),
            (region, "\x1b7\x1b[r\x1b8"),
            (letters != 0, "\x0f\x1b(B\x1b)B"),
            (cursor, "\x1b[0 q"),
            (style, "\x1b[0m"),
        ];
        out.extend(
            rest.into_iter()
                .filter(|(changed, _)| *changed)
                .map(|(_, sequence)| sequence),
        );
        out.into_bytes()
    }

    /// Whether the program has queried the terminal, whose reply may still arrive.
    pub(crate) fn has_queried(&self) -> bool {
        self.queried
    }

    fn take(&mut self, byte: u8, out: &mut Vec<u8>) {
        match self.state {
            ParserState::Ground => self.begin(byte, out),
            ParserState::Character(missing) => self.continue_character(byte, missing, out),
            ParserState::Escape | ParserState::Control => match self.level {
                FilterLevel::Lines => self.continue_colour(byte, out),
                FilterLevel::FullScreen => self.continue_sequence(byte, out),
            },
            ParserState::Skip => match byte {
                b' '..=b'?' | 0x7f => {}
                b'@'..=b'~' => self.state = ParserState::Ground,
                _ => self.interrupt(byte, out),
            },
            ParserState::ControlString => match byte {
                0x07 | 0x18 | 0x1a => self.state = ParserState::Ground,
                ESC => self.hold(ParserState::Escape, byte),
                _ => {}
            },
        }
    }

    fn hold(&mut self, state: ParserState, byte: u8) {
        self.state = state;
        self.pending.clear();
        self.pending.push(byte);
    }

    /// A byte outside of any sequence.
    fn begin(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            b' '..=b'~' | b'\n' | b'\t' | b'\r' | 0x08 => out.push(byte),
            ESC => self.hold(ParserState::Escape, byte),
            0xc2..=0xdf => self.hold(ParserState::Character(1), byte),
            0xe0..=0xef => self.hold(ParserState::Character(2), byte),
            0xf0..=0xf4 => self.hold(ParserState::Character(3), byte),
            0x80.. => out.extend_from_slice(REPLACEMENT.as_bytes()),
            0x00..=0x1f | 0x7f => match self.level {
                FilterLevel::Lines => out.extend([b'^', byte ^ 0x40]),
                // Bell, vertical tab, form feed and shifts pass; ENQ (answerback) and flow control
                // do not.
                FilterLevel::FullScreen => {
                    match byte {
                        0x0e => self.changes.letters |= 1,
                        0x0f => self.changes.letters &= !1,
                        0x07 | 0x0b | 0x0c => {}
                        _ => return,
                    }
                    out.push(byte);
                }
            },
        }
    }

    /// U+0080 to U+009F are replaced: a terminal would obey them as controls.
    fn continue_character(&mut self, byte: u8, missing: u8, out: &mut Vec<u8>) {
        let fits = match self.pending[..] {
            [0xe0] => matches!(byte, 0xa0..=0xbf),
            [0xed] => matches!(byte, 0x80..=0x9f),
            [0xf0] => matches!(byte, 0x90..=0xbf),
            [0xf4] => matches!(byte, 0x80..=0x8f),
            _ => matches!(byte, 0x80..=0xbf),
        };
        if !fits {
            self.give_up(out);
            return self.begin(byte, out);
        }
        self.pending.push(byte);
        if missing > 1 {
            self.state = ParserState::Character(missing - 1);
            return;
        }
        self.state = ParserState::Ground;
        match self.pending[..] {
            [0xc2, 0x80..=0x9f] => out.extend_from_slice(REPLACEMENT.as_bytes()),
            _ => out.extend_from_slice(&self.pending),
        }
        self.pending.clear();
    }

    /// Ends an incomplete sequence: shown at [`FilterLevel::Lines`], dropped otherwise.
    fn give_up(&mut self, out: &mut Vec<u8>) {
        match (self.state, self.level) {
            (ParserState::Character(_), _) => out.extend_from_slice(REPLACEMENT.as_bytes()),
            (ParserState::Escape | ParserState::Control, FilterLevel::Lines) => {
                out.extend_from_slice(b"^[");
                out.extend_from_slice(&self.pending[1..]);
            }
            _ => {}
        }
        self.state = ParserState::Ground;
        self.pending.clear();
    }

    /// Passes colours only. At the first byte that cannot belong to one, the whole sequence is
    /// shown as text.
    fn continue_colour(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (self.state, byte) {
            (ParserState::Escape, b'[') => {
                self.state = ParserState::Control;
                self.pending.push(byte);
            }
            (ParserState::Control, b'0'..=b';') if self.pending.len() < MAX_SEQUENCE_BYTES => {
                self.pending.push(byte)
            }
            (ParserState::Control, b'm') if parameters(&self.pending[2..]).is_some() => {
                self.pending.push(byte);
                self.pass(out);
            }
            _ => {
                self.give_up(out);
                self.begin(byte, out);
            }
        }
    }

    fn continue_sequence(&mut self, byte: u8, out: &mut Vec<u8>) {
        match (self.state, byte) {
            (_, 0x00..=0x1f | 0x80..) => self.interrupt(byte, out),
            (_, 0x7f) => {}
            (ParserState::Escape, b'[') if self.pending.len() == 1 => {
                self.state = ParserState::Control;
                self.pending.push(byte);
            }
            (ParserState::Escape, b']' | b'P' | b'X' | b'^' | b'_' | b'k')
                if self.pending.len() == 1 =>
            {
                self.state = ParserState::ControlString;
            }
            (ParserState::Escape, b' '..=b'/') | (ParserState::Control, b' '..=b'?') => {
                if self.pending.len() < MAX_SEQUENCE_BYTES {
                    self.pending.push(byte)
                } else {
                    self.state = ParserState::Skip
                }
            }
            _ => {
                self.pending.push(byte);
                self.finish_sequence(out);
            }
        }
    }

    /// A control byte inside a sequence starts another one, ends this one, or is executed at once.
    fn interrupt(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            ESC => self.hold(ParserState::Escape, byte),
            0x18 | 0x1a => self.state = ParserState::Ground,
            0x80.. => {
                self.state = ParserState::Ground;
                self.begin(byte, out);
            }
            _ => {
                let state = self.state;
                let held = std::mem::take(&mut self.pending);
                self.begin(byte, out);
                (self.state, self.pending) = (state, held);
            }
        }
    }

    fn finish_sequence(&mut self, out: &mut Vec<u8>) {
        let allowed = match self.state {
            ParserState::Control => self.control(),
            _ => self.escape(),
        };
        if allowed {
            self.queried |= self.state == ParserState::Control
                && matches!(self.pending.last(), Some(b'n' | b'c'));
            self.pass(out);
        } else {
            self.give_up(out)
        }
    }

    fn pass(&mut self, out: &mut Vec<u8>) {
        if let [ESC, b'[', style @ .., b'm'] = &self.pending[..] {
            self.changes.style = !style.iter().all(|byte| matches!(byte, b'0' | b';'));
        }
        out.append(&mut self.pending);
        self.state = ParserState::Ground;
    }

    /// Short sequences: cursor saved and restored, lines, keypad, line drawing. Tab stops belong to
    /// the caller.
    fn escape(&mut self) -> bool {
        match self.pending[1..] {
            [b'7' | b'8' | b'D' | b'E' | b'M'] => true,
            [keypad @ (b'=' | b'>')] => {
                self.changes.keypad = keypad == b'=';
                true
            }
            [set @ (b'(' | b')'), letters @ (b'0' | b'A' | b'B')] => {
                let bit = if set == b'(' { 2 } else { 4 };
                self.changes.letters =
                    self.changes.letters & !bit | if letters == b'B' { 0 } else { bit };
                true
            }
            _ => false,
        }
    }

    /// Control sequences, matched by prefix, numbers, intermediate bytes and final byte.
    fn control(&mut self) -> bool {
        let Some((last, body)) = self.pending[2..].split_last() else {
            return false;
        };
        let (prefix, body) = match body {
            [prefix @ (b'<' | b'=' | b'>' | b'?'), rest @ ..] => (Some(*prefix), rest),
            _ => (None, body),
        };
        let end = body
            .iter()
            .position(|byte| matches!(byte, b' '..=b'/'))
            .unwrap_or(body.len());
        let (numbers, between) = body.split_at(end);
        // Subparameters (`:`) are for colours; terminals disagree about them elsewhere.
        if *last != b'm' && numbers.contains(&b':') {
            return false;
        }
        let Some(numbers) = parameters(numbers) else {
            return false;
        };
        let only = match numbers[..] {
            [] => Some(0),
            [number] => Some(number),
            _ => None,
        };
        match (prefix, between, *last) {
            // Cursor, lines, scrolling, colours.
            (None, [], b'@'..=b'I' | b'K'..=b'M' | b'P' | b'S' | b'X' | b'Z' | b'`'..=b'b') => true,
            (None, [], b'd'..=b'f' | b'm') => true,
            (None, [], b'T') => only.is_some(),
            // Erasing the scrollback is not allowed: it is the caller's.
            (None | Some(b'?'), [], b'J') => only.is_some_and(|what| what <= 2),
            (Some(b'?'), [], b'K') => true,
            (None, [], b's' | b'u') => numbers.is_empty(),
            // Queries with numeric replies: status, cursor position, device attributes.
            (None, [], b'n') => matches!(only, Some(5 | 6)),
            (Some(b'?'), [], b'n') => only == Some(6),
            (None | Some(b'>'), [], b'c') => only == Some(0),
            (None, [], b'r') => {
                self.changes.region = !numbers.is_empty();
                true
            }
            (None, [b' '], b'q') => {
                self.changes.cursor = only != Some(0);
                only.is_some()
            }
            (None, [b'!'], b'p') => true,
            (None, [], set @ (b'h' | b'l')) if numbers == [4] => {
                self.changes.insert = set == b'h';
                true
            }
            (Some(b'?'), [], set @ (b'h' | b'l')) => self.switch(&numbers, set == b'h'),
            _ => false,
        }
    }

    /// Switches private modes if every one of them is on the list.
    fn switch(&mut self, numbers: &[u16], on: bool) -> bool {
        let known = |number: &u16| MODES.iter().position(|(mode, _)| mode == number);
        if numbers.is_empty()
            || !numbers
                .iter()
                .all(|number| *number == SAVE_CURSOR || known(number).is_some())
        {
            return false;
        }
        for place in numbers.iter().filter_map(known) {
            let bit = 1 << place;
            if MODES[place].1 == on {
                self.changes.modes &= !bit
            } else {
                self.changes.modes |= bit
            }
        }
        true
    }
}

/// Parses the numbers of a control sequence, including subparameters; `None` if anything else
/// occurs or a number is too long.
fn parameters(text: &[u8]) -> Option<Vec<u16>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let number = |digits: &[u8]| {
        if digits.len() <= MAX_DIGITS && digits.iter().all(u8::is_ascii_digit) {
            let value = digits
                .iter()
                .fold(0u32, |value, digit| value * 10 + u32::from(digit - b'0'));
            u16::try_from(value).ok()
        } else {
            None
        }
    };
    text.split(|byte| matches!(byte, b';' | b':'))
        .map(number)
        .collect()
}

#[cfg(test)]
#[path = "terminal_filter_tests.rs"]
mod tests;
