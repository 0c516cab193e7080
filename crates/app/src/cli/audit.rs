//! `airlock audit`: whether the audit and the ledger are as they were written, and what the audit says.

use super::{
    Global, conclude,
    message::{self, Failure, Line, printable},
    print, print_json,
    usage::{date, listed},
};
use crate::{
    config::Surroundings,
    remote::{Ask, Client, query},
};
use clap::{Args, Subcommand, ValueEnum};
use engine::usage::UsageProjection;
use serde::Deserialize;
use serde_json::json;
use spec::{ErrorCode, Timestamp};
use std::{io, path::Path};
use store::audit::{self, AuditFilter, AuditRow, Problem, VerifyReport};

const EXAMPLES: &str = "\
Examples:
  airlock audit verify
  airlock audit head
  airlock audit show --run 01JEXAMPLE
  airlock audit show --what run.deny --limit 20
  airlock audit export --since 2026-01-01 --tenant acme --format csv

`verify` reads every line of the audit and of the ledger and names the first thing that is wrong; exit status 1 then.
Whoever can write to the state folder could rewrite files and database together: note what `head` says elsewhere from
time to time, and give it to `verify --head`.";

/// Lines that are asked for at a time.
const AT_ONCE: usize = 500;

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
    /// Read every line of audit and ledger, and say what was changed or taken away; exits with 1 if anything was
    Verify {
        /// The hash of a line that must be there: what `airlock audit head` said before
        #[arg(long, value_name = "HASH", value_parser = hash)]
        head: Option<[u8; 32]>,
    },
    /// Show the number and the hash of the last line that is surely on the disk
    Head,
    /// Show the newest lines
    Show {
        #[command(flatten)]
        which: Which,
        /// At most so many lines
        #[arg(long, value_name = "NUMBER", default_value_t = 50)]
        limit: usize,
    },
    /// Print all lines, the newest first
    Export {
        #[command(flatten)]
        which: Which,
        /// One JSON object a line, or comma-separated values
        #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Jsonl)]
        format: Format,
    },
    /// Put an audit aside that cannot be believed, so that the server can begin another
    SetAside,
}

#[derive(Args, Clone, Debug)]
struct Which {
    /// Only lines of this run or sandbox
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Only lines of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only lines of this kind, such as run.end; `run.` is all that begin so
    #[arg(long, value_name = "KIND")]
    what: Option<String>,
    /// Only from this day on, such as 2026-01-31 (UTC)
    #[arg(long, value_name = "DATE", value_parser = date)]
    since: Option<u64>,
    /// Only up to the beginning of this day (UTC)
    #[arg(long, value_name = "DATE", value_parser = date)]
    until: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Jsonl,
    Csv,
}

impl Which {
    fn asked(&self, limit: usize) -> AuditFilter {
        let Which {
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

/// 64 digits.
fn hash(text: &str) -> Result<[u8; 32], String> {
    audit::parse_hash(text).ok_or_else(|| {
        format!(
            "`{}` is no hash of 64 digits, as `airlock audit head` prints it",
            printable(text)
        )
    })
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    if let Some(client) = global.server(surroundings)? {
        return at_server(options, &client);
    }
    let state = global.configure(surroundings)?.state;
    is_there(&state)?;
    match &options.action {
        Action::Verify { head } => verify(&state, *head, options.json),
        Action::Head => head(&state, options.json),
        Action::Show { which, limit } => {
            let page = |asked: &AuditFilter| {
                audit::read_page(&state, asked).map_err(|error| unreadable(&error))
            };
            tell(Shape::of(options.json, None), &which.asked(*limit), page)
        }
        Action::Export { which, format } => {
            let page = |asked: &AuditFilter| {
                audit::read_page(&state, asked).map_err(|error| unreadable(&error))
            };
            tell(
                Shape::of(options.json, Some(*format)),
                &which.asked(usize::MAX),
                page,
            )
        }
        Action::SetAside => set_aside(&state, options.json),
    }
}

/// A folder that is none, or not the one that was meant, has nothing that could be right or wrong.
fn is_there(state: &Path) -> Result<(), Failure> {
    match ["airlock.db", "audit", "ledger"]
        .iter()
        .any(|name| state.join(name).symlink_metadata().is_ok())
    {
        true => Ok(()),
        false => Err(Failure::invalid(
            format!(
                "there is no state of Airlock in `{}`",
                printable(&state.display().to_string())
            ),
            "name the folder of the server with --state DIR",
        )),
    }
}

fn unreadable(error: &io::Error) -> Failure {
    let hint = "look whether the state folder is yours; choose another with --state DIR".to_owned();
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
            problems.push(Problem {
                file: state.join("audit"),
                line: 0,
                what: error.to_string(),
            });
            VerifyReport::default()
        }
    };
    // Without the database the ledger cannot be compared; whoever looks does not make one.
    let ledgers = match state.join("airlock.db").symlink_metadata().is_ok() {
        true => {
            let books = UsageProjection::open(state)?;
            problems.extend(books.verify()?);
            books.segments()?
        }
        false => {
            let what = "it is gone, and what it knew of audit and ledger with it".to_owned();
            problems.push(Problem {
                file: state.join("airlock.db"),
                line: 0,
                what,
            });
            0
        }
    };
    match json {
        true => print_json(&json!({
            "lines": verified.lines, "first": verified.first, "last": verified.last, "head": verified.head,
            "since": (verified.lines > 0).then(|| Timestamp(verified.since_ms).to_string()),
            "ledgers": ledgers, "problems": listed(&problems),
        }))?,
        false if problems.is_empty() => print(&sound(&verified, ledgers))?,
        false => say(&problems),
    }
    Ok(u8::from(!problems.is_empty()))
}

fn sound(verified: &VerifyReport, ledgers: usize) -> String {
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

fn say(problems: &[Problem]) {
    let mut lines: Vec<_> = problems
        .iter()
        .map(|problem| Line::Error(problem.to_string()))
        .collect();
    lines.push(Line::Hint(
        "keep the files as they are, and compare them with a copy from a backup".to_owned(),
    ));
    message::say(&lines);
}

fn head(state: &Path, json: bool) -> Result<u8, Failure> {
    let head = audit::head(state).map_err(|error| unreadable(&error))?;
    match (head, json) {
        (Some((n, hash)), true) => print_json(&json!({ "n": n, "hash": hash }))?,
        (Some((n, hash)), false) => print(&format!("{n} {hash}\n"))?,
        (None, true) => print_json(&json!({ "n": 0, "hash": null }))?,
        (None, false) => message::say(&[Line::Note("the audit has no lines yet".to_owned())]),
    }
    Ok(0)
}

fn set_aside(state: &Path, json: bool) -> Result<u8, Failure> {
    let place = audit::set_aside(state).map_err(|error| Failure {
        code: ErrorCode::Conflict,
        message: format!("cannot put the audit aside: {error}"),
        hint: "end the server of this state folder first, and let a backup of it finish".to_owned(),
    })?;
    let shown = place.as_ref().map(|place| place.display().to_string());
    match (&shown, json) {
        (_, true) => print_json(&json!({ "aside": shown }))?,
        (Some(place), false) => print(&format!("{}\n", printable(place)))?,
        (None, false) => message::say(&[Line::Note("there was no audit".to_owned())]),
    }
    Ok(0)
}

/// How lines are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Words,
    Jsonl,
    Csv,
}

impl Shape {
    fn of(json: bool, format: Option<Format>) -> Shape {
        match (json, format) {
            (_, Some(Format::Csv)) => Shape::Csv,
            (true, _) | (_, Some(Format::Jsonl)) => Shape::Jsonl,
            (false, None) => Shape::Words,
        }
    }

    fn show(self, row: &AuditRow) -> Result<(), Failure> {
        match self {
            Shape::Jsonl => print_json(row),
            Shape::Csv => print(&csv(row)),
            Shape::Words => print(&words(row)),
        }
    }
}

/// Page after page, so that no more than one is in memory.
fn tell(
    shape: Shape,
    asked: &AuditFilter,
    mut page: impl FnMut(&AuditFilter) -> Result<audit::AuditPage, Failure>,
) -> Result<u8, Failure> {
    if shape == Shape::Csv {
        print(CSV)?;
    }
    let (mut asked, mut left) = (asked.clone(), asked.limit);
    while left > 0 {
        asked.limit = left.min(AT_ONCE);
        let audit::AuditPage { rows, before } = page(&asked)?;
        rows.iter().try_for_each(|row| shape.show(row))?;
        left -= rows.len().min(left);
        match before {
            Some(before) => asked.before = Some(before),
            None => break,
        }
    }
    Ok(0)
}

const CSV: &str = "n,at,what,decision,tenant,key,run,task,job,rule,about,hash\n";

fn csv(row: &AuditRow) -> String {
    let cell = |text: &str| {
        // Programs choose some of the words; a spreadsheet must not take one for a formula.
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

fn words(row: &AuditRow) -> String {
    let named = [
        ("tenant", &row.tenant),
        ("key", &row.key),
        ("run", &row.run),
        ("task", &row.task),
        ("job", &row.job),
        ("rule", &row.rule),
    ];
    let said = named.iter().filter(|(_, text)| !text.is_empty());
    let said: String = said
        .map(|(name, text)| format!(" {name}={}", printable(text)))
        .collect();
    let about = if row.about.is_empty() {
        String::new()
    } else {
        format!("  {}", printable(&row.about))
    };
    let (at, what, decision) = (
        Timestamp(row.at_ms),
        printable(&row.what),
        printable(&row.decision),
    );
    format!("{at}  {what:<18} {decision:<8}{said}{about}\n")
}

#[derive(Deserialize)]
struct Told {
    lines: Vec<AuditRow>,
    before: Option<String>,
}

/// The same by a server's own reading.
fn at_server(options: &Options, client: &Client) -> Result<u8, Failure> {
    let (which, limit, shape) = match &options.action {
        Action::Show { which, limit } => (which, *limit, Shape::of(options.json, None)),
        Action::Export { which, format } => {
            (which, usize::MAX, Shape::of(options.json, Some(*format)))
        }
        Action::Verify { .. } | Action::Head | Action::SetAside => {
            return Err(Failure::invalid(
                "this reads the audit's own files, and cannot be asked of a server",
                "run it on the server's machine, without --server",
            ));
        }
    };
    let runtime = super::runtime()?;
    tell(shape, &which.asked(limit), |asked| {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let words = [
            ("run", asked.run.clone()),
            ("tenant", asked.tenant.clone()),
            ("what", asked.what.clone()),
            ("since_ms", number(asked.since_ms)),
            ("until_ms", number(asked.until_ms)),
            ("limit", Some(asked.limit.to_string())),
            ("before", asked.before.clone()),
        ];
        let asking = client.json(Ask::get(format!("/v1/audit{}", query(&words))));
        let Told { lines, before } = runtime.block_on(asking)?;
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
        assert!(!words(&row).trim_end().contains(char::is_control));
        let line = csv(&row);
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
