//! How a node ends: everything is stopped, and its exit status says whether (requirement 42).

use node_tests::Server;
use rustix::process::Signal;
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
struct Keeper(Child);

impl Keeper {
    fn of(server: &Server) -> Keeper {
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
        BufReader::new(keeper.stdout.as_mut().expect("ours")).read_line(&mut line).expect("its word");
        assert_eq!(line, "kept\n");
        Keeper(keeper)
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
    assert_eq!(server.ask(&server.admin, "POST", "/v1/worker/jobs:run", &prefer, &order).status, 202);
    let path = format!("/v1/worker/jobs/{JOB}");
    server.until("its start", || server.get(&path).json()["status"] == "in_progress");
}

#[test]
fn a_node_that_stopped_everything_exits_with_0_and_what_it_stopped_is_known() {
    let mut server = Server::with("[serve]\ngrace = \"100ms\"\n", &[]);
    begin(&server);
    assert_eq!(server.post("/v1/worker/sessions", &json!({ "version": 1, "task_id": TASK })).status, 201);
    let (status, said) = server.end(Signal::TERM);
    assert_eq!(status.code(), Some(0), "{said}");
    let folder = std::mem::replace(&mut server.folder, node_tests::Folder(std::path::PathBuf::new()));
    let server = Server::on(folder, "", &[], Some(server.admin.clone()));
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
    let keeper = Keeper::of(&server);
    let begun = std::time::Instant::now();
    let (status, said) = server.end(Signal::TERM);
    assert!(begun.elapsed() < WITHIN, "{:?}", begun.elapsed());
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("not everything was stopped in time: run job-"), "{said}");
    keeper.let_go();
}

/// Also one that had nothing to do: that it ends cannot be written down, and nobody is waited for.
#[test]
fn an_idle_node_whose_database_somebody_keeps_ends_all_the_same() {
    let mut server = Server::with("[serve]\ngrace = \"100ms\"\n", &[]);
    assert_eq!(server.get("/readyz").status, 200);
    let keeper = Keeper::of(&server);
    let begun = std::time::Instant::now();
    let (status, said) = server.end(Signal::TERM);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("the record of its end"), "{said}");
    assert!(begun.elapsed() < WITHIN, "{:?}", begun.elapsed());
    keeper.let_go();
}
