//! After a crash: reads segments whose owner is gone, counts what nobody settled in full, and finds what was changed.

use super::{
    Ledger, Outcome, State,
    line::{Kind, Row},
    reader::Reader,
};
use crate::usage::Source;
use journal::{Fault, Folder, Head, Problem, Writer};
use spec::Money;
use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, atomic::AtomicBool},
};

const MILLISECONDS_A_DAY: u64 = 86_400_000;
const BUFFER: usize = 256 << 10;

/// What was spent before, as far as limits still ask for it.
#[derive(Debug, Default)]
pub struct Found {
    /// By name.
    pub tenants: HashMap<String, Past>,
    /// By name; those that were revoked are over.
    pub sessions: HashMap<String, Past>,
    /// By the run whose own segment this is.
    pub run: Past,
    /// Reservations that nobody had settled, and what they come to.
    pub lost: u64,
    /// What they come to.
    pub lost_money: Money,
}

/// What one account spent before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Past {
    pub calls: u64,
    pub tokens: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub money: Money,
    pub overrun: Money,
    /// The last day on which something was settled, in days since 1970.
    pub day: u64,
    pub day_money: Money,
}

/// What a recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Recovered {
    /// Segments that were settled and closed.
    pub segments: u64,
    /// Segments that have a living owner.
    pub live: u64,
    /// Reservations that nobody had settled.
    pub lost: u64,
    pub lost_money: Money,
    /// Segments that cannot be believed; nothing was changed there.
    pub problems: Vec<Problem>,
}

/// Names of segments and the paths of their files, in order.
pub type Segments = std::collections::BTreeMap<String, Vec<PathBuf>>;

/// The segments of a folder; none if there is no folder.
pub fn segments(folder: &Path) -> io::Result<Segments> {
    let Some(folder) = existing(folder)? else {
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

/// Settles what dead owners left, segment by segment, and closes them.
pub fn recover(folder: &Path) -> io::Result<Recovered> {
    let mut recovered = Recovered::default();
    let Some(opened) = existing(folder)? else {
        return Ok(recovered);
    };
    for (name, parts) in opened.segments()? {
        // One that cannot be read is named below, and keeps nobody from the others.
        if ends_in_peace(&opened, &name, &parts).unwrap_or(false) {
            continue;
        }
        match recover_segment(folder, &name) {
            Ok(None) => recovered.live += 1,
            Ok(Some(found)) => {
                recovered.segments += 1;
                recovered.lost += found.0;
                recovered.lost_money = recovered.lost_money.plus(found.1);
            }
            Err(error) => {
                let problem = error.downcast::<Problem>().unwrap_or_else(|error| Problem {
                    file: opened.path(&name, 1),
                    line: 0,
                    what: error.to_string(),
                });
                recovered.problems.push(problem);
            }
        }
    }
    Ok(recovered)
}

/// None if it has a living owner. Closed when the ledger is dropped.
fn recover_segment(folder: &Path, name: &str) -> io::Result<Option<(u64, Money)>> {
    let folder = Folder::open(folder)?;
    let lock = folder.append(name, 1)?;
    if !journal::lock(&lock)? {
        return Ok(None);
    }
    let ledger = take(folder, name, lock)?;
    Ok(Some((ledger.found.lost, ledger.found.lost_money)))
}

/// Whether a segment may be taken away: its owner said farewell before this time, every line of it is as it was written,
/// and it ends where whoever asks has read to. Nobody can take it up while the answer lives.
pub fn retirable(
    folder: &Path,
    name: &str,
    end: &Head,
    before_ms: u64,
) -> io::Result<Option<Retirable>> {
    let Some(folder) = existing(folder)? else {
        return Ok(None);
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    let Some(last) = parts.last() else {
        return Ok(None);
    };
    // Most are younger, and need no reading.
    if folder.changed_ms(name, *last)? >= before_ms || !ends_in_peace(&folder, name, &parts)? {
        return Ok(None);
    }
    let lock = folder.append(name, 1)?;
    if !journal::lock(&lock)? {
        return Ok(None);
    }
    let replay = replay(&folder, name, &parts).map_err(io::Error::other)?;
    let is_read = (replay.head.n, replay.head.hash) == (end.n, end.hash);
    let is_over = replay.open.is_empty() && !replay.torn && replay.last_ms < before_ms;
    Ok((is_read && is_over).then(|| Retirable {
        folder,
        name: name.to_owned(),
        parts,
        _lock: lock,
    }))
}

/// A segment that may be taken away.
#[derive(Debug)]
pub struct Retirable {
    folder: Folder,
    name: String,
    parts: Vec<u32>,
    _lock: File,
}

impl Retirable {
    /// Takes it away. The last file first: what is left after a crash is a beginning.
    pub fn remove(self) -> io::Result<()> {
        self.parts
            .iter()
            .rev()
            .try_for_each(|part| self.folder.remove(&self.name, *part))?;
        self.folder.sync()
    }
}

/// Takes away what a crash has left of a segment that was being taken away.
pub fn remove_retired(folder: &Path, name: &str) -> io::Result<()> {
    let Some(folder) = existing(folder)? else {
        return Ok(());
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    parts
        .iter()
        .rev()
        .try_for_each(|part| folder.remove(name, *part))?;
    folder.sync()
}

/// Moves the files of a segment that nobody owns into a folder, which is made if absent; whether there were any.
pub fn set_aside(folder: &Path, name: &str, place: &Path) -> io::Result<bool> {
    let Some(folder) = existing(folder)? else {
        return Ok(false);
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    if parts.is_empty() {
        return Ok(false);
    }
    // Held until all are moved: nobody takes up a part of it.
    let lock = folder.make_file(name, 1)?;
    if !journal::lock(&lock)? {
        return Err(io::Error::other(format!(
            "the ledger `{name}` belongs to another process"
        )));
    }
    std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
        .create(place)?;
    // The last file first: what a crash leaves is a beginning.
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

/// Reads every line of one segment; what is wrong with it. That it ends in half a line is not: whoever takes it over cuts it off.
pub fn believe(folder: &Path, name: &str) -> io::Result<Option<Problem>> {
    let Some(folder) = existing(folder)? else {
        return Ok(None);
    };
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    Ok(replay(&folder, name, &parts).err())
}

/// Reads every line of every segment; what is wrong with them.
pub fn verify(folder: &Path) -> io::Result<Vec<Problem>> {
    let Some(folder) = existing(folder)? else {
        return Ok(Vec::new());
    };
    let mut problems = Vec::new();
    for (name, parts) in folder.segments()? {
        let live = || {
            folder
                .append(&name, 1)
                .and_then(|file| journal::lock(&file))
                .is_ok_and(|free| !free)
        };
        let before = live();
        match replay(&folder, &name, &parts) {
            // The owner of a live one is in the middle of a line.
            Ok(replay) if replay.torn && !before && !live() => problems.push(Problem {
                file: folder.path(&name, *parts.last().unwrap_or(&1)),
                line: replay.line,
                what: Fault::Torn.to_string(),
            }),
            Ok(_) => {}
            Err(problem) => problems.push(problem),
        }
    }
    Ok(problems)
}

pub(super) fn existing(folder: &Path) -> io::Result<Option<Folder>> {
    match Folder::open(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Takes a locked segment over: reads all of it, cuts half a line off, settles what is open.
pub(super) fn take(folder: Folder, name: &str, lock: File) -> io::Result<Ledger> {
    let parts = folder.segments()?.remove(name).unwrap_or_default();
    let replay = replay(&folder, name, &parts).map_err(io::Error::other)?;
    let part = parts.last().copied().unwrap_or(1);
    let file = folder.append(name, part)?;
    if replay.torn {
        rustix::fs::ftruncate(&file, replay.head.offset)?;
    }
    let state = State {
        writer: Writer::new(super::CALLED, file, part, replay.head),
        open: replay.open.len() as u64,
    };
    let mut ledger = Ledger {
        folder,
        name: name.to_owned(),
        largest: super::LARGEST,
        state: Mutex::new(state),
        syncer: None,
        found: Found::default(),
        writing: AtomicBool::new(false),
        _lock: lock,
    };
    ledger.found = settle_lost(&ledger, replay)?;
    Ok(ledger)
}

fn settle_lost(ledger: &Ledger, mut replay: Replay) -> io::Result<Found> {
    let mut open: Vec<(u64, Reserved)> = replay.open.drain().collect();
    open.sort_unstable_by_key(|(n, _)| *n);
    let today = journal::now() / MILLISECONDS_A_DAY;
    for (n, mut reserved) in open {
        reserved.spent.day = today;
        ledger.settle(n, &Outcome::unknown(reserved.spent.money, "lost"))?;
        replay.found.lost += 1;
        replay.found.lost_money = replay.found.lost_money.plus(reserved.spent.money);
        replay.count(reserved);
    }
    Ok(replay.found)
}

/// A reservation that is not settled.
struct Reserved {
    run: String,
    session: String,
    tenant: String,
    /// What it comes to, as long as nothing else is known.
    spent: Past,
}

pub(super) struct Replay {
    segment: String,
    head: Head,
    line: u64,
    /// When its last line was written.
    last_ms: u64,
    torn: bool,
    open: HashMap<u64, Reserved>,
    pub(super) found: Found,
}

/// Reads a segment from its beginning; the first thing that is wrong ends it.
pub(super) fn replay(folder: &Folder, name: &str, parts: &[u32]) -> Result<Replay, Problem> {
    let mut replay = Replay {
        segment: name.to_owned(),
        head: Head::default(),
        line: 0,
        last_ms: 0,
        torn: false,
        open: HashMap::new(),
        found: Found::default(),
    };
    for (index, &part) in parts.iter().enumerate() {
        let problem = |line, what| Problem {
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

impl Replay {
    fn file(&mut self, file: File, last: bool) -> Result<(), String> {
        let head = Head {
            offset: 0,
            ..self.head
        };
        let mut reader = Reader::new(BufReader::with_capacity(BUFFER, file), head);
        loop {
            let read = reader.next_row();
            match read {
                Ok(Some(row)) => self.row(&row)?,
                Ok(None) => break,
                Err(Fault::Torn) if last => {
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
        (self.head, self.line) = (reader.head(), reader.line());
        Ok(())
    }

    fn row(&mut self, row: &Row<'_>) -> Result<(), String> {
        self.last_ms = self.last_ms.max(row.at);
        match row.kind {
            Kind::Open if row.segment != self.segment => {
                return Err(format!(
                    "it belongs to the segment `{}`",
                    row.segment.escape_debug()
                ));
            }
            Kind::Reserve => {
                let spent = Past {
                    calls: 1,
                    tokens: row.tokens,
                    money: Money(row.money),
                    day: row.at / MILLISECONDS_A_DAY,
                    ..Past::default()
                };
                let (run, session, tenant) = (
                    row.run.clone().into_owned(),
                    row.session.clone().into_owned(),
                    row.tenant.clone().into_owned(),
                );
                self.open.insert(
                    row.n,
                    Reserved {
                        run,
                        session,
                        tenant,
                        spent,
                    },
                );
            }
            Kind::Settle => {
                let mut reserved = self
                    .open
                    .remove(&row.of)
                    .ok_or("it settles what is not reserved".to_owned())?;
                reserved.settle(row);
                self.count(reserved);
            }
            Kind::Revoke => {
                self.found.sessions.remove(&*row.session);
            }
            Kind::Open | Kind::Inject | Kind::Egress | Kind::Close => {}
        }
        Ok(())
    }

    fn count(&mut self, reserved: Reserved) {
        if !reserved.tenant.is_empty() {
            self.found
                .tenants
                .entry(reserved.tenant)
                .or_default()
                .add(&reserved.spent);
        }
        // A run that is its own session is over with its owner; of a server that serves for years there are many.
        if !reserved.session.is_empty() && reserved.session != reserved.run {
            self.found
                .sessions
                .entry(reserved.session)
                .or_default()
                .add(&reserved.spent);
        }
        if self.segment.strip_prefix("run-") == Some(&reserved.run) {
            self.found.run.add(&reserved.spent);
        }
    }
}

impl Reserved {
    fn settle(&mut self, row: &Row<'_>) {
        let spent = &mut self.spent;
        // As whoever settles counts it: a call over midnight is of the day on which it ended.
        spent.day = row.at / MILLISECONDS_A_DAY;
        (spent.money, spent.overrun) = (Money(row.money), Money(row.overrun));
        if row.source != Some(Source::Reserved) {
            spent.tokens = row.usage.tokens();
        }
        spent.input_tokens = row.usage.input_tokens();
        spent.output_tokens = row.usage.output_tokens();
        spent.cached_tokens = row.usage.cache_read;
    }
}

impl Past {
    /// A clock that was put back gives nothing back: what seems older counts on the last day, too.
    pub(super) fn add(&mut self, spent: &Past) {
        if spent.day > self.day {
            (self.day, self.day_money) = (spent.day, Money::ZERO);
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

/// Whether the last line of a segment is its owner's farewell: then nothing is open. `verify` reads the rest.
pub(super) fn ends_in_peace(folder: &Folder, name: &str, parts: &[u32]) -> io::Result<bool> {
    const LAST: u64 = 512;
    let Some(&part) = parts.last() else {
        return Ok(true);
    };
    let mut file = folder.read(name, part)?;
    let size = folder.size(name, part)?;
    file.seek(SeekFrom::Start(size.saturating_sub(LAST)))?;
    let mut end = Vec::new();
    file.take(LAST).read_to_end(&mut end)?;
    let Some(lines) = end.strip_suffix(b"\n") else {
        return Ok(false);
    };
    let line = lines
        .rsplit(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    Ok(serde_json::from_slice::<Row<'_>>(line).is_ok_and(|row| row.kind == Kind::Close))
}
