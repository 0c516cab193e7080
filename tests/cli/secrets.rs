//! Secrets on the command line: kept, listed, let into runs, removed, and shown by nobody.

use airlock_cli_tests::{Answer, World, same};
use snapbox::str;
use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

/// What nobody may ever see outside.
const CANARY: &str = "sk-canary-5f1d";
/// Base64 of 32 bytes.
const MASTER: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";

/// Runs a command with this on standard input.
fn fed(mut command: Command, input: &str, world: &World) -> Answer {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("airlock starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // What refuses early need not read.
    _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    world.answer(&child.wait_with_output().expect("it ends"))
}

fn set(world: &World, name: &str, value: &str) -> Answer {
    fed(world.command(&["secrets", "set", name]), value, world)
}

/// A world in which a secret is kept.
fn furnished() -> World {
    let world = World::new();
    let answer = set(&world, "api", &format!("{CANARY}\n"));
    assert_eq!((answer.status, answer.stdout.as_str()), (Some(0), ""));
    same(
        answer.stderr,
        str![[r#"
airlock: note: the master key is stored beside the secrets, in `[WORLD]/state/secrets/key`: everyone who can read that folder can read the secrets
airlock: hint: better: a systemd credential, the kernel's keyring, a key file elsewhere or AIRLOCK_MASTER_KEY; docs/secrets.md shows how

"#]],
    );
    world
}

/// That nothing in the state folder, and nothing that was said, has the value in it.
#[track_caller]
fn assert_unseen(world: &World, answers: &[Answer]) {
    for (path, bytes) in world.contents() {
        assert!(
            !bytes
                .windows(CANARY.len())
                .any(|part| part == CANARY.as_bytes()),
            "{}",
            path.display()
        );
    }
    for answer in answers {
        assert!(
            !answer.stdout.contains(CANARY) && !answer.stderr.contains(CANARY),
            "{answer:?}"
        );
    }
}

#[test]
fn a_secret_is_kept_listed_and_removed_and_never_shown() {
    let world = furnished();
    let list = world.run(&["secrets", "list"]);
    same(list.stdout.clone(), "api  [..]-[..]-[..]T[..]Z\n");
    let json = world.run(&["secrets", "list", "--json"]);
    assert_eq!(json.json()["secrets"][0]["name"], "api");
    let kept = fs::metadata(world.state().join("secrets/api.secret")).expect("it is kept");
    assert_eq!(kept.permissions().mode() & 0o777, 0o600);
    assert_unseen(&world, &[list, json]);
    let removed = world.run(&["secrets", "rm", "api", "--json"]);
    assert_eq!(
        (removed.status, removed.stdout.as_str()),
        (Some(0), "{\"removed\":\"api\"}\n")
    );
    let empty = world.run(&["secrets", "list"]);
    assert_eq!((empty.status, empty.stdout.as_str()), (Some(0), ""));
    let again = world.run(&["secrets", "rm", "api"]);
    assert_eq!(again.status, Some(125));
    same(
        again.stderr,
        str![[r#"
airlock: error: no secret is called `api`
airlock: hint: `airlock secrets list` shows the names

"#]],
    );
}

#[test]
fn the_program_gets_the_secret_and_nothing_else_does() {
    let world = furnished();
    // It compares a hash, so that its own output has no value in it.
    let hash = "printf %s \"$TOKEN\" | sha256sum | cut -c1-8";
    let outside = world.shell(&format!("TOKEN={CANARY}; {hash}"));
    let arguments = ["run", "--profile", "agent", "--secret", "api=TOKEN", "--"];
    let ran = world.run(&[&arguments[..], &["sh", "-c", hash]].concat());
    assert_eq!(
        (ran.status, ran.stdout.as_bytes()),
        (Some(0), &outside.stdout[..])
    );
    assert_eq!(
        ran.stderr,
        "airlock: note: the secret `api` was injected as TOKEN\n"
    );
    let json = world.run(&[
        "run",
        "--json",
        "--profile",
        "agent",
        "--secret",
        "api=TOKEN",
        "--",
        "true",
    ]);
    assert_eq!(
        json.json()["notes"][0],
        "the secret `api` was injected as TOKEN"
    );
    let plan = world.run(&[
        "run",
        "--explain",
        "--profile",
        "agent",
        "--secret",
        "api=TOKEN",
        "--",
        "true",
    ]);
    assert!(plan.stdout.contains("secret  "), "{}", plan.stdout);
    let without = world.run(&["run", "--profile", "agent", "--", "env"]);
    assert_eq!(without.status, Some(0));
    assert_unseen(&world, &[ran, json, plan, without]);
}

#[test]
fn the_restrictive_profile_lets_no_secret_in() {
    let world = furnished();
    let denied = world.run(&["run", "--secret", "api=TOKEN", "--", "true"]);
    assert_eq!((denied.status, denied.stdout.as_str()), (Some(125), ""));
    same(
        denied.stderr,
        str![[r#"
airlock: error: the profile `restrictive` lets no secret in
airlock: hint: use --llm, so that the key stays outside, or another profile: --profile agent

"#]],
    );
    let json = world.run(&["run", "--json", "--secret", "api=TOKEN", "--", "true"]);
    assert_eq!(json.json()["error"]["code"], "policy_denied");
}

#[test]
fn a_secret_that_is_missing_stops_the_run_before_anything_is_made() {
    let world = World::new();
    let before = world.contents();
    let answer = world.run(&[
        "run",
        "--profile",
        "agent",
        "--secret",
        "api=TOKEN",
        "--",
        "true",
    ]);
    assert_eq!((answer.status, answer.stdout.as_str()), (Some(125), ""));
    same(
        answer.stderr,
        str![[r#"
airlock: error: no secret is called `api`
airlock: hint: keep it first: airlock secrets set api

"#]],
    );
    assert_eq!(world.contents(), before, "not even the state folder");
}

#[test]
fn what_is_no_secret_or_no_name_is_refused_and_nothing_is_made() {
    let world = World::new();
    let before = world.contents();
    for (name, value, words) in [
        ("api", "", "the secret is empty"),
        ("api", "\n", "the secret is empty"),
        ("../api", "x", "`../api` is not an identifier"),
        (
            "api",
            &"x".repeat(70_000),
            "the secret is longer than 64 KiB",
        ),
    ] {
        let answer = set(&world, name, value);
        assert_eq!(answer.status, Some(125));
        assert!(
            answer
                .stderr
                .starts_with(&format!("airlock: error: {words}")),
            "{}",
            answer.stderr
        );
    }
    assert_eq!(world.contents(), before);
}

#[test]
fn with_a_master_key_of_ones_own_none_lies_beside_the_secrets() {
    let world = World::new();
    let with = |key: &str, arguments: &[&str]| {
        let mut command = world.command(arguments);
        command.env("AIRLOCK_MASTER_KEY", key);
        command
    };
    let answer = fed(with(MASTER, &["secrets", "set", "api"]), CANARY, &world);
    assert_eq!((answer.status, answer.stderr.as_str()), (Some(0), ""));
    assert!(!world.state().join("secrets/key").exists());
    let run = [
        "run",
        "--profile",
        "agent",
        "--secret",
        "api=TOKEN",
        "--",
        "sh",
        "-c",
        "test -n \"$TOKEN\"",
    ];
    let ran = fed(with(MASTER, &run), "", &world);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let other = fed(with(&MASTER.replace("AQID", "BQID"), &run), "", &world);
    assert!(
        other.stderr.contains("the master key is another one"),
        "{}",
        other.stderr
    );
    for key in ["", "c2hvcnQ=", CANARY] {
        let refused = fed(with(key, &run), "", &world);
        assert_eq!(refused.status, Some(125));
        assert!(
            refused
                .stderr
                .contains("`AIRLOCK_MASTER_KEY` is no master key"),
            "{}",
            refused.stderr
        );
        assert_unseen(&world, &[refused]);
    }
}

#[test]
fn the_master_key_passes_to_no_program_by_any_option() {
    let world = World::new();
    world.write(
        "c.toml",
        "[profile.agent]\nenv.inherit = [\"AIRLOCK_MASTER_KEY\", \"LANG\"]\n",
    );
    let with = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        command.env("AIRLOCK_MASTER_KEY", MASTER).env("LANG", "C");
        command
    };
    let inherited = fed(
        with(&[
            "--config",
            "c.toml",
            "run",
            "--profile",
            "agent",
            "--",
            "env",
        ]),
        "",
        &world,
    );
    assert!(
        inherited.stdout.contains("LANG=C\n"),
        "the positive control: {}",
        inherited.stdout
    );
    assert!(!inherited.stdout.contains("MASTER"), "{}", inherited.stdout);
    let named = fed(
        with(&["run", "--env-from", "AIRLOCK_MASTER_KEY", "--", "env"]),
        "",
        &world,
    );
    assert_eq!((named.status, named.stdout.as_str()), (Some(125), ""));
}
