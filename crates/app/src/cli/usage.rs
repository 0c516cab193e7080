//! `airlock usage`: model usage and costs, from the ledger through the database.

use super::{
    Global, conclude,
    message::{self, Failure, Message, printable},
    print, print_json,
};
use crate::{
    config::ProcessEnv,
    remote::{Client, ClientRequest, query},
};
use clap::{Args, ValueEnum};
use engine::usage::{
    JournalProblem, TenantActivity, UsageError, UsageFilter, UsageProjection, UsageTotal,
};
use serde::Deserialize;
use serde_json::{Value, json};
use spec::{Day, ErrorCode, Money};

const EXAMPLES: &str = "\
Examples:
  airlock usage
  airlock usage --by model --since 2026-01-01
  airlock usage --by day --csv
  airlock usage --by tenant --since 2026-11-01 --until 2026-12-01 --csv
  airlock usage --tenant acme --by model
  airlock usage --run 01JEXAMPLE --json
  airlock usage --verify
  airlock usage --set-aside --state /var/lib/airlock

A call without a recorded end counts with its reservation; `unsettled` is the sum of these.
`overrun` is what providers charged beyond the reservation. Money is exact; --csv has it in billionths of a dollar.
In --json and --csv, a line with `may_change` is not final: its day has not ended, or a call is still running.";

/// The options of `airlock usage`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// What each line sums up
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = GroupBy::Run)]
    by: GroupBy,
    /// Only this run
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Only this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only since this day, such as 2026-01-31 (UTC)
    #[arg(long, value_name = "DATE", value_parser = date)]
    since: Option<u64>,
    /// Only before this day (UTC)
    #[arg(long, value_name = "DATE", value_parser = date)]
    until: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Verify every line of the ledger; exits with 1 if anything was changed or removed
    #[arg(long, conflicts_with_all = ["by", "run", "tenant", "since", "until", "csv"])]
    verify: bool,
    /// Move damaged ledgers of a server away, so that it starts: tenants can then spend again what
    /// they spent in them today
    #[arg(long, conflicts_with_all = ["by", "run", "tenant", "since", "until", "csv", "verify"])]
    set_aside: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum GroupBy {
    Run,
    Session,
    Tenant,
    Model,
    Provider,
    Day,
}

impl GroupBy {
    fn by(self) -> engine::usage::GroupBy {
        match self {
            GroupBy::Run => engine::usage::GroupBy::Run,
            GroupBy::Session => engine::usage::GroupBy::Session,
            GroupBy::Tenant => engine::usage::GroupBy::Tenant,
            GroupBy::Model => engine::usage::GroupBy::Model,
            GroupBy::Provider => engine::usage::GroupBy::Provider,
            GroupBy::Day => engine::usage::GroupBy::Day,
        }
    }

    fn name(self) -> &'static str {
        match self {
            GroupBy::Run => "run",
            GroupBy::Session => "session",
            GroupBy::Tenant => "tenant",
            GroupBy::Model => "model",
            GroupBy::Provider => "provider",
            GroupBy::Day => "day",
        }
    }
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    if options.set_aside {
        return set_aside(
            &UsageProjection::open(&global.configure(env)?.state)?,
            options.json,
        );
    }
    if let Some(client) = global.server(env)? {
        return super::runtime()?.block_on(at_server(options, &client));
    }
    let config = global.configure(env)?;
    let usage = UsageProjection::open(&config.state)?;
    if options.verify {
        return verify(&usage, options.json);
    }
    let problems = usage.refresh()?;
    let filter = UsageFilter {
        run: options.run.clone(),
        tenant: options.tenant.clone(),
        since_ms: options.since,
        until_ms: options.until,
    };
    let totals = usage.totals(options.by.by(), &filter)?;
    show(options, &totals, &problems)?;
    Ok(report_problems(&problems, options.json))
}

fn show(
    options: &Options,
    totals: &[UsageTotal],
    problems: &[JournalProblem],
) -> Result<(), Failure> {
    match (options.json, options.csv) {
        (true, _) => print_json(&object(options.by, totals, problems)),
        (false, true) => print(&engine::usage::csv(options.by.by(), totals)),
        (false, false) if totals.is_empty() => {
            message::print(&[Message::Note("no model was used".to_owned())]);
            Ok(())
        }
        (false, false) => print(&text(options.by, totals)),
    }
}

/// Reads the usage through a server.
async fn at_server(options: &Options, client: &Client) -> Result<u8, Failure> {
    if options.verify {
        let hint = "run it on the server's machine, without --server";
        return Err(Failure::invalid(
            "--verify reads the ledger's files, and cannot run through a server",
            hint,
        ));
    }
    let parameters = [
        ("by", Some(options.by.name().to_owned())),
        ("run", options.run.clone()),
        ("tenant", options.tenant.clone()),
        ("since_ms", options.since.map(|since| since.to_string())),
        ("until_ms", options.until.map(|until| until.to_string())),
    ];
    let UsageResponse { rows } = client
        .json(ClientRequest::get(format!(
            "/v1/usage{}",
            query(&parameters)
        )))
        .await?;
    let totals: Vec<_> = rows.into_iter().map(UsageRow::total).collect();
    show(options, &totals, &[])?;
    Ok(0)
}

#[derive(Deserialize)]
struct UsageResponse {
    rows: Vec<UsageRow>,
}

/// One row of the server's response.
#[derive(Deserialize)]
struct UsageRow {
    key: String,
    calls: u64,
    input_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    cost_nano_usd: u64,
    overrun_nano_usd: u64,
    unsettled_calls: u64,
    unsettled_nano_usd: u64,
    #[serde(default)]
    runs: Option<u64>,
    #[serde(default)]
    sandboxes: Option<u64>,
    #[serde(default)]
    cpu_ms: Option<u64>,
    #[serde(default)]
    may_change: bool,
}

impl UsageRow {
    fn total(self) -> UsageTotal {
        let activity = self.runs.zip(self.sandboxes).zip(self.cpu_ms);
        UsageTotal {
            activity: activity.map(|((runs, sandboxes), cpu_ms)| TenantActivity {
                runs,
                sandboxes,
                cpu_ms,
            }),
            may_change: self.may_change,
            open: 0,
            key: self.key,
            calls: self.calls,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cached_tokens: self.cached_tokens,
            money: self.cost_nano_usd,
            overrun: self.overrun_nano_usd,
            unsettled: self.unsettled_calls,
            unsettled_money: self.unsettled_nano_usd,
        }
    }
}

fn verify(usage: &UsageProjection, json: bool) -> Result<u8, Failure> {
    let segments = usage.segments()?;
    let problems = usage.verify()?;
    match json {
        true => print_json(&json!({ "segments": segments, "problems": problems_json(&problems) }))?,
        false if problems.is_empty() => {
            print(&format!("{segments} ledgers read, nothing is wrong\n"))?
        }
        false => {}
    }
    Ok(report_problems(&problems, json))
}

fn set_aside(usage: &UsageProjection, json: bool) -> Result<u8, Failure> {
    let aside = usage.set_aside(engine::now().0).map_err(|error| Failure {
        code: ErrorCode::Conflict,
        message: format!("cannot move the ledger away: {error}"),
        hint: "stop the server or proxy of this state folder first, and wait for a running backup"
            .to_owned(),
    })?;
    let shown = aside
        .place
        .as_ref()
        .map(|place| place.display().to_string());
    if json {
        print_json(&json!({ "aside": shown, "segments": aside.segments }))?;
        return Ok(0);
    }
    let names = aside.segments.join(", ");
    message::print(&[Message::Note(match (aside.segments.is_empty(), &shown) {
        (true, _) => "the ledger of the server is intact, and nothing was moved away".to_owned(),
        (false, Some(_)) => format!("moved away: {names}"),
        (false, None) => {
            format!("these no longer existed, and are not expected any more: {names}")
        }
    })]);
    if let Some(place) = shown {
        print(&format!("{}\n", printable(&place)))?;
    }
    Ok(0)
}

/// Reports the problems, and returns the exit status.
fn report_problems(problems: &[JournalProblem], json: bool) -> u8 {
    if problems.is_empty() {
        return 0;
    }
    let mut lines: Vec<_> = problems
        .iter()
        .map(|problem| Message::Error(problem.to_string()))
        .collect();
    lines.push(Message::Hint(
        "keep the damaged file, and replace it by a copy from a backup".to_owned(),
    ));
    if !json {
        message::print(&lines);
    }
    1
}

pub(super) fn problems_json(problems: &[JournalProblem]) -> Vec<Value> {
    let one = |problem: &JournalProblem| json!({ "file": problem.file.display().to_string(), "line": problem.line, "what": problem.what });
    problems.iter().map(one).collect()
}

/// The total of all rows.
fn sum(totals: &[UsageTotal]) -> UsageTotal {
    totals.iter().fold(
        UsageTotal {
            key: "total".to_owned(),
            ..UsageTotal::default()
        },
        |sum, one| UsageTotal {
            key: sum.key,
            calls: sum.calls.saturating_add(one.calls),
            input_tokens: sum.input_tokens.saturating_add(one.input_tokens),
            output_tokens: sum.output_tokens.saturating_add(one.output_tokens),
            cached_tokens: sum.cached_tokens.saturating_add(one.cached_tokens),
            money: sum.money.saturating_add(one.money),
            overrun: sum.overrun.saturating_add(one.overrun),
            unsettled: sum.unsettled.saturating_add(one.unsettled),
            unsettled_money: sum.unsettled_money.saturating_add(one.unsettled_money),
            open: sum.open.saturating_add(one.open),
            activity: one
                .activity
                .map(|more| added(sum.activity.unwrap_or_default(), more)),
            may_change: sum.may_change || one.may_change,
        },
    )
}

fn added(one: TenantActivity, more: TenantActivity) -> TenantActivity {
    TenantActivity {
        runs: one.runs.saturating_add(more.runs),
        sandboxes: one.sandboxes.saturating_add(more.sandboxes),
        cpu_ms: one.cpu_ms.saturating_add(more.cpu_ms),
    }
}

/// The numeric columns: title and value.
fn cells(total: &UsageTotal) -> [(&'static str, String); 7] {
    let money = |nanos| Money(nanos).to_string();
    [
        ("calls", total.calls.to_string()),
        ("input", total.input_tokens.to_string()),
        ("cached", total.cached_tokens.to_string()),
        ("output", total.output_tokens.to_string()),
        ("usd", money(total.money)),
        ("unsettled", money(total.unsettled_money)),
        ("overrun", money(total.overrun)),
    ]
}

/// The table: keys left-aligned, numbers right-aligned, the total in the last line.
fn text(by: GroupBy, totals: &[UsageTotal]) -> String {
    let all = sum(totals);
    let titles = cells(&all).map(|(head, _)| head.to_owned());
    let mut lines = vec![(by.name().to_owned(), titles)];
    lines.extend(
        totals
            .iter()
            .chain([&all])
            .map(|total| (shown(&total.key), cells(total).map(|(_, cell)| cell))),
    );
    let first = lines
        .iter()
        .map(|(key, _)| key.chars().count())
        .max()
        .unwrap_or(0);
    let width = |column: usize| {
        lines
            .iter()
            .map(|(_, cells)| cells[column].len())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..7).map(width).collect();
    let line = |(key, cells): &(String, [String; 7])| {
        let cells: String = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("  {cell:>width$}"))
            .collect();
        format!("{key:<first$}{cells}\n")
    };
    lines.iter().map(line).collect()
}

fn shown(key: &str) -> String {
    match key {
        "" => "-".to_owned(),
        _ => printable(key),
    }
}

fn object(by: GroupBy, totals: &[UsageTotal], problems: &[JournalProblem]) -> Value {
    json!({
        "by": by.name(),
        "rows": totals.iter().map(row).collect::<Vec<_>>(),
        "total": row(&sum(totals)),
        "problems": problems_json(problems),
    })
}

fn row(total: &UsageTotal) -> Value {
    json!({
        "key": total.key,
        "calls": total.calls,
        "input_tokens": total.input_tokens,
        "cached_tokens": total.cached_tokens,
        "output_tokens": total.output_tokens,
        "cost_usd": Money(total.money).dollars(),
        "cost_nano_usd": total.money,
        "overrun_nano_usd": total.overrun,
        "unsettled_calls": total.unsettled,
        "unsettled_nano_usd": total.unsettled_money,
        "runs": total.activity.map(|used| used.runs),
        "sandboxes": total.activity.map(|used| used.sandboxes),
        "cpu_ms": total.activity.map(|used| used.cpu_ms),
        "may_change": total.may_change,
    })
}

/// Parses a day as milliseconds since 1970.
pub(super) fn date(text: &str) -> Result<u64, String> {
    text.parse::<Day>()
        .map(|day| day.start().0)
        .map_err(|_| format!("`{}` is not a date such as 2026-01-31", text.escape_debug()))
}

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Self {
        Failure {
            code: ErrorCode::Internal,
            message: error.to_string(),
            hint: error.hint().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(key: &str, calls: u64, money: u64) -> UsageTotal {
        UsageTotal {
            key: key.to_owned(),
            calls,
            input_tokens: 1000,
            money,
            ..UsageTotal::default()
        }
    }

    #[test]
    fn a_table_is_aligned_and_money_is_exact() {
        let totals = [total("gpt-4o", 2, 1_500_000_003), total("", 11, 20)];
        let table = "\
model   calls  input  cached  output          usd  unsettled  overrun
gpt-4o      2   1000       0       0  1.500000003       0.00     0.00
-          11   1000       0       0   0.00000002       0.00     0.00
total      13   2000       0       0  1.500000023       0.00     0.00
";
        assert_eq!(text(GroupBy::Model, &totals), table);
    }

    #[test]
    fn a_name_that_a_program_chose_steers_no_terminal() {
        let totals = [total("=1+1\",\"\u{1b}[2J\n", 1, 0)];
        assert_eq!(text(GroupBy::Model, &totals).lines().count(), 3);
    }
}
