//! Pool of warm interpreters: each waits in a sandbox with a tool imported, for one call of that
//! tool. They are prepared in the background after calls, for tools that were called recently.
//!
//! ```text
//! call begins ─ take ─▶ a warm interpreter │ none: cold start
//! call ends ──▶ preparation (one per kind) ─ sandbox ─ import ─ "ready" ─ freeze ─▶ pool ─┬─▶ taken and thawed
//!                                                                                         └─▶ old, idle, dead, too much memory, changed code: ended
//! ```
//! An interpreter serves one call only: whatever the call leaves behind dies with it. A waiting one
//! does nothing, because its cgroup is frozen, and its memory is accounted before it joins the
//! pool. Where cgroups cannot be frozen, the pool stays empty.

use crate::{
    call::sandbox::{CallSandbox, SandboxError, SandboxFactory, SandboxKind},
    call::{READY, StatusPipe},
    tools::{EntryPoint, ToolCode},
};
use engine::Exec;
use spec::StdStream;
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{net::UnixListener, sync::watch};

/// An unused interpreter is ended after this time, because its clocks and addresses become stale.
const MAX_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// Interpreters of a tool that was not called for this long are ended.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Timeout of an import.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Backoff of a kind after a failed preparation or freeze.
const RETRY_DELAY: Duration = Duration::from_secs(60);
/// Backoff after an interpreter was too large, or where freezing is not possible: the next one is
/// unlikely to differ.
const LONG_RETRY_DELAY: Duration = Duration::from_secs(10 * 60);
/// Interval between checks of memory and liveness.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Window in which the peak of concurrent calls is measured.
const PEAK_WINDOW: Duration = Duration::from_secs(60);
/// Assumed memory of an interpreter before it is measured.
const DEFAULT_BYTES: u64 = 24 << 20;
/// Maximum number of kinds.
const MAX_KINDS: usize = 256;

/// A waiting interpreter.
#[derive(Debug)]
pub(crate) struct WarmInterpreter {
    pub(crate) sandbox: CallSandbox,
    pub(crate) exec: Exec,
    pub(crate) statuses: StatusPipe,
    /// Socket for model requests; nobody answers before there is a call.
    pub(crate) socket: Option<UnixListener>,
    created: Instant,
}

impl WarmInterpreter {
    fn bytes(&self) -> u64 {
        let known = self
            .sandbox
            .state()
            .map_or(0, |state| state.usage.memory_peak_bytes);
        if known == 0 { DEFAULT_BYTES } else { known }
    }

    fn is_alive(&self) -> bool {
        self.exec.result().is_none() && self.sandbox.is_alive()
    }
}

/// Interpreters of one kind.
#[derive(Debug)]
struct PoolEntry {
    /// Unique number, so that a preparation for an earlier entry is not taken for this one.
    number: u64,
    kind: SandboxKind,
    /// Oldest first.
    ready: Vec<WarmInterpreter>,
    is_preparing: bool,
    in_use: usize,
    /// Peak of concurrent calls in the current window.
    peak: usize,
    peak_since: Instant,
    last_used: Instant,
    /// End of the backoff.
    retry_at: Option<Instant>,
    /// Memory of the last one.
    bytes: u64,
}

impl PoolEntry {
    /// One more than the peak of concurrent calls, so that an immediate follow-up call finds one,
    /// too.
    fn needs_more(&self) -> bool {
        let is_retry_due = self.retry_at.is_none_or(|until| Instant::now() >= until);
        is_retry_due && self.ready.len() < self.peak.max(1) + 1
    }

    fn back_off(&mut self, time: Duration) {
        self.retry_at = Some(Instant::now() + time);
    }

    /// Expected memory of the next one.
    fn expected(&self) -> u64 {
        self.bytes.max(DEFAULT_BYTES)
    }
}

#[derive(Debug, Default)]
struct PoolState {
    entries: Vec<PoolEntry>,
    next: u64,
    is_closed: bool,
    is_evicting: bool,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct WarmPool {
    factory: Arc<SandboxFactory>,
    python: PathBuf,
    has_models: bool,
    max_count: usize,
    max_bytes: u64,
    state: Mutex<PoolState>,
    closing: watch::Sender<bool>,
    /// Why sandboxes cannot be frozen, until it is reported.
    warning: Mutex<Option<String>>,
    /// Whether a permanent and a temporary failure have been reported: each once.
    is_reported: [AtomicBool; 2],
}

/// A call in progress.
#[derive(Debug)]
pub(crate) struct ActiveUse {
    warm: Arc<WarmPool>,
    number: Option<u64>,
}

impl Drop for ActiveUse {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.warm.release(number);
        }
    }
}

impl WarmPool {
    /// For sandboxes with or without model access; with a maximum number and a maximum of memory.
    pub(crate) fn new(
        factory: Arc<SandboxFactory>,
        python: PathBuf,
        has_models: bool,
        max_count: usize,
        max_bytes: u64,
    ) -> Arc<WarmPool> {
        let closing = watch::Sender::new(false);
        let (warning, is_reported) = Default::default();
        Arc::new(WarmPool {
            factory,
            python,
            has_models,
            max_count,
            max_bytes,
            state: Mutex::default(),
            closing,
            warning,
            is_reported,
        })
    }

    /// The reason for the log, once.
    pub(crate) fn warning(&self) -> Option<String> {
        self.warning
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of the largest recent one.
    #[cfg(test)]
    pub(crate) fn largest(&self) -> u64 {
        self.state()
            .entries
            .iter()
            .map(|entry| entry.bytes)
            .max()
            .unwrap_or(0)
    }

    /// Number of warm interpreters.
    pub(crate) fn warm_count(&self) -> usize {
        self.state()
            .entries
            .iter()
            .flat_map(|entry| &entry.ready)
            .filter(|interpreter| interpreter.is_alive())
            .count()
    }

    /// Registers a call of this kind.
    pub(crate) fn using(self: &Arc<WarmPool>, kind: &SandboxKind) -> ActiveUse {
        let is_python = matches!(
            kind.what,
            Some(EntryPoint::Function { .. } | EntryPoint::Class { .. })
        );
        let number = (is_python && self.max_count > 0)
            .then(|| self.state().begin(kind))
            .flatten();
        ActiveUse {
            warm: self.clone(),
            number,
        }
    }

    /// Takes a warm interpreter of this kind.
    pub(crate) fn take(&self, kind: &SandboxKind) -> Option<WarmInterpreter> {
        let mut dead = Vec::new();
        let mut state = self.state();
        let entry = state.entries.iter_mut().find(|entry| entry.kind == *kind)?;
        while !entry.ready.is_empty() {
            let interpreter = entry.ready.remove(0);
            if interpreter.is_alive() {
                return Some(interpreter);
            }
            entry.back_off(RETRY_DELAY);
            dead.push(interpreter);
        }
        drop(state);
        None
    }

    /// A call has ended: prepares another interpreter in the background.
    fn release(self: &Arc<WarmPool>, number: u64) {
        let mut state = self.state();
        let Some(entry) = state
            .entries
            .iter_mut()
            .find(|entry| entry.number == number)
        else {
            return;
        };
        entry.in_use = entry.in_use.saturating_sub(1);
        entry.last_used = Instant::now();
        let starts_preparing = entry.needs_more() && !entry.is_preparing;
        entry.is_preparing |= starts_preparing;
        let starts_evictor = starts_preparing && !state.is_evicting;
        state.is_evicting |= starts_evictor;
        drop(state);
        if starts_preparing {
            let warm = self.clone();
            self.factory
                .spawn_background(async move { warm.make(number).await });
        }
        if starts_evictor {
            let warm = self.clone();
            self.factory
                .spawn_background(async move { warm.evict_until_empty().await });
        }
    }

    /// Prepares interpreters one by one as long as a kind has too few.
    async fn make(&self, number: u64) {
        while let Some(kind) = self.next(number) {
            let made = self.prepare(&kind).await;
            let mut state = self.state();
            let is_closed = state.is_closed;
            let held = state.bytes();
            let entry = state
                .entries
                .iter_mut()
                .find(|entry| entry.number == number);
            let left = match (entry, made) {
                (Some(entry), Ok(interpreter)) if !is_closed => {
                    entry.bytes = interpreter.bytes();
                    if held.saturating_add(entry.bytes) <= self.max_bytes {
                        entry.ready.push(interpreter);
                        continue;
                    }
                    // Only one that is too large by itself will be so again.
                    entry.back_off(if entry.bytes > self.max_bytes {
                        LONG_RETRY_DELAY
                    } else {
                        RETRY_DELAY
                    });
                    Some(interpreter)
                }
                (Some(entry), Err(delay)) => {
                    entry.back_off(delay);
                    None
                }
                // The code has changed meanwhile, or the pool is closed.
                (_, made) => made.ok(),
            };
            drop(state);
            drop(left);
        }
    }

    /// The kind, if another one should be prepared; makes room for it.
    fn next(&self, number: u64) -> Option<SandboxKind> {
        let mut state = self.state();
        let mut gone = Vec::new();
        let found = state.next(number, self.max_count, self.max_bytes, &mut gone);
        if found.is_none()
            && let Some(entry) = state
                .entries
                .iter_mut()
                .find(|entry| entry.number == number)
        {
            entry.is_preparing = false;
        }
        drop(state);
        drop(gone);
        found
    }

    /// Prepares one, or returns the backoff.
    async fn prepare(&self, kind: &SandboxKind) -> Result<WarmInterpreter, Duration> {
        let making = tokio::time::timeout(IMPORT_TIMEOUT, self.try_to_prepare(kind));
        let made = tokio::select! {
            made = making => made,
            // A shutdown does not wait for imports.
            () = self.closes() => return Err(RETRY_DELAY),
        };
        let interpreter = match made {
            Ok(Ok(Some(interpreter))) => interpreter,
            // Calls start cold and report the error.
            Ok(Ok(None) | Err(_)) | Err(_) => return Err(RETRY_DELAY),
        };
        match interpreter.sandbox.pause().await {
            Ok(()) => Ok(interpreter),
            Err(why) => {
                self.report_freeze_failure(&why);
                Err(if why.is_temporary() {
                    RETRY_DELAY
                } else {
                    LONG_RETRY_DELAY
                })
            }
        }
    }

    fn report_freeze_failure(&self, why: &SandboxError) {
        let is_temporary = why.is_temporary();
        if self.is_reported[usize::from(is_temporary)].swap(true, Ordering::Relaxed) {
            return;
        }
        let mut warning = self.warning.lock().unwrap_or_else(PoisonError::into_inner);
        if is_temporary {
            let message = "no interpreter is kept ready for now: one did not come to rest, and it is tried again";
            // A permanent failure is reported first.
            warning.get_or_insert_with(|| format!("{message}: {why}"));
        } else {
            let message = "no interpreter is kept ready, because none can be kept still";
            *warning = Some(format!("{message}: {why}"));
        }
    }

    /// Tests with an idle sandbox whether freezing is possible.
    pub(crate) async fn probe_freeze(&self, sandbox: &CallSandbox) {
        if self.max_count == 0 {
            return;
        }
        let tried = async {
            sandbox.pause().await?;
            sandbox.resume().await
        };
        self.handle_freeze_probe(tried.await);
    }

    /// Closes the pool if freezing is not possible, so that nothing is prepared in vain. After a
    /// temporary failure preparations go on, and calls start cold meanwhile.
    pub(crate) fn handle_freeze_probe(&self, tried: Result<(), SandboxError>) {
        let Err(why) = tried else { return };
        self.report_freeze_failure(&why);
        if !why.is_temporary() {
            self.close();
        }
    }

    async fn try_to_prepare(
        &self,
        kind: &SandboxKind,
    ) -> Result<Option<WarmInterpreter>, SandboxError> {
        let (module, attribute) = match &kind.what {
            Some(EntryPoint::Function { module, function }) => (module, function),
            Some(EntryPoint::Class { module, class_name }) => (module, class_name),
            Some(EntryPoint::Executable { .. }) | None => return Ok(None),
        };
        let sandbox = self.factory.open(kind).await?;
        let (statuses, socket) = sandbox.prepare(self.has_models)?;
        let command = sandbox.runner(&self.python, &["--park", module, attribute]);
        let exec = sandbox.start(command, true).await?;
        let is_ready = is_ready(&exec).await;
        Ok(is_ready.then(|| WarmInterpreter {
            sandbox,
            exec,
            statuses,
            socket,
            created: Instant::now(),
        }))
    }

    /// Ends interpreters that are old, idle, dead or too large, until there are none.
    async fn evict_until_empty(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = self.closes() => {}
            }
            let mut state = self.state();
            let gone = state.evict(self.max_bytes);
            let is_over = state.is_closed
                || state
                    .entries
                    .iter()
                    .all(|entry| entry.ready.is_empty() && !entry.is_preparing);
            state.is_evicting = !is_over;
            drop(state);
            drop(gone);
            if is_over {
                return;
            }
        }
    }

    /// Waits for the close.
    async fn closes(&self) {
        // The sender lives as long as the pool.
        _ = self.closing.subscribe().wait_for(|is| *is).await;
    }

    /// Drops interpreters that have imported this code.
    pub(crate) fn forget(&self, code: &ToolCode) {
        let mut state = self.state();
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut state.entries)
            .into_iter()
            .partition(|entry| entry.kind.code == *code);
        state.entries = kept;
        drop(state);
        drop(gone);
    }

    /// Stops preparations and ends all interpreters.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let gone = std::mem::take(&mut state.entries);
        drop(state);
        drop(gone);
        self.closing.send_replace(true);
    }
}

impl PoolState {
    fn begin(&mut self, kind: &SandboxKind) -> Option<u64> {
        if self.is_closed {
            return None;
        }
        let place = self.entries.iter().position(|entry| entry.kind == *kind);
        let now = Instant::now();
        let place = match place {
            Some(place) => place,
            None if self.entries.len() >= MAX_KINDS => return None,
            None => {
                self.next += 1;
                self.entries.push(PoolEntry {
                    number: self.next,
                    kind: kind.clone(),
                    ready: Vec::new(),
                    is_preparing: false,
                    in_use: 0,
                    peak: 0,
                    peak_since: now,
                    last_used: now,
                    retry_at: None,
                    bytes: 0,
                });
                self.entries.len() - 1
            }
        };
        let entry = &mut self.entries[place];
        entry.in_use += 1;
        entry.peak = entry.peak.max(entry.in_use);
        entry.last_used = now;
        Some(entry.number)
    }

    /// Memory of all interpreters.
    fn bytes(&self) -> u64 {
        self.entries
            .iter()
            .flat_map(|entry| &entry.ready)
            .map(WarmInterpreter::bytes)
            .sum()
    }

    /// The kind of an entry, if another interpreter may be prepared. A kind without one replaces
    /// the least recently called; those in preparation are counted.
    fn next(
        &mut self,
        number: u64,
        max_count: usize,
        max_bytes: u64,
        gone: &mut Vec<WarmInterpreter>,
    ) -> Option<SandboxKind> {
        let is_closed = self.is_closed;
        let entry = self.entries.iter().find(|entry| entry.number == number)?;
        let expected = entry.expected();
        let has_none = entry.ready.is_empty();
        let kind = entry.kind.clone();
        if is_closed || !entry.needs_more() {
            return None;
        }
        loop {
            let others = self
                .entries
                .iter()
                .filter(|entry| entry.is_preparing && entry.number != number);
            let (count, bytes) = others.fold((0, 0), |(count, bytes), entry| {
                (count + 1, bytes + entry.expected())
            });
            let ready: usize = self.entries.iter().map(|entry| entry.ready.len()).sum();
            if ready + count < max_count && self.bytes() + bytes + expected <= max_bytes {
                return Some(kind);
            }
            if !has_none || expected > max_bytes {
                return None;
            }
            gone.push(self.remove_least_used(number)?);
        }
    }

    /// Removes one of another kind, of the least recently called.
    fn remove_least_used(&mut self, number: u64) -> Option<WarmInterpreter> {
        let others = self
            .entries
            .iter_mut()
            .filter(|entry| entry.number != number && !entry.ready.is_empty());
        let oldest = others.min_by_key(|entry| entry.last_used)?;
        Some(oldest.ready.remove(0))
    }

    fn evict(&mut self, max_bytes: u64) -> Vec<WarmInterpreter> {
        let mut gone = Vec::new();
        for entry in &mut self.entries {
            let is_idle = entry.in_use == 0 && entry.last_used.elapsed() >= IDLE_TIMEOUT;
            let (kept, others): (Vec<_>, Vec<_>) = std::mem::take(&mut entry.ready)
                .into_iter()
                .partition(|interpreter| {
                    !is_idle
                        && interpreter.created.elapsed() < MAX_LIFETIME
                        && interpreter.is_alive()
                });
            if others.iter().any(|interpreter| !interpreter.is_alive()) {
                entry.back_off(RETRY_DELAY);
            }
            entry.ready = kept;
            gone.extend(others);
            if entry.peak_since.elapsed() >= PEAK_WINDOW {
                entry.peak = entry.in_use;
                entry.peak_since = Instant::now();
            }
        }
        self.entries.retain(|entry| {
            entry.in_use > 0
                || entry.is_preparing
                || !entry.ready.is_empty()
                || entry.last_used.elapsed() < IDLE_TIMEOUT
        });
        while self.bytes() > max_bytes {
            match self.remove_least_used(0) {
                Some(interpreter) => gone.push(interpreter),
                None => break,
            }
        }
        gone
    }
}

/// Waits for the ready line. Other output during the import goes to standard error.
async fn is_ready(exec: &Exec) -> bool {
    loop {
        let lengths = exec.output().lengths();
        if exec.output().read(StdStream::Stdout, 0, READY.len()).bytes == READY {
            return true;
        }
        if !exec.output().wait_for_more(lengths).await {
            return false;
        }
    }
}
