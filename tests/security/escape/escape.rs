//! The escape suite, as root and then as an ordinary user, in boxes made for it, in boxes made ahead, and in containers of a
//! Docker and two Podmans. Nothing may escape, every control that is run must work, and exactly the cases and controls
//! named here may be missing, for exactly these reasons.
//!
//! Docker's containers see all cases; Podman's those that depend on who makes the box, unless `AIRLOCK_FULL=1`.
//!
//! Environment: `AIRLOCK_BIN` (the binary; else the one beside this test), `AIRLOCK_FULL=1` (large counts),
//! `AIRLOCK_TEST_USER` (`airlock-test` unless told, made if absent), `AIRLOCK_EXPECT_CGROUP` and
//! `AIRLOCK_EXPECT_USER_CGROUP` (`none` where a box has no cgroup; else the user has none, and root has),
//! `AIRLOCK_GUEST=1` (a machine that is thrown away afterwards: also the controls that would harm one; no containers),
//! `AIRLOCK_BACKENDS` (of native, docker, podman; all unless told).

use daemons::{Daemons, IMAGE, Kind};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

/// How many cases there are. One that is lost must not go unnoticed.
const CASES: usize = 174;

/// Who starts the boxes, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    root: bool,
    cgroup: bool,
    guest: bool,
    /// Who makes them, if not we.
    maker: Option<Kind>,
    /// Whether they are made ahead.
    pooled: bool,
}

/// The cases that depend on who makes the box; in all others it is our own first process that holds.
const OF_MAKERS: [&str; 31] = [
    "A7", "A8", "A9", "A12", "A17", "A18", "A19", "A20", "B25", "B26", "B27", "B45", "B46", "C49",
    "C49d", "C50d", "C51", "C52", "C53", "C53d", "C66", "C67d", "C68", "E80", "E81", "E83", "E84",
    "E87", "E89", "X1", "X10",
];

type Reasons = BTreeMap<&'static str, &'static str>;

/// The cases that cannot be tried, and the beginning of why.
fn not_applicable(setting: Setting) -> Reasons {
    let mut all = Reasons::from([
        ("A1", "the file API is the gateway's"),
        ("A2", "the file API is the gateway's"),
        ("A3", "the file API is the gateway's"),
        ("A11", "a file system that folds case"),
        ("D73", "there are no placeholders"),
        ("D74", "this build signs no requests"),
        ("E86", "this build makes no snapshots"),
    ]);
    if !setting.cgroup {
        all.extend([
            ("B27", "a cgroup for the box"),
            ("E81", "a cgroup for memory"),
            ("X12", "a cgroup for the box"),
        ]);
    }
    if !(setting.guest && setting.root) {
        all.extend([("X8", "huge pages that are set aside and free")]);
        if !has_public_address() {
            all.extend([("X11", "a public address of this machine's own")]);
        }
    }
    if setting.guest {
        all.extend([("C49", "an address beside loopback")]);
    }
    if setting.maker.is_some() {
        all.extend([
            (
                "A21",
                "a folder as an image, which is refused for a container",
            ),
            (
                "B42",
                "the host's network, which is refused for a container",
            ),
            (
                "X4",
                "quotas of a user namespace of its own, which no container engine sets",
            ),
        ]);
        if !setting.root {
            all.extend([("X12", "the right to look into the processes of a container")]);
        }
    }
    all
}

/// Why group H is not tried in a setting, if it is not: it needs the owner's tools, and is the same in every box of ours.
fn without_host_tools(setting: Setting) -> Option<&'static str> {
    match setting {
        Setting { maker: Some(_), .. } => Some("git in the image"),
        Setting { guest: true, .. } => Some("there is no `"),
        Setting { pooled: true, .. } => Some("a kind of its own"),
        Setting { pooled: false, .. } => None,
    }
}

/// Whether others would see this machine by an address that is anybody's. Nothing is sent.
fn has_public_address() -> bool {
    let asked = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    asked.is_ok_and(|own| spec::address::is_public(own.ip()))
}

/// The controls that cannot be run, of cases that can.
fn not_controlled(setting: Setting) -> Reasons {
    let mut all = Reasons::new();
    if setting.maker.is_some() {
        // Its control is the peer, which is attacked once and not once for each engine.
        all.extend([("B38", "left out")]);
    }
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
    let root = std::fs::metadata("/proc/self")
        .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let own_cgroup = told("AIRLOCK_EXPECT_CGROUP").map_or(root, |value| value != "none");
    let engines = (root && !guest).then(start_engines).flatten();
    let mut good = true;
    let mut check = |setting: Setting, command: Command| good &= judge(setting, command);
    let native = Setting {
        root,
        cgroup: own_cgroup,
        guest,
        maker: None,
        pooled: false,
    };
    every_way(
        native,
        engines.as_ref(),
        || Command::new(binary()),
        &mut check,
    );
    if root {
        let cgroup = told("AIRLOCK_EXPECT_USER_CGROUP").is_some_and(|value| value != "none");
        let user = User::prepare();
        every_way(
            Setting {
                root: false,
                cgroup,
                ..native
            },
            engines.as_ref(),
            || user.command(),
            &mut check,
        );
        std::fs::remove_dir_all(user.folder).expect("our own folder");
    }
    drop(engines);
    std::process::exit(i32::from(!good));
}

fn wanted(backend: &str) -> bool {
    std::env::var("AIRLOCK_BACKENDS").map_or(true, |list| list.split(',').any(|one| one == backend))
}

fn start_engines() -> Option<Daemons> {
    let kinds = [Kind::Docker, Kind::Podman, Kind::Rootless]
        .into_iter()
        .filter(|kind| wanted(kind.backend()));
    let kinds: Vec<_> = kinds.collect();
    (!kinds.is_empty()).then(|| Daemons::start(&kinds))
}

/// In boxes made for each attack, in boxes made ahead, and in containers; the guest is too slow for more than the first.
fn every_way(
    native: Setting,
    engines: Option<&Daemons>,
    command: impl Fn() -> Command,
    check: &mut impl FnMut(Setting, Command),
) {
    if wanted("native") {
        let ways: &[bool] = if native.guest {
            &[false]
        } else {
            &[false, true]
        };
        ways.iter()
            .for_each(|&pooled| check(Setting { pooled, ..native }, command()));
    }
    let kinds: &[Kind] = if native.root {
        &[Kind::Docker, Kind::Podman]
    } else {
        &[Kind::Rootless]
    };
    for kind in kinds.iter().copied().filter(|kind| wanted(kind.backend())) {
        let Some(engines) = engines else { continue };
        let mut command = command();
        let variable = if kind == Kind::Docker {
            "DOCKER_HOST"
        } else {
            "CONTAINER_HOST"
        };
        command.env(variable, engines.host(kind));
        check(
            Setting {
                maker: Some(kind),
                ..native
            },
            command,
        );
    }
}

fn binary() -> PathBuf {
    let told = std::env::var_os("AIRLOCK_BIN").map(PathBuf::from);
    let test = std::env::current_exe().expect("this test has a path");
    let beside = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in target/PROFILE/deps")
        .join("airlock");
    let path = told.unwrap_or(beside);
    assert!(
        path.is_file(),
        "no `{}`: run `cargo build -p airlock -p airlock-escape` first, or set AIRLOCK_BIN",
        path.display()
    );
    path
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
        let folder =
            std::env::temp_dir().join(format!("airlock-escape-test-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a fresh folder");
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("mode");
        // The command, and the program of the attacks, which the command starts from its own folder.
        for name in ["airlock", "airlock-escape"] {
            std::fs::copy(binary().with_file_name(name), folder.join(name))
                .unwrap_or_else(|error| panic!("a copy of `{name}`: {error}"));
        }
        User { uid, gid, folder }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.folder.join("airlock"));
        command
            .uid(self.uid)
            .gid(self.gid)
            .current_dir("/")
            .env("HOME", "/nonexistent");
        command
    }
}

fn user(name: &str) -> Option<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = users
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut ids = line.split(':').skip(2).map(|id| id.parse().ok());
    Some((ids.next()??, ids.next()??))
}

/// Runs the suite, prints its rows, and counts those that do not hold.
fn judge(setting: Setting, mut command: Command) -> bool {
    command
        .args(["escape-test", "--json"])
        .args(setting.pooled.then_some("--pooled"));
    let full = std::env::var_os("AIRLOCK_FULL").is_some_and(|value| value == "1");
    if full && setting.maker.is_none() {
        command.arg("--full");
    }
    let mut cases = CASES;
    if let Some(kind) = setting.maker {
        command.args(["--backend", kind.backend(), "--image", IMAGE, "--no-peer"]);
        if kind != Kind::Docker && !full {
            command.args(["--only", &OF_MAKERS.join(",")]);
            cases = OF_MAKERS.len();
        }
    }
    if setting.guest {
        command.arg("--dangerously-harm-this-machine");
    }
    let done = command.output().expect("airlock starts");
    let (told, errors) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    let answer: Value = serde_json::from_str(&told)
        .unwrap_or_else(|error| panic!("no JSON ({error}): {told}{errors}"));
    let rows = answer["cases"].as_array().expect("a list of cases");
    let mut failed: Vec<_> = rows.iter().filter_map(|row| wrong(row, setting)).collect();
    if rows.len() != cases {
        failed.push(format!("expected {cases} cases, ran {}", rows.len()));
    }
    if (done.status.code() == Some(0)) != (answer["holds"] == Value::Bool(true)) {
        failed.push(format!(
            "exit status {:?}, but holds is {}",
            done.status.code(),
            answer["holds"]
        ));
    }
    failed.iter().for_each(|why| println!("FAIL {why}"));
    let who = if setting.root { "Root" } else { "User" };
    let maker = setting
        .maker
        .map_or(String::new(), |kind| format!("{kind:?}"));
    let who = [who, if setting.pooled { "Pooled" } else { "" }, &maker].concat();
    println!(
        "{who}: {} proofs, {} failed",
        rows.len().max(failed.len()),
        failed.len()
    );
    failed.is_empty()
}

/// What is wrong with a row, if anything.
fn wrong(row: &Value, setting: Setting) -> Option<String> {
    let text = |column: &str, part: &str| row[column][part].as_str().unwrap_or_default().to_owned();
    let id = row["id"].as_str().unwrap_or_default();
    let [airlock, control, peer] =
        ["airlock", "control", "bwrap"].map(|column| text(column, "verdict"));
    println!(
        "{id:<4} {:?} {airlock:<14} {control:<9} {peer}",
        if setting.root { "Root" } else { "User" }
    );
    let missing = match id.starts_with('H') {
        true => without_host_tools(setting),
        false => not_applicable(setting).get(id).copied(),
    };
    let expected = match (missing, not_controlled(setting).get(id)) {
        (Some(_), _) => airlock == "not_applicable",
        (None, Some(_)) => ["blocked", "detected"].contains(&&*airlock) && control == "not_run",
        (None, None) => ["blocked", "detected"].contains(&&*airlock) && control == "succeeded",
    };
    let reason = missing.or(not_controlled(setting).get(id).copied());
    let column = if missing.is_some() {
        "airlock"
    } else {
        "control"
    };
    let as_told = reason.is_none_or(|reason| text(column, "why").starts_with(reason));
    (!expected || !as_told).then(|| row.to_string())
}
