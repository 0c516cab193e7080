//! Uploads standard input to a program of a server, in chunks that are retried until they arrive.
//!
//! No request is open while there is no input, so that no timeout applies. Chunks carry offsets: a
//! server skips bytes that it has, so that a broken connection neither loses nor doubles any.

use super::exec::RemoteExec;
use crate::{
    cli::message::{self, Message},
    remote::{ClientRequest, RETRY_DELAYS_MS, RemoteError, query, read_ahead},
};
use bytes::{Bytes, BytesMut};
use http::Method;
use std::{io, time::Duration};
use tokio::sync::mpsc;

/// The maximum size of a chunk; servers buffer this much for a program that does not read.
const MAX_CHUNK_BYTES: usize = 4 << 20;
/// The timeout of one request, which is then sent again: programs may read slowly.
const WRITE_TIMEOUT: Duration = Duration::from_secs(600);

/// Starts the upload. A failure is reported and cancels the program: with half of its input it
/// would compute something else.
pub(super) fn start(started: &RemoteExec) {
    let started = started.clone();
    let chunks = read_ahead(io::stdin());
    tokio::spawn(async move {
        if let Err(error) = upload(&started, chunks).await {
            message::print(&[Message::Error(format!(
                "cannot send the rest of standard input: {error}"
            ))]);
            started.cancel();
        }
    });
}

async fn upload(
    started: &RemoteExec,
    mut chunks: mpsc::Receiver<io::Result<Bytes>>,
) -> Result<(), RemoteError> {
    let local =
        |error: io::Error| RemoteError::Local(format!("standard input cannot be read: {error}"));
    let mut at = 0;
    while let Some(chunk) = chunks.recv().await {
        let mut bytes = BytesMut::from(chunk.map_err(local)?);
        // Chunks that arrived during the last request are joined.
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

/// Sends one chunk until it has arrived; `false` if the program no longer reads.
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
            // The program's end is reported by its events.
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
