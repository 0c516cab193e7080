//! Attacks on what everybody shares, and processes that will not go.

use super::{hold, sys};
use std::time::Duration;

pub(super) fn attack(name: &str, arguments: &[&str]) -> Option<()> {
    match (name, arguments) {
        ("fork", [count]) => fork(count.parse().unwrap_or(0)),
        ("linger", [seconds]) => linger(seconds.parse().unwrap_or(0)),
        _ => return None,
    }
    Some(())
}

/// That many children at once, or as many as there can be.
fn fork(count: u32) {
    for _ in 0..count {
        match sys::fork() {
            Ok(None) => {
                std::thread::sleep(Duration::from_secs(20));
                sys::exit(0);
            }
            Ok(Some(_)) => {}
            Err(_) => break,
        }
    }
    hold();
}

/// A grandchild in a session of its own that hears no signal and outlives its parents.
fn linger(seconds: u64) {
    if let Ok(None) = sys::fork() {
        _ = super::call!(libc::SYS_setsid);
        if let Ok(Some(_)) | Err(_) = sys::fork() {
            sys::exit(0);
        }
        for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            sys::on_signal(signal, libc::SIG_IGN);
        }
        // The streams of the run would keep whoever reads them waiting.
        for stream in 0..3 {
            _ = super::call!(libc::SYS_close, stream);
        }
        std::thread::sleep(Duration::from_secs(seconds));
        sys::exit(0);
    }
}
