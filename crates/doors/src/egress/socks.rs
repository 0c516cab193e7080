//! SOCKS 5 without authentication, for programs that speak nothing else: only CONNECT.

use super::{Egress, carry::Opened};
use bytes::Bytes;
use std::sync::Arc;
use tokio::net::TcpStream;

/// The first byte of a client.
pub(crate) const VERSION: u8 = 5;

/// From the first byte until the connection is the client's.
pub(crate) async fn greet(egress: &Arc<Egress>, stream: TcpStream) -> Option<(TcpStream, Bytes, Opened)> {
    let _ = (egress, stream);
    None
}
