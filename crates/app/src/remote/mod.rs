//! A server of ours as seen from here: where it listens, how it is asked, what its events say. It knows HTTP and nothing
//! of what commands mean; those are in `cli/`.
//!
//! Neither redirects nor proxies are followed: the key goes to the address that was named, or nowhere.

mod address;
mod events;
mod follow;
mod http;
mod trust;

pub(crate) use self::{
    address::Address,
    events::Event,
    follow::{Follow, Followed, PAUSES},
    http::{
        Answer, Ask, Client, LONGEST_SILENCE, Problem, RemoteError, Stream, query, read_ahead,
        segment, segments, upload,
    },
    trust::Trust,
};
