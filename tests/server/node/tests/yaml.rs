//! `airlock serve --node FILE`: what the file says is done or refused (requirements 38, 39, 45, 66, 69, 73, 74).

use gateway_tests::{refusal, serve};
use node_tests::{Folder, Server};
use serde_json::json;
use std::fs;

const TASK: &str = "11111111-1111-4111-8111-111111111111";
const RUN: &str = "/v1/worker/jobs:run";

fn server(yaml: &str) -> Server {
    let folder = Folder::new();
    let file = folder.at("node.yaml");
    fs::write(&file, yaml).expect("a node file");
    let command = serve(&folder, "", &["--node", &file.to_string_lossy()]);
    Server::started(command, folder, None)
}

fn job(number: u32, sandbox: serde_json::Value) -> serde_json::Value {
    let id = format!("00000000-0000-4000-8000-{number:012}");
    json!({ "version": 1, "task_id": TASK, "job_id": id, "sandbox": sandbox })
}

/// Item 3: the lower bound wins. Item 9: the node's most is a job's most.
#[test]
fn bounds_of_the_file_hold() {
    let server = server(
        "worker_api: {max_request_bytes: 2000}\n\
         sandbox: {max_concurrency: 1, timeouts: {default_seconds: 1, max_seconds: 1}, resources: {max_pids: 20, max_memory_mb: 64}}\n",
    );
    let large = job(
        1,
        json!({ "command": ["true"], "env": { "X": "x".repeat(3000) } }),
    );
    assert_eq!(server.post(RUN, &large).status, 413);
    let long = server.post(
        RUN,
        &job(
            2,
            json!({ "command": ["sleep", "600"], "timeout_seconds": 500 }),
        ),
    );
    assert_eq!(
        (long.status, long.json()["status"].as_str()),
        (200, Some("timeout")),
        "{}",
        long.text()
    );
    let fork = "for i in $(seq 40); do sleep 0.5 & done 2>&1 | grep -ci 'fork\\|resource' ; wait";
    let forked = server
        .post(RUN, &job(3, json!({ "command": ["sh", "-c", fork] })))
        .json();
    assert_ne!(forked["stdout"], "0\n", "{forked}");
}

/// Requirement 73.
#[test]
fn one_job_more_than_the_file_allows_is_429() {
    let server = server("sandbox: {max_concurrency: 1}\n");
    let prefer = [("prefer", "respond-async")];
    let sleeper = job(1, json!({ "command": ["sleep", "600"] }));
    assert_eq!(
        server
            .ask(&server.admin, "POST", RUN, &prefer, &sleeper)
            .status,
        202
    );
    let more = server.post(RUN, &job(2, json!({ "command": ["true"] })));
    assert_eq!(
        (more.status, more.json()["type"].as_str()),
        (429, Some("urn:cynodeai:error:rate_limit"))
    );
    assert_eq!(
        server
            .ask(&server.admin, "POST", RUN, &prefer, &sleeper)
            .status,
        202,
        "the first one is joined"
    );
}

/// Requirement 45, item 2.
#[test]
fn a_node_that_is_disabled_takes_nothing_and_says_so() {
    let server = server("sandbox: {mode: disabled}\n");
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("disabled"), "{}", ready.text());
    assert_eq!(server.get("/healthz").status, 200);
    assert_eq!(
        server
            .post(RUN, &job(1, json!({ "command": ["true"] })))
            .status,
        503
    );
    assert_eq!(
        server
            .post(
                "/v1/worker/sessions",
                &json!({ "version": 1, "task_id": TASK })
            )
            .status,
        503
    );
}

/// Items 2 and 14.
#[test]
fn a_missing_runtime_is_named() {
    let folder = Folder::new();
    let file = folder.at("node.yaml");
    fs::write(
        &file,
        "sandbox: {runtime: podman, default_image: alpine:3}\n",
    )
    .expect("a node file");
    let mut command = serve(&folder, "", &["--node", &file.to_string_lossy()]);
    command.env(
        "CONTAINER_HOST",
        format!("unix://{}", folder.at("nobody.sock").display()),
    );
    let server = Server::started(command, folder, None);
    let ready = server.get("/readyz");
    assert_eq!(ready.status, 503, "{}", ready.text());
    assert!(
        ready.json()["title"]
            .as_str()
            .is_some_and(|title| title.to_lowercase().contains("podman")),
        "{}",
        ready.text()
    );
    let told = server.post(RUN, &job(1, json!({ "command": ["true"] })));
    assert_eq!(told.status, 200, "{}", told.text());
    let told = told.json();
    assert_eq!(
        (&told["status"], &told["exit_code"]),
        (&json!("failed"), &json!(-1))
    );
    assert_eq!(told["run_diagnostics"]["container_started"], false);
    assert_eq!(told["run_diagnostics"]["image"], "alpine:3");
    assert_eq!(told["run_diagnostics"]["runtime"], "podman");
}

/// Item 42 for the file's own list, requirement 74, `use_inference`.
#[test]
fn images_that_are_not_listed_and_models_that_are_not_given_are_refused() {
    let server = server("sandbox: {allowed_images: [alpine]}\ninference: {mode: disabled}\n");
    for sandbox in [
        json!({ "image": "busybox", "command": ["true"] }),
        json!({ "command": ["true"] }),
    ] {
        let answer = server.post(RUN, &job(1, sandbox));
        assert_eq!(answer.status, 403, "{}", answer.text());
        assert!(answer.text().contains("list"), "{}", answer.text());
    }
    let listed = server.post(
        RUN,
        &job(2, json!({ "image": "alpine:no-such", "command": ["true"] })),
    );
    assert_eq!(listed.status, 200, "the control: {}", listed.text());
    assert_eq!(
        server.get("/readyz").status,
        200,
        "no list is about our own trial"
    );
    let models = json!({ "image": "alpine", "command": ["true"], "use_inference": true });
    assert_eq!(server.post(RUN, &job(3, models)).status, 403);
}

/// Requirements 38 and 39: nothing is ignored.
#[test]
fn what_cannot_be_honoured_stops_the_start() {
    for (yaml, why) in [
        (
            "orchestrator: {url: 'http://o'}",
            "does not register itself",
        ),
        (
            "sandbox: {security: {allow_privileged: true}}",
            "sandbox.security.allow_privileged",
        ),
        ("sandbox: {mount_root: /srv}", "sandbox.mount_root"),
        ("sandbox: {max_concurency: 3}", "max_concurrency"),
        (
            "worker_api: {listen_host: 0.0.0.0, listen_port: 0}",
            "--plain-http",
        ),
        ("a: &a [1]\nb: *a", "without anchors"),
    ] {
        let folder = Folder::new();
        let file = folder.at("node.yaml");
        fs::write(&file, yaml).expect("a node file");
        let mut plain = std::process::Command::new(cli::airlock());
        plain
            .args(["serve", "--quiet", "--pool", "0", "--node"])
            .arg(&file)
            .arg("--state")
            .arg(folder.at("state"));
        plain.env_clear().stdin(std::process::Stdio::null());
        plain
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let said = refusal(&mut plain);
        assert!(said.contains(why), "{yaml}: {said}");
    }
    let folder = Folder::new();
    let file = folder.at("node.yaml");
    fs::write(&file, "version: 1\n").expect("a node file");
    let mut command = serve(&folder, "", &["--node", &file.to_string_lossy()]);
    command.env("CYNODE_SANDBOX_MOUNT_ROOT", "/srv");
    assert!(refusal(&mut command).contains("CYNODE_SANDBOX_MOUNT_ROOT"));
}

#[test]
fn the_state_folder_and_the_port_are_those_of_the_file() {
    let folder = Folder::new();
    let file = folder.at("node.yaml");
    let state = folder.at("of-the-file");
    let yaml = format!(
        "worker_api: {{listen_port: 0}}\nstorage: {{state_dir: {}}}\n",
        state.display()
    );
    fs::write(&file, yaml).expect("a node file");
    let mut command = std::process::Command::new(cli::airlock());
    command
        .args(["serve", "--json", "--quiet", "--pool", "0", "--node"])
        .arg(&file);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(std::process::Stdio::null());
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let server = Server::started(command, folder, None);
    assert!(state.join("airlock.db").exists());
    assert_eq!(
        server
            .post(RUN, &job(1, json!({ "command": ["true"] })))
            .json()["status"],
        "completed"
    );
}

/// What the file gives no job, it gives nobody else, either.
#[test]
fn the_inference_door_is_closed_for_runs_and_sandboxes_too() {
    for (yaml, status) in [
        ("inference: {mode: disabled}\n", 403),
        ("sandbox: {mode: sandbox_only}\n", 403),
    ] {
        let server = server(yaml);
        let asked = json!({ "command": ["true"], "network": "doors", "inference": true });
        let run = server.post("/v1/runs", &asked);
        assert_eq!(run.status, status, "{yaml}: {}", run.text());
        assert!(run.text().contains("inference door"), "{}", run.text());
        let made = server.post(
            "/v1/sandboxes",
            &json!({ "network": "doors", "inference": true }),
        );
        assert_eq!(made.status, status, "{yaml}: {}", made.text());
        assert_eq!(
            server
                .post("/v1/runs", &json!({ "command": ["true"] }))
                .status,
            200,
            "the control"
        );
    }
}

/// What a program of a session asks for counts, not what jobs get that ask for nothing; nor is the CPU time of one
/// such job all that the session has.
#[test]
fn a_session_lasts_as_long_as_it_was_asked_to_and_so_do_its_programs() {
    let server = server("sandbox: {timeouts: {default_seconds: 1, max_seconds: 600}}\n");
    let task = "11111111-1111-4111-8111-111111111111";
    let made = server.post(
        "/v1/worker/sessions",
        &json!({ "version": 1, "task_id": task }),
    );
    assert_eq!(made.status, 201, "{}", made.text());
    let path = format!(
        "/v1/worker/sessions/{}/exec",
        made.json()["session_id"].as_str().expect("one")
    );
    let exec = |script: &str, seconds: Option<u64>| {
        let mut order = json!({ "version": 1, "task_id": task, "command": ["sh", "-c", script] });
        if let Some(seconds) = seconds {
            order["timeout_seconds"] = seconds.into();
        }
        let answer = server.post(&path, &order);
        assert_eq!(answer.status, 200, "{}", answer.text());
        (
            answer.json()["status"].clone(),
            answer.json()["exit_code"].clone(),
        )
    };
    assert_eq!(
        exec("sleep 300", None),
        (json!("timeout"), json!(-1)),
        "the control: the default holds"
    );
    assert_eq!(
        exec("sleep 2; exit 3", Some(60)),
        (json!("failed"), json!(3))
    );
    // More than a second of all CPUs: SIGXCPU, 24, ends it.
    let busy = "ulimit -S -t $(($(nproc) + 2)); while :; do :; done";
    assert_eq!(exec(busy, Some(300)), (json!("failed"), json!(128 + 24)));
    assert_eq!(
        exec("exit 5", None),
        (json!("failed"), json!(5)),
        "the session is still there"
    );
}
