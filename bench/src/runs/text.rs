//! The report for a terminal: plain columns, understandable without colour.

use crate::runs::report::{ImageRuns, Measured, Pairs, Phase, Report};
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
    let (kernel, processors, [before, after]) = (&about.kernel, about.processors, &about.load);
    writeln!(
        f,
        "airlock {} on Linux {kernel}, {processors} processors, load {before} before and {after} after",
        about.version
    )?;
    writeln!(
        f,
        "command {}, seed {}, {} rounds",
        about.command.join(" "),
        about.seed,
        about.rounds
    )?;
    if about.debug_build {
        writeln!(f, "A DEBUG BUILD: its numbers mean nothing.")?;
    }
    Ok(())
}

fn rows(report: &Report, phase: Phase, f: &mut Formatter<'_>) -> fmt::Result {
    let rows: Vec<_> = report
        .rows
        .iter()
        .filter(|row| row.phase == phase)
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let title = match (phase, report.about.idle_ms) {
        (Phase::AfterIdle, Some(ms)) => format!("each after {ms} ms of idle time"),
        (Phase::AfterIdle, None) | (Phase::BackToBack, _) => phase.name().to_owned(),
    };
    writeln!(
        f,
        "\n{title:<34} {:>11} {:>11} {:>8} {:>8} {:>6}",
        "p50", "p99", "x spawn", "x bwrap", "n"
    )?;
    for row in rows {
        let cells = [
            span(row.p50_us),
            span(row.p99_us),
            number(row.to_spawn),
            number(row.to_bwrap),
        ];
        let [p50, p99, spawn, bwrap] = cells;
        writeln!(
            f,
            "  {:<32} {p50:>11} {p99:>11} {spawn:>8} {bwrap:>8} {:>6}{}",
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
    if let Some(missing) = row
        .missing_barriers
        .as_deref()
        .filter(|missing| !missing.is_empty())
    {
        _ = write!(text, "  without {}", missing.join(", "));
    }
    if let Some(error) = &row.first_error {
        _ = write!(text, "  {} FAILED, first: {error}", row.errors);
    }
    text
}

fn several(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    if !report.throughput.is_empty() {
        writeln!(
            f,
            "\n{:<34} {:>10} {:>10} {:>8}",
            "throughput", "at once", "runs/s", "x bwrap"
        )?;
    }
    for one in &report.throughput {
        let (runs, bwrap) = (one.per_second, number(one.to_bwrap));
        writeln!(
            f,
            "  {:<32} {:>10} {runs:>10.0} {bwrap:>8}",
            one.row, one.runners
        )?;
    }
    if let Some(idle) = &report.idle_sandbox {
        let (charged, pss) = (kib(idle.charged_bytes), kib(idle.pss_bytes));
        writeln!(
            f,
            "\none parked sandbox: charged with its kernel memory {charged}, PSS {pss}"
        )?;
    }
    if let Some(hundred) = &report.hundred {
        writeln!(
            f,
            "\n{} sandboxes alive and answering after {:.2} s",
            hundred.sandboxes, hundred.seconds
        )?;
    }
    images(report, f)
}

fn images(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    if let Some(ImageRuns {
        runs,
        charged_bytes,
        pss_bytes,
        disk_bytes,
    }) = &report.image_runs
    {
        let [charged, pss, disk] = [charged_bytes, pss_bytes, disk_bytes].map(|bytes| kib(*bytes));
        writeln!(
            f,
            "\neach of {runs} live runs of one image: charged {charged}, PSS {pss}, on disk {disk}"
        )?;
    }
    for Pairs {
        backend,
        n,
        difference_p50_us,
        ours_p50_us,
        bare_p50_us,
        errors,
        first_error,
        ..
    } in &report.pairs
    {
        let [difference, ours, bare] =
            [difference_p50_us, ours_p50_us, bare_p50_us].map(|us| span(Some(*us)));
        write!(
            f,
            "\n{backend} backend: ours {ours}, the bare API {bare}, the median of {n} differences {difference}"
        )?;
        match first_error {
            Some(error) => writeln!(f, "  {errors} FAILED, first: {error}")?,
            None => writeln!(f)?,
        }
    }
    for load in &report.image_loads {
        let (layer, files, mib, ratio) = (
            load.layer,
            load.files,
            load.bytes >> 20,
            number(load.to_tar),
        );
        let (ours, tar, peak) = (load.load_s, load.tar_s, kib(Some(load.peak_bytes)));
        writeln!(
            f,
            "\nimage of {files} files, {mib} MiB, {layer}: loaded in {ours:.2} s with {peak} at most, tar -x {tar:.2} s, ratio {ratio}"
        )?;
    }
    Ok(())
}

fn kib(bytes: Option<u64>) -> String {
    bytes.map_or("not known".to_owned(), |bytes| {
        format!("{} KiB", bytes / 1024)
    })
}

fn targets(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    let measured = report
        .targets
        .iter()
        .filter_map(|target| Some((target, target.measured.as_ref()?)));
    for (number, (target, measured)) in measured.enumerate() {
        if number == 0 {
            writeln!(
                f,
                "\n{:<48} {:<22} {:>9}",
                "targets, which decide nothing", "wanted", "measured"
            )?;
        }
        let verdict = if target.met == Some(true) {
            "met"
        } else {
            "not met"
        };
        writeln!(
            f,
            "  {:<46} {:<22} {measured:>9}  {verdict}",
            target.name, target.target
        )?;
    }
    Ok(())
}

fn not_run(report: &Report, f: &mut Formatter<'_>) -> fmt::Result {
    if !report.not_run.is_empty() {
        writeln!(f)?;
    }
    report
        .not_run
        .iter()
        .try_for_each(|one| writeln!(f, "{} not run: {}", one.name, one.reason))
}

/// A time that can be compared at a glance: always milliseconds.
fn span(microseconds: Option<f64>) -> String {
    microseconds.map_or("-".to_owned(), |us| format!("{:.3} ms", us / 1000.0))
}

fn number(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use crate::runs::report::{NotRun, tests::example};

    #[test]
    fn the_text_is_a_table_with_what_was_not_run() {
        let mut report = example();
        report.rows[1].missing_barriers = Some(vec!["memory_limit"]);
        (report.rows[1].errors, report.rows[1].first_error) = (2, Some("Failed: x".into()));
        report.not_run.push(NotRun {
            name: "bwrap".into(),
            reason: "`bwrap` is not installed".into(),
        });
        let wanted = "\
airlock 1 on Linux 6.1, 2 processors, load 0.5 before and 1.5 after
command /bin/true, seed 7, 3 rounds

back to back                               p50         p99  x spawn  x bwrap      n
  posix_spawn                         1.000 ms    5.000 ms     1.00        -      3
  library-cold                        2.500 ms    9.000 ms     2.50        -      3  without memory_limit  2 FAILED, first: Failed: x

each after 200 ms of idle time             p50         p99  x spawn  x bwrap      n
  posix_spawn                         2.000 ms    2.000 ms     1.00        -      3

bwrap not run: `bwrap` is not installed
";
        assert_eq!(report.to_string(), wanted);
    }

    #[test]
    fn targets_are_listed_with_what_was_measured() {
        let mut report = example();
        report.targets = crate::runs::targets::judge(&report);
        let text = report.to_string();
        let line = "  library cold p50, back to back                 <= 3 x posix_spawn          2.50  met\n";
        assert!(text.contains(line) && !text.contains("hundred"), "{text}");
    }
}
