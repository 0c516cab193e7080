//! Runs per second with several at once: in batches that take turns in random order.

use crate::runs::{
    Options,
    measure::wanted,
    report::{NotRun, Report, Throughput},
    rows::{Group, Kind, Row, all},
    schedule::Random,
    statistics::{middle, ratio},
    ways::{self, Program, Reason, Way, library::Library},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

const KINDS: [Kind; 4] = [Kind::Spawn, Kind::Bwrap, Kind::Cold, Kind::Warm];
/// Batches of each way; the median counts.
const BATCHES: usize = 5;
/// How long a batch lasts at most.
const LONGEST_BATCH: Duration = Duration::from_secs(1);

/// A row with its way and its batches.
struct PreparedRow {
    row: Row,
    way: Way,
    batches: Result<Vec<f64>, Reason>,
}

/// Measures runs per second with two and with eight at once.
pub(crate) async fn measure(options: &Options, random: &mut Random, report: &mut Report) {
    for runners in [2, 8] {
        let name = format!("throughput-{runners}");
        if wanted(options, &name) {
            (options.progress)(&name);
            let (measured, not_run) = with(runners, options, random).await;
            report.throughput.extend(measured);
            report
                .not_run
                .extend(not_run.into_iter().map(|(row, reason)| {
                    let name = format!("{name}, {row}");
                    NotRun { name, reason }
                }));
        }
    }
}

/// What was measured, and the rows that were not, with the reason.
async fn with(
    runners: usize,
    options: &Options,
    random: &mut Random,
) -> (Vec<Throughput>, Vec<(String, Reason)>) {
    let (mut lanes, mut not_run) = (Vec::new(), Vec::new());
    let rows = all(options.command.as_deref());
    for row in rows
        .into_iter()
        .filter(|row| row.group == Group::Command && KINDS.contains(&row.kind))
    {
        match ways::prepare(row.kind, &row.command, options).await {
            Ok(way) => lanes.push(PreparedRow {
                row,
                way,
                batches: Ok(Vec::new()),
            }),
            Err(reason) => not_run.push((row.name, reason)),
        }
    }
    let length = LONGEST_BATCH.min(Duration::from_millis(50) * options.rounds as u32);
    for _ in 0..BATCHES {
        for number in random.order(lanes.len()) {
            lanes[number].batch(runners, length).await;
        }
    }
    let mut measured = Vec::new();
    for PreparedRow { row, way, batches } in lanes {
        way.end().await;
        match batches {
            Ok(batches) => measured.push(summary(row.name, runners, batches)),
            Err(reason) => not_run.push((row.name, reason)),
        }
    }
    compare(&mut measured);
    (measured, not_run)
}

impl PreparedRow {
    /// One batch, unless one has failed.
    async fn batch(&mut self, runners: usize, length: Duration) {
        let Ok(batches) = &mut self.batches else {
            return;
        };
        self.way.settle().await;
        let rate = match &self.way {
            Way::Program(program) => programs(program, runners, length),
            Way::Library(library) => libraries(library, runners, length).await,
            Way::Docker(_) | Way::Cgroup(_) => {
                Err("it is not run several times at once".to_owned())
            }
        };
        match rate {
            Ok(rate) => batches.push(rate),
            Err(reason) => self.batches = Err(reason),
        }
        self.way.settle().await;
    }
}

fn summary(row: String, runners: usize, batches: Vec<f64>) -> Throughput {
    let per_second = middle(&batches);
    Throughput {
        row,
        runners,
        per_second,
        to_bwrap: None,
        batches,
    }
}

fn compare(measured: &mut [Throughput]) {
    let bwrap = measured
        .iter()
        .find(|one| one.row == Kind::Bwrap.name())
        .map(|one| one.per_second);
    for one in measured {
        one.to_bwrap = bwrap.and_then(|bwrap| ratio(one.per_second, bwrap));
    }
}

/// Each runner on a thread of its own, until the time is up; then what was begun is finished and counted.
fn programs(program: &Program, runners: usize, length: Duration) -> Result<f64, Reason> {
    let (done, start) = (AtomicUsize::new(0), Instant::now());
    let run = |mut program: Program| -> Result<(), Reason> {
        while start.elapsed() < length {
            program.once()?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let each: Vec<_> = (0..runners)
            .map(|number| {
                let program = program.for_runner(number);
                scope.spawn(|| run(program))
            })
            .collect();
        each.into_iter().try_for_each(|runner| {
            runner
                .join()
                .unwrap_or_else(|_| Err("a runner broke".into()))
        })
    })?;
    Ok(rate(done.into_inner(), start))
}

/// The same with tasks.
async fn libraries(library: &Library, runners: usize, length: Duration) -> Result<f64, Reason> {
    async fn run(mut library: Library, start: Instant, length: Duration) -> Result<usize, Reason> {
        let mut done = 0;
        while start.elapsed() < length {
            library.once().await?;
            done += 1;
        }
        Ok(done)
    }
    let start = Instant::now();
    let each: Vec<_> = (0..runners)
        .map(|_| tokio::spawn(run(library.clone(), start, length)))
        .collect();
    let mut done = 0;
    for runner in each {
        done += runner.await.map_err(|error| error.to_string())??;
    }
    Ok(rate(done, start))
}

fn rate(done: usize, start: Instant) -> f64 {
    (done as f64 / start.elapsed().as_secs_f64() * 10.0).round() / 10.0
}
