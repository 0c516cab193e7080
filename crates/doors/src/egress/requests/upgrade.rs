//! WebSocket upgrades: where a rule allows them, and never with a credential, since upgraded
//! traffic is not inspected.

use super::{ClientStream, exchange::Exchange, grant::RequestGrant, headers::WEBSOCKET};
use crate::{
    connections::ConnectionHandle,
    egress::{Direction, Refusal},
    upstream::MaybeTlsStream,
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

/// Bytes per read.
const CHUNK_BYTES: usize = 16 << 10;

/// A connection after its upgrade.
pub(super) struct UpgradedConnection {
    pub(super) io: MaybeTlsStream,
    pub(super) buffered: Bytes,
    pub(super) exchange: Arc<Exchange>,
}

/// Holds the upgraded connection until its response is sent.
#[derive(Default)]
pub(super) struct UpgradeSlot(Mutex<Option<UpgradedConnection>>);

impl UpgradeSlot {
    pub(super) fn put(&self, upgraded: UpgradedConnection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgraded);
    }

    pub(super) fn take(&self) -> Option<UpgradedConnection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whether a connection may be upgraded to a WebSocket.
pub(super) fn check(grant: &RequestGrant, is_proxy: bool) -> Result<(), Refusal> {
    let rule = &grant.active.rule.name;
    let refuse = |reason: &str, allow: &str| Err(Refusal::new(rule, reason, allow));
    if !grant.may_upgrade {
        return refuse(
            "the rule does not let a connection become a WebSocket",
            "a rule with mode = \"inspect\" and allow_upgrade = true in the configuration",
        );
    }
    if grant.credential.is_some() {
        return refuse(
            "a request with a credential does not become a WebSocket",
            "nothing",
        );
    }
    if is_proxy {
        refuse(
            "ask for a connection of its own: CONNECT HOST:PORT",
            "nothing",
        )
    } else {
        Ok(())
    }
}

/// Adds the upgrade headers for the server.
pub(super) fn request_upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
}

impl UpgradedConnection {
    /// Relays bytes in both directions until both sides have ended, a limit is exceeded, the rule
    /// expires or the run ends.
    pub(super) async fn relay<S: ClientStream>(
        mut self,
        handle: &ConnectionHandle,
        mut client: S,
        buffered: Bytes,
    ) -> (S, bool) {
        let exchange = &self.exchange;
        let relaying = async {
            let (from_client, to_client) = tokio::io::split(&mut client);
            let (from_server, to_server) = tokio::io::split(&mut self.io);
            let out = pump(exchange, Direction::Out, buffered, from_client, to_server);
            let back = pump(
                exchange,
                Direction::In,
                self.buffered,
                from_server,
                to_client,
            );
            tokio::try_join!(out, back).is_ok()
        };
        let ended_well = handle.unless_ended(relaying).await.unwrap_or(false);
        (client, ended_well)
    }
}

async fn pump(
    exchange: &Exchange,
    direction: Direction,
    buffered: Bytes,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut piece = BytesMut::from(&buffered[..]);
    loop {
        if !piece.is_empty() {
            exchange
                .pass(direction, piece.len())
                .map_err(|_| io::ErrorKind::PermissionDenied)?;
            to.write_all(&piece).await?;
            to.flush().await?;
            piece.clear();
        }
        piece.reserve(CHUNK_BYTES);
        if from.read_buf(&mut piece).await? == 0 {
            return to.shutdown().await;
        }
    }
}
