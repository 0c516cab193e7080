//! What comes from the provider, read once: scrubbed, metered, and settled when it ends, however it ends.

use super::worst::Allowed;
use crate::{
    dialect::Tap,
    ledger::Outcome,
    price::Price,
    scrub::Scrub,
    till::Hold,
    upstream::{Piece, Upstream, Wire},
    usage::{Source, Usage},
};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

/// Where the provider says nothing, this many bytes are taken for a token.
const BYTES_A_TOKEN: u64 = 4;
/// No text has fewer tokens than one for so many bytes, but for runs of blanks; a provider that keeps sending beyond
/// that does not count as it was asked to.
const MOST_BYTES_A_TOKEN: u64 = 16;

/// A reservation, and what is needed to settle it.
pub(super) struct Bill {
    pub(super) hold: Hold,
    pub(super) price: Arc<Price>,
    pub(super) allowed: Allowed,
    /// Bytes of the request.
    pub(super) asked: u64,
    /// The most tokens that it can be.
    pub(super) most_input: u64,
    pub(super) began: Instant,
    pub(super) status: u16,
}

/// An answer being read.
pub(super) struct Flow {
    pub(super) upstream: Arc<Upstream>,
    pub(super) wire: Wire,
    pub(super) body: Incoming,
    pub(super) tap: Tap,
    pub(super) scrub: Scrub,
    pub(super) bill: Bill,
    /// The answer says itself where it ends; otherwise the end of the connection may be an accident.
    pub(super) delimited: bool,
}

/// What came next.
pub(super) enum Step {
    Data(Bytes),
    /// The last of it.
    End(Bytes),
    Broken,
}

impl Flow {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        self.wire
            .poll_piece(&mut self.body, cx)
            .map(|piece| match piece {
                Piece::Data(data) => Step::Data(self.pass(data)),
                Piece::End => {
                    // What waited belongs to what may be whole.
                    let passed = self.unheld();
                    let rest = self.rest(passed);
                    match self.delimited || self.tap.is_complete() {
                        true => Step::End(rest),
                        false => Step::Broken,
                    }
                }
                Piece::Broken => Step::Broken,
            })
    }

    fn pass(&mut self, data: Bytes) -> Bytes {
        let data = match self.upstream.reflection() {
            Some(reflection) => self.scrub.feed(reflection, data),
            None => data,
        };
        let passed = self.tap.feed(data);
        // The last of it has nothing to wait for, and is looked at like the rest of it.
        match self.body.is_end_stream() {
            true => joined(passed, self.unheld()),
            false => passed,
        }
    }

    /// What the search for the credential held back.
    fn unheld(&mut self) -> Bytes {
        let Some(reflection) = self.upstream.reflection() else {
            return Bytes::new();
        };
        let held = self.scrub.rest(reflection);
        if held.is_empty() {
            held
        } else {
            self.tap.feed(held)
        }
    }

    fn rest(&mut self, passed: Bytes) -> Bytes {
        joined(passed, self.tap.rest())
    }

    /// Whether all of an answer that named its length has come; then it is read to its end.
    pub(super) fn is_read(&mut self) -> bool {
        let is_read = self.body.is_end_stream();
        if is_read {
            let passed = self.unheld();
            self.rest(passed);
        }
        is_read
    }

    /// More has come than was paid for.
    pub(super) fn is_spent(&self) -> bool {
        let Some(cut) = self.bill.allowed.cut else {
            return false;
        };
        self.tap
            .least_output()
            .max(self.tap.output_bytes() / MOST_BYTES_A_TOKEN)
            > cut
    }

    /// The real bill. The connection is kept if the answer was read to its end.
    pub(super) fn settle(self, ending: &str, at_end: bool) {
        let (usage, source) = self.charged(at_end);
        self.bill.settle(usage, source, ending);
        if at_end {
            self.upstream.keep(self.wire);
        }
    }

    /// What counts. Where a limit is to hold and the provider's last word is missing, that is the most that it can have
    /// been: a token for each byte of an answer that is whole; of one that broke off, and may have been served to its
    /// end unseen, the reservation.
    fn charged(&self, at_end: bool) -> (Usage, Source) {
        if self.tap.is_final() || !self.bill.allowed.limited {
            return self.used(BYTES_A_TOKEN);
        }
        let (least, most) = (self.used(MOST_BYTES_A_TOKEN), self.used(1));
        let is_whole = at_end && self.tap.is_complete();
        if self.bill.is_beyond(&least.0) {
            least
        } else if is_whole && !self.bill.is_beyond(&most.0) {
            most
        } else {
            (least.0, Source::Reserved)
        }
    }

    /// What was used, and how we know. What the provider did not say is taken from what passed.
    fn used(&self, bytes_a_token: u64) -> (Usage, Source) {
        let said = self.tap.usage();
        if let Some(usage) = said.filter(|_| self.tap.is_final()) {
            return (usage, Source::Final);
        }
        let mut usage = said.unwrap_or_default();
        if usage.input_tokens() == 0 {
            let read = self.bill.asked.div_ceil(bytes_a_token).max(1);
            usage.input = if bytes_a_token == 1 {
                read.max(self.bill.most_input)
            } else {
                read
            };
        }
        // What was said before the end leaves out what passed since.
        let seen = self
            .tap
            .least_output()
            .max(self.tap.output_bytes().div_ceil(bytes_a_token));
        usage.output += seen.saturating_sub(usage.output_tokens());
        (
            usage,
            if said.is_some() {
                Source::Partial
            } else {
                Source::Estimated
            },
        )
    }
}

fn joined(first: Bytes, second: Bytes) -> Bytes {
    match (first.is_empty(), second.is_empty()) {
        (_, true) => first,
        (true, false) => second,
        (false, false) => [first, second].concat().into(),
    }
}

impl Bill {
    /// With what is known. What is only reserved costs that, whatever of it was seen.
    pub(super) fn settle(self, usage: Usage, source: Source, ending: &str) {
        let money = self.price.cost(&usage);
        let outcome = Outcome {
            usage,
            source,
            money,
            overrun: money.minus(self.allowed.claim.money),
            status: self.status,
            ending: ending.to_owned(),
            duration_ms: self.began.elapsed().as_millis() as u64,
        };
        self.hold.settle(outcome);
    }

    /// Nothing was used: the provider refused, or was never asked.
    pub(super) fn nothing(self, ending: &str) {
        self.settle(Usage::default(), Source::Final, ending);
    }

    /// It was asked and did not answer: it may have done everything that was asked.
    pub(super) fn everything(self, ending: &str) {
        let usage = Usage {
            input: self.allowed.claim.tokens,
            ..Usage::default()
        };
        self.settle(usage, Source::Reserved, ending);
    }

    /// More was used than reserved.
    fn is_beyond(&self, usage: &Usage) -> bool {
        let claim = self.allowed.claim;
        self.price.cost(usage) > claim.money || usage.tokens() > claim.tokens
    }
}
