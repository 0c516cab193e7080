//! `airlock run --workspace DIR` stages what the program changes, and says so once. What is asked in other ways is live.

use airlock_cli_tests::{
    World, airlock,
    ground::{GROUNDS, Ground, words},
    login::Login,
};
use serde_json::{Value, json};
use std::{fs, process::Output};

const NOTE: &str =
    "airlock: note: changes reach `w` when the command ends; `w:live` shares at once\n";

/// The folder `w` with a file in it.
fn world() -> World {
    let world = World::new();
    world.write("w/kept", "kept").write("w/changed", "before");
    world
}

fn output(world: &World, words: &[&str]) -> Output {
    world.command(words).output().expect("airlock starts")
}

/// How the folder was shared with a run, as its result says.
fn mode(world: &World, options: &[&str]) -> Value {
    let script = "printf x >changed";
    let words = [&["run", "--json"], options, &["--", "sh", "-c", script]].concat();
    let told: Value = serde_json::from_slice(&output(world, &words).stdout).expect("a result");
    assert_eq!(told["status"], "succeeded", "{options:?} {told}");
    told["workspace"]["mode"].clone()
}

#[test]
fn a_folder_of_which_nothing_is_said_is_staged() {
    let world = world();
    assert_eq!(mode(&world, &["--workspace", "w"]), "staged");
    let native = ["--workspace", "w", "--backend", "native"];
    fs::write(world.here("w/changed"), "before").unwrap();
    assert_eq!(mode(&world, &native), "staged");
    // The controls: what is said counts.
    fs::write(world.here("w/changed"), "before").unwrap();
    assert_eq!(mode(&world, &["--workspace", "w:live"]), json!(null));
    let reviewed = ["--workspace", "w", "--copy-on-write"];
    fs::write(world.here("w/changed"), "before").unwrap();
    assert_eq!(mode(&world, &reviewed), "copy_on_write");
    let changed = || fs::read_to_string(world.here("w/changed")).unwrap();
    assert_eq!(changed(), "before");
    mode(&world, &["--workspace", "w"]);
    assert_eq!(changed(), "x");
    let plan = output(
        &world,
        &["run", "--explain", "--workspace", "w", "--", "true"],
    );
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.contains("staged workspace"), "{plan}");
}

#[test]
fn with_a_terminal_it_is_staged_too() {
    let world = world();
    let program = airlock().to_str().expect("its path is text");
    let script = "echo mine >made; echo begun; read go; echo over";
    let words = [
        program,
        "run",
        "--tty",
        "--workspace",
        "w",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut login = Login::start(words, |command| {
        command.current_dir(world.here("")).envs(world.variables());
    });
    login.expect("begun");
    assert!(!world.here("w/made").exists(), "while it runs");
    login.keys("\n");
    assert_eq!(login.end(), Some(0));
    let made = fs::read_to_string(world.here("w/made"));
    assert_eq!(made.expect("it has arrived"), "mine\n");
}

#[test]
fn when_changes_arrive_is_said_once() {
    let world = world();
    let said = |words: &[&str]| {
        let words = [&["run"], words, &["--", "true"]].concat();
        let output = output(&world, &words);
        assert!(output.status.success(), "{words:?} {output:?}");
        String::from_utf8_lossy(&output.stderr).contains(NOTE)
    };
    // Nobody needs to be told of what he said, or of what is no folder of his, and no program reads it.
    let silent: [&[&str]; 6] = [
        &[],
        &["--json", "--workspace", "w"],
        &["--workspace", "w:staged"],
        &["--workspace", "w:live"],
        &["--workspace", "w:ro"],
        &["--workspace", "w", "--copy-on-write"],
    ];
    assert_eq!(silent.map(said), [false; 6]);
    assert!(said(&["--workspace", "w"]));
    assert!(!said(&["--workspace", "w"]));
    // Another state folder is another user's.
    let words = ["run", "--state", "other", "--workspace", "w", "--", "true"];
    let other = output(&world, &words);
    assert!(String::from_utf8_lossy(&other.stderr).contains(NOTE));
}

/// Where the layer is a copy, and where it is laid over the folder.
#[test]
fn inputs_and_artifacts_do_not_reach_the_folder() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        ground.world.write("given", "given");
        // In a folder that is made for it, and in one of the host's.
        let inputs = ["in/put=given", "gone/put=given"];
        let mut options: Vec<_> = inputs.iter().flat_map(|it| ["--input", it]).collect();
        options.extend(["--json", "--artifact", "made"]);
        let script = "cat in/put gone/put; printf m >made; mkdir -p .artifacts/deep; \
                      printf a >.artifacts/deep/file; rm gone/below; printf x >.envrc";
        let told = ground.airlock(&words(&options, script)).json();
        assert_eq!(told["stdout"], "givengiven", "{whom:?} {layer:?} {told}");
        let names = [0, 1].map(|number| told["artifacts"][number]["name"].clone());
        assert_eq!(names, ["made", "deep/file"], "{whom:?} {layer:?} {told}");
        let contents = ground.contents();
        let below = |path: &str| contents.contains_key(&ground.work(path));
        let there = ["made", "gone", "in", ".artifacts", "gone/put", "gone/below"].map(below);
        let expected = [true, true, false, false, false, false];
        assert_eq!(there, expected, "{whom:?} {layer:?} {told}");
        // What is held back keeps the layer: inputs are no changes in it either.
        assert_eq!(told["workspace"]["held_back_total"], 1, "{told}");
        let diff = ground.airlock(&["workspace", "diff", "try"]).stdout;
        assert!(
            diff.starts_with("+ .envrc") && diff.lines().count() == 1,
            "{whom:?} {layer:?} {diff}"
        );
        ground.airlock(&["workspace", "commit", "try", "--partial"]);
        assert!(!ground.work("in").exists() && !ground.work("gone/put").exists());
    }
}

/// What is asked of a server is live: the request says nothing of staging.
#[test]
fn steps_are_live_unless_it_is_said() {
    let world = world();
    let script = "mkdir sub; echo evil >sub/.envrc";
    let job = json!({
        "protocol_version": "1", "job_id": "j", "constraints": { "max_runtime_seconds": 60, "max_output_bytes": 65536 }, "steps": [{ "type": "run_command", "args": { "argv": ["sh", "-c", script] } }],
    });
    world.write("job.json", &job.to_string());
    let words = ["steps", "--job", "job.json", "--json", "--workspace", "w"];
    let told = output(&world, &words);
    assert!(!String::from_utf8_lossy(&told.stderr).contains("changes reach"));
    assert!(
        !world.run(&["workspace", "held"]).stdout.is_empty(),
        "{told:?}"
    );
    assert_eq!(world.run(&["workspace", "list"]).stdout, "");
}

#[test]
fn a_folder_that_cannot_be_staged_is_refused_and_can_be_shared_live() {
    let world = world();
    world.write("config.toml", "[workspace]\ncopy_names = 1\n");
    // Something else that is mounted below a folder would not be seen in a layer.
    let script = "set -e; mkdir w/below; mount -t tmpfs tmpfs w/below; \"$AIRLOCK\" run --workspace w -- true || echo $?; \
                  \"$AIRLOCK\" run --workspace w:ro -- true; \"$AIRLOCK\" run --workspace w:live -- touch made";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command.current_dir(world.here("")).env_clear();
    command.envs(world.variables()).env("AIRLOCK", airlock());
    command.env("AIRLOCK_CONFIG", world.here("config.toml"));
    if !rustix::process::geteuid().is_root() {
        assert!(
            std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
            "only root may mount"
        );
        return println!("NOT TESTED: only root may mount");
    }
    let told = command.output().expect("unshare starts");
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&told.stdout), "125\n", "{said}");
    for remedy in ["DIR:live", "DIR:ro", "something is mounted below it"] {
        assert!(said.contains(remedy), "{said}");
    }
    assert!(world.here("w/made").exists());
}
