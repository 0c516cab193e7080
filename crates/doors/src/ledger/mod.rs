//! The ledger: a write-ahead log of reservations and settlements, written before the first byte of a call
//! is sent. Each segment has one owner; each file has one JSON object per line, chained by hashes.
//!
//! ```text
//! open ─▶ reserve ─▶ settle     a reservation without settlement counts in full: its owner died,
//!           │                    and the next owner of the segment settles it as `lost`
//!           └──────▶ settle
//! ```

mod daily_segments;
mod reader;
mod record;
mod recovery;

pub use daily_segments::{
    OWNER_SEGMENT, daily_segment, is_daily_segment, may_hold_usage_of, recover_past_usage,
};
pub use journal::{ChainHead, Durability, JournalProblem, ReadFault};
pub use reader::LedgerReader;
pub use record::{LedgerRecord, RecordKind};
pub use recovery::{
    PastUsage, RecoveredUsage, RecoveryReport, RetirableSegment, Segments, lock_if_retirable,
    recover, remove_retired, segments, set_aside, verify, verify_segment,
};

use crate::usage::{TokenUsage, UsageSource};
use journal::{JournalDir, JournalWriter, LineWriter, MAX_FILE_BYTES, Syncer};
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

/// The journal's name in messages.
const JOURNAL_NAME: &str = "ledger";
/// Settlements are written within this time.
const MAX_SETTLE_DELAY: Duration = Duration::from_millis(5);
/// A sweep may hold the lock of our segment for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Who calls which model.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct ModelCall {
    /// The run.
    pub run: String,
    /// The session.
    pub session: String,
    /// The tenant; may be empty.
    pub tenant: String,
    /// `llm` or `inference`.
    pub door: String,
    /// Name of the provider.
    pub provider: String,
    /// The provider's name for the model.
    pub model: String,
    /// The API operation.
    pub operation: String,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// Version of the price book.
    pub price_book: String,
}

/// The run that a record is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunIdentity<'a> {
    /// The run.
    pub run: &'a str,
    /// Empty for a run without a tenant.
    pub tenant: &'a str,
}

impl<'a> From<&'a str> for RunIdentity<'a> {
    fn from(run: &'a str) -> RunIdentity<'a> {
        RunIdentity { run, tenant: "" }
    }
}

/// The outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CallOutcome {
    /// Token usage.
    pub usage: TokenUsage,
    /// How the usage is known.
    pub source: UsageSource,
    /// The charge.
    pub money: Money,
    /// The part of the cost beyond the reservation.
    pub overrun: Money,
    /// The provider's HTTP status; 0 if there was no response.
    pub status: u16,
    /// `complete`, `cut`, `overrun`, `client_gone`, `upstream_failed`, `revoked`, …
    pub ending: String,
    /// From the request to the end of the response.
    pub duration_ms: u64,
}

impl CallOutcome {
    /// Clamps to the maximum per call, so that ledger and database show the same numbers.
    #[must_use]
    pub(crate) fn within_bounds(self) -> CallOutcome {
        CallOutcome {
            usage: self.usage.within(spec::MAX_TOKENS_PER_CALL),
            money: self.money.min(Money::MAX_PER_CALL),
            ..self
        }
    }

    /// Nothing is known except the charge.
    pub fn unknown(money: Money, ending: &str) -> CallOutcome {
        CallOutcome {
            usage: TokenUsage::default(),
            source: UsageSource::Reserved,
            money,
            overrun: Money::ZERO,
            status: 0,
            ending: ending.to_owned(),
            duration_ms: 0,
        }
    }
}

/// The fields of an egress record.
#[derive(Debug)]
pub(crate) struct EgressRecord<'a> {
    pub(crate) texts: [(&'static str, &'a str); 7],
    pub(crate) numbers: [(&'static str, u64); 4],
}

/// A ledger segment that this process owns.
#[derive(Debug)]
pub struct Ledger {
    folder: JournalDir,
    name: String,
    largest: u64,
    state: Mutex<SegmentState>,
    syncer: Option<Syncer>,
    recovered: RecoveredUsage,
    /// A delayed flush is scheduled.
    writing: AtomicBool,
    /// Held until drop; the first file of the segment.
    _lock: File,
}

#[derive(Debug)]
struct SegmentState {
    /// Settlements may be buffered: losing one counts more, never less.
    writer: JournalWriter,
    /// Number of open reservations.
    open: u64,
}

impl Ledger {
    /// Opens a segment in a folder, which is created if absent (mode 0700); an existing segment is
    /// recovered and continued.
    pub fn open(folder: &Path, name: &str, durability: Durability) -> io::Result<Ledger> {
        Ledger::open_with(folder, name, durability, MAX_FILE_BYTES)
    }

    fn open_with(
        folder: &Path,
        name: &str,
        durability: Durability,
        largest: u64,
    ) -> io::Result<Ledger> {
        if !journal::is_valid_name(name) {
            return Err(io::Error::other(format!(
                "`{}` is no name for a ledger",
                name.escape_debug()
            )));
        }
        let folder = JournalDir::make(folder)?;
        let lock = segment_lock(&folder, name)?;
        let mut ledger = recovery::take_over(folder, name, lock)?;
        ledger.largest = largest;
        if durability == Durability::Power {
            ledger.folder.sync()?;
            ledger.syncer = Some(Syncer::start(JOURNAL_NAME)?);
        }
        ledger.write_open_record()?;
        Ok(ledger)
    }

    /// The usage that previous owners of this segment recorded.
    pub fn recovered_usage(&self) -> &RecoveredUsage {
        &self.recovered
    }

    /// Adds the usage of tenants in other segments.
    pub fn add_past_usage(&mut self, past: RecoveredUsage, today: Day) {
        self.recovered.join(past, today);
    }

    /// Name of the segment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Records a reservation; returns the number by which it is settled.
    pub fn reserve(&self, call: &ModelCall, money: Money, tokens: u64) -> io::Result<u64> {
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

    /// Waits until the record is as durable as configured.
    pub async fn wait_durable(&self, n: u64) -> io::Result<()> {
        match &self.syncer {
            Some(syncer) => syncer.wait(n).await,
            None => Ok(()),
        }
    }

    /// Records how the reservation `of` ended.
    pub fn settle(&self, of: u64, outcome: &CallOutcome) -> io::Result<()> {
        let source = match outcome.source {
            UsageSource::Final => "final",
            UsageSource::Partial => "partial",
            UsageSource::Estimated => "estimated",
            UsageSource::Reserved => "reserved",
        };
        let written = self.append("settle", -1, |line| {
            line.number("of", of)
                .text("source", source)
                .number("money", outcome.money.0)
                .number("overrun", outcome.overrun.0)
                .number("status", u64::from(outcome.status))
                .text("ending", &outcome.ending)
                .number("duration_ms", outcome.duration_ms);
            record::write_usage(line, &outcome.usage);
        });
        written.map(|_| ())
    }

    /// Records that a secret was injected into a run.
    pub fn record_injection(
        &self,
        run_identity: RunIdentity<'_>,
        secret: &str,
        variable: &str,
    ) -> io::Result<()> {
        let written = self.append("inject", 0, |line| {
            line.text("run", run_identity.run)
                .text("tenant", run_identity.tenant)
                .text("secret", secret)
                .text("variable", variable);
        });
        written.map(|_| ())
    }

    /// Records what passed or was refused at an egress door.
    pub(crate) fn record_egress(
        &self,
        run_identity: RunIdentity<'_>,
        record: &EgressRecord<'_>,
    ) -> io::Result<()> {
        let written = self.append("egress", 0, |line| {
            line.text("run", run_identity.run)
                .text("tenant", run_identity.tenant);
            for (name, text) in record.texts {
                line.text(name, text);
            }
            for (name, number) in record.numbers {
                line.number(name, number);
            }
        });
        written.map(|_| ())
    }

    /// Records the end of a session. Its usage stays with the tenant; the name starts from zero.
    pub fn record_revocation(&self, run: &str, session: &str) -> io::Result<()> {
        let written = self.append("revoke", 0, |line| {
            line.text("run", run).text("session", session);
        });
        written.map(|_| ())
    }

    fn write_open_record(&self) -> io::Result<u64> {
        self.append("open", 0, |line| {
            line.text("segment", &self.name)
                .number("pid", u64::from(std::process::id()))
                .text("version", env!("CARGO_PKG_VERSION"));
        })
    }

    /// Writes buffered records. Otherwise they are written with the next reservation.
    pub fn flush(&self) -> io::Result<()> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .writer
            .flush()
    }

    /// Flushes settlements after a short delay, to batch them; at once where there is no runtime to
    /// do it later.
    pub(crate) fn flush_soon(self: &Arc<Ledger>) {
        if self.writing.swap(true, Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.writing.store(false, Ordering::Relaxed);
            // An unwritten settlement leaves its reservation open, which counts in full.
            _ = self.flush();
            return;
        };
        // Dropping the last reference flushes.
        let ledger = Arc::downgrade(self);
        runtime.spawn(async move {
            tokio::time::sleep(MAX_SETTLE_DELAY).await;
            if let Some(ledger) = ledger.upgrade() {
                ledger.writing.store(false, Ordering::Relaxed);
                _ = ledger.flush();
            }
        });
    }

    /// Appends a record. Settlements are buffered, everything else is written at once. `open` is
    /// the change in the number of open reservations.
    fn append(
        &self,
        kind: &str,
        open: i64,
        write_fields: impl FnOnce(&mut LineWriter<'_>),
    ) -> io::Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.writer.length() >= self.largest && kind != "open" {
            self.next_file(&mut state)?;
        }
        let may_wait = kind == "settle" && self.syncer.is_none();
        let n = state.writer.write(kind, may_wait, write_fields)?;
        state.open = state.open.saturating_add_signed(open);
        if let Some(syncer) = &self.syncer {
            syncer.request(n, &state.writer.file);
        }
        Ok(n)
    }

    /// Continues the hash chain in the next file: its first record follows from the last of this
    /// one.
    fn next_file(&self, state: &mut SegmentState) -> io::Result<()> {
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

/// Takes the lock of a segment, which is created if absent.
fn segment_lock(folder: &JournalDir, name: &str) -> io::Result<File> {
    let mut lock = folder.make_file(name, 1)?;
    let patience = Instant::now() + LOCK_TIMEOUT;
    loop {
        match (journal::try_lock(&lock)?, journal::is_unlinked(&lock)?) {
            (true, false) => return Ok(lock),
            // The old file was removed while we waited for its lock.
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
    /// Without a close record, or with open reservations, the next owner replays the whole segment.
    fn drop(&mut self) {
        let open = self.state.get_mut().map_or(1, |state| state.open);
        if open == 0 {
            // A missing close record only costs the next owner a replay.
            let _ = self.append("close", 0, |_| ());
        }
        let _ = self.flush();
    }
}

/// Fault injection for budget tests.
#[cfg(test)]
impl Ledger {
    /// Makes every write fail.
    pub(crate) fn cannot_write(&self) {
        let file = File::open("/dev/null").expect("there is always one");
        self.state.lock().expect("it is not poisoned").writer.file = std::sync::Arc::new(file);
    }

    /// Simulates the end of the process: the lock is free, and nothing more is written.
    pub(crate) fn give_up(&self) {
        self.cannot_write();
        rustix::fs::flock(&self._lock, rustix::fs::FlockOperation::Unlock).expect("it is ours");
    }
}

#[cfg(test)]
mod tests;
