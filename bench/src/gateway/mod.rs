//! What runs, sessions and files cost over HTTP: `airlock serve` beside the library, and beside nginx. Decides nothing.

mod attackers;
mod audit;
mod client;
mod jobs;
mod library;
mod measure;
mod report;
mod server;

use crate::peers::{Folder, Samples};
use clap::{Args, Subcommand};
use measure::{Amount, Bench};
use report::Report;
use std::{io, path::PathBuf, time::Duration};

/// What kept a way, or all, from being measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(transparent)]
    Peer(#[from] crate::peers::Trouble),
    #[error("`airlock serve` is not ready; it says: {0}")]
    NotReady(String),
    #[error("cannot use the library: {0}")]
    Library(String),
    #[error("cannot set up this process: {0}")]
    Here(#[from] io::Error),
}

/// Measures what runs, sessions and files cost over HTTP. `bench/run-gateway` installs the peer and calls this.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    part: Option<Part>,
    /// The program that serves
    #[arg(long, value_name = "FILE", default_value = "target/dist/airlock")]
    airlock: PathBuf,
    /// nginx
    #[arg(long, value_name = "FILE")]
    nginx: Option<PathBuf>,
    /// Rounds, of which the median is told
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    rounds: usize,
    /// Runs of each way in each round, one after the other
    #[arg(long, value_name = "NUMBER", default_value_t = 200)]
    runs: usize,
    /// Clients at once
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    clients: usize,
    /// Milliseconds with all clients in each round
    #[arg(long, value_name = "MS", default_value_t = 3000)]
    time: u64,
    /// MiB of the file that goes there and back in each round
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    size: u64,
    /// Sessions that are open and idle
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    idle: usize,
    /// Jobs that wait while others are picked up
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000)]
    queued: usize,
    /// Jobs of a noisy tenant beside a quiet one
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000)]
    noise: usize,
    /// Only measure jobs
    #[arg(long, conflicts_with = "only_attacks")]
    only_jobs: bool,
    /// Only measure a tenant beside one that attacks
    #[arg(long)]
    only_attacks: bool,
    /// Sandboxes that the library keeps ready: as many as the server does
    #[arg(long, value_name = "NUMBER", default_value_t = 4)]
    parked: usize,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table, too
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
}

/// What this program starts itself as.
#[derive(Subcommand)]
enum Part {
    /// The library, by orders on standard input
    #[command(hide = true)]
    Library(library::Order),
}

pub(crate) fn run(options: &Options) -> Result<(), Trouble> {
    match &options.part {
        Some(Part::Library(order)) => library::run(order),
        None => measure_all(options),
    }
}

fn measure_all(options: &Options) -> Result<(), Trouble> {
    crate::peers::allow_files()?;
    crate::peers::adopt_orphans()?;
    let folder = Folder::new("gateway")?;
    let before = crate::peers::load_average();
    let amount = Amount {
        rounds: options.rounds,
        runs: options.runs,
        clients: options.clients,
        time: Duration::from_millis(options.time),
        bytes: options.size << 20,
        idle: options.idle,
        parked: options.parked,
        queued: options.queued,
        noise: options.noise,
    };
    let mut bench = Bench {
        airlock: &options.airlock,
        folder: &folder.0,
        amount,
        samples: Samples::default(),
    };
    let mut missing = Vec::new();
    if !options.only_attacks {
        bench.jobs()?;
        bench.audit()?;
    }
    if !options.only_jobs {
        bench.beside_attackers()?;
    }
    if !options.only_jobs && !options.only_attacks {
        bench.starts()?;
        bench.idle_sessions()?;
        bench.runs()?;
        missing = bench.files(options.nginx.as_ref())?;
    }
    let about = crate::peers::about(options.rounds, &before, "only ratios say something");
    let report = Report {
        about,
        missing,
        samples: bench.samples,
    };
    Ok(crate::peers::tell(
        &report,
        &report.json(),
        options.text.as_ref(),
        options.json.as_ref(),
    )?)
}
