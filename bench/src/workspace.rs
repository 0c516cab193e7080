//! What a workspace costs, shared live and staged, beside a run without one: the start and end of a run, and applying new
//! files. Every round takes each row once, in turns; only ratios within one run say something.

use crate::peers::{self, Folder};
use clap::Args;
use serde_json::Value;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// A folder that runs get as their workspace.
#[derive(Clone, Copy)]
struct Tree {
    name: &'static str,
    files: usize,
    is_repository: bool,
}

const LARGE: Tree = Tree {
    name: "30,000 files",
    files: 30_000,
    is_repository: false,
};
const TREES: [Tree; 3] = [
    Tree {
        name: "1,000 files",
        files: 1000,
        is_repository: false,
    },
    Tree {
        name: "1,000 files in a git repository",
        files: 1000,
        is_repository: true,
    },
    LARGE,
];
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
    #[error("a run failed: {0}")]
    Run(String),
    #[error("`git {0}` failed")]
    Git(String),
    #[error("cannot set up this process: {0}")]
    Here(#[from] io::Error),
}

/// Measures what a staged workspace costs beside one that is shared live.
#[derive(Args)]
pub(crate) struct Options {
    /// The program that runs
    #[arg(long, value_name = "FILE", default_value = "target/dist/airlock")]
    airlock: PathBuf,
    /// An older program, which takes the rows without a workspace and with a live one in the same rounds
    #[arg(long, value_name = "FILE")]
    before: Option<PathBuf>,
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

/// What one row measures: a program, and the workspace that its run gets.
#[derive(Clone, Copy)]
struct Row {
    is_before: bool,
    workspace: Option<(Tree, Mode)>,
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
    for tree in TREES {
        fill(&bench.path(tree), tree)?;
    }
    bench.show_starts()?;
    let [writing, applying] = bench.applies()?;
    println!(
        "{NEW_FILES} new files: written in {writing:.1} ms inside, applied in {applying:.1} ms: {:.2} x",
        applying / writing
    );
    Ok(())
}

fn fill(folder: &Path, tree: Tree) -> Result<(), Trouble> {
    for number in 0..tree.files {
        let below = folder.join(format!("d{}", number - number % FILES_IN_A_FOLDER));
        if number % FILES_IN_A_FOLDER == 0 {
            fs::create_dir_all(&below)?;
        }
        fs::write(below.join(format!("f{number}")), "x".repeat(200))?;
    }
    if tree.is_repository {
        git(folder, &["init", "--quiet"])?;
        git(folder, &["add", "."])?;
        git(folder, &["commit", "--quiet", "--message", "all"])?;
    }
    Ok(())
}

fn git(folder: &Path, words: &[&str]) -> Result<(), Trouble> {
    let author = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
    let mut git = Command::new("git");
    let status = git.args(author).args(words).current_dir(folder).status()?;
    if !status.success() {
        return Err(Trouble::Git(words.join(" ")));
    }
    Ok(())
}

impl Bench<'_> {
    fn path(&self, tree: Tree) -> PathBuf {
        self.folder.join(tree.name)
    }

    fn run(&self, row: Row, command: &[&str]) -> Result<Measured, Trouble> {
        let older = self.options.before.as_ref().filter(|_| row.is_before);
        let mut airlock = Command::new(older.unwrap_or(&self.options.airlock));
        airlock.arg("run");
        if let Some((tree, mode)) = row.workspace {
            // An older program may know no modes: its workspaces are live.
            let mode = if older.is_some() {
                String::new()
            } else {
                format!(":{mode}")
            };
            let workspace = format!("{}{mode}", self.path(tree).display());
            airlock.args(["--workspace", &workspace]);
        }
        let state = if older.is_some() {
            "state-before"
        } else {
            "state"
        };
        // No configuration of the caller's decides anything.
        airlock
            .args(["--json", "--"])
            .args(command)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder)
            .env("AIRLOCK_STATE", self.folder.join(state));
        let began = Instant::now();
        let output = airlock.output()?;
        let milliseconds = began.elapsed().as_secs_f64() * 1000.0;
        let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if result["status"] != "succeeded" || !result["error"].is_null() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(Trouble::Run(format!("{result} {stderr}")));
        }
        Ok(Measured {
            milliseconds,
            result,
        })
    }

    /// Every row's samples. The first round only warms caches.
    fn starts(&self, rows: &[Row]) -> Result<Vec<Vec<f64>>, Trouble> {
        let mut samples = vec![Vec::new(); rows.len()];
        for round in 0..=self.options.rounds {
            // Each round starts with another row.
            for turn in 0..rows.len() {
                let at = (round + turn) % rows.len();
                let measured = self.run(rows[at], &["true"])?;
                if round > 0 {
                    samples[at].push(measured.milliseconds);
                }
            }
        }
        Ok(samples)
    }

    /// A line for each folder: live, staged, and how much later a live run ends than that of the older program: the median
    /// of the differences within a round.
    fn show_starts(&self) -> Result<(), Trouble> {
        let row = |is_before, workspace| Row {
            is_before,
            workspace,
        };
        let trees = [None].into_iter().chain(TREES.map(Some));
        let mut lines = Vec::new();
        let mut rows = Vec::new();
        for tree in trees {
            let first = rows.len();
            rows.push(row(false, tree.map(|tree| (tree, Mode::Live))));
            if self.options.before.is_some() {
                rows.push(row(true, tree.map(|tree| (tree, Mode::Live))));
            }
            if let Some(tree) = tree {
                rows.push(row(false, Some((tree, Mode::Staged))));
            }
            lines.push((
                tree.map_or("no workspace", |tree| tree.name),
                first..rows.len(),
            ));
        }
        let samples = self.starts(&rows)?;
        let head = format!("start and end of `true`, median of {}", self.options.rounds);
        println!(
            "{head:<40} {:>12} {:>12} {:>12} {:>12}",
            "live", "staged", "before", "added"
        );
        for (name, range) in lines {
            let (mut staged, mut before, mut added) = (None, None, None);
            let live = &samples[range.start];
            for at in range.clone().skip(1) {
                if rows[at].is_before {
                    before = Some(median(samples[at].clone()));
                    let differences = live.iter().zip(&samples[at]).map(|(now, old)| now - old);
                    added = Some(median(differences.collect()));
                } else {
                    staged = Some(median(samples[at].clone()));
                }
            }
            let shown = [Some(median(live.clone())), staged, before, added]
                .map(|value| value.map_or(String::new(), |value| format!("{value:.1} ms")));
            let [live, staged, before, added] = shown;
            println!("{name:<40} {live:>12} {staged:>12} {before:>12} {added:>12}");
        }
        Ok(())
    }

    /// Of a run that writes new files: how long writing took inside, and how long the run took beyond one that writes none.
    fn applies(&self) -> Result<[f64; 2], Trouble> {
        let row = Row {
            is_before: false,
            workspace: Some((LARGE, Mode::Staged)),
        };
        let (mut written, mut whole, mut python) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.options.rounds {
            let measured = self.run(row, &["python3", "-c", WRITE])?;
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
                    return Err(Trouble::Run(measured.result.to_string()));
                }
            }
            fs::remove_dir_all(self.path(LARGE).join("new"))?;
            let nothing = self.run(row, &["python3", "-c", "pass"])?;
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
