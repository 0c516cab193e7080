//! Serves agents of a mesh that speak over a message broker: takes their invocations of tools, runs each in a sandbox of its
//! own, passes on what it says meanwhile, keeps its files, and answers. Exactly one answer a request.
//!
//! ```text
//!  broker ◀──▶ transport ──▶ wire ──▶ desk ──▶ call ──▶ engine: a box a call
//!               (link,       (what    (who     │  ├─ artifacts: in, out
//!                mqtt, dev,   it      may      │  ├─ status: lines out while it runs
//!                amqp)        says)   begin)   │  └─ model: its calls to a model, through a door
//!                                      ▲       ▼
//!                              tools: manifest, what they say of themselves, packages, warm interpreters
//! ```

pub mod artifacts;
pub mod broker;
pub mod call;
pub mod desk;
pub mod health;
pub mod settings;
pub mod tools;
pub mod transport;
pub mod warm;
pub mod wire;
