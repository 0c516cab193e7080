//! The escape suite, as root and then as an ordinary user, in boxes made for it and in boxes made ahead. Nothing may escape, every control that is run must work,
//! and exactly the cases and controls named here may be missing, for exactly these reasons.
//!
//! Environment: `AIRLOCK_BIN` (the binary; else the one beside this test), `AIRLOCK_FULL=1` (large counts),
//! `AIRLOCK_TEST_USER` (`airlock-test` unless told, made if absent), `AIRLOCK_EXPECT_CGROUP` and
//! `AIRLOCK_EXPECT_USER_CGROUP` (`none` where a box has no cgroup; else the user has none, and root has),
//! `AIRLOCK_GUEST=1` (a machine that is thrown away afterwards: also the controls that would harm one).

use serde_json::Value;
use std::{
    collections::BTreeMap,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

/// How many cases there are. One that is lost must not go unnoticed.
const CASES: usize = 73;

/// Who starts the boxes, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    root: bool,
    cgroup: bool,
    guest: bool,
}

type Reasons = BTreeMap<&'static str, &'static str>;

/// The cases that cannot be tried, and the beginning of why.
fn not_applicable(setting: Setting) -> Reasons {
    let mut all = Reasons::from([
        ("A1", "this build has no file API"),
        ("A2", "this build has no file API"),
        ("A3", "this build has no file API"),
        ("A11", "a file system that folds case"),
        ("E86", "this build makes no snapshots"),
    ]);
    if !setting.cgroup {
        all.extend([("B27", "a cgroup for the box"), ("E81", "a cgroup for memory")]);
    }
    if !(setting.guest && setting.root) {
        all.extend([("X8", "huge pages that are set aside and free")]);
    }
    if setting.guest {
        all.extend([("C49", "an address beside loopback")]);
    }
    all
}

/// The controls that cannot be run, of cases that can.
fn not_controlled(setting: Setting) -> Reasons {
    let mut all = Reasons::new();
    if !setting.guest {
        all.extend([("B25", "guest only"), ("C54", "guest only")]);
    } else if !setting.root {
        all.extend([("B25", "as root only"), ("C54", "as root only")]);
    }
    if !setting.root {
        all.extend([
            ("A14", "as root only"),
            ("A17", "as root only"),
            ("B45", "as root only"),
            ("X7", "as root only"),
        ]);
        if setting.cgroup {
            all.extend([("B27", "as root only")]);
        }
    }
    all
}

fn main() {
    let told = |name: &str| std::env::var(name).ok();
    let guest = told("AIRLOCK_GUEST").is_some_and(|value| value == "1");
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let own_cgroup = told("AIRLOCK_EXPECT_CGROUP").map_or(root, |value| value != "none");
    let good = both_ways(Setting { root, cgroup: own_cgroup, guest }, || Command::new(binary()));
    let user_good = !root || {
        let cgroup = told("AIRLOCK_EXPECT_USER_CGROUP").is_some_and(|value| value != "none");
        let user = User::prepare();
        let good = both_ways(Setting { root: false, cgroup, guest }, || user.command());
        std::fs::remove_dir_all(user.folder).expect("our own folder");
        good
    };
    std::process::exit(i32::from(!(good && user_good)));
}

fn binary() -> PathBuf {
    let told = std::env::var_os("AIRLOCK_BIN").map(PathBuf::from);
    let test = std::env::current_exe().expect("this test has a path");
    let beside =
        test.parent().and_then(Path::parent).expect("tests lie in target/PROFILE/deps").join("airlock");
    let path = told.unwrap_or(beside);
    assert!(
        path.is_file(),
        "no `{}`: run `cargo build -p airlock` first, or set AIRLOCK_BIN",
        path.display()
    );
    path
}

/// In boxes made for each attack, then in boxes made ahead; the guest is too slow for both.
fn both_ways(setting: Setting, command: impl Fn() -> Command) -> bool {
    let ways: &[bool] = if setting.guest { &[false] } else { &[false, true] };
    // All of them, also after one that failed.
    ways.iter().filter(|pooled| !judge(setting, **pooled, command())).count() == 0
}

/// An ordinary user, with the binary in a folder that he can read.
struct User {
    uid: u32,
    gid: u32,
    folder: PathBuf,
}

impl User {
    fn prepare() -> User {
        let name = std::env::var("AIRLOCK_TEST_USER").unwrap_or_else(|_| "airlock-test".to_owned());
        let make = || {
            _ = Command::new("useradd")
                .args(["--system", "--no-create-home", "--user-group", &name])
                .status();
            user(&name)
        };
        let found = user(&name).or_else(make);
        let (uid, gid) = found.unwrap_or_else(|| {
            panic!("prerequisite: there is no user `{name}`, and `useradd` cannot make it")
        });
        let folder = std::env::temp_dir().join(format!("airlock-escape-test-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a fresh folder");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("mode");
        std::fs::copy(binary(), folder.join("airlock")).expect("a copy of the binary");
        User { uid, gid, folder }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.folder.join("airlock"));
        command.uid(self.uid).gid(self.gid).current_dir("/").env("HOME", "/nonexistent");
        command
    }
}

fn user(name: &str) -> Option<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
    Some((ids.next()??, ids.next()??))
}

/// Runs the suite, prints its rows, and counts those that do not hold.
fn judge(setting: Setting, pooled: bool, mut command: Command) -> bool {
    command.args(["escape-test", "--json"]).args(pooled.then_some("--pooled"));
    if std::env::var_os("AIRLOCK_FULL").is_some_and(|value| value == "1") {
        command.arg("--full");
    }
    if setting.guest {
        command.arg("--dangerously-harm-this-machine");
    }
    let done = command.output().expect("airlock starts");
    let (told, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let answer: Value =
        serde_json::from_str(&told).unwrap_or_else(|error| panic!("no JSON ({error}): {told}{errors}"));
    let rows = answer["cases"].as_array().expect("a list of cases");
    let mut failed: Vec<_> = rows.iter().filter_map(|row| wrong(row, setting)).collect();
    if rows.len() != CASES {
        failed.push(format!("expected {CASES} cases, ran {}", rows.len()));
    }
    if (done.status.code() == Some(0)) != (answer["holds"] == Value::Bool(true)) {
        failed.push(format!("exit status {:?}, but holds is {}", done.status.code(), answer["holds"]));
    }
    failed.iter().for_each(|why| println!("FAIL {why}"));
    let who = if setting.root { "Root" } else { "User" };
    let who = [who, if pooled { "Pooled" } else { "" }].concat();
    println!("{who}: {} proofs, {} failed", rows.len().max(failed.len()), failed.len());
    failed.is_empty()
}

/// What is wrong with a row, if anything.
fn wrong(row: &Value, setting: Setting) -> Option<String> {
    let text = |column: &str, part: &str| row[column][part].as_str().unwrap_or_default().to_owned();
    let id = row["id"].as_str().unwrap_or_default();
    let [airlock, control, peer] = ["airlock", "control", "bwrap"].map(|column| text(column, "verdict"));
    println!("{id:<4} {:?} {airlock:<14} {control:<9} {peer}", if setting.root { "Root" } else { "User" });
    let missing = not_applicable(setting).get(id).copied();
    let expected = match (missing, not_controlled(setting).get(id)) {
        (Some(_), _) => airlock == "not_applicable",
        (None, Some(_)) => ["blocked", "detected"].contains(&&*airlock) && control == "not_run",
        (None, None) => ["blocked", "detected"].contains(&&*airlock) && control == "succeeded",
    };
    let reason = missing.or(not_controlled(setting).get(id).copied());
    let column = if missing.is_some() { "airlock" } else { "control" };
    let as_told = reason.is_none_or(|reason| text(column, "why").starts_with(reason));
    (!expected || !as_told).then(|| row.to_string())
}
