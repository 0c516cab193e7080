//! Prewarmed sandboxes: created in the background after a call that found no warm interpreter,
//! complete but with no process. The next call of the same kind only has to start its program. Each
//! serves one call.

use super::sandbox::{CallSandbox, SandboxError, SandboxFactory, SandboxKind};
use crate::tools::ToolCode;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// An unused sandbox is ended after this time.
const MAX_LIFETIME: Duration = Duration::from_secs(60);
/// Interval between checks for old sandboxes.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct PrewarmedSandbox {
    kind: SandboxKind,
    sandbox: CallSandbox,
    created: Instant,
}

#[derive(Debug, Default)]
struct PrewarmedState {
    /// Oldest first.
    ready: Vec<PrewarmedSandbox>,
    making: usize,
    /// Counts changes of code: a sandbox whose creation began before may contain the old code.
    forgotten: u64,
    /// The last error, until it is reported.
    warning: Option<String>,
    is_evicting: bool,
    is_closed: bool,
}

/// All prewarmed sandboxes.
#[derive(Debug)]
pub(super) struct PrewarmedSandboxes {
    factory: Arc<SandboxFactory>,
    max_count: usize,
    state: Mutex<PrewarmedState>,
    closing: Notify,
}

impl PrewarmedSandboxes {
    /// Keeps at most this many.
    pub(super) fn new(factory: Arc<SandboxFactory>, max_count: usize) -> Arc<PrewarmedSandboxes> {
        Arc::new(PrewarmedSandboxes {
            factory,
            max_count,
            state: Mutex::default(),
            closing: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, PrewarmedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sandbox for a call of this kind, prewarmed or new.
    pub(super) async fn open(&self, kind: &SandboxKind) -> Result<CallSandbox, SandboxError> {
        let mut dead = Vec::new();
        while let Some(prewarmed) = self.take(kind) {
            if prewarmed.sandbox.is_alive() {
                return Ok(prewarmed.sandbox);
            }
            dead.push(prewarmed);
        }
        self.factory.open(kind).await
    }

    fn take(&self, kind: &SandboxKind) -> Option<PrewarmedSandbox> {
        let mut state = self.state();
        let place = state
            .ready
            .iter()
            .position(|prewarmed| prewarmed.kind.fits(kind))?;
        Some(state.ready.remove(place))
    }

    /// Replaces a sandbox that a call of this kind has used. At the maximum, a sandbox of another
    /// kind is ended for it.
    pub(super) fn restock(self: &Arc<PrewarmedSandboxes>, kind: &SandboxKind) {
        let mut state = self.state();
        let is_full = state.ready.len() + state.making >= self.max_count;
        let other = state
            .ready
            .iter()
            .position(|prewarmed| !prewarmed.kind.fits(kind));
        let gone = match other {
            _ if state.is_closed => return,
            _ if !is_full => None,
            Some(other) => Some(state.ready.remove(other)),
            None => return,
        };
        state.making += 1;
        let forgotten = state.forgotten;
        let starts_evictor = !std::mem::replace(&mut state.is_evicting, true);
        drop(state);
        drop(gone);
        let pool = self.clone();
        let kind = kind.clone();
        self.factory
            .spawn_background(async move { pool.make(kind, forgotten).await });
        if starts_evictor {
            let pool = self.clone();
            self.factory
                .spawn_background(async move { pool.evict_until_empty().await });
        }
    }

    async fn make(&self, kind: SandboxKind, forgotten: u64) {
        let made = self.factory.open(&kind).await;
        let mut state = self.state();
        state.making -= 1;
        let unwanted = match made {
            Ok(sandbox) if !state.is_closed && state.forgotten == forgotten => {
                state.ready.push(PrewarmedSandbox {
                    kind,
                    sandbox,
                    created: Instant::now(),
                });
                None
            }
            Ok(sandbox) => Some(sandbox),
            Err(why) => {
                state.warning = Some(format!("no sandbox could be made ahead: {why}"));
                None
            }
        };
        drop(state);
        drop(unwanted);
    }

    /// The last error, for the log.
    pub(super) fn warning(&self) -> Option<String> {
        self.state().warning.take()
    }

    /// Ends old sandboxes until there are none.
    async fn evict_until_empty(&self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = self.closing.notified() => {}
            }
            let is_kept = |prewarmed: &PrewarmedSandbox| {
                prewarmed.created.elapsed() < MAX_LIFETIME && prewarmed.sandbox.is_alive()
            };
            let mut state = self.state();
            let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut state.ready)
                .into_iter()
                .partition(is_kept);
            state.ready = kept;
            let is_over = state.is_closed || state.ready.is_empty() && state.making == 0;
            state.is_evicting = !is_over;
            drop(state);
            drop(gone);
            if is_over {
                return;
            }
        }
    }

    /// Ends sandboxes that contain this code.
    pub(super) fn forget(&self, code: &ToolCode) {
        let mut state = self.state();
        state.forgotten += 1;
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut state.ready)
            .into_iter()
            .partition(|prewarmed| prewarmed.kind.code == *code);
        state.ready = kept;
        drop(state);
        drop(gone);
    }

    /// Number of prewarmed sandboxes.
    #[cfg(test)]
    pub(super) fn ready(&self) -> usize {
        self.state().ready.len()
    }

    /// Stops prewarming and ends all sandboxes.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let gone = std::mem::take(&mut state.ready);
        drop(state);
        drop(gone);
        self.closing.notify_one();
    }
}
