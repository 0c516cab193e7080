//! Wire format of the mesh, as pure functions of bytes: topics, requests, answers, error codes.
//! Input is untrusted.

pub mod answer;
pub mod code;
pub(crate) mod fields;
pub(crate) mod lenient;
mod reply_address;
pub mod request;
pub mod schema;
pub mod topic;
pub(crate) mod untrusted_json;
