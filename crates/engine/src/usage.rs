//! What models were used for: copies what is new in the ledger's segments into the database, answers questions from there,
//! and says what does not fit together. A ledger that shrank or vanished is noticed because the database knows more.

mod csv;
mod own;

pub use csv::{csv, name};
pub use doors::ledger::Problem;
use doors::{
    Source,
    ledger::{self, Fault, Head, Kind, Reader, Row},
};
pub use own::{Aside, begin_day, lengths};
use spec::{Day, Timestamp};
use std::{
    fs::File,
    io::{self, BufReader, Seek, SeekFrom},
    path::{Path, PathBuf},
};
use store::Upkeep;
use store::{
    DatabaseError,
    usage::{Attempt, Change, Ended, Progress, Usage},
};
pub use store::{
    served::DayUse,
    usage::{By, Filter, Total},
};

/// Where the ledger lies in a state folder.
pub const LEDGER: &str = "ledger";
/// Lines between two writes to the database.
const BATCH: usize = 4096;
const BUFFER: usize = 256 << 10;

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The ledger's folder.
    #[error("cannot read the ledger `{}`: {source}", path.display())]
    Ledger {
        /// Where it is.
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

/// The usage of a state folder.
#[derive(Debug)]
pub struct Books {
    folder: PathBuf,
    usage: Usage,
}

impl Books {
    /// Opens them; empty if nothing was ever used.
    pub fn open(state: &Path) -> Result<Books, UsageError> {
        Ok(Books {
            folder: state.join(LEDGER),
            usage: Usage::open(state)?,
        })
    }

    /// Settles what dead owners left, and copies what is new. What cannot be believed is left out, and named.
    pub fn refresh(&self) -> Result<Vec<Problem>, UsageError> {
        let mut problems = ledger::recover(&self.folder)
            .map_err(|source| self.failed(source))?
            .problems;
        let (known, going) = (self.usage.segments()?, self.usage.retiring()?);
        let there = ledger::segments(&self.folder).map_err(|source| self.failed(source))?;
        for name in known
            .keys()
            .filter(|name| !there.contains_key(*name) && !going.contains(name))
        {
            problems.extend(self.gone(name)?);
        }
        for (name, files) in there.iter().filter(|(name, _)| !going.contains(name)) {
            let problem = self.copy(name, files, known.get(name).copied())?;
            // Recovery has named it already.
            problems
                .extend(problem.filter(|new| problems.iter().all(|known| known.file != new.file)));
        }
        Ok(problems)
    }

    /// How many segments there are.
    pub fn segments(&self) -> Result<usize, UsageError> {
        Ok(ledger::segments(&self.folder)
            .map_err(|source| self.failed(source))?
            .len())
    }

    /// Reads every line that there is, and compares with what was read before.
    pub fn verify(&self) -> Result<Vec<Problem>, UsageError> {
        let mut problems = ledger::verify(&self.folder).map_err(|source| self.failed(source))?;
        // Before the files: others go on, and what is known is there.
        let (known, going) = (self.usage.segments()?, self.usage.retiring()?);
        let there = ledger::segments(&self.folder).map_err(|source| self.failed(source))?;
        for (name, progress) in known.into_iter().filter(|(name, _)| !going.contains(name)) {
            let files = there.get(&name).map(Vec::as_slice).unwrap_or_default();
            let problem = self.lacks(&name, files, progress)?;
            problems
                .extend(problem.filter(|new| problems.iter().all(|known| known.file != new.file)));
        }
        Ok(problems)
    }

    /// Whether a segment says less than was read from it, or other things.
    fn lacks(
        &self,
        name: &str,
        files: &[PathBuf],
        progress: Progress,
    ) -> Result<Option<Problem>, UsageError> {
        match files.get(progress.part as usize - 1) {
            None => self.gone(name),
            Some(file) => Ok(compare(file, files, progress)),
        }
    }

    /// Copies what is new in segments whose owner lives. What is wrong with them a refresh says.
    pub fn follow<'a>(
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

    /// Takes away the ledgers of runs, and of days of a server, that ended before this time, once the database knows all that they
    /// say. What they cost stays in its sums. How many went; none while a backup is being made.
    pub fn retire(&self, state: &Path, before_ms: u64, now_ms: u64) -> Result<u64, UsageError> {
        let failed = |source| self.failed(source);
        let Some(_alone) = Upkeep::alone(state).map_err(failed)? else {
            return Ok(0);
        };
        for name in self.usage.retiring()? {
            ledger::remove_retired(&self.folder, &name).map_err(failed)?;
            self.usage.retired(&name)?;
        }
        let mut gone = 0;
        for (name, end) in self.usage.segments()? {
            let before_ms = match &*name {
                name if name.starts_with("run-") => before_ms,
                // Whatever is kept: what was spent today is asked for by the next start.
                name if ledger::is_of_day(name) => {
                    before_ms.min(Day::of(Timestamp(now_ms)).start().0)
                }
                // That of `airlock proxy` is taken up again, and limits ask what it says.
                _ => continue,
            };
            let head = Head {
                n: end.n,
                hash: end.hash,
                offset: end.offset,
            };
            // One that cannot be believed stays, and is named by whoever verifies.
            let Ok(Some(old)) = ledger::retirable(&self.folder, &name, &head, before_ms) else {
                continue;
            };
            if self.usage.begin_to_retire(&name, end, now_ms)? {
                old.remove().map_err(failed)?;
                self.usage.retired(&name)?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// Sums, the dearest first; days in their order. Which of them may still change is said as of now.
    pub fn totals(&self, by: By, filter: &Filter) -> Result<Vec<Total>, UsageError> {
        Ok(self.usage.statement(by, filter, crate::now())?)
    }

    /// A segment is known and not there, unless it was taken away by the rules since.
    fn gone(&self, name: &str) -> Result<Option<Problem>, UsageError> {
        // In this order: what has gone meanwhile is not known any more.
        let is_going = self.usage.retiring()?.iter().any(|going| going == name);
        let known = !is_going && self.usage.segments()?.contains_key(name);
        Ok(known.then(|| gone(self.folder.join(format!("{name}.jsonl")))))
    }

    fn failed(&self, source: io::Error) -> UsageError {
        UsageError::Ledger {
            path: self.folder.clone(),
            source,
        }
    }

    /// Copies what is new in a segment, to its end, whoever else copies it meanwhile; what is wrong with it.
    fn copy(
        &self,
        name: &str,
        files: &[PathBuf],
        mut from: Option<Progress>,
    ) -> Result<Option<Problem>, DatabaseError> {
        loop {
            match self.copy_from(name, files, from)? {
                Copied::ToItsEnd(problem) => return Ok(problem),
                Copied::Overtaken => from = self.usage.segments()?.remove(name),
            }
            // One that is known no more was taken away whole.
            if from.is_none() {
                return Ok(None);
            }
        }
    }

    fn copy_from(
        &self,
        name: &str,
        files: &[PathBuf],
        mut from: Option<Progress>,
    ) -> Result<Copied, DatabaseError> {
        let start = from.unwrap_or(Progress {
            part: 1,
            offset: 0,
            n: 0,
            hash: [0; 32],
        });
        let mut head = Head {
            n: start.n,
            hash: start.hash,
            offset: start.offset,
        };
        for (index, file) in files.iter().enumerate().skip(start.part as usize - 1) {
            let part = index as u32 + 1;
            let mut reader = match open_at(file, head) {
                Ok(reader) => reader,
                Err(problem) => return Ok(Copied::ToItsEnd(Some(problem))),
            };
            loop {
                let (changes, end) = batch(&mut reader);
                let at = reader.head();
                let to = Progress {
                    part,
                    offset: at.offset,
                    n: at.n,
                    hash: at.hash,
                };
                if from != Some(to) && !self.usage.add(name, from, to, &changes)? {
                    return Ok(Copied::Overtaken);
                }
                from = Some(to);
                match end {
                    End::More => {}
                    End::File => break,
                    End::Wrong(what) => {
                        let problem = Problem {
                            file: file.clone(),
                            line: at.n + 1,
                            what,
                        };
                        return Ok(Copied::ToItsEnd(Some(problem)));
                    }
                }
            }
            head = Head {
                offset: 0,
                ..reader.head()
            };
        }
        Ok(Copied::ToItsEnd(None))
    }
}

/// How far a segment was copied.
enum Copied {
    /// With what is wrong there.
    ToItsEnd(Option<Problem>),
    /// Somebody else has copied some of the same: it goes on where he is.
    Overtaken,
}

type Lines = Reader<BufReader<File>>;

fn open_at(path: &Path, head: Head) -> Result<Lines, Problem> {
    let problem = |what| Problem {
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
        Ok((file, _)) => Ok(Reader::new(BufReader::with_capacity(BUFFER, file), head)),
        Err(error) => Err(problem(error.to_string())),
    }
}

const SHRANK: &str = "it was longer: lines that were read before are gone";

fn gone(file: PathBuf) -> Problem {
    Problem {
        file,
        line: 0,
        what: "it is gone, but what it said is known".to_owned(),
    }
}

/// Whether a segment still says what was read from it.
fn compare(file: &Path, files: &[PathBuf], progress: Progress) -> Option<Problem> {
    let problem = |what: &str| {
        Some(Problem {
            file: file.to_owned(),
            line: 0,
            what: what.to_owned(),
        })
    };
    let mut head = Head::default();
    for path in files {
        let Ok(mut reader) = open_at(path, Head { offset: 0, ..head }) else {
            return None;
        };
        while reader.head().n < progress.n {
            match reader.next_row() {
                Ok(Some(_)) => {}
                Ok(None) | Err(Fault::Torn) => break,
                // What is broken is named by whoever reads every line.
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

enum End {
    More,
    File,
    Wrong(String),
}

/// Up to [`BATCH`] changes.
fn batch(reader: &mut Lines) -> (Vec<Change>, End) {
    let mut changes = Vec::new();
    let end = loop {
        if changes.len() >= BATCH {
            break End::More;
        }
        match reader.next_row() {
            Ok(Some(row)) => changes.extend(change(&row)),
            // Half a line is being written; the rest comes next time.
            Ok(None) | Err(Fault::Torn) => break End::File,
            Err(fault) => break End::Wrong(fault.to_string()),
        }
    };
    (changes, end)
}

fn change(row: &Row<'_>) -> Option<Change> {
    match row.kind {
        Kind::Reserve => Some(Change::Reserved(Attempt {
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
        Kind::Settle => Some(Change::Settled(ended(row))),
        Kind::Open | Kind::Inject | Kind::Egress | Kind::Revoke | Kind::Close => None,
    }
}

fn ended(row: &Row<'_>) -> Ended {
    let usage = &row.usage;
    Ended {
        n: row.of,
        source: match row.source {
            Some(Source::Final) => "final",
            Some(Source::Partial) => "partial",
            Some(Source::Estimated) => "estimated",
            Some(Source::Reserved) | None => "reserved",
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
