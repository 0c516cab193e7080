//! Runs: waited for, followed, cancelled, found again, and never made twice.

use gateway_tests::{Answer, Server};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

const ASYNC: [(&str, &str); 1] = [("prefer", "respond-async")];

fn begin(server: &Server, body: &Value) -> Answer {
    let answer = server.ask(&server.admin, "POST", "/v1/runs", &ASYNC, body);
    assert_eq!(answer.status, 202, "{}", answer.text());
    answer
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
fn more_output_than_a_result_can_have_is_refused_and_as_much_is_not() {
    let server = Server::new();
    let order = |output: &str| json!({ "command": ["true"], "output": output });
    let refused = server.post("/v1/runs", &order("1T"));
    assert_eq!(
        (
            refused.status,
            refused.text().contains("`output` is more than")
        ),
        (400, true),
        "{}",
        refused.text()
    );
    assert_eq!(
        server.post("/v1/runs", &order("16M")).json()["status"],
        "succeeded"
    );
}

#[test]
fn every_word_of_a_request_reaches_the_program() {
    let server = Server::new();
    let script = "cat; cat a b; printf %s \"$GREETING\"; id -u; ulimit -n; exit 3";
    let answer = server.post(
        "/v1/runs",
        &json!({
            "command": ["sh", "-c", script], "stdin": "in ", "env": { "GREETING": "hi " }, "user": "7:8",
            "open_files": 77, "timeout": 20, "memory": "256M", "task_id": "t", "job_id": "j", "run_id": "r",
            "inputs": [{ "name": "a", "text": "A " }, { "name": "b", "base64": "QiA=" }],
        }),
    );
    let result = answer.json();
    assert_eq!(
        (answer.status, &result["stdout"]),
        (200, &json!("in A B hi 7\n77\n")),
        "{result:#}"
    );
    assert_eq!(
        (&result["exit_code"], &result["status"]),
        (&json!(3), &json!("failed"))
    );
    assert_eq!(
        (&result["run_id"], &result["task_id"], &result["job_id"]),
        (&json!("r"), &json!("t"), &json!("j"))
    );
    let again = server.get("/v1/runs/r");
    assert_eq!(
        (again.status, again.json()),
        (200, result),
        "what was answered is what is kept"
    );
}

#[test]
fn a_run_that_could_not_start_is_a_problem_and_one_whose_command_is_absent_is_a_result() {
    let server = Server::new();
    let absent = server.post("/v1/runs", &json!({ "command": ["/no/such/program"] }));
    assert_eq!(
        (absent.status, &absent.json()["exit_status"]),
        (200, &json!(127)),
        "{}",
        absent.text()
    );
    let image = server.post(
        "/v1/runs",
        &json!({ "command": ["true"], "image": "no/such:image", "run_id": "x" }),
    );
    assert_eq!(
        image.header("content-type"),
        Some("application/problem+json"),
        "{}",
        image.text()
    );
    assert!(
        image.status >= 400 && image.json()["instance"] == "/v1/runs/x",
        "{}",
        image.text()
    );
    assert_eq!(server.get("/v1/runs/x").json()["status"], "not_started");
}

#[test]
fn a_run_that_nobody_waits_for_is_found_by_its_place() {
    let server = Server::new();
    let begun = begin(
        &server,
        &json!({ "command": ["sh", "-c", "read x; echo done"], "stdin": "\n" }),
    );
    let place = begun.header("location").expect("a place").to_owned();
    assert_eq!(begun.json()["status"], "running");
    server.until("the end", || {
        server.get(&place).json()["status"] == "succeeded"
    });
    assert_eq!(server.get(&place).json()["stdout"], "done\n");
}

#[test]
fn a_client_that_hangs_up_does_not_end_the_run() {
    let server = Server::new();
    let order = json!({ "command": ["sh", "-c", "sleep 0.5; echo survived"], "run_id": "alone" });
    let stream =
        server
            .client
            .open(&server.request(&server.admin, "POST", "/v1/runs", &[], &order));
    server.until("the run", || server.get("/v1/runs/alone").status == 200);
    drop(stream);
    server.until("the end", || {
        server.get("/v1/runs/alone").json()["status"] == "succeeded"
    });
    assert_eq!(server.get("/v1/runs/alone").json()["stdout"], "survived\n");
}

#[test]
fn cancelling_ends_the_whole_tree_before_it_answers() {
    let server = Server::new();
    let word = format!("12345{}", std::process::id());
    let script = format!("sleep {word} & sleep {word}");
    begin(
        &server,
        &json!({ "command": ["sh", "-c", script], "run_id": "long" }),
    );
    server.until("the program", || lives(&word));
    let begun = Instant::now();
    let answer = server.delete("/v1/runs/long");
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(
        (answer.status, &answer.json()["status"]),
        (200, &json!("cancelled")),
        "{}",
        answer.text()
    );
    assert!(!lives(&word), "nothing of it is left");
    assert_eq!(
        server.delete("/v1/runs/long").json()["status"],
        "cancelled",
        "again is the same"
    );
    assert_eq!(server.delete("/v1/runs/never").status, 404);
}

#[test]
fn the_same_idempotency_key_is_one_run_also_at_once_and_after_a_restart() {
    let folder = gateway_tests::Folder::new();
    fs::create_dir(folder.at("shared")).unwrap();
    Command::new("chmod")
        .arg("777")
        .arg(folder.at("shared"))
        .status()
        .unwrap();
    let (shared, log) = (folder.at("shared"), folder.at("shared/log"));
    let config = format!("[serve]\nfolders = [\"{}\"]\n", shared.display());
    let server = Server::on(folder, &config, &[], None);
    let order = json!({ "command": ["sh", "-c", "sleep 0.3; echo x >> log; echo done"], "workspace": shared });
    let key = [("idempotency-key", "k1")];
    let ask =
        |server: &Server, body: &Value| server.ask(&server.admin, "POST", "/v1/runs", &key, body);
    let answers: Vec<_> = std::thread::scope(|threads| {
        let two: Vec<_> = (0..4)
            .map(|_| threads.spawn(|| ask(&server, &order)))
            .collect();
        two.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for answer in &answers {
        assert_eq!(
            (answer.status, answer.text()),
            (200, answers[0].text()),
            "{}",
            answer.text()
        );
    }
    let other = ask(&server, &json!({ "command": ["true"] }));
    assert_eq!(other.status, 422, "{}", other.text());
    let theirs = server.key(&["runs"]);
    let free = server.ask(
        &theirs,
        "POST",
        "/v1/runs",
        &key,
        &json!({ "command": ["true"] }),
    );
    assert_eq!(free.status, 200, "another's keys are his own");
    let server = server.restart(Signal::TERM, &config);
    assert_eq!(
        ask(&server, &order).text(),
        answers[0].text(),
        "after a restart, too"
    );
    assert_eq!(
        fs::read_to_string(&log).unwrap(),
        "x\n",
        "exactly one sandbox"
    );
}

#[test]
fn runs_of_a_server_that_was_killed_are_lost_and_have_one_end() {
    let server = Server::new();
    let word = format!("54321{}", std::process::id());
    begin(
        &server,
        &json!({ "command": ["sleep", word], "run_id": "doomed", "task_id": "t" }),
    );
    server.until("the program", || lives(&word));
    let server = server.restart(Signal::KILL, "");
    let found = server.get("/v1/runs/doomed").json();
    assert_eq!(
        (&found["status"], &found["error"]["code"], &found["task_id"]),
        (&json!("lost"), &json!("lost"), &json!("t"))
    );
    server.until("the end of what was left", || !lives(&word));
}

#[test]
fn a_run_under_way_when_the_server_ends_is_cancelled_and_answered() {
    let mut server = Server::with("[serve]\ngrace = \"200ms\"\n", &[]);
    let word = format!("67890{}", std::process::id());
    let order = json!({ "command": ["sleep", word] });
    let mut waiting =
        server
            .client
            .open(&server.request(&server.admin, "POST", "/v1/runs", &[], &order));
    server.until("the program", || lives(&word));
    let ended = std::thread::spawn(move || server.end(Signal::TERM));
    assert_eq!(waiting.answer().json()["status"], "cancelled");
    assert_eq!(ended.join().unwrap().0.code(), Some(0));
    assert!(!lives(&word));
}

#[test]
fn runs_are_listed_newest_first_page_by_page() {
    let server = Server::new();
    for (id, code) in [("a", 0), ("b", 1), ("c", 0), ("d", 1)] {
        let order = json!({ "command": ["sh", "-c", format!("exit {code}")], "run_id": id, "task_id": format!("t{code}") });
        assert_eq!(server.post("/v1/runs", &order).status, 200);
    }
    let list = |query: &str| {
        let page = server.get(&format!("/v1/runs{query}")).json();
        let ids = page["runs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|run| run["run_id"].as_str().unwrap().to_owned());
        (
            ids.collect::<Vec<_>>().join(""),
            page["before"].as_str().map(str::to_owned),
        )
    };
    assert_eq!(list("").0, "dcba");
    assert_eq!(
        (list("?status=failed").0, list("?task_id=t0").0),
        ("db".into(), "ca".into())
    );
    let (first, before) = list("?limit=3");
    let (second, end) = list(&format!("?limit=3&before={}", before.unwrap()));
    assert_eq!((first + &second, end), ("dcba".into(), None));
    for bad in [
        "?limit=0",
        "?limit=201",
        "?status=odd",
        "?colour=red",
        "?before=x",
    ] {
        assert_eq!(server.get(&format!("/v1/runs{bad}")).status, 400, "{bad}");
    }
    let clash = server.post("/v1/runs", &json!({ "command": ["true"], "run_id": "a" }));
    assert_eq!(clash.status, 409, "a name serves once");
}

#[test]
fn too_many_at_once_are_refused_by_name_and_one_more_fits_when_one_ends() {
    let server = Server::with("[serve]\nruns_per_key = 1\n", &[]);
    begin(
        &server,
        &json!({ "command": ["sleep", "60"], "run_id": "one" }),
    );
    let refused = server.post("/v1/runs", &json!({ "command": ["true"] }));
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (429, &json!("quota_exceeded"))
    );
    assert!(refused.header("retry-after").is_some());
    let other = server.key(&["runs"]);
    let theirs = server.ask(
        &other,
        "POST",
        "/v1/runs",
        &[],
        &json!({ "command": ["true"] }),
    );
    assert_eq!(theirs.status, 200, "another key has its own bound");
    server.delete("/v1/runs/one");
    assert_eq!(
        server
            .post("/v1/runs", &json!({ "command": ["true"] }))
            .status,
        200
    );
}

#[test]
fn only_folders_that_the_operator_shares_can_be_named() {
    let folder = gateway_tests::Folder::new();
    for name in ["shared", "private"] {
        fs::create_dir(folder.at(name)).unwrap();
        fs::write(folder.at(name).join("file"), name).unwrap();
    }
    std::os::unix::fs::symlink(folder.at("private"), folder.at("shared/link")).unwrap();
    let config = format!(
        "[serve]\nfolders = [\"{}\"]\n",
        folder.at("shared").display()
    );
    let server = Server::on(folder, &config, &[], None);
    let at = |name: &str| server.folder.at(name).display().to_string();
    let read = |mount: String| {
        server.post(
            "/v1/runs",
            &json!({ "command": ["cat", "/m/file"], "mounts": [mount] }),
        )
    };
    assert_eq!(
        read(format!("{}:/m", at("shared"))).json()["stdout"],
        "shared"
    );
    let outside = [
        at("private"),
        at("shared/link"),
        at("shared/../private"),
        "/etc".into(),
        "shared".into(),
        "/".into(),
    ];
    for path in outside {
        let answer = read(format!("{path}:/m:ro"));
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (403, &json!("policy_denied")),
            "{path}"
        );
        let answer = server.post(
            "/v1/runs",
            &json!({ "command": ["true"], "workspace": path }),
        );
        assert_eq!(answer.status, 403, "{path}");
    }
    let answer = server.post("/v1/runs", &json!({ "command": ["true"], "image": "/" }));
    assert_eq!(answer.status, 403);
}

#[test]
fn an_operators_maximum_holds_for_requests() {
    let server = Server::with("[maximum]\nmemory = \"64M\"\nwall_time = \"5s\"\n", &[]);
    let with = |field: &str, value: &str| {
        let mut order = json!({ "command": ["true"] });
        order[field] = value.into();
        server.post("/v1/runs", &order).status
    };
    assert_eq!((with("memory", "64M"), with("timeout", "5s")), (200, 200));
    assert_eq!((with("memory", "65M"), with("timeout", "6s")), (400, 400));
}
