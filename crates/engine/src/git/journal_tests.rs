use super::*;
use ::git::{
    ObjectFormat, ObjectId,
    transaction::{IndexFile, ReflogLine, TransactionStep, TransactionTarget, index_checksum},
};
use std::{collections::BTreeMap, fs, path::Path, time::Duration};

const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";

struct World {
    top: PathBuf,
    state: OwnedFd,
    host: GitFolders,
}

impl World {
    fn new(name: &str) -> World {
        let top = std::env::temp_dir().join(format!("airlock-j-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&top);
        fs::create_dir_all(top.join("state")).unwrap();
        fs::create_dir_all(top.join("git/refs/heads")).unwrap();
        fs::write(top.join("git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(top.join("git/refs/heads/main"), format!("{OLD}\n")).unwrap();
        let open = |name: &str| OwnedFd::from(File::open(top.join(name)).unwrap());
        World {
            state: open("state"),
            host: GitFolders {
                git: open("git"),
                common: open("git"),
                path: top.join("git"),
                git_path: top.join("git"),
            },
            top,
        }
    }

    fn main(&self) -> String {
        fs::read_to_string(self.top.join("git/refs/heads/main")).unwrap()
    }

    /// Simulates a process that is killed after its locks, or after its decision.
    fn crash(&self, decided: bool) {
        let step = TransactionStep {
            target: TransactionTarget::Ref("refs/heads/main".to_owned()),
            old: Some(OLD.to_owned()),
            new: Some(NEW.to_owned()),
        };
        let transaction = Transaction {
            drafts: "airlock-x".to_owned(),
            format: ObjectFormat::Sha1,
            steps: vec![step],
            logs: Vec::new(),
            airlock_refs: Vec::new(),
            pack: None,
        };
        let journal =
            Journal::begin(self.state.as_fd(), &self.host, "airlock-d", "pack-x").unwrap();
        fs::write(self.top.join("git/airlock-d"), "half").unwrap();
        journal.plan(&transaction).unwrap();
        transaction.write_drafts(&self.host, None, None).unwrap();
        transaction.lock(&self.host, Duration::ZERO).unwrap();
        if decided {
            journal.decide().unwrap();
        }
    }

    fn left(&self) -> Vec<String> {
        let names = |folder: &str| {
            let entries = fs::read_dir(self.top.join(folder)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name());
            names.map(|name| name.to_string_lossy().into_owned())
        };
        let all = names("state")
            .chain(names("git"))
            .chain(names("git/refs/heads"));
        let mut left: Vec<_> = all.collect();
        left.sort();
        left
    }
}

impl Drop for World {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.top).unwrap();
    }
}

const CLEAN: [&str; 3] = ["HEAD", "main", "refs"];

#[test]
fn what_was_decided_is_carried_out_and_the_rest_taken_back() {
    for (decided, main) in [(true, NEW), (false, OLD)] {
        let world = World::new("ends");
        world.crash(decided);
        assert!(is_open(world.state.as_fd()));
        recover(world.state.as_fd()).unwrap();
        assert_eq!(world.main(), format!("{main}\n"));
        assert_eq!(world.left(), CLEAN);
        recover(world.state.as_fd()).unwrap();
    }
}

#[test]
fn another_repository_in_its_place_is_left_alone() {
    let world = World::new("replaced");
    world.crash(true);
    fs::rename(world.top.join("git"), world.top.join("moved")).unwrap();
    fs::create_dir_all(world.top.join("git/refs/heads")).unwrap();
    fs::write(world.top.join("git/refs/heads/main"), OLD).unwrap();
    recover(world.state.as_fd()).unwrap();
    assert_eq!(world.main(), OLD);
    assert!(!is_open(world.state.as_fd()));
}

#[test]
fn a_journal_that_cannot_be_read_stays() {
    let world = World::new("torn");
    fs::write(world.top.join("state/journal"), "airlock git 1\ngit 1 2").unwrap();
    assert!(recover(world.state.as_fd()).is_err());
    assert!(is_open(world.state.as_fd()));
}

/// The new index.
const INDEX: &str = "the index that was merged";
const PACK: &str = "pack-x";
const LOG: &str = "moved\tairlock: run r";

/// Everything that one update does, one file operation after the other. A process can be killed
/// between any two.
struct Move {
    world: World,
    transaction: Transaction,
}

impl Move {
    fn new(name: &str) -> Move {
        let world = World::new(name);
        for (path, text) in [
            ("git/index", "the index"),
            ("git/packed-refs", &format!("{OLD} refs/heads/packed\n")),
            ("git/logs/HEAD", "first\n"),
        ] {
            world.write(path, text);
        }
        let index = IndexFile::read(&world.host).unwrap().unwrap();
        let sha1 = ObjectFormat::Sha1;
        let step = |target, old: Option<&str>, new: Option<&str>| TransactionStep {
            target,
            old: old.map(str::to_owned),
            new: new.map(str::to_owned),
        };
        let branch = |name: &str| TransactionTarget::Ref(format!("refs/heads/{name}"));
        let log = |target| ReflogLine {
            target,
            begin: true,
            line: LOG.to_owned(),
        };
        let new = index_checksum(INDEX.as_bytes(), sha1);
        let transaction = Transaction {
            drafts: "airlock-x".to_owned(),
            format: sha1,
            steps: vec![
                step(
                    TransactionTarget::Index,
                    Some(&index.checksum(sha1)),
                    Some(&new),
                ),
                step(branch("main"), Some(OLD), Some(NEW)),
                step(branch("packed"), Some(OLD), None),
                step(branch("new/one"), None, Some(NEW)),
                step(
                    TransactionTarget::Head,
                    Some("ref: refs/heads/main"),
                    Some("ref: refs/heads/new/one"),
                ),
            ],
            logs: vec![log(TransactionTarget::Head), log(branch("main"))],
            airlock_refs: vec![(
                "refs/airlock/r/heads/main".to_owned(),
                ObjectId::parse(NEW, sha1).unwrap(),
            )],
            pack: None,
        };
        Move { world, transaction }
    }

    fn targets(&self) -> Vec<String> {
        let name = |step: &TransactionStep| match &step.target {
            TransactionTarget::Index => "git/index".to_owned(),
            TransactionTarget::Head => "git/HEAD".to_owned(),
            TransactionTarget::Ref(name) => format!("git/{name}"),
        };
        self.transaction.steps.iter().map(name).collect()
    }

    /// Does the first `most` operations, in the order of the code; all if that is more. Returns how
    /// many there are, and which of them is the decision.
    fn run(&self, most: usize) -> (usize, usize) {
        let (mut count, mut decides) = (0, 0);
        let world = &self.world;
        let mut act = |work: &dyn Fn()| {
            if count < most {
                work();
            }
            count += 1;
            count
        };
        let journal = || {
            let state = world.state.as_fd();
            Journal::begin(state, &world.host, "airlock-d", PACK).unwrap()
        };
        let pack = |end: &str| format!("git/objects/pack/{end}");
        act(&|| world.write("state/journal.new", "half"));
        act(&|| drop(journal()));
        act(&|| world.write(&pack("pack-x.keep"), "airlock\n"));
        act(&|| world.write(&pack("tmp_airlock_pack-x_pack"), "objects"));
        act(&|| world.write(&pack("tmp_airlock_pack-x_idx"), "index"));
        act(&|| world.rename(&pack("tmp_airlock_pack-x_pack"), &pack("pack-x.pack")));
        act(&|| world.rename(&pack("tmp_airlock_pack-x_idx"), &pack("pack-x.idx")));
        act(&|| world.write("git/airlock-d", "half"));
        act(&|| world.write("git/airlock-d", &format!("{NEW}\n")));
        act(&|| world.rename("git/airlock-d", "git/refs/airlock/r/heads/main"));
        act(&|| journal().plan(&self.transaction).unwrap());
        let draft = |number: usize| format!("git/airlock-x-{number}");
        let targets = self.targets();
        for (number, step) in self.transaction.steps.iter().enumerate() {
            let text = match (&step.target, &step.new) {
                (TransactionTarget::Index, _) => INDEX.to_owned(),
                (_, Some(new)) => format!("{new}\n"),
                (_, None) => String::new(),
            };
            act(&|| world.write(&draft(number), ""));
            act(&|| world.write(&draft(number), &text));
        }
        for (number, target) in targets.iter().enumerate() {
            act(&|| world.link(&draft(number), &format!("{target}.lock")));
        }
        decides = decides.max(act(&|| world.write("state/journal.decided", "")));
        for (step, target) in self.transaction.steps.iter().zip(&targets) {
            if step.new.is_some() {
                act(&|| world.rename(&format!("{target}.lock"), target));
            }
        }
        act(&|| world.write("git/logs/HEAD", &format!("first\n{LOG}\n")));
        act(&|| world.write("git/logs/refs/heads/main", ""));
        act(&|| world.write("git/logs/refs/heads/main", &format!("{LOG}\n")));
        act(&|| world.remove("git/refs/airlock/r/heads/main"));
        act(&|| world.remove("git/refs/heads/packed.lock"));
        for number in (0..targets.len()).rev() {
            act(&|| world.remove(&draft(number)));
        }
        act(&|| world.remove(&pack("pack-x.keep")));
        act(&|| world.remove("state/journal.decided"));
        act(&|| world.remove("state/journal"));
        (count, decides)
    }

    /// What the user's git sees: without references under `refs/airlock/` and packs to which
    /// nothing leads.
    fn seen(&self) -> BTreeMap<String, String> {
        let mut files = self.world.files();
        files.retain(|name, _| {
            !name.starts_with("git/refs/airlock/")
                && !name.ends_with(".pack")
                && !name.ends_with(".idx")
        });
        files
    }
}

impl World {
    fn write(&self, name: &str, text: &str) {
        let path = self.top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        let to = self.top.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::rename(self.top.join(from), to).unwrap();
    }

    fn link(&self, from: &str, to: &str) {
        let to = self.top.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::hard_link(self.top.join(from), to).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.top.join(name)).unwrap();
    }

    fn files(&self) -> BTreeMap<String, String> {
        let (mut found, mut left) = (BTreeMap::new(), vec![self.top.clone()]);
        while let Some(path) = left.pop() {
            if path.is_dir() {
                let entries = fs::read_dir(&path).unwrap();
                left.extend(entries.map(|entry| entry.unwrap().path()));
                continue;
            }
            let name = path.strip_prefix(&self.top).unwrap().display().to_string();
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
        found
    }
}

#[test]
fn killed_between_any_two_steps_it_is_ended_or_taken_back() {
    let whole = Move::new("whole");
    let before = whole.seen();
    let (count, decides) = whole.run(usize::MAX);
    let after = whole.seen();
    // The control: the operations are what the code does.
    let real = Move::new("real");
    let journal = Journal::begin(real.world.state.as_fd(), &real.world.host, "d", PACK).unwrap();
    let (host, transaction) = (&real.world.host, &real.transaction);
    journal.plan(transaction).unwrap();
    let index = IndexFile::read(host).unwrap();
    transaction
        .write_drafts(host, Some(INDEX.as_bytes()), index.as_ref())
        .unwrap();
    transaction.lock(host, Duration::ZERO).unwrap();
    transaction.compare(host).unwrap();
    journal.decide().unwrap();
    transaction.apply(host).unwrap();
    transaction.release(host).unwrap();
    journal.close().unwrap();
    assert_eq!(real.seen(), after);
    assert_ne!(before, after);
    for most in 0..=count {
        let killed = Move::new("killed");
        killed.run(most);
        recover(killed.world.state.as_fd()).unwrap();
        let wanted = if most < decides { &before } else { &after };
        let mut seen = killed.seen();
        // A draft of the journal itself, which is removed with the folder.
        seen.remove("state/journal.new");
        assert_eq!(&seen, wanted, "killed after {most} of {count} steps");
        // Imported objects stay until a branch has them.
        let aside = killed.world.top.join("git/refs/airlock/r/heads/main");
        let is_moved = most >= decides;
        assert_eq!(aside.exists(), most >= 10 && !is_moved, "{most}");
        recover(killed.world.state.as_fd()).unwrap();
        assert_eq!(
            killed.seen().len() - usize::from(killed.world.top.join("state/journal.new").exists()),
            seen.len()
        );
    }
}

/// The user's git refuses to work while there are stale locks; the user removes them, and commits.
#[test]
fn killed_between_any_two_steps_it_takes_nothing_from_a_user_who_goes_on() {
    let theirs = "3333333333333333333333333333333333333333\n";
    let (count, _) = Move::new("counted").run(0);
    for most in 0..=count {
        let killed = Move::new("goes-on");
        killed.run(most);
        for name in killed.world.files().keys() {
            if name.ends_with(".lock") {
                killed.world.remove(name);
            }
        }
        for (name, text) in [("git/index", "theirs"), ("git/refs/heads/main", theirs)] {
            killed.world.write("git/theirs", text);
            killed.world.rename("git/theirs", name);
        }
        recover(killed.world.state.as_fd()).unwrap();
        let seen = killed.seen();
        let what = format!("killed after {most} of {count} steps: {seen:?}");
        assert_eq!(seen["git/index"], "theirs", "{what}");
        assert_eq!(seen["git/refs/heads/main"], theirs, "{what}");
        let ours = |name: &&String| {
            let name = Path::new(name.as_str());
            let is_lock = name
                .extension()
                .is_some_and(|end| end == "lock" || end == "keep");
            is_lock
                || name
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().contains("airlock"))
        };
        assert_eq!(seen.keys().find(ours), None, "{what}");
        assert!(!is_open(killed.world.state.as_fd()), "{what}");
    }
}
