//! Shows what is long on a terminal, through the caller's pager.

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

/// A shell's way of saying that there is no such command, or that it cannot be started.
const NOT_STARTED: [i32; 2] = [126, 127];

/// Shows text that can steer no terminal, but in colour. Waits until whoever reads it has enough. To be called where signals
/// can be waited for: Ctrl-C is the pager's.
pub(super) fn page(text: &str, env: &ProcessEnv) -> Result<(), Failure> {
    // Nothing is begun after this that somebody could want to stop.
    let _ours = signal(SignalKind::interrupt());
    let Some(mut pager) = start(env) else {
        return print(text);
    };
    if let Some(mut stdin) = pager.stdin.take() {
        // He need not read it to the end.
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
        // Said so: none.
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
    // Without our keys.
    command.env_clear().envs(variables);
    // It ends at once if all fits, passes colours on and nothing else, and leaves the text on the screen.
    if env.variable("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    command.stdin(Stdio::piped()).spawn().ok()
}
