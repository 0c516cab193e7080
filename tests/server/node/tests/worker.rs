//! Jobs of the worker API, against the real server. Each claim names the item of the acceptance list that it proves.

use node_tests::{Answer, Server, is_running, key_of};
use rustix::process::Signal;
use serde_json::{Value, json};

const TASK: &str = "11111111-1111-4111-8111-111111111111";
const JOB: &str = "22222222-2222-4222-8222-222222222222";
const RUN: &str = "/v1/worker/jobs:run";

fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

fn job(id: &str, sandbox: Value) -> Value {
    json!({ "version": 1, "task_id": TASK, "job_id": id, "sandbox": sandbox })
}

fn shell(script: &str) -> Value {
    json!({ "command": ["sh", "-c", script] })
}

fn ran(server: &Server, id: &str, sandbox: Value) -> Value {
    let answer = server.post(RUN, &job(id, sandbox));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn refused(answer: &Answer, status: u16, kind: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(
        answer.json()["type"],
        format!("urn:cynodeai:error:{kind}"),
        "{}",
        answer.text()
    );
}

/// Item 1.
#[test]
fn without_a_good_key_nothing_is_let_in() {
    let server = Server::new();
    let order = job(JOB, shell("true"));
    for key in ["", "wrong", "airlock_x_y"] {
        refused(
            &server.ask(key, "POST", RUN, &[], &order),
            401,
            "authentication",
        );
    }
    let key = server.key(&["artifacts"]);
    refused(
        &server.ask(&key, "POST", RUN, &[], &order),
        403,
        "authorization",
    );
    refused(
        &server.ask(
            &server.admin,
            "GET",
            "/v1/worker/nothing",
            &[],
            &Value::Null,
        ),
        404,
        "not_found",
    );
    let expired = server.post(
        "/v1/keys",
        &json!({ "name": "e", "scopes": ["runs"], "expires_in": "3s" }),
    );
    let token = expired.json()["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    let path = format!("/v1/worker/jobs/{JOB}");
    refused(
        &server.ask(&token, "GET", &path, &[], &Value::Null),
        404,
        "not_found",
    );
    server.until("its end", || {
        server.ask(&token, "POST", RUN, &[], &order).status == 401
    });
}

/// Items 2 and 5.
#[test]
fn it_says_that_it_lives_and_is_ready_and_shows_nobody_else_s_routes() {
    let server = Server::new();
    let ask = |path: &str| server.ask("", "GET", path, &[], &Value::Null);
    assert_eq!(ask("/healthz").text().trim(), "ok");
    assert_eq!(ask("/readyz").text().trim(), "ready");
    let path = "/v1/worker/internal/orchestrator/mcp:call";
    refused(
        &server.post(path, &json!({ "version": 1 })),
        404,
        "not_found",
    );
}

/// Item 3.
#[test]
fn a_body_over_ten_mebibytes_is_413() {
    let server = Server::with("[serve]\nbody = \"32M\"\n", &[]);
    let order = job(
        JOB,
        json!({ "command": ["true"], "env": { "X": "x".repeat(11 << 20) } }),
    );
    refused(&server.post(RUN, &order), 413, "validation");
}

/// Item 4.
#[test]
fn what_is_missing_or_unknown_is_named() {
    let server = Server::new();
    let good = job(JOB, shell("true"));
    let with = |change: &dyn Fn(&mut Value)| {
        let mut order = good.clone();
        change(&mut order);
        let answer = server.post(RUN, &order);
        refused(&answer, 400, "validation");
        answer.text()
    };
    assert!(with(&|order| order["version"] = json!(2)).contains("only 1"));
    assert!(
        with(&|order| _ = order.as_object_mut().expect("it is").remove("version"))
            .contains("version")
    );
    assert!(
        with(&|order| _ = order.as_object_mut().expect("it is").remove("task_id"))
            .contains("task_id")
    );
    assert!(with(&|order| order["sandbox"]["command"] = json!([])).contains("command"));
    assert!(with(&|order| order["sandbox"]["privileged"] = json!(true)).contains("privileged"));
    assert!(with(&|order| order["extra"] = json!(1)).contains("extra"));
    assert!(with(&|order| order["sandbox"]["network_policy"] = json!("open")).contains("open"));
    assert!(
        with(&|order| order["sandbox"]["timeout_seconds"] = json!(0)).contains("timeout_seconds")
    );
    assert!(
        with(&|order| order["sandbox"]["job_spec_json"] = json!("{")).contains("job_spec_json")
    );
    assert!(with(&|order| order["sandbox"]["env"] = json!({ "PATH": "/x" })).contains("PATH"));
    let steps = json!({ "protocol_version": "1.0", "job_id": "j", "task_id": "t",
        "constraints": { "max_runtime_seconds": 9, "max_output_bytes": 9 },
        "steps": [{ "type": "run_command", "args": { "argv": ["true"] } }] });
    let steps = server.post(
        RUN,
        &job(&uuid(1), json!({ "job_spec_json": steps.to_string() })),
    );
    assert_eq!(
        steps.status,
        200,
        "a command may be missing with steps: {}",
        steps.text()
    );
    assert_eq!(server.post(RUN, &good).status, 200, "the control");
}

/// Item 6.
#[test]
fn a_job_has_every_field_of_its_result_whether_or_not_it_succeeds() {
    let server = Server::new();
    let told = ran(&server, JOB, json!({ "command": ["echo", "hello"] }));
    let wanted = json!({ "version": 1, "task_id": TASK, "job_id": JOB, "status": "completed", "exit_code": 0,
        "stdout": "hello\n", "stderr": "", "truncated": { "stdout": false, "stderr": false } });
    for (field, value) in wanted.as_object().expect("it is") {
        assert_eq!(&told[field], value, "{field}: {told}");
    }
    let times =
        ["started_at", "ended_at"].map(|field| told[field].as_str().expect("a time").to_owned());
    assert!(
        times[0] <= times[1]
            && times
                .iter()
                .all(|time| time.ends_with('Z') && time.contains('T'))
    );
    let seven = ran(&server, &uuid(1), shell("echo out; echo err >&2; exit 7"));
    assert_eq!(
        (&seven["status"], &seven["exit_code"]),
        (&json!("failed"), &json!(7))
    );
    assert_eq!(
        (&seven["stdout"], &seven["stderr"]),
        (&json!("out\n"), &json!("err\n"))
    );
    let killed = ran(&server, &uuid(2), shell("kill -9 $$"));
    assert_eq!(
        (&killed["status"], &killed["exit_code"]),
        (&json!("failed"), &json!(137))
    );
}

/// Item 7.
#[test]
fn there_is_no_network_by_either_policy() {
    let server = Server::new();
    for (number, policy) in [(1, "none"), (2, "restricted")] {
        let script = "ls /sys/class/net 2>/dev/null || cut -d: -f1 /proc/net/dev | tail -n +3; \
                      exec 3<>/dev/tcp/192.0.2.1/80 && echo connected";
        let order = json!({ "command": ["bash", "-c", script], "network_policy": policy });
        let told = ran(&server, &uuid(number), order);
        assert_eq!(
            told["stdout"]
                .as_str()
                .expect("text")
                .split_whitespace()
                .collect::<Vec<_>>(),
            ["lo"],
            "{told}"
        );
        assert_ne!(told["exit_code"], 0);
    }
}

/// Item 8.
#[test]
fn its_own_variables_are_there_and_cannot_be_forged() {
    let server = Server::new();
    let forged = json!({ "CYNODE_TASK_ID": "f", "CYNODE_JOB_ID": "f", "CYNODE_WORKSPACE_DIR": "/f",
        "CYNODE_PROMPT": "passes" });
    let script = "echo $CYNODE_TASK_ID $CYNODE_JOB_ID $CYNODE_WORKSPACE_DIR $CYNODE_PROMPT";
    let told = ran(
        &server,
        JOB,
        json!({ "command": ["sh", "-c", script], "env": forged }),
    );
    assert_eq!(told["stdout"], format!("{TASK} {JOB} /workspace passes\n"));
}

/// Item 9.
#[test]
fn a_job_whose_time_is_over_is_gone() {
    let server = Server::new();
    let marker = format!("600.9{}", std::process::id());
    let script = format!("echo began; sleep {marker} & wait");
    let order = job(
        JOB,
        json!({ "command": ["sh", "-c", script], "timeout_seconds": 3 }),
    );
    let prefer = [("prefer", "respond-async")];
    assert_eq!(
        server
            .ask(&server.admin, "POST", RUN, &prefer, &order)
            .status,
        202
    );
    server.until("its process", || is_running(&["sleep", &marker]));
    let told = server.post(RUN, &order).json();
    assert!(!is_running(&["sleep", &marker]), "all of it is gone");
    assert_eq!(
        (&told["status"], &told["exit_code"]),
        (&json!("timeout"), &json!(-1)),
        "{told}"
    );
    assert_eq!(told["stdout"], "began\n");
    assert_eq!(told["run_diagnostics"]["container_started"], true);
}

/// Item 10.
#[test]
fn both_streams_are_cut_at_a_character_and_say_so() {
    let server = Server::new();
    let script = "import sys; sys.stdout.write('a' + '€' * 200000); sys.stderr.write('short')";
    let told = ran(
        &server,
        JOB,
        json!({ "command": ["python3", "-c", script] }),
    );
    let stdout = told["stdout"].as_str().expect("text");
    assert!(
        (262_140..=262_144).contains(&stdout.len()),
        "{}",
        stdout.len()
    );
    assert!(
        stdout.starts_with("a€") && stdout.chars().skip(1).all(|sign| sign == '€'),
        "nothing but its output"
    );
    assert_eq!(
        told["truncated"],
        json!({ "stdout": true, "stderr": false })
    );
    assert_eq!(told["stderr"], "short");
    let endless = json!({ "command": ["timeout", "1", "yes"] });
    let told = ran(&server, &uuid(1), endless);
    assert_eq!(told["stdout"].as_str().map(str::len), Some(262_144));
    let binary =
        json!({ "command": ["python3", "-c", "import os; os.write(1, b'\\xff' * 300000)"] });
    let told = ran(&server, &uuid(2), binary);
    assert!(
        told["stdout"]
            .as_str()
            .is_some_and(|text| text.len() <= 262_144 && text.starts_with('\u{fffd}'))
    );
}

/// Item 11.
#[test]
fn a_workspace_is_one_job_s() {
    let server = Server::new();
    let told = ran(
        &server,
        JOB,
        shell("cd /workspace && echo secret > file && cat file"),
    );
    assert_eq!(told["stdout"], "secret\n");
    let next = ran(
        &server,
        &uuid(1),
        shell("ls /workspace; cat /workspace/file 2>&1 | grep -c secret"),
    );
    assert_eq!(next["stdout"], "0\n");
}

/// Item 12.
#[test]
fn nothing_of_the_server_is_in_a_job_or_its_result() {
    let folder = node_tests::Folder::new();
    let mut command = gateway_tests::serve(&folder, "", &[]);
    command.env("WORKER_API_BEARER_TOKEN", "very-secret-value");
    let server = Server::started(command, folder, None);
    let told = ran(&server, JOB, shell("env; cat /proc/self/environ")).to_string();
    assert!(told.contains("CYNODE_JOB_ID") && !told.contains("very-secret-value"));
    assert!(
        !told.contains(&*server.folder.0.to_string_lossy()),
        "no path of the host: {told}"
    );
}

/// Item 13.
#[test]
fn hostile_identifiers_are_refused_and_nothing_is_deleted() {
    let server = Server::new();
    let kept = server.folder.at("state/kept");
    std::fs::write(&kept, "x").expect("a file");
    for id in [
        "..",
        "../..",
        "/",
        "",
        ".",
        &"a".repeat(300),
        "a/../../b",
        &format!("{}\u{0}", &JOB[..35]),
    ] {
        refused(
            &server.post(RUN, &job(id, shell("true"))),
            400,
            "validation",
        );
        let stop = json!({ "version": 1, "task_id": TASK, "job_id": id });
        refused(
            &server.post("/v1/worker/jobs:stop", &stop),
            400,
            "validation",
        );
    }
    for path in ["/v1/worker/jobs/..%2f..", "/v1/worker/jobs/x"] {
        assert!(matches!(server.get(path).status, 400 | 404));
    }
    assert!(kept.exists());
}

/// Item 14.
#[test]
fn what_cannot_start_has_failed_with_its_cause() {
    let server = Server::new();
    let told = ran(
        &server,
        JOB,
        json!({ "image": "no-such.example/image:1", "command": ["true"] }),
    );
    assert_eq!(
        (&told["status"], &told["exit_code"]),
        (&json!("failed"), &json!(-1)),
        "{told}"
    );
    let diagnostics = &told["run_diagnostics"];
    assert_eq!(diagnostics["container_started"], false);
    assert_eq!(diagnostics["image"], "no-such.example/image:1");
    assert!(
        diagnostics["reason"]
            .as_str()
            .is_some_and(|why| why.starts_with("not_started: ")),
        "{told}"
    );
    let missing = ran(
        &server,
        &uuid(1),
        json!({ "command": ["/no/such/program"] }),
    );
    assert_eq!(
        (&missing["status"], &missing["exit_code"]),
        (&json!("failed"), &json!(127)),
        "{missing}"
    );
}

/// Items 44 and 45.
#[test]
fn the_same_job_is_never_run_twice_also_after_a_restart() {
    let folder = node_tests::Folder::new();
    let server = Server::on(folder, "", &[], None);
    let order = shell("date +%s%N; head -c 200000 /dev/zero | tr '\\0' x");
    let first = ran(&server, JOB, order.clone());
    assert_eq!(ran(&server, JOB, order.clone()), first, "the same result");
    let other = server.post(RUN, &job(JOB, shell("echo other")));
    assert_eq!(other.status, 409, "{}", other.text());
    let tenant = key_of(&server, "else", &["runs"]);
    let theirs = server.ask(&tenant, "POST", RUN, &[], &job(JOB, shell("echo theirs")));
    assert_eq!(
        (theirs.status, theirs.json()["stdout"].as_str()),
        (200, Some("theirs\n"))
    );
    let server = server.restart(Signal::KILL, "");
    assert_eq!(ran(&server, JOB, order), first, "and the whole of it");
    assert_eq!(server.get(&format!("/v1/worker/jobs/{JOB}")).json(), first);
}

/// Items 36 and 44.
#[test]
fn a_job_can_be_sent_without_waiting_and_is_lost_with_its_node() {
    let server = Server::new();
    let prefer = [("prefer", "respond-async")];
    let order = job(JOB, shell("echo began; sleep 600"));
    let path = format!("/v1/worker/jobs/{JOB}");
    assert_eq!(server.get(&path).status, 404);
    let sent = server.ask(&server.admin, "POST", RUN, &prefer, &order);
    let wanted = json!({ "version": 1, "task_id": TASK, "job_id": JOB, "status": "accepted" });
    assert_eq!((sent.status, sent.json()), (202, wanted), "{}", sent.text());
    server.until("its start", || {
        server.get(&path).json()["status"] == "in_progress"
    });
    assert_eq!(
        server
            .ask(&server.admin, "POST", RUN, &prefer, &order)
            .status,
        202,
        "it is joined"
    );
    let stranger = key_of(&server, "else", &["runs"]);
    assert_eq!(
        server
            .ask(&stranger, "GET", &path, &[], &Value::Null)
            .status,
        404
    );
    let server = server.restart(Signal::KILL, "");
    let lost = server.get(&path).json();
    assert_eq!(
        (&lost["status"], &lost["exit_code"]),
        (&json!("failed"), &json!(-1)),
        "{lost}"
    );
    assert_eq!(
        (&lost["run_diagnostics"]["reason"], &lost["job_id"]),
        (&json!("lost"), &json!(JOB))
    );
    assert_eq!(server.post(RUN, &order).json(), lost, "it is not run again");
}

/// Item 36: a stop is gentle, then not, and can be repeated.
#[test]
fn a_stopped_program_may_end_by_itself_and_one_that_will_not_is_killed() {
    let server = Server::new();
    let prefer = [("prefer", "respond-async")];
    let stop = |id: &str, task: &str, grace: u64| {
        let order = json!({ "version": 1, "task_id": task, "job_id": id, "grace_seconds": grace });
        server.post("/v1/worker/jobs:stop", &order)
    };
    refused(&stop(JOB, TASK, 1), 404, "not_found");
    let gentle = "trap 'echo bye; exit 3' TERM; echo began; while :; do sleep 0.01; done";
    let deaf = "trap '' TERM; echo began; while :; do sleep 0.01; done";
    for (number, script) in [(1, gentle), (2, deaf)] {
        let id = uuid(number);
        server.ask(
            &server.admin,
            "POST",
            RUN,
            &prefer,
            &job(&id, shell(script)),
        );
        let run = || server.get("/v1/runs?status=running").json()["runs"][0]["run_id"].clone();
        server.until("the run", || run().is_string());
        let run = run().as_str().expect("its name").to_owned();
        // Once it has written its trap is set.
        let mut events = server.client.open(&server.request(
            &server.admin,
            "GET",
            &format!("/v1/runs/{run}/events"),
            &[],
            &Value::Null,
        ));
        let mut seen = Vec::new();
        events.head();
        while !String::from_utf8_lossy(&seen).contains("began") {
            seen.extend(events.chunk().expect("its output"));
        }
        refused(&stop(&id, &uuid(99), 1), 404, "not_found");
        assert_eq!(
            stop(&id, TASK, if number == 1 { 30 } else { 1 }).status,
            200
        );
        let path = format!("/v1/worker/jobs/{id}");
        server.until("its end", || server.get(&path).json()["exit_code"].is_i64());
        let told = server.get(&path).json();
        let code = if number == 1 { 3 } else { 137 };
        assert_eq!(
            (&told["status"], &told["exit_code"]),
            (&json!("failed"), &json!(code)),
            "{told}"
        );
        assert_eq!(told["run_diagnostics"]["reason"], "cancelled");
        assert_eq!(
            told["stdout"],
            if number == 1 {
                "began\nbye\n"
            } else {
                "began\n"
            }
        );
        assert_eq!(stop(&id, TASK, 1).json(), told, "again");
    }
    refused(&stop(JOB, TASK, 301), 400, "validation");
}

/// Item 36: the whole node is told to stop.
#[test]
fn an_admin_stops_everything_of_everybody() {
    let server = Server::new();
    let tenant = key_of(&server, "acme", &["runs", "sandboxes"]);
    let prefer = [("prefer", "respond-async")];
    server.ask(&tenant, "POST", RUN, &prefer, &job(JOB, shell("sleep 600")));
    let session = json!({ "version": 1, "task_id": TASK });
    assert_eq!(
        server
            .ask(&tenant, "POST", "/v1/worker/sessions", &[], &session)
            .status,
        201
    );
    let path = "/v1/worker/admin/stop-all-orchestrator-directed";
    let order = json!({ "version": 1 });
    refused(
        &server.ask(&tenant, "POST", path, &[], &order),
        403,
        "authorization",
    );
    let stopped = server.post(path, &order).json();
    let count = |field: &str| stopped[field].as_array().map(Vec::len);
    assert_eq!(
        ["runs", "sessions", "left"].map(count),
        [Some(1), Some(1), Some(0)],
        "{stopped}"
    );
    let told = server
        .ask(
            &tenant,
            "GET",
            &format!("/v1/worker/jobs/{JOB}"),
            &[],
            &Value::Null,
        )
        .json();
    assert_eq!(told["run_diagnostics"]["reason"], "cancelled");
    assert_eq!(
        ran(&server, &uuid(1), shell("true"))["status"],
        "completed",
        "new work is taken"
    );
}

/// Requirement 65: what a job keeps is named with where it is fetched.
#[test]
fn what_a_job_keeps_can_be_fetched() {
    let server = Server::new();
    let told = ran(
        &server,
        JOB,
        shell("mkdir -p $CYNODE_ARTIFACTS_DIR && echo kept > $CYNODE_ARTIFACTS_DIR/a.txt"),
    );
    let artifact = &told["artifacts"][0];
    assert_eq!(
        (&artifact["size_bytes"], &artifact["content_type"]),
        (&json!(5), &json!("application/octet-stream"))
    );
    let place = artifact["ref"]
        .as_str()
        .unwrap_or_else(|| panic!("a place: {told}"));
    assert_eq!(server.get(place).text(), "kept\n");
}

/// Item 36 for what waits: nothing of it starts in the place of what was ended.
#[test]
fn an_admin_stops_the_queue_too() {
    let server = Server::with("[jobs]\nslots = 1\n", &[]);
    let tenant = key_of(&server, "acme", &["runs"]);
    let submit = |key: &str, order: Value| {
        let answer = server.ask(key, "POST", "/v1/jobs", &[], &order);
        assert_eq!(answer.status, 202, "{}", answer.text());
        answer.json()["job_id"]
            .as_str()
            .expect("its name")
            .to_owned()
    };
    let job = |id: &str| server.get(&format!("/v1/jobs/{id}")).json();
    let first = submit(
        &server.admin,
        json!({ "run": { "command": ["sleep", "600"] } }),
    );
    server.until("its start", || job(&first)["status"] == "running");
    let second = submit(
        &server.admin,
        json!({ "run": { "command": ["sleep", "600"] } }),
    );
    let behind = submit(
        &server.admin,
        json!({ "run": { "command": ["sleep", "600"] }, "after": [second] }),
    );
    let others = submit(&tenant, json!({ "run": { "command": ["sleep", "600"] } }));
    let stopped = server
        .post(
            "/v1/worker/admin/stop-all-orchestrator-directed",
            &json!({ "version": 1 }),
        )
        .json();
    let mut named: Vec<_> = stopped["jobs"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    named.sort_unstable();
    let mut waited = [second.as_str(), &behind, &others];
    waited.sort_unstable();
    assert_eq!(named, waited, "{stopped}");
    assert_eq!(
        (stopped["runs"].as_array().map(Vec::len), &stopped["left"]),
        (Some(1), &json!([])),
        "{stopped}"
    );
    for id in [&first, &second, &behind, &others] {
        assert_eq!(job(id)["status"], "cancelled", "{id}");
    }
    let next = submit(&tenant, json!({ "run": { "command": ["true"] } }));
    server.until("new work", || job(&next)["status"] == "succeeded");
    // Nothing comes back with the next start, either.
    let server = server.restart(Signal::KILL, "");
    assert_eq!(
        server.get(&format!("/v1/jobs/{second}")).json()["status"],
        "cancelled"
    );
}

/// What a job may use is held while it ends, too.
#[test]
fn a_job_that_is_to_end_is_held_to_its_cpu_time() {
    let server = Server::with("[maximum]\ncpu_time = \"2s\"\n", &[]);
    // Many short processes: only the box as a whole has a limit that they reach.
    let busy = "trap '' TERM; echo began; while :; do (i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done); done";
    let prefer = [("prefer", "respond-async")];
    assert_eq!(
        server
            .ask(&server.admin, "POST", RUN, &prefer, &job(JOB, shell(busy)))
            .status,
        202
    );
    let path = format!("/v1/worker/jobs/{JOB}");
    server.until("its start", || {
        server.get(&path).json()["status"] == "in_progress"
    });
    let order = json!({ "version": 1, "task_id": TASK, "job_id": JOB, "grace_seconds": 300 });
    assert_eq!(server.post("/v1/worker/jobs:stop", &order).status, 200);
    server.until("its end", || server.get(&path).json()["exit_code"].is_i64());
    let told = server.get(&path).json();
    assert_ne!(
        told["run_diagnostics"]["reason"], "cancelled",
        "its grace is not over: {told}"
    );
}

/// Many clients send all of a body before they read anything, and read nothing if that fails; they, too, hear of it.
#[test]
fn who_sends_all_of_a_body_that_is_too_large_is_told_so() {
    let server = Server::new();
    let script = "import http.client, sys\n\
                  host, key, path, size = sys.argv[1:]\n\
                  for _ in range(8):\n    \
                      plain = http.client.HTTPConnection(host, timeout=60)\n    \
                      plain.request('POST', path, b'x' * int(size), {'authorization': 'Bearer ' + key})\n    \
                      print(plain.getresponse().status)\n";
    let sent = |key: &str, path: &str, mebibytes: usize| {
        let size = (mebibytes << 20).to_string();
        let host = server.client.host();
        let client = std::process::Command::new("python3")
            .args(["-c", script, &host, key, path, &size])
            .output();
        let client = client.expect("python3");
        assert!(
            client.status.success(),
            "{}",
            String::from_utf8_lossy(&client.stderr)
        );
        String::from_utf8(client.stdout).expect("text")
    };
    assert_eq!(sent(&server.admin, RUN, 11), "413\n".repeat(8));
    assert_eq!(sent(&server.admin, "/v1/runs", 40), "413\n".repeat(8));
    assert_eq!(sent("nobody's", "/v1/runs", 11), "401\n".repeat(8));
    assert_eq!(
        sent(&server.admin, RUN, 1),
        "400\n".repeat(8),
        "the control: all of it is read"
    );
}

/// Nothing of ours is in it, however little the operator allows.
#[test]
fn output_of_which_little_is_kept_is_its_beginning_too() {
    let server = Server::with("[maximum]\noutput = \"100K\"\n", &[]);
    let told = ran(&server, JOB, json!({ "command": ["seq", "1", "100000"] }));
    let stdout = told["stdout"].as_str().expect("text");
    let wanted: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert!(
        wanted.starts_with(stdout) && stdout.len() == 50 << 10,
        "{}",
        stdout.len()
    );
    assert_eq!(told["truncated"]["stdout"], true);
    let told = ran(
        &server,
        &uuid(1),
        json!({ "command": ["head", "-c", "90000", "/dev/zero"] }),
    );
    assert_eq!(
        told["stdout"].as_str().map(str::len),
        Some(90_000),
        "the control: it fits"
    );
    assert_eq!(told["truncated"]["stdout"], false);
}

/// Item 10: the server reads for as long as somebody writes, and keeps only what it tells.
#[test]
fn who_writes_without_end_takes_no_memory_of_the_server() {
    let server = Server::new();
    let of = |file: &str, name: &str| -> u64 {
        let text =
            std::fs::read_to_string(format!("/proc/{}/{file}", server.pid)).expect("it runs");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("a line");
        line.split_whitespace()
            .next()
            .and_then(|number| number.parse().ok())
            .expect("a number")
    };
    // One that writes little makes what every job needs.
    ran(&server, &uuid(1), json!({ "command": ["true"] }));
    let (memory, read) = (of("status", "VmRSS:"), of("io", "rchar:"));
    let prefer = [("prefer", "respond-async")];
    let order = job(
        JOB,
        json!({ "command": ["sh", "-c", "yes >&2 & exec yes"] }),
    );
    assert_eq!(
        server
            .ask(&server.admin, "POST", RUN, &prefer, &order)
            .status,
        202
    );
    let mut most = 0;
    server.until("a hundred times what is kept", || {
        most = of("status", "VmRSS:").max(most);
        of("io", "rchar:") > read + (64 << 20)
    });
    assert!(most < memory + (32 << 10), "{memory} KiB became {most} KiB");
    let stop = json!({ "version": 1, "task_id": TASK, "job_id": JOB, "grace_seconds": 0 });
    assert_eq!(server.post("/v1/worker/jobs:stop", &stop).status, 200);
    let told = server.post(RUN, &order).json();
    for stream in ["stdout", "stderr"] {
        assert_eq!(
            told[stream].as_str().map(str::len),
            Some(262_144),
            "{stream}"
        );
    }
}
