//! Serves agents of a mesh that speak over a message broker. So far its lower half: the way to a broker, what is said on it,
//! and who may begin.
//!
//! ```text
//!  broker ◀──▶ transport ──▶ wire ──▶ desk ──▶ a call of a tool
//!               (link,       (what    (who
//!                mqtt, dev)   it      may
//!                             says)   begin)
//! ```

pub mod broker;
pub mod desk;
pub mod transport;
pub mod wire;
