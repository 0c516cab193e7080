//! The lines in which calls wait: one for each who asks, served in turn. Places and bytes are bounded for all together, and
//! for each so that whoever asks for much leaves some to others. Who asks is a stranger's word: this is fairness among those
//! who say it, and the bounds for all hold against those who do not.

use super::{Bounds, Ticket};
use std::collections::VecDeque;

/// Of all places and bytes, one alone leaves this part to others; while others wait, each has at most half.
const KEPT_FREE: usize = 8;

#[derive(Debug)]
pub(super) struct Lines<T> {
    /// None is empty; the first has its turn.
    lines: VecDeque<VecDeque<Ticket<T>>>,
    len: usize,
    bytes: usize,
}

impl<T> Default for Lines<T> {
    fn default() -> Lines<T> {
        Lines {
            lines: VecDeque::new(),
            len: 0,
            bytes: 0,
        }
    }
}

impl<T> Lines<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Ticket<T>> {
        self.lines.iter().flatten()
    }

    fn line_of(&self, party: &str) -> Option<&VecDeque<Ticket<T>>> {
        self.lines.iter().find(|line| is_of(line, party))
    }

    /// Why there is no place for this one, if so. The first of a line may have any place that is left.
    pub(super) fn objection(&self, ticket: &Ticket<T>, bounds: Bounds) -> Option<String> {
        let Bounds {
            waiting,
            waiting_bytes,
            ..
        } = bounds;
        if self.len >= waiting || self.bytes.saturating_add(ticket.weight) > waiting_bytes {
            return Some(format!("{} calls wait already", self.len));
        }
        let own = self.line_of(&ticket.party)?;
        let is_alone = self.lines.len() == 1;
        let share = |all: usize| {
            if is_alone {
                all - all / KEPT_FREE
            } else {
                all.div_ceil(2)
            }
        };
        let bytes = own
            .iter()
            .map(|one| one.weight)
            .fold(ticket.weight, usize::saturating_add);
        let is_too_much = own.len() >= share(waiting) || bytes > share(waiting_bytes);
        is_too_much.then(|| format!("{} calls of this agent and user wait already", own.len()))
    }

    pub(super) fn push(&mut self, ticket: Ticket<T>) {
        self.len += 1;
        self.bytes = self.bytes.saturating_add(ticket.weight);
        match self
            .lines
            .iter_mut()
            .find(|line| is_of(line, &ticket.party))
        {
            Some(line) => line.push_back(ticket),
            None => self.lines.push_back(VecDeque::from([ticket])),
        }
    }

    /// All that have their turn before one who comes now.
    pub(super) fn before(&self, party: &str) -> impl Iterator<Item = &Ticket<T>> {
        let rounds = self.line_of(party).map_or(0, VecDeque::len);
        self.lines
            .iter()
            .flat_map(move |line| line.iter().take(rounds + 1))
    }

    /// The next in turn.
    pub(super) fn next(&mut self) -> Option<Ticket<T>> {
        let mut line = self.lines.pop_front()?;
        let ticket = line.pop_front()?;
        if !line.is_empty() {
            self.lines.push_back(line);
        }
        self.gone(&ticket);
        Some(ticket)
    }

    /// The first that is meant, wherever it waits.
    pub(super) fn take(&mut self, is_meant: impl Fn(&Ticket<T>) -> bool) -> Option<Ticket<T>> {
        let find = |(at, line): (usize, &VecDeque<Ticket<T>>)| {
            Some((at, line.iter().position(&is_meant)?))
        };
        let (at, place) = self.lines.iter().enumerate().find_map(find)?;
        let line = self.lines.get_mut(at)?;
        let ticket = line.remove(place)?;
        if line.is_empty() {
            self.lines.remove(at);
        }
        self.gone(&ticket);
        Some(ticket)
    }

    fn gone(&mut self, ticket: &Ticket<T>) {
        self.len -= 1;
        self.bytes = self.bytes.saturating_sub(ticket.weight);
    }
}

fn is_of<T>(line: &VecDeque<Ticket<T>>, party: &str) -> bool {
    line.front().is_some_and(|ticket| ticket.party == party)
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
