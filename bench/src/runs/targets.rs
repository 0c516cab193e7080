//! The targets of the project beside what was measured. They inform; nothing is decided by them.

use crate::runs::{
    report::{Phase, Report, Target, Throughput},
    rows::{Group, Kind},
    statistics::ratio,
};

/// Which side of a number is good.
#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

pub(crate) fn judge(report: &Report) -> Vec<Target> {
    let mut targets = Vec::new();
    for phase in [Phase::BackToBack, Phase::AfterIdle] {
        if report.rows.iter().any(|row| row.phase == phase) {
            targets.extend(of_rows(report, phase));
        }
    }
    targets.extend(of_throughput(&report.throughput));
    let idle = report.idle_sandbox.as_ref();
    let kib = idle
        .and_then(|idle| idle.charged_bytes)
        .map(|bytes| bytes as f64 / 1024.0);
    targets.push(target(
        "idle parked sandbox",
        Bound::AtMost(512.0),
        "KiB",
        kib,
    ));
    let seconds = report.hundred.as_ref().map(|hundred| hundred.seconds);
    targets.push(target(
        "100 sandboxes created and answering",
        Bound::AtMost(1.0),
        "s",
        seconds,
    ));
    targets.extend(of_images(report));
    targets
}

fn of_images(report: &Report) -> Vec<Target> {
    let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
    let runs = report.image_runs.as_ref();
    let mut targets = vec![
        target(
            "each of 100 runs of an image, memory",
            Bound::AtMost(1.0),
            "MiB",
            mib(runs.and_then(|r| r.charged_bytes)),
        ),
        target(
            "each of 100 runs of an image, disk",
            Bound::AtMost(1.0),
            "MiB",
            mib(runs.and_then(|r| r.disk_bytes)),
        ),
    ];
    targets.extend(report.pairs.iter().map(|pairs| {
        let name = format!(
            "{} backend, {} differences to its API",
            pairs.backend, pairs.n
        );
        target(
            &name,
            Bound::AtMost(25.0),
            "ms",
            Some(pairs.difference_p50_us / 1000.0),
        )
    }));
    for load in &report.image_loads {
        let name = format!("image of {} MiB, {} layer", load.bytes >> 20, load.layer);
        targets.push(target(
            &format!("{name}, loaded"),
            Bound::AtMost(2.0),
            "x tar -x",
            load.to_tar,
        ));
        let peak = mib(Some(load.peak_bytes));
        targets.push(target(
            &format!("{name}, memory"),
            Bound::AtMost(64.0),
            "MiB",
            peak,
        ));
    }
    targets
}

fn of_rows(report: &Report, phase: Phase) -> Vec<Target> {
    let p50 = |group, kind| report.p50(group, kind, phase);
    let to = |value: Option<f64>, base: Option<f64>| ratio(value?, base?);
    let command = |kind| p50(Group::Command, kind);
    let (spawn, bwrap) = (command(Kind::Spawn), command(Kind::Bwrap));
    let without_attach = command(Kind::Cli)
        .zip(command(Kind::Attach))
        .map(|(cli, attach)| cli - attach);
    let (python, plain) = (
        p50(Group::Python, Kind::Cold),
        p50(Group::Python, Kind::Spawn),
    );
    let named = |name: &str, wanted, unit, value| {
        target(&format!("{name}, {}", phase.name()), wanted, unit, value)
    };
    vec![
        named(
            "library cold p50",
            Bound::AtMost(0.45),
            "x bwrap",
            to(command(Kind::Cold), bwrap),
        ),
        named(
            "library cold p50",
            Bound::AtMost(3.0),
            "x posix_spawn",
            to(command(Kind::Cold), spawn),
        ),
        named(
            "library cold with an image p50",
            Bound::AtMost(1.5),
            "x library cold",
            to(command(Kind::ColdWithImage), command(Kind::Cold)),
        ),
        named(
            "library cold with an image p50",
            Bound::AtMost(0.1),
            "x docker",
            to(command(Kind::ColdWithImage), command(Kind::DockerWithImage)),
        ),
        named(
            "library warm p50",
            Bound::AtMost(1.3),
            "x posix_spawn",
            to(command(Kind::Warm), spawn),
        ),
        named(
            "library warm p50, sustained",
            Bound::AtMost(1.3),
            "x posix_spawn",
            to(command(Kind::WarmSustained), spawn),
        ),
        named(
            "`airlock run` p50",
            Bound::AtMost(0.9),
            "x bwrap",
            to(command(Kind::Cli), bwrap),
        ),
        named(
            "the same less the v1 attach",
            Bound::AtMost(0.9),
            "x bwrap",
            to(without_attach, bwrap),
        ),
        named(
            "Python cold p50",
            Bound::AtMost(1.2),
            "x plain Python",
            to(python, plain),
        ),
    ]
}

fn of_throughput(measured: &[Throughput]) -> Vec<Target> {
    let to_bwrap = |kind: Kind| {
        let row = measured
            .iter()
            .find(|one| one.runners == 8 && one.row == kind.name());
        row.and_then(|row| row.to_bwrap)
    };
    vec![
        target(
            "throughput, 8 at once, cold",
            Bound::AtLeast(3.0),
            "x bwrap",
            to_bwrap(Kind::Cold),
        ),
        target(
            "throughput, 8 at once, warm",
            Bound::AtLeast(6.0),
            "x bwrap",
            to_bwrap(Kind::Warm),
        ),
    ]
}

fn target(name: &str, wanted: Bound, unit: &str, measured: Option<f64>) -> Target {
    let (sign, number) = match wanted {
        Bound::AtMost(number) => ("<=", number),
        Bound::AtLeast(number) => (">=", number),
    };
    let met = measured.map(|measured| match wanted {
        Bound::AtMost(most) => measured <= most,
        Bound::AtLeast(least) => measured >= least,
    });
    Target {
        name: name.to_owned(),
        target: format!("{sign} {number} {unit}"),
        measured: measured.map(|measured| format!("{measured:.2}")),
        met,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_not_met_or_not_measured() {
        let met = |wanted, measured| target("x", wanted, "s", measured).met;
        assert_eq!(met(Bound::AtMost(3.0), Some(3.0)), Some(true));
        assert_eq!(met(Bound::AtMost(3.0), Some(3.1)), Some(false));
        assert_eq!(met(Bound::AtLeast(3.0), Some(3.1)), Some(true));
        assert_eq!(met(Bound::AtLeast(3.0), Some(2.9)), Some(false));
        assert_eq!(met(Bound::AtLeast(3.0), None), None);
        let shown = target("cold", Bound::AtMost(0.45), "x bwrap", Some(0.4));
        assert_eq!(
            (&*shown.target, shown.measured.as_deref()),
            ("<= 0.45 x bwrap", Some("0.40"))
        );
    }
}
