//! Connections that become something else (WebSocket): where a rule allows it, and never with a credential, since nobody
//! looks at what passes then.

use super::{Client, exchange::Exchange, granted::Granted, head::WEBSOCKET};
use crate::{
    egress::{Refusal, Way},
    line::Line,
    upstream::Io,
};
use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue,
    header::{CONNECTION, UPGRADE},
};
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Read at once.
const PIECE: usize = 16 << 10;

/// A connection that is no longer one for requests.
pub(super) struct Upgraded {
    pub(super) io: Io,
    pub(super) early: Bytes,
    pub(super) exchange: Arc<Exchange>,
}

/// Where it waits until its answer is out.
#[derive(Default)]
pub(super) struct Slot(Mutex<Option<Upgraded>>);

impl Slot {
    pub(super) fn put(&self, upgraded: Upgraded) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgraded);
    }

    pub(super) fn take(&self) -> Option<Upgraded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whether a connection may become a WebSocket.
pub(super) fn check(granted: &Granted, is_proxy: bool) -> Result<(), Refusal> {
    let rule = &granted.standing.rule.name;
    let refuse = |reason: &str, allow: &str| Err(Refusal::new(rule, reason, allow));
    if !granted.may_upgrade {
        return refuse(
            "the rule does not let a connection become a WebSocket",
            "a rule with mode = \"inspect\" and allow_upgrade = true in the configuration",
        );
    }
    if granted.credential.is_some() {
        return refuse(
            "a request with a credential does not become a WebSocket",
            "nothing",
        );
    }
    match is_proxy {
        true => refuse(
            "ask for a connection of its own: CONNECT HOST:PORT",
            "nothing",
        ),
        false => Ok(()),
    }
}

/// Asks the server for it.
pub(super) fn ask(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
}

impl Upgraded {
    /// Moves bytes both ways until both have ended, a limit is spent, a rule falls or the run is over.
    pub(super) async fn relay<S: Client>(
        mut self,
        line: &Line,
        mut client: S,
        early: Bytes,
    ) -> (S, bool) {
        let exchange = &self.exchange;
        let relaying = async {
            let (from_client, to_client) = tokio::io::split(&mut client);
            let (from_server, to_server) = tokio::io::split(&mut self.io);
            let out = pump(exchange, Way::Out, early, from_client, to_server);
            let back = pump(exchange, Way::In, self.early, from_server, to_client);
            tokio::try_join!(out, back).is_ok()
        };
        let ended_well = line.unless_ended(relaying).await.unwrap_or(false);
        (client, ended_well)
    }
}

async fn pump(
    exchange: &Exchange,
    way: Way,
    early: Bytes,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut piece = BytesMut::from(&early[..]);
    loop {
        if !piece.is_empty() {
            exchange
                .pass(way, piece.len())
                .map_err(|_| io::ErrorKind::PermissionDenied)?;
            to.write_all(&piece).await?;
            to.flush().await?;
            piece.clear();
        }
        piece.reserve(PIECE);
        if from.read_buf(&mut piece).await? == 0 {
            return to.shutdown().await;
        }
    }
}
