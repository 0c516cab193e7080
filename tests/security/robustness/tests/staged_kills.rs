//! SIGKILL at random moments of runs in a staged workspace whose program changes all of it and commits: while the layer is
//! made, while the program runs, while its changes are applied, while its commits arrive. After the next command or a
//! sweep the folder is as it was or as the program left it, and so are the repository's branch, index and HEAD. What the
//! program wrote is in the folder or in a layer that is kept, and what it committed is in the repository or in the state.
//!
//! 40 of them, 200 with `AIRLOCK_FULL=1`, a quarter as an ordinary user; half over layers that are copies, half over
//! overlays; more, until each end and a kill during the import were seen. `AIRLOCK_SEED` repeats delays and victims.

use robustness::{Bench, Outcome, eventually, full, host, orphans, random::SeededRandom};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Who runs it where we are root and it is to be an ordinary user: nobody has this number.
const USER: &str = "23458";
/// Files that are there at the start, and as many that come.
const FILES: usize = 120;
/// The same each time, so that its commit has the same name each time. The links are no part of it. It says how far it is.
const WORK: &str = "set -e
    echo first >first; echo wrote
    export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
    git config user.name n; git config user.email a@b
    for n in $(seq 0 119); do
        case $((n % 4)) in
            0) echo after $n >old/$n;;
            1) rm old/$n; mkdir old/$n; echo after $n >old/$n/below;;
            2) mv old/$n new-$n;;
            3) chmod 755 old/$n;;
        esac
        mkdir -p made/$((n % 10)) links; echo made $n >made/$((n % 10))/$n; ln -s ../old links/$n
    done
    git add -A; git commit -q -m two; echo committed";

/// Kinds, permissions and contents.
type Tree = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn show(folder: &Path) -> Tree {
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
    let listed = host::listing(folder).into_iter();
    listed
        .filter(|path| !path.starts_with(".git"))
        .map(one)
        .collect()
}

struct Storm {
    bench: Bench,
    user: Option<&'static str>,
    chance: SeededRandom,
    /// The folder and its repository before the program, and after it.
    before: (Tree, Vec<String>),
    after: (Tree, Vec<String>),
    /// How often it was so in the end.
    ends: BTreeMap<&'static str, u32>,
    /// Kills between the last file in the folder and the end of the run: while commits arrived.
    in_import: u32,
}

impl Storm {
    fn new(name: &str, user: Option<&'static str>) -> Storm {
        let bench = Bench::new(name);
        fs::copy(robustness::binary(), bench.folder.join("airlock")).expect("a copy of the binary");
        for folder in ["template/old", "other"] {
            fs::create_dir_all(bench.folder.join(folder)).expect("a folder");
        }
        let template = bench.folder.join("template");
        for number in 0..FILES {
            fs::write(
                template.join(format!("old/{number}")),
                format!("before {number}\n"),
            )
            .expect("a file");
        }
        fs::write(template.join(".gitignore"), "links\n").expect("a file");
        for words in [
            &["init", "-q", "-b", "main", "."][..],
            &["add", "-A"],
            &["commit", "-q", "-m", "one"],
        ] {
            git(&template, words);
        }
        if let Some(user) = user {
            let owner = format!("{user}:{user}");
            let given = Command::new("chown")
                .args(["-R", &owner])
                .arg(&bench.folder)
                .status();
            assert!(given.expect("chown starts").success());
        }
        let mut storm = Storm {
            user,
            chance: SeededRandom::seeded(),
            before: Default::default(),
            after: Default::default(),
            ends: BTreeMap::new(),
            in_import: 0,
            bench,
        };
        storm.lay_out(1);
        storm.before = storm.state();
        storm
    }

    fn work(&self) -> PathBuf {
        self.bench.folder.join("work")
    }

    /// The folder as it is at the start, and whether its layer is a copy.
    fn lay_out(&self, copied_names: u32) {
        let work = self.work();
        if work.exists() {
            fs::remove_dir_all(&work).expect("plain files");
        }
        let mut copy = Command::new("cp");
        copy.arg("-a")
            .arg(self.bench.folder.join("template"))
            .arg(&work);
        assert!(copy.status().expect("cp starts").success());
        let config = format!("[workspace]\ncopy_names = {copied_names}\n");
        fs::write(self.bench.folder.join("config.toml"), config).expect("a file");
    }

    fn state(&self) -> (Tree, Vec<String>) {
        (show(&self.work()), repository(&self.work()))
    }

    fn airlock(&self, words: &[&str]) -> Command {
        let (subcommand, rest) = words.split_first().expect("a subcommand");
        let mut plain = self.bench.airlock(subcommand);
        plain.args(rest);
        let config = self.bench.folder.join("config.toml");
        let Some(user) = self.user else {
            plain.env("AIRLOCK_CONFIG", config);
            return plain;
        };
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "--"]);
        command
            .arg(self.bench.folder.join("airlock"))
            .args(plain.get_args());
        command
            .env("HOME", &self.bench.folder)
            .env("AIRLOCK_CONFIG", config)
            .current_dir(&self.bench.folder)
            .stdin(Stdio::null());
        command
    }

    fn start(&self, run: &str) -> Child {
        orphans::reap();
        let workspace = format!("{}:staged", self.work().display());
        let words = [
            "run",
            "--run-id",
            run,
            "--workspace",
            &workspace,
            "--",
            "sh",
            "-c",
            WORK,
        ];
        let mut command = self.airlock(&words);
        let output = fs::File::create(self.output()).expect("a file for its output");
        command.stdout(output).stderr(Stdio::null());
        command.spawn().expect("airlock starts")
    }

    /// Where the program's output goes.
    fn output(&self) -> PathBuf {
        self.bench.folder.join("output")
    }

    /// Kills the engine, its launcher or a process of that one's in a sandbox; who it was, if anybody.
    fn strike(&mut self, airlock: &Child, before: &BTreeSet<i32>) -> &'static str {
        let ours: Vec<_> = orphans::below_us().difference(before).copied().collect();
        let is_init = |pid: &i32| host::name(*pid) == "airlock-launcher";
        let others: Vec<_> = ours.into_iter().filter(is_init).collect();
        // Only the engine can be killed over what it does in the folder.
        let (who, pid) = match (self.chance.below(4), &others[..]) {
            (0..3, _) | (_, []) => ("airlock", airlock.id() as i32),
            (_, others) => {
                let chosen = others[self.chance.below(others.len() as u64) as usize];
                let above = host::parent(chosen).and_then(host::parent);
                match above.is_some_and(|above| is_init(&above)) {
                    true => ("keeper", chosen),
                    false => ("launcher", chosen),
                }
            }
        };
        match host::hold(pid).is_some_and(|process| host::kill(&process)) {
            true => who,
            false => "nobody",
        }
    }

    fn kill_one(&mut self, longest: Duration) {
        let run = self.bench.run_id("kill");
        let names = if self.chance.below(2) == 0 { 1 } else { 5000 };
        self.lay_out(names);
        let before = orphans::below_us();
        let mut airlock = self.start(&run);
        // The start is short: some of the moments lie there.
        let share = [1, 1, 1, 1, 1, 8, 32, 128][self.chance.below(8) as usize];
        let delay = self.chance.below(longest.as_nanos() as u64 / share);
        std::thread::sleep(Duration::from_nanos(delay));
        let struck = self.strike(&airlock, &before);
        let what = format!("{run}, {names} names are copied, {struck} killed after {delay} ns");
        eventually(&format!("{what}: airlock ends"), || {
            airlock.try_wait().expect("our child")
        });
        eventually(&format!("{what}: all processes are gone"), || {
            orphans::reap();
            let left = orphans::below_us().difference(&before).next().is_some();
            (!left && host::carrying(&run).is_empty()).then_some(())
        });
        self.in_import += u32::from(self.is_in_import(&run));
        self.recover(&what);
        self.check(&run, &what);
    }

    /// Whether the files of a killed run are in the folder, its layer is gone, and its repository is not.
    fn is_in_import(&self, run: &str) -> bool {
        let layer = self.bench.state.join("workspaces").join(run);
        !layer.exists() && !self.git_folders(run).is_empty() && show(&self.work()) == self.after.0
    }

    /// What the state has of the repository of a run.
    fn git_folders(&self, run: &str) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.bench.state.join("git"));
        let paths = folders
            .into_iter()
            .flatten()
            .map(|entry| entry.expect("it can be listed").path());
        let is_its = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with(run)
        };
        paths.filter(is_its).collect()
    }

    /// Whether the program's commit is in the repository, under some reference, or kept in the state.
    fn has_commit(&self, run: &str) -> bool {
        let commit = self.after.1[1].trim();
        let known = git(&self.work(), &["rev-list", "--all"]);
        if known.lines().any(|known| known == commit) {
            return true;
        }
        let (folder, name) = commit.split_at(2);
        let object = Path::new("git/objects").join(folder).join(name);
        let folders = self.git_folders(run);
        folders.iter().any(|path| path.join(&object).is_file())
    }

    fn recover(&mut self, what: &str) {
        match self.chance.below(2) {
            0 => _ = self.airlock(&["sweep"]).output().expect("airlock starts"),
            _ => {
                let other = self.bench.folder.join("other").display().to_string();
                let next = self
                    .airlock(&["run", "--workspace", &other, "--", "true"])
                    .output();
                let next = next.expect("airlock starts");
                assert!(next.status.success(), "{what}: {next:?}");
            }
        }
    }

    fn check(&mut self, run: &str, what: &str) {
        let (tree, repository) = self.state();
        let is_after = tree == self.after.0;
        assert!(
            is_after || tree == self.before.0,
            "{what}: the folder is in between: {:?}",
            self.neither(&tree)
        );
        assert!(
            repository == self.before.1 || repository == self.after.1,
            "{what}: the repository is in between: {repository:?}"
        );
        assert!(
            is_after || repository == self.before.1,
            "{what}: the branch moved without its files"
        );
        assert_eq!(
            host::mounts_naming(&self.bench.folder),
            Vec::<String>::new(),
            "{what}"
        );
        assert_eq!(host::cgroups_naming(run), Vec::<PathBuf>::new(), "{what}");
        let layers = self.layers();
        let is_kept = match &layers[..] {
            [] => false,
            [one] if one == run => true,
            other => panic!("{what}: {other:?} is left"),
        };
        assert!(
            !(is_after && is_kept),
            "{what}: what was applied is still kept"
        );
        let output = fs::read_to_string(self.output()).expect("text");
        if output.contains("wrote") {
            assert!(is_after || is_kept, "{what}: what it wrote is lost");
        }
        if output.contains("committed") {
            assert!(self.has_commit(run), "{what}: its commit is lost");
        }
        if is_kept && output.contains("wrote") {
            let shown = self.airlock(&["workspace", "show", run, "first"]).output();
            let shown = shown.expect("airlock starts");
            assert_eq!(shown.stdout, b"first\n", "{what}: {shown:?}");
        }
        if is_kept {
            let discarded = self.airlock(&["workspace", "discard", run]).output();
            let discarded = discarded.expect("airlock starts");
            assert!(discarded.status.success(), "{what}: {discarded:?}");
        }
        let end = match (is_after, is_kept) {
            (true, _) => "applied",
            (false, true) => "kept",
            (false, false) => "as before",
        };
        *self.ends.entry(end).or_default() += 1;
    }

    /// Paths that are neither as before nor as after.
    fn neither<'a>(&'a self, tree: &'a Tree) -> BTreeSet<&'a PathBuf> {
        let sides = [&self.before.0, &self.after.0];
        let all = sides.iter().flat_map(|side| side.keys());
        let is_known = |path: &PathBuf| sides.iter().any(|it| it.get(path) == tree.get(path));
        all.chain(tree.keys())
            .filter(|path| !is_known(path))
            .collect()
    }

    fn has_seen_all(&self) -> bool {
        let mut ends = ["applied", "kept", "as before"].into_iter();
        self.in_import > 0 && ends.all(|end| self.ends.contains_key(end))
    }

    fn layers(&self) -> Vec<String> {
        let listed = self.airlock(&["workspace", "list", "--json"]).output();
        let listed = Outcome::read(Some(0), &listed.expect("airlock starts").stdout, b"").json;
        let layers = listed["workspaces"].as_array().expect("a list").iter();
        layers
            .filter_map(|it| Some(it["id"].as_str()?.to_owned()))
            .collect()
    }
}

fn git(folder: &Path, words: &[&str]) -> String {
    let done = Command::new("git")
        .args([
            "-c",
            "user.name=n",
            "-c",
            "user.email=a@b",
            "-c",
            "safe.directory=*",
        ])
        .args(words)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_AUTHOR_DATE", "1600000000 +0000")
        .env("GIT_COMMITTER_DATE", "1600000000 +0000")
        .output()
        .expect("git starts");
    assert!(done.status.success(), "git {words:?}: {done:?}");
    String::from_utf8(done.stdout).expect("text")
}

/// Branch, HEAD and index; and that nothing of ours is left there.
fn repository(work: &Path) -> Vec<String> {
    let locks = host::listing(&work.join(".git")).into_iter();
    let locks = locks.filter(|path| {
        path.extension()
            .is_some_and(|it| it == "lock" || it == "keep")
    });
    assert_eq!(locks.collect::<Vec<_>>(), Vec::<PathBuf>::new());
    git(
        work,
        &["fsck", "--strict", "--no-dangling", "--no-progress"],
    );
    [
        &["symbolic-ref", "HEAD"][..],
        &["rev-parse", "main"],
        &["ls-files", "--stage"],
    ]
    .map(|words| git(work, words))
    .to_vec()
}

fn storm(mut storm: Storm, kills: u32) {
    let begin = Instant::now();
    let mut undisturbed = storm.start("undisturbed");
    assert!(undisturbed.wait().expect("it ends").success());
    let longest = begin.elapsed().mul_f32(1.2);
    storm.after = storm.state();
    // Not `assert_ne!`, which would print both.
    assert!(
        storm.after.0 != storm.before.0,
        "the control: it changes the folder"
    );
    assert!(
        storm.after.1 != storm.before.1,
        "the control: it moves the branch"
    );
    assert_eq!(storm.layers(), Vec::<String>::new());
    let output = fs::read_to_string(storm.output()).expect("text");
    assert_eq!(output, "wrote\ncommitted\n", "the control: it says so");
    assert!(
        storm.has_commit("undisturbed"),
        "the control: its commit is found"
    );
    // Chance chooses whom and when: until each end was seen.
    let mut done = 0;
    while done < kills || done < kills * 10 && !storm.has_seen_all() {
        storm.kill_one(longest);
        done += 1;
    }
    let seen = format!("{:?}, {} in the import", storm.ends, storm.in_import);
    println!("{seen}");
    assert!(storm.has_seen_all(), "{seen}");
}

fn kills() -> u32 {
    if full() { 200 } else { 40 }
}

#[test]
fn kills_at_any_moment_leave_a_staged_folder_as_it_was_or_as_it_was_to_be() {
    let _turn = orphans::take_turn();
    storm(Storm::new("staged-kills", None), kills());
}

#[test]
fn kills_at_any_moment_leave_a_staged_folder_of_an_ordinary_user_whole() {
    let _turn = orphans::take_turn();
    if !rustix::process::geteuid().is_root() {
        println!("NOT RUN: only root can start runs as another user");
        return;
    }
    storm(Storm::new("staged-kills-user", Some(USER)), kills() / 4);
}
