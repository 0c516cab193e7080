//! Output without end, readers that stop or leave, and streams that are closed: the memory of `airlock` stays
//! bounded, no byte is lost or made up, and limits keep working.

use robustness::{Bench, Neighbour, Outcome, eventually, full, host};
use std::{
    fs,
    io::{Read, Write},
    process::{Child, Command, Stdio},
};

/// What a flood may cost over a run that prints nothing: what is kept of it, as bytes and as text, and what the allocator
/// leaves between. A sixteenth of the smaller flood.
const MOST_GROWTH_KIB: u64 = 16 << 10;

fn flood_bytes() -> u64 {
    if full() { 1 << 30 } else { 256 << 20 }
}

fn spawn(command: &mut Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("airlock starts")
}

/// Peak memory of `airlock` over a run that prints nothing, taken while its program waits for input.
fn quiet_peak(bench: &Bench) -> u64 {
    let workspace = bench.workspace("quiet");
    let mut command = bench.airlock("run");
    command
        .args(["--json", "--stdin", "--workspace"])
        .arg(robustness::live(&workspace));
    command
        .args(["--", "sh", "-c", "touch ready; cat > /dev/null"])
        .stdin(Stdio::piped());
    let mut airlock = spawn(&mut command);
    eventually("the program runs", || {
        workspace.join("ready").exists().then_some(())
    });
    let peak = host::peak_kib(airlock.id()).expect("airlock runs");
    drop(airlock.stdin.take());
    assert!(airlock.wait().expect("airlock ends").success());
    peak
}

fn grew_little(quiet: u64, flooded: u64) {
    println!("peak memory of airlock: quiet {quiet} KiB, flooded {flooded} KiB");
    assert!(
        flooded <= quiet + MOST_GROWTH_KIB,
        "grew from {quiet} to {flooded} KiB"
    );
}

#[test]
fn a_flood_is_cut_to_head_and_tail_in_little_memory() {
    let bench = Bench::new("flood-json");
    let quiet = quiet_peak(&bench);
    let neighbour = Neighbour::move_in(&bench);
    let script = format!(
        "echo first; yes | head -c {}; echo last; echo problem >&2",
        flood_bytes()
    );
    let mut airlock = spawn(
        bench
            .airlock("run")
            .args(["--json", "--", "sh", "-c", &script]),
    );
    let mut stdout = airlock.stdout.take().expect("piped");
    let mut text = vec![0];
    stdout.read_exact(&mut text).expect("a result begins");
    // The result is larger than a pipe: airlock waits for us in the middle of it, with all of it made.
    let flooded = host::peak_kib(airlock.id()).expect("airlock still runs");
    stdout.read_to_end(&mut text).expect("a result");
    let done = airlock.wait_with_output().expect("airlock ends");
    let outcome = Outcome::read(done.status.code(), &text, &done.stderr);
    outcome.expect("succeeded", 0, &["output"]);
    let kept = outcome.stdout();
    assert!(kept.starts_with("first\ny\ny\n") && kept.ends_with("y\nlast\n"));
    assert!(
        kept.contains("bytes left out ...]") && kept.len() < 3 << 20,
        "{} bytes",
        kept.len()
    );
    let told = (&outcome.json["stderr"], &outcome.json["truncated"]);
    assert_eq!(
        told,
        (
            &"problem\n".into(),
            &serde_json::json!({"stdout": true, "stderr": false})
        )
    );
    grew_little(quiet, flooded);
    neighbour.move_out();
}

#[test]
fn a_live_flood_passes_through_to_the_byte_in_little_memory() {
    let bench = Bench::new("flood-live");
    let quiet = quiet_peak(&bench);
    let neighbour = Neighbour::move_in(&bench);
    let script = format!("yes | head -c {}; echo problem >&2", flood_bytes());
    let mut airlock = spawn(bench.airlock("run").args(["--", "sh", "-c", &script]));
    let mut stdout = airlock.stdout.take().expect("piped");
    let (mut buffer, mut total, mut flooded) = (vec![0; 1 << 20], 0, 0);
    loop {
        let count = stdout.read(&mut buffer).expect("output");
        if count == 0 {
            break;
        }
        let offset = total as usize % 2;
        assert!(
            buffer[..count]
                .iter()
                .zip(b"y\ny".iter().cycle().skip(offset))
                .take(2)
                .all(|(a, b)| a == b)
        );
        total += count as u64;
        flooded = flooded.max(host::peak_kib(airlock.id()).unwrap_or(0));
    }
    let done = airlock.wait_with_output().expect("airlock ends");
    assert_eq!((done.status.code(), total), (Some(0), flood_bytes()));
    assert_eq!(
        String::from_utf8_lossy(&done.stderr).lines().next(),
        Some("problem")
    );
    grew_little(quiet, flooded);
    neighbour.move_out();
}

#[test]
fn a_flood_of_both_streams_at_once_ends() {
    let bench = Bench::new("flood-both");
    let script = "yes out | head -c 64M & yes err | head -c 64M >&2; wait";
    let outcome = bench.attack(&[], &["sh", "-c", script]);
    outcome.expect("succeeded", 0, &["output"]);
    assert_eq!(
        outcome.json["truncated"],
        serde_json::json!({"stdout": true, "stderr": true})
    );
}

/// Bytes that a process has written so far.
fn written(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("wchar: "))?
        .parse()
        .ok()
}

#[test]
fn a_reader_that_stops_makes_the_program_wait_and_the_timeout_still_works() {
    let bench = Bench::new("still-reader");
    let neighbour = Neighbour::move_in(&bench);
    let run = bench.run_id("still");
    let mut airlock =
        spawn(
            bench
                .airlock("run")
                .args(["--run-id", &run, "--timeout", "6s", "--", "yes"]),
        );
    let program = eventually("the program runs", || {
        host::programs_of(&run).first().copied()
    });
    let mut last = (0, 0);
    eventually("the program waits", || {
        let now = written(program)?;
        last = if now == last.0 {
            (now, last.1 + 1)
        } else {
            (now, 0)
        };
        (now > 0 && last.1 == 20).then_some(())
    });
    eventually("the program is gone", || {
        host::programs_of(&run).is_empty().then_some(())
    });
    let mut passed = Vec::new();
    airlock
        .stdout
        .take()
        .expect("piped")
        .read_to_end(&mut passed)
        .expect("the rest");
    let done = airlock.wait_with_output().expect("airlock ends");
    assert_eq!(
        done.status.code(),
        Some(124),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(
        passed.len() as u64 >= last.0 && passed.starts_with(b"y\ny\n"),
        "{} of {}",
        passed.len(),
        last.0
    );
    assert_eq!(host::cgroups_naming(&run), Vec::<std::path::PathBuf>::new());
    neighbour.move_out();
}

#[test]
fn a_reader_that_leaves_ends_the_run() {
    let bench = Bench::new("gone-reader");
    let neighbour = Neighbour::move_in(&bench);
    let run = bench.run_id("gone");
    let mut airlock = spawn(bench.airlock("run").args(["--run-id", &run, "--", "yes"]));
    eventually("the program runs", || {
        host::programs_of(&run).first().copied()
    });
    drop(airlock.stdout.take());
    assert_eq!(airlock.wait().expect("airlock ends").code(), Some(141));
    assert_eq!(host::programs_of(&run), Vec::<i32>::new());
    neighbour.move_out();
}

#[test]
fn closed_streams_of_airlock_or_of_the_program_disturb_nothing() {
    let bench = Bench::new("closed");
    let neighbour = Neighbour::move_in(&bench);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "exec \"$@\" <&- >&- 2>&-", "sh"])
        .arg(robustness::binary());
    shell.args(["run", "--state"]).arg(&bench.state);
    shell.args([
        "--stdin",
        "--artifact",
        "kept",
        "--",
        "sh",
        "-c",
        "cat > kept; echo said; echo said >&2; exit 7",
    ]);
    assert_eq!(shell.status().expect("sh starts").code(), Some(7));
    let inside = "exec <&- >&- 2>&-; echo lost; echo kept > kept; exit 8";
    let outcome = bench.run(&["--artifact", "kept"], &["sh", "-c", inside]);
    outcome.expect("failed", 8, &[]);
    assert_eq!(
        (outcome.stdout(), outcome.number("/artifacts/0/size_bytes")),
        ("", 5)
    );
    neighbour.move_out();
}

#[test]
fn input_that_nobody_reads_holds_nothing_up() {
    let bench = Bench::new("unread");
    let neighbour = Neighbour::move_in(&bench);
    let mut command = bench.airlock("run");
    command
        .args(["--json", "--stdin", "--", "true"])
        .stdin(Stdio::piped());
    let mut airlock = spawn(&mut command);
    let mut input = airlock.stdin.take().expect("piped");
    // Ends when nobody is left to write to.
    let feeder = std::thread::spawn(move || while input.write_all(&[0; 65536]).is_ok() {});
    let done = airlock.wait_with_output().expect("airlock ends");
    Outcome::read(done.status.code(), &done.stdout, &done.stderr).expect("succeeded", 0, &[]);
    feeder.join().expect("the feeder ends");
    neighbour.move_out();
}
