//! The one who owns the money of a state folder: a server, or the doors by themselves. What is spent by tenant and day
//! cannot be known by two.

use super::message::{self, Failure, Line};
use crate::config::Config;
use doors::ledger::{self, Ledger};
use engine::usage::{Books, LEDGER, OWNER, UsageError};
use spec::ErrorCode;
use std::{io, path::Path};

/// Takes the ledger over. What owners that died have not settled counts in full.
pub(super) fn open(config: &Config) -> Result<Ledger, Failure> {
    let folder = config.state.join(LEDGER);
    is_whole(&config.state)?;
    let opened = Ledger::open(&folder, OWNER, config.doors.durability).and_then(|ledger| {
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
        hint: what_to_do(&error),
    })
}

/// Refuses a ledger of which something was cut off: without it, what tenants spent today would be theirs again. The database
/// knows how far it went.
fn is_whole(state: &Path) -> Result<(), Failure> {
    let problem = match Books::open(state)?.check(OWNER) {
        Ok(problem) => problem,
        // Whoever opens it says what is wrong.
        Err(UsageError::Ledger { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(problem) = problem else { return Ok(()) };
    Err(Failure {
        code: ErrorCode::StartFailed,
        message: format!("the ledger was changed behind our back, and what was spent is not known: {problem}"),
        hint: "put the file back from a backup; or `airlock usage --set-aside` puts what is left of it aside, and tenants spend their day from nothing again"
            .to_owned(),
    })
}

fn what_to_do(error: &io::Error) -> String {
    match error.get_ref().is_some_and(|cause| cause.is::<ledger::Problem>()) {
        true => "`airlock usage --verify` names the damaged lines; once `airlock usage --set-aside` has set the ledger aside it starts, and counts what tenants spent today from nothing again"
            .into(),
        false => "one process owns it: stop the other `airlock serve` or `airlock proxy` of this state folder, or give this one its own with --state"
            .into(),
    }
}
