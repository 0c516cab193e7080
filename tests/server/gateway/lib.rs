//! What the tests of the gateway share: `airlock serve` on a state folder of its own, and a client that sees bytes.
//!
//! ```no_run
//! let server = gateway_tests::Server::new();
//! let answer = server.post("/v1/runs", &serde_json::json!({"command": ["echo", "hello"]}));
//! assert_eq!((answer.status, answer.json()["stdout"].as_str()), (200, Some("hello\n")));
//! ```

mod client;
pub mod receiver;
pub mod small_disk;
pub mod socket;

pub use client::{Answer, Client, Stream};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// How long a server that is told to end may take for that.
const LONGEST_END: Duration = Duration::from_secs(60);

/// A folder of its own; gone with the test.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty one, open to all: whoever runs inside is a stranger.
    #[allow(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "airlock-gateway-{}.{}",
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
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A test that failed says so by itself; what is left lies in the temporary folder.
        _ = fs::remove_dir_all(&self.0);
    }
}

/// `airlock serve`, which ends with its handle.
#[derive(Debug)]
pub struct Server {
    child: Option<Child>,
    /// Where it listens.
    pub client: Client,
    /// The admin's key.
    pub admin: String,
    /// Its process.
    pub pid: u32,
    /// Everything that it writes.
    pub folder: Folder,
}

/// Among the options of [`serve`]: with its log.
pub const LOUD: &str = "loud";

/// `airlock serve` on the folder's state with this configuration, not started yet.
pub fn serve(folder: &Folder, configuration: &str, options: &[&str]) -> Command {
    fs::write(folder.at("config.toml"), configuration).expect("a configuration");
    let mut command = Command::new("/usr/bin/env");
    command
        .arg("--default-signal")
        .arg(cli::airlock())
        .args(["serve", "--json"]);
    if !options.contains(&LOUD) {
        command.arg("--quiet");
    }
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    if !options.contains(&"--pool") {
        command.args(["--pool", "0"]);
    }
    command
        .arg("--config")
        .arg(folder.at("config.toml"))
        .arg("--state")
        .arg(folder.at("state"));
    command
        .args(options.iter().filter(|option| **option != LOUD))
        .current_dir(&folder.0)
        .env_clear()
        .stdin(Stdio::null());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Server {
    /// With an empty configuration.
    #[allow(clippy::new_without_default, reason = "it starts a process")]
    pub fn new() -> Server {
        Server::with("", &[])
    }

    /// With this configuration and these options.
    pub fn with(configuration: &str, options: &[&str]) -> Server {
        Server::on(Folder::new(), configuration, options, None)
    }

    /// On a folder that may have been used before; then the admin's key is known.
    pub fn on(
        folder: Folder,
        configuration: &str,
        options: &[&str],
        admin: Option<String>,
    ) -> Server {
        let command = serve(&folder, configuration, options);
        Server::started(command, folder, admin)
    }

    /// By a command like [`serve`]'s on this folder.
    pub fn started(mut command: Command, folder: Folder, admin: Option<String>) -> Server {
        let mut child = command.spawn().expect("airlock starts");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("its output is ours");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it says where it listens");
        if line.is_empty() || line.contains("\"error\"") {
            let output = child.wait_with_output().expect("it has ended");
            panic!(
                "airlock serve did not start: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let told: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("JSON: {line}"));
        let listen = told["listen"].as_str().expect("an address");
        let client = match listen.strip_prefix("unix:") {
            Some(path) => Client::Unix(path.into()),
            None => Client::Tcp(address(listen)),
        };
        let made = told["admin_key"].as_str().map(str::to_owned);
        let admin = admin.or(made).unwrap_or_default();
        Server {
            client,
            admin,
            pid: child.id(),
            child: Some(child),
            folder,
        }
    }

    /// Ends it however it ends, and starts another on the same state.
    pub fn restart(mut self, signal: Signal, configuration: &str) -> Server {
        self.end(signal);
        let (folder, admin) = (
            std::mem::replace(&mut self.folder, Folder(PathBuf::new())),
            self.admin.clone(),
        );
        Server::on(folder, configuration, &[], Some(admin))
    }

    /// Ends it by a signal; how it ended, and what it said on stderr.
    pub fn end(&mut self, signal: Signal) -> (ExitStatus, String) {
        let mut child = self.child.take().expect("it runs");
        kill_process(Pid::from_child(&child), signal).expect("it is ours");
        let mut stderr = child.stderr.take().expect("it is ours");
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut said = String::new();
            tell.send(stderr.read_to_string(&mut said).map(|_| said))
        });
        let Ok(said) = told.recv_timeout(LONGEST_END) else {
            child.kill().expect("it is ours");
            child.wait().expect("it ends");
            panic!("the server did not end within {LONGEST_END:?}");
        };
        (
            child.wait().expect("it ends"),
            said.expect("it writes text"),
        )
    }

    /// Asks with this key, or with none if it is empty, and these headers; the body is left away if it is null.
    pub fn ask(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let bytes = self.request(key, method, path, headers, body);
        self.client.open(&bytes).answer()
    }

    /// The bytes of such a request.
    pub fn request(
        &self,
        key: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Vec<u8> {
        let bearer = format!("Bearer {key}");
        let mut all = vec![("authorization", bearer.as_str())];
        all.retain(|_| !key.is_empty());
        all.extend(headers);
        self.client.request(method, path, &all, body)
    }

    /// Asks as the admin.
    pub fn get(&self, path: &str) -> Answer {
        self.ask(&self.admin, "GET", path, &[], &Value::Null)
    }

    /// Asks as the admin.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask(&self.admin, "POST", path, &[], body)
    }

    /// Asks as the admin.
    pub fn delete(&self, path: &str) -> Answer {
        self.ask(&self.admin, "DELETE", path, &[], &Value::Null)
    }

    /// A new key with these scopes.
    pub fn key(&self, scopes: &[&str]) -> String {
        let answer = self.post("/v1/keys", &json!({ "name": "test", "scopes": scopes }));
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()["token"].as_str().expect("a token").to_owned()
    }

    /// Waits until this holds; panics with the words if it never does.
    pub fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < end, "{what} does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What it says instead of starting; panics if it starts.
pub fn refusal(command: &mut Command) -> String {
    let mut child = command.spawn().expect("airlock starts");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("its output is ours");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("it writes text");
    if line.contains("\"listen\"") {
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

fn address(listen: &str) -> SocketAddr {
    let (_, address) = listen.split_once("://").expect("a scheme");
    address.parse().expect("an address")
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // In order, so that nothing is left; it may have ended by itself.
            _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let end = Instant::now() + Duration::from_secs(15);
            while child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            _ = child.kill();
            _ = child.wait();
        }
    }
}
