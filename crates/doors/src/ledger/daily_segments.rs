//! Daily segments of a server's ledger, so that old ones can be removed and a start need not read the
//! whole history.
//!
//! ```text
//! owner               its lock is the ownership of the budget; holds usage from before there were daily segments
//! owner-2026-11-16    calls that began on a day (UTC); complete when the last of them is settled
//! ```

use super::{
    recovery::{self, PastUsage, RecoveredUsage},
    segment_lock,
};
use journal::JournalDir;
use spec::{Day, Money};
use std::{io, path::Path};

/// The segment of the process that owns the budget of a state folder.
pub const OWNER_SEGMENT: &str = "owner";
/// File times come from a coarser clock than the times of records, and possibly from another
/// machine.
const CLOCK_MARGIN_MS: u64 = 3_600_000;

/// The segment of a day. Names sort by day.
pub fn daily_segment(day: Day) -> String {
    format!("{OWNER_SEGMENT}-{day}")
}

/// Whether a segment is a daily one.
pub fn is_daily_segment(name: &str) -> bool {
    let day = name
        .strip_prefix(OWNER_SEGMENT)
        .and_then(|rest| rest.strip_prefix('-'));
    day.is_some_and(|day| day.parse::<Day>().is_ok())
}

/// Whether a daily segment may contain today's usage: it was written since midnight, or in the
/// future (setting a clock back must not free budget), or it may have open calls.
pub fn may_hold_usage_of(folder: &Path, name: &str, today: Day) -> io::Result<bool> {
    let Some(folder) = recovery::open_existing(folder)? else {
        return Ok(false);
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    segment_may_hold_usage_of(&folder, name, &parts, today)
}

fn segment_may_hold_usage_of(
    folder: &JournalDir,
    name: &str,
    parts: &[u32],
    today: Day,
) -> io::Result<bool> {
    let Some(last) = parts.last() else {
        return Ok(false);
    };
    let since = today.start().0.saturating_sub(CLOCK_MARGIN_MS);
    let is_young = *name >= *daily_segment(today) || folder.changed_ms(name, *last)? >= since;
    Ok(is_young || !recovery::is_cleanly_closed(folder, name, parts)?)
}

/// Today's usage in these segments. Reservations that are still open are settled as lost, as by
/// `recover`, and counted. No segment may have a live owner.
pub fn recover_past_usage(
    folder: &Path,
    names: &[String],
    today: Day,
) -> io::Result<RecoveredUsage> {
    let mut past = RecoveredUsage::default();
    let Some(opened) = recovery::open_existing(folder)? else {
        return Ok(past);
    };
    for (name, parts) in opened
        .segments()?
        .iter()
        .filter(|(name, _)| names.contains(name))
    {
        if !segment_may_hold_usage_of(&opened, name, parts, today)? {
            continue;
        }
        let recovered = if recovery::is_cleanly_closed(&opened, name, parts)? {
            recovery::replay(&opened, name, parts)
                .map_err(io::Error::other)?
                .recovered
        } else {
            // Closed when it is dropped, so that it is not recovered again.
            let lock = segment_lock(&opened, name)?;
            let mut ledger = recovery::take_over(JournalDir::open(folder)?, name, lock)?;
            std::mem::take(&mut ledger.recovered)
        };
        past.join(recovered, today);
    }
    Ok(past)
}

impl RecoveredUsage {
    /// Adds the usage of tenants in other segments. Sessions and runs end with their segment.
    pub(super) fn join(&mut self, other: RecoveredUsage, today: Day) {
        for (name, past) in other.tenants {
            self.tenants.entry(name).or_default().join(&past, today);
        }
        self.lost += other.lost;
        self.lost_money = self.lost_money.plus(other.lost_money);
    }
}

impl PastUsage {
    /// Usage of today, or of a day in the future, is added up.
    fn join(&mut self, other: &PastUsage, today: Day) {
        let of_today = |past: &PastUsage| {
            if past.day >= today.0 {
                past.day_money
            } else {
                Money::ZERO
            }
        };
        let day_money = of_today(self).plus(of_today(other));
        let day = self.day.max(other.day);
        self.add(other);
        self.day = day;
        self.day_money = day_money;
    }
}

#[cfg(test)]
#[path = "daily_segments_tests.rs"]
mod tests;
