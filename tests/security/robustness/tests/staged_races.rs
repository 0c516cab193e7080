//! Hostile programs that race what is applied to a folder: one in a second sandbox that has the folder, or the one above
//! it, live, and one in the very layer that is applied, of a sandbox that goes on. They exchange folders, links and files
//! all the time. Beside the folder lies another one in which nothing may happen.
//!
//! 60 applies in all, over layers that are copies and over overlays; with `AIRLOCK_FULL=1` 1,000 of them. Only those count
//! that put something into the folder.

use engine::{
    Engine, Settings,
    workspaces::{self, CommitOptions, LayerError},
};
use robustness::{
    Bench, Outcome, PATIENCE, full, host,
    outside::{self, Outside},
};
use spec::{Id, LayerKind, Policy, RunRequest, Status};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Instant,
};

const RACER: &str = include_str!("races/racer.py");
const PROGRAM: &str = include_str!("races/program.py");
/// Whose the folder is, where we are root. Nobody has this number.
const OWNER: u32 = 23_459;
const SECRET: &str = "the secret beside the folder";

struct Ground {
    bench: Bench,
    outside: Outside,
}

impl Ground {
    fn new(name: &str) -> Ground {
        let bench = Bench::new(name);
        fs::write(bench.folder.join("config.toml"), "").expect("a file");
        let top = bench.folder.join("ground");
        for folder in ["outside/below", "p/w/d/e/f", "p/w/g", "p/w/keep"] {
            fs::create_dir_all(top.join(folder)).expect("a folder");
        }
        for path in ["outside/secret", "outside/below/.envrc"] {
            fs::write(top.join(path), SECRET).expect("a file");
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(top.join(path), mode).expect("its mode");
        }
        for number in 0..8 {
            for folder in ["p/w", "p/w/d", "p/w/d/e", "p/w/g"] {
                fs::write(top.join(folder).join(format!("n{number}")), "before").expect("a file");
            }
        }
        symlink("../../outside/secret", top.join("p/w/old-link")).expect("a link of the host's");
        if rustix::process::geteuid().is_root() {
            for path in host::listing(&top).into_iter().chain([PathBuf::new()]) {
                let path = top.join(path);
                std::os::unix::fs::lchown(&path, Some(OWNER), Some(OWNER)).expect("chown");
            }
        }
        Ground {
            outside: Outside::watch(top.join("outside")),
            bench,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.bench.folder.join("ground").join(path)
    }

    /// Nothing outside was touched, and nothing of it was read.
    fn check(&self) {
        assert_eq!(self.outside.escapes(), Vec::<String>::new());
        let places = [self.path("p"), self.bench.state.clone()];
        assert_eq!(outside::leaks(&places, SECRET), Vec::<PathBuf>::new());
    }

    /// The racer, in a sandbox that has a folder in some way, until its input ends.
    fn race(&self, options: &[&str], workspace: String, inside: &str) -> Racer {
        let mut command = self.bench.airlock("run");
        command.env("AIRLOCK_CONFIG", self.bench.folder.join("config.toml"));
        command.args(["--stdin", "--timeout", "15m"]).args(options);
        command.args(["--workspace", &workspace, "--", "python3", "-c", RACER]);
        command.arg(inside).arg(self.path("outside")).arg("on");
        Racer::start(command)
    }
}

struct Racer(Child);

impl Racer {
    fn start(mut command: Command) -> Racer {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut airlock = command.spawn().expect("airlock starts");
        let mut said = String::new();
        BufReader::new(airlock.stdout.take().expect("piped"))
            .read_line(&mut said)
            .expect("it says that it has begun");
        assert_eq!(said, "on\n");
        Racer(airlock)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert_eq!(self.0.wait().expect("it ends").code(), Some(0));
    }
}

/// What took the command's sandbox down may still be at it when the command has ended.
fn once_nobody_is_inside<T>(commit: impl Fn() -> Result<T, LayerError>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match commit() {
            Err(LayerError::FolderMoved { .. }) if Instant::now() < deadline => {}
            committed => return committed.expect("nobody is in it"),
        }
    }
}

/// How many applies each part of a test must see.
fn wanted() -> u32 {
    if full() { 250 } else { 15 }
}

fn on_runtime(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(test);
}

/// What became of applies.
#[derive(Debug, Default)]
struct Tally {
    /// Those that put something into the folder.
    applies: u32,
    /// Runs and commits that the racer kept from starting, or from changing anything.
    refused: u32,
    /// Changes that were applied.
    applied: u64,
    conflicts: u64,
    held: u64,
    layers: BTreeMap<&'static str, u32>,
    /// When the last apply was.
    last: Option<Instant>,
}

impl Tally {
    fn count(&mut self, applied: u64) {
        self.applied += applied;
        if applied == 0 {
            self.refused += 1;
            return;
        }
        self.applies += 1;
        self.last = Some(Instant::now());
    }

    /// Whether there were fewer applies. The next one must come within our patience.
    fn is_short_of(&self, applies: u32) -> bool {
        let is_patient = self.last.is_none_or(|last| last.elapsed() < PATIENCE);
        assert!(is_patient, "no apply within {PATIENCE:?}: {self:?}");
        self.applies < applies
    }

    fn check(&self, parts: u32) {
        println!("{self:?}");
        assert!(self.applies >= parts * wanted(), "{self:?}");
        assert!(self.conflicts > 0, "{self:?}");
        assert_eq!(self.layers.len(), 2, "{self:?}");
    }
}

/// One that plants and changes everything it finds, and ends; its changes are applied while another one races.
async fn apply_once(ground: &Ground, engine: &Engine, is_laid: bool, tally: &mut Tally) {
    let mut policy = Policy::default();
    if is_laid {
        policy.workspace.copy.get_or_insert_default().names = 1;
    }
    let request = RunRequest {
        command: ["python3", "-c", PROGRAM].map(Into::into).into(),
        workspace: Some(ground.path("p/w")),
        staged: true,
        ..RunRequest::default()
    };
    let result = engine
        .run(policy.admit(request).expect("a plain request"))
        .await;
    let changes = match (&result.status, &result.workspace) {
        (Status::NotStarted, _) => return tally.count(0),
        (Status::Succeeded, Some(changes)) => changes,
        _ => panic!("{result:#?}"),
    };
    tally.count(changes.applied);
    tally.conflicts += changes.conflicts_total;
    tally.held += changes.held_back_total;
    let kind = match changes.layer.expect("it has one").kind {
        LayerKind::Overlay => "overlay",
        LayerKind::Reflink | LayerKind::Copy => "copy",
    };
    *tally.layers.entry(kind).or_default() += 1;
    // What conflicts is kept: the next one begins with an empty state folder again.
    if let Err(error) = workspaces::discard(&ground.bench.state, &result.run_id) {
        assert!(matches!(error, LayerError::Absent { .. }), "{error}");
    }
}

#[test]
fn one_that_races_an_apply_in_the_folder_reaches_nothing_outside() {
    on_runtime(async {
        let mut tally = Tally::default();
        for (name, workspace, inside) in [
            ("staged-same", "p/w", "/workspace"),
            ("staged-above", "p", "/workspace/w"),
        ] {
            let ground = Ground::new(name);
            let engine = Engine::open(Settings::new(&ground.bench.state)).expect("an engine");
            let live = format!("{}:live", ground.path(workspace).display());
            let racer = ground.race(&[], live, inside);
            let goal = tally.applies + wanted();
            while tally.is_short_of(goal) {
                let is_laid = tally.applies % 2 == 0;
                apply_once(&ground, &engine, is_laid, &mut tally).await;
                ground.check();
            }
            racer.end();
            ground.check();
        }
        tally.check(2);
    });
}

/// Applies a layer again and again while its program goes on, until that has moved a folder of the host's: then nothing is
/// applied before it has ended.
fn apply_until_a_folder_is_moved(ground: &Ground, id: &Id, goal: u32, tally: &mut Tally) {
    while tally.is_short_of(goal) {
        let options = CommitOptions {
            partial: true,
            force: tally.applies.is_multiple_of(3),
            ..CommitOptions::default()
        };
        match workspaces::commit(&ground.bench.state, id, options) {
            Ok(committed) => {
                tally.count(committed.applied.len() as u64);
                let left = committed.left.iter();
                let (conflicts, held): (Vec<_>, Vec<_>) = left.partition(|left| left.conflict);
                tally.conflicts += conflicts.len() as u64;
                tally.held += held.len() as u64;
            }
            Err(LayerError::FolderMoved { .. }) => return tally.count(0),
            // A folder was being read while it moved.
            Err(LayerError::InUse { .. } | LayerError::Io { .. }) => tally.count(0),
            Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
        }
        ground.check();
    }
}

/// Its layer is applied again and again while it goes on, and another one races in the folder.
#[test]
fn one_that_races_in_its_own_layer_reaches_nothing_outside() {
    let mut tally = Tally::default();
    for (kind, names) in [("copy", 5000), ("overlay", 1)] {
        let ground = Ground::new(&format!("staged-inside-{kind}"));
        let state = &ground.bench.state;
        let config = format!("[workspace]\ncopy_names = {names}\n");
        fs::write(ground.bench.folder.join("config.toml"), config).expect("a file");
        let folder = ground.path("p/w").display().to_string();
        let goal = tally.applies + wanted();
        while tally.is_short_of(goal) {
            let id = ground.bench.run_id("layer");
            let options = ["--copy-on-write", "--run-id", &id];
            let inside = ground.race(&options, folder.clone(), "/workspace");
            let beside = ground.race(&[], format!("{folder}:live"), "/workspace");
            let id = Id::new(&id).expect("an id");
            apply_until_a_folder_is_moved(&ground, &id, goal, &mut tally);
            inside.end();
            // What it moved is read from the folder now, in which the other one still races.
            let options = CommitOptions {
                partial: true,
                keep: true,
                ..CommitOptions::default()
            };
            let last = once_nobody_is_inside(|| workspaces::commit(state, &id, options.clone()));
            tally.count(last.applied.len() as u64);
            ground.check();
            beside.end();
            workspaces::discard(state, &id).expect("nobody uses it");
            *tally.layers.entry(kind).or_default() += 1;
            ground.check();
        }
    }
    tally.check(2);
}

/// The control: one that applies by path, in a sandbox that has all of it, is led outside, and that is seen.
#[test]
fn one_that_applies_by_path_is_led_outside() {
    let ground = Ground::new("staged-control");
    let script = "cd /workspace; mkdir -p layer/d; echo evil >layer/d/n; cat p/w/old-link >p/read
        mv p/w/d p/w/aside; ln -s ../../outside/below p/w/d; cp layer/d/n p/w/d/n";
    let mut command = ground.bench.airlock("run");
    command.args(["--json", "--workspace"]);
    command.arg(format!("{}:live", ground.path("").display()));
    command.args(["--", "sh", "-c", script]);
    Outcome::of(&mut command).expect("succeeded", 0, &[]);
    let escapes = ground.outside.escapes();
    for what in ["OPEN", "CREATE", "became"] {
        let is_seen = escapes.iter().any(|it| it.contains(what));
        assert!(is_seen, "{what}: {escapes:?}");
    }
    let leaks = outside::leaks(&[ground.path("p")], SECRET);
    assert_eq!(leaks, [ground.path("p/read")]);
    let made = fs::metadata(ground.path("outside/below/n")).expect("it wrote there");
    assert!(made.is_file() && made.size() > 0);
}
