//! A folder that is staged by a run: as whoever runs the tests and as an ordinary user, for each kind of layer.

use crate::{Answer, World};
use rustix::{
    event::{PollFd, PollFlags},
    process::{Pid, PidfdFlags, Signal},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// Who starts Airlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Whom {
    Caller,
    User,
}

/// How the layer is made that takes the changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Layer {
    Copied,
    Laid,
}

/// Every pair.
pub const GROUNDS: [(Whom, Layer); 4] = [
    (Whom::Caller, Layer::Copied),
    (Whom::Caller, Layer::Laid),
    (Whom::User, Layer::Copied),
    (Whom::User, Layer::Laid),
];

/// The ordinary user of the tests, and his group.
pub fn ids() -> (u32, u32) {
    let number = |option: &str| {
        let told = Command::new("id")
            .args([option, daemons::user().as_str()])
            .output();
        let text = String::from_utf8(told.expect("id starts").stdout).expect("a number");
        text.trim()
            .parse()
            .expect("the ordinary user of the tests is there")
    };
    (number("-u"), number("-g"))
}

/// A folder `work` in a world of its own.
#[derive(Debug)]
pub struct Ground {
    /// Where everything is.
    pub world: World,
    whom: Whom,
}

impl Ground {
    /// The folder with a few files, and a configuration by which its layer is made so.
    pub fn new(whom: Whom, layer: Layer) -> Ground {
        let world = World::new();
        fs::create_dir(world.state()).expect("a state folder");
        let names = match layer {
            Layer::Copied => 5000,
            Layer::Laid => 1,
        };
        world.write(
            "config.toml",
            &format!("[workspace]\ncopy_names = {names}\n"),
        );
        world
            .write("work/kept", "kept")
            .write("work/changed", "before")
            .write("work/gone/below", "x")
            .write("work/moved/below", "y");
        symlink("kept", world.here("work/link")).expect("a link");
        let ground = Ground { world, whom };
        ground.give_away();
        ground
    }

    /// The ordinary user's is what he works on.
    pub fn give_away(&self) {
        if self.whom == Whom::User {
            let (user, group) = ids();
            for folder in [self.world.here("work"), self.world.state()] {
                let given = Command::new("chown")
                    .args(["-hR", &format!("{user}:{group}")])
                    .arg(folder)
                    .status();
                assert!(given.expect("chown starts").success());
            }
        }
    }

    /// A path below the folder.
    pub fn work(&self, path: &str) -> PathBuf {
        self.world.here("work").join(path)
    }

    /// `airlock` with these arguments, not started yet.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut plain = self.world.command(words);
        plain.env("AIRLOCK_CONFIG", self.world.here("config.toml"));
        match self.whom {
            Whom::Caller => plain,
            Whom::User => as_user(&plain),
        }
    }

    /// Runs `airlock` with these arguments.
    pub fn airlock(&self, words: &[&str]) -> Answer {
        self.world
            .answer(&self.command(words).output().expect("airlock starts"))
    }

    /// Runs a shell script on the folder as the run `try`.
    pub fn stage(&self, script: &str) -> Value {
        self.airlock(&words(&["--json"], script)).json()
    }

    /// The same, but it waits after its first part until it is told to go on.
    pub fn begin(&self, first: &str, then: &str) -> Begun<'_> {
        let script = format!("{first}\necho ready\nread go\n{then}");
        let mut command = self.command(&words(&["--stdin"], &script));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("airlock starts");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        output.read_line(&mut line).expect("it can be read");
        assert_eq!(line, "ready\n");
        let input = child.stdin.take().expect("a pipe");
        Begun {
            ground: self,
            child,
            input,
            output,
        }
    }

    /// The text of a file in the folder.
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.work(path)).unwrap_or_else(|error| format!("{path}: {error}"))
    }

    /// What the folder has.
    pub fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut contents = self.world.contents();
        contents.retain(|path, _| path.starts_with(self.work("")));
        contents
    }
}

/// `airlock run` on the folder, staged, as the run `try`.
pub fn words<'a>(options: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let mut words = vec!["run", "--workspace", "work:staged", "--run-id", "try"];
    words.extend(options);
    words.extend(["--", "sh", "-c", script]);
    words
}

fn as_user(plain: &Command) -> Command {
    let (user, group) = ids();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user.to_string(), "--regid", &group.to_string()]);
    command.arg("--clear-groups").arg(plain.get_program());
    command
        .args(plain.get_args())
        .stdin(Stdio::null())
        .env_clear();
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    if let Some(folder) = plain.get_current_dir() {
        command.current_dir(folder);
    }
    command
}

/// A run that waits.
#[derive(Debug)]
pub struct Begun<'a> {
    ground: &'a Ground,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Begun<'_> {
    /// Lets it go on, to its end.
    pub fn end(mut self) -> Answer {
        self.input.write_all(b"go\n").expect("it reads");
        self.wait()
    }

    /// Kills the launcher of the sandbox whose program has this mark in its words: nobody knows how that would have ended.
    pub fn lose(self, mark: &str) -> Answer {
        let program = program_with(mark).expect("it runs");
        let launcher = parent(program).expect("it has one");
        assert!(words_of(launcher).starts_with(b"airlock-launcher\0"));
        kill(launcher);
        self.wait()
    }

    /// Kills the first process of that sandbox alone: the kernel kills all others in it, and the launcher lives on.
    pub fn lose_first(self, mark: &str) -> Answer {
        let program = program_with(mark).expect("it runs");
        let namespace = |pid| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let sandbox = namespace(program).expect("it has one");
        let is_first = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let numbers = status.lines().find(|line| line.starts_with("NSpid:"));
            let inside = numbers.and_then(|numbers| numbers.split_whitespace().last());
            inside == Some("1") && namespace(*pid).as_ref() == Some(&sandbox)
        };
        let first = processes().find(is_first).expect("the sandbox has one");
        let first = Pid::from_raw(first).expect("a process");
        let pidfd = rustix::process::pidfd_open(first, PidfdFlags::empty()).expect("it is there");
        rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).expect("it is there");
        // Its program would see the end of its input, which comes next, if it still lived then.
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        rustix::event::poll(&mut ended, None).expect("it ends");
        self.wait()
    }

    fn wait(mut self) -> Answer {
        io::copy(&mut self.output, &mut io::sink()).expect("it can be read");
        // Before, a program that is about to be killed could end by itself.
        drop(self.input);
        let output = self.child.wait_with_output().expect("it ends");
        self.ground.world.answer(&output)
    }
}

fn words_of(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

fn kill(pid: i32) {
    let process = Pid::from_raw(pid).expect("a process");
    rustix::process::kill_process(process, Signal::KILL).expect("it is there");
}

fn processes() -> impl Iterator<Item = i32> {
    let processes = fs::read_dir("/proc").expect("it can be listed").flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn program_with(mark: &str) -> Option<i32> {
    processes().find(|pid| {
        let words = words_of(*pid);
        let has_mark = words
            .windows(mark.len())
            .any(|window| window == mark.as_bytes());
        words.starts_with(b"sh\0-c\0") && has_mark
    })
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}
