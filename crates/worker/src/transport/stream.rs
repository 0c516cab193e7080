//! Streams to brokers: TCP, with TLS around it or not.

use super::{Trouble, again, never, tls::Tls};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

/// Whatever bytes go by.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects, and proves who is there.
pub(super) async fn open(host: &str, port: u16, tls: Option<&Tls>) -> Result<Box<dyn Stream>, Trouble> {
    let unreachable = |error| again(format!("cannot connect: {error}"));
    let stream = TcpStream::connect((host, port)).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    let Some(tls) = tls.cloned() else { return Ok(Box::new(stream)) };
    let name = tls.name(host).map_err(never)?;
    let config = tokio::task::spawn_blocking(move || tls.config()).await;
    let config = config.map_err(|_| again("reading certificates failed"))?.map_err(again)?;
    let stream = TlsConnector::from(config).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| again(format!("cannot agree on TLS: {error}")))?))
}

/// An address for messages.
pub(super) fn address(scheme: &str, host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("{scheme}://[{host}]:{port}"),
        false => format!("{scheme}://{host}:{port}"),
    }
}
