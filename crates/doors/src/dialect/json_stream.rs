//! A streaming JSON parser: accepts input cut anywhere, of any length, in constant memory. It keeps
//! its position and the few bytes of a key, number or keyword that a chunk may cut. It does not
//! validate: from invalid JSON it takes what it can.

use super::node::Node;
use super::quote::quote_or_backslash;
use super::usage_meter::UsageMeter;

/// Maximum depth of members that matter.
const DEPTH: usize = 16;
/// Longest key, number or keyword that matters.
const SCRATCH: usize = 48;

/// A position in a stream of JSON documents.
#[derive(Debug)]
pub(super) struct JsonStreamParser {
    root: Node,
    state: ParserState,
    /// What the next value is.
    next: Node,
    frames: [Frame; DEPTH],
    depth: usize,
    /// Depth within an ignored value.
    ignored: u64,
    escaped: bool,
    scratch: [u8; SCRATCH],
    length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    Value,
    BodyKey,
    InKey,
    InText,
    InWord,
    InString,
    InScalar,
    Ignored,
    InIgnoredString,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    node: Node,
    is_object: bool,
}

impl JsonStreamParser {
    pub(super) fn new(root: Node) -> JsonStreamParser {
        let nothing = Frame {
            node: Node::Ignored,
            is_object: false,
        };
        JsonStreamParser {
            root,
            state: ParserState::Value,
            next: root,
            frames: [nothing; DEPTH],
            depth: 0,
            ignored: 0,
            escaped: false,
            scratch: [0; SCRATCH],
            length: 0,
        }
    }

    /// Discards a document that has not ended.
    pub(super) fn reset(&mut self) {
        self.state = ParserState::Value;
        self.next = self.root;
        self.depth = 0;
        self.ignored = 0;
        self.escaped = false;
        self.length = 0;
    }

    /// Whether a document has started and not ended.
    pub(super) fn is_within(&self) -> bool {
        self.depth > 0 || self.state != ParserState::Value
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8], meter: &mut UsageMeter) {
        while let Some(first) = bytes.first() {
            let used = match self.state {
                ParserState::Value => self.value(*first, meter),
                ParserState::BodyKey => self.key(bytes, meter),
                ParserState::InKey
                | ParserState::InText
                | ParserState::InWord
                | ParserState::InString => self.string(bytes, meter),
                ParserState::InScalar => self.scalar(bytes, meter),
                ParserState::Ignored => self.ignored(bytes, meter),
                ParserState::InIgnoredString => self.ignored_string(bytes),
            };
            bytes = &bytes[used..];
        }
    }

    /// The end of the stream also ends a number.
    pub(super) fn end(&mut self, meter: &mut UsageMeter) {
        if self.state == ParserState::InScalar {
            self.scalar(b" ", meter);
        }
    }

    fn value(&mut self, first: u8, meter: &mut UsageMeter) -> usize {
        match first {
            b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' => {}
            b'{' => self.open(true, meter),
            b'[' => self.open(false, meter),
            b'}' | b']' => self.close(meter),
            b'"' => {
                self.length = 0;
                self.state = match self.next {
                    Node::Text => ParserState::InText,
                    Node::Keyword(_) | Node::Query => ParserState::InWord,
                    _ => ParserState::InString,
                };
            }
            _ => {
                self.state = ParserState::InScalar;
                self.length = 0;
                return 0;
            }
        }
        1
    }

    /// Parses the next key. Members that are complete in this chunk and do not matter are skipped
    /// at once: nearly all of them.
    fn key(&mut self, bytes: &[u8], meter: &mut UsageMeter) -> usize {
        let node = self.frames[self.depth.saturating_sub(1)].node;
        let mut at = 0;
        while let Some(first) = bytes.get(at) {
            match first {
                b'"' => {
                    let Some((member, value)) = member(node, bytes, at) else {
                        break;
                    };
                    self.next = member;
                    match passed(member, bytes, value) {
                        Some(end) => at = end,
                        None => {
                            self.state = ParserState::Value;
                            return value;
                        }
                    }
                }
                b'}' | b']' => {
                    self.close(meter);
                    return at + 1;
                }
                _ => at += 1,
            }
        }
        if at < bytes.len() {
            self.state = ParserState::InKey;
            self.length = 0;
            at += 1;
        }
        at
    }

    fn open(&mut self, is_object: bool, meter: &mut UsageMeter) {
        if self.next == Node::Ignored || self.depth == DEPTH {
            self.state = ParserState::Ignored;
            self.ignored = 1;
            return;
        }
        self.frames[self.depth] = Frame {
            node: self.next,
            is_object,
        };
        self.depth += 1;
        self.state = if is_object {
            ParserState::BodyKey
        } else {
            ParserState::Value
        };
        if is_object {
            meter.open_object(self.next);
        }
    }

    fn close(&mut self, meter: &mut UsageMeter) {
        let Some(depth) = self.depth.checked_sub(1) else {
            return;
        };
        self.depth = depth;
        let frame = self.frames[depth];
        if frame.is_object {
            meter.close_object(frame.node);
        }
        self.after_value(meter);
    }

    fn after_value(&mut self, meter: &mut UsageMeter) {
        let Some(above) = self.depth.checked_sub(1) else {
            self.state = ParserState::Value;
            self.next = self.root;
            return meter.end_of_root_value();
        };
        let frame = self.frames[above];
        self.state = if frame.is_object {
            ParserState::BodyKey
        } else {
            ParserState::Value
        };
        self.next = frame.node;
    }

    fn keep(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if end <= SCRATCH {
            self.scratch[self.length..end].copy_from_slice(bytes);
        }
        self.length = end.min(SCRATCH + 1);
    }

    /// The buffered bytes; empty if there were too many to matter.
    fn kept(&self) -> &[u8] {
        self.scratch.get(..self.length).unwrap_or_default()
    }

    fn string(&mut self, bytes: &[u8], meter: &mut UsageMeter) -> usize {
        let (inside, is_closed) = self.inside(bytes);
        match self.state {
            ParserState::InKey | ParserState::InWord => self.keep(&bytes[..inside]),
            ParserState::InText if inside > 0 => meter.text(inside as u64),
            _ => {}
        }
        if is_closed {
            self.end_of_string(meter);
        }
        inside + usize::from(is_closed)
    }

    fn end_of_string(&mut self, meter: &mut UsageMeter) {
        if self.state == ParserState::InKey {
            let frame = self.frames[self.depth.saturating_sub(1)];
            self.next = frame.node.member(self.kept());
            self.state = ParserState::Value;
            return;
        }
        match self.next {
            Node::Keyword(word) => meter.word(word, self.kept()),
            Node::Query => meter.query(),
            _ => {}
        }
        self.after_value(meter);
    }

    /// How many of these bytes are inside the string, and whether its end follows.
    fn inside(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut at = 0;
        loop {
            if self.escaped && at < bytes.len() {
                self.escaped = false;
                at += 1;
            }
            match quote_or_backslash(&bytes[at..]) {
                None => return (bytes.len(), false),
                Some(found) if bytes[at + found] == b'"' => return (at + found, true),
                Some(found) => (self.escaped, at) = (true, at + found + 1),
            }
        }
    }

    fn scalar(&mut self, bytes: &[u8], meter: &mut UsageMeter) -> usize {
        let end = bytes.iter().position(is_end_of_scalar);
        self.keep(&bytes[..end.unwrap_or(bytes.len())]);
        let Some(end) = end else { return bytes.len() };
        match self.next {
            Node::Count(field) => {
                if let Some(tokens) = number(self.kept()) {
                    meter.count(field, tokens);
                }
            }
            Node::ModalityCount => meter.modality_count(number(self.kept()).unwrap_or(0)),
            Node::Done if self.kept() == b"true" => meter.done(),
            _ => {}
        }
        self.after_value(meter);
        end
    }

    fn ignored(&mut self, bytes: &[u8], meter: &mut UsageMeter) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => {
                    self.state = ParserState::InIgnoredString;
                    return at + 1;
                }
                b'{' | b'[' => self.ignored += 1,
                b'}' | b']' if self.ignored == 1 => {
                    self.ignored = 0;
                    self.after_value(meter);
                    return at + 1;
                }
                b'}' | b']' => self.ignored -= 1,
                _ => {}
            }
        }
        bytes.len()
    }

    fn ignored_string(&mut self, bytes: &[u8]) -> usize {
        let (inside, is_closed) = self.inside(bytes);
        if is_closed {
            self.state = ParserState::Ignored;
        }
        inside + usize::from(is_closed)
    }
}

/// The node of the member whose key starts here and the start of its value, if both are in this
/// chunk.
fn member(node: Node, bytes: &[u8], start: usize) -> Option<(Node, usize)> {
    let rest = &bytes[start + 1..];
    let end = quote_or_backslash(rest).filter(|end| rest[*end] == b'"')?;
    let is_between = |byte: &&u8| matches!(byte, b':' | b' ' | b'\t' | b'\r' | b'\n' | b',');
    let between = rest[end + 1..].iter().take_while(is_between).count();
    let key = rest
        .get(..end)
        .filter(|key| key.len() <= SCRATCH)
        .unwrap_or_default();
    Some((node.member(key), start + 1 + end + 1 + between))
}

/// The end of an ignored scalar or string, if it is in this chunk.
fn passed(member: Node, bytes: &[u8], start: usize) -> Option<usize> {
    let rest = bytes.get(start..).filter(|_| member == Node::Ignored)?;
    match rest.first()? {
        b'{' | b'[' | b'}' | b']' => None,
        b'"' => {
            let end = quote_or_backslash(&rest[1..])?;
            (rest[1 + end] == b'"').then_some(start + end + 2)
        }
        _ => rest
            .iter()
            .position(is_end_of_scalar)
            .map(|end| start + end),
    }
}

fn is_end_of_scalar(byte: &u8) -> bool {
    matches!(
        byte,
        b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t' | b'"' | b'{' | b'['
    )
}

/// Parses a count: fractions are rounded up, negative numbers are 0, values beyond the range are
/// clamped.
fn number(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    match text.parse() {
        Ok(tokens) => Some(tokens),
        Err(_) => text
            .parse::<f64>()
            .ok()
            .filter(|count| !count.is_nan())
            .map(|count| count.ceil() as u64),
    }
}
