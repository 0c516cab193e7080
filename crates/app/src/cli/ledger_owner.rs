//! The one who owns the money of a state folder: a server, a worker, or the doors by themselves. What is spent by tenant and day
//! cannot be known by two.

use super::message::{self, Failure, Message};
use crate::config::Config;
use doors::{
    budget::BudgetManager,
    ledger::{self, Ledger, OWNER_SEGMENT},
};
use engine::usage::{LEDGER, UsageError, UsageProjection, begin_day};
use spec::{Day, ErrorCode};
use std::{io, sync::Arc};

/// Takes the ledger over, and writes to that of today.
pub(super) fn open_budgets(config: &Config) -> Result<BudgetManager, Failure> {
    let open_budgets = BudgetManager::new(Arc::new(open(config)?));
    let today = Day::of(engine::now());
    begin_day(&open_budgets, &config.state, config.doors.durability, today)
        .map_err(|error| cannot_own(&error))?;
    Ok(open_budgets)
}

/// Takes the ledger over, with what was spent today. What owners that died have not settled counts in full.
pub(super) fn open(config: &Config) -> Result<Ledger, Failure> {
    let (folder, today) = (config.state.join(LEDGER), Day::of(engine::now()));
    let usage = UsageProjection::open(&config.state)?;
    check_complete(&usage, today)?;
    let opened = Ledger::open(&folder, OWNER_SEGMENT, config.doors.durability);
    let mut ledger = opened.map_err(|error| cannot_own(&error))?;
    // Behind that lock nobody writes to those of days. What nobody settled there is counted by this, and is not found again below.
    let past = usage.spent_today(today).map_err(|error| match error {
        UsageError::Ledger { source, .. } => cannot_own(&source),
        UsageError::Database(_) => error.into(),
    })?;
    ledger.add_past_usage(past, today);
    let recovered = ledger::recover(&folder).map_err(|error| cannot_own(&error))?;
    let mut notes: Vec<_> = recovered
        .problems
        .iter()
        .map(|problem| Message::Note(problem.to_string()))
        .collect();
    let (own, lost) = (
        ledger.recovered_usage(),
        ledger.recovered_usage().lost + recovered.lost,
    );
    if lost > 0 {
        let money = own.lost_money.plus(recovered.lost_money);
        notes.push(Message::Note(format!(
            "calls whose end nobody saw: {lost}; they count at what was reserved for them, {money} USD"
        )));
    }
    message::print(&notes);
    Ok(ledger)
}

fn cannot_own(error: &io::Error) -> Failure {
    Failure {
        code: ErrorCode::StartFailed,
        message: format!("cannot own the ledger, without which nothing may be spent: {error}"),
        hint: owner_hint(error),
    }
}

/// Refuses a ledger of which something was cut off: without it, what tenants spent today would be theirs again. The database
/// knows how far it went.
fn check_complete(usage: &UsageProjection, today: Day) -> Result<(), Failure> {
    let problem = match usage.check(today) {
        Ok(problem) => problem,
        // Whoever opens it says what is wrong.
        Err(UsageError::Ledger { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(problem) = problem else {
        return Ok(());
    };
    Err(Failure {
        code: ErrorCode::StartFailed,
        message: format!("the ledger was changed behind our back, and what was spent is not known: {problem}"),
        hint: "put the file back from a backup; or `airlock usage --set-aside` puts what is left of it aside, and what tenants spent in it today is theirs again"
            .to_owned(),
    })
}

fn owner_hint(error: &io::Error) -> String {
    match error.get_ref().is_some_and(|cause| cause.is::<ledger::Problem>()) {
        true => "`airlock usage --verify` names the damaged lines; once `airlock usage --set-aside` has set the ledger aside it starts, and counts what tenants spent today from nothing again"
            .into(),
        false => "one process owns it: stop the other `airlock serve`, `airlock proxy` or `airlock worker sam` of this state folder, or give this one its own with --state"
            .into(),
    }
}
