//! The caller's own terminal while a run has one: every key goes inside, and afterwards it is as it was, whatever
//! ended the run.

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

/// What a terminal of unknown size is taken for, as everywhere.
const DEFAULT_SIZE: TerminalSize = TerminalSize {
    rows: 24,
    columns: 80,
};
/// How long a terminal may take for the few bytes that put its screen in order.
const WRITE_TIMEOUT: Duration = Duration::from_millis(200);
/// A terminal that can do nothing.
const NO_TERMINAL: &str = "dumb";

/// How the terminal was, and what puts its screen in order again. Here and not in a guard, because a panic and a
/// second Ctrl-C end the process without unwinding.
static SAVED: Mutex<Option<SavedTerminal>> = Mutex::new(None);

struct SavedTerminal {
    before: Termios,
    undo: Vec<u8>,
}

/// Makes the request one for a terminal like the caller's. `only_planned` needs none to be there.
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

/// How long before its end a limit of time is told.
const WARN_BEFORE: Duration = Duration::from_secs(60);

/// What is said on the terminal a minute before its time is over, if it is limited to more than that.
pub(super) fn timeout_warning(limit: Time) -> Option<TimeoutWarning> {
    let after = limit.0.checked_sub(WARN_BEFORE)?;
    let is_due = limit != Limits::NO_WALL_TIME && !after.is_zero();
    is_due.then(|| TimeoutWarning {
        after,
        // Keys are raw: a line feed alone does not return.
        text: format!("\r\nairlock: note: one minute of {limit} is left (--timeout)\r\n"),
    })
}

/// Shells and the like, which without arguments read what is typed.
const READ_FROM_TERMINALS: [&str; 16] = [
    "bash", "sh", "dash", "zsh", "fish", "ksh", "python", "python3", "ipython", "node", "deno",
    "irb", "lua", "php", "R", "cat",
];

/// Whether somebody at a terminal started what waits for words, and gave it none.
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
    // As in `python3.12`.
    let plain = name.trim_end_matches(|end: char| end.is_ascii_digit() || end == '.');
    let reads = READ_FROM_TERMINALS.contains(&&*name) || READ_FROM_TERMINALS.contains(&plain);
    reads && io::stdin().is_terminal()
}

fn require_terminal() -> Result<(), Failure> {
    let hint =
        "start it in a terminal, or leave --tty away (--stdin passes standard input through)";
    match io::stdin().is_terminal() {
        true => Ok(()),
        false => Err(Failure::invalid(
            "--tty needs a terminal on standard input",
            hint,
        )),
    }
}

/// The caller's terminal, for a program elsewhere: how large it is, and of what kind.
pub(in crate::cli) fn caller_terminal(
    env: &ProcessEnv,
) -> Result<(TerminalSize, OsString), Failure> {
    require_terminal()?;
    Ok((
        size().unwrap_or(DEFAULT_SIZE),
        terminal_kind(env.variables.get(OsStr::new("TERM"))),
    ))
}

/// What kind of terminal programs find: the caller's, if it is a plain name.
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

/// The terminal is ours until this is dropped.
pub(in crate::cli) struct RawTerminal(());

impl RawTerminal {
    /// From now on keys are bytes and nothing else.
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

/// Whether the terminal is ours to change: in the background it is the shell's.
fn is_foreground() -> bool {
    tcgetpgrp(io::stdin()).map_or(true, |front| front == rustix::process::getpgrp())
}

fn make_raw() -> io::Result<()> {
    // A panic may hold it; then nobody needs a raw terminal any more.
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

/// Remembers what would put the screen in order, should the run end now.
pub(super) fn save_undo(undo: Vec<u8>) {
    if let Ok(mut saved) = SAVED.lock()
        && let Some(saved) = &mut *saved
    {
        saved.undo = undo;
    }
}

/// Puts screen and keys back as they were. What was typed and not read is dropped: it may be the terminal's answer
/// to a question of the program's, which must not become a command line.
pub(super) fn restore() {
    // Where this fails the terminal is gone.
    if is_foreground()
        && let Ok(saved) = SAVED.try_lock()
        && let Some(saved) = &*saved
    {
        // At once, not when all is written: a terminal that takes nothing more must not hold us.
        _ = tcsetattr(io::stdin(), OptionalActions::Now, &saved.before);
        _ = tcflush(io::stdin(), QueueSelector::IFlush);
        if !saved.undo.is_empty() {
            write_with_timeout(io::stdout(), saved.undo.clone());
        }
    }
}

/// Ends colours in which lines were left, above all the invisible one.
pub(super) fn reset_colours() {
    const PLAIN: &[u8] = b"\x1b[0m";
    if io::stdout().is_terminal() {
        write_with_timeout(io::stdout(), PLAIN.to_vec());
    }
    if io::stderr().is_terminal() {
        write_with_timeout(io::stderr(), PLAIN.to_vec());
    }
}

/// Past the lock of the stream, which whoever waits for the terminal holds.
fn write_with_timeout(to: impl AsFd + Send + 'static, bytes: Vec<u8>) {
    let (done, wait) = mpsc::channel();
    let writer = thread::Builder::new().spawn(move || {
        _ = rustix::io::write(to, &bytes);
        _ = done.send(());
    });
    // Without a thread the screen stays as it is: nothing may hold us, and a panic here would be the second.
    if writer.is_ok() {
        _ = wait.recv_timeout(WRITE_TIMEOUT);
    }
}

/// Types what is typed here, and keeps the window as large as ours, until the run ends.
pub(super) async fn forward_input(terminal: oneshot::Receiver<Terminal>) {
    // A run that never started has none.
    let Ok(Terminal { input, window }) = terminal.await else {
        return;
    };
    tokio::spawn(copy_stdin(input));
    // Without signals the window stays as it is.
    _ = forward_size(window).await;
}

async fn copy_stdin(mut inside: pipe::Sender) {
    // Either end may be gone before the other.
    _ = tokio::io::copy(&mut tokio::io::stdin(), &mut inside).await;
}

async fn forward_size(window: TerminalWindow) -> io::Result<()> {
    watch_size(move |size| {
        // The box may have ended.
        _ = window.resize(size);
        true
    })
    .await
}

/// Tells how large our window is, now and whenever it changes, for as long as that is wanted.
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

/// Stops us as the caller's shell would have it. The run goes on, up to a full screen, and so does its clock.
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
