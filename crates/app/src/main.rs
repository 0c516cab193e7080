//! The command `airlock`.

mod cli;
mod config;
mod remote;

use rustix::process::{Resource, getrlimit, setrlimit};
use std::process::ExitCode;

fn main() -> ExitCode {
    take_all_open_files();
    let arguments = std::env::args_os().collect();
    ExitCode::from(cli::main(arguments, config::ProcessEnv::from_process()))
}

/// Raises the soft limit of open files to the hard limit. The kernel counts descriptors in flight
/// through sockets per user: at the usual soft limit, one sandbox of the same user could keep the
/// next one from starting.
fn take_all_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // A refusal is no error: the process then keeps the lower limit.
    let _ = setrlimit(
        Resource::Nofile,
        rustix::process::Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
