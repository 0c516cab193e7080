//! The command `airlock`.

mod cli;
mod config;

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(cli::main(std::env::args_os().collect(), config::Surroundings::of_process()))
}
