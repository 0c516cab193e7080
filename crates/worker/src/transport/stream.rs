//! Byte streams to brokers: TCP, with or without TLS.

use super::{ConnectionError, fatal, temporary, tls::BrokerTls};
use rustix::net::sockopt::set_tcp_quickack;
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// A duplex byte stream.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Connects, and verifies the server with TLS.
pub(super) async fn open(
    host: &str,
    port: u16,
    tls: Option<&BrokerTls>,
) -> Result<Box<dyn ByteStream>, ConnectionError> {
    let unreachable = |error| temporary(format!("cannot connect: {error}"));
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let stream = QuickAckStream(stream);
    let Some(tls) = tls.cloned() else {
        return Ok(Box::new(stream));
    };
    let name = tls.name(host).map_err(fatal)?;
    let config = tokio::task::spawn_blocking(move || tls.config()).await;
    let config = config
        .map_err(|_| temporary("reading certificates failed"))?
        .map_err(temporary)?;
    let stream = TlsConnector::from(config).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| {
        temporary(format!("cannot agree on TLS: {error}"))
    })?))
}

/// Sets TCP_QUICKACK at every read. Brokers with Nagle's algorithm hold the next small message back
/// until the ACK, which the kernel would delay by 40 ms.
struct QuickAckStream(TcpStream);

impl AsyncRead for QuickAckStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.0).poll_read(context, buffer);
        if read.is_ready() {
            // Only an optimization.
            _ = set_tcp_quickack(&self.0, true);
        }
        read
    }
}

impl AsyncWrite for QuickAckStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// An address for messages.
pub(super) fn address(scheme: &str, host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("{scheme}://[{host}]:{port}")
    } else {
        format!("{scheme}://{host}:{port}")
    }
}
