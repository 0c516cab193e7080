//! Pushes of the real git, through the push policy, to git's own server: allowed pushes arrive, refused
//! ones change nothing, and the user reads why.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that tells")]

use doors::egress::git::{GitRequestKind, PushDecision, PushRequest, authorize, parse_request};
use spec::Repository;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

/// A git server, a clone of its repository, and a branch with one more commit.
struct World {
    folder: PathBuf,
    url: String,
}

struct Request {
    method: String,
    path: String,
    query: Option<String>,
    kind: String,
    protocol: String,
    body: Vec<u8>,
}

impl Drop for World {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn repository(push: &[&str], update: bool, delete: bool) -> Repository {
    let push = push
        .iter()
        .map(|pattern| pattern.parse().unwrap())
        .collect();
    Repository {
        path: "acme/app".to_owned(),
        fetch: true,
        push,
        update,
        delete,
        credential: None,
    }
}

impl World {
    fn new(repository: Repository, format: &str) -> World {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "airlock-git-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = std::env::temp_dir().join(name);
        let bare = folder.join("acme/app.git");
        std::fs::create_dir_all(&bare).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/acme/app.git", listener.local_addr().unwrap());
        let root = folder.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                // git may have exited, as it does after a refusal.
                _ = serve(stream.unwrap(), &root, &repository);
            }
        });
        let world = World { folder, url };
        world.good(&[
            "init",
            "-q",
            "--bare",
            "-b",
            "main",
            "--object-format",
            format,
            "acme/app.git",
        ]);
        world.good(&[
            "--git-dir=acme/app.git",
            "config",
            "receive.advertisePushOptions",
            "true",
        ]);
        world.good(&[
            "init",
            "-q",
            "-b",
            "main",
            "--object-format",
            format,
            "seed",
        ]);
        world.good(&["-C", "seed", "commit", "-q", "--allow-empty", "-m", "first"]);
        world.good(&[
            "-C",
            "seed",
            "push",
            "-q",
            "../acme/app.git",
            "main",
            "main:agent/old",
            "main:agent/moved",
        ]);
        world.good(&["clone", "-q", &world.url, "clone"]);
        std::fs::write(world.folder.join("clone/file"), noise(200 << 10)).unwrap();
        world.good(&["-C", "clone", "add", "file"]);
        world.good(&["-C", "clone", "commit", "-q", "-m", "second"]);
        world
    }

    fn git(&self, arguments: &[&str]) -> Output {
        let mut git = Command::new("git");
        git.args([
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "-c",
            "http.proxy=",
            "-c",
            "gc.auto=0",
        ]);
        git.args(arguments)
            .current_dir(&self.folder)
            .env("NO_PROXY", "*")
            .env("LC_ALL", "C");
        git.env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0");
        git.stdin(Stdio::null()).output().unwrap()
    }

    fn good(&self, arguments: &[&str]) -> String {
        let output = self.git(arguments);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {arguments:?}: {words}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn push(&self, arguments: &[&str]) -> Output {
        self.git(&[&["-C", "clone", "push", "origin"], arguments].concat())
    }

    /// The output of a push that failed and changed nothing.
    fn refused(&self, arguments: &[&str]) -> String {
        let before = self.refs();
        let output = self.push(arguments);
        assert!(!output.status.success(), "{arguments:?} passed");
        assert_eq!(self.refs(), before, "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Enables signed pushes.
    fn sign(&self) {
        let mut keygen = Command::new("ssh-keygen");
        keygen
            .args(["-q", "-t", "ed25519", "-N", "", "-f", "key"])
            .current_dir(&self.folder);
        assert!(keygen.status().unwrap().success(), "ssh-keygen");
        self.good(&[
            "--git-dir=acme/app.git",
            "config",
            "receive.certNonceSeed",
            "seed",
        ]);
        self.good(&["-C", "clone", "config", "gpg.format", "ssh"]);
        let key = self.folder.join("key");
        self.good(&[
            "-C",
            "clone",
            "config",
            "user.signingKey",
            key.to_str().unwrap(),
        ]);
    }

    fn refs(&self) -> String {
        self.good(&["--git-dir=acme/app.git", "for-each-ref"])
    }
}

/// Incompressible bytes.
fn noise(length: usize) -> Vec<u8> {
    let step = |state: &mut u32| {
        *state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        Some((*state >> 24) as u8)
    };
    std::iter::repeat_n((), length)
        .scan(7u32, |state, ()| step(state))
        .collect()
}

fn serve(stream: TcpStream, root: &Path, repository: &Repository) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let request = read(&mut reader)?;
    let answer = answer(&request, root, repository);
    reader.into_inner().write_all(&answer)
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Request> {
    let mut line = || {
        let mut line = String::new();
        reader
            .read_line(&mut line)
            .map(|_| line.trim_end().to_owned())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let (method, target) = (
        words.next().unwrap().to_owned(),
        words.next().unwrap_or("/").to_owned(),
    );
    let mut headers = Vec::new();
    loop {
        let line = line()?;
        match line.split_once(": ") {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
            None => break,
        }
    }
    let header = |name: &str| {
        headers
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.clone())
            .unwrap_or_default()
    };
    assert!(
        header("content-encoding").is_empty() || !target.ends_with("receive-pack"),
        "git packs no push"
    );
    let mut body = Vec::new();
    if header("transfer-encoding") == "chunked" {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size)?;
            let size = u64::from_str_radix(size.trim(), 16).unwrap();
            reader.take(size).read_to_end(&mut body)?;
            reader.read_line(&mut String::new())?;
            if size == 0 {
                break;
            }
        }
    } else {
        reader
            .take(header("content-length").parse().unwrap_or(0))
            .read_to_end(&mut body)?;
    }
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path.to_owned(), Some(query.to_owned())),
        None => (target, None),
    };
    Ok(Request {
        method,
        path,
        query,
        kind: header("content-type"),
        protocol: header("git-protocol"),
        body,
    })
}

fn answer(request: &Request, root: &Path, repository: &Repository) -> Vec<u8> {
    let path = request.path.parse().unwrap();
    let asked = parse_request(&request.method, &path, request.query.as_deref()).unwrap();
    let forbidden =
        || b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_vec();
    if authorize(std::slice::from_ref(repository), &asked).is_err() {
        return forbidden();
    }
    if asked.kind != GitRequestKind::Push {
        return backend(request, root, &request.body);
    }
    let mut push = PushRequest::new(repository);
    // Byte by byte: the result must not depend on the cuts.
    let at = request
        .body
        .iter()
        .position(|byte| push.feed(&[*byte]) != PushDecision::Incomplete);
    let rest = &request.body[at.map_or(request.body.len(), |at| at + 1)..];
    match push.feed(&[]) {
        PushDecision::Allowed => backend(request, root, &[&push.into_held(), rest].concat()),
        PushDecision::Probe => backend(request, root, &push.into_held()),
        PushDecision::Refused(denied) => match push.refusal(&denied) {
            Some(report) => {
                let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/x-git-receive-pack-result\r\n\r\n";
                [head.as_bytes(), &report].concat()
            }
            None => forbidden(),
        },
        PushDecision::Incomplete => forbidden(),
    }
}

fn backend(request: &Request, root: &Path, body: &[u8]) -> Vec<u8> {
    let mut backend = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "somebody")
        .env("REQUEST_METHOD", &request.method)
        .env("PATH_INFO", &request.path)
        .env("QUERY_STRING", request.query.as_deref().unwrap_or_default())
        .env("CONTENT_TYPE", &request.kind)
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("GIT_PROTOCOL", &request.protocol)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The server need not read all of it.
    _ = backend.stdin.take().unwrap().write_all(body);
    let output = backend.wait_with_output().unwrap().stdout;
    [&b"HTTP/1.1 200 OK\r\nConnection: close\r\n"[..], &output].concat()
}

#[test]
fn what_is_allowed_arrives() {
    for format in ["sha1", "sha256"] {
        let world = World::new(repository(&["refs/heads/agent/*"], true, true), format);
        let pushed = |arguments: &[&str]| {
            let output = world.push(arguments);
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        pushed(&["main:agent/new", "main:agent/moved", ":agent/old"]);
        let refs = world.refs();
        assert!(
            refs.contains("agent/new") && !refs.contains("agent/old"),
            "{refs}"
        );
        // With a probe first, and chunked.
        world.good(&["-C", "clone", "config", "http.postBuffer", "65536"]);
        world.good(&["-C", "clone", "commit", "-q", "--amend", "-m", "other"]);
        std::fs::write(world.folder.join("clone/file"), &noise(300 << 10)[1..]).unwrap();
        world.good(&["-C", "clone", "commit", "-qam", "third"]);
        pushed(&["--force", "--atomic", "main:agent/moved"]);
        let tip = world.good(&["-C", "clone", "rev-parse", "main"]);
        assert_eq!(
            world.good(&["--git-dir=acme/app.git", "rev-parse", "agent/moved"]),
            tip
        );
    }
}

#[test]
fn what_is_not_changes_nothing_and_git_says_why() {
    let world = World::new(repository(&["refs/heads/agent/*"], false, false), "sha1");
    world.good(&["-C", "clone", "tag", "v1"]);
    for (arguments, words) in [
        (
            &["main"][..],
            "refs/heads/main may not be written, only refs/heads/agent/*",
        ),
        (
            &["main:agent/new", "main"],
            "refs/heads/main may not be written, only refs/heads/agent/*",
        ),
        (
            &["v1"],
            "refs/tags/v1 may not be written, only refs/heads/agent/*",
        ),
        (
            &["--delete", "agent/old"],
            "refs/heads/agent/old may not be removed",
        ),
        (
            &["main:agent/moved"],
            "refs/heads/agent/moved is there already and may not be moved",
        ),
        (
            &["--force", "main:agent/moved"],
            "refs/heads/agent/moved is there already and may not be moved",
        ),
        (&["-o", "ci.skip", "main:agent/new"], "it has push options"),
    ] {
        let said = world.refused(arguments);
        assert!(
            said.contains("remote: airlock: the push was refused: ") && said.contains(words),
            "{said}"
        );
        assert!(
            said.contains("[remote rejected]") && said.contains("(airlock: "),
            "{said}"
        );
    }
    world.sign();
    let said = world.refused(&["--signed", "main:agent/new"]);
    assert!(
        said.contains("remote: airlock: the push was refused: ") && said.contains("it is signed"),
        "{said}"
    );
    let said = world.refused(&["main:agent/new", "main"]);
    assert!(
        said.contains(
            "remote: airlock: What would allow it: `push = [\"refs/heads/main\"]` at `acme/app`"
        ),
        "{said}"
    );
    assert!(
        said.contains("main -> agent/new (airlock: another ref of this push was refused)"),
        "{said}"
    );
    assert!(world.push(&["main:agent/new"]).status.success());
}

#[test]
fn where_nothing_may_be_pushed_no_push_begins() {
    let world = World::new(repository(&[], true, true), "sha1");
    let said = world.refused(&["main:agent/new"]);
    assert!(said.contains("403"), "{said}");
    world.good(&["-C", "clone", "fetch", "-q"]);
}
