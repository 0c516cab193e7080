//! Our standard input on its way to a program at a server: piece by piece, each sent again until it has arrived.
//!
//! Nothing is under way while nothing is typed, so that no silence ends it; and a server passes over what it has typed
//! already, so that nothing is lost or doubled when a connection breaks.

use super::exec::RemoteExec;
use crate::{
    cli::message::{self, Message},
    remote::{ClientRequest, RETRY_DELAYS_MS, RemoteError, query, read_ahead},
};
use bytes::{Bytes, BytesMut};
use http::Method;
use std::{io, time::Duration};
use tokio::sync::mpsc;

/// What is sent at a time at most; a server takes as much from whoever has nobody to read it.
const MAX_CHUNK_BYTES: usize = 4 << 20;
/// A program may read as slowly as it likes; after so long it is asked again.
const WRITE_TIMEOUT: Duration = Duration::from_secs(600);

/// Types our standard input there, to its end. If that fails it is said, and the program ended: what it would make of half
/// of its input is not what was asked for.
pub(super) fn start(started: &RemoteExec) {
    let (started, chunks) = (started.clone(), read_ahead(io::stdin()));
    tokio::spawn(async move {
        if let Err(error) = upload(&started, chunks).await {
            message::print(&[Message::Error(format!(
                "the rest of standard input cannot be sent: {error}"
            ))]);
            started.cancel();
        }
    });
}

async fn upload(
    started: &RemoteExec,
    mut chunks: mpsc::Receiver<io::Result<Bytes>>,
) -> Result<(), RemoteError> {
    let local = |error: io::Error| RemoteError::Local(format!("it cannot be read: {error}"));
    let mut at = 0;
    while let Some(chunk) = chunks.recv().await {
        let mut bytes = BytesMut::from(chunk.map_err(local)?);
        // What came while the last was on its way goes together.
        while bytes.len() < MAX_CHUNK_BYTES
            && let Ok(more) = chunks.try_recv()
        {
            bytes.extend_from_slice(&more.map_err(local)?);
        }
        let length = bytes.len() as u64;
        if !send(started, at, bytes.freeze(), false).await? {
            return Ok(());
        }
        at += length;
    }
    send(started, at, Bytes::new(), true).await.map(drop)
}

/// Sends one piece until it has arrived; false if nobody reads any more, which is the program's own affair.
async fn send(
    started: &RemoteExec,
    at: u64,
    bytes: Bytes,
    close: bool,
) -> Result<bool, RemoteError> {
    let parameters = [
        ("offset", Some(at.to_string())),
        ("close", close.then(|| "true".to_owned())),
    ];
    let path = format!("{}/stdin{}", started.path(), query(&parameters));
    let mut delays = RETRY_DELAYS_MS.iter();
    loop {
        let ask = ClientRequest::new(Method::POST, path.clone())
            .bytes(bytes.clone())
            .response_timeout(WRITE_TIMEOUT);
        let error = match started.client.send(ask).await {
            Ok(_) => return Ok(true),
            Err(error) => error,
        };
        let is_transient = match &error {
            // What became of the program is told where it is followed.
            RemoteError::Refused(problem) if [404, 409, 410].contains(&problem.status) => {
                return Ok(false);
            }
            RemoteError::Refused(problem) => problem.status == 408 || error.is_transient(),
            RemoteError::TimedOut { .. } => continue,
            other => other.is_transient(),
        };
        match delays.next().filter(|_| is_transient) {
            Some(delay) => tokio::time::sleep(Duration::from_millis(*delay)).await,
            None => return Err(error),
        }
    }
}
