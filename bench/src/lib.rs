//! What a sandboxed run costs: ours and its peers, side by side in one process.
//!
//! ```text
//! rows ─ prepare, warm up ─┬─ back to back, rounds of visits ─┐
//!        (or: not run)     └─ with idle time before each ─────┤─ report ─ text, JSON, SVG
//!                             throughput, memory, hundred ────┤
//!                             containers in pairs, loading ───┘
//! ```
//!
//! The clock is monotonic and runs around the whole of what a caller waits for. No sample is dropped; one that did not
//! succeed is an error of its row, not a sample. Ratios compare medians of the same run.

mod archive;
mod held;
mod hundred;
mod idle;
mod load;
mod measure;
mod pairs;
mod report;
mod rows;
mod schedule;
mod statistics;
mod svg;
mod targets;
mod text;
mod throughput;
mod ways;

pub use held::{hold, park};
pub use report::{
    About, Hundred, IdleSandbox, ImageLoad, ImageRuns, Measured, NotRun, Pairs, Phase, Report,
    Target, Throughput,
};
pub use rows::names;

use std::{ffi::OsString, fs, io, path::PathBuf, time::Duration};

/// What to measure, and with what.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often each row is visited in each phase.
    pub rounds: usize,
    /// The idle time before each sample of the second phase; without it there is none.
    pub idle: Option<Duration>,
    /// Names of [`names`]; all if empty.
    pub only: Vec<String>,
    /// Run in place of `/bin/true` and Python.
    pub command: Option<Vec<OsString>>,
    /// How many sandboxes, or what a run can have of one, are made ahead where that is measured.
    pub pool: usize,
    /// Decides the order.
    pub seed: u64,
    /// The program `airlock` itself.
    pub airlock: PathBuf,
    /// Where peers are looked for.
    pub path: OsString,
    /// Where Docker's daemon listens.
    pub docker_socket: PathBuf,
    /// Where Podman listens, if anywhere.
    pub podman_socket: Option<PathBuf>,
    /// How large an image is loaded; without it one is loaded only if that was asked for by name.
    pub image_size: Option<u64>,
    /// A folder for everything that is made; it must not exist yet, and is gone afterwards.
    pub scratch: PathBuf,
    /// Told what goes on, a line at a time.
    pub progress: fn(&str),
}

/// Measures. Failures of rows are in the report; only without a folder or an event loop there is none.
pub fn run(options: Options) -> io::Result<Report> {
    use std::os::unix::fs::DirBuilderExt;
    // Ours runs under another id: it must find its workspace.
    fs::DirBuilder::new().mode(0o755).create(&options.scratch)?;
    let (scratch, told) = (options.scratch.clone(), options.progress);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    // As a task, like the handlers of a service: what it starts then runs on the same thread when that is free.
    let measured = runtime.block_on(runtime.spawn(measure::everything(options)));
    drop(runtime);
    if let Err(error) = fs::remove_dir_all(&scratch) {
        told(&format!("`{}` is left: {error}", scratch.display()));
    }
    measured.map_err(io::Error::other)
}
