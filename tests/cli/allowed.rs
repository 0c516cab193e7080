//! The list of allowed images as a user meets it: its commands, who may change it, and what a broken one says.

use airlock_cli_tests::{Answer, World, same, shown};
use serde_json::json;
use snapbox::str;
use std::{fs, os::unix::fs::symlink};

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const MARK: &str = "io.cynodeai.sandbox.agent-compatible=true";

/// Where the list counts.
fn listed() -> World {
    let world = World::new();
    world.write("on.toml", "[images]\npolicy = \"allowed\"\n");
    world
}

/// The answer of `airlock image …` with the list counting.
fn image(world: &World, words: &[&str]) -> Answer {
    world.run(&[&["--config", "on.toml", "image"], words].concat())
}

#[track_caller]
fn succeeds(world: &World, words: &[&str]) -> String {
    let Answer {
        status,
        stdout,
        stderr,
    } = image(world, words);
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{stdout}");
    stdout
}

/// Exit status and first line of `airlock image admit`.
fn admit(world: &World, words: &[&str]) -> (Option<i32>, String) {
    let Answer { status, stdout, .. } = image(world, &[&["admit"], words].concat());
    (status, stdout)
}

#[test]
fn an_image_is_admitted_while_it_is_on_the_list() {
    let world = listed();
    let refused =
        "refused: image `docker.io/library/python:3.12` is not on the list of allowed images\n";
    assert_eq!(admit(&world, &["python:3.12"]), (Some(1), refused.into()));
    assert_eq!(
        succeeds(&world, &["allow", "python:3.12"]),
        "docker.io/library/python:3.12\n"
    );
    let allowed = "allowed: by the entry `docker.io/library/python:3.12`\n";
    assert_eq!(admit(&world, &["python:3.12"]), (Some(0), allowed.into()));
    assert_eq!(admit(&world, &["python:3.13"]).0, Some(1));
    assert_eq!(
        succeeds(&world, &["disallow", "python:3.12"]),
        "1 removed\n"
    );
    assert_eq!(admit(&world, &["python:3.12"]).0, Some(1));
}

#[test]
fn a_digest_and_a_mark_are_asked_for_with_the_reason() {
    let world = listed();
    succeeds(&world, &["allow", "debian", "--digest", DIGEST]);
    let other = DIGEST.replace("e3b0", "0000");
    assert_eq!(admit(&world, &["debian", "--digest", DIGEST]).0, Some(0));
    assert_eq!(
        admit(&world, &["debian", "--digest", &other]),
        (
            Some(1),
            format!(
                "refused: image `docker.io/library/debian:latest` is not allowed: its digest is {other}, allowed is {DIGEST}\n"
            )
        )
    );
    let session = |more: &[&str]| {
        admit(
            &world,
            &[&["debian", "--digest", DIGEST, "--for", "session"], more].concat(),
        )
    };
    let unmarked = "refused: image `docker.io/library/debian:latest` is not marked for agents, which sessions need\n";
    assert_eq!(session(&[]), (Some(1), unmarked.into()));
    assert_eq!(session(&["--label", MARK]).0, Some(0));
}

#[test]
fn a_refusal_has_its_remedy_on_stderr_and_both_in_json() {
    let world = listed();
    let Answer { status, stderr, .. } = image(&world, &["admit", "evil"]);
    let hint =
        "airlock: hint: `airlock image allowed` shows the list, `airlock image allow` adds to it\n";
    assert_eq!((status, stderr.as_str()), (Some(1), hint));
    let answer = image(&world, &["admit", "evil", "--json"]);
    assert_eq!((answer.status, answer.stderr.as_str()), (Some(1), ""));
    let reason = "image `docker.io/library/evil:latest` is not on the list of allowed images";
    let hint = "`airlock image allowed` shows the list, `airlock image allow` adds to it";
    assert_eq!(
        answer.json(),
        json!({ "allowed": false, "by": null, "reason": reason, "hint": hint })
    );
}

#[test]
fn the_list_shows_everything_and_steers_no_terminal() {
    let world = listed();
    let words = [
        "--capability",
        "python-tools",
        "--capability",
        "go-tools",
        "--note",
        "why\u{1b}[2J\nnot",
    ];
    succeeds(
        &world,
        &[&["allow", "python:3.12", "--digest", DIGEST], &words[..]].concat(),
    );
    succeeds(&world, &["allow", "ghcr.io/a/*"]);
    let list = succeeds(&world, &["allowed"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    assert!(
        list.contains("  go-tools,python-tools  ") && list.contains("  why\\u{1b}[2J\\nnot\n"),
        "{list}"
    );
    let mut value = image(&world, &["allowed", "--json"]).json();
    for entry in value["images"].as_array_mut().expect("a list") {
        assert!(
            entry["added_by"].as_str().expect("a text").contains("uid"),
            "{entry}"
        );
        assert!(
            entry["added_at"].as_str().expect("a text").ends_with('Z'),
            "{entry}"
        );
        (entry["added_by"], entry["added_at"]) = ("[WHO]".into(), "[TIME]".into());
    }
    same(
        shown(value),
        str![[r#"
{
  "images": [
    {
      "added_at": "[TIME]",
      "added_by": "[WHO]",
      "agent_compatible": null,
      "capabilities": [
        "go-tools",
        "python-tools"
      ],
      "digest": "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
      "image": "docker.io/library/python:3.12",
      "note": "why\u001b[2J\nnot"
    },
    {
      "added_at": "[TIME]",
      "added_by": "[WHO]",
      "agent_compatible": null,
      "capabilities": [],
      "digest": null,
      "image": "ghcr.io/a/*",
      "note": ""
    }
  ],
  "policy": "allowed"
}

"#]],
    );
}

#[test]
fn the_trail_tells_of_every_change() {
    let world = listed();
    succeeds(&world, &["allow", "a", "--note", "first"]);
    succeeds(&world, &["disallow", "a"]);
    let trail = image(&world, &["allowed", "--trail", "--json"]).json();
    let told: Vec<_> = trail["trail"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| [&line["what"], &line["about"]])
        .collect();
    assert_eq!(
        told,
        [
            [&json!("disallowed"), &json!("")],
            [&json!("allowed"), &json!("first")]
        ]
    );
    assert_eq!(succeeds(&world, &["allowed", "--trail"]).lines().count(), 2);
}

#[test]
fn without_the_policy_every_image_is_admitted_and_the_list_says_so() {
    let world = World::new();
    let before = world.contents();
    let Answer { status, stdout, .. } =
        world.run(&["image", "admit", "anything", "--for", "session"]);
    assert_eq!(
        (status, stdout.as_str()),
        (Some(0), "allowed: every image may be used here\n")
    );
    assert_eq!(world.contents(), before, "nothing is made to answer that");
    let note = world.run(&["image", "allowed"]).stderr;
    assert!(
        note.starts_with("airlock: note: every image may be used: images.policy is \"open\""),
        "{note}"
    );
}

#[test]
fn a_project_can_switch_the_list_on_and_not_off() {
    let world = listed();
    world.write("airlock.toml", "[images]\npolicy = \"allowed\"\n");
    assert_eq!(world.run(&["image", "admit", "evil"]).status, Some(1));
    world.write("airlock.toml", "[images]\npolicy = \"open\"\n");
    assert_eq!(world.run(&["image", "admit", "evil"]).status, Some(0));
    let Answer { status, stderr, .. } = image(&world, &["admit", "evil"]);
    assert_eq!(status, Some(125));
    assert!(
        stderr.contains("`images.policy` in `[WORLD]/here/airlock.toml` would widen"),
        "{stderr}"
    );
}

#[test]
fn only_those_named_may_change_the_list() {
    let world = listed();
    world.write("frozen.toml", "[images]\nmay_add = []\n");
    for words in [["allow", "python"], ["disallow", "python"]] {
        let Answer {
            status,
            stdout,
            stderr,
        } = world.run(&[&["--config", "frozen.toml", "image"], &words[..]].concat());
        assert_eq!((status, stdout.as_str()), (Some(125), ""));
        assert!(
            stderr.contains(" may not change the list of allowed images\n"),
            "{stderr}"
        );
        assert!(
            stderr.contains("airlock: hint: ask one of those that `images.may_add`"),
            "{stderr}"
        );
    }
    let user = rustix::process::getuid().as_raw();
    world.write("ours.toml", &format!("[images]\nmay_add = [{user}]\n"));
    assert_eq!(
        world
            .run(&["--config", "ours.toml", "image", "allow", "python"])
            .status,
        Some(0)
    );
}

#[test]
fn what_is_no_entry_is_refused_before_anything_is_made() {
    let world = listed();
    let before = world.contents();
    let other = DIGEST.replace("e3b0", "0000");
    let both = format!("a@{DIGEST}");
    let cases: [(&[&str], &str); 7] = [
        (
            &["allow", "Py*"],
            "error: `Py*` does not say which images: `*` stands only at the end",
        ),
        (
            &["allow", "a\u{1b}[2J"],
            "error: `a\\u{1b}[2J` does not say which images: a name is made of",
        ),
        (
            &["allow", "a@sha256:0"],
            "error: `sha256:0` is not `sha256:` and 64 hexadecimal digits",
        ),
        (
            &["allow", &both, "--digest", &other],
            "error: two digests for `a`: ",
        ),
        (
            &["allow", "a", "--capability", "A"],
            "a capability is 1 to 64 of a-z 0-9 and -",
        ),
        (&["disallow", "*"], "error: `*` does not say which images"),
        (&["admit", "A"], "`A` is not the name of an image"),
    ];
    for (words, why) in cases {
        let Answer {
            status,
            stdout,
            stderr,
        } = image(&world, words);
        assert_eq!((status, stdout.as_str()), (Some(125), ""), "{words:?}");
        assert!(
            stderr.contains(why) && stderr.contains("\nairlock: hint: "),
            "{stderr}"
        );
    }
    assert_eq!(world.contents(), before);
    let missing = image(&world, &["disallow", "a"]).stderr;
    assert!(
        missing.contains("there is no entry `docker.io/library/a` on the list"),
        "{missing}"
    );
}

#[test]
fn a_database_that_is_broken_or_not_ours_lets_nothing_in() {
    let world = listed();
    succeeds(&world, &["allow", "python"]);
    assert_eq!(admit(&world, &["python"]).0, Some(0));
    let file = world.state().join("airlock.db");
    let whole = fs::read(&file).expect("it was made");
    fs::write(
        &file,
        "no database, but long enough to be looked at: ".repeat(100),
    )
    .expect("it is ours");
    for words in [&["admit", "python"][..], &["allowed"], &["allow", "x"]] {
        let Answer {
            status,
            stdout,
            stderr,
        } = image(&world, words);
        assert_eq!((status, stdout.as_str()), (Some(125), ""));
        same(
            stderr,
            str![[r#"
airlock: error: cannot use the database `[WORLD]/state/airlock.db`: file is not a database
airlock: hint: restore it from a backup, or move it away to start with an empty one

"#]],
        );
    }
    fs::rename(&file, world.here("elsewhere")).expect("it is ours");
    fs::write(world.here("elsewhere"), whole).expect("it is ours");
    symlink(world.here("elsewhere"), &file).expect("the folder is ours");
    let Answer { status, stderr, .. } = image(&world, &["admit", "python"]);
    assert_eq!(status, Some(125));
    assert!(
        stderr.contains("`airlock.db` is a symbolic link"),
        "{stderr}"
    );
}
