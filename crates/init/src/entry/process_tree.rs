//! The process tree of the program: started, signalled, reaped, and ended as a whole.
//!
//! ```text
//! signals ──▶ this process ──▶ program      the program's end, or the bridge's, ends the tree
//!              ▲      ▲ orphans of the tree
//!              └──────┴─ SIGCHLD
//! ```

use super::{CANNOT_START, EntryError, log};
use crate::sys::{self, CStringArray};
use rustix::{
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal},
};
use std::{
    ffi::CString,
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// The search path if `PATH` is not set.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";
/// How long the end of a tree may take where this process is not pid 1.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A program to execute.
pub(super) struct EntryProgram {
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) path: Option<Vec<u8>>,
}

/// Why the program did not start, and the exit status for that.
pub(super) struct StartError {
    pub(super) status: i32,
    pub(super) why: EntryError,
}

impl From<EntryError> for StartError {
    fn from(why: EntryError) -> StartError {
        StartError {
            status: CANNOT_START,
            why,
        }
    }
}

/// The paths that a name may mean, in order.
fn candidates(name: &[u8], path: Option<&[u8]>) -> Vec<CString> {
    if name.contains(&b'/') {
        return CString::new(name).into_iter().collect();
    }
    let folders = path.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':');
    // An empty entry is the working directory, as in shells.
    let folder = |folder: &[u8]| {
        if folder.is_empty() {
            b".".to_vec()
        } else {
            folder.to_vec()
        }
    };
    folders
        .filter_map(|entry| CString::new([&folder(entry), &b"/"[..], name].concat()).ok())
        .collect()
}

/// Starts the program; when this returns, it was executed.
pub(super) fn start(program: &EntryProgram) -> Result<i32, StartError> {
    let failed = |error: io::Error| EntryError::new(format!("cannot start a process: {error}"));
    let name = program
        .argv
        .first()
        .map(|name| name.to_bytes())
        .unwrap_or_default();
    let files = candidates(name, program.path.as_deref());
    let argv = CStringArray::to(&program.argv);
    let env = CStringArray::to(&program.env);
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    match sys::fork().map_err(failed)? {
        0 => become_program(&files, &argv, &env, theirs),
        pid => {
            drop(theirs);
            let mut report = Vec::new();
            File::from(ours).read_to_end(&mut report).map_err(failed)?;
            match report.as_slice().try_into().map(i32::from_ne_bytes) {
                Ok(errno) => Err(not_executed(name, errno)),
                // Exec has closed the other end.
                Err(_) => Ok(pid),
            }
        }
    }
}

fn become_program(files: &[CString], argv: &CStringArray, env: &CStringArray, tell: OwnedFd) -> ! {
    let errno = match prepare() {
        Ok(()) => exec(files, argv, env),
        Err(error) => error,
    };
    let errno = errno.raw_os_error().unwrap_or(libc::EIO);
    _ = File::from(tell).write_all(&errno.to_ne_bytes());
    sys::exit(NOT_FOUND)
}

fn prepare() -> io::Result<()> {
    // For the case that this process dies where it is not pid 1.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // A foreground process group of its own: keys of a terminal are for the program.
    rustix::process::setpgid(None, None)?;
    if rustix::termios::isatty(rustix::stdio::stdin()) {
        match rustix::termios::tcsetpgrp(rustix::stdio::stdin(), rustix::process::getpid()) {
            // The terminal belongs to another session.
            Ok(()) | Err(Errno::NOTTY | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    sys::default_signals();
    Ok(())
}

/// Tries the candidates in order. EACCES for one of them is a better error than ENOENT for the
/// last.
fn exec(files: &[CString], argv: &CStringArray, env: &CStringArray) -> io::Error {
    let mut answer = io::Error::from_raw_os_error(libc::ENOENT);
    for file in files {
        let error = sys::exec(file, argv, env);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => answer = error,
            _ => return error,
        }
    }
    answer
}

fn not_executed(name: &[u8], errno: i32) -> StartError {
    let shown = String::from_utf8_lossy(&name[..name.len().min(256)])
        .escape_default()
        .to_string();
    let error = io::Error::from_raw_os_error(errno);
    let (status, why) = match errno {
        libc::ENOENT | libc::ENOTDIR if name == b"bash" => (
            NOT_FOUND,
            "not found: --shell needs an image with bash".to_owned(),
        ),
        libc::ENOENT | libc::ENOTDIR => (
            NOT_FOUND,
            format!("not found, or its interpreter is not ({error})"),
        ),
        _ => (NOT_EXECUTABLE, format!("cannot be run: {error}")),
    };
    StartError {
        status,
        why: EntryError::new(format!("`{shown}` {why}")),
    }
}

/// Lives as long as the program: forwards signals, reaps, and after SIGTERM kills the tree when its
/// grace period is over. Returns the exit status.
pub(super) fn supervise(program: i32, bridge: Option<i32>, grace: Duration) -> i32 {
    let mut deadline = None::<Instant>;
    let mut killed = false;
    let status = loop {
        // First, whatever the signal was: a flood of signals must neither hide an exit nor outlast
        // the grace period. A bridge that was killed along with the tree is no fault.
        if let Some(status) = reap(program, bridge.filter(|_| !killed)) {
            break status;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            _ = sys::send_signal(program, libc::SIGKILL);
            kill_others(bridge);
            (deadline, killed) = (None, true);
            continue;
        }
        match sys::await_signal(left) {
            // Our own write to a stream without a reader raised SIGPIPE.
            Ok(Some(libc::SIGCHLD | libc::SIGPIPE) | None) => {}
            Ok(Some(signal)) => {
                if signal == libc::SIGTERM {
                    deadline.get_or_insert_with(|| Instant::now() + grace);
                }
                // It fails only for a program that has ended, which is reaped next.
                _ = sys::send_signal(program, signal);
            }
            // Interrupted, for example by a stop and continue.
            Err(_) => {}
        }
    };
    end(bridge);
    status
}

/// Reaps all children that have ended; returns the exit status if there is nothing more to wait
/// for.
fn reap(program: i32, bridge: Option<i32>) -> Option<i32> {
    let mut ended = None;
    let mut bridge_ended = false;
    while let Ok(Some((pid, reaped))) = sys::reap(-1, false) {
        if pid == program {
            ended = Some(exit_status(reaped.status));
        }
        bridge_ended |= Some(pid) == bridge;
    }
    if ended.is_none() && bridge_ended {
        log("the bridge to the model has ended, so the program is ended too");
        return Some(CANNOT_START);
    }
    ended
}

fn exit_status(status: i32) -> i32 {
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128 + libc::WTERMSIG(status)
    }
}

pub(super) fn is_first() -> bool {
    rustix::process::getpid() == Pid::INIT
}

/// Kills the rest of the tree, and waits for its end.
fn end(bridge: Option<i32>) {
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        kill_others(bridge);
        loop {
            match sys::reap(-1, false) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return, // no child is left
            }
        }
        if only_bridge_left(bridge) {
            return;
        }
        if Instant::now() >= deadline {
            return log("some processes of the program could not be ended in time");
        }
        // SIGCHLD wakes this up; the timeout is for orphans that are adopted silently.
        _ = sys::await_signal(Some(Duration::from_millis(20)));
    }
}

fn only_bridge_left(bridge: Option<i32>) -> bool {
    // Without /proc nothing can say; where this process is pid 1, the kernel kills them with it.
    children().map_or(true, |children| {
        children.iter().all(|child| Some(*child) == bridge)
    })
}

/// Kills every other process of the tree. Pid 1 has a call for that; another process kills its
/// children, and adopts theirs.
fn kill_others(bridge: Option<i32>) {
    if is_first() {
        // It fails only when no process is left.
        _ = sys::send_signal(-1, libc::SIGKILL);
        return;
    }
    let others = children()
        .unwrap_or_default()
        .into_iter()
        .filter(|child| Some(*child) != bridge);
    for child in others {
        _ = sys::send_signal(child, libc::SIGKILL);
    }
}

fn children() -> io::Result<Vec<i32>> {
    let text = std::fs::read_to_string("/proc/thread-self/children")?;
    Ok(text
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_for_as_a_shell_does() {
        let of = |name: &str, path: Option<&str>| -> Vec<_> {
            let found = candidates(name.as_bytes(), path.map(str::as_bytes));
            found
                .into_iter()
                .map(|file| file.into_string().unwrap())
                .collect()
        };
        assert_eq!(of("sh", Some("/a::/b")), ["/a/sh", "./sh", "/b/sh"]);
        assert_eq!(of("./sh", Some("/a")), ["./sh"]);
        assert_eq!(
            of("sh", None),
            ["/usr/local/bin/sh", "/usr/bin/sh", "/bin/sh"]
        );
    }

    #[test]
    fn statuses_are_those_of_shells() {
        assert_eq!(
            [
                exit_status(0),
                exit_status(42 << 8),
                exit_status(15),
                exit_status(9)
            ],
            [0, 42, 143, 137]
        );
    }
}
