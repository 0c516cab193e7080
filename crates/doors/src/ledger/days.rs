//! The ledger of a server, day by day: so that what is over can be taken away, and a start need not read all that there ever was.
//!
//! ```text
//! owner               whose it is (by its lock), and what was spent before there were days
//! owner-2026-11-16    what was begun on a day (UTC); over when the last call that began in it is settled
//! ```

use super::{
    recover::{self, Found, Past},
    segment_lock,
};
use journal::Folder;
use spec::{Day, Money};
use std::{io, path::Path};

/// The segment of whoever owns the money of a state folder.
pub const OWNER: &str = "owner";
/// The time of a file is that of a coarser clock than the times of its lines, and another machine may keep it.
const MARGIN_MS: u64 = 3_600_000;

/// The segment of a day. Later days have greater names.
pub fn of_day(day: Day) -> String {
    format!("{OWNER}-{day}")
}

/// Whether a segment is that of a day.
pub fn is_of_day(name: &str) -> bool {
    let day = name
        .strip_prefix(OWNER)
        .and_then(|rest| rest.strip_prefix('-'));
    day.is_some_and(|day| day.parse::<Day>().is_ok())
}

/// Whether the segment of a day may say what was spent today: it was written to since midnight, or at a time that is yet to
/// come (a clock that was put back gives nothing back), or calls of it may be open.
pub fn tells_of(folder: &Path, name: &str, today: Day) -> io::Result<bool> {
    let Some(folder) = recover::existing(folder)? else {
        return Ok(false);
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    tells(&folder, name, &parts, today)
}

fn tells(folder: &Folder, name: &str, parts: &[u32], today: Day) -> io::Result<bool> {
    let Some(last) = parts.last() else {
        return Ok(false);
    };
    let since = today.start().0.saturating_sub(MARGIN_MS);
    let is_young = *name >= *of_day(today) || folder.changed_ms(name, *last)? >= since;
    Ok(is_young || !recover::ends_in_peace(folder, name, parts)?)
}

/// What these segments say of today. What is open in them nobody will settle: it is lost now, as by `recover`, and counted
/// here. None may have a living owner.
pub fn past(folder: &Path, names: &[String], today: Day) -> io::Result<Found> {
    let mut past = Found::default();
    let Some(opened) = recover::existing(folder)? else {
        return Ok(past);
    };
    for (name, parts) in opened
        .segments()?
        .iter()
        .filter(|(name, _)| names.contains(name))
    {
        if !tells(&opened, name, parts, today)? {
            continue;
        }
        let found = match recover::ends_in_peace(&opened, name, parts)? {
            true => {
                recover::replay(&opened, name, parts)
                    .map_err(io::Error::other)?
                    .found
            }
            // Closed when it is dropped, so that it is not lost again.
            false => {
                let lock = segment_lock(&opened, name)?;
                std::mem::take(&mut recover::take(Folder::open(folder)?, name, lock)?.found)
            }
        };
        past.join(found, today);
    }
    Ok(past)
}

impl Found {
    /// Adds what tenants spent elsewhere. Sessions and runs are over with the segment in which they were.
    pub(super) fn join(&mut self, other: Found, today: Day) {
        for (name, past) in other.tenants {
            self.tenants.entry(name).or_default().join(&past, today);
        }
        self.lost += other.lost;
        self.lost_money = self.lost_money.plus(other.lost_money);
    }
}

impl Past {
    /// What is of today, or of a day that is yet to come, counts together.
    fn join(&mut self, other: &Past, today: Day) {
        let of_today = |past: &Past| {
            if past.day >= today.0 {
                past.day_money
            } else {
                Money::ZERO
            }
        };
        let day_money = of_today(self).plus(of_today(other));
        let day = self.day.max(other.day);
        self.add(other);
        (self.day, self.day_money) = (day, day_money);
    }
}

#[cfg(test)]
#[path = "days_tests.rs"]
mod tests;
