//! The command as a client: asked of a server, `airlock` says and does what it does by itself.

use gateway_tests::{Client, Folder, Server};
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

fn url(server: &Server) -> String {
    match &server.client {
        Client::Tcp(address) => format!("http://{address}"),
        Client::Unix(path) => format!("unix:{}", path.display()),
    }
}

fn airlock(folder: &Folder) -> Command {
    let mut command = Command::new(cli::airlock());
    command
        .current_dir(&folder.0)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null());
    command.env("HOME", &folder.0).args(["--state", "local"]);
    command
}

fn remote(folder: &Folder, url: &str, key: &str) -> Command {
    let mut command = airlock(folder);
    command.env("AIRLOCK_URL", url).env("AIRLOCK_KEY", key);
    command
}

fn output(command: &mut Command) -> Output {
    command.output().expect("airlock runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What differs between two runs of the same thing.
fn settled(output: &[u8]) -> Value {
    let mut value: Value = serde_json::from_slice(output).expect("one JSON object");
    for name in ["run_id", "started_at", "ended_at", "duration_ms", "usage"] {
        assert!(value.get(name).is_some(), "{name}");
        value[name] = Value::Null;
    }
    value
}

const CASES: [&[&str]; 11] = [
    &["--", "echo", "hello", "ä", ";", "$(x)"],
    &["--", "sh", "-c", "echo out; echo err >&2; exit 3"],
    &["--", "sh", "-c", "printf 'no end of line' >&2; kill -9 $$"],
    &["--timeout", "2s", "--", "sh", "-c", "echo early; sleep 20"],
    &["--", "no-such-command"],
    &["--", "/etc/passwd"],
    &["--", "head", "-c", "70000", "/dev/urandom"],
    &[
        "--",
        "sh",
        "-c",
        "printf 'a\\377\\000b'; printf '\\376' >&2",
    ],
    &[
        "--env",
        "A=b c",
        "--env-from",
        "PASSED",
        "--",
        "sh",
        "-c",
        "echo $A $PASSED",
    ],
    &[
        "--input",
        "name=given",
        "--artifact",
        "out",
        "--",
        "sh",
        "-c",
        "cat name > out; cat name",
    ],
    &["--profile", "unheard-of", "--", "true"],
];

#[test]
fn a_run_is_the_same_here_and_at_a_server() {
    let (server, folder) = (Server::new(), Folder::new());
    fs::write(folder.at("given"), b"given\xff\n").unwrap();
    for words in CASES {
        let ask = |mut command: Command, more: &[&str]| {
            output(
                command
                    .env("PASSED", "passed on")
                    .arg("run")
                    .args(more)
                    .args(words),
            )
        };
        let (here, there) = (
            ask(airlock(&folder), &[]),
            ask(remote(&folder, &url(&server), &server.admin), &[]),
        );
        assert_eq!(
            here.status.code(),
            there.status.code(),
            "{words:?}: {}",
            said(&there)
        );
        if !words.contains(&"/dev/urandom") {
            assert_eq!(here.stdout, there.stdout, "{words:?}");
            // The version of what was kept counts per store.
            assert_eq!(said(&here), said(&there), "{words:?}");
        }
        let json = &["--json"];
        let (here, there) = (
            ask(airlock(&folder), json),
            ask(remote(&folder, &url(&server), &server.admin), json),
        );
        assert_eq!(here.status.code(), there.status.code(), "{words:?}");
        let (mut here, mut there) = (settled(&here.stdout), settled(&there.stdout));
        if words.contains(&"/dev/urandom") {
            for result in [&mut here, &mut there] {
                assert!(
                    result["stdout_base64"]
                        .as_str()
                        .is_some_and(|text| text.len() > 90_000)
                );
                result["stdout_base64"] = Value::Null;
            }
        }
        assert_eq!(here, there, "{words:?}");
    }
}

#[test]
fn more_than_is_kept_arrives_whole_and_in_order_however_slowly_it_is_read() {
    let (server, folder) = (Server::new(), Folder::new());
    let mut command = remote(&folder, &url(&server), &server.admin);
    let mut child = command
        .args(["run", "--", "seq", "1", "1500000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut read = vec![0; 1];
    stdout.read_exact(&mut read).unwrap();
    // The program writes far faster than this; it has to wait.
    thread::sleep(Duration::from_millis(500));
    stdout.read_to_end(&mut read).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let wanted: String = (1..=1_500_000)
        .map(|number| format!("{number}\n"))
        .collect();
    assert!(
        read == wanted.as_bytes(),
        "{} bytes of {}",
        read.len(),
        wanted.len()
    );
}

/// Passes connections on to a server, each for so many bytes of its answers; the first ones are cut.
fn cutter(server: &Server, cuts: usize, after: usize) -> (String, Arc<AtomicUsize>) {
    let Client::Tcp(address) = server.client else {
        panic!("a port")
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it has one"));
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    thread::spawn(move || {
        for incoming in listener.incoming() {
            let (mut incoming, mut outgoing) = (
                incoming.expect("it is dialled"),
                TcpStream::connect(address).expect("the server listens"),
            );
            let number = counted.fetch_add(1, Ordering::Relaxed);
            let (mut asked, mut asks) = (
                incoming.try_clone().expect("there is a descriptor left"),
                outgoing.try_clone().expect("there is a descriptor left"),
            );
            thread::spawn(move || {
                // Named as the server is, or it would not answer.
                let mut buffer = [0; 64 << 10];
                let read = asked.read(&mut buffer).unwrap_or(0);
                let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                let host = text
                    .lines()
                    .find(|line| line.starts_with("host:"))
                    .unwrap_or_default();
                let text = text.replace(host, &format!("host: {address}"));
                _ = asks.write_all(text.as_bytes());
                _ = std::io::copy(&mut asked, &mut asks);
            });
            thread::spawn(move || {
                let most = if number < cuts {
                    after as u64
                } else {
                    u64::MAX
                };
                _ = std::io::copy(&mut (&mut outgoing).take(most), &mut incoming);
                _ = incoming.shutdown(std::net::Shutdown::Both);
                _ = outgoing.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (url, count)
}

#[test]
fn a_connection_that_breaks_loses_nothing_and_runs_nothing_twice() {
    let (server, folder) = (Server::new(), Folder::new());
    for after in [0, 400, 90_000] {
        let (url, connections) = cutter(&server, 3, after);
        let script = "echo once >> ran; wc -l < ran; seq 1 60000";
        let answer =
            output(remote(&folder, &url, &server.admin).args(["run", "--", "sh", "-c", script]));
        assert_eq!(answer.status.code(), Some(0), "{after}: {}", said(&answer));
        let wanted: String = (1..=60_000).map(|number| format!("{number}\n")).collect();
        assert!(
            answer.stdout == format!("1\n{wanted}").as_bytes(),
            "{after}: {} bytes",
            answer.stdout.len()
        );
        assert!(
            connections.load(Ordering::Relaxed) > 3,
            "{after}: it was cut"
        );
    }
    let runs = server.get("/v1/runs").json()["runs"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(runs, 3, "each ran once");
}

#[test]
fn an_interrupt_ends_the_run_at_the_server() {
    let (server, folder) = (Server::new(), Folder::new());
    let mut command = remote(&folder, &url(&server), &server.admin);
    let mut child = command
        .args(["run", "--", "sh", "-c", "echo begun; sleep 100"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begun = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut begun)
        .unwrap();
    let asked = Instant::now();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let answer = child.wait_with_output().unwrap();
    assert_eq!(answer.status.code(), Some(130), "{}", said(&answer));
    assert!(asked.elapsed() < Duration::from_secs(5));
    let run = &server.get("/v1/runs").json()["runs"][0];
    assert_eq!(run["status"], "cancelled");
}

#[test]
fn what_stands_in_the_way_is_said_in_the_commands_own_words() {
    let (server, folder) = (Server::new(), Folder::new());
    let run = |command: &mut Command, words: &[&str]| {
        let answer = output(command.args(words));
        assert_eq!(
            (answer.status.code(), answer.stdout.len()),
            (Some(125), 0),
            "{words:?}"
        );
        said(&answer)
    };
    let there = url(&server);
    let wrong = run(
        &mut remote(&folder, &there, "alk_wrong"),
        &["run", "--", "true"],
    );
    assert!(
        wrong.starts_with("airlock: error: this key is not known"),
        "{wrong}"
    );
    let begun = Instant::now();
    let nobody = run(
        &mut remote(&folder, "http://127.0.0.1:1", &server.admin),
        &["run", "--", "true"],
    );
    assert!(
        nobody.starts_with("airlock: error: cannot reach the server at http://127.0.0.1:1: "),
        "{nobody}"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "nobody is waited for who was never there"
    );
    for (words, start) in [
        (&["secrets", "list"][..], "`secrets` acts on this machine"),
        (&["sweep"], "`sweep` acts on this machine"),
        (
            &["run", "--explain", "--", "true"],
            "--explain cannot be used with a server",
        ),
        (
            &["run", "--tty", "--", "true"],
            "--tty cannot be used with a server",
        ),
        (
            &["run", "--workspace", ".", "--", "true"],
            "with a server, --workspace is a folder on the server's machine",
        ),
        (&["run", "--workspace", "/root", "--", "true"], ""),
        (
            &["sandbox", "exec", "nobody", "--", "true"],
            "there is no such sandbox",
        ),
    ] {
        let text = run(&mut remote(&folder, &there, &server.admin), words);
        assert!(
            text.starts_with(&format!("airlock: error: {start}")),
            "{words:?}: {text}"
        );
    }
    let without = run(&mut airlock(&folder), &["sandbox", "list"]);
    assert!(
        without.contains("start one with `airlock serve`"),
        "{without}"
    );
}

#[test]
fn a_key_is_seen_by_no_program_and_in_no_list_of_processes() {
    let (server, folder) = (Server::new(), Folder::new());
    let mut command = remote(&folder, &url(&server), &server.admin);
    let refused = output(command.args(["run", "--env-from", "AIRLOCK_KEY", "--", "env"]));
    assert_eq!(refused.status.code(), Some(125), "{}", said(&refused));
    fs::write(folder.at("key"), &server.admin).unwrap();
    let mut command = airlock(&folder);
    let words = [
        "run",
        "--server",
        &url(&server),
        "--key-file",
        "key",
        "--",
        "env",
    ];
    let answer = output(command.args(words));
    assert_eq!(answer.status.code(), Some(0), "{}", said(&answer));
    assert!(!String::from_utf8_lossy(&answer.stdout).contains("alk_"));
}

#[test]
fn a_server_with_tls_is_believed_by_the_certificate_that_was_named_and_by_no_other() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(folder.at("cert.pem"), made.cert.pem()).unwrap();
    fs::write(folder.at("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (folder.at("cert.pem"), folder.at("key.pem"));
    let options = [
        "--tls-cert",
        cert.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ];
    let server = Server::with("", &options);
    let Client::Tcp(address) = &server.client else {
        panic!("a port")
    };
    let url = format!("https://localhost:{}", address.port());
    let words = ["run", "--", "echo", "through TLS"];
    let believed = output(
        remote(&folder, &url, &server.admin)
            .env("AIRLOCK_CA", "cert.pem")
            .args(words),
    );
    assert_eq!(believed.stdout, b"through TLS\n", "{}", said(&believed));
    let stranger = output(remote(&folder, &url, &server.admin).args(words));
    assert_eq!(stranger.status.code(), Some(125));
    assert!(
        said(&stranger).contains("its certificate is not signed by a trusted authority"),
        "{}",
        said(&stranger)
    );
}

#[test]
fn keys_of_a_server_are_made_listed_and_revoked_through_it() {
    let (server, folder) = (Server::new(), Folder::new());
    let ask = |key: &str, words: &[&str]| output(remote(&folder, &url(&server), key).args(words));
    let made = ask(
        &server.admin,
        &[
            "key",
            "create",
            "--name",
            "ci",
            "--scope",
            "runs",
            "--expires-in",
            "1h",
        ],
    );
    let key = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    assert_eq!(ask(&key, &["run", "--", "echo", "hi"]).stdout, b"hi\n");
    assert!(said(&ask(&key, &["key", "list"])).contains("this key may not do that"));
    let list: Value =
        serde_json::from_slice(&ask(&server.admin, &["key", "list", "--json"]).stdout).unwrap();
    let id = list["keys"][1]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        ask(&server.admin, &["key", "revoke", &id]).status.code(),
        Some(0)
    );
    assert!(said(&ask(&key, &["run", "--", "true"])).contains("revoked"));
}

#[test]
fn a_sandbox_stays_between_programs() {
    let (server, folder) = (Server::new(), Folder::new());
    fs::write(
        folder.at("main.sh"),
        "read name; echo \"hello $name\"; exit 4\n",
    )
    .unwrap();
    let ask = |words: &[&str]| output(remote(&folder, &url(&server), &server.admin).args(words));
    let text = |answer: Output| String::from_utf8(answer.stdout).unwrap();
    let id = text(ask(&["sandbox", "create", "--label", "team=blue"]))
        .trim()
        .to_owned();
    assert!(text(ask(&["sandbox", "list"])).contains("team=blue"));
    assert_eq!(
        ask(&["sandbox", "put", &id, "main.sh"]).status.code(),
        Some(0)
    );
    let mut command = remote(&folder, &url(&server), &server.admin);
    let mut child = command
        .args(["sandbox", "exec", "--stdin", &id, "--", "sh", "main.sh"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"you\n").unwrap();
    let answer = child.wait_with_output().unwrap();
    assert_eq!(
        (answer.status.code(), answer.stdout.as_slice()),
        (Some(4), b"hello you\n".as_slice())
    );
    assert_eq!(
        ask(&["sandbox", "exec", &id, "--", "sh", "-c", "echo kept > kept"])
            .status
            .code(),
        Some(0)
    );
    assert_eq!(text(ask(&["sandbox", "get", &id, "kept"])), "kept\n");
    let absent = ask(&["sandbox", "exec", &id, "--", "no-such-command"]);
    assert_eq!(absent.status.code(), Some(127), "{}", said(&absent));
    assert!(
        said(&absent).contains("there is no command `no-such-command` inside"),
        "{}",
        said(&absent)
    );
    assert_eq!(
        ask(&["sandbox", "exec", "--json", &id, "--", "/usr"])
            .status
            .code(),
        Some(126)
    );
    let fork = text(ask(&["sandbox", "fork", &id])).trim().to_owned();
    assert_eq!(ask(&["sandbox", "rm", &id]).status.code(), Some(0));
    assert_eq!(
        text(ask(&["sandbox", "exec", &fork, "--", "cat", "kept"])),
        "kept\n"
    );
    let gone = ask(&["sandbox", "exec", &id, "--", "true"]);
    assert!(said(&gone).contains("gone"), "{}", said(&gone));
    assert_eq!(ask(&["sandbox", "rm", &fork]).status.code(), Some(0));
}

#[test]
fn artifacts_of_a_server_are_put_listed_shown_fetched_and_removed_through_it() {
    let (server, folder) = (Server::new(), Folder::new());
    let key = server.key(&["artifacts"]);
    fs::write(folder.at("notes"), "some text").unwrap();
    let ask = |words: &[&str]| output(remote(&folder, &url(&server), &key).args(words));
    let text = |answer: Output| String::from_utf8(answer.stdout).unwrap();
    let put = ask(&["artifact", "put", "notes", "--name", "a/notes"]);
    assert_eq!(put.status.code(), Some(0), "{}", said(&put));
    assert!(text(ask(&["artifact", "list"])).contains("a/notes"));
    assert_eq!(text(ask(&["artifact", "get", "a/notes"])), "some text");
    let shown: Value =
        serde_json::from_str(&text(ask(&["artifact", "show", "a/notes", "--json"]))).unwrap();
    assert!(shown.to_string().contains("\"size_bytes\":9"), "{shown}");
    let here = output(airlock(&folder).args(["artifact", "list"]));
    assert_eq!(
        String::from_utf8_lossy(&here.stdout)
            .matches("a/notes")
            .count(),
        0,
        "it is there, not here"
    );
    assert_eq!(ask(&["artifact", "rm", "a/notes"]).status.code(), Some(0));
    assert_eq!(
        ask(&["artifact", "get", "a/notes"]).status.code(),
        Some(125)
    );
}

/// An image of one file, as `docker save` writes it.
const SAVE: &str = r#"
set -e
mkdir root && echo hello > root/greeting && tar -C root -cf layer.tar .
digest=$(sha256sum layer.tar | cut -d' ' -f1)
case $(uname -m) in aarch64) machine=arm64;; *) machine=amd64;; esac
echo '{"architecture":"'$machine'","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:'$digest'"]}}' > config.json
echo '[{"Config":"config.json","RepoTags":["tiny:1"],"Layers":["layer.tar"]}]' > manifest.json
tar -cf image.tar manifest.json config.json layer.tar
"#;

#[test]
fn images_of_a_server_are_loaded_listed_shown_and_removed_through_it() {
    let (server, folder) = (Server::new(), Folder::new());
    let saved = Command::new("sh")
        .args(["-c", SAVE])
        .current_dir(&folder.0)
        .status()
        .unwrap();
    assert!(saved.success());
    let ask = |words: &[&str]| output(remote(&folder, &url(&server), &server.admin).args(words));
    let text = |answer: Output| String::from_utf8(answer.stdout).unwrap();
    let loaded = ask(&["image", "load", "image.tar"]);
    assert_eq!(loaded.status.code(), Some(0), "{}", said(&loaded));
    assert!(text(ask(&["image", "list"])).contains("tiny"));
    let shown: Value =
        serde_json::from_str(&text(ask(&["image", "inspect", "tiny:1", "--json"]))).unwrap();
    assert_eq!(shown["files"], 1, "{shown}");
    let key = server.key(&["images"]);
    let weak = output(remote(&folder, &url(&server), &key).args(["image", "rm", "tiny:1"]));
    assert!(
        said(&weak).contains("this key may not do that"),
        "{}",
        said(&weak)
    );
    assert_eq!(ask(&["image", "rm", "tiny:1"]).status.code(), Some(0));
    assert!(!text(ask(&["image", "list"])).contains("tiny"));
}

#[test]
fn a_folder_of_a_server_is_live_unless_it_is_said() {
    let folder = Folder::new();
    fs::create_dir(folder.at("project")).unwrap();
    let project = folder.at("project").display().to_string();
    let server = Server::with(&format!("[serve]\nfolders = [\"{project}\"]\n"), &[]);
    let mode = |shared: &str, file: &str| {
        let script = format!("echo made >{file}; echo evil >.envrc");
        let words = [
            "run",
            "--json",
            "--workspace",
            shared,
            "--",
            "sh",
            "-c",
            &script,
        ];
        let ran = output(remote(&folder, &url(&server), &server.admin).args(words));
        assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
        assert!(folder.at("project").join(file).exists(), "{}", said(&ran));
        let told: Value = serde_json::from_slice(&ran.stdout).expect("a result");
        told["workspace"]["mode"].clone()
    };
    assert_eq!(mode(&project, "one"), "live");
    assert_eq!(mode(&format!("{project}:staged"), "two"), "staged");
}

#[test]
fn workspaces_of_a_server_are_listed_compared_taken_over_and_dropped_through_it() {
    let folder = Folder::new();
    fs::create_dir(folder.at("project")).unwrap();
    fs::write(folder.at("project/old"), "old").unwrap();
    let project = folder.at("project").display().to_string();
    let server = Server::with(&format!("[serve]\nfolders = [\"{project}\"]\n"), &[]);
    let ask = |words: &[&str]| output(remote(&folder, &url(&server), &server.admin).args(words));
    let text = |answer: Output| String::from_utf8(answer.stdout).unwrap();
    for id in ["one", "two"] {
        let words = [
            "run",
            "--workspace",
            &project,
            "--copy-on-write",
            "--run-id",
            id,
            "--",
            "touch",
            id,
        ];
        let ran = ask(&words);
        assert_eq!(ran.status.code(), Some(0), "{}", said(&ran));
    }
    let list = text(ask(&["workspace", "list"]));
    assert!(
        list.lines().count() == 2 && list.contains("one  ") && list.contains(&project),
        "{list}"
    );
    assert_eq!(text(ask(&["workspace", "diff", "one"])), "+ one\n");
    assert_eq!(
        text(ask(&["workspace", "diff", "--stat", "one"])),
        "1 added, 0 changed, 0 removed\n"
    );
    let told: Value =
        serde_json::from_str(&text(ask(&["workspace", "diff", "one", "--json"]))).unwrap();
    assert_eq!(told["changes"][0]["path"], "one");
    let committed = ask(&["workspace", "commit", "one"]);
    assert_eq!(
        (committed.status.code(), committed.stdout.as_slice()),
        (Some(0), b"+ one\n".as_slice())
    );
    assert!(folder.at("project/one").exists());
    assert_eq!(text(ask(&["workspace", "discard", "two"])), "discarded\n");
    assert!(!folder.at("project/two").exists());
    let gone = ask(&["workspace", "diff", "two"]);
    assert_eq!(gone.status.code(), Some(125));
    assert!(
        said(&gone).contains("there is no such workspace"),
        "{}",
        said(&gone)
    );
}

#[test]
fn of_several_jobs_each_is_cancelled_whatever_becomes_of_the_others() {
    let (server, folder) = (Server::new(), Folder::new());
    let jobs = |arguments: &[&str]| {
        output(
            remote(&folder, &url(&server), &server.admin)
                .arg("jobs")
                .args(arguments),
        )
    };
    let ids = [0, 1].map(|_| {
        let submitted = jobs(&["submit", "--", "sleep", "600"]);
        assert!(submitted.status.success(), "{}", said(&submitted));
        String::from_utf8(submitted.stdout)
            .expect("a name")
            .trim()
            .to_owned()
    });
    let cancelled = jobs(&["cancel", "--json", &ids[0], "never", &ids[1]]);
    assert_eq!(cancelled.status.code(), Some(125), "{}", said(&cancelled));
    assert!(said(&cancelled).contains("never: "), "{}", said(&cancelled));
    let told: Value = serde_json::from_slice(&cancelled.stdout).expect("one JSON object");
    let ended: Vec<_> = told["jobs"]
        .as_array()
        .expect("jobs")
        .iter()
        .map(|job| (&job["job_id"], &job["status"]))
        .collect();
    let [one, two] = ids.map(Value::from);
    let over = Value::from("cancelled");
    assert_eq!(ended, [(&one, &over), (&two, &over)]);
    assert_eq!(
        (
            told["errors"].as_array().map(Vec::len),
            &told["errors"][0]["job_id"]
        ),
        (Some(1), &"never".into())
    );
    assert_eq!(
        jobs(&["retry", "never"]).status.code(),
        Some(125),
        "the same of one alone"
    );
}
