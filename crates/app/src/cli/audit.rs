//! `airlock audit`: verifies the audit log and the ledger, and prints the audit log.

use super::{
    Global, conclude,
    message::{self, Failure, Message, printable},
    print, print_json,
    usage::{date, problems_json},
};
use crate::{
    config::ProcessEnv,
    remote::{Client, ClientRequest, query as http_query},
};
use clap::{Args, Subcommand, ValueEnum};
use engine::usage::UsageProjection;
use serde::Deserialize;
use serde_json::json;
use spec::{ErrorCode, Timestamp};
use std::{io, path::Path};
use store::audit::{self, AuditFilter, AuditRow, JournalProblem, VerifyReport};

const EXAMPLES: &str = "\
Examples:
  airlock audit verify
  airlock audit head
  airlock audit show --run 01JEXAMPLE
  airlock audit show --what run.deny --limit 20
  airlock audit export --since 2026-01-01 --tenant acme --format csv

`verify` checks every line of the audit log and the ledger, and names what is damaged; exit status 1 then.
Anyone who can write to the state folder could rewrite files and database together: store the output of `head`
elsewhere from time to time, and give it to `verify --head`.";

/// Lines in one page.
const PAGE_LINES: usize = 500;

/// The options of `airlock audit`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    #[command(subcommand)]
    action: Action,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Verify every line of audit log and ledger; exits with 1 if anything was changed or removed
    Verify {
        /// The hash of a line that must exist: earlier output of `airlock audit head`
        #[arg(long, value_name = "HASH", value_parser = hash)]
        head: Option<[u8; 32]>,
    },
    /// Show number and hash of the last line that is safely on disk
    Head,
    /// Show the newest lines
    Show {
        #[command(flatten)]
        filter: LineFilter,
        /// The maximum of lines
        #[arg(long, value_name = "NUMBER", default_value_t = 50)]
        limit: usize,
    },
    /// Print all lines, the newest first
    Export {
        #[command(flatten)]
        filter: LineFilter,
        /// One JSON object a line, or comma-separated values
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ExportFormat::Jsonl)]
        format: ExportFormat,
    },
    /// Move a damaged audit log away, so that the server can begin a new one
    SetAside,
}

#[derive(Args, Clone, Debug)]
struct LineFilter {
    /// Only lines of this run or sandbox
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Only lines of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only lines of this kind, such as run.end; `run.` selects all with this prefix
    #[arg(long, value_name = "KIND")]
    what: Option<String>,
    /// Only since this day, such as 2026-01-31 (UTC)
    #[arg(long, value_name = "DATE", value_parser = date)]
    since: Option<u64>,
    /// Only before this day (UTC)
    #[arg(long, value_name = "DATE", value_parser = date)]
    until: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    Jsonl,
    Csv,
}

impl LineFilter {
    fn query(&self, limit: usize) -> AuditFilter {
        let LineFilter {
            run,
            tenant,
            what,
            since,
            until,
        } = self.clone();
        AuditFilter {
            run,
            tenant,
            what,
            since_ms: since,
            until_ms: until,
            before: None,
            limit,
        }
    }
}

/// Parses a hash of 64 hexadecimal digits.
fn hash(text: &str) -> Result<[u8; 32], String> {
    audit::parse_hash(text).ok_or_else(|| {
        format!(
            "`{}` is not a hash of 64 digits, as `airlock audit head` prints it",
            printable(text)
        )
    })
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    if let Some(client) = global.server(env)? {
        return at_server(options, &client);
    }
    let state = global.configure(env)?.state;
    check_state_folder(&state)?;
    match &options.action {
        Action::Verify { head } => verify(&state, *head, options.json),
        Action::Head => head(&state, options.json),
        Action::Show { filter, limit } => {
            let page = |query: &AuditFilter| {
                audit::read_page(&state, query).map_err(|error| unreadable(&error))
            };
            print_pages(
                LineFormat::of(options.json, None),
                &filter.query(*limit),
                page,
            )
        }
        Action::Export { filter, format } => {
            let page = |query: &AuditFilter| {
                audit::read_page(&state, query).map_err(|error| unreadable(&error))
            };
            print_pages(
                LineFormat::of(options.json, Some(*format)),
                &filter.query(usize::MAX),
                page,
            )
        }
        Action::SetAside => set_aside(&state, options.json),
    }
}

/// Refuses a folder without Airlock's state, which would verify as empty.
fn check_state_folder(state: &Path) -> Result<(), Failure> {
    if ["airlock.db", "audit", "ledger"]
        .iter()
        .any(|name| state.join(name).symlink_metadata().is_ok())
    {
        Ok(())
    } else {
        Err(Failure::invalid(
            format!(
                "`{}` holds no state of Airlock",
                printable(&state.display().to_string())
            ),
            "name the folder of the server with --state DIR",
        ))
    }
}

fn unreadable(error: &io::Error) -> Failure {
    let hint = "check that you own the state folder, or choose another with --state DIR".to_owned();
    Failure {
        code: ErrorCode::Internal,
        message: format!("cannot read the audit: {error}"),
        hint,
    }
}

fn verify(state: &Path, head: Option<[u8; 32]>, json: bool) -> Result<u8, Failure> {
    let mut problems = Vec::new();
    let verified = match audit::verify(state, head) {
        Ok(verified) => verified,
        Err(error) => {
            problems.push(JournalProblem {
                file: state.join("audit"),
                line: 0,
                what: error.to_string(),
            });
            VerifyReport::default()
        }
    };
    // Without the database the ledger cannot be compared, and a verification must not create one.
    let ledgers = if state.join("airlock.db").symlink_metadata().is_ok() {
        let books = UsageProjection::open(state)?;
        problems.extend(books.verify()?);
        books.segments()?
    } else {
        let what = "it is missing, and with it the record of audit and ledger".to_owned();
        problems.push(JournalProblem {
            file: state.join("airlock.db"),
            line: 0,
            what,
        });
        0
    };
    match json {
        true => print_json(&json!({
            "lines": verified.lines, "first": verified.first, "last": verified.last, "head": verified.head,
            "since": (verified.lines > 0).then(|| Timestamp(verified.since_ms).to_string()),
            "ledgers": ledgers, "problems": problems_json(&problems),
        }))?,
        false if problems.is_empty() => print(&verified_text(&verified, ledgers))?,
        false => print_problems(&problems),
    }
    Ok(u8::from(!problems.is_empty()))
}

fn verified_text(verified: &VerifyReport, ledgers: usize) -> String {
    let lines = match verified.lines {
        0 => "the audit has no lines yet".to_owned(),
        lines => {
            let since = Timestamp(verified.since_ms);
            let VerifyReport {
                first, last, head, ..
            } = verified;
            format!(
                "{lines} lines of the audit read ({first} to {last}, since {since}), nothing is wrong\nhead {head}"
            )
        }
    };
    format!("{lines}\n{ledgers} ledgers read, nothing is wrong\n")
}

fn print_problems(problems: &[JournalProblem]) {
    let mut lines: Vec<_> = problems
        .iter()
        .map(|problem| Message::Error(problem.to_string()))
        .collect();
    lines.push(Message::Hint(
        "keep the files as they are, and compare them with a copy from a backup".to_owned(),
    ));
    message::print(&lines);
}

fn head(state: &Path, json: bool) -> Result<u8, Failure> {
    let head = audit::head(state).map_err(|error| unreadable(&error))?;
    match (head, json) {
        (Some((n, hash)), true) => print_json(&json!({ "n": n, "hash": hash }))?,
        (Some((n, hash)), false) => print(&format!("{n} {hash}\n"))?,
        (None, true) => print_json(&json!({ "n": 0, "hash": null }))?,
        (None, false) => message::print(&[Message::Note("the audit has no lines yet".to_owned())]),
    }
    Ok(0)
}

fn set_aside(state: &Path, json: bool) -> Result<u8, Failure> {
    let place = audit::set_aside(state).map_err(|error| Failure {
        code: ErrorCode::Conflict,
        message: format!("cannot move the audit log away: {error}"),
        hint: "stop the server of this state folder first, and wait for a running backup"
            .to_owned(),
    })?;
    let shown = place.as_ref().map(|place| place.display().to_string());
    match (&shown, json) {
        (_, true) => print_json(&json!({ "aside": shown }))?,
        (Some(place), false) => print(&format!("{}\n", printable(place)))?,
        (None, false) => message::print(&[Message::Note("there was no audit".to_owned())]),
    }
    Ok(0)
}

/// The output format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineFormat {
    Words,
    Jsonl,
    Csv,
}

impl LineFormat {
    fn of(json: bool, format: Option<ExportFormat>) -> LineFormat {
        match (json, format) {
            (_, Some(ExportFormat::Csv)) => LineFormat::Csv,
            (true, _) | (_, Some(ExportFormat::Jsonl)) => LineFormat::Jsonl,
            (false, None) => LineFormat::Words,
        }
    }

    fn show(self, row: &AuditRow) -> Result<(), Failure> {
        match self {
            LineFormat::Jsonl => print_json(row),
            LineFormat::Csv => print(&csv_line(row)),
            LineFormat::Words => print(&text_line(row)),
        }
    }
}

/// Prints page by page, so that only one page is in memory.
fn print_pages(
    shape: LineFormat,
    query: &AuditFilter,
    mut page: impl FnMut(&AuditFilter) -> Result<audit::AuditPage, Failure>,
) -> Result<u8, Failure> {
    if shape == LineFormat::Csv {
        print(CSV_HEADER)?;
    }
    let (mut query, mut left) = (query.clone(), query.limit);
    while left > 0 {
        query.limit = left.min(PAGE_LINES);
        let audit::AuditPage { rows, before } = page(&query)?;
        rows.iter().try_for_each(|row| shape.show(row))?;
        left -= rows.len().min(left);
        match before {
            Some(before) => query.before = Some(before),
            None => break,
        }
    }
    Ok(0)
}

const CSV_HEADER: &str = "n,at,what,decision,tenant,key,run,task,job,rule,about,hash\n";

fn csv_line(row: &AuditRow) -> String {
    let cell = |text: &str| {
        // Sandboxed programs choose some texts; a spreadsheet must not evaluate one as a formula.
        let guard = if text.starts_with(['=', '+', '-', '@']) {
            "'"
        } else {
            ""
        };
        format!("\"{guard}{}\"", printable(text).replace('"', "\"\""))
    };
    let texts = [
        &row.what,
        &row.decision,
        &row.tenant,
        &row.key,
        &row.run,
        &row.task,
        &row.job,
        &row.rule,
    ];
    let texts: Vec<_> = texts
        .into_iter()
        .chain([&row.about, &row.hash])
        .map(|text| cell(text))
        .collect();
    format!("{},{},{}\n", row.n, Timestamp(row.at_ms), texts.join(","))
}

fn text_line(row: &AuditRow) -> String {
    let named = [
        ("tenant", &row.tenant),
        ("key", &row.key),
        ("run", &row.run),
        ("task", &row.task),
        ("job", &row.job),
        ("rule", &row.rule),
    ];
    let fields = named.iter().filter(|(_, text)| !text.is_empty());
    let fields: String = fields
        .map(|(name, text)| format!(" {name}={}", printable(text)))
        .collect();
    let about = if row.about.is_empty() {
        String::new()
    } else {
        format!("  {}", printable(&row.about))
    };
    let at = Timestamp(row.at_ms);
    let what = printable(&row.what);
    let decision = printable(&row.decision);
    format!("{at}  {what:<18} {decision:<8}{fields}{about}\n")
}

#[derive(Deserialize)]
struct AuditResponse {
    lines: Vec<AuditRow>,
    before: Option<String>,
}

/// Reads the audit log through a server.
fn at_server(options: &Options, client: &Client) -> Result<u8, Failure> {
    let (filter, limit, shape) = match &options.action {
        Action::Show { filter, limit } => (filter, *limit, LineFormat::of(options.json, None)),
        Action::Export { filter, format } => (
            filter,
            usize::MAX,
            LineFormat::of(options.json, Some(*format)),
        ),
        Action::Verify { .. } | Action::Head | Action::SetAside => {
            return Err(Failure::invalid(
                "this command reads the audit's files, and cannot run through a server",
                "run it on the server's machine, without --server",
            ));
        }
    };
    let runtime = super::runtime()?;
    print_pages(shape, &filter.query(limit), |query| {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let parameters = [
            ("run", query.run.clone()),
            ("tenant", query.tenant.clone()),
            ("what", query.what.clone()),
            ("since_ms", number(query.since_ms)),
            ("until_ms", number(query.until_ms)),
            ("limit", Some(query.limit.to_string())),
            ("before", query.before.clone()),
        ];
        let asking = client.json(ClientRequest::get(format!(
            "/v1/audit{}",
            http_query(&parameters)
        )));
        let AuditResponse { lines, before } = runtime.block_on(asking)?;
        Ok(audit::AuditPage {
            rows: lines,
            before,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_program_chose_steer_neither_terminal_nor_spreadsheet() {
        let row = AuditRow {
            n: 1,
            what: "run.deny".into(),
            about: "=1+1\",\u{1b}[2J\n".into(),
            ..AuditRow::default()
        };
        assert!(!text_line(&row).trim_end().contains(char::is_control));
        let line = csv_line(&row);
        assert!(
            line.contains("\"'=1+1\"\",\\u{1b}[2J\\n\"") && line.lines().count() == 1,
            "{line}"
        );
    }

    #[test]
    fn a_hash_is_64_digits() {
        assert_eq!(hash(&"0f".repeat(32)), Ok([15; 32]));
        for bad in ["", "0f", &"0g".repeat(32), &"ä".repeat(32)] {
            assert!(hash(bad).is_err(), "{bad}");
        }
    }
}
