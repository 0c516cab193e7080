//! Sizes, durations and CPU shares, with the texts in which users write them.

use std::{fmt, str::FromStr, time::Duration};

/// A number of bytes, written `64M`, `2G`, `512KiB` or `1000`. All multiples are binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// A duration, written `30s`, `500ms`, `1m30s`, `2h` or `7d`. A number without a unit is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub Duration);

/// A share of CPUs in thousandths, written `1.5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus(pub u32);

/// A text that is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadQuantity {
    /// The text, shortened.
    pub given: String,
    /// The expected form, with examples.
    pub expected: &'static str,
}

const SIZE: &str = "a size such as 64M, 2G or 4096";
const TIME: &str = "a time such as 30s, 500ms, 1m30s, 2h or 7d";
const CPUS: &str = "a number of CPUs from 0.01 to 1024, such as 1.5";
const AT_MOST_TEN_YEARS: &str = "a time of ten years (87600h) at most";

fn bad(given: &str, expected: &'static str) -> BadQuantity {
    BadQuantity {
        given: given.chars().take(40).collect(),
        expected,
    }
}

/// Splits off leading ASCII digits.
fn digits(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

impl FromStr for Size {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let parse = || {
            let (number, unit) = digits(text)?;
            let shift = match unit.to_ascii_lowercase().as_str() {
                "" | "b" => 0,
                "k" | "kb" | "kib" => 10,
                "m" | "mb" | "mib" => 20,
                "g" | "gb" | "gib" => 30,
                "t" | "tb" | "tib" => 40,
                _ => return None,
            };
            number
                .checked_mul(1 << shift)
                .filter(|bytes| (1..=1 << 60).contains(bytes))
                .map(Size)
        };
        parse().ok_or_else(|| bad(text, SIZE))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
        match units
            .iter()
            .find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift)
        {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Time {
    /// Ten years. A longer duration is a typing error, and sums of two stay far from overflow.
    pub const MAX: Time = Time(Duration::from_secs(315_360_000));
}

impl FromStr for Time {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let parse = || {
            let mut total = Duration::ZERO;
            let mut rest = text;
            loop {
                let (number, tail) = digits(rest)?;
                let end = tail
                    .find(|c: char| c.is_ascii_digit())
                    .unwrap_or(tail.len());
                let part = match &tail[..end] {
                    "ms" => Duration::from_millis(number),
                    "s" => Duration::from_secs(number),
                    "" if rest == text => Duration::from_secs(number),
                    "m" => Duration::from_secs(number.checked_mul(60)?),
                    "h" => Duration::from_secs(number.checked_mul(3600)?),
                    "d" => Duration::from_secs(number.checked_mul(86_400)?),
                    _ => return None,
                };
                total = total.checked_add(part)?;
                rest = &tail[end..];
                if rest.is_empty() {
                    return (!total.is_zero()).then_some(Time(total));
                }
            }
        };
        match parse() {
            Some(time) if time > Time::MAX => Err(bad(text, AT_MOST_TEN_YEARS)),
            Some(time) => Ok(time),
            None => Err(bad(text, TIME)),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        match (ms % 1000, ms / 1000) {
            (0, s) if s % 3600 == 0 && s > 0 => write!(f, "{}h", s / 3600),
            (0, s) if s % 60 == 0 && s > 0 => write!(f, "{}m", s / 60),
            (0, s) => write!(f, "{s}s"),
            _ => write!(f, "{ms}ms"),
        }
    }
}

impl FromStr for Cpus {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let parse = || {
            let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
            let plain =
                |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            if !plain(whole) || !plain(fraction) || fraction.len() > 3 {
                return None;
            }
            let thousandths: u32 = format!("{fraction:0<3}").parse().ok()?;
            let all = whole
                .parse::<u32>()
                .ok()?
                .checked_mul(1000)?
                .checked_add(thousandths)?;
            (10..=1_024_000).contains(&all).then_some(Cpus(all))
        };
        parse().ok_or_else(|| bad(text, CPUS))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl fmt::Display for BadQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not {}",
            self.given.escape_debug(),
            self.expected
        )
    }
}

impl std::error::Error for BadQuantity {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("64M", 64 << 20),
            ("2g", 2 << 30),
            ("512KiB", 512 << 10),
            ("4096", 4096),
            ("7b", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in [
            "",
            "M",
            "0",
            "-1",
            "+1",
            "1.5G",
            "64 M",
            "64X",
            "99999999999T",
            "１M",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_read_as_people_write_them() {
        for (text, ms) in [
            ("30s", 30_000),
            ("30", 30_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("90d", 7_776_000_000),
            ("1d12h", 129_600_000),
        ] {
            assert_eq!(text.parse(), Ok(Time(Duration::from_millis(ms))), "{text}");
        }
        for text in [
            "",
            "s",
            "0s",
            "1w",
            "1.5s",
            "-3s",
            "1m30",
            "99999999999h",
            "1s ",
        ] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_of_cpus_have_three_decimals() {
        for (text, thousandths) in [("1.5", 1500), ("2", 2000), ("0.01", 10), ("0.125", 125)] {
            assert_eq!(text.parse(), Ok(Cpus(thousandths)), "{text}");
        }
        for text in [
            "", ".", "1.", ".5", "0", "0.001", "1.2345", "-1", "1e3", "2000",
        ] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(bytes in 1u64..=1 << 60, ms in 1u64..=315_360_000_000, share in 10u32..=1_024_000) {
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
            prop_assert_eq!(Time(Duration::from_millis(ms)).to_string().parse(), Ok(Time(Duration::from_millis(ms))));
            prop_assert_eq!(Cpus(share).to_string().parse(), Ok(Cpus(share)));
        }

        #[test]
        fn no_text_makes_a_parser_panic(text in ".*") {
            // Each answers; which way is the business of the other tests.
            prop_assert!(text.parse::<Size>().map_or(true, |size| size.0 >= 1));
            prop_assert!(text.parse::<Time>().map_or(true, |time| !time.0.is_zero()));
            prop_assert!(text.parse::<Cpus>().map_or(true, |cpus| cpus.0 >= 10));
        }
    }
}
