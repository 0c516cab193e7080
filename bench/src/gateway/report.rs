//! Samples become medians, ratios and remarks: a table for people, JSON for programs. Nothing here decides a test.

use crate::peers::Samples;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

pub(crate) const OURS: &str = "ours";
pub(crate) const ARTIFACTS: &str = "artifacts";
pub(crate) const LIBRARY: &str = "library";
pub(crate) const NGINX: &str = "nginx";
pub(crate) const SQLITE: &str = "sqlite";

/// Each way, and what it is.
const WAYS: [(&str, &str); 5] = [
    (
        OURS,
        "`airlock serve`: a key is checked, every run is in the database before it starts; files of a session",
    ),
    (
        ARTIFACTS,
        "`airlock serve`: files as artifacts, hashed and kept as versions",
    ),
    (
        LIBRARY,
        "the engine in a process of its own, with the same pool",
    ),
    (
        NGINX,
        "PUT by its dav module into a folder, GET by sendfile; no key, no hash",
    ),
    (
        SQLITE,
        "the rows alone, one after the other, each on the disk before the next",
    ),
];

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    Run,
    RunP99,
    Rate,
    Failures,
    IdlePss,
    IdleMachine,
    Upload,
    UploadPeak,
    Download,
    DownloadPeak,
    FirstReady,
    Ready,
    Submit,
    QueueMemory,
    PickUp,
    PickUpFull,
    Neighbour,
    BesideUploads,
    BesideArtifacts,
    BesideOutput,
    BesideConnections,
    BesideMembers,
    AuditShare,
    AuditShareCall,
}

/// What the project wants.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// So many times what this way has, or more.
    AtLeast(f64, &'static str),
    /// So many times what this way has and so much on top, or less.
    AtMost(f64, &'static str, f64),
    /// Not of a ratio.
    Value(f64),
    /// The same, and no less.
    Least(f64),
}

impl Metric {
    const ALL: [Metric; 24] = [
        Metric::Run,
        Metric::RunP99,
        Metric::Rate,
        Metric::Failures,
        Metric::IdlePss,
        Metric::IdleMachine,
        Metric::Upload,
        Metric::UploadPeak,
        Metric::Download,
        Metric::DownloadPeak,
        Metric::FirstReady,
        Metric::Ready,
        Metric::Submit,
        Metric::QueueMemory,
        Metric::PickUp,
        Metric::PickUpFull,
        Metric::Neighbour,
        Metric::BesideUploads,
        Metric::BesideArtifacts,
        Metric::BesideOutput,
        Metric::BesideConnections,
        Metric::BesideMembers,
        Metric::AuditShare,
        Metric::AuditShareCall,
    ];

    fn title(self) -> &'static str {
        match self {
            Metric::Run => "run of /bin/true ms, one client, p50",
            Metric::RunP99 => "  p99",
            Metric::Rate => "runs/s, many clients",
            Metric::Failures => "  failures",
            Metric::IdlePss => "idle sessions: PSS MiB of the tree",
            Metric::IdleMachine => "  MiB that the machine has less",
            Metric::Upload => "upload MB/s",
            Metric::UploadPeak => "  memory on top, MiB",
            Metric::Download => "download MB/s",
            Metric::DownloadPeak => "  memory on top, MiB",
            Metric::FirstReady => "start to ready ms, new state",
            Metric::Ready => "start to ready ms",
            Metric::Submit => "durable jobs/s, many clients",
            Metric::QueueMemory => "  MiB on top while all wait",
            Metric::PickUp => "job waits ms, empty queue, p50",
            Metric::PickUpFull => "  with all that wait",
            Metric::Neighbour => "beside a noisy tenant, slot times",
            Metric::BesideUploads => "p99 beside uploads, to quiet",
            Metric::BesideArtifacts => "  beside lists of artifacts",
            Metric::BesideOutput => "  beside large output",
            Metric::BesideConnections => "  beside kept connections",
            Metric::BesideMembers => "  beside bodies of many members",
            Metric::AuditShare => "audit and ledger, % of a run's CPU",
            Metric::AuditShareCall => "  with a model call",
        }
    }

    fn wanted(self) -> Option<Goal> {
        match self {
            Metric::Run => Some(Goal::AtMost(1.5, LIBRARY, 0.5)),
            Metric::Rate => Some(Goal::AtLeast(0.8, LIBRARY)),
            Metric::Failures => Some(Goal::Value(0.0)),
            Metric::IdlePss | Metric::IdleMachine => Some(Goal::Value(1024.0)),
            Metric::Upload | Metric::Download => Some(Goal::AtLeast(0.5, NGINX)),
            Metric::UploadPeak | Metric::DownloadPeak => Some(Goal::Value(32.0)),
            Metric::FirstReady | Metric::Ready => Some(Goal::Value(300.0)),
            Metric::Submit => Some(Goal::Least(1000.0)),
            Metric::QueueMemory => Some(Goal::Value(16.0)),
            Metric::PickUp | Metric::PickUpFull | Metric::AuditShare | Metric::AuditShareCall => {
                Some(Goal::Value(5.0))
            }
            Metric::Neighbour => Some(Goal::Value(1.0)),
            Metric::BesideUploads
            | Metric::BesideArtifacts
            | Metric::BesideOutput
            | Metric::BesideConnections
            | Metric::BesideMembers => Some(Goal::Value(3.0)),
            Metric::RunP99 => None,
        }
    }
}

/// Everything that is told.
pub(crate) struct Report {
    /// Of the machine and the method.
    pub(crate) about: Vec<(&'static str, String)>,
    /// Ways that did not run, and why.
    pub(crate) missing: Vec<(&'static str, String)>,
    pub(crate) samples: Samples<Metric>,
}

impl Report {
    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let samples = &self.samples;
        let about: BTreeMap<_, _> = self
            .about
            .iter()
            .map(|(name, value)| (*name, value))
            .collect();
        let row = |way: &'static str, metric: Metric| {
            let rounds = samples.of(way, metric);
            let failed = samples.failed(way, metric);
            let against = match metric.wanted() {
                Some(Goal::AtLeast(_, to) | Goal::AtMost(_, to, _)) => {
                    samples.ratio(way, to, metric)
                }
                Some(Goal::Value(_) | Goal::Least(_)) | None => None,
            };
            (!rounds.is_empty() || failed.is_some()).then(|| {
                json!({
                    "way": way,
                    "metric": metric,
                    "rounds": rounds,
                    "median": samples.median(way, metric),
                    "spread": samples.spread(way, metric),
                    "to_the_peer": against,
                    "met": self.verdict(way, metric).map(|(_, met)| met),
                    "failed": failed,
                })
            })
        };
        let rows = WAYS
            .iter()
            .flat_map(|(way, _)| Metric::ALL.map(|metric| row(way, metric)));
        let rows: Vec<_> = rows.flatten().collect();
        let ways: Vec<_> = WAYS
            .iter()
            .map(|(name, what)| json!({ "name": name, "what": what }))
            .collect();
        let missing: Vec<_> = self
            .missing
            .iter()
            .map(|(name, why)| json!({ "name": name, "why": why }))
            .collect();
        json!({ "about": about, "ways": ways, "rows": rows, "not_run": missing })
    }

    /// What one of our ways is to what is wanted, in words, and whether it is that.
    fn verdict(&self, way: &'static str, metric: Metric) -> Option<(String, bool)> {
        if ![OURS, ARTIFACTS].contains(&way) {
            return None;
        }
        let samples = &self.samples;
        match metric.wanted()? {
            Goal::AtLeast(least, to) => {
                let ratio = samples.ratio(way, to, metric)?;
                Some((
                    format!("{way} / {to} {ratio:.2}  wanted >= {least}"),
                    ratio >= least,
                ))
            }
            Goal::AtMost(factor, to, more) => {
                let (own, ratio) = (
                    samples.median(way, metric)?,
                    samples.ratio(way, to, metric)?,
                );
                let most = factor * samples.median(to, metric)? + more;
                let words = format!(
                    "{way} / {to} {ratio:.2}; {own:.2}  wanted <= {most:.2} ({factor} x {to} + {more})"
                );
                Some((words, own <= most))
            }
            Goal::Value(most) => {
                // The worst: a failure in one round is not undone by the others.
                let worst = samples.of(way, metric).iter().copied().reduce(f64::max)?;
                Some((
                    format!("{way}, worst round {worst:.1}  wanted <= {most}"),
                    worst <= most,
                ))
            }
            Goal::Least(least) => {
                let worst = samples.of(way, metric).iter().copied().reduce(f64::min)?;
                Some((
                    format!("{way}, worst round {worst:.0}  wanted >= {least}"),
                    worst >= least,
                ))
            }
        }
    }

    fn line(&self, metric: Metric, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:<37}", metric.title())?;
        for (way, _) in WAYS {
            let number = self
                .samples
                .median(way, metric)
                .map_or("-".to_owned(), number);
            let spread = self
                .samples
                .spread(way, metric)
                .filter(|_| self.samples.of(way, metric).len() > 1);
            let spread = spread.filter(|spread| spread.is_finite());
            let spread = spread.map_or(String::new(), |spread| format!("±{:.0}%", spread * 50.0));
            write!(f, "{number:>9}{spread:>6}")?;
        }
        writeln!(f)
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.about {
            writeln!(f, "{name}: {value}")?;
        }
        writeln!(f)?;
        WAYS.iter()
            .try_for_each(|(name, what)| writeln!(f, "{name}: {what}"))?;
        write!(f, "\n{:<37}", "median of rounds ± half their spread")?;
        WAYS.iter()
            .try_for_each(|(name, _)| write!(f, "{name:>9}      "))?;
        writeln!(f)?;
        Metric::ALL
            .iter()
            .try_for_each(|metric| self.line(*metric, f))?;
        writeln!(f)?;
        for (metric, (way, _)) in Metric::ALL
            .iter()
            .flat_map(|metric| WAYS.map(|way| (*metric, way)))
        {
            if let Some((words, met)) = self.verdict(way, metric) {
                let met = if met { "met" } else { "MISSED" };
                writeln!(f, "{:<37}{words}: {met}", metric.title().trim())?;
            }
        }
        for (way, metric, count, why) in self.samples.failures() {
            writeln!(
                f,
                "! {way}, {}: failed {count} times, first: {}",
                metric.title().trim(),
                why.trim()
            )?;
        }
        self.missing
            .iter()
            .try_for_each(|(name, why)| writeln!(f, "NOT RUN {name}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_held_against_the_peer_of_the_same_run() {
        let mut samples = Samples::default();
        // The machine was half as fast in the second round, for both.
        for (library, ours) in [(2.0, 3.0), (4.0, 6.0), (2.0, 3.0)] {
            samples.add(LIBRARY, Metric::Run, library);
            samples.add(OURS, Metric::Run, ours);
        }
        samples.add(NGINX, Metric::Upload, 1000.0);
        samples.add(OURS, Metric::Upload, 499.0);
        samples.add(ARTIFACTS, Metric::Upload, 501.0);
        samples.add(OURS, Metric::Failures, 0.0);
        samples.add(OURS, Metric::Failures, 1.0);
        let report = Report {
            about: Vec::new(),
            missing: Vec::new(),
            samples,
        };
        let text = report.to_string();
        for line in [
            "ours / library 1.50; 3.00  wanted <= 3.50 (1.5 x library + 0.5): met",
            "ours / nginx 0.50  wanted >= 0.5: MISSED",
            "artifacts / nginx 0.50  wanted >= 0.5: met",
            "ours, worst round 1.0  wanted <= 0: MISSED",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let told = report.json();
        let rows = told["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["way"] == ARTIFACTS).unwrap();
        assert_eq!(
            (&row["metric"], &row["met"]),
            (&json!("upload"), &json!(true))
        );
    }
}
