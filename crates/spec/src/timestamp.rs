//! Points in time, and their text.

use std::{fmt, str::FromStr};

/// A point in time, in milliseconds since 1970. Its text is RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0 % 86_400_000;
        let (year, month, day) = civil_date((self.0 / 86_400_000) as i64);
        let hour = ms / 3_600_000;
        let minute = ms / 60_000 % 60;
        let second = ms / 1000 % 60;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
            ms % 1000
        )
    }
}

/// A text that is not a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTimestamp;

impl fmt::Display for BadTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is not a moment such as 2030-01-31T23:59:59Z, in UTC")
    }
}

/// Reads RFC 3339 in UTC, from 1970 on. Digits below a millisecond are dropped.
impl FromStr for Timestamp {
    type Err = BadTimestamp;

    fn from_str(text: &str) -> Result<Timestamp, BadTimestamp> {
        parse_utc(text).ok_or(BadTimestamp)
    }
}

fn parse_utc(text: &str) -> Option<Timestamp> {
    let (body, fraction) = match text.strip_suffix('Z')?.split_once('.') {
        Some((body, fraction)) if (1..=9).contains(&fraction.len()) => (body, fraction),
        Some(_) => return None,
        None => (text.strip_suffix('Z')?, "0"),
    };
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    let bytes = body.as_bytes();
    let is_digit = |(at, byte): (usize, &u8)| {
        separators.iter().any(|(place, _)| *place == at) || byte.is_ascii_digit()
    };
    let is_shaped = bytes.len() == 19
        && bytes.iter().enumerate().all(is_digit)
        && separators.iter().all(|(at, byte)| bytes[*at] == *byte)
        && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let number = |from: usize, to: usize| body.get(from..to)?.parse::<u64>().ok();
    if !is_shaped {
        return None;
    }
    let hour = number(11, 13)?;
    let minute = number(14, 16)?;
    let second = number(17, 19)?;
    let date = (
        number(0, 4)? as i64,
        number(5, 7)? as i64,
        number(8, 10)? as i64,
    );
    let days = days_since_1970(date.0, date.1, date.2);
    // A date such as 30 February converts back to another one.
    let is_real = civil_date(days) == date && hour < 24 && minute < 60 && second < 60;
    let thousandths: u64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    let seconds = u64::try_from(days).ok()? * 86_400 + hour * 3600 + minute * 60 + second;
    is_real.then_some(Timestamp(seconds * 1000 + thousandths))
}

/// Days from 1970 to a date, the inverse of [`civil_date`].
pub(crate) fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of a number of days since 1970: proleptic Gregorian, counted in eras of 400
/// years that start on 1 March.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_rfc_3339() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_001, "2000-02-29T00:00:00.001Z"),
            (1_794_668_399_999, "2026-11-14T14:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp(ms).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(ms)));
        }
    }

    #[test]
    fn what_is_no_moment_is_not_taken_for_one() {
        assert_eq!(
            "2030-01-02T03:04:05Z".parse(),
            Ok(Timestamp(1_893_553_445_000))
        );
        assert_eq!(
            "2030-01-02T03:04:05.6789Z".parse(),
            Ok(Timestamp(1_893_553_445_678))
        );
        for text in [
            "",
            "Z",
            "2030-01-02",
            "2030-01-02T03:04:05",
            "2030-01-02T03:04:05+00:00",
            "2030-02-30T00:00:00Z",
            "2030-13-01T00:00:00Z",
            "2030-00-01T00:00:00Z",
            "2030-01-01T24:00:00Z",
            "2030-01-01T00:00:60Z",
            "1969-12-31T23:59:59Z",
            "2030-01-01T00:00:00.Z",
            "2030-01-01T00:00:00.1234567890Z",
            "+030-01-01T00:00:00Z",
            "2030-01-01t00:00:00Z",
            "20３0-01-01T00:00:0Z",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(BadTimestamp), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_moment_is_read_as_it_is_shown(ms in 0u64..253_402_300_800_000, text in ".{0,40}") {
            proptest::prop_assert_eq!(Timestamp(ms).to_string().parse(), Ok(Timestamp(ms)));
            // No text panics.
            _ = text.parse::<Timestamp>();
        }
    }
}
