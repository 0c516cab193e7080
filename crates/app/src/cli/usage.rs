//! `airlock usage`: what models were used for, and what it cost; from the ledger, by way of the database.

use super::{
    Global, conclude,
    message::{self, Failure, Line, printable},
    print, print_json,
};
use crate::{
    config::Surroundings,
    remote::{Ask, Client, query},
};
use clap::{Args, ValueEnum};
use engine::usage::{
    GroupBy, Problem, TenantActivity, UsageError, UsageFilter, UsageProjection, UsageTotal,
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

A call whose end nobody saw counts at what was reserved for it; `unsettled` is how much that is.
`overrun` is what providers served beyond what was reserved. Money is exact; --csv has it in billionths of a dollar.
In --json and --csv, a line with `may_change` is not over: its days are not, or a call of it goes on.";

/// The options of `airlock usage`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// What each line adds up
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Column::Run)]
    by: Column,
    /// Only this run
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Only of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only from this day on, such as 2026-01-31 (UTC)
    #[arg(long, value_name = "DATE", value_parser = date)]
    since: Option<u64>,
    /// Only before this day (UTC), which itself is left out
    #[arg(long, value_name = "DATE", value_parser = date)]
    until: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Read every line of the ledger, and say what was changed or taken away; exits with 1 if anything was
    #[arg(long, conflicts_with_all = ["by", "run", "tenant", "since", "until", "csv"])]
    verify: bool,
    /// Put those of a server's ledgers aside that cannot be believed, so that it starts: what tenants spent in them today is theirs again
    #[arg(long, conflicts_with_all = ["by", "run", "tenant", "since", "until", "csv", "verify"])]
    set_aside: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Column {
    Run,
    Session,
    Tenant,
    Model,
    Provider,
    Day,
}

impl Column {
    fn by(self) -> GroupBy {
        match self {
            Column::Run => GroupBy::Run,
            Column::Session => GroupBy::Session,
            Column::Tenant => GroupBy::Tenant,
            Column::Model => GroupBy::Model,
            Column::Provider => GroupBy::Provider,
            Column::Day => GroupBy::Day,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Column::Run => "run",
            Column::Session => "session",
            Column::Tenant => "tenant",
            Column::Model => "model",
            Column::Provider => "provider",
            Column::Day => "day",
        }
    }
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    if options.set_aside {
        return set_aside(
            &UsageProjection::open(&global.configure(surroundings)?.state)?,
            options.json,
        );
    }
    if let Some(client) = global.server(surroundings)? {
        return super::runtime()?.block_on(at_server(options, &client));
    }
    let config = global.configure(surroundings)?;
    let books = UsageProjection::open(&config.state)?;
    if options.verify {
        return verify(&books, options.json);
    }
    let problems = books.refresh()?;
    let filter = UsageFilter {
        run: options.run.clone(),
        tenant: options.tenant.clone(),
        since_ms: options.since,
        until_ms: options.until,
    };
    let totals = books.totals(options.by.by(), &filter)?;
    show(options, &totals, &problems)?;
    Ok(tell(&problems, options.json))
}

fn show(options: &Options, totals: &[UsageTotal], problems: &[Problem]) -> Result<(), Failure> {
    match (options.json, options.csv) {
        (true, _) => print_json(&object(options.by, totals, problems)),
        (false, true) => print(&engine::usage::csv(options.by.by(), totals)),
        (false, false) if totals.is_empty() => {
            message::say(&[Line::Note("no model was used".to_owned())]);
            Ok(())
        }
        (false, false) => print(&text(options.by, totals)),
    }
}

/// The same by the books of a server.
async fn at_server(options: &Options, client: &Client) -> Result<u8, Failure> {
    if options.verify {
        let hint = "run it on the server's machine, without --server";
        return Err(Failure::invalid(
            "--verify reads the ledger's own files, and cannot be asked of a server",
            hint,
        ));
    }
    let asked = [
        ("by", Some(options.by.name().to_owned())),
        ("run", options.run.clone()),
        ("tenant", options.tenant.clone()),
        ("since_ms", options.since.map(|since| since.to_string())),
        ("until_ms", options.until.map(|until| until.to_string())),
    ];
    let Told { rows } = client
        .json(Ask::get(format!("/v1/usage{}", query(&asked))))
        .await?;
    let totals: Vec<_> = rows.into_iter().map(Row::total).collect();
    show(options, &totals, &[])?;
    Ok(0)
}

#[derive(Deserialize)]
struct Told {
    rows: Vec<Row>,
}

/// A sum, as a server tells it.
#[derive(Deserialize)]
struct Row {
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

impl Row {
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

fn verify(books: &UsageProjection, json: bool) -> Result<u8, Failure> {
    let (segments, problems) = (books.segments()?, books.verify()?);
    match json {
        true => print_json(&json!({ "segments": segments, "problems": listed(&problems) }))?,
        false if problems.is_empty() => {
            print(&format!("{segments} ledgers read, nothing is wrong\n"))?
        }
        false => {}
    }
    Ok(tell(&problems, json))
}

fn set_aside(books: &UsageProjection, json: bool) -> Result<u8, Failure> {
    let aside = books.set_aside(engine::now().0).map_err(|error| Failure {
        code: ErrorCode::Conflict,
        message: format!("cannot put the ledger aside: {error}"),
        hint: "end the server or proxy of this state folder first, and let a backup of it finish"
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
    message::say(&[Line::Note(match (aside.segments.is_empty(), &shown) {
        (true, _) => {
            "nothing is wrong with the ledger of a server, and nothing was put aside".to_owned()
        }
        (false, Some(_)) => format!("put aside: {names}"),
        (false, None) => {
            format!("nothing was left of these, which nobody looks for any more: {names}")
        }
    })]);
    if let Some(place) = shown {
        print(&format!("{}\n", printable(&place)))?;
    }
    Ok(0)
}

/// Says what is wrong; the exit status.
fn tell(problems: &[Problem], json: bool) -> u8 {
    if problems.is_empty() {
        return 0;
    }
    let mut lines: Vec<_> = problems
        .iter()
        .map(|problem| Line::Error(problem.to_string()))
        .collect();
    lines.push(Line::Hint(
        "keep the file as it is, and put a copy from a backup in its place".to_owned(),
    ));
    if !json {
        message::say(&lines);
    }
    1
}

pub(super) fn listed(problems: &[Problem]) -> Vec<Value> {
    let one = |problem: &Problem| json!({ "file": problem.file.display().to_string(), "line": problem.line, "what": problem.what });
    problems.iter().map(one).collect()
}

/// All of them together.
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

/// What each column is called, and what stands in it.
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

/// Names to the left, numbers to the right, everything together in the last line.
fn text(by: Column, totals: &[UsageTotal]) -> String {
    let all = sum(totals);
    let heads = cells(&all).map(|(head, _)| head.to_owned());
    let mut lines = vec![(by.name().to_owned(), heads)];
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

fn object(by: Column, totals: &[UsageTotal], problems: &[Problem]) -> Value {
    json!({
        "by": by.name(),
        "rows": totals.iter().map(row).collect::<Vec<_>>(),
        "total": row(&sum(totals)),
        "problems": listed(problems),
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

/// A day as milliseconds since 1970.
pub(super) fn date(text: &str) -> Result<u64, String> {
    text.parse::<Day>()
        .map(|day| day.start().0)
        .map_err(|_| format!("`{}` is no day such as 2026-01-31", text.escape_debug()))
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
        assert_eq!(text(Column::Model, &totals), table);
    }

    #[test]
    fn a_name_that_a_program_chose_steers_no_terminal() {
        let totals = [total("=1+1\",\"\u{1b}[2J\n", 1, 0)];
        assert_eq!(text(Column::Model, &totals).lines().count(), 3);
    }
}
