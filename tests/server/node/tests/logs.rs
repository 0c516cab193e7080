//! The log of a server: one line an event, for people or for programs, in a file that is rotated; never a secret, and
//! never in anybody's way.

use gateway_tests::{LOUD, refusal, serve};
use node_tests::{Folder, Server, key_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::Stdio,
    time::{Duration, Instant},
};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn objects(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("JSON: {line}")))
        .collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_line_is_an_object_with_what_is_known_and_no_secret() {
    let mut server = Server::with("", &[LOUD, "--log-format", "json"]);
    let key = key_of(&server, "acme", &["runs"]);
    let order = json!({ "command": ["sh", "-c", "echo canary-output; exit 0", "canary-argument"],
        "env": { "CANARY": "canary-variable" }, "task_id": "t1", "job_id": "j1" });
    let ran = server.ask(
        &key,
        "POST",
        "/v1/runs?canary=value",
        &[("traceparent", PARENT)],
        &order,
    );
    assert_eq!(ran.status, 200, "{}", ran.text());
    let id = ran.json()["run_id"].as_str().expect("it ran").to_owned();
    let bad = server.ask(
        "ak_wrong_canary-token",
        "GET",
        "/v1/runs",
        &[],
        &Value::Null,
    );
    assert_eq!(bad.status, 401);
    let (_, said) = server.end(Signal::TERM);
    let lines = objects(&said);
    let find = |what: &str| {
        lines
            .iter()
            .find(|line| line["what"] == what)
            .unwrap_or_else(|| panic!("{what}: {said}"))
    };
    let run = find("run");
    for (name, value) in [
        ("level", "info"),
        ("run", id.as_str()),
        ("task", "t1"),
        ("job", "j1"),
        ("tenant", "acme"),
        ("trace", TRACE),
        ("status", "succeeded"),
    ] {
        assert_eq!(run[name], value, "{run}");
    }
    assert!(run["ms"].is_number() && run["key"].is_string() && run["at"].is_string());
    let posted = |line: &&Value| line["about"] == "POST /v1/runs";
    let request = lines.iter().find(posted).expect("the request");
    assert_eq!(
        (&request["status"], &request["tenant"], &request["trace"]),
        (&json!(200), &json!("acme"), &json!(TRACE))
    );
    assert!(
        find("node_boot")["about"].is_string()
            && find("node_shutdown")["about"] == "node_shutdown: clean"
    );
    for secret in ["canary", &key[21..], &server.admin[21..]] {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
}

#[test]
fn a_quiet_server_says_nothing_of_what_goes_well() {
    let mut server = Server::new();
    assert_eq!(
        server
            .post("/v1/runs", &json!({ "command": ["true"] }))
            .status,
        200
    );
    let (status, said) = server.end(Signal::TERM);
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn a_file_has_a_size_and_pieces_and_is_opened_anew_when_it_was_moved_away() {
    let folder = Folder::new();
    let path = folder.at("airlock.log");
    let settings = format!(
        "[log]\nfile = \"{}\"\nsize = \"4K\"\nkeep = 2\nformat = \"json\"\n",
        path.display()
    );
    let mut server = Server::on(folder, &settings, &[LOUD], None);
    let ask = |server: &Server, times: usize| (0..times).for_each(|_| _ = server.get("/v1/runs"));
    let piece = |number: u32| path.with_extension(format!("log.{number}"));
    until("a second piece", || {
        ask(&server, 20);
        piece(2).is_file()
    });
    ask(&server, 60);
    assert!(!piece(3).exists());
    // A piece is being moved for a moment.
    until("all pieces", || {
        [path.clone(), piece(1), piece(2)].iter().all(|file| {
            let Ok(text) = fs::read_to_string(file) else {
                return false;
            };
            // The one that is being written may end in mid-line.
            objects(&text[..text.rfind('\n').map_or(0, |end| end + 1)]);
            let mode = fs::metadata(file).map_or(0, |about| about.permissions().mode());
            text.len() <= 4096 && mode & 0o777 == 0o600
        })
    });
    let moved = path.with_extension("moved");
    fs::rename(&path, &moved).expect("logrotate moves it");
    kill_process(
        Pid::from_raw(server.pid as i32).expect("a process"),
        Signal::HUP,
    )
    .expect("it is ours");
    until("a new file", || {
        ask(&server, 1);
        path.is_file()
    });
    assert_eq!(server.get("/healthz").status, 200, "it goes on");
    let (_, said) = server.end(Signal::TERM);
    assert_eq!(said, "", "nothing is said twice");
}

#[test]
fn a_link_is_no_log() {
    let folder = Folder::new();
    let (path, elsewhere) = (folder.at("log"), folder.at("elsewhere"));
    fs::write(&elsewhere, "theirs").expect("a file");
    std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
    let settings = format!("[log]\nfile = \"{}\"\n", path.display());
    let said = refusal(&mut serve(&folder, &settings, &[]));
    assert!(said.contains("cannot write the log"), "{said}");
    assert_eq!(
        fs::read_to_string(&elsewhere).expect("it is there"),
        "theirs"
    );
}

/// Nobody reads stderr: its pipe is full after 64 KiB. Requests are answered all the same, and what was dropped is counted.
#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    let folder = Folder::new();
    let mut command = serve(&folder, "", &[LOUD, "--log-format", "json"]);
    command.stderr(Stdio::piped());
    let server = Server::started(command, folder, None);
    let dropped = || {
        let text = server.get("/metrics").text();
        let line = text
            .lines()
            .find(|line| line.starts_with("airlock_log_lines_dropped"))
            .map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .expect("it is counted")
    };
    until("dropped lines", || {
        (0..200).for_each(|_| assert_eq!(server.get("/healthz").status, 200));
        dropped() > 0
    });
    assert_eq!(
        server
            .post("/v1/runs", &json!({ "command": ["true"] }))
            .json()["status"],
        "succeeded"
    );
}

#[test]
fn levels_leave_out_what_is_less_grave() {
    let mut server = Server::with("[log]\nlevel = \"warn\"\n", &[LOUD]);
    assert_eq!(
        server
            .post("/v1/runs", &json!({ "command": ["true"] }))
            .status,
        200
    );
    let (_, said) = server.end(Signal::TERM);
    assert_eq!(said, "");
}
