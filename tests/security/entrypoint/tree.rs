//! Claim 11: signals, orphans, and the end of the whole tree.

use crate::{
    Claim,
    engine::{Engine, Running, until},
};
use std::time::{Duration, Instant};

pub(crate) const CLAIMS: &[Claim] = &[
    ("11 a thousand orphans leave no zombie", orphans),
    (
        "11 signals reach the program, and how it ends is passed on",
        signals,
    ),
    (
        "11 who ignores SIGTERM is killed with all his tree when the grace is over",
        grace,
    ),
    (
        "11 when the program ends, what it left running ends, too",
        leftovers,
    ),
    (
        "11 it does the same where it is not the first process",
        not_first,
    ),
    (
        "11 on a terminal the program is in the foreground",
        terminal,
    ),
];

/// How many children of the container's first process are dead and not reaped.
fn zombies(running: &Running<'_>) -> usize {
    let told = running.exec("0", &["sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null"]);
    let of_first = |line: &&str| {
        line.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with("Z 1 "))
    };
    told.stdout.lines().filter(of_first).count()
}

fn orphans(engine: &Engine) {
    // Each subshell starts another process and ends before it.
    let forks = |count: u32| {
        format!(
            "(i=0; while [ $i -lt {count} ]; do ( usleep 1 & ); i=$((i+1)); done; echo done) & exec sleep 100"
        )
    };
    let mut ours = engine.begin(&[], &["sh", "-c", &forks(1000)]);
    assert_eq!(ours.line(), "done");
    until("no zombie is left", || (zombies(&ours) == 0).then_some(()));
    let mut control = engine.begin(&["--entrypoint", "/bin/sh"], &["-c", &forks(20)]);
    assert_eq!(control.line(), "done");
    until("without us they stay", || {
        (zombies(&control) >= 20).then_some(())
    });
}

/// A program that says when it is ready, and what it was told.
const LISTENER: &str = "for s in HUP INT QUIT USR1 USR2 WINCH CONT; do trap \"echo got $s\" $s; done; \
    trap 'echo got TERM; exit 7' TERM; echo ready; while :; do sleep 100 & wait; done";

fn signals(engine: &Engine) {
    let mut running = engine.begin(&[], &["sh", "-c", LISTENER]);
    assert_eq!(running.line(), "ready");
    for signal in [
        "HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "CONT", "TERM",
    ] {
        running.signal(signal);
        assert_eq!(running.line(), format!("got {signal}"));
    }
    assert_eq!(running.wait().status, 7);
    let by_signal = |signal: &str| {
        engine
            .run(&[], &["sh", "-c", &format!("kill -{signal} $$")])
            .status
    };
    assert_eq!(
        [by_signal("TERM"), by_signal("KILL"), by_signal("SEGV")],
        [143, 137, 139]
    );
    // What stops a program that does not care is not the end of the grace.
    let mut running = engine.begin(
        &["-e", "AGENT_GRACE=60"],
        &["sh", "-c", "echo ready; exec sleep 100"],
    );
    assert_eq!(running.line(), "ready");
    let began = Instant::now();
    running.signal("TERM");
    assert_eq!(running.wait().status, 143);
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

fn grace(engine: &Engine) {
    let deaf = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000' & echo ready; while :; do sleep 1000; done";
    let mut running = engine.begin(&["-e", "AGENT_GRACE=1"], &["sh", "-c", deaf]);
    assert_eq!(running.line(), "ready");
    let (pid, began) = (running.pid(), Instant::now());
    let inside = format!("/proc/{pid}/ns/pid");
    // As long as somebody has it open, no other namespace gets its name.
    let _held = std::fs::File::open(&inside).expect("it runs");
    let inside = std::fs::read_link(inside).expect("it runs");
    running.signal("TERM");
    let ended = running.wait();
    assert_eq!(ended.status, 137, "{ended:?}");
    assert!(
        began.elapsed() >= Duration::from_secs(1),
        "it had its grace"
    );
    assert_eq!(in_namespace(&inside), 0);
}

/// How many processes of the host are in a pid namespace.
fn in_namespace(namespace: &std::path::Path) -> usize {
    let processes = std::fs::read_dir("/proc")
        .expect("/proc can be listed")
        .flatten();
    processes
        .filter(|entry| {
            std::fs::read_link(entry.path().join("ns/pid")).is_ok_and(|it| it == namespace)
        })
        .count()
}

fn leftovers(engine: &Engine) {
    let leaves = "setsid sh -c 'trap \"\" TERM HUP; sleep 1000' & echo started; exit 5";
    let began = Instant::now();
    let ended = engine.run(&[], &["sh", "-c", leaves]);
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (5, "started\n"),
        "{ended:?}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

fn not_first(engine: &Engine) {
    let shell = ["--entrypoint", "/bin/sh"];
    let leaves = "(setsid sleep 1001 &); (sleep 1002 &); exit 9";
    let line =
        format!("/airlock-init sh -c '{leaves}'; echo status $?; set -- /proc/[0-9]*; echo $#");
    let ended = engine.run(&shell, &["-c", &line]);
    assert_eq!(
        ended.stdout, "status 9\n1\n",
        "only the shell is left: {ended:?}"
    );
    let line = format!(
        "sh -c '{leaves}'; while set -- /proc/[0-9]*; [ $# -lt 3 ]; do :; done; echo they stay"
    );
    let control = engine.run(&shell, &["-c", &line]);
    assert_eq!(control.stdout, "they stay\n", "{control:?}");
}

fn terminal(engine: &Engine) {
    // The kernel sends a key's signal to the group in the foreground, which `stat` tells: the program's own.
    let line = "test -t 0 && set -- $(cat /proc/$$/stat) && [ $5 = $$ ] && [ $8 = $$ ] && echo in the foreground";
    let ended = engine.run(&["-t"], &["sh", "-c", line]);
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (0, "in the foreground\r\n"),
        "{ended:?}"
    );
    let control = engine.run(&[], &["sh", "-c", line]);
    assert_eq!(
        (control.status, control.stdout.as_str()),
        (1, ""),
        "{control:?}"
    );
}
