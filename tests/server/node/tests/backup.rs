//! Backups of a server that works, and what is restored from them.

use gateway_tests::{
    receiver::{OPEN, Receiver, all_fitting},
    serve,
};
use node_tests::{Folder, Server, key_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// `airlock` on this state folder.
fn airlock(state: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(cli::airlock());
    command.args(words).arg("--state").arg(state).env_clear();
    command
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", "/nonexistent");
    command.stdin(Stdio::null());
    command
}

fn done(command: &mut Command) -> Output {
    let output = command.output().expect("airlock starts");
    assert!(output.status.success(), "{output:?}");
    output
}

/// What a client has been told for certain.
#[derive(Debug, Default)]
struct Known {
    /// Tokens of keys.
    keys: Vec<String>,
    /// Runs that ended, with what they printed.
    runs: Vec<(String, String)>,
    /// Artifacts, with their contents.
    artifacts: Vec<(String, String)>,
}

/// Stops the others, also when an assertion fails.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes keys, runs and artifacts until it is told to stop.
fn load(server: &Server, number: usize, known: &Mutex<Known>, stop: &AtomicBool) {
    let _others = Stopping(stop);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        let word = format!("word-{number}-{count}");
        let run = server.post("/v1/runs", &json!({ "command": ["echo", word] }));
        assert_eq!(run.status, 200, "{}", run.text());
        let id = run.json()["run_id"].as_str().expect("an id").to_owned();
        let name = format!("kept-{number}-{count}");
        let put = server.client.open(&artifact(server, &name, &word)).answer();
        assert_eq!(put.status, 201, "{}", put.text());
        let key = (count % 5 == 0).then(|| key_of(server, &format!("t{number}"), &["runs"]));
        let mut known = known.lock().expect("it is not poisoned");
        known.runs.push((id, format!("{word}\n")));
        known.artifacts.push((name, word));
        known.keys.extend(key);
    }
}

fn artifact(server: &Server, name: &str, contents: &str) -> Vec<u8> {
    let (host, key) = (server.client.host(), &server.admin);
    format!(
        "PUT /v1/artifacts/{name} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{contents}",
        contents.len()
    )
    .into_bytes()
}

/// All of this is in what was restored, and it serves.
fn is_there(server: &Server, known: &Known) {
    for (id, printed) in &known.runs {
        let run = server.get(&format!("/v1/runs/{id}"));
        assert_eq!(
            (run.status, run.json()["stdout"].as_str()),
            (200, Some(printed.as_str()))
        );
    }
    for (name, contents) in &known.artifacts {
        let artifact = server.get(&format!("/v1/artifacts/{name}"));
        assert_eq!((artifact.status, artifact.text()), (200, contents.clone()));
    }
    for key in &known.keys {
        let ran = server.ask(
            key,
            "POST",
            "/v1/runs",
            &[],
            &json!({ "command": ["true"] }),
        );
        assert_eq!(ran.status, 200, "{}", ran.text());
    }
}

#[test]
fn backups_of_a_server_under_load_restore_to_servers_that_know_all_that_was_told() {
    let (server, place) = (Server::new(), Folder::new());
    let (known, stop) = (Mutex::new(Known::default()), AtomicBool::new(false));
    std::thread::scope(|threads| {
        for number in 0..2 {
            let (server, known, stop) = (&server, &known, &stop);
            threads.spawn(move || load(server, number, known, stop));
        }
        let _loaders = Stopping(&stop);
        for round in 0..5 {
            // Let it become more between two.
            let before = known.lock().expect("it is not poisoned").runs.len();
            server.until("more runs", || {
                known.lock().expect("it is not poisoned").runs.len() >= before + 5
            });
            let told = {
                let known = known.lock().expect("it is not poisoned");
                // The newest are what a torn copy would miss.
                let newest = |length: usize| length.saturating_sub(12)..;
                Known {
                    keys: known.keys[newest(known.keys.len())].to_vec(),
                    runs: known.runs[newest(known.runs.len())].to_vec(),
                    artifacts: known.artifacts[newest(known.artifacts.len())].to_vec(),
                }
            };
            let file = place.at(&format!("{round}.tar"));
            let name = file.to_str().expect("text");
            done(&mut airlock(&server.folder.at("state"), &["backup", name]));
            assert_eq!(
                fs::metadata(&file)
                    .expect("it is there")
                    .permissions()
                    .mode()
                    & 0o7777,
                0o600
            );
            done(&mut airlock(
                &server.folder.at("state"),
                &["restore", "--check", name],
            ));
            let restored = Folder::new();
            done(&mut airlock(&restored.at("state"), &["restore", name]));
            done(&mut airlock(&restored.at("state"), &["usage", "--verify"]));
            is_there(
                &Server::on(restored, "", &[], Some(server.admin.clone())),
                &told,
            );
        }
    });
}

#[test]
fn what_was_under_way_is_lost_after_a_restore_as_after_a_crash() {
    let (server, place) = (Server::new(), Folder::new());
    let begun = server.ask(
        &server.admin,
        "POST",
        "/v1/runs",
        &[("prefer", "respond-async")],
        &json!({ "command": ["sleep", "600"] }),
    );
    assert_eq!(begun.status, 202, "{}", begun.text());
    let path = format!(
        "/v1/runs/{}",
        begun.json()["run_id"].as_str().expect("an id")
    );
    let file = place.at("b.tar");
    done(&mut airlock(
        &server.folder.at("state"),
        &["backup", file.to_str().expect("text")],
    ));
    let restored = Folder::new();
    done(&mut airlock(
        &restored.at("state"),
        &["restore", file.to_str().expect("text")],
    ));
    let second = Server::on(restored, "", &[], Some(server.admin.clone()));
    assert_eq!(second.get(&path).json()["status"], "lost");
    assert_eq!(server.get(&path).json()["status"], "running");
    assert_eq!(server.delete(&path).status, 200);
}

/// Jobs that wait or run when a backup is made, and the backup.
struct Before {
    admin: String,
    /// By which its notices are signed.
    secret: String,
    address: std::net::SocketAddr,
    file: std::path::PathBuf,
    /// Has ended, and its receiver was not told yet.
    told: String,
    /// Runs, and must not run twice.
    running: String,
    /// Waits, and must not run twice.
    waiting: String,
    /// May run twice, but comes after that one.
    behind: String,
    /// May run twice.
    again: String,
    place: Folder,
}

/// With the master key elsewhere, since no backup has it: notices are signed by what it keeps.
fn settings(place: &Folder) -> String {
    format!(
        "{OPEN}[jobs]\nslots = 1\n[secrets]\nkey_file = {:?}\n",
        place.at("master.key")
    )
}

impl Before {
    fn new() -> Before {
        let place = Folder::new();
        fs::write(place.at("master.key"), "k".repeat(32)).expect("a key");
        fs::set_permissions(place.at("master.key"), fs::Permissions::from_mode(0o600))
            .expect("its rights");
        let server = Server::with(&settings(&place), &[]);
        let address = Receiver::free();
        let webhook = json!({ "url": format!("http://{address}/") });
        let submit = |command: &[&str], more: Value| {
            let mut order = json!({ "run": { "command": command } });
            order
                .as_object_mut()
                .expect("an object")
                .extend(more.as_object().expect("an object").clone());
            let made = server.post("/v1/jobs", &order);
            assert_eq!(made.status, 202, "{}", made.text());
            made.json()["job_id"].as_str().expect("a name").to_owned()
        };
        let told = submit(&["true"], json!({ "webhook": webhook }));
        let notice = || job(&server, &told)["webhook"]["attempts"].as_u64() > Some(0);
        server.until("a notice that nobody takes", notice);
        let running = submit(&["sleep", "600"], json!({}));
        server.until("a job that runs", || {
            job(&server, &running)["status"] == "running"
        });
        let waiting = submit(&["true"], json!({ "webhook": webhook }));
        let behind = submit(&["true"], json!({ "after": [waiting], "on_lost": "rerun" }));
        let again = submit(&["true"], json!({ "on_lost": "rerun", "webhook": webhook }));
        let file = place.at("b.tar");
        done(&mut airlock(
            &server.folder.at("state"),
            &["backup", file.to_str().expect("text")],
        ));
        let (admin, secret) = (
            server.admin.clone(),
            server.get("/v1/webhook-secret").json(),
        );
        // The machine is lost, and nothing of it goes on.
        let mut server = server;
        server.end(Signal::KILL);
        let secret = secret["secret"].as_str().expect("a secret").to_owned();
        Before {
            admin,
            secret,
            address,
            file,
            told,
            running,
            waiting,
            behind,
            again,
            place,
        }
    }

    /// What a restore says, and a server upon it whose receiver listens.
    fn restored(&self, options: &[&str]) -> (Value, Server, Receiver) {
        let receiver = Receiver::at(self.address);
        let folder = Folder::new();
        let words = [
            &["restore", self.file.to_str().expect("text"), "--json"],
            options,
        ]
        .concat();
        let told = done(&mut airlock(&folder.at("state"), &words));
        let told = serde_json::from_slice(&told.stdout).expect("JSON");
        let server = Server::on(
            folder,
            &settings(&self.place),
            &[],
            Some(self.admin.clone()),
        );
        (told, server, receiver)
    }
}

fn job(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/jobs/{id}")).json()
}

/// What the audit says of restores.
fn restores(server: &Server) -> Vec<String> {
    let lines = server.get("/v1/audit?what=state.restored").json();
    let lines = lines["lines"].as_array().expect("lines").iter();
    lines
        .map(|line| line["about"].as_str().expect("words").to_owned())
        .collect()
}

/// Whom a receiver was told of.
fn told_of(receiver: &Receiver) -> Vec<String> {
    let seen = receiver.seen();
    let mut all: Vec<_> = seen
        .iter()
        .map(|notice| notice.json()["data"]["job_id"].clone())
        .collect();
    all.sort_by_key(Value::to_string);
    all.iter()
        .map(|id| id.as_str().expect("a name").to_owned())
        .collect()
}

#[test]
fn what_waited_is_lost_after_a_restore_unless_it_may_run_twice_and_no_old_notice_goes_out() {
    let before = Before::new();
    let (told, server, receiver) = before.restored(&[]);
    assert_eq!(told["held"], json!({ "jobs": 3, "notices": 1 }), "{told}");
    for id in [&before.running, &before.waiting, &before.behind] {
        let job = job(&server, id);
        assert_eq!(
            (&job["status"], &job["error"]["code"]),
            (&json!("lost"), &json!("lost")),
            "{job}"
        );
        let message = job["error"]["message"].as_str().expect("a message");
        assert!(message.contains("restored from a backup"), "{job}");
    }
    assert_eq!(
        job(&server, &before.waiting)["runs"],
        json!([]),
        "it never ran"
    );
    let old = job(&server, &before.told)["webhook"].clone();
    assert_eq!(old["state"], "given_up", "{old}");
    assert!(
        old["error"]
            .as_str()
            .is_some_and(|why| why.contains("restored")),
        "{old}"
    );
    server.until("the end of one that may run twice", || {
        let again = job(&server, &before.again);
        (&again["status"], &again["webhook"]["state"]) == (&json!("succeeded"), &json!("delivered"))
    });
    assert_eq!(
        told_of(&receiver),
        [before.again.as_str()],
        "nobody else is told of"
    );
    let about = restores(&server);
    assert_eq!(about.len(), 1);
    assert!(about[0].ends_with("jobs=3 notices=1"), "{about:?}");
    let server = server.restart(Signal::TERM, &settings(&before.place));
    assert_eq!(restores(&server).len(), 1, "only the first start says so");
    assert_eq!(job(&server, &before.waiting)["status"], "lost");
    let retried = server.post(&format!("/v1/jobs/{}/retry", before.waiting), &Value::Null);
    assert!(
        retried.status < 300,
        "whoever looked may let it run: {}",
        retried.text()
    );
    server.until("its end", || {
        job(&server, &before.waiting)["status"] == "succeeded"
    });
}

#[test]
fn what_waited_goes_on_after_a_restore_that_is_told_to_resume() {
    let before = Before::new();
    let (told, server, receiver) = before.restored(&["--resume"]);
    assert_eq!(told["held"], Value::Null, "{told}");
    for id in [&before.waiting, &before.behind, &before.again] {
        server.until("its end", || job(&server, id)["status"] == "succeeded");
    }
    // It ran when the backup was made: that is a crash to it.
    let running = job(&server, &before.running);
    assert_eq!(
        (&running["status"], &running["error"]["code"]),
        (&json!("lost"), &json!("lost")),
        "{running}"
    );
    for id in [&before.told, &before.waiting, &before.again] {
        server.until("its notice", || {
            job(&server, id)["webhook"]["state"] == "delivered"
        });
    }
    let mut expected = [&before.told, &before.waiting, &before.again].map(String::as_str);
    expected.sort_unstable();
    assert_eq!(told_of(&receiver), expected);
    let fit = all_fitting(&receiver.seen(), &before.secret);
    assert!(
        fit.iter().all(|fits| *fits == [true]),
        "whoever knew the secret believes them: {fit:?}"
    );
    let about = restores(&server);
    assert_eq!(about.len(), 1);
    assert!(about[0].ends_with("; resumed"), "{about:?}");
}

/// Writes a backup anew in which a page of the database is filled with this byte, with hashes that fit. How many pages it has.
const DAMAGE: &str = r#"
import hashlib, io, json, sys, tarfile
source, target, page, byte = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
manifest = b""
with tarfile.open(source) as old, tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as new:
    for entry in old:
        contents = old.extractfile(entry).read()
        if entry.name == "state/airlock.db":
            size = int.from_bytes(contents[16:18], "big")
            size = 65536 if size == 1 else size
            pages = len(contents) // size
            if page < pages:
                contents = contents[:page * size] + bytes([byte]) * size + contents[(page + 1) * size:]
        if entry.name == "manifest.jsonl":
            contents = manifest
        else:
            line = {"path": entry.name, "size": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}
            manifest += json.dumps(line, separators=(",", ":")).encode() + b"\n"
        entry.size = len(contents)
        new.addfile(entry, io.BytesIO(contents))
print(pages)
"#;

fn damaged(from: &Path, to: &Path, page: usize, byte: u8) -> usize {
    let mut python = Command::new("python3");
    python
        .args(["-c", DAMAGE])
        .args([from, to])
        .args([page.to_string(), byte.to_string()]);
    let output = done(&mut python);
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .expect("a number")
}

#[test]
fn a_backup_whose_database_is_damaged_is_refused_by_a_check_and_by_a_restore() {
    let (server, place, scratch) = (Server::new(), Folder::new(), Folder::new());
    assert_eq!(
        server
            .post("/v1/runs", &json!({ "command": ["true"] }))
            .status,
        200
    );
    let (whole, other) = (place.at("whole.tar"), place.at("other.tar"));
    done(&mut airlock(
        &server.folder.at("state"),
        &["backup", whole.to_str().expect("text")],
    ));
    let asked = |words: &[&str], state: &Path| {
        let mut command = airlock(state, words);
        command
            .env("TMPDIR", &scratch.0)
            .output()
            .expect("airlock starts")
    };
    let check = ["restore", "--check", other.to_str().expect("text")];
    // The control: written anew without damage.
    let pages = damaged(&whole, &other, usize::MAX, 0);
    let control = asked(&check, &place.at("state"));
    assert!(control.status.success(), "{control:?}");
    assert!(pages > 50, "{pages}");
    for page in (0..pages).step_by(7).chain([1, pages - 1]) {
        damaged(&whole, &other, page, if page % 2 == 0 { 0 } else { 0xff });
        let refused = asked(&check, &place.at("state"));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(125), "page {page}: {said}");
        assert!(
            said.contains("its database is damaged"),
            "page {page}: {said}"
        );
    }
    let restored = asked(
        &["restore", other.to_str().expect("text")],
        &place.at("state"),
    );
    assert_eq!(
        (restored.status.code(), place.at("state").exists()),
        (Some(125), false),
        "{restored:?}"
    );
    assert_eq!(
        fs::read_dir(&scratch.0).expect("a folder").count(),
        0,
        "nothing stays"
    );
}

#[test]
fn jobs_that_a_restore_ends_have_a_line_each_and_so_has_the_restore() {
    let (server, place) = (Server::new(), Folder::new());
    let tomorrow = Command::new("date")
        .args(["-u", "-d", "+1 day", "+%FT%TZ"])
        .output()
        .expect("date");
    let tomorrow = String::from_utf8(tomorrow.stdout).expect("text");
    let order = |on_lost: &str| {
        let order = json!({ "run": { "command": ["true"] }, "not_before": tomorrow.trim(), "on_lost": on_lost });
        let job = server.post("/v1/jobs", &order);
        job.json()["job_id"]
            .as_str()
            .unwrap_or_else(|| panic!("{}", job.text()))
            .to_owned()
    };
    let (lost, again) = (["lost", "lost"].map(order), order("rerun"));
    let file = place.at("b.tar");
    done(&mut airlock(
        &server.folder.at("state"),
        &["backup", file.to_str().expect("text")],
    ));
    let restored = Folder::new();
    done(&mut airlock(
        &restored.at("state"),
        &["restore", file.to_str().expect("text")],
    ));
    let second = Server::on(restored, "", &[], Some(server.admin.clone()));
    let lines = |what: &str| second.get(&format!("/v1/audit?what={what}")).json()["lines"].clone();
    let ends = lines("job.end");
    let told = |job: &String| {
        let line = ends
            .as_array()
            .expect("lines")
            .iter()
            .find(|line| line["job"] == job.as_str());
        line.map(|line| (line["rule"].clone(), line["about"].clone()))
    };
    for job in &lost {
        assert_eq!(
            told(job),
            Some((json!("state.restored"), json!("lost"))),
            "{ends:#}"
        );
        assert_eq!(
            second.get(&format!("/v1/jobs/{job}")).json()["status"],
            "lost"
        );
    }
    assert_eq!(told(&again), None, "it goes on");
    let about = lines("state.restored")[0]["about"]
        .as_str()
        .expect("words")
        .to_owned();
    assert!(about.ends_with("jobs=2 notices=0"), "{about}");
}

#[test]
fn a_state_is_restored_behind_a_link_and_onto_a_disk_of_its_own() {
    let (state, place) = (Folder::new(), Folder::new());
    done(&mut airlock(
        &state.at("state"),
        &["key", "create", "--name", "ci", "--scope", "runs"],
    ));
    let file = place.at("b.tar");
    let name = file.to_str().expect("text");
    done(&mut airlock(&state.at("state"), &["backup", name]));
    let has_key = |state: &Path| {
        let keys = done(&mut airlock(state, &["key", "list"]));
        assert!(
            String::from_utf8_lossy(&keys.stdout).contains("ci"),
            "{keys:?}"
        );
    };
    let (real, link) = (place.at("real"), place.at("link"));
    fs::create_dir(&real).expect("a folder");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    done(&mut airlock(&link, &["restore", name]));
    has_key(&real);
    assert!(link.is_symlink());
    // What a restore that was killed leaves is no state.
    let half = place.at("half");
    fs::create_dir_all(half.join(".restoring")).expect("a folder");
    for words in [&["usage"][..], &["restore", name]] {
        let refused = airlock(&half, words).output().expect("airlock starts");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            refused.status.code() == Some(125) && said.contains("restore"),
            "{words:?}: {said}"
        );
        assert!(!half.join("airlock.db").exists());
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root mounts disks");
        return;
    }
    let disk = place.at("disk");
    fs::create_dir(&disk).expect("a folder");
    for mount in [
        "mount -t tmpfs -o mode=700 disk \"$1\"",
        "mount --bind \"$1\" \"$1\"",
    ] {
        let script = format!(
            "set -e; {mount}; \"$2\" restore \"$3\" --state \"$1\" >&2; \"$2\" key list --state \"$1\"; ls -A \"$1\""
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", &script, "sh"]);
        command.arg(&disk).arg(cli::airlock()).arg(&file);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        let told = done(command.env("HOME", "/nonexistent").stdin(Stdio::null()));
        let told = String::from_utf8_lossy(&told.stdout);
        assert!(
            told.contains("ci") && told.contains("airlock.db") && !told.contains(".restoring"),
            "{told}"
        );
    }
}

#[test]
fn a_backup_is_written_to_no_file_of_somebody_else() {
    let (state, place) = (Folder::new(), Folder::new());
    done(&mut airlock(&state.at("state"), &["usage"]));
    // Somebody waits for it under every name that could be guessed, and holds what he made open.
    let others =
        [".b.tar.partial", "b.tar.partial", ".b.tar.mine.partial"].map(|name| place.at(name));
    for other in &others {
        fs::write(other, "another's").expect("it can be written");
        fs::set_permissions(other, fs::Permissions::from_mode(0o666)).expect("it is ours here");
    }
    let left = place.at(&format!(".b.tar.{}.partial", "0".repeat(26)));
    fs::write(&left, "of one that was killed").expect("it can be written");
    let file = place.at("b.tar");
    done(&mut airlock(
        &state.at("state"),
        &["backup", file.to_str().expect("text")],
    ));
    for other in &others {
        assert_eq!(fs::read_to_string(other).expect("it is there"), "another's");
        assert_eq!(
            fs::metadata(other)
                .expect("it is there")
                .permissions()
                .mode()
                & 0o777,
            0o666
        );
    }
    assert!(file.exists() && !left.exists());
    assert_eq!(
        fs::metadata(&file)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
}

#[test]
fn a_backup_has_its_name_only_when_it_is_whole_and_is_never_replaced() {
    let (server, place) = (Server::new(), Folder::new());
    let state = server.folder.at("state");
    for number in 0..40 {
        let put = artifact(&server, &format!("a{number}"), &"x".repeat(200_000));
        assert_eq!(server.client.open(&put).answer().status, 201);
    }
    let file = place.at("b.tar");
    let name = file.to_str().expect("text");
    for round in 0..30 {
        let mut child = airlock(&state, &["backup", name])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(round * 4));
        kill_process(Pid::from_child(&child), Signal::KILL).expect("it is ours");
        child.wait().expect("it ends");
        if file.exists() {
            done(&mut airlock(&state, &["restore", "--check", name]));
            fs::remove_file(&file).expect("it is ours");
        }
    }
    done(&mut airlock(&state, &["backup", name]));
    // What the killed ones left is gone, here and there.
    assert_eq!(fs::read_dir(&place.0).expect("a folder").count(), 1);
    assert_eq!(
        fs::read_dir(state.join("backup"))
            .expect("a folder")
            .count(),
        0
    );
    let refused = airlock(&state, &["backup", name])
        .output()
        .expect("it starts");
    assert_eq!(refused.status.code(), Some(125));
    let whole = fs::read(&file).expect("it is there");
    fs::write(place.at("half.tar"), &whole[..whole.len() / 2]).expect("a file");
    let target = place.at("restored");
    let half = airlock(
        &target,
        &["restore", place.at("half.tar").to_str().expect("text")],
    )
    .output();
    let half = half.expect("it starts");
    assert_eq!(
        (half.status.code(), target.exists()),
        (Some(125), false),
        "{half:?}"
    );
    // To a pipe and from it.
    let mut writer = airlock(&state, &["backup", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut reader = airlock(&target, &["restore", "-", "--json"]);
    let read = done(reader.stdin(writer.stdout.take().expect("a pipe")));
    assert!(writer.wait().expect("it ends").success());
    let told: Value = serde_json::from_slice(&read.stdout).expect("JSON");
    assert_eq!(told["problems"], json!([]));
}

#[test]
fn a_folder_that_is_not_empty_is_left_alone() {
    let (server, place) = (Server::new(), Folder::new());
    let file = place.at("b.tar");
    done(&mut airlock(
        &server.folder.at("state"),
        &["backup", file.to_str().expect("text")],
    ));
    let refused = airlock(
        &server.folder.at("state"),
        &["restore", file.to_str().expect("text")],
    )
    .output();
    let refused = refused.expect("it starts");
    assert_eq!(refused.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is not empty"));
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn a_state_folder_says_what_it_weighs() {
    let server = Server::new();
    assert_eq!(
        server
            .client
            .open(&artifact(&server, "a", &"x".repeat(100_000)))
            .answer()
            .status,
        201
    );
    let told = done(&mut airlock(
        &server.folder.at("state"),
        &["state", "--json"],
    ));
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let part = |name: &str| {
        let parts = told["parts"].as_array().expect("parts");
        parts
            .iter()
            .find(|part| part["name"] == name)
            .unwrap_or(&Value::Null)["bytes"]
            .as_u64()
    };
    assert!(
        part("artifacts").is_some_and(|bytes| bytes >= 100_000) && part("airlock.db").is_some(),
        "{told}"
    );
}

#[test]
fn nothing_new_is_begun_on_a_disk_that_is_nearly_full() {
    let folder = Folder::new();
    let state = folder.at("state");
    fs::create_dir(&state).expect("a folder");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).expect("its rights");
    // A disk of its own, in mounts of its own.
    let script = "mount -t tmpfs -o size=64m,mode=700 disk \"$STATE\" && exec \"$@\"";
    let plain = serve(&folder, "", &[]);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--", "sh", "-c", script, "sh"])
        .arg(plain.get_program())
        .args(plain.get_args());
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("STATE", &state);
    command
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root mounts disks");
        return;
    }
    let server = Server::started(command, folder, None);
    let ran = || {
        server
            .post("/v1/runs", &json!({ "command": ["true"] }))
            .status
    };
    assert_eq!(
        (ran(), server.get("/readyz").text().as_str()),
        (200, "ready\n")
    );
    let soon = Command::new("date")
        .args(["-u", "-d", "+4 seconds", "+%FT%TZ"])
        .output()
        .expect("date");
    let soon = String::from_utf8(soon.stdout).expect("text");
    let order = json!({ "run": { "command": ["true"] }, "not_before": soon.trim() });
    let job = server.post("/v1/jobs", &order).json()["job_id"]
        .as_str()
        .expect("a name")
        .to_owned();
    let job = || server.get(&format!("/v1/jobs/{job}")).json();
    let disk = format!("/proc/{}/root{}", server.pid, state.display());
    let filler = format!("{disk}/filler");
    let free = || {
        rustix::fs::statvfs(&disk)
            .map(|found| found.f_bavail * found.f_frsize)
            .expect("a disk")
    };
    let size = usize::try_from(free() - (600 << 10)).expect("it fits");
    fs::write(&filler, vec![b'x'; size]).expect("there is room");
    let refused = server.post("/v1/runs", &json!({ "command": ["true"] }));
    assert_eq!(
        (refused.status, refused.json()["code"].as_str()),
        (507, Some("quota_exceeded")),
        "{}",
        refused.text()
    );
    assert_eq!(server.post("/v1/sandboxes", &json!({})).status, 507);
    assert_eq!(
        server
            .post("/v1/jobs", &json!({ "run": { "command": ["true"] } }))
            .status,
        507
    );
    let id = "11111111-1111-4111-8111-111111111111";
    let session = json!({ "version": 1, "task_id": id });
    assert_eq!(server.post("/v1/worker/sessions", &session).status, 507);
    let order =
        json!({ "version": 1, "task_id": id, "job_id": id, "sandbox": { "command": ["true"] } });
    assert_eq!(server.post("/v1/worker/jobs:run", &order).status, 507);
    server.until("its time", || job()["waiting_for"] == "turn");
    assert!(server.get("/readyz").text().contains("nearly full"));
    fs::remove_file(&filler).expect("it is ours");
    assert_eq!(ran(), 200);
    server.until("its end", || job()["status"] == "succeeded");
}
