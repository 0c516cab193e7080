//! Server-sent events, as a client of `airlock serve` reads them from whatever answers there. No bytes make the parser
//! panic; where they are cut changes nothing, up to where it refuses them; and what it read, written down as events
//! again, is read the same.
//!
//! The first byte says where the rest is cut. The command is no library, so that this target takes the module from its
//! file.

#![no_main]

#[path = "../../crates/app/src/remote/server_sent_events.rs"]
#[allow(dead_code, reason = "what the command alone uses")]
mod server_sent_events;

use server_sent_events::{EventError, ServerEvent, EventParser};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [cut, bytes @ ..] = input else { return };
    let whole = read([bytes]);
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    match (&whole, read([first, second])) {
        (Ok(whole), cut) => assert_eq!(Ok(whole), cut.as_ref(), "where it is cut"),
        (Err(error), cut) => assert_eq!(cut.as_ref().err(), Some(error), "where it is cut"),
    }
    let Ok(events) = whole else { return };
    for event in &events {
        assert!(!event.name.contains('\n'));
        assert!(
            event
                .id
                .as_ref()
                .is_none_or(|id| !id.contains(['\n', '\0']))
        );
    }
    let again: String = events.iter().map(written).collect();
    assert_eq!(read([again.as_bytes()]), Ok(events), "a second time");
});

fn read<const N: usize>(pieces: [&[u8]; N]) -> Result<Vec<ServerEvent>, EventError> {
    let (mut parser, mut events) = (EventParser::default(), Vec::new());
    for piece in pieces {
        events.extend(parser.feed(piece)?);
    }
    Ok(events)
}

/// With both signs at the ends of lines: one of them may be the last of what a line says.
fn written(event: &ServerEvent) -> String {
    let id = event
        .id
        .as_ref()
        .map_or_else(String::new, |id| format!("id: {id}\r\n"));
    let data: String = event
        .data
        .split('\n')
        .map(|line| format!("data: {line}\r\n"))
        .collect();
    format!("{id}event: {}\r\n{data}\r\n", event.name)
}
