//! Samples become medians, ratios and remarks: a table for people, JSON for programs. Nothing here decides a test.

use crate::peers::Samples;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    Unary,
    UnaryRate,
    Large,
    Stream,
    StreamRate,
    Paced,
    AddedUnary,
    AddedUnaryP99,
    AddedFirst,
    AddedFirstP99,
    FrameDelay,
    FrameDelayP99,
    FrameDelayWorst,
    LostFrames,
    IdleMemory,
    LoadedMemory,
    StreamMemory,
}

/// The most that rounds may differ, in parts of their median.
const LARGEST_SPREAD: f64 = 0.05;
/// A way so near to what provider and load can do alone measures these.
const NEAR_THE_CEILING: f64 = 0.8;

impl Metric {
    const ALL: [Metric; 17] = [
        Metric::Unary,
        Metric::UnaryRate,
        Metric::Large,
        Metric::Stream,
        Metric::StreamRate,
        Metric::Paced,
        Metric::AddedUnary,
        Metric::AddedUnaryP99,
        Metric::AddedFirst,
        Metric::AddedFirstP99,
        Metric::FrameDelay,
        Metric::FrameDelayP99,
        Metric::FrameDelayWorst,
        Metric::LostFrames,
        Metric::IdleMemory,
        Metric::LoadedMemory,
        Metric::StreamMemory,
    ];

    fn title(self) -> &'static str {
        match self {
            Metric::Unary => "CPU us/call, unary, c=32",
            Metric::UnaryRate => "  calls/s",
            Metric::Large => "CPU us/call, 200 KB in, 64 KB out, c=8",
            Metric::Stream => "CPU us/stream, 64 frames, c=8",
            Metric::StreamRate => "  streams/s",
            Metric::Paced => "CPU us/stream, 20 ms apart, c=256",
            Metric::AddedUnary => "added us, unary, c=1, p50",
            Metric::AddedUnaryP99 => "  p99",
            Metric::AddedFirst => "added us to first token, c=1, p50",
            Metric::AddedFirstP99 => "  p99",
            Metric::FrameDelay => "frame under way us, c=8 paced, p50",
            Metric::FrameDelayP99 => "  p99",
            Metric::FrameDelayWorst => "  worst",
            Metric::LostFrames => "  lost",
            Metric::IdleMemory => "PSS KiB after one call",
            Metric::LoadedMemory => "PSS KiB after all load",
            Metric::StreamMemory => "PSS KiB per open stream, 1000 open",
        }
    }

    /// Whether rounds must agree for it to count.
    fn is_primary(self) -> bool {
        matches!(
            self,
            Metric::Unary | Metric::Large | Metric::Stream | Metric::Paced
        )
    }

    fn has_ratio(self) -> bool {
        self.is_primary() || matches!(self, Metric::AddedUnary | Metric::AddedFirst)
    }

    /// What the project wants of ours: times nginx, or KiB.
    fn target(self) -> Option<(f64, &'static str)> {
        match self {
            Metric::Unary => Some((1.4, "x nginx")),
            Metric::Stream => Some((1.3, "x nginx")),
            Metric::AddedFirst => Some((1.5, "x nginx")),
            Metric::IdleMemory => Some((12.0 * 1024.0, "KiB")),
            Metric::StreamMemory => Some((32.0, "KiB")),
            _ => None,
        }
    }
}

/// Why a number does not count.
fn void(samples: &Samples<Metric>, way: &'static str, metric: Metric) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some((count, why)) = samples.failed(way, metric) {
        reasons.push(format!("failed {count} times, first: {why}"));
    }
    let spread = samples
        .spread(way, metric)
        .filter(|spread| metric.is_primary() && *spread > LARGEST_SPREAD);
    if let Some(spread) = spread {
        reasons.push(format!("rounds differ by {:.0} %", spread * 100.0));
    }
    let is_rate = matches!(metric, Metric::UnaryRate | Metric::StreamRate) && way != "direct";
    let part = samples
        .ratio(way, "direct", metric)
        .filter(|part| is_rate && *part > NEAR_THE_CEILING);
    if let Some(part) = part {
        let part = part * 100.0;
        reasons.push(format!(
            "{part:.0} % of what provider and load do alone: it shows these"
        ));
    }
    reasons
}

/// Everything that is told.
pub(crate) struct Report {
    /// Of the machine and the method.
    pub(crate) about: Vec<(&'static str, String)>,
    /// Name and duties of each way.
    pub(crate) ways: Vec<(&'static str, &'static str)>,
    /// Those that did not run, and why.
    pub(crate) missing: Vec<(&'static str, String)>,
    pub(crate) samples: Samples<Metric>,
}

impl Report {
    fn has(&self, name: &str) -> bool {
        self.ways.iter().any(|(way, _)| *way == name)
    }

    /// The same for programs.
    pub(crate) fn json(&self) -> Value {
        let about: BTreeMap<_, _> = self
            .about
            .iter()
            .map(|(name, value)| (*name, value))
            .collect();
        let rows = self
            .ways
            .iter()
            .flat_map(|(way, _)| Metric::ALL.map(|metric| (*way, metric)));
        let rows = rows.filter(|(way, metric)| {
            !self.samples.of(way, *metric).is_empty() || self.samples.failed(way, *metric).is_some()
        });
        let rows: Vec<_> = rows
            .map(|(way, metric)| self.json_row(way, metric))
            .collect();
        let ways: Vec<_> = self
            .ways
            .iter()
            .map(|(name, duties)| json!({ "name": name, "duties": duties }))
            .collect();
        let missing: Vec<_> = self
            .missing
            .iter()
            .map(|(name, why)| json!({ "name": name, "why": why }))
            .collect();
        json!({ "about": about, "ways": ways, "rows": rows, "not_run": missing })
    }

    fn json_row(&self, way: &'static str, metric: Metric) -> Value {
        let samples = &self.samples;
        let ratio = |to| {
            samples
                .ratio(way, to, metric)
                .filter(|_| metric.has_ratio())
        };
        json!({
            "way": way,
            "metric": metric,
            "rounds": samples.of(way, metric),
            "median": samples.median(way, metric),
            "spread": samples.spread(way, metric),
            "to_nginx": ratio("nginx"),
            "to_nginx_log": ratio("nginx-log"),
            "void": void(samples, way, metric),
        })
    }

    fn line(&self, metric: Metric, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:<40}", metric.title())?;
        for (way, _) in &self.ways {
            let number = self
                .samples
                .median(way, metric)
                .map_or("-".to_owned(), number);
            let mark = if void(&self.samples, way, metric).is_empty() {
                ' '
            } else {
                '!'
            };
            write!(f, "{number:>11}{mark}")?;
        }
        let ratio = |to| {
            self.samples
                .ratio("ours", to, metric)
                .filter(|_| metric.has_ratio())
        };
        for to in ["nginx", "nginx-log"]
            .into_iter()
            .filter(|_| self.has("ours"))
        {
            write!(
                f,
                "{:>9}",
                ratio(to).map_or(String::new(), |ratio| format!("{ratio:.2}"))
            )?;
        }
        if let Some((most, unit)) = metric.target() {
            write!(f, "  <= {most} {unit}")?;
        }
        writeln!(f)
    }
}

fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.about {
            writeln!(f, "{name}: {value}")?;
        }
        writeln!(f)?;
        for (name, duties) in &self.ways {
            writeln!(f, "{name}: {duties}")?;
        }
        write!(f, "\n{:<40}", "median of rounds; ! see below")?;
        self.ways
            .iter()
            .try_for_each(|(name, _)| write!(f, "{name:>11} "))?;
        if self.has("ours") {
            write!(f, "{:>9}{:>9}  wanted", "/nginx", "/ng-log")?;
        }
        writeln!(f)?;
        Metric::ALL
            .iter()
            .try_for_each(|metric| self.line(*metric, f))?;
        for (way, _) in &self.ways {
            for metric in Metric::ALL {
                for reason in void(&self.samples, way, metric) {
                    writeln!(f, "! {way}, {}: {reason}", metric.title().trim())?;
                }
            }
        }
        self.missing
            .iter()
            .try_for_each(|(name, why)| writeln!(f, "NOT RUN {name}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(ours: &[f64], nginx: &[f64]) -> Samples<Metric> {
        let mut samples = Samples::default();
        ours.iter()
            .for_each(|value| samples.add("ours", Metric::Unary, *value));
        nginx
            .iter()
            .for_each(|value| samples.add("nginx", Metric::Unary, *value));
        samples
    }

    #[test]
    fn rounds_that_differ_and_rounds_that_failed_do_not_count() {
        let mut samples = samples(&[40.0, 41.0], &[40.0, 60.0]);
        assert!(void(&samples, "ours", Metric::Unary).is_empty());
        assert_eq!(
            void(&samples, "nginx", Metric::Unary),
            ["rounds differ by 40 %"]
        );
        samples.fail("ours", Metric::Unary, "gone");
        assert_eq!(
            void(&samples, "ours", Metric::Unary),
            ["failed 1 times, first: gone"]
        );
        assert_eq!(samples.ratio("ours", "nginx", Metric::Large), None);
    }

    #[test]
    fn a_way_as_fast_as_the_provider_shows_the_provider() {
        let mut samples = samples(&[40.0], &[40.0]);
        for (way, rate) in [("direct", 100.0), ("ours", 90.0), ("nginx", 70.0)] {
            samples.add(way, Metric::UnaryRate, rate);
        }
        assert!(void(&samples, "ours", Metric::UnaryRate)[0].starts_with("90 % of"));
        assert!(void(&samples, "nginx", Metric::UnaryRate).is_empty());
        assert!(
            void(&samples, "ours", Metric::Unary).is_empty(),
            "its CPU time is its own all the same"
        );
    }
}
