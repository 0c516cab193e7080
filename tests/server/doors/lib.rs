//! What the tests of the doors share: a provider, `airlock proxy` before it with a state folder of its own, sessions, and
//! a client that sees bytes.
//!
//! ```no_run
//! let house = doors_tests::House::new();
//! let session = house.register(&serde_json::json!({"provider": "openai"}));
//! let answer = house.call(&session.token, "/v1/chat/completions", &doors_tests::chat("m"));
//! assert_eq!(answer.status, 200);
//! ```

mod client;
pub mod money;

pub use client::{Answer, Door, Ending, Stream, request};

use provider::{Provider, Settings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// The key that the provider knows, and nobody inside may.
pub const REAL_KEY: &str = "sk-canary-4f1e7a";
/// Another one that the provider knows: a session's own.
pub const OWN_KEY: &str = "sk-canary-own-93";

/// A folder of its own; gone with the test.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty one, open to all: whoever serves may be somebody else.
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "airlock-doors-{}.{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&path)
            .expect("a folder for the test");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its rights");
        Folder(path)
    }

    /// A path in it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Every file below it that has these bytes in it, or in its name.
    pub fn holding(&self, needle: &str) -> Vec<PathBuf> {
        let (mut found, mut left) = (Vec::new(), vec![self.0.clone()]);
        while let Some(path) = left.pop() {
            let kind = fs::symlink_metadata(&path)
                .expect("it was listed")
                .file_type();
            let bytes = if kind.is_file() {
                fs::read(&path).expect("it can be read")
            } else {
                Vec::new()
            };
            if kind.is_dir() {
                let entries = fs::read_dir(&path).expect("it can be listed");
                left.extend(entries.map(|entry| entry.expect("it can be listed").path()));
            }
            let named = path.to_string_lossy().contains(needle);
            if named
                || bytes
                    .windows(needle.len())
                    .any(|part| part == needle.as_bytes())
            {
                found.push(path);
            }
        }
        found
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A test that failed says so by itself; what is left lies in the temporary folder.
        _ = fs::remove_dir_all(&self.0);
    }
}

/// A provider and the doors before it.
#[derive(Debug)]
pub struct House {
    /// What stands behind the doors.
    pub provider: Provider,
    /// The doors.
    pub proxy: Proxy,
    /// Everything that they write.
    pub folder: Folder,
}

/// A session, as its registration was answered.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Session {
    pub id: String,
    pub token: String,
    pub socket: Option<PathBuf>,
    pub expires_at: Option<String>,
}

/// `airlock proxy`, which ends with its handle.
#[derive(Debug)]
pub struct Proxy {
    child: Option<Child>,
    /// Where sessions call.
    pub listen: Door,
    /// Where the admin does.
    pub admin: Door,
    /// Where the admin does by TCP.
    pub admin_listen: Option<Door>,
    /// Its process.
    pub pid: u32,
}

/// The configuration of all tests: this provider in every dialect, as `openai`, `claude`, `gemini` and `ollama`, and as the
/// node's own model server.
pub fn configuration(provider: &Provider, folder: &Folder) -> String {
    let (base, key) = (provider.base(), folder.at("key"));
    fs::write(&key, REAL_KEY).expect("a key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its rights");
    let one = |(name, dialect): (&str, &str)| {
        format!(
            "[provider.{name}]\ndialect = \"{dialect}\"\nbase = \"{base}\"\nkey = {{ file = \"{}\" }}\n\
             allow_plain_http = true\nallow_private = true\n",
            key.display()
        )
    };
    let all = [
        ("openai", "openai"),
        ("claude", "anthropic"),
        ("gemini", "gemini"),
        ("ollama", "ollama"),
    ];
    let providers: String = all.map(one).concat();
    format!(
        "{providers}[inference]\nbase = \"{base}\"\n[prices.\"*\"]\ninput = 1.0\noutput = 2.0\n"
    )
}

/// A chat request.
pub fn chat(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "hello" }] })
}

/// The same, to be streamed.
pub fn streamed_chat(model: &str) -> Value {
    json!({ "model": model, "stream": true, "messages": [{ "role": "user", "content": "hello" }] })
}

impl House {
    /// With the configuration of all tests.
    #[allow(clippy::new_without_default, reason = "it starts processes")]
    pub fn new() -> House {
        House::with("", &[])
    }

    /// With more configuration, and more options.
    pub fn with(more: &str, options: &[&str]) -> House {
        House::shaped(|text| text + more, options)
    }

    /// With these lines in the table of every provider.
    pub fn with_patience(lines: &str) -> House {
        let last = "allow_private = true\n";
        House::shaped(|text| text.replace(last, &format!("{last}{lines}\n")), &[])
    }

    /// With the configuration of all tests, shaped by this one, and more options.
    pub fn shaped(shape: impl FnOnce(String) -> String, options: &[&str]) -> House {
        let keys = vec![REAL_KEY.to_owned(), OWN_KEY.to_owned()];
        let provider = Provider::start(Settings {
            keys,
            ..Settings::default()
        });
        let folder = Folder::new();
        let text = shape(configuration(&provider, &folder));
        fs::write(folder.at("config.toml"), text).expect("a configuration");
        let proxy = Proxy::start(&mut proxy(&folder, options));
        House {
            provider,
            proxy,
            folder,
        }
    }

    /// Ends the proxy however it ends, and starts another on the same state.
    pub fn restart(&mut self, signal: Signal) {
        self.proxy.end(signal);
        self.proxy = Proxy::start(&mut proxy(&self.folder, &[]));
    }

    /// Asks the admin.
    pub fn admin(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.proxy.admin.ask(&request(method, path, &[], body))
    }

    /// Registers a session; panics with the answer if that is refused.
    pub fn register(&self, order: &Value) -> Session {
        let answer = self.admin("POST", "/v1/sessions", order);
        assert_eq!(answer.status, 201, "{}", answer.text());
        let told = answer.json();
        let text = |name: &str| told[name].as_str().map(str::to_owned);
        Session {
            id: text("id").expect("an id"),
            token: text("token").expect("a token"),
            socket: text("socket").map(PathBuf::from),
            expires_at: text("expires_at"),
        }
    }

    /// Calls a model with this token, as OpenAI's clients do.
    pub fn call(&self, token: &str, path: &str, body: &Value) -> Answer {
        let bearer = format!("Bearer {token}");
        self.proxy
            .listen
            .ask(&request("POST", path, &[("authorization", &bearer)], body))
    }

    /// The status of a plain call with this token.
    pub fn status(&self, token: &str) -> u16 {
        self.call(token, "/v1/chat/completions", &chat("m")).status
    }

    /// Sends these bytes with the token wherever they say `TOKEN`, and reads until the door hangs up.
    pub fn raw(&self, token: &str, bytes: &str) -> Answer {
        self.proxy
            .listen
            .open(bytes.replace("TOKEN", token).as_bytes())
            .finish()
    }

    /// The records of the ledger of this kind.
    pub fn ledger(&self, kind: &str) -> Vec<Value> {
        let text =
            fs::read_to_string(self.folder.at("state/ledger/owner.jsonl")).expect("a ledger");
        // Of the last the reader may see a part while it is written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let records = whole
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("a record is JSON"));
        records.filter(|record| record["kind"] == kind).collect()
    }

    /// Waits until the ledger has so many settled calls: they are written behind the answer's last byte.
    pub fn await_settled(&self, count: usize) -> Vec<Value> {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let settled = self.ledger("settle");
            if settled.len() >= count {
                return settled;
            }
            assert!(
                std::time::Instant::now() < until,
                "{count} calls are to be settled: {settled:#?}"
            );
            std::thread::yield_now();
        }
    }

    /// Begins a stream with this token and leaves it open.
    pub fn stream(&self, token: &str, model: &str) -> Stream {
        let bearer = format!("Bearer {token}");
        let asked = request(
            "POST",
            "/v1/chat/completions",
            &[("authorization", &bearer), ("connection", "close")],
            &streamed_chat(model),
        );
        self.proxy.listen.open(&asked)
    }
}

/// `airlock proxy` on the folder's configuration and state, not started yet.
pub fn proxy(folder: &Folder, options: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command
        .arg("--default-signal")
        .arg(cli::airlock())
        .args(["proxy", "--json"]);
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command
        .arg("--config")
        .arg(folder.at("config.toml"))
        .arg("--state")
        .arg(folder.at("state"));
    command
        .args(options)
        .current_dir(&folder.0)
        .env_clear()
        .stdin(Stdio::null());
    command
}

impl Proxy {
    /// Starts it and waits until it says that it is ready.
    pub fn start(command: &mut Command) -> Proxy {
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.expect("airlock starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("its output is ours");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it says where it listens");
        if line.is_empty() {
            let output = child.wait_with_output().expect("it has ended");
            panic!(
                "airlock proxy did not start: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let told: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("JSON: {line}"));
        let tcp = |name: &str| {
            let address = told[name].as_str()?.strip_prefix("http://")?;
            Some(Door::Tcp(address.parse().expect("an address")))
        };
        let socket = told["admin_socket"].as_str().expect("a socket");
        Proxy {
            listen: tcp("listen").expect("an address"),
            admin: Door::Unix(PathBuf::from(socket)),
            admin_listen: tcp("admin_listen"),
            pid: child.id(),
            child: Some(child),
        }
    }

    /// What it says instead of starting; panics if it starts.
    pub fn refusal(command: &mut Command) -> String {
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.expect("airlock starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("its output is ours");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it writes text");
        if line.contains("admin_socket") {
            child.kill().expect("it is ours");
        }
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(
            output.status.code(),
            Some(125),
            "it did not refuse to start"
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Ends it by a signal; how it ended, and what it said on stderr.
    pub fn end(&mut self, signal: Signal) -> (ExitStatus, String) {
        let mut child = self.child.take().expect("it runs");
        kill_process(Pid::from_child(&child), signal).expect("it is ours");
        let mut said = String::new();
        child
            .stderr
            .as_mut()
            .expect("it is ours")
            .read_to_string(&mut said)
            .expect("it writes text");
        (child.wait().expect("it ends"), said)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// The kind of the last record of the service's ledger.
pub fn last_record(state: &Path) -> Value {
    let text = fs::read_to_string(state.join("ledger/owner.jsonl")).expect("a ledger");
    serde_json::from_str(text.lines().last().expect("records")).expect("a record is JSON")
}
