//! The ledger: what was reserved and what was spent, written before the first byte goes out. One file a segment, one
//! owner a segment, one JSON object a line, each bound to the one before by its hash.
//!
//! ```text
//! open ─▶ reserve ─▶ settle     a reservation that nobody settled counts in full: its owner died,
//!           │                    and whoever takes the segment over settles it as `lost`
//!           └──────▶ settle
//! ```

mod days;
mod line;
mod reader;
mod recover;

pub use days::{OWNER, is_of_day, of_day, past, tells_of};
pub use journal::{Durability, Fault, Head, Problem};
pub use line::{Kind, Row};
pub use reader::Reader;
pub use recover::{
    Found, Past, Recovered, Retirable, Segments, believe, recover, remove_retired, retirable,
    segments, set_aside, verify,
};

use crate::usage::{Source, Usage};
use journal::{Folder, LARGEST, Line, Syncer, Writer};
use spec::{Day, Money};
use std::{
    fs::File,
    io,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What messages call it.
const CALLED: &str = "ledger";
/// What was settled is written within this time.
const LONGEST_WAIT: Duration = Duration::from_millis(5);
/// A sweep may look at our segment while we take it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who is calling, and what.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Call {
    pub run: String,
    pub session: String,
    pub tenant: String,
    pub door: String,
    pub provider: String,
    pub model: String,
    pub operation: String,
    /// 1 for the first try.
    pub attempt: u32,
    pub price_book: String,
}

/// Whose run something is written down of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Whose<'a> {
    pub run: &'a str,
    /// Empty for a run that is nobody's but this machine's.
    pub tenant: &'a str,
}

impl<'a> From<&'a str> for Whose<'a> {
    fn from(run: &'a str) -> Whose<'a> {
        Whose { run, tenant: "" }
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Outcome {
    pub usage: Usage,
    pub source: Source,
    pub money: Money,
    /// What of it went beyond the reservation.
    pub overrun: Money,
    /// The provider's status; 0 if there was none.
    pub status: u16,
    /// `complete`, `cut`, `client_gone`, `upstream_failed`, `revoked`, …
    pub ending: String,
    pub duration_ms: u64,
}

impl Outcome {
    /// Nothing is known of the call but that it was paid for.
    pub fn unknown(money: Money, ending: &str) -> Outcome {
        Outcome {
            usage: Usage::default(),
            source: Source::Reserved,
            money,
            overrun: Money::ZERO,
            status: 0,
            ending: ending.to_owned(),
            duration_ms: 0,
        }
    }
}

/// What a line says of something at an egress door.
#[derive(Debug)]
pub(crate) struct Passed<'a> {
    pub(crate) texts: [(&'static str, &'a str); 7],
    pub(crate) numbers: [(&'static str, u64); 4],
}

/// A segment that this process owns.
#[derive(Debug)]
pub struct Ledger {
    folder: Folder,
    name: String,
    largest: u64,
    state: Mutex<State>,
    syncer: Option<Syncer>,
    found: Found,
    /// Somebody is about to write what waits.
    writing: AtomicBool,
    /// Held for life; the first file of the segment.
    _lock: File,
}

#[derive(Debug)]
struct State {
    /// Ends of reservations may wait there for the next write: without them more counts and not less.
    writer: Writer,
    /// Reservations that are not settled.
    open: u64,
}

impl Ledger {
    /// Begins a segment `name` in a folder, which is made if absent (mode 0700), or goes on with it after recovery.
    pub fn open(folder: &Path, name: &str, durability: Durability) -> io::Result<Ledger> {
        Ledger::open_with(folder, name, durability, LARGEST)
    }

    fn open_with(
        folder: &Path,
        name: &str,
        durability: Durability,
        largest: u64,
    ) -> io::Result<Ledger> {
        if !journal::is_name(name) {
            return Err(io::Error::other(format!(
                "`{}` is no name for a ledger",
                name.escape_debug()
            )));
        }
        let folder = Folder::make(folder)?;
        let lock = segment_lock(&folder, name)?;
        let mut ledger = recover::take(folder, name, lock)?;
        ledger.largest = largest;
        if durability == Durability::Power {
            ledger.folder.sync()?;
            ledger.syncer = Some(Syncer::start(CALLED)?);
        }
        ledger.introduce()?;
        Ok(ledger)
    }

    /// What was spent before, by those who owned this segment.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Adds what tenants spent elsewhere.
    pub fn add_past(&mut self, past: Found, today: Day) {
        self.found.join(past, today);
    }

    /// The segment's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes that so much is reserved; the number by which it is settled.
    pub fn reserve(&self, call: &Call, money: Money, tokens: u64) -> io::Result<u64> {
        self.append("reserve", 1, |line| {
            line.text("run", &call.run)
                .text("session", &call.session)
                .text("tenant", &call.tenant)
                .text("door", &call.door)
                .text("provider", &call.provider)
                .text("model", &call.model)
                .text("operation", &call.operation)
                .number("attempt", u64::from(call.attempt))
                .text("price_book", &call.price_book)
                .number("money", money.0)
                .number("tokens", tokens);
        })
    }

    /// Waits until a record is as lasting as was asked for.
    pub async fn lasting(&self, n: u64) -> io::Result<()> {
        match &self.syncer {
            Some(syncer) => syncer.wait(n).await,
            None => Ok(()),
        }
    }

    /// Writes how the reservation `of` ended.
    pub fn settle(&self, of: u64, outcome: &Outcome) -> io::Result<()> {
        let source = match outcome.source {
            Source::Final => "final",
            Source::Partial => "partial",
            Source::Estimated => "estimated",
            Source::Reserved => "reserved",
        };
        let written = self.append("settle", -1, |line| {
            line.number("of", of)
                .text("source", source)
                .number("money", outcome.money.0)
                .number("overrun", outcome.overrun.0)
                .number("status", u64::from(outcome.status))
                .text("ending", &outcome.ending)
                .number("duration_ms", outcome.duration_ms);
            line::usage_of(line, &outcome.usage);
        });
        written.map(|_| ())
    }

    /// Writes that a secret was put into a run.
    pub fn inject(&self, whose: Whose<'_>, secret: &str, variable: &str) -> io::Result<()> {
        let written = self.append("inject", 0, |line| {
            line.text("run", whose.run)
                .text("tenant", whose.tenant)
                .text("secret", secret)
                .text("variable", variable);
        });
        written.map(|_| ())
    }

    /// Writes what passed, or did not, at an egress door.
    pub(crate) fn egress(&self, whose: Whose<'_>, passed: &Passed<'_>) -> io::Result<()> {
        let written = self.append("egress", 0, |line| {
            line.text("run", whose.run).text("tenant", whose.tenant);
            for (name, text) in passed.texts {
                line.text(name, text);
            }
            for (name, number) in passed.numbers {
                line.number(name, number);
            }
        });
        written.map(|_| ())
    }

    /// Writes that a session is over. What it spent stays spent by its tenant; its name begins anew.
    pub fn revoke(&self, run: &str, session: &str) -> io::Result<()> {
        let written = self.append("revoke", 0, |line| {
            line.text("run", run).text("session", session);
        });
        written.map(|_| ())
    }

    fn introduce(&self) -> io::Result<u64> {
        self.append("open", 0, |line| {
            line.text("segment", &self.name)
                .number("pid", u64::from(std::process::id()))
                .text("version", env!("CARGO_PKG_VERSION"));
        })
    }

    /// Writes what still waits. Without it that goes out with the next reservation.
    pub fn flush(&self) -> io::Result<()> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .writer
            .flush()
    }

    /// What was settled waits for company, but not long. Where nobody could do it later, it is written now.
    pub(crate) fn flush_soon(self: &Arc<Ledger>) {
        if self.writing.swap(true, Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.writing.store(false, Ordering::Relaxed);
            // Not written it stays open, and counts in full.
            _ = self.flush();
            return;
        };
        // Whoever drops the last one writes it.
        let ledger = Arc::downgrade(self);
        runtime.spawn(async move {
            tokio::time::sleep(LONGEST_WAIT).await;
            if let Some(ledger) = ledger.upgrade() {
                ledger.writing.store(false, Ordering::Relaxed);
                _ = ledger.flush();
            }
        });
    }

    /// One record; one write, but for the end of a reservation, which waits for company. `open` is what it adds to the open reservations.
    fn append(&self, kind: &str, open: i64, tell: impl FnOnce(&mut Line<'_>)) -> io::Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.writer.length() >= self.largest && kind != "open" {
            self.next_file(&mut state)?;
        }
        let may_wait = kind == "settle" && self.syncer.is_none();
        let n = state.writer.write(kind, may_wait, tell)?;
        state.open = state.open.saturating_add_signed(open);
        if let Some(syncer) = &self.syncer {
            syncer.want(n, &state.writer.file);
        }
        Ok(n)
    }

    /// The chain goes on in the next file: its first line follows from the last of this one.
    fn next_file(&self, state: &mut State) -> io::Result<()> {
        state
            .writer
            .next_file(&self.folder, &self.name, self.syncer.is_some())?;
        let written = state.writer.write("open", false, |line| {
            line.text("segment", &self.name)
                .number("pid", u64::from(std::process::id()));
        });
        written.map(|_| ())
    }
}

/// The lock of a segment, which is made if absent.
fn segment_lock(folder: &Folder, name: &str) -> io::Result<File> {
    let mut lock = folder.make_file(name, 1)?;
    let patience = Instant::now() + PATIENCE;
    loop {
        match (journal::lock(&lock)?, journal::is_gone(&lock)?) {
            (true, false) => return Ok(lock),
            // An old one of this name was taken away while we waited for it.
            (_, true) => lock = folder.make_file(name, 1)?,
            (false, false) => {}
        }
        if Instant::now() > patience {
            let path = folder.path(name, 1);
            return Err(io::Error::other(format!(
                "the ledger `{}` belongs to another process",
                path.display()
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Ledger {
    /// Without a last line, and with reservations that are open, whoever comes next looks at everything.
    fn drop(&mut self) {
        let open = self.state.get_mut().map_or(1, |state| state.open);
        if open == 0 {
            // A missing last line costs the next owner a look, and nothing else.
            let _ = self.append("close", 0, |_| ());
        }
        let _ = self.flush();
    }
}

/// Faults that tests of the till bring about.
#[cfg(test)]
impl Ledger {
    /// Nothing can be written any more.
    pub(crate) fn cannot_write(&self) {
        let file = File::open("/dev/null").expect("there is always one");
        self.state.lock().expect("it is not poisoned").writer.file = std::sync::Arc::new(file);
    }

    /// What the end of a process does: the lock is free, and nothing is written any more.
    pub(crate) fn give_up(&self) {
        self.cannot_write();
        rustix::fs::flock(&self._lock, rustix::fs::FlockOperation::Unlock).expect("it is ours");
    }
}

#[cfg(test)]
mod tests;
