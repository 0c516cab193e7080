//! Streams to brokers: TCP, with TLS around it or not.

use super::{Trouble, again, never, tls::Tls};
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

/// Whatever bytes go by.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects, and proves who is there.
pub(super) async fn open(
    host: &str,
    port: u16,
    tls: Option<&Tls>,
) -> Result<Box<dyn Stream>, Trouble> {
    let unreachable = |error| again(format!("cannot connect: {error}"));
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let stream = Prompt(stream);
    let Some(tls) = tls.cloned() else {
        return Ok(Box::new(stream));
    };
    let name = tls.name(host).map_err(never)?;
    let config = tokio::task::spawn_blocking(move || tls.config()).await;
    let config = config
        .map_err(|_| again("reading certificates failed"))?
        .map_err(again)?;
    let stream = TlsConnector::from(config).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| {
        again(format!("cannot agree on TLS: {error}"))
    })?))
}

/// Tells the kernel at every read that what came is to be acknowledged at once. Brokers that gather small messages hold the next
/// one back until then, and the kernel would wait 40 ms for something to send along.
struct Prompt(TcpStream);

impl AsyncRead for Prompt {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.0).poll_read(context, buffer);
        if read.is_ready() {
            // Without it all is only slower.
            _ = set_tcp_quickack(&self.0, true);
        }
        read
    }
}

impl AsyncWrite for Prompt {
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
    match host.contains(':') {
        true => format!("{scheme}://[{host}]:{port}"),
        false => format!("{scheme}://{host}:{port}"),
    }
}
