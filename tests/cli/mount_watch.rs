//! Tools of the host that replace protected files while a program runs: the protection comes back, and what the program
//! wrote meanwhile does not stay.

use airlock_cli_tests::{Answer, World};
use serde_json::json;
use std::{
    fs,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

/// Far more than anything here takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// A run in the folder `w`, whose program has touched `ready`.
struct Running<'a> {
    world: &'a World,
    child: Child,
}

impl<'a> Running<'a> {
    fn start(world: &'a World, program: &[&str]) -> Running<'a> {
        let options = [
            "run",
            "--json",
            "--run-id",
            "one",
            "--workspace",
            "w:live",
            "--",
        ];
        let mut command = world.command(&[&options, program].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("airlock starts");
        let running = Running { world, child };
        running.until("the program runs", || world.here("w/ready").exists());
        running
    }

    fn until(&self, what: &str, mut happened: impl FnMut() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !happened() {
            assert!(Instant::now() < deadline, "{what}: not in time");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// As editors and git save a file.
    fn replace(&self, name: &str, contents: &str) {
        let folder = self.world.here("w");
        fs::write(folder.join(".new"), contents).expect("a new file");
        fs::rename(folder.join(".new"), folder.join(name)).expect("it replaces the old one");
    }

    fn end(self) -> Answer {
        let output = self.child.wait_with_output().expect("airlock ends");
        self.world.answer(&output)
    }
}

fn world_with(files: &[(&str, &str)]) -> World {
    let world = World::new();
    fs::create_dir(world.here("w")).expect("a folder");
    for (name, contents) in files {
        let path = world.here("w").join(name);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        fs::write(path, contents).expect("a file");
    }
    world
}

fn says(answer: &serde_json::Value, note: &str) -> bool {
    let notes = answer["notes"].as_array().expect("notes");
    let notes = notes.iter().filter_map(serde_json::Value::as_str);
    notes.into_iter().any(|it| it.contains(note))
}

const REPLACED: &str = "replaced by a tool of the host while the program ran";

#[test]
fn a_protected_file_that_the_host_replaces_is_read_only_again() {
    let world = world_with(&[(".envrc", "old"), ("a b/.mcp.json", "old")]);
    let script = "touch ready; until test -e go; do :; done
        for name in .envrc 'a b/.mcp.json'; do
            while test -w \"$name\"; do :; done
            echo evil 2>/dev/null >> \"$name\" || echo held
            cat \"$name\"
        done
        # The control.
        test -w ready && echo fine >> ready && echo written";
    let running = Running::start(&world, &["sh", "-c", script]);
    running.replace(".envrc", "new\n");
    running.replace("a b/.mcp.json", "new\n");
    running.replace("go", "");
    let answer = running.end().json();
    assert_eq!(
        answer["stdout"], "held\nnew\nheld\nnew\nwritten\n",
        "{answer}"
    );
    assert!(says(&answer, REPLACED), "{answer}");
    assert_eq!(answer["workspace"], json!(null), "{answer}");
    for name in [".envrc", "a b/.mcp.json"] {
        let contents = fs::read_to_string(world.here("w").join(name)).expect("it stays");
        assert_eq!(contents, "new\n");
    }
}

#[test]
fn what_is_written_through_a_descriptor_from_meanwhile_is_taken_out() {
    let world = world_with(&[(".envrc", "old")]);
    // It opens the new file in the moment in which it can be written, and writes when it no longer can.
    let program = "import os
def try_to_open(old):
    try:
        file = open('.envrc', 'a')
        return None if os.fstat(file.fileno()).st_ino == old else file
    except OSError:
        return None
file, lost, old = None, 0, os.stat('.envrc').st_ino
open('ready', 'w')
while True:
    while not file and os.stat('.envrc').st_ino == old:
        file = try_to_open(old)
    while os.access('.envrc', os.W_OK):
        pass
    if file:
        break
    lost, old = lost + 1, os.stat('.envrc').st_ino
    open(f'lost{lost}', 'w')
open('opened', 'w')
try:
    open('.envrc', 'a')
except OSError:
    print('held')
file.write('evil')
file.flush()
print(os.path.samestat(os.stat('.envrc'), os.fstat(file.fileno())))";
    let running = Running::start(&world, &["python3", "-c", program]);
    let here = |name: &str| world.here("w").join(name).exists();
    for lost in 1.. {
        running.replace(".envrc", "new");
        running.until("the program wins the race or loses it", || {
            here("opened") || here(&format!("lost{lost}"))
        });
        if here("opened") {
            break;
        }
    }
    let answer = running.end().json();
    assert_eq!(answer["stdout"], "held\nTrue\n", "{answer}");
    assert!(says(&answer, REPLACED), "{answer}");
    let held = json!([{ "path": ".envrc", "why": "protected_name" }]);
    assert_eq!(answer["workspace"]["held_back"], held, "{answer}");
    assert!(!world.here("w/.envrc").exists());
}

#[test]
fn a_protected_name_that_the_host_removes_is_not_the_programs_to_make() {
    let world = world_with(&[(".vscode/tasks.json", "old"), (".envrc", "old")]);
    let script = "touch ready; until test -e go; do :; done
        until mkdir .vscode 2>/dev/null; do :; done
        echo evil 2>/dev/null > .vscode/tasks.json
        echo made";
    let running = Running::start(&world, &["sh", "-c", script]);
    fs::remove_dir_all(world.here("w/.vscode")).expect("the host removes it");
    running.replace("go", "");
    let answer = running.end().json();
    assert_eq!(answer["stdout"], "made\n", "{answer}");
    let held = json!([{ "path": ".vscode", "why": "protected_name" }]);
    assert_eq!(answer["workspace"]["held_back"], held, "{answer}");
    assert!(!world.here("w/.vscode").exists() && world.here("w/.envrc").exists());
}

#[test]
fn a_hidden_file_that_the_host_replaces_is_covered_again() {
    let world = world_with(&[(".env", "old"), ("plain", "old")]);
    let script = "cat .env 2>/dev/null || echo hidden
        touch ready; until test -e go; do :; done
        while cat .env >/dev/null 2>&1; do :; done
        cat plain";
    let running = Running::start(&world, &["sh", "-c", script]);
    running.replace(".env", "new");
    running.replace("plain", "new");
    running.replace("go", "");
    let answer = running.end().json();
    assert_eq!(answer["stdout"], "hidden\nnew", "{answer}");
    assert!(
        says(&answer, "and was hidden again after about"),
        "{answer}"
    );
    assert_eq!(answer["workspace"], json!(null), "{answer}");
    let contents = fs::read_to_string(world.here("w/.env")).expect("it stays");
    assert_eq!(contents, "new");
}

#[test]
fn a_program_that_uses_up_its_processes_does_not_go_on_without_protection() {
    let world = world_with(&[(".envrc", "old"), ("plain", "old")]);
    // All the processes that it may have wait; one of them writes for as long as it can.
    let program = "import os, time
for _ in range(1000):
    try:
        if os.fork() == 0:
            time.sleep(1000)
    except OSError:
        break
else:
    raise SystemExit('no limit')
open('ready', 'w')
while not os.path.exists('go'):
    pass
wrote = 0
while True:
    try:
        open('.envrc', 'a').write('evil')
        wrote += 1
    except OSError:
        if wrote or not os.access('.envrc', os.W_OK):
            break
print('ended', flush=True)
os._exit(0)";
    let running = Running::start(&world, &["python3", "-c", program]);
    running.replace(".envrc", "new");
    running.replace("go", "");
    let answer = running.end().json();
    assert!(
        says(&answer, REPLACED) || says(&answer, "the sandbox was ended"),
        "{answer}"
    );
    let left = fs::read_to_string(world.here("w/.envrc")).unwrap_or_default();
    let is_held = answer["workspace"]["held_back"][0]["path"] == ".envrc";
    assert!(is_held || says(&answer, REPLACED), "{left} {answer}");
}
