//! What a broker sends, or whoever sits there instead. No bytes make the reader panic, or keep more than it may; where they are cut
//! changes nothing; what was read can be written, and is read the same again.
//!
//! The first byte says the version, and where the stream is cut. The codec is part of the worker, whose other parts would take
//! minutes to build: this includes it alone.

#![no_main]

use bytes::BytesMut;
use codec::{CodecError, Packet, Decoded, PacketReader, Version};
use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports, reason = "what the client alone uses")]
#[path = "../../crates/worker/src/transport/mqtt/codec/mod.rs"]
mod codec;

const LARGEST: usize = 2048;

fuzz_target!(|input: &[u8]| {
    let [first, stream @ ..] = input else { return };
    let version = if first & 1 == 0 {
        Version::Three
    } else {
        Version::Five
    };
    let whole = read(version, stream, stream.len().max(1));
    assert_eq!(
        whole,
        read(version, stream, usize::from(first >> 4) + 1),
        "where it is cut changes nothing"
    );
    for read in whole.0 {
        if let Decoded::Packet(packet) = read {
            assert_eq!(again(version, &packet), Ok(Decoded::Packet(packet)));
        }
    }
});

fn read(version: Version, stream: &[u8], size: usize) -> (Vec<Decoded>, Option<CodecError>) {
    let mut reader = PacketReader::new(version, LARGEST);
    let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
    for piece in stream.chunks(size) {
        buffer.extend_from_slice(piece);
        loop {
            match reader.read(&mut buffer) {
                Ok(Decoded::More) => break,
                Ok(read) => found.push(read),
                Err(flaw) => return (found, Some(flaw)),
            }
        }
        assert!(buffer.len() < LARGEST.max(65_600), "what waits is bounded");
    }
    (found, None)
}

/// It may have become smaller (what says nothing is left out) or a little larger, never too large.
fn again(version: Version, packet: &Packet) -> Result<Decoded, CodecError> {
    let mut written = BytesMut::new();
    codec::write(version, packet, &mut written)?;
    PacketReader::new(version, 2 * LARGEST).read(&mut written)
}
