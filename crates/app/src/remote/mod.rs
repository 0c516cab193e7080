//! The HTTP client of `airlock serve`: addresses, requests, event streams. It knows nothing about
//! commands, which are in `cli/`.
//!
//! Neither redirects nor proxies are followed: the key is sent to the named address only.

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
