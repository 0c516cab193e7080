//! Hostile programs that race the end of a run in a mounted workspace, its start, and what is done with it afterwards:
//! they exchange folders, links and files of all kinds while Airlock looks through the folder and takes things out. One
//! races inside the sandbox until it is killed, another in a second sandbox that has the same folder, the one above it
//! or one in it, and goes on all the time. Beside the workspace lies a folder in which nothing may happen.
//!
//! 225 rounds in all; with `AIRLOCK_FULL=1` seven times as many, of which 1,050 have a racer beside the end of a run. Only
//! those count that came to an end.

use engine::{Engine, Settings, workspaces::held};
use robustness::{
    Bench, Outcome, PATIENCE, eventually, full, host,
    outside::{self, Outside},
};
use spec::{Policy, RunRequest, RunResult, Status};
use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
    process::{Child, Stdio},
    time::Instant,
};

const RACER: &str = include_str!("races/racer.py");
/// Whose the folders are, where we are root. Nobody has this number.
const OWNER: u32 = 23_456;
const SECRET: &str = "the secret beside the workspace";
/// In the workspace, and root's alone.
const THEIRS: &str = "what the owner of the workspace cannot read";
const ENVRC: &str = "export MINE=1\n";

/// A workspace, what lies around it, and who watches that.
struct Ground {
    bench: Bench,
    outside: Outside,
    /// Protected files of the host's, by inode.
    protected: BTreeSet<u64>,
    theirs: u64,
    /// The workspace that holds all others, below `p`.
    top: &'static str,
}

impl Ground {
    fn new(name: &str, top: &'static str) -> Ground {
        let bench = Bench::new(name);
        let top_folder = bench.folder.join("ground");
        let ground = |path: &str| top_folder.join(path);
        for folder in ["outside/below", "p/w/keep", "p/w/d", "p/beside", "p/held"] {
            fs::create_dir_all(ground(folder)).expect("a folder");
        }
        for (path, text, mode) in [
            ("outside/secret", SECRET, 0o600),
            ("outside/tool", SECRET, 0o4755),
            ("outside/below/.envrc", SECRET, 0o644),
            ("p/w/keep/.envrc", ENVRC, 0o644),
            ("p/beside/.envrc", ENVRC, 0o644),
            ("p/w/theirs", THEIRS, 0o600),
        ] {
            fs::write(ground(path), text).expect("a file");
            fs::set_permissions(ground(path), fs::Permissions::from_mode(mode)).expect("its mode");
        }
        symlink("../../outside/secret", ground("p/w/old-link")).expect("a link of the host's");
        let protected = ["p/w/keep/.envrc", "p/beside/.envrc"].map(|path| inode(&ground(path)));
        let theirs = inode(&ground("p/w/theirs"));
        if rustix::process::geteuid().is_root() {
            let all = host::listing(&top_folder).into_iter();
            for path in all.chain([PathBuf::new()]) {
                if path != Path::new("p/w/theirs") {
                    let path = top_folder.join(path);
                    std::os::unix::fs::lchown(&path, Some(OWNER), Some(OWNER)).expect("chown");
                    // Giving it away took its bits.
                    if path.ends_with("tool") {
                        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755))
                            .expect("its mode");
                    }
                }
            }
        }
        Ground {
            outside: Outside::watch(ground("outside")),
            bench,
            protected: protected.into(),
            theirs,
            top,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.bench.folder.join("ground").join(path)
    }

    /// Everything that happened to the folder outside, except that names in it were looked up.
    fn escapes(&self) -> Vec<String> {
        self.outside.escapes()
    }

    /// Copies of what lies outside, in these folders.
    fn leaks(&self, folders: &[PathBuf]) -> Vec<PathBuf> {
        outside::leaks(folders, SECRET)
    }

    fn everywhere(&self) -> [PathBuf; 2] {
        [self.path("p"), self.bench.state.clone()]
    }

    /// What may not be in the folders when nothing runs in them any more.
    fn left(&self) -> Vec<String> {
        let (all, top) = (self.path("p"), Path::new(self.top));
        let mut left = Vec::new();
        for path in host::listing(&all) {
            let place = all.join(&path);
            let found = fs::symlink_metadata(&place).expect("nobody changes it any more");
            let name = place.file_name().unwrap_or_default().to_string_lossy();
            let kind = found.file_type();
            let is_protected = [".envrc", ".vscode", ".idea", ".git"].contains(&&*name);
            let text = if kind.is_file() {
                fs::read(&place).expect("a file")
            } else {
                Vec::new()
            };
            let wrong = if self.protected.contains(&found.ino()) {
                text != ENVRC.as_bytes()
            } else if kind.is_symlink() {
                let target = fs::read_link(&place).expect("a link");
                name != "old-link" && leads_out(path.strip_prefix(top).unwrap_or(&path), &target)
            } else {
                is_protected
                    || kind.is_socket()
                    || kind.is_char_device()
                    || kind.is_file() && found.mode() & 0o6000 != 0
            };
            if wrong {
                left.push(format!(
                    "{} {:o} {:?}",
                    path.display(),
                    found.mode(),
                    String::from_utf8_lossy(&text)
                ));
            }
        }
        left
    }

    /// Whatever became of its name, root's file is what it was.
    fn theirs(&self) -> Vec<String> {
        let places = [self.path("p"), self.bench.state.join("held")];
        let all = places
            .iter()
            .flat_map(|top| host::listing(top).into_iter().map(|path| top.join(path)));
        let his = all.filter(|path| inode(path) == self.theirs);
        his.map(|path| {
            let found = fs::symlink_metadata(&path).expect("it is there");
            let text = fs::read_to_string(&path).expect("a text");
            format!("{:o} {} {text}", found.mode() & 0o7777, found.uid())
        })
        .collect()
    }

    /// Nothing outside was touched, and nothing is left.
    fn check(&self) {
        assert_eq!(self.escapes(), Vec::<String>::new());
        assert_eq!(self.leaks(&self.everywhere()), Vec::<PathBuf>::new());
        assert_eq!(self.left(), Vec::<String>::new());
        let (uid, mode) = (rustix::process::geteuid().as_raw(), 0o600);
        assert_eq!(self.theirs(), [format!("{mode:o} {uid} {THEIRS}")]);
    }

    fn request(&self, workspace: &str, mode: &str) -> RunRequest {
        let outside = self.path("outside");
        let words = ["python3", "-c", RACER, "/workspace"].map(Into::into);
        let mut command: Vec<std::ffi::OsString> = words.into();
        command.extend([outside.into(), mode.into()]);
        RunRequest {
            command,
            workspace: Some(self.path(workspace)),
            ..RunRequest::default()
        }
    }
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |found| found.ino())
}

/// Whether a link leads out of the folder that its path is relative to, by its words.
fn leads_out(path: &Path, target: &Path) -> bool {
    let up = target
        .components()
        .filter(|part| *part == Component::ParentDir)
        .count();
    target.is_absolute() || up >= path.components().count()
}

/// A second sandbox, in which the racer goes on.
struct Other {
    airlock: Child,
}

impl Other {
    fn start(ground: &Ground, workspace: &str, inside: &str) -> Other {
        let mut command = ground.bench.airlock("run");
        command.args(["--stdin", "--timeout", "15m", "--workspace"]);
        command
            .arg(robustness::live(&ground.path(workspace)))
            .args(["--", "python3", "-c", RACER, inside]);
        command.arg(ground.path("outside")).arg("on");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut airlock = command.spawn().expect("airlock starts");
        let mut said = String::new();
        let output = airlock.stdout.take().expect("piped");
        BufReader::new(output)
            .read_line(&mut said)
            .expect("it says that it has begun");
        assert_eq!(said, "on\n");
        Other { airlock }
    }

    fn end(mut self) {
        drop(self.airlock.stdin.take());
        assert_eq!(self.airlock.wait().expect("it ends").code(), Some(0));
    }
}

fn rounds(share: u32) -> u32 {
    if full() { share * 7 } else { share }
}

fn on_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(test);
}

async fn run(engine: &Engine, request: RunRequest) -> RunResult {
    engine
        .run(Policy::default().admit(request).expect("a plain request"))
        .await
}

/// What became of rounds: how many ended by themselves, and how many the racer kept from starting.
#[derive(Debug, Default)]
struct Tally {
    ended: u32,
    refused: u32,
    held: usize,
    /// When the last one ended.
    last: Option<Instant>,
}

impl Tally {
    fn add(&mut self, result: &RunResult) {
        match result.status {
            Status::Succeeded => {
                self.ended += 1;
                self.last = Some(Instant::now());
            }
            Status::NotStarted => self.refused += 1,
            _ => panic!("{result:#?}"),
        }
        self.held += result.workspace.as_ref().map_or(0, |it| it.held_back.len());
    }

    /// Whether fewer rounds ended. The next one must end within our patience.
    fn is_short_of(&self, rounds: u32) -> bool {
        let is_patient = self.last.is_none_or(|last| last.elapsed() < PATIENCE);
        assert!(is_patient, "no round ended within {PATIENCE:?}: {self:?}");
        self.ended < rounds
    }
}

#[test]
fn one_that_races_until_it_is_killed_reaches_nothing_outside() {
    on_runtime(async {
        let ground = Ground::new("race-inside", "w");
        let engine = Engine::open(Settings::new(&ground.bench.state)).expect("an engine");
        let mut tally = Tally::default();
        for _ in 0..rounds(50) {
            tally.add(&run(&engine, ground.request("p/w", "once")).await);
            ground.check();
        }
        println!("{tally:?}");
        assert_eq!(tally.ended, rounds(50));
        assert!(tally.held > 0);
    });
}

async fn beside(name: &str, (workspace, inside): (&str, &str), rounds: u32) {
    let ground = Ground::new(name, if workspace == "p" { "" } else { "w" });
    let engine = Engine::open(Settings::new(&ground.bench.state)).expect("an engine");
    let other = Other::start(&ground, workspace, inside);
    let mut tally = Tally::default();
    while tally.is_short_of(rounds) {
        tally.add(&run(&engine, ground.request("p/w", "once")).await);
        assert_eq!(ground.escapes(), Vec::<String>::new(), "{tally:?}");
    }
    other.end();
    println!("{name}: {tally:?}");
    ground.check();
    assert!(tally.held > 0, "{tally:?}");
}

#[test]
fn one_in_a_second_sandbox_reaches_nothing_outside() {
    on_runtime(async {
        beside("race-same", ("p/w", "/workspace"), rounds(70)).await;
        beside("race-above", ("p", "/workspace/w"), rounds(40)).await;
        beside("race-below", ("p/w/d", "/workspace"), rounds(40)).await;
    });
}

/// What was taken out is put back, and a killed run is swept, while the other one goes on.
#[test]
fn one_that_races_a_sweep_and_what_is_taken_back_reaches_nothing_outside() {
    on_runtime(async {
        let ground = Ground::new("race-after", "w");
        let engine = Engine::open(Settings::new(&ground.bench.state)).expect("an engine");
        let other = Other::start(&ground, "p/w", "/workspace");
        let state = &ground.bench.state;
        let (mut taken, mut swept) = (0, 0);
        let mut tally = Tally::default();
        while tally.is_short_of(rounds(25)) {
            let result = run(&engine, ground.request("p/w", "once")).await;
            tally.add(&result);
            for thing in held::list(state, Some(&result.run_id)).expect("a list") {
                taken += u32::from(held::take(state, &result.run_id, &thing.path).is_ok());
            }
            let id = ground.bench.run_id("killed");
            let mut killed = ground.bench.airlock("run");
            killed
                .args(["--run-id", &id, "--workspace"])
                .arg(robustness::live(&ground.path("p/w")));
            killed.args([
                "--",
                "sh",
                "-c",
                "mkdir -p k; ln -s ../.. k/up; echo evil > k/.envrc; sleep 1000",
            ]);
            killed.stderr(Stdio::null());
            let mut killed = killed.spawn().expect("airlock starts");
            // It may not start at all beside the other.
            eventually("it runs or is refused", || {
                let runs = !host::programs_of(&id).is_empty();
                (runs || killed.try_wait().expect("it is our child").is_some()).then_some(())
            });
            _ = killed.kill();
            killed.wait().expect("it ends");
            eventually("its program is gone", || {
                host::programs_of(&id).is_empty().then_some(())
            });
            ground.bench.sweep();
            let start = state.join("held").join(&id).join("start");
            eventually("it is swept", || {
                if start.exists() {
                    ground.bench.sweep();
                }
                (!start.exists()).then_some(())
            });
            swept += u32::from(state.join("held").join(&id).exists());
            assert_eq!(ground.escapes(), Vec::<String>::new(), "{tally:?}");
        }
        other.end();
        println!("{tally:?}, {taken} things were taken back, {swept} sweeps took something out");
        // What was put back by hand is the user's now: a last run begins with it, and ends with it.
        assert_eq!(ground.escapes(), Vec::<String>::new());
        assert_eq!(ground.leaks(&ground.everywhere()), Vec::<PathBuf>::new());
        assert!(taken > 0 && swept > 0, "{taken} {swept}");
    });
}

/// The control: one that goes by path, in a sandbox that has all of it, is led outside, and that is seen.
#[test]
fn one_that_cleans_up_by_path_is_led_outside() {
    let ground = Ground::new("race-control", "w");
    let mut command = ground.bench.airlock("run");
    command
        .args(["--json", "--workspace"])
        .arg(robustness::live(&ground.path("")));
    command.args([
        "--",
        "python3",
        "-c",
        RACER,
        "/workspace/p/w",
        "/workspace/outside",
        "clean",
    ]);
    Outcome::of(&mut command).expect("succeeded", 0, &[]);
    let escapes = ground.escapes();
    assert!(
        escapes.iter().any(|it| it.contains("OPEN")),
        "it is read: {escapes:?}"
    );
    assert_ne!(
        ground.leaks(&[ground.path("p/held")]),
        Vec::<PathBuf>::new()
    );
}
