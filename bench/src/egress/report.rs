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
    Throughput,
    TunnelCost,
    SharedThroughput,
    SetUp,
    SetUpP99,
    RequestCost,
    RequestRate,
    Idle,
    IdleTunnels,
}

/// What the project wants of ours.
#[derive(Clone, Copy, Debug)]
enum Goal {
    AtLeast(f64, &'static str),
    AtMost(f64, &'static str),
    /// Not of a ratio.
    Value(f64),
}

impl Metric {
    const ALL: [Metric; 9] = [
        Metric::Throughput,
        Metric::TunnelCost,
        Metric::SharedThroughput,
        Metric::SetUp,
        Metric::SetUpP99,
        Metric::RequestCost,
        Metric::RequestRate,
        Metric::Idle,
        Metric::IdleTunnels,
    ];

    fn title(self) -> &'static str {
        match self {
            Metric::Throughput => "tunnel MB/s, door apart",
            Metric::TunnelCost => "  CPU s/GB",
            Metric::SharedThroughput => "tunnel MB/s, sharing processors",
            Metric::SetUp => "set-up of a tunnel us, p50",
            Metric::SetUpP99 => "  p99",
            Metric::RequestCost => "CPU us/request, TLS both sides, c=8",
            Metric::RequestRate => "  requests/s",
            Metric::Idle => "PSS KiB after one tunnel",
            Metric::IdleTunnels => "PSS KiB with idle tunnels",
        }
    }

    /// Whether ours is held against the others'.
    fn has_ratio(self) -> bool {
        match self {
            Metric::Throughput | Metric::TunnelCost | Metric::SharedThroughput => true,
            Metric::SetUp | Metric::RequestCost => true,
            Metric::SetUpP99 | Metric::RequestRate | Metric::Idle | Metric::IdleTunnels => false,
        }
    }

    fn wanted(self) -> &'static [Goal] {
        match self {
            Metric::Throughput | Metric::SharedThroughput => {
                &[Goal::AtLeast(0.8, "direct"), Goal::AtLeast(0.8, "relay")]
            }
            Metric::SetUp => &[Goal::AtMost(1.5, "tinyproxy")],
            Metric::RequestCost => &[Goal::AtMost(0.25, "mitmproxy")],
            Metric::IdleTunnels => &[Goal::Value(32.0 * 1024.0)],
            Metric::TunnelCost | Metric::SetUpP99 | Metric::RequestRate | Metric::Idle => &[],
        }
    }
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
            (!rounds.is_empty() || failed.is_some()).then(|| {
                json!({
                    "way": way,
                    "metric": metric,
                    "rounds": rounds,
                    "median": samples.median(way, metric),
                    "spread": samples.spread(way, metric),
                    "ours_to_this": samples.ratio("ours", way, metric),
                    "failed": failed,
                })
            })
        };
        let rows = self
            .ways
            .iter()
            .flat_map(|(way, _)| Metric::ALL.map(|metric| row(way, metric)));
        let rows: Vec<_> = rows.flatten().collect();
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

    fn line(&self, metric: Metric, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:<37}", metric.title())?;
        for (way, _) in &self.ways {
            let number = self
                .samples
                .median(way, metric)
                .map_or("-".to_owned(), number);
            let spread = self
                .samples
                .spread(way, metric)
                .filter(|_| self.samples.of(way, metric).len() > 1);
            let spread = spread.map_or(String::new(), |spread| format!("±{:.0}%", spread * 50.0));
            write!(f, "{number:>9}{spread:>6}")?;
        }
        writeln!(f)
    }

    /// What ours is to the others, and what it should be.
    fn verdicts(&self, metric: Metric, f: &mut Formatter<'_>) -> fmt::Result {
        let others = self
            .ways
            .iter()
            .filter(|(way, _)| *way != "ours" && metric.has_ratio());
        for (way, _) in others {
            let Some(ratio) = self.samples.ratio("ours", way, metric) else {
                continue;
            };
            write!(
                f,
                "{:<37}ours / {way:<10}{ratio:>7.2}",
                metric.title().trim()
            )?;
            for wanted in metric.wanted() {
                match wanted {
                    Goal::AtLeast(least, to) if to == way => {
                        verdict(f, ">=", *least, ratio >= *least)?
                    }
                    Goal::AtMost(most, to) if to == way => verdict(f, "<=", *most, ratio <= *most)?,
                    Goal::AtLeast(..) | Goal::AtMost(..) | Goal::Value(_) => {}
                }
            }
            writeln!(f)?;
        }
        for wanted in metric.wanted() {
            if let (Goal::Value(most), Some(value)) = (wanted, self.samples.median("ours", metric))
            {
                write!(
                    f,
                    "{:<37}ours             {value:>8.0}",
                    metric.title().trim()
                )?;
                verdict(f, "<=", *most, value <= *most)?;
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

fn verdict(f: &mut Formatter<'_>, sign: &str, wanted: f64, met: bool) -> fmt::Result {
    write!(
        f,
        "  wanted {sign} {wanted}: {}",
        if met { "met" } else { "MISSED" }
    )
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
        for (name, duties) in &self.ways {
            writeln!(f, "{name}: {duties}")?;
        }
        write!(f, "\n{:<37}", "median of rounds ± half their spread")?;
        self.ways
            .iter()
            .try_for_each(|(name, _)| write!(f, "{name:>9}      "))?;
        writeln!(f)?;
        Metric::ALL
            .iter()
            .try_for_each(|metric| self.line(*metric, f))?;
        writeln!(f)?;
        Metric::ALL
            .iter()
            .try_for_each(|metric| self.verdicts(*metric, f))?;
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
    fn a_ratio_is_of_rounds_and_held_against_what_is_wanted() {
        let mut samples = Samples::default();
        // The machine was half as fast in the second round, for both.
        for (direct, ours) in [(100.0, 90.0), (50.0, 45.0), (100.0, 91.0)] {
            samples.add("direct", Metric::Throughput, direct);
            samples.add("ours", Metric::Throughput, ours);
        }
        samples.add("ours", Metric::IdleTunnels, 40_000.0);
        assert_eq!(
            samples.ratio("ours", "direct", Metric::Throughput),
            Some(0.9)
        );
        assert_eq!(samples.ratio("ours", "relay", Metric::Throughput), None);
        let ways = vec![("direct", "none"), ("ours", "all")];
        let text = Report {
            about: Vec::new(),
            ways,
            missing: Vec::new(),
            samples,
        }
        .to_string();
        assert!(text.contains("0.90  wanted >= 0.8: met"), "{text}");
        assert!(text.contains("40000  wanted <= 32768: MISSED"), "{text}");
    }
}
