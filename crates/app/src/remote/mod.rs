//! A server of ours as seen from here: where it listens, how it is asked, what its events say. It knows HTTP and nothing
//! of what commands mean; those are in `cli/`.
//!
//! Neither redirects nor proxies are followed: the key goes to the address that was named, or nowhere.

mod address;
mod certificate_verifier;
mod client;
mod event_stream;
mod server_sent_events;

pub(crate) use self::{
    address::ServerAddress,
    certificate_verifier::CertificateVerifier,
    client::{
        Client, ClientRequest, ClientResponse, Connection, IDLE_TIMEOUT, Problem, RemoteError,
        query, read_ahead, segment, segments, upload,
    },
    event_stream::{EventSource, EventStream, RETRY_DELAYS_MS},
    server_sent_events::ServerEvent,
};
