//! Staged workspaces: a program's changes reach the folder when it has ended. With real programs in real sandboxes, as
//! whoever runs this and as an ordinary user, for each kind of layer and on each kind of file system.

use airlock_cli_tests::ground::{GROUNDS, Ground, Layer, Whom, ids, words};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    process::Stdio,
};

#[path = "staged/disks.rs"]
mod disks;

const SCRIPT: &str = "set -e; printf after >changed; rm -r gone; mkdir new; printf n >new/file; \
    chmod 700 new/file; ln -s new/file shortcut; mv moved there; chmod 600 kept";

#[test]
fn changes_reach_the_folder_when_the_program_has_ended() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let before = ground.contents();
        let run = ground.begin(SCRIPT, "true");
        assert_eq!(
            ground.contents(),
            before,
            "{whom:?} {layer:?}: while it runs"
        );
        let ran = run.end();
        // `mv` copies what such a layer cannot rename.
        let told = match (whom, layer) {
            (Whom::User, Layer::Laid) => {
                "airlock: note: denied: rename `/workspace/moved` (by workspace_layer; \
                 --workspace [WORLD]/here/work:live allows it)\n"
            }
            _ => "",
        };
        assert_eq!(
            (ran.status, ran.stderr.as_str()),
            (Some(0), told),
            "{whom:?} {layer:?}"
        );
        let read = |path| ground.read(path);
        assert_eq!(
            [
                read("changed"),
                read("new/file"),
                read("shortcut"),
                read("there/below")
            ],
            ["after", "n", "n", "y"],
            "{whom:?} {layer:?}"
        );
        for gone in ["gone", "moved"] {
            assert!(!ground.work(gone).exists(), "{whom:?} {layer:?}: {gone}");
        }
        let of = |path| fs::metadata(ground.work(path)).expect("it is there");
        let (file, owner) = (of("new/file"), of("").uid());
        assert_eq!((file.mode() & 0o7777, file.uid()), (0o700, owner));
        assert_eq!(of("kept").mode() & 0o7777, 0o600, "{whom:?} {layer:?}");
        let left = ground.airlock(&["workspace", "list", "--json"]).json();
        assert_eq!(left, json!({ "workspaces": [] }), "{whom:?} {layer:?}");
    }
}

#[test]
fn what_a_lost_program_left_is_kept_and_not_applied() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let before = ground.contents();
        let mark = format!("lost-{}-{whom:?}-{layer:?}", std::process::id());
        let lost = ground.begin(SCRIPT, &format!(": {mark}")).lose(&mark);
        assert_ne!(lost.status, Some(0), "{whom:?} {layer:?}");
        assert_eq!(ground.contents(), before, "{whom:?} {layer:?}: {lost:?}");
        let shown = ground.airlock(&["workspace", "show", "try", "changed"]);
        assert_eq!(shown.stdout, "after", "{whom:?} {layer:?}: {shown:?}");
        // The control: it is its owner's to apply. Of a program that ends it is applied: see above.
        let taken = ground.airlock(&["workspace", "commit", "try"]);
        assert_eq!(taken.status, Some(0), "{whom:?} {layer:?}: {taken:?}");
        assert_eq!(ground.read("changed"), "after", "{whom:?} {layer:?}");
    }
}

#[test]
fn what_a_program_left_that_died_with_the_first_process_of_its_sandbox_is_kept_and_not_applied() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let before = ground.contents();
        let mark = format!("first-{}-{whom:?}-{layer:?}", std::process::id());
        let lost = ground.begin(SCRIPT, &format!(": {mark}")).lose_first(&mark);
        assert_eq!(lost.status, Some(125), "{whom:?} {layer:?}: {lost:?}");
        assert!(
            lost.stderr.contains("the sandbox died under the program"),
            "{whom:?} {layer:?}: {lost:?}"
        );
        assert_eq!(ground.contents(), before, "{whom:?} {layer:?}: {lost:?}");
        let shown = ground.airlock(&["workspace", "show", "try", "changed"]);
        assert_eq!(shown.stdout, "after", "{whom:?} {layer:?}: {shown:?}");
        let taken = ground.airlock(&["workspace", "commit", "try"]);
        assert_eq!(taken.status, Some(0), "{whom:?} {layer:?}: {taken:?}");
        assert_eq!(ground.read("changed"), "after", "{whom:?} {layer:?}");
    }
}

/// The control of the test before: that signal alone is no sign of a sandbox that died.
#[test]
fn what_a_program_left_that_killed_itself_is_applied() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let told = ground.stage("printf after >changed; kill -KILL $$");
        assert_eq!(
            [
                &told["status"],
                &told["signal"],
                &told["workspace"]["applied"]
            ],
            [&json!("failed"), &json!(9), &json!(1)],
            "{whom:?} {layer:?}: {told}"
        );
        assert_eq!(ground.read("changed"), "after", "{whom:?} {layer:?}");
        let left = ground.airlock(&["workspace", "list", "--json"]).json();
        assert_eq!(left, json!({ "workspaces": [] }), "{whom:?} {layer:?}");
    }
}

#[test]
fn the_result_says_how_the_layer_was_made_and_what_was_applied() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let told = ground.stage("printf x >x; rm kept; printf after >changed");
        let expected = match layer {
            Layer::Copied => "copy",
            Layer::Laid => "overlay",
        };
        assert_eq!(
            told["workspace"],
            json!({
                "id": "try", "mode": "staged", "added": 1, "changed": 1, "removed": 1, "applied": 3,
                "held_back": [], "held_back_total": 0, "conflicts": [], "conflicts_total": 0, "commits": [],
                "layer": expected, "layer_bytes": told["workspace"]["layer_bytes"],
            }),
            "{whom:?} {layer:?}"
        );
        assert!(told["workspace"]["layer_bytes"].as_u64() < Some(1 << 20));
    }
}

#[test]
fn the_result_says_how_the_layer_was_made_where_nothing_was_changed() {
    for (whom, layer) in GROUNDS {
        for mode in ["staged", "copy_on_write"] {
            let ground = Ground::new(whom, layer);
            let folder = match mode {
                "staged" => &["work:staged"][..],
                _ => &["work", "--copy-on-write"],
            };
            let words = [&["run", "--json", "--workspace"], folder, &["--", "true"]].concat();
            let told = ground.airlock(&words).json();
            let expected = match layer {
                Layer::Copied => "copy",
                Layer::Laid => "overlay",
            };
            let workspace = &told["workspace"];
            assert_eq!(
                [&workspace["mode"], &workspace["layer"]],
                [mode, expected],
                "{whom:?} {told}"
            );
            let counted = ["added", "changed", "removed", "applied"].map(|name| &workspace[name]);
            assert_eq!(counted, [0; 4], "{whom:?} {layer:?} {told}");
            let left = ground.airlock(&["workspace", "list", "--json"]).json();
            assert_eq!(left, json!({ "workspaces": [] }), "{whom:?} {layer:?}");
        }
    }
}

#[test]
fn what_changed_in_the_folder_meanwhile_is_a_conflict_and_stays() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let run = ground.begin(
            "printf theirs >changed; printf theirs >both; printf new >free",
            "",
        );
        fs::write(ground.work("changed"), "mine").unwrap();
        fs::write(ground.work("both"), "mine").unwrap();
        ground.give_away();
        let ran = run.end();
        assert_eq!(ran.status, Some(123), "{whom:?} {layer:?} {ran:?}");
        assert!(
            ran.stderr
                .contains("`both` (it appeared in the folder meanwhile) and 1 more"),
            "{ran:?}"
        );
        assert_eq!(
            ["changed", "both", "free"].map(|path| ground.read(path)),
            ["mine", "mine", "new"],
            "{whom:?} {layer:?}"
        );
        let diff = ground.airlock(&["workspace", "diff", "try"]);
        assert!(
            diff.stdout.contains("+ both ") && diff.stdout.contains("~ changed "),
            "{diff:?}"
        );
        assert!(!diff.stdout.contains("free"), "{diff:?}");
        let taken = ground.airlock(&["workspace", "commit", "try", "--force"]);
        assert_eq!(taken.status, Some(0), "{taken:?}");
        assert_eq!(
            ["changed", "both"].map(|path| ground.read(path)),
            ["theirs", "theirs"]
        );
    }
}

#[test]
fn a_conflict_is_an_error_with_a_code_and_does_not_hide_how_the_program_ended() {
    let conflict = |then: &str, expected: (Value, Value, &str)| {
        let ground = Ground::new(Whom::Caller, Layer::Copied);
        // With --json nothing of the program's is seen before its end: these tell of it, and it of us.
        let sync = ground.world.here("sync");
        fs::create_dir(&sync).expect("a folder");
        let [ready, go] = ["ready", "go"].map(|name| sync.join(name));
        for pipe in [&ready, &go] {
            let mode = rustix::fs::Mode::from_raw_mode(0o666);
            let fifo = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, pipe, fifo, mode, 0).expect("a pipe");
        }
        let script =
            format!("echo ready >/sync/ready; read go </sync/go; printf theirs >kept; {then}");
        let mut all = words(&["--json"], &script);
        all.splice(1..1, ["--mount", "sync:/sync:rw"]);
        let mut command = ground.command(&all);
        let child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("airlock starts");
        assert_eq!(fs::read_to_string(&ready).expect("it is told"), "ready\n");
        fs::write(ground.work("kept"), "mine").unwrap();
        fs::write(&go, "go\n").expect("it is heard");
        let told = ground
            .world
            .answer(&child.wait_with_output().expect("it ends"))
            .json();
        let (status, exit_code, code) = expected;
        assert_eq!(
            (
                &told["status"],
                &told["exit_code"],
                told["error"]["code"].as_str()
            ),
            (&status, &exit_code, Some(code)),
            "{told}"
        );
        assert_eq!(told["workspace"]["conflicts"][0]["path"], "kept", "{told}");
        assert_eq!(ground.read("kept"), "mine");
    };
    conflict("true", (json!("succeeded"), json!(0), "workspace_conflict"));
    conflict("exit 3", (json!("failed"), json!(3), "workspace_conflict"));
}

#[test]
fn a_removed_folder_in_which_something_is_held_back_is_held_back_with_it() {
    for (whom, layer) in GROUNDS {
        for script in ["rm -r gone", "rm -r gone; printf now >gone"] {
            let ground = Ground::new(whom, layer);
            fs::write(ground.work("gone/.envrc"), "export A=1").unwrap();
            ground.give_away();
            let told = ground.stage(script);
            let held = |path: &str| json!({ "path": path, "why": "protected_name" });
            assert_eq!(
                (&told["exit_code"], &told["error"]),
                (&json!(0), &Value::Null),
                "{whom:?} {layer:?} {script}: {told}"
            );
            assert_eq!(
                told["workspace"]["held_back"],
                json!([held("gone"), held("gone/.envrc")]),
                "{whom:?} {layer:?} {script}: {told}"
            );
            assert!(!ground.work("gone/below").exists(), "the rest is applied");
            assert_eq!(ground.read("gone/.envrc"), "export A=1");
            // Once what is held back is taken, the folder can go.
            let words = [
                "workspace",
                "commit",
                "try",
                "--only",
                "gone/.envrc",
                "--force",
            ];
            let taken = ground.airlock(&words);
            assert_eq!(taken.status, Some(0), "{whom:?} {layer:?} {taken:?}");
            let rest = ground.airlock(&["workspace", "commit", "try"]);
            assert_eq!(rest.status, Some(0), "{whom:?} {layer:?} {rest:?}");
            assert!(!ground.work("gone").is_dir(), "{whom:?} {layer:?} {script}");
        }
    }
}

#[test]
fn what_is_held_back_leaves_the_programs_status_and_one_line() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let ran = ground.airlock(&words(
            &[],
            "printf x >.envrc; ln -s /etc/passwd out; printf free >free; exit 4",
        ));
        assert_eq!(ran.status, Some(4), "{whom:?} {layer:?} {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        assert!(
            ran.stderr.contains("`.envrc`") && ran.stderr.contains("and 1 more"),
            "{ran:?}"
        );
        assert_eq!(ground.read("free"), "free");
        assert!(!ground.work(".envrc").exists() && ground.work("out").symlink_metadata().is_err());
        let diff = ground.airlock(&["workspace", "diff", "try"]).stdout;
        assert!(
            diff.contains(".envrc") && diff.contains("out -> /etc/passwd"),
            "{diff}"
        );
    }
}

#[test]
fn what_could_not_be_applied_is_an_error_and_is_kept() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let closed = |mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(ground.work("moved"), mode).unwrap();
        };
        closed(0o500);
        let told = ground.stage(
            "chmod 700 moved; printf new >moved/new; chmod 500 moved; printf after >changed",
        );
        let (error, workspace) = (&told["error"], &told["workspace"]);
        assert_eq!(
            (&error["code"], &workspace["conflicts"][0]["path"]),
            (&json!("workspace_conflict"), &json!("moved/new")),
            "{whom:?} {layer:?} {told}"
        );
        assert_eq!(
            (&workspace["conflicts_total"], &workspace["held_back_total"]),
            (&json!(1), &json!(0)),
            "{told}"
        );
        assert_eq!(ground.read("changed"), "after");
        assert!(!ground.work("moved/new").exists());
        // The control: it is kept, and taken once that can be.
        closed(0o700);
        let taken = ground.airlock(&["workspace", "commit", "try"]);
        assert_eq!(taken.status, Some(0), "{taken:?}");
        assert_eq!(ground.read("moved/new"), "new", "{whom:?} {layer:?}");
    }
}

#[test]
fn at_most_a_hundred_names_are_listed_and_all_are_counted() {
    let ground = Ground::new(Whom::Caller, Layer::Copied);
    let told = ground.stage("for n in $(seq 130); do mkdir d$n; printf x >d$n/.envrc; done");
    let workspace = &told["workspace"];
    assert_eq!(workspace["held_back"].as_array().map(Vec::len), Some(100));
    assert_eq!(workspace["held_back_total"], 130);
}

#[test]
fn changes_of_a_program_that_runs_out_of_time_are_applied_too() {
    let ground = Ground::new(Whom::Caller, Layer::Laid);
    let told = ground
        .airlock(&words(
            &["--json", "--timeout", "2s"],
            "printf done >done; sleep 600",
        ))
        .json();
    assert_eq!(
        (&told["status"], ground.read("done")),
        (&json!("timed_out"), "done".to_owned())
    );
}

#[test]
fn a_run_that_never_starts_or_changes_nothing_leaves_nothing() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let before = ground.contents();
        let mut never = words(&[], "true");
        never.truncate(never.len() - 3);
        never.push("/no/such/program");
        assert_eq!(ground.airlock(&never).status, Some(127));
        assert_eq!(ground.airlock(&words(&[], "cat kept")).status, Some(0));
        assert_eq!(ground.contents(), before);
        let left = ground.airlock(&["workspace", "list", "--json"]).json();
        assert_eq!(left, json!({ "workspaces": [] }), "{whom:?} {layer:?}");
    }
}

#[test]
fn with_copy_on_write_the_staged_layer_is_kept() {
    let ground = Ground::new(Whom::Caller, Layer::Laid);
    let ran = ground.airlock(&words(&["--copy-on-write"], "printf x >x"));
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(!ground.work("x").exists());
    assert_eq!(
        ground.airlock(&["workspace", "commit", "try"]).status,
        Some(0)
    );
    assert_eq!(ground.read("x"), "x");
}

#[test]
fn two_runs_do_not_see_each_other() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let first = ground.begin("printf first >first", "ls");
        let second = ground.airlock(&[
            "run",
            "--workspace",
            "work:staged",
            "--",
            "sh",
            "-c",
            "ls; printf second >second",
        ]);
        assert!(
            !second.stdout.contains("first"),
            "{whom:?} {layer:?} {second:?}"
        );
        let ran = first.end();
        assert_eq!(ran.status, Some(0), "{ran:?}");
        assert_eq!(
            [ground.read("first"), ground.read("second")],
            ["first", "second"]
        );
    }
}

#[test]
fn a_file_that_is_open_for_writing_on_the_host_is_a_conflict() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let database = ground.work("changed");
        let run = ground.begin("printf theirs >changed; printf theirs >kept", "");
        let open = fs::OpenOptions::new().append(true).open(&database).unwrap();
        let ran = run.end();
        assert_eq!(ran.status, Some(123), "{whom:?} {layer:?} {ran:?}");
        assert!(ran.stderr.contains("`changed`"), "{ran:?}");
        assert_eq!(
            [ground.read("changed"), ground.read("kept")],
            ["before", "theirs"]
        );
        // The control: the same once it is closed.
        drop(open);
        let taken = ground.airlock(&["workspace", "commit", "try"]);
        assert_eq!(
            (taken.status, ground.read("changed")),
            (Some(0), "theirs".to_owned())
        );
    }
}

#[test]
fn applied_files_are_new_and_locks_and_pipes_are_not_shared() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let old = fs::metadata(ground.work("changed")).unwrap().ino();
        // A lock of the host's, which the program does not feel.
        let lock = fs::File::open(ground.work("kept")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let ran = ground.airlock(&words(
            &[],
            "printf after >changed; flock --nonblock kept true && echo mine; mkfifo pipe",
        ));
        assert_eq!(
            (ran.status, ran.stdout.as_str()),
            (Some(0), "mine\n"),
            "{whom:?} {layer:?} {ran:?}"
        );
        assert!(
            ran.stderr
                .contains("`pipe` (it is a pipe, a socket or a device)"),
            "{ran:?}"
        );
        assert!(ground.work("pipe").symlink_metadata().is_err());
        assert_ne!(fs::metadata(ground.work("changed")).unwrap().ino(), old);
    }
}

#[test]
fn modes_and_times_arrive() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let told =
            ground.stage("printf x >tool; chmod 755 tool; touch -d '2001-02-03 04:05:06 UTC' tool");
        assert_eq!(told["exit_code"], 0, "{told}");
        let tool = fs::metadata(ground.work("tool")).unwrap();
        assert_eq!(
            (tool.mode() & 0o7777, tool.mtime()),
            (0o755, 981_173_106),
            "{whom:?} {layer:?}"
        );
    }
}

#[test]
fn a_folder_with_files_of_others_is_copied_or_refused() {
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "only root has files of others"
        );
        return println!("NOT TESTED: only root has files of others");
    }
    let ground = Ground::new(Whom::User, Layer::Laid);
    fs::write(ground.work("roots"), "root's").unwrap();
    fs::set_permissions(ground.work("roots"), fs::Permissions::from_mode(0o644)).unwrap();
    let ran = ground.airlock(&words(&[], "true"));
    assert_eq!(ran.status, Some(125), "{ran:?}");
    assert!(
        ran.stderr.contains("does not know") && ran.stderr.contains(":live"),
        "{ran:?}"
    );
    // The control: as his own it is no obstacle.
    let (user, group) = ids();
    chown(ground.work("roots"), Some(user), Some(group)).unwrap();
    assert_eq!(ground.airlock(&words(&[], "true")).status, Some(0));
}

#[test]
fn a_file_that_is_too_large_to_be_changed_is_named_at_the_start() {
    let ground = Ground::new(Whom::Caller, Layer::Laid);
    fs::File::create(ground.work("large"))
        .unwrap()
        .set_len(2 << 20)
        .unwrap();
    let ran = ground.airlock(&words(&["--file-size", "1M"], "cat large | wc -c"));
    assert_eq!(
        (ran.status, ran.stdout.as_str()),
        (Some(0), "2097152\n"),
        "{ran:?}"
    );
    assert!(
        ran.stderr
            .contains("`large` is larger than --file-size (1M)"),
        "{ran:?}"
    );
    let ran = ground.airlock(&words(&["--file-size", "4M"], "printf x >>large"));
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
}
