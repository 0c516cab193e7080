//! Takes out of a chat stream what is there only because we asked for its usage: the event that holds nothing else,
//! and the `"usage":null` of every other. What is left is what the program would have got without us.

use super::json::{Broken, Scanner};
use bytes::{Bytes, BytesMut};
use memchr::{memchr2, memmem};
use std::{ops::Range, sync::LazyLock};

/// A line that is longer is passed on as it is; no usage event is.
const LONGEST_LINE: usize = 64 << 10;

/// How often a line is looked through for a usage that is null.
const MOST_LOOKS: usize = 4;

const WHITESPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// Made once: to make it takes longer than to use it.
static USAGE: LazyLock<memmem::Finder<'static>> =
    LazyLock::new(|| memmem::Finder::new("\"usage\""));

/// Holds back the beginning of a line until its end is there.
#[derive(Debug, Default)]
pub(super) struct Strip {
    held: BytesMut,
    /// The line under way is too long, and what came of it was passed on.
    is_long: bool,
    /// A carriage return ended the last line; whether a line feed behind it is passed on, too.
    after_return: Option<bool>,
    /// Lines of this event were passed on.
    has_passed: bool,
    /// The usage event was taken out, and its blank line is still to come.
    has_taken: bool,
}

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    Take,
    /// It is passed on without these bytes.
    Cut(Range<usize>),
}

impl Strip {
    pub(super) fn feed(&mut self, piece: Bytes) -> Bytes {
        if self.held.is_empty() {
            return self.lines(piece);
        }
        self.held.extend_from_slice(&piece);
        if self.held.len() <= LONGEST_LINE && memchr2(b'\n', b'\r', &piece).is_none() {
            return Bytes::new();
        }
        let bytes = self.held.split().freeze();
        self.lines(bytes)
    }

    /// What was held back.
    pub(super) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }

    fn lines(&mut self, bytes: Bytes) -> Bytes {
        let mut kept = Kept::default();
        let mut at = 0;
        while let Some(length) = memchr2(b'\n', b'\r', &bytes[at..]) {
            let end = at + length;
            self.line(&bytes, at..end, &mut kept);
            at = end + 1;
        }
        self.beginning(&bytes, at, &mut kept);
        kept.of(&bytes)
    }

    /// A line, and the byte behind it that ends it.
    fn line(&mut self, bytes: &Bytes, line: Range<usize>, kept: &mut Kept) {
        let is_feed = bytes[line.end] == b'\n';
        let passes = match self.after_return.take() {
            Some(passes) if is_feed && line.is_empty() => {
                return kept.unless(passes, line.start..line.end + 1);
            }
            _ => self.judge(&bytes[line.clone()], line.start, kept),
        };
        kept.unless(passes, line.start..line.end + 1);
        self.after_return = (!is_feed).then_some(passes);
    }

    /// Whether a line is passed on.
    fn judge(&mut self, line: &[u8], start: usize, kept: &mut Kept) -> bool {
        if std::mem::take(&mut self.is_long) {
            return true;
        }
        if line.is_empty() {
            let (taken, passed) = (
                std::mem::take(&mut self.has_taken),
                std::mem::take(&mut self.has_passed),
            );
            // An event of which something was passed on needs its end.
            return passed || !taken;
        }
        match verdict(line) {
            Verdict::Take => {
                self.has_taken = true;
                return false;
            }
            Verdict::Pass => {}
            Verdict::Cut(part) => kept.leave_out(start + part.start..start + part.end),
        }
        self.has_passed = true;
        true
    }

    /// The beginning of a line whose end is yet to come.
    fn beginning(&mut self, bytes: &Bytes, start: usize, kept: &mut Kept) {
        let line = &bytes[start..];
        if line.is_empty() {
            return;
        }
        // A line feed belongs to a carriage return only right behind it.
        self.after_return = None;
        if self.is_long || line.len() > LONGEST_LINE {
            (self.is_long, self.has_passed) = (true, true);
        } else {
            self.held.extend_from_slice(line);
            kept.leave_out(start..bytes.len());
        }
    }
}

/// What is left of some bytes.
#[derive(Default)]
struct Kept {
    parts: Vec<Range<usize>>,
    /// What is before has been decided.
    from: usize,
}

impl Kept {
    fn leave_out(&mut self, part: Range<usize>) {
        if self.from < part.start {
            self.parts.push(self.from..part.start);
        }
        self.from = part.end;
    }

    fn unless(&mut self, passes: bool, part: Range<usize>) {
        if !passes {
            self.leave_out(part);
        }
    }

    /// Uncopied where it is one part.
    fn of(mut self, bytes: &Bytes) -> Bytes {
        self.leave_out(bytes.len()..bytes.len());
        match self.parts.as_slice() {
            [] => Bytes::new(),
            [part] => bytes.slice(part.clone()),
            parts => {
                let mut joined = BytesMut::with_capacity(bytes.len());
                parts
                    .iter()
                    .for_each(|part| joined.extend_from_slice(&bytes[part.clone()]));
                joined.freeze()
            }
        }
    }
}

fn verdict(line: &[u8]) -> Verdict {
    let data = line
        .strip_prefix(b"data:")
        .filter(|_| line.len() <= LONGEST_LINE);
    let data = data
        .filter(|data| USAGE.find(data).is_some())
        .and_then(|data| str::from_utf8(data).ok());
    let Some(data) = data else {
        return Verdict::Pass;
    };
    let before = line.len() - data.len();
    // Of many the first few: each look reads to the end of the line.
    match USAGE
        .find_iter(data.as_bytes())
        .take(MOST_LOOKS)
        .find_map(|at| null_usage(data, at))
    {
        Some(part) => Verdict::Cut(part.start + before..part.end + before),
        None if is_usage_alone(data).unwrap_or(false) => Verdict::Take,
        None => Verdict::Pass,
    }
}

/// The member `"usage":null` that begins here, with one of the commas around it. It is one of the outermost if its
/// object ends with the document; what is before need not be read again. An escaped quote begins no key.
fn null_usage(data: &str, start: usize) -> Option<Range<usize>> {
    let before = data[..start].trim_end_matches(WHITESPACE);
    let mut scanner = Scanner::within(data, start);
    scanner.key().ok()??;
    let value = scanner
        .skip()
        .ok()
        .filter(|at| scanner.text(at.clone()) == "null")?;
    let next = scanner.key().ok()?;
    if next.is_some() {
        scanner.skip().ok()?;
        while scanner.key().ok()?.is_some() {
            scanner.skip().ok()?;
        }
    }
    scanner.finish().ok()?;
    match (next, before.strip_suffix(',')) {
        (Some(next), _) if before.ends_with([',', '{']) => Some(start..next.at.start),
        (None, Some(before)) => Some(before.trim_end_matches(WHITESPACE).len()..value.end),
        (None, None) if before.ends_with('{') => Some(start..value.end),
        _ => None,
    }
}

/// A chat chunk with a usage beside no choices.
fn is_usage_alone(data: &str) -> Result<bool, Broken> {
    let mut scanner = Scanner::new(data);
    if scanner.peek() != Some(b'{') {
        return Ok(false);
    }
    scanner.enter()?;
    let (mut has_no_choices, mut has_usage) = (false, false);
    while let Some(key) = scanner.key()? {
        let first = scanner.peek();
        let value = scanner.skip()?;
        match scanner.text(key.at) {
            "\"choices\"" => has_no_choices = first == Some(b'[') && is_blank(scanner.text(value)),
            "\"usage\"" => has_usage = first == Some(b'{'),
            _ => {}
        }
    }
    scanner.finish()?;
    Ok(has_no_choices && has_usage)
}

/// An array with nothing in it.
fn is_blank(array: &str) -> bool {
    array.trim_matches(['[', ']']).trim_ascii().is_empty()
}

#[cfg(test)]
#[path = "strip_tests.rs"]
mod tests;
