//! A repository as the workspace of staged runs, with real git on both sides.

use crate::{Answer, World};
use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
};

/// Who starts Airlock, and whose the folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Whoever runs the tests, in a folder of his own.
    Caller,
    /// An ordinary user, in a folder of his own.
    User,
    /// The caller works in a folder of the user's.
    CallerForUser,
}

/// Whom `useradd` of the conformance tests makes, too.
const USER: &str = "airlock-test";
/// Changes a file and commits that.
pub const COMMIT: &str = "echo more >>f1; git commit -q -a -m two";

fn number(option: &str) -> Option<u32> {
    let told = Command::new("id").args([option, USER]).output().ok()?;
    String::from_utf8(told.stdout).ok()?.trim().parse().ok()
}

/// An ordinary user, who is made where there is none yet.
fn ids() -> (u32, u32) {
    if number("-u").is_none() {
        // Another test may make him at the same moment.
        _ = Command::new("useradd")
            .args(["--system", "--user-group", USER])
            .status();
    }
    let found = number("-u").zip(number("-g"));
    found.expect("an ordinary user can be made")
}

/// A repository `work` with the files `f1`, `f2` and `f3` and a commit `one`, in a world of its
/// own.
#[derive(Debug)]
pub struct Repository {
    /// Where it lies.
    pub world: World,
    whom: Whom,
}

impl Repository {
    /// With what this script does in the repository before the program runs.
    pub fn new(script: &str) -> Repository {
        Repository::of(Whom::Caller, "git init -q -b main .", script)
    }

    /// The same, of somebody, and made by this script.
    pub fn of(whom: Whom, init: &str, script: &str) -> Repository {
        let world = World::new();
        fs::create_dir(world.state()).expect("a state folder");
        fs::create_dir(world.here("work")).expect("a folder");
        let repository = Repository { world, whom };
        if whom != Whom::Caller {
            let (user, group) = ids();
            let mut folders = vec![repository.world.here("")];
            if whom == Whom::User {
                folders.push(repository.world.state());
            }
            for folder in folders {
                let given = Command::new("chown")
                    .args(["-R", &format!("{user}:{group}")])
                    .arg(folder)
                    .status();
                assert!(given.expect("chown starts").success());
            }
        }
        repository.host(init);
        repository.host(
            "git config user.name n; git config user.email a@b
             for f in f1 f2 f3; do echo $f >$f; done; git add .; git commit -q -m one",
        );
        repository.host(script);
        repository
    }

    /// A path in it.
    pub fn work(&self, path: &str) -> PathBuf {
        self.world.here("work").join(path)
    }

    /// The same command, started by the ordinary user if it is to be his.
    fn as_user(&self, is_user: bool, plain: &Command) -> Command {
        let mut command = match is_user {
            false => Command::new(plain.get_program()),
            true => {
                let (user, group) = ids();
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &user.to_string(), "--regid", &group.to_string()]);
                command.arg("--clear-groups").arg(plain.get_program());
                command
            }
        };
        command.args(plain.get_args()).env_clear();
        for (name, value) in plain.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.current_dir(plain.get_current_dir().expect("it stands somewhere"));
        command
    }

    /// Runs a script on the host, in the repository.
    pub fn host(&self, script: &str) -> String {
        let mut command = Command::new("sh");
        command
            .args(["-euc", script])
            .current_dir(self.world.here("work"))
            .envs(self.world.variables())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", "protocol.file.allow")
            .env("GIT_CONFIG_VALUE_0", "always")
            .env("GIT_ADVICE", "0");
        let mut command = self.as_user(self.whom != Whom::Caller, &command);
        let told = command.stdin(Stdio::null()).output().expect("sh starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        assert!(told.status.success(), "{script}: {}", text(&told.stderr));
        text(&told.stdout)
    }

    /// As `git status --porcelain=v2 --branch` has it, without names of objects.
    pub fn status(&self) -> String {
        let told = self.host("git status --porcelain=v2 --branch");
        let is_id = |word: &&str| {
            [40, 64].contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let line = |line: &str| {
            let words = line.split(' ').filter(|word| !is_id(word));
            words.collect::<Vec<_>>().join(" ")
        };
        let lines = told
            .lines()
            .filter(|line| !line.starts_with("# branch.oid"));
        lines.map(line).collect::<Vec<_>>().join("\n")
    }

    /// The subjects of the current branch, the newest first.
    pub fn log(&self) -> String {
        self.host("git log --format=%s").replace('\n', " ")
    }

    /// All that lies below `refs/airlock/`.
    pub fn aside(&self) -> String {
        self.host("git for-each-ref --format='%(refname:lstrip=1)' refs/airlock")
            .replace('\n', " ")
    }

    /// The run `r`, not started yet.
    pub fn command(&self, options: &[&str], script: &str) -> Command {
        let mut words = vec!["run", "--run-id", "r", "--workspace", "work:staged"];
        words.extend(options);
        words.extend(["--", "sh", "-euc", script]);
        self.as_user(self.whom == Whom::User, &self.world.command(&words))
    }

    /// Runs a script in the staged workspace.
    pub fn run(&self, script: &str) -> RunAnswer {
        self.run_with(&[], script)
    }

    /// The same with further options.
    pub fn run_with(&self, options: &[&str], script: &str) -> RunAnswer {
        let mut command = self.command(options, script);
        let output = command.stdin(Stdio::null()).output();
        RunAnswer(self.world.answer(&output.expect("airlock starts")))
    }

    /// The same, but something happens on the host before the program ends.
    pub fn run_while(&self, script: &str, meanwhile: &str) -> RunAnswer {
        let script = format!("{script}\necho ready\nread go");
        let mut command = self.command(&["--stdin"], &script);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("airlock starts");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it can be read");
        assert_eq!(line, "ready\n");
        self.host(meanwhile);
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(b"go\n").expect("it reads");
        drop(input);
        io::copy(&mut output, &mut io::sink()).expect("it can be read");
        RunAnswer(
            self.world
                .answer(&child.wait_with_output().expect("it ends")),
        )
    }

    /// The current branch has moved: its log is this, nothing is left beside, and git finds nothing
    /// wrong.
    #[track_caller]
    pub fn moved_to(&self, log: &str, status: &str) {
        assert_eq!(self.log(), log);
        assert_eq!(self.status(), status);
        assert_eq!(self.host("git fsck --strict --no-dangling"), "");
        self.left_nothing();
    }

    /// Neither locks, drafts nor git folders of ours are left.
    #[track_caller]
    pub fn left_nothing(&self) {
        let left = "find .git ! -path '*/refs/airlock*' \\( -name '*.lock' -o -name '*airlock*' -o -name '*.keep' \\)";
        assert_eq!(self.host(left), "");
        let folders = fs::read_dir(self.world.state().join("git")).expect("it is there");
        assert_eq!(folders.count(), 0, "folders of ours are left");
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct RunAnswer(pub Answer);

impl RunAnswer {
    /// What is said of the repository.
    #[track_caller]
    pub fn note(&self) -> &str {
        let mut lines = self.0.stderr.lines();
        let note = lines.find_map(|line| line.strip_prefix("airlock: note: git"));
        note.unwrap_or_else(|| panic!("nothing is said of git: {:?}", self.0))
    }

    /// It succeeded, and said this of the repository.
    #[track_caller]
    pub fn says(&self, note: &str) {
        assert_eq!(self.0.status, Some(0), "{:?}", self.0);
        assert_eq!(self.note(), format!(": {note}"), "{:?}", self.0);
    }

    /// It said so among other things.
    #[track_caller]
    pub fn mentions(&self, what: &str) {
        assert!(self.note().contains(what), "`{what}`: {:?}", self.0);
    }

    /// The first command that it recommends.
    #[track_caller]
    pub fn command(&self) -> &str {
        let mut quoted = self.note().split('`').skip(1).step_by(2);
        let command = quoted.find(|quoted| quoted.starts_with("git "));
        command.unwrap_or_else(|| panic!("no command is named: {:?}", self.0))
    }
}

/// What git says of the branch `main` where nothing is changed.
pub const CLEAN: &str = "# branch.head main";
/// The same where `f1` is changed, but not staged.
pub const F1_MODIFIED: &str = "# branch.head main\n1 .M N... 100644 100644 100644 f1";
