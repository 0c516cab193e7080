//! Moments as callers write them: RFC 3339.

use crate::Timestamp;

impl Timestamp {
    /// A moment of this era; nothing if it is none. What is finer than a millisecond is cut.
    pub fn read(text: &str) -> Option<Timestamp> {
        read(text).map(Timestamp)
    }
}

fn read(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let at =
        |index: usize, wanted: &[u8]| bytes.get(index).is_some_and(|byte| wanted.contains(byte));
    let part = |from: usize, to: usize| digits(bytes.get(from..to)?);
    if !(at(4, b"-") && at(7, b"-") && at(10, b"Tt ") && at(13, b":") && at(16, b":")) {
        return None;
    }
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute, second) = (part(11, 13)?, part(14, 16)?, part(17, 19)?);
    let (milliseconds, zone) = fraction(&bytes[19..])?;
    let offset = offset(zone)?;
    let in_range = (1..=12).contains(&month)
        && (1..=days_of(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    let all = in_range.then_some(seconds.checked_mul(1000)? + milliseconds)?;
    u64::try_from(all).ok()
}

fn digits(text: &[u8]) -> Option<i64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| i64::from(byte - b'0'));
    text.iter()
        .try_fold(0, |number, byte| Some(number * 10 + digit(byte)?))
}

/// Milliseconds, and what stands behind them.
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

/// In seconds, to the east.
fn offset(text: &[u8]) -> Option<i64> {
    match text {
        b"Z" | b"z" => Some(0),
        // A plus sign that was not encoded arrives as a space.
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

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days since 1970. Years begin in March, so that the odd day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_write_we_read() {
        let mut at = 0_u64;
        while at < 4_200_000_000_000 {
            assert_eq!(
                read(&Timestamp(at).to_string()),
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
            assert_eq!(read(text), Some(wanted), "{text}");
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
            assert_eq!(read(text), None, "{text}");
        }
    }
}
