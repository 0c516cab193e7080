//! What of the host a run is shown when it names a folder: not what is mounted there later, and nothing of the kernel's own.

use airlock_cli_tests::World;
use serde_json::{Value, json};

/// Runs a script in a mount namespace of its own, in which `shared` is a file system whose mounts reach every copy of it.
fn in_shared_mounts(script: &str) -> String {
    assert!(
        rustix::process::geteuid().is_root(),
        "prerequisite: root, to mount something"
    );
    let world = World::new();
    let text = format!(
        "mkdir shared copy
         mount -t tmpfs -o mode=755 tmpfs shared
         mount --make-shared shared
         mount --bind shared copy
         mkdir -m 777 -p shared/w shared/w/late shared/w/early shared/w/data
         {script}"
    );
    // Root of this machine, not of a user namespace: with only one id there, Airlock has none to spare for programs.
    let output = world.shell(&format!("timeout 60 unshare -m bash -ec '{text}'"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_the_host_mounts_during_a_run_does_not_appear_inside() {
    let said = in_shared_mounts(
        "airlock run --workspace shared/w:live --mount ./shared:/shown -- sh -c \"
             touch begun; until test -e go; do sleep 0.05; done
             echo inside \\$(ls late /shown/w/late)\" &
         until test -e shared/w/begun; do sleep 0.05; done
         mount -t tmpfs tmpfs shared/w/late
         touch shared/w/late/appeared
         echo copy $(ls copy/w/late)
         touch shared/w/go
         wait $!",
    );
    // The copy is the control: whatever gets mounts from there has this one.
    assert_eq!(said, "copy appeared\ninside /shown/w/late: late:\n");
}

#[test]
fn file_systems_of_the_kernel_below_a_folder_are_empty_and_others_are_not() {
    let said = in_shared_mounts(
        "mount --bind /proc shared/w/early
         mount -t tmpfs -o mode=755 tmpfs shared/w/data
         touch shared/w/data/file
         test -e shared/w/early/version
         airlock run --workspace shared/w -- true 2>&1 || echo $?
         airlock run --json --workspace shared/w:live -- sh -c \"ls early data\"",
    );
    // A layer is not made of it.
    let (refused, said) = said.split_once("125\n").expect("staged it is refused");
    let reason = "/shared/w/early` is a file system of the host's kernel";
    assert!(
        refused.contains(reason) && refused.contains("DIR:live"),
        "{refused}"
    );
    let result: Value = serde_json::from_str(said).expect("a result");
    assert_eq!(result["stdout"], "data:\nfile\n\nearly:\n");
    let note = "`/workspace/early` is a file system of the host's kernel, and empty inside";
    assert!(
        result["notes"]
            .as_array()
            .is_some_and(|notes| notes.contains(&json!(note))),
        "{}",
        result["notes"]
    );
}

/// A world in which an earlier run has replaced a folder and a file of the project by links out of it.
fn planted() -> World {
    let world = World::new();
    world.write("secret/key", "topsecret\n");
    world.write("project/plain/key", "plain\n");
    for (name, target) in [("data", "../secret"), ("in.csv", "../secret/key")] {
        let link = world.here("project").join(name);
        std::os::unix::fs::symlink(target, link).expect("a link");
    }
    world
}

const SHOW: [&str; 4] = [
    "--",
    "sh",
    "-c",
    "cat /m/key /workspace/key 2>/dev/null; true",
];

#[test]
fn a_link_below_the_current_folder_decides_nothing() {
    let world = planted();
    let here = world.here("");
    let here = here.to_str().expect("text").trim_end_matches('/');
    let options: [(&str, String, &str); 5] = [
        (
            "--workspace",
            "project/data".into(),
            "`project/data` is a symbolic link to `../secret`",
        ),
        (
            "--mount",
            "project/data:/m".into(),
            "`project/data` is a symbolic link to `../secret`",
        ),
        (
            "--mount",
            format!("{here}/project/data:/m"),
            "`project/data` is a symbolic link to `../secret`",
        ),
        (
            "--mount",
            "project/data/key:/m".into(),
            "`project/data/key` goes through the symbolic link `project/data` to `../secret`",
        ),
        (
            "--image",
            "./project/data".into(),
            "`project/data` is a symbolic link to `../secret`",
        ),
    ];
    let hint = "airlock: hint: an earlier run may have created it: give the target's path, or --follow-links if you trust the link\n";
    for (option, value, what) in &options {
        let answer = world.run(&[&["run", option, value], &SHOW[..]].concat());
        assert_eq!(
            answer.stderr,
            format!("airlock: error: {option} {what}\n{hint}")
        );
        assert_eq!((answer.status, answer.stdout.as_str()), (Some(125), ""));
    }
    let answer = world.run(&["run", "--input", "key=project/in.csv", "--", "cat", "key"]);
    assert!(
        answer
            .stderr
            .contains("--input `project/in.csv` is a symbolic link"),
        "{}",
        answer.stderr
    );
    assert_eq!((answer.status, answer.stdout.as_str()), (Some(125), ""));
}

#[test]
fn a_link_is_followed_where_that_is_asked_for_and_said() {
    let world = planted();
    let run = |options: &[&str]| {
        let answer = world.run(&[&["run"], options, &SHOW[..]].concat());
        assert_eq!(answer.status, Some(0), "{}", answer.stderr);
        (answer.stdout, answer.stderr)
    };
    // No link, no question.
    let plain = ("plain\n".to_owned(), String::new());
    assert_eq!(run(&["--mount", "project/plain:/m"]), plain);
    assert_eq!(run(&["--workspace", "project/../project/plain"]), plain);
    let said = |option: &str| format!("airlock: note: {option} leads to `[WORLD]/here/secret`\n");
    assert_eq!(
        run(&["--follow-links", "--mount", "project/data:/m"]),
        (
            "topsecret\n".to_owned(),
            said("--mount `[WORLD]/here/project/data`")
        )
    );
    assert_eq!(
        run(&["--follow-links", "--workspace", "project/data"]),
        (
            "topsecret\n".to_owned(),
            said("--workspace `[WORLD]/here/project/data`")
        )
    );
    // Above the current folder nobody planted anything, but what a path leads to is said.
    let above = world.here("").parent().expect("a folder").join("above");
    std::os::unix::fs::symlink("here/secret", &above).expect("a link");
    let mount = format!("{}:/m", above.display());
    assert_eq!(
        run(&["--mount", &mount]),
        ("topsecret\n".to_owned(), said("--mount `[WORLD]/above`"))
    );
    let input = [
        "run",
        "--follow-links",
        "--input",
        "key=project/in.csv",
        "--",
        "cat",
        "key",
    ];
    assert_eq!(world.run(&input).stdout, "topsecret\n");
}

#[test]
fn a_home_or_a_folder_of_the_system_is_a_workspace_only_if_that_is_confirmed() {
    let world = World::new();
    let home = world.here("").join("../home");
    let home = home.to_str().expect("text");
    let refused = |folder: &str, what: &str| {
        let answer = world.run(&["run", "--workspace", folder, "--", "true"]);
        assert_eq!(answer.status, Some(125));
        let hint = "give --workspace the folder of one project, or add --confirm-workspace to show all of it to the program";
        let shown = folder.replace(home, "[WORLD]/here/../home");
        assert_eq!(
            answer.stderr,
            format!("airlock: error: --workspace `{shown}` {what}\nairlock: hint: {hint}\n")
        );
    };
    refused(home, "is your home");
    refused("/etc", "is a folder of the system");
    refused("/usr", "is a folder of the system");
    // Those of other accounts, whatever the caller's own home is.
    refused("/home", "is the folder of all homes");
    let confirmed = [
        "run",
        "--confirm-workspace",
        "--workspace",
        home,
        "--",
        "pwd",
    ];
    let answer = world.run(&confirmed);
    assert_eq!(
        (answer.status, answer.stdout.as_str()),
        (Some(0), "/workspace\n")
    );
    // A folder in it is somebody's project.
    std::fs::create_dir(format!("{home}/project")).expect("a folder");
    let project = format!("{home}/project");
    assert_eq!(
        world
            .run(&["run", "--workspace", &project, "--", "true"])
            .status,
        Some(0)
    );
    // What Airlock lives by stays refused, confirmed or not.
    let state = world.here("").join("..");
    let answer = world.run(&[
        "run",
        "--confirm-workspace",
        "--workspace",
        state.to_str().expect("text"),
        "--",
        "true",
    ]);
    assert!(
        answer.stderr.contains("Airlock's state"),
        "{}",
        answer.stderr
    );
}

#[test]
fn a_socket_of_the_host_that_a_folder_shows_is_named() {
    let world = World::new();
    world.write("shown/file", "");
    world.write("other/file", "");
    let path = world.here("shown/s");
    let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let notes = |mount: &str| {
        let answer = world.run(&["run", "--mount", mount, "--", "true"]);
        assert_eq!(answer.status, Some(0), "{}", answer.stderr);
        answer.stderr
    };
    let said = "airlock: note: --mount shows the socket `[WORLD]/here/shown/s`: the program can talk to whoever listens there, whatever its network is\n";
    assert_eq!(notes("shown:/m"), said);
    assert_eq!(notes("other:/m"), "");
}

#[test]
fn a_script_whose_interpreter_is_not_inside_is_not_called_missing() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    world.write("p/bin/pip", "#!/elsewhere/p/bin/python3 -I\nprint(1)\n");
    world.write("p/bin/fine", "#!/bin/sh\necho fine\n");
    for name in ["pip", "fine"] {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(world.here("p/bin").join(name), mode).expect("its rights");
    }
    let run = |command: &str| world.run(&["run", "--workspace", "p", "--", command]);
    let missing = run("bin/pip");
    assert_eq!(missing.status, Some(127));
    let message = "airlock: error: `bin/pip` is there, but its interpreter `/elsewhere/p/bin/python3` (from its first line) is not inside\n";
    assert!(missing.stderr.starts_with(message), "{}", missing.stderr);
    assert_eq!(run("/workspace/bin/pip").status, Some(127));
    // The controls: one whose interpreter is there, and a command that is not.
    assert_eq!(run("bin/fine").stdout, "fine\n");
    let absent = run("bin/absent").stderr;
    assert!(
        absent.contains("there is no command `bin/absent` inside"),
        "{absent}"
    );
}
