//! The help of every command, word for word, and that its examples work.

use airlock_cli_tests::{Answer, World, same, written};
use snapbox::str;
use std::process::Command;

fn help(words: &[&str]) -> String {
    let Answer {
        status,
        stdout,
        stderr,
    } = World::new().run(words);
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{words:?}");
    stdout
}

#[test]
fn every_command_explains_itself() {
    same(help(&["--help"]), written("help/airlock.txt"));
    same(help(&["run", "-h"]), written("help/run-short.txt"));
    same(help(&["run", "--help"]), written("help/run.txt"));
    same(help(&["steps", "-h"]), written("help/steps.txt"));
    same(help(&["grant", "--help"]), written("help/grant.txt"));
    same(help(&["doctor", "--help"]), written("help/doctor.txt"));
    same(help(&["sweep", "--help"]), written("help/sweep.txt"));
    same(help(&["bench", "--help"]), written("help/bench.txt"));
    same(help(&["usage", "--help"]), written("help/usage.txt"));
    same(help(&["quota", "--help"]), written("help/quota.txt"));
    same(help(&["audit", "--help"]), written("help/audit.txt"));
    same(help(&["artifact", "--help"]), written("help/artifact.txt"));
    same(
        help(&["artifact", "list", "--help"]),
        written("help/artifact-list.txt"),
    );
    same(
        help(&["artifact", "show", "--help"]),
        written("help/artifact-show.txt"),
    );
    same(
        help(&["artifact", "put", "--help"]),
        written("help/artifact-put.txt"),
    );
    same(
        help(&["artifact", "get", "--help"]),
        written("help/artifact-get.txt"),
    );
    same(
        help(&["artifact", "rm", "--help"]),
        written("help/artifact-rm.txt"),
    );
    same(help(&["image", "--help"]), written("help/image.txt"));
    for word in [
        "list", "load", "inspect", "rm", "pull", "build", "check", "allow", "disallow", "allowed",
        "admit",
    ] {
        same(
            help(&["image", word, "--help"]),
            written(&format!("help/image-{word}.txt")),
        );
    }
    same(help(&["secrets", "--help"]), written("help/secrets.txt"));
    for word in ["set", "list", "rm"] {
        same(
            help(&["secrets", word, "--help"]),
            written(&format!("help/secrets-{word}.txt")),
        );
    }
    same(
        help(&["workspace", "--help"]),
        written("help/workspace.txt"),
    );
    for word in ["list", "diff", "show", "commit", "discard"] {
        same(
            help(&["workspace", word, "--help"]),
            written(&format!("help/workspace-{word}.txt")),
        );
    }
    same(help(&["sandbox", "--help"]), written("help/sandbox.txt"));
    for word in ["create", "exec", "put", "get"] {
        same(
            help(&["sandbox", word, "-h"]),
            written(&format!("help/sandbox-{word}.txt")),
        );
    }
    same(help(&["proxy", "--help"]), written("help/proxy.txt"));
    same(help(&["worker", "--help"]), written("help/worker.txt"));
    for word in ["sam", "broker"] {
        same(
            help(&["worker", word, "--help"]),
            written(&format!("help/worker-{word}.txt")),
        );
    }
    same(help(&["serve", "--help"]), written("help/serve.txt"));
    same(help(&["service", "--help"]), written("help/service.txt"));
    for word in ["install", "uninstall", "status", "print-unit"] {
        same(
            help(&["service", word, "--help"]),
            written(&format!("help/service-{word}.txt")),
        );
    }
    for word in ["backup", "restore", "state"] {
        same(
            help(&[word, "--help"]),
            written(&format!("help/{word}.txt")),
        );
    }
    same(help(&["key", "--help"]), written("help/key.txt"));
    for word in ["create", "list", "revoke"] {
        same(
            help(&["key", word, "--help"]),
            written(&format!("help/key-{word}.txt")),
        );
    }
    same(
        help(&["escape-test", "--help"]),
        written("help/escape-test.txt"),
    );
}

#[test]
fn the_version_is_the_packages() {
    assert_eq!(
        help(&["--version"]),
        format!("airlock {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn help_and_version_touch_nothing() {
    let world = World::new();
    let before = world.contents();
    for words in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["artifact", "rm", "--help"],
    ] {
        world.run(words);
    }
    assert_eq!(world.contents(), before);
}

#[test]
fn without_a_command_the_help_is_an_error() {
    let Answer {
        status,
        stdout,
        stderr,
    } = World::new().run(&[]);
    assert_eq!((status, stdout.as_str()), (Some(125), ""));
    assert_eq!(stderr, help(&["--help"]));
}

/// The lines of `Examples:`, up to the next empty one.
fn examples(help: &str) -> Vec<&str> {
    let (_, after) = help
        .split_once("\nExamples:\n")
        .expect("every command shows examples");
    after
        .lines()
        .take_while(|line| !line.is_empty())
        .map(str::trim)
        .collect()
}

#[test]
fn every_example_works_as_it_stands() {
    let world = World::new();
    world
        .write("Makefile", "test:\n\ttrue\n")
        .write("data/one", "")
        .write("key.txt", "sk-x\n")
        .write("agent.py", "")
        .write("build.sh", "#!/bin/sh\n")
        .write("untrusted", "#!/bin/sh\n");
    let programs = ["untrusted", "build.sh"].map(|name| world.here(name));
    let made = Command::new("chmod").arg("755").args(programs).status();
    assert!(made.expect("chmod starts").success());
    let kept = world.shell("airlock secrets set anthropic < key.txt");
    assert!(kept.status.success(), "a provider has its key");
    let mut count = 0;
    for command in [
        &["--help"][..],
        &["run", "--help"],
        &["doctor", "--help"],
        &["sweep", "--help"],
        &["artifact", "--help"],
        &["secrets", "--help"],
        &["image", "allow", "--help"],
        &["image", "disallow", "--help"],
        &["image", "allowed", "--help"],
        &["image", "admit", "--help"],
        &["bench", "--help"],
        &["usage", "--help"],
        &["escape-test", "--help"],
    ] {
        // What needs a terminal is done in `terminal.rs`.
        let elsewhere = |example: &str| example.contains(" --tty ");
        for example in examples(&help(command))
            .iter()
            .filter(|example| !elsewhere(example))
        {
            let output = world.shell(example);
            let Answer {
                status,
                stdout,
                stderr,
            } = world.answer(&output);
            assert_eq!(status, Some(0), "{example}\n{stdout}{stderr}");
            count += 1;
        }
    }
    assert!(count >= 15, "only {count} examples were found");
}

#[test]
fn a_mistyped_example_would_be_noticed() {
    assert_eq!(
        World::new()
            .shell("airlock run --timeot 3s -- true | cat")
            .status
            .code(),
        Some(125)
    );
    same(
        examples("x\nExamples:\n  a b\n  c\n\nd\n").join("|"),
        str!["a b|c"],
    );
}
