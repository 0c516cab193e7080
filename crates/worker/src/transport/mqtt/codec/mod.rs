//! The packets of MQTT 5 and 3.1.1, as far as this client speaks them: pure functions of bytes, both ways. What comes is
//! a stranger's: every length is held against what is there, nothing is allocated because a length says so.
//!
//! QoS 2, wills, aliases of topics and exchanges of authentication are not spoken; they are refused by name.

mod extras;
mod field;
mod packet;
#[cfg(test)]
mod tests;

pub(crate) use extras::{Extras, Value, name};
pub(crate) use packet::{
    Connect, ConnectAnswer, Disconnect, Packet, Publish, PublishAnswer, Subscribe, SubscribeAnswer,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use field::Cursor;

/// Why bytes are no packet, or a packet cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Flaw(pub(crate) &'static str);

/// Which standard is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Three,
    Five,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Packet(Packet),
    /// A message that is larger than we take. It is passed over: whoever sent it must not cost us the connection,
    /// again and again where the broker keeps it.
    Oversize {
        packet_id: Option<u16>,
    },
    /// There is no whole packet yet.
    More,
}

/// Cuts a stream into packets.
#[derive(Debug)]
pub(crate) struct Reader {
    version: Version,
    /// A whole packet has at most so many bytes.
    largest: usize,
    /// So many bytes to come belong to a message that is passed over.
    skip: usize,
}

impl Reader {
    pub(crate) fn new(version: Version, largest: usize) -> Reader {
        Reader {
            version,
            largest,
            skip: 0,
        }
    }

    /// Takes the next packet off the front.
    pub(crate) fn read(&mut self, buffer: &mut BytesMut) -> Result<Read, Flaw> {
        let passed_over = self.skip.min(buffer.len());
        buffer.advance(passed_over);
        self.skip -= passed_over;
        let Some((first, rest)) = buffer.split_first() else {
            return Ok(Read::More);
        };
        let (first, Some((length, spelled))) = (*first, field::variable(rest)?) else {
            return Ok(Read::More);
        };
        let head = 1 + spelled;
        if head + length > self.largest {
            return self.pass_over(buffer, first, head, length);
        }
        if buffer.len() < head + length {
            return Ok(Read::More);
        }
        buffer.advance(head);
        let body = buffer.split_to(length).freeze();
        packet::read(self.version, first, body).map(Read::Packet)
    }

    fn pass_over(
        &mut self,
        buffer: &mut BytesMut,
        first: u8,
        head: usize,
        length: usize,
    ) -> Result<Read, Flaw> {
        if first >> 4 != packet::PUBLISH {
            return Err(Flaw("a packet that is no message is larger than we take"));
        }
        // Of its body only what says how it is acknowledged.
        let body = &buffer[head..];
        let [high, low, ..] = body else {
            return Ok(Read::More);
        };
        let topic = 2 + usize::from(u16::from_be_bytes([*high, *low]));
        let has_id = match (first >> 1) & 3 {
            0 => false,
            1 => true,
            _ => return Err(packet::QOS_2),
        };
        let needed = topic + if has_id { 2 } else { 0 };
        if needed > length {
            return Err(Flaw("it ends too early"));
        }
        let Some(id) = body.get(topic..needed) else {
            return Ok(Read::More);
        };
        let packet_id = match id {
            [high, low] => Some(u16::from_be_bytes([*high, *low])),
            _ => None,
        };
        if packet_id == Some(0) {
            return Err(Flaw("a packet identifier is 0"));
        }
        buffer.advance(head + needed);
        self.skip = length - needed;
        Ok(Read::Oversize { packet_id })
    }
}

/// Writes a packet behind what is there; if it cannot be written, nothing is.
pub(crate) fn write(version: Version, packet: &Packet, out: &mut BytesMut) -> Result<(), Flaw> {
    let (first, body, payload) = packet::write(version, packet)?;
    let mut head = BytesMut::with_capacity(5);
    head.put_u8(first);
    field::put_variable(&mut head, body.len() + payload.len())?;
    out.reserve(head.len() + body.len() + payload.len());
    out.put_slice(&head);
    out.put_slice(&body);
    out.put_slice(payload);
    Ok(())
}

/// A cursor over what must be read to its end.
fn whole<T>(body: Bytes, read: impl FnOnce(&mut Cursor) -> Result<T, Flaw>) -> Result<T, Flaw> {
    let mut cursor = Cursor(body);
    let value = read(&mut cursor)?;
    if cursor.is_empty() {
        Ok(value)
    } else {
        Err(Flaw("it has more than it may"))
    }
}
