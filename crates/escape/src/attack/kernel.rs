//! Attacks on interfaces of the kernel and on other processes.

use super::{call, hold};

pub(super) fn attack(name: &str, arguments: &[&str]) -> Option<()> {
    match (name, arguments) {
        ("io-uring", []) => {
            let mut parameters = [0u8; 120];
            _ = call!(libc::SYS_io_uring_setup, 1, &mut parameters[..]);
            hold();
        }
        _ => return None,
    }
    Some(())
}
