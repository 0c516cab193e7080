//! Boxes: the native backend.
//! Knows nothing of secrets, stores or transports.

pub mod native;
