//! What the robustness tests share: a bench with a state folder of its own, runs of the real binary, a harmless
//! neighbour that must not notice anything, and eyes for what is left on the host.
//!
//! Settings: `AIRLOCK_BIN` (the binary; else the one beside the test), `AIRLOCK_FULL=1` (full sizes),
//! `AIRLOCK_KILLS`, `AIRLOCK_SEED`.

pub mod host;
pub mod neighbour;
pub mod orphans;
pub mod outside;
pub mod random;

pub use neighbour::Neighbour;

use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// How long anything that must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Whether to use full sizes.
pub fn full() -> bool {
    std::env::var_os("AIRLOCK_FULL").is_some_and(|value| value == "1")
}

/// Looks again and again until `found` has an answer; fails with `what` when patience is over.
pub fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = found() {
            return answer;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The folder as a workspace that is shared live: what its protections promise is about that.
pub fn live(folder: &Path) -> String {
    format!("{}:live", folder.display())
}

/// The binary under test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("AIRLOCK_BIN") {
        let path = PathBuf::from(path);
        assert!(
            path.is_file(),
            "AIRLOCK_BIN names `{}`, which is no file",
            path.display()
        );
        return path;
    }
    let test = std::env::current_exe().expect("this test has a path");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in target/PROFILE/deps");
    let path = profile.join("airlock");
    assert!(
        path.is_file(),
        "no `{}`: run `cargo build -p airlock` first, or set AIRLOCK_BIN",
        path.display()
    );
    path
}

/// A folder of its own for one test, removed when the test is over.
#[derive(Debug)]
pub struct Bench {
    /// Everything of this test lies below it.
    pub folder: PathBuf,
    /// The state folder of its runs.
    pub state: PathBuf,
    names: AtomicU64,
}

impl Bench {
    /// A fresh one.
    pub fn new(name: &str) -> Bench {
        let folder =
            std::env::temp_dir().join(format!("airlock-abuse-{name}-{}", std::process::id()));
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&folder)
            .expect("a fresh folder for the test");
        Bench {
            state: folder.join("state"),
            folder,
            names: AtomicU64::new(0),
        }
    }

    /// An id that no other run on this machine has.
    pub fn run_id(&self, what: &str) -> String {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        format!(
            "abuse-{what}-{}-{number}-{:x}",
            std::process::id(),
            random::fresh_seed()
        )
    }

    /// A fresh folder that everybody may write, as a workspace or for mounts.
    pub fn workspace(&self, name: &str) -> PathBuf {
        let path = self.folder.join(name);
        fs::create_dir(&path).expect("a fresh workspace");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        path
    }

    /// `airlock SUBCOMMAND --state STATE`, with nothing on standard input.
    pub fn airlock(&self, subcommand: &str) -> Command {
        let mut command = Command::new(binary());
        command
            .arg(subcommand)
            .arg("--state")
            .arg(&self.state)
            .stdin(Stdio::null());
        command
            .env_remove("AIRLOCK_CONFIG")
            .current_dir(&self.folder);
        command
    }

    /// Runs a command to its end, with `--json`.
    pub fn run(&self, options: &[&str], command: &[&str]) -> Outcome {
        let mut airlock = self.airlock("run");
        airlock.arg("--json").args(options).arg("--").args(command);
        Outcome::of(&mut airlock)
    }

    /// The same beside a neighbour, who must not notice.
    pub fn attack(&self, options: &[&str], command: &[&str]) -> Outcome {
        let neighbour = Neighbour::move_in(self);
        let outcome = self.run(options, command);
        neighbour.move_out();
        outcome
    }

    /// Sweeps; what it says.
    pub fn sweep(&self) -> Value {
        let done = self
            .airlock("sweep")
            .arg("--json")
            .output()
            .expect("airlock starts");
        serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    /// Whether a cgroup holds this limit here. If not, the test says so: it cannot run on this host.
    pub fn has_cgroup(&self, limit: &str) -> bool {
        let held = self.run(&["--cpus", "1"], &["true"]).json["enforced_by"][limit].clone();
        let cgroup = held.as_str().is_some_and(|name| name.starts_with("cgroup"));
        if !cgroup {
            assert!(
                std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
                "prerequisite: a cgroup for `{limit}`"
            );
            println!("NOT RUN: `{limit}` is held by {held} here, not by a cgroup");
        }
        cgroup
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.folder).expect("the test's own folder can be removed");
        }
    }
}

/// How a run with `--json` ended.
#[derive(Debug)]
pub struct Outcome {
    /// The exit status of `airlock`.
    pub exit: Option<i32>,
    /// The result.
    pub json: Value,
}

impl Outcome {
    /// Carries the command out.
    pub fn of(command: &mut Command) -> Outcome {
        let done = command.output().expect("airlock starts");
        Outcome::read(done.status.code(), &done.stdout, &done.stderr)
    }

    /// From what was printed.
    pub fn read(exit: Option<i32>, stdout: &[u8], stderr: &[u8]) -> Outcome {
        let json = serde_json::from_slice(stdout).unwrap_or_else(|error| {
            let (out, err) = (
                String::from_utf8_lossy(stdout),
                String::from_utf8_lossy(stderr),
            );
            panic!("no JSON result ({error}); exit {exit:?}; stdout `{out}`; stderr `{err}`")
        });
        Outcome { exit, json }
    }

    /// Its `status`.
    pub fn status(&self) -> &str {
        self.json["status"].as_str().unwrap_or_default()
    }

    /// Its `limits_hit`.
    pub fn limits(&self) -> Vec<&str> {
        let list = self.json["limits_hit"].as_array();
        list.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }

    /// Its `stdout`.
    pub fn stdout(&self) -> &str {
        self.json["stdout"].as_str().unwrap_or_default()
    }

    /// A number somewhere in it.
    pub fn number(&self, pointer: &str) -> u64 {
        self.json
            .pointer(pointer)
            .and_then(Value::as_u64)
            .unwrap_or_else(|| panic!("no {pointer}: {self:?}"))
    }

    /// Compares what a test is about, all at once.
    #[track_caller]
    pub fn expect(&self, status: &str, exit: i32, limits: &[&str]) -> &Outcome {
        assert_eq!(
            (self.status(), self.exit, &self.limits()[..]),
            (status, Some(exit), limits),
            "{self:#?}"
        );
        self
    }
}
