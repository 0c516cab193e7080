//! The audit of a real server: every kind of decision is in it with its rule, nothing secret is, whoever may not see a line
//! does not, whatever is changed in it or in the ledger is found, and a kill at any moment leaves one that can be believed.

use doors_tests::{REAL_KEY, money::Way};
use node_tests::{Folder, Server, key_of};
use provider::{Provider, Settings};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const CANARY: &str = "canary-7f3a9c";

fn airlock(state: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(cli::airlock());
    command
        .args(arguments)
        .arg("--state")
        .arg(state)
        .env_clear()
        .env("HOME", state);
    command.output().expect("airlock runs")
}

fn verifies(state: &Path) -> Result<(), String> {
    let output = airlock(state, &["audit", "verify"]);
    match output.status.code() {
        Some(0) => Ok(()),
        Some(1) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        other => panic!("{other:?}: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn lines(server: &Server, key: &str, query: &str) -> Vec<Value> {
    let answer = server.ask(
        key,
        "GET",
        &format!("/v1/audit?limit=1000{query}"),
        &[],
        &Value::Null,
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["lines"].as_array().expect("lines").clone()
}

fn has(lines: &[Value], what: &str, decision: &str, rule: &str) -> bool {
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    lines.iter().any(|line| {
        text(line, "what") == what
            && text(line, "decision") == decision
            && text(line, "rule") == rule
    })
}

/// A server whose keys are told apart by tenant.
fn with_tenants() -> (Server, String, String) {
    let server = Server::with("[serve]\nruns_per_key = 1\n", &[]);
    let scopes = ["runs", "sandboxes", "artifacts", "usage"];
    let (one, two) = (
        key_of(&server, "one", &scopes),
        key_of(&server, "two", &scopes),
    );
    (server, one, two)
}

#[test]
fn every_kind_of_decision_is_written_with_its_rule_and_nothing_secret_is() {
    let (server, one, two) = with_tenants();
    let post = |key: &str, path: &str, body: &Value| server.ask(key, "POST", path, &[], body);
    let script = format!("echo {CANARY}; curl -s http://192.0.2.1/ ; cat /{CANARY}; exit 3");
    let order = json!({"command": ["sh", "-c", script], "env": {"TOKEN": CANARY}, "task_id": "t-1", "job_id": "j-1"});
    let ran = post(&one, "/v1/runs", &order).json();
    let run = ran["run_id"].as_str().expect("an identifier").to_owned();
    // Refused: no key, a bad one, no scope, a rule of the host, a quota, somebody else's.
    let bad = format!("alk_{}_{}", "0".repeat(16), "a".repeat(64));
    assert_eq!(post("", "/v1/runs", &order).status, 401);
    assert_eq!(post(&bad, "/v1/runs", &order).status, 401);
    assert_eq!(
        post(&one, "/v1/keys", &json!({"name": "x", "scopes": ["runs"]})).status,
        403
    );
    let host = json!({"command": ["true"], "network": "host"});
    assert_eq!(post(&one, "/v1/runs", &host).status, 403);
    let folder = json!({"command": ["true"], "workspace": "/etc"});
    assert_eq!(post(&one, "/v1/runs", &folder).status, 403);
    let headers = [("prefer", "respond-async")];
    let long = server
        .ask(
            &one,
            "POST",
            "/v1/runs",
            &headers,
            &json!({"command": ["sleep", "60"]}),
        )
        .json();
    assert_eq!(
        post(&one, "/v1/runs", &json!({"command": ["true"]})).status,
        429
    );
    let path = format!("/v1/runs/{run}");
    assert_eq!(
        server.ask(&two, "DELETE", &path, &[], &Value::Null).status,
        404
    );
    let long = long["run_id"].as_str().expect("an identifier").to_owned();
    server.ask(
        &one,
        "DELETE",
        &format!("/v1/runs/{long}"),
        &[],
        &Value::Null,
    );
    // A sandbox with a program and files, an artifact, a key that comes and goes.
    let made = post(&one, "/v1/sandboxes", &json!({})).json();
    let sandbox = made["sandbox_id"]
        .as_str()
        .expect("an identifier")
        .to_owned();
    post(
        &one,
        &format!("/v1/sandboxes/{sandbox}/exec"),
        &json!({"command": ["echo", CANARY]}),
    );
    let file = format!("/v1/sandboxes/{sandbox}/files/{CANARY}.txt");
    server.ask(&one, "PUT", &file, &[], &json!("contents"));
    server.ask(&one, "GET", &file, &[], &Value::Null);
    server.ask(
        &one,
        "DELETE",
        &format!("/v1/sandboxes/{sandbox}"),
        &[],
        &Value::Null,
    );
    server.ask(&one, "PUT", "/v1/artifacts/notes.txt", &[], &json!(CANARY));
    server.ask(&one, "DELETE", "/v1/artifacts/notes.txt", &[], &Value::Null);
    let key = server
        .post("/v1/keys", &json!({"name": CANARY, "scopes": ["runs"]}))
        .json();
    server.delete(&format!(
        "/v1/keys/{}",
        key["id"].as_str().expect("an identifier")
    ));

    let all = lines(&server, &server.admin, "");
    for (what, decision, rule) in [
        ("server.start", "happened", ""),
        ("run.accept", "allowed", ""),
        ("run.start", "happened", ""),
        ("run.end", "happened", ""),
        ("run.cancel", "allowed", ""),
        ("run.cancel", "refused", "not_found"),
        ("auth", "refused", "unauthorized"),
        ("key.make", "refused", "scope:admin"),
        ("run.accept", "refused", "admin:network: host"),
        ("run.accept", "refused", "serve.folders"),
        ("run.accept", "refused", "quota:runs"),
        ("sandbox.make", "allowed", ""),
        ("sandbox.made", "happened", ""),
        ("sandbox.exec", "allowed", ""),
        ("sandbox.end", "allowed", ""),
        ("sandbox.ended", "happened", ""),
        ("file.write", "allowed", ""),
        ("file.read", "allowed", ""),
        ("artifact.put", "allowed", ""),
        ("artifact.remove", "allowed", ""),
        ("key.make", "allowed", ""),
        ("key.made", "happened", ""),
        ("key.revoke", "allowed", ""),
    ] {
        assert!(
            has(&all, what, decision, rule),
            "{what} {decision} {rule} is in {all:#?}"
        );
    }
    assert!(
        all.iter()
            .any(|line| line["what"] == "run.deny" && line["rule"] == "network"),
        "{all:#?}"
    );
    let end = all
        .iter()
        .find(|line| line["what"] == "run.end" && line["run"] == run.as_str())
        .expect("an end");
    assert!(
        end["about"]
            .as_str()
            .expect("words")
            .starts_with("failed exit=3 cpu_ms="),
        "{end}"
    );
    assert_eq!(
        (&end["tenant"], &end["task"], &end["job"]),
        (&json!("one"), &json!("t-1"), &json!("j-1"))
    );

    let files = written(&server.folder.at("state/audit"));
    assert!(files.contains(&run), "the positive control");
    for secret in [
        CANARY,
        &one[21..],
        &two[21..],
        &server.admin[21..],
        &bad[21..],
    ] {
        assert!(!files.contains(secret), "{secret} is in the audit");
    }
}

/// Everything in the files of a folder.
fn written(folder: &Path) -> String {
    paths(folder)
        .iter()
        .map(|path| fs::read_to_string(path).expect("it can be read"))
        .collect()
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .expect("it can be listed")
        .map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .collect();
    paths.sort();
    paths
}

#[test]
fn a_tenant_sees_its_own_lines_and_a_run_has_its_record() {
    let (server, one, two) = with_tenants();
    let ran = server
        .ask(&one, "POST", "/v1/runs", &[], &json!({"command": ["true"]}))
        .json();
    let run = ran["run_id"].as_str().expect("an identifier");
    server.ask(&two, "GET", &format!("/v1/runs/{run}"), &[], &Value::Null);
    let of = |key: &str, query: &str| lines(&server, key, query);
    assert!(of(&one, "").iter().all(|line| line["tenant"] == "one") && of(&one, "").len() >= 3);
    assert!(of(&two, "").iter().all(|line| line["tenant"] == "two"));
    assert_eq!(of(&two, "&tenant=one"), Vec::<Value>::new());
    assert_eq!(
        of(&two, "&tenant=nobody"),
        Vec::<Value>::new(),
        "as if there were none"
    );
    assert!(
        of(&two, &format!("&run={run}"))
            .iter()
            .all(|line| line["decision"] == "refused")
    );
    let path = format!("/v1/runs/{run}/record");
    let record = server.ask(&one, "GET", &path, &[], &Value::Null).json();
    let kinds: Vec<_> = record["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .map(|line| &line["what"])
        .collect();
    assert_eq!(kinds, ["run.accept", "run.start", "run.end"], "{record:#}");
    assert_eq!(
        server.ask(&two, "GET", &path, &[], &Value::Null).status,
        404
    );
    let no_scope = key_of(&server, "one", &["runs"]);
    assert_eq!(
        server
            .ask(&no_scope, "GET", "/v1/audit", &[], &Value::Null)
            .status,
        403
    );
    for query in [
        "limit=0",
        "limit=1001",
        "before=x",
        "before=1-3",
        "nothing=1",
    ] {
        assert_eq!(
            server.get(&format!("/v1/audit?{query}")).status,
            400,
            "{query}"
        );
    }
}

/// A state folder with an audit and a ledger of real runs and model calls, of a server that has ended; and a head.
fn used() -> (Server, Vec<PathBuf>) {
    let provider = Provider::start(Settings {
        keys: vec![REAL_KEY.to_owned()],
        ..Settings::default()
    });
    let folder = doors_tests::Folder::new();
    let configuration = format!(
        "{}\n[audit]\nfile_bytes = \"64K\"\n",
        doors_tests::configuration(&provider, &folder)
    );
    let mut server = Server::with(&configuration, &[]);
    let key = key_of(&server, "payer", &["runs", "usage"]);
    let body = Way::Chat.body("m", false, Some(20));
    let call = format!(
        "curl -sN -o /dev/null -H \"authorization: Bearer $OPENAI_API_KEY\" -H 'content-type: application/json' \
         -d '{body}' $OPENAI_BASE_URL/chat/completions"
    );
    let order = json!({"command": ["sh", "-c", call], "llm": "openai", "allow_models": ["m"]});
    for _ in 0..2 {
        let ran = server.ask(&key, "POST", "/v1/runs", &[], &order);
        assert_eq!(
            (ran.status, &ran.json()["usage"]["llm"]["calls"]),
            (200, &json!(1)),
            "{}",
            ran.text()
        );
    }
    // Enough for a second file.
    for _ in 0..250 {
        server.ask(
            &server.admin,
            "DELETE",
            "/v1/keys/ffffffffffffffff",
            &[],
            &Value::Null,
        );
    }
    // The books are read, so that the database knows how far they went.
    assert_eq!(server.get("/v1/usage").status, 200);
    assert!(server.end(Signal::TERM).0.success());
    let audit = paths(&server.folder.at("state/audit"));
    assert!(audit.len() >= 2, "{audit:?}");
    let ledger = paths(&server.folder.at("state/ledger"));
    assert!(!ledger.is_empty());
    (server, [audit, ledger].concat())
}

#[test]
fn whatever_is_changed_in_audit_or_ledger_is_found() {
    let (server, files) = used();
    let state = server.folder.at("state");
    verifies(&state).expect("the positive control");
    let head = String::from_utf8(airlock(&state, &["audit", "head"]).stdout).expect("text");
    let hash = head.trim().split(' ').nth(1).expect("a hash").to_owned();
    assert!(
        airlock(&state, &["audit", "verify", "--head", &hash])
            .status
            .success()
    );
    let other = airlock(&state, &["audit", "verify", "--head", &"1".repeat(64)]);
    assert_eq!(other.status.code(), Some(1));
    let full = std::env::var_os("AIRLOCK_FULL").is_some();
    for file in &files {
        let whole = fs::read(file).expect("it can be read");
        let step = if full { 1 } else { (whole.len() / 20).max(1) };
        let tried = |what: &str, changed: &[u8]| {
            fs::write(file, changed).expect("it can be written");
            let found = verifies(&state);
            let told = found.expect_err(&format!("{}: {what} is found", file.display()));
            assert!(told.contains(".jsonl"), "{what}: {told}");
        };
        for at in (0..whole.len()).step_by(step).chain([whole.len() - 1]) {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            tried(&format!("byte {at}"), &changed);
        }
        let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        let middle = lines.len() / 2;
        tried(
            "a missing line",
            &[&lines[..middle], &lines[middle + 1..]].concat().concat(),
        );
        tried(
            "a line twice",
            &[&lines[..=middle], &lines[middle..]].concat().concat(),
        );
        let mut swapped = lines.clone();
        swapped.swap(middle, middle - 1);
        tried("two lines in another order", &swapped.concat());
        tried("a tail that is cut off", &lines[..lines.len() - 1].concat());
        tried("half a line", &whole[..whole.len() - 9]);
        fs::remove_file(file).expect("it is there");
        verifies(&state).expect_err("a file that is taken away is found");
        fs::write(file, &whole).expect("it can be written");
        verifies(&state).expect("as it was");
    }
}

#[test]
fn an_older_copy_of_the_whole_folder_is_found_and_a_server_does_not_go_on_with_it() {
    let mut server = Server::new();
    server.post("/v1/runs", &json!({"command": ["true"]}));
    assert!(server.end(Signal::TERM).0.success());
    let (audit, copy) = (server.folder.at("state/audit"), server.folder.at("copy"));
    let copied = Command::new("cp")
        .arg("-a")
        .arg(&audit)
        .arg(&copy)
        .status()
        .expect("cp runs");
    assert!(copied.success());
    let mut server = server_again(server);
    server.post("/v1/runs", &json!({"command": ["true"]}));
    assert!(server.end(Signal::TERM).0.success());
    let state = server.folder.at("state");
    verifies(&state).expect("the positive control");
    fs::remove_dir_all(&audit).expect("it is there");
    fs::rename(&copy, &audit).expect("it can be put back");
    let told = verifies(&state).expect_err("an older copy is found");
    assert!(told.contains("which was written to disk"), "{told}");
    let refused = gateway_tests::serve(&server.folder, "", &[])
        .output()
        .expect("it runs");
    assert_eq!(refused.status.code(), Some(125));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("airlock audit set-aside"), "{said}");
    assert!(airlock(&state, &["audit", "set-aside"]).status.success());
    verifies(&state).expect("a new one has begun");
    let mut server = server_again(server);
    assert_eq!(
        server
            .post("/v1/runs", &json!({"command": ["true"]}))
            .status,
        200
    );
    server.end(Signal::TERM);
}

fn server_again(mut server: Server) -> Server {
    let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
    Server::on(folder, "", &[], Some(server.admin.clone()))
}

#[test]
fn a_kill_at_any_moment_leaves_an_audit_that_can_be_believed() {
    let mut server = Server::new();
    for time in 0..6u64 {
        std::thread::scope(|scope| {
            let (client, admin) = (server.client.clone(), server.admin.clone());
            let bearer = format!("Bearer {admin}");
            let order = json!({"command": ["true"]});
            let request = client.request("POST", "/v1/runs", &[("authorization", &bearer)], &order);
            let handles: Vec<_> = (0..4)
                .map(|_| {
                    let (client, request) = (client.clone(), request.clone());
                    scope.spawn(move || {
                        // Until nobody answers any more.
                        while client
                            .try_open(&request)
                            .is_ok_and(|mut stream| stream.head().is_some())
                        {
                        }
                    })
                })
                .collect();
            // Whenever that is, it is in the middle of something; which line it is differs each time.
            let enough = 3 + 7 * time;
            server.until("lines are written", || {
                lines_of(&server.folder.at("state/audit")) > enough
            });
            server.end(Signal::KILL);
            handles
                .into_iter()
                .for_each(|handle| handle.join().expect("it ends"));
        });
        server = server_again(server);
        verifies(&server.folder.at("state")).expect("what was killed can be believed");
    }
    let ends = lines(&server, &server.admin, "&what=run.end");
    assert!(!ends.is_empty());
}

fn lines_of(folder: &Path) -> u64 {
    written(folder).lines().count() as u64
}

#[test]
fn it_is_shown_and_exported_here_and_through_a_server() {
    let mut server = Server::new();
    server.post("/v1/runs", &json!({"command": ["true"]}));
    let state = server.folder.at("state");
    let address = match &server.client {
        gateway_tests::Client::Tcp(address) => format!("http://{address}"),
        gateway_tests::Client::Unix(path) => format!("unix:{}", path.display()),
    };
    let remote = |arguments: &[&str]| {
        let mut command = Command::new(cli::airlock());
        command
            .args(arguments)
            .args(["--server", &address])
            .env_clear()
            .env("AIRLOCK_KEY", &server.admin);
        command.output().expect("airlock runs")
    };
    let export = ["audit", "export", "--what", "run."];
    let (here, there) = (airlock(&state, &export), remote(&export));
    assert!(
        here.status.success() && there.status.success(),
        "{}",
        String::from_utf8_lossy(&there.stderr)
    );
    assert_eq!(
        String::from_utf8_lossy(&here.stdout),
        String::from_utf8_lossy(&there.stdout)
    );
    assert_eq!(
        here.stdout.split(|byte| *byte == b'\n').count(),
        4,
        "accept, start, end"
    );
    let csv = airlock(
        &state,
        &["audit", "export", "--what", "run.end", "--format", "csv"],
    );
    assert!(String::from_utf8_lossy(&csv.stdout).starts_with("n,at,what,decision,tenant,"));
    let shown = airlock(&state, &["audit", "show", "--limit", "1"]);
    assert_eq!(String::from_utf8_lossy(&shown.stdout).lines().count(), 1);
    assert_eq!(remote(&["audit", "verify"]).status.code(), Some(125));
    server.end(Signal::TERM);
}

#[test]
fn files_that_jobs_fill_are_all_known_and_can_be_removed() {
    const SETTINGS: &str = "[audit]\nfile_bytes = \"64K\"\n";
    let mut server = Server::with(SETTINGS, &[]);
    let order = json!({"run": {"command": ["true"]}});
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let answer = server.post("/v1/jobs", &order);
                    assert_eq!(answer.status, 202, "{}", answer.text());
                }
            });
        }
    });
    assert!(server.end(Signal::TERM).0.success());
    let audit = server.folder.at("state/audit");
    let before = paths(&audit).len();
    assert!(before >= 3, "{before}");
    let folder = std::mem::replace(&mut server.folder, Folder(PathBuf::new()));
    let less = format!("{SETTINGS}keep_bytes = \"100K\"\n");
    let mut server = Server::on(folder, &less, &[], Some(server.admin.clone()));
    server.until("old files are removed", || paths(&audit).len() < before);
    assert!(server.end(Signal::TERM).0.success());
    verifies(&server.folder.at("state")).expect("what is left is believed");
}

#[test]
fn a_token_in_a_path_is_not_written_and_each_refusal_has_one_line() {
    let (server, one, _) = with_tenants();
    for path in ["runs", "sandboxes", "jobs", "keys", "artifacts", "images"] {
        for key in ["", one.as_str()] {
            server.ask(
                key,
                "DELETE",
                &format!("/v1/{path}/{one}"),
                &[],
                &Value::Null,
            );
            server.ask(
                key,
                "DELETE",
                &format!("/v1/{path}/x{CANARY}%20y"),
                &[],
                &Value::Null,
            );
        }
    }
    server.ask(&one, "DELETE", "/v1/runs/a-name", &[], &Value::Null);
    let refused = server.ask(
        &one,
        "POST",
        "/v1/jobs",
        &[],
        &json!({"run": {"command": ["true"], "network": "host"}}),
    );
    assert_eq!(refused.status, 403, "{}", refused.text());
    server.ask(&one, "GET", "/v1/webhook-secret", &[], &Value::Null);
    let files = written(&server.folder.at("state/audit"));
    assert!(files.contains("a-name"), "the positive control");
    assert!(
        !files.contains(&one[21..]) && !files.contains(CANARY),
        "{files}"
    );
    let own = lines(&server, &one, "");
    let of = |what: &str| own.iter().filter(|line| line["what"] == what).count();
    assert_eq!((of("job.accept"), of("secret.read")), (1, 1), "{own:#?}");
    assert!(
        own.iter().all(|line| line["n"].is_null()),
        "how many others there are is nobody's business"
    );
    assert!(
        lines(&server, &server.admin, "")
            .iter()
            .all(|line| line["n"].is_u64())
    );
}

#[test]
fn what_a_sandbox_was_denied_is_written_at_its_end() {
    let (server, one, _) = with_tenants();
    let made = server
        .ask(&one, "POST", "/v1/sandboxes", &[], &json!({}))
        .json();
    let sandbox = made["sandbox_id"]
        .as_str()
        .expect("an identifier")
        .to_owned();
    let command = json!({"command": ["curl", "-s", "http://192.0.2.1/"]});
    let path = format!("/v1/sandboxes/{sandbox}");
    server.ask(&one, "POST", &format!("{path}/exec"), &[], &command);
    server.ask(&one, "DELETE", &path, &[], &Value::Null);
    server.until("it is written", || {
        let all = lines(&server, &one, &format!("&run={sandbox}"));
        all.iter()
            .any(|line| line["what"] == "run.deny" && line["rule"] == "network")
    });
}

/// Sends a job of these steps; what came of them.
fn steps(server: &Server, key: &str, number: u32, network: bool, steps: &Value) -> Value {
    let constraints = json!({ "max_runtime_seconds": 60, "max_output_bytes": 10_000, "ext_net_allowed": network });
    let job = json!({ "protocol_version": "1.0", "job_id": "j", "task_id": "t",
        "constraints": constraints, "steps": steps });
    let order = json!({
        "version": 1,
        "task_id": "018f6a2e-0000-7000-8000-000000000001",
        "job_id": format!("018f6a2e-0000-7000-8000-0000000001{number:02}"),
        "sandbox": { "job_spec_json": job.to_string() },
    });
    let answer = server.ask(key, "POST", "/v1/worker/jobs:run", &[], &order);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[test]
fn what_steps_were_denied_is_written_with_run_tenant_and_rule() {
    let (server, one, two) = with_tenants();
    let step =
        |kind: &str, args: Value| json!({ "type": kind, "args": args, "on_failure": "continue" });
    let run =
        |argv: &[&str], cwd: Option<&str>| step("run_command", json!({ "argv": argv, "cwd": cwd }));
    let diff = "--- a/x\n+++ b/../out/patched\n@@ -0,0 +1 @@\n+x\n";
    let told = steps(
        &server,
        &one,
        1,
        false,
        &json!([
            step("write_file", json!({ "path": "inside", "content": CANARY })),
            step("read_file", json!({ "path": "../out/read" })),
            step(
                "write_file",
                json!({ "path": "/etc/written", "content": "x" })
            ),
            step("list_tree", json!({ "path": "/proc" })),
            step(
                "search_files",
                json!({ "pattern": "x", "path": "a/../../searched" })
            ),
            step("apply_unified_diff", json!({ "diff": diff })),
            step(
                "run_command",
                json!({ "argv": ["ln", "-s", "/etc", "link"] })
            ),
            step("read_file", json!({ "path": "link/passwd" })),
            run(&["touch", CANARY], Some("/root")),
            run(&["curl", "-s", "http://192.0.2.1/"], None),
            step("read_file", json!({ "path": "missing" })),
            step("read_file", json!({ "path": "inside" })),
        ]),
    );
    let results = told["sba_result"]["steps"].as_array().expect("steps");
    assert_eq!(
        (results.len(), &results[11]["output"]),
        (12, &json!(CANARY)),
        "the positive control: {told}"
    );
    let denied = lines(&server, &one, "&what=run.deny");
    let run = denied[0]["run"].as_str().expect("a run").to_owned();
    for line in &denied {
        assert_eq!(
            (
                &line["tenant"],
                &line["run"],
                &line["decision"],
                &line["task"]
            ),
            (
                &json!("one"),
                &json!(run),
                &json!("refused"),
                &json!("018f6a2e-0000-7000-8000-000000000001")
            ),
            "{line}"
        );
    }
    let mut found: Vec<_> = denied
        .iter()
        .map(|line| {
            (
                line["rule"].as_str().expect("a rule"),
                line["about"].as_str().expect("words"),
            )
        })
        .collect();
    found.sort_unstable();
    let network = found
        .iter()
        .position(|(rule, _)| *rule == "network")
        .expect("of the program");
    assert!(found.remove(network).1.contains("192.0.2.1"), "{denied:#?}");
    assert_eq!(
        found,
        [
            ("workspace", "apply_unified_diff ../out/patched"),
            ("workspace", "list_tree /proc"),
            ("workspace", "read_file ../out/read"),
            ("workspace", "read_file link/passwd"),
            ("workspace", "run_command /root"),
            ("workspace", "search_files a/../../searched"),
            ("workspace", "write_file /etc/written"),
        ],
        "and nothing of what was only missing"
    );
    let end = lines(&server, &one, &format!("&what=run.end&run={run}"));
    assert!(
        end[0]["about"]
            .as_str()
            .expect("words")
            .contains(" denials=8"),
        "{end:?}"
    );
    assert_eq!(
        lines(&server, &two, "&what=run."),
        Vec::<Value>::new(),
        "nobody else is told"
    );
    // A job that may not begin says by which rule.
    steps(
        &server,
        &one,
        2,
        true,
        &json!([step("run_command", json!({ "argv": ["true"] }))]),
    );
    let own = lines(&server, &one, "&what=run.start");
    assert!(
        has(&own, "run.start", "refused", "ext_net_required"),
        "{own:#?}"
    );
    assert!(!written(&server.folder.at("state/audit")).contains(CANARY));
}

#[test]
fn whoever_looks_where_nothing_is_is_told_so_and_leaves_nothing() {
    let place = Folder::new();
    let state = place.at("typo");
    for words in [
        ["audit", "verify"],
        ["audit", "head"],
        ["audit", "show"],
        ["audit", "set-aside"],
    ] {
        let output = airlock(&state, &words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(125) && said.contains("holds no state"),
            "{words:?}: {said}"
        );
        assert!(!state.exists(), "{words:?}");
    }
    let mut server = Server::new();
    assert!(server.end(Signal::TERM).0.success());
    let state = server.folder.at("state");
    verifies(&state).expect("the positive control");
    fs::remove_file(state.join("airlock.db")).expect("it is there");
    assert!(
        verifies(&state)
            .expect_err("it is gone")
            .contains("airlock.db")
    );
    assert!(!state.join("airlock.db").exists());
}

#[test]
fn nothing_is_said_to_be_allowed_that_was_refused() {
    /// More than are written of refusals in a minute.
    const MANY: usize = 150;
    let (server, one, two) = with_tenants();
    let made = server
        .ask(&one, "POST", "/v1/sandboxes", &[], &json!({}))
        .json();
    let sandbox = made["sandbox_id"]
        .as_str()
        .expect("an identifier")
        .to_owned();
    let headers = [("prefer", "respond-async")];
    let long = server
        .ask(
            &one,
            "POST",
            "/v1/runs",
            &headers,
            &json!({"command": ["sleep", "600"]}),
        )
        .json();
    let run = long["run_id"].as_str().expect("an identifier").to_owned();
    let encoded = format!("%{:02x}{}", run.as_bytes()[0], &run[1..]);
    for _ in 0..MANY {
        for (method, path) in [
            ("DELETE", format!("/v1/runs/{run}")),
            ("DELETE", format!("/v1/runs/{encoded}")),
            ("POST", format!("/v1/sandboxes/{sandbox}/pause")),
            ("DELETE", format!("/v1/sandboxes/{sandbox}/exec/none")),
            ("GET", format!("/v1/sandboxes/{sandbox}/files/x")),
            ("DELETE", "/v1/workspaces/none".to_owned()),
            ("DELETE", "/v1/artifacts/none".to_owned()),
        ] {
            let answer = server.ask(&two, method, &path, &[], &Value::Null);
            assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text());
        }
    }
    let of = |key: &str, what: &str, decision: &str| {
        let all = lines(&server, key, &format!("&what={what}"));
        all.iter()
            .filter(|line| line["decision"] == decision)
            .count()
    };
    for what in [
        "run.cancel",
        "sandbox.pause",
        "sandbox.stop",
        "file.read",
        "workspace.discard",
    ] {
        assert_eq!(of(&two, what, "allowed"), 0, "{what}");
    }
    assert!(
        of(&two, "run.cancel", "refused") > 0,
        "the positive control"
    );
    // What its own route said to be allowed, and then could not be done.
    let task = json!({ "version": 1, "task_id": "018f6a2e-0000-7000-8000-000000000001" });
    let made = server
        .ask(&two, "POST", "/v1/worker/sessions", &[], &task)
        .json();
    let session = made["session_id"]
        .as_str()
        .expect("an identifier")
        .to_owned();
    let all = server
        .ask(&two, "GET", "/v1/sandboxes", &[], &Value::Null)
        .json();
    let box_of_it = all["sandboxes"][0]["sandbox_id"]
        .as_str()
        .expect("an identifier")
        .to_owned();
    let pause = format!("/v1/sandboxes/{box_of_it}/pause");
    assert_eq!(
        server.ask(&two, "POST", &pause, &[], &Value::Null).status,
        200
    );
    let mut exec = task.clone();
    exec["command"] = json!(["true"]);
    for _ in 0..MANY {
        let path = format!("/v1/worker/sessions/{session}/exec");
        let answer = server.ask(&two, "POST", &path, &[], &exec);
        assert_eq!(answer.status, 409, "{}", answer.text());
    }
    assert_eq!(
        (
            of(&two, "sandbox.exec", "allowed"),
            of(&two, "sandbox.exec", "refused")
        ),
        (MANY, MANY)
    );
    // Only who looks for it knows that it is not there: each of these has both lines, however many there are.
    let pairs = (
        of(&two, "artifact.remove", "allowed"),
        of(&two, "artifact.remove", "refused"),
    );
    assert_eq!(pairs, (MANY, MANY));
    // Whose it is may; also by a name that is written otherwise.
    assert_eq!(
        server
            .ask(
                &one,
                "DELETE",
                &format!("/v1/runs/{encoded}"),
                &[],
                &Value::Null
            )
            .status,
        200
    );
    assert_eq!(
        (
            of(&one, "run.cancel", "allowed"),
            of(&one, "run.cancel", "refused")
        ),
        (1, 0)
    );
}
