//! Takes the samples: every row prepared and warmed up, then the two phases, then what is no row.

use crate::runs::{
    Options, hundred, idle, load, pairs,
    report::{Circumstances, Measured, NotRun, Phase, Report},
    rows::{self, Row},
    schedule::Random,
    statistics::{microseconds, percentile},
    targets, throughput,
    ways::{self, Reason, Way},
};
use std::time::{Duration, Instant};

/// Runs of each row before the first that counts.
pub(crate) const WARM_UP: usize = 3;

/// A row with its way, and what came of it in the present phase.
struct PreparedRow {
    row: Row,
    way: Way,
    samples: Vec<Duration>,
    errors: Vec<Reason>,
}

pub(crate) async fn everything(options: Options) -> Report {
    let mut random = Random::new(options.seed);
    let mut report = Report::new(Circumstances::of(&options));
    let mut prepared = prepare_all(&options, &mut report.not_run).await;
    let phases = [
        Some(Phase::BackToBack),
        options.idle.map(|_| Phase::AfterIdle),
    ];
    for phase in phases.into_iter().flatten() {
        sample(&options, phase, &mut random, &mut prepared).await;
        report
            .rows
            .extend(prepared.iter_mut().map(|row| row.take(phase)));
    }
    for row in prepared {
        row.way.end().await;
    }
    report.compare();
    throughput::measure(&options, &mut random, &mut report).await;
    hundred::measure(&options, &mut report).await;
    idle::measure(&options, &mut report);
    pairs::measure(&options, &mut random, &mut report).await;
    load::measure(&options, &mut random, &mut report);
    report.about.load[1] = crate::runs::report::load();
    report.targets = targets::judge(&report);
    report
}

/// Whether a measurement was asked for.
pub(crate) fn wanted(options: &Options, name: &str) -> bool {
    options.only.is_empty() || options.only.iter().any(|only| only == name)
}

async fn prepare_all(options: &Options, not_run: &mut Vec<NotRun>) -> Vec<PreparedRow> {
    let mut prepared = Vec::new();
    let all = rows::all(options.command.as_deref());
    let known = |name: &&String| {
        all.iter().any(|row| row.name == **name) || rows::MORE.contains(&name.as_str())
    };
    let unknown = options.only.iter().filter(|name| !known(name));
    let reason = "it has a command of its own, and another one was given";
    not_run.extend(unknown.map(|name| NotRun {
        name: name.clone(),
        reason: reason.to_owned(),
    }));
    for row in all {
        if !wanted(options, &row.name) {
            continue;
        }
        (options.progress)(&format!("preparing {}", row.name));
        match warmed_up(&row, options).await {
            Ok(way) => prepared.push(PreparedRow {
                row,
                way,
                samples: Vec::new(),
                errors: Vec::new(),
            }),
            Err(reason) => not_run.push(NotRun {
                name: row.name,
                reason,
            }),
        }
    }
    prepared
}

async fn warmed_up(row: &Row, options: &Options) -> Result<Way, Reason> {
    let mut way = ways::prepare(row.kind, &row.command, options).await?;
    for _ in 0..WARM_UP {
        way.settle().await;
        if let Err(reason) = way.once().await {
            way.end().await;
            return Err(reason);
        }
    }
    way.settle().await;
    Ok(way)
}

async fn sample(
    options: &Options,
    phase: Phase,
    random: &mut Random,
    prepared: &mut [PreparedRow],
) {
    let mut told = Instant::now();
    for round in 0..options.rounds {
        if !prepared.is_empty() && (round == 0 || told.elapsed() > Duration::from_secs(5)) {
            told = Instant::now();
            (options.progress)(&format!(
                "{}: round {} of {}",
                phase.name(),
                round + 1,
                options.rounds
            ));
        }
        // A row that is visited often stands in the round that often.
        let visits = |row: &PreparedRow| {
            if phase == Phase::BackToBack {
                row.row.visits()
            } else {
                1
            }
        };
        let round: Vec<_> = prepared
            .iter()
            .enumerate()
            .flat_map(|(number, row)| vec![number; visits(row)])
            .collect();
        for place in random.order(round.len()) {
            let row = &mut prepared[round[place]];
            match phase {
                Phase::BackToBack => {
                    for _ in 0..row.row.burst() {
                        row.once().await;
                    }
                }
                Phase::AfterIdle => {
                    tokio::time::sleep(options.idle.unwrap_or_default()).await;
                    row.once().await;
                }
            }
            row.way.settle().await;
        }
    }
}

impl PreparedRow {
    async fn once(&mut self) {
        match self.way.once().await {
            Ok(took) => self.samples.push(took),
            Err(reason) => self.errors.push(reason),
        }
    }

    /// What came of it in this phase, which is over.
    fn take(&mut self, phase: Phase) -> Measured {
        let (samples, errors) = (
            std::mem::take(&mut self.samples),
            std::mem::take(&mut self.errors),
        );
        let percent = |percent| percentile(&samples, percent).map(microseconds);
        Measured {
            row: self.row.name.clone(),
            meaning: self.row.kind.meaning(),
            group: self.row.group,
            kind: self.row.kind,
            phase,
            n: samples.len(),
            errors: errors.len(),
            first_error: errors.into_iter().next(),
            missing_barriers: self.way.missing_barriers(),
            p50_us: percent(50),
            p99_us: percent(99),
            to_spawn: None,
            to_bwrap: None,
            samples_us: samples.into_iter().map(microseconds).collect(),
        }
    }
}
