//! Parses server-sent events from a byte stream. Sizes are bounded, so that a line without an end
//! cannot fill the memory.

/// The maximum size of an event; a run's result fits several times.
const MAX_EVENT_BYTES: usize = 8 << 20;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerEvent {
    /// The `Last-Event-ID` with which the stream can be resumed.
    pub(crate) id: Option<String>,
    /// The event's name; empty if unnamed.
    pub(crate) name: String,
    /// The data lines, joined.
    pub(crate) data: String,
}

/// The stream was not sent by an Airlock server.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EventError {
    /// Longer than every event of Airlock servers.
    #[error("an event is longer than {} MiB", MAX_EVENT_BYTES >> 20)]
    TooLong,
    /// Airlock servers send JSON.
    #[error("an event is not UTF-8")]
    NotText,
}

/// The parser; the stream may be split anywhere.
#[derive(Debug, Default)]
pub(super) struct EventParser {
    line: Vec<u8>,
    event: ServerEvent,
    has_data: bool,
    size: usize,
}

impl EventParser {
    /// Feeds one chunk, and returns the events that it completes.
    pub(super) fn feed(&mut self, piece: &[u8]) -> Result<Vec<ServerEvent>, EventError> {
        let mut events = Vec::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.size += part.len();
            if self.size > MAX_EVENT_BYTES {
                return Err(EventError::TooLong);
            }
            self.line.extend_from_slice(part);
            if self.line.last() == Some(&b'\n') {
                let line = std::mem::take(&mut self.line);
                events.extend(self.take(&line)?);
            }
        }
        Ok(events)
    }

    /// Handles one complete line. An empty line ends an event.
    fn take(&mut self, line: &[u8]) -> Result<Option<ServerEvent>, EventError> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|_| EventError::NotText)?;
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            let has_data = std::mem::take(&mut self.has_data);
            self.size = 0;
            return Ok(has_data.then_some(event));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.has_data = true;
                self.event.data.push_str(value);
            }
            "event" => self.event.name = value.to_owned(),
            "id" if !value.contains('\0') => self.event.id = Some(value.to_owned()),
            // A comment line is a keep-alive.
            "" => self.size = self.size.saturating_sub(line.len() + 1),
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(id: &str, name: &str, data: &str) -> ServerEvent {
        ServerEvent {
            id: Some(id.to_owned()),
            name: name.to_owned(),
            data: data.to_owned(),
        }
    }

    #[test]
    fn events_are_read_as_our_servers_write_them() {
        let text = b"id: 1.0\nevent: started\ndata: {}\n\n: still here\n\nid: 2\r\nevent: output\r\ndata: a\r\ndata: b\r\n\r\n";
        let events = EventParser::default().feed(text).unwrap();
        assert_eq!(
            events,
            [event("1.0", "started", "{}"), event("2", "output", "a\nb")]
        );
    }

    #[test]
    fn what_has_no_data_or_no_end_is_no_event() {
        assert_eq!(
            EventParser::default()
                .feed(b"event: x\n\ndata: lonely\n")
                .unwrap(),
            []
        );
        assert_eq!(
            EventParser::default().feed(b"data\n\n").unwrap(),
            [ServerEvent::default()]
        );
    }

    #[test]
    fn a_line_or_an_event_without_an_end_is_refused_in_time() {
        let megabyte = vec![b'x'; 1 << 20];
        let mut parser = EventParser::default();
        assert!((0..8).all(|_| parser.feed(&megabyte).is_ok()));
        assert_eq!(parser.feed(b"x"), Err(EventError::TooLong));
        let mut parser = EventParser::default();
        let line = [b"data: ".as_slice(), &megabyte, b"\n"].concat();
        assert!((0..9).any(|_| parser.feed(&line).is_err()));
        let mut parser = EventParser::default();
        let idle_timeout = b":\n\n".repeat(1 << 20);
        assert!(
            (0..4).all(|_| parser.feed(&idle_timeout).is_ok()),
            "silence is not counted"
        );
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_a_stream_is_cut(
            told in proptest::collection::vec(("[a-z0-9.]{1,8}", "[a-z]{0,8}", "[ -~ä]{0,40}"), 0..8),
            cuts in proptest::collection::vec(1usize..20, 1..40),
        ) {
            let text: String = told.iter().map(|(id, name, data)| format!("id: {id}\nevent: {name}\ndata: {data}\n\n:\n\n")).collect();
            let mut parser = EventParser::default();
            let mut read = Vec::new();
            let mut rest = text.as_bytes();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, behind) = rest.split_at((*cut).min(rest.len()));
                read.extend(parser.feed(piece).unwrap());
                rest = behind;
            }
            let wanted: Vec<_> = told.iter().map(|(id, name, data)| event(id, name, data)).collect();
            prop_assert_eq!(read, wanted);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut parser = EventParser::default();
            for piece in bytes.chunks(7) {
                if parser.feed(piece).is_err() { break; }
            }
        }
    }
}
