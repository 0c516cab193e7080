//! Where the claims are tried, and short words for what they ask.

use daemons::{Daemons, Kind};
use gateway_tests::{Answer, Folder, Server, serve};
use rustix::{
    fs::{Gid, Uid},
    process::Pid,
};
use serde_json::{Value, json};
use std::{fs, process::Command, sync::OnceLock};

/// A server, and what its sandboxes are made of.
pub(crate) struct Place {
    pub(crate) server: Server,
    /// A key that may use sandboxes.
    pub(crate) key: String,
    pub(crate) options: Value,
    /// Whether whoever serves it may freeze boxes.
    may_freeze: bool,
}

/// Both engines, for all tests of this process.
fn engines() -> &'static Daemons {
    static STARTED: OnceLock<Daemons> = OnceLock::new();
    STARTED.get_or_init(|| Daemons::start(&[Kind::Docker, Kind::Podman]))
}

impl Place {
    pub(crate) fn native() -> Place {
        Place::of(Server::new(), json!({}))
    }

    pub(crate) fn docker() -> Place {
        Place::contained(Kind::Docker)
    }

    pub(crate) fn podman() -> Place {
        Place::contained(Kind::Podman)
    }

    fn contained(kind: Kind) -> Place {
        let (host, folder) = (engines().host(kind), Folder::new());
        let mut command = serve(&folder, "", &[]);
        command
            .env("DOCKER_HOST", &host)
            .env("CONTAINER_HOST", &host);
        let options = json!({ "backend": kind.backend(), "image": daemons::IMAGE });
        Place::of(Server::started(command, folder, None), options)
    }

    /// The server is an ordinary user's.
    pub(crate) fn ordinary() -> Place {
        let (folder, own) = (Folder::new(), numbers());
        let copy = folder.at("airlock");
        // By a process of its own: a program that somebody has open for writing does not start, and whatever another test
        // starts meanwhile would have it open, too.
        let copied = Command::new("cp").arg(cli::airlock()).arg(&copy).status();
        assert!(
            copied.is_ok_and(|copied| copied.success()),
            "a copy that others may start"
        );
        rustix::fs::chown(&folder.0, Some(own.0), Some(own.1)).expect("it is theirs");
        let made = serve(&folder, "", &[]);
        let mut command = Command::new("setpriv");
        let (user, group) = (
            format!("--reuid={}", own.0.as_raw()),
            format!("--regid={}", own.1.as_raw()),
        );
        command
            .args([&user, &group, "--clear-groups", "--"])
            .arg(made.get_program());
        let theirs = |word: &std::ffi::OsStr| {
            if word == cli::airlock() {
                copy.clone().into()
            } else {
                word.to_owned()
            }
        };
        command
            .args(made.get_args().map(theirs))
            .current_dir(&folder.0)
            .env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        Place {
            may_freeze: false,
            ..Place::of(Server::started(command, folder, None), json!({}))
        }
    }

    fn of(server: Server, options: Value) -> Place {
        let key = server.key(&["sandboxes"]);
        Place {
            server,
            key,
            options,
            may_freeze: true,
        }
    }

    /// Whether it was frozen. An ordinary user's server must say that it cannot be; root's can wherever there is a
    /// freezer, and with AIRLOCK_TEST_ALL=1 there must be one.
    pub(crate) fn freezes(&self, paused: &Answer) -> bool {
        match (self.may_freeze, paused.status) {
            (true, 200) => return true,
            (true, _) => {
                assert!(
                    std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
                    "it must freeze: {}",
                    paused.text()
                );
                eprintln!("MISSING: this host cannot freeze, and nothing is known of pauses");
            }
            (false, _) => {}
        }
        assert_eq!(
            (paused.status, paused.text().contains("freeze")),
            (503, true),
            "{}",
            paused.text()
        );
        false
    }

    /// Asks with the key.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.server.ask(&self.key, method, path, &[], body)
    }

    /// Options of a sandbox here, and these.
    pub(crate) fn options(&self, more: Value) -> Value {
        let mut options = self.options.clone();
        let more = more.as_object().expect("options").clone();
        options.as_object_mut().expect("options").extend(more);
        options
    }

    pub(crate) fn sandbox(&self, more: Value) -> Sandbox<'_> {
        let made = self.ask("POST", "/v1/sandboxes", &self.options(more));
        assert_eq!(made.status, 201, "{}", made.text());
        let id = made.json()["sandbox_id"]
            .as_str()
            .expect("an identifier")
            .to_owned();
        assert_eq!(
            made.header("location"),
            Some(format!("/v1/sandboxes/{id}").as_str())
        );
        Sandbox { place: self, id }
    }
}

fn numbers() -> (Uid, Gid) {
    let number = |of: &str| {
        let told = Command::new("id")
            .args([of, &daemons::user()])
            .output()
            .expect("id starts");
        String::from_utf8_lossy(&told.stdout)
            .trim()
            .parse()
            .expect("the user of the tests exists")
    };
    (Uid::from_raw(number("-u")), Gid::from_raw(number("-g")))
}

/// One sandbox.
pub(crate) struct Sandbox<'a> {
    pub(crate) place: &'a Place,
    pub(crate) id: String,
}

impl Sandbox<'_> {
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/v1/sandboxes/{}{rest}", self.id)
    }

    pub(crate) fn get(&self, rest: &str) -> Answer {
        self.place.ask("GET", &self.path(rest), &Value::Null)
    }

    pub(crate) fn post(&self, rest: &str, body: &Value) -> Answer {
        self.place.ask("POST", &self.path(rest), body)
    }

    pub(crate) fn delete(&self, rest: &str) -> Answer {
        self.place.ask("DELETE", &self.path(rest), &Value::Null)
    }

    /// The head of a request, whose body is still to come.
    pub(crate) fn head(&self, method: &str, rest: &str, length: usize) -> Vec<u8> {
        let (host, key, path) = (
            self.place.server.client.host(),
            &self.place.key,
            self.path(rest),
        );
        format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-length: {length}\r\n\r\n")
            .into_bytes()
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&self, method: &str, rest: &str, body: &[u8]) -> Answer {
        let request = [&self.head(method, rest, body.len())[..], body].concat();
        self.place.server.client.open(&request).answer()
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> Answer {
        self.send("PUT", &format!("/files/{name}"), bytes)
    }

    /// Runs a script to its end.
    pub(crate) fn run(&self, script: &str) -> Value {
        let answer = self.post("/exec", &json!({ "command": ["sh", "-c", script] }));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// What a script writes; it succeeds.
    pub(crate) fn said(&self, script: &str) -> String {
        let result = self.run(script);
        assert_eq!(result["status"], "succeeded", "{result}");
        result["stdout"]
            .as_str()
            .unwrap_or_else(|| panic!("text: {result}"))
            .to_owned()
    }

    /// Starts a program and lets it go on; its identifier.
    pub(crate) fn start(&self, body: &Value) -> String {
        let prefer = [("prefer", "respond-async")];
        let answer =
            self.place
                .server
                .ask(&self.place.key, "POST", &self.path("/exec"), &prefer, body);
        assert!(matches!(answer.status, 201 | 202), "{}", answer.text());
        answer.json()["exec_id"]
            .as_str()
            .expect("an identifier")
            .to_owned()
    }

    /// Starts a script, and waits until it has said `ready`.
    pub(crate) fn ready(&self, script: &str) -> String {
        let exec = self.start(&json!({ "command": ["sh", "-c", script] }));
        self.until_said(&exec, "ready");
        exec
    }

    pub(crate) fn until_said(&self, exec: &str, word: &str) {
        let (mut said, mut at) = (Vec::new(), 0);
        while !String::from_utf8_lossy(&said).contains(word) {
            let piece = self.get(&format!("/exec/{exec}/output?offset={at}&wait=30"));
            assert_eq!(piece.status, 200, "{}", piece.text());
            assert_ne!(
                piece.header("airlock-complete"),
                Some("true"),
                "it ended before it said {word}"
            );
            at += piece.body.len();
            said.extend(piece.body);
        }
    }

    /// The result of a program that ends by itself.
    pub(crate) fn result(&self, exec: &str) -> Value {
        let mut shown = Value::Null;
        self.place.server.until("its end", || {
            shown = self.get(&format!("/exec/{exec}")).json();
            shown["status"] != "running"
        });
        shown
    }
}

/// The processes of this machine with this word among their arguments.
pub(crate) fn alive(word: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |number: &i32| {
        let words = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        words
            .split(|byte| *byte == 0)
            .any(|one| one == word.as_bytes())
    };
    numbers.filter(has).filter_map(Pid::from_raw).collect()
}

/// A number that no other process of this machine sleeps for.
pub(crate) fn own_seconds() -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("9{:07}{count:03}", std::process::id())
}
