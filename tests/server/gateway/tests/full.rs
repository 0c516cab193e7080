//! A server whose disk is full: it says so, does not die of it, and goes on when there is room again.

use gateway_tests::{Answer, Folder, Server, small_disk::Small};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt, process::Command};

/// What whoever is refused is told.
#[track_caller]
fn is_full(answer: &Answer) {
    let told = answer.json();
    assert_eq!(
        (answer.status, &told["code"]),
        (507, &json!("quota_exceeded")),
        "{told}"
    );
    assert!(
        told["title"]
            .as_str()
            .is_some_and(|title| title.contains("disk")),
        "{told}"
    );
    assert!(
        told["detail"].is_string() && !answer.text().contains("/tmp"),
        "{told}"
    );
}

#[test]
fn a_full_disk_refuses_what_must_be_written_down_and_stops_nothing_else() {
    let small = Small::new();
    let server = &small.0;
    assert_eq!(small.run().status, 200, "the positive control");
    let sandbox = server.post("/v1/sandboxes", &json!({})).json();
    let sandbox = format!(
        "/v1/sandboxes/{}",
        sandbox["sandbox_id"].as_str().expect("a name")
    );
    let order = json!({ "command": ["sh", "-c", "head -c 1000000 /dev/zero; echo done > note"] });
    let told = server.post(&format!("{sandbox}/exec"), &order);
    assert_eq!(
        (told.status, &told.json()["status"]),
        (200, &json!("succeeded")),
        "{}",
        told.text()
    );
    small.fill();
    is_full(&small.run());
    is_full(&server.post("/v1/sandboxes", &json!({})));
    is_full(&server.post(
        "/v1/keys",
        &json!({ "name": "one more", "scopes": ["runs"] }),
    ));
    assert_eq!(server.get("/healthz").status, 200);
    let listed = server.get("/v1/runs").json();
    assert_eq!(
        listed["runs"].as_array().map(Vec::len),
        Some(1),
        "nothing was accepted: {listed}"
    );
    assert_eq!(server.get("/v1/keys").status, 200);
    // A sandbox that lives has its files elsewhere; but what cannot be written into the audit is not done.
    let note = || server.get(&format!("{sandbox}/files/note"));
    let shown = note();
    assert!(matches!(shown.status, 200 | 503 | 507), "{}", shown.text());
    assert_eq!(
        shown.status == 200,
        shown.text() == "done\n",
        "all of it or nothing: {}",
        shown.text()
    );
    small.empty();
    assert_eq!(note().text(), "done\n");
    assert_eq!(small.run().status, 200, "there is room again");
    assert_eq!(server.post("/v1/sandboxes", &json!({})).status, 201);
    assert_eq!(server.delete(&sandbox).status, 200);
}

#[test]
fn an_artifact_that_does_not_fit_on_the_disk_is_refused_and_leaves_nothing() {
    let small = Small::new();
    assert_eq!(
        small.put("/v1/artifacts/before", b"small").status,
        201,
        "the positive control"
    );
    is_full(&small.put("/v1/artifacts/large", &vec![7; 12 << 20]));
    let listed = small.0.get("/v1/artifacts").text();
    assert!(
        listed.contains("before") && !listed.contains("large"),
        "{listed}"
    );
    let half = small.put("/v1/artifacts/half", &vec![7; 4 << 20]);
    assert_eq!(
        half.status,
        201,
        "nothing of the first is left: {}",
        half.text()
    );
    small.fill();
    is_full(&small.put("/v1/artifacts/late", &[7; 9999]));
    assert_eq!(small.0.get("/v1/artifacts/before").text(), "small");
    small.empty();
    assert_eq!(small.put("/v1/artifacts/late", &[7; 9999]).status, 201);
}

#[test]
fn an_end_that_cannot_be_written_is_told_to_nobody_until_it_can() {
    let small = Small::new();
    let server = &small.0;
    let order = json!({ "command": ["sh", "-c", "echo out; while :; do sleep 0.1; done"], "run_id": "long" });
    let prefer = [("prefer", "respond-async")];
    assert_eq!(
        server
            .ask(&server.admin, "POST", "/v1/runs", &prefer, &order)
            .status,
        202
    );
    let mut events = server.client.open(&server.request(
        &server.admin,
        "GET",
        "/v1/runs/long/events",
        &[],
        &Value::Null,
    ));
    while !String::from_utf8_lossy(&events.rest).contains(r#""text":"out"#) {
        assert!(events.read(), "the positive control: events come");
    }
    small.fill_with_the_reserve();
    let cancelled = server.delete("/v1/runs/long");
    assert_eq!(
        (cancelled.status, &cancelled.json()["status"]),
        (202, &json!("running"))
    );
    let shown = || server.get("/v1/runs/long").json()["status"].clone();
    assert_eq!(shown(), "running");
    small.empty();
    let told = events.answer().text();
    let end = told
        .rsplit("data: ")
        .next()
        .and_then(|end| serde_json::from_str::<Value>(end.trim()).ok());
    assert_eq!(end.expect("an end")["status"], "cancelled", "{told}");
    assert_eq!(shown(), "cancelled", "whoever is told finds it written");
}

#[test]
fn artifacts_of_a_run_that_do_not_fit_are_named() {
    let small = Small::new();
    let order = |bytes: u32| -> Value {
        let script = format!("head -c {bytes} /dev/zero > out");
        json!({ "command": ["sh", "-c", script], "artifacts": ["out"] })
    };
    let fits = small.0.post("/v1/runs", &order(1000)).json();
    assert_eq!(
        fits["artifacts"][0]["name"], "out",
        "the positive control: {fits}"
    );
    let large = small.0.post("/v1/runs", &order(12 << 20));
    assert_eq!(large.status, 200, "{}", large.text());
    let told = large.json();
    assert_eq!(
        (&told["status"], &told["artifacts"]),
        (&json!("succeeded"), &json!([])),
        "{told}"
    );
    assert!(told["notes"].to_string().contains("out"), "{told}");
    assert_eq!(small.run().status, 200);
}

/// What a tenant has: a key with its name, a sandbox, a run under way and an artifact, each by its path.
struct Tenant {
    key: String,
    key_path: String,
    sandbox: String,
    run: String,
}

impl Tenant {
    fn new(small: &Small) -> Tenant {
        let server = &small.0;
        let order = json!({ "name": "attacker", "scopes": ["runs", "sandboxes", "artifacts"] });
        let made = server.post("/v1/keys", &order).json();
        let key = made["token"].as_str().expect("a token").to_owned();
        let ask = |path: &str, order: &Value| {
            let headers = [("prefer", "respond-async")];
            let answer = server.ask(&key, "POST", path, &headers, order);
            assert!(matches!(answer.status, 201 | 202), "{}", answer.text());
            answer.json()
        };
        let sandbox = ask("/v1/sandboxes", &json!({}));
        let run = ask("/v1/runs", &json!({ "command": ["sleep", "600"] }));
        let path = |kind: &str, id: &Value| format!("/v1/{kind}/{}", id.as_str().expect("a name"));
        assert_eq!(small.put("/v1/artifacts/old", &[7; 1 << 20]).status, 201);
        Tenant {
            key_path: path("keys", &made["id"]),
            sandbox: path("sandboxes", &sandbox["sandbox_id"]),
            run: path("runs", &run["run_id"]),
            key,
        }
    }

    /// As the database says.
    fn is_revoked(&self, server: &Server) -> bool {
        let keys = server.get("/v1/keys").json();
        let all = keys["keys"].as_array().expect("keys").clone();
        let is_it = |key: &Value| self.key_path.ends_with(key["id"].as_str().expect("a name"));
        all.iter()
            .any(|key| is_it(key) && key["revoked_at"].is_string())
    }

    fn status(&self, small: &Small) -> u16 {
        let server = &small.0;
        let path = "/v1/sandboxes";
        server.ask(&self.key, "GET", path, &[], &Value::Null).status
    }
}

#[test]
fn an_admin_revokes_stops_and_cleans_on_a_full_disk() {
    let small = Small::of("40m");
    let (server, attacker) = (&small.0, Tenant::new(&small));
    small.fill();
    is_full(&small.run());
    assert_eq!(attacker.status(&small), 200, "the positive control");
    let revoked = server.delete(&attacker.key_path);
    assert_eq!(revoked.status, 204, "{}", revoked.text());
    assert_eq!(attacker.status(&small), 401);
    let run = server.delete(&attacker.run);
    assert!(matches!(run.status, 200 | 202), "{}", run.text());
    server.until("the end of the run", || {
        server.get(&attacker.run).json()["status"] == "cancelled"
    });
    let sandbox = server.delete(&attacker.sandbox);
    assert_eq!(sandbox.status, 200, "{}", sandbox.text());
    let read = server.get("/v1/artifacts/old");
    assert_eq!(
        read.status,
        507,
        "what was given free is not for this: {}",
        read.text()
    );
    let removed = server.delete("/v1/artifacts/old");
    assert_eq!(removed.status, 200, "{}", removed.text());
    small.empty();
    server.until("the reserve", || small.run().status == 200);
    assert!(attacker.is_revoked(server));
}

/// A job of this key's that sleeps, by its path.
fn sleeping_job(server: &Server, key: &str) -> String {
    let order = json!({ "run": { "command": ["sleep", "600"] } });
    let sent = server.ask(key, "POST", "/v1/jobs", &[], &order);
    assert_eq!(sent.status, 202, "{}", sent.text());
    let id = sent.json()["job_id"].clone();
    format!("/v1/jobs/{}", id.as_str().expect("a name"))
}

#[track_caller]
fn job_is_cancelled(server: &Server, job: &str) {
    let cancelled = server.delete(job);
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());
    server.until("the end of the job", || {
        server.get(job).json()["status"] == "cancelled"
    });
}

/// What is stopped of everybody's, by the names of its lists.
#[track_caller]
fn everything_is_stopped(server: &Server) -> Value {
    let path = "/v1/worker/admin/stop-all-orchestrator-directed";
    let stopped = server.post(path, &json!({ "version": 1 }));
    assert_eq!(stopped.status, 200, "{}", stopped.text());
    let stopped = stopped.json();
    assert_eq!(stopped["left"], json!([]), "{stopped}");
    stopped
}

#[test]
fn a_server_that_was_killed_on_a_full_disk_starts_and_an_admin_revokes_stops_and_cleans() {
    let slots = "[jobs]\nslots = 1\n";
    let small = Small::on(Folder::new(), "40m", slots);
    let attacker = Tenant::new(&small);
    let running = sleeping_job(&small.0, &attacker.key);
    small.0.until("its start", || {
        small.0.get(&running).json()["status"] == "running"
    });
    let queued = sleeping_job(&small.0, &attacker.key);
    small.fill();
    is_full(&small.run());
    let small = small.restarted_after_a_kill(slots);
    let server = &small.0;
    is_full(&small.run());
    assert_eq!(attacker.status(&small), 200, "the positive control");
    let revoked = server.delete(&attacker.key_path);
    assert_eq!(revoked.status, 204, "{}", revoked.text());
    assert_eq!(attacker.status(&small), 401);
    job_is_cancelled(server, &queued);
    everything_is_stopped(server);
    let removed = server.delete("/v1/artifacts/old");
    assert_eq!(removed.status, 200, "{}", removed.text());
    small.empty();
    server.until("the reserve", || small.run().status == 200);
    assert!(attacker.is_revoked(server));
}

#[test]
fn programs_that_go_on_writing_do_not_take_the_reserve() {
    const MORE: u64 = 60;
    let folder = Folder::new();
    let shared = folder.at("shared");
    fs::create_dir(&shared).expect("a folder");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).expect("its rights");
    let small = Small::on(folder, "40m", &format!("[serve]\nfolders = [{shared:?}]\n"));
    let (server, attacker) = (&small.0, Tenant::new(&small));
    // Each round is a line of output, a denial, and a line of the ledger about it.
    let script = "n=0; while :; do n=$((n+1)); curl -s -o /dev/null http://h$n.example/; \
                  echo line $n; echo $n > new; mv new count; done";
    let order = json!({
        "command": ["sh", "-c", script], "workspace": shared, "allow_hosts": ["allowed.example"]
    });
    let prefer = [("prefer", "respond-async")];
    let begun = server.ask(&attacker.key, "POST", "/v1/runs", &prefer, &order);
    assert_eq!(begun.status, 202, "{}", begun.text());
    let run = begun.json()["run_id"].clone();
    let run = format!("/v1/runs/{}", run.as_str().expect("a name"));
    let count = || {
        let written = fs::read_to_string(shared.join("count")).unwrap_or_default();
        written.trim().parse::<u64>().unwrap_or(0)
    };
    server.until("its first lines", || count() > 0);
    let job = sleeping_job(server, &attacker.key);
    let spare = server.post("/v1/keys", &json!({ "name": "spare", "scopes": ["runs"] }));
    let spare = spare.json()["id"].clone();
    small.fill();
    let revoked = server.delete(&format!("/v1/keys/{}", spare.as_str().expect("a name")));
    assert_eq!(
        revoked.status,
        204,
        "the reserve is given: {}",
        revoked.text()
    );
    // What was under way when the reserve was given is over.
    let given = count();
    server.until("another round", || count() > given + 1);
    let (before, free, ledger) = (count(), small.free_bytes(), small.ledger_bytes());
    server.until("more of its lines", || count() >= before + MORE);
    assert_eq!(
        small.ledger_bytes(),
        ledger,
        "of {MORE} requests that were denied"
    );
    let left = small.free_bytes();
    assert!(left >= free / 2, "{left} of {free} bytes are left");
    job_is_cancelled(server, &job);
    let ended = server.delete(&run);
    assert!(matches!(ended.status, 200 | 202), "{}", ended.text());
    server.until("the end of the run", || {
        server.get(&run).json()["status"] == "cancelled"
    });
    everything_is_stopped(server);
    let sandbox = server.delete(&attacker.sandbox);
    assert_eq!(sandbox.status, 200, "{}", sandbox.text());
    let revoked = server.delete(&attacker.key_path);
    assert_eq!(revoked.status, 204, "{}", revoked.text());
    small.empty();
    server.until("the reserve", || small.run().status == 200);
    assert!(attacker.is_revoked(server));
    let lines = server.get("/v1/audit?what=run.end&limit=1000").json();
    let id = run.rsplit('/').next().expect("a name");
    let all = lines["lines"].as_array().expect("lines");
    let end = all.iter().find(|line| line["run"] == id);
    let about = end.expect("its end")["about"].to_string();
    assert!(about.contains("denials="), "they are counted: {about}");
}

#[test]
fn a_revocation_takes_effect_before_it_can_be_written() {
    let small = Small::of("40m");
    let (server, attacker) = (&small.0, Tenant::new(&small));
    small.fill_with_the_reserve();
    let revoked = server.delete(&attacker.key_path);
    assert!(matches!(revoked.status, 202 | 204), "{}", revoked.text());
    assert_eq!(attacker.status(&small), 401);
    small.empty();
    server.until("its line", || attacker.is_revoked(server));
    assert_eq!(attacker.status(&small), 401);
}

#[test]
fn a_key_is_revoked_at_the_machine_although_its_disk_is_full() {
    let small = Small::of("40m");
    let attacker = Tenant::new(&small);
    small.fill();
    let id = attacker.key_path.rsplit('/').next().expect("its name");
    let folder = &small.0.folder;
    let ran = Command::new("nsenter")
        .args(["--mount", "--target", &small.0.pid.to_string(), "--"])
        .arg(cli::airlock())
        .arg("--state")
        .arg(folder.at("state"))
        .args(["key", "revoke", id])
        .output()
        .expect("it runs");
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    assert_eq!(attacker.status(&small), 401);
    small.empty();
}

/// A sandbox of this key's whose programs have written so many megabytes each, one after the other.
fn write_much(server: &Server, key: &str, megabytes: &[u32]) -> String {
    let made = server.ask(
        key,
        "POST",
        "/v1/sandboxes",
        &[],
        &json!({ "output": "64M" }),
    );
    assert_eq!(made.status, 201, "{}", made.text());
    let sandbox = format!(
        "/v1/sandboxes/{}",
        made.json()["sandbox_id"].as_str().expect("a name")
    );
    for count in megabytes {
        let order = json!({ "command": ["head", "-c", format!("{count}M"), "/dev/zero"], "background": true });
        let exec = server
            .ask(key, "POST", &format!("{sandbox}/exec"), &[], &order)
            .json();
        let exec = format!(
            "{sandbox}/exec/{}",
            exec["exec_id"].as_str().expect("a name")
        );
        let shown = || server.ask(key, "GET", &exec, &[], &Value::Null).json();
        server.until("its end", || shown()["status"] == "succeeded");
    }
    sandbox
}

#[test]
fn the_output_of_one_key_leaves_the_disk_to_the_others() {
    let small = Small::of("64m");
    let server = &small.0;
    let [greedy, other] = [(); 2].map(|()| server.key(&["sandboxes", "runs"]));
    let order = json!({ "command": ["echo", "still here"] });
    let run = || server.ask(&other, "POST", "/v1/runs", &[], &order);
    assert_eq!(run().status, 200, "the positive control");
    write_much(server, &greedy, &[20, 20, 20, 20]);
    let told = run();
    assert_eq!(
        (told.status, &told.json()["stdout"]),
        (200, &json!("still here\n")),
        "{}",
        told.text()
    );
    let id = told.json()["run_id"].as_str().expect("a name").to_owned();
    let kept = server
        .ask(&other, "GET", &format!("/v1/runs/{id}"), &[], &Value::Null)
        .json();
    assert_eq!(kept["status"], "succeeded", "{kept}");
}

#[test]
fn output_leaves_the_last_of_a_disk_to_the_database() {
    let small = Small::of("64m");
    let server = &small.0;
    // A twentieth is what must be free, and one owner's share of output is larger than that.
    small.fill_but(3 << 20);
    write_much(server, &server.admin, &[4]);
    assert_eq!(small.run().status, 200);
    small.empty();
}
