//! What a call of a tool costs: in the engine beside bubblewrap, and from broker to broker. Decides nothing.

mod bwrap;
mod engine_calls;
mod mesh;
mod report;

use crate::peers::{Folder, Samples};
use clap::Args;
use mesh::Mesh;
use report::{ALONE, BROKER, BWRAP, ENGINE, Metric, Report};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The tool: what it imports is what bubblewrap's Python imports, too.
const TOOL: &str = "import json\n\n\ndef add(a, b):\n    return {\"sum\": a + b}\n";
const MODULE: &str = "plain";
const FUNCTION: &str = "add";
/// What a way does behind a call is over by then, and not in the next one's way.
const BETWEEN: Duration = Duration::from_millis(20);

/// What kept a way, or all, from being measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(transparent)]
    Peer(#[from] crate::peers::Trouble),
    #[error("a call in the engine failed: {0}")]
    Engine(String),
    #[error("bwrap failed: {0}")]
    Bwrap(String),
    #[error("over the broker: {0}")]
    Broker(String),
    #[error("cannot set up this process: {0}")]
    Here(#[from] io::Error),
}

/// Measures what a call of a tool costs. `bench/run-worker` installs the peers and calls this.
#[derive(Args)]
pub(crate) struct Options {
    /// The program that serves
    #[arg(long, value_name = "FILE", default_value = "target/dist/airlock")]
    airlock: PathBuf,
    /// Python, for all ways
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/python3")]
    python: PathBuf,
    /// Rounds, of which the median is told
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    rounds: usize,
    /// Cold calls of each way in each round, in turns
    #[arg(long, value_name = "NUMBER", default_value_t = 40)]
    cold: usize,
    /// Calls of a parked interpreter in each round
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    warm: usize,
    /// Calls at once in each round, for four slots
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    at_once: usize,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table, too
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<(), Trouble> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure_all(options))
}

async fn measure_all(options: &Options) -> Result<(), Trouble> {
    crate::peers::allow_files()?;
    let folder = Folder::new("worker")?;
    let tools = lay_tools(&folder.0)?;
    let before = crate::peers::load_average();
    let mut samples = Samples::default();
    cold(options, &tools, &folder.0, &mut samples).await?;
    warm(options, &tools, &folder.0, &mut samples).await?;
    at_once(options, &tools, &folder.0, &mut samples).await?;
    let about = crate::peers::about(options.rounds, &before, "only ratios say something");
    let report = Report { about, samples };
    Ok(crate::peers::tell(
        &report,
        &report.json(),
        options.text.as_ref(),
        options.json.as_ref(),
    )?)
}

/// A manifest and one tool.
fn lay_tools(folder: &Path) -> io::Result<PathBuf> {
    let tools = folder.join("tools");
    fs::create_dir_all(tools.join("python"))?;
    fs::write(tools.join(format!("python/{MODULE}.py")), TOOL)?;
    let entry = format!(
        "{{module: {MODULE}, function: {FUNCTION}, sandbox_profile: restrictive, description: adds, \
         parameters: {{type: object, properties: {{a: {{type: integer}}, b: {{type: integer}}}}}}}}"
    );
    fs::write(
        tools.join("manifest.yaml"),
        format!("version: 1\ntools:\n  add: {entry}\n"),
    )?;
    Ok(tools)
}

/// One after the other, in turns: what the machine does to one it does to the other.
async fn cold(
    options: &Options,
    tools: &Path,
    folder: &Path,
    samples: &mut Samples<Metric>,
) -> Result<(), Trouble> {
    let engine = engine_calls::Calls::open(&options.python, tools, &folder.join("engine"), 1)?;
    let alone = engine_calls::Calls::open(&options.python, tools, &folder.join("alone"), 0)?;
    let bwrap = bwrap::Bwrap {
        python: &options.python,
    };
    engine.once().await?;
    alone.once().await?;
    bwrap.once().await?;
    for _ in 0..options.rounds {
        let (mut ours, mut without, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..options.cold {
            tokio::time::sleep(BETWEEN).await;
            ours.push(engine.once().await?);
            tokio::time::sleep(BETWEEN).await;
            without.push(alone.once().await?);
            tokio::time::sleep(BETWEEN).await;
            theirs.push(bwrap.once().await?);
        }
        samples.add(ENGINE, Metric::Cold, milliseconds(middle(&mut ours)));
        samples.add(ALONE, Metric::Cold, milliseconds(middle(&mut without)));
        samples.add(BWRAP, Metric::Cold, milliseconds(middle(&mut theirs)));
    }
    engine.close().await;
    alone.close().await;
    Ok(())
}

/// With interpreters kept ready, from broker to broker; and without any, what the worker holds while idle.
async fn warm(
    options: &Options,
    tools: &Path,
    folder: &Path,
    samples: &mut Samples<Metric>,
) -> Result<(), Trouble> {
    let idle = Mesh::start(
        &options.airlock,
        &options.python,
        tools,
        &folder.join("idle"),
        0,
    )
    .await?;
    for _ in 0..options.rounds {
        samples.add(BROKER, Metric::Idle, idle.memory()? / 1024.0);
    }
    let mut mesh = Mesh::start(
        &options.airlock,
        &options.python,
        tools,
        &folder.join("warm"),
        4,
    )
    .await?;
    for _ in 0..options.rounds {
        let mut times = Vec::new();
        for _ in 0..options.warm {
            // Behind each call another interpreter is made. One call at a time has two: then nothing goes on behind.
            mesh.parked(2).await?;
            tokio::time::sleep(BETWEEN).await;
            times.push(mesh.once().await?);
        }
        samples.add(BROKER, Metric::Warm, milliseconds(middle(&mut times)));
        times.sort_unstable();
        let nearly_worst = times.len() * 99 / 100;
        samples.add(
            BROKER,
            Metric::WarmP99,
            milliseconds(times[nearly_worst.min(times.len() - 1)]),
        );
    }
    Ok(())
}

/// Many at once for four slots: all are answered, none twice, and memory is what it was.
async fn at_once(
    options: &Options,
    tools: &Path,
    folder: &Path,
    samples: &mut Samples<Metric>,
) -> Result<(), Trouble> {
    let mut mesh = Mesh::start(
        &options.airlock,
        &options.python,
        tools,
        &folder.join("many"),
        0,
    )
    .await?;
    // What is allocated once is allocated.
    mesh.many(options.at_once).await?;
    for _ in 0..options.rounds {
        let before = mesh.forget_peak()?;
        let begun = Instant::now();
        let told = mesh.many(options.at_once).await?;
        samples.add(
            BROKER,
            Metric::Many,
            options.at_once as f64 / begun.elapsed().as_secs_f64(),
        );
        samples.add(BROKER, Metric::Unanswered, told.unanswered as f64);
        samples.add(BROKER, Metric::Twice, told.twice as f64);
        samples.add(BROKER, Metric::Growth, (mesh.peak()? - before) / 1024.0);
    }
    Ok(())
}

fn middle(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
