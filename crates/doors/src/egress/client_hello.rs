//! Parses the TLS ClientHello for the server name (SNI). Pure functions of bytes.
//!
//! ```text
//! record: 22 3 x LENGTH ─ record … ── together: 1 LENGTH ─ version, random, session, suites, compression ─ extensions
//! ```

use spec::Host;
use std::borrow::Cow;

/// What the first bytes of a client are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientHello {
    /// More bytes are needed.
    Incomplete,
    /// A complete ClientHello.
    Tls {
        /// The server name (SNI), in canonical form.
        name: Option<Host>,
        /// Whether it has the extension that may hide another name (Encrypted Client Hello).
        hidden: bool,
    },
    /// Not TLS.
    NotTls,
    /// Starts like TLS but is not acceptable.
    Invalid,
}

/// Largest ClientHello: post-quantum keys are large, and the whole message is buffered.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Records that a ClientHello may span. All of them are parsed again whenever bytes arrive.
const MAX_RECORDS: usize = 16;
const MAX_RECORD_BYTES: usize = 16 << 10;
const MESSAGE_HEADER_BYTES: usize = 4;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: usize = 0;
const ENCRYPTED_CLIENT_HELLO: usize = 0xfe0d;
const HOST_NAME: usize = 0;

/// Why parsing failed.
enum HelloError {
    Incomplete,
    Invalid,
}

/// Parses the first bytes of a client.
pub fn read(bytes: &[u8]) -> ClientHello {
    match bytes {
        // Some servers skip other records, of which there are four types, before the first message.
        [] | [20 | 21 | 23 | 24] => ClientHello::Incomplete,
        [20 | 21 | 23 | 24, 3, ..] => ClientHello::Invalid,
        [HANDSHAKE, ..] => match message(bytes) {
            Ok(message) => parse_message(&message).unwrap_or(ClientHello::Invalid),
            Err(HelloError::Incomplete) => ClientHello::Incomplete,
            Err(HelloError::Invalid) => ClientHello::Invalid,
        },
        [_, ..] => ClientHello::NotTls,
    }
}

/// The first handshake message, reassembled from its records.
fn message(bytes: &[u8]) -> Result<Cow<'_, [u8]>, HelloError> {
    let mut parts = [&[][..]; MAX_RECORDS];
    let mut rest = bytes;
    for count in 0..MAX_RECORDS {
        let (part, whole) = record(&mut rest)?;
        parts[count] = part;
        if let Some(expected_length) = length(&parts[..=count])? {
            let held: usize = parts.iter().map(|part| part.len()).sum();
            match (held >= expected_length, count) {
                (true, 0) => return Ok(Cow::Borrowed(&part[..expected_length])),
                (true, _) => {
                    let mut message = parts.concat();
                    message.truncate(expected_length);
                    return Ok(Cow::Owned(message));
                }
                (false, _) => {}
            }
        }
        if !whole {
            return Err(HelloError::Incomplete);
        }
    }
    Err(HelloError::Invalid)
}

/// The available part of the next record, and whether it is complete.
fn record<'a>(rest: &mut &'a [u8]) -> Result<(&'a [u8], bool), HelloError> {
    let head = &rest[..rest.len().min(5)];
    let expected = [HANDSHAKE, 3];
    if head
        .iter()
        .zip(expected)
        .any(|(byte, expected)| *byte != expected)
    {
        return Err(HelloError::Invalid);
    }
    let [_, _, _, high, low] = *head else {
        return Err(HelloError::Incomplete);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if !(1..=MAX_RECORD_BYTES).contains(&length) {
        return Err(HelloError::Invalid);
    }
    let held = rest.len().min(5 + length);
    let part = &rest[5..held];
    *rest = &rest[held..];
    Ok((part, part.len() == length))
}

/// Length of the message with its header, once the header is complete.
fn length(parts: &[&[u8]]) -> Result<Option<usize>, HelloError> {
    let mut head = parts.iter().copied().flatten().copied();
    if head.next().is_some_and(|kind| kind != CLIENT_HELLO) {
        return Err(HelloError::Invalid);
    }
    let (Some(high), Some(middle), Some(low)) = (head.next(), head.next(), head.next()) else {
        return Ok(None);
    };
    match MESSAGE_HEADER_BYTES + u32::from_be_bytes([0, high, middle, low]) as usize {
        MAX_MESSAGE_BYTES.. => Err(HelloError::Invalid),
        length => Ok(Some(length)),
    }
}

/// Parses a complete ClientHello; `None` if any length in it is wrong.
fn parse_message(message: &[u8]) -> Option<ClientHello> {
    let mut rest = message.get(MESSAGE_HEADER_BYTES..)?;
    let version = take(&mut rest, 2)?;
    let _random = take(&mut rest, 32)?;
    let session = length_prefixed(&mut rest, 1)?;
    let suites = length_prefixed(&mut rest, 2)?;
    let compressions = length_prefixed(&mut rest, 1)?;
    if version[0] != 3 || session.len() > 32 || suites.is_empty() || compressions.is_empty() {
        return None;
    }
    let mut name = None;
    let mut hidden = false;
    if rest.is_empty() {
        return Some(ClientHello::Tls { name, hidden });
    }
    let mut extensions = length_prefixed(&mut rest, 2)?;
    while !extensions.is_empty() {
        let kind = number(&mut extensions, 2)?;
        let value = length_prefixed(&mut extensions, 2)?;
        match kind {
            SERVER_NAME if name.is_some() => return None,
            SERVER_NAME => name = Some(server_name(value)?),
            ENCRYPTED_CLIENT_HELLO => hidden = true,
            _ => {}
        }
    }
    rest.is_empty().then_some(ClientHello::Tls { name, hidden })
}

/// A list of exactly one host name: with two, servers differ in which one counts.
fn server_name(mut value: &[u8]) -> Option<Host> {
    let mut list = length_prefixed(&mut value, 2)?;
    let kind = number(&mut list, 1)?;
    let name = length_prefixed(&mut list, 2)?;
    if kind != HOST_NAME || !list.is_empty() || !value.is_empty() {
        return None;
    }
    let host: Host = str::from_utf8(name).ok()?.parse().ok()?;
    // RFC 6066 forbids addresses here.
    host.name().is_some().then_some(host)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

/// A big-endian number of this many bytes.
fn number(rest: &mut &[u8], width: usize) -> Option<usize> {
    Some(
        take(rest, width)?
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(*byte)),
    )
}

/// Bytes with a length prefix of this many bytes.
fn length_prefixed<'a>(rest: &mut &'a [u8], width: usize) -> Option<&'a [u8]> {
    let count = number(rest, width)?;
    take(rest, count)
}

#[cfg(test)]
#[path = "client_hello_tests.rs"]
mod tests;
