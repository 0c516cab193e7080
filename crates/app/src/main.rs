//! The command `airlock`.

mod cli;
mod config;
mod remote;

use rustix::process::{Resource, getrlimit, setrlimit};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    // In a box of the escape suite this binary is the attacker; anywhere else it refuses to be.
    if let Some(status) = escape::attack::entry(&arguments) {
        return ExitCode::from(status);
    }
    take_all_open_files();
    ExitCode::from(cli::main(arguments, config::ProcessEnv::from_process()))
}

/// The kernel counts descriptors on their way through sockets per user, and refuses whoever is over their own limit
/// of open files: at the usual one, a box of the same user could keep us from starting the next.
fn take_all_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Refused, we go on with less.
    let _ = setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
