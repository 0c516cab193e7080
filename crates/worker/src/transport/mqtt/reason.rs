//! Reasons of the broker in words, and which of them leave no hope.

use super::codec::Extras;

/// Of what a broker says so much is passed on.
const LONGEST: usize = 200;
/// Another connection has our name.
pub(super) const TAKEN_OVER: u8 = 0x8e;

/// A reason of MQTT 5: its number, its name, and what the broker says of it.
pub(super) fn told(code: u8, extras: &Extras) -> String {
    let said: String = extras.reason().chars().take(LONGEST).map(visible).collect();
    let name = named(code);
    if said.is_empty() {
        format!("{name} (0x{code:02x})")
    } else {
        format!("{name} (0x{code:02x}): {said}")
    }
}

fn visible(character: char) -> char {
    if character.is_control() {
        '?'
    } else {
        character
    }
}

fn named(code: u8) -> &'static str {
    match code {
        0x00 => "normal disconnection",
        0x81 => "malformed packet",
        0x82 => "protocol error",
        0x83 => "a reason of its own",
        0x84 => "it does not speak this version of MQTT",
        0x85 => "it does not take this client identifier",
        0x86 => "bad user name or password",
        0x87 => "not authorised",
        0x88 => "it is unavailable",
        0x89 => "it is busy",
        0x8a => "we are banned",
        0x8b => "it shuts down",
        0x8c => "bad authentication method",
        0x8d => "it heard nothing from us",
        TAKEN_OVER => "another client came with the same identifier",
        0x8f => "bad topic filter",
        0x90 => "bad topic name",
        0x93 => "more at once than it takes",
        0x95 => "packet too large",
        0x96 => "too many messages",
        0x97 => "quota exceeded",
        0x98 => "an administrator ended it",
        0x99 => "bad payload format",
        0x9c | 0x9d => "it names another server",
        0x9e => "it has no shared subscriptions",
        0x9f => "too many connections",
        0xa1 => "it has no subscription identifiers",
        0xa2 => "it has no wildcards",
        _ => "unspecified",
    }
}

/// Whether a message is refused for what it is: it would be refused each time. All else may pass: quotas, reasons of its own.
pub(super) fn is_of_message(code: u8) -> bool {
    matches!(code, 0x87 | 0x90 | 0x95 | 0x99)
}

/// What the answer to a connection means. 3.1.1 has five reasons of its own, which MQTT 5 does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It may speak another.
    Version,
    /// The same words would be refused for ever.
    ForEver,
    /// It may be let in later: credentials are changed, servers come back. How often that is tried the operator says.
    ForNow,
}

/// The reason of MQTT 5 that stands for it, and what it means.
pub(super) fn of_connection(code: u8) -> (u8, Refused) {
    let code = match code {
        1 => 0x84,
        2 => 0x85,
        3 => 0x88,
        4 => 0x86,
        5 => 0x87,
        other => other,
    };
    let meaning = match code {
        0x84 => Refused::Version,
        0x81 | 0x82 | 0x85 | 0x8c | 0x95 => Refused::ForEver,
        _ => Refused::ForNow,
    };
    (code, meaning)
}
