//! What a model call costs through a gateway: ours beside nginx and LiteLLM, in front of one provider. Gateways have the
//! first processor for themselves; provider and load share the second. Decides nothing.

mod client;
mod measure;
mod report;
mod ways;

use crate::peers::{Folder, Samples};
use clap::Args;
use measure::{Amount, Bench};
use provider::{Provider, Script, Settings};
use report::Report;
use std::{io, path::PathBuf, time::Duration};
use ways::Programs;

/// What kept a way, or all, from being measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(transparent)]
    Peer(#[from] crate::peers::Trouble),
    #[error("cannot find a free port: {0}")]
    Address(io::Error),
    #[error("no session was given: {answer}")]
    NoSession { answer: String },
    #[error("cannot set up this process: {0}")]
    Here(#[from] io::Error),
}

/// Measures what gateways in front of a model provider cost. `bench/run-doors` installs the peers and calls this.
#[derive(Args)]
pub(crate) struct Options {
    /// The program `airlock`; its row is `ours`
    #[arg(long, value_name = "FILE")]
    airlock: Option<PathBuf>,
    /// nginx
    #[arg(long, value_name = "FILE")]
    nginx: Option<PathBuf>,
    /// LiteLLM's program
    #[arg(long, value_name = "FILE")]
    litellm: Option<PathBuf>,
    /// Rounds, of which the median is told
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of each load in each round
    #[arg(long, value_name = "MS", default_value_t = 3000)]
    time: u64,
    /// Calls of each way in each round, one after the other, for latency
    #[arg(long, value_name = "NUMBER", default_value_t = 200)]
    pairs: usize,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table, too
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<(), Trouble> {
    crate::peers::allow_files()?;
    crate::peers::move_aside()?;
    let script = Script {
        tokens: measure::FRAMES as u64,
        reply_bytes: Some(600),
        ..Script::default()
    };
    let keys = vec![ways::KEY.to_owned()];
    let provider = Provider::start(Settings {
        keys,
        script,
        lean: true,
        ..Settings::default()
    });
    let folder = Folder::new("doors")?;
    let programs = Programs {
        nginx: options.nginx.clone(),
        litellm: options.litellm.clone(),
        airlock: options.airlock.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (ways, mut missing) = ways::start(&programs, provider.address(), &folder.0);
    let (ways, silent) = ways::that_answer(ways, &runtime);
    missing.extend(silent);
    let amount = Amount {
        rounds: options.rounds,
        time: Duration::from_millis(options.time),
        pairs: options.pairs,
    };
    let before = crate::peers::load_average();
    let mut bench = Bench {
        runtime: &runtime,
        provider: &provider,
        ways: &ways,
        amount,
        samples: Samples::default(),
    };
    bench.run();
    let report = Report {
        about: crate::peers::about(
            options.rounds,
            &before,
            "only ratios of CPU time say something",
        ),
        ways: ways.iter().map(|way| (way.name, way.duties)).collect(),
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
