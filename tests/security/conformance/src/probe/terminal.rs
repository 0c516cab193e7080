//! Attempts on terminals.

use crate::{Attempt, answer};
use std::{
    fs::{File, OpenOptions},
    io,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, FromRawFd},
};

pub(crate) fn attempt(name: &str, arguments: &[&str]) -> Option<Attempt> {
    Some(match (name, arguments) {
        ("request", [terminal, request]) => open(terminal).and_then(|file| send(&file, request)),
        ("open-terminals", []) => open_terminals(),
        ("await-resize", []) => await_resize(),
        ("session", []) => session(),
        _ => return None,
    })
}

/// Standard input, or a path.
fn open(terminal: &str) -> io::Result<ManuallyDrop<File>> {
    match terminal {
        // SAFETY: it is open, and nobody closes it.
        "stdin" => Ok(ManuallyDrop::new(unsafe { File::from_raw_fd(0) })),
        path => OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map(ManuallyDrop::new),
    }
}

/// A request as 64 bits in hexadecimal: rubbish in the upper half must not get around a filter.
fn send(terminal: &File, request: &str) -> Attempt {
    let request = u64::from_str_radix(request, 16).expect("a hexadecimal number");
    // Zero is a line discipline, a size and a character.
    let mut data = [0u8; 256];
    // SAFETY: no request that is tried here reads or writes more than that.
    answer(unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            terminal.as_raw_fd(),
            request,
            data.as_mut_ptr(),
        )
    })
}

/// As many as there are, and why there are no more.
fn open_terminals() -> Attempt {
    let mut all = Vec::new();
    loop {
        match OpenOptions::new().read(true).write(true).open("/dev/ptmx") {
            Ok(one) => all.push(one),
            Err(error) if all.is_empty() => return Err(error),
            Err(error) => {
                return Ok(format!(
                    "{} {}",
                    all.len(),
                    error.raw_os_error().unwrap_or(0)
                ));
            }
        }
    }
}

fn size() -> io::Result<(u16, u16)> {
    let mut size = [0u16; 4];
    // SAFETY: the kernel writes four numbers of ours.
    answer(unsafe { libc::ioctl(0, libc::TIOCGWINSZ, size.as_mut_ptr()) }.into())?;
    Ok((size[0], size[1]))
}

/// Says what size it finds, then waits for another one.
fn await_resize() -> Attempt {
    // SAFETY: the set is a local, and all-zero is a valid one; these calls fill it and change our own mask.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGWINCH);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    let (rows, columns) = size()?;
    println!("ready {rows} {columns}");
    let mut signal = 0;
    // SAFETY: both are locals of ours.
    unsafe { libc::sigwait(&set, &mut signal) };
    let (rows, columns) = size()?;
    Ok(format!("{rows} {columns}"))
}

/// Whether it leads a session that has this terminal, and stands in its foreground.
fn session() -> Attempt {
    // SAFETY: integers only.
    let (own, group, session, front) = unsafe {
        (
            libc::getpid(),
            libc::getpgrp(),
            libc::getsid(0),
            libc::tcgetpgrp(0),
        )
    };
    answer(front.into())?;
    Ok(format!(
        "{} {} {}",
        own == group,
        own == session,
        own == front
    ))
}
