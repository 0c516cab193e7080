//! The caller's terminal during a run with `--tty`: raw mode, and restoration after every kind of
//! end.

use super::{super::message::Failure, output::TimeoutWarning, signals};
use crate::config::ProcessEnv;
use engine::{Terminal, TerminalWindow};
use rustix::termios::{
    OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
};
use spec::{Limits, RunRequest, TerminalSize, Time};
use std::{
    ffi::{OsStr, OsString},
    io::{self, IsTerminal},
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::Path,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};
use tokio::{
    net::unix::pipe,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

/// The assumed size of a terminal of unknown size.
const DEFAULT_SIZE: TerminalSize = TerminalSize {
    rows: 24,
    columns: 80,
};
/// How long the terminal may take to accept the restoring sequences.
const WRITE_TIMEOUT: Duration = Duration::from_millis(200);
/// The terminal type without capabilities.
const NO_TERMINAL: &str = "dumb";

/// The saved terminal settings, and the sequences that restore the screen. A static and not a
/// guard, because a panic and a second Ctrl-C end the process without unwinding.
static SAVED: Mutex<Option<SavedTerminal>> = Mutex::new(None);

struct SavedTerminal {
    before: Termios,
    undo: Vec<u8>,
}

/// Requests a terminal like the caller's. `only_planned` works without one.
pub(super) fn request_terminal(
    request: &mut RunRequest,
    env: &ProcessEnv,
    only_planned: bool,
) -> Result<(), Failure> {
    if !only_planned {
        require_terminal()?;
    }
    request.tty = Some(size().unwrap_or(DEFAULT_SIZE));
    if !request.env.iter().any(|(name, _)| name == "TERM") {
        let terminal_kind = terminal_kind(env.variables.get(OsStr::new("TERM")));
        request.env.push(("TERM".into(), terminal_kind));
    }
    Ok(())
}

/// How long before the timeout the warning is shown.
const WARN_BEFORE: Duration = Duration::from_secs(60);

/// The warning shown a minute before the timeout, if the timeout is longer.
pub(super) fn timeout_warning(limit: Time) -> Option<TimeoutWarning> {
    let after = limit.0.checked_sub(WARN_BEFORE)?;
    let is_due = limit != Limits::NO_WALL_TIME && !after.is_zero();
    is_due.then(|| TimeoutWarning {
        after,
        // In raw mode, a line feed alone does not return the carriage.
        text: format!("\r\nairlock: note: one minute of {limit} is left (--timeout)\r\n"),
    })
}

/// Interactive programs, which without arguments read the terminal.
const READ_FROM_TERMINALS: [&str; 16] = [
    "bash", "sh", "dash", "zsh", "fish", "ksh", "python", "python3", "ipython", "node", "deno",
    "irb", "lua", "php", "R", "cat",
];

/// Whether an interactive program was started from a terminal without `--tty` or `--stdin`.
pub(super) fn reads_terminal(command: &[OsString]) -> bool {
    let is_env = |word: &OsString| Path::new(word).file_name() == Some(OsStr::new("env"));
    let command = match command {
        [first, rest @ ..] if is_env(first) => rest,
        all => all,
    };
    let Some((program, options)) = command.split_first() else {
        return false;
    };
    let is_interactive = |option: &OsString| {
        ["-i", "-l", "--login"]
            .map(OsStr::new)
            .contains(&option.as_os_str())
    };
    if !options.iter().all(is_interactive) {
        return false;
    }
    let name = Path::new(program).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    // Strips a version, as in `python3.12`.
    let plain = name.trim_end_matches(|end: char| end.is_ascii_digit() || end == '.');
    let reads = READ_FROM_TERMINALS.contains(&&*name) || READ_FROM_TERMINALS.contains(&plain);
    reads && io::stdin().is_terminal()
}

fn require_terminal() -> Result<(), Failure> {
    let hint = "start it in a terminal, or omit --tty (--stdin passes standard input through)";
    if io::stdin().is_terminal() {
        Ok(())
    } else {
        Err(Failure::invalid(
            "--tty needs a terminal on standard input",
            hint,
        ))
    }
}

/// Size and type of the caller's terminal, for a program at a server.
pub(in crate::cli) fn caller_terminal(
    env: &ProcessEnv,
) -> Result<(TerminalSize, OsString), Failure> {
    require_terminal()?;
    Ok((
        size().unwrap_or(DEFAULT_SIZE),
        terminal_kind(env.variables.get(OsStr::new("TERM"))),
    ))
}

/// The terminal type for programs: the caller's, if it is a plain name.
fn terminal_kind(caller_terminal: Option<&OsString>) -> OsString {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._+-".contains(byte);
    let fits =
        |name: &&OsString| (1..=64).contains(&name.len()) && name.as_bytes().iter().all(plain);
    caller_terminal
        .filter(fits)
        .cloned()
        .unwrap_or_else(|| NO_TERMINAL.into())
}

pub(in crate::cli) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdin()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(TerminalSize {
        rows: size.ws_row,
        columns: size.ws_col,
    })
}

/// The terminal in raw mode, until dropped.
pub(in crate::cli) struct RawTerminal(());

impl RawTerminal {
    /// Switches the terminal to raw mode.
    pub(in crate::cli) fn enter() -> Result<RawTerminal, Failure> {
        let failed =
            |error: io::Error| Failure::internal(format!("cannot take the terminal over: {error}"));
        let before = tcgetattr(io::stdin()).map_err(|error| failed(error.into()))?;
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(SavedTerminal {
            before,
            undo: Vec::new(),
        });
        restore_on_panic();
        make_raw().map_err(failed)?;
        Ok(RawTerminal(()))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn restore_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        before(panic);
    }));
}

/// Whether this process is in the foreground: in the background the terminal belongs to the shell.
fn is_foreground() -> bool {
    tcgetpgrp(io::stdin()).map_or(true, |front| front == rustix::process::getpgrp())
}

fn make_raw() -> io::Result<()> {
    // `try_lock`, because a panicking thread may hold the lock.
    if is_foreground()
        && let Ok(saved) = SAVED.try_lock()
        && let Some(saved) = &*saved
    {
        let mut raw = saved.before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
    }
    Ok(())
}

/// Saves the sequences that would restore the screen, should the run end now.
pub(super) fn save_undo(undo: Vec<u8>) {
    if let Ok(mut saved) = SAVED.lock()
        && let Some(saved) = &mut *saved
    {
        saved.undo = undo;
    }
}

/// Restores screen and keys. Unread input is dropped: it may be the terminal's reply to a query of
/// the program, which must not become a command line.
pub(super) fn restore() {
    // Errors are ignored: the terminal is gone.
    if is_foreground()
        && let Ok(saved) = SAVED.try_lock()
        && let Some(saved) = &*saved
    {
        // `Now`, not `Drain`: a blocked terminal must not block this process.
        _ = tcsetattr(io::stdin(), OptionalActions::Now, &saved.before);
        _ = tcflush(io::stdin(), QueueSelector::IFlush);
        if !saved.undo.is_empty() {
            write_with_timeout(io::stdout(), saved.undo.clone());
        }
    }
}

/// Resets colours, above all the invisible one.
pub(super) fn reset_colours() {
    const PLAIN: &[u8] = b"\x1b[0m";
    if io::stdout().is_terminal() {
        write_with_timeout(io::stdout(), PLAIN.to_vec());
    }
    if io::stderr().is_terminal() {
        write_with_timeout(io::stderr(), PLAIN.to_vec());
    }
}

/// Writes without the stream's lock, which a blocked writer may hold.
fn write_with_timeout(to: impl AsFd + Send + 'static, bytes: Vec<u8>) {
    let (done, wait) = mpsc::channel();
    let writer = thread::Builder::new().spawn(move || {
        _ = rustix::io::write(to, &bytes);
        _ = done.send(());
    });
    // Without a thread the screen is not restored: this process must not block, and a panic here
    // would be the second.
    if writer.is_ok() {
        _ = wait.recv_timeout(WRITE_TIMEOUT);
    }
}

/// Forwards input and window size until the run ends.
pub(super) async fn forward_input(terminal: oneshot::Receiver<Terminal>) {
    // A run that never started has no terminal.
    let Ok(Terminal { input, window }) = terminal.await else {
        return;
    };
    tokio::spawn(copy_stdin(input));
    // Without signals, the size is not updated.
    _ = forward_size(window).await;
}

async fn copy_stdin(mut inside: pipe::Sender) {
    // Either end may close first.
    _ = tokio::io::copy(&mut tokio::io::stdin(), &mut inside).await;
}

async fn forward_size(window: TerminalWindow) -> io::Result<()> {
    watch_size(move |size| {
        // The sandbox may have ended.
        _ = window.resize(size);
        true
    })
    .await
}

/// Reports the window size, now and after each change, until `tell` returns `false`.
pub(in crate::cli) async fn watch_size(
    mut tell: impl FnMut(TerminalSize) -> bool,
) -> io::Result<()> {
    let mut changed = signal(SignalKind::window_change())?;
    let mut continued = signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?;
    let mut stopped = signals::listen_unless_ignored(SignalKind::from_raw(
        rustix::process::Signal::TSTP.as_raw(),
    ))?;
    loop {
        if let Some(size) = size()
            && !tell(size)
        {
            return Ok(());
        }
        tokio::select! {
            _ = changed.recv() => {}
            _ = continued.recv() => make_raw()?,
            () = signals::wait_for(&mut stopped) => suspend()?,
        }
    }
}

/// Stops this process, as the shell expects after Ctrl-Z. The run continues until its output
/// blocks, and so does its timeout.
fn suspend() -> io::Result<()> {
    restore();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?;
    make_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_told_a_minute_before_if_there_is_one() {
        let after =
            |limit: &str| timeout_warning(limit.parse().unwrap()).map(|it| it.after.as_secs());
        assert_eq!(after("5m"), Some(240));
        assert_eq!(after("61s"), Some(1));
        assert_eq!((after("60s"), after("1s")), (None, None));
        assert_eq!(timeout_warning(Limits::NO_WALL_TIME), None);
    }

    #[test]
    fn the_kind_of_terminal_is_a_plain_name_or_none() {
        let told = |name: &str| terminal_kind(Some(&name.into()));
        for plain in ["xterm-256color", "linux", "screen.xterm+x_1"] {
            assert_eq!(told(plain), plain);
        }
        for odd in ["", "../x", "x y", "x\x1b[2J", &"x".repeat(65)] {
            assert_eq!(told(odd), "dumb", "{odd:?}");
        }
        assert_eq!(terminal_kind(None), "dumb");
    }
}
