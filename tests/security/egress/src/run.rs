//! `airlock` in a world, and what became of it.

use crate::{Who, World};
use daemons::{Daemons, Kind};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fmt, fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
};

/// What became of a run.
pub struct Ran {
    /// The exit status of `airlock`; none if a signal ended it.
    pub status: Option<i32>,
    /// What the program said.
    pub stdout: String,
    /// The same on stderr.
    pub stderr: String,
    /// The whole result; null if there is none.
    pub json: Value,
    /// What `airlock` itself said on stderr.
    pub said: String,
}

/// A run that goes on while the test looks. It is ended with this.
#[derive(Debug)]
pub struct Live {
    process: Child,
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl World {
    /// `airlock` with these arguments in the world, not started yet: nothing of the caller's environment, an own home,
    /// state and configuration.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.started(&self.program);
        command.args(arguments);
        command
    }

    /// A program on the world's machine, by whoever runs `airlock` there.
    fn started(&self, program: &Path) -> Command {
        let folder = &self.place.folder;
        let mut command = self.place.command(Path::new("/usr/bin/env"));
        command
            .arg("--default-signal")
            .arg(format!("--chdir={}", folder.display()));
        if let Who::Ordinary(user, group) = self.who {
            command.args(["setpriv", "--clear-groups", "--reuid", &user.to_string()]);
            command.args(["--regid", &group.to_string()]);
        }
        command.arg(program).stdin(Stdio::null()).env_clear();
        command
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", folder);
        command
            .env("AIRLOCK_STATE", folder.join("state"))
            .env("AIRLOCK_CONFIG", folder.join("config.toml"));
        command
    }

    /// `airlock` with these arguments.
    pub fn airlock(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("airlock starts")
    }

    /// `airlock run` with these options and a script of bash inside.
    #[track_caller]
    pub fn run(&self, options: &[&str], script: &str) -> Ran {
        Ran::of(
            &self.airlock(&[&["run", "--json"], options, &["--", "bash", "-c", script]].concat()),
        )
    }

    /// The same with a program in Python.
    #[track_caller]
    pub fn python(&self, options: &[&str], script: &str) -> Ran {
        Ran::of(
            &self.airlock(
                &[
                    &["run", "--json"],
                    options,
                    &["--", "python3", "-c", script],
                ]
                .concat(),
            ),
        )
    }

    /// The same script of a shell in a container, where this machine's programs are in `/host` and on the path.
    #[track_caller]
    pub fn contained(&self, engine: (&Daemons, Kind), options: &[&str], script: &str) -> Ran {
        let (daemons, kind) = engine;
        let libraries = format!(
            "LD_LIBRARY_PATH=/host/lib/{}-linux-gnu",
            std::env::consts::ARCH
        );
        let certificates = format!(
            "{}:/etc/ssl/certs/ca-certificates.crt",
            self.path("certs/ca-certificates.crt").display()
        );
        let head = [
            "run",
            "--json",
            "--backend",
            kind.backend(),
            "--image",
            daemons::IMAGE,
        ];
        let shown = [
            "--mount",
            "/usr:/host",
            "--mount",
            &certificates,
            "--env",
            "PYTHONHOME=/host",
        ];
        let found = [
            "--env",
            &libraries,
            "--env",
            "GIT_EXEC_PATH=/host/local/libexec/git-core",
        ];
        let script = format!("PATH=$PATH:/host/local/bin:/host/bin\n{script}");
        let tail = ["--", "sh", "-c", &script];
        let mut command = self.command(&[&head[..], &shown, &found, options, &tail].concat());
        let host = daemons.host(kind);
        command
            .env("DOCKER_HOST", &host)
            .env("CONTAINER_HOST", &host);
        Ran::of(&command.output().expect("airlock starts"))
    }

    /// The same script of bash on the world's machine, without any sandbox: the positive control of what is refused.
    pub fn outside(&self, script: &str) -> Output {
        self.started(Path::new("bash"))
            .args(["-c", script])
            .output()
            .expect("bash starts")
    }

    /// Starts a run and lets it go on; with `read` the script waits for [`Live::go_on`].
    pub fn begin(&self, options: &[&str], script: &str) -> Live {
        let arguments = [&["run", "--stdin"], options, &["--", "bash", "-c", script]].concat();
        Live::start(self.command(&arguments))
    }

    /// Writes the configuration.
    pub fn configure(&self, text: &str) {
        self.give("config.toml", text);
    }

    /// Writes a file that only whoever runs `airlock` can read.
    pub fn give(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).expect("a file for the test");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its rights");
        if let Who::Ordinary(user, group) = self.who {
            chown(&path, Some(user), Some(group)).expect("it is theirs");
        }
    }

    /// Keeps a secret, as `airlock secrets set` does.
    #[track_caller]
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
        assert!(output.status.success(), "{}", sdk_tests::said(&output));
    }
}

/// The program for whoever starts it: where the tests were built, others may not be let in.
pub(crate) fn furnish(folder: &Path, who: Who) -> PathBuf {
    fs::write(folder.join("config.toml"), "").expect("a configuration");
    match who {
        Who::Myself => cli::airlock().to_owned(),
        Who::Ordinary(user, group) => {
            let own = folder.join("airlock");
            fs::copy(cli::airlock(), &own).expect("a copy");
            chown(folder, Some(user), Some(group)).expect("it is theirs");
            own
        }
    }
}

/// What tests ask about first; a whole result is long.
impl fmt::Debug for Ran {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = [
            "status",
            "error",
            "denials",
            "learned",
            "limits_hit",
            "notes",
        ];
        let more: Vec<_> = more
            .iter()
            .map(|name| format!("{name}: {}", self.json[name]))
            .collect();
        writeln!(out, "exit status {:?}; {}", self.status, more.join("; "))?;
        write!(
            out,
            "-- stdout\n{}\n-- stderr\n{}\n-- airlock\n{}",
            self.stdout, self.stderr, self.said
        )
    }
}

impl Ran {
    /// From what `airlock run --json` said.
    pub fn of(output: &Output) -> Ran {
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        Ran {
            status: output.status.code(),
            stdout: text("stdout"),
            stderr: text("stderr"),
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
            json,
        }
    }

    /// Claims that it ended well; what the program said.
    #[track_caller]
    pub fn well(&self) -> &str {
        assert_eq!(self.status, Some(0), "{self:?}");
        &self.stdout
    }

    /// Claims that it did not end well; what the program said on stderr.
    #[track_caller]
    pub fn badly(&self) -> &str {
        assert_ne!(self.status, Some(0), "{self:?}");
        assert_ne!(self.json["status"], "not_started", "{self:?}");
        &self.stderr
    }

    /// The targets of its denials at the network, each once.
    pub fn denied(&self) -> Vec<String> {
        let all = self.json["denials"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let targets = all.iter().filter_map(|one| one["target"].as_str());
        let mut targets: Vec<_> = targets.map(str::to_owned).collect();
        targets.sort();
        targets.dedup();
        targets
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

    /// The process of `airlock`.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The next line that the program says; empty when it says no more.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it can be read");
        line.trim_end().to_owned()
    }

    /// Lets a script go on that waits with `read`.
    pub fn go_on(&mut self) {
        self.input
            .as_mut()
            .expect("it was not ended")
            .write_all(b"\n")
            .expect("it reads");
    }

    /// Ends its standard input and waits for its end: exit status, the rest of stdout, stderr.
    pub fn end(mut self) -> (Option<i32>, String, String) {
        drop(self.input.take());
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.lines, &mut rest).expect("it can be read");
        let mut said = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut said).expect("it can be read");
        }
        (self.process.wait().expect("it ends").code(), rest, said)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // It has ended already, unless the test failed; then it is asked to, so that it leaves nothing.
        let asked = Pid::from_child(&self.process);
        if matches!(self.process.try_wait(), Ok(None)) && kill_process(asked, Signal::TERM).is_ok()
        {
            _ = self.process.wait();
        }
    }
}
