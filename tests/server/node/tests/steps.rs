//! The agent job contract: a job of steps from a file, its result in another, carried out by the real program. The numbers are those
//! of the acceptance tests that a claim stands for.

use cli::World;
use node_tests::Server;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::fs::symlink,
    process::Stdio,
    thread,
};

fn job(steps: Value) -> Value {
    json!({
        "protocol_version": "1.0", "job_id": "job-1", "task_id": "task-1",
        "constraints": { "max_runtime_seconds": 60, "max_output_bytes": 100_000 }, "steps": steps,
    })
}

fn command(argv: &[&str]) -> Value {
    json!({ "type": "run_command", "args": { "argv": argv } })
}

/// Carries a job out in `ws`, with further arguments; the exit status, and the result as it is in its file.
fn carried_out(world: &World, job: &Value, more: &[&str]) -> (Option<i32>, Value) {
    fs::create_dir_all(world.here("ws")).expect("a workspace");
    world.write("job.json", &job.to_string());
    let usual = [
        "steps",
        "--job",
        "job.json",
        "--result",
        "result.json",
        "--workspace",
        "ws",
    ];
    let answer = world.run(&[&usual[..], more].concat());
    let text = fs::read_to_string(world.here("result.json"))
        .unwrap_or_else(|_| panic!("a result: {answer:?}"));
    (
        answer.status,
        serde_json::from_str(&text).expect("the result is JSON"),
    )
}

/// 19: version 1 is spoken here; what else is wrong with a job is named by its field, and nothing of it is carried out.
#[test]
fn a_job_is_checked_whole_before_anything_is_carried_out() {
    let world = World::new();
    let good = job(json!([command(&["touch", "ran"])]));
    let changed = |name: &str, value: Value| {
        let mut changed = good.clone();
        changed[name] = value;
        changed
    };
    for (bad, field) in [
        (
            changed("protocol_version", json!("99.0")),
            "protocol_version",
        ),
        (changed("surprise", json!(1)), "surprise"),
        (changed("job_id", json!("")), "job_id"),
        (
            changed(
                "steps",
                json!([command(&["touch", "ran"]), { "type": "fly" }]),
            ),
            "steps[1].type",
        ),
        (
            changed(
                "steps",
                json!([{ "type": "search_files", "args": { "pattern": "(" } }]),
            ),
            "steps[0].args.pattern",
        ),
    ] {
        let (status, result) = carried_out(&world, &bad, &[]);
        assert_eq!(
            (status, &result["status"], &result["failure_code"]),
            (Some(125), &json!("failure"), &json!("schema_validation"))
        );
        assert!(
            result["failure_message"]
                .as_str()
                .expect("a reason")
                .contains(&format!("`{field}`")),
            "{result}"
        );
        assert!(!world.here("ws/ran").exists(), "{field}");
    }
    world.write("job.json", "{\"job_id\": ");
    let answer = world.run(&["steps", "--job", "job.json", "--json"]);
    assert_eq!(
        (answer.status, &answer.json()["failure_code"]),
        (Some(125), &json!("schema_validation"))
    );
    // 20, and the control: the same job without a fault runs.
    let (status, result) = carried_out(&world, &good, &[]);
    assert_eq!(
        (status, &result["status"]),
        (Some(0), &json!("success")),
        "{result}"
    );
    assert!(world.here("ws/ran").exists());
    for field in ["protocol_version", "job_id", "status", "steps", "artifacts"] {
        assert!(result.get(field).is_some(), "{field}: {result}");
    }
}

/// 21: from a file and by standard input; the output of each step is in the result.
#[test]
fn steps_are_carried_out_in_their_order_and_say_what_they_wrote() {
    let world = World::new();
    let diff = "--- a/src/a.txt\n+++ b/src/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n";
    let steps = json!([
        { "type": "write_file", "args": { "path": "src/a.txt", "content": "one\ntwo\nthree\n" } },
        { "type": "run_command", "args": { "argv": ["sh", "-c", "pwd; cat a.txt; echo oh >&2"], "cwd": "src" } },
        { "type": "apply_unified_diff", "args": { "diff": diff } },
        { "type": "read_file", "args": { "path": "/workspace/src/a.txt", "start_line": 2, "end_line": 2 } },
        { "type": "search_files", "args": { "pattern": "^T.O$", "include": "*.txt" } },
        { "type": "list_tree", "args": { "path": "src" } },
    ]);
    let (status, result) = carried_out(&world, &job(steps.clone()), &[]);
    assert_eq!(status, Some(0), "{result}");
    let output = |index: usize| {
        result["steps"][index]["output"]
            .as_str()
            .expect("an output")
    };
    assert!(
        output(1).starts_with("/workspace/src\none\ntwo\nthree\n") && output(1).contains("oh\n"),
        "{result}"
    );
    assert_eq!(
        (output(3), output(4), output(5)),
        ("TWO\n", "src/a.txt:2:TWO\n", "src/a.txt\n")
    );
    assert_eq!(result["steps"][1]["exit_code"], 0);
    assert_eq!(
        fs::read_to_string(world.here("ws/src/a.txt")).expect("it is there"),
        "one\nTWO\nthree\n"
    );

    let mut child = world
        .command(&["steps", "--stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdin = child.stdin.take().expect("it is ours");
    stdin
        .write_all(job(steps).to_string().as_bytes())
        .expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let printed: Value = serde_json::from_slice(&output.stdout).expect("one result");
    assert_eq!(
        (output.status.code(), &printed["status"], &printed["steps"]),
        (Some(0), &json!("success"), &result["steps"])
    );
}

#[test]
fn a_step_that_fails_ends_the_job_unless_it_says_otherwise() {
    let world = World::new();
    let mut fails = command(&["sh", "-c", "echo why; exit 3"]);
    let (status, result) = carried_out(
        &world,
        &job(json!([fails, command(&["touch", "after"])])),
        &[],
    );
    assert_eq!(
        (
            status,
            &result["failure_code"],
            &result["steps"][0]["exit_code"]
        ),
        (Some(1), &json!("step_failed"), &json!(3))
    );
    assert_eq!(result["steps"].as_array().map(Vec::len), Some(1));
    assert!(!world.here("ws/after").exists());
    fails["on_failure"] = json!("continue");
    let (status, result) = carried_out(
        &world,
        &job(json!([fails, command(&["touch", "after"])])),
        &[],
    );
    assert_eq!(
        (status, &result["status"], &result["steps"][1]["status"]),
        (Some(1), &json!("failure"), &json!("success"))
    );
    assert!(world.here("ws/after").exists());
}

/// 22: more output than the job may have, in one step or in all together; and 1.20, that its time is held.
#[test]
fn output_and_time_are_held() {
    let world = World::new();
    let mut small = job(json!([
        command(&["sh", "-c", "printf 123456"]),
        command(&["sh", "-c", "printf 123456"])
    ]));
    small["constraints"]["max_output_bytes"] = json!(10);
    let (status, result) = carried_out(&world, &small, &[]);
    assert_eq!(
        (status, &result["status"], &result["failure_code"]),
        (Some(1), &json!("failure"), &json!("constraint_violation"))
    );
    assert_eq!(
        (&result["steps"][0]["output"], &result["steps"][1]["output"]),
        (&json!("123456"), &json!("1234"))
    );
    // One that would write for ever is stopped there, and does not get to use all its time.
    small["steps"] = json!([command(&["yes", "ä"])]);
    let (_, result) = carried_out(&world, &small, &[]);
    assert_eq!(
        (&result["failure_code"], &result["steps"][0]["output"]),
        (&json!("constraint_violation"), &json!("ä\nä\nä\n"))
    );
    let mut slow = job(json!([
        command(&["sh", "-c", "echo begun; sleep 1000"]),
        command(&["touch", "after"])
    ]));
    slow["constraints"]["max_runtime_seconds"] = json!(1);
    let (status, result) = carried_out(&world, &slow, &[]);
    assert_eq!(
        (status, &result["status"], &result["failure_code"]),
        (Some(124), &json!("timeout"), &json!("timeout"))
    );
    assert_eq!(
        (&result["steps"][0]["status"], &result["steps"][0]["output"]),
        (&json!("timeout"), &json!("begun\n"))
    );
    assert!(!world.here("ws/after").exists());
}

/// 23: no path leaves the workspace, whatever a step does with it: by its words or by links, of the host's or of a program's.
#[test]
fn no_path_leaves_the_workspace() {
    let world = World::new();
    fs::create_dir_all(world.here("ws")).expect("a workspace");
    world
        .write("outside.txt", "secret\n")
        .write("out/secret.txt", "secret\n");
    symlink(world.here("outside.txt"), world.here("ws/file")).expect("a link");
    symlink(world.here("out"), world.here("ws/folder")).expect("a link");
    let diff = |path: &str| format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-secret\n+changed\n");
    let new = |path: &str| format!("--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+new\n");
    let mut steps = vec![command(&["ln", "-s", "/etc", "theirs"])];
    for path in [
        "../outside.txt",
        "/etc/passwd",
        "/workspacex/a",
        "a/../../x",
        "file",
        "folder/secret.txt",
        "theirs/passwd",
    ] {
        steps.push(json!({ "type": "read_file", "args": { "path": path } }));
        steps.push(json!({ "type": "write_file", "args": { "path": path, "content": "changed" } }));
        steps.push(json!({ "type": "list_tree", "args": { "path": path } }));
        steps.push(json!({ "type": "search_files", "args": { "path": path, "pattern": "." } }));
        steps.push(json!({ "type": "run_command", "args": { "argv": ["pwd"], "cwd": path } }));
        steps.push(json!({ "type": "apply_unified_diff", "args": { "diff": diff(path) } }));
        steps.push(json!({ "type": "apply_unified_diff", "args": { "diff": new(path) } }));
    }
    steps
        .iter_mut()
        .for_each(|step| step["on_failure"] = json!("continue"));
    let (_, result) = carried_out(&world, &job(json!(steps)), &[]);
    let done = result["steps"].as_array().expect("steps");
    assert_eq!(
        (done.len(), &done[0]["status"]),
        (steps.len(), &json!("success"))
    );
    for (step, done) in steps.iter().zip(done).skip(1) {
        assert_eq!(done["status"], "failure", "{step} {done}");
        assert!(
            done["error"]
                .as_str()
                .expect("a reason")
                .contains("path escapes workspace"),
            "{step} {done}"
        );
    }
    assert!(!result.to_string().contains("secret\\n"), "{result}");
    assert_eq!(
        fs::read_to_string(world.here("outside.txt")).expect("it is there"),
        "secret\n"
    );
    assert_eq!(
        fs::read_dir(world.here("out"))
            .expect("it is there")
            .count(),
        1
    );
    // The control: beside the links all of it works.
    let fine = json!([
        { "type": "write_file", "args": { "path": "a/b", "content": "secret\n" } },
        { "type": "apply_unified_diff", "args": { "diff": diff("a/b") } },
        { "type": "apply_unified_diff", "args": { "diff": new("a/c") } },
        { "type": "run_command", "args": { "argv": ["cat", "b", "c"], "cwd": "/workspace/a" } },
    ]);
    let (status, result) = carried_out(&world, &job(fine), &[]);
    assert_eq!(
        (status, &result["steps"][3]["output"]),
        (Some(0), &json!("changed\nnew\n")),
        "{result}"
    );
}

/// Of a diff, all is applied or nothing.
#[test]
fn a_diff_that_does_not_fit_changes_nothing() {
    let world = World::new();
    world.write("ws/one", "a\n").write("ws/two", "b\n");
    let diff =
        "--- a/one\n+++ b/one\n@@ -1 +1 @@\n-a\n+A\n--- a/two\n+++ b/two\n@@ -1 +1 @@\n-x\n+X\n";
    let (status, result) = carried_out(
        &world,
        &job(json!([{ "type": "apply_unified_diff", "args": { "diff": diff } }])),
        &[],
    );
    assert_eq!(
        (status, &result["failure_code"]),
        (Some(1), &json!("step_failed"))
    );
    assert!(
        result["failure_message"]
            .as_str()
            .expect("a reason")
            .contains("`two`: hunk 1 does not fit"),
        "{result}"
    );
    assert_eq!(
        fs::read_to_string(world.here("ws/one")).expect("it is there"),
        "a\n"
    );
}

/// 24: whoever is to be told hears that it goes on, then what came of it; that nobody listens is a note.
#[test]
fn the_caller_is_told_of_the_beginning_and_the_end() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!(
        "http://{}/hook?x=1",
        listener.local_addr().expect("an address")
    );
    let heard = thread::spawn(move || (0..2).map(|_| message(&listener)).collect::<Vec<_>>());
    let one = job(json!([command(&["echo", "hello"])]));
    let (status, result) = carried_out(&world, &one, &["--callback", &url]);
    let heard = heard.join().expect("two messages");
    assert_eq!(
        (status, &heard[0]["status"], &heard[1]["status"]),
        (Some(0), &json!("in_progress"), &json!("completed"))
    );
    assert_eq!(heard[1]["result"], result);
    let (status, _) = carried_out(&world, &one, &["--callback", &url]);
    assert_eq!(status, Some(0), "nobody listens any more");
}

fn message(listener: &TcpListener) -> Value {
    let (stream, _) = listener.accept().expect("somebody calls");
    let mut reader = BufReader::new(&stream);
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a line");
        let lower = line.to_ascii_lowercase();
        if let Some(number) = lower.strip_prefix("content-length:") {
            length = number.trim().parse().expect("a number");
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    (&stream)
        .write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        .expect("it listens");
    serde_json::from_slice(&body).expect("JSON")
}

/// 26: a program of the caller's finds the job and leaves the result; without one that can be believed the job has failed, and
/// a time that was over stays so.
#[test]
fn a_program_of_the_callers_leaves_its_result_in_the_folder_of_the_job() {
    let world = World::new();
    let agent = |script: &str, seconds: u64| {
        let mut job = job(json!([command(&["true"])]));
        job["constraints"]["max_runtime_seconds"] = json!(seconds);
        carried_out(&world, &job, &["--", "sh", "-c", script])
    };
    let good = r#"test "$SBA_JOB_PATH" = /job/job.json && grep -q run_command /job/job.json && echo kept > /job/artifacts/a.txt &&
        printf '{"protocol_version":"1.0","job_id":"job-1","status":"success","steps":[],"artifacts":[],"final_answer":"done"}' > "$SBA_RESULT_PATH""#;
    let (status, result) = agent(good, 60);
    assert_eq!(
        (status, &result["final_answer"], &result["inference_used"]),
        (Some(0), &json!("done"), &json!(false)),
        "{result}"
    );
    assert_eq!(
        result["artifacts"][0]["path"], "/job/artifacts/a.txt",
        "{result}"
    );
    for (script, why) in [
        ("true", "no /job/result.json"),
        ("echo '{' > /job/result.json", "not one JSON object"),
        ("ln -s /etc/passwd /job/result.json", "cannot be read"),
        ("mkfifo /job/result.json", "not a regular file"),
        (
            "head -c 2000000 /dev/zero > /job/result.json",
            "longer than",
        ),
        (
            r#"printf '{"protocol_version":"1.0","job_id":"other","status":"success","steps":[],"artifacts":[]}' > /job/result.json"#,
            "`job_id`",
        ),
        (
            r#"printf '{"protocol_version":"1.0","job_id":"job-1","status":"success","steps":[],"artifacts":[]}' > /job/result.json; exit 3"#,
            "exited with 3",
        ),
    ] {
        let (status, result) = agent(script, 60);
        assert_eq!(
            (status, &result["status"], &result["failure_code"]),
            (Some(1), &json!("failure"), &json!("schema_validation")),
            "{script}: {result}"
        );
        assert!(
            result["failure_message"]
                .as_str()
                .expect("a reason")
                .contains(why),
            "{script}: {result}"
        );
    }
    let (status, result) = agent("sleep 1000", 1);
    assert_eq!(
        (status, &result["status"], &result["failure_code"]),
        (Some(124), &json!("timeout"), &json!("timeout"))
    );
    let left = fs::read_dir(world.state().join("job-folders"))
        .expect("it was used")
        .count();
    assert_eq!(left, 0, "each folder of a job is gone with it");
}

/// What a program writes to the folder of its job is held like its scratch space, also where it ends before anybody looks.
#[test]
fn the_folder_of_a_job_takes_no_more_than_the_disk_of_its_box() {
    let world = World::new();
    let agent = |script: &str| {
        let script = format!("head -c {script}");
        carried_out(
            &world,
            &job(json!([command(&["true"])])),
            &["--disk", "4M", "--", "sh", "-c", &script],
        )
    };
    let answer = r#"printf '{"protocol_version":"1.0","job_id":"job-1","status":"success","steps":[],"artifacts":[]}' > /job/result.json"#;
    let (status, result) = agent(&format!("3M /dev/zero > /job/large; {answer}"));
    assert_eq!(
        (status, &result["status"]),
        (Some(0), &json!("success")),
        "{result}"
    );
    let (status, result) = agent(&format!(
        "16M /dev/zero > /job/large; {answer}; exec sleep 1000"
    ));
    assert_eq!(
        (status, &result["status"], &result["failure_code"]),
        (Some(1), &json!("failure"), &json!("constraint_violation")),
        "{result}"
    );
    assert!(
        result["failure_message"]
            .as_str()
            .expect("a reason")
            .contains("`disk`"),
        "{result}"
    );
}

/// 112, 113: without a way out that the operator gives, a job that needs one is told so, and others have none.
#[test]
fn a_job_that_needs_the_network_is_told_that_it_has_none() {
    let world = World::new();
    let mut needs = job(json!([command(&["true"])]));
    needs["constraints"]["ext_net_allowed"] = json!(true);
    let (status, result) = carried_out(&world, &needs, &[]);
    assert_eq!(
        (status, &result["failure_code"]),
        (Some(125), &json!("ext_net_required")),
        "{result}"
    );
    let (status, _) = carried_out(&world, &needs, &["--profile", "standard"]);
    assert_eq!(status, Some(0), "the operator's profile has one");
    let looks = job(json!([command(&[
        "sh",
        "-c",
        "env | grep -i proxy; echo $?"
    ])]));
    let (_, result) = carried_out(&world, &looks, &["--profile", "standard"]);
    assert_eq!(
        result["steps"][0]["output"], "1\n",
        "no door is there, whatever the profile allows: {result}"
    );
}

/// 25, as far as it fails: a job that needs a model and has no door to one is a failure, and never a success.
#[test]
fn a_job_for_an_agent_without_a_model_fails() {
    let mut agent = job(json!([]));
    agent["context"] = json!({ "task_context": "say hello" });
    let (status, result) = carried_out(&World::new(), &agent, &[]);
    assert_eq!(
        (&result["status"], &result["failure_code"]),
        (&json!("failure"), &json!("inference_unavailable")),
        "{result}"
    );
    assert_ne!(status, Some(0));
}

/// The same over HTTP: a job spec of the worker API, kept like every job.
#[test]
fn the_worker_api_carries_job_specs_out() {
    let server = Server::new();
    let spec = |steps: Value| job(steps).to_string();
    let ask = |number: u32, spec: String| {
        let id = format!("{number:08}-0000-4000-8000-000000000000");
        let order = json!({ "version": 1, "task_id": id, "job_id": id, "sandbox": { "job_spec_json": spec } });
        server.post("/v1/worker/jobs:run", &order)
    };
    let answer = ask(1, spec(json!([command(&["echo", "hello"])])));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let result = answer.json();
    assert_eq!(
        (&result["status"], &result["exit_code"]),
        (&json!("completed"), &json!(0)),
        "{result}"
    );
    assert_eq!(
        result["sba_result"]["steps"][0]["output"], "hello\n",
        "{result}"
    );
    let again = ask(1, spec(json!([command(&["echo", "hello"])])));
    assert_eq!(again.json(), result, "it is the same job");
    let failed = ask(2, spec(json!([command(&["sh", "-c", "exit 4"])]))).json();
    assert_eq!(
        (&failed["status"], &failed["exit_code"]),
        (&json!("failed"), &json!(4)),
        "{failed}"
    );
    let refused = ask(3, json!({ "protocol_version": "99.0" }).to_string());
    assert_eq!(refused.status, 400);
    assert!(
        refused.text().contains("protocol_version"),
        "{}",
        refused.text()
    );
}

fn over_http(
    server: &Server,
    number: u32,
    spec: &Value,
    prefer: &[(&str, &str)],
) -> node_tests::Answer {
    let id = uuid(number);
    let sandbox = json!({ "job_spec_json": spec.to_string() });
    let order = json!({ "version": 1, "task_id": id, "job_id": id, "sandbox": sandbox });
    server.ask(&server.admin, "POST", "/v1/worker/jobs:run", prefer, &order)
}

fn uuid(number: u32) -> String {
    format!("{number:08}-0000-4000-8000-00000000000a")
}

const ASYNC: [(&str, &str); 1] = [("prefer", "respond-async")];

/// Of one who sends as many patterns as he can, others do not notice anything: what is too much is refused, and the rest is
/// compiled elsewhere.
#[test]
fn patterns_hold_nobody_up() {
    let server = Server::new();
    let search = |count: usize| {
        let step = json!({ "type": "search_files", "args": { "pattern": "[a-z]{100}" } });
        job(json!(vec![step; count]))
    };
    let refused = over_http(&server, 1, &search(65), &[]);
    assert_eq!(refused.status, 400);
    assert!(
        refused.text().contains("more than 64 steps that search"),
        "{}",
        refused.text()
    );
    assert_eq!(
        over_http(&server, 2, &search(64), &[]).json()["status"],
        "completed",
        "the control"
    );
    let mut long = job(json!([command(&["true"])]));
    long["context"] = json!({ "task_context": "x".repeat(1 << 20) });
    let refused = over_http(&server, 3, &long, &[]);
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("too large"), "{}", refused.text());
    let listed = json!({ "job_spec_json": "[1]" });
    let order = json!({ "version": 1, "task_id": uuid(4), "job_id": uuid(4), "sandbox": listed });
    assert_eq!(server.post("/v1/worker/jobs:run", &order).status, 400);
}

/// A program of a step may end by itself when the job is stopped, and nothing follows.
#[test]
fn a_job_of_steps_that_is_stopped_has_its_grace() {
    let server = Server::new();
    let marker = format!("600.{}", std::process::id());
    let waits = format!("trap 'echo bye; exit 7' TERM; sleep {marker} >/dev/null 2>&1 & wait");
    let spec = job(json!([
        command(&["sh", "-c", &waits]),
        command(&["echo", "after"])
    ]));
    assert_eq!(over_http(&server, 1, &spec, &ASYNC).status, 202);
    let id = uuid(1);
    let path = format!("/v1/worker/jobs/{id}");
    server.until("its start", || node_tests::is_running(&["sleep", &marker]));
    let order = json!({ "version": 1, "task_id": id, "job_id": id, "grace_seconds": 300 });
    assert_eq!(server.post("/v1/worker/jobs:stop", &order).status, 200);
    server.until("its end", || server.get(&path).json()["exit_code"].is_i64());
    let told = server.get(&path).json();
    assert_eq!(
        (&told["exit_code"], &told["run_diagnostics"]["reason"]),
        (&json!(7), &json!("cancelled")),
        "{told}"
    );
    let steps = told["sba_result"]["steps"]
        .as_array()
        .unwrap_or_else(|| panic!("steps: {told}"));
    assert_eq!(
        (steps.len(), &steps[0]["output"]),
        (1, &json!("bye\n")),
        "{told}"
    );
    assert_eq!(told["sba_result"]["failure_code"], "cancelled");
    let again = over_http(&server, 1, &spec, &ASYNC);
    assert_eq!(
        (again.status, again.json()),
        (200, told),
        "it has ended, and is answered like every job"
    );
}

/// What was done, and what a step had written that did not end by itself, is in the result, whoever ended it.
#[test]
fn a_step_that_is_killed_is_told_of_with_what_it_wrote() {
    let server = Server::with("[serve]\ngrace = \"100ms\"\n", &[]);
    let spec = |marker: &str| {
        let waits =
            format!("trap '' TERM; echo partial; sleep {marker}; while :; do sleep 0.1; done");
        job(json!([
            command(&["echo", "first"]),
            command(&["sh", "-c", &waits]),
            command(&["echo", "after"])
        ]))
    };
    let check = |told: &Value| {
        assert_eq!(told["run_diagnostics"]["reason"], "cancelled", "{told}");
        assert_eq!(
            (&told["exit_code"], &told["sba_result"]["failure_code"]),
            (&json!(-1), &json!("cancelled"))
        );
        let steps = told["sba_result"]["steps"]
            .as_array()
            .unwrap_or_else(|| panic!("steps: {told}"));
        let outputs: Vec<_> = steps.iter().map(|step| step["output"].clone()).collect();
        assert_eq!(outputs, ["first\n", "partial\n"], "{told}");
    };
    let begun = |number: u32, marker: String| {
        assert_eq!(
            over_http(&server, number, &spec(&marker), &ASYNC).status,
            202
        );
        server.until("its start", || node_tests::is_running(&["sleep", &marker]));
    };
    begun(1, format!("601.{}", std::process::id()));
    let order = json!({ "version": 1, "task_id": uuid(1), "job_id": uuid(1), "grace_seconds": 0 });
    let path = |number| format!("/v1/worker/jobs/{}", uuid(number));
    assert_eq!(server.post("/v1/worker/jobs:stop", &order).status, 200);
    server.until("its end", || {
        server.get(&path(1)).json()["exit_code"].is_i64()
    });
    check(&server.get(&path(1)).json());
    begun(2, format!("602.{}", std::process::id()));
    let server = server.restart(Signal::TERM, "");
    check(&server.get(&path(2)).json());
}

/// Time, an image that is not there, a restart, another tenant: as for every job.
#[test]
fn jobs_of_steps_end_like_all_jobs() {
    let server = Server::new();
    let mut slow = job(json!([command(&["sleep", "600"])]));
    slow["constraints"]["max_runtime_seconds"] = json!(1);
    let late = over_http(&server, 1, &slow, &[]).json();
    assert_eq!(
        (&late["status"], &late["exit_code"]),
        (&json!("timeout"), &json!(-1)),
        "{late}"
    );
    let sandbox = json!({ "image": "alpine:no-such", "job_spec_json": job(json!([command(&["true"])])).to_string() });
    let order = json!({ "version": 1, "task_id": uuid(2), "job_id": uuid(2), "sandbox": sandbox });
    let missing = server.post("/v1/worker/jobs:run", &order).json();
    assert_eq!(
        (&missing["status"], &missing["exit_code"]),
        (&json!("failed"), &json!(-1)),
        "{missing}"
    );
    let about = &missing["run_diagnostics"];
    assert_eq!(about["container_started"], false, "{missing}");
    assert!(
        about["reason"]
            .as_str()
            .is_some_and(|reason| reason.starts_with("not_started: ")),
        "{missing}"
    );
    let fine = over_http(&server, 3, &job(json!([command(&["echo", "hello"])])), &[]).json();
    assert_eq!(fine["status"], "completed", "{fine}");
    let stranger = node_tests::key_of(&server, "else", &["runs"]);
    let path = format!("/v1/worker/jobs/{}", uuid(3));
    assert_eq!(
        server
            .ask(&stranger, "GET", &path, &[], &Value::Null)
            .status,
        404
    );
    let upper = format!("/v1/worker/jobs/{}", uuid(3).to_ascii_uppercase());
    assert_eq!(server.get(&upper).json(), fine, "it is the same name");
    assert_eq!(
        over_http(
            &server,
            4,
            &job(json!([command(&["sleep", "600"])])),
            &ASYNC
        )
        .status,
        202
    );
    let server = server.restart(rustix::process::Signal::KILL, "");
    assert_eq!(server.get(&path).json(), fine);
    let lost = server.get(&format!("/v1/worker/jobs/{}", uuid(4))).json();
    assert_eq!(
        (&lost["status"], &lost["run_diagnostics"]["reason"]),
        (&json!("failed"), &json!("lost")),
        "{lost}"
    );
}
