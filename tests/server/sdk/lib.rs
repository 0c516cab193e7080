//! What the tests of the doors from inside share: a provider that checks keys, `airlock run` before it as root or as an
//! ordinary user, and a program inside that asks, tells what it saw, and can be held while the host looks.
//!
//! ```no_run
//! let desk = sdk_tests::ProviderFixture::new();
//! let told = desk.inside(&["--llm=openai"], "tell(ask('GET', '/health')[0])");
//! assert_eq!(told, [200]);
//! ```

pub mod look;
pub mod sdk;

use doors_tests::{Folder, REAL_KEY};
use provider::{Provider, Settings};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
};

/// What every program inside begins with: `ask` and `tell`.
const ASK: &str = include_str!("ask.py");

/// Who starts runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Whoever runs the tests.
    Myself,
    /// This user and group, without any right of root's.
    Ordinary(u32, u32),
}

/// A provider, a configuration that names it in every dialect, and a state folder.
#[derive(Debug)]
pub struct ProviderFixture {
    /// What stands behind the doors; it serves whoever has [`REAL_KEY`].
    pub provider: Provider,
    /// Everything that runs write outside is in here.
    pub folder: Folder,
    who: Who,
    program: PathBuf,
}

/// A run that goes on while the test looks.
#[derive(Debug)]
pub struct Live {
    /// `airlock` itself.
    pub process: Child,
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

/// The configuration: every provider has the key from this place.
pub fn configuration(base: &str, key: &str) -> String {
    let one = |dialect: &str| {
        format!(
            "[provider.{dialect}]\ndialect = \"{dialect}\"\nbase = \"{base}\"\nkey = {key}\n\
             allow_plain_http = true\nallow_private = true\n"
        )
    };
    let providers = ["openai", "anthropic", "gemini", "ollama"]
        .map(one)
        .concat();
    format!(
        "{providers}[prices.\"*\"]\ninput = 1.0\noutput = 2.0\n[inference]\nbase = \"{base}\"\nkey = {key}\n"
    )
}

impl ProviderFixture {
    /// For whoever runs the tests, with the key in a file.
    #[allow(clippy::new_without_default, reason = "it starts a provider")]
    pub fn new() -> ProviderFixture {
        ProviderFixture::with("")
    }

    /// The same with more configuration; it begins within `[inference]`.
    pub fn with(more: &str) -> ProviderFixture {
        ProviderFixture::of(Who::Myself, more)
    }

    /// For somebody else.
    pub fn of(who: Who, more: &str) -> ProviderFixture {
        let provider = Provider::start(Settings {
            keys: vec![REAL_KEY.into()],
            ..Settings::default()
        });
        let folder = Folder::new();
        let base = provider.base();
        let program = cli::airlock().to_owned();
        let mut desk = ProviderFixture {
            provider,
            folder,
            who,
            program,
        };
        desk.give("key", REAL_KEY);
        let key = format!("{{ file = \"{}\" }}", desk.folder.at("key").display());
        desk.give("config.toml", &(configuration(&base, &key) + more));
        if let Who::Ordinary(user, group) = who {
            // Where the tests were built, they may not be let in.
            let own = desk.folder.at("airlock");
            fs::copy(&desk.program, &own).expect("a copy");
            desk.program = own;
            chown(&desk.folder.0, Some(user), Some(group)).expect("it is theirs");
        }
        desk
    }

    /// Another configuration, with the key from another place.
    pub fn key_from(&self, source: &str) {
        self.give("config.toml", &configuration(&self.provider.base(), source));
    }

    /// Writes a file that only whoever starts runs can read.
    pub fn give(&self, name: &str, text: &str) {
        let path = self.folder.at(name);
        fs::write(&path, text).expect("a file for the test");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its rights");
        if let Who::Ordinary(user, group) = self.who {
            chown(&path, Some(user), Some(group)).expect("it is theirs");
        }
    }

    /// Keeps a secret, as `airlock secrets set` does.
    pub fn keep(&self, name: &str, value: &str) {
        let mut command = self.command(&["secrets", "set", name]);
        let mut child = command
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("airlock starts");
        child
            .stdin
            .take()
            .expect("a pipe")
            .write_all(value.as_bytes())
            .expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        assert!(
            output.status.success() && !said(&output).contains(value),
            "{}",
            said(&output)
        );
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.folder.at("state")
    }

    /// `airlock` with these arguments, not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("/usr/bin/env");
        command
            .arg("--default-signal")
            .arg(&self.program)
            .args(arguments);
        command
            .arg0("env")
            .current_dir(&self.folder.0)
            .stdin(Stdio::null())
            .env_clear();
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.folder.0);
        command
            .env("AIRLOCK_STATE", self.state())
            .env("AIRLOCK_CONFIG", self.folder.at("config.toml"));
        if let Who::Ordinary(user, group) = self.who {
            command.uid(user).gid(group);
        }
        command
    }

    /// `airlock run` with these options, and a program in Python that can `ask` and `tell`.
    pub fn python(&self, options: &[&str], script: &str) -> Command {
        let text = format!("{ASK}\n{script}");
        let tail = ["--", "python3", "-c", &text];
        self.command(&[&["run"], options, &tail].concat())
    }

    /// The same in a container: the image has no Python, so that of this machine is shown there.
    pub fn contained(&self, engine: (&str, &str), options: &[&str], script: &str) -> Command {
        let ((backend, host), text) = (engine, format!("{ASK}\n{script}"));
        let libraries = format!(
            "LD_LIBRARY_PATH=/host/lib/{}-linux-gnu",
            std::env::consts::ARCH
        );
        let head = [
            "run",
            "--backend",
            backend,
            "--image",
            daemons::IMAGE,
            "--mount",
            "/usr:/host",
        ];
        let python = ["--env", "PYTHONHOME=/host", "--env", &libraries];
        let tail = ["--", "/host/bin/python3", "-c", &text];
        let mut command = self.command(&[&head[..], &python, options, &tail].concat());
        command.env("DOCKER_HOST", host).env("CONTAINER_HOST", host);
        command
    }

    /// Runs the script inside; everything that it told. It must have ended well.
    #[track_caller]
    pub fn inside(&self, options: &[&str], script: &str) -> Vec<Value> {
        lines(
            &self
                .python(options, script)
                .output()
                .expect("airlock starts"),
        )
    }

    /// The same as the one result in JSON, however it ended.
    #[track_caller]
    pub fn result(&self, options: &[&str], script: &str) -> Value {
        let output = self
            .python(&[&["--json"], options].concat(), script)
            .output()
            .expect("airlock starts");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)))
    }

    /// Starts the script inside and lets it go on; it can wait for a line of its standard input.
    pub fn begin(&self, options: &[&str], script: &str) -> Live {
        Live::start(self.python(&[options, &["--stdin"]].concat(), script))
    }
}

impl Live {
    /// Starts a command that was given `--stdin`.
    pub fn start(mut command: Command) -> Live {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().expect("airlock starts");
        let lines = BufReader::new(process.stdout.take().expect("it is ours"));
        Live {
            input: process.stdin.take(),
            lines,
            process,
        }
    }

    /// The next thing that it tells.
    pub fn told(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it tells");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("it tells no more: `{line}`"))
    }

    /// Lets a program go on that waits with `input()`.
    pub fn go_on(&mut self) {
        self.input
            .as_mut()
            .expect("it was not ended")
            .write_all(b"\n")
            .expect("it reads");
    }

    /// Waits for its end; what it said on stderr.
    pub fn end(mut self) -> String {
        drop(self.input.take());
        let output = self.process.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Both streams, for whoever asks why.
pub fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// What a program told, line by line.
#[track_caller]
pub fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", said(output));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}")))
        .collect()
}

/// The ordinary user of the tests; none, said aloud, where there is no root to become him.
pub fn ordinary(claim: &str) -> Option<Who> {
    let number = |kind: &str| {
        let told = Command::new("id")
            .arg(kind)
            .arg(daemons::user())
            .output()
            .expect("id starts")
            .stdout;
        String::from_utf8_lossy(&told).trim().parse().ok()
    };
    let root = rustix::process::geteuid().is_root();
    let found = number("-u").zip(number("-g")).filter(|_| root);
    lacking(
        found.is_none(),
        &format!("root and the user `{}`", daemons::user()),
        claim,
    );
    found.map(|(user, group)| Who::Ordinary(user, group))
}

/// Says what cannot be shown, or fails, where everything must be.
pub fn lacking(missing: bool, what: &str, claim: &str) {
    assert!(
        !missing || std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
        "prerequisite: {what}, to show that {claim}"
    );
    if missing {
        eprintln!("NOT SHOWN without {what}: {claim}");
    }
}

/// Every record of the ledger.
pub fn ledger(state: &Path) -> Vec<Value> {
    let files = fs::read_dir(state.join("ledger"))
        .expect("a ledger")
        .flatten();
    let text: String = files
        .map(|file| fs::read_to_string(file.path()).expect("text"))
        .collect();
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a record is JSON"))
        .collect()
}
