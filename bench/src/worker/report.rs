//! Samples become medians, ratios and remarks: a table for people, JSON for programs. Nothing here decides a test.

use crate::peers::Samples;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

pub(crate) const ENGINE: &str = "engine";
pub(crate) const ALONE: &str = "alone";
pub(crate) const BWRAP: &str = "bwrap";
pub(crate) const BROKER: &str = "broker";

/// Each way, and what it is.
const WAYS: [(&str, &str); 4] = [
    (
        ENGINE,
        "a function of Python in a fresh sandbox of its own, its result read and checked; no broker",
    ),
    (ALONE, "the same with no sandbox made ahead"),
    (
        BWRAP,
        "python3 -c of the same function with the same imports under bubblewrap; its output read",
    ),
    (
        BROKER,
        "`airlock worker sam` and a client of its own, both on a mosquitto on the loopback",
    ),
];

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    Cold,
    Warm,
    WarmP99,
    Many,
    Unanswered,
    Twice,
    Growth,
    Idle,
}

/// What the project wants at most, if anything; with a way, so many times what that has.
type Goal = Option<(f64, Option<&'static str>)>;

/// Each line: its title, and what is wanted of it.
const LINES: [(Metric, &str, Goal); 8] = [
    (Metric::Cold, "cold call ms, p50", Some((1.2, Some(BWRAP)))),
    (
        Metric::Warm,
        "warm call ms, broker to broker, p50",
        Some((5.0, None)),
    ),
    (Metric::WarmP99, "  p99", None),
    (Metric::Many, "calls/s, many at once for 4 slots", None),
    (Metric::Unanswered, "  not answered", Some((0.0, None))),
    (Metric::Twice, "  answered twice", Some((0.0, None))),
    (Metric::Growth, "  MiB on top meanwhile", Some((8.0, None))),
    (
        Metric::Idle,
        "idle worker: PSS MiB of the tree",
        Some((30.0, None)),
    ),
];

/// All that was measured.
pub(crate) struct Report {
    pub(crate) about: Vec<(&'static str, String)>,
    pub(crate) samples: Samples<Metric>,
}

impl Report {
    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let about: BTreeMap<_, _> = self.about.iter().cloned().collect();
        let cells = LINES
            .iter()
            .flat_map(|line| WAYS.map(|(way, _)| (way, line)));
        let rows = cells
            .filter(|(way, line)| !self.samples.of(way, line.0).is_empty())
            .map(|(way, line)| {
                json!({
                    "way": way,
                    "metric": line.0,
                    "rounds": self.samples.of(way, line.0),
                    "median": self.samples.median(way, line.0),
                    "spread": self.samples.spread(way, line.0),
                    "met": self.verdict(way, line.0, line.2).map(|(_, met)| met),
                })
            });
        let ways: Vec<_> = WAYS
            .iter()
            .map(|(name, what)| json!({ "name": name, "what": what }))
            .collect();
        json!({ "about": about, "ways": ways, "rows": rows.collect::<Vec<_>>() })
    }

    /// What a way is to what is wanted, in words, and whether it is that.
    fn verdict(&self, way: &'static str, metric: Metric, wanted: Goal) -> Option<(String, bool)> {
        match wanted? {
            (_, Some(to)) if to == way => None,
            (most, Some(to)) => {
                let ratio = self.samples.ratio(way, to, metric)?;
                Some((
                    format!("{way} / {to} {ratio:.2}  wanted <= {most}"),
                    ratio <= most,
                ))
            }
            (most, None) => {
                // Of the rounds the middle one; of counts and memory the worst: a failure in one round is not undone by the
                // others.
                let value = match metric {
                    Metric::Warm => self.samples.median(way, metric)?,
                    _ => self
                        .samples
                        .of(way, metric)
                        .iter()
                        .copied()
                        .reduce(f64::max)?,
                };
                Some((format!("{way} {value:.2}  wanted <= {most}"), value <= most))
            }
        }
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
            .try_for_each(|(name, _)| write!(f, "{name:>10}      "))?;
        writeln!(f)?;
        for (metric, title, _) in LINES {
            write!(f, "{title:<37}")?;
            for (way, _) in WAYS {
                let number = self
                    .samples
                    .median(way, metric)
                    .map_or("-".to_owned(), |value| format!("{value:.2}"));
                let spread = self
                    .samples
                    .spread(way, metric)
                    .filter(|spread| spread.is_finite());
                let spread =
                    spread.map_or(String::new(), |spread| format!("±{:.0}%", spread * 50.0));
                write!(f, "{number:>10}{spread:>6}")?;
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        for ((metric, title, wanted), (way, _)) in
            LINES.iter().flat_map(|line| WAYS.map(|way| (*line, way)))
        {
            if let Some((words, met)) = self.verdict(way, metric, wanted) {
                let met = if met { "met" } else { "MISSED" };
                writeln!(f, "{:<37}{words}: {met}", title.trim())?;
            }
        }
        Ok(())
    }
}
