//! Server-sent events, cut anywhere: hands what stands behind `data:` to the reader, and says where an event ends.

use super::meter::Meter;
use super::reader::Reader;
use memchr::memchr2;

const FIELD: &[u8] = b"data";
const LAST: &[u8] = b"[DONE]";
/// The data is not `[DONE]`.
const OTHER: usize = LAST.len() + 1;

/// A place in a stream of events.
#[derive(Debug)]
pub(super) struct Events {
    line: Line,
    /// The last byte was a carriage return, so a line feed now belongs to it.
    after_return: bool,
    has_data: bool,
    /// How much of `[DONE]` was there.
    last: usize,
}

#[derive(Clone, Copy, Debug)]
enum Line {
    /// So much of `data` was there.
    Name(usize),
    Colon,
    Data,
    Other,
}

impl Events {
    pub(super) fn new() -> Events {
        Events {
            line: Line::Name(0),
            after_return: false,
            has_data: false,
            last: 0,
        }
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8], reader: &mut Reader, meter: &mut Meter) {
        while let Some(first) = bytes.first() {
            let used = match self.line {
                _ if std::mem::take(&mut self.after_return) && *first == b'\n' => 1,
                Line::Name(0) if bytes.starts_with(b"data:") => self.begin_data(reader, meter, 5),
                Line::Name(matched) => self.name(matched, *first, reader, meter),
                Line::Colon => {
                    self.line = Line::Data;
                    usize::from(*first == b' ')
                }
                Line::Data => self.data(bytes, reader, meter),
                Line::Other => self.other(bytes),
            };
            bytes = &bytes[used..];
        }
    }

    fn name(&mut self, matched: usize, byte: u8, reader: &mut Reader, meter: &mut Meter) -> usize {
        match byte {
            b'\n' | b'\r' => {
                if matched == 0 {
                    self.end_of_event(reader, meter);
                }
                return self.end_of_line(byte);
            }
            // A byte order mark may open a stream, and no name begins with its bytes.
            0xef | 0xbb | 0xbf if matched == 0 => {}
            b':' if matched == FIELD.len() => return self.begin_data(reader, meter, 1),
            _ if FIELD.get(matched) == Some(&byte) => self.line = Line::Name(matched + 1),
            _ => self.line = Line::Other,
        }
        1
    }

    fn begin_data(&mut self, reader: &mut Reader, meter: &mut Meter, used: usize) -> usize {
        // Lines of data are joined by a line feed.
        if std::mem::replace(&mut self.has_data, true) {
            reader.feed(b"\n", meter);
            self.last = OTHER;
        }
        self.line = Line::Colon;
        used
    }

    fn data(&mut self, bytes: &[u8], reader: &mut Reader, meter: &mut Meter) -> usize {
        let end = memchr2(b'\n', b'\r', bytes);
        let data = &bytes[..end.unwrap_or(bytes.len())];
        reader.feed(data, meter);
        self.look_for_last(data);
        let Some(end) = end else { return bytes.len() };
        self.end(meter);
        end + self.end_of_line(bytes[end])
    }

    fn look_for_last(&mut self, data: &[u8]) {
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

    /// The end of a line of data, or of the stream: what stood behind `[DONE]` was read before it counts, however the
    /// line was cut.
    pub(super) fn end(&mut self, meter: &mut Meter) {
        if self.last == LAST.len() {
            self.last = OTHER;
            meter.end_of_chat();
        }
    }

    fn other(&mut self, bytes: &[u8]) -> usize {
        memchr2(b'\n', b'\r', bytes).map_or(bytes.len(), |end| end + self.end_of_line(bytes[end]))
    }

    fn end_of_line(&mut self, byte: u8) -> usize {
        (self.line, self.after_return) = (Line::Name(0), byte == b'\r');
        1
    }

    fn end_of_event(&mut self, reader: &mut Reader, meter: &mut Meter) {
        (self.has_data, self.last) = (false, 0);
        if reader.is_within() {
            meter.broken_off();
            reader.reset();
        }
    }
}
