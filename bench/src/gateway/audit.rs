//! What writing down costs beside what it tells of: the lines that runs really leave in audit and ledger are counted, then
//! the same lines are written once more by the same code, here, where nothing else is done; the CPU time of that is a part
//! of the CPU time that the runs really took, of the server and of all below it. What it takes to choose the words of a line
//! is not told apart from the rest of a run.

use crate::gateway::{
    Trouble,
    client::Client,
    measure::{Bench, RUN, once_of},
    report::{Metric, OURS},
    server::Airlock,
};
use doors::{
    TokenUsage,
    ledger::{CallOutcome, Durability, Ledger, ModelCall},
};
use provider::{Provider, Settings};
use serde::Deserialize;
use serde_json::json;
use spec::Money;
use std::{
    collections::{BTreeMap, VecDeque},
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use store::audit::{AuditEntry, AuditLog, Decision};

/// So many are written at least, so that their time can be told from the clock's.
const LINES: usize = 5000;
/// Between two looks whether the last line is written.
const LOOK: Duration = Duration::from_millis(100);
/// Which the provider knows.
const KEY: &str = "sk-bench";

impl Bench<'_> {
    /// The share of a run's CPU time: of one that does nothing, and of one that calls a model once.
    pub(crate) fn audit(&mut self) -> Result<(), Trouble> {
        let provider = Provider::start(Settings {
            keys: vec![KEY.to_owned()],
            lean: true,
            ..Settings::default()
        });
        let folder = self.folder.join("audit");
        let server =
            Airlock::start_with(self.airlock, &folder, &settings(&provider, self.folder)?)?;
        let (mut client, state, calling) = (server.client()?, folder.join("state"), calling());
        for round in 0..self.amount.rounds {
            for (metric, order) in [
                (Metric::AuditShare, RUN),
                (Metric::AuditShareCall, &calling),
            ] {
                let scratch = self.folder.join(format!("{metric:?}-{round}"));
                let share = self.share(&mut client, order, &state, &scratch);
                self.note(OURS, metric, share);
            }
        }
        Ok(())
    }

    fn share(
        &self,
        client: &mut Client,
        order: &str,
        state: &Path,
        scratch: &Path,
    ) -> io::Result<f64> {
        let (before, begun) = (
            Lengths::of(state)?,
            crate::peers::processor_time_below_us()?,
        );
        for _ in 0..self.amount.runs {
            once_of(client, order)?;
        }
        let lines = before.all_since(state)?;
        // Keepers and programs that were reaped count at whoever reaped them, all of them below us.
        let runs = crate::peers::processor_time_below_us()? - begun;
        let (writing, bytes) = (
            rewritten(scratch, &lines)?.as_secs_f64(),
            lines.iter().map(String::len).sum::<usize>(),
        );
        let share = writing / runs * 100.0;
        eprintln!(
            "{} runs: {} lines of {} bytes in audit and ledger, {:.3} ms of CPU; the runs themselves {:.0} ms: {share:.2} %",
            self.amount.runs,
            lines.len(),
            bytes / lines.len().max(1),
            writing * 1e3,
            runs * 1e3
        );
        Ok(share)
    }
}

/// A model for whoever asks for one.
fn settings(provider: &Provider, folder: &Path) -> io::Result<String> {
    let key = folder.join("provider-key");
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&key)?;
    io::Write::write_all(&mut file, KEY.as_bytes())?;
    Ok(format!(
        "[provider.openai]\ndialect = \"openai\"\nbase = \"{}\"\nkey = {{ file = \"{}\" }}\nallow_plain_http = true\n\
         allow_private = true\n[prices.\"*\"]\ninput = 1.0\noutput = 2.0\n",
        provider.base(),
        key.display()
    ))
}

/// Calls a model by a program that takes less for it than any library of a provider's.
fn calling() -> String {
    let body = json!({ "model": "m", "max_tokens": 20, "messages": [{ "role": "user", "content": "hello" }] });
    let script = format!(
        "exec curl -sf -o /dev/null -H \"authorization: Bearer $OPENAI_API_KEY\" -H 'content-type: application/json' \
         -d '{body}' $OPENAI_BASE_URL/chat/completions"
    );
    json!({ "command": ["/bin/sh", "-c", script], "llm": "openai" }).to_string()
}

/// How many lines each file had.
struct Lengths(BTreeMap<PathBuf, usize>);

impl Lengths {
    fn of(state: &Path) -> io::Result<Lengths> {
        let files = files(state)?.into_iter();
        let count = |path: PathBuf| Ok((path.clone(), fs::read_to_string(path)?.lines().count()));
        files.map(count).collect::<io::Result<_>>().map(Lengths)
    }

    /// What was added since then, once nothing more is.
    fn all_since(&self, state: &Path) -> io::Result<Vec<String>> {
        let mut seen = self.since(state)?;
        loop {
            thread::sleep(LOOK);
            let now = self.since(state)?;
            if now.len() == seen.len() {
                return Ok(now);
            }
            seen = now;
        }
    }

    fn since(&self, state: &Path) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        for path in files(state)? {
            let known = self.0.get(&path).copied().unwrap_or_default();
            lines.extend(
                fs::read_to_string(&path)?
                    .lines()
                    .skip(known)
                    .map(str::to_owned),
            );
        }
        Ok(lines)
    }
}

/// Those of audit and ledger.
fn files(state: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in ["audit", "ledger"] {
        for entry in fs::read_dir(state.join(folder))? {
            files.push(entry?.path());
        }
    }
    files.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
    files.sort();
    Ok(files)
}

/// The CPU time of writing these lines once.
fn rewritten(folder: &Path, lines: &[String]) -> io::Result<Duration> {
    fs::create_dir_all(folder)?;
    let lines: Vec<AuditLine> = lines
        .iter()
        .map(|line| serde_json::from_str(line))
        .collect::<Result<_, _>>()?;
    let book = Book {
        audit: AuditLog::open(folder)?,
        ledger: Ledger::open(&folder.join("ledger"), "owner", Durability::default())?,
    };
    let times = LINES.div_ceil(lines.len().max(1));
    let before = spent()?;
    (0..times).try_for_each(|_| book.write(&lines))?;
    Ok((spent()? - before) / times as u32)
}

struct Book {
    audit: AuditLog,
    ledger: Ledger,
}

impl Book {
    fn write(&self, lines: &[AuditLine]) -> io::Result<()> {
        let mut open = VecDeque::new();
        for line in lines {
            match line.kind.as_str() {
                "reserve" => {
                    open.push_back(self.ledger.reserve(&line.call(), line.money, line.tokens)?)
                }
                "settle" => {
                    let of = open
                        .pop_front()
                        .ok_or_else(|| io::Error::other("nothing was reserved"))?;
                    self.ledger.settle(of, &line.outcome())?;
                }
                "revoke" => self.ledger.record_revocation(&line.run, &line.session)?,
                kind if kind.contains('.') => self.audit.append(&line.entry())?,
                other => {
                    return Err(io::Error::other(format!(
                        "`{other}` is no kind of line that is known here"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// A line of either.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AuditLine {
    kind: String,
    run: String,
    tenant: String,
    // Of the audit.
    decision: String,
    key: String,
    task: String,
    job: String,
    rule: String,
    about: String,
    // Of the ledger.
    session: String,
    door: String,
    provider: String,
    model: String,
    operation: String,
    attempt: u32,
    price_book: String,
    money: Money,
    tokens: u64,
    overrun: Money,
    status: u16,
    ending: String,
    duration_ms: u64,
    usage: TokenUsage,
}

impl AuditLine {
    fn entry(&self) -> AuditEntry<'_> {
        let all = [Decision::Allowed, Decision::Refused, Decision::Happened];
        AuditEntry {
            what: &self.kind,
            decision: all
                .into_iter()
                .find(|one| one.name() == self.decision)
                .unwrap_or_default(),
            tenant: &self.tenant,
            key: &self.key,
            run: &self.run,
            task: &self.task,
            job: &self.job,
            rule: &self.rule,
            about: &self.about,
        }
    }

    fn call(&self) -> ModelCall {
        ModelCall {
            run: self.run.clone(),
            session: self.session.clone(),
            tenant: self.tenant.clone(),
            door: self.door.clone(),
            provider: self.provider.clone(),
            model: self.model.clone(),
            operation: self.operation.clone(),
            attempt: self.attempt,
            price_book: self.price_book.clone(),
        }
    }

    fn outcome(&self) -> CallOutcome {
        let AuditLine {
            usage,
            money,
            overrun,
            status,
            duration_ms,
            ..
        } = *self;
        let known = CallOutcome::unknown(money, &self.ending);
        CallOutcome {
            usage,
            overrun,
            status,
            duration_ms,
            source: doors::UsageSource::Final,
            ..known
        }
    }
}

/// CPU time of all threads that live here.
fn spent() -> io::Result<Duration> {
    let mut all = Duration::ZERO;
    for thread in fs::read_dir("/proc/self/task")? {
        let told = fs::read_to_string(thread?.path().join("schedstat"))?;
        let nanoseconds = told.split(' ').next().and_then(|text| text.parse().ok());
        all += nanoseconds
            .map(Duration::from_nanos)
            .ok_or_else(|| io::Error::other("no schedstat"))?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let folder = crate::peers::Folder::new("audit-lines").unwrap();
        let state = &folder.0;
        let open = || Book {
            audit: AuditLog::open(state).unwrap(),
            ledger: Ledger::open(&state.join("ledger"), "owner", Durability::default()).unwrap(),
        };
        let (book, call) = (
            open(),
            ModelCall {
                run: "r".into(),
                model: "m".into(),
                attempt: 1,
                ..ModelCall::default()
            },
        );
        let before = Lengths::of(state).unwrap();
        let entry = AuditEntry {
            what: "run.end",
            run: "r",
            about: "succeeded exit=0",
            ..AuditEntry::default()
        };
        book.audit
            .append(&AuditEntry {
                decision: Decision::Allowed,
                ..entry
            })
            .unwrap();
        let of = book.ledger.reserve(&call, Money(7), 9).unwrap();
        let outcome = CallOutcome {
            source: doors::UsageSource::Final,
            ..CallOutcome::unknown(Money(5), "complete")
        };
        book.ledger.settle(of, &outcome).unwrap();
        book.ledger.flush().unwrap();
        let written = before.all_since(state).unwrap();
        let lines: Vec<AuditLine> = written
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let kinds: Vec<_> = lines.iter().map(|line| line.kind.as_str()).collect();
        assert_eq!(kinds, ["run.end", "reserve", "settle"]);
        assert_eq!(
            (lines[0].entry().decision, lines[0].entry().about),
            (Decision::Allowed, "succeeded exit=0")
        );
        assert_eq!(
            (lines[1].call(), lines[1].money, lines[1].tokens),
            (call, Money(7), 9)
        );
        assert_eq!(lines[2].outcome(), outcome);
        book.write(&lines).unwrap();
        book.ledger.flush().unwrap();
        assert_eq!(
            before.all_since(state).unwrap().len(),
            6,
            "and they are written again"
        );
    }
}
