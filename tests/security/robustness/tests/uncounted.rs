//! What a program can have of the kernel that no cgroup counts. All attack code runs inside the sandbox.

use robustness::{Bench, Outcome, binary};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::chown,
    process::{Child, Command, Stdio},
};

/// Takes so many locks, says so, and keeps them.
const LOCKS: &str = "\
import fcntl, os, sys, time
def take(count):
    files = []
    for number in range(count // 500):
        file = os.open(f'/tmp/{number}', os.O_CREAT | os.O_RDWR)
        for place in range(500, 0, -1):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * place)
        files.append(file)
    print(count, flush=True)
    return files
";

fn locks(more: &str) -> [String; 3] {
    let script = format!("{LOCKS}{more}");
    ["python3".to_owned(), "-c".to_owned(), script]
}

fn words(command: &[String; 3]) -> [&str; 3] {
    command.each_ref().map(String::as_str)
}

#[test]
fn more_file_locks_than_a_sandbox_may_have_end_it_as_memory_does() {
    let bench = Bench::new("locks");
    if !bench.has_cgroup("memory") {
        return;
    }
    let options = ["--memory", "64M", "--timeout", "60s"];
    let over = locks("kept = take(60_000)\nwhile True: pass");
    let outcome = bench.attack(&options, &words(&over));
    outcome.expect("oom_killed", 137, &["memory"]);
    let told = outcome.json["error"]["message"]
        .as_str()
        .unwrap_or_default();
    assert!(told.contains("50000 file locks"), "{told}");
    // Fewer are nobody's business, however long they are held and looked at.
    let few = locks("kept = take(40_000)\nwhile time.process_time() < 1: pass");
    let outcome = bench.run(&options, &words(&few));
    let outcome = outcome.expect("succeeded", 0, &[]);
    assert_eq!(outcome.stdout(), "40000\n");
}

/// What belongs to the first thread of a process is what the kernel shows of it.
#[test]
fn file_locks_are_found_when_the_first_thread_has_ended() {
    let bench = Bench::new("locks-of-threads");
    if !bench.has_cgroup("memory") {
        return;
    }
    let script = locks(
        "\
import ctypes, threading
def work():
    while open('/proc/self/stat').read().rsplit(')', 1)[1].split()[0] != 'Z': pass
    kept = take(60_000)
    while True: pass
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)",
    );
    let options = ["--memory", "64M", "--timeout", "60s"];
    let outcome = bench.attack(&options, &words(&script));
    outcome.expect("oom_killed", 137, &["memory"]);
    let told = outcome.json["error"]["message"].as_str();
    assert!(
        told.is_some_and(|told| told.contains("file locks")),
        "{told:?}"
    );
}

/// A path that leads through 39 long links takes a watcher milliseconds, and its program next to nothing.
const LONG_PATHS: &str = "\
import os, time
os.mkdir('/tmp/d')
last = '/usr'
for number in range(39):
    link = f'/tmp/d/{number}'
    os.symlink(last + '/.' * ((3900 - len(last)) // 2), link)
    last = link
while True:
    for _ in range(20):
        try: os.open(last + '/nope', os.O_WRONLY | os.O_CREAT)
        except OSError: pass
    print(time.process_time(), flush=True)";

#[test]
fn looking_at_the_calls_of_a_program_is_cpu_time_of_its_sandbox() {
    let bench = Bench::new("looks");
    if !bench.has_cgroup("cpu") {
        return;
    }
    let options = ["--cpu-time", "2s", "--timeout", "120s"];
    let outcome = bench.attack(&options, &["python3", "-c", LONG_PATHS]);
    outcome.expect("failed", 128 + 24, &["cpu_time"]);
    assert!(outcome.number("/usage/cpu_ms") >= 1_900, "{outcome:#?}");
    let own = outcome.stdout().lines().last().expect("some rounds");
    let own: f64 = own.parse().expect("seconds");
    assert!(own < 1.0, "the program itself used {own} s");
}

/// As many descriptors in messages that nobody receives as the kernel lets it have.
const IN_FLIGHT: &str = "\
import array, socket, sys
pairs, count = [], 0
try:
    while True:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pairs.append((one, other))
        one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 250))])
        count += 250
except OSError: pass
print(count, flush=True)
sys.stdin.read()";

/// An ordinary user's sandboxes have that user outside, and the kernel counts what is in flight by the user.
#[test]
fn descriptors_in_flight_keep_no_other_sandbox_of_the_user_from_starting() {
    let bench = Bench::new("in-flight");
    fs::create_dir(&bench.state).expect("a state folder");
    let user = ordinary_user();
    if let Some((uid, gid)) = user {
        for folder in [&bench.folder, &bench.state] {
            chown(folder, Some(uid), Some(gid)).expect("a folder of the user");
        }
    }
    let run = |options: &[&str], script: &[&str]| {
        let mut command = match user {
            None => Command::new(binary()),
            Some((uid, gid)) => {
                let mut command = Command::new("setpriv");
                command
                    .args(["--reuid", &uid.to_string(), "--regid", &gid.to_string()])
                    .arg("--clear-groups")
                    .arg(binary());
                command
            }
        };
        command.args(["run", "--state"]).arg(&bench.state);
        command.args(options).arg("--").args(script);
        command.current_dir(&bench.folder).env_clear();
        command
    };
    let mut attacker = run(&["--stdin"], &["python3", "-c", IN_FLIGHT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("airlock starts");
    let in_flight: u32 = first_line(&mut attacker).trim().parse().expect("a number");
    // More than the limit of a program, which a sender of one more is compared with.
    assert!(in_flight > 128, "{in_flight}");
    let other = Outcome::of(run(&["--json"], &["echo", "neighbour"]).stdin(Stdio::null()));
    drop(attacker.stdin.take());
    assert!(attacker.wait().expect("its end").success());
    assert_eq!(other.expect("succeeded", 0, &[]).stdout(), "neighbour\n");
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("its output");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    line
}

/// The ordinary user of the tests, for root; whoever is one already stays that.
fn ordinary_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let number = |option: &str| -> u32 {
        let told = Command::new("id").args([option, &daemons::user()]).output();
        let text = String::from_utf8(told.expect("id starts").stdout).expect("a number");
        text.trim()
            .parse()
            .expect("the ordinary user of the tests is there")
    };
    Some((number("-u"), number("-g")))
}
