//! Group C: what a box without network must not reach.

use crate::{
    Case, Control, Found, Outcome, Peer, Trouble, case,
    world::{Ground, World},
};
use engine::Step;
use std::{
    io::Write,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

pub(crate) const CASES: &[Case] = &[case(
    "C53",
    "the host's loopback, in every spelling",
    loopback,
    Control::Without(&[Step::NetNamespace]),
    Peer::Runs,
)];

/// A listener of the host's that tells whoever comes a secret.
fn listen(world: &World, at: SocketAddr) -> Result<(u16, String), Trouble> {
    let (listener, secret) = (TcpListener::bind(at)?, world.secret());
    let (port, told) = (listener.local_addr()?.port(), secret.clone());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            _ = stream.write_all(told.as_bytes());
        }
    });
    Ok((port, secret))
}

fn loopback(ground: &Ground<'_>) -> Outcome {
    let (four, secret) = listen(ground.world, (Ipv4Addr::LOCALHOST, 0).into())?;
    let mut addresses: Vec<String> = [
        "127.0.0.1",
        "0.0.0.0",
        "localhost",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0177.0.0.1",
        "0x7f.1",
        "127.1",
    ]
    .map(|name| format!("{name}:{four}"))
    .into();
    let mut secrets = vec![secret];
    if let Ok((six, secret)) = listen(ground.world, (Ipv6Addr::LOCALHOST, 0).into()) {
        addresses.push(format!("[::1]:{six}"));
        secrets.push(secret);
    }
    let report = ground.run(ground.attack("connect", addresses))?.finished()?;
    Ok(match secrets.iter().any(|secret| report.says(secret)) {
        true => Found::Escape("it reached a listener of the host's".to_owned()),
        false => Found::Nothing,
    })
}
