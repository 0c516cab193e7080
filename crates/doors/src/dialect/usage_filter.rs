//! Removes from a chat stream what is there only because the door asked for the usage: the event
//! that holds nothing else, and the `"usage":null` of every other one. The rest is what the program
//! would have received without the door.

use super::json_scanner::{JsonError, JsonScanner};
use bytes::{Bytes, BytesMut};
use memchr::{memchr2, memmem};
use std::{ops::Range, sync::LazyLock};

/// Longer lines are forwarded unchanged; no usage event is that long.
const MAX_LINE_BYTES: usize = 64 << 10;

/// How many times a line is searched for a null usage.
const MAX_USAGE_SEARCHES: usize = 4;

const WHITESPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// Built once: building it takes longer than using it.
static USAGE: LazyLock<memmem::Finder<'static>> =
    LazyLock::new(|| memmem::Finder::new("\"usage\""));

/// Holds back the start of a line until its end has arrived.
#[derive(Debug, Default)]
pub(super) struct UsageFilter {
    held: BytesMut,
    /// The current line is too long, and its start was forwarded.
    is_long: bool,
    /// A carriage return ended the last line; whether a following line feed is forwarded.
    after_return: Option<bool>,
    /// Lines of this event were forwarded.
    has_passed: bool,
    /// The usage event was removed; its blank line is still to come.
    has_taken: bool,
}

/// What happens to a line.
#[derive(Debug, PartialEq, Eq)]
enum LineAction {
    Pass,
    Drop,
    /// Forward it without these bytes.
    Cut(Range<usize>),
}

impl UsageFilter {
    pub(super) fn feed(&mut self, piece: Bytes) -> Bytes {
        if self.held.is_empty() {
            return self.lines(piece);
        }
        self.held.extend_from_slice(&piece);
        if self.held.len() <= MAX_LINE_BYTES && memchr2(b'\n', b'\r', &piece).is_none() {
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
        let mut kept = KeptRanges::default();
        let mut at = 0;
        while let Some(length) = memchr2(b'\n', b'\r', &bytes[at..]) {
            let end = at + length;
            self.line(&bytes, at..end, &mut kept);
            at = end + 1;
        }
        self.hold_back_start(&bytes, at, &mut kept);
        kept.slice(&bytes)
    }

    /// Handles one line and the byte that ends it.
    fn line(&mut self, bytes: &Bytes, line: Range<usize>, kept: &mut KeptRanges) {
        let is_feed = bytes[line.end] == b'\n';
        let passes = match self.after_return.take() {
            Some(passes) if is_feed && line.is_empty() => {
                return kept.leave_out_unless(passes, line.start..line.end + 1);
            }
            _ => self.passes_line(&bytes[line.clone()], line.start, kept),
        };
        kept.leave_out_unless(passes, line.start..line.end + 1);
        self.after_return = (!is_feed).then_some(passes);
    }

    /// Whether a line is forwarded.
    fn passes_line(&mut self, line: &[u8], start: usize, kept: &mut KeptRanges) -> bool {
        if std::mem::take(&mut self.is_long) {
            return true;
        }
        if line.is_empty() {
            let taken = std::mem::take(&mut self.has_taken);
            let passed = std::mem::take(&mut self.has_passed);
            // An event of which something was forwarded needs its end.
            return passed || !taken;
        }
        match line_action(line) {
            LineAction::Drop => {
                self.has_taken = true;
                return false;
            }
            LineAction::Pass => {}
            LineAction::Cut(part) => kept.leave_out(start + part.start..start + part.end),
        }
        self.has_passed = true;
        true
    }

    /// Handles the start of a line whose end has not arrived.
    fn hold_back_start(&mut self, bytes: &Bytes, start: usize, kept: &mut KeptRanges) {
        let line = &bytes[start..];
        if line.is_empty() {
            return;
        }
        // A line feed belongs to a carriage return only directly behind it.
        self.after_return = None;
        if self.is_long || line.len() > MAX_LINE_BYTES {
            self.is_long = true;
            self.has_passed = true;
        } else {
            self.held.extend_from_slice(line);
            kept.leave_out(start..bytes.len());
        }
    }
}

/// The ranges of a chunk that are forwarded.
#[derive(Default)]
struct KeptRanges {
    parts: Vec<Range<usize>>,
    /// Everything before this position is decided.
    from: usize,
}

impl KeptRanges {
    fn leave_out(&mut self, part: Range<usize>) {
        if self.from < part.start {
            self.parts.push(self.from..part.start);
        }
        self.from = part.end;
    }

    fn leave_out_unless(&mut self, passes: bool, part: Range<usize>) {
        if !passes {
            self.leave_out(part);
        }
    }

    /// Uncopied if it is one range.
    fn slice(mut self, bytes: &Bytes) -> Bytes {
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

fn line_action(line: &[u8]) -> LineAction {
    let data = line
        .strip_prefix(b"data:")
        .filter(|_| line.len() <= MAX_LINE_BYTES);
    let data = data
        .filter(|data| USAGE.find(data).is_some())
        .and_then(|data| str::from_utf8(data).ok());
    let Some(data) = data else {
        return LineAction::Pass;
    };
    let before = line.len() - data.len();
    // Only the first few: each search reads to the end of the line.
    match USAGE
        .find_iter(data.as_bytes())
        .take(MAX_USAGE_SEARCHES)
        .find_map(|at| null_usage(data, at))
    {
        Some(part) => LineAction::Cut(part.start + before..part.end + before),
        None if is_usage_alone(data).unwrap_or(false) => LineAction::Drop,
        None => LineAction::Pass,
    }
}

/// The range of the member `"usage":null` that starts here, with one of the commas around it. It is
/// a member of the root if its object ends with the document; the text before it need not be parsed
/// again. An escaped quote starts no key.
fn null_usage(data: &str, start: usize) -> Option<Range<usize>> {
    let before = data[..start].trim_end_matches(WHITESPACE);
    let mut scanner = JsonScanner::within(data, start);
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

/// A chat chunk with a usage and no choices.
fn is_usage_alone(data: &str) -> Result<bool, JsonError> {
    let mut scanner = JsonScanner::new(data);
    if scanner.peek() != Some(b'{') {
        return Ok(false);
    }
    scanner.enter()?;
    let mut has_no_choices = false;
    let mut has_usage = false;
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

/// An empty array.
fn is_blank(array: &str) -> bool {
    array.trim_matches(['[', ']']).trim_ascii().is_empty()
}

#[cfg(test)]
#[path = "usage_filter_tests.rs"]
mod tests;
