//! Parser of server-sent events (SSE), cut anywhere: passes what follows `data:` to the JSON parser
//! and detects the end of an event.

use super::json_stream::JsonStreamParser;
use super::usage_meter::UsageMeter;
use memchr::memchr2;

const FIELD: &[u8] = b"data";
const LAST: &[u8] = b"[DONE]";
/// The data is not `[DONE]`.
const OTHER: usize = LAST.len() + 1;

/// A position in a stream of events.
#[derive(Debug)]
pub(super) struct SseParser {
    line: LineState,
    /// The last byte was a carriage return, so a line feed now belongs to it.
    after_return: bool,
    has_data: bool,
    /// Number of bytes of `[DONE]` matched so far.
    last: usize,
}

#[derive(Clone, Copy, Debug)]
enum LineState {
    /// Number of bytes of `data` matched so far.
    Name(usize),
    Colon,
    Data,
    Other,
}

impl SseParser {
    pub(super) fn new() -> SseParser {
        SseParser {
            line: LineState::Name(0),
            after_return: false,
            has_data: false,
            last: 0,
        }
    }

    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        reader: &mut JsonStreamParser,
        meter: &mut UsageMeter,
    ) {
        while let Some(first) = bytes.first() {
            let used = match self.line {
                _ if std::mem::take(&mut self.after_return) && *first == b'\n' => 1,
                LineState::Name(0) if bytes.starts_with(b"data:") => {
                    self.begin_data(reader, meter, 5)
                }
                LineState::Name(matched) => self.name(matched, *first, reader, meter),
                LineState::Colon => {
                    self.line = LineState::Data;
                    usize::from(*first == b' ')
                }
                LineState::Data => self.data(bytes, reader, meter),
                LineState::Other => self.other(bytes),
            };
            bytes = &bytes[used..];
        }
    }

    fn name(
        &mut self,
        matched: usize,
        byte: u8,
        reader: &mut JsonStreamParser,
        meter: &mut UsageMeter,
    ) -> usize {
        match byte {
            b'\n' | b'\r' => {
                if matched == 0 {
                    self.end_of_event(reader, meter);
                }
                return self.end_of_line(byte);
            }
            // A byte order mark may open a stream; no field name starts with its bytes.
            0xef | 0xbb | 0xbf if matched == 0 => {}
            b':' if matched == FIELD.len() => return self.begin_data(reader, meter, 1),
            _ if FIELD.get(matched) == Some(&byte) => self.line = LineState::Name(matched + 1),
            _ => self.line = LineState::Other,
        }
        1
    }

    fn begin_data(
        &mut self,
        reader: &mut JsonStreamParser,
        meter: &mut UsageMeter,
        used: usize,
    ) -> usize {
        // Several data lines of an event are joined by a line feed.
        if std::mem::replace(&mut self.has_data, true) {
            reader.feed(b"\n", meter);
            self.last = OTHER;
        }
        self.line = LineState::Colon;
        used
    }

    fn data(
        &mut self,
        bytes: &[u8],
        reader: &mut JsonStreamParser,
        meter: &mut UsageMeter,
    ) -> usize {
        let end = memchr2(b'\n', b'\r', bytes);
        let data = &bytes[..end.unwrap_or(bytes.len())];
        reader.feed(data, meter);
        self.match_done_marker(data);
        let Some(end) = end else { return bytes.len() };
        self.end(meter);
        end + self.end_of_line(bytes[end])
    }

    fn match_done_marker(&mut self, data: &[u8]) {
        let Some(missing) = LAST.get(self.last..).filter(|missing| !missing.is_empty()) else {
            return;
        };
        let length = data.len().min(missing.len());
        self.last = if data[..length] == missing[..length] {
            self.last + length
        } else {
            OTHER
        };
    }

    /// The end of a data line, or of the stream: data after `[DONE]` is read before it counts,
    /// wherever the line was cut.
    pub(super) fn end(&mut self, meter: &mut UsageMeter) {
        if self.last == LAST.len() {
            self.last = OTHER;
            meter.done_marker();
        }
    }

    fn other(&mut self, bytes: &[u8]) -> usize {
        memchr2(b'\n', b'\r', bytes).map_or(bytes.len(), |end| end + self.end_of_line(bytes[end]))
    }

    fn end_of_line(&mut self, byte: u8) -> usize {
        self.line = LineState::Name(0);
        self.after_return = byte == b'\r';
        1
    }

    fn end_of_event(&mut self, reader: &mut JsonStreamParser, meter: &mut UsageMeter) {
        self.has_data = false;
        self.last = 0;
        if reader.is_within() {
            meter.abort_document();
            reader.reset();
        }
    }
}
