//! `airlock run` before a real terminal: this test holds the other end of it.

use airlock_cli_tests::{
    World, airlock,
    login::{Login, window},
};
use rustix::{
    process::{Pid, Signal, WaitOptions},
    termios::{tcgetattr, tcsetwinsize},
};
use std::{
    fs,
    ops::{Deref, DerefMut},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A terminal with a command in it, and the world around it.
struct Sitting {
    world: World,
    login: Login,
}

impl Deref for Sitting {
    type Target = Login;

    fn deref(&self) -> &Login {
        &self.login
    }
}

impl DerefMut for Sitting {
    fn deref_mut(&mut self) -> &mut Login {
        &mut self.login
    }
}

impl Sitting {
    /// Starts `airlock run` with these arguments, as a login would.
    fn start(arguments: &[&str]) -> Sitting {
        let airlock = airlock().to_str().expect("its path is text");
        Sitting::start_command(&[&[airlock, "run"], arguments].concat())
    }

    fn start_command(words: &[&str]) -> Sitting {
        let world = World::new();
        let login = Login::start(words.iter().copied(), |command| {
            command.current_dir(world.here("")).envs(world.variables());
        });
        Sitting { world, login }
    }

    fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn tell(&self, signal: Signal) {
        rustix::process::kill_process(self.process(), signal).expect("it is there to be told");
    }

    /// Waits for the end: the status, and what else was shown. The terminal must be as it was.
    #[track_caller]
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.login.end();
        (status, without_notes(&self.login.rest()))
    }
}

/// What every run says where an ordinary user has no cgroup.
fn without_notes(text: &str) -> String {
    let without = |line: &str| {
        line.split("airlock: note: no cgroup for ")
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    text.split_inclusive('\n').map(without).collect()
}

/// All that a short program shows.
#[track_caller]
fn shown(arguments: &[&str]) -> (Option<i32>, String) {
    Sitting::start(arguments).end()
}

#[test]
fn the_terminal_inside_is_as_large_as_ours_and_of_its_kind() {
    let script = "tty; stty size; echo $TERM; ps -o tty= -p $$; echo typed > /dev/tty";
    let words = "/dev/pts/0\r\n31 101\r\nxterm\r\npts/0\r\ntyped\r\n";
    let (status, text) = shown(&["--tty", "--", "sh", "-c", script]);
    assert_eq!(
        (status, text.replace(' ', "")),
        (Some(0), words.replace(' ', ""))
    );
}

#[test]
fn the_example_of_the_help_works() {
    let help = World::new().run(&["run", "--help"]).stdout;
    assert!(help.contains("\n  airlock run --tty -- bash\n"), "{help}");
    let mut sitting = Sitting::start(&["--tty", "--", "bash"]);
    sitting.expect("$ ");
    sitting.keys("echo in\"\"side; exit 6\n");
    sitting.expect("inside");
    assert_eq!(sitting.end().0, Some(6));
}

#[test]
fn a_resize_reaches_the_program() {
    let script = "trap 'stty size; exit 0' WINCH; echo ready; sleep 600 & wait";
    let mut sitting = Sitting::start(&["--tty", "--", "sh", "-c", script]);
    sitting.expect("ready");
    tcsetwinsize(&sitting.ours, window(40, 132)).expect("a size");
    sitting.expect("40 132");
    assert_eq!(sitting.end().0, Some(0));
}

#[test]
fn jobs_can_be_stopped_and_brought_back_inside() {
    let mut sitting = Sitting::start(&[
        "--tty",
        "--env",
        "PS1=> ",
        "--",
        "bash",
        "--norc",
        "--noediting",
        "-i",
    ]);
    sitting.expect("> ");
    sitting.keys("sh -c 'echo re\"\"ady; read word; echo got-$word'\n");
    sitting.expect("ready");
    sitting.keys(CTRL_Z);
    sitting.expect("Stopped");
    sitting.keys("jobs\n");
    sitting.expect("Stopped");
    sitting.keys("fg\n");
    sitting.expect("got-$word'");
    sitting.keys("it\n");
    sitting.expect("got-it");
    sitting.keys("exit 4\n");
    assert_eq!(sitting.end().0, Some(4));
}

#[test]
fn ctrl_c_interrupts_the_program_and_not_us() {
    let script = "trap 'echo caught; exit 9' INT; echo ready; sleep 600 & wait";
    let mut sitting = Sitting::start(&["--tty", "--", "sh", "-c", script]);
    sitting.expect("ready");
    sitting.keys(CTRL_C);
    sitting.expect("caught");
    assert_eq!(sitting.end().0, Some(9));
    let mut sitting = Sitting::start(&["--tty", "--", "sh", "-c", "echo ready; exec sleep 600"]);
    sitting.expect("ready");
    sitting.keys(CTRL_C);
    let (status, rest) = sitting.end();
    assert_eq!(status, Some(130));
    assert!(
        rest.ends_with("airlock: note: the program was killed by signal 2\r\n"),
        "{rest:?}"
    );
}

/// What a full-screen program turns on, and what turns it off.
const TURN_ON: &str = r"printf '\033[?1049h\033[?2004h\033[?1002h\033[?25l\033[1mready'";
const TURNED_OFF: &str = "\x1b[?1049l\x1b[?2004l\x1b[?1002l\x1b[?25h\x1b[0m";

#[test]
fn the_terminal_is_given_back_as_it_was_however_the_run_ends() {
    type Way = fn(&mut Sitting);
    let ways: [(&str, Way, i32); 6] = [
        ("read word; exit 5", |it| it.keys("\n"), 5),
        ("read word; kill -KILL $$", |it| it.keys("\n"), 137),
        ("sleep 600 & wait", |it| it.tell(Signal::TERM), 130),
        ("sleep 600 & wait", |it| it.tell(Signal::HUP), 130),
        ("sleep 600 & wait", |it| it.tell(Signal::INT), 130),
        // The second time nobody waits for anything.
        (
            "trap '' TERM; printf 2; while :; do sleep 600; done",
            |it| {
                it.expect("2");
                it.tell(Signal::TERM);
                it.tell(Signal::HUP);
            },
            130,
        ),
    ];
    for (script, way, wanted) in ways {
        let mut sitting =
            Sitting::start(&["--tty", "--", "sh", "-c", &format!("{TURN_ON}; {script}")]);
        sitting.expect("ready");
        assert!(sitting.is_raw(), "the control: it is another one meanwhile");
        way(&mut sitting);
        let (status, rest) = sitting.end();
        assert_eq!(status, Some(wanted), "{script}: {rest:?}");
        assert!(rest.contains(TURNED_OFF), "{script}: {rest:?}");
        let told = wanted == 130 && !script.starts_with("trap");
        assert_eq!(
            rest.contains("airlock: error: cancelled"),
            told,
            "{script}: {rest:?}"
        );
    }
}

#[test]
fn we_can_be_stopped_and_go_on() {
    let script = "trap 'stty size; exit 0' WINCH; echo ready; sleep 600 & wait";
    let mut sitting = Sitting::start(&["--tty", "--", "sh", "-c", script]);
    sitting.expect("ready");
    sitting.tell(Signal::TSTP);
    let (_, stopped) = rustix::process::waitpid(Some(sitting.process()), WaitOptions::UNTRACED)
        .expect("it is ours")
        .expect("it has changed");
    assert!(stopped.stopped(), "{stopped:?}");
    let modes = tcgetattr(&sitting.theirs).expect("its modes");
    assert_eq!(
        format!("{modes:?}"),
        format!("{:?}", sitting.before),
        "the terminal is the shell's meanwhile"
    );
    tcsetwinsize(&sitting.ours, window(50, 140)).expect("a size");
    sitting.tell(Signal::CONT);
    sitting.expect("50 140");
    assert_eq!(sitting.end().0, Some(0));
}

#[test]
fn in_the_background_we_wait_until_we_are_brought_to_the_front() {
    let mut sitting = Sitting::start_command(&["bash", "--norc", "--noediting", "-i"]);
    sitting.expect("bash-");
    let script = "read -r word; echo got-$word; exit 7";
    sitting.keys(&format!(
        "{} run --tty -- sh -c '{script}' &\n",
        airlock().display()
    ));
    sitting.expect("[1]");
    sitting.keys("wait %1; jobs\n");
    sitting.expect("Stopped");
    sitting.keys("fg\n");
    sitting.expect("run --tty");
    sitting.keys("it\n");
    sitting.expect("got-it");
    // Not before: what is typed while the run ends is dropped.
    sitting.expect("bash-");
    sitting.keys("echo status-$?; exit\n");
    sitting.expect("status-7");
    assert_eq!(sitting.end().0, Some(0));
}

#[test]
fn the_exit_statuses_are_those_without_a_terminal() {
    for (arguments, status) in [
        (&["--tty", "--", "sh", "-c", "exit 3"][..], 3),
        (&["--tty", "--", "true"], 0),
        (&["--tty", "--", "no-such-command"], 127),
        (&["--tty", "--", "/etc/passwd"], 126),
        (&["--tty", "--timeout", "300ms", "--", "sleep", "600"], 124),
        (&["--tty", "--require", "own_kernel", "--", "true"], 125),
    ] {
        assert_eq!(shown(arguments).0, Some(status), "{arguments:?}");
    }
}

#[test]
fn what_runs_in_the_background_ends_with_the_run() {
    let script = "setsid sleep 601 & nohup sleep 602 & read word";
    let mut sitting = Sitting::start(&[
        "--tty",
        "--run-id",
        "terminal-background",
        "--",
        "bash",
        "-c",
        script,
    ]);
    let ours = || {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let variables = processes.filter_map(|it| fs::read(it.path().join("environ")).ok());
        variables
            .filter(|text| {
                String::from_utf8_lossy(text).contains("AIRLOCK_RUN_ID=terminal-background")
            })
            .count()
    };
    // `nohup` says so when it begins.
    sitting.expect("nohup:");
    // One that is about to become another program has no variables for a moment.
    let late = Instant::now() + Duration::from_secs(20);
    while ours() < 3 {
        assert!(Instant::now() < late, "the control: they can be seen");
        thread::sleep(Duration::from_millis(10));
    }
    sitting.keys("\n");
    assert_eq!(sitting.end().0, Some(0));
    assert_eq!(ours(), 0);
}

#[test]
fn there_is_a_terminal_inside_only_if_it_was_asked_for() {
    let script = "for f in 0 1 2; do test -t $f; echo $?; done; test -e /dev/tty; echo $?; test -e /dev/pts; echo $?";
    assert_eq!(
        shown(&["--", "sh", "-c", script]).1,
        "1\r\n1\r\n1\r\n1\r\n1\r\n"
    );
    assert_eq!(
        shown(&["--tty", "--", "sh", "-c", script]).1,
        "0\r\n0\r\n0\r\n0\r\n0\r\n"
    );
}

#[test]
fn much_output_arrives_whole() {
    let (status, text) = shown(&["--tty", "--", "sh", "-c", "seq 1 200000"]);
    assert_eq!(status, Some(0));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), lines.last()), (200_000, Some(&"200000")));
}

#[test]
fn an_answer_of_the_terminal_goes_inside_or_nowhere() {
    let ask = r#"printf '\033[6n'; IFS= read -r -s -d R answer; echo "got ${answer#?}""#;
    let mut sitting = Sitting::start(&["--tty", "--", "bash", "-c", ask]);
    sitting.expect("\x1b[6n");
    sitting.keys("\x1b[7;9R");
    sitting.expect("got [7;9");
    assert_eq!(sitting.end().0, Some(0));
    // A program that does not wait for it: whoever answers while we are there is not left unheard.
    for _ in 0..10 {
        let mut sitting = Sitting::start(&["--tty", "--", "printf", r"\033[?25l\033[6n"]);
        sitting.expect("\x1b[6n");
        sitting.expect("\x1b[?25h");
        // A terminal that is far away.
        thread::sleep(Duration::from_millis(30));
        sitting.keys("\x1b[7;9R\n");
        if sitting.child.try_wait().expect("it is ours").is_none() {
            assert_eq!(sitting.end().0, Some(0));
            return;
        }
    }
    panic!("nobody waits for the answer");
}

#[test]
fn a_terminal_has_no_limit_of_time_unless_one_was_said() {
    let world = World::new();
    let wall_time = |options: &[&str]| {
        let words = [&["run", "--explain"], options, &["--", "true"]].concat();
        let answer = world.run(&words);
        let line = answer
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("wall time "));
        let shown = line.unwrap_or_else(|| panic!("{} {}", answer.stdout, answer.stderr));
        shown.trim().to_owned()
    };
    assert_eq!(wall_time(&[]), "2m");
    assert_eq!(wall_time(&["--tty"]), "no limit");
    assert_eq!(wall_time(&["--tty", "--profile", "agent"]), "no limit");
    assert_eq!(wall_time(&["--tty", "--timeout", "3m"]), "3m");
    world.write("airlock.toml", "wall_time = \"90s\"\n");
    assert_eq!(wall_time(&["--tty"]), "90s");
    world.write("airlock.toml", "");
    let said = "[maximum]\nwall_time = \"30m\"\n[profile.ci]\nwall_time = \"10m\"\n";
    world.write("said.toml", said);
    let with = ["--tty", "--config", "said.toml"];
    assert_eq!(wall_time(&with), "30m");
    assert_eq!(
        wall_time(&[&with[..], &["--profile", "ci"]].concat()),
        "10m"
    );
}

#[test]
fn a_minute_before_its_end_a_terminal_says_so() {
    let mut sitting = Sitting::start(&["--tty", "--timeout", "61s", "--", "cat"]);
    sitting.expect("note: one minute of 61s is left (--timeout)");
    sitting.keys("still here\n");
    sitting.expect("still here\r\nstill here");
    sitting.keys("\x04");
    assert_eq!(sitting.end().0, Some(0));
}

#[test]
fn a_shell_without_a_terminal_says_why_it_ended_at_once() {
    let note = "standard input is empty here; --tty gives a terminal";
    for command in [
        &["bash"][..],
        &["/bin/sh"],
        &["python3"],
        &["bash", "-i"],
        &["env", "bash"],
    ] {
        let (status, text) = shown(&[&["--"][..], command].concat());
        assert!(
            status == Some(0) && text.contains(note),
            "{command:?}: {text}"
        );
    }
    for words in [
        &["--", "true"][..],
        &["--", "sh", "-c", "true"],
        &["--json", "--", "sh"],
    ] {
        let (_, text) = shown(words);
        assert!(!text.contains(note), "{words:?}: {text}");
    }
    let quiet = World::new().run(&["run", "--", "sh"]);
    assert!(
        !quiet.stderr.contains(note),
        "no terminal: {}",
        quiet.stderr
    );
}

#[test]
fn a_plan_needs_no_terminal() {
    let answer = World::new().run(&["run", "--tty", "--explain", "--", "true"]);
    let line = answer
        .stdout
        .lines()
        .find(|line| line.starts_with("terminal "));
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    assert!(
        line.is_some_and(|line| line.contains("a devpts of the sandbox's own")),
        "{}",
        answer.stdout
    );
}

/// Clipboard, title, its report, answerback, the end of a paste.
const HOSTILE: &str = r"\033]52;c;eA==\007\033]0;x\033\\\033[21t\005\033[201~";

#[test]
fn hostile_sequences_do_not_reach_a_terminal() {
    let script = format!(r"printf 'a{HOSTILE}\033[31mb\033[0m\n'; printf 'c{HOSTILE}d\n' >&2");
    let harmless = |text: &str| {
        text.replace("\x1b[31m", "")
            .replace("\x1b[0m", "")
            .replace(['\r', '\n'], "")
    };
    let lines = shown(&["--", "sh", "-c", &script]).1;
    assert!(!harmless(&lines).contains(char::is_control), "{lines:?}");
    let caret = r"^[]52;c;eA==^G^[]0;x^[\^[[21t^E^[[201~";
    assert!(
        lines.contains(&format!("a{caret}\x1b[31mb")) && lines.contains(&format!("c{caret}d")),
        "{lines:?}"
    );
    assert_eq!(
        shown(&["--tty", "--", "sh", "-c", &script]).1,
        "a\x1b[31mb\x1b[0m\r\ncd\r\n"
    );
}

/// Whoever reads from a pipe gets every byte.
#[test]
fn lines_are_plain_again_also_when_nobody_waits_for_their_program() {
    // Invisible, and deaf to the first request to end.
    let script = "trap '' TERM INT; printf '\\033[8mon'; while :; do sleep 1; done";
    let mut sitting = Sitting::start(&["--", "sh", "-c", script]);
    sitting.expect("\x1b[8mon");
    for _ in 0..2 {
        sitting.keys(CTRL_C);
        sitting.expect("^C");
    }
    sitting.expect("\x1b[0m");
    assert_eq!(sitting.end().0, Some(130));
}

#[test]
fn hostile_sequences_pass_where_there_is_no_terminal() {
    let world = World::new();
    let script = format!("printf '{HOSTILE}'");
    let answer = world.run(&["run", "--", "sh", "-c", &script]);
    assert_eq!(
        answer.stdout,
        "\x1b]52;c;eA==\x07\x1b]0;x\x1b\\\x1b[21t\x05\x1b[201~"
    );
}

#[test]
fn a_kept_file_is_as_harmless_on_a_terminal_as_output() {
    let mut sitting = Sitting::start(&[
        "--artifact",
        "x",
        "--",
        "sh",
        "-c",
        &format!("printf '{HOSTILE}' > x"),
    ]);
    sitting.expect("kept `x`");
    let world = std::mem::replace(&mut sitting.world, World::new());
    sitting.end();
    let plain = world.run(&["artifact", "get", "x"]);
    assert!(
        plain.stdout.contains("\x1b]52;"),
        "the control: it is in there"
    );
    let script = format!("{} artifact get x", airlock().display());
    let mut command = Command::new("script");
    command
        .args(["--quiet", "--return", "--command", &script, "/dev/null"])
        .stdin(Stdio::null());
    let shown = command
        .env_clear()
        .envs(world.variables())
        .output()
        .expect("script starts");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(
        text.contains("^[]52;c;eA==^G") && !text.contains(char::is_control),
        "{text:?}"
    );
}

#[test]
fn a_secret_is_asked_for_and_not_shown() {
    let airlock = airlock().to_str().expect("its path is text");
    let mut sitting = Sitting::start_command(&[airlock, "secrets", "set", "api"]);
    sitting.expect("value of `api` (not shown): ");
    assert!(sitting.is_raw());
    sitting.keys("typo\x15sk-canarx\x7fy\r");
    sitting.expect("airlock: note: the master key is stored beside the secrets");
    let kept = sitting.world.run(&["secrets", "list", "--json"]);
    assert_eq!(kept.json()["secrets"][0]["name"], "api");
    let script = "test \"$T\" = sk-canary";
    let ran = sitting.world.run(&[
        "run",
        "--profile",
        "agent",
        "--secret",
        "api=T",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let (status, rest) = sitting.end();
    assert_eq!(status, Some(0));
    assert!(
        !rest.contains("canar") && !rest.contains("typo"),
        "{rest:?}"
    );
}

#[test]
fn ctrl_c_keeps_no_secret_and_leaves_the_terminal_as_it_was() {
    let airlock = airlock().to_str().expect("its path is text");
    let mut sitting = Sitting::start_command(&[airlock, "secrets", "set", "api"]);
    sitting.expect("(not shown): ");
    sitting.keys("sk-canary");
    sitting.keys(CTRL_C);
    sitting.expect("airlock: error: nothing was stored: interrupted");
    assert!(!sitting.world.state().exists());
    assert_eq!(sitting.end().0, Some(125));
}
