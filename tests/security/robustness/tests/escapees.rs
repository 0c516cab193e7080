//! Processes that try to outlive their run: orphans, sessions of their own, deaf to signals, stopped. And runs that
//! try to be somebody else's.

use robustness::{Bench, Neighbour, eventually, host};
use std::process::Stdio;

/// Longer than any grace, shorter than what the test would wait for.
const SOON_MS: u64 = 20_000;

#[test]
fn a_thousand_orphans_are_reaped() {
    let bench = Bench::new("orphans");
    let script = r#"
import os, time
made = 0
end = time.monotonic() + 60
while made < 1000 and time.monotonic() < end:
    try: child = os.fork()
    except BlockingIOError: continue
    if child == 0:
        try: os._exit(0 if os.fork() >= 0 else 1)
        except BlockingIOError: os._exit(1)
    made += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
def zombies():
    states = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try: states.append(open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0])
        except OSError: pass
    return states.count('Z')
while zombies() and time.monotonic() < end: time.sleep(0.01)
print(made, zombies())"#;
    let outcome = bench.attack(&["--pids", "32"], &["python3", "-c", script]);
    assert_eq!(
        (outcome.status(), outcome.stdout()),
        ("succeeded", "1000 0\n"),
        "{outcome:#?}"
    );
}

#[test]
fn escapees_that_hear_no_signal_end_with_their_program() {
    let bench = Bench::new("escapees");
    let run = bench.run_id("escapees");
    let script = "\
use POSIX;
$SIG{$_} = 'IGNORE' for qw(TERM HUP INT QUIT);
for (1..8) { next if fork; POSIX::setsid(); exit if fork; while (1) { sleep 1000 } }
print \"done\\n\"";
    let outcome = bench.attack(&["--run-id", &run], &["perl", "-e", script]);
    outcome.expect("succeeded", 0, &[]);
    assert_eq!(outcome.stdout(), "done\n");
    assert!(outcome.number("/duration_ms") < SOON_MS, "{outcome:#?}");
    assert_eq!(host::programs_of(&run), Vec::<i32>::new());
}

/// A sibling would be a child of the launcher: it would outlive the program unseen, and as a zombie that nobody
/// reaps keep the box from ending.
#[test]
fn a_program_cannot_make_a_sibling() {
    let bench = Bench::new("sibling");
    let script = r#"
import ctypes, os, signal, time
clone = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
for flag in [0, 0x8000]:
    child = libc.syscall(clone, flag | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        while True: time.sleep(1000)
    print(flag, 'made' if child > 0 else ctypes.get_errno())"#;
    let outcome = bench.attack(&[], &["python3", "-c", script]);
    assert_eq!(
        outcome.expect("succeeded", 0, &[]).stdout(),
        "0 made\n32768 1\n"
    );
    assert!(outcome.number("/duration_ms") < 5_000, "{outcome:#?}");
}

#[test]
fn a_deaf_tree_ends_at_its_timeout() {
    let bench = Bench::new("deaf");
    let run = bench.run_id("deaf");
    let script = "\
$SIG{$_} = 'IGNORE' for qw(TERM HUP INT QUIT XCPU);
fork; fork; while (1) { sleep 1000 }";
    let outcome = bench.attack(
        &["--run-id", &run, "--timeout", "1s"],
        &["perl", "-e", script],
    );
    outcome.expect("timed_out", 124, &["wall_time"]);
    assert!(outcome.number("/duration_ms") < SOON_MS, "{outcome:#?}");
    assert_eq!(host::programs_of(&run), Vec::<i32>::new());
}

#[test]
fn a_stopped_tree_ends_at_its_timeout() {
    let bench = Bench::new("stopped");
    let run = bench.run_id("stopped");
    let script = "fork; fork; kill 'STOP', $$; while (1) { sleep 1000 }";
    let outcome = bench.attack(
        &["--run-id", &run, "--timeout", "1s"],
        &["perl", "-e", script],
    );
    outcome.expect("timed_out", 124, &["wall_time"]);
    assert!(outcome.number("/duration_ms") < SOON_MS, "{outcome:#?}");
    assert_eq!(host::programs_of(&run), Vec::<i32>::new());
}

#[test]
fn a_program_cannot_end_or_stop_the_first_process_of_its_box() {
    let bench = Bench::new("first");
    let script = "\
await() { until [ \"$(cut -d ' ' -f 3 /proc/$1/stat)\" = $2 ]; do :; done; echo $3; }
sleep 1000 & kill -STOP $!; await $! T 'a child stops'; kill -KILL $!
for signal in KILL STOP TERM SEGV; do kill -$signal 1; done 2> /dev/null
await 1 S 'the first process sleeps on'";
    let outcome = bench.attack(&["--timeout", "20s"], &["sh", "-c", script]);
    let said = (outcome.status(), outcome.stdout());
    assert_eq!(
        said,
        ("succeeded", "a child stops\nthe first process sleeps on\n"),
        "{outcome:#?}"
    );
}

#[test]
fn a_run_of_the_same_name_in_another_state_folder_is_left_alone() {
    let (bench, other) = (Bench::new("same-name"), Bench::new("same-name-other"));
    let neighbour = Neighbour::move_in(&bench);
    let run = bench.run_id("same");
    let mut command = bench.airlock("run");
    command.args([
        "--json",
        "--stdin",
        "--run-id",
        &run,
        "--",
        "sh",
        "-c",
        "cat; echo whole",
    ]);
    let airlock = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("airlock starts");
    eventually("the program runs", || {
        host::programs_of(&run).first().copied()
    });
    let beside = other.run(&["--run-id", &run], &["echo", "beside"]);
    assert_eq!(beside.expect("succeeded", 0, &[]).stdout(), "beside\n");
    other.sweep();
    // Waiting for the output closes the input, which is what the program waits for.
    let done = airlock.wait_with_output().expect("airlock ends");
    let outcome = robustness::Outcome::read(done.status.code(), &done.stdout, b"");
    assert_eq!(outcome.expect("succeeded", 0, &[]).stdout(), "whole\n");
    neighbour.move_out();
}
