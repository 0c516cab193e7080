//! Workspaces that are copied on writing, with real programs in real boxes: as whoever runs this, as an ordinary user, and
//! in containers of Docker and Podman.

use airlock_cli_tests::{Answer, World};
use daemons::{Daemons, IMAGE, Kind};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// Where the program runs, and who starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Native,
    NativeOfUser,
    Docker,
    Podman,
    PodmanOfUser,
}

const PLACES: [Place; 5] = [
    Place::Native,
    Place::NativeOfUser,
    Place::Docker,
    Place::Podman,
    Place::PodmanOfUser,
];

/// One for all tests here; they end with this process.
fn engines() -> &'static Daemons {
    static ENGINES: OnceLock<Daemons> = OnceLock::new();
    ENGINES.get_or_init(|| Daemons::start(&[Kind::Docker, Kind::Podman, Kind::Rootless]))
}

fn number(option: &str) -> u32 {
    let told = Command::new("id")
        .args([option, &daemons::user()])
        .output()
        .expect("id starts");
    let text = String::from_utf8(told.stdout).expect("a number");
    text.trim()
        .parse()
        .expect("the ordinary user of the tests is there")
}

impl Place {
    fn is_users(self) -> bool {
        matches!(self, Place::NativeOfUser | Place::PodmanOfUser)
    }

    fn kind(self) -> Option<Kind> {
        match self {
            Place::Native | Place::NativeOfUser => None,
            Place::Docker => Some(Kind::Docker),
            Place::Podman => Some(Kind::Podman),
            Place::PodmanOfUser => Some(Kind::Rootless),
        }
    }

    fn options(self) -> Vec<&'static str> {
        self.kind().map_or(Vec::new(), |kind| {
            vec!["--backend", kind.backend(), "--image", IMAGE]
        })
    }

    /// A world whose files are the ordinary user's, but where root works on his own.
    fn world(self) -> World {
        let world = World::new();
        fs::create_dir(world.state()).expect("a state folder");
        world
            .write("work/kept", "kept")
            .write("work/changed", "before")
            .write("work/gone/below", "x");
        symlink("kept", world.here("work/link")).expect("a link");
        if self != Place::Native {
            let (user, group) = (Some(number("-u")), Some(number("-g")));
            for path in [
                "work",
                "work/kept",
                "work/changed",
                "work/gone",
                "work/gone/below",
            ] {
                chown(world.here(path), user, group).expect("it becomes the user's");
            }
            if self.is_users() {
                chown(world.state(), user, group).expect("it becomes the user's");
            }
        }
        world
    }

    fn command(self, world: &World, words: &[&str]) -> Command {
        let plain = world.command(words);
        let mut command = match self.is_users() {
            false => plain,
            true => {
                let [user, group] = ["-u", "-g"].map(|option| number(option).to_string());
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &user, "--regid", &group, "--clear-groups"]);
                command
                    .arg(plain.get_program())
                    .args(plain.get_args())
                    .current_dir(world.here(""));
                command
                    .env_clear()
                    .envs(world.variables())
                    .stdin(Stdio::null());
                command
            }
        };
        if let Some(kind) = self.kind() {
            let host = engines().host(kind);
            command
                .env("DOCKER_HOST", &host)
                .env("CONTAINER_HOST", &host);
        }
        command
    }

    fn airlock(self, world: &World, words: &[&str]) -> Answer {
        world.answer(&self.command(world, words).output().expect("airlock starts"))
    }

    /// Runs a shell script on the folder, copied on writing, as the run `try`.
    fn change(self, world: &World, script: &str) -> Answer {
        let mut words = vec![
            "run",
            "--workspace",
            "work",
            "--copy-on-write",
            "--run-id",
            "try",
        ];
        words.extend(self.options());
        words.extend(["--", "sh", "-c", script]);
        self.airlock(world, &words)
    }
}

const SCRIPT: &str = "cat kept changed && printf after > changed && rm -r gone && mkdir new && \
    printf n > new/file && chmod 700 new/file && ln -s new/file shortcut";

#[test]
fn changes_are_kept_apart_shown_taken_over_and_dropped_everywhere() {
    for place in PLACES {
        let world = place.world();
        let before = world.contents();
        let ran = place.change(&world, SCRIPT);
        assert_eq!(
            (ran.status, ran.stdout.as_str()),
            (Some(0), "keptbefore"),
            "{place:?} {ran:?}"
        );
        assert!(
            ran.stderr.contains("`airlock workspace diff try`"),
            "{place:?} {ran:?}"
        );
        let here = world.here("work");
        let of_folder = |world: &World| {
            let contents = world.contents();
            contents
                .into_iter()
                .filter(|(path, _)| path.starts_with(&here))
                .collect::<Vec<_>>()
        };
        let untouched: Vec<_> = before
            .into_iter()
            .filter(|(path, _)| path.starts_with(&here))
            .collect();
        assert_eq!(of_folder(&world), untouched, "{place:?}");

        let shown = place.airlock(&world, &["workspace", "diff", "try"]);
        let expected =
            "~ changed\n- gone/\n- gone/below\n+ new/\n+ new/file\n+ shortcut -> new/file\n";
        assert_eq!(shown.stdout, expected, "{place:?} {shown:?}");
        let stat = place.airlock(&world, &["workspace", "diff", "try", "--stat"]);
        assert_eq!(stat.stdout, "3 added, 1 changed, 2 removed\n");

        let committed = place
            .airlock(&world, &["workspace", "commit", "try", "--json"])
            .json();
        assert_eq!(
            (&committed["left_out"], &committed["discarded"]),
            (&json!([]), &json!(true)),
            "{place:?}"
        );
        assert_eq!(
            fs::read_to_string(world.here("work/changed")).unwrap(),
            "after"
        );
        assert!(!world.here("work/gone").exists());
        let file = fs::metadata(world.here("work/new/file")).unwrap();
        let owner = fs::metadata(world.here("work")).unwrap().uid();
        assert_eq!(
            (file.mode() & 0o7777, file.uid()),
            (0o700, owner),
            "{place:?}"
        );
        assert_eq!(
            fs::read_link(world.here("work/shortcut")).unwrap().to_str(),
            Some("new/file")
        );
        assert_eq!(place.airlock(&world, &["workspace", "list"]).stdout, "");

        place.change(&world, "rm kept");
        let dropped = place.airlock(&world, &["workspace", "discard", "try"]);
        assert_eq!(
            (dropped.status, dropped.stdout.as_str()),
            (Some(0), "discarded\n"),
            "{place:?} {dropped:?}"
        );
        assert!(world.here("work/kept").exists());
        assert_eq!(
            fs::read_dir(world.state().join("workspaces"))
                .unwrap()
                .count(),
            0,
            "{place:?}"
        );
    }
}

#[test]
fn a_hostile_program_makes_no_commit_write_elsewhere_or_lend_power() {
    for place in PLACES {
        let world = place.world();
        world.write("outside", "theirs");
        fs::set_permissions(world.here("outside"), fs::Permissions::from_mode(0o666)).unwrap();
        let script = "rm changed && ln -s ../outside changed; rm -r gone && ln -s .. gone; mkfifo pipe; \
            cp /bin/sh shell && chmod 6755 shell; ln kept twin; mkdir -p .git/hooks; \
            echo evil > .git/hooks/pre-commit; echo evil > .envrc; printf x > $(printf 'two\\nlines'); true";
        let ran = place.change(&world, script);
        assert_eq!(ran.status, Some(0), "{place:?} {ran:?}");
        let refused = place.airlock(&world, &["workspace", "commit", "try", "--json"]);
        assert_eq!(refused.status, Some(125), "{place:?} {refused:?}");
        let told = refused.json();
        let named: Vec<_> = told["left_out"]
            .as_array()
            .unwrap()
            .iter()
            .map(|left| &left["path"])
            .collect();
        let expected = [
            ".envrc",
            ".git",
            ".git/hooks",
            ".git/hooks/pre-commit",
            "changed",
            "gone",
            "pipe",
        ];
        assert_eq!(named, expected, "{place:?} {told}");
        assert_eq!(
            fs::read_to_string(world.here("work/changed")).unwrap(),
            "before"
        );

        let partial = place.airlock(
            &world,
            &["workspace", "commit", "try", "--partial", "--force"],
        );
        assert_eq!(partial.status, Some(1), "{place:?} {partial:?}");
        assert_eq!(
            fs::read_to_string(world.here("outside")).unwrap(),
            "theirs",
            "{place:?}"
        );
        assert_eq!(
            fs::read_to_string(world.here("work/changed")).unwrap(),
            "before"
        );
        let shell = fs::metadata(world.here("work/shell")).unwrap();
        assert_eq!(shell.mode() & 0o7777, 0o755, "{place:?}");
        for absent in ["work/pipe", "work/.git", "work/.envrc"] {
            assert!(!world.here(absent).exists(), "{place:?} {absent}");
        }
        assert_eq!(fs::metadata(world.here("work/twin")).unwrap().nlink(), 1);
        assert!(world.here("work/two\nlines").exists());
    }
}

#[test]
fn a_program_sees_no_more_of_a_folder_than_where_that_is_mounted() {
    let (place, world) = (Place::Docker, Place::Docker.world());
    world.write("work/secret", "root's own");
    fs::set_permissions(world.here("work/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    for place in [place, Place::Native] {
        let ran = place.change(&world, "cat kept; cat secret 2>/dev/null || true");
        assert_eq!(
            (ran.status, ran.stdout.as_str()),
            (Some(0), "kept"),
            "{place:?} {ran:?}"
        );
    }
}

#[test]
fn what_changed_meanwhile_is_named_and_kept_unless_forced() {
    let (place, world) = (Place::Native, Place::Native.world());
    place.change(&world, "printf after > changed");
    world.write("work/changed", "of the user");
    let shown = place.airlock(&world, &["workspace", "diff", "try"]);
    assert_eq!(
        shown.stdout,
        "~ changed  (it was changed in the folder meanwhile)\n"
    );
    let refused = place.airlock(&world, &["workspace", "commit", "try"]);
    assert_eq!(refused.status, Some(125));
    assert_eq!(
        refused.stderr,
        "airlock: note: `changed`: it was changed in the folder meanwhile\n\
         airlock: error: 1 of the changes cannot be taken over as they are\n\
         airlock: hint: --partial takes over the rest; --force also what conflicts\n"
    );
    assert_eq!(
        fs::read_to_string(world.here("work/changed")).unwrap(),
        "of the user"
    );
    assert_eq!(
        place
            .airlock(&world, &["workspace", "commit", "try", "--force"])
            .status,
        Some(0)
    );
    assert_eq!(
        fs::read_to_string(world.here("work/changed")).unwrap(),
        "after"
    );
}

#[test]
fn a_run_that_changes_nothing_or_never_starts_leaves_no_workspace() {
    let (place, world) = (Place::Native, Place::Native.world());
    let idle = place.change(&world, "cat kept > /dev/null");
    assert_eq!((idle.status, idle.stderr.as_str()), (Some(0), ""));
    let words = [
        "run",
        "--workspace",
        "work",
        "--copy-on-write",
        "--",
        "/no/such/program",
    ];
    assert_eq!(place.airlock(&world, &words).status, Some(127));
    assert_eq!(
        place
            .airlock(&world, &["workspace", "list", "--json"])
            .json(),
        json!({ "workspaces": [] })
    );
    // The control: one that does leaves one, and says so in its result.
    let words = [
        "run",
        "--json",
        "--workspace",
        "work",
        "--copy-on-write",
        "--run-id",
        "one",
        "--",
        "touch",
        "x",
    ];
    let told: Value = place.airlock(&world, &words).json();
    assert_eq!(
        told["workspace"],
        json!({
            "id": "one", "mode": "copy_on_write", "added": 1, "changed": 0, "removed": 0,
            "applied": 0, "held_back": [], "held_back_total": 0, "conflicts": [],
            "conflicts_total": 0, "commits": [], "layer": "copy",
            "layer_bytes": told["workspace"]["layer_bytes"],
        })
    );
    assert!(
        place
            .airlock(&world, &["workspace", "list"])
            .stdout
            .starts_with("one  ")
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let (place, world) = (Place::Native, Place::Native.world());
    let state = world.state();
    let rows: [(&[&str], &str); 4] = [
        (
            &["run", "--copy-on-write", "--", "true"],
            "--workspace <DIR",
        ),
        (
            &[
                "run",
                "--copy-on-write",
                "--workspace",
                state.to_str().unwrap(),
                "--",
                "true",
            ],
            "lies in Airlock's state folder",
        ),
        (
            &["workspace", "diff", "nobody"],
            "there is no workspace `nobody`",
        ),
        (&["workspace", "discard", "../runs"], "../runs"),
    ];
    for (words, said) in rows {
        let refused = place.airlock(&world, words);
        assert_eq!(refused.status, Some(125), "{words:?}");
        assert!(refused.stderr.contains(said), "{words:?} {refused:?}");
    }
    place.change(&world, "touch x");
    let again = place.change(&world, "touch y");
    assert_eq!(again.status, Some(125));
    assert!(
        again.stderr.contains("there is a workspace `try` already"),
        "{again:?}"
    );
    // Nor can another run be shown what lies in the state folder.
    let tree = state.join("workspaces/try/tree");
    let words = ["run", "--workspace", tree.to_str().unwrap(), "--", "true"];
    assert_eq!(place.airlock(&world, &words).status, Some(125));
}

#[test]
fn changes_outlive_a_killed_engine_and_nothing_else_does() {
    for place in [Place::Native, Place::NativeOfUser] {
        let world = place.world();
        let words = [
            "run",
            "--workspace",
            "work",
            "--copy-on-write",
            "--run-id",
            "try",
            "--",
            "sh",
            "-c",
        ];
        let words = [
            &words[..],
            &["printf after > changed; echo ready; sleep 1000"],
        ]
        .concat();
        let mut run = place
            .command(&world, &words)
            .stdout(Stdio::piped())
            .spawn()
            .expect("airlock starts");
        let mut line = String::new();
        BufReader::new(run.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n", "{place:?}");
        let listed = place.airlock(&world, &["workspace", "list"]).stdout;
        assert!(listed.ends_with("in use\n"), "{listed}");
        let kept = place.airlock(&world, &["workspace", "discard", "try"]);
        assert!(kept.stderr.contains("is in use"), "{kept:?}");
        run.kill().unwrap();
        run.wait().unwrap();
        let shown = place.airlock(&world, &["workspace", "diff", "try"]);
        assert_eq!(shown.stdout, "~ changed\n", "{place:?} {shown:?}");
        let committed = place.airlock(&world, &["workspace", "commit", "try"]);
        assert_eq!(committed.status, Some(0), "{place:?} {committed:?}");
        assert_eq!(
            fs::read_to_string(world.here("work/changed")).unwrap(),
            "after"
        );
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !mounts.contains(world.state().to_str().unwrap()),
            "{mounts}"
        );
    }
}

#[test]
fn credentials_in_a_mounted_folder_are_not_seen_anywhere() {
    for place in PLACES {
        let world = place.world();
        world
            .write("work/.env", "secret")
            .write("work/.ssh-keys/id_rsa", "secret");
        if place != Place::Native {
            let (user, group) = (Some(number("-u")), Some(number("-g")));
            for path in ["work/.env", "work/.ssh-keys", "work/.ssh-keys/id_rsa"] {
                chown(world.here(path), user, group).expect("it becomes the user's");
            }
        }
        let run = |shared: &str, more: &[&str]| {
            let mut words = vec!["run", "--workspace", shared];
            words.extend(more);
            words.extend(place.options());
            let script = "cat .env .ssh-keys/*; rm -f .env; echo x > .env; ls -A .ssh-keys";
            words.extend(["--", "sh", "-c", script]);
            place.airlock(&world, &words)
        };
        for (shared, options) in [
            ("work:live", &["--hide", ".ssh-keys"][..]),
            ("work:staged", &["--hide", ".ssh-keys"]),
            ("work", &["--hide", ".ssh-keys", "--copy-on-write"]),
        ] {
            let hidden = run(shared, options);
            assert_eq!(hidden.stdout, "", "{place:?} {options:?} {hidden:?}");
            assert!(hidden.stderr.contains("`.env`"), "{place:?} {hidden:?}");
            let kept = fs::read_to_string(world.here("work/.env")).unwrap();
            assert_eq!(kept, "secret", "{place:?} {options:?}");
        }
        let shown = run("work", &["--hide", "none"]);
        assert_eq!(shown.stdout, "secretsecretid_rsa\n", "{place:?} {shown:?}");
    }
}

#[test]
fn a_read_only_workspace_can_be_read_and_not_written() {
    let world = World::new();
    fs::create_dir(world.here("w")).unwrap();
    fs::write(world.here("w/a"), "mine").unwrap();
    let script = "cat a; echo x > b || echo held";
    let answer = world.run(&["run", "--workspace", "w:ro", "--", "sh", "-c", script]);
    assert_eq!(answer.stdout, "mineheld\n", "{}", answer.stderr);
    assert!(answer.stderr.contains("--workspace"), "{}", answer.stderr);
    assert!(!world.here("w/b").exists());
    // The control.
    let answer = world.run(&["run", "--workspace", "w:live", "--", "sh", "-c", script]);
    assert_eq!(answer.stdout, "mine", "{}", answer.stderr);
    assert!(world.here("w/b").exists());
    let answer = world.run(&[
        "run",
        "--workspace",
        "w:ro",
        "--copy-on-write",
        "--",
        "true",
    ]);
    assert_eq!(answer.status, Some(125), "{}", answer.stderr);
}

#[test]
fn what_tools_would_obey_is_taken_out_shown_and_can_be_taken_back() {
    let world = World::new();
    fs::create_dir(world.here("w")).unwrap();
    let script = "mkdir -p sub; echo evil > sub/.envrc; echo fine > sub/file";
    let words = [
        "run",
        "--json",
        "--run-id",
        "one",
        "--workspace",
        "w:live",
        "--",
        "sh",
        "-c",
        script,
    ];
    let answer = world.run(&words).json();
    let held = json!([{ "path": "sub/.envrc", "why": "protected_name" }]);
    assert_eq!(answer["workspace"]["held_back"], held, "{answer}");
    assert!(world.here("w/sub/file").exists() && !world.here("w/sub/.envrc").exists());
    let shown = world.run(&["workspace", "held", "one", "--json"]).json();
    assert_eq!(shown["held_back"][0]["path"], "sub/.envrc", "{shown}");
    let taken = world.run(&["workspace", "held", "one", "--take", "sub/.envrc"]);
    assert_eq!(taken.stdout, "taken back\n", "{}", taken.stderr);
    assert_eq!(
        fs::read_to_string(world.here("w/sub/.envrc")).unwrap(),
        "evil\n"
    );
    assert_eq!(
        world.run(&["workspace", "held", "one", "--drop"]).stdout,
        "dropped\n"
    );
    assert_eq!(world.run(&["workspace", "held"]).stdout, "");
    for words in [&["one"][..], &["one", "--drop"], &["other"]] {
        let none = world.run(&[&["workspace", "held"][..], words].concat());
        assert_eq!(none.status, Some(125), "{words:?}: {none:?}");
        assert!(
            none.stderr.contains("nothing is held back from"),
            "{none:?}"
        );
    }
    // It is the host's now: read-only inside, and it stays.
    let again = world.run(&[
        "run",
        "--workspace",
        "w:live",
        "--",
        "sh",
        "-c",
        "echo x > sub/.envrc || echo held",
    ]);
    assert_eq!(again.stdout, "held\n", "{}", again.stderr);
    assert_eq!(
        fs::read_to_string(world.here("w/sub/.envrc")).unwrap(),
        "evil\n"
    );
}

#[test]
fn a_staged_folder_of_a_container_is_a_copy_within_bounds() {
    for place in [Place::Docker, Place::Podman, Place::PodmanOfUser] {
        let world = place.world();
        world.write("small.toml", "[workspace]\ncopy_names = 1\n");
        world.write("given", "given").write("work/.env", "secret");
        let (user, group) = (Some(number("-u")), Some(number("-g")));
        chown(world.here("work/.env"), user, group).expect("it becomes the user's");
        let run = |shared: &str, config: &str, options: &[&str], script: &str| {
            let mut words = vec!["run", "--json", "--run-id", "try", "--workspace", shared];
            words.extend(options);
            words.extend(place.options());
            words.extend(["--", "sh", "-c", script]);
            let mut command = place.command(&world, &words);
            command.env("AIRLOCK_CONFIG", world.here(config));
            world.answer(&command.output().expect("airlock starts"))
        };
        let text = |path: &str| fs::read_to_string(world.here("work").join(path));
        let script = "cat in .env; printf after >changed; rm -r gone; mkdir new; printf n >new/file; \
            printf evil >.envrc; ln -s /etc/passwd out; mkdir .artifacts; printf a >.artifacts/kept";
        world.write("plain.toml", "");
        let told = run(
            "work:staged",
            "plain.toml",
            &["--input", "in=given"],
            script,
        )
        .json();
        let workspace = &told["workspace"];
        assert_eq!(
            [&workspace["mode"], &workspace["layer"], &told["stdout"]],
            ["staged", "copy", "given"],
            "{place:?} {told}"
        );
        assert_eq!(told["artifacts"][0]["name"], "kept", "{place:?} {told}");
        let held = json!([
            { "path": ".envrc", "why": "protected_name" },
            { "path": "out", "why": "link_out" },
        ]);
        assert_eq!(workspace["held_back"], held, "{place:?} {told}");
        assert_eq!(
            [text("changed").unwrap(), text("new/file").unwrap()],
            ["after", "n"],
            "{place:?}"
        );
        for gone in ["gone", "in", ".envrc", "out", ".artifacts"] {
            let found = fs::symlink_metadata(world.here("work").join(gone));
            assert!(found.is_err(), "{place:?} {gone}");
        }
        let owner = fs::metadata(world.here("work/new/file")).unwrap().uid();
        assert_eq!(Some(owner), user, "{place:?}");
        let dropped = place.airlock(&world, &["workspace", "discard", "try"]);
        assert_eq!(dropped.status, Some(0), "{place:?} {dropped:?}");
        // Beyond the bounds no engine lays a layer over it.
        let refused = run("work:staged", "small.toml", &[], "true");
        assert_eq!(refused.status, Some(125), "{place:?} {refused:?}");
        for said in ["a container engine mounts it", "DIR:live", "DIR:ro"] {
            assert!(refused.stderr.contains(said), "{place:?} {refused:?}");
        }
        // Unless it is said, a container shares the folder live, however large it is.
        let live = run(
            "work",
            "small.toml",
            &[],
            "printf live >changed; printf evil >.envrc",
        )
        .json();
        assert_eq!(
            [&live["status"], &live["workspace"]["mode"]],
            ["succeeded", "live"],
            "{place:?} {live}"
        );
        assert_eq!(text("changed").unwrap(), "live", "{place:?}");
    }
}
