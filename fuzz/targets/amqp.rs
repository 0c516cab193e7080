//! What a broker of AMQP 1.0 sends, or whoever sits there instead. No bytes make the reader panic, or keep more than it may; where
//! they are cut changes nothing; what was read can be written, and is read the same again.
//!
//! The first byte says where the stream is cut. Frames and values are part of the worker, whose other parts would take minutes to
//! build: this includes them alone.

#![no_main]

use bytes::{Bytes, BytesMut};
use frame::{FrameError, Frame};
use libfuzzer_sys::fuzz_target;
use value::Value;

#[allow(dead_code, reason = "what the client alone uses")]
#[path = "../../crates/worker/src/transport/amqp/frame.rs"]
mod frame;
#[allow(dead_code, reason = "what the client alone uses")]
#[path = "../../crates/worker/src/transport/amqp/value.rs"]
mod value;

const LARGEST: usize = 2048;

fuzz_target!(|input: &[u8]| {
    let [first, stream @ ..] = input else { return };
    let whole = read(stream, stream.len().max(1));
    // As texts: a number that is none is not equal to itself.
    let pieces = read(stream, usize::from(first >> 4) + 1);
    assert_eq!(
        format!("{whole:?}"),
        format!("{pieces:?}"),
        "where it is cut changes nothing"
    );
    for frame in whole.0 {
        if let Frame::Performative { mut payload, .. } = frame {
            // The sections of a message are values, too.
            while let Some(value) = section(&mut payload) {
                again(&value);
            }
        }
    }
    let mut rest = Bytes::copy_from_slice(stream);
    while let Some(value) = section(&mut rest) {
        again(&value);
    }
});

fn read(stream: &[u8], size: usize) -> (Vec<Frame>, Option<FrameError>) {
    let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
    for piece in stream.chunks(size) {
        buffer.extend_from_slice(piece);
        loop {
            match frame::read(&mut buffer, LARGEST) {
                Ok(None) => break,
                Ok(Some(frame)) => found.push(frame),
                Err(bad) => return (found, Some(bad)),
            }
        }
        assert!(buffer.len() < LARGEST, "what waits is bounded");
    }
    (found, None)
}

/// The next value; who can pass it over passes over as much.
fn section(bytes: &mut Bytes) -> Option<Value> {
    let mut skipped = bytes.clone();
    let value = Value::read(bytes).ok()?;
    assert!(value::skip(&mut skipped).is_err() || skipped == *bytes);
    Some(value)
}

/// What we do not want is left out when it is written, arrays become lists; after that it stays as it is.
fn again(value: &Value) {
    let once = reread(value);
    let twice = reread(&once);
    assert_eq!(written(&once), written(&twice));
}

fn reread(value: &Value) -> Value {
    let mut bytes = written(value).freeze();
    let read = Value::read(&mut bytes).expect("what we write can be read");
    assert!(bytes.is_empty());
    read
}

fn written(value: &Value) -> BytesMut {
    let mut out = BytesMut::new();
    value.write(&mut out);
    out
}
