//! The worker: serves agents of a mesh over a message broker. Each tool invocation runs in a fresh
//! sandbox and has one answer.
//!
//! ```text
//!                                               ┌── tools: the catalog, from a manifest; probed in sandboxes
//!  broker ◀──▶ transport ──▶ wire ──▶ admission ┤
//!               (link, mqtt,  (mes-   (slots,    └▶ call: stage ─ run in a sandbox ─ result, files ──▶ artifacts
//!                amqp, dev)   sages)  queue)           │
//!                                                      └── ipc: model access without a key
//! ```
//! `sam.rs` is the loop that connects them.

pub mod admission;
pub mod artifacts;
pub mod call;
pub mod dev_broker;
pub mod health;
pub mod ipc;
pub mod log;
pub mod metrics;
pub mod sam;
pub mod settings;
pub mod telemetry;
pub mod tools;
pub mod transport;
pub mod warm_pool;
pub mod wire;
