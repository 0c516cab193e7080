//! The least that a relay can do: every connection goes to one place, and the kernel moves its bytes. No rules, no names,
//! no counting; two threads that wait.

use rustix::pipe::{SpliceFlags, fcntl_setpipe_size, pipe, splice};
use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
};

const PIECE: usize = 256 << 10;

pub(crate) fn run(listen: SocketAddr, to: SocketAddr) -> io::Result<()> {
    for client in TcpListener::bind(listen)?.incoming() {
        let (client, server) = (client?, TcpStream::connect(to)?);
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (client_again, server_again) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || pump(&client, &server));
        thread::spawn(move || pump(&server_again, &client_again));
    }
    Ok(())
}

fn pump(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (read, write) = pipe()?;
    // If it stays small, more calls move the same bytes.
    _ = fcntl_setpipe_size(&write, PIECE);
    loop {
        let mut bytes = splice(from, None, &write, None, PIECE, SpliceFlags::MOVE)?;
        if bytes == 0 {
            return to.shutdown(Shutdown::Write);
        }
        while bytes > 0 {
            bytes -= splice(&read, None, to, None, bytes, SpliceFlags::MOVE)?;
        }
    }
}
