//! `airlock worker sam`, configured as in a deployment: by its environment.

use crate::{
    NAMESPACE,
    place::{Folder, free_port, keep, start, until},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus},
    sync::atomic::{AtomicU32, Ordering},
};

/// The environment of a worker.
pub type Variables = BTreeMap<String, String>;

/// What every worker of these tests is told.
pub fn variables(folder: &Folder, broker: &str) -> Variables {
    let path = |name: &str| folder.at(name).display().to_string();
    let all = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin".to_owned()),
        ("HOME", path("")),
        ("AIRLOCK_STATE", path("state")),
        ("SAM_NAMESPACE", NAMESPACE.to_owned()),
        ("SAM_WORKER_ID", "worker-of-tests".to_owned()),
        ("SAM_TRANSPORT", broker.to_owned()),
        ("SOLACE_RECONNECT_RETRIES", "0".to_owned()),
        ("SOLACE_RECONNECT_DELAY_MS", "100".to_owned()),
        ("SAM_TOOLS_DIR", path("tools")),
        ("MANIFEST_PATH", path("tools/manifest.yaml")),
        ("TOOLS_PYTHON_DIR", path("tools/python")),
        ("SANDBOX_PYTHON_BIN", "/usr/bin/python3".to_owned()),
        ("SANDBOX_WORK_DIR", path("work")),
        ("ARTIFACT_SERVICE_TYPE", "filesystem".to_owned()),
        ("ARTIFACT_BASE_PATH", path("artifacts")),
        ("HEALTH_PORT", free_port().to_string()),
    ];
    fs::create_dir_all(folder.at("artifacts")).expect("a folder for artifacts");
    fs::create_dir_all(folder.at("work")).expect("a folder for work");
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Tools may ask a model of this provider, which speaks as OpenAI does and wants this key.
pub fn with_model(variables: &mut Variables, base: &str, secret: &str) {
    let home = variables["HOME"].trim_end_matches('/').to_owned();
    let key = format!("{home}/provider.key");
    fs::write(&key, secret).expect("a key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its owner's alone");
    let config = format!(
        "[provider.test]\ndialect = \"openai\"\nbase = \"{base}\"\nkey = {{ file = \"{key}\" }}\n\
         allow_plain_http = true\nallow_private = true\n"
    );
    fs::write(format!("{home}/config.toml"), config).expect("a configuration");
    for (name, value) in [
        ("AIRLOCK_CONFIG", format!("{home}/config.toml")),
        ("SAM_LLM_PROVIDER", "test".to_owned()),
        ("SAM_LLM_MODEL", "gpt-4o-mini".to_owned()),
    ] {
        variables.insert(name.to_owned(), value);
    }
}

/// The worker, which ends with its handle.
#[derive(Debug)]
pub struct Sam {
    child: Option<Child>,
    /// Its environment.
    pub variables: Variables,
    place: PathBuf,
    log: PathBuf,
}

impl Sam {
    /// Comes back when it is ready.
    pub fn start(folder: &Folder, variables: Variables) -> Sam {
        let sam = Sam::begin(folder, variables);
        sam.await_ready();
        sam
    }

    /// Does not wait for anything.
    pub fn begin(folder: &Folder, variables: Variables) -> Sam {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let log = folder.at(&format!(
            "worker-{}.log",
            NEXT.fetch_add(1, Ordering::Relaxed)
        ));
        let mut sam = Sam {
            child: None,
            variables,
            place: folder.path().to_owned(),
            log,
        };
        sam.run();
        sam
    }

    fn run(&mut self) {
        let mut command = Command::new(cli::airlock());
        command
            .args(["worker", "sam"])
            .envs(&self.variables)
            .current_dir(&self.place);
        let mut child = start("TERM", &command);
        keep(child.stderr.take().expect("it is ours"), &self.log);
        keep(child.stdout.take().expect("it is ours"), &self.log);
        self.child = Some(child);
    }

    /// In its place, as it was; comes back when it is ready.
    pub fn start_again(&mut self) {
        self.run();
        self.await_ready();
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("it runs"))
    }

    /// Waits until it says that it is ready.
    pub fn await_ready(&self) {
        until("the worker is ready", || {
            assert!(is_alive(self.pid()), "the worker ended: {}", self.log());
            self.get("/readyz")
                .is_some_and(|(status, _)| status == 200)
                .then_some(())
        });
    }

    /// What its health endpoint answers; none if nobody listens.
    pub fn get(&self, path: &str) -> Option<(u16, String)> {
        let port = self.variables["HEALTH_PORT"].parse().expect("a port");
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    /// All that it said.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until it has said this.
    pub fn await_log(&self, words: &str) {
        until(&format!("`{words}` in the log"), || {
            self.log().contains(words).then_some(())
        });
    }

    /// By SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is ours");
    }

    /// Waits until it has ended by itself.
    pub fn await_end(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let end = until("the end of the worker", || {
            child.try_wait().expect("it is ours")
        });
        // What it said last is on its way into the file.
        std::thread::yield_now();
        end
    }

    /// By SIGTERM, in order.
    pub fn end(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.await_end()
    }
}

/// Whether a process lives and is no corpse.
fn is_alive(pid: Pid) -> bool {
    let stat =
        fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

impl Drop for Sam {
    fn drop(&mut self) {
        if self.child.is_some() && !std::thread::panicking() {
            self.end();
        } else if let Some(mut child) = self.child.take() {
            _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let end = std::time::Instant::now() + std::time::Duration::from_secs(15);
            while child.try_wait().is_ok_and(|ended| ended.is_none())
                && std::time::Instant::now() < end
            {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            _ = child.kill();
            _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let from = log.len().saturating_sub(4000);
            let from = (from..=log.len())
                .find(|at| log.is_char_boundary(*at))
                .unwrap_or(0);
            eprintln!("the worker said, at last:\n{}", &log[from..]);
        }
    }
}
