//! The command against servers that mean it ill, and connections that break: nothing of what they send steers a terminal,
//! runs for ever, is lost or doubled.

use gateway_tests::{Client, Folder, Server};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::symlink,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
};

fn remote(folder: &Folder, url: &str, key: &str) -> Command {
    let mut command = Command::new(cli::airlock());
    command
        .current_dir(&folder.0)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null());
    command.env("HOME", &folder.0).args(["--state", "local"]);
    command.env("AIRLOCK_URL", url).env("AIRLOCK_KEY", key);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Answers every request with what the function makes of its first line. It ends with the test's process.
fn fake(answer: impl Fn(&str) -> Value + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it has one"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = asked.clone();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (first, mut reader) = head(&stream);
            heard.lock().expect("nobody panicked").push(first.clone());
            let body = answer(&first).to_string();
            let status = if first.starts_with("PUT") || first.starts_with("POST") {
                "201 Created"
            } else {
                "200 OK"
            };
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            _ = stream.write_all(format!("{head}{body}").as_bytes());
            // Closed on what is still coming, the connection would take the answer with it.
            _ = stream.shutdown(Shutdown::Write);
            _ = std::io::copy(&mut reader, &mut std::io::sink());
        }
    });
    (url, asked)
}

/// The first line of a request, and whatever comes behind its head.
fn head(stream: &TcpStream) -> (String, BufReader<TcpStream>) {
    let mut reader = BufReader::new(stream.try_clone().expect("there is a descriptor left"));
    let (mut first, mut line) = (String::new(), String::new());
    _ = reader.read_line(&mut first);
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        line.clear();
    }
    (first, reader)
}

const EVIL: &str = "x\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\nairlock: note: all is well\u{202e}";

fn hostile(first: &str) -> Value {
    let row = json!({ "name": EVIL, "version": 1, "size_bytes": 3, "sha256": EVIL, "content_type": EVIL,
        "kept_at": EVIL, "run_id": EVIL, "session_id": EVIL, "command": [EVIL], "policy_hash": EVIL });
    let image = json!({ "name": EVIL, "digest": EVIL, "size_bytes": 3, "platform": EVIL, "created": EVIL,
        "config": { EVIL: EVIL, "cmd": [EVIL] } });
    let change = json!({ "path": EVIL, "change": "added", "kind": "link", "target": EVIL, "left_out": EVIL });
    let left = json!({ "path": EVIL, "reason": EVIL, "conflict": false });
    match first {
        line if line.contains("/v1/keys") && line.starts_with("POST") => {
            json!({ "id": EVIL, "token": EVIL, "expires_at": EVIL })
        }
        line if line.contains("/v1/keys") => json!({ "keys": [
            { "id": EVIL, "name": EVIL, "scopes": ["runs"], "created_at": EVIL, "expires_at": EVIL, "revoked_at": null },
            { "id": EVIL, "name": EVIL, "scopes": ["runs"], "created_at": EVIL, "expires_at": null, "revoked_at": EVIL },
        ] }),
        line if line.contains("/v1/artifacts/") => row,
        line if line.contains("/v1/artifacts") => json!({ "artifacts": [row], "next": null }),
        line if line.contains("/v1/usage") => {
            json!({ "rows": [{ "key": EVIL, "calls": 1, "input_tokens": 1,
            "cached_tokens": 1, "output_tokens": 1, "cost_nano_usd": 1, "overrun_nano_usd": 1, "unsettled_calls": 1,
            "unsettled_nano_usd": 1 }] })
        }
        line if line.contains("/v1/images/") && line.starts_with("DELETE") => {
            json!({ "names": [EVIL], "images": [EVIL], "freed_bytes": 1 })
        }
        line if line.contains("/v1/images/") => image,
        line if line.contains("/v1/images") && line.starts_with("POST") => {
            json!({ "names": [EVIL], "size_bytes": 1, "fresh": true })
        }
        line if line.contains("/v1/images") => json!({ "images": [image] }),
        line if line.contains("/diff") => {
            json!({ "changes": [change], "not_looked_into": [left], "compared": true })
        }
        line if line.contains("/commit") => json!({ "applied": [change], "left_out": [left] }),
        line if line.contains("/v1/workspaces") => json!({ "workspaces": [
            { "id": EVIL, "folder": EVIL, "made_at": EVIL, "in_use": true }] }),
        line if line.contains("/exec") => json!({ "exec_id": EVIL, "status": "running" }),
        line if line.contains("/v1/sandboxes") && line.starts_with("GET") => json!({ "sandboxes": [
            { "sandbox_id": EVIL, "status": EVIL, "reason": EVIL, "expires_at": EVIL, "labels": { EVIL: EVIL } }] }),
        _ => json!({ "sandbox_id": EVIL }),
    }
}

const COMMANDS: [&[&str]; 19] = [
    &["artifact", "list"],
    &["artifact", "show", "x"],
    &["artifact", "put", "file"],
    &["key", "list"],
    &["key", "create", "--name", "x", "--scope", "runs"],
    &["sandbox", "list"],
    &["sandbox", "create"],
    &["sandbox", "fork", "x"],
    &["sandbox", "exec", "--detach", "x", "--", "true"],
    &["workspace", "list"],
    &["workspace", "diff", "x"],
    &["workspace", "diff", "--stat", "x"],
    &["workspace", "commit", "x"],
    &["usage"],
    &["usage", "--csv"],
    &["image", "list"],
    &["image", "inspect", "x"],
    &["image", "load", "file"],
    &["image", "rm", "x"],
];

#[test]
fn nothing_that_a_server_says_steers_the_terminal_or_begins_a_line() {
    let (folder, (url, _)) = (Folder::new(), fake(hostile));
    fs::write(folder.at("file"), "some text").expect("a file");
    let obeyed =
        |character: char| (character.is_control() && character != '\n') || character == '\u{202e}';
    for words in COMMANDS {
        let answer = remote(&folder, &url, "alk_x")
            .args(words)
            .output()
            .expect("airlock runs");
        // A table for programs has the ends of lines that its standard wants.
        let told = String::from_utf8(answer.stdout.clone())
            .expect("text")
            .replace("\r\n", "\n");
        let text = told + &said(&answer);
        assert!(
            answer.status.code().is_some_and(|code| code < 2),
            "{words:?} is understood: {text}"
        );
        if !words.contains(&"--stat") {
            assert!(
                text.contains("x\\u{1b}[2J"),
                "{words:?} shows what came: {text}"
            );
        }
        assert!(
            !text.contains(obeyed) && !text.contains("\nairlock: note: all is well"),
            "{words:?}: {text:?}"
        );
    }
}

#[test]
fn a_list_that_goes_in_circles_is_not_followed() {
    let page = |name: &str, next: Value| {
        json!({ "artifacts": [{ "name": name, "version": 1, "size_bytes": 3, "sha256": "s", "content_type": "t/t",
            "kept_at": "T" }], "next": next })
    };
    let folder = Folder::new();
    let (url, asked) = fake(move |first| match first.contains("after=one") {
        true => page("second", json!("two")),
        false => page("first", json!("one")),
    });
    let answer = remote(&folder, &url, "alk_x")
        .args(["artifact", "list"])
        .output()
        .expect("airlock runs");
    assert_eq!(answer.status.code(), Some(125));
    assert!(
        said(&answer).contains("its list repeats pages"),
        "{}",
        said(&answer)
    );
    assert_eq!(asked.lock().expect("nobody panicked").len(), 3);
    let (url, _) = fake(move |first| match first.contains("after=one") {
        true => page("second", Value::Null),
        false => page("first", json!("one")),
    });
    let answer = remote(&folder, &url, "alk_x")
        .args(["artifact", "list"])
        .output()
        .expect("airlock runs");
    assert_eq!(
        String::from_utf8_lossy(&answer.stdout),
        "first@1   3  T\nsecond@1  3  T\n",
        "{}",
        said(&answer)
    );
}

/// Passes connections on to a server; of those that the function wants to be cut only the request arrives.
fn cutter(
    server: &Server,
    mut cut: impl FnMut(&str) -> bool + Send + 'static,
) -> (String, Arc<Mutex<Vec<String>>>) {
    let Client::Tcp(address) = server.client else {
        panic!("a port")
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it has one"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let heard = asked.clone();
    thread::spawn(move || {
        for mut incoming in listener.incoming().map_while(Result::ok) {
            let mut outgoing = TcpStream::connect(address).expect("the server listens");
            let mut asks = outgoing.try_clone().expect("there is a descriptor left");
            let mut asked =
                BufReader::new(incoming.try_clone().expect("there is a descriptor left"));
            let mut line = String::new();
            _ = asked.read_line(&mut line);
            heard.lock().expect("nobody panicked").push(line.clone());
            let (first, is_cut) = (line.clone(), cut(&line));
            thread::spawn(move || {
                let mut head = first;
                // Named as the server is, or it would not answer.
                while !head.ends_with("\r\n\r\n") {
                    let mut line = String::new();
                    if asked.read_line(&mut line).map_or(true, |read| read == 0) {
                        return;
                    }
                    let is_host = line.starts_with("host:");
                    head.push_str(&if is_host {
                        format!("host: {address}\r\n")
                    } else {
                        line
                    });
                }
                _ = asks.write_all(head.as_bytes());
                _ = std::io::copy(&mut asked, &mut asks);
            });
            thread::spawn(move || {
                if is_cut {
                    // Its answer is there, and so is all that was asked.
                    _ = outgoing.peek(&mut [0]);
                } else {
                    _ = std::io::copy(&mut outgoing, &mut incoming);
                }
                _ = incoming.shutdown(Shutdown::Both);
                _ = outgoing.shutdown(Shutdown::Both);
            });
        }
    });
    (url, asked)
}

fn sandbox(server: &Server) -> String {
    let made = server.post("/v1/sandboxes", &json!({}));
    made.json()["sandbox_id"]
        .as_str()
        .unwrap_or_else(|| panic!("{}", made.text()))
        .to_owned()
}

fn piped(command: &mut Command) -> Child {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("airlock starts")
}

#[test]
fn what_is_typed_arrives_once_however_often_its_connection_breaks() {
    let (server, folder) = (Server::new(), Folder::new());
    let id = sandbox(&server);
    let mut count = 0;
    let (url, asked) = cutter(&server, move |line| {
        count += usize::from(line.contains("/stdin"));
        line.contains("/stdin") && count % 2 == 1
    });
    let mut child = piped(
        remote(&folder, &url, &server.admin).args(["sandbox", "exec", "--stdin", &id, "--", "cat"]),
    );
    let mut stdin = child.stdin.take().expect("it is ours");
    let mut shown = child.stdout.take().expect("it is ours");
    // What comes back is waited for before more is typed: each turn begins with a request that is cut.
    for turn in 0..4 {
        let wanted: String = (0..75_000)
            .map(|number| format!("{turn} {number}\n"))
            .collect();
        let typed = wanted.clone();
        let typing = thread::spawn(move || stdin.write_all(typed.as_bytes()).map(|()| stdin));
        let mut seen = vec![0; wanted.len()];
        shown.read_exact(&mut seen).expect("all of it comes back");
        assert!(
            seen == wanted.as_bytes(),
            "turn {turn} came back as it was typed"
        );
        stdin = typing.join().expect("it is typed").expect("all of it");
    }
    drop(stdin);
    let answer = child.wait_with_output().expect("it ends");
    assert_eq!(answer.status.code(), Some(0), "{}", said(&answer));
    let mut more = Vec::new();
    shown.read_to_end(&mut more).expect("it ends");
    assert!(more.is_empty(), "{} bytes more than were typed", more.len());
    let tries = asked
        .lock()
        .expect("nobody panicked")
        .iter()
        .filter(|line| line.contains("/stdin"))
        .count();
    assert!(tries >= 8, "each turn was cut and sent again: {tries}");
}

#[test]
fn nothing_is_under_way_while_nothing_is_typed() {
    let (server, folder) = (Server::new(), Folder::new());
    let id = sandbox(&server);
    let (url, asked) = cutter(&server, |_| false);
    let mut child = piped(
        remote(&folder, &url, &server.admin).args(["sandbox", "exec", "--stdin", &id, "--", "cat"]),
    );
    let mut stdin = child.stdin.take().expect("it is ours");
    let mut shown = BufReader::new(child.stdout.take().expect("it is ours"));
    for word in ["one\n", "two\n"] {
        stdin.write_all(word.as_bytes()).expect("it reads");
        let mut line = String::new();
        shown.read_line(&mut line).expect("it answers");
        assert_eq!(line, word);
    }
    drop(stdin);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    // Each had a request of its own: no silence between them can end one that waits for more.
    let typed: Vec<_> = asked
        .lock()
        .expect("nobody panicked")
        .iter()
        .filter(|line| line.contains("/stdin"))
        .cloned()
        .collect();
    let has = |what: &str| typed.iter().any(|line| line.contains(what));
    assert!(
        typed.len() == 3 && has("offset=0 ") && has("offset=4 ") && has("offset=8&close=true "),
        "{typed:?}"
    );
}

#[test]
fn input_that_cannot_be_sent_ends_the_program_and_is_said() {
    let (server, folder) = (Server::new(), Folder::new());
    let id = sandbox(&server);
    // Whoever cannot be read any further: a folder is none to read.
    let mut command = remote(
        &folder,
        &format!("http://{}", server.client.host()),
        &server.admin,
    );
    command.args(["sandbox", "exec", "--stdin", &id, "--", "cat"]);
    let answer = command
        .stdin(fs::File::open(&folder.0).expect("it is there"))
        .output()
        .expect("airlock runs");
    assert_eq!(answer.status.code(), Some(130), "{}", said(&answer));
    assert!(
        said(&answer).contains("cannot send the rest of standard input"),
        "{}",
        said(&answer)
    );
}

#[test]
fn logs_are_followed_by_events_to_the_end_of_the_program() {
    let (server, folder) = (Server::new(), Folder::new());
    let id = sandbox(&server);
    let script =
        "seq 1 200000; echo not this >&2; while [ ! -e go ]; do sleep 0.05; done; echo last";
    let order = json!({ "command": ["sh", "-c", script], "background": true });
    assert_eq!(
        server
            .post(&format!("/v1/sandboxes/{id}/exec"), &order)
            .status,
        201
    );
    let mut cuts = 0;
    // The first two that follow are cut.
    let (url, asked) = cutter(&server, move |line| {
        cuts += usize::from(line.contains("/events"));
        line.contains("/events") && cuts < 3
    });
    let mut child =
        piped(remote(&folder, &url, &server.admin).args(["sandbox", "logs", "--follow", &id]));
    let wanted: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    let mut shown = vec![0; wanted.len()];
    let mut stdout = child.stdout.take().expect("it is ours");
    stdout
        .read_exact(&mut shown)
        .expect("it shows what is there while the program is silent");
    assert!(shown == wanted.as_bytes());
    assert_eq!(
        server
            .ask(
                &server.admin,
                "PUT",
                &format!("/v1/sandboxes/{id}/files/go"),
                &[],
                &json!("")
            )
            .status,
        201
    );
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("it is text");
    let answer = child.wait_with_output().expect("it ends");
    assert_eq!(
        (answer.status.code(), rest.as_str()),
        (Some(0), "last\n"),
        "{}",
        said(&answer)
    );
    // Events come with signs of life, which bytes cannot.
    let asked = asked.lock().expect("nobody panicked").clone();
    assert!(
        asked.iter().filter(|line| line.contains("/events")).count() == 3,
        "{asked:?}"
    );
    assert!(
        !asked.iter().any(|line| line.contains("follow=true")),
        "{asked:?}"
    );
    let plain = remote(&folder, &url, &server.admin)
        .args(["sandbox", "logs", &id])
        .output()
        .expect("airlock runs");
    assert!(
        plain.stdout == format!("{wanted}last\n").as_bytes(),
        "all of it, of more than one answer"
    );
}

#[test]
fn what_is_fetched_goes_into_a_new_file_and_never_through_a_link() {
    let folder = Folder::new();
    let (url, _) = fake(|_| json!("stolen"));
    fs::write(folder.at("precious"), "mine").expect("a file");
    symlink("precious", folder.at("link")).expect("a link");
    symlink("absent", folder.at("dangling")).expect("a link");
    for words in [
        &["artifact", "get", "x", "--output"][..],
        &["sandbox", "get", "id", "x", "--output"],
    ] {
        for name in ["precious", "link", "dangling"] {
            let answer = remote(&folder, &url, "alk_x")
                .args(words)
                .arg(name)
                .output()
                .expect("airlock runs");
            assert_eq!(
                answer.status.code(),
                Some(125),
                "{words:?} {name}: {}",
                said(&answer)
            );
        }
        let new = format!("new-{}", words[0]);
        let answer = remote(&folder, &url, "alk_x")
            .args(words)
            .arg(&new)
            .output()
            .expect("airlock runs");
        assert_eq!(answer.status.code(), Some(0), "{}", said(&answer));
        assert_eq!(
            fs::read_to_string(folder.at(&new)).expect("it is made"),
            "\"stolen\""
        );
    }
    assert_eq!(
        fs::read_to_string(folder.at("precious")).expect("it is there"),
        "mine"
    );
    assert!(!folder.at("absent").exists());
}
