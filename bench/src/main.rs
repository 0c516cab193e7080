//! The program `airlock-bench`: what sandboxed runs, model calls, the web, HTTP, tools and workspaces cost, beside other
//! software. Nothing here decides a test.

mod doors;
mod egress;
mod gateway;
mod peers;
mod runs;
mod worker;
mod workspace;

use clap::Parser;
use std::{ffi::OsString, fmt::Display, path::PathBuf, process::ExitCode};

/// The exit status of `airlock` where it refuses.
const REFUSED: u8 = 125;

/// Measures what Airlock costs beside other software; `bench/run` and its neighbours install the peers.
#[derive(Parser)]
#[command(name = "airlock-bench")]
enum Command {
    /// What a run costs: started by `airlock bench`, which passes its options as one JSON object
    Run { order: OsString },
    /// Hold sandboxes that were made ahead until standard input ends
    #[command(hide = true)]
    Park { state: PathBuf, count: usize },
    /// Hold live runs of an image until standard input ends
    #[command(hide = true)]
    Hold { state: PathBuf, count: usize },
    /// What a model call costs through a gateway: `airlock proxy`, nginx, LiteLLM
    Doors(doors::Options),
    /// What the web costs through a proxy: the egress door, tinyproxy, squid, mitmproxy
    Egress(egress::Options),
    /// What runs, sessions and files cost over HTTP: `airlock serve`, the library, nginx
    Gateway(gateway::Options),
    /// What a call of a tool costs: over a broker, in the engine, under bubblewrap
    Worker(worker::Options),
    /// What a staged workspace costs beside one that is shared live
    Workspace(workspace::Options),
}

fn main() -> ExitCode {
    match Command::parse() {
        Command::Run { order } => as_airlock(runs::run(&order)),
        Command::Park { state, count } => {
            as_airlock(runs::park(state, count).map_err(runs::Failure::internal))
        }
        Command::Hold { state, count } => {
            as_airlock(runs::hold(state, count).map_err(runs::Failure::internal))
        }
        Command::Doors(options) => ended(doors::run(&options)),
        Command::Egress(options) => ended(egress::run(&options)),
        Command::Gateway(options) => ended(gateway::run(&options)),
        Command::Worker(options) => ended(worker::run(&options)),
        Command::Workspace(options) => ended(workspace::run(&options)),
    }
}

/// Ends as `airlock` does.
fn as_airlock(done: Result<(), runs::Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.show();
            ExitCode::from(REFUSED)
        }
    }
}

fn ended(done: Result<(), impl Display>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
