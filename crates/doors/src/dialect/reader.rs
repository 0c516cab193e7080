//! Reads JSON as it passes, cut anywhere, of any length, in constant memory: it keeps where it is, and the few bytes
//! of a key, number or word that a piece may cut. It does not judge: what no JSON reader would take counts for what
//! can be made of it.

use super::meter::Meter;
use super::node::Node;
use super::quote::quote_or_backslash;

/// Nothing that matters is deeper.
const DEPTH: usize = 16;
/// No key, number or word that matters is longer.
const SCRATCH: usize = 48;

/// A place in a stream of JSON documents.
#[derive(Debug)]
pub(super) struct Reader {
    root: Node,
    state: State,
    /// What the next value is.
    next: Node,
    frames: [Frame; DEPTH],
    depth: usize,
    /// How deep within something that does not matter.
    dead: u64,
    escaped: bool,
    scratch: [u8; SCRATCH],
    length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Value,
    Key,
    InKey,
    InText,
    InWord,
    InString,
    InScalar,
    Dead,
    InDeadString,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    node: Node,
    is_object: bool,
}

impl Reader {
    pub(super) fn new(root: Node) -> Reader {
        let nothing = Frame {
            node: Node::Dead,
            is_object: false,
        };
        Reader {
            root,
            state: State::Value,
            next: root,
            frames: [nothing; DEPTH],
            depth: 0,
            dead: 0,
            escaped: false,
            scratch: [0; SCRATCH],
            length: 0,
        }
    }

    /// Forgets a document that has not ended.
    pub(super) fn reset(&mut self) {
        (self.state, self.next, self.depth, self.dead) = (State::Value, self.root, 0, 0);
        (self.escaped, self.length) = (false, 0);
    }

    /// Whether a document has begun and not ended.
    pub(super) fn is_within(&self) -> bool {
        self.depth > 0 || self.state != State::Value
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8], meter: &mut Meter) {
        while let Some(first) = bytes.first() {
            let used = match self.state {
                State::Value => self.value(*first, meter),
                State::Key => self.key(bytes, meter),
                State::InKey | State::InText | State::InWord | State::InString => {
                    self.string(bytes, meter)
                }
                State::InScalar => self.scalar(bytes, meter),
                State::Dead => self.dead(bytes, meter),
                State::InDeadString => self.dead_string(bytes),
            };
            bytes = &bytes[used..];
        }
    }

    /// The end of a stream also ends a number.
    pub(super) fn end(&mut self, meter: &mut Meter) {
        if self.state == State::InScalar {
            self.scalar(b" ", meter);
        }
    }

    fn value(&mut self, first: u8, meter: &mut Meter) -> usize {
        match first {
            b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' => {}
            b'{' => self.open(true, meter),
            b'[' => self.open(false, meter),
            b'}' | b']' => self.close(meter),
            b'"' => {
                self.length = 0;
                self.state = match self.next {
                    Node::Text => State::InText,
                    Node::Word(_) | Node::Query => State::InWord,
                    _ => State::InString,
                };
            }
            _ => {
                (self.state, self.length) = (State::InScalar, 0);
                return 0;
            }
        }
        1
    }

    /// The next key. Members that are here as a whole and do not matter are passed over at once: nearly all are such.
    fn key(&mut self, bytes: &[u8], meter: &mut Meter) -> usize {
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
                            self.state = State::Value;
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
            (self.state, self.length) = (State::InKey, 0);
            at += 1;
        }
        at
    }

    fn open(&mut self, is_object: bool, meter: &mut Meter) {
        if self.next == Node::Dead || self.depth == DEPTH {
            (self.state, self.dead) = (State::Dead, 1);
            return;
        }
        self.frames[self.depth] = Frame {
            node: self.next,
            is_object,
        };
        self.depth += 1;
        self.state = if is_object { State::Key } else { State::Value };
        if is_object {
            meter.open_object(self.next);
        }
    }

    fn close(&mut self, meter: &mut Meter) {
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

    fn after_value(&mut self, meter: &mut Meter) {
        let Some(above) = self.depth.checked_sub(1) else {
            (self.state, self.next) = (State::Value, self.root);
            return meter.end_of_whole();
        };
        let frame = self.frames[above];
        self.state = if frame.is_object {
            State::Key
        } else {
            State::Value
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

    /// What was kept; nothing if it was too long to matter.
    fn kept(&self) -> &[u8] {
        self.scratch.get(..self.length).unwrap_or_default()
    }

    fn string(&mut self, bytes: &[u8], meter: &mut Meter) -> usize {
        let (inside, is_closed) = self.inside(bytes);
        match self.state {
            State::InKey | State::InWord => self.keep(&bytes[..inside]),
            State::InText if inside > 0 => meter.text(inside as u64),
            _ => {}
        }
        if is_closed {
            self.end_of_string(meter);
        }
        inside + usize::from(is_closed)
    }

    fn end_of_string(&mut self, meter: &mut Meter) {
        if self.state == State::InKey {
            let frame = self.frames[self.depth.saturating_sub(1)];
            self.next = frame.node.member(self.kept());
            self.state = State::Value;
            return;
        }
        match self.next {
            Node::Word(word) => meter.word(word, self.kept()),
            Node::Query => meter.query(),
            _ => {}
        }
        self.after_value(meter);
    }

    /// How much of this is within the string, and whether its end follows.
    fn inside(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut at = 0;
        loop {
            if self.escaped && at < bytes.len() {
                (self.escaped, at) = (false, at + 1);
            }
            match quote_or_backslash(&bytes[at..]) {
                None => return (bytes.len(), false),
                Some(found) if bytes[at + found] == b'"' => return (at + found, true),
                Some(found) => (self.escaped, at) = (true, at + found + 1),
            }
        }
    }

    fn scalar(&mut self, bytes: &[u8], meter: &mut Meter) -> usize {
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

    fn dead(&mut self, bytes: &[u8], meter: &mut Meter) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => {
                    self.state = State::InDeadString;
                    return at + 1;
                }
                b'{' | b'[' => self.dead += 1,
                b'}' | b']' if self.dead == 1 => {
                    self.dead = 0;
                    self.after_value(meter);
                    return at + 1;
                }
                b'}' | b']' => self.dead -= 1,
                _ => {}
            }
        }
        bytes.len()
    }

    fn dead_string(&mut self, bytes: &[u8]) -> usize {
        let (inside, is_closed) = self.inside(bytes);
        if is_closed {
            self.state = State::Dead;
        }
        inside + usize::from(is_closed)
    }
}

/// The place of a member whose key begins here, and where its value begins, if that is here.
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

/// The end of a plain value that does not matter, if it is here.
fn passed(member: Node, bytes: &[u8], start: usize) -> Option<usize> {
    let rest = bytes.get(start..).filter(|_| member == Node::Dead)?;
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

/// A count; fractions are rounded up, what is below zero is zero, what is beyond the range is its end.
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
