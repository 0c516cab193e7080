//! The page "What differs from a shared folder" of docs/workspaces.md: what it says, row by row, as far as `staged` does not
//! check it already. A folder that is shared live is the control.

use airlock_cli_tests::ground::{GROUNDS, Ground, Layer, Whom, words};
use rustix::fs::inotify;
use std::{
    fs,
    io::{Read, Write},
    mem::MaybeUninit,
    os::unix::{fs::MetadataExt, net::UnixListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// The same options as in [`words`], with the folder shared live.
fn live(script: &str) -> [&str; 7] {
    ["run", "--workspace", "work:live", "--", "sh", "-c", script]
}

#[test]
fn what_two_runs_changed_is_a_conflict_for_the_one_that_ends_last() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let first = ground.begin("printf first >changed; printf first >free", "");
        let script = "cat changed; printf second >changed";
        let second = ground.airlock(&["run", "--workspace", "work", "--", "sh", "-c", script]);
        assert_eq!(
            (second.status, second.stdout.as_str()),
            (Some(0), "before"),
            "{whom:?} {layer:?} {second:?}"
        );
        let first = first.end();
        assert_eq!(first.status, Some(123), "{whom:?} {layer:?} {first:?}");
        assert!(first.stderr.contains("`changed`"), "{first:?}");
        assert_eq!(
            [ground.read("changed"), ground.read("free")],
            ["second", "first"]
        );
    }
}

#[test]
fn what_the_host_changes_meanwhile_stays_beside_what_the_program_changed() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let run = ground.begin("printf theirs >changed; mkdir theirs", "");
        fs::write(ground.work("kept"), "mine").unwrap();
        fs::write(ground.work("new"), "mine").unwrap();
        fs::remove_file(ground.work("gone/below")).unwrap();
        let ran = run.end();
        assert_eq!(ran.status, Some(0), "{whom:?} {layer:?} {ran:?}");
        let read = ["changed", "kept", "new"].map(|path| ground.read(path));
        assert_eq!(read, ["theirs", "mine", "mine"], "{whom:?} {layer:?}");
        assert!(ground.work("theirs").is_dir() && !ground.work("gone/below").exists());
    }
}

/// Says what became of a pipe and a socket of the host's.
const REACH: &str = "python3 - <<'END'
import os, socket
def reach(what, how):
    try:
        how()
        print(what, 'reached')
    except OSError:
        print(what, 'not there')
reach('pipe', lambda: os.open('pipe', os.O_WRONLY | os.O_NONBLOCK))
reach('socket', lambda: socket.socket(socket.AF_UNIX).connect('socket'))
END";

#[test]
fn pipes_and_sockets_of_the_host_lead_nowhere() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        // Its path is too long for a socket from anywhere else.
        let listener = {
            let short = std::env::temp_dir().join(format!("airlock-{}", std::process::id()));
            std::os::unix::fs::symlink(ground.work(""), &short).expect("a link");
            let listener = UnixListener::bind(short.join("socket"));
            fs::remove_file(&short).expect("the link");
            listener.expect("a socket")
        };
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let fifo = rustix::fs::FileType::Fifo;
        let pipe = ground.work("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).expect("a pipe");
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
        let reader = rustix::fs::open(&pipe, flags, rustix::fs::Mode::empty()).expect("a reader");
        ground.give_away();
        let staged = ground.airlock(&words(&[], REACH));
        assert_eq!(
            staged.stdout, "pipe not there\nsocket not there\n",
            "{whom:?} {layer:?} {staged:?}"
        );
        assert!(!staged.stderr.contains("socket"), "{}", staged.stderr);
        // Neither read-only mounts nor network namespaces keep a socket away: it is covered.
        let covered = ground.airlock(&live(REACH));
        assert_eq!(
            covered.stdout, "pipe reached\nsocket not there\n",
            "{covered:?}"
        );
        assert!(
            covered
                .stderr
                .contains("`socket` in the workspace is a socket"),
            "{}",
            covered.stderr
        );
        let [run, option, folder, rest @ ..] = live(REACH);
        let lifting = [run, option, folder, "--allow-protected", "socket"];
        let lifted = ground.airlock(&[&lifting[..], &rest].concat());
        assert_eq!(
            lifted.stdout, "pipe reached\nsocket reached\n",
            "{lifted:?}"
        );
        drop((listener, reader));
    }
}

/// A database that a program of the host's has open, until it is told to close it.
struct Database {
    owner: Child,
}

impl Database {
    fn open(path: PathBuf) -> Database {
        let script = "import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('pragma journal_mode=wal')
db.execute('create table if not exists words (word text)')
db.execute('insert into words values (?)', ('mine',))
print('open', flush=True)
sys.stdin.read()";
        let mut owner = Command::new("/usr/bin/python3")
            .args(["-c", script])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let mut said = [0; 5];
        let output = owner.stdout.as_mut().expect("a pipe");
        output.read_exact(&mut said).expect("it is open");
        Database { owner }
    }

    fn close(mut self) {
        drop(self.owner.stdin.take());
        assert!(self.owner.wait().expect("it ends").success());
    }
}

const INSERT: &str = "python3 -c \"import sqlite3
db = sqlite3.connect('db', isolation_level=None)
db.execute('insert into words values (?)', ('theirs',))
print([word for (word,) in db.execute('select word from words order by word')])\"; echo free >free";

#[test]
fn a_database_that_is_open_on_the_host_is_a_conflict_with_its_journal_files() {
    for layer in [Layer::Copied, Layer::Laid] {
        let ground = Ground::new(Whom::Caller, layer);
        let database = Database::open(ground.work("db"));
        let told = ground.stage(INSERT);
        let conflicts: Vec<_> = told["workspace"]["conflicts"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|conflict| conflict["path"].as_str().expect("a path").to_owned())
            .collect();
        // The program closed the database as the last one that it knows of, which removes the journal files.
        assert_eq!(conflicts, ["db", "db-shm", "db-wal"], "{layer:?} {told}");
        assert_eq!(told["exit_status"], 123, "{told}");
        assert_eq!(ground.read("free"), "free\n");
        let count = "select count(*) from words";
        let rows = |path: PathBuf| {
            let script = format!(
                "import sqlite3,sys; print(sqlite3.connect(sys.argv[1]).execute('{count}').fetchone()[0])"
            );
            let told = Command::new("/usr/bin/python3")
                .args(["-c", &script])
                .arg(path)
                .output();
            String::from_utf8_lossy(&told.expect("python starts").stdout).into_owned()
        };
        assert_eq!(rows(ground.work("db")), "1\n", "{layer:?}");
        database.close();
        assert_eq!(rows(ground.work("db")), "1\n", "{layer:?}");
        // The control: closed before, it is a file like others.
        let discarded = ground.airlock(&["workspace", "discard", "try"]);
        assert_eq!(discarded.status, Some(0), "{discarded:?}");
        let ran = ground.airlock(&words(&[], INSERT));
        assert_eq!(
            (ran.status, ran.stdout.as_str()),
            (Some(0), "['mine', 'theirs']\n"),
            "{layer:?} {ran:?}"
        );
        assert_eq!(rows(ground.work("db")), "2\n", "{layer:?}");
    }
}

#[test]
fn an_old_file_that_is_open_outside_keeps_its_contents() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let mut old = fs::File::open(ground.work("changed")).unwrap();
        let ran = ground.airlock(&words(&[], "printf after >changed; printf after >kept"));
        assert_eq!(ran.status, Some(0), "{whom:?} {layer:?} {ran:?}");
        let mut text = String::new();
        old.read_to_string(&mut text).unwrap();
        assert_eq!(
            (text.as_str(), ground.read("changed").as_str()),
            ("before", "after")
        );
        // The control: one that is shared live is written in place.
        let mut old = fs::File::open(ground.work("kept")).unwrap();
        let ran = ground.airlock(&live("printf live >kept"));
        assert_eq!(ran.status, Some(0), "{ran:?}");
        text.clear();
        old.read_to_string(&mut text).unwrap();
        assert_eq!(text, "live");
    }
}

/// What a watcher of the folder is told until now: of which name, and whether it was written, or put there whole.
fn events(watch: &impl std::os::fd::AsFd) -> Vec<(String, bool)> {
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = reader.next() {
        let name = event
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let is_written = event.events().contains(inotify::ReadFlags::MODIFY);
        seen.extend(name.map(|name| (name, is_written)));
    }
    seen
}

#[test]
fn a_watcher_sees_whole_files_at_the_end_and_nothing_before() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).expect("a watcher");
        let what = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVE
            | inotify::WatchFlags::DELETE;
        inotify::add_watch(&watch, ground.work(""), what).expect("a watch");
        let run = ground.begin("printf after >changed; printf new >new; mkdir folder", "");
        assert_eq!(events(&watch), [], "{whom:?} {layer:?}: while it runs");
        let ran = run.end();
        assert_eq!(ran.status, Some(0), "{ran:?}");
        let seen = events(&watch);
        for name in ["changed", "new"] {
            let whole = (name.to_owned(), false);
            let written = (name.to_owned(), true);
            assert!(
                seen.contains(&whole) && !seen.contains(&written),
                "{whom:?} {layer:?} {seen:?}"
            );
        }
        // The control.
        ground.airlock(&live("printf live >kept"));
        assert!(events(&watch).contains(&("kept".to_owned(), true)));
    }
}

#[test]
fn a_folder_of_the_host_can_be_moved_except_on_an_overlay_of_an_ordinary_user() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let script = "python3 -c 'import os; os.rename(\"moved\", \"there\")'; mv gone away";
        let ran = ground.airlock(&words(&[], script));
        assert_eq!(ran.status, Some(0), "{whom:?} {layer:?} {ran:?}");
        let is_user = whom == Whom::User || !rustix::process::geteuid().is_root();
        let stays = is_user && layer == Layer::Laid;
        assert_eq!(
            ran.stderr.contains("Invalid cross-device link"),
            stays,
            "{whom:?} {layer:?} {ran:?}"
        );
        assert_eq!(ground.work("there/below").exists(), !stays);
        // `mv` copies what it cannot move.
        assert!(ground.work("away/below").exists() && !ground.work("gone").exists());
    }
}

#[test]
fn hard_links_become_files_of_their_own() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let ran = ground.airlock(&words(&[], "printf x >one; ln one two; stat -c %h one"));
        assert_eq!(ran.stdout, "2\n", "{whom:?} {layer:?} {ran:?}");
        let links = ["one", "two"].map(|path| fs::metadata(ground.work(path)).unwrap().nlink());
        assert_eq!(links, [1, 1], "{whom:?} {layer:?}");
        fs::File::create(ground.work("one"))
            .unwrap()
            .write_all(b"y")
            .unwrap();
        assert_eq!(ground.read("two"), "x");
    }
}

/// Says of each pair of names whether a folder can be renamed so.
const RENAME: &str = "python3 - <<'END'
import os
os.makedirs('made/below')
os.rename('gone/below', 'kept-aside')
os.rmdir('gone')
os.mkdir('gone')
for old, new in [('made', 'made-new'), ('made-new', 'moved/made'), ('gone', 'made-anew'), ('moved', 'there')]:
    try:
        os.rename(old, new)
        print(old, 'renamed')
    except OSError as error:
        print(old, error.strerror)
END";

#[test]
fn a_folder_that_an_overlay_of_a_user_cannot_rename_is_named_with_a_remedy() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let told = ground.stage(RENAME);
        let cannot = (whom, layer) == (Whom::User, Layer::Laid);
        // The controls: what the program has made itself, or anew, can be renamed on every layer.
        let renamed = "made renamed\nmade-new renamed\ngone renamed\n";
        let (last, denials) = match cannot {
            true => {
                let allow_with = "--workspace [WORLD]/here/work:live";
                let denial = serde_json::json!({
                    "what": "rename", "target": "/workspace/moved", "rule": "workspace_layer", "allow_with": allow_with,
                });
                ("moved Invalid cross-device link\n", vec![denial])
            }
            false => ("moved renamed\n", Vec::new()),
        };
        assert_eq!(
            told["stdout"],
            format!("{renamed}{last}"),
            "{whom:?} {layer:?} {told}"
        );
        assert_eq!(
            told["denials"],
            serde_json::json!(denials),
            "{whom:?} {layer:?}"
        );
        let there = ["there/below", "moved/below"].map(|path| ground.work(path).exists());
        assert_eq!(there, [!cannot, cannot], "{whom:?} {layer:?}");
    }
    // The remedy does.
    let ground = Ground::new(Whom::User, Layer::Laid);
    let shared = ground.airlock(&live(RENAME));
    assert!(shared.stdout.ends_with("moved renamed\n"), "{shared:?}");
    assert_eq!(shared.stderr, "");
}
