//! Money in whole billionths of a dollar. Floating point occurs only where a result is printed.

use std::{fmt, iter::Sum, str::FromStr};

/// An amount in nano-dollars.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct Money(pub u64);

/// A text that is not an amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMoney(String);

/// Tokens of one kind in one call; see [`Money::MAX_PER_CALL`].
pub const MAX_TOKENS_PER_CALL: u64 = 1_000_000_000;

const NANOS: u64 = 1_000_000_000;
const DIGITS: usize = 9;

impl Money {
    /// Zero.
    pub const ZERO: Money = Money(0);
    /// The highest cost of one call. It keeps sums from overflowing when a provider reports absurd
    /// numbers.
    pub const MAX_PER_CALL: Money = Money(10_000 * NANOS);
    /// The highest amount.
    pub const MAX: Money = Money(u64::MAX);

    /// The sum, saturating, so that a bill never wraps around to a small amount.
    #[must_use]
    pub fn plus(self, other: Money) -> Money {
        Money(self.0.saturating_add(other.0))
    }

    /// The difference, not below zero.
    #[must_use]
    pub fn minus(self, other: Money) -> Money {
        Money(self.0.saturating_sub(other.0))
    }

    /// Dollars for a printed result, exact to 15 digits.
    pub fn dollars(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Money>>(amounts: I) -> Money {
        amounts.fold(Money::ZERO, Money::plus)
    }
}

impl fmt::Display for Money {
    /// Dollars with at least two decimals: `0.50`, `0.000003`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:09}", self.0 % NANOS);
        let shown = decimals.trim_end_matches('0').len().max(2);
        write!(out, "{}.{}", self.0 / NANOS, &decimals[..shown])
    }
}

impl fmt::Display for BadMoney {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "`{}` is not an amount of dollars",
            self.0.escape_debug()
        )
    }
}

impl std::error::Error for BadMoney {}

impl FromStr for Money {
    type Err = BadMoney;

    /// Reads decimal dollars with up to nine decimals, such as `0.50`. An amount that is not exact
    /// is refused.
    fn from_str(text: &str) -> Result<Money, BadMoney> {
        let bad = || BadMoney(text.chars().take(40).collect());
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > DIGITS {
            return Err(bad());
        }
        let whole: u64 = whole.parse().map_err(|_| bad())?;
        let nanos: u64 = format!("{decimals:0<DIGITS$}").parse().map_err(|_| bad())?;
        whole
            .checked_mul(NANOS)
            .and_then(|whole| whole.checked_add(nanos))
            .map(Money)
            .ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dollars_are_read_exactly_or_refused() {
        let read = |text: &str| text.parse::<Money>().ok().map(|money| money.0);
        assert_eq!(read("0.50"), Some(500_000_000));
        assert_eq!(read("2"), Some(2_000_000_000));
        assert_eq!(read("0.000000001"), Some(1));
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "+1",
            "1e3",
            "0.0000000001",
            "99999999999",
            "1,5",
            "NaN",
            " 1",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_as_the_same(nanos: u64) {
            prop_assert_eq!(Money(nanos).to_string().parse::<Money>().unwrap(), Money(nanos));
        }
    }
}
