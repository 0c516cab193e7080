//! SIGKILL at random moments of runs in a mounted workspace whose program makes, all the time, what must not stay there:
//! protected names, links out, sockets, commits. Afterwards the next command, in another folder, or a sweep leaves
//! nothing of it, and what was there before is what it was.
//!
//! 40 of them, 200 with `AIRLOCK_FULL=1`, and a quarter as an ordinary user. `AIRLOCK_SEED` repeats delays and victims.

use robustness::{Bench, Outcome, eventually, full, host, orphans, random::SeededRandom};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Who runs it where we are root and it is to be an ordinary user: nobody has this number.
const USER: &str = "23457";
/// A few rounds, so that kills hit the end, too.
const WORK: &str = "python3 -c '
import socket
for n in range(20): socket.socket(socket.AF_UNIX).bind(\"socket%d\" % n)
' & for n in 1 2 3 4 5 6; do
    mkdir -p made$n/.git made$n/.vscode; echo evil > made$n/.git/config; echo evil > made$n/.envrc
    ln -s ../.. up$n; ln -s /etc/passwd made$n/far; ln -s ../.envrc made$n/to
    echo more >> a; git -c user.name=n -c user.email=a@b commit -q -a -m $n
    (echo bad > .envrc; echo bad > .vscode/tasks.json; rm -rf .vscode) 2> /dev/null
done; wait";
const MINE: [(&str, &str); 4] = [
    ("a", "a\n"),
    (".envrc", "export MINE=1\n"),
    (".vscode/tasks.json", "{}\n"),
    ("sub/.envrc", "export MINE=2\n"),
];

fn git(folder: &Path, words: &[&str]) {
    let done = Command::new("git")
        .args(["-c", "user.name=n", "-c", "user.email=a@b"])
        .args(words)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git starts");
    assert!(done.status.success(), "git {words:?}: {done:?}");
}

/// What is in a folder: kinds, permissions and contents, but nothing that a commit may bring.
fn show(folder: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let one = |path: PathBuf| {
        let place = folder.join(&path);
        let found = fs::symlink_metadata(&place).expect("it was listed");
        let text = match found.file_type() {
            kind if kind.is_file() => fs::read(&place).expect("a file"),
            kind if kind.is_symlink() => {
                let target = fs::read_link(&place).expect("a link");
                target.into_os_string().into_encoded_bytes()
            }
            _ => Vec::new(),
        };
        (path, (found.mode(), text))
    };
    host::listing(folder).into_iter().map(one).collect()
}

struct Storm {
    bench: Bench,
    user: Option<&'static str>,
    chance: SeededRandom,
    before: BTreeMap<PathBuf, (u32, Vec<u8>)>,
    /// How many kills left something that was taken out.
    held: u32,
    /// How many of whom were killed.
    phases: BTreeMap<&'static str, u32>,
}

impl Storm {
    fn new(name: &str, user: Option<&'static str>) -> Storm {
        let bench = Bench::new(name);
        fs::copy(robustness::binary(), bench.folder.join("airlock")).expect("a copy of the binary");
        let storm = Storm {
            user,
            chance: SeededRandom::seeded(),
            before: BTreeMap::new(),
            held: 0,
            phases: BTreeMap::new(),
            bench,
        };
        let work = storm.work();
        fs::create_dir_all(work.join("sub")).expect("a folder");
        fs::create_dir_all(storm.bench.folder.join("other")).expect("a folder");
        git(&work, &["init", "-q", "-b", "main", "."]);
        for (path, text) in MINE {
            fs::create_dir_all(work.join(path).parent().expect("it has one")).expect("a folder");
            fs::write(work.join(path), text).expect("a file");
        }
        symlink("/usr/share", work.join("old-link")).expect("a link of the host's");
        git(&work, &["add", "a"]);
        git(&work, &["commit", "-q", "-m", "one"]);
        if let Some(user) = user {
            let owner = format!("{user}:{user}");
            let given = Command::new("chown")
                .args(["-R", &owner])
                .arg(&storm.bench.folder)
                .status();
            assert!(given.expect("chown starts").success());
        }
        let before = show(&work);
        Storm { before, ..storm }
    }

    fn work(&self) -> PathBuf {
        self.bench.folder.join("work")
    }

    fn airlock(&self, subcommand: &str) -> Command {
        let plain = self.bench.airlock(subcommand);
        let Some(user) = self.user else {
            return plain;
        };
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "--"]);
        command
            .arg(self.bench.folder.join("airlock"))
            .args(plain.get_args());
        command
            .env("HOME", &self.bench.folder)
            .current_dir(&self.bench.folder);
        command.stdin(Stdio::null());
        command
    }

    fn start(&self, run: &str) -> Child {
        orphans::reap();
        let mut command = self.airlock("run");
        command
            .args(["--run-id", run, "--workspace"])
            .arg(robustness::live(&self.work()));
        command
            .args(["--", "sh", "-c", WORK])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().expect("airlock starts")
    }

    /// Kills the engine, its launcher or a first process of a sandbox; what it was, if anything.
    fn strike(&mut self, airlock: &Child, before: &BTreeSet<i32>) -> &'static str {
        let ours: Vec<_> = orphans::below_us().difference(before).copied().collect();
        let is_init = |pid: &i32| host::name(*pid) == "airlock-launcher";
        let others: Vec<_> = ours.into_iter().filter(is_init).collect();
        let (what, pid) = match (self.chance.below(2), &others[..]) {
            (0, _) | (_, []) => ("airlock", airlock.id() as i32),
            (_, others) => (
                "launcher",
                others[self.chance.below(others.len() as u64) as usize],
            ),
        };
        match host::hold(pid).is_some_and(|process| host::kill(&process)) {
            true => what,
            false => "nobody",
        }
    }

    fn kill_one(&mut self, longest: Duration) {
        let run = self.bench.run_id("kill");
        let before = orphans::below_us();
        let mut airlock = self.start(&run);
        let delay = self.chance.below(longest.as_nanos() as u64);
        std::thread::sleep(Duration::from_nanos(delay));
        let struck = self.strike(&airlock, &before);
        let what = format!("{run}, {struck} killed after {delay} ns");
        eventually(&format!("{what}: airlock ends"), || {
            airlock.try_wait().expect("our child")
        });
        eventually(&format!("{what}: all processes are gone"), || {
            orphans::reap();
            let left = orphans::below_us().difference(&before).next().is_some();
            (!left && host::carrying(&run).is_empty()).then_some(())
        });
        match self.chance.below(2) {
            0 => {
                let swept = self.airlock("sweep").output().expect("airlock starts");
                assert!(swept.status.success(), "{what}: {swept:?}");
            }
            _ => {
                let mut next = self.airlock("run");
                next.arg("--workspace").arg(self.bench.folder.join("other"));
                let next = next.args(["--", "true"]).output();
                let next = next.expect("airlock starts");
                assert!(next.status.success(), "{what}: {next:?}");
            }
        }
        self.check(&run, &what);
        *self.phases.entry(struck).or_default() += 1;
    }

    fn check(&mut self, run: &str, what: &str) {
        assert_eq!(self.wrong(), Vec::<String>::new(), "{what}");
        assert_eq!(
            host::mounts_naming(&self.bench.folder),
            Vec::<String>::new(),
            "{what}"
        );
        assert_eq!(host::cgroups_naming(run), Vec::<PathBuf>::new(), "{what}");
        let held = self.bench.state.join("held").join(run);
        assert!(!held.join("start").exists(), "{what}: it is not settled");
        let listed = self.airlock("workspace").args(["held", "--json"]).output();
        let listed = Outcome::read(Some(0), &listed.expect("airlock starts").stdout, b"").json;
        let listed = listed["held_back"].as_array().expect("a list").iter();
        let its = listed.filter(|it| it["run_id"] == run);
        let kept: BTreeSet<_> = its.filter_map(|it| it["kept"].as_str()).collect();
        let there = fs::read_dir(&held).into_iter().flatten().flatten();
        let there: BTreeSet<_> = there
            .map(|entry| entry.path().display().to_string())
            .collect();
        let list = held.join("list").display().to_string();
        let unlisted = there
            .iter()
            .filter(|path| **path != list && !kept.contains(path.as_str()));
        assert_eq!(
            unlisted.collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{what}"
        );
        self.held += u32::from(!kept.is_empty());
        self.clear();
    }

    /// What is not as it was, but for plain files and folders of the program's, and what its commits brought.
    fn wrong(&self) -> Vec<String> {
        let now = show(&self.work());
        let mut wrong = Vec::new();
        for (path, shown) in &self.before {
            // The program may write it, and that is what it does.
            let is_its = path == Path::new("a");
            if !is_its && path != Path::new(".git") && now.get(path) != Some(shown) {
                wrong.push(format!("{} became {:?}", path.display(), now.get(path)));
            }
        }
        let protected = [".git", ".envrc", ".vscode"];
        for (path, (mode, text)) in now
            .iter()
            .filter(|(path, _)| !self.before.contains_key(*path))
        {
            let brought = ["objects", "refs/airlock"].map(|name| Path::new(".git").join(name));
            if brought.iter().any(|top| path.starts_with(top)) {
                continue;
            }
            let kind = fs::symlink_metadata(self.work().join(path))
                .expect("it is there")
                .file_type();
            let is_plain = (kind.is_file() || kind.is_dir()) && mode & 0o6000 == 0;
            if !is_plain
                || path
                    .iter()
                    .any(|part| protected.iter().any(|name| part == *name))
            {
                let text = String::from_utf8_lossy(text);
                wrong.push(format!(
                    "{} {mode:o} {text} {}",
                    path.display(),
                    kind.is_socket()
                ));
            }
        }
        wrong
    }

    /// So that the next one begins with what the first one began with, but for commits.
    fn clear(&self) {
        let top = fs::read_dir(self.work()).expect("it is there").flatten();
        for entry in top.filter(|entry| !self.before.contains_key(Path::new(&entry.file_name()))) {
            fs::remove_dir_all(entry.path())
                .or_else(|_| fs::remove_file(entry.path()))
                .expect("plain files");
        }
        fs::write(self.work().join("a"), "a\n").expect("a file");
    }

    /// The host's git, in a sandbox whose workspace is the folder above.
    fn fsck(&self) {
        let script = "git config --global safe.directory '*'; cd work && git fsck --strict --no-dangling --no-progress 2>&1 && \
            git status --short a && git log --format=%s main";
        let mut command = self.airlock("run");
        let above = self.bench.folder.join("copy");
        let copied = Command::new("cp")
            .arg("-a")
            .arg(self.work())
            .arg(above.join("work"))
            .status();
        assert!(copied.expect("cp starts").success());
        command.args(["--json", "--workspace"]).arg(&above);
        let outcome = Outcome::of(command.args(["--", "sh", "-c", script]));
        assert_eq!(outcome.expect("succeeded", 0, &[]).stdout(), "one\n");
    }
}

fn storm(mut storm: Storm, kills: u32) {
    fs::create_dir(storm.bench.folder.join("copy")).expect("a folder");
    let begin = Instant::now();
    let mut undisturbed = storm.start("undisturbed");
    assert!(undisturbed.wait().expect("it ends").success());
    let longest = begin.elapsed().mul_f32(1.1);
    storm.check("undisturbed", "an undisturbed run");
    assert_eq!(
        storm.held, 1,
        "the control: it leaves what must be taken out"
    );
    // Chance chooses whom and when: until both were struck, and something had to be taken out.
    let mut done = 0;
    while done < kills || done < kills * 10 && (storm.phases.len() < 2 || storm.held < 2) {
        storm.kill_one(longest);
        done += 1;
    }
    println!(
        "{:?}, {} had to take something out",
        storm.phases, storm.held
    );
    storm.fsck();
    assert!(
        storm.phases.len() > 1 && storm.held > 1,
        "{:?} {}",
        storm.phases,
        storm.held
    );
}

fn kills() -> u32 {
    if full() { 200 } else { 40 }
}

#[test]
fn kills_at_any_moment_leave_nothing_in_a_workspace() {
    let _turn = orphans::take_turn();
    storm(Storm::new("work-kills", None), kills());
}

#[test]
fn kills_at_any_moment_leave_nothing_in_a_workspace_of_an_ordinary_user() {
    let _turn = orphans::take_turn();
    if !rustix::process::geteuid().is_root() {
        println!("NOT RUN: only root can start runs as another user");
        return;
    }
    storm(
        Storm::new("work-kills-user", Some(USER)),
        kills().div_ceil(4),
    );
}
