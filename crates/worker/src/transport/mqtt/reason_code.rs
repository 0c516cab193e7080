//! MQTT reason codes: descriptions, and which of them are permanent.

use super::codec::MqttProperties;

/// Characters of a broker's reason string that are passed on.
const MAX_TEXT_CHARS: usize = 200;
/// Session taken over.
pub(super) const TAKEN_OVER: u8 = 0x8e;

/// Description of an MQTT 5 reason code, with the broker's reason string.
pub(super) fn describe(code: u8, properties: &MqttProperties) -> String {
    let reason: String = properties
        .reason()
        .chars()
        .take(MAX_TEXT_CHARS)
        .map(visible)
        .collect();
    let name = named(code);
    if reason.is_empty() {
        format!("{name} (0x{code:02x})")
    } else {
        format!("{name} (0x{code:02x}): {reason}")
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

/// Whether a PUBACK rejects the message itself, permanently. Other reasons may pass: quotas,
/// implementation specific errors.
pub(super) fn is_of_message(code: u8) -> bool {
    matches!(code, 0x87 | 0x90 | 0x95 | 0x99)
}

/// Meaning of a refused CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectRefusal {
    /// Another version may be accepted.
    Version,
    /// The same CONNECT will always be refused.
    ForEver,
    /// Another try may succeed: credentials change, servers come back. The reconnect policy bounds
    /// the tries.
    ForNow,
}

/// Maps the codes of 3.1.1 to those of MQTT 5, with their meaning.
pub(super) fn of_connection(code: u8) -> (u8, ConnectRefusal) {
    let code = match code {
        1 => 0x84,
        2 => 0x85,
        3 => 0x88,
        4 => 0x86,
        5 => 0x87,
        other => other,
    };
    let meaning = match code {
        0x84 => ConnectRefusal::Version,
        0x81 | 0x82 | 0x85 | 0x8c | 0x95 => ConnectRefusal::ForEver,
        _ => ConnectRefusal::ForNow,
    };
    (code, meaning)
}
