//! A server whose disk is full: it says so, does not die of it, and goes on when there is room again. The disk is a small
//! one in a mount namespace of the server's own, which ends with it.

use gateway_tests::{Answer, Folder, Server, serve};
use serde_json::{Value, json};
use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

/// A server with a small disk for its state.
struct Small(Server);

impl Small {
    /// With eight megabytes.
    fn new() -> Small {
        Small::of("8m")
    }

    fn of(size: &str) -> Small {
        let folder = Folder::new();
        fs::create_dir(folder.at("state")).expect("a folder");
        let made = serve(&folder, "", &[]);
        let mut command = Command::new("unshare");
        let mount = format!("mount -t tmpfs -o size={size},mode=700 small \"$0\" && exec \"$@\"");
        command
            .args(["--mount", "--propagation=private", "--", "sh", "-c", &mount])
            .arg(folder.at("state"));
        command
            .arg(made.get_program())
            .args(made.get_args())
            .current_dir(&folder.0)
            .env_clear();
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Small(Server::started(command, folder, None))
    }

    /// As the server sees it.
    fn ballast(&self) -> PathBuf {
        let own = self.0.folder.at("state/ballast");
        PathBuf::from(format!("/proc/{}/root{}", self.0.pid, own.display()))
    }

    /// Leaves so many bytes, about.
    fn fill_but(&self, free: u64) {
        let found =
            rustix::fs::statvfs(self.ballast().parent().expect("the state")).expect("it is there");
        let ballast = vec![0; (found.f_bavail * found.f_frsize).saturating_sub(free) as usize];
        fs::write(self.ballast(), ballast).expect("so much fits");
    }

    /// Leaves not a byte.
    fn fill(&self) {
        let mut file = File::create(self.ballast()).expect("a file");
        for size in [1 << 16, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn empty(&self) {
        fs::remove_file(self.ballast()).expect("it was there");
    }

    fn run(&self) -> Answer {
        self.0.post("/v1/runs", &json!({ "command": ["true"] }))
    }

    fn put(&self, path: &str, bytes: &[u8]) -> Answer {
        let (host, key, length) = (self.0.client.host(), &self.0.admin, bytes.len());
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n"
        );
        self.0
            .client
            .open(&[head.as_bytes(), bytes].concat())
            .answer()
    }
}

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
    small.fill();
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
