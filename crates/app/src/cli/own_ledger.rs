//! The one who owns the money of a state folder: a server, or the doors by themselves. What is spent by tenant and day
//! cannot be known by two.

use super::message::{self, Failure, Line};
use crate::config::Config;
use doors::ledger::{self, Ledger};
use spec::ErrorCode;
use std::{io, path::Path};

/// Takes the ledger over. What owners that died have not settled counts in full.
pub(super) fn open(config: &Config) -> Result<Ledger, Failure> {
    let folder = config.state.join("ledger");
    let opened = Ledger::open(&folder, "owner", config.doors.durability).and_then(|ledger| {
        let recovered = ledger::recover(&folder)?;
        let mut notes: Vec<_> =
            recovered.problems.iter().map(|problem| Line::Note(problem.to_string())).collect();
        let (own, lost) = (ledger.found(), ledger.found().lost + recovered.lost);
        if lost > 0 {
            let money = own.lost_money.plus(recovered.lost_money);
            notes.push(Line::Note(format!(
                "calls whose end nobody saw: {lost}; they count at what was reserved for them, {money} USD"
            )));
        }
        message::say(&notes);
        Ok(ledger)
    });
    opened.map_err(|error| Failure {
        code: ErrorCode::StartFailed,
        message: format!("cannot own the ledger, without which nothing may be spent: {error}"),
        hint: what_to_do(&error, &folder),
    })
}

fn what_to_do(error: &io::Error, ledger: &Path) -> String {
    match error.get_ref().is_some_and(|cause| cause.is::<ledger::Problem>()) {
        true => format!(
            "`airlock usage --verify` names the damaged lines; with `{}/owner*.jsonl` set aside it starts, and counts \
             what tenants spent today from nothing again",
            ledger.display()
        ),
        false => "one process owns it: stop the other `airlock serve` or `airlock proxy` of this state folder, or give this one its own with --state"
            .into(),
    }
}
