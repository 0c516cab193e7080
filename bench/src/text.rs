//! The report for a terminal: plain columns, understandable without colour.

use crate::report::{Measured, Phase, Report};
use std::fmt::{self, Display, Formatter, Write};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        head(self, f)?;
        for phase in [Phase::BackToBack, Phase::AfterIdle] {
            rows(self, phase, f)?;
        }
        several(self, f)?;
        targets(self, f)?;
        not_run(self, f)
    }
}

fn head(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    let about = &report.about;
    let (kernel, processors, load) = (&about.kernel, about.processors, &about.load);
    writeln!(f, "airlock {} on Linux {kernel}, {processors} processors, load {load}", about.version)?;
    writeln!(f, "command {}, seed {}, {} rounds", about.command.join(" "), about.seed, about.rounds)?;
    if about.debug_build {
        writeln!(f, "A DEBUG BUILD: its numbers mean nothing.")?;
    }
    Ok(())
}

fn rows(report: &Report, phase: Phase, f: &mut Formatter<'_>) -> fmt::Result {
    let rows: Vec<_> = report.rows.iter().filter(|row| row.phase == phase).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let title = match (phase, report.about.idle_ms) {
        (Phase::AfterIdle, Some(ms)) => format!("each after {ms} ms of idle time"),
        (Phase::AfterIdle, None) | (Phase::BackToBack, _) => phase.name().to_owned(),
    };
    writeln!(f, "\n{title:<34} {:>10} {:>10} {:>8} {:>8} {:>6}", "p50", "p99", "x spawn", "x bwrap", "n")?;
    for row in rows {
        let cells = [span(row.p50_us), span(row.p99_us), number(row.to_spawn), number(row.to_bwrap)];
        let [p50, p99, spawn, bwrap] = cells;
        writeln!(
            f,
            "  {:<32} {p50:>10} {p99:>10} {spawn:>8} {bwrap:>8} {:>6}{}",
            row.row,
            row.n,
            remarks(row)
        )?;
    }
    Ok(())
}

/// What must not be overlooked about a row.
fn remarks(row: &Measured) -> String {
    let mut text = String::new();
    if let Some(missing) = row.missing_barriers.as_deref().filter(|missing| !missing.is_empty()) {
        _ = write!(text, "  without {}", missing.join(", "));
    }
    if let Some(error) = &row.first_error {
        _ = write!(text, "  {} FAILED, first: {error}", row.errors);
    }
    text
}

fn several(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    if !report.throughput.is_empty() {
        writeln!(f, "\n{:<34} {:>10} {:>10} {:>8}", "throughput", "at once", "runs/s", "x bwrap")?;
    }
    for one in &report.throughput {
        let (runs, bwrap) = (one.per_second, number(one.to_bwrap));
        writeln!(f, "  {:<32} {:>10} {runs:>10.0} {bwrap:>8}", one.row, one.runners)?;
    }
    if let Some(idle) = &report.idle_sandbox {
        let charged = idle.charged_bytes.map_or("-".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
        let pss = idle.pss_bytes / 1024;
        writeln!(f, "\none parked sandbox: {charged} charged with its kernel memory, {pss} KiB PSS")?;
    }
    if let Some(hundred) = &report.hundred {
        writeln!(f, "\n{} sandboxes alive and answering after {:.2} s", hundred.sandboxes, hundred.seconds)?;
    }
    Ok(())
}

fn targets(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    writeln!(f, "\n{:<48} {:<22} {:>9}", "target (informative)", "wanted", "measured")?;
    for target in &report.targets {
        let verdict = match target.met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "",
        };
        let measured = target.measured.as_deref().unwrap_or("-");
        let line = format!("  {:<46} {:<22} {measured:>9}  {verdict}", target.name, target.target);
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

fn not_run(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    if !report.not_run.is_empty() {
        writeln!(f)?;
    }
    report.not_run.iter().try_for_each(|one| writeln!(f, "{} not run: {}", one.name, one.reason))
}

/// A time that can be compared at a glance: always milliseconds.
fn span(microseconds: Option<f64>) -> String {
    microseconds.map_or("-".to_owned(), |us| format!("{:.3} ms", us / 1000.0))
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}
