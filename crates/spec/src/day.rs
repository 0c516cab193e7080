//! Calendar days and months in UTC, the periods of bills.

use crate::Timestamp;
use std::{fmt, str::FromStr};

const MS_PER_DAY: u64 = 86_400_000;

/// A day (UTC), counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub u64);

/// A period of time that includes its start and excludes its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The start.
    pub since: Timestamp,
    /// The end.
    pub until: Timestamp,
}

/// A text that is not a day or a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadDay;

impl fmt::Display for BadDay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("this is no day such as 2026-01-31, nor a month such as 2026-01")
    }
}

impl std::error::Error for BadDay {}

impl Day {
    /// The day of a point in time.
    pub fn of(moment: Timestamp) -> Day {
        Day(moment.0 / MS_PER_DAY)
    }

    /// Its first moment.
    pub fn start(self) -> Timestamp {
        Timestamp(self.0.saturating_mul(MS_PER_DAY))
    }

    /// The next day.
    pub fn next(self) -> Day {
        Day(self.0.saturating_add(1))
    }

    /// The whole day.
    pub fn period(self) -> Period {
        Period {
            since: self.start(),
            until: self.next().start(),
        }
    }

    fn of_date(year: u64, month: u64, day: u64) -> Option<Day> {
        if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day)
        {
            return None;
        }
        // Counting years from March puts the leap day at their end.
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

impl Period {
    /// A whole month, such as 2026-11.
    pub fn month(text: &str) -> Result<Period, BadDay> {
        let first: Day = format!("{text}-01").parse()?;
        // Every month has 28 days, and the next begins within 4 more.
        let next = (28..=31)
            .map(|days| Day(first.0 + days))
            .find(|day| day.to_string().ends_with("-01"));
        let next = next.ok_or(BadDay)?;
        Ok(Period {
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
        // A date such as 31 February converts back to another one.
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
        let days = |text: &str| {
            Period::month(text).map(|month| (month.until.0 - month.since.0) / MS_PER_DAY)
        };
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
