//! Opens the ledger of a state folder as its only owner: a server, a worker or a standalone proxy.
//! Spending per tenant and day can be counted by one process only.

use super::message::{self, Failure, Message};
use crate::config::Config;
use doors::{
    budget::BudgetManager,
    ledger::{self, Ledger, OWNER_SEGMENT},
};
use engine::usage::{LEDGER, UsageError, UsageProjection, begin_day};
use spec::{Day, ErrorCode};
use std::{io, sync::Arc};

/// Opens the budgets over today's segment of the ledger.
pub(super) fn open_budgets(config: &Config) -> Result<BudgetManager, Failure> {
    let open_budgets = BudgetManager::new(Arc::new(open(config)?));
    let today = Day::of(engine::now());
    begin_day(&open_budgets, &config.state, config.doors.durability, today)
        .map_err(|error| cannot_own(&error))?;
    Ok(open_budgets)
}

/// Opens the ledger with what was spent today. Reservations that a dead owner left open count in
/// full.
pub(super) fn open(config: &Config) -> Result<Ledger, Failure> {
    let folder = config.state.join(LEDGER);
    let today = Day::of(engine::now());
    let usage = UsageProjection::open(&config.state)?;
    check_complete(&usage, today)?;
    let opened = Ledger::open(&folder, OWNER_SEGMENT, config.doors.durability);
    let mut ledger = opened.map_err(|error| cannot_own(&error))?;
    // The lock on the owner's segment also protects the daily segments. Open reservations in them
    // are counted here, and must not be counted again by `recover` below.
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
    let own = ledger.recovered_usage();
    let lost = ledger.recovered_usage().lost + recovered.lost;
    if lost > 0 {
        let money = own.lost_money.plus(recovered.lost_money);
        notes.push(Message::Note(format!(
            "calls without a recorded end: {lost}; they count with their reservations, {money} USD"
        )));
    }
    message::print(&notes);
    Ok(ledger)
}

fn cannot_own(error: &io::Error) -> Failure {
    Failure {
        code: ErrorCode::StartFailed,
        message: format!("cannot lock the ledger, without which no model may be called: {error}"),
        hint: owner_hint(error),
    }
}

/// Refuses a truncated ledger: without the missing part, tenants could spend today's budget again.
/// The database knows how far the ledger went.
fn check_complete(usage: &UsageProjection, today: Day) -> Result<(), Failure> {
    let problem = match usage.check(today) {
        Ok(problem) => problem,
        // `Ledger::open` reports an unreadable ledger with more detail.
        Err(UsageError::Ledger { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(problem) = problem else {
        return Ok(());
    };
    Err(Failure {
        code: ErrorCode::StartFailed,
        message: format!("the ledger was changed by something else than Airlock, so that today's spending is unknown: {problem}"),
        hint: "restore the file from a backup; or move the rest of it away with `airlock usage --set-aside`: tenants can then spend again what they spent in it today"
            .to_owned(),
    })
}

fn owner_hint(error: &io::Error) -> String {
    if error
        .get_ref()
        .is_some_and(|cause| cause.is::<ledger::JournalProblem>())
    {
        "`airlock usage --verify` names the damaged lines; after `airlock usage --set-aside` it starts, and counts today's spending of tenants from zero"
            .into()
    } else {
        "another process uses it: stop the other `airlock serve`, `airlock proxy` or `airlock worker sam` of this state folder, or choose another folder with --state"
            .into()
    }
}
