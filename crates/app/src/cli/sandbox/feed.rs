//! Our standard input on its way to a program at a server: piece by piece, each sent again until it has arrived.
//!
//! Nothing is under way while nothing is typed, so that no silence ends it; and a server passes over what it has typed
//! already, so that nothing is lost or doubled when a connection breaks.

use super::exec::Started;
use crate::{
    cli::message::{self, Line},
    remote::{Ask, PAUSES, RemoteError, query, read_ahead},
};
use bytes::{Bytes, BytesMut};
use http::Method;
use std::{io, time::Duration};
use tokio::sync::mpsc;

/// What is sent at a time at most; a server takes as much from whoever has nobody to read it.
const MOST: usize = 4 << 20;
/// A program may read as slowly as it likes; after so long it is asked again.
const LONGEST_TYPING: Duration = Duration::from_secs(600);

/// Types our standard input there, to its end. If that fails it is said, and the program ended: what it would make of half
/// of its input is not what was asked for.
pub(super) fn begin(started: &Started) {
    let (started, pieces) = (started.clone(), read_ahead(io::stdin()));
    tokio::spawn(async move {
        if let Err(error) = type_all(&started, pieces).await {
            message::say(&[Line::Error(format!(
                "the rest of standard input cannot be sent: {error}"
            ))]);
            started.cancel();
        }
    });
}

async fn type_all(
    started: &Started,
    mut pieces: mpsc::Receiver<io::Result<Bytes>>,
) -> Result<(), RemoteError> {
    let local = |error: io::Error| RemoteError::Local(format!("it cannot be read: {error}"));
    let mut at = 0;
    while let Some(piece) = pieces.recv().await {
        let mut bytes = BytesMut::from(piece.map_err(local)?);
        // What came while the last was on its way goes together.
        while bytes.len() < MOST
            && let Ok(more) = pieces.try_recv()
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
async fn send(started: &Started, at: u64, bytes: Bytes, close: bool) -> Result<bool, RemoteError> {
    let asked = [
        ("offset", Some(at.to_string())),
        ("close", close.then(|| "true".to_owned())),
    ];
    let path = format!("{}/stdin{}", started.path(), query(&asked));
    let mut pauses = PAUSES.iter();
    loop {
        let ask = Ask::new(Method::POST, path.clone())
            .bytes(bytes.clone())
            .patience(LONGEST_TYPING);
        let error = match started.client.ask(ask).await {
            Ok(_) => return Ok(true),
            Err(error) => error,
        };
        let may_pass = match &error {
            // What became of the program is told where it is followed.
            RemoteError::Refused(problem) if [404, 409, 410].contains(&problem.status) => {
                return Ok(false);
            }
            RemoteError::Refused(problem) => problem.status == 408 || error.may_pass(),
            RemoteError::Silent { .. } => continue,
            other => other.may_pass(),
        };
        match pauses.next().filter(|_| may_pass) {
            Some(pause) => tokio::time::sleep(Duration::from_millis(*pause)).await,
            None => return Err(error),
        }
    }
}
