//! Interpreters that wait inside boxes with a tool imported, each for one call of that very tool, in a box like the call's own.
//! They are made behind calls, for what was called of late.
//!
//! ```text
//! call begins ─ take ─▶ one that is ready │ none: the cold path
//! call ends ──▶ maker (one a kind) ─ box ─ import ─ "ready" ─ stopped ─▶ stock ─┬─▶ taken, and let go on
//!                                                                              └─▶ old, idle, dead, too much memory, changed code: ended
//! ```
//! None serves twice, and none another kind: what a call left in it dies with it. None does anything while it waits: its box is
//! frozen, and what it holds is counted before it joins the others. Where boxes cannot be frozen, none waits.

use crate::{
    call::room::{Kind, NoRoom, Room, Rooms},
    call::{READY, Statuses},
    tools::{Code, What},
};
use engine::Exec;
use spec::Stream;
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{net::UnixListener, sync::watch};

/// One that nobody took for so long is ended: its clocks and addresses are of the past.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// Kinds that were not called for so long have none.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// How long one may take to import.
const LONGEST_IMPORT: Duration = Duration::from_secs(60);
/// After one failed, or did not come to rest, none of its kind is made for so long.
const PAUSE: Duration = Duration::from_secs(60);
/// The same after one was too large, or where none can be stopped: the next will hardly be otherwise.
const LONG_PAUSE: Duration = Duration::from_secs(10 * 60);
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
    /// Where models are asked. Nobody answers before there is a call.
    pub(crate) socket: Option<UnixListener>,
    born: Instant,
}

impl Parked {
    fn bytes(&self) -> u64 {
        let known = self
            .room
            .state()
            .map_or(0, |state| state.usage.memory_peak_bytes);
        if known == 0 { USUAL_BYTES } else { known }
    }

    fn is_alive(&self) -> bool {
        self.exec.result().is_none() && self.room.stands()
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
    /// None is made before.
    rests_until: Option<Instant>,
    /// What the last one held.
    bytes: u64,
}

impl Line {
    /// One more than there were calls at once: a call that follows another at once finds one, too.
    fn wants_more(&self) -> bool {
        let has_rested = self.rests_until.is_none_or(|until| Instant::now() >= until);
        has_rested && self.ready.len() < self.peak.max(1) + 1
    }

    fn rest(&mut self, time: Duration) {
        self.rests_until = Some(Instant::now() + time);
    }

    /// What the next one will hold, most likely.
    fn expected(&self) -> u64 {
        self.bytes.max(USUAL_BYTES)
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
    has_models: bool,
    most: usize,
    most_bytes: u64,
    stock: Mutex<Stock>,
    closing: watch::Sender<bool>,
    /// Why boxes cannot be stopped; taken by whoever tells it.
    trouble: Mutex<Option<String>>,
    /// That none can be, and that one could not be for now: each once.
    is_told: [AtomicBool; 2],
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
    /// Of boxes with or without a way to models; at most so many, with so much memory.
    pub(crate) fn new(
        rooms: Arc<Rooms>,
        python: PathBuf,
        has_models: bool,
        most: usize,
        most_bytes: u64,
    ) -> Arc<Warm> {
        let (stock, closing) = (Mutex::default(), watch::Sender::new(false));
        let (trouble, is_told) = Default::default();
        Arc::new(Warm {
            rooms,
            python,
            has_models,
            most,
            most_bytes,
            stock,
            closing,
            trouble,
            is_told,
        })
    }

    /// What the log should know, once.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the largest held that was made of late.
    #[cfg(test)]
    pub(crate) fn largest(&self) -> u64 {
        self.stock()
            .lines
            .iter()
            .map(|line| line.bytes)
            .max()
            .unwrap_or(0)
    }

    /// How many are ready.
    pub(crate) fn parked(&self) -> usize {
        self.stock()
            .lines
            .iter()
            .flat_map(|line| &line.ready)
            .filter(|parked| parked.is_alive())
            .count()
    }

    /// A call of this kind begins.
    pub(crate) fn using(self: &Arc<Warm>, kind: &Kind) -> Using {
        let is_python = matches!(kind.what, Some(What::Function { .. } | What::Class { .. }));
        let number = (is_python && self.most > 0)
            .then(|| self.stock().begin(kind))
            .flatten();
        Using {
            warm: self.clone(),
            number,
        }
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
            line.rest(PAUSE);
            dead.push(parked);
        }
        drop(stock);
        None
    }

    /// A call has ended: another is made ready behind it.
    fn used(self: &Arc<Warm>, number: u64) {
        let mut stock = self.stock();
        let Some(line) = stock.lines.iter_mut().find(|line| line.number == number) else {
            return;
        };
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
            let (is_closed, held) = (stock.is_closed, stock.bytes());
            let line = stock.lines.iter_mut().find(|line| line.number == number);
            let left = match (line, made) {
                (Some(line), Ok(parked)) if !is_closed => {
                    line.bytes = parked.bytes();
                    if held.saturating_add(line.bytes) <= self.most_bytes {
                        line.ready.push(parked);
                        continue;
                    }
                    // Only if it is too large by itself it will be so the next time.
                    line.rest(if line.bytes > self.most_bytes {
                        LONG_PAUSE
                    } else {
                        PAUSE
                    });
                    Some(parked)
                }
                (Some(line), Err(rest)) => {
                    line.rest(rest);
                    None
                }
                // The code has changed meanwhile, or nobody is served any more.
                (_, made) => made.ok(),
            };
            drop(stock);
            drop(left);
        }
    }

    /// The kind, if another of it is to be made; room is made for it.
    fn next(&self, number: u64) -> Option<Kind> {
        let mut stock = self.stock();
        let mut gone = Vec::new();
        let found = stock.next(number, self.most, self.most_bytes, &mut gone);
        if found.is_none()
            && let Some(line) = stock.lines.iter_mut().find(|line| line.number == number)
        {
            line.is_making = false;
        }
        drop(stock);
        drop(gone);
        found
    }

    /// One, or for how long none is made.
    async fn park(&self, kind: &Kind) -> Result<Parked, Duration> {
        let making = tokio::time::timeout(LONGEST_IMPORT, self.try_to_park(kind));
        let made = tokio::select! {
            made = making => made,
            // Nobody who ends waits for what a tool imports.
            () = self.closes() => return Err(PAUSE),
        };
        let parked = match made {
            Ok(Ok(Some(parked))) => parked,
            // Calls of the kind are made cold, and say what is wrong.
            Ok(Ok(None) | Err(_)) | Err(_) => return Err(PAUSE),
        };
        match parked.room.pause().await {
            Ok(()) => Ok(parked),
            Err(why) => {
                self.cannot_stop(&why);
                Err(if why.may_pass() { PAUSE } else { LONG_PAUSE })
            }
        }
    }

    fn cannot_stop(&self, why: &NoRoom) {
        let may_pass = why.may_pass();
        if self.is_told[usize::from(may_pass)].swap(true, Ordering::Relaxed) {
            return;
        }
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if may_pass {
            let told = "no interpreter is kept ready for now: one did not come to rest, and it is tried again";
            // What lasts is told first.
            trouble.get_or_insert_with(|| format!("{told}: {why}"));
        } else {
            let told = "no interpreter is kept ready, because none can be kept still";
            *trouble = Some(format!("{told}: {why}"));
        }
    }

    /// Tries with a box in which nothing goes on whether any can be kept still here.
    pub(crate) async fn try_to_stop(&self, room: &Room) {
        if self.most == 0 {
            return;
        }
        let tried = async {
            room.pause().await?;
            room.resume().await
        };
        self.tried_to_stop(tried.await);
    }

    /// Where none can be kept still, none is kept ready: not one is made in vain. What only failed this once is tried again
    /// behind calls, which are cold meanwhile.
    pub(crate) fn tried_to_stop(&self, tried: Result<(), NoRoom>) {
        let Err(why) = tried else { return };
        self.cannot_stop(&why);
        if !why.may_pass() {
            self.close();
        }
    }

    async fn try_to_park(&self, kind: &Kind) -> Result<Option<Parked>, NoRoom> {
        let (module, attribute) = match &kind.what {
            Some(What::Function { module, function }) => (module, function),
            Some(What::Class { module, class_name }) => (module, class_name),
            Some(What::Executable { .. }) | None => return Ok(None),
        };
        let room = self.rooms.open(kind).await?;
        let (statuses, socket) = room.prepare(self.has_models)?;
        let command = room.runner(&self.python, &["--park", module, attribute]);
        let exec = room.start(command, true).await?;
        let is_ready = is_ready(&exec).await;
        Ok(is_ready.then(|| Parked {
            room,
            exec,
            statuses,
            socket,
            born: Instant::now(),
        }))
    }

    /// Ends those that are old, idle, dead or too large, until there are none.
    async fn tend(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.closes() => {}
            }
            let mut stock = self.stock();
            let gone = stock.weed(self.most_bytes);
            let is_over = stock.is_closed
                || stock
                    .lines
                    .iter()
                    .all(|line| line.ready.is_empty() && !line.is_making);
            stock.is_tended = !is_over;
            drop(stock);
            drop(gone);
            if is_over {
                return;
            }
        }
    }

    /// Until nobody is served any more.
    async fn closes(&self) {
        // The sender lives as long as this.
        _ = self.closing.subscribe().wait_for(|is| *is).await;
    }

    /// What was imported from this code is of no use any more.
    pub(crate) fn forget(&self, code: &Code) {
        let mut stock = self.stock();
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut stock.lines)
            .into_iter()
            .partition(|line| line.kind.code == *code);
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
        self.closing.send_replace(true);
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
                    rests_until: None,
                    bytes: 0,
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

    /// What all hold.
    fn bytes(&self) -> u64 {
        self.lines
            .iter()
            .flat_map(|line| &line.ready)
            .map(Parked::bytes)
            .sum()
    }

    /// The kind of a line, if another of it may be made. A kind that has none takes the place of what waits the longest for a
    /// call; those that are being made have theirs already.
    fn next(
        &mut self,
        number: u64,
        most: usize,
        most_bytes: u64,
        gone: &mut Vec<Parked>,
    ) -> Option<Kind> {
        let is_closed = self.is_closed;
        let line = self.lines.iter().find(|line| line.number == number)?;
        let (expected, has_none, kind) =
            (line.expected(), line.ready.is_empty(), line.kind.clone());
        if is_closed || !line.wants_more() {
            return None;
        }
        loop {
            let others = self
                .lines
                .iter()
                .filter(|line| line.is_making && line.number != number);
            let (count, bytes) = others.fold((0, 0), |(count, bytes), line| {
                (count + 1, bytes + line.expected())
            });
            let ready: usize = self.lines.iter().map(|line| line.ready.len()).sum();
            if ready + count < most && self.bytes() + bytes + expected <= most_bytes {
                return Some(kind);
            }
            if !has_none || expected > most_bytes {
                return None;
            }
            gone.push(self.give_up_one(number)?);
        }
    }

    /// One of another kind, of the one that was not called the longest.
    fn give_up_one(&mut self, number: u64) -> Option<Parked> {
        let others = self
            .lines
            .iter_mut()
            .filter(|line| line.number != number && !line.ready.is_empty());
        let oldest = others.min_by_key(|line| line.used)?;
        Some(oldest.ready.remove(0))
    }

    fn weed(&mut self, most_bytes: u64) -> Vec<Parked> {
        let mut gone = Vec::new();
        for line in &mut self.lines {
            let is_idle = line.in_use == 0 && line.used.elapsed() >= IDLE;
            let (kept, others): (Vec<_>, Vec<_>) = std::mem::take(&mut line.ready)
                .into_iter()
                .partition(|parked| {
                    !is_idle && parked.born.elapsed() < LIFETIME && parked.is_alive()
                });
            if others.iter().any(|parked| !parked.is_alive()) {
                line.rest(PAUSE);
            }
            line.ready = kept;
            gone.extend(others);
            if line.peak_since.elapsed() >= OF_LATE {
                (line.peak, line.peak_since) = (line.in_use, Instant::now());
            }
        }
        self.lines.retain(|line| {
            line.in_use > 0
                || line.is_making
                || !line.ready.is_empty()
                || line.used.elapsed() < IDLE
        });
        while self.bytes() > most_bytes {
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
