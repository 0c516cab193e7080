//! How a node ends: everything is stopped, and its exit status says whether (requirement 42).

use gateway_tests::Stream;
use node_tests::{Server, is_running};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

const TASK: &str = "11111111-1111-4111-8111-111111111111";
const JOB: &str = "22222222-2222-4222-8222-222222222222";

/// A node whose grace is short ends within that, whatever it waits for.
const WITHIN: Duration = Duration::from_secs(20);

/// Somebody else who keeps the database.
struct LockHolder(Child);

impl LockHolder {
    fn of(server: &Server) -> LockHolder {
        let script = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); \
                      db.execute('BEGIN IMMEDIATE'); print('kept', flush=True); sys.stdin.read()";
        let mut keeper = Command::new("python3")
            .args(["-c", script])
            .arg(server.folder.at("state/airlock.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(keeper.stdout.as_mut().expect("ours"))
            .read_line(&mut line)
            .expect("its word");
        assert_eq!(line, "kept\n");
        LockHolder(keeper)
    }

    fn let_go(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("it ends");
    }
}

fn begin(server: &Server) {
    let sandbox = json!({ "command": ["sh", "-c", "trap '' TERM; while :; do sleep 0.01; done"] });
    let order = json!({ "version": 1, "task_id": TASK, "job_id": JOB, "sandbox": sandbox });
    let prefer = [("prefer", "respond-async")];
    assert_eq!(
        server
            .ask(
                &server.admin,
                "POST",
                "/v1/worker/jobs:run",
                &prefer,
                &order
            )
            .status,
        202
    );
    let path = format!("/v1/worker/jobs/{JOB}");
    server.until("its start", || {
        server.get(&path).json()["status"] == "in_progress"
    });
}

/// Another one on what it left.
fn again(mut server: Server) -> Server {
    let folder = std::mem::replace(
        &mut server.folder,
        node_tests::Folder(std::path::PathBuf::new()),
    );
    Server::on(folder, "", &[], Some(server.admin.clone()))
}

#[test]
fn a_node_that_stopped_everything_exits_with_0_and_what_it_stopped_is_known() {
    let mut server = Server::with("[serve]\ngrace = \"100ms\"\n", &[]);
    begin(&server);
    assert_eq!(
        server
            .post(
                "/v1/worker/sessions",
                &json!({ "version": 1, "task_id": TASK })
            )
            .status,
        201
    );
    let (status, said) = server.end(Signal::TERM);
    assert_eq!(status.code(), Some(0), "{said}");
    let server = again(server);
    let told = server.get(&format!("/v1/worker/jobs/{JOB}")).json();
    assert_eq!(
        (&told["status"], &told["run_diagnostics"]["reason"]),
        (&json!("failed"), &json!("cancelled"))
    );
}

/// A run whose end nobody can write down has none: somebody else keeps the database.
#[test]
fn a_node_that_could_not_stop_everything_exits_with_1_and_names_it() {
    let mut server = Server::with("[serve]\ngrace = \"100ms\"\n", &[]);
    begin(&server);
    let keeper = LockHolder::of(&server);
    let begun = std::time::Instant::now();
    let (status, said) = server.end(Signal::TERM);
    assert!(begun.elapsed() < WITHIN, "{:?}", begun.elapsed());
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(
        said.contains("not everything was stopped in time: run job-"),
        "{said}"
    );
    keeper.let_go();
}

/// Also one that had nothing to do: that it ends cannot be written down, and nobody is waited for.
#[test]
fn an_idle_node_whose_database_somebody_keeps_ends_all_the_same() {
    let mut server = Server::with("[serve]\ngrace = \"100ms\"\n", &[]);
    assert_eq!(server.get("/readyz").status, 200);
    let keeper = LockHolder::of(&server);
    let begun = std::time::Instant::now();
    let (status, said) = server.end(Signal::TERM);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("the record of its end"), "{said}");
    assert!(begun.elapsed() < WITHIN, "{:?}", begun.elapsed());
    keeper.let_go();
}

/// A request whose body is on its way: the server reads it, and has all but the last bytes.
fn under_way(server: &Server, path: &str, body: &serde_json::Value) -> (Stream, Vec<u8>) {
    let headers = [("prefer", "respond-async"), ("expect", "100-continue")];
    let mut bytes = server.request(&server.admin, "POST", path, &headers, body);
    let last = bytes.split_off(bytes.len() - 5);
    let mut stream = server.client.open(&bytes);
    assert_eq!(stream.head().expect("it answers").0, 100);
    (stream, last)
}

/// What the audit says from its newest line back to the last stop of the server.
fn lines_behind_the_stop(server: &Server) -> Vec<String> {
    let told = server.get("/v1/audit?limit=1000").json();
    let lines = told["lines"].as_array().expect("lines").iter();
    let what = |line: &serde_json::Value| line["what"].as_str().expect("what").to_owned();
    lines
        .map(what)
        .take_while(|what| what != "server.stop")
        .collect()
}

/// Who is still sending when the server ends is told so; nothing is taken and then killed.
#[test]
fn what_arrives_while_a_node_ends_is_refused_and_the_stop_is_the_last_line() {
    let mut server = Server::with("[serve]\ngrace = \"20s\"\n", &[]);
    let session = json!({ "version": 1, "task_id": TASK, "session_id": JOB });
    assert_eq!(server.post("/v1/worker/sessions", &session).status, 201);
    let sleep = ["sleep", "300.25"];
    let exec = json!({ "version": 1, "task_id": TASK, "command": sleep });
    let exec = server.request(
        &server.admin,
        "POST",
        &format!("/v1/worker/sessions/{JOB}/exec"),
        &[],
        &exec,
    );
    let mut exec = server.client.open(&exec);
    server.until("its start", || is_running(&sleep));
    let job =
        json!({ "version": 1, "task_id": TASK, "job_id": JOB, "sandbox": { "command": ["true"] } });
    let (mut job, last_of_job) = under_way(&server, "/v1/worker/jobs:run", &job);
    let other = json!({ "version": 1, "task_id": TASK, "session_id": TASK });
    let (mut made, last_of_made) = under_way(&server, "/v1/worker/sessions", &other);
    let pid = Pid::from_raw(server.pid.cast_signed()).expect("its process");
    kill_process(pid, Signal::TERM).expect("it is ours");
    // The sessions that lived end, so the server is ending.
    assert_ne!(exec.answer().status, 0);
    job.send(&last_of_job);
    made.send(&last_of_made);
    for answer in [job.answer(), made.answer()] {
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.text().contains("ending"), "{}", answer.text());
    }
    // It goes on ending.
    let (status, said) = server.end(Signal::CONT);
    assert_eq!(status.code(), Some(0), "{said}");
    let server = again(server);
    assert_eq!(lines_behind_the_stop(&server), ["server.start"]);
    assert_eq!(server.get(&format!("/v1/worker/jobs/{JOB}")).status, 404);
    assert_eq!(
        server.get(&format!("/v1/worker/sessions/{TASK}")).status,
        404
    );
    let ended = server.get(&format!("/v1/worker/sessions/{JOB}")).json();
    assert_eq!(
        (&ended["status"], &ended["reason"]),
        (&json!("ended"), &json!("server_stopped"))
    );
}

/// At whatever moment of their making: each is ended before the server says that everything is.
#[test]
fn sessions_that_are_being_made_when_a_node_ends_are_ended_with_it() {
    let mut server = Server::with("", &[]);
    let asked: Vec<_> = (0..32)
        .map(|_| {
            let order = json!({ "version": 1, "task_id": TASK });
            let bytes = server.request(&server.admin, "POST", "/v1/worker/sessions", &[], &order);
            server.client.open(&bytes)
        })
        .collect();
    let (status, said) = server.end(Signal::TERM);
    assert_eq!(status.code(), Some(0), "{said}");
    let made = asked.into_iter().filter_map(|mut stream| {
        let answer = stream.answer();
        (answer.status == 201).then(|| {
            answer.json()["session_id"]
                .as_str()
                .expect("one")
                .to_owned()
        })
    });
    let made: Vec<_> = made.collect();
    let server = again(server);
    assert_eq!(lines_behind_the_stop(&server), ["server.start"]);
    for session in made {
        let told = server.get(&format!("/v1/worker/sessions/{session}")).json();
        assert_eq!(told["reason"], "server_stopped", "{told}");
    }
}

/// Nor does whoever ends a session wait for ever: it is gone, and that is written down later.
#[test]
fn the_end_of_a_session_is_answered_although_somebody_keeps_the_database() {
    let server = Server::new();
    let order = json!({ "version": 1, "task_id": TASK, "session_id": JOB });
    assert_eq!(server.post("/v1/worker/sessions", &order).status, 201);
    let keeper = LockHolder::of(&server);
    let path = format!("/v1/worker/sessions/{JOB}");
    let end = || {
        server.post(
            &format!("{path}/end"),
            &json!({ "version": 1, "task_id": TASK }),
        )
    };
    let begun = std::time::Instant::now();
    let ended = end();
    assert_eq!(ended.status, 202, "{}", ended.text());
    assert!(begun.elapsed() < WITHIN, "{:?}", begun.elapsed());
    keeper.let_go();
    assert_eq!(
        (end().status, &server.get(&path).json()["reason"]),
        (200, &json!("asked"))
    );
}
