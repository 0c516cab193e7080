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

mod footprint;
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

pub(crate) use footprint::{hold, park};

use report::Report;
use serde::Deserialize;
use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The options of `airlock bench`, as `crates/app/src/cli/bench.rs` writes them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    /// `engine::SOURCES` of `airlock`.
    sources: String,
    measure: Options,
    json: Option<OsString>,
    svg: Option<OsString>,
    text: Option<OsString>,
}

/// What to measure, and with what.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// How often each row is visited in each phase.
    pub(crate) rounds: usize,
    /// The idle time before each sample of the second phase; without it there is none.
    pub(crate) idle: Option<Duration>,
    /// Names of [`rows::names`]; all if empty.
    pub(crate) only: Vec<String>,
    /// Run in place of `/bin/true` and Python.
    pub(crate) command: Option<Vec<OsString>>,
    /// How many sandboxes, or what a run can have of one, are made ahead where that is measured.
    pub(crate) pool: usize,
    /// Decides the order.
    pub(crate) seed: u64,
    /// The program `airlock` itself.
    pub(crate) airlock: PathBuf,
    /// Where peers are looked for.
    #[serde(skip, default = "search_path")]
    pub(crate) path: OsString,
    /// Where Docker's daemon listens.
    pub(crate) docker_socket: PathBuf,
    /// Where Podman listens, if anywhere.
    pub(crate) podman_socket: Option<PathBuf>,
    /// How large an image is loaded; without it one is loaded only if that was asked for by name.
    pub(crate) image_size: Option<u64>,
    /// A folder for everything that is made; it must not exist yet, and is gone afterwards.
    #[serde(skip, default = "new_scratch")]
    pub(crate) scratch: PathBuf,
    /// Told what goes on, a line at a time.
    #[serde(skip, default = "show_progress")]
    pub(crate) progress: fn(&str),
}

fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| OsStr::new(spec::DEFAULT_PATH).to_owned())
}

fn new_scratch() -> PathBuf {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    std::env::temp_dir().join(format!("airlock-bench-{}-{clock:x}", std::process::id()))
}

fn show_progress() -> fn(&str) {
    |line| eprintln!("airlock: note: {}", printable(line))
}

/// Text that can neither steer a terminal nor reorder or break a line.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

/// Why nothing was measured: two lines on stderr.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: String,
}

impl Failure {
    pub(crate) fn internal(message: impl Into<String>) -> Failure {
        Failure {
            message: message.into(),
            hint: "`airlock doctor` shows what this host gives".to_owned(),
        }
    }

    /// As `airlock` writes it.
    pub(crate) fn show(&self) {
        eprintln!("airlock: error: {}", printable(&self.message));
        eprintln!("airlock: hint: {}", printable(&self.hint));
    }
}

/// Carries out `airlock bench`.
pub(crate) fn run(order: &OsStr) -> Result<(), Failure> {
    let order: Order = order
        .to_str()
        .and_then(|order| serde_json::from_str(order).ok())
        .ok_or_else(|| Failure {
            message: "`airlock-bench run` takes what `airlock bench` passes to it".to_owned(),
            hint: "use `airlock bench`".to_owned(),
        })?;
    check_sources(&order.sources)?;
    check_names(&order.measure.only)?;
    let report = measure(order.measure)
        .map_err(|error| Failure::internal(format!("cannot measure: {error}")))?;
    let text = report.to_string();
    print(&text)?;
    let json = serde_json::to_string(&report)
        .map_err(|error| Failure::internal(format!("cannot write the report as JSON: {error}")))?;
    write(order.json, || json + "\n")?;
    write(order.svg, || report.svg())?;
    write(order.text, || text)
}

/// Refuses to measure another engine than that of `airlock`, which is in the same table.
fn check_sources(of_airlock: &str) -> Result<(), Failure> {
    if of_airlock == engine::SOURCES {
        return Ok(());
    }
    let build =
        "in the source tree, `cargo build --profile dist -p airlock -p airlock-bench` builds both";
    Err(Failure {
        message: "`airlock-bench` is built from other sources than `airlock`".to_owned(),
        hint: build.to_owned(),
    })
}

fn check_names(only: &[String]) -> Result<(), Failure> {
    let names = rows::names();
    match only.iter().find(|name| !names.contains(name)) {
        Some(wrong) => Err(Failure {
            message: format!("there is no row `{wrong}`"),
            hint: format!("the rows are {}", names.join(", ")),
        }),
        None => Ok(()),
    }
}

/// Writes data to stdout. A reader that has left is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::internal(format!(
            "cannot write to standard output: {error}"
        ))),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a file, if one was asked for.
fn write(file: Option<OsString>, text: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(path) = file.map(PathBuf::from) else {
        return Ok(());
    };
    fs::write(&path, text())
        .map_err(|error| Failure::internal(format!("cannot write `{}`: {error}", path.display())))
}

/// Measures. Failures of rows are in the report; only without a folder or an event loop there is none.
fn measure(options: Options) -> io::Result<Report> {
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
