//! Serves agents of a mesh that speak over a message broker: each invocation of a tool runs in a fresh sandbox and has one
//! answer.
//!
//! ```text
//!                                          ┌── tools: what there is, from a manifest; probed in sandboxes
//!  broker ◀──▶ transport ──▶ wire ──▶ desk ┤
//!               (link, mqtt,  (what  (who  └▶ call: stage ─ run in a box ─ result, files ──▶ artifacts
//!                amqp, dev)    it     may         │
//!                              says)  begin)      └── ipc: a model without a key
//! ```
//! `sam.rs` is the loop that ties them together.

pub mod artifacts;
pub mod broker;
pub mod call;
pub mod desk;
pub mod health;
pub mod ipc;
pub mod log;
pub mod metrics;
pub mod sam;
pub mod settings;
pub mod tell;
pub mod tools;
pub mod transport;
pub mod warm;
pub mod wire;
