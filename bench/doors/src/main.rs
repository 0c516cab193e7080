//! What a model call costs through a gateway: ours beside nginx and LiteLLM, in front of one provider. Gateways have the
//! first processor for themselves; provider and load share the second. Decides nothing.

mod client;
mod measure;
mod process;
mod report;
mod ways;

use clap::Parser;
use measure::{Amount, Bench};
use provider::{Provider, Script, Settings};
use report::{Report, Samples};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{fs, io, path::PathBuf, process::ExitCode, time::Duration};
use ways::Programs;

/// What kept a way, or all, from being measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("cannot start {program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("cannot use {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot find a free port: {0}")]
    Address(io::Error),
    #[error("{name} does not listen; its last words: {last}")]
    NoListener { name: &'static str, last: String },
    #[error("no session was given: {answer}")]
    NoSession { answer: String },
    #[error("cannot set up this process: {0}")]
    Here(#[from] io::Error),
}

/// Measures what gateways in front of a model provider cost. `bench/doors/run` installs the peers and calls this.
#[derive(Parser)]
#[command(name = "airlock-bench-doors")]
struct Options {
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

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("error: {trouble}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Trouble> {
    allow_files()?;
    process::move_aside()?;
    let script = Script { tokens: measure::FRAMES as u64, reply_bytes: Some(600), ..Script::default() };
    let keys = vec![ways::KEY.to_owned()];
    let provider = Provider::start(Settings { keys, script, lean: true, ..Settings::default() });
    let folder = Folder::new()?;
    let programs = Programs {
        nginx: options.nginx.clone(),
        litellm: options.litellm.clone(),
        airlock: options.airlock.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (ways, mut missing) = ways::start(&programs, provider.address(), &folder.0);
    let (ways, silent) = ways::that_answer(ways, &runtime);
    missing.extend(silent);
    let amount =
        Amount { rounds: options.rounds, time: Duration::from_millis(options.time), pairs: options.pairs };
    let before = load_average();
    let mut bench =
        Bench { runtime: &runtime, provider: &provider, ways: &ways, amount, samples: Samples::default() };
    bench.run();
    let report = Report {
        about: about(options, &before),
        ways: ways.iter().map(|way| (way.name, way.duties)).collect(),
        missing,
        samples: bench.samples,
    };
    tell(options, &report)
}

fn tell(options: &Options, report: &Report) -> Result<(), Trouble> {
    let write = |path: &PathBuf, text: String| {
        fs::write(path, text).map_err(|source| Trouble::File { path: path.clone(), source })
    };
    print!("{report}");
    if let Some(path) = &options.text {
        write(path, report.to_string())?;
    }
    if let Some(path) = &options.json {
        write(path, format!("{:#}\n", report.json()))?;
    }
    Ok(())
}

fn about(options: &Options, before: &str) -> Vec<(&'static str, String)> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let build = if cfg!(debug_assertions) { "DEBUG: its numbers mean nothing" } else { "release" };
    let busy = before.parse().is_ok_and(|load: f64| load > 0.5);
    let busy = if busy { "; THE MACHINE WAS BUSY: only ratios of CPU time say something" } else { "" };
    vec![
        ("kernel", kernel.trim().to_owned()),
        ("load before and after", format!("{before}, {}{busy}", load_average())),
        ("rounds", options.rounds.to_string()),
        ("build", build.to_owned()),
    ]
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}

/// A thousand streams are three thousand descriptors, half of them ours.
fn allow_files() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum.map(|most| most.min(16_384)), maximum })?)
}

/// For configurations, logs and states; gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, Trouble> {
        let path = std::env::temp_dir().join(format!("airlock-bench-doors-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|source| Trouble::File { path: path.clone(), source })?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What a gateway still holds there is not worth an error.
        _ = fs::remove_dir_all(&self.0);
    }
}
