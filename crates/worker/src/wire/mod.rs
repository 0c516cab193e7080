//! What is said on the wire, as pure functions of bytes: topics, requests, answers, codes. Hostile bytes are expected.

pub mod answer;
pub mod code;
pub(crate) mod fields;
pub(crate) mod lenient;
pub(crate) mod plain;
mod reply;
pub mod request;
pub mod schema;
pub mod topic;
