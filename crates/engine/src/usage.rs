//! Usage of models: projects new ledger lines into the database, answers queries from there, and
//! reports inconsistencies. A ledger that shrank or vanished is noticed because the database knows
//! its length.

mod csv;
mod server_ledger;

pub use csv::{csv, name};
pub use doors::ledger::JournalProblem;
use doors::{
    UsageSource,
    ledger::{self, ChainHead, LedgerReader, LedgerRecord, ReadFault, RecordKind},
};
pub use server_ledger::{SetAsideReport, begin_day, segment_lengths};
use spec::{Day, Timestamp};
use std::{
    fs::File,
    io::{self, BufReader, Seek, SeekFrom},
    path::{Path, PathBuf},
};
use store::UpkeepLock;
use store::{
    DatabaseError,
    usage::{ModelAttempt, SegmentProgress, SettledAttempt, UsageChange, UsageDatabase},
};
pub use store::{
    server_database::TenantActivity,
    usage::{GroupBy, UsageFilter, UsageTotal},
};

/// The folder of the ledger in a state folder.
pub const LEDGER: &str = "ledger";
/// The ledger lines per database transaction.
const BATCH: usize = 4096;
const BUFFER: usize = 256 << 10;

/// Why usage cannot be reported.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The ledger could not be read.
    #[error("cannot read the ledger `{}`: {source}", path.display())]
    Ledger {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl UsageError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            UsageError::Database(error) => error.hint(),
            UsageError::Ledger { .. } => {
                "it must be a folder of yours that nobody else may write to; or choose another state folder with --state DIR"
            }
        }
    }
}

/// The usage projection of a state folder.
#[derive(Debug)]
pub struct UsageProjection {
    folder: PathBuf,
    usage: UsageDatabase,
}

impl UsageProjection {
    /// Opens the projection; it is empty if there is no usage.
    pub fn open(state: &Path) -> Result<UsageProjection, UsageError> {
        Ok(UsageProjection {
            folder: state.join(LEDGER),
            usage: UsageDatabase::open(state)?,
        })
    }

    /// Settles the calls of dead owners and copies new ledger lines. Segments that are damaged are
    /// left out and reported.
    pub fn refresh(&self) -> Result<Vec<JournalProblem>, UsageError> {
        let mut problems = ledger::recover(&self.folder)
            .map_err(|source| self.failed(source))?
            .problems;
        let known = self.usage.segments()?;
        let going = self.usage.retiring_segments()?;
        let there = ledger::segments(&self.folder).map_err(|source| self.failed(source))?;
        for name in known
            .keys()
            .filter(|name| !there.contains_key(*name) && !going.contains(name))
        {
            problems.extend(self.missing_segment(name)?);
        }
        for (name, files) in there.iter().filter(|(name, _)| !going.contains(name)) {
            let problem = self.copy(name, files, known.get(name).copied())?;
            // Recovery has reported it already.
            problems
                .extend(problem.filter(|new| problems.iter().all(|known| known.file != new.file)));
        }
        Ok(problems)
    }

    /// The number of ledger segments.
    pub fn segments(&self) -> Result<usize, UsageError> {
        Ok(ledger::segments(&self.folder)
            .map_err(|source| self.failed(source))?
            .len())
    }

    /// Reads every ledger line and compares the segments with what was copied before.
    pub fn verify(&self) -> Result<Vec<JournalProblem>, UsageError> {
        let mut problems = ledger::verify(&self.folder).map_err(|source| self.failed(source))?;
        // Before the files are read: other processes append to them meanwhile.
        let known = self.usage.segments()?;
        let going = self.usage.retiring_segments()?;
        let there = ledger::segments(&self.folder).map_err(|source| self.failed(source))?;
        for (name, progress) in known.into_iter().filter(|(name, _)| !going.contains(name)) {
            let files = there.get(&name).map(Vec::as_slice).unwrap_or_default();
            let problem = self.find_missing(&name, files, progress)?;
            problems
                .extend(problem.filter(|new| problems.iter().all(|known| known.file != new.file)));
        }
        Ok(problems)
    }

    /// The problem of a segment that has fewer or other lines than were copied before.
    fn find_missing(
        &self,
        name: &str,
        files: &[PathBuf],
        progress: SegmentProgress,
    ) -> Result<Option<JournalProblem>, UsageError> {
        match files.get(progress.part as usize - 1) {
            None => self.missing_segment(name),
            Some(file) => Ok(compare(file, files, progress)),
        }
    }

    /// Copies new lines of segments whose owner is alive. `refresh` reports their problems.
    pub fn copy_live_segments<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
    ) -> Result<(), UsageError> {
        let known = self.usage.segments()?;
        let there = ledger::segments(&self.folder).map_err(|source| self.failed(source))?;
        for name in names {
            if let Some(files) = there.get(name) {
                self.copy(name, files, known.get(name).copied())?;
            }
        }
        Ok(())
    }

    /// Removes the ledgers of runs and of a server's days that ended before this time, once the
    /// database has all their lines. Their costs stay in its sums. Returns how many were removed;
    /// none while a backup is being made.
    pub fn retire(&self, state: &Path, before_ms: u64, now_ms: u64) -> Result<u64, UsageError> {
        let failed = |source| self.failed(source);
        let Some(_alone) = UpkeepLock::try_exclusive(state).map_err(failed)? else {
            return Ok(0);
        };
        for name in self.usage.retiring_segments()? {
            ledger::remove_retired(&self.folder, &name).map_err(failed)?;
            self.usage.finish_retirement(&name)?;
        }
        let mut gone = 0;
        for (name, end) in self.usage.segments()? {
            let before_ms = match &*name {
                name if name.starts_with("run-") => before_ms,
                // Today's segment always stays: the next start reads from it what was spent.
                name if ledger::is_daily_segment(name) => {
                    before_ms.min(Day::of(Timestamp(now_ms)).start().0)
                }
                // The segment of `airlock proxy` is reopened, and its limits depend on it.
                _ => continue,
            };
            let head = ChainHead {
                n: end.n,
                hash: end.hash,
                offset: end.offset,
            };
            // A damaged segment stays, and `verify` reports it.
            let Ok(Some(old)) = ledger::lock_if_retirable(&self.folder, &name, &head, before_ms)
            else {
                continue;
            };
            if self.usage.begin_retirement(&name, end, now_ms)? {
                old.remove().map_err(failed)?;
                self.usage.finish_retirement(&name)?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// The sums, the most expensive first, days in their order. Whether a sum may still change is
    /// as of now.
    pub fn totals(&self, by: GroupBy, filter: &UsageFilter) -> Result<Vec<UsageTotal>, UsageError> {
        Ok(self.usage.statement(by, filter, crate::now())?)
    }

    /// The problem of a segment that is known but missing, unless it was retired.
    fn missing_segment(&self, name: &str) -> Result<Option<JournalProblem>, UsageError> {
        // In this order: a segment that was retired meanwhile is not known any more.
        let is_going = self
            .usage
            .retiring_segments()?
            .iter()
            .any(|going| going == name);
        let known = !is_going && self.usage.segments()?.contains_key(name);
        Ok(known.then(|| missing_segment(self.folder.join(format!("{name}.jsonl")))))
    }

    fn failed(&self, source: io::Error) -> UsageError {
        UsageError::Ledger {
            path: self.folder.clone(),
            source,
        }
    }

    /// Copies the new lines of a segment up to its end, also while another process copies it;
    /// returns its problem.
    fn copy(
        &self,
        name: &str,
        files: &[PathBuf],
        mut from: Option<SegmentProgress>,
    ) -> Result<Option<JournalProblem>, DatabaseError> {
        loop {
            match self.copy_from(name, files, from)? {
                CopyProgress::ToItsEnd(problem) => return Ok(problem),
                CopyProgress::Overtaken => from = self.usage.segments()?.remove(name),
            }
            // A segment that is not known any more was retired.
            if from.is_none() {
                return Ok(None);
            }
        }
    }

    fn copy_from(
        &self,
        name: &str,
        files: &[PathBuf],
        mut from: Option<SegmentProgress>,
    ) -> Result<CopyProgress, DatabaseError> {
        let start = from.unwrap_or(SegmentProgress {
            part: 1,
            offset: 0,
            n: 0,
            hash: [0; 32],
        });
        let mut head = ChainHead {
            n: start.n,
            hash: start.hash,
            offset: start.offset,
        };
        for (index, file) in files.iter().enumerate().skip(start.part as usize - 1) {
            let part = index as u32 + 1;
            let mut reader = match open_at(file, head) {
                Ok(reader) => reader,
                Err(problem) => return Ok(CopyProgress::ToItsEnd(Some(problem))),
            };
            loop {
                let (changes, end) = batch(&mut reader);
                let at = reader.head();
                let to = SegmentProgress {
                    part,
                    offset: at.offset,
                    n: at.n,
                    hash: at.hash,
                };
                if from != Some(to) && !self.usage.add(name, from, to, &changes)? {
                    return Ok(CopyProgress::Overtaken);
                }
                from = Some(to);
                match end {
                    BatchEnd::More => {}
                    BatchEnd::File => break,
                    BatchEnd::Wrong(what) => {
                        let problem = JournalProblem {
                            file: file.clone(),
                            line: at.n + 1,
                            what,
                        };
                        return Ok(CopyProgress::ToItsEnd(Some(problem)));
                    }
                }
            }
            head = ChainHead {
                offset: 0,
                ..reader.head()
            };
        }
        Ok(CopyProgress::ToItsEnd(None))
    }
}

/// How far a segment was copied.
enum CopyProgress {
    /// Up to its end, or to a problem.
    ToItsEnd(Option<JournalProblem>),
    /// Another process has copied some of the same lines: continue from its progress.
    Overtaken,
}

type SegmentReader = LedgerReader<BufReader<File>>;

fn open_at(path: &Path, head: ChainHead) -> Result<SegmentReader, JournalProblem> {
    let problem = |what| JournalProblem {
        file: path.to_owned(),
        line: 0,
        what,
    };
    let open = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(head.offset))?;
        Ok::<_, io::Error>((file, length))
    };
    match open() {
        Ok((_, length)) if length < head.offset => Err(problem(SHRANK.to_owned())),
        Ok((file, _)) => Ok(LedgerReader::new(
            BufReader::with_capacity(BUFFER, file),
            head,
        )),
        Err(error) => Err(problem(error.to_string())),
    }
}

const SHRANK: &str = "it was longer: lines that were read before are gone";

fn missing_segment(file: PathBuf) -> JournalProblem {
    JournalProblem {
        file,
        line: 0,
        what: "it is gone, but what it said is known".to_owned(),
    }
}

/// The problem of a segment whose lines differ from what was copied.
fn compare(file: &Path, files: &[PathBuf], progress: SegmentProgress) -> Option<JournalProblem> {
    let problem = |what: &str| {
        Some(JournalProblem {
            file: file.to_owned(),
            line: 0,
            what: what.to_owned(),
        })
    };
    let mut head = ChainHead::default();
    for path in files {
        let Ok(mut reader) = open_at(path, ChainHead { offset: 0, ..head }) else {
            return None;
        };
        while reader.head().n < progress.n {
            match reader.next_record() {
                Ok(Some(_)) => {}
                Ok(None) | Err(ReadFault::Torn) => break,
                // `verify` reports damaged lines.
                Err(_) => return None,
            }
        }
        head = reader.head();
        if head.n == progress.n {
            break;
        }
    }
    match (head.n == progress.n, head.hash == progress.hash) {
        (false, _) => problem(SHRANK),
        (true, false) => problem("it is not the one that was read before"),
        (true, true) => None,
    }
}

enum BatchEnd {
    More,
    File,
    Wrong(String),
}

/// Reads up to [`BATCH`] changes.
fn batch(reader: &mut SegmentReader) -> (Vec<UsageChange>, BatchEnd) {
    let mut changes = Vec::new();
    let end = loop {
        if changes.len() >= BATCH {
            break BatchEnd::More;
        }
        match reader.next_record() {
            Ok(Some(row)) => changes.extend(change(&row)),
            // An incomplete last line is being written; the next copy reads it.
            Ok(None) | Err(ReadFault::Torn) => break BatchEnd::File,
            Err(fault) => break BatchEnd::Wrong(fault.to_string()),
        }
    };
    (changes, end)
}

fn change(row: &LedgerRecord<'_>) -> Option<UsageChange> {
    match row.kind {
        RecordKind::Reserve => Some(UsageChange::Reserved(ModelAttempt {
            n: row.n,
            at_ms: row.at,
            run: row.run.to_string(),
            session: row.session.to_string(),
            tenant: row.tenant.to_string(),
            door: row.door.to_string(),
            provider: row.provider.to_string(),
            model: row.model.to_string(),
            operation: row.operation.to_string(),
            attempt: row.attempt,
            price_book: row.price_book.to_string(),
            reserved: row.money,
        })),
        RecordKind::Settle => Some(UsageChange::Settled(ended(row))),
        RecordKind::Open
        | RecordKind::Inject
        | RecordKind::Egress
        | RecordKind::Revoke
        | RecordKind::Close => None,
    }
}

fn ended(row: &LedgerRecord<'_>) -> SettledAttempt {
    let usage = &row.usage;
    SettledAttempt {
        n: row.of,
        source: match row.source {
            Some(UsageSource::Final) => "final",
            Some(UsageSource::Partial) => "partial",
            Some(UsageSource::Estimated) => "estimated",
            Some(UsageSource::Reserved) | None => "reserved",
        },
        money: row.money,
        overrun: row.overrun,
        status: row.status,
        ending: row.ending.to_string(),
        duration_ms: row.duration_ms,
        counts: [
            usage.input,
            usage.cache_read,
            usage.cache_write_5m,
            usage.cache_write_1h,
            usage.audio_in,
            usage.output,
            usage.reasoning,
            usage.audio_out,
            usage.tool_requests,
        ],
    }
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
