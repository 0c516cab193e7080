//! Crash recovery: replays segments without a live owner, settles open reservations in full, and
//! detects tampering.

use super::{
    CallOutcome, Ledger, SegmentState,
    reader::LedgerReader,
    record::{LedgerRecord, RecordKind},
};
use crate::usage::UsageSource;
use journal::{ChainHead, JournalDir, JournalProblem, JournalWriter, ReadFault};
use spec::Money;
use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, atomic::AtomicBool},
};

const MS_PER_DAY: u64 = 86_400_000;
const READ_BUFFER: usize = 256 << 10;

/// Recovered usage, as far as limits depend on it.
#[derive(Debug, Default)]
pub struct RecoveredUsage {
    /// By name.
    pub tenants: HashMap<String, PastUsage>,
    /// By name, without revoked sessions.
    pub sessions: HashMap<String, PastUsage>,
    /// Usage of the run whose own segment this is.
    pub run: PastUsage,
    /// Number of reservations that were never settled.
    pub lost: u64,
    /// Their total.
    pub lost_money: Money,
}

/// Recorded usage of one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PastUsage {
    /// Number of calls.
    pub calls: u64,
    /// Tokens that count towards limits; a lost reservation counts in full.
    pub tokens: u64,
    /// Input tokens, cached ones included.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens that were read from a cache.
    pub cached_tokens: u64,
    /// The charges.
    pub money: Money,
    /// The part of the charges beyond the reservations.
    pub overrun: Money,
    /// The last day with a settlement, in days since 1970.
    pub day: u64,
    /// The charges of that day.
    pub day_money: Money,
}

/// The result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Segments that were settled and closed.
    pub segments: u64,
    /// Segments with a live owner.
    pub live: u64,
    /// Reservations that were never settled.
    pub lost: u64,
    /// Their total.
    pub lost_money: Money,
    /// Segments that failed verification; they are unchanged.
    pub problems: Vec<JournalProblem>,
}

/// Segment names and the paths of their files, in order.
pub type Segments = std::collections::BTreeMap<String, Vec<PathBuf>>;

/// The segments of a folder; empty if there is no folder.
pub fn segments(folder: &Path) -> io::Result<Segments> {
    let Some(folder) = open_existing(folder)? else {
        return Ok(Segments::new());
    };
    let paths = |name: &str, parts: Vec<u32>| {
        parts
            .into_iter()
            .map(|part| folder.path(name, part))
            .collect()
    };
    Ok(folder
        .segments()?
        .into_iter()
        .map(|(name, parts)| (name.clone(), paths(&name, parts)))
        .collect())
}

/// Settles and closes the segments of dead owners.
pub fn recover(folder: &Path) -> io::Result<RecoveryReport> {
    let mut report = RecoveryReport::default();
    let Some(opened) = open_existing(folder)? else {
        return Ok(report);
    };
    for (name, parts) in opened.segments()? {
        // An unreadable segment is reported below and does not stop the others.
        if is_cleanly_closed(&opened, &name, &parts).unwrap_or(false) {
            continue;
        }
        match recover_segment(folder, &name) {
            Ok(None) => report.live += 1,
            Ok(Some(recovered)) => {
                report.segments += 1;
                report.lost += recovered.0;
                report.lost_money = report.lost_money.plus(recovered.1);
            }
            Err(error) => {
                let problem =
                    error
                        .downcast::<JournalProblem>()
                        .unwrap_or_else(|error| JournalProblem {
                            file: opened.path(&name, 1),
                            line: 0,
                            what: error.to_string(),
                        });
                report.problems.push(problem);
            }
        }
    }
    Ok(report)
}

/// `None` if the segment has a live owner. Dropping the ledger closes it.
fn recover_segment(folder: &Path, name: &str) -> io::Result<Option<(u64, Money)>> {
    let folder = JournalDir::open(folder)?;
    let lock = folder.append(name, 1)?;
    if !journal::try_lock(&lock)? {
        return Ok(None);
    }
    let ledger = take_over(folder, name, lock)?;
    Ok(Some((ledger.recovered.lost, ledger.recovered.lost_money)))
}

/// Locks a segment for removal if it was closed before this time, passes verification, and ends at
/// `end`, where the caller has read to. Nobody can take the segment while the result lives.
pub fn lock_if_retirable(
    folder: &Path,
    name: &str,
    end: &ChainHead,
    before_ms: u64,
) -> io::Result<Option<RetirableSegment>> {
    let Some(folder) = open_existing(folder)? else {
        return Ok(None);
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    let Some(last) = parts.last() else {
        return Ok(None);
    };
    // Most segments are newer and need not be read.
    if folder.changed_ms(name, *last)? >= before_ms || !is_cleanly_closed(&folder, name, &parts)? {
        return Ok(None);
    }
    let lock = folder.append(name, 1)?;
    if !journal::try_lock(&lock)? {
        return Ok(None);
    }
    let replay = replay(&folder, name, &parts).map_err(io::Error::other)?;
    let is_read = (replay.head.n, replay.head.hash) == (end.n, end.hash);
    let is_over = replay.open.is_empty() && !replay.torn && replay.last_ms < before_ms;
    Ok((is_read && is_over).then(|| RetirableSegment {
        folder,
        name: name.to_owned(),
        parts,
        _lock: lock,
    }))
}

/// A locked segment that may be removed.
#[derive(Debug)]
pub struct RetirableSegment {
    folder: JournalDir,
    name: String,
    parts: Vec<u32>,
    _lock: File,
}

impl RetirableSegment {
    /// Removes the files, last one first: what a crash leaves is a valid start of a segment.
    pub fn remove(self) -> io::Result<()> {
        self.parts
            .iter()
            .rev()
            .try_for_each(|part| self.folder.remove(&self.name, *part))?;
        self.folder.sync()
    }
}

/// Completes a removal that a crash interrupted.
pub fn remove_retired(folder: &Path, name: &str) -> io::Result<()> {
    let Some(folder) = open_existing(folder)? else {
        return Ok(());
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    parts
        .iter()
        .rev()
        .try_for_each(|part| folder.remove(name, *part))?;
    folder.sync()
}

/// Moves the files of an unowned segment into a folder, which is created if absent; returns whether
/// there were any.
pub fn set_aside(folder: &Path, name: &str, place: &Path) -> io::Result<bool> {
    let Some(folder) = open_existing(folder)? else {
        return Ok(false);
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    if parts.is_empty() {
        return Ok(false);
    }
    // Held until all files are moved, so that nobody takes a part of the segment.
    let lock = folder.make_file(name, 1)?;
    if !journal::try_lock(&lock)? {
        return Err(io::Error::other(format!(
            "the ledger `{name}` belongs to another process"
        )));
    }
    std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
        .create(place)?;
    // Last file first: what a crash leaves is a valid start of a segment.
    for part in folder
        .segments()?
        .remove(name)
        .unwrap_or_default()
        .iter()
        .rev()
    {
        let path = folder.path(name, *part);
        let file = path.file_name().ok_or(ErrorKind::InvalidInput)?;
        std::fs::rename(&path, place.join(file))?;
    }
    folder.sync()?;
    Ok(true)
}

/// Verifies one segment and returns its first problem. A torn last line is none: the next owner
/// truncates it.
pub fn verify_segment(folder: &Path, name: &str) -> io::Result<Option<JournalProblem>> {
    let Some(folder) = open_existing(folder)? else {
        return Ok(None);
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    Ok(replay(&folder, name, &parts).err())
}

/// Verifies every segment and returns their problems.
pub fn verify(folder: &Path) -> io::Result<Vec<JournalProblem>> {
    let Some(folder) = open_existing(folder)? else {
        return Ok(Vec::new());
    };
    let mut problems = Vec::new();
    for (name, parts) in folder.segments()? {
        let live = || {
            folder
                .append(&name, 1)
                .and_then(|file| journal::try_lock(&file))
                .is_ok_and(|free| !free)
        };
        let before = live();
        match replay(&folder, &name, &parts) {
            // A live owner may be in the middle of a line.
            Ok(replay) if replay.torn && !before && !live() => problems.push(JournalProblem {
                file: folder.path(&name, *parts.last().unwrap_or(&1)),
                line: replay.line,
                what: ReadFault::Torn.to_string(),
            }),
            Ok(_) => {}
            Err(problem) => problems.push(problem),
        }
    }
    Ok(problems)
}

pub(super) fn open_existing(folder: &Path) -> io::Result<Option<JournalDir>> {
    match JournalDir::open(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Takes over a locked segment: replays it, truncates a torn line, and settles open reservations.
pub(super) fn take_over(folder: JournalDir, name: &str, lock: File) -> io::Result<Ledger> {
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    let replay = replay(&folder, name, &parts).map_err(io::Error::other)?;
    let part = parts.last().copied().unwrap_or(1);
    let file = folder.append(name, part)?;
    if replay.torn {
        rustix::fs::ftruncate(&file, replay.head.offset)?;
    }
    let state = SegmentState {
        writer: JournalWriter::new(super::JOURNAL_NAME, file, part, replay.head),
        open: replay.open.len() as u64,
    };
    let mut ledger = Ledger {
        folder,
        name: name.to_owned(),
        largest: super::MAX_FILE_BYTES,
        state: Mutex::new(state),
        syncer: None,
        recovered: RecoveredUsage::default(),
        writing: AtomicBool::new(false),
        _lock: lock,
    };
    ledger.recovered = settle_lost(&ledger, replay)?;
    Ok(ledger)
}

fn settle_lost(ledger: &Ledger, mut replay: SegmentReplay) -> io::Result<RecoveredUsage> {
    let mut open: Vec<(u64, OpenReservation)> = replay.open.drain().collect();
    open.sort_unstable_by_key(|(n, _)| *n);
    let today = journal::now_ms() / MS_PER_DAY;
    for (n, mut reserved) in open {
        reserved.spent.day = today;
        ledger.settle(n, &CallOutcome::unknown(reserved.spent.money, "lost"))?;
        replay.recovered.lost += 1;
        replay.recovered.lost_money = replay.recovered.lost_money.plus(reserved.spent.money);
        replay.count(reserved);
    }
    Ok(replay.recovered)
}

/// A reservation without settlement.
struct OpenReservation {
    run: String,
    session: String,
    tenant: String,
    /// Its cost until a settlement is found.
    spent: PastUsage,
}

pub(super) struct SegmentReplay {
    segment: String,
    head: ChainHead,
    line: u64,
    /// Time of the last record.
    last_ms: u64,
    torn: bool,
    open: HashMap<u64, OpenReservation>,
    pub(super) recovered: RecoveredUsage,
}

/// Replays a segment from its start; stops at the first problem.
pub(super) fn replay(
    folder: &JournalDir,
    name: &str,
    parts: &[u32],
) -> Result<SegmentReplay, JournalProblem> {
    let mut replay = SegmentReplay {
        segment: name.to_owned(),
        head: ChainHead::default(),
        line: 0,
        last_ms: 0,
        torn: false,
        open: HashMap::new(),
        recovered: RecoveredUsage::default(),
    };
    for (index, &part) in parts.iter().enumerate() {
        let problem = |line, what| JournalProblem {
            file: folder.path(name, part),
            line,
            what,
        };
        if part as usize != index + 1 {
            return Err(problem(0, "the file before it is missing".to_owned()));
        }
        let file = folder
            .read(name, part)
            .map_err(|error| problem(0, error.to_string()))?;
        let last = part as usize == parts.len();
        replay
            .file(file, last)
            .map_err(|what| problem(replay.line, what))?;
    }
    Ok(replay)
}

impl SegmentReplay {
    fn file(&mut self, file: File, last: bool) -> Result<(), String> {
        let head = ChainHead {
            offset: 0,
            ..self.head
        };
        let mut reader = LedgerReader::new(BufReader::with_capacity(READ_BUFFER, file), head);
        loop {
            let read = reader.next_record();
            match read {
                Ok(Some(record)) => self.record(&record)?,
                Ok(None) => break,
                Err(ReadFault::Torn) if last => {
                    self.torn = true;
                    break;
                }
                Err(fault) => {
                    self.line = reader.line();
                    return Err(fault.to_string());
                }
            }
            self.line = reader.line();
        }
        self.head = reader.head();
        self.line = reader.line();
        Ok(())
    }

    fn record(&mut self, record: &LedgerRecord<'_>) -> Result<(), String> {
        self.last_ms = self.last_ms.max(record.at);
        match record.kind {
            RecordKind::Open if record.segment != self.segment => {
                return Err(format!(
                    "it belongs to the segment `{}`",
                    record.segment.escape_debug()
                ));
            }
            RecordKind::Reserve => {
                let spent = PastUsage {
                    calls: 1,
                    tokens: record.tokens,
                    money: Money(record.money),
                    day: record.at / MS_PER_DAY,
                    ..PastUsage::default()
                };
                let run = record.run.clone().into_owned();
                let session = record.session.clone().into_owned();
                let tenant = record.tenant.clone().into_owned();
                self.open.insert(
                    record.n,
                    OpenReservation {
                        run,
                        session,
                        tenant,
                        spent,
                    },
                );
            }
            RecordKind::Settle => {
                let mut reserved = self
                    .open
                    .remove(&record.of)
                    .ok_or("it settles what is not reserved".to_owned())?;
                reserved.settle(record);
                self.count(reserved);
            }
            RecordKind::Revoke => {
                self.recovered.sessions.remove(&*record.session);
            }
            RecordKind::Open | RecordKind::Inject | RecordKind::Egress | RecordKind::Close => {}
        }
        Ok(())
    }

    fn count(&mut self, reserved: OpenReservation) {
        if !reserved.tenant.is_empty() {
            self.recovered
                .tenants
                .entry(reserved.tenant)
                .or_default()
                .add(&reserved.spent);
        }
        // A run that is its own session ends with its owner; a server that runs for years would
        // collect many.
        if !reserved.session.is_empty() && reserved.session != reserved.run {
            self.recovered
                .sessions
                .entry(reserved.session)
                .or_default()
                .add(&reserved.spent);
        }
        if self.segment.strip_prefix("run-") == Some(&reserved.run) {
            self.recovered.run.add(&reserved.spent);
        }
    }
}

impl OpenReservation {
    fn settle(&mut self, record: &LedgerRecord<'_>) {
        let spent = &mut self.spent;
        // As at settlement: a call over midnight counts on the day it ended.
        spent.day = record.at / MS_PER_DAY;
        spent.money = Money(record.money);
        spent.overrun = Money(record.overrun);
        if record.source != Some(UsageSource::Reserved) {
            spent.tokens = record.usage.tokens();
        }
        spent.input_tokens = record.usage.input_tokens();
        spent.output_tokens = record.usage.output_tokens();
        spent.cached_tokens = record.usage.cache_read;
    }
}

impl PastUsage {
    /// Setting a clock back must not free budget: usage that seems older counts on the last day,
    /// too.
    pub(super) fn add(&mut self, spent: &PastUsage) {
        if spent.day > self.day {
            self.day = spent.day;
            self.day_money = Money::ZERO;
        }
        self.day_money = self.day_money.plus(spent.money);
        self.calls += spent.calls;
        self.tokens = self.tokens.saturating_add(spent.tokens);
        self.input_tokens = self.input_tokens.saturating_add(spent.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(spent.output_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(spent.cached_tokens);
        self.money = self.money.plus(spent.money);
        self.overrun = self.overrun.plus(spent.overrun);
    }
}

/// Whether the last record is a close record; then nothing is open. Only `verify` reads the rest.
pub(super) fn is_cleanly_closed(
    folder: &JournalDir,
    name: &str,
    parts: &[u32],
) -> io::Result<bool> {
    const TAIL_BYTES: u64 = 512;
    let Some(&part) = parts.last() else {
        return Ok(true);
    };
    let mut file = folder.read(name, part)?;
    let size = folder.size(name, part)?;
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL_BYTES)))?;
    let mut end = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut end)?;
    let Some(lines) = end.strip_suffix(b"\n") else {
        return Ok(false);
    };
    let line = lines
        .rsplit(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    Ok(serde_json::from_slice::<LedgerRecord<'_>>(line)
        .is_ok_and(|record| record.kind == RecordKind::Close))
}
