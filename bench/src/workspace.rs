//! What a staged workspace costs beside one that is shared live: the start and end of a run, and applying new files. Every
//! round takes each row once, in turns; only ratios within one run say something.

use crate::peers::{self, Folder};
use clap::Args;
use serde_json::Value;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// Folders of this many files.
const FOLDERS: [usize; 2] = [1000, 30_000];
const NEW_FILES: usize = 4000;
const FILES_IN_A_FOLDER: usize = 100;
/// Writes the new files, and prints how many nanoseconds that took.
const WRITE: &str = r#"
import os, time
os.mkdir("new")
began = time.monotonic_ns()
for n in range(4000):
    if n % 100 == 0: os.mkdir(f"new/{n}")
    with open(f"new/{n - n % 100}/{n}", "w") as file: file.write("x" * 500)
print(time.monotonic_ns() - began)
"#;

/// What kept it from being measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(transparent)]
    Peer(#[from] peers::Trouble),
    #[error("a run in a {mode} workspace failed: {result}")]
    Run { mode: Mode, result: String },
    #[error("cannot set up this process: {0}")]
    Here(#[from] io::Error),
}

/// Measures what a staged workspace costs beside one that is shared live.
#[derive(Args)]
pub(crate) struct Options {
    /// The program that runs
    #[arg(long, value_name = "FILE", default_value = "target/dist/airlock")]
    airlock: PathBuf,
    /// Rounds, of which the median is told
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    rounds: usize,
}

/// How a run gets its workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    Live,
    Staged,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Mode::Live => "live",
            Mode::Staged => "staged",
        })
    }
}

/// One run: its wall time in milliseconds, and its result.
struct Measured {
    milliseconds: f64,
    result: Value,
}

struct Bench<'a> {
    options: &'a Options,
    folder: &'a Path,
}

pub(crate) fn run(options: &Options) -> Result<(), Trouble> {
    let folder = Folder::new("workspace")?;
    let bench = Bench {
        options,
        folder: &folder.0,
    };
    println!(
        "{:<40} {:>9} {:>9} {:>9}",
        format!("start and end of `true`, median of {}", options.rounds),
        "live",
        "staged",
        "more"
    );
    for files in FOLDERS {
        fill(&bench.workspace(files), files)?;
    }
    for (files, [live, staged]) in FOLDERS.into_iter().zip(bench.starts()?) {
        println!(
            "{:<40} {live:>6.1} ms {staged:>6.1} ms {:>6.1} ms",
            format!("{files} files"),
            staged - live
        );
    }
    let [writing, applying] = bench.applies()?;
    println!(
        "{NEW_FILES} new files: written in {writing:.1} ms inside, applied in {applying:.1} ms: {:.2} x",
        applying / writing
    );
    Ok(())
}

fn fill(folder: &Path, files: usize) -> io::Result<()> {
    for number in 0..files {
        let below = folder.join(format!("d{}", number - number % FILES_IN_A_FOLDER));
        if number % FILES_IN_A_FOLDER == 0 {
            fs::create_dir_all(&below)?;
        }
        fs::write(below.join(format!("f{number}")), "x".repeat(200))?;
    }
    Ok(())
}

impl Bench<'_> {
    fn workspace(&self, files: usize) -> PathBuf {
        self.folder.join(files.to_string())
    }

    fn run(&self, files: usize, mode: Mode, command: &[&str]) -> Result<Measured, Trouble> {
        let workspace = format!("{}:{mode}", self.workspace(files).display());
        let mut airlock = Command::new(&self.options.airlock);
        airlock
            .args(["run", "--workspace", &workspace, "--json", "--"])
            .args(command);
        // No configuration of the caller's decides anything.
        airlock
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder)
            .env("AIRLOCK_STATE", self.folder.join("state"));
        let began = Instant::now();
        let output = airlock.output()?;
        let milliseconds = began.elapsed().as_secs_f64() * 1000.0;
        let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if result["status"] != "succeeded" || !result["error"].is_null() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(Trouble::Run {
                mode,
                result: format!("{result} {stderr}"),
            });
        }
        Ok(Measured {
            milliseconds,
            result,
        })
    }

    /// Of each folder the medians, live and staged. The first round only warms caches.
    fn starts(&self) -> Result<Vec<[f64; 2]>, Trouble> {
        let mut samples = vec![[Vec::new(), Vec::new()]; FOLDERS.len()];
        for round in 0..=self.options.rounds {
            for (files, modes) in FOLDERS.into_iter().zip(&mut samples) {
                // Each round starts with the other one.
                for turn in [round % 2, (round + 1) % 2] {
                    let mode = [Mode::Live, Mode::Staged][turn];
                    let measured = self.run(files, mode, &["true"])?;
                    if round > 0 {
                        modes[turn].push(measured.milliseconds);
                    }
                }
            }
        }
        Ok(samples.into_iter().map(|modes| modes.map(median)).collect())
    }

    /// Of a run that writes new files: how long writing took inside, and how long the run took beyond one that writes none.
    fn applies(&self) -> Result<[f64; 2], Trouble> {
        let files = FOLDERS[FOLDERS.len() - 1];
        let (mut written, mut whole, mut python) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.options.rounds {
            let measured = self.run(files, Mode::Staged, &["python3", "-c", WRITE])?;
            let applied = measured.result["workspace"]["applied"].as_u64();
            let nanoseconds = measured.result["stdout"]
                .as_str()
                .unwrap_or_default()
                .trim();
            let nanoseconds: Option<f64> = nanoseconds.parse().ok();
            match (applied, nanoseconds) {
                (Some(applied), Some(nanoseconds)) if applied >= NEW_FILES as u64 => {
                    written.push(nanoseconds / 1e6);
                    whole.push(measured.milliseconds);
                }
                _ => {
                    return Err(Trouble::Run {
                        mode: Mode::Staged,
                        result: measured.result.to_string(),
                    });
                }
            }
            fs::remove_dir_all(self.workspace(files).join("new"))?;
            let nothing = self.run(files, Mode::Staged, &["python3", "-c", "pass"])?;
            python.push(nothing.milliseconds);
        }
        let writing = median(written);
        Ok([writing, median(whole) - median(python) - writing])
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}
