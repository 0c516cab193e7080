//! The plot, written by hand: for each phase a strip of samples per row on a logarithmic axis, with a bar at the
//! median and a tick at p99. Follows the reader's light or dark colours.

use crate::runs::report::{Measured, Phase, Report};
use std::fmt::Write;

/// Left of the plot: names. Right of it: numbers.
const NAMES: f64 = 210.0;
const PLOT: f64 = 560.0;
const NUMBERS: f64 = 190.0;
const LINE: f64 = 22.0;
const HEAD: f64 = 54.0;
/// Between phases: a title and the axis.
const GAP: f64 = 64.0;
/// Dots of one row; more would only be darker.
const MOST_DOTS: usize = 250;
const LAYERS: usize = 5;

/// Plain colours and no variables: not every viewer knows those.
const STYLE: &str = "\
text { fill: #1f2328; font: 12px system-ui, 'DejaVu Sans', sans-serif } .title { font-size: 15px; font-weight: 600 }
.paper { fill: #ffffff } .faint { fill: #656d76 } .grid { stroke: #d0d7de } .right { text-anchor: end } .middle { text-anchor: middle }
.ours { fill: #0969da; stroke: #0969da } .base { fill: #57606a; stroke: #57606a } .peer { fill: #bc4c00; stroke: #bc4c00 }
.dots { fill: none; stroke-width: 3.6; stroke-linecap: round; stroke-opacity: .25 } .p50 { stroke-width: 4 } .p99 { stroke-width: 1.5 } .span { stroke-opacity: .5 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .paper { fill: #0d1117 } .faint { fill: #8b949e } .grid { stroke: #30363d }
.ours { fill: #58a6ff; stroke: #58a6ff } .base { fill: #b1bac4; stroke: #b1bac4 } .peer { fill: #f0883e; stroke: #f0883e }
}
";

/// Where values lie on the axis, in microseconds.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// From the power of ten below the smallest to the one above the largest.
    fn of(rows: &[&Measured]) -> Option<Axis> {
        let samples = || {
            rows.iter()
                .flat_map(|row| row.samples_us.iter().copied())
                .filter(|us| *us > 0.0)
        };
        let (low, high) = (samples().reduce(f64::min)?, samples().reduce(f64::max)?);
        let (low, high) = (
            10f64.powf(low.log10().floor()),
            10f64.powf(high.log10().ceil()),
        );
        Some(Axis {
            low,
            high: if high > low { high } else { low * 10.0 },
        })
    }

    fn x(&self, microseconds: f64) -> f64 {
        let share =
            (microseconds.max(self.low) / self.low).log10() / (self.high / self.low).log10();
        NAMES + share * PLOT
    }

    /// The powers of ten on it.
    fn decades(&self) -> Vec<f64> {
        let count = (self.high / self.low).log10().round() as i32;
        (0..=count)
            .map(|power| self.low * 10f64.powi(power))
            .collect()
    }
}

impl Report {
    /// The plot as an SVG document.
    pub(crate) fn svg(&self) -> String {
        let phases: Vec<_> = [Phase::BackToBack, Phase::AfterIdle]
            .into_iter()
            .map(|phase| {
                let rows = self
                    .rows
                    .iter()
                    .filter(|row| row.phase == phase && row.n > 0);
                (phase, rows.collect::<Vec<_>>())
            })
            .filter(|(_, rows)| !rows.is_empty())
            .collect();
        let width = NAMES + PLOT + NUMBERS;
        let lines: f64 = phases
            .iter()
            .map(|(_, rows)| rows.len() as f64 * LINE + GAP)
            .sum();
        let height = HEAD + lines + 10.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\">\n<title>What a sandboxed run costs</title>\n<style>\n{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n"
        );
        svg += &label(
            16.0,
            26.0,
            "title",
            "What a run costs: no sandbox (grey), ours (blue), peers (orange)",
        );
        svg += &label(16.0, 44.0, "faint", &self.subtitle());
        let mut top = HEAD;
        for (phase, rows) in &phases {
            svg += &self.panel(top, *phase, rows);
            top += rows.len() as f64 * LINE + GAP;
        }
        svg + "</svg>\n"
    }

    fn subtitle(&self) -> String {
        let about = &self.about;
        format!(
            "{} · Linux {} · {} processors · load {} · seed {} · bar: p50, thin tick: p99, dots: samples{}",
            about.command.join(" "),
            about.kernel,
            about.processors,
            about.load.join(" to "),
            about.seed,
            if about.debug_build {
                " · DEBUG BUILD"
            } else {
                ""
            }
        )
    }

    fn panel(&self, top: f64, phase: Phase, rows: &[&Measured]) -> String {
        let Some(axis) = Axis::of(rows) else {
            return String::new();
        };
        let bottom = top + 30.0 + rows.len() as f64 * LINE;
        let title = match (phase, self.about.idle_ms) {
            (Phase::AfterIdle, Some(ms)) => format!("after {ms} ms idle"),
            (Phase::AfterIdle, None) | (Phase::BackToBack, _) => phase.name().to_owned(),
        };
        let mut panel = label(16.0, top + 22.0, "title", &title);
        panel += &label(
            NAMES + PLOT + 12.0,
            top + 22.0,
            "faint",
            "p50 · x spawn · x bwrap",
        );
        for decade in axis.decades() {
            let x = axis.x(decade);
            _ = writeln!(
                panel,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>",
                top + 28.0
            );
            panel += &label(x, bottom + 16.0, "faint middle", &shown(decade));
        }
        for (number, row) in rows.iter().enumerate() {
            panel += &strip(&axis, top + 30.0 + (number as f64 + 0.5) * LINE, row);
        }
        panel
    }
}

/// One row: its name, its dots, its bars, its numbers.
fn strip(axis: &Axis, y: f64, row: &Measured) -> String {
    let (Some(p50), Some(p99)) = (row.p50_us, row.p99_us) else {
        return String::new();
    };
    let class = match row.kind {
        kind if kind.is_ours() => "ours",
        kind if kind.is_base() => "base",
        _ => "peer",
    };
    let mut strip = label(NAMES - 12.0, y + 4.0, "right", &row.row);
    _ = writeln!(strip, "<g class=\"{class}\">");
    strip += &dots(axis, y, &thinned(&row.samples_us));
    let bar = |class: &str, from: f64, to: f64, half: f64| {
        format!(
            "<line class=\"{class}\" x1=\"{from:.1}\" y1=\"{:.1}\" x2=\"{to:.1}\" y2=\"{:.1}\"/>\n",
            y - half,
            y + half
        )
    };
    let (from, to) = (axis.x(p50), axis.x(p99));
    strip +=
        &(bar("span", from, to, 0.0) + &bar("p50", from, from, 8.0) + &bar("p99", to, to, 6.0));
    strip += "</g>\n";
    let ratio = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.2}"));
    let numbers = format!(
        "{} · {} · {}",
        shown(p50),
        ratio(row.to_spawn),
        ratio(row.to_bwrap)
    );
    strip + &label(NAMES + PLOT + 12.0, y + 4.0, "", &numbers)
}

/// Samples as dots: lines of no length with round ends, which take a third of the bytes of circles. In layers, so that
/// where many lie it is darker.
fn dots(axis: &Axis, y: f64, samples: &[f64]) -> String {
    let mut layers = vec![String::new(); LAYERS];
    for (number, sample) in samples.iter().enumerate() {
        // Spread a little up and down, always in the same way: a plot of the same report is the same.
        let away = (number * 7 % 11) as f64 - 5.0;
        _ = write!(
            layers[number % LAYERS],
            "M{:.1} {:.0}h0",
            axis.x(*sample),
            y + away
        );
    }
    let shown = layers.into_iter().filter(|layer| !layer.is_empty());
    shown
        .map(|layer| format!("<path class=\"dots\" d=\"{layer}\"/>\n"))
        .collect()
}

/// At most so many samples, evenly taken over the time of measuring; the slowest is always among them.
fn thinned(samples: &[f64]) -> Vec<f64> {
    let step = samples.len().div_ceil(MOST_DOTS).max(1);
    let mut taken: Vec<_> = samples.iter().copied().step_by(step).collect();
    taken.extend(samples.iter().copied().reduce(f64::max));
    taken
}

fn shown(microseconds: f64) -> String {
    match microseconds {
        us if us >= 1_000_000.0 => format!("{} s", plain(us / 1_000_000.0)),
        us if us >= 1000.0 => format!("{} ms", plain(us / 1000.0)),
        us => format!("{} µs", plain(us)),
    }
}

/// Three digits that count, no more.
fn plain(value: f64) -> String {
    match value {
        value if value.fract() == 0.0 => format!("{value}"),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn label(x: f64, y: f64, class: &str, text: &str) -> String {
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>\n",
        escaped(text)
    )
}

/// Text that cannot end the element it stands in; what XML cannot hold at all is replaced.
fn escaped(text: &str) -> String {
    let one = |character| match character {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        other if other.is_control() || ['\u{fffe}', '\u{ffff}'].contains(&other) => {
            "\u{fffd}".to_owned()
        }
        other => other.to_string(),
    };
    text.chars().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::report::tests::example;

    /// Whether every element that begins also ends, in order, and no text holds what only markup may.
    fn well_formed(document: &str) -> Result<(), String> {
        let mut open = Vec::new();
        for piece in document.split('<').skip(1) {
            let (tag, text) = piece
                .split_once('>')
                .ok_or(format!("`<{piece}` does not end"))?;
            if tag.matches('"').count() % 2 != 0 {
                return Err(format!("a quote in <{tag}> does not end"));
            }
            let name = tag
                .trim_start_matches('/')
                .split([' ', '/'])
                .next()
                .unwrap_or_default();
            match (tag.starts_with('/'), tag.ends_with('/')) {
                (true, _) if open.pop() != Some(name) => {
                    return Err(format!("</{name}> ends nothing"));
                }
                (true, _) | (false, true) => {}
                (false, false) => open.push(name),
            }
            let bare = text.split('&').skip(1).find(|rest| {
                !rest
                    .split_once(';')
                    .is_some_and(|(name, _)| ["amp", "lt", "gt", "quot"].contains(&name))
            });
            if text.contains('>') || bare.is_some() {
                return Err(format!("`{text}` is no text"));
            }
        }
        if open.is_empty() {
            Ok(())
        } else {
            Err(format!("{open:?} do not end"))
        }
    }

    #[test]
    fn the_check_sees_what_is_wrong() {
        assert_eq!(well_formed("<a b=\"c\"><d/>x &amp; y</a>"), Ok(()));
        for wrong in [
            "<a>",
            "<a></b>",
            "<a>x & y</a>",
            "<a b=\"></a>",
            "<a",
            "</a>",
            "<a>></a>",
        ] {
            assert!(well_formed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_plot_is_well_formed_and_names_every_row_and_phase() {
        let svg = example().svg();
        assert_eq!(well_formed(&svg), Ok(()));
        assert_eq!(svg.matches(">posix_spawn<").count(), 2);
        assert_eq!(svg.matches(">library-cold<").count(), 1);
        for text in ["back to back", "after 200 ms idle", "2.50 ms · 2.50 · –"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn what_is_run_cannot_break_out_of_the_plot() {
        let mut report = example();
        report.about.command = vec!["sh".into(), "</text><script>\"&\u{1b}\u{0}".into()];
        report.rows[0].row = "<&>".into();
        let svg = report.svg();
        assert_eq!(well_formed(&svg), Ok(()));
        assert!(svg.contains("&lt;script&gt;") && !svg.contains("<script"));
        assert!(!svg.contains(['\u{1b}', '\u{0}']));
    }

    #[test]
    fn a_report_without_samples_has_a_plot_too() {
        let mut report = example();
        report.rows.clear();
        assert_eq!(well_formed(&report.svg()), Ok(()));
    }

    #[test]
    fn the_axis_holds_every_sample() {
        let report = example();
        let rows: Vec<_> = report.rows.iter().collect();
        let axis = Axis::of(&rows).expect("there are samples");
        assert_eq!((axis.low, axis.high), (100.0, 10_000.0));
        assert_eq!((axis.x(100.0), axis.x(10_000.0)), (NAMES, NAMES + PLOT));
        assert_eq!(axis.decades(), [100.0, 1000.0, 10_000.0]);
        assert_eq!(
            [4.0, 12.5, 900.0, 2_500_000.0].map(shown),
            ["4 µs", "12.5 µs", "900 µs", "2.50 s"]
        );
    }

    #[test]
    fn of_many_samples_the_slowest_is_shown() {
        let mut samples = vec![1.0; 10_000];
        samples[7777] = 99.0;
        let taken = thinned(&samples);
        assert!(taken.len() <= MOST_DOTS + 1 && taken.contains(&99.0));
    }
}
