//! Programs that take more than they may: they are stopped at their limit, the result says which, and nobody else
//! notices. All attack code runs inside the sandbox.

use robustness::Bench;

const ALLOCATE_128_MIB: &str = "kept = [b'x' * (1 << 20) for _ in range(128)]; print(len(kept))";
const MEMFD_128_MIB: &str = "\
import os
file = os.memfd_create('bomb')
for _ in range(128): os.write(file, b'x' * (1 << 20))
print(128)";

#[test]
fn a_fork_bomb_stops_at_the_pids_limit_and_is_named() {
    let bench = Bench::new("fork-bomb");
    if !bench.has_cgroup("pids") {
        return;
    }
    let bomb = ["perl", "-e", "while (1) { fork }"];
    let outcome = bench.attack(&["--pids", "24", "--timeout", "2s"], &bomb);
    outcome.expect("timed_out", 124, &["pids", "wall_time"]);
    // Two processes of the box itself are counted with it.
    assert!(
        (20..=26).contains(&outcome.number("/usage/pids_peak")),
        "{outcome:#?}"
    );
}

#[test]
fn a_fork_bomb_of_a_shell_leaves_nothing_behind() {
    let bench = Bench::new("shell-bomb");
    let run = bench.run_id("shell-bomb");
    // What waits for the end of the time takes no process, of which none may be left.
    let bomb = ["sh", "-c", "f() { f | f & }; f; wait; while :; do :; done"];
    let outcome = bench.attack(&["--run-id", &run, "--timeout", "2s"], &bomb);
    assert_eq!(outcome.status(), "timed_out", "{outcome:#?}");
    assert_eq!(robustness::host::programs_of(&run), Vec::<i32>::new());
}

#[test]
fn processes_up_to_the_limit_are_no_bomb() {
    let bench = Bench::new("forks");
    let outcome = bench.run(&["--pids", "24"], &["perl", "-e", "for (1..23) { my $p = fork; die $! unless defined $p; if (!$p) { sleep 1; exit } } wait for 1..23"]);
    outcome.expect("succeeded", 0, &[]);
}

#[test]
fn threads_count_as_processes() {
    let bench = Bench::new("threads");
    if !bench.has_cgroup("pids") {
        return;
    }
    let script = "\
import threading
stop = threading.Event()
try:
    for count in range(100): threading.Thread(target=stop.wait).start()
except RuntimeError: print('refused', count)
stop.set()";
    let outcome = bench.attack(&["--pids", "24"], &["python3", "-c", script]);
    outcome.expect("succeeded", 0, &["pids"]);
    assert_eq!(outcome.stdout(), "refused 23\n");
}

#[test]
fn a_memory_bomb_is_killed_at_its_limit() {
    let bench = Bench::new("memory");
    if !bench.has_cgroup("memory") {
        return;
    }
    for script in [ALLOCATE_128_MIB, MEMFD_128_MIB] {
        let bomb = ["python3", "-c", script];
        let small = ["--memory", "64M", "--file-size", "1G"];
        bench
            .attack(&small, &bomb)
            .expect("oom_killed", 137, &["memory"]);
        let large = ["--memory", "512M", "--file-size", "1G"];
        assert_eq!(
            bench
                .run(&large, &bomb)
                .expect("succeeded", 0, &[])
                .stdout(),
            "128\n"
        );
    }
}

#[test]
fn files_in_scratch_space_are_memory_too() {
    let bench = Bench::new("tmpfs");
    if !bench.has_cgroup("memory") {
        return;
    }
    // The disk in memory is no larger than the memory itself, so a program fills the rest.
    let allocate = "exec python3 -c 'print(len(b\"x\" * (24 << 20)) >> 20)'";
    let small = ["--memory", "48M", "--disk", "256M", "--file-size", "1G"];
    let alone = bench.run(&small, &["sh", "-c", allocate]);
    assert_eq!(alone.expect("succeeded", 0, &[]).stdout(), "24\n");
    for place in ["/tmp/bomb", "/dev/shm/bomb", "/workspace/bomb"] {
        let script = format!("head -c 40M /dev/zero > {place} && {allocate}");
        let bomb = ["sh", "-c", &script];
        bench
            .attack(&small, &bomb)
            .expect("oom_killed", 137, &["memory"]);
        let large = ["--memory", "512M", "--disk", "256M", "--file-size", "1G"];
        bench.run(&large, &bomb).expect("succeeded", 0, &[]);
    }
}

#[test]
fn a_child_killed_for_memory_does_not_fail_its_program() {
    let bench = Bench::new("child");
    if !bench.has_cgroup("memory") {
        return;
    }
    let script = format!("python3 -c \"{ALLOCATE_128_MIB}\"; echo child ended with $?");
    let outcome = bench.attack(&["--memory", "64M"], &["sh", "-c", &script]);
    outcome.expect("succeeded", 0, &["memory"]);
    assert_eq!(outcome.stdout(), "child ended with 137\n");
}

#[test]
fn a_disk_bomb_gets_no_space_and_the_result_says_so() {
    let bench = Bench::new("disk");
    for place in [
        "/tmp/bomb",
        "/dev/shm/bomb",
        "/workspace/bomb",
        "/home/agent/bomb",
    ] {
        let script = format!("head -c 32M /dev/zero > {place}; echo ended with $?");
        let bomb = ["sh", "-c", &script];
        let outcome = bench.attack(&["--disk", "16M"], &bomb);
        outcome.expect("succeeded", 0, &["disk"]);
        assert!(
            outcome.json["stderr"]
                .as_str()
                .is_some_and(|text| text.contains("No space left"))
        );
        assert_eq!(
            bench
                .run(&["--disk", "64M"], &bomb)
                .expect("succeeded", 0, &[])
                .stdout(),
            "ended with 0\n"
        );
    }
}

#[test]
fn a_bomb_of_empty_files_gets_no_space_either() {
    let bench = Bench::new("inodes");
    let script = "count=0; while [ $count -lt 4000 ] && : > /tmp/$count; do count=$((count + 1)); done; echo $count";
    let bomb = ["sh", "-c", script];
    let outcome = bench.attack(
        &["--disk", "8M"],
        &["sh", "-c", &format!("({script}) ; exit 0")],
    );
    outcome.expect("succeeded", 0, &["disk"]);
    assert_eq!(
        bench
            .run(&["--disk", "64M"], &bomb)
            .expect("succeeded", 0, &[])
            .stdout(),
        "4000\n"
    );
}

#[test]
fn a_file_larger_than_allowed_ends_its_writer() {
    let bench = Bench::new("file-size");
    let bomb = ["sh", "-c", "exec head -c 2M /dev/zero > /tmp/bomb"];
    bench
        .attack(&["--file-size", "1M"], &bomb)
        .expect("failed", 153, &["file_size"]);
    bench
        .run(&["--file-size", "2M"], &bomb)
        .expect("succeeded", 0, &[]);
}

#[test]
fn open_files_run_out_at_the_limit() {
    let bench = Bench::new("open-files");
    let script = "\
import os
try:
    for _ in range(100): os.dup(0)
    print('enough')
except OSError as error: print(error.errno, os.dup2(0, 3))";
    let bomb = ["python3", "-c", script];
    assert_eq!(
        bench.attack(&["--open-files", "32"], &bomb).stdout(),
        "24 3\n"
    );
    assert_eq!(
        bench.run(&["--open-files", "128"], &bomb).stdout(),
        "enough\n"
    );
}

#[test]
fn cpu_time_is_counted_over_all_processes() {
    let bench = Bench::new("cpu-time");
    if !bench.has_cgroup("cpu") {
        return;
    }
    let bomb = ["perl", "-e", "fork; fork; while (1) {}"];
    let outcome = bench.attack(&["--cpu-time", "2s", "--timeout", "60s"], &bomb);
    outcome.expect("failed", 128 + 24, &["cpu_time"]);
    assert!(
        (1_900..4_000).contains(&outcome.number("/usage/cpu_ms")),
        "{outcome:#?}"
    );
}

#[test]
fn a_share_of_a_cpu_holds_however_many_processes_want_it() {
    let bench = Bench::new("cpu-share");
    if !bench.has_cgroup("cpu") {
        return;
    }
    // Ends once both have used 250 ms of CPU each: how long that takes is up to the share.
    let bomb = [
        "perl",
        "-e",
        "my $p = fork; while ((times)[0] + (times)[1] < 0.25) {} if ($p) { wait }",
    ];
    let limited = bench.attack(&["--cpus", "0.1"], &bomb);
    let (cpu, wall) = (
        limited.number("/usage/cpu_ms"),
        limited.number("/duration_ms"),
    );
    limited.expect("succeeded", 0, &[]);
    assert!(cpu >= 450 && cpu * 5 < wall, "{cpu} ms of CPU in {wall} ms");
    let free = bench.run(&[], &bomb).number("/duration_ms");
    assert!(
        free < wall,
        "without a limit it took {free} ms, with one {wall} ms"
    );
}

#[test]
fn a_busy_program_dies_of_its_timeout() {
    let bench = Bench::new("timeout");
    let outcome = bench.attack(
        &["--timeout", "1s"],
        &["perl", "-e", "$SIG{TERM} = 'IGNORE'; while (1) {}"],
    );
    outcome.expect("timed_out", 124, &["wall_time"]);
}
