//! Each line of the contract: an image that breaks it is seen to, its mended twin keeps it.

use images::{REAL_SHELL, Tree};
use spec::ImageConfig;
use std::{fs, os::unix::fs::PermissionsExt};

/// The tree breaks this line; the same tree unbroken keeps all of them.
#[track_caller]
fn breaks(requirement: &str, broken: &Tree) {
    let checked = broken.check(&[]);
    assert_eq!(
        (checked.status, checked.outcome(requirement)),
        (Some(1), "fail"),
        "{checked:#?}"
    );
    let lines = checked.all["lines"].as_array().expect("lines");
    let mended = |line: &serde_json::Value| line["outcome"] == "pass" || line["mend"].is_string();
    assert!(
        lines.iter().all(mended),
        "each failed line says how to mend it: {checked:#?}"
    );
}

#[test]
fn the_mended_twin_of_them_all_keeps_the_contract() {
    let checked = Tree::new().check(&[]);
    assert_eq!(
        (checked.status, checked.with("fail"), checked.with("warn")),
        (Some(0), vec![], vec![]),
        "{checked:#?}"
    );
    assert_eq!(
        (&checked.all["passed"], &checked.all["profiles"]),
        (&true.into(), &serde_json::json!(["base-tools"]))
    );
    assert!(checked.lines.len() >= 17);
}

#[test]
fn every_utility_is_missed_alone() {
    for name in ["cat", "cp", "mv", "rm", "mkdir", "chmod", "chown", "find"] {
        let checked = Tree::new().without(&format!("bin/{name}")).check(&[]);
        assert_eq!(
            checked.outcome("core utilities"),
            "fail",
            "{name}: {checked:#?}"
        );
        assert!(
            checked.lines["core utilities"]
                .1
                .contains(&format!("missing: {name}")),
            "{checked:#?}"
        );
    }
    for name in ["tar", "gzip", "unzip", "ps", "env"] {
        let checked = Tree::new().without(&format!("bin/{name}")).check(&[]);
        assert_eq!(
            (checked.status, checked.with("fail")),
            (Some(1), vec![name]),
            "{checked:#?}"
        );
    }
}

#[test]
fn a_missing_date_is_a_warning_only() {
    let checked = Tree::new().without("bin/date").check(&[]);
    assert_eq!(
        (checked.status, checked.with("warn"), checked.with("fail")),
        (Some(0), vec!["date"], vec![])
    );
}

#[test]
fn an_archiver_that_only_looks_like_one_is_found_out() {
    for name in ["tar", "gzip", "unzip"] {
        breaks(name, &Tree::new().wrapped(&format!("bin/{name}"), "exit 0"));
    }
}

#[test]
fn certificates_must_be_there_and_be_some() {
    let bundle = "etc/ssl/certs/ca-certificates.crt";
    breaks("CA certificates", &Tree::new().without(bundle));
    breaks(
        "CA certificates",
        &Tree::new().write(bundle, "# none yet\n"),
    );
}

#[test]
fn a_shell_must_be_there_and_know_its_trade() {
    breaks("/bin/sh", &Tree::new().without("bin/sh"));
    let no_substitution =
        format!("case \"$2\" in *'$('*) exit 2 ;; esac\nexec {REAL_SHELL} \"$@\"");
    breaks(
        "shell commands",
        &Tree::new().wrapped("bin/sh", &no_substitution),
    );
}

#[test]
fn a_shell_must_hand_on_statuses_and_keep_the_streams_apart() {
    breaks(
        "exit codes",
        &Tree::new().wrapped("bin/sh", &format!("{REAL_SHELL} \"$@\"\nexit 0")),
    );
    breaks(
        "stdout and stderr",
        &Tree::new().wrapped("bin/sh", &format!("exec {REAL_SHELL} \"$@\" 2>&1")),
    );
    let noisy = format!("echo welcome\nexec {REAL_SHELL} \"$@\"");
    breaks("stdout and stderr", &Tree::new().wrapped("bin/sh", &noisy));
}

#[test]
fn the_workspace_is_where_a_command_starts() {
    breaks(
        "writable workspace",
        &Tree::new().wrapped("bin/sh", &format!("cd /\nexec {REAL_SHELL} \"$@\"")),
    );
}

#[test]
fn a_server_that_comes_with_the_shell_is_noticed() {
    let server = format!(
        "/bin/busybox nc -l -p 8080 -e /bin/true &\n\
         until /bin/busybox grep -q ' 0A ' /proc/net/tcp /proc/net/tcp6; do :; done\nexec {REAL_SHELL} \"$@\""
    );
    let tree = Tree::new().wrapped("bin/sh", &server);
    breaks("no listening port", &tree);
    assert!(
        tree.check(&[]).lines["no listening port"]
            .1
            .contains(":1F90"),
        "8080 is named"
    );
}

#[test]
fn programs_start_without_a_shell_around_them() {
    breaks(
        "exec",
        &Tree::new().wrapped("bin/cat", "exec /bin/busybox cat \"$@\""),
    );
}

#[test]
fn an_image_that_only_root_can_use_does_not_run_as_non_root() {
    if !rustix::process::geteuid().is_root() {
        // An ordinary user's own folder is always readable to the same user inside.
        return;
    }
    let tree = Tree::new();
    fs::set_permissions(tree.path("bin"), fs::Permissions::from_mode(0o700)).expect("its rights");
    breaks("runs as non-root", &tree);
}

#[test]
fn credentials_are_found_and_not_shown() {
    let key = format!(
        "-----BEGIN {} KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\n",
        "PRIVATE"
    );
    for (place, text) in [
        ("root/.ssh/id_rsa", "x"),
        ("root/.aws/credentials", "x"),
        ("root/.git-credentials", "https://user:word@host"),
        ("etc/server.pem", key.as_str()),
        ("app/.npmrc", "//host/:_authToken=hidden-word"),
    ] {
        let tree = Tree::new().write(place, text);
        breaks("no credentials inside", &tree);
        let seen = &tree.check(&[]).lines["no credentials inside"].1;
        assert!(
            seen.contains(place) && !seen.contains("hidden-word"),
            "{seen}"
        );
    }
}

#[test]
fn what_an_image_says_about_itself_is_judged_too() {
    let config = |user: &str, env: &str, purpose: &str, agent: &str| ImageConfig {
        user: user.to_owned(),
        env: vec![env.to_owned()],
        labels: [
            ("io.cynodeai.sandbox.purpose".to_owned(), purpose.to_owned()),
            (
                "io.cynodeai.sandbox.agent-compatible".to_owned(),
                agent.to_owned(),
            ),
        ]
        .into(),
        ..ImageConfig::default()
    };
    let good = Tree::new().check_as_image(config("1000", "LANG=C", "base-tools,run", "true"), &[]);
    assert_eq!(
        (good.status, good.with("fail"), good.with("warn")),
        (Some(0), vec![], vec![]),
        "{good:#?}"
    );
    assert_eq!(good.all["agent_compatible"], true);
    let root = Tree::new().check_as_image(config("", "LANG=C", "nonsense", ""), &[]);
    assert_eq!(
        (root.status, root.with("warn")),
        (Some(0), vec!["declared purpose", "declared user"])
    );
    assert_eq!(root.all["agent_compatible"], false);
    let leaky = Tree::new().check_as_image(
        config("1000", "DB_PASSWORD=hidden-word", "base-tools", "true"),
        &[],
    );
    let seen = &leaky.lines["no credentials inside"];
    assert!(
        seen.0 == "fail" && seen.1.contains("DB_PASSWORD") && !seen.1.contains("hidden-word"),
        "{seen:?}"
    );
}

#[test]
fn the_profile_is_the_declared_one_unless_another_is_asked_for() {
    let labels = [(
        "io.cynodeai.sandbox.purpose".to_owned(),
        "node-tools,run".to_owned(),
    )]
    .into();
    let config = ImageConfig {
        user: "1000".to_owned(),
        labels,
        ..ImageConfig::default()
    };
    let declared = Tree::new().check_as_image(config.clone(), &[]);
    assert_eq!(
        (declared.status, declared.with("fail")),
        (Some(1), vec!["node", "npm or pnpm"])
    );
    let asked = Tree::new().check_as_image(config, &["--profile", "base-tools"]);
    assert_eq!((asked.status, asked.with("fail")), (Some(0), vec![]));
    let tree = Tree::new();
    for (profile, missed) in [
        (
            "python-tools",
            &["gcc", "make", "pip", "python3", "venv"][..],
        ),
        ("go-tools", &["go"]),
        ("secops-tools", &["semgrep", "shellcheck"]),
        (
            "runtime",
            &[
                "airlock-init",
                "bash",
                "curl",
                "git",
                "jq",
                "node",
                "socat",
                "user sandboxer",
            ],
        ),
    ] {
        assert_eq!(
            tree.check(&["--profile", profile]).with("fail"),
            missed,
            "{profile}"
        );
    }
}

#[test]
fn a_hostile_image_steers_neither_terminal_nor_table() {
    let script = "printf 'x\\033[2J\\nPASS  everything  fine\\n'; exit 1";
    let tree = Tree::new()
        .wrapped("bin/ps", script)
        .wrapped("bin/tar", script);
    let answer = tree.world.run(&["image", "check", "./root"]);
    assert_eq!(answer.status, Some(1));
    assert!(
        !answer.stdout.contains('\u{1b}') && !answer.stdout.contains("\nPASS  everything"),
        "{}",
        answer.stdout
    );
}

#[test]
fn what_cannot_be_checked_is_told_apart_from_what_failed() {
    let world = Tree::new().world;
    for (image, words) in [
        ("localhost/nowhere", "nowhere"),
        ("Not A Name", "not the name of an image"),
        ("./nowhere", "cannot look into"),
    ] {
        let answer = world.run(&["image", "check", image]);
        assert_eq!(answer.status, Some(125), "{answer:?}");
        assert!(
            answer.stderr.contains(words) && answer.stderr.contains("hint:"),
            "{answer:?}"
        );
    }
}
