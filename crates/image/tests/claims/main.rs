//! Claims about images, each with archives made for it.

#![allow(
    clippy::unwrap_used,
    reason = "a claim that cannot be put to the test has failed"
)]

mod common;
mod documents;
mod hostile;
mod layers;
mod permissions;
mod store;
