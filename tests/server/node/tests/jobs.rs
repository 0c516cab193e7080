//! Jobs: accepted once and for all, started in their turn, ended exactly once, whatever becomes of their server.

use gateway_tests::Stream;
use node_tests::{Answer, Folder, Server, key_of};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

const ONE_SLOT: &str = "[jobs]\nslots = 1\n";

fn submit(server: &Server, key: &str, order: &Value) -> String {
    let answer = server.ask(key, "POST", "/v1/jobs", &[], order);
    assert_eq!(answer.status, 202, "{}", answer.text());
    let id = answer.json()["job_id"]
        .as_str()
        .expect("its name")
        .to_owned();
    assert_eq!(
        answer.header("location"),
        Some(format!("/v1/jobs/{id}").as_str())
    );
    id
}

fn run(script: &str) -> Value {
    json!({ "command": ["sh", "-c", script] })
}

fn job(server: &Server, id: &str) -> Value {
    let answer = server.get(&format!("/v1/jobs/{id}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn cancel(server: &Server, id: &str) -> Answer {
    server.delete(&format!("/v1/jobs/{id}"))
}

/// An event as it came.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    id: String,
    kind: String,
    data: Value,
}

fn event(text: &str) -> Option<Event> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let data = serde_json::from_str(field("data: ")?).expect("JSON");
    Some(Event {
        id: field("id: ")?.to_owned(),
        kind: field("event: ")?.to_owned(),
        data,
    })
}

/// All events of a job behind this one; returns when it has ended.
fn events(server: &Server, id: &str, last: Option<&str>) -> Vec<Event> {
    let header: Vec<_> = last
        .map(|last| ("last-event-id", last))
        .into_iter()
        .collect();
    let answer = server.ask(
        &server.admin,
        "GET",
        &format!("/v1/jobs/{id}/events"),
        &header,
        &Value::Null,
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.text().split("\n\n").filter_map(event).collect()
}

/// Waits for its end; the job with its result.
fn ended(server: &Server, id: &str) -> Value {
    let last = events(server, id, None).pop().expect("an end");
    assert_eq!(last.kind, "end");
    job(server, id)
}

/// Reads events until one of this kind comes for which this holds.
fn until(stream: &mut Stream, rest: &mut String, holds: impl Fn(&Event) -> bool) -> Event {
    loop {
        while let Some((first, more)) = rest.split_once("\n\n") {
            let found = event(first);
            *rest = more.to_owned();
            if let Some(found) = found.filter(|found| holds(found)) {
                return found;
            }
        }
        let piece = stream.chunk().expect("the event comes");
        rest.push_str(std::str::from_utf8(&piece).expect("text"));
    }
}

/// Waits until a job runs its program.
fn started(server: &Server, id: &str) {
    let path = format!("/v1/jobs/{id}/events");
    let mut stream =
        server
            .client
            .open(&server.request(&server.admin, "GET", &path, &[], &Value::Null));
    assert_eq!(stream.head().expect("an answer").0, 200);
    until(&mut stream, &mut String::new(), |event| {
        event.kind == "started"
    });
}

/// A folder that programs may write to, and the configuration that shares it.
fn shared() -> (Folder, PathBuf, String) {
    let folder = Folder::new();
    let place = folder.at("shared");
    fs::create_dir(&place).expect("a folder");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).expect("its rights");
    let config = format!("[serve]\nfolders = [\"{}\"]\n", place.display());
    (folder, place, config)
}

/// Whether a process on this machine has this word among its arguments.
fn lives(word: &str) -> bool {
    let found = |entry: fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|argument| argument == word.as_bytes())
    };
    fs::read_dir("/proc")
        .expect("processes")
        .flatten()
        .any(found)
}

#[test]
fn a_job_is_accepted_runs_and_has_a_result() {
    let server = Server::new();
    let order = json!({ "run": run("echo out; echo err >&2"), "name": "first", "labels": { "k": "v" }, "priority": 3 });
    let id = submit(&server, &server.admin, &order);
    let told = events(&server, &id, None);
    let kinds: Vec<_> = told.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("job", "end"));
    assert!(
        kinds.contains(&"started") && kinds.contains(&"output") && kinds.contains(&"finished"),
        "{kinds:?}"
    );
    let job = job(&server, &id);
    assert_eq!(
        (&job["status"], &job["name"], &job["labels"]),
        (&json!("succeeded"), &json!("first"), &json!({ "k": "v" }))
    );
    assert_eq!(
        (&job["attempt"], &job["most_attempts"], &job["priority"]),
        (&json!(1), &json!(1), &json!(3))
    );
    assert_eq!(
        (&job["result"]["stdout"], &job["result"]["job_id"]),
        (&json!("out\n"), &json!(id))
    );
    assert_eq!(
        (&job["error"], &job["waiting_for"], &job["runs"]),
        (&Value::Null, &Value::Null, &json!([job["run_id"]]))
    );
    let run = server
        .get(&format!(
            "/v1/runs/{}",
            job["run_id"].as_str().expect("its run")
        ))
        .json();
    assert_eq!(
        (&run["status"], &run["job_id"]),
        (&json!("succeeded"), &json!(id)),
        "each try is a run"
    );
    let logs = |query: &str| server.get(&format!("/v1/jobs/{id}/logs{query}")).text();
    assert_eq!(
        (logs(""), logs("?stream=stderr")),
        ("out\n".into(), "err\n".into())
    );
    assert_eq!(
        server.get(&format!("/v1/jobs/{id}/logs?stream=x")).status,
        400
    );
    let metrics = server.get("/metrics").text();
    assert!(
        metrics.contains("airlock_jobs_ended_total{status=\"succeeded\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("airlock_jobs_queued 0") && metrics.contains("airlock_jobs_running 0")
    );
}

#[test]
fn mistakes_are_heard_of_when_they_are_made() {
    let server = Server::new();
    let key = server.key(&["runs"]);
    let asked = |order: Value| server.ask(&key, "POST", "/v1/jobs", &[], &order);
    for (order, status, word) in [
        (json!({}), 400, "either `run` or `agent`"),
        (json!({ "run": {} }), 400, "command"),
        (
            json!({ "run": { "command": ["true"], "run_id": "x" } }),
            400,
            "cannot be named",
        ),
        (
            json!({ "run": { "command": ["true"], "job_id": "x" } }),
            400,
            "cannot be named",
        ),
        (
            json!({ "run": { "command": ["true"], "network": "host" } }),
            403,
            "only for an admin",
        ),
        (
            json!({ "run": { "command": ["true"] }, "priority": 101 }),
            400,
            "`priority`",
        ),
        (
            json!({ "run": { "command": ["true"] }, "prioritty": 1 }),
            400,
            "did you mean `priority`?",
        ),
        (
            json!({ "run": { "command": ["true"] }, "not_before": "soon" }),
            400,
            "`not_before`",
        ),
        (
            json!({ "run": { "command": ["true"] }, "after": ["never"] }),
            422,
            "no such job",
        ),
    ] {
        let answer = asked(order.clone());
        assert_eq!(answer.status, status, "{order}: {}", answer.text());
        assert!(answer.text().contains(word), "{order}: {}", answer.text());
    }
    assert_eq!(
        asked(json!({ "run": { "command": ["true"] } })).status,
        202,
        "the positive control"
    );
    let other = server.key(&["artifacts"]);
    assert_eq!(
        server
            .ask(&other, "GET", "/v1/jobs", &[], &Value::Null)
            .status,
        403
    );
}

#[test]
fn jobs_are_listed_newest_first_filtered_and_paged() {
    let server = Server::new();
    let ids: Vec<_> = (0..4)
        .map(|number| {
            let order = json!({ "run": run(&format!("exit {}", number % 2)), "name": format!("n{}", number % 2), "labels": { "of": number.to_string() } });
            submit(&server, &server.admin, &order)
        })
        .collect();
    ids.iter().for_each(|id| drop(ended(&server, id)));
    let list = |query: &str| {
        let page = server.get(&format!("/v1/jobs{query}")).json();
        let place = |job: &Value| {
            ids.iter()
                .position(|id| job["job_id"] == json!(id))
                .expect("one of ours")
                .to_string()
        };
        assert!(
            page["jobs"]
                .as_array()
                .unwrap()
                .iter()
                .all(|job| job.get("result").is_none())
        );
        (
            page["jobs"]
                .as_array()
                .unwrap()
                .iter()
                .map(place)
                .collect::<String>(),
            page["before"].as_str().map(str::to_owned),
        )
    };
    assert_eq!(list("").0, "3210");
    assert_eq!(
        (list("?status=failed").0, list("?name=n0").0),
        ("31".into(), "20".into())
    );
    assert_eq!(
        (list("?label=of=2").0, list("?label=of=9").0),
        ("2".into(), "".into())
    );
    let (first, before) = list("?limit=3");
    let (second, end) = list(&format!("?limit=3&before={}", before.unwrap()));
    assert_eq!((first + &second, end), ("3210".into(), None));
    for bad in [
        "?limit=0",
        "?limit=201",
        "?status=odd",
        "?colour=red",
        "?label=x",
    ] {
        assert_eq!(server.get(&format!("/v1/jobs{bad}")).status, 400, "{bad}");
    }
}

#[test]
fn the_same_idempotency_key_is_one_job_also_after_a_restart() {
    let (folder, place, config) = shared();
    let server = Server::on(folder, &config, &[], None);
    let order = json!({ "run": { "command": ["sh", "-c", "echo x >> log"], "workspace": place } });
    let key = [("idempotency-key", "k1")];
    let ask =
        |server: &Server, body: &Value| server.ask(&server.admin, "POST", "/v1/jobs", &key, body);
    let ids: Vec<_> = std::thread::scope(|threads| {
        let four: Vec<_> = (0..4)
            .map(|_| threads.spawn(|| ask(&server, &order).json()["job_id"].clone()))
            .collect();
        four.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(
        ids.iter().all(|id| id.is_string() && *id == ids[0]),
        "{ids:?}"
    );
    assert_eq!(ask(&server, &json!({ "run": run("true") })).status, 422);
    ended(&server, ids[0].as_str().unwrap());
    let server = server.restart(Signal::TERM, &config);
    let again = ask(&server, &order).json();
    assert_eq!(
        (&again["job_id"], &again["status"]),
        (&ids[0], &json!("succeeded"))
    );
    assert_eq!(
        fs::read_to_string(place.join("log")).unwrap(),
        "x\n",
        "exactly once"
    );
}

#[test]
fn higher_priorities_start_first_and_then_older_ones() {
    let (folder, place, config) = shared();
    let server = Server::on(folder, &format!("{config}{ONE_SLOT}"), &[], None);
    let blocker = submit(
        &server,
        &server.admin,
        &json!({ "run": { "command": ["sleep", "600"] } }),
    );
    started(&server, &blocker);
    let ids: Vec<_> = [("a", 0), ("b", 5), ("c", -5), ("d", 5)]
        .map(|(name, priority)| {
            let command = ["sh", "-c", &format!("echo {name} >> log")];
            submit(
                &server,
                &server.admin,
                &json!({ "run": { "command": command, "workspace": place }, "priority": priority }),
            )
        })
        .into();
    assert_eq!(job(&server, &ids[0])["waiting_for"], "turn");
    assert_eq!(cancel(&server, &blocker).status, 200);
    ids.iter().for_each(|id| drop(ended(&server, id)));
    assert_eq!(
        fs::read_to_string(place.join("log")).unwrap(),
        "b\nd\na\nc\n"
    );
}

#[test]
fn a_job_waits_for_its_time() {
    let server = Server::new();
    let soon = Command::new("date")
        .args(["-u", "-d", "+6 seconds", "+%FT%TZ"])
        .output()
        .expect("a clock");
    let moment = String::from_utf8(soon.stdout)
        .expect("a moment")
        .trim()
        .to_owned();
    let id = submit(
        &server,
        &server.admin,
        &json!({ "run": run("true"), "not_before": moment }),
    );
    let waits = job(&server, &id);
    assert_eq!(
        (&waits["waiting_for"], &waits["next_try_at"]),
        (&json!("time"), &json!(moment.replace('Z', ".000Z")))
    );
    let done = ended(&server, &id);
    assert_eq!(
        (&done["status"], &done["next_try_at"]),
        (&json!("succeeded"), &Value::Null)
    );
    assert!(
        done["started_at"].as_str().unwrap()[..19] >= moment[..19],
        "{done}"
    );
}

#[test]
fn a_job_that_fails_is_tried_again_after_a_pause() {
    let (folder, place, config) = shared();
    let server = Server::on(folder, &config, &[], None);
    let script = "echo x >> log; test $(wc -l < log) -ge 3";
    let order = |script: &str, retries: Value| json!({ "run": { "command": ["sh", "-c", script], "workspace": place }, "retries": retries });
    let id = submit(
        &server,
        &server.admin,
        &order(script, json!({ "most": 5, "pause": "100ms" })),
    );
    let done = ended(&server, &id);
    assert_eq!(
        (&done["status"], &done["attempt"]),
        (&json!("succeeded"), &json!(3)),
        "{done}"
    );
    assert_eq!(done["runs"].as_array().unwrap().len(), 3);
    assert_eq!(fs::read_to_string(place.join("log")).unwrap(), "x\nx\nx\n");
    let id = submit(
        &server,
        &server.admin,
        &order("exit 7", json!({ "most": 1, "pause": "10ms" })),
    );
    let done = ended(&server, &id);
    assert_eq!(
        (
            &done["status"],
            &done["attempt"],
            &done["result"]["exit_code"]
        ),
        (&json!("failed"), &json!(2), &json!(7))
    );
    let id = submit(
        &server,
        &server.admin,
        &order("exit 7", json!({ "most": 3, "on": ["timed_out"] })),
    );
    assert_eq!(
        ended(&server, &id)["attempt"],
        1,
        "that is no reason to try again"
    );
    let again = server.post(&format!("/v1/jobs/{id}/retry"), &Value::Null);
    assert_eq!(again.status, 202, "{}", again.text());
    let done = ended(&server, &id);
    assert_eq!(
        (&done["status"], done["runs"].as_array().unwrap().len()),
        (&json!("failed"), 2)
    );
}

#[test]
fn what_comes_after_starts_with_success_and_is_cancelled_without() {
    let (folder, place, config) = shared();
    let server = Server::on(folder, &config, &[], None);
    let chain = |script: &str| {
        let mut ids: Vec<String> = Vec::new();
        for name in ["a", "b", "c"] {
            let after: Vec<_> = ids.last().into_iter().collect();
            let script = if name == "a" {
                script.to_owned()
            } else {
                format!("echo {name} >> log")
            };
            let order = json!({ "run": { "command": ["sh", "-c", script], "workspace": place }, "after": after });
            ids.push(submit(&server, &server.admin, &order));
        }
        ids
    };
    let ids = chain("sleep 0.2; echo a >> log");
    assert_eq!(
        ids.iter()
            .map(|id| ended(&server, id)["status"].clone())
            .collect::<Vec<_>>(),
        ["succeeded"; 3]
    );
    assert_eq!(fs::read_to_string(place.join("log")).unwrap(), "a\nb\nc\n");
    let ids = chain("until test -e go; do sleep 0.02; done; exit 1");
    assert_eq!(job(&server, &ids[1])["waiting_for"], "jobs");
    fs::write(place.join("go"), "").unwrap();
    let ends: Vec<_> = ids
        .iter()
        .map(|id| ended(&server, id)["status"].clone())
        .collect();
    assert_eq!(ends, ["failed", "cancelled", "cancelled"]);
    assert!(
        job(&server, &ids[2])["error"]["message"]
            .as_str()
            .unwrap()
            .contains(&ids[0])
    );
    let retry = server.post(&format!("/v1/jobs/{}/retry", ids[2]), &Value::Null);
    assert_eq!(retry.status, 409, "{}", retry.text());
    assert_eq!(
        fs::read_to_string(place.join("log")).unwrap(),
        "a\nb\nc\n",
        "none of them ran"
    );
}

#[test]
fn cancelling_ends_a_job_that_waits_and_one_that_runs() {
    let server = Server::with(ONE_SLOT, &[]);
    let word = format!("44556{}", std::process::id());
    let running = submit(
        &server,
        &server.admin,
        &json!({ "run": { "command": ["sleep", word] }, "retries": { "most": 9 } }),
    );
    server.until("the program", || lives(&word));
    let queued = submit(&server, &server.admin, &json!({ "run": run("true") }));
    let behind = submit(
        &server,
        &server.admin,
        &json!({ "run": run("true"), "after": [queued] }),
    );
    let open = server.post(&format!("/v1/jobs/{queued}/retry"), &Value::Null);
    assert_eq!(open.status, 409, "it has not ended");
    let answer = cancel(&server, &queued);
    assert_eq!(
        (answer.status, &answer.json()["status"]),
        (200, &json!("cancelled")),
        "{}",
        answer.text()
    );
    assert_eq!(answer.json()["runs"], json!([]), "it never ran");
    assert_eq!(job(&server, &behind)["status"], "cancelled");
    let answer = cancel(&server, &running);
    assert_eq!(
        (answer.status, &answer.json()["status"]),
        (200, &json!("cancelled")),
        "{}",
        answer.text()
    );
    assert!(!lives(&word), "nothing of it is left");
    assert_eq!(
        cancel(&server, &running).json()["status"],
        "cancelled",
        "again is the same"
    );
    assert_eq!(cancel(&server, "never").status, 404);
}

#[test]
fn a_server_that_is_killed_leaves_every_job_with_what_was_asked_for() {
    let (folder, place, config) = shared();
    let config = format!("{config}[jobs]\nslots = 4\n");
    let server = Server::on(folder, &config, &[], None);
    // The first try writes its name and stays; those after it find the name and end.
    let script =
        |name: &str| format!("echo x >> {name}; test $(wc -l < {name}) -ge 2 || sleep 600");
    let order = |name: &str, more: &Value| {
        let mut order =
            json!({ "run": { "command": ["sh", "-c", script(name)], "workspace": place } });
        more.as_object()
            .unwrap()
            .iter()
            .for_each(|(key, value)| order[key] = value.clone());
        order
    };
    let rerun = submit(
        &server,
        &server.admin,
        &order("rerun", &json!({ "on_lost": "rerun" })),
    );
    let lost = submit(&server, &server.admin, &order("lost", &json!({})));
    let retried = submit(
        &server,
        &server.admin,
        &order(
            "retried",
            &json!({ "retries": { "most": 1, "pause": "10ms" } }),
        ),
    );
    [&rerun, &lost, &retried]
        .iter()
        .for_each(|id| started(&server, id));
    let lines = |name: &str| fs::read_to_string(place.join(name)).unwrap_or_default();
    server.until("the first tries", || {
        ["rerun", "lost", "retried"]
            .iter()
            .all(|name| lines(name) == "x\n")
    });
    let behind = submit(
        &server,
        &server.admin,
        &json!({ "run": run("true"), "after": [rerun] }),
    );
    let in_vain = submit(
        &server,
        &server.admin,
        &json!({ "run": run("true"), "after": [lost] }),
    );
    let queued = submit(
        &server,
        &server.admin,
        &json!({ "run": { "command": ["sh", "-c", "echo x >> queued"], "workspace": place } }),
    );
    let server = server.restart(Signal::KILL, &config);
    let ends: Vec<_> = [&rerun, &lost, &retried, &behind, &in_vain, &queued]
        .iter()
        .map(|id| ended(&server, id))
        .collect();
    let statuses: Vec<_> = ends
        .iter()
        .map(|job| job["status"].as_str().unwrap())
        .collect();
    assert_eq!(
        statuses,
        [
            "succeeded",
            "lost",
            "succeeded",
            "succeeded",
            "cancelled",
            "succeeded"
        ]
    );
    let tries: Vec<_> = ends
        .iter()
        .map(|job| {
            (
                job["attempt"].as_u64().unwrap(),
                job["runs"].as_array().unwrap().len(),
            )
        })
        .collect();
    assert_eq!(tries, [(1, 2), (1, 1), (2, 2), (1, 1), (0, 0), (1, 1)]);
    assert_eq!(ends[1]["error"]["code"], "lost");
    assert_eq!(
        ["rerun", "lost", "retried", "queued"].map(lines),
        ["x\nx\n", "x\n", "x\nx\n", "x\n"]
    );
    let first = server
        .get(&format!(
            "/v1/runs/{}",
            ends[0]["runs"][0].as_str().unwrap()
        ))
        .json();
    assert_eq!(first["status"], "lost", "its first try has an end, too");
}

#[test]
fn a_server_that_ends_in_order_cancels_no_job() {
    let (folder, place, config) = shared();
    let config = format!("{config}grace = \"100ms\"\n[jobs]\nslots = 3\n");
    let server = Server::on(folder, &config, &[], None);
    let script =
        |name: &str| format!("echo x >> {name}; test $(wc -l < {name}) -ge 2 || sleep 600");
    let order = |name: &str, on_lost: &str| json!({ "run": { "command": ["sh", "-c", script(name)], "workspace": place }, "on_lost": on_lost });
    let rerun = submit(&server, &server.admin, &order("rerun", "rerun"));
    let lost = submit(&server, &server.admin, &order("lost", "lost"));
    let lines = |name: &str| fs::read_to_string(place.join(name)).unwrap_or_default();
    server.until("the first tries", || {
        ["rerun", "lost"].iter().all(|name| lines(name) == "x\n")
    });
    let queued = submit(&server, &server.admin, &json!({ "run": run("true") }));
    let server = server.restart(Signal::TERM, &config);
    let ends: Vec<_> = [&rerun, &lost, &queued]
        .iter()
        .map(|id| ended(&server, id)["status"].clone())
        .collect();
    assert_eq!(ends, ["succeeded", "lost", "succeeded"]);
}

#[test]
fn jobs_of_a_key_that_was_revoked_do_not_start() {
    let server = Server::with(ONE_SLOT, &[]);
    let blocker = submit(
        &server,
        &server.admin,
        &json!({ "run": { "command": ["sleep", "600"] } }),
    );
    started(&server, &blocker);
    let key = key_of(&server, "acme", &["runs"]);
    let id = submit(&server, &key, &json!({ "run": run("true") }));
    let name = key.split('_').nth(1).expect("its identifier");
    assert_eq!(server.delete(&format!("/v1/keys/{name}")).status, 204);
    cancel(&server, &blocker);
    let done = ended(&server, &id);
    assert_eq!(
        (&done["status"], &done["error"]["code"], &done["runs"]),
        (&json!("cancelled"), &json!("policy_denied"), &json!([]))
    );
    assert!(
        done["error"]["message"]
            .as_str()
            .unwrap()
            .contains("revoked")
    );
}

#[test]
fn nobody_learns_of_anothers_jobs() {
    let server = Server::new();
    let [hers, his] = ["acme", "else"].map(|tenant| key_of(&server, tenant, &["runs"]));
    let id = submit(&server, &hers, &json!({ "run": run("true") }));
    ended(&server, &id);
    let ask =
        |key: &str, method: &str, path: &str| server.ask(key, method, path, &[], &Value::Null);
    for (method, path) in [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/retry"),
        ("GET", "/events"),
        ("GET", "/logs"),
    ] {
        let [theirs, none] =
            [id.as_str(), "01NEVER"].map(|id| ask(&his, method, &format!("/v1/jobs/{id}{path}")));
        assert_eq!(
            (theirs.status, theirs.text()),
            (404, none.text()),
            "{method} {path}"
        );
    }
    assert_eq!(ask(&his, "GET", "/v1/jobs").json()["jobs"], json!([]));
    let after = |id: &str| {
        server.ask(
            &his,
            "POST",
            "/v1/jobs",
            &[],
            &json!({ "run": run("true"), "after": [id] }),
        )
    };
    let (theirs, none) = (after(&id), after("01NEVER"));
    assert_eq!((theirs.status, none.status), (422, 422));
    assert_eq!(theirs.text().replace(&id, "01NEVER"), none.text());
    assert_eq!(
        ask(&hers, "GET", &format!("/v1/jobs/{id}")).status,
        200,
        "the positive control"
    );
}

#[test]
fn more_jobs_than_may_wait_are_refused_by_name() {
    let server = Server::with(
        "[jobs]\nslots = 1\nqueued = 3\nqueued_per_tenant = 2\n",
        &[],
    );
    let [hers, his] = ["acme", "else"].map(|tenant| key_of(&server, tenant, &["runs"]));
    let blocker = submit(
        &server,
        &server.admin,
        &json!({ "run": { "command": ["sleep", "600"] } }),
    );
    started(&server, &blocker);
    let ask = |key: &str| server.ask(key, "POST", "/v1/jobs", &[], &json!({ "run": run("true") }));
    assert_eq!([ask(&hers).status, ask(&hers).status], [202, 202]);
    let full = ask(&hers);
    assert_eq!(
        (full.status, &full.json()["code"]),
        (429, &json!("quota_exceeded"))
    );
    assert!(
        full.text().contains("queued_per_tenant") && full.header("retry-after").is_some(),
        "{}",
        full.text()
    );
    assert_eq!(ask(&his).status, 202, "another has his own");
    let full = ask(&his);
    assert!(
        full.status == 429 && full.text().contains("`queued`"),
        "{}",
        full.text()
    );
    cancel(&server, &blocker);
}

#[test]
fn events_go_on_behind_the_last_one_seen() {
    let server = Server::new();
    let order = json!({ "run": run("printf 'one two'; exit 1"), "retries": { "most": 1, "pause": "10ms" } });
    let id = submit(&server, &server.admin, &order);
    let all = events(&server, &id, None);
    assert_eq!(
        all.iter().filter(|event| event.kind == "finished").count(),
        2,
        "both tries"
    );
    let states: Vec<_> = all
        .iter()
        .filter(|event| event.kind == "job")
        .map(|event| event.data["status"].clone())
        .collect();
    assert!(
        states.contains(&json!("running")) && states.last() == Some(&json!("failed")),
        "{states:?}"
    );
    assert_eq!(
        all.last()
            .map(|event| (event.kind.as_str(), event.data["status"].clone())),
        Some(("end", json!("failed")))
    );
    let again = events(&server, &id, None);
    let runs = |events: &[Event]| {
        events
            .iter()
            .filter(|event| event.kind == "output" || event.kind == "finished")
            .cloned()
            .map(|event| (event.kind, event.data))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        runs(&again),
        runs(&all),
        "whoever comes late hears the same"
    );
    let behind = |kind: &str, nth: usize| {
        let place = again
            .iter()
            .enumerate()
            .filter(|(_, event)| event.kind == kind)
            .nth(nth)
            .expect("it came")
            .0;
        assert_eq!(
            events(&server, &id, Some(&again[place].id)),
            again[place + 1..],
            "behind {:?}",
            again[place]
        );
    };
    for (kind, nth) in [
        ("output", 0),
        ("finished", 0),
        ("started", 1),
        ("output", 1),
        ("finished", 1),
    ] {
        behind(kind, nth);
    }
    let bad = server.ask(
        &server.admin,
        "GET",
        &format!("/v1/jobs/{id}/events"),
        &[("last-event-id", "x")],
        &Value::Null,
    );
    assert_eq!(bad.status, 400);
}

#[test]
fn a_noisy_tenant_delays_another_by_one_slot_at_most() {
    let (folder, place, config) = shared();
    let server = Server::on(folder, &format!("{config}{ONE_SLOT}"), &[], None);
    let [noisy, quiet] = ["noisy", "quiet"].map(|tenant| key_of(&server, tenant, &["runs"]));
    let blocker = submit(
        &server,
        &noisy,
        &json!({ "run": { "command": ["sleep", "600"] } }),
    );
    started(&server, &blocker);
    let order = |name: &str| json!({ "run": { "command": ["sh", "-c", format!("echo {name} >> log")], "workspace": place } });
    std::thread::scope(|threads| {
        for _ in 0..10 {
            threads.spawn(|| (0..50).for_each(|_| drop(submit(&server, &noisy, &order("noisy")))));
        }
    });
    let id = submit(&server, &quiet, &order("quiet"));
    assert_eq!(cancel(&server, &blocker).status, 200);
    assert_eq!(ended(&server, &id)["status"], "succeeded");
    let log = fs::read_to_string(place.join("log")).expect("some ran");
    let place = log
        .lines()
        .position(|line| line == "quiet")
        .expect("it ran");
    assert!(place <= 1, "{place} of the other's ran before it");
}

#[test]
fn jobs_that_never_end_leave_a_slot_to_whoever_has_none() {
    let server = Server::with("[jobs]\nslots = 4\n", &[]);
    let [noisy, quiet] = ["noisy", "quiet"].map(|tenant| key_of(&server, tenant, &["runs"]));
    let sleep = json!({ "run": { "command": ["sleep", "600"] } });
    let ids: Vec<_> = (0..6).map(|_| submit(&server, &noisy, &sleep)).collect();
    ids[..3].iter().for_each(|id| started(&server, id));
    for _ in 0..2 {
        let id = submit(&server, &quiet, &json!({ "run": run("true") }));
        assert_eq!(ended(&server, &id)["status"], "succeeded");
    }
    let states: Vec<_> = ids
        .iter()
        .map(|id| job(&server, id)["status"].clone())
        .collect();
    assert_eq!(
        states,
        [
            "running", "running", "running", "queued", "queued", "queued"
        ]
    );
    assert_eq!(job(&server, &ids[3])["waiting_for"], "turn");
}

fn audit(server: &Server, query: &str) -> Vec<Value> {
    let answer = server.get(&format!("/v1/audit?limit=1000{query}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["lines"].as_array().expect("lines").clone()
}

#[test]
fn a_cancel_is_carried_out_even_if_whoever_asked_hangs_up() {
    let server = Server::with("[jobs]\nslots = 18\n[tenant.\"*\"]\nmemory = \"1T\"\n", &[]);
    let sleep = json!({ "run": { "command": ["sleep", "600"] } });
    let ids: Vec<_> = (0..16)
        .map(|_| submit(&server, &server.admin, &sleep))
        .collect();
    ids.iter().for_each(|id| started(&server, id));
    for (number, id) in (0..).zip(&ids) {
        let ask = server.request(
            &server.admin,
            "DELETE",
            &format!("/v1/jobs/{id}"),
            &[],
            &Value::Null,
        );
        let stream = server.client.open(&ask);
        // Some hang up before it is written down, some behind: the moment is the point.
        std::thread::sleep(std::time::Duration::from_micros(300 * number));
        drop(stream);
    }
    let cancelled = || {
        let lines = audit(&server, "");
        let asked = |id: &&String| {
            lines
                .iter()
                .any(|line| line["what"] == "job.cancel" && line["job"] == id.as_str())
        };
        ids.iter().filter(asked).collect::<Vec<_>>()
    };
    server.until("a cancel that is written down", || !cancelled().is_empty());
    for id in cancelled() {
        server.until(&format!("the end of {id}"), || {
            job(&server, id)["status"] == "cancelled"
        });
    }
}

#[test]
fn whatever_is_behind_a_job_follows_it_even_through_a_kill() {
    let mut server = Server::on(Folder::new(), ONE_SLOT, &[], None);
    // The kill may come when all have followed; then it proved nothing.
    for _ in 0..20 {
        let left;
        (server, left) = killed_while_they_follow(server);
        if left > 0 {
            return;
        }
    }
    panic!("no kill came while some were left");
}

/// With how many of them ended behind the kill.
fn killed_while_they_follow(server: Server) -> (Server, usize) {
    let blocker = submit(
        &server,
        &server.admin,
        &json!({ "run": { "command": ["sleep", "600"] } }),
    );
    started(&server, &blocker);
    let after = |id: &str| {
        submit(
            &server,
            &server.admin,
            &json!({ "run": run("true"), "after": [id] }),
        )
    };
    let first = submit(&server, &server.admin, &json!({ "run": run("true") }));
    let behind: Vec<_> = (0..350).map(|_| after(&first)).collect();
    let last = after(&behind[349]);
    assert_eq!(cancel(&server, &first).json()["status"], "cancelled");
    let server = server.restart(Signal::KILL, ONE_SLOT);
    for id in behind.iter().chain([&last]) {
        assert_eq!(ended(&server, id)["status"], "cancelled");
    }
    assert!(
        job(&server, &last)["error"]["message"]
            .as_str()
            .expect("why")
            .contains(&first)
    );
    let again = || {
        server
            .post(&format!("/v1/jobs/{first}/retry"), &Value::Null)
            .status
    };
    server.until("all of them", || again() == 202);
    let lines = audit(&server, "");
    let since = lines
        .iter()
        .take_while(|line| line["what"] != "server.start");
    let of_ours = |line: &&Value| {
        line["what"] == "job.end" && behind.iter().any(|id| line["job"] == json!(id))
    };
    let left = since.filter(of_ours).count();
    (server, left)
}

#[test]
fn lines_of_the_audit_about_a_run_name_its_job_and_task() {
    let server = Server::new();
    let order = json!({ "run": { "command": ["sh", "-c", "curl -s http://192.0.2.1/"], "task_id": "t-1" } });
    let id = submit(&server, &server.admin, &order);
    let run = ended(&server, &id)["run_id"]
        .as_str()
        .expect("its run")
        .to_owned();
    let lines = audit(&server, &format!("&run={run}"));
    let ends: Vec<_> = lines
        .iter()
        .filter(|line| line["what"] != "job.start" && line["what"] != "job.end")
        .collect();
    assert!(!ends.is_empty(), "{lines:?}");
    for line in ends {
        assert_eq!(
            (&line["job"], &line["task"]),
            (&json!(id), &json!("t-1")),
            "{line}"
        );
    }
}

#[test]
fn a_cancelled_retry_does_not_look_like_the_success_before_it() {
    let server = Server::with(ONE_SLOT, &[]);
    let id = submit(&server, &server.admin, &json!({ "run": run("true") }));
    assert_eq!(ended(&server, &id)["status"], "succeeded");
    let blocker = submit(
        &server,
        &server.admin,
        &json!({ "run": { "command": ["sleep", "600"] } }),
    );
    started(&server, &blocker);
    assert_eq!(
        server
            .post(&format!("/v1/jobs/{id}/retry"), &Value::Null)
            .status,
        202
    );
    let answer = cancel(&server, &id).json();
    assert_eq!(
        (&answer["status"], &answer["result"]),
        (&json!("cancelled"), &Value::Null)
    );
}

#[test]
fn a_list_by_name_or_label_has_those_alone_and_ends() {
    let server = Server::with(ONE_SLOT, &[]);
    let one = submit(
        &server,
        &server.admin,
        &json!({ "run": run("true"), "name": "n", "labels": { "team": "blue" } }),
    );
    submit(&server, &server.admin, &json!({ "run": run("true") }));
    for query in ["label=team=blue", "name=n"] {
        let page = server.get(&format!("/v1/jobs?{query}")).json();
        assert_eq!(
            (&page["jobs"][0]["job_id"], &page["before"]),
            (&json!(one), &Value::Null),
            "{query}"
        );
    }
}
