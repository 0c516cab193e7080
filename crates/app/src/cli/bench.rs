//! `airlock bench`: what a run costs on this machine, beside other sandboxes. The measurements are a program of their own,
//! `airlock-bench`; it reads what is passed to it here.

use super::{Global, conclude, message::Failure, separate_program};
use crate::config::ProcessEnv;
use clap::Args;
use serde_json::{Value, json};
use spec::{Size, Time};
use std::{
    ffi::OsString,
    path::PathBuf,
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

const PROGRAM: &str = "airlock-bench";
/// Sandboxes made ahead in the measurements of the pool, unless the configuration has a pool.
const POOL: usize = 8;
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
    let failure = match order(options, global, env) {
        Ok(order) => separate_program::exec(PROGRAM, Some("run"), &order),
        Err(failure) => failure,
    };
    conclude(Err(failure), false)
}

/// What `airlock-bench` is to measure: `Order` of `bench/src/runs/mod.rs`.
fn order(options: Options, global: &Global, env: &ProcessEnv) -> Result<Value, Failure> {
    let config = global.configure(env)?;
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    let pool = if config.pool.warm_sandboxes > 0 {
        config.pool.warm_sandboxes
    } else {
        POOL
    };
    let docker = socket(&config.docker).or(config.docker.first().map(PathBuf::from));
    Ok(json!({
        "sources": engine::SOURCES,
        "measure": {
            "rounds": options.rounds,
            "idle": options.idle.0,
            "only": options.only,
            "command": (!options.command.is_empty()).then_some(options.command),
            "pool": pool,
            // Short enough to be typed again.
            "seed": options.seed.unwrap_or(clock % 1_000_000),
            "airlock": separate_program::own_path_text()?,
            "docker_socket": docker.unwrap_or_default(),
            "podman_socket": socket(&config.podman),
            "image_size": options.image_size.map(|size| size.0),
        },
        "json": options.json.map(PathBuf::into_os_string),
        "svg": options.svg.map(PathBuf::into_os_string),
        "text": options.text.map(PathBuf::into_os_string),
    }))
}

/// The socket where runs would find a container engine. An engine at `tcp://…` is not replaced by
/// another one.
fn socket(places: &[String]) -> Option<PathBuf> {
    places
        .iter()
        .map(|place| PathBuf::from(place.strip_prefix("unix://").unwrap_or(place)))
        .find(|path| path.exists())
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
