//! Several at once: how many runs a second, and how long until a hundred sandboxes live and answer.

use crate::{
    Options,
    measure::wanted,
    report::{Hundred, NotRun, Report, Throughput},
    rows::{Group, Kind, Row, all},
    schedule::Random,
    statistics::ratio,
    ways::{
        self, Program, Reason, Way,
        library::{Library, admit},
    },
};
use spec::{Event, RunRequest, Status};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};
use tokio::io::AsyncWriteExt;

const KINDS: [Kind; 4] = [Kind::Spawn, Kind::Bwrap, Kind::Cold, Kind::Warm];
/// Batches of each way; the median counts.
const BATCHES: usize = 5;
/// How long a batch lasts at most.
const LONGEST_BATCH: Duration = Duration::from_secs(1);
const SANDBOXES: usize = 100;
const TRIES: usize = 3;

/// Measures runs per second with two and with eight at once.
pub(crate) async fn throughput(options: &Options, random: &mut Random, report: &mut Report) {
    for runners in [2, 8] {
        let name = format!("throughput-{runners}");
        if !wanted(options, &name) {
            continue;
        }
        (options.progress)(&name);
        let mut ways = Vec::new();
        for row in all(options.command.as_deref()) {
            if row.group != Group::Command || !KINDS.contains(&row.kind) {
                continue;
            }
            match prepared(&row, options).await {
                Ok(way) => ways.push((row, way, Vec::new())),
                Err(reason) => report.not_run.push(NotRun { name: format!("{name}, {}", row.name), reason }),
            }
        }
        batches(options, random, runners, &mut ways).await;
        report.throughput.extend(summaries(runners, ways, &name, &mut report.not_run));
    }
}

type Batched = (Row, Way, Vec<Result<f64, Reason>>);

async fn prepared(row: &Row, options: &Options) -> Result<Way, Reason> {
    let mut way = ways::prepare(row.kind, &row.command, options).await?;
    way.once().await?;
    Ok(way)
}

async fn batches(options: &Options, random: &mut Random, runners: usize, ways: &mut [Batched]) {
    let length = LONGEST_BATCH.min(Duration::from_millis(50) * options.rounds as u32);
    for _ in 0..BATCHES {
        for number in random.order(ways.len()) {
            let (_, way, rates) = &mut ways[number];
            way.settle().await;
            let rate = match &*way {
                Way::Program(program) => programs(program, runners, length),
                Way::Library(library) => libraries(library, runners, length).await,
                Way::Docker(_) | Way::Cgroup(_) => Err("it is not run several times at once".to_owned()),
            };
            rates.push(rate);
            way.settle().await;
        }
    }
}

fn summaries(runners: usize, ways: Vec<Batched>, name: &str, not_run: &mut Vec<NotRun>) -> Vec<Throughput> {
    let mut found = Vec::new();
    for (row, _, rates) in ways {
        match rates.into_iter().collect::<Result<Vec<_>, _>>() {
            Ok(batches) => found.push(Throughput {
                row: row.name,
                runners,
                per_second: middle(&batches),
                to_bwrap: None,
                batches,
            }),
            Err(reason) => not_run.push(NotRun { name: format!("{name}, {}", row.name), reason }),
        }
    }
    let bwrap = found.iter().find(|one| one.row == Kind::Bwrap.name()).map(|one| one.per_second);
    for one in &mut found {
        one.to_bwrap = bwrap.and_then(|bwrap| ratio(one.per_second, bwrap));
    }
    found
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
        each.into_iter().try_for_each(|runner| runner.join().unwrap_or_else(|_| Err("a runner broke".into())))
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
    let each: Vec<_> = (0..runners).map(|_| tokio::spawn(run(library.clone(), start, length))).collect();
    let mut done = 0;
    for runner in each {
        done += runner.await.map_err(|error| error.to_string())??;
    }
    Ok(rate(done, start))
}

fn rate(done: usize, start: Instant) -> f64 {
    (done as f64 / start.elapsed().as_secs_f64() * 10.0).round() / 10.0
}

fn middle(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Measures how long it takes until a hundred sandboxes are alive at once and have answered.
pub(crate) async fn hundred(options: &Options, report: &mut Report) {
    if !wanted(options, "hundred") {
        return;
    }
    (options.progress)("hundred");
    let mut tries = Vec::new();
    for _ in 0..TRIES {
        match all_answer(options).await {
            Ok(took) => tries.push((took.as_secs_f64() * 1000.0).round() / 1000.0),
            Err(reason) => {
                return report.not_run.push(NotRun { name: "hundred".to_owned(), reason });
            }
        }
    }
    report.hundred = Some(Hundred { sandboxes: SANDBOXES, seconds: middle(&tries), tries });
}

/// Each runs `cat`, is sent a line and must send it back; none ends before all have answered.
async fn all_answer(options: &Options) -> Result<Duration, Reason> {
    let library = Library::cold(&["cat".into()], options)?;
    let (engine, _) = library.parts();
    let spec = admit(RunRequest { command: vec!["cat".into()], stdin: true, ..RunRequest::default() })?;
    let start = Instant::now();
    let mut runs: Vec<_> = (0..SANDBOXES).map(|_| engine.start(spec.clone())).collect();
    let mut inputs = Vec::new();
    for run in &mut runs {
        let mut stdin = run.take_stdin().ok_or("a run without standard input")?;
        stdin.write_all(b"hello\n").await.map_err(|error| format!("nobody listens: {error}"))?;
        inputs.push(stdin);
    }
    let mut unanswered = None;
    for (number, run) in runs.iter_mut().enumerate() {
        if !answered(run).await {
            unanswered.get_or_insert(number);
        }
    }
    let took = start.elapsed();
    drop(inputs);
    for run in runs {
        let result = run.finish().await;
        if result.status != Status::Succeeded {
            let why = result.error.map_or_else(String::new, |error| error.message);
            return Err(format!("{:?}: {why}", result.status));
        }
    }
    unanswered.map_or(Ok(took), |number| Err(format!("sandbox {number} did not answer")))
}

async fn answered(run: &mut engine::Run) -> bool {
    while let Some(event) = run.next_event().await {
        if let Event::Output { data, .. } = event {
            return data == b"hello\n";
        }
    }
    false
}
