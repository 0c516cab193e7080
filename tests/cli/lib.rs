//! What the tests of the command share: the built binary, and a small world of its own for each test.

pub mod git_repository;
pub mod ground;
pub mod login;
pub mod source_files;

use serde_json::Value;
use snapbox::{Assert, Data, IntoData};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The folder of the whole repository.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .nth(2)
        .expect("tests/cli lies two folders deep")
        .to_owned()
}

/// The command under test, beside which the programs that it starts lie: `$AIRLOCK_BIN`, else built anew, since cargo does not know that we need it.
pub fn airlock() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| std::env::var_os("AIRLOCK_BIN").map_or_else(build, PathBuf::from))
}

/// With the programs that it starts from its own folder.
fn build() -> PathBuf {
    let packages = ["airlock", "airlock-escape", "airlock-bench"];
    built(
        &packages.map(|name| ["--package", name]).concat(),
        "airlock",
    )
}

/// Builds what these options choose, and says where the program of that name is.
pub fn built(options: &[&str], name: &str) -> PathBuf {
    let mut cargo = cargo();
    cargo
        .args(["build", "--quiet", "--locked", "--message-format", "json"])
        .args(options);
    let built = cargo
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo starts");
    assert!(built.status.success(), "`{name}` could not be built");
    let made = |line: &str| {
        serde_json::from_str::<Value>(line).ok()?["executable"]
            .as_str()
            .map(PathBuf::from)
    };
    let text = String::from_utf8(built.stdout).expect("cargo writes UTF-8");
    text.lines()
        .filter_map(made)
        .find(|path| path.ends_with(name))
        .expect("cargo names the program")
}

/// The cargo that runs these tests, at the root of the repository.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(repository());
    cargo
}

/// A folder with everything a command could touch; gone with the test.
#[derive(Debug)]
pub struct World {
    folder: PathBuf,
}

/// What became of a command.
#[derive(Debug)]
pub struct Answer {
    /// Its exit status; none if a signal ended it.
    pub status: Option<i32>,
    /// What it said, with paths of the world replaced and without what only this host or a fresh state folder makes it say.
    pub stdout: String,
    /// The same for stderr.
    pub stderr: String,
}

impl World {
    /// An empty one: a home, a folder to stand in, and a state folder that does not exist yet.
    #[allow(clippy::new_without_default, reason = "it makes folders")]
    pub fn new() -> World {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "airlock-cli-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let world = World {
            folder: std::env::temp_dir().join(name),
        };
        for folder in ["", "home", "here"] {
            // Open to all, whatever the umask: started by root, the program inside is a stranger.
            let path = world.folder.join(folder);
            fs::DirBuilder::new()
                .mode(0o755)
                .create(&path)
                .expect("a folder for the test");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its rights");
        }
        world
    }

    /// A path below the folder the command stands in.
    pub fn here(&self, name: &str) -> PathBuf {
        self.folder.join("here").join(name)
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Writes a file below the folder the command stands in.
    pub fn write(&self, name: &str, text: &str) -> &World {
        let path = self.here(name);
        fs::create_dir_all(path.parent().expect("it is below a folder")).expect("its folder");
        fs::write(path, text).expect("a file for the test");
        self
    }

    /// `airlock` with these arguments, not started yet, in this world and nothing of the caller's.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_with_signals("--default-signal", arguments)
    }

    /// The same, with what `env` does to signals first: a test may itself run where some are ignored.
    pub fn command_with_signals(&self, signals: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/env");
        command.arg(signals).arg(airlock()).args(arguments);
        command.current_dir(self.here("")).stdin(Stdio::null());
        command.env_clear().envs(self.variables());
        command
    }

    /// The environment of every command: no configuration or state of the caller's can reach it.
    pub fn variables(&self) -> Vec<(&'static str, PathBuf)> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        vec![
            ("PATH", path.into()),
            ("HOME", self.folder.join("home")),
            ("AIRLOCK_STATE", self.state()),
        ]
    }

    /// Runs `airlock` with these arguments.
    pub fn run(&self, arguments: &[&str]) -> Answer {
        self.answer(&self.command(arguments).output().expect("airlock starts"))
    }

    /// Runs a text as a user would type it, with `airlock` on the path; any part that fails fails the whole.
    pub fn shell(&self, text: &str) -> Output {
        let folder = airlock().parent().expect("a binary lies in a folder");
        let mut shell = Command::new("bash");
        shell
            .args(["-euxo", "pipefail", "-c", text])
            .current_dir(self.here(""))
            .stdin(Stdio::null());
        shell.env_clear().envs(self.variables());
        let path = std::env::var("PATH").expect("a search path");
        shell
            .env("PATH", format!("{}:{path}", folder.display()))
            .output()
            .expect("bash starts")
    }

    /// What a command said, with the paths of this world replaced by `[WORLD]`.
    pub fn answer(&self, output: &Output) -> Answer {
        let folder = self.folder.to_str().expect("a temporary folder is text");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(folder, "[WORLD]");
        let stderr = text(&output.stderr);
        let of_host = |line: &&str| line.strip_prefix("airlock: note: ").is_some_and(is_of_host);
        let stderr = stderr
            .split_inclusive('\n')
            .filter(|line| !of_host(line))
            .collect();
        Answer {
            status: output.status.code(),
            stdout: text(&output.stdout),
            stderr,
        }
    }

    /// Every path in this world with what it holds: two that are equal mean that nothing was touched.
    pub fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut found, mut left) = (BTreeMap::new(), vec![self.folder.clone()]);
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
            found.insert(path, bytes);
        }
        found
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A test that failed says so by itself; what is left lies in the temporary folder.
        _ = fs::remove_dir_all(&self.folder);
    }
}

impl Answer {
    /// The one JSON value on stdout, which must be a single line.
    pub fn json(&self) -> Value {
        assert_eq!(
            self.stdout.matches('\n').count(),
            1,
            "one line of JSON: {}",
            self.stdout
        );
        serde_json::from_str(&self.stdout).expect("JSON on stdout")
    }
}

/// Claims that a text is as written down, where `[..]` and a line `...` stand for anything. With
/// `SNAPSHOTS=overwrite` what is written down is replaced instead: read the difference before you believe it.
#[track_caller]
pub fn same(actual: impl Into<String>, written: impl IntoData) {
    let assert = Assert::new().action_env("SNAPSHOTS").normalize_paths(false);
    assert.eq(actual.into(), written.into_data());
}

/// A text written down in a file of this folder.
pub fn written(name: &str) -> Data {
    Data::read_from(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join(name),
        Some(snapbox::data::DataFormat::Text),
    )
}

/// The value as text, with what differs from run to run and host to host replaced.
pub fn shown(mut value: Value) -> String {
    replace(&mut value);
    serde_json::to_string_pretty(&value).expect("a value is JSON") + "\n"
}

fn replace(value: &mut Value) {
    const TIMES: [&str; 3] = ["started_at", "ended_at", "kept_at"];
    const COUNTS: [&str; 4] = ["duration_ms", "cpu_ms", "memory_peak_bytes", "pids_peak"];
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = name.as_str();
                match field {
                    Value::String(text) if TIMES.contains(&name) && is_time(text) => {
                        *field = "[TIME]".into()
                    }
                    // Nothing counts processes where there is no cgroup.
                    Value::Null if name == "pids_peak" => *field = "[NUMBER]".into(),
                    Value::Array(notes) if name == "notes" => {
                        notes.retain(|note| !note.as_str().is_some_and(is_of_host));
                    }
                    Value::Number(_) if COUNTS.contains(&name) => *field = "[NUMBER]".into(),
                    Value::String(text) if name == "run_id" && is_fresh_id(text) => {
                        *field = "[ID]".into()
                    }
                    Value::Array(names) if name == "barriers" && !names.is_empty() => {
                        *field = "[BARRIERS]".into()
                    }
                    Value::Object(by) if name == "enforced_by" && by.len() == 3 => {
                        *field = "[ENFORCERS]".into();
                    }
                    other => replace(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(replace),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// What every run says where an ordinary user has no cgroup of his own, and the first one of a state folder.
fn is_of_host(note: &str) -> bool {
    let is_first =
        note.starts_with("changes reach `") && note.trim_end().ends_with("shares at once");
    let has_no_cgroup = note.starts_with("no cgroup for ");
    is_first || (has_no_cgroup && note.contains("`airlock doctor` says why"))
}

/// `2026-01-01T00:00:00.000Z`, as the contract writes it.
fn is_time(text: &str) -> bool {
    let shape: String = text
        .chars()
        .map(|c| if c.is_ascii_digit() { '9' } else { c })
        .collect();
    shape == "9999-99-99T99:99:99.999Z"
}

/// A ULID.
fn is_fresh_id(text: &str) -> bool {
    text.len() == 26
        && text.starts_with('0')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}
