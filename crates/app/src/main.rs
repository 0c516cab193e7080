//! The command `airlock`.

mod cli;
mod config;
mod remote;

use rustix::process::{Resource, getrlimit, setrlimit};
use std::process::ExitCode;

fn main() -> ExitCode {
    take_all_open_files();
    let arguments = std::env::args_os().collect();
    ExitCode::from(cli::main(arguments, config::Surroundings::of_process()))
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
