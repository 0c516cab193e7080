//! Bad input: one clear line, the remedy on the next, exit status 125, and nothing made or changed.

use airlock_cli_tests::{Answer, World, same};
use snapbox::{IntoData, str};

/// Refused with these words on stderr, nothing on stdout, and nothing in the world touched.
#[track_caller]
fn refused(world: &World, arguments: &[&str], words: impl IntoData) {
    let before = world.contents();
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(arguments);
    assert_eq!((status, stdout.as_str()), (Some(125), ""), "{stderr}");
    assert_eq!(world.contents(), before, "something was touched");
    same(stderr, words.into_data());
}

/// Refused in a fresh world, in which not even the state folder exists.
#[track_caller]
fn refused_at_once(arguments: &[&str], words: impl IntoData) {
    refused(&World::new(), arguments, words);
}

/// A world with a state folder and a workspace `w` that has something in it, for what is refused only after a look at the host.
fn furnished() -> World {
    let world = World::new();
    world.write("w/kept.txt", "as it was").write("file", "x");
    // A run that works makes the state folder, and the lock that stays there for this workspace.
    let answer = world.run(&["run", "--workspace", "w", "--", "true"]);
    assert_eq!((answer.status, answer.stderr.as_str()), (Some(0), ""));
    world
}

#[test]
fn the_same_command_runs_when_nothing_is_wrong_with_it() {
    let world = furnished();
    let Answer {
        status,
        stdout,
        stderr,
    } = world.run(&[
        "run",
        "--workspace",
        "w",
        "--run-id",
        "a.b_c-1",
        "--memory",
        "64M",
        "--timeout",
        "30s",
        "--",
        "cat",
        "kept.txt",
    ]);
    assert_eq!(
        (status, stdout.as_str(), stderr.as_str()),
        (Some(0), "as it was", "")
    );
}

#[test]
fn an_unknown_profile() {
    refused_at_once(
        &["run", "--profile", "nope", "--", "true"],
        str![[r#"
airlock: error: no profile is called `nope`
airlock: hint: the profiles are agent, permissive, restrictive, standard

"#]],
    );
}

#[test]
fn a_bad_size() {
    refused_at_once(
        &["run", "--memory", "lots", "--", "true"],
        str![[r#"
airlock: error: invalid value 'lots' for '--memory <SIZE>': `lots` is not a size such as 64M, 2G or 4096
airlock: hint: see `airlock run --help`

"#]],
    );
    for size in ["0", "-1", "1.5X", "99999999999G", ""].map(|size| format!("--memory={size}")) {
        refused_at_once(
            &["run", &size, "--", "true"],
            "airlock: error: [..]--memory <SIZE>[..]\n...",
        );
    }
}

#[test]
fn a_bad_time() {
    refused_at_once(
        &["run", "--timeout", "soon", "--", "true"],
        str![[r#"
airlock: error: invalid value 'soon' for '--timeout <TIME>': `soon` is not a time such as 30s, 500ms, 1m30s, 2h or 7d
airlock: hint: see `airlock run --help`

"#]],
    );
}

#[test]
fn a_hostile_run_id() {
    let long = "a".repeat(300);
    for id in ["../x", &long, "a b", ".hidden", "", "a/b", "a\nb"] {
        let shown: String = id.chars().take(40).collect();
        let words = format!(
            "airlock: error: `{}` is not an identifier: use 1 to 128 of A-Z a-z 0-9 . _ - and do not start with a dot\n\
             airlock: hint: give --run-id another value\n",
            shown.escape_debug()
        );
        refused_at_once(&["run", "--run-id", id, "--", "true"], words);
    }
}

#[test]
fn a_workspace_that_is_not_there() {
    refused(
        &furnished(),
        &["run", "--workspace", "nope", "--", "true"],
        str![[r#"
airlock: error: cannot use `[WORLD]/here/nope`: No such file or directory (os error 2)
airlock: hint: check that the path exists and that you may read it

"#]],
    );
}

#[test]
fn a_workspace_that_is_a_file() {
    refused(
        &furnished(),
        &["run", "--workspace", "file", "--", "true"],
        str![[r#"
airlock: error: cannot use `[WORLD]/here/file`: Not a directory (os error 20)
airlock: hint: name a folder; a single file goes in with --mount or --input

"#]],
    );
}

#[test]
fn an_unknown_option() {
    refused_at_once(
        &["run", "--timeou", "3s", "--", "true"],
        str![[r#"
airlock: error: unexpected argument '--timeou' found
airlock: usage: airlock run [OPTIONS] -- COMMAND [ARG]...
airlock: hint: a similar argument exists: '--timeout'

"#]],
    );
    refused_at_once(
        &["run", "--xyz", "--", "true"],
        str![[r#"
airlock: error: unexpected argument '--xyz' found
airlock: usage: airlock run [OPTIONS] -- COMMAND [ARG]...
airlock: hint: see `airlock run --help`

"#]],
    );
    refused_at_once(
        &["frobnicate"],
        str![[r#"
airlock: error: unrecognized subcommand 'frobnicate'
airlock: usage: airlock [OPTIONS] <COMMAND>
airlock: hint: see `airlock --help`

"#]],
    );
}

#[test]
fn a_missing_command() {
    refused_at_once(
        &["run"],
        str![[r#"
airlock: error: there is no command to run
airlock: hint: put the command after `--`: airlock run -- python3 -c 'print(1)'

"#]],
    );
    refused_at_once(
        &["run", "python3", "x.py"],
        str![[r#"
airlock: error: unexpected argument 'python3' found
airlock: usage: airlock run [OPTIONS] -- COMMAND [ARG]...
airlock: hint: put the command after `--`: airlock run -- COMMAND [ARG]...

"#]],
    );
}

#[test]
fn a_mount_at_a_place_of_airlocks_own() {
    refused_at_once(
        &["run", "--mount", "/usr:/proc/x", "--", "true"],
        str![[r#"
airlock: error: `/proc/x` cannot be used as a path: this place inside belongs to Airlock
airlock: hint: give --mount a place of its own inside, such as HOST:/data

"#]],
    );
    for place in [
        "/",
        "/workspace",
        "/proc",
        "/sys/x",
        "/dev/null",
        "/tmp",
        "/run",
        "/etc/passwd",
        "/a/../proc",
        "x",
    ] {
        let mount = format!("/usr:{place}");
        refused_at_once(
            &["run", "--mount", &mount, "--", "true"],
            "airlock: error: `[..]` cannot be used as a path: [..]\n...",
        );
    }
}

#[test]
fn a_variable_of_airlocks_own() {
    refused_at_once(
        &["run", "--env", "HOME=/root", "--", "true"],
        str![[r#"
airlock: error: the variable `HOME` cannot be set by a caller
airlock: hint: Airlock sets it itself; choose another name

"#]],
    );
    for name in [
        "PATH",
        "TMPDIR",
        "AIRLOCK_RUN_ID",
        "AIRLOCK_WORKSPACE",
        "CYNODE_TASK_ID",
        "RUN_ID",
    ] {
        let words =
            format!("airlock: error: the variable `{name}` cannot be set by a caller\n...\n");
        refused_at_once(&["run", "--env", &format!("{name}=x"), "--", "true"], words);
    }
}

#[test]
fn a_variable_the_caller_does_not_have() {
    refused_at_once(
        &["run", "--env-from", "TOKEN", "--", "true"],
        str![[r#"
airlock: error: the variable `TOKEN` is not set
airlock: hint: set it, or omit --env-from

"#]],
    );
}

#[test]
fn a_host_that_is_none_or_a_network_that_has_no_door() {
    refused_at_once(
        &["run", "--allow-host", "https://pypi.org/", "--", "true"],
        str![[r#"
airlock: error: `https://pypi.org/` is an address of a page; name its host alone
airlock: hint: write --allow-host pypi.org, '*.pythonhosted.org' or db.example.com:5432

"#]],
    );
    for network in ["none", "host"] {
        refused_at_once(
            &[
                "run",
                "--network",
                network,
                "--allow-host",
                "pypi.org",
                "--",
                "true",
            ],
            str![[r#"
airlock: error: a host that may be reached needs the network mode `doors`
airlock: hint: leave --network away, or say --network doors

"#]],
        );
    }
    refused_at_once(
        &["run", "--network", "open", "--learn", "--", "true"],
        str![[r#"
airlock: error: --learn needs the network mode `doors`
airlock: hint: leave --network away: in `open` there is nothing to learn

"#]],
    );
}

#[test]
fn a_host_beyond_the_operators_maximum_and_a_rule_with_a_credential_of_another_host() {
    let world = World::new();
    world.write("c.toml", "[maximum]\nallow_hosts = [\"*.example.com\"]\n");
    refused(
        &world,
        &[
            "--config",
            "c.toml",
            "run",
            "--allow-host",
            "pypi.org",
            "--",
            "true",
        ],
        str![[r#"
airlock: error: pypi.org is beyond the operator's maximum
airlock: hint: ask for less, or add it to `allow_hosts` under [maximum] in the configuration

"#]],
    );
    let credential =
        "[credential.x]\nkey = { secret = \"x\" }\ninject = \"bearer\"\nhosts = [\"a.com\"]\n";
    let rule = "[[profile.ci.egress]]\nhost = \"b.com\"\nmode = \"inspect\"\ncredential = \"x\"\n";
    world.write("c.toml", &format!("{credential}{rule}"));
    refused(
        &world,
        &["--config", "c.toml", "run", "--", "true"],
        str![[r#"
airlock: error: `profile.ci.egress[1].credential` in `[WORLD]/here/c.toml` names `x`, which may not be sent to b.com
airlock: hint: add the host to `hosts` of [credential.x], or name fewer hosts in the rule

"#]],
    );
}

#[test]
fn a_terminal_where_there_is_none_and_with_json() {
    refused_at_once(
        &["run", "--tty", "--", "true"],
        str![[r#"
airlock: error: --tty needs a terminal on standard input
airlock: hint: start it in a terminal, or omit --tty (--stdin passes standard input through)

"#]],
    );
    let world = World::new();
    let answer = world.run(&["run", "--tty", "--json", "--", "true"]);
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (Some(125), &"invalid_spec".into())
    );
    same(
        answer.stderr,
        str![[r#"
airlock: error: --tty and --json exclude each other
airlock: hint: omit one of them: with --json, the output is in the result and there is no terminal

"#]],
    );
}

#[test]
fn a_door_without_a_provider_or_a_credential() {
    let world = World::new();
    let refused = |options: &[&str], words: &str| {
        let answer = world.run(&[&["run"], options, &["--", "true"]].concat());
        assert_eq!((answer.status, answer.stderr.as_str()), (Some(125), words));
    };
    refused(
        &["--llm=nobody"],
        "airlock: error: no provider is called `nobody`\nairlock: hint: the providers are anthropic, gemini, openai; \
         add one as [provider.NAME] in the configuration\n",
    );
    refused(
        &["--llm"],
        "airlock: error: no provider has a credential yet; there are anthropic, gemini, openai\n\
         airlock: hint: give one its key, as for `anthropic`: airlock secrets set anthropic\n",
    );
    let answer = world.run(&["run", "--llm=anthropic", "--", "true"]);
    assert_eq!(answer.status, Some(125));
    assert!(
        answer.stderr.contains("airlock secrets set anthropic"),
        "{}",
        answer.stderr
    );
    assert!(!world.state().join("ledger").exists(), "nothing was begun");
}

#[test]
fn what_later_builds_will_have() {
    refused_at_once(
        &["run", "--backend", "microvm", "--", "true"],
        str![[r#"
airlock: error: the backend `microvm` is not part of this build
airlock: hint: leave --backend away to use the native one

"#]],
    );
    refused_at_once(
        &["run", "--backend", "chroot", "--", "true"],
        str![[r#"
airlock: error: no backend is called `chroot`
airlock: hint: the backends are native, docker, podman, container (whichever there is), microvm

"#]],
    );
    refused_at_once(
        &["--server", "http://127.0.0.1:7070", "sweep"],
        str![[r#"
airlock: error: `sweep` acts on this machine only, and cannot be used with a server
airlock: hint: omit --server to act on this machine

"#]],
    );
}

#[test]
fn an_image_that_is_not_there_or_no_folder() {
    refused(
        &furnished(),
        &["run", "--image", "./nope", "--", "true"],
        str![[r#"
airlock: error: there is no image `[WORLD]/here/./nope`: No such file or directory (os error 2)
airlock: hint: give --image a folder that holds a root file system

"#]],
    );
    refused(
        &furnished(),
        &["run", "--image", "nope", "--", "true"],
        str![[r#"
airlock: error: there is no image `nope:latest` on this machine
airlock: hint: `airlock image pull` and `airlock image load` bring one; a folder begins with / or ./

"#]],
    );
    refused(
        &furnished(),
        &["run", "--image", "./file", "--workspace", "w", "--", "true"],
        str![[r#"
airlock: error: the image `[WORLD]/here/./file` is not a folder
airlock: hint: unpack it first: this build takes a folder that holds a root file system

"#]],
    );
}

#[test]
fn a_barrier_that_cannot_be_had() {
    refused(
        &furnished(),
        &[
            "run",
            "--require",
            "own_kernel",
            "--workspace",
            "w",
            "--",
            "true",
        ],
        str![[r#"
airlock: error: this host cannot enforce `own_kernel`: only the microvm backend has it
airlock: hint: `airlock doctor` shows what this host can enforce and how to mend it

"#]],
    );
}

#[test]
fn an_unknown_key_in_the_configuration() {
    let world = World::new();
    world.write("c.toml", "[profile.ci]\nmemroy = \"1G\"\n");
    refused(
        &world,
        &["--config", "c.toml", "run", "--", "true"],
        str![[r#"
airlock: error: `profile.ci.memroy` in `[WORLD]/here/c.toml` is not a known key
airlock: hint: did you mean `memory`?

"#]],
    );
}

#[test]
fn a_configuration_that_is_no_plain_file() {
    let world = World::new();
    world
        .write("big.toml", &"#".repeat((1 << 20) + 1))
        .write("folder/x", "");
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        world.here("fifo"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .expect("a FIFO for the test");
    let cases = [
        (
            "fifo",
            "cannot read `[WORLD]/here/fifo`: it is not a regular file",
        ),
        (
            "folder",
            "cannot read `[WORLD]/here/folder`: it is not a regular file",
        ),
        (
            "big.toml",
            "cannot read `[WORLD]/here/big.toml`: it is larger than 1 MiB",
        ),
    ];
    for (name, message) in cases {
        let hint = "make it a plain text file of at most 1 MiB that you may read";
        let words = format!("airlock: error: {message}\nairlock: hint: {hint}\n");
        refused(&world, &["--config", name, "run", "--", "true"], words);
    }
    refused(
        &world,
        &["--config", "absent.toml", "run", "--", "true"],
        str![[r#"
airlock: error: the configuration file `[WORLD]/here/absent.toml` does not exist
airlock: hint: correct --config or AIRLOCK_CONFIG, or omit it to use the defaults

"#]],
    );
}

#[test]
fn a_local_file_that_widens() {
    let world = World::new();
    world.write("airlock.toml", "memory = \"8G\"\n");
    refused(
        &world,
        &["run", "--", "true"],
        str![[r#"
airlock: error: `memory` in `[WORLD]/here/airlock.toml` would widen: 8G is over the 512M of profile `restrictive`
airlock: hint: a local airlock.toml can only narrow; put this into the configuration file

"#]],
    );
    world.write("airlock.toml", "[maximum]\nmemory = \"1G\"\n");
    refused(
        &world,
        &["run", "--", "true"],
        str![[r#"
airlock: error: `maximum` in `[WORLD]/here/airlock.toml` cannot be set here
airlock: hint: a local airlock.toml can only narrow; put this into the configuration file

"#]],
    );
    world.write("airlock.toml", "network = \"host\"\n");
    refused(
        &world,
        &["run", "--", "true"],
        "airlock: error: `network` in [..]\n...\n",
    );
}

#[test]
fn a_local_file_that_narrows_is_obeyed() {
    let world = World::new();
    world.write("airlock.toml", "open_files = 32\n");
    let answer = world.run(&["run", "--", "sh", "-c", "ulimit -n"]);
    assert_eq!(
        (answer.status, answer.stdout.as_str()),
        (Some(0), "32\n"),
        "{}",
        answer.stderr
    );
}

#[test]
fn more_than_the_operators_maximum() {
    let world = World::new();
    world.write("c.toml", "[maximum]\nmemory = \"1G\"\n");
    refused(
        &world,
        &["--config", "c.toml", "run", "--memory", "2G", "--", "true"],
        str![[r#"
airlock: error: memory of 2G is over the operator's maximum of 1G
airlock: hint: ask for 1G or less, or raise `memory` under [maximum] in the configuration

"#]],
    );
}

#[test]
fn with_json_a_refusal_is_a_whole_result_and_told_on_stderr_too() {
    let world = World::new();
    let cases: [(&[&str], &str); 4] = [
        (&["--profile", "nope"], "invalid_spec"),
        (&["--memory", "lots"], "invalid_spec"),
        (&["--budget-usd", "1"], "invalid_spec"),
        (&["--backend", "microvm"], "backend_unavailable"),
    ];
    for (options, code) in cases {
        let arguments = [&["run", "--json"][..], options, &["--", "true"]].concat();
        let answer = world.run(&arguments);
        let result = answer.json();
        assert_eq!(answer.status, Some(125), "{options:?}");
        assert_eq!(result["status"], "not_started", "{options:?}");
        assert_eq!(result["error"]["code"], code, "{options:?}");
        assert!(
            answer.stderr.starts_with("airlock: error: "),
            "{}",
            answer.stderr
        );
    }
    assert!(!world.state().exists());
}

#[test]
fn what_a_message_quotes_cannot_steer_the_terminal() {
    refused_at_once(
        &[
            "run",
            "--profile",
            "x\u{1b}[2J\nairlock: note: fine",
            "--",
            "true",
        ],
        str![[r#"
airlock: error: no profile is called `x\u{1b}[2J\nairlock: note: fine`
airlock: hint: the profiles are agent, permissive, restrictive, standard

"#]],
    );
}

#[test]
fn a_folder_that_would_show_what_airlock_itself_lives_by() {
    let world = World::new();
    // As at home: the state folder lies somewhere in it.
    refused(
        &world,
        &["run", "--workspace", "..", "--", "true"],
        str![[r#"
airlock: error: --workspace `[WORLD]/here/..` would show the program Airlock's state, with its secrets and records: `[WORLD]/state`
airlock: hint: give --workspace another folder, or keep Airlock's own apart (--state, --config)

"#]],
    );
    world.write(
        "config.toml",
        "[secrets]\nkey_file = \"/etc/airlock-test/key\"\n",
    );
    refused(
        &world,
        &[
            "run",
            "--config",
            "config.toml",
            "--mount",
            ".:/seen",
            "--",
            "true",
        ],
        str![[r#"
airlock: error: --mount `[WORLD]/here/.` would show the program what Airlock is configured by: `[WORLD]/here/config.toml`
airlock: hint: give --mount another folder, or keep Airlock's own apart (--state, --config)

"#]],
    );
}

#[test]
fn another_name_for_the_state_folder_by_a_bind_mount() {
    let world = furnished();
    // The mount is gone with its namespace.
    let seen = |from: &str| {
        let text = format!(
            "mkdir -p m && mount --bind {from} m && airlock run --mount ./m:/seen --explain -- true"
        );
        let output = world.shell(&format!("unshare -rm bash -ec '{text}'"));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(
        seen("..").contains("would show the program Airlock's state"),
        "{}",
        seen("..")
    );
    assert!(
        seen("../state").contains("lies in Airlock's state folder"),
        "{}",
        seen("../state")
    );
    assert!(!seen("w").contains("Airlock's state"), "{}", seen("w"));
}

#[test]
fn memory_without_its_unit() {
    let refused = World::new().run(&["run", "--memory", "10", "--", "true"]);
    assert_eq!(refused.status, Some(125), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("memory of 10 bytes is too little")
            && refused.stderr.contains("with its unit, such as 64M"),
        "{}",
        refused.stderr
    );
    let long = World::new().run(&["run", "--timeout", "100000h", "--", "true"]);
    assert!(long.stderr.contains("ten years"), "{}", long.stderr);
}

#[test]
fn an_input_that_takes_the_place_of_a_file_is_told() {
    let world = World::new();
    world.write("project/a.txt", "mine").write("new", "given");
    let run = |name: &str| {
        let input = format!("{name}=new");
        world.run(&[
            "run",
            "--workspace",
            "project",
            "--copy-on-write",
            "--input",
            &input,
            "--",
            "cat",
            name,
        ])
    };
    let (replacing, beside) = (run("a.txt"), run("b.txt"));
    assert_eq!(
        (replacing.stdout.as_str(), beside.stdout.as_str()),
        ("given", "given")
    );
    let words = "the input `a.txt` replaces a file";
    assert!(replacing.stderr.contains(words), "{}", replacing.stderr);
    assert!(
        !beside.stderr.contains("replaces a file"),
        "{}",
        beside.stderr
    );
}
