//! The end of the audit at which lines are written.

use super::{
    Entry, FOLDER, NAME,
    marks::{Beginning, Marks},
    verify::{self, Check},
};
use crate::Upkeep;
use journal::{Durability, Hash, JournalDir, JournalProblem, JournalWriter, MAX_FILE_BYTES};
use std::{
    collections::VecDeque,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What messages call it.
const CALLED: &str = "audit";
/// Lines about what has happened that may wait for a disk with room.
const MOST_WAITING: usize = 10_000;
const DAY_MS: u64 = 86_400_000;
/// How long somebody may hold the lock who only looks whether the audit is written.
const PATIENCE: Duration = Duration::from_secs(1);

/// How the audit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    /// How lasting a line is before what it tells of goes on.
    pub durability: Durability,
    /// How long lines are kept, at least.
    pub keep_for: Duration,
    /// Bytes beyond which the oldest files go, however young they are.
    pub keep_bytes: u64,
    /// A file that has grown to this is followed by the next.
    pub file_bytes: u64,
}

impl Default for AuditSettings {
    fn default() -> AuditSettings {
        AuditSettings {
            durability: Durability::Process,
            keep_for: Duration::from_secs(90 * 24 * 3600),
            keep_bytes: 16 << 30,
            file_bytes: MAX_FILE_BYTES,
        }
    }
}

/// A line that waits to be written.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "as of an entry")]
pub struct Note {
    pub what: String,
    pub decision: super::Decision,
    pub tenant: String,
    pub key: String,
    pub run: String,
    pub task: String,
    pub job: String,
    pub rule: String,
    pub about: String,
}

impl Note {
    /// As a line.
    pub fn entry(&self) -> Entry<'_> {
        Entry {
            what: &self.what,
            decision: self.decision,
            tenant: &self.tenant,
            key: &self.key,
            run: &self.run,
            task: &self.task,
            job: &self.job,
            rule: &self.rule,
            about: &self.about,
        }
    }
}

impl From<&Entry<'_>> for Note {
    fn from(entry: &Entry<'_>) -> Note {
        /// No more of it is written.
        const LONGEST: usize = 512;
        let text =
            |text: &str| text[..text.floor_char_boundary(LONGEST.min(text.len()))].to_owned();
        Note {
            what: text(entry.what),
            decision: entry.decision,
            tenant: text(entry.tenant),
            key: text(entry.key),
            run: text(entry.run),
            task: text(entry.task),
            job: text(entry.job),
            rule: text(entry.rule),
            about: text(entry.about),
        }
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) folder: JournalDir,
    pub(super) marks: Marks,
    pub(super) settings: AuditSettings,
    pub(super) state: Mutex<State>,
    /// Told when something is surely on the disk, or nothing ever will be.
    pub(super) lasting: Condvar,
    /// Told when somebody waits for that, and at the end.
    pub(super) wanted: Condvar,
    /// Told when a file was begun, and at the end.
    pub(super) begun: Condvar,
    /// One sync at a time: nothing is sure before what stands before it.
    pub(super) syncing: Mutex<()>,
    /// Held for life.
    _lock: File,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) writer: JournalWriter,
    /// The day of the file, since 1970.
    day: u64,
    /// Up to which line everything is surely on the disk; or why a sync has failed, after which nothing is sure until the
    /// next start reads what is there.
    pub(super) synced: Result<u64, String>,
    waiting: VecDeque<Note>,
    left_out: u64,
    /// Why the last line could not be written.
    pub(super) trouble: Option<String>,
    /// Files that were begun and that the database does not know yet. Whoever writes a line may do so within a transaction
    /// of that very database: it must not wait for it.
    pub(super) opened: Vec<Opened>,
    /// How many wait until a line is surely on the disk.
    pub(super) waiters: usize,
    /// Its owner is gone.
    pub(super) over: bool,
}

/// A file that was begun.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) beginning: Beginning,
    /// The file before it, until that is surely on the disk.
    pub(super) before: Option<Arc<File>>,
}

impl Shared {
    pub(super) fn open(state: &Path, settings: AuditSettings) -> io::Result<Shared> {
        let folder = JournalDir::make(&state.join(FOLDER))?;
        let lock = take_lock(&folder)?;
        let marks = Marks::open(state)?;
        let parts = folder.segments()?.remove(NAME).unwrap_or_default();
        let (beginnings, mark) = (marks.beginnings(NAME)?, marks.last(NAME)?);
        let check = Check {
            folder: &folder,
            name: NAME,
            parts: &parts,
            beginnings: &beginnings,
            mark,
        };
        let end = check.newest().map_err(io::Error::other)?;
        let part = end.part.max(1);
        for later in parts.iter().filter(|later| **later > part) {
            folder.remove(NAME, *later)?;
        }
        let file = folder.make_file(NAME, part)?;
        if end.torn {
            rustix::fs::ftruncate(&file, end.head.offset)?;
        }
        folder.sync()?;
        let first = Beginning {
            part,
            n: 0,
            hash: Hash::default(),
            began_ms: journal::now_ms(),
            removed: false,
        };
        for beginning in end
            .beginnings
            .iter()
            .chain(parts.is_empty().then_some(&first))
        {
            marks.begin(NAME, beginning)?;
        }
        let began = end
            .beginnings
            .last()
            .map_or_else(journal::now_ms, |beginning| beginning.began_ms);
        let synced = Ok(mark.map_or(0, |mark| mark.n));
        let state = State {
            writer: JournalWriter::new(CALLED, file, part, end.head),
            day: began / DAY_MS,
            synced,
            waiting: VecDeque::new(),
            left_out: 0,
            trouble: None,
            opened: Vec::new(),
            waiters: 0,
            over: false,
        };
        let shared = Shared {
            folder,
            marks,
            settings,
            state: Mutex::new(state),
            lasting: Condvar::new(),
            wanted: Condvar::new(),
            begun: Condvar::new(),
            syncing: Mutex::new(()),
            _lock: lock,
        };
        shared.remove_marked(&beginnings, &parts)?;
        Ok(shared)
    }

    /// What was marked as removed, by somebody who then died.
    fn remove_marked(&self, beginnings: &[Beginning], parts: &[u32]) -> io::Result<()> {
        // Whoever starts next tries again.
        let Some(_alone) = super::tidy::alone(self)? else {
            return Ok(());
        };
        for beginning in beginnings
            .iter()
            .filter(|of| of.removed && parts.contains(&of.part))
        {
            self.folder.remove(NAME, beginning.part)?;
        }
        Ok(())
    }

    pub(super) fn note(&self, entry: &Entry<'_>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self
            .write_waiting(&mut state)
            .and_then(|()| self.write(&mut state, entry));
        state.trouble = written.as_ref().err().map(ToString::to_string);
        let n = written?;
        match self.settings.durability {
            Durability::Process => Ok(()),
            Durability::Power => self.last(state, n),
        }
    }

    /// Whether whoever adds a line waits for the disk.
    pub(super) fn waits(&self) -> bool {
        self.settings.durability == Durability::Power
    }

    /// Many wait, one sync answers them all.
    fn last(&self, mut state: std::sync::MutexGuard<'_, State>, n: u64) -> io::Result<()> {
        state.waiters += 1;
        self.wanted.notify_one();
        while state.synced.as_ref().is_ok_and(|synced| *synced < n) {
            state = self
                .lasting
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.waiters -= 1;
        state
            .synced
            .as_ref()
            .map(drop)
            .map_err(|why| io::Error::other(why.clone()))
    }

    pub(super) fn note_happened(&self, entry: &Entry<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self
            .write_waiting(&mut state)
            .and_then(|()| self.write(&mut state, entry));
        state.trouble = written.as_ref().err().map(ToString::to_string);
        match written {
            Ok(_) => {}
            Err(_) if state.waiting.len() < MOST_WAITING => state.waiting.push_back(entry.into()),
            Err(_) => state.left_out += 1,
        }
    }

    /// Tells the thread that its owner is gone.
    pub(super) fn finish(&self) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .over = true;
        self.wanted.notify_one();
        self.begun.notify_one();
    }

    /// Tries again to write what waits.
    pub(super) fn try_again(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.waiting.is_empty() || state.left_out > 0 {
            let written = self.write_waiting(&mut state);
            state.trouble = written.err().map(|error| error.to_string());
        }
    }

    fn write_waiting(&self, state: &mut State) -> io::Result<()> {
        while let Some(note) = state.waiting.pop_front() {
            if let Err(error) = self.write(state, &note.entry()) {
                state.waiting.push_front(note);
                return Err(error);
            }
        }
        if state.left_out > 0 {
            let about = format!(
                "{} lines about what had happened found no room",
                state.left_out
            );
            self.write(
                state,
                &Entry {
                    what: "audit.left_out",
                    about: &about,
                    ..Entry::default()
                },
            )?;
            state.left_out = 0;
        }
        Ok(())
    }

    pub(super) fn write(&self, state: &mut State, entry: &Entry<'_>) -> io::Result<u64> {
        let today = journal::now_ms() / DAY_MS;
        if state.writer.length() >= self.settings.file_bytes
            || today > state.day && state.writer.length() > 0
        {
            self.next_file(state)?;
            state.day = today;
        }
        let allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_')
        };
        let known =
            !entry.what.is_empty() && entry.what.len() <= 64 && entry.what.bytes().all(allowed);
        state
            .writer
            .write(if known { entry.what } else { "unknown" }, false, |line| {
                line.text("decision", entry.decision.name())
                    .text("tenant", entry.tenant)
                    .text("key", entry.key)
                    .text("run", entry.run)
                    .text("task", entry.task)
                    .text("job", entry.job)
                    .text("rule", entry.rule)
                    .text("about", entry.about);
            })
    }

    /// Goes on in the next file, without waiting for a disk or the database: its row and its mark are the threads' to write.
    fn next_file(&self, state: &mut State) -> io::Result<()> {
        let (head, before) = (state.writer.head(), Arc::clone(&state.writer.file));
        state.writer.next_file(&self.folder, NAME, false)?;
        let (part, began_ms) = (state.writer.part(), journal::now_ms());
        let beginning = Beginning {
            part,
            n: head.n,
            hash: head.hash,
            began_ms,
            removed: false,
        };
        state.opened.push(Opened {
            beginning,
            before: Some(before),
        });
        self.begun.notify_one();
        Ok(())
    }
}

fn take_lock(folder: &JournalDir) -> io::Result<File> {
    let lock = folder.lock_file(NAME)?;
    let until = Instant::now() + PATIENCE;
    while !journal::try_lock(&lock)? {
        if Instant::now() > until {
            return Err(io::Error::other("the audit belongs to another process"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(lock)
}

/// Whether somebody writes it now.
pub(super) fn is_live(folder: &JournalDir) -> bool {
    folder
        .lock_file(NAME)
        .and_then(|file| journal::try_lock(&file))
        .is_ok_and(|free| !free)
}

/// Puts an audit aside that cannot be believed, so that a new one can begin; where it is then.
pub fn set_aside(state: &Path) -> io::Result<Option<PathBuf>> {
    let Some(folder) = verify::existing(&state.join(FOLDER))? else {
        Marks::open(state)?.forget(NAME)?;
        return Ok(None);
    };
    let _lock = take_lock(&folder)?;
    let Some(_alone) = Upkeep::alone(state)? else {
        return Err(io::Error::other("the state folder is being copied"));
    };
    let place = state.join(format!("{FOLDER}-aside-{}", journal::now_ms()));
    std::fs::rename(state.join(FOLDER), &place)?;
    Marks::open(state)?.forget(NAME)?;
    let audit = super::Audit::open(state)?;
    let about = place
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    audit.note(&Entry {
        what: "audit.set_aside",
        about: &about,
        ..Entry::default()
    })?;
    Ok(Some(place))
}

impl From<JournalProblem> for super::verify::Wrong {
    fn from(problem: JournalProblem) -> Self {
        super::verify::Wrong::Problem(problem)
    }
}
