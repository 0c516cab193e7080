//! What a server keeps in memory: nothing that lies elsewhere, and of nobody more than the bounds say.

use gateway_tests::{Folder, Server, serve};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt};

const MIB: u64 = 1 << 20;

/// A server that gives back at once what it frees, so that what it holds can be seen.
fn server() -> Server {
    server_on(Folder::new(), "")
}

fn server_on(folder: Folder, configuration: &str) -> Server {
    let mut command = serve(&folder, configuration, &[]);
    command
        .env("MALLOC_MMAP_THRESHOLD_", "1048576")
        .env("MALLOC_ARENA_MAX", "1");
    Server::started(command, folder, None)
}

fn resident(server: &Server) -> u64 {
    field(server, "VmRSS:")
}

fn field(server: &Server, name: &str) -> u64 {
    let status =
        fs::read_to_string(format!("/proc/{}/status", server.pid)).expect("the server lives");
    let line = status
        .lines()
        .find(|line| line.starts_with(name))
        .expect("its memory");
    line.split_whitespace()
        .nth(1)
        .and_then(|number| number.parse::<u64>().ok())
        .expect("a number")
        * 1024
}

fn sandbox(server: &Server, order: &Value) -> String {
    let made = server.post("/v1/sandboxes", order);
    assert_eq!(made.status, 201, "{}", made.text());
    format!(
        "/v1/sandboxes/{}",
        made.json()["sandbox_id"].as_str().expect("its name")
    )
}

#[test]
fn inputs_of_a_sandbox_lie_in_its_workspace_and_not_in_the_servers_memory() {
    const COUNT: u64 = 10;
    let server = server();
    let order = json!({ "inputs": [{ "name": "large", "text": "x".repeat(4 << 20) }] });
    // What one takes for a while, it takes for all.
    sandbox(&server, &order);
    let before = resident(&server);
    let made: Vec<_> = (0..COUNT).map(|_| sandbox(&server, &order)).collect();
    for one in &made {
        let end = server.ask(
            &server.admin,
            "GET",
            &format!("{one}/files/large"),
            &[("range", "bytes=4194302-")],
            &Value::Null,
        );
        assert_eq!(
            (end.status, end.text().as_str()),
            (206, "xx"),
            "it was put there"
        );
    }
    let grown = resident(&server).saturating_sub(before);
    assert!(
        grown < COUNT * 4 * MIB / 2,
        "{} MiB for {COUNT} sandboxes",
        grown / MIB
    );
    let forked = server.post(&format!("{}/fork", made[0]), &json!({}));
    assert_eq!(
        forked.status,
        201,
        "one is made like it all the same: {}",
        forked.text()
    );
}

#[test]
fn output_that_nobody_takes_stays_where_it_is() {
    const COUNT: u64 = 24;
    let server = server();
    let sandbox = sandbox(&server, &json!({ "output": "32M" }));
    let order = json!({ "command": ["head", "-c", "16777216", "/dev/zero"] });
    assert_eq!(
        server.post(&format!("{sandbox}/exec"), &order).json()["status"],
        "succeeded"
    );
    let path = format!("{sandbox}/logs?limit=16777216");
    let whole = server.get(&path);
    assert_eq!(
        (whole.body.len() as u64, whole.header("airlock-complete")),
        (16 * MIB, Some("true"))
    );
    let before = resident(&server);
    let ask = server.request(&server.admin, "GET", &path, &[], &Value::Null);
    let mut unread: Vec<_> = (0..COUNT).map(|_| server.client.open(&ask)).collect();
    assert!(
        unread
            .iter_mut()
            .all(|one| one.head().is_some_and(|(status, _)| status == 200))
    );
    let grown = resident(&server).saturating_sub(before);
    assert!(
        grown < COUNT * 4 * MIB,
        "{} MiB for {COUNT} who read nothing",
        grown / MIB
    );
}

/// The most that it ever took since this was set back.
fn peak(server: &Server) -> u64 {
    field(server, "VmHWM:")
}

fn set_peak_back(server: &Server) {
    fs::write(format!("/proc/{}/clear_refs", server.pid), "5").expect("it is ours");
}

#[test]
fn large_results_that_come_together_become_text_one_at_a_time() {
    const COUNT: u64 = 10;
    // Of each stream; a zero byte is six of JSON.
    const WRITTEN: u64 = 4 * MIB;
    const TEXT: u64 = 2 * 6 * WRITTEN;
    let folder = Folder::new();
    let shared = folder.at("shared");
    fs::create_dir(&shared).expect("a folder");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).expect("its rights");
    let server = server_on(folder, &format!("[serve]\nfolders = [{shared:?}]\n"));
    let key = server.key(&["runs"]);
    let begin = |number: u64| {
        let script = format!(
            "head -c {WRITTEN} /dev/zero; head -c {WRITTEN} /dev/zero >&2; touch {number}; sleep 600"
        );
        let order = json!({
            "command": ["sh", "-c", script], "workspace": shared, "output": "8M", "memory": "64M"
        });
        let headers = [("prefer", "respond-async")];
        let begun = server.ask(&key, "POST", "/v1/runs", &headers, &order);
        assert_eq!(begun.status, 202, "{}", begun.text());
        let id = begun.json()["run_id"].clone();
        server.until("its output", || shared.join(number.to_string()).exists());
        format!("/v1/runs/{}", id.as_str().expect("a name"))
    };
    let paths: Vec<_> = (0..COUNT).map(begin).collect();
    let before = resident(&server);
    set_peak_back(&server);
    std::thread::scope(|scope| {
        for path in &paths {
            scope.spawn(|| server.ask(&key, "DELETE", path, &[], &Value::Null));
        }
    });
    let ended = || {
        let all = server
            .ask(&key, "GET", "/v1/runs", &[], &Value::Null)
            .json();
        let runs = all["runs"].as_array().expect("a list").clone();
        let ended = runs.iter().filter(|run| run["status"] == "cancelled");
        ended.count()
    };
    // One after the other, each in its time.
    for count in 1..=paths.len() {
        server.until("one more end", || ended() >= count);
    }
    let grown = peak(&server).saturating_sub(before);
    assert!(
        grown < COUNT * TEXT / 8 * 5,
        "{} MiB for {COUNT} results of {} MiB of text",
        grown / MIB,
        TEXT / MIB
    );
}

/// Runs a script in it.
fn run(server: &Server, sandbox: &str, script: &str) {
    let ran = server.post(
        &format!("{sandbox}/exec"),
        &json!({ "command": ["sh", "-c", script] }),
    );
    assert_eq!(ran.json()["status"], "succeeded", "{}", ran.text());
}

#[test]
fn a_listing_of_hostile_links_comes_in_pieces() {
    const LINKS: usize = 400;
    let (server, most) = (server(), 5 * MIB as usize);
    let sandbox = sandbox(&server, &json!({}));
    // Each is 24 KiB of JSON.
    let script =
        "t=$(printf '\\001%.0s' $(seq 4000)); for i in $(seq 400); do ln -s \"$t\" $i; done";
    run(&server, &sandbox, script);
    let all = server.get(&format!("{sandbox}/files?recursive=true"));
    assert_eq!((all.status, &all.json()["truncated"]), (200, &json!(true)));
    assert!(all.body.len() < most, "{}", all.body.len());
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{sandbox}/files?after={after}"));
        assert!(page.body.len() < most, "{}", page.body.len());
        let files = page.json()["files"].as_array().expect("files").clone();
        names.extend(
            files
                .iter()
                .map(|file| file["name"].as_str().expect("a name").to_owned()),
        );
        after = names.last().expect("some").clone();
        if page.json()["truncated"] == false {
            break;
        }
    }
    // Beside what every workspace has.
    names.retain(|name| name.parse::<u32>().is_ok());
    names.dedup();
    assert_eq!(names.len(), LINKS, "the pages make the whole");
}

#[test]
fn a_path_that_is_too_long_hides_itself_and_nothing_else() {
    let server = server();
    let sandbox = sandbox(&server, &json!({}));
    let listed = || server.get(&format!("{sandbox}/files?recursive=true"));
    run(&server, &sandbox, "mkdir a z; touch a/before z/behind");
    assert_eq!(
        (listed().status, &listed().json()["truncated"]),
        (200, &json!(false))
    );
    // Two that can be named, and one below the other cannot.
    let deep = "n=$(printf 'd%.0s' $(seq 250)); p=$n; for i in $(seq 9); do p=$p/$n; done; \
                mkdir -p $p m/$p && mv m $p/";
    run(&server, &sandbox, deep);
    let all = listed();
    assert_eq!(
        (all.status, &all.json()["truncated"]),
        (200, &json!(true)),
        "{:.300}",
        all.text()
    );
    for name in ["\"a/before\"", "\"z/behind\""] {
        assert!(all.text().contains(name), "{name}");
    }
}
