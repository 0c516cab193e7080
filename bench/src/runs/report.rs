//! What came of measuring: everything that the text, the plot and the JSON show.

use crate::runs::{
    Options,
    rows::{Group, Kind},
    statistics::ratio,
};
use serde::Serialize;
use std::fs;

/// The whole report; this is the JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Under which circumstances.
    pub(crate) about: Circumstances,
    /// What was measured sample by sample.
    pub(crate) rows: Vec<Measured>,
    /// Runs per second with several at once.
    pub(crate) throughput: Vec<Throughput>,
    /// What one parked sandbox holds.
    pub(crate) idle_sandbox: Option<IdleSandbox>,
    /// A hundred at once.
    pub(crate) hundred: Option<Hundred>,
    /// What each live run of one image adds.
    pub(crate) image_runs: Option<ImageRuns>,
    /// Our container backend beside the bare API.
    pub(crate) pairs: Vec<Pairs>,
    /// Loading an image beside unpacking its layer.
    pub(crate) image_loads: Vec<ImageLoad>,
    /// The targets of the project and what was measured; they decide nothing.
    pub(crate) targets: Vec<Target>,
    /// What could not be measured here, and why.
    pub(crate) not_run: Vec<NotRun>,
}

/// The circumstances.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub(crate) struct Circumstances {
    pub(crate) version: &'static str,
    /// Numbers of a debug build mean nothing.
    pub(crate) debug_build: bool,
    pub(crate) kernel: String,
    pub(crate) processors: usize,
    /// Processes that wanted to run in the last minute, on average: before measuring and afterwards. On a machine that
    /// others use, what waits for a processor looks slow.
    pub(crate) load: [String; 2],
    pub(crate) seed: u64,
    pub(crate) rounds: usize,
    pub(crate) idle_ms: Option<u64>,
    pub(crate) command: Vec<String>,
}

/// When samples are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// One after the other.
    BackToBack,
    /// Each after some idle time.
    AfterIdle,
}

/// A row in one phase.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// Its name.
    pub(crate) row: String,
    /// What is done.
    pub(crate) meaning: &'static str,
    #[serde(skip)]
    pub(crate) group: Group,
    #[serde(skip)]
    pub(crate) kind: Kind,
    /// When.
    pub(crate) phase: Phase,
    /// Samples that count.
    pub(crate) n: usize,
    /// Runs that did not succeed; they are no samples.
    pub(crate) errors: usize,
    /// The first of them.
    pub(crate) first_error: Option<String>,
    /// Barriers that this host cannot put up; empty: every one stood in every sample.
    pub(crate) missing_barriers: Option<Vec<&'static str>>,
    /// The median.
    pub(crate) p50_us: Option<f64>,
    /// What one in a hundred exceeds.
    pub(crate) p99_us: Option<f64>,
    /// Median by the median of plain `posix_spawn` of the same command in the same phase.
    pub(crate) to_spawn: Option<f64>,
    /// The same by that of `bwrap`.
    pub(crate) to_bwrap: Option<f64>,
    /// Every sample, in the order taken.
    pub(crate) samples_us: Vec<f64>,
}

/// Runs per second.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Throughput {
    /// The row whose way was taken.
    pub(crate) row: String,
    /// How many at once.
    pub(crate) runners: usize,
    /// The median of the batches.
    pub(crate) per_second: f64,
    /// By that of `bwrap`.
    pub(crate) to_bwrap: Option<f64>,
    /// Each batch.
    pub(crate) batches: Vec<f64>,
}

/// What one parked sandbox holds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IdleSandbox {
    /// How many were parked to find out.
    pub(crate) parked: usize,
    /// Charged to their memory cgroup, kernel memory included, per sandbox; none without one.
    pub(crate) charged_bytes: Option<u64>,
    /// Their processes' share of memory, per sandbox; none where that is not shown to us.
    pub(crate) pss_bytes: Option<u64>,
}

/// A hundred sandboxes, all alive, each of which answered.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Hundred {
    /// How many.
    pub(crate) sandboxes: usize,
    /// From asking for the first to the answer of the last: the median of the tries.
    pub(crate) seconds: f64,
    /// Each try.
    pub(crate) tries: Vec<f64>,
}

/// What each live run of one image adds, with a hundred more of them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ImageRuns {
    /// How many more there were.
    pub(crate) runs: usize,
    /// Charged to their memory cgroup, kernel memory included; none without one.
    pub(crate) charged_bytes: Option<u64>,
    /// Their processes' share of memory; none where that is not shown to us.
    pub(crate) pss_bytes: Option<u64>,
    /// What the state folder takes more of the disk.
    pub(crate) disk_bytes: Option<u64>,
}

/// Runs by our container backend and by the bare API of the same engine, in pairs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pairs {
    /// Which engine.
    pub(crate) backend: &'static str,
    /// Pairs that count.
    pub(crate) n: usize,
    /// Pairs of which one did not succeed.
    pub(crate) errors: usize,
    /// The first of them.
    pub(crate) first_error: Option<String>,
    /// The median of ours.
    pub(crate) ours_p50_us: f64,
    /// That of create, start, wait and remove.
    pub(crate) bare_p50_us: f64,
    /// The median of the differences.
    pub(crate) difference_p50_us: f64,
    /// Each, in the order taken.
    pub(crate) differences_us: Vec<f64>,
}

/// Loading an image beside unpacking its layer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ImageLoad {
    /// `plain` or `gzip`.
    pub(crate) layer: &'static str,
    /// What its files hold.
    pub(crate) bytes: u64,
    /// How many they are.
    pub(crate) files: u64,
    /// The median of the loads, in seconds.
    pub(crate) load_s: f64,
    /// That of `tar -x`.
    pub(crate) tar_s: f64,
    /// The one by the other.
    pub(crate) to_tar: Option<f64>,
    /// The most memory that a load had.
    pub(crate) peak_bytes: u64,
    /// Each load.
    pub(crate) loads: Vec<f64>,
    /// Each `tar -x`.
    pub(crate) unpacks: Vec<f64>,
}

/// A number that the project wants, and the one that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Target {
    /// What it is about.
    pub(crate) name: String,
    /// `<= 3.00 x posix_spawn`
    pub(crate) target: String,
    /// `2.41`; none if it was not measured.
    pub(crate) measured: Option<String>,
    /// Whether it was met.
    pub(crate) met: Option<bool>,
}

/// What was not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NotRun {
    /// Its name.
    pub(crate) name: String,
    /// Why.
    pub(crate) reason: String,
}

impl Phase {
    /// For headings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::BackToBack => "back to back",
            Phase::AfterIdle => "after idle time",
        }
    }
}

impl Circumstances {
    pub(crate) fn of(options: &Options) -> Circumstances {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let command = options
            .command
            .clone()
            .unwrap_or_else(|| vec!["/bin/true".into()]);
        Circumstances {
            version: env!("CARGO_PKG_VERSION"),
            debug_build: cfg!(debug_assertions),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            load: [load(), String::new()],
            seed: options.seed,
            rounds: options.rounds,
            idle_ms: options.idle.map(|idle| idle.as_millis() as u64),
            command: command
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
        }
    }
}

/// The load of the last minute.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

impl Report {
    pub(crate) fn new(about: Circumstances) -> Report {
        Report {
            about,
            rows: Vec::new(),
            throughput: Vec::new(),
            idle_sandbox: None,
            hundred: None,
            image_runs: None,
            pairs: Vec::new(),
            image_loads: Vec::new(),
            targets: Vec::new(),
            not_run: Vec::new(),
        }
    }

    /// The median of a row.
    pub(crate) fn p50(&self, group: Group, kind: Kind, phase: Phase) -> Option<f64> {
        let wanted = |row: &&Measured| (row.group, row.kind, row.phase) == (group, kind, phase);
        self.rows.iter().find(wanted)?.p50_us
    }

    /// Fills in the ratios of the rows.
    pub(crate) fn compare(&mut self) {
        let bases: Vec<_> = self
            .rows
            .iter()
            .map(|row| [Kind::Spawn, Kind::Bwrap].map(|kind| self.p50(row.group, kind, row.phase)))
            .collect();
        for (row, [spawn, bwrap]) in self.rows.iter_mut().zip(bases) {
            let to = |base: Option<f64>| ratio(row.p50_us?, base?);
            (row.to_spawn, row.to_bwrap) = (to(spawn), to(bwrap));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::runs::statistics::{microseconds, percentile};
    use std::time::Duration;

    /// A report of two rows in both phases.
    pub(crate) fn example() -> Report {
        let about = Circumstances {
            version: "1",
            debug_build: false,
            kernel: "6.1".into(),
            processors: 2,
            load: ["0.5".into(), "1.5".into()],
            seed: 7,
            rounds: 3,
            idle_ms: Some(200),
            command: vec!["/bin/true".into()],
        };
        let row = |kind: Kind, phase, micros: [u64; 3]| {
            let samples = micros.map(Duration::from_micros);
            Measured {
                row: kind.name().into(),
                meaning: kind.meaning(),
                group: Group::Command,
                kind,
                phase,
                n: 3,
                errors: 0,
                first_error: None,
                missing_barriers: None,
                p50_us: percentile(&samples, 50).map(microseconds),
                p99_us: percentile(&samples, 99).map(microseconds),
                to_spawn: None,
                to_bwrap: None,
                samples_us: samples.map(microseconds).to_vec(),
            }
        };
        let mut report = Report::new(about);
        report.rows = vec![
            row(Kind::Spawn, Phase::BackToBack, [1000, 900, 5000]),
            row(Kind::Cold, Phase::BackToBack, [2500, 2400, 9000]),
            row(Kind::Spawn, Phase::AfterIdle, [2000, 2000, 2000]),
        ];
        report.compare();
        report
    }

    #[test]
    fn rows_are_compared_with_the_same_phase_only() {
        let report = example();
        let ratios: Vec<_> = report
            .rows
            .iter()
            .map(|row| (row.to_spawn, row.to_bwrap))
            .collect();
        assert_eq!(
            ratios,
            [(Some(1.0), None), (Some(2.5), None), (Some(1.0), None)]
        );
    }

    #[test]
    fn the_json_has_every_sample_in_the_order_taken() {
        let mut report = example();
        report.not_run.push(NotRun {
            name: "docker".into(),
            reason: "no daemon".into(),
        });
        let json = serde_json::to_value(&report).expect("a report is JSON");
        assert_eq!(
            json["rows"][1],
            serde_json::json!({
                "row": "library-cold", "meaning": Kind::Cold.meaning(), "phase": "back_to_back", "n": 3, "errors": 0,
                "first_error": null, "missing_barriers": null, "p50_us": 2500.0, "p99_us": 9000.0, "to_spawn": 2.5,
                "to_bwrap": null, "samples_us": [2500.0, 2400.0, 9000.0],
            })
        );
        assert_eq!(
            json["not_run"],
            serde_json::json!([{ "name": "docker", "reason": "no daemon" }])
        );
        assert_eq!(
            (&json["about"]["seed"], &json["about"]["idle_ms"]),
            (&7.into(), &200.into())
        );
    }
}
