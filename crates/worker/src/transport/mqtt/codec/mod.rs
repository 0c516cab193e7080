//! MQTT codec for versions 5 and 3.1.1, as far as this client needs them: pure functions of bytes.
//! Input is untrusted: every length is checked, and nothing is allocated because of an announced
//! length.
//!
//! QoS 2, wills, topic aliases and extended authentication are not supported and refused
//! explicitly.

mod packet;
mod primitives;
mod properties;
#[cfg(test)]
mod tests;

pub(crate) use packet::{ConnAck, Connect, Disconnect, Packet, PubAck, Publish, SubAck, Subscribe};
pub(crate) use properties::{MqttProperties, PropertyValue, property};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use primitives::Cursor;

/// Why bytes are no valid packet, or a packet cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CodecError(pub(crate) &'static str);

/// Protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Three,
    Five,
}

/// Result of reading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Packet(Packet),
    /// A message larger than the limit. It is skipped: its sender must not cost us the connection,
    /// and again with every redelivery.
    Oversize {
        packet_id: Option<u16>,
    },
    /// The packet is incomplete.
    More,
}

/// Splits a stream into packets.
#[derive(Debug)]
pub(crate) struct PacketReader {
    version: Version,
    /// Maximum size of a packet.
    largest: usize,
    /// Bytes of a skipped message that are still to come.
    skip: usize,
}

impl PacketReader {
    pub(crate) fn new(version: Version, largest: usize) -> PacketReader {
        PacketReader {
            version,
            largest,
            skip: 0,
        }
    }

    /// Takes the next packet from the front.
    pub(crate) fn read(&mut self, buffer: &mut BytesMut) -> Result<Decoded, CodecError> {
        let passed_over = self.skip.min(buffer.len());
        buffer.advance(passed_over);
        self.skip -= passed_over;
        let Some((first, rest)) = buffer.split_first() else {
            return Ok(Decoded::More);
        };
        let (first, Some((length, spelled))) = (*first, primitives::variable(rest)?) else {
            return Ok(Decoded::More);
        };
        let head = 1 + spelled;
        if head + length > self.largest {
            return self.pass_over(buffer, first, head, length);
        }
        if buffer.len() < head + length {
            return Ok(Decoded::More);
        }
        buffer.advance(head);
        let body = buffer.split_to(length).freeze();
        packet::read(self.version, first, body).map(Decoded::Packet)
    }

    fn pass_over(
        &mut self,
        buffer: &mut BytesMut,
        first: u8,
        head: usize,
        length: usize,
    ) -> Result<Decoded, CodecError> {
        if first >> 4 != packet::PUBLISH {
            return Err(CodecError(
                "a packet that is no message is larger than we take",
            ));
        }
        // Only the packet id is needed, to acknowledge it.
        let body = &buffer[head..];
        let [high, low, ..] = body else {
            return Ok(Decoded::More);
        };
        let topic = 2 + usize::from(u16::from_be_bytes([*high, *low]));
        let has_id = match (first >> 1) & 3 {
            0 => false,
            1 => true,
            _ => return Err(packet::QOS_2),
        };
        let needed = topic + if has_id { 2 } else { 0 };
        if needed > length {
            return Err(CodecError("it ends too early"));
        }
        let Some(id) = body.get(topic..needed) else {
            return Ok(Decoded::More);
        };
        let packet_id = match id {
            [high, low] => Some(u16::from_be_bytes([*high, *low])),
            _ => None,
        };
        if packet_id == Some(0) {
            return Err(CodecError("a packet identifier is 0"));
        }
        buffer.advance(head + needed);
        self.skip = length - needed;
        Ok(Decoded::Oversize { packet_id })
    }
}

/// Appends a packet; appends nothing if it cannot be encoded.
pub(crate) fn write(
    version: Version,
    packet: &Packet,
    out: &mut BytesMut,
) -> Result<(), CodecError> {
    let (first, body, payload) = packet::write(version, packet)?;
    let mut head = BytesMut::with_capacity(5);
    head.put_u8(first);
    primitives::put_variable(&mut head, body.len() + payload.len())?;
    out.reserve(head.len() + body.len() + payload.len());
    out.put_slice(&head);
    out.put_slice(&body);
    out.put_slice(payload);
    Ok(())
}

/// Reads a value that must end with the input.
fn whole<T>(
    body: Bytes,
    read: impl FnOnce(&mut Cursor) -> Result<T, CodecError>,
) -> Result<T, CodecError> {
    let mut cursor = Cursor(body);
    let value = read(&mut cursor)?;
    if cursor.is_empty() {
        Ok(value)
    } else {
        Err(CodecError("it has more than it may"))
    }
}
