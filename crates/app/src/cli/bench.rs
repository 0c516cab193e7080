//! `airlock bench`: what a run costs on this machine, beside other sandboxes.

use super::{
    Global, REFUSED,
    message::{self, Failure, Message},
    print,
};
use crate::config::{Config, ProcessEnv};
use bench::Report;
use clap::Args;
use spec::{Size, Time};
use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const EXAMPLES: &str = "\
Examples:
  airlock bench --rounds 1 --idle none --only posix_spawn,bwrap,library-cold,cli
  airlock bench --rounds 1 --idle none --only posix_spawn,library-cold --svg plot.svg -- ls /usr

All rows are measured in one process, in rounds of random order: first back to back, then each after
idle time. A peer that is not installed is listed as not run; `bench/run` of the repository installs
and starts all of them. Compare numbers of one run only, not those of different machines.
Targets are informative: the exit status is 0 whatever was measured.";

/// Sandboxes made ahead in the measurements of the pool, unless the configuration has a pool.
const DEFAULT_POOL: usize = 8;
/// The value of `--idle` that omits the second phase.
const NO_IDLE: &str = "none";

/// The options of `airlock bench`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// How often each row is measured in each phase
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Idle time before each sample of the second phase; `none` omits that phase
    #[arg(long, value_name = "TIME|none", default_value = "200ms", value_parser = idle)]
    idle: IdleTime,
    /// Only these rows and measurements, comma-separated; a wrong name lists them all
    #[arg(long, value_name = "ROW,…", value_delimiter = ',')]
    only: Vec<String>,
    /// The seed of the measuring order [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The size of the image that `image-load` creates and loads, using three times that on disk;
    /// without this option it is measured only if --only names it [default: 1GiB]
    #[arg(long, value_name = "SIZE", overrides_with = "image_size")]
    image_size: Option<Size>,
    /// Write all results with every sample as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the printed output to a file, too
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Park this many sandboxes until standard input ends, for measuring memory
    #[arg(long, value_name = "N", hide = true)]
    park: Option<usize>,
    /// The same with this many live runs of an image
    #[arg(long, value_name = "N", hide = true)]
    hold: Option<usize>,
    /// The command to run instead of /bin/true and Python
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The idle time before each sample, if any.
#[derive(Clone, Copy, Debug)]
struct IdleTime(Option<Duration>);

fn idle(text: &str) -> Result<IdleTime, String> {
    match text {
        NO_IDLE => Ok(IdleTime(None)),
        time => Time::from_str(time)
            .map(|time| IdleTime(Some(time.0)))
            .map_err(|bad| bad.to_string()),
    }
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    match attempt(options, global, env) {
        Ok(()) => 0,
        Err(failure) => {
            message::print(&failure.lines());
            REFUSED
        }
    }
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<(), Failure> {
    let config = global.configure(env)?;
    if let Some(parked) = options.park {
        return bench::park(config.state, parked).map_err(Failure::internal);
    }
    if let Some(runs) = options.hold {
        return bench::hold(config.state, runs).map_err(Failure::internal);
    }
    check_names(&options.only)?;
    let report = bench::run(settings(&options, &config, env)?)
        .map_err(|error| Failure::internal(format!("cannot measure: {error}")))?;
    print(&report.to_string())?;
    write(&options, &report, &env.current_folder)
}

fn check_names(only: &[String]) -> Result<(), Failure> {
    let names = bench::names();
    match only.iter().find(|name| !names.contains(name)) {
        Some(wrong) => Err(Failure::invalid(
            format!("there is no row `{wrong}`"),
            format!("the rows are {}", names.join(", ")),
        )),
        None => Ok(()),
    }
}

fn settings(
    options: &Options,
    config: &Config,
    env: &ProcessEnv,
) -> Result<bench::Options, Failure> {
    let airlock = std::env::current_exe().map_err(|error| {
        Failure::internal(format!("cannot find this program's own file: {error}"))
    })?;
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    Ok(bench::Options {
        rounds: options.rounds as usize,
        idle: options.idle.0,
        only: options.only.clone(),
        command: (!options.command.is_empty()).then(|| options.command.clone()),
        pool: if config.pool.parked > 0 {
            config.pool.parked
        } else {
            DEFAULT_POOL
        },
        // The seed is short, so that it can be typed.
        seed: options.seed.unwrap_or(clock % 1_000_000),
        airlock,
        path: env
            .variable("PATH")
            .unwrap_or(OsStr::new(spec::DEFAULT_PATH))
            .to_owned(),
        docker_socket: socket(&config.docker)
            .or(config.docker.first().map(PathBuf::from))
            .unwrap_or_default(),
        podman_socket: socket(&config.podman),
        image_size: options.image_size.map(|size| size.0),
        scratch: std::env::temp_dir()
            .join(format!("airlock-bench-{}-{clock:x}", std::process::id())),
        progress: |line| message::print(&[Message::Note(line.to_owned())]),
    })
}

/// The socket where runs would find a container engine. An engine at `tcp://…` is not replaced by
/// another one.
fn socket(places: &[String]) -> Option<PathBuf> {
    places
        .iter()
        .map(|place| PathBuf::from(place.strip_prefix("unix://").unwrap_or(place)))
        .find(|path| path.exists())
}

fn write(options: &Options, report: &Report, folder: &Path) -> Result<(), Failure> {
    let to = |file: &Option<PathBuf>, text: &dyn Fn() -> String| match file
        .as_ref()
        .map(|file| folder.join(file))
    {
        Some(path) => fs::write(&path, text()).map_err(|error| {
            Failure::internal(format!("cannot write `{}`: {error}", path.display()))
        }),
        None => Ok(()),
    };
    let json = serde_json::to_string(report)
        .map_err(|error| Failure::internal(format!("cannot write the report as JSON: {error}")))?;
    to(&options.json, &|| json.clone() + "\n")?;
    to(&options.svg, &|| report.svg())?;
    to(&options.text, &|| report.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_that_is_measured_is_the_one_that_runs_would_use() {
        let here = std::env::current_exe().unwrap();
        let named = |place: &str| socket(&[place.to_owned()]);
        let there = format!("unix://{}", here.display());
        assert_eq!(named(&there), Some(here.clone()));
        assert_eq!(named("unix:///nowhere/docker.sock"), None);
        assert_eq!(named("tcp://127.0.0.1:2375"), None);
        let both = ["unix:///nowhere/docker.sock".to_owned(), there];
        assert_eq!(socket(&both), Some(here));
    }
}
