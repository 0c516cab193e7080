//! Abuse of boxes that Docker and Podman make: kills at any moment, bombs, floods. Afterwards nothing of ours is left
//! with the engine, in the state folder or in the process table, and what is somebody else's was never touched.
//!
//! `AIRLOCK_KILLS` says how many kills each engine sees (12 unless said, at most 60).

use daemons::{Daemons, IMAGE, Kind};
use robustness::{Bench, Outcome, eventually, full, host, random::SeededRandom};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

const KINDS: [Kind; 2] = [Kind::Docker, Kind::Podman];
const OWNER: &str = "io.airlock.owner";

/// One set for all tests here; they end with this process.
fn engines() -> &'static Daemons {
    static ENGINES: OnceLock<Daemons> = OnceLock::new();
    ENGINES.get_or_init(|| Daemons::start(&KINDS))
}

fn airlock(bench: &Bench, kind: Kind, subcommand: &str) -> Command {
    let mut command = bench.airlock(subcommand);
    command.env("DOCKER_HOST", engines().host(Kind::Docker));
    command.env("CONTAINER_HOST", engines().host(Kind::Podman));
    if subcommand == "run" {
        command.args(["--backend", kind.backend(), "--image", IMAGE]);
    }
    command
}

fn run(bench: &Bench, kind: Kind, options: &[&str], script: &str) -> Outcome {
    let mut command = airlock(bench, kind, "run");
    Outcome::of(
        command
            .arg("--json")
            .args(options)
            .args(["--", "sh", "-c", script]),
    )
}

/// The containers that this state folder owns.
fn owned(bench: &Bench, kind: Kind) -> Vec<String> {
    engines().labelled(kind, &format!("{OWNER}={}", host::owner(&bench.state)))
}

/// What lies in the state folder for containers, but for what all of them share.
fn folders(bench: &Bench) -> Vec<String> {
    let entries = fs::read_dir(bench.state.join("containers"))
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name != ".init").collect()
}

/// A container of somebody else's, who labels his own in the same way.
fn foreign(kind: Kind) -> String {
    let body = json!({
        "Image": IMAGE, "Entrypoint": ["sleep", "1000"], "Cmd": [],
        "Labels": { OWNER: "somebody-else", "io.airlock.run": "theirs" },
        "HostConfig": { "NetworkMode": "none", "Ulimits": [
            { "Name": "nproc", "Soft": 4096, "Hard": 4096 }, { "Name": "nofile", "Soft": 1024, "Hard": 1024 },
        ] },
    });
    let (status, made) = engines().call(kind, "POST", "/containers/create", &body);
    assert_eq!(status, 201, "{made}");
    let id = made["Id"].as_str().expect("an id").to_owned();
    let (status, told) = engines().call(
        kind,
        "POST",
        &format!("/containers/{id}/start"),
        &Value::Null,
    );
    assert_eq!(status, 204, "{told}");
    id
}

fn lives(kind: Kind, id: &str) -> bool {
    let (_, told) = engines().call(kind, "GET", &format!("/containers/{id}/json"), &Value::Null);
    told["State"]["Running"] == true
}

/// A run that goes on beside the others until its input ends.
fn beside(bench: &Bench, kind: Kind) -> Child {
    let mut command = airlock(bench, kind, "run");
    command.args([
        "--stdin",
        "--timeout",
        "10m",
        "--",
        "sh",
        "-c",
        "echo ready; cat; echo well",
    ]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("airlock starts");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("piped");
    BufReader::with_capacity(1, stdout)
        .read_line(&mut line)
        .expect("a line");
    assert_eq!(line, "ready\n");
    child
}

fn kills() -> u64 {
    let told = std::env::var("AIRLOCK_KILLS")
        .ok()
        .map(|text| text.parse().expect("a number"));
    told.unwrap_or(12).min(60)
}

/// Kills one run at a random moment; its name.
fn kill_one(bench: &Bench, kind: Kind, moment: Duration) -> String {
    let name = bench.run_id("killed");
    let mut command = airlock(bench, kind, "run");
    command
        .args(["--run-id", &name, "--", "sleep", "1000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("airlock starts");
    std::thread::sleep(moment);
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    name
}

fn sweep(bench: &Bench, kind: Kind) -> Value {
    let done = airlock(bench, kind, "sweep")
        .arg("--json")
        .output()
        .expect("airlock starts");
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

fn storm(kind: Kind) {
    let bench = Bench::new(&format!("storm-{}", kind.backend()));
    let mut chance = SeededRandom::seeded();
    let theirs = foreign(kind);
    let mut neighbour = beside(&bench, kind);
    let began = Instant::now();
    run(&bench, kind, &[], "true").expect("succeeded", 0, &[]);
    let longest = began.elapsed().as_millis() as u64 * 5 / 4;
    let mut killed = Vec::new();
    for _ in 0..kills() {
        killed.push(kill_one(
            &bench,
            kind,
            Duration::from_millis(chance.below(longest)),
        ));
        if chance.below(3) == 0 {
            sweep(&bench, kind);
        }
    }
    let left = || {
        let swept = sweep(&bench, kind);
        let programs = killed.iter().flat_map(|run| host::programs_of(run)).count();
        let left = (owned(&bench, kind).len(), folders(&bench).len(), programs);
        println!("{kind:?}: left are {left:?}, swept {swept}");
        (left == (1, 1, 0) && swept["problems"] == json!([])).then_some(())
    };
    eventually("nothing is left but the run that goes on", left);
    let mounts = host::mounts_naming(&bench.folder);
    assert!(mounts.is_empty(), "{mounts:?}");
    drop(neighbour.stdin.take());
    let done = neighbour.wait_with_output().expect("airlock ends");
    assert_eq!(
        (done.status.code(), &*done.stdout),
        (Some(0), &b"well\n"[..]),
        "the neighbour"
    );
    assert_eq!((owned(&bench, kind), folders(&bench)), (vec![], vec![]));
    assert!(
        lives(kind, &theirs),
        "somebody else's container was touched"
    );
    engines().call(
        kind,
        "DELETE",
        &format!("/containers/{theirs}?force=true"),
        &Value::Null,
    );
}

#[test]
fn kills_at_any_moment_leave_nothing_with_docker() {
    storm(Kind::Docker);
}

#[test]
fn kills_at_any_moment_leave_nothing_with_podman() {
    storm(Kind::Podman);
}

#[test]
fn a_run_out_of_memory_is_told_from_one_out_of_time() {
    let bench = Bench::new("memory-containers");
    for kind in KINDS {
        let memory = ["--memory", "32M"];
        run(&bench, kind, &memory, "exec tail /dev/zero").expect("oom_killed", 137, &["memory"]);
        let time = ["--timeout", "1s"];
        run(&bench, kind, &time, "trap '' TERM; sleep 100").expect(
            "timed_out",
            124,
            &["wall_time"],
        );
        // A child's death is not the program's.
        run(&bench, kind, &memory, "tail /dev/zero; true").expect("succeeded", 0, &["memory"]);
        run(&bench, kind, &memory, "true").expect("succeeded", 0, &[]);
    }
}

#[test]
fn a_fork_bomb_stays_within_its_pids() {
    let bench = Bench::new("bomb-containers");
    for kind in KINDS {
        let run_id = bench.run_id("bomb");
        let options = ["--pids", "24", "--timeout", "2s", "--run-id", &run_id];
        let outcome = run(
            &bench,
            kind,
            &options,
            "f() { f | f & }; f; wait; sleep 100",
        );
        assert!(outcome.limits().contains(&"pids"), "{outcome:#?}");
        assert_eq!(
            host::programs_of(&run_id),
            Vec::<i32>::new(),
            "nothing of it is left"
        );
    }
}

/// How many bytes a folder takes.
fn bytes_below(folder: &Path) -> u64 {
    let files = host::listing(folder)
        .into_iter()
        .filter_map(|path| fs::symlink_metadata(folder.join(path)).ok());
    files
        .filter(|found| found.is_file())
        .map(|found| found.len())
        .sum()
}

/// No engine keeps a log of it.
#[test]
fn a_flood_is_cut_and_no_engine_keeps_it() {
    let bench = Bench::new("flood-containers");
    let mebibytes: u64 = if full() { 1024 } else { 64 };
    for kind in KINDS {
        run(&bench, kind, &[], "true").expect("succeeded", 0, &[]);
        let place = engines().place(kind);
        let before = bytes_below(&place);
        let script = format!("yes | head -c {}; echo last", mebibytes << 20);
        let outcome = run(&bench, kind, &[], &script);
        outcome.expect("succeeded", 0, &["output"]);
        assert!(
            outcome.stdout().ends_with("last\n") && outcome.json["truncated"]["stdout"] == true
        );
        let grown = bytes_below(&place).saturating_sub(before);
        assert!(grown < mebibytes << 18, "{kind:?} kept {grown} bytes");
    }
}

#[test]
fn a_cancelled_run_is_gone_soon() {
    let bench = Bench::new("cancel-containers");
    for kind in KINDS {
        let name = bench.run_id("cancelled");
        let mut command = airlock(&bench, kind, "run");
        command.args([
            "--run-id",
            &name,
            "--",
            "sh",
            "-c",
            "trap '' TERM INT; echo ready; sleep 1000",
        ]);
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("airlock starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        assert!(
            line == "ready\n" && !host::programs_of(&name).is_empty(),
            "the control: {line}"
        );
        let pid = rustix::process::Pid::from_child(&child);
        let began = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is our child");
        while !host::programs_of(&name).is_empty() {
            assert!(
                began.elapsed() < Duration::from_secs(5),
                "still there after {:?}",
                began.elapsed()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(child.wait().expect("airlock ends").code(), Some(130));
    }
}
