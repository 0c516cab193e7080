//! SOCKS 5 without authentication, for programs that speak nothing else: only CONNECT.
//!
//! ```text
//! client: 5 COUNT METHODS ─       ─ 5 1 0 KIND HOST PORT ─        ─ bytes of the connection
//! door:                    ─ 5 0 ─                        ─ 5 CODE ─
//! ```

use super::{
    Egress,
    carry::{self, Opened},
    dial::NoWay,
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

/// The first byte of a client.
pub(crate) const VERSION: u8 = 5;

const WITHOUT_PASSWORD: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

/// What a client is told of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Succeeded = 0,
    Failure = 1,
    NotAllowed = 2,
    HostUnreachable = 4,
    NoSuchCommand = 7,
    NoSuchKind = 8,
}

/// What a client asks for.
enum Asked {
    Connect(Destination),
    /// Something that is not done.
    Not(Reply),
    /// A host that is none.
    Nowhere(Refusal),
}

/// From the first byte until the connection is the client's. What comes behind the request is left where it is.
pub(crate) async fn greet(
    egress: &Arc<Egress>,
    mut stream: TcpStream,
) -> Option<(TcpStream, Bytes, Opened)> {
    // Who breaks off has nobody to be told why.
    if !agree(&mut stream).await.ok()? {
        return None;
    }
    let (reply, opened) = match request(egress, &mut stream).await.ok()? {
        Asked::Connect(to) => match carry::open(egress, "SOCKS", to).await {
            Ok(opened) => (Reply::Succeeded, Some(opened)),
            Err(NoWay::Refused(_)) => (Reply::NotAllowed, None),
            Err(NoWay::Failed(_)) => (Reply::HostUnreachable, None),
        },
        Asked::Not(reply) => (reply, None),
        Asked::Nowhere(refusal) => {
            egress.books.refused("SOCKS", &refusal.reason, &refusal);
            (Reply::NotAllowed, None)
        }
    };
    // From which address we dial is nobody's business inside.
    stream
        .write_all(&[VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0])
        .await
        .ok()?;
    opened.map(|opened| (stream, Bytes::new(), opened))
}

/// Agrees on a method, if the client has the one that we have.
async fn agree(stream: &mut TcpStream) -> io::Result<bool> {
    let [version, count] = read(stream).await?;
    let mut methods = [0; 255];
    let methods = &mut methods[..usize::from(count)];
    stream.read_exact(methods).await?;
    let agreed = version == VERSION && methods.contains(&WITHOUT_PASSWORD);
    let method = if agreed { WITHOUT_PASSWORD } else { NO_METHOD };
    stream.write_all(&[VERSION, method]).await?;
    Ok(agreed)
}

/// Reads the request, and not one byte more.
async fn request(egress: &Egress, stream: &mut TcpStream) -> io::Result<Asked> {
    let [version, command, _, kind] = read(stream).await?;
    if version != VERSION {
        return Ok(Asked::Not(Reply::Failure));
    }
    let host = match kind {
        1 => Ok(egress.host_at(Ipv4Addr::from(read::<4>(stream).await?).into())),
        4 => Ok(egress.host_at(Ipv6Addr::from(read::<16>(stream).await?).into())),
        3 => name(stream).await?,
        _ => return Ok(Asked::Not(Reply::NoSuchKind)),
    };
    let port = u16::from_be_bytes(read(stream).await?);
    Ok(match (command, host) {
        (CONNECT, Ok(_)) if port == 0 => Asked::Not(Reply::Failure),
        (CONNECT, Ok(host)) => Asked::Connect(Destination { host, port }),
        (CONNECT, Err(refusal)) => Asked::Nowhere(refusal),
        _ => Asked::Not(Reply::NoSuchCommand),
    })
}

async fn name(stream: &mut TcpStream) -> io::Result<Result<Host, Refusal>> {
    let [length] = read(stream).await?;
    let mut name = [0; 255];
    let name = &mut name[..usize::from(length)];
    stream.read_exact(name).await?;
    // What is not UTF-8 is no host either way; this shows where.
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
