//! RFC 3339 as clients write it: with any time zone, and in the spellings that the standard allows.

use crate::{Timestamp, timestamp::days_since_1970};

impl Timestamp {
    /// Reads a timestamp from 1970 on, in any time zone. Digits below a millisecond are dropped.
    pub fn from_rfc3339(text: &str) -> Option<Timestamp> {
        parse(text).map(Timestamp)
    }
}

fn parse(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let at =
        |index: usize, wanted: &[u8]| bytes.get(index).is_some_and(|byte| wanted.contains(byte));
    let part = |from: usize, to: usize| digits(bytes.get(from..to)?);
    if !(at(4, b"-") && at(7, b"-") && at(10, b"Tt ") && at(13, b":") && at(16, b":")) {
        return None;
    }
    let year = part(0, 4)?;
    let month = part(5, 7)?;
    let day = part(8, 10)?;
    let hour = part(11, 13)?;
    let minute = part(14, 16)?;
    let second = part(17, 19)?;
    let (milliseconds, zone) = fraction(&bytes[19..])?;
    let offset = offset(zone)?;
    let in_range = (1..=12).contains(&month)
        && (1..=days_of_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let days = days_since_1970(year, month, day);
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
    let all = in_range.then_some(seconds.checked_mul(1000)? + milliseconds)?;
    u64::try_from(all).ok()
}

fn digits(text: &[u8]) -> Option<i64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
    text.iter()
        .try_fold(0, |number, byte| Some(number * 10 + digit(byte)?))
}

/// The milliseconds, and the text behind the fraction.
fn fraction(text: &[u8]) -> Option<(i64, &[u8])> {
    let Some(rest) = text.strip_prefix(b".") else {
        return Some((0, text));
    };
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let first: Vec<u8> = rest[..length]
        .iter()
        .copied()
        .chain(*b"000")
        .take(3)
        .collect();
    ((1..=9).contains(&length)).then_some((digits(&first)?, &rest[length..]))
}

/// The offset of a time zone, in seconds to the east.
fn offset(text: &[u8]) -> Option<i64> {
    match text {
        b"Z" | b"z" => Some(0),
        // A plus sign in a query arrives as a space if the client does not encode it.
        [sign @ (b'+' | b'-' | b' '), hours @ .., b':', tens, ones] if hours.len() == 2 => {
            let (hours, minutes) = (digits(hours)?, digits(&[*tens, *ones])?);
            let seconds = hours * 3600 + minutes * 60;
            (hours < 24 && minutes < 60).then_some(if *sign == b'-' { -seconds } else { seconds })
        }
        _ => None,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_write_we_read() {
        let mut at = 0_u64;
        while at < 4_200_000_000_000 {
            assert_eq!(
                parse(&Timestamp(at).to_string()),
                Some(at),
                "{}",
                Timestamp(at)
            );
            at += 86_399_997 * 11;
        }
    }

    #[test]
    fn zones_and_fractions_are_understood() {
        for (text, wanted) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T01:00:00+01:00", 0),
            ("1970-01-01T01:00:00 01:00", 0),
            ("1969-12-31T23:00:00-01:00", 0),
            ("1970-01-01T00:00:00.1Z", 100),
            ("1970-01-01t00:00:00.123456789z", 123),
            ("2024-02-29T12:00:00Z", 1_709_208_000_000),
        ] {
            assert_eq!(parse(text), Some(wanted), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "0",
            "1970-01-01",
            "1970-01-01T00:00:00",
            "1969-12-31T23:59:59Z",
            "2023-02-29T00:00:00Z",
            "1970-13-01T00:00:00Z",
            "1970-00-01T00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00.1234567890Z",
            "1970-01-01T00:00:00+1:00",
            "1970-01-01T00:00:00+00:60",
            "1970-01-01T00:00:00é:00",
            "+970-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
