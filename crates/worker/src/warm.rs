//! Interpreters that wait inside boxes with a tool imported, each for one call of that very tool, in a box like the call's own.
//! They are made behind calls, for what was called of late.
//!
//! ```text
//! call begins ─ take ─▶ one that is ready │ none: the cold path
//! call ends ──▶ maker (one a kind) ─ box ─ import ─ "ready" ─▶ stock ─┬─▶ taken
//!                                                                    └─▶ old, idle, dead, too much memory, changed code: ended
//! ```
//! None serves twice, and none another kind: what a call left in it dies with it.

use crate::{
    call::room::{Kind, NoRoom, Room, Rooms},
    call::{READY, Statuses},
    tools::{Code, What},
};
use engine::Exec;
use spec::Stream;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// One that nobody took for so long is ended: its clocks and addresses are of the past.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// Kinds that were not called for so long have none.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// How long one may take to import.
const LONGEST_IMPORT: Duration = Duration::from_secs(60);
/// After one failed, none of its kind is made for so long.
const PAUSE: Duration = Duration::from_secs(60);
/// How often it is looked what they take, and whether they live.
const LOOK: Duration = Duration::from_secs(5);
/// For so long it counts how many calls of a kind went on at once.
const OF_LATE: Duration = Duration::from_secs(60);
/// What one is taken to hold before that is known.
const USUAL_BYTES: u64 = 24 << 20;
/// Kinds that are remembered.
const MOST_KINDS: usize = 256;

/// One that waits.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) room: Room,
    pub(crate) exec: Exec,
    pub(crate) statuses: Statuses,
    born: Instant,
}

impl Parked {
    fn bytes(&self) -> u64 {
        let known = self.room.state().map_or(0, |state| state.usage.memory_peak_bytes);
        if known == 0 { USUAL_BYTES } else { known }
    }

    fn is_alive(&self) -> bool {
        self.exec.result().is_none() && self.room.state().is_some_and(|state| state.ended.is_none())
    }
}

/// What there is of one kind.
#[derive(Debug)]
struct Line {
    /// Its own, so that what was begun for one of the past is not taken for one of now.
    number: u64,
    kind: Kind,
    /// The oldest first.
    ready: Vec<Parked>,
    is_making: bool,
    in_use: usize,
    /// The most that were in use at once, of late.
    peak: usize,
    peak_since: Instant,
    used: Instant,
    failed: Option<Instant>,
}

impl Line {
    /// One more than there were calls at once: a call that follows another at once finds one, too.
    fn wants_more(&self) -> bool {
        let has_rested = self.failed.is_none_or(|failed| failed.elapsed() >= PAUSE);
        has_rested && self.ready.len() < self.peak.max(1) + 1
    }
}

#[derive(Debug, Default)]
struct Stock {
    lines: Vec<Line>,
    next: u64,
    is_closed: bool,
    is_tended: bool,
}

/// All that wait.
#[derive(Debug)]
pub(crate) struct Warm {
    rooms: Arc<Rooms>,
    python: PathBuf,
    most: usize,
    most_bytes: u64,
    stock: Mutex<Stock>,
    closing: Notify,
}

/// A call of a kind, while it goes on.
#[derive(Debug)]
pub(crate) struct Using {
    warm: Arc<Warm>,
    number: Option<u64>,
}

impl Drop for Using {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.warm.used(number);
        }
    }
}

impl Warm {
    pub(crate) fn new(rooms: Arc<Rooms>, python: PathBuf, most: usize, most_bytes: u64) -> Arc<Warm> {
        let (stock, closing) = (Mutex::default(), Notify::new());
        Arc::new(Warm { rooms, python, most, most_bytes, stock, closing })
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are ready.
    pub(crate) fn parked(&self) -> usize {
        self.stock().lines.iter().flat_map(|line| &line.ready).filter(|parked| parked.is_alive()).count()
    }

    /// A call of this kind begins.
    pub(crate) fn using(self: &Arc<Warm>, kind: &Kind) -> Using {
        let is_python = matches!(kind.what, Some(What::Function { .. } | What::Class { .. }));
        let number = (is_python && self.most > 0).then(|| self.stock().begin(kind)).flatten();
        Using { warm: self.clone(), number }
    }

    /// One of this kind, which is the caller's from now on.
    pub(crate) fn take(&self, kind: &Kind) -> Option<Parked> {
        let mut dead = Vec::new();
        let mut stock = self.stock();
        let line = stock.lines.iter_mut().find(|line| line.kind == *kind)?;
        while !line.ready.is_empty() {
            let parked = line.ready.remove(0);
            if parked.is_alive() {
                return Some(parked);
            }
            line.failed = Some(Instant::now());
            dead.push(parked);
        }
        drop(stock);
        None
    }

    /// A call has ended: another is made ready behind it.
    fn used(self: &Arc<Warm>, number: u64) {
        let mut stock = self.stock();
        let Some(line) = stock.lines.iter_mut().find(|line| line.number == number) else { return };
        line.in_use = line.in_use.saturating_sub(1);
        line.used = Instant::now();
        let begins = line.wants_more() && !line.is_making;
        line.is_making |= begins;
        let tends = begins && !stock.is_tended;
        stock.is_tended |= tends;
        drop(stock);
        if begins {
            let warm = self.clone();
            self.rooms.behind(async move { warm.make(number).await });
        }
        if tends {
            let warm = self.clone();
            self.rooms.behind(async move { warm.tend().await });
        }
    }

    /// Makes one after the other, for as long as there are too few of a kind.
    async fn make(&self, number: u64) {
        while let Some(kind) = self.next(number) {
            let made = self.park(&kind).await;
            let mut stock = self.stock();
            let is_closed = stock.is_closed;
            let line = stock.lines.iter_mut().find(|line| line.number == number);
            match (line, made) {
                (Some(line), Some(parked)) if !is_closed => line.ready.push(parked),
                (Some(line), None) => line.failed = Some(Instant::now()),
                // The code has changed meanwhile, or nobody is served any more.
                (_, made) => {
                    drop(stock);
                    drop(made);
                }
            }
        }
    }

    /// The kind, if another of it is to be made; room is made for it.
    fn next(&self, number: u64) -> Option<Kind> {
        let mut stock = self.stock();
        let total: usize = stock.lines.iter().map(|line| line.ready.len()).sum();
        let bytes: u64 = stock.lines.iter().flat_map(|line| &line.ready).map(Parked::bytes).sum();
        let is_full = total >= self.most || bytes.saturating_add(USUAL_BYTES) > self.most_bytes;
        let is_closed = stock.is_closed;
        let line = stock.lines.iter_mut().find(|line| line.number == number)?;
        let has_none = line.ready.is_empty();
        if is_closed || !line.wants_more() {
            line.is_making = false;
            return None;
        }
        let kind = line.kind.clone();
        // A kind that has none takes the place of what waits the longest for a call.
        let gone = (is_full && has_none).then(|| stock.give_up_one(number)).flatten();
        if is_full && gone.is_none() {
            if let Some(line) = stock.lines.iter_mut().find(|line| line.number == number) {
                line.is_making = false;
            }
            return None;
        }
        drop(stock);
        drop(gone);
        Some(kind)
    }

    async fn park(&self, kind: &Kind) -> Option<Parked> {
        match tokio::time::timeout(LONGEST_IMPORT, self.try_to_park(kind)).await {
            Ok(Ok(parked)) => parked,
            // Calls of the kind are made cold, and say what is wrong.
            Ok(Err(_)) | Err(_) => None,
        }
    }

    async fn try_to_park(&self, kind: &Kind) -> Result<Option<Parked>, NoRoom> {
        let (module, attribute) = match &kind.what {
            Some(What::Function { module, function }) => (module, function),
            Some(What::Class { module, class_name }) => (module, class_name),
            Some(What::Executable { .. }) | None => return Ok(None),
        };
        let room = self.rooms.open(kind).await?;
        let statuses = room.prepare()?;
        let command = room.runner(kind, &self.python, &["--park", module, attribute]);
        let exec = room.start(command, true).await?;
        let is_ready = is_ready(&exec).await;
        Ok(is_ready.then(|| Parked { room, exec, statuses, born: Instant::now() }))
    }

    /// Ends those that are old, idle, dead or too large, until there are none.
    async fn tend(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.closing.notified() => {}
            }
            let mut stock = self.stock();
            let gone = stock.weed(self.most_bytes);
            let is_over =
                stock.is_closed || stock.lines.iter().all(|line| line.ready.is_empty() && !line.is_making);
            stock.is_tended = !is_over;
            drop(stock);
            drop(gone);
            if is_over {
                return;
            }
        }
    }

    /// What was imported from this code is of no use any more.
    pub(crate) fn forget(&self, code: &Code) {
        let mut stock = self.stock();
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut stock.lines).into_iter().partition(|line| line.kind.code == *code);
        stock.lines = kept;
        drop(stock);
        drop(gone);
    }

    /// None is made any more, and those that there are are ended.
    pub(crate) fn close(&self) {
        let mut stock = self.stock();
        stock.is_closed = true;
        let gone = std::mem::take(&mut stock.lines);
        drop(stock);
        drop(gone);
        self.closing.notify_one();
    }
}

impl Stock {
    fn begin(&mut self, kind: &Kind) -> Option<u64> {
        if self.is_closed {
            return None;
        }
        let place = self.lines.iter().position(|line| line.kind == *kind);
        let now = Instant::now();
        let place = match place {
            Some(place) => place,
            None if self.lines.len() >= MOST_KINDS => return None,
            None => {
                self.next += 1;
                self.lines.push(Line {
                    number: self.next,
                    kind: kind.clone(),
                    ready: Vec::new(),
                    is_making: false,
                    in_use: 0,
                    peak: 0,
                    peak_since: now,
                    used: now,
                    failed: None,
                });
                self.lines.len() - 1
            }
        };
        let line = &mut self.lines[place];
        line.in_use += 1;
        line.peak = line.peak.max(line.in_use);
        line.used = now;
        Some(line.number)
    }

    /// One of another kind, of the one that was not called the longest.
    fn give_up_one(&mut self, number: u64) -> Option<Parked> {
        let others = self.lines.iter_mut().filter(|line| line.number != number && !line.ready.is_empty());
        let oldest = others.min_by_key(|line| line.used)?;
        Some(oldest.ready.remove(0))
    }

    fn weed(&mut self, most_bytes: u64) -> Vec<Parked> {
        let mut gone = Vec::new();
        for line in &mut self.lines {
            let is_idle = line.in_use == 0 && line.used.elapsed() >= IDLE;
            let (kept, others): (Vec<_>, Vec<_>) = std::mem::take(&mut line.ready)
                .into_iter()
                .partition(|parked| !is_idle && parked.born.elapsed() < LIFETIME && parked.is_alive());
            if others.iter().any(|parked| !parked.is_alive()) {
                line.failed = Some(Instant::now());
            }
            line.ready = kept;
            gone.extend(others);
            if line.peak_since.elapsed() >= OF_LATE {
                (line.peak, line.peak_since) = (line.in_use, Instant::now());
            }
        }
        self.lines.retain(|line| {
            line.in_use > 0 || line.is_making || !line.ready.is_empty() || line.used.elapsed() < IDLE
        });
        let total =
            |lines: &[Line]| -> u64 { lines.iter().flat_map(|line| &line.ready).map(Parked::bytes).sum() };
        while total(&self.lines) > most_bytes {
            match self.give_up_one(0) {
                Some(parked) => gone.push(parked),
                None => break,
            }
        }
        gone
    }
}

/// Waits for its word. What it prints otherwise while it imports goes to standard error.
async fn is_ready(exec: &Exec) -> bool {
    loop {
        let lengths = exec.output().lengths();
        if exec.output().read(Stream::Stdout, 0, READY.len()).bytes == READY {
            return true;
        }
        if !exec.output().grown(lengths).await {
            return false;
        }
    }
}
