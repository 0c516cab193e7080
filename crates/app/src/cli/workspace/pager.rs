//! Shows long text through the caller's pager.

use crate::{
    cli::{Failure, print},
    config::ProcessEnv,
};
use std::{
    ffi::OsStr,
    io::Write,
    process::{Child, Command, Stdio},
};
use tokio::signal::unix::{SignalKind, signal};

/// The shell's exit statuses for a command that is not executable or not found.
const NOT_STARTED: [i32; 2] = [126, 127];

/// Shows escaped text in the pager and waits for its end. Must run in the event loop, because
/// Ctrl-C belongs to the pager meanwhile.
pub(super) fn page(text: &str, env: &ProcessEnv) -> Result<(), Failure> {
    // Ctrl-C stays ignored afterwards: nothing long follows.
    let _ours = signal(SignalKind::interrupt());
    let Some(mut pager) = start(env) else {
        return print(text);
    };
    if let Some(mut stdin) = pager.stdin.take() {
        // The pager may quit early, which is no error.
        _ = stdin.write_all(text.as_bytes());
    }
    let ended = pager.wait();
    let ended = ended.map_err(|error| Failure::internal(format!("the pager was lost: {error}")))?;
    if ended.code().is_some_and(|code| NOT_STARTED.contains(&code)) {
        return print(text);
    }
    Ok(())
}

fn start(env: &ProcessEnv) -> Option<Child> {
    let variables = &env.variables;
    let given = ["AIRLOCK_PAGER", "PAGER"];
    let given = given
        .iter()
        .find_map(|name| variables.get(OsStr::new(name)));
    let mut command = match given {
        // An empty variable or `cat` disables the pager.
        Some(none) if none.is_empty() || none == "cat" => return None,
        Some(own) => {
            let mut shell = Command::new("/bin/sh");
            shell.arg("-c").arg(own);
            shell
        }
        None => {
            let mut less = Command::new("less");
            less.arg("-FRX");
            less
        }
    };
    // The environment without Airlock's keys.
    command.env_clear().envs(variables);
    // `less` quits if the text fits on the screen, passes colours only, and leaves the text on the
    // screen.
    if env.variable("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    command.stdin(Stdio::piped()).spawn().ok()
}
