//! Jobs of steps in a staged workspace: what was not applied is said, and is no success.

use airlock_cli_tests::{
    Answer,
    ground::{GROUNDS, Ground, Layer, Whom},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    process::Stdio,
};

/// Runs a script as the only step of a job, and changes the folder while the step waits for that.
fn carried_out(ground: &Ground, script: &str, more: &[&str], meanwhile: impl FnOnce()) -> Answer {
    let sync = ground.world.here("sync");
    fs::create_dir(&sync).expect("a folder");
    let [ready, go] = ["ready", "go"].map(|name| sync.join(name));
    for pipe in [&ready, &go] {
        let (mode, fifo) = (rustix::fs::Mode::empty(), rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(rustix::fs::CWD, pipe, fifo, mode, 0).expect("a pipe");
        fs::set_permissions(pipe, fs::Permissions::from_mode(0o666)).expect("it is ours");
    }
    let script = format!("echo ready >/sync/ready; read go </sync/go; {script}");
    let job = json!({
        "protocol_version": "1", "job_id": "j",
        "constraints": { "max_runtime_seconds": 60, "max_output_bytes": 65536 },
        "steps": [{ "type": "run_command", "args": { "argv": ["sh", "-c", script] } }],
    });
    ground.world.write("job.json", &job.to_string());
    let usual = ["steps", "--job", "job.json", "--workspace", "work:staged"];
    let place = ["--run-id", "try", "--mount", "sync:/sync:rw"];
    let mut command = ground.command(&[&usual[..], &place, more].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("airlock starts");
    let mut line = String::new();
    let told = BufReader::new(fs::File::open(&ready).expect("it begins")).read_line(&mut line);
    assert_eq!((told.expect("a line"), line.as_str()), (6, "ready\n"));
    meanwhile();
    fs::write(&go, "go\n").expect("it is heard");
    let output = child.wait_with_output().expect("it ends");
    fs::remove_dir_all(sync).expect("it is ours");
    ground.world.answer(&output)
}

#[test]
fn a_conflict_of_a_job_is_named_and_is_no_success() {
    for (whom, layer) in GROUNDS {
        let ground = Ground::new(whom, layer);
        let change = || fs::write(ground.work("changed"), "mine").expect("the folder is there");
        let script = "printf theirs >changed; printf new >free";
        let ran = carried_out(&ground, script, &["--json"], change);
        let told = ran.json();
        let why = &told["workspace"]["conflicts"][0];
        assert_eq!(
            (
                ran.status,
                &told["status"],
                &told["failure_code"],
                &why["path"]
            ),
            (
                Some(123),
                &json!("failure"),
                &json!("workspace_conflict"),
                &json!("changed")
            ),
            "{whom:?} {layer:?} {told}"
        );
        let message = told["failure_message"].as_str().expect("a message");
        assert!(
            message.contains("`changed` (it was changed in the folder meanwhile) was not applied")
                && message.contains("airlock workspace diff try"),
            "{message}"
        );
        assert_eq!(told["steps"][0]["status"], "success", "{told}");
        let read = ["changed", "free"].map(|path| ground.read(path));
        assert_eq!(read, ["mine", "new"], "{whom:?} {layer:?}");
        let taken = ground.airlock(&["workspace", "commit", "try", "--force"]);
        assert_eq!(taken.status, Some(0), "{taken:?}");
        assert_eq!(ground.read("changed"), "theirs");
    }
}

/// The same without `--json`, and the control: what nothing stands against succeeds.
#[test]
fn a_conflict_of_a_job_is_said_in_words() {
    let ground = Ground::new(Whom::Caller, Layer::Copied);
    let change = || fs::write(ground.work("changed"), "mine").expect("the folder is there");
    let ran = carried_out(&ground, "printf theirs >changed", &[], change);
    assert_eq!(ran.status, Some(123), "{ran:?}");
    let last = ran.stdout.lines().last().unwrap_or_default();
    let expected = "job j: failure (workspace_conflict): the folder has changed, too: `changed` ";
    assert!(last.starts_with(expected), "{ran:?}");
    let free = Ground::new(Whom::Caller, Layer::Copied);
    let ran = carried_out(&free, "printf theirs >changed", &["--json"], || ());
    let told = ran.json();
    assert_eq!(
        (ran.status, &told["status"], &told["failure_code"]),
        (Some(0), &json!("success"), &Value::Null),
        "{told}"
    );
    assert_eq!(
        (&told["workspace"]["mode"], &told["workspace"]["applied"]),
        (&json!("staged"), &json!(1)),
        "{told}"
    );
    assert_eq!(free.read("changed"), "theirs");
}

#[test]
fn a_job_that_failed_says_so_first_and_names_the_conflict_besides() {
    let ground = Ground::new(Whom::Caller, Layer::Copied);
    let change = || fs::write(ground.work("changed"), "mine").expect("the folder is there");
    let ran = carried_out(
        &ground,
        "printf theirs >changed; exit 3",
        &["--json"],
        change,
    );
    let told = ran.json();
    assert_eq!(
        (ran.status, &told["failure_code"]),
        (Some(1), &json!("step_failed")),
        "{told}"
    );
    assert_eq!(told["workspace"]["conflicts_total"], 1, "{told}");
    let notes = told["notes"].to_string();
    assert!(
        notes.contains("`changed` (it was changed in the folder"),
        "{notes}"
    );
}

#[test]
fn what_a_job_left_that_is_held_back_is_said_and_leaves_its_success() {
    let ground = Ground::new(Whom::Caller, Layer::Copied);
    let ran = carried_out(&ground, "printf x >.envrc; printf free >free", &[], || ());
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.stdout.ends_with("job j: success\n"), "{ran:?}");
    let expected = "airlock: note: held back in the workspace's layer: `.envrc` ";
    assert!(ran.stderr.starts_with(expected), "{ran:?}");
    let there = ["free", ".envrc"].map(|path| ground.work(path).exists());
    assert_eq!(there, [true, false], "{ran:?}");
    // The control: nothing to say, nothing said.
    let quiet = Ground::new(Whom::Caller, Layer::Copied);
    let ran = carried_out(&quiet, "printf free >free", &[], || ());
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
}
