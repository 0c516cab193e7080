//! What of a mounted workspace its program does not see, may not change, and does not leave behind: hidden files, names of
//! the operator's, paths that git's configuration names, inputs, and folders that cannot be written.

use airlock_cli_tests::{Answer, World};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Command, Stdio},
};

fn git(folder: &Path, words: &[&str]) -> String {
    let told = Command::new("git")
        .args(words)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git starts");
    assert!(told.status.success(), "git {words:?}: {told:?}");
    String::from_utf8_lossy(&told.stdout).trim_end().to_owned()
}

fn repository(world: &World) {
    let folder = world.here("w");
    fs::create_dir_all(&folder).expect("a folder");
    git(&folder, &["init", "-q", "-b", "main", "."]);
    git(&folder, &["config", "user.name", "n"]);
    git(&folder, &["config", "user.email", "a@b"]);
}

/// The ordinary user of the tests.
fn ordinary_user() -> (u32, u32) {
    let number = |option: &str| -> u32 {
        let told = Command::new("id").args([option, &daemons::user()]).output();
        let text = String::from_utf8(told.expect("id starts").stdout).expect("a number");
        text.trim()
            .parse()
            .expect("the ordinary user of the tests is there")
    };
    (number("-u"), number("-g"))
}

/// Runs the command as that user, whose folders must be his.
fn run_as((user, group): (u32, u32), world: &World, words: &[&str]) -> Answer {
    let plain = world.command(words);
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", &user.to_string(), "--regid", &group.to_string()])
        .arg("--clear-groups")
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(world.here(""))
        .env_clear()
        .envs(world.variables())
        .stdin(Stdio::null());
    world.answer(&command.output().expect("airlock starts"))
}

/// The folder `w` as `airlock run` shares it by itself, staged, and live.
const SHARED: [&str; 2] = ["w", "w:live"];

/// Runs a script in a box whose workspace is `w`.
fn run(world: &World, options: &[&str], script: &str) -> Answer {
    run_in(world, "w", options, script)
}

/// The same where it is said how the folder is shared.
fn run_in(world: &World, shared: &str, options: &[&str], script: &str) -> Answer {
    let mut words = vec!["run", "--workspace", shared];
    words.extend(options);
    words.extend(["--", "sh", "-c", script]);
    world.run(&words)
}

#[test]
fn a_hidden_file_is_not_read_written_or_moved_in_any_kind_of_workspace() {
    let world = World::new();
    world
        .write("w/.env", "secret")
        .write("w/.env.example", "example")
        .write("w/keys/a", "secret");
    let script = "cat .env.example; cat .env || echo; ls keys; echo x 2>/dev/null > .env; mv .env b; rm -f .env; ls -A";
    let control = run(&world, &["--hide", "none"], "cat .env keys/a");
    assert_eq!(control.stdout, "secretsecret", "{}", control.stderr);
    for (shared, options) in [
        ("w", &["--hide", "keys"][..]),
        ("w:live", &["--hide", "keys"]),
        ("w", &["--hide", "keys", "--copy-on-write"]),
    ] {
        let answer = run_in(&world, shared, options, script);
        assert!(!answer.stdout.contains("secret"), "{}", answer.stdout);
        assert!(answer.stdout.starts_with("example\n"), "{}", answer.stdout);
        assert!(
            answer.stderr.contains("`.env`") && answer.stderr.contains("`--hide none`"),
            "{}",
            answer.stderr
        );
        assert_eq!(fs::read_to_string(world.here("w/.env")).unwrap(), "secret");
        assert!(world.here("w/keys/a").exists() && !world.here("w/b").exists());
    }
    let mounted = run_in(&world, "w:live", &["--hide", "keys"], script);
    assert_eq!(mounted.stdout, "example\n.env\n.env.example\nkeys\n");
    let read_only = world.run(&[
        "run",
        "--workspace",
        "w:ro",
        "--",
        "sh",
        "-c",
        "cat .env || cat keys/a",
    ]);
    assert_eq!(read_only.stdout, "secret", "{}", read_only.stderr);
    assert!(
        read_only.stderr.contains("Permission denied"),
        "{}",
        read_only.stderr
    );
}

#[test]
fn what_was_hidden_is_never_taken_over_from_a_copy() {
    let world = World::new();
    world.write("w/.env", "secret").write("w/a", "one");
    let options = ["--copy-on-write", "--run-id", "try"];
    let answer = run(&world, &options, "echo two > a");
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    let diff = world.run(&["workspace", "diff", "try"]);
    assert_eq!(diff.stdout, "~ a\n", "{}", diff.stderr);
    let done = world.run(&["workspace", "commit", "try"]);
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    assert_eq!(fs::read_to_string(world.here("w/.env")).unwrap(), "secret");
    run(&world, &options, "rm -f .env; echo mine > .env");
    let refused = world.run(&["workspace", "commit", "try"]);
    assert_ne!(refused.status, Some(0), "{}", refused.stdout);
    assert_eq!(fs::read_to_string(world.here("w/.env")).unwrap(), "secret");
}

#[test]
fn a_tracked_file_is_shown_unless_it_is_named_and_then_git_cannot_take_it_for_removed() {
    let world = World::new();
    repository(&world);
    world.write("w/test/.env", "fixture").write("w/a", "one");
    git(&world.here("w"), &["add", "."]);
    git(&world.here("w"), &["commit", "-q", "-m", "one"]);
    world.write("w/.env", "secret");
    let script = "cat test/.env; cat .env; git status --short";
    let answer = run(&world, &[], script);
    assert!(
        answer.stdout.starts_with("fixture"),
        "{}{}",
        answer.stdout,
        answer.stderr
    );
    assert!(!answer.stdout.contains("secret"), "{}", answer.stdout);
    let script = "cat test/.env; echo two > a; git add -A && git commit -q -m two";
    let named = run(&world, &["--hide", ".env"], script);
    assert_eq!(named.stdout, "", "{}", named.stderr);
    assert_ne!(
        named.status,
        Some(0),
        "git says that it cannot read the file"
    );
    assert!(world.here("w/test/.env").exists());
}

#[test]
fn names_of_the_configuration_are_protected_and_a_project_only_adds() {
    let world = World::new();
    world.write("w/a", "one");
    world.write(
        "config.toml",
        "[workspace]\nprotect = [\".mytool\"]\nunprotect = [\".idea\"]\n",
    );
    let script =
        "mkdir -p .mytool .idea sub; echo x > .mytool/x; echo x > .idea/x; echo x > sub/run.sh";
    let words = ["run", "--workspace", "w", "--", "sh", "-c", script];
    let configured = |words: &[&str]| {
        let mut command = world.command(words);
        let output = command
            .env("AIRLOCK_CONFIG", world.here("config.toml"))
            .output();
        world.answer(&output.expect("airlock starts"))
    };
    let answer = configured(&words);
    assert_eq!(answer.status, Some(0), "{}", answer.stderr);
    assert!(!world.here("w/.mytool").exists() && world.here("w/.idea/x").exists());
    assert!(world.here("w/sub/run.sh").exists(), "the control");
    fs::remove_dir_all(world.here("w/.idea")).unwrap();
    world.write("airlock.toml", "[workspace]\nprotect = [\"sub/run.sh\"]\n");
    fs::remove_file(world.here("w/sub/run.sh")).unwrap();
    configured(&words);
    assert!(!world.here("w/sub/run.sh").exists());
    // In a copy the same names are judged.
    let copied = [
        "run",
        "--workspace",
        "w",
        "--copy-on-write",
        "--run-id",
        "try",
        "--",
        "sh",
        "-c",
        script,
    ];
    configured(&copied);
    let refused = configured(&["workspace", "commit", "try"]);
    assert_ne!(refused.status, Some(0), "{}", refused.stdout);
    assert!(refused.stderr.contains(".mytool"), "{}", refused.stderr);
    world.write("airlock.toml", "[workspace]\nunprotect = [\".git\"]\n");
    let widened = configured(&words);
    assert_eq!(widened.status, Some(125), "{}", widened.stderr);
}

#[test]
fn what_the_configuration_of_git_names_is_protected() {
    let world = World::new();
    repository(&world);
    let folder = world.here("w");
    world
        .write("w/tools/hooks/pre-commit", "#!/bin/sh\n")
        .write("w/tools/clean.sh", "mine")
        .write("w/tools/other.sh", "mine");
    git(&folder, &["config", "core.hooksPath", "tools/hooks"]);
    git(
        &folder,
        &["config", "filter.x.clean", "sh ./tools/clean.sh %f"],
    );
    git(&folder, &["config", "alias.do", "!late/do.sh"]);
    git(&folder, &["config", "include.path", "../more.inc"]);
    let script = "for file in tools/hooks/pre-commit tools/clean.sh tools/other.sh; do echo evil >> $file || echo held $file; done; \
        mkdir late; echo evil > late/do.sh; echo '[core]' > more.inc; echo fine > late/other";
    let answer = run_in(&world, "w:live", &[], script);
    assert_eq!(
        answer.stdout, "held tools/hooks/pre-commit\nheld tools/clean.sh\n",
        "{}",
        answer.stderr
    );
    let has = |path: &str| world.here("w").join(path).exists();
    assert!(!has("late/do.sh") && !has("more.inc") && has("late/other"));
    assert!(
        fs::read_to_string(folder.join("tools/other.sh"))
            .unwrap()
            .contains("evil")
    );
    // Staged, the program may write them, and nothing of it reaches the folder.
    let staged = run(&world, &[], "echo evil > tools/clean.sh; echo fine > made");
    assert!(staged.stderr.contains("`tools/clean.sh`"), "{staged:?}");
    let clean = || fs::read_to_string(folder.join("tools/clean.sh")).unwrap();
    assert!(clean() == "mine" && has("made"));
    // The workspace may be a part of the worktree, and a copy.
    let part = run_in(
        &world,
        "w/tools:live",
        &[],
        "echo evil > clean.sh || echo held",
    );
    assert_eq!(part.stdout, "held\n", "{}", part.stderr);
    let part = run_in(&world, "w/tools", &[], "echo evil > clean.sh");
    assert!(part.stderr.contains("`clean.sh`"), "{part:?}");
    assert_eq!(clean(), "mine");
    let options = ["--copy-on-write", "--run-id", "try"];
    run_in(&world, "w/tools", &options, "echo evil > clean.sh");
    let refused = world.run(&["workspace", "commit", "try"]);
    assert!(
        refused.stderr.contains("configuration of git"),
        "{}",
        refused.stderr
    );
    let lifted = run(
        &world,
        &["--allow-protected", "tools/hooks"],
        "echo x > tools/hooks/new",
    );
    assert_eq!(lifted.status, Some(0), "{}", lifted.stderr);
    assert!(has("tools/hooks/new"));
}

#[test]
fn an_input_replaces_nothing_in_a_folder_and_does_not_stay() {
    for shared in SHARED {
        let world = World::new();
        world.write("w/a.txt", "mine").write("given", "given");
        let answer = run_in(&world, shared, &["--input", "a.txt=given"], "cat a.txt");
        assert_eq!(answer.status, Some(125), "{shared} {answer:?}");
        assert!(
            answer.stderr.contains("it is the mounted folder's own"),
            "{shared} {answer:?}"
        );
        assert_eq!(fs::read_to_string(world.here("w/a.txt")).unwrap(), "mine");
        let inputs = ["b.txt=given", "new/c=given", "both/d=given"];
        let options: Vec<_> = inputs.iter().flat_map(|it| ["--input", it]).collect();
        let script =
            "cat b.txt new/c; echo more >> b.txt; echo x > kept; echo y > both/e; rm both/d";
        let answer = run_in(&world, shared, &options, script);
        assert_eq!(answer.stdout, "givengiven", "{shared} {answer:?}");
        let has = |path: &str| world.here("w").join(path).exists();
        assert!(has("a.txt") && has("kept") && !has("b.txt") && !has("new"));
        assert!(has("both/e") && !has("both/d"));
    }
    let world = World::new();
    world.write("w/a.txt", "mine").write("given", "given");
    let options = ["--copy-on-write", "--input", "a.txt=given"];
    let copied = run(&world, &options, "cat a.txt");
    assert_eq!(copied.stdout, "given", "{}", copied.stderr);
}

#[test]
fn a_folder_that_its_owner_cannot_write_is_read_only() {
    let world = World::new();
    world.write("w/file", "mine");
    fs::create_dir(world.state()).expect("a state folder");
    let (user, group) = ordinary_user();
    for path in [
        world.here("w"),
        world.here("w/file"),
        world.state().to_owned(),
    ] {
        chown(path, Some(user), Some(group)).expect("it becomes the user's");
    }
    let mode = |mode| fs::set_permissions(world.here("w"), fs::Permissions::from_mode(mode));
    let other = world.here("roots").display().to_string();
    for shared in SHARED {
        let script = "cat file; echo x > new || echo held";
        let words = ["run", "--workspace", shared, "--", "sh", "-c", script];
        let of_user = || run_as((user, group), &world, &words);
        mode(0o555).unwrap();
        let as_root = [&["--state", &other][..], &words].concat();
        for answer in [of_user(), world.run(&as_root)] {
            assert_eq!(answer.stdout, "mineheld\n", "{shared} {answer:?}");
            assert!(
                answer.stderr.contains("so it is read-only inside"),
                "{shared} {answer:?}"
            );
        }
        mode(0o755).unwrap();
        let answer = of_user();
        assert_eq!(answer.stdout, "mine", "{shared} {answer:?}");
        assert!(world.here("w/new").exists());
        fs::remove_file(world.here("w/new")).unwrap();
    }
}

#[test]
fn a_link_where_a_protected_path_begins_does_not_stay() {
    let world = World::new();
    world.write("w/a", "one");
    let script = "mkdir -p m/hooks; echo evil > m/hooks/x; ln -s m .github; ln -s m other";
    let is_link = |name: &str| {
        let found = fs::symlink_metadata(world.here("w").join(name));
        found.is_ok_and(|found| found.is_symlink())
    };
    for shared in SHARED {
        let answer = run_in(&world, shared, &[], script);
        assert_eq!(answer.status, Some(0), "{shared} {answer:?}");
        assert!(is_link("other") && !is_link(".github"));
        fs::remove_file(world.here("w/other")).unwrap();
        fs::remove_dir_all(world.here("w/m")).unwrap();
    }
    run(&world, &["--copy-on-write", "--run-id", "try"], script);
    let refused = world.run(&["workspace", "commit", "try"]);
    assert!(
        refused.stderr.contains("`.github/hooks` begins"),
        "{}",
        refused.stderr
    );
    let partial = world.run(&["workspace", "commit", "try", "--partial"]);
    assert!(
        is_link("other") && !is_link(".github"),
        "{}",
        partial.stderr
    );
}

#[test]
fn a_folder_that_the_program_closes_hides_nothing() {
    let script =
        "echo evil > .envrc; ln -s /etc/passwd out; mkdir sub; echo evil > sub/.envrc; chmod 0 .";
    let owner = ordinary_user();
    let users = [None, Some(owner)];
    for (shared, user) in SHARED
        .into_iter()
        .flat_map(|it| users.map(|user| (it, user)))
    {
        let words = ["run", "--workspace", shared, "--", "sh", "-c", script];
        let world = World::new();
        world.write("w/mine", "mine");
        fs::create_dir(world.state()).expect("a state folder");
        for path in [&world.here("w"), &world.here("w/mine"), &world.state()] {
            chown(path, Some(owner.0), Some(owner.1)).expect("it becomes the user's");
        }
        let other = world.here("roots").display().to_string();
        let answer = match user {
            Some(user) => run_as(user, &world, &words),
            None => world.run(&[&["--state", &other][..], &words].concat()),
        };
        assert_eq!(answer.status, Some(0), "{}", answer.stderr);
        let mode = fs::metadata(world.here("w"))
            .expect("it is there")
            .permissions();
        assert_eq!(mode.mode() & 0o700, 0o700, "{}", answer.stderr);
        for gone in ["w/.envrc", "w/out", "w/sub/.envrc"] {
            let found = fs::symlink_metadata(world.here(gone));
            assert!(found.is_err(), "{gone} {}", answer.stderr);
        }
        // The control: what is nobody's to obey stays.
        assert!(world.here("w/mine").exists() && world.here("w/sub").exists());
    }
}

#[test]
fn what_of_artifacts_was_not_kept_is_held_and_the_rest_goes() {
    let world = World::new();
    world.write("w/mine", "mine");
    let all = "mkdir -p .artifacts; echo r > .artifacts/r";
    let script = "mkdir -p .artifacts; echo r > .artifacts/r; mkfifo .artifacts/pipe";
    for shared in SHARED {
        let kept = run_in(&world, shared, &[], all);
        assert_eq!(kept.status, Some(0), "{shared} {kept:?}");
        assert!(!world.here("w/.artifacts").exists(), "{shared} {kept:?}");
        assert_eq!(world.run(&["workspace", "held"]).stdout, "");
        assert_eq!(world.run(&["workspace", "list"]).stdout, "");
    }
    let told = run(&world, &["--json", "--run-id", "staged"], script).json();
    let held = serde_json::json!({ "path": ".artifacts", "why": "artifacts" });
    assert_eq!(told["workspace"]["held_back"][0], held, "{told}");
    assert!(!world.here("w/.artifacts").exists(), "{told}");
    let taken = world.run(&["workspace", "commit", "staged", "--partial"]);
    // Without the pipe, which has no place in a folder.
    assert!(world.here("w/.artifacts/r").exists(), "{taken:?}");
    fs::remove_dir_all(world.here("w/.artifacts")).unwrap();
    let left = run_in(&world, "w:live", &["--run-id", "left"], script);
    assert!(!world.here("w/.artifacts").exists(), "{}", left.stderr);
    let held = world.run(&["workspace", "held", "left", "--json"]).json();
    assert_eq!(held["held_back"][0]["why"], "artifacts", "{held}");
}
