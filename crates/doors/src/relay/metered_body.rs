//! The metered response body: scrubs the provider's bytes, meters them, and settles the charge when
//! the body ends, however it ends.

use super::cost_ceiling::CallLimits;
use crate::{
    budget::Reservation,
    dialect::Tap,
    ledger::CallOutcome,
    price::Price,
    scrub::Scrubber,
    upstream::{HttpConnection, ResponseChunk, Upstream},
    usage::{TokenUsage, UsageSource},
};
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

/// Estimated bytes per token, where the provider reports no usage.
const ESTIMATED_BYTES_PER_TOKEN: u64 = 4;
/// Text has at least one token per this many bytes, except for runs of blanks; a provider that
/// sends more than that ignores the output limit.
const MAX_BYTES_PER_TOKEN: u64 = 16;

/// A reservation and what is needed to settle it.
pub(super) struct OpenCharge {
    pub(super) reservation: Reservation,
    pub(super) price: Arc<Price>,
    pub(super) call_limits: CallLimits,
    /// Bytes of the request.
    pub(super) request_bytes: u64,
    /// Maximum input tokens.
    pub(super) max_input: u64,
    pub(super) began: Instant,
    pub(super) status: u16,
}

/// A response body that is being read.
pub(super) struct MeteredBody {
    pub(super) upstream: Arc<Upstream>,
    /// The tenant that it belongs to.
    pub(super) tenant: String,
    pub(super) connection: HttpConnection,
    pub(super) body: Incoming,
    pub(super) tap: Tap,
    pub(super) scrubber: Scrubber,
    pub(super) charge: OpenCharge,
    /// The response is delimited by length or chunks; otherwise the end of the connection may be an
    /// accident.
    pub(super) delimited: bool,
}

/// The next part of the body.
pub(super) enum BodyChunk {
    Data(Bytes),
    /// The last part.
    End(Bytes),
    Broken,
}

impl MeteredBody {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<BodyChunk> {
        self.connection
            .poll_chunk(&mut self.body, cx)
            .map(|piece| match piece {
                ResponseChunk::Data(data) => BodyChunk::Data(self.pass(data)),
                ResponseChunk::End => {
                    // Held bytes belong to what may be a complete response.
                    let passed = self.flush_scrubber();
                    let rest = self.rest(passed);
                    if self.delimited || self.tap.is_complete() {
                        BodyChunk::End(rest)
                    } else {
                        BodyChunk::Broken
                    }
                }
                ResponseChunk::Broken => BodyChunk::Broken,
            })
    }

    fn pass(&mut self, data: Bytes) -> Bytes {
        let data = match self.upstream.patterns() {
            Some(patterns) => self.scrubber.feed(patterns, data),
            None => data,
        };
        let passed = self.tap.feed(data);
        // The last chunk is scanned without waiting for more.
        if self.body.is_end_stream() {
            joined(passed, self.flush_scrubber())
        } else {
            passed
        }
    }

    /// The bytes that the credential search held back.
    fn flush_scrubber(&mut self) -> Bytes {
        let Some(patterns) = self.upstream.patterns() else {
            return Bytes::new();
        };
        let held = self.scrubber.flush(patterns);
        if held.is_empty() {
            held
        } else {
            self.tap.feed(held)
        }
    }

    fn rest(&mut self, passed: Bytes) -> Bytes {
        joined(passed, self.tap.rest())
    }

    /// Whether a response with a known length has arrived completely; then it is scanned to its
    /// end.
    pub(super) fn is_fully_read(&mut self) -> bool {
        let is_fully_read = self.body.is_end_stream();
        if is_fully_read {
            let passed = self.flush_scrubber();
            self.rest(passed);
        }
        is_fully_read
    }

    /// Whether more output has arrived than was reserved.
    pub(super) fn is_over_limit(&self) -> bool {
        let Some(cut) = self.charge.call_limits.cut else {
            return false;
        };
        self.tap
            .least_output()
            .max(self.tap.output_bytes() / MAX_BYTES_PER_TOKEN)
            > cut
    }

    /// Settles the real cost. The connection is kept if the response was read to its end.
    pub(super) fn settle(self, ending: &str, at_end: bool) {
        let (usage, source) = self.billable_usage(at_end);
        self.charge.settle(usage, source, ending);
        if at_end {
            self.upstream.keep_idle(self.connection, &self.tenant);
        }
    }

    /// The usage to charge. Where a budget applies and the final usage is missing, it is the
    /// maximum that is possible: one token per byte of a complete response; the whole reservation
    /// for one that broke off, because it may have been generated to its end unseen.
    fn billable_usage(&self, at_end: bool) -> (TokenUsage, UsageSource) {
        if self.tap.is_final() || !self.charge.call_limits.limited {
            return self.usage(ESTIMATED_BYTES_PER_TOKEN);
        }
        let least = self.usage(MAX_BYTES_PER_TOKEN);
        let most = self.usage(1);
        let is_whole = at_end && self.tap.is_complete();
        if self.charge.exceeds_reservation(&least.0) {
            least
        } else if is_whole && !self.charge.exceeds_reservation(&most.0) {
            most
        } else {
            (least.0, UsageSource::Reserved)
        }
    }

    /// The usage and its source. What the provider did not report is estimated from the bytes.
    fn usage(&self, bytes_a_token: u64) -> (TokenUsage, UsageSource) {
        let reported = self.tap.usage();
        if let Some(usage) = reported.filter(|_| self.tap.is_final()) {
            return (usage, UsageSource::Final);
        }
        let mut usage = reported.unwrap_or_default();
        if usage.input_tokens() == 0 {
            let read = self.charge.request_bytes.div_ceil(bytes_a_token).max(1);
            usage.input = if bytes_a_token == 1 {
                read.max(self.charge.max_input)
            } else {
                read
            };
        }
        // Usage that was reported before the end lacks what passed since.
        let seen = self
            .tap
            .least_output()
            .max(self.tap.output_bytes().div_ceil(bytes_a_token));
        usage.output += seen.saturating_sub(usage.output_tokens());
        (
            usage,
            if reported.is_some() {
                UsageSource::Partial
            } else {
                UsageSource::Estimated
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

impl OpenCharge {
    /// Settles with this usage. A charge of the reservation costs all of it, whatever was seen.
    pub(super) fn settle(self, usage: TokenUsage, source: UsageSource, ending: &str) {
        let money = self.price.cost(&usage);
        let outcome = CallOutcome {
            usage,
            source,
            money,
            overrun: money.minus(self.call_limits.amount.money),
            status: self.status,
            ending: ending.to_owned(),
            duration_ms: self.began.elapsed().as_millis() as u64,
        };
        self.reservation.settle(outcome);
    }

    /// Settles at zero: the provider refused, or was never called.
    pub(super) fn settle_zero(self, ending: &str) {
        self.settle(TokenUsage::default(), UsageSource::Final, ending);
    }

    /// Settles the whole reservation: the request was sent and no response came, but the provider
    /// may have completed it.
    pub(super) fn settle_full(self, ending: &str) {
        let usage = TokenUsage {
            input: self.call_limits.amount.tokens,
            ..TokenUsage::default()
        };
        self.settle(usage, UsageSource::Reserved, ending);
    }

    /// Whether the usage exceeds the reservation.
    fn exceeds_reservation(&self, usage: &TokenUsage) -> bool {
        let amount = self.call_limits.amount;
        self.price.cost(usage) > amount.money || usage.tokens() > amount.tokens
    }
}
