//! The library in a process of its own, by orders on standard input: what a run costs without HTTP before it.

use crate::gateway::Trouble;
use clap::Args;
use engine::{Engine, PoolSettings, Settings};
use serde::{Deserialize, Serialize};
use spec::{Policy, RunRequest, RunSpec, Size, Status};
use std::{
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// What the process is told at its start.
#[derive(Args)]
pub(crate) struct Order {
    #[arg(long)]
    state: PathBuf,
    #[arg(long)]
    parked: usize,
}

/// What it is asked for, a line each.
#[derive(Debug, Deserialize, Serialize)]
enum Ask {
    /// One run; the time that it took.
    One,
    /// So many tasks that run again and again for so many milliseconds.
    Many(usize, u64),
}

/// What it answers.
#[derive(Debug, Deserialize, Serialize)]
struct LibraryAnswer {
    seconds: f64,
    runs: usize,
    failures: usize,
}

/// The process, as the load sees it.
pub(crate) struct Library {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Library {
    pub(crate) fn start(folder: &Path, parked: usize) -> io::Result<Library> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["gateway", "library", "--state"])
            .arg(folder.join("library"))
            .arg("--parked")
            .arg(parked.to_string());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("no pipe");
        let (to, from) = (
            child.stdin.take(),
            BufReader::new(child.stdout.take().ok_or_else(missing)?),
        );
        Ok(Library { child, to, from })
    }

    /// Seconds of one run.
    pub(crate) fn one(&mut self) -> io::Result<f64> {
        let told = self.ask(&Ask::One)?;
        (told.failures == 0)
            .then_some(told.seconds)
            .ok_or_else(|| io::Error::other("the run failed"))
    }

    /// Runs a second with so many at once; none may fail.
    pub(crate) fn rate(&mut self, tasks: usize, time: Duration) -> io::Result<f64> {
        let told = self.ask(&Ask::Many(tasks, time.as_millis() as u64))?;
        match told.failures {
            0 => Ok(told.runs as f64 / told.seconds),
            failures => Err(io::Error::other(format!(
                "{failures} of {} runs failed",
                told.runs
            ))),
        }
    }

    fn ask(&mut self, ask: &Ask) -> io::Result<LibraryAnswer> {
        let gone = || io::Error::other("the library's process is gone");
        writeln!(
            self.to.as_mut().ok_or_else(gone)?,
            "{}",
            serde_json::to_string(ask)?
        )?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        if line.is_empty() {
            Err(gone())
        } else {
            Ok(serde_json::from_str(&line)?)
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // It ends with its orders.
        drop(self.to.take());
        _ = self.child.wait();
    }
}

/// The process itself, until its orders end.
pub(crate) fn run(order: &Order) -> Result<(), Trouble> {
    // As `airlock serve` runs.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let failed = |error: &dyn std::fmt::Display| Trouble::Library(error.to_string());
    let request = RunRequest {
        command: vec!["/bin/true".into()],
        ..RunRequest::default()
    };
    let spec = Policy::default()
        .admit(request)
        .map_err(|error| failed(&error.message))?;
    runtime.block_on(async {
        let memory = Size(PoolSettings::WARM_SANDBOX_BYTES.0 * order.parked as u64);
        let pool = PoolSettings {
            warm_sandboxes: order.parked,
            prepared_namespaces: 0,
            memory,
        };
        let settings = Settings {
            pool,
            ..Settings::new(order.state.clone())
        };
        let engine = Engine::open(settings).map_err(|error| failed(&error))?;
        engine.warm(&spec).await;
        for line in io::stdin().lines() {
            let told = match serde_json::from_str(&line?).map_err(io::Error::other)? {
                Ask::One => one(&engine, &spec).await,
                Ask::Many(tasks, time) => {
                    many(&engine, &spec, tasks, Duration::from_millis(time)).await
                }
            };
            println!(
                "{}",
                serde_json::to_string(&told).map_err(io::Error::other)?
            );
        }
        engine.close().await;
        Ok(())
    })
}

async fn one(engine: &Engine, spec: &RunSpec) -> LibraryAnswer {
    let begun = Instant::now();
    let result = engine.run(spec.clone()).await;
    let seconds = begun.elapsed().as_secs_f64();
    LibraryAnswer {
        seconds,
        runs: 1,
        failures: usize::from(result.status != Status::Succeeded),
    }
}

async fn many(engine: &Engine, spec: &RunSpec, tasks: usize, time: Duration) -> LibraryAnswer {
    let begun = Instant::now();
    let work = |_| {
        let (engine, spec) = (engine.clone(), spec.clone());
        tokio::spawn(async move {
            let mut all = LibraryAnswer {
                seconds: 0.0,
                runs: 0,
                failures: 0,
            };
            while all.runs == 0 || begun.elapsed() < time {
                all.failures += one(&engine, &spec).await.failures;
                all.runs += 1;
            }
            all
        })
    };
    let tasks: Vec<_> = (0..tasks).map(work).collect();
    let mut all = LibraryAnswer {
        seconds: 0.0,
        runs: 0,
        failures: 0,
    };
    for task in tasks {
        // A task that panicked is a run that failed.
        let told = task.await.unwrap_or(LibraryAnswer {
            seconds: 0.0,
            runs: 1,
            failures: 1,
        });
        all.runs += told.runs;
        all.failures += told.failures;
    }
    LibraryAnswer {
        seconds: begun.elapsed().as_secs_f64(),
        ..all
    }
}
