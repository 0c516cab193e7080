//! Sandboxes as a whole: whose they are, how they begin, stop, double and end.

use crate::Place;
use serde_json::{Value, json};
use std::{thread, time::Duration};

pub(crate) fn a_sandbox_is_made_shown_listed_and_ended(place: &Place) {
    let sandbox = place.sandbox(json!({ "labels": { "for": "a test" }, "lifetime": "10m" }));
    let shown = sandbox.get("").json();
    assert_eq!(
        (&shown["status"], &shown["labels"]["for"]),
        (&json!("ready"), &json!("a test")),
        "{shown}"
    );
    let listed = |status: &str| {
        let list = place
            .ask(
                "GET",
                &format!("/v1/sandboxes?status={status}"),
                &Value::Null,
            )
            .json();
        list["sandboxes"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(
        (listed("ready"), listed("paused"), listed("ended")),
        (1, 0, 0)
    );
    let ended = sandbox.delete("");
    assert_eq!(
        (ended.status, &ended.json()["reason"]),
        (200, &json!("asked")),
        "{}",
        ended.text()
    );
    assert_eq!((listed("ready"), listed("ended")), (0, 1));
    assert_eq!(
        sandbox.get("").json()["status"],
        "ended",
        "it is remembered"
    );
    assert_eq!(sandbox.delete("").status, 200, "and can be ended again");
    for path in ["/exec", "/logs", "/files", "/files/x"] {
        assert_eq!(sandbox.get(path).status, 410, "{path}");
    }
    let refused = |options: Value| {
        place
            .ask("POST", "/v1/sandboxes", &place.options(options))
            .status
    };
    assert_eq!(
        refused(json!({ "command": ["true"] })),
        400,
        "a sandbox has no command"
    );
    assert_eq!(refused(json!({ "lifetime": "8000h" })), 400);
    assert_eq!(refused(json!({ "memroy": "1G" })), 400);
    assert_eq!(refused(json!({ "workspace": "/etc" })), 403);
}

pub(crate) fn a_key_makes_one_sandbox(place: &Place) {
    let make = |key: &str, options: &Value| {
        let key = [("idempotency-key", key)];
        place
            .server
            .ask(&place.key, "POST", "/v1/sandboxes", &key, options)
    };
    let options = place.options(json!({ "labels": { "n": "1" } }));
    let request = place.server.request(
        &place.key,
        "POST",
        "/v1/sandboxes",
        &[("idempotency-key", "one")],
        &options,
    );
    // A client who never sees the answer, and five who ask at once.
    drop(place.server.client.open(&request));
    let answers: Vec<_> = thread::scope(|scope| {
        let asked: Vec<_> = (0..5)
            .map(|_| scope.spawn(|| make("one", &options)))
            .collect();
        asked
            .into_iter()
            .map(|asked| asked.join().expect("an answer"))
            .collect()
    });
    let ids: Vec<_> = answers
        .iter()
        .map(|answer| answer.json()["sandbox_id"].clone())
        .collect();
    assert!(
        answers.iter().all(|answer| answer.status == 201) && ids.iter().all(|id| *id == ids[0]),
        "{ids:?}"
    );
    let count = || {
        place.ask("GET", "/v1/sandboxes", &Value::Null).json()["sandboxes"]
            .as_array()
            .map_or(0, Vec::len)
    };
    assert_eq!(count(), 1);
    assert_eq!(
        make("one", &place.options(json!({}))).status,
        422,
        "the key stands for another request"
    );
    assert_eq!(make("two", &options).status, 201);
    assert_eq!(count(), 2, "another key makes another one");
}

pub(crate) fn another_key_sees_nothing(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    let exec = sandbox.ready("echo ready; sleep 1000");
    assert_eq!(sandbox.put("x", b"secret").status, 201);
    let (stranger, runner) = (
        place.server.key(&["sandboxes"]),
        place.server.key(&["runs"]),
    );
    let one = format!("/exec/{exec}");
    let paths = [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/exec"),
        ("POST", "/exec"),
        ("GET", &one),
        ("DELETE", &one),
        ("GET", &format!("{one}/events")),
        ("GET", &format!("{one}/output")),
        ("POST", &format!("{one}/stdin")),
        ("POST", &format!("{one}/signal")),
        ("POST", &format!("{one}/resize")),
        ("GET", "/logs"),
        ("GET", "/files"),
        ("GET", "/files/x"),
        ("PUT", "/files/x"),
        ("DELETE", "/files/x"),
        ("POST", "/files/y"),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/fork"),
        ("GET", "/pty"),
    ];
    for (method, path) in paths {
        let with = |key: &str| {
            place
                .server
                .ask(key, method, &sandbox.path(path), &[], &Value::Null)
        };
        assert_eq!(with(&stranger).status, 404, "{method} {path}");
        assert_eq!(with(&runner).status, 403, "{method} {path}");
        assert_eq!(with("").status, 401, "{method} {path}");
    }
    let list = place
        .server
        .ask(&stranger, "GET", "/v1/sandboxes", &[], &Value::Null);
    assert_eq!(list.json(), json!({ "sandboxes": [] }));
    assert_eq!(
        sandbox.get("/files/x").text(),
        "secret",
        "whose it is, sees it"
    );
    assert_eq!(
        place.server.get(&sandbox.path("")).status,
        200,
        "and so does an admin"
    );
    assert_eq!(sandbox.get(&one).json()["status"], "running");
}

pub(crate) fn a_paused_sandbox_does_nothing(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    assert_eq!(
        sandbox.post("/resume", &json!({})).status,
        409,
        "it is not paused"
    );
    let exec = sandbox.ready("echo ready; while :; do echo x; sleep 0.01; done");
    let paused = sandbox.post("/pause", &json!({}));
    if !place.freezes(&paused) {
        return;
    }
    assert_eq!(
        (paused.status, &paused.json()["status"]),
        (200, &json!("paused")),
        "{}",
        paused.text()
    );
    let total = || {
        let piece = sandbox.get(&format!("/exec/{exec}/output?limit=1"));
        piece
            .header("airlock-total")
            .expect("its length")
            .parse::<u64>()
            .expect("a number")
    };
    // What it wrote before is still read; then nothing comes.
    let mut before = total();
    place.server.until("silence", || {
        let last = before;
        thread::sleep(Duration::from_millis(200));
        before = total();
        last == before
    });
    assert_eq!(
        sandbox
            .post("/exec", &json!({ "command": ["true"] }))
            .status,
        409
    );
    assert_eq!(sandbox.post("/pause", &json!({})).status, 409);
    assert_eq!(
        sandbox.put("while", b"paused").status,
        201,
        "files can be had meanwhile"
    );
    assert_eq!(
        sandbox.post("/resume", &json!({})).json()["status"],
        "ready"
    );
    place.server.until("more output", || total() > before);
    assert_eq!(sandbox.said("cat while"), "paused");
}

pub(crate) fn a_fork_has_a_workspace_of_its_own(place: &Place) {
    let sandbox = place.sandbox(json!({ "labels": { "which": "first" } }));
    sandbox.said("mkdir d; echo one > d/file; ln -s d/file link; chmod 700 d");
    let made = sandbox.post("/fork", &json!({ "labels": { "which": "second" } }));
    assert_eq!(made.status, 201, "{}", made.text());
    let id = made.json()["sandbox_id"]
        .as_str()
        .expect("an identifier")
        .to_owned();
    assert_eq!(made.json()["labels"]["which"], "second");
    let fork = crate::Sandbox { place, id };
    assert_eq!(
        fork.said("cat link; ls -ld d | cut -c1-10"),
        "one\ndrwx------\n"
    );
    fork.said("echo two > d/file; echo new > new");
    assert_eq!(sandbox.said("cat d/file; ls"), "one\nd\nlink\n");
    assert_eq!(sandbox.delete("").status, 200);
    assert_eq!(
        fork.said("cat d/file"),
        "two\n",
        "it does not end with the first"
    );
}

pub(crate) fn a_pause_during_a_fork_stays(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    if !place.freezes(&sandbox.post("/pause", &json!({}))) {
        return;
    }
    assert_eq!(sandbox.post("/resume", &json!({})).status, 200);
    // Enough names that the copy takes a while.
    sandbox.said("mkdir many; cd many; i=0; while [ $i -lt 20000 ]; do : > $i; i=$((i+1)); done");
    let status = || sandbox.get("").json()["status"].clone();
    let fork = |meanwhile: &dyn Fn()| {
        thread::scope(|scope| {
            let forking = scope.spawn(|| sandbox.post("/fork", &json!({})));
            place
                .server
                .until("the fork to stop it", || status() == "paused");
            meanwhile();
            let made = forking.join().expect("an answer");
            assert_eq!(made.status, 201, "{}", made.text());
            let id = made.json()["sandbox_id"]
                .as_str()
                .expect("an identifier")
                .to_owned();
            assert_eq!(crate::Sandbox { place, id }.delete("").status, 200);
        });
    };
    fork(&|| {});
    assert_eq!(status(), "ready", "the fork's own stop ends with it");
    fork(&|| {
        let paused = sandbox.post("/pause", &json!({}));
        assert_eq!(
            (paused.status, &paused.json()["status"]),
            (200, &json!("paused")),
            "{}",
            paused.text()
        );
        assert_eq!(
            sandbox.post("/pause", &json!({})).status,
            409,
            "once is enough"
        );
    });
    assert_eq!(status(), "paused", "somebody wants it to be");
    assert_eq!(
        sandbox.post("/resume", &json!({})).json()["status"],
        "ready"
    );
    assert_eq!(sandbox.said("echo alive"), "alive\n");
}

pub(crate) fn files_of_a_sandbox_are_kept_as_artifacts(place: &Place) {
    let sandbox = place.sandbox(json!({}));
    sandbox.said("mkdir out; echo one > out/a; echo two > b; ln -s /etc/passwd out/link");
    let order = json!({ "paths": ["out", "b", "nowhere"] });
    assert_eq!(
        sandbox.post("/artifacts", &order).status,
        403,
        "that takes the scope of artifacts"
    );
    let told = place.server.post(&sandbox.path("/artifacts"), &order);
    assert_eq!(told.status, 200, "{}", told.text());
    let names = |list: &Value| -> Vec<String> {
        list.as_array()
            .expect("a list")
            .iter()
            .map(|one| one["name"].as_str().expect("a name").to_owned())
            .collect()
    };
    assert_eq!(
        names(&told.json()["artifacts"]),
        ["out/a", "b"],
        "{}",
        told.text()
    );
    assert_eq!(
        names(&told.json()["left_out"]),
        ["out/link", "nowhere"],
        "{}",
        told.text()
    );
    let listed = place.server.get("/v1/artifacts?prefix=out/").json();
    let kept = &listed["artifacts"][0];
    assert_eq!(
        (&kept["session_id"], &kept["run_id"]),
        (&json!(sandbox.id), &Value::Null),
        "{listed}"
    );
    assert!(
        kept["policy_hash"]
            .as_str()
            .is_some_and(|hash| hash.len() == 64),
        "{kept}"
    );
    let owner = kept["owner"].as_str().expect("an owner");
    assert_eq!(
        place
            .server
            .get(&format!("/v1/artifacts/out/a?owner={owner}"))
            .text(),
        "one\n"
    );
    for bad in ["../x", "/etc/passwd"] {
        let refused = place
            .server
            .post(&sandbox.path("/artifacts"), &json!({ "paths": [bad] }));
        assert_eq!(refused.status, 400, "{bad}");
    }
    assert_eq!(sandbox.delete("").status, 200);
    assert_eq!(
        place
            .server
            .post(&sandbox.path("/artifacts"), &order)
            .status,
        410
    );
}

pub(crate) fn an_idle_sandbox_ends(place: &Place) {
    let sandbox = place.sandbox(json!({ "idle_timeout": "1s" }));
    let mut shown = Value::Null;
    place.server.until("its end", || {
        // Looking is not using.
        shown = sandbox.get("").json();
        shown["status"] == "ended"
    });
    assert_eq!(shown["reason"], "idle", "{shown}");
    let gone = sandbox.post("/exec", &json!({ "command": ["true"] }));
    assert_eq!((gone.status, &gone.json()["code"]), (410, &json!("gone")));
    assert!(gone.text().contains("idle_timeout"), "{}", gone.text());
}
