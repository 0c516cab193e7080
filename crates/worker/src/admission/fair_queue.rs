//! Fair queueing of calls: one queue per client, served round robin. Entries and bytes are bounded
//! in total, and per client so that a client with many calls leaves capacity to others. The
//! client's identity is its own claim: fairness holds between honest clients, the total bounds hold
//! against the others.

use super::{AdmissionLimits, PendingCall};
use std::collections::VecDeque;

/// A single client leaves this fraction of entries and bytes free; while others wait, each client
/// may use at most half.
const RESERVED_FRACTION: usize = 8;

#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// No queue is empty; the first one is served next.
    lines: VecDeque<VecDeque<PendingCall<T>>>,
    len: usize,
    bytes: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue {
            lines: VecDeque::new(),
            len: 0,
            bytes: 0,
        }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingCall<T>> {
        self.lines.iter().flatten()
    }

    fn line_of(&self, client: &str) -> Option<&VecDeque<PendingCall<T>>> {
        self.lines.iter().find(|line| is_of(line, client))
    }

    /// Why the call cannot be queued, if so. The first call of a client may use any free entry.
    pub(super) fn rejection(
        &self,
        pending: &PendingCall<T>,
        bounds: AdmissionLimits,
    ) -> Option<String> {
        let AdmissionLimits {
            waiting,
            waiting_bytes,
            ..
        } = bounds;
        if self.len >= waiting || self.bytes.saturating_add(pending.weight) > waiting_bytes {
            return Some(format!("{} calls wait already", self.len));
        }
        let own = self.line_of(&pending.client)?;
        let is_alone = self.lines.len() == 1;
        let share = |all: usize| {
            if is_alone {
                all - all / RESERVED_FRACTION
            } else {
                all.div_ceil(2)
            }
        };
        let bytes = own
            .iter()
            .map(|one| one.weight)
            .fold(pending.weight, usize::saturating_add);
        let is_too_much = own.len() >= share(waiting) || bytes > share(waiting_bytes);
        is_too_much.then(|| format!("{} calls of this agent and user wait already", own.len()))
    }

    pub(super) fn push(&mut self, pending: PendingCall<T>) {
        self.len += 1;
        self.bytes = self.bytes.saturating_add(pending.weight);
        match self
            .lines
            .iter_mut()
            .find(|line| is_of(line, &pending.client))
        {
            Some(line) => line.push_back(pending),
            None => self.lines.push_back(VecDeque::from([pending])),
        }
    }

    /// All calls that would be served before a new call of this client.
    pub(super) fn before(&self, client: &str) -> impl Iterator<Item = &PendingCall<T>> {
        let rounds = self.line_of(client).map_or(0, VecDeque::len);
        self.lines
            .iter()
            .flat_map(move |line| line.iter().take(rounds + 1))
    }

    /// The next call in turn.
    pub(super) fn next(&mut self) -> Option<PendingCall<T>> {
        let mut line = self.lines.pop_front()?;
        let pending = line.pop_front()?;
        if !line.is_empty() {
            self.lines.push_back(line);
        }
        self.subtract(&pending);
        Some(pending)
    }

    /// Removes the first call that matches, in any queue.
    pub(super) fn take(
        &mut self,
        is_meant: impl Fn(&PendingCall<T>) -> bool,
    ) -> Option<PendingCall<T>> {
        let find = |(at, line): (usize, &VecDeque<PendingCall<T>>)| {
            Some((at, line.iter().position(&is_meant)?))
        };
        let (at, place) = self.lines.iter().enumerate().find_map(find)?;
        let line = self.lines.get_mut(at)?;
        let pending = line.remove(place)?;
        if line.is_empty() {
            self.lines.remove(at);
        }
        self.subtract(&pending);
        Some(pending)
    }

    fn subtract(&mut self, pending: &PendingCall<T>) {
        self.len -= 1;
        self.bytes = self.bytes.saturating_sub(pending.weight);
    }
}

fn is_of<T>(line: &VecDeque<PendingCall<T>>, client: &str) -> bool {
    line.front().is_some_and(|pending| pending.client == client)
}

#[cfg(test)]
#[path = "fair_queue_tests.rs"]
mod tests;
