//! Attacks by and on the network.

use super::say;
use std::{
    io::Read,
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn attack(name: &str, arguments: &[&str]) -> Option<()> {
    match (name, arguments) {
        ("connect", addresses) => addresses.iter().for_each(|address| connect(address)),
        _ => return None,
    }
    Some(())
}

/// Connects to every address of that name, and prints what the other side says.
fn connect(name: &str) {
    for address in name.to_socket_addrs().into_iter().flatten() {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else { continue };
        let mut said = String::new();
        _ = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.read_to_string(&mut said));
        say(&format!("{name} says {said}"));
    }
}
