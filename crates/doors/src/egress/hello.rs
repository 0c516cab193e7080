//! The first message of TLS: which server a client asks for. Pure functions of bytes.
//!
//! ```text
//! record: 22 3 x LENGTH ─ record … ── together: 1 LENGTH ─ version, random, session, suites, compression ─ extensions
//! ```

use spec::Host;
use std::borrow::Cow;

/// What the first bytes of a client are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Not enough to tell.
    More,
    /// A whole ClientHello.
    Tls {
        /// The server's name in it, in its one spelling.
        name: Option<Host>,
        /// Whether it has the extension that may hide another one (Encrypted Client Hello).
        hidden: bool,
    },
    /// It is not TLS.
    Plain,
    /// It begins like TLS and is none that we would let pass.
    Bad,
}

/// The longest message: keys that quantum computers do not break are large, and all of it is held until it is whole.
const LONGEST: usize = 64 << 10;
/// Records that it may be spread over. Each is looked at again whenever bytes come.
const MOST_RECORDS: usize = 16;
const LONGEST_RECORD: usize = 16 << 10;
const HEAD: usize = 4;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: usize = 0;
const ENCRYPTED_CLIENT_HELLO: usize = 0xfe0d;
const HOST_NAME: usize = 0;

/// Why there is no answer yet, or none at all.
enum Not {
    Whole,
    Good,
}

/// Looks at the first bytes of a client.
pub fn read(bytes: &[u8]) -> Hello {
    match bytes {
        // Some servers skip other records, of which there are four kinds, before the first message.
        [] | [20 | 21 | 23 | 24] => Hello::More,
        [20 | 21 | 23 | 24, 3, ..] => Hello::Bad,
        [HANDSHAKE, ..] => match message(bytes) {
            Ok(message) => asks_for(&message).unwrap_or(Hello::Bad),
            Err(Not::Whole) => Hello::More,
            Err(Not::Good) => Hello::Bad,
        },
        [_, ..] => Hello::Plain,
    }
}

/// The first message, out of as many records as it takes.
fn message(bytes: &[u8]) -> Result<Cow<'_, [u8]>, Not> {
    let mut parts = [&[][..]; MOST_RECORDS];
    let mut rest = bytes;
    for count in 0..MOST_RECORDS {
        let (part, whole) = record(&mut rest)?;
        parts[count] = part;
        if let Some(wanted) = length(&parts[..=count])? {
            let held: usize = parts.iter().map(|part| part.len()).sum();
            match (held >= wanted, count) {
                (true, 0) => return Ok(Cow::Borrowed(&part[..wanted])),
                (true, _) => {
                    let mut message = parts.concat();
                    message.truncate(wanted);
                    return Ok(Cow::Owned(message));
                }
                (false, _) => {}
            }
        }
        if !whole {
            return Err(Not::Whole);
        }
    }
    Err(Not::Good)
}

/// What there is of the next record, and whether that is all of it.
fn record<'a>(rest: &mut &'a [u8]) -> Result<(&'a [u8], bool), Not> {
    let head = &rest[..rest.len().min(5)];
    let expected = [HANDSHAKE, 3];
    if head
        .iter()
        .zip(expected)
        .any(|(byte, expected)| *byte != expected)
    {
        return Err(Not::Good);
    }
    let [_, _, _, high, low] = *head else {
        return Err(Not::Whole);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if !(1..=LONGEST_RECORD).contains(&length) {
        return Err(Not::Good);
    }
    let held = rest.len().min(5 + length);
    let part = &rest[5..held];
    *rest = &rest[held..];
    Ok((part, part.len() == length))
}

/// How long the message is with its head, as soon as that is there.
fn length(parts: &[&[u8]]) -> Result<Option<usize>, Not> {
    let mut head = parts.iter().copied().flatten().copied();
    if head.next().is_some_and(|kind| kind != CLIENT_HELLO) {
        return Err(Not::Good);
    }
    let (Some(high), Some(middle), Some(low)) = (head.next(), head.next(), head.next()) else {
        return Ok(None);
    };
    match HEAD + u32::from_be_bytes([0, high, middle, low]) as usize {
        LONGEST.. => Err(Not::Good),
        length => Ok(Some(length)),
    }
}

/// Reads what a whole message says; nothing if any length in it lies.
fn asks_for(message: &[u8]) -> Option<Hello> {
    let mut rest = message.get(HEAD..)?;
    let (version, _random) = (take(&mut rest, 2)?, take(&mut rest, 32)?);
    let session = counted(&mut rest, 1)?;
    let (suites, compressions) = (counted(&mut rest, 2)?, counted(&mut rest, 1)?);
    if version[0] != 3 || session.len() > 32 || suites.is_empty() || compressions.is_empty() {
        return None;
    }
    let (mut name, mut hidden) = (None, false);
    if rest.is_empty() {
        return Some(Hello::Tls { name, hidden });
    }
    let mut extensions = counted(&mut rest, 2)?;
    while !extensions.is_empty() {
        let kind = number(&mut extensions, 2)?;
        let value = counted(&mut extensions, 2)?;
        match kind {
            SERVER_NAME if name.is_some() => return None,
            SERVER_NAME => name = Some(server_name(value)?),
            ENCRYPTED_CLIENT_HELLO => hidden = true,
            _ => {}
        }
    }
    rest.is_empty().then_some(Hello::Tls { name, hidden })
}

/// A list of exactly one, and that a name: where there are two, servers differ in which one counts.
fn server_name(mut value: &[u8]) -> Option<Host> {
    let mut list = counted(&mut value, 2)?;
    let kind = number(&mut list, 1)?;
    let name = counted(&mut list, 2)?;
    if kind != HOST_NAME || !list.is_empty() || !value.is_empty() {
        return None;
    }
    let host: Host = str::from_utf8(name).ok()?.parse().ok()?;
    // No client may send an address.
    host.name().is_some().then_some(host)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

/// A number of so many bytes.
fn number(rest: &mut &[u8], width: usize) -> Option<usize> {
    Some(
        take(rest, width)?
            .iter()
            .fold(0, |number, byte| number << 8 | usize::from(*byte)),
    )
}

/// Bytes that say before them, in so many bytes, how many they are.
fn counted<'a>(rest: &mut &'a [u8], width: usize) -> Option<&'a [u8]> {
    let count = number(rest, width)?;
    take(rest, count)
}

#[cfg(test)]
#[path = "hello_tests.rs"]
mod tests;
