//! SOCKS 5 server without authentication, for programs that speak nothing else: only CONNECT.
//!
//! ```text
//! client: 5 COUNT METHODS ─       ─ 5 1 0 KIND HOST PORT ─        ─ bytes of the connection
//! door:                    ─ 5 0 ─                        ─ 5 CODE ─
//! ```

use super::{
    Egress,
    dial::DialError,
    forward::{self, ForwardTarget},
    policy::Refusal,
};
use bytes::Bytes;
use spec::{Destination, Host};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// First byte of a SOCKS 5 client.
pub(crate) const VERSION: u8 = 5;

const WITHOUT_PASSWORD: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

/// Reply codes of SOCKS 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocksReply {
    Succeeded = 0,
    Failure = 1,
    NotAllowed = 2,
    HostUnreachable = 4,
    NoSuchCommand = 7,
    NoSuchKind = 8,
}

/// A parsed SOCKS request.
enum SocksRequest {
    Connect(Destination),
    /// A command or address type that is not supported.
    Unsupported(SocksReply),
    /// An invalid host name.
    InvalidHost(Refusal),
}

/// Performs the handshake. Bytes after the request are left in the socket.
pub(crate) async fn handshake(
    egress: &Arc<Egress>,
    mut stream: TcpStream,
) -> Option<(TcpStream, Bytes, ForwardTarget)> {
    // A client that disconnects needs no reply.
    if !negotiate_method(&mut stream).await.ok()? {
        return None;
    }
    let (reply, target) = match request(egress, &mut stream).await.ok()? {
        SocksRequest::Connect(to) => match forward::open(egress, "SOCKS", to).await {
            Ok(target) => (SocksReply::Succeeded, Some(target)),
            Err(DialError::Refused(_)) => (SocksReply::NotAllowed, None),
            Err(DialError::Failed(_)) => (SocksReply::HostUnreachable, None),
        },
        SocksRequest::Unsupported(reply) => (reply, None),
        SocksRequest::InvalidHost(refusal) => {
            egress.log.refused("SOCKS", &refusal.reason, &refusal);
            (SocksReply::NotAllowed, None)
        }
    };
    // The bound address is not revealed to the sandbox.
    stream
        .write_all(&[VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0])
        .await
        .ok()?;
    target.map(|target| (stream, Bytes::new(), target))
}

/// Negotiates the authentication method: only "none" is offered.
async fn negotiate_method(stream: &mut TcpStream) -> io::Result<bool> {
    let [version, count] = read(stream).await?;
    let mut methods = [0; 255];
    let methods = &mut methods[..usize::from(count)];
    stream.read_exact(methods).await?;
    let agreed = version == VERSION && methods.contains(&WITHOUT_PASSWORD);
    let method = if agreed { WITHOUT_PASSWORD } else { NO_METHOD };
    stream.write_all(&[VERSION, method]).await?;
    Ok(agreed)
}

/// Reads the request and not one byte more.
async fn request(egress: &Egress, stream: &mut TcpStream) -> io::Result<SocksRequest> {
    let [version, command, _, kind] = read(stream).await?;
    if version != VERSION {
        return Ok(SocksRequest::Unsupported(SocksReply::Failure));
    }
    let host = match kind {
        1 => Ok(egress.host_at(Ipv4Addr::from(read::<4>(stream).await?).into())),
        4 => Ok(egress.host_at(Ipv6Addr::from(read::<16>(stream).await?).into())),
        3 => name(stream).await?,
        _ => return Ok(SocksRequest::Unsupported(SocksReply::NoSuchKind)),
    };
    let port = u16::from_be_bytes(read(stream).await?);
    Ok(match (command, host) {
        (CONNECT, Ok(_)) if port == 0 => SocksRequest::Unsupported(SocksReply::Failure),
        (CONNECT, Ok(host)) => SocksRequest::Connect(Destination { host, port }),
        (CONNECT, Err(refusal)) => SocksRequest::InvalidHost(refusal),
        _ => SocksRequest::Unsupported(SocksReply::NoSuchCommand),
    })
}

async fn name(stream: &mut TcpStream) -> io::Result<Result<Host, Refusal>> {
    let [length] = read(stream).await?;
    let mut name = [0; 255];
    let name = &mut name[..usize::from(length)];
    stream.read_exact(name).await?;
    // Invalid UTF-8 is no host name either way; lossy decoding shows where.
    let host = String::from_utf8_lossy(name).parse::<Host>();
    Ok(host.map_err(|bad| Refusal::new("host", bad.to_string(), "nothing")))
}

async fn read<const COUNT: usize>(stream: &mut TcpStream) -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
#[path = "socks_tests.rs"]
mod tests;
