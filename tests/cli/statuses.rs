//! The table of exit statuses of the contract, the same with and without `--json`.

use airlock_cli_tests::{Answer, World};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::Read,
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Longer than any of these programs needs, shorter than those that must be stopped would take.
const PATIENCE: Duration = Duration::from_secs(60);
const LONG: &str = "600";

/// Runs it both ways; the status must be the same, and the fields of the result as given.
#[track_caller]
fn ends(arguments: &[&str], status: i32, fields: &Value) -> Answer {
    let world = World::new();
    let plain = world.run(&[&["run"], arguments].concat());
    let told = world.run(&[&["run", "--json"], arguments].concat());
    assert_eq!(
        (plain.status, told.status),
        (Some(status), Some(status)),
        "{}\n{}",
        plain.stderr,
        told.stdout
    );
    let result = told.json();
    let seen: serde_json::Map<_, _> = fields
        .as_object()
        .expect("fields")
        .keys()
        .map(|name| (name.clone(), result[name].clone()))
        .collect();
    assert_eq!(&Value::Object(seen), fields);
    assert_eq!(result["exit_status"], status);
    plain
}

#[test]
fn the_programs_own() {
    for code in [0, 1, 3, 124, 125, 127, 255] {
        let status = if code == 0 { "succeeded" } else { "failed" };
        let wanted = json!({ "status": status, "exit_code": code, "signal": null, "error": null, "limits_hit": [] });
        let answer = ends(&["--", "sh", "-c", &format!("exit {code}")], code, &wanted);
        assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("", ""));
    }
}

#[test]
fn a_broken_contract_is_never_a_success() {
    let message = "the program broke the contract `task`: stdout is not exactly one JSON object: line 1, column 1";
    let hint = "its log belongs on stderr; docs/agent.md shows what stdout must be";
    let error = json!({ "code": "contract_violated", "message": message, "hint": hint });
    for (code, status) in [(0, 1), (1, 1), (7, 7)] {
        let wanted =
            json!({ "status": "failed", "exit_code": code, "output": null, "error": error });
        let answer = ends(
            &[
                "--contract",
                "task",
                "--",
                "sh",
                "-c",
                &format!("echo hi; exit {code}"),
            ],
            status,
            &wanted,
        );
        let words = format!("airlock: error: {message}\nairlock: hint: {hint}\n");
        assert_eq!((answer.stdout.as_str(), answer.stderr), ("hi\n", words));
    }
}

#[test]
fn a_kept_contract_is_in_the_result_and_says_the_same_as_the_exit_status() {
    let envelope =
        |error: Value| json!({ "payloads": [], "meta": { "durationMs": 1, "error": error } });
    let failed = envelope(json!({ "code": "llm_error", "message": "m" }));
    let cases = [
        ("succeeded", 0, envelope(Value::Null), Value::Null),
        ("failed", 1, failed.clone(), Value::Null),
    ];
    for (status, code, output, error) in cases {
        let script = format!("printf '%s' '{output}'; exit {code}");
        let wanted =
            json!({ "status": status, "exit_code": code, "output": output, "error": error });
        ends(
            &["--contract", "envelope", "--", "sh", "-c", &script],
            code,
            &wanted,
        );
    }
    let script = format!("printf '%s' '{failed}'");
    let wanted = json!({ "status": "failed", "exit_code": 0, "output": null });
    let answer = ends(
        &["--contract", "envelope", "--", "sh", "-c", &script],
        1,
        &wanted,
    );
    assert!(
        answer
            .stderr
            .contains("`meta.error` tells of an error, but the program exited with 0")
    );
}

#[test]
fn what_was_cut_keeps_no_contract_and_what_was_killed_is_not_asked() {
    let script = "printf '{\"a\":\"'; head -c 5000 /dev/zero | tr '\\0' x";
    let wanted = json!({ "status": "failed", "exit_code": 0, "output": null });
    let arguments = [
        "--contract",
        "task",
        "--output",
        "1K",
        "--",
        "sh",
        "-c",
        script,
    ];
    assert!(
        ends(&arguments, 1, &wanted)
            .stderr
            .contains("stdout is longer than what was kept of it")
    );
    let wanted = json!({ "status": "failed", "signal": 9, "output": null, "error": null });
    ends(
        &["--contract", "task", "--", "sh", "-c", "kill -9 $$"],
        137,
        &wanted,
    );
}

#[test]
fn stopped_at_the_timeout_is_124() {
    let error = json!({ "code": "timeout", "message": "stopped after 300ms on the clock", "hint": "give it more time with --timeout" });
    let wanted = json!({ "status": "timed_out", "exit_code": null, "signal": 15, "limits_hit": ["wall_time"], "error": error });
    let began = Instant::now();
    let answer = ends(&["--timeout", "300ms", "--", "sleep", LONG], 124, &wanted);
    assert!(began.elapsed() < PATIENCE);
    let words = "airlock: error: stopped after 300ms on the clock\nairlock: hint: give it more time with --timeout\n";
    assert_eq!(answer.stderr, words);
}

#[test]
fn a_program_that_ignores_the_timeout_is_killed() {
    let wanted = json!({ "status": "timed_out", "exit_code": null, "signal": 9 });
    ends(
        &[
            "--timeout",
            "2s",
            "--",
            "sh",
            "-c",
            "trap '' TERM; while :; do sleep 600; done",
        ],
        124,
        &wanted,
    );
}

#[test]
fn refused_is_125() {
    let wanted = json!({ "status": "not_started", "exit_code": null, "signal": null, "stdout": "", "barriers": [] });
    ends(&["--require", "own_kernel", "--", "true"], 125, &wanted);
}

#[test]
fn not_executable_is_126_and_not_found_127() {
    let wanted = json!({ "status": "not_started", "exit_code": null, "signal": null });
    for command in ["/etc/passwd", "/tmp"] {
        ends(&["--", command], 126, &wanted);
    }
    for command in ["no-such-command", "/no/such/command", "./absent"] {
        let answer = ends(&["--", command], 127, &wanted);
        assert!(answer.stderr.starts_with(&format!(
            "airlock: error: there is no command `{command}` inside\n"
        )));
    }
}

#[test]
fn killed_by_a_signal_is_128_and_its_number() {
    for (name, number) in [("HUP", 1), ("SEGV", 11), ("TERM", 15), ("KILL", 9)] {
        let wanted =
            json!({ "status": "failed", "exit_code": null, "signal": number, "error": null });
        let answer = ends(
            &["--", "sh", "-c", &format!("kill -{name} $$")],
            128 + number,
            &wanted,
        );
        assert_eq!(
            answer.stderr,
            format!("airlock: note: the program was killed by signal {number}\n")
        );
    }
}

/// As under `nohup`, or in the background of a script: those are the caller's, not the program's.
#[test]
fn signals_that_the_caller_ignores_are_not_ignored_inside() {
    let world = World::new();
    for (name, number) in [("HUP", 1), ("INT", 2), ("PIPE", 13)] {
        let script = format!("kill -{name} $$");
        let mut command = world.command_with_signals(
            &format!("--ignore-signal={name}"),
            &["run", "--", "sh", "-c", &script],
        );
        let answer = world.answer(&command.output().expect("it starts"));
        assert_eq!(
            answer.status,
            Some(128 + number),
            "{name}: {}",
            answer.stderr
        );
    }
}

/// Bounded by itself, too: where no limit held it would take this much and end.
const GREEDY: &str = "bytearray(256 << 20)";

#[test]
fn killed_at_the_memory_limit_is_137_and_says_so() {
    let error = json!({ "code": "oom_killed", "message": "killed at its memory limit of 48M", "hint": "give it more with --memory" });
    let wanted = json!({ "status": "oom_killed", "exit_code": null, "signal": 9, "limits_hit": ["memory"], "error": error });
    // Without a cgroup for memory this is refused, and the message names what is missing.
    ends(
        &[
            "--require",
            "memory_limit",
            "--memory",
            "48M",
            "--",
            "python3",
            "-c",
            GREEDY,
        ],
        137,
        &wanted,
    );
    let plain = json!({ "status": "succeeded", "exit_code": 0, "limits_hit": [] });
    ends(
        &[
            "--require",
            "memory_limit",
            "--memory",
            "512M",
            "--",
            "python3",
            "-c",
            GREEDY,
        ],
        0,
        &plain,
    );
}

#[test]
fn a_limit_that_killed_only_a_child_is_named_in_a_run_that_succeeded() {
    let wanted = json!({ "status": "succeeded", "exit_code": 0, "signal": null, "limits_hit": ["memory"], "error": null });
    let script = format!("python3 -c '{GREEDY}'; exit 0");
    let answer = ends(
        &[
            "--require",
            "memory_limit",
            "--memory",
            "48M",
            "--",
            "sh",
            "-c",
            &script,
        ],
        0,
        &wanted,
    );
    assert!(
        answer
            .stderr
            .ends_with("airlock: note: the limit memory was reached; --memory sets it\n")
    );
}

/// Starts a run that says when its program runs and then takes ten minutes, and waits for that word.
fn started(world: &World, options: &[&str], script: &str) -> Child {
    std::fs::create_dir_all(world.here("w")).expect("a workspace");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        world.here("w/word"),
        rustix::fs::FileType::Fifo,
        mode,
        0,
    )
    .expect("a FIFO");
    let script = format!("{script} echo running > word; sleep {LONG} & wait; exit 7");
    // Live, so that the FIFO is shared.
    let arguments = [
        &["run"],
        options,
        &[
            "--workspace",
            "w:live",
            "--timeout",
            "20m",
            "--",
            "sh",
            "-c",
            &script,
        ],
    ]
    .concat();
    let mut command = world.command(&arguments);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("airlock starts");
    let (sender, word) = mpsc::channel();
    let path = world.here("w/word");
    thread::spawn(move || {
        let mut text = String::new();
        _ = File::open(path).and_then(|mut word| word.read_to_string(&mut text));
        sender.send(text)
    });
    assert_eq!(
        word.recv_timeout(PATIENCE).as_deref(),
        Ok("running\n"),
        "the program did not begin"
    );
    child
}

fn interrupt(child: &Child) {
    let process = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(process, rustix::process::Signal::INT)
        .expect("it is there to be told");
}

#[test]
fn cancelled_by_ctrl_c_is_130_long_before_the_programs_own_end() {
    for (options, script) in [
        (&[][..], ""),
        (&["--json"], ""),
        (&["--json"], "trap '' TERM INT;"),
    ] {
        let world = World::new();
        let child = started(&world, options, script);
        let told = Instant::now();
        interrupt(&child);
        let answer = world.answer(&child.wait_with_output().expect("it ends"));
        assert!(told.elapsed() < PATIENCE, "it took {:?}", told.elapsed());
        assert_eq!(answer.status, Some(130), "{}", answer.stderr);
        if options.is_empty() {
            assert_eq!(
                answer.stderr,
                "airlock: error: cancelled\nairlock: hint: start it again when you want it\n"
            );
        } else {
            let result = answer.json();
            assert_eq!(
                (&result["status"], &result["error"]["code"]),
                (&json!("cancelled"), &json!("cancelled"))
            );
            assert_eq!(
                (&result["exit_code"], &result["exit_status"]),
                (&Value::Null, &json!(130))
            );
        }
        // Nothing of it is left: neither a record nor anything in the workspace.
        assert_eq!(
            world.run(&["sweep"]).stdout,
            "0 removed, 0 left alone because their owner lives\n"
        );
        let left: Vec<_> = std::fs::read_dir(world.here("w"))
            .expect("it is listed")
            .flatten()
            .map(|e| e.file_name())
            .collect();
        assert_eq!(left, ["word"]);
    }
}

#[test]
fn what_was_asked_of_the_wrong_place_is_refused_alike_by_every_command() {
    let world = World::new();
    for command in ["doctor", "sweep"] {
        let mut asked = world.command(&[command]);
        let output = asked.env("AIRLOCK_URL", "http://localhost:1").output();
        let output = output.expect("airlock starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{command}: {said}");
        assert!(said.contains("unset AIRLOCK_URL"), "{command}: {said}");
    }
    let here = world.run(&["doctor"]);
    assert_eq!(here.status, Some(0), "the control: {}", here.stderr);
}
