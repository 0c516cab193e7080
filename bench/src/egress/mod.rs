//! What the web costs through a door: ours beside tinyproxy, squid and mitmproxy, and beside nothing at all. Decides nothing.

mod client;
mod door;
mod measure;
mod origin;
mod relay;
mod report;
mod ways;

use crate::peers::{Folder, Processors, Samples};
use clap::{Args, Subcommand};
use measure::{Amount, Bench};
use origin::Origin;
use report::Report;
use std::{io, net::SocketAddr, path::PathBuf, time::Duration};
use ways::Programs;

/// What kept a way, or all, from being measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(transparent)]
    Peer(#[from] crate::peers::Trouble),
    #[error("cannot make certificates: {0}")]
    Certificates(#[from] rcgen::Error),
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("cannot open the door: {0}")]
    Door(String),
    #[error("cannot set up this process: {0}")]
    Here(#[from] io::Error),
}

/// Measures what doors to the web cost. `bench/run-egress` installs the peers and calls this.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    part: Option<Part>,
    /// tinyproxy
    #[arg(long, value_name = "FILE")]
    tinyproxy: Option<PathBuf>,
    /// squid
    #[arg(long, value_name = "FILE")]
    squid: Option<PathBuf>,
    /// mitmproxy's program `mitmdump`
    #[arg(long, value_name = "FILE")]
    mitmdump: Option<PathBuf>,
    /// Rounds, of which the median is told
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    rounds: usize,
    /// MiB that go through a tunnel in each round
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    size: u64,
    /// Tunnels of each way in each round, one after the other
    #[arg(long, value_name = "NUMBER", default_value_t = 400)]
    tunnels: usize,
    /// Milliseconds of requests in each round
    #[arg(long, value_name = "MS", default_value_t = 3000)]
    time: u64,
    /// Tunnels that are open and idle
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    idle: usize,
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
    /// Our door
    #[command(hide = true)]
    Door(door::Order),
    /// Two pipes
    #[command(hide = true)]
    Relay { listen: SocketAddr, to: SocketAddr },
}

pub(crate) fn run(options: &Options) -> Result<(), Trouble> {
    match &options.part {
        Some(Part::Door(order)) => door::run(order),
        Some(Part::Relay { listen, to }) => relay::run(*listen, *to).map_err(Trouble::Here),
        None => measure_all(options),
    }
}

fn measure_all(options: &Options) -> Result<(), Trouble> {
    crate::peers::allow_files()?;
    let folder = Folder::new("egress")?;
    let programs = Programs {
        tinyproxy: options.tinyproxy.clone(),
        squid: options.squid.clone(),
        mitmdump: options.mitmdump.clone(),
    };
    let before = crate::peers::load_average();
    let amount = Amount {
        rounds: options.rounds,
        bytes: options.size << 20,
        tunnels: options.tunnels,
        time: Duration::from_millis(options.time),
        idle: options.idle,
    };
    let mut samples = Samples::default();
    let mut part = |processors, measure: fn(&mut Bench<'_>)| -> Result<_, Trouble> {
        let origin = Origin::start(&folder.0)?;
        let (ways, missing) = ways::start(&programs, &origin, &folder.0, processors)?;
        measure(&mut Bench {
            origin: &origin,
            ways: &ways,
            amount,
            samples: &mut samples,
        });
        Ok((
            ways.iter().map(|way| (way.name, way.duties)).collect(),
            missing,
        ))
    };
    part(Processors::Shared, |bench| bench.sharing())?;
    // What is started from here on stays off the doors' processor.
    crate::peers::move_aside()?;
    let (ways, missing) = part(Processors::Apart, |bench| bench.apart())?;
    let about = crate::peers::about(options.rounds, &before, "only ratios say something");
    let report = Report {
        about,
        ways,
        missing,
        samples,
    };
    Ok(crate::peers::tell(
        &report,
        &report.json(),
        options.text.as_ref(),
        options.json.as_ref(),
    )?)
}
