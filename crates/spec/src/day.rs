//! Days and months as bills have them: by the calendar, in UTC.

use crate::Timestamp;
use std::{fmt, str::FromStr};

const MILLISECONDS: u64 = 86_400_000;

/// A day (UTC), counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub u64);

/// A span of time: from its first moment on, up to and without its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Span {
    pub since: Timestamp,
    pub until: Timestamp,
}

/// What is no day or month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadDay;

impl fmt::Display for BadDay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("this is no day such as 2026-01-31, nor a month such as 2026-01")
    }
}

impl std::error::Error for BadDay {}

impl Day {
    /// The day of a moment.
    pub fn of(moment: Timestamp) -> Day {
        Day(moment.0 / MILLISECONDS)
    }

    /// Its first moment.
    pub fn start(self) -> Timestamp {
        Timestamp(self.0.saturating_mul(MILLISECONDS))
    }

    /// The one after it.
    pub fn next(self) -> Day {
        Day(self.0.saturating_add(1))
    }

    /// All of it.
    pub fn span(self) -> Span {
        Span {
            since: self.start(),
            until: self.next().start(),
        }
    }

    fn of_date(year: u64, month: u64, day: u64) -> Option<Day> {
        if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day)
        {
            return None;
        }
        // Years begin in March here, so that the odd day is their last.
        let (years, months) = if month > 2 {
            (year, month - 3)
        } else {
            (year - 1, month + 9)
        };
        let days =
            years * 365 + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day - 1;
        Some(Day(days - 719_468))
    }
}

impl Span {
    /// A whole month, such as 2026-11.
    pub fn month(text: &str) -> Result<Span, BadDay> {
        let first: Day = format!("{text}-01").parse()?;
        // Every month has 28 days, and the next begins within 4 more.
        let next = (28..=31)
            .map(|days| Day(first.0 + days))
            .find(|day| day.to_string().ends_with("-01"));
        let next = next.ok_or(BadDay)?;
        Ok(Span {
            since: first.start(),
            until: next.start(),
        })
    }
}

impl FromStr for Day {
    type Err = BadDay;

    fn from_str(text: &str) -> Result<Day, BadDay> {
        let mut parts = text.splitn(3, '-').map(|part| part.parse::<u64>().ok());
        let mut next = || parts.next().flatten().ok_or(BadDay);
        let day = Day::of_date(next()?, next()?, next()?).ok_or(BadDay)?;
        // The 31st of February is written back as another day.
        if day.to_string() == text {
            Ok(day)
        } else {
            Err(BadDay)
        }
    }
}

impl fmt::Display for Day {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = self.start().to_string();
        out.write_str(moment.split_once('T').map_or(&*moment, |(day, _)| day))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_read_exactly_or_refused() {
        let start = |text: &str| text.parse::<Day>().map(|day| day.start().0);
        assert_eq!(start("1970-01-01"), Ok(0));
        assert_eq!(start("2024-02-29"), Ok(1_709_164_800_000));
        for bad in [
            "",
            "2026",
            "2026-13-01",
            "2026-02-29",
            "2026-2-3",
            "26-02-03",
            "2026-01-01T00:00",
            "1969-12-31",
            "+2026-01-01",
            "2026-01-+1",
        ] {
            assert!(start(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_day_is_written_as_it_is_read() {
        for day in (0..80_000).step_by(7).map(Day) {
            assert_eq!(day.to_string().parse(), Ok(day));
            assert_eq!(
                (
                    Day::of(day.start()),
                    Day::of(Timestamp(day.next().start().0 - 1))
                ),
                (day, day)
            );
        }
    }

    #[test]
    fn a_month_has_the_days_it_has() {
        let days =
            |text: &str| Span::month(text).map(|span| (span.until.0 - span.since.0) / MILLISECONDS);
        assert_eq!(
            [
                days("2026-11"),
                days("2026-12"),
                days("2024-02"),
                days("2026-02")
            ],
            [Ok(30), Ok(31), Ok(29), Ok(28)]
        );
        assert!(
            ["2026-13", "2026", "2026-1", "2026-01-01", ""]
                .map(days)
                .iter()
                .all(Result::is_err)
        );
    }
}
