//! Kills at any moment: the runner, its launcher, the processes that hold a box, and the sweep itself die at random
//! points of a run. Afterwards nothing is left, and a run that goes on beside all of this notices nothing.
//!
//! Everything below this process is looked at, so the tests here take turns. `AIRLOCK_KILLS` says how many
//! kills (60 unless said), `AIRLOCK_SEED` repeats a storm's delays and victims.

use robustness::{
    Bench, Neighbour, Outcome, PATIENCE, eventually, host, orphans, random::SeededRandom,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The ordinary user of these tests, made for them and removed after them.
const USER: &str = "airlock-test";
/// No run here takes longer, however busy the machine is.
const LONGEST_RUN: Duration = Duration::from_secs(2);
const INPUT_BYTES: usize = 512 << 10;
const WORK: &str =
    "(setsid sleep 1000 &); sleep 0.02; mkdir made; echo x > made/x; cp in.bin out.bin; echo done";
/// Waits for its input, then tries what it must not.
const BESIDE: &str = "cat > /dev/null; echo well > own
    mkdir .git; echo bad > .idea
    for name in .vscode .envrc .claude; do
        if echo bad > $name/planted || echo bad > $name || rmdir $name || mv $name moved; then echo $name was open; fi
    done 2> /dev/null
    echo end";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Runner,
    Launcher,
    Inner,
    Sweep,
}

const VICTIMS: [Victim; 4] = [
    Victim::Runner,
    Victim::Launcher,
    Victim::Inner,
    Victim::Sweep,
];

fn wait(child: &mut Child, what: &str) {
    let end = Instant::now() + PATIENCE;
    while child.try_wait().expect("it is our child").is_none() {
        assert!(Instant::now() < end, "{what} does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A state folder under fire.
struct Storm {
    bench: Bench,
    user: Option<&'static str>,
    input: PathBuf,
    chance: SeededRandom,
    /// How many kills came in which phase of a run.
    phases: BTreeMap<(&'static str, Victim), u64>,
}

/// One run under fire.
struct Target {
    run: String,
    workspace: PathBuf,
    before: BTreeSet<i32>,
    airlock: Child,
}

impl Storm {
    fn new(name: &str, user: Option<&'static str>) -> Storm {
        let bench = Bench::new(name);
        let input = bench.folder.join("input");
        fs::write(&input, vec![b'x'; INPUT_BYTES]).expect("the input");
        // Where an ordinary user can reach it, wherever the sources lie.
        fs::copy(robustness::binary(), bench.folder.join("airlock")).expect("a copy of the binary");
        give(&bench.folder, user);
        Storm {
            bench,
            user,
            input,
            chance: SeededRandom::seeded(),
            phases: BTreeMap::new(),
        }
    }

    fn airlock(&self, subcommand: &str) -> Command {
        let mut command = self.bench.airlock(subcommand);
        if let Some(user) = self.user {
            let plain = std::mem::replace(&mut command, Command::new("runuser"));
            let binary = self.bench.folder.join("airlock");
            command
                .args(["-u", user, "--"])
                .arg(binary)
                .args(plain.get_args());
            command
                .env("HOME", &self.bench.folder)
                .current_dir(&self.bench.folder)
                .stdin(Stdio::null());
        }
        command
    }

    fn workspace(&self, name: &str) -> PathBuf {
        let path = self.bench.workspace(name);
        fs::write(path.join("mine"), "mine").expect("a file of the user's");
        give(&path, self.user);
        path
    }

    fn start(&self) -> Target {
        orphans::reap();
        let run = self.bench.run_id("storm");
        let workspace = self.workspace(&run);
        let before = orphans::below_us();
        let mut command = self.airlock("run");
        command
            .args(["--json", "--run-id", &run, "--workspace"])
            .arg(robustness::live(&workspace));
        command
            .arg("--input")
            .arg(format!("in.bin={}", self.input.display()));
        command.args(["--artifact", "out.bin", "--", "sh", "-c", WORK]);
        // Not pipes: nobody reads them before the end.
        command.stdout(
            fs::File::create(self.bench.folder.join("out")).expect("a file for the result"),
        );
        let airlock = command
            .stderr(Stdio::null())
            .spawn()
            .expect("airlock starts");
        Target {
            run,
            workspace,
            before,
            airlock,
        }
    }

    /// How long a run, or a sweep, takes when nobody disturbs it.
    fn measure(&self, act: impl Fn(&Storm) -> Duration) -> Duration {
        let mut times: Vec<_> = (0..5).map(|_| act(self)).collect();
        times.sort();
        times[2]
    }

    fn undisturbed(&self) -> Duration {
        let mut target = self.start();
        let begin = Instant::now();
        wait(&mut target.airlock, "an undisturbed run");
        let time = begin.elapsed();
        assert_eq!(self.result().expect("succeeded", 0, &[]).stdout(), "done\n");
        let kept = fs::metadata(target.workspace.join("out.bin"))
            .expect("the program's file")
            .len();
        assert_eq!(kept, INPUT_BYTES as u64);
        self.check(target, "an undisturbed run");
        time
    }

    fn result(&self) -> Outcome {
        let text = fs::read(self.bench.folder.join("out")).expect("the result");
        let outcome = Outcome::read(None, &text, b"");
        Outcome {
            exit: outcome.json["exit_status"].as_i64().map(|exit| exit as i32),
            ..outcome
        }
    }

    fn sweep(&self) -> serde_json::Value {
        let done = self
            .airlock("sweep")
            .arg("--json")
            .output()
            .expect("airlock starts");
        serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    fn delay(&mut self, longest: Duration) {
        let nanoseconds = self.chance.below(longest.as_nanos() as u64);
        std::thread::sleep(Duration::from_nanos(nanoseconds));
    }

    /// Kills one victim of a fresh run at a random moment; whether there was still somebody to kill.
    fn strike(&mut self, victim: Victim, run_time: Duration, sweep_time: Duration) -> bool {
        let mut target = self.start();
        self.delay(run_time);
        *self
            .phases
            .entry((self.phase(&target), victim))
            .or_default() += 1;
        let struck = target.strike(victim);
        let what = format!("the run {} after its {victim:?} was killed", target.run);
        wait(&mut target.airlock, &what);
        match victim {
            Victim::Sweep => self.strike_sweep(sweep_time),
            Victim::Runner if self.chance.below(2) == 0 => drop(self.sweep()),
            Victim::Runner => {}
            // The runner lives and has to clean up by itself, and to say what happened.
            Victim::Launcher | Victim::Inner => {
                let outcome = self.result();
                let known = ["lost", "not_started", "failed", "succeeded"];
                assert!(known.contains(&outcome.status()), "{what}: {outcome:#?}");
                eventually(&what, || {
                    // One that outlived its runner is ours to bury; until then the first process of its box cannot end.
                    orphans::reap();
                    target.ours().is_empty().then_some(())
                });
                assert_eq!(
                    self.left_of(&target),
                    Vec::<String>::new(),
                    "{what}, without a sweep"
                );
            }
        }
        self.check(target, &what);
        struck
    }

    /// How far a run has come, by its traces.
    fn phase(&self, target: &Target) -> &'static str {
        let there = |name: &str| target.workspace.join(name).exists();
        match (
            self.bench.state.join("runs").join(&target.run).exists(),
            there("in.bin"),
            there("out.bin"),
        ) {
            (_, _, true) => "4 ending",
            (_, true, false) => "3 running",
            (true, false, false) => "2 making the box",
            (false, false, false) => "1 starting",
        }
    }

    fn strike_sweep(&mut self, sweep_time: Duration) {
        let mut sweep = self
            .airlock("sweep")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("airlock starts");
        self.delay(sweep_time);
        let found = host::descendants(sweep.id() as i32)
            .into_iter()
            .find(|pid| is_airlock(*pid));
        if let Some(process) = host::hold(found.unwrap_or(sweep.id() as i32)) {
            host::kill(&process);
        }
        wait(&mut sweep, "the sweep");
    }

    /// Once its processes have died, one sweep leaves nothing of a run.
    fn check(&self, target: Target, what: &str) {
        eventually(&format!("{what}: all processes gone"), || {
            orphans::reap();
            (target.ours().is_empty() && host::carrying(&target.run).is_empty()).then_some(())
        });
        let swept = self.sweep();
        assert_eq!(swept["problems"], serde_json::json!([]), "{what}");
        assert_eq!(self.left_of(&target), Vec::<String>::new(), "{what}");
        fs::remove_dir_all(&target.workspace).expect("a workspace without mounts can be removed");
    }

    /// Traces of a run on the host.
    fn left_of(&self, target: &Target) -> Vec<String> {
        let mut left: Vec<String> = Vec::new();
        let mut add = |what: &str, found: Vec<String>| {
            left.extend(found.iter().map(|one| format!("{what}: {one}")))
        };
        let shown = |paths: Vec<PathBuf>| {
            paths
                .iter()
                .map(|path| path.display().to_string())
                .collect()
        };
        add("cgroup", shown(host::cgroups_naming(&target.run)));
        add("mount", host::mounts_naming(&self.bench.folder));
        let written = ["mine", "in.bin", "out.bin", "made", "made/x"].map(PathBuf::from);
        let found = host::listing(&target.workspace).into_iter();
        add(
            "in the workspace",
            shown(found.filter(|path| !written.contains(path)).collect()),
        );
        let state = host::listing(&self.bench.state);
        let ours = |path: &&PathBuf| {
            let name = path.to_string_lossy();
            path.starts_with("runs") && name.contains(&target.run)
                || path.starts_with("held") && name.contains(&target.run)
                || path.starts_with("artifacts/.drafts") && path.components().count() > 2
        };
        add(
            "in the state folder",
            shown(state.iter().filter(ours).cloned().collect()),
        );
        left
    }
}

impl Target {
    /// Processes of this run.
    fn ours(&self) -> BTreeSet<i32> {
        orphans::below_us()
            .difference(&self.before)
            .copied()
            .collect()
    }

    /// Kills the victim as soon as there is one; false if the run was over before.
    fn strike(&mut self, victim: Victim) -> bool {
        loop {
            let ours = self.ours();
            let pick = ours.iter().copied().find(|pid| match victim {
                Victim::Runner | Victim::Sweep => is_airlock(*pid),
                Victim::Launcher => is_init(*pid) && !host::parent(*pid).is_some_and(is_init),
                Victim::Inner => is_init(*pid) && host::parent(*pid).is_some_and(is_init),
            });
            // Held first, then looked at again: the number cannot have changed hands in between.
            let held = pick.and_then(|pid| Some((pid, host::hold(pid)?)));
            if let Some((pid, process)) = held
                && self.ours().contains(&pid)
                && host::kill(&process)
            {
                return true;
            }
            if self.airlock.try_wait().expect("it is our child").is_some() {
                return false;
            }
        }
    }
}

fn is_airlock(pid: i32) -> bool {
    Path::new(&host::name(pid))
        .file_name()
        .is_some_and(|name| name == "airlock")
}

fn is_init(pid: i32) -> bool {
    host::name(pid) == "airlock-launcher"
}

fn give(path: &Path, user: Option<&str>) {
    let Some(user) = user else { return };
    assert!(
        Command::new("chown")
            .arg("-R")
            .arg(user)
            .arg(path)
            .status()
            .expect("chown starts")
            .success()
    );
}

/// A run with a workspace that goes on all the time.
struct Beside {
    airlock: Child,
    workspace: PathBuf,
}

impl Beside {
    fn start(storm: &Storm) -> Beside {
        let workspace = storm.workspace("beside");
        for name in [".vscode", ".claude"] {
            fs::create_dir(workspace.join(name)).expect("a folder of the user's");
        }
        fs::write(workspace.join(".envrc"), "mine").expect("a file of the user's");
        give(&workspace, storm.user);
        let run = storm.bench.run_id("beside");
        let mut command = storm.airlock("run");
        command
            .args([
                "--json",
                "--stdin",
                "--timeout",
                "2h",
                "--run-id",
                &run,
                "--workspace",
            ])
            .arg(robustness::live(&workspace));
        command
            .args(["--", "sh", "-c", BESIDE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let airlock = command.spawn().expect("airlock starts");
        // The shell and what it waits for: one that came later would be taken for somebody of a run under fire.
        eventually("the run beside", || {
            (host::programs_of(&run).len() >= 2).then_some(())
        });
        Beside { airlock, workspace }
    }

    fn end(self) {
        let done = self.airlock.wait_with_output().expect("airlock ends");
        let outcome = Outcome::read(done.status.code(), &done.stdout, b"");
        assert_eq!(outcome.expect("succeeded", 0, &[]).stdout(), "end\n");
        let left: Vec<_> = host::listing(&self.workspace).into_iter().collect();
        assert_eq!(
            left,
            [".claude", ".envrc", ".vscode", "mine", "own"].map(PathBuf::from),
            "protected names that the program made stayed"
        );
    }
}

fn kills() -> u64 {
    std::env::var("AIRLOCK_KILLS")
        .map_or(60, |text| text.parse().expect("AIRLOCK_KILLS is a number"))
}

fn storm(mut storm: Storm, kills: u64) {
    let mut run_time = storm.measure(Storm::undisturbed);
    let sweep_time = storm.measure(|storm| {
        let begin = Instant::now();
        storm.sweep();
        begin.elapsed()
    });
    println!("a run takes {run_time:?}, a sweep {sweep_time:?}");
    let beside = Beside::start(&storm);
    let before = host::namespaces(&orphans::below_us());
    let (mut struck, mut late) = (0, 0);
    let mut victims = VICTIMS.into_iter().cycle();
    while struck < kills {
        let victim = victims.next().expect("a cycle has no end");
        // The machine may be busier or less busy than when it was measured.
        match storm.strike(victim, run_time, sweep_time) {
            true => (struck, run_time) = (struck + 1, run_time.mul_f32(1.02).min(LONGEST_RUN)),
            false => (late, run_time) = (late + 1, run_time.mul_f32(0.9)),
        }
        assert!(late <= kills * 4 + 40, "nearly all kills come too late");
        assert!(
            orphans::below_us().contains(&(beside.airlock.id() as i32)),
            "kill {struck}: the run beside died"
        );
    }
    println!(
        "{struck} kills, {late} came too late; by phase: {:?}",
        storm.phases
    );
    assert_eq!(
        host::namespaces(&orphans::below_us()),
        before,
        "namespaces were left"
    );
    beside.end();
}

#[test]
fn kills_at_any_moment_leave_nothing() {
    let _turn = orphans::take_turn();
    storm(Storm::new("storm", None), kills());
}

#[test]
fn kills_at_any_moment_leave_nothing_of_an_ordinary_user() {
    let _turn = orphans::take_turn();
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "prerequisite: root, to start runs as another user"
        );
        println!("NOT RUN: only root can start runs as another user");
        return;
    }
    let known = Command::new("id")
        .arg(USER)
        .output()
        .expect("id starts")
        .status
        .success();
    if !known {
        assert!(
            Command::new("useradd")
                .arg(USER)
                .status()
                .expect("useradd starts")
                .success()
        );
    }
    storm(Storm::new("storm-user", Some(USER)), kills().div_ceil(4));
    if !known {
        assert!(
            Command::new("userdel")
                .arg(USER)
                .status()
                .expect("userdel starts")
                .success()
        );
    }
}

#[test]
fn two_runs_in_one_workspace_the_killed_one_takes_no_protection_along() {
    let _turn = orphans::take_turn();
    let storm = Storm::new("shared", None);
    let neighbour = Neighbour::move_in(&storm.bench);
    let beside = Beside::start(&storm);
    let run = storm.bench.run_id("killed");
    let mut command = storm.airlock("run");
    command
        .args(["--run-id", &run, "--workspace"])
        .arg(robustness::live(&beside.workspace))
        .args(["--", "sleep", "1000"]);
    let mut killed = command.spawn().expect("airlock starts");
    eventually("the second run", || {
        host::programs_of(&run).first().copied()
    });
    host::kill(&host::hold(killed.id() as i32).expect("it runs"));
    wait(&mut killed, "the killed run");
    eventually("its program is gone", || {
        host::programs_of(&run).is_empty().then_some(())
    });
    assert_eq!(storm.sweep()["runs"], serde_json::json!([run]));
    assert_eq!(host::cgroups_naming(&run), Vec::<PathBuf>::new());
    beside.end();
    neighbour.move_out();
}

#[test]
fn a_killed_run_can_be_started_again_under_its_name_at_once() {
    let _turn = orphans::take_turn();
    let storm = Storm::new("again", None);
    let neighbour = Neighbour::move_in(&storm.bench);
    let run = storm.bench.run_id("again");
    let workspace = storm.workspace("again");
    let path = robustness::live(&workspace);
    let options = ["--run-id", &run, "--workspace", &path];
    let mut killed = storm
        .airlock("run")
        .args(options)
        .args(["--", "sleep", "1000"])
        .spawn()
        .expect("airlock starts");
    eventually("the run", || host::programs_of(&run).first().copied());
    let refused = storm.bench.run(&options, &["echo", "again"]);
    assert_eq!(
        refused.expect("not_started", 125, &[]).json["error"]["code"],
        "invalid_spec"
    );
    host::kill(&host::hold(killed.id() as i32).expect("it runs"));
    wait(&mut killed, "the killed run");
    let again = storm.bench.run(&options, &["echo", "again"]);
    assert_eq!(again.expect("succeeded", 0, &[]).stdout(), "again\n");
    let left: Vec<_> = host::listing(&workspace).into_iter().collect();
    assert_eq!(left, [PathBuf::from("mine")]);
    neighbour.move_out();
}

#[test]
fn what_is_protected_can_be_written_where_that_is_allowed() {
    let _turn = orphans::take_turn();
    let storm = Storm::new("allowed", None);
    let workspace = storm.workspace("open");
    let allowed = [".git", ".vscode", ".envrc", ".claude"]
        .map(|name| ["--allow-protected", name])
        .concat();
    let mut command = storm.airlock("run");
    command
        .args(["--json", "--workspace"])
        .arg(&workspace)
        .args(allowed);
    command.args(["--", "sh", "-c", BESIDE]);
    let expected = ".vscode was open\n.envrc was open\n.claude was open\nend\n";
    assert_eq!(Outcome::of(&mut command).stdout(), expected);
}
