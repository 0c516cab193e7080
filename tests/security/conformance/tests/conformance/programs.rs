//! The program gets exactly what was asked for, and exactly what it did comes back.

use crate::{
    runner::Proof,
    world::{Outcome, World, admit, mount, outcome},
};
use spec::{ErrorCode, Policy, RunRequest, RunResult, Status};
use std::{
    ffi::{OsStr, OsString},
    fs,
    io::Read,
    os::{
        fd::AsRawFd,
        unix::ffi::{OsStrExt, OsStringExt},
    },
    process::Command,
};
use tokio::io::AsyncWriteExt;

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        arguments_arrive_to_the_byte,
        standard_input_is_passed_to_the_byte,
        standard_input_is_empty_unless_asked_for,
        output_streams_stay_apart_and_exact,
        a_mebibyte_of_random_bytes_comes_through,
        a_character_split_between_writes_comes_through,
        exit_codes_come_back,
        deaths_by_signal_come_back,
        what_cannot_be_run_has_its_own_exit_status,
        the_environment_is_exactly_what_was_declared,
        variables_of_airlock_cannot_be_set,
        no_descriptor_but_the_three_streams_is_open,
        the_program_is_the_user_it_should_be,
    ]
}

fn arguments_arrive_to_the_byte(world: &World) {
    let arguments: [&[u8]; 9] = [
        b"arguments",
        b"a b",
        b";",
        b"$(id)",
        b"new\nline",
        b"",
        b"\xff\xfe",
        b"'\"\\",
        b"--",
    ];
    let arguments = arguments.map(|argument| OsString::from_vec(argument.to_vec()));
    let result = world.run(world.probe(&arguments));
    let mut expected = Vec::new();
    for argument in &arguments[1..] {
        expected.extend_from_slice(argument.as_bytes());
        expected.push(0);
    }
    assert_eq!(result.stdout, expected);
}

fn random_bytes(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .expect("random bytes");
    bytes
}

fn with_input(world: &World, request: RunRequest, input: Vec<u8>) -> RunResult {
    let engine = world.engine(&Default::default());
    world.runtime.block_on(async {
        let mut run = engine.start(admit(RunRequest {
            stdin: true,
            ..request
        }));
        let mut stdin = run.take_stdin().expect("its input");
        let writer = tokio::spawn(async move { stdin.write_all(&input).await });
        let result = run.finish().await;
        writer
            .await
            .expect("the writer")
            .expect("all of it was taken");
        result
    })
}

fn standard_input_is_passed_to_the_byte(world: &World) {
    let input = random_bytes(300_000);
    let result = with_input(world, world.command(&["cat"]), input.clone());
    assert!(
        result.stdout == input,
        "{} of {} bytes came back",
        result.stdout.len(),
        input.len()
    );
}

fn standard_input_is_empty_unless_asked_for(world: &World) {
    let result = world.run(world.command(&["cat"]));
    assert_eq!(
        (result.status, result.stdout),
        (Status::Succeeded, Vec::new())
    );
}

fn output_streams_stay_apart_and_exact(world: &World) {
    let script = r"printf 'out\377\000\303'; printf 'err\376\n' >&2; printf 'more'";
    let result = world.run(world.command(&["sh", "-c", script]));
    assert_eq!(
        (result.stdout, result.stderr),
        (b"out\xff\0\xc3more".to_vec(), b"err\xfe\n".to_vec())
    );
}

fn a_mebibyte_of_random_bytes_comes_through(world: &World) {
    let (folder, bytes) = (world.fresh_folder("random"), random_bytes(1 << 20));
    fs::write(folder.join("bytes"), &bytes).expect("a file");
    let mounts = vec![mount(&folder, "/data", "ro")];
    let result = world.run(RunRequest {
        mounts,
        ..world.command(&["cat", "/data/bytes"])
    });
    assert!(
        result.stdout == bytes && !result.truncated.stdout,
        "{} bytes came",
        result.stdout.len()
    );
}

fn a_character_split_between_writes_comes_through(world: &World) {
    let result = world.run(world.command(&["sh", "-c", r"printf '\342\202'; printf '\254'"]));
    assert_eq!(String::from_utf8(result.stdout).as_deref(), Ok("€"));
}

type Ending = (Status, Option<i32>, Option<i32>, u8);

fn ending(result: &RunResult) -> Ending {
    (
        result.status,
        result.exit_code,
        result.signal,
        result.exit_status,
    )
}

fn exit_codes_come_back(world: &World) {
    let code =
        |code: &str| ending(&world.run(world.command(&["sh", "-c", &format!("exit {code}")])));
    let failed = |code: u8| (Status::Failed, Some(code.into()), None, code);
    let expected = [
        (Status::Succeeded, Some(0), None, 0),
        failed(1),
        failed(42),
        failed(255),
    ];
    assert_eq!(["0", "1", "42", "255"].map(code), expected);
}

fn deaths_by_signal_come_back(world: &World) {
    let signals = [libc::SIGSEGV, libc::SIGKILL, libc::SIGTERM, libc::SIGABRT];
    let got =
        signals.map(|signal| ending(&world.run(world.probe(&["die-by", &signal.to_string()]))));
    let expected = signals.map(|signal| (Status::Failed, None, Some(signal), 128 + signal as u8));
    assert_eq!(got, expected);
}

fn what_cannot_be_run_has_its_own_exit_status(world: &World) {
    let refusal = |request| {
        let result = world.run(request);
        let code = result.error.as_ref().expect("an error").code;
        (ending(&result), code, result.barriers)
    };
    let not_started = |status| (Status::NotStarted, None, None, status);
    let missing = refusal(world.command(&["no-such-command"]));
    assert_eq!(missing, (not_started(127), ErrorCode::StartFailed, vec![]));
    let no_program = refusal(world.command(&["/etc/passwd"]));
    assert_eq!(
        no_program,
        (not_started(126), ErrorCode::StartFailed, vec![])
    );
    let absent = world.folder.join("absent");
    let mounts = vec![mount(&absent, "/data", "ro")];
    let refused = refusal(RunRequest {
        mounts,
        ..world.command(&["true"])
    });
    assert_eq!(refused, (not_started(125), ErrorCode::InvalidSpec, vec![]));
}

fn the_environment_is_exactly_what_was_declared(world: &World) {
    let id = world.unique("run");
    let weird = OsString::from_vec(b"a=b\n\xff".to_vec());
    let request = RunRequest {
        env: vec![("GREETING".into(), weird), ("EMPTY".into(), "".into())],
        // Of the caller's own variables none passes unnamed.
        caller_env: [(OsString::from("CALLERS"), OsString::from("own"))].into(),
        run_id: Some(id.clone()),
        task_id: Some("task".to_owned()),
        ..world.command(&["cat", "/proc/self/environ"])
    };
    let result = world.run(request);
    let mut got: Vec<&[u8]> = result.stdout.split_inclusive(|byte| *byte == 0).collect();
    got.sort_unstable();
    let expected = [
        format!("AIRLOCK_RUN_ID={id}\0").into_bytes(),
        b"AIRLOCK_WORKSPACE=/workspace\0".to_vec(),
        b"CYNODE_ARTIFACTS_DIR=/workspace/.artifacts\0".to_vec(),
        b"CYNODE_TASK_ID=task\0".to_vec(),
        b"CYNODE_WORKSPACE_DIR=/workspace\0".to_vec(),
        b"EMPTY=\0".to_vec(),
        b"GREETING=a=b\n\xff\0".to_vec(),
        b"HOME=/home/agent\0".to_vec(),
        b"PATH=/usr/local/bin:/usr/bin:/bin\0".to_vec(),
        format!("RUN_ID={id}\0").into_bytes(),
        b"TMPDIR=/tmp\0".to_vec(),
    ];
    assert_eq!(got, expected);
}

fn variables_of_airlock_cannot_be_set(world: &World) {
    let set = |name: &str| {
        let env = vec![(name.into(), "x".into())];
        Policy::default()
            .admit(RunRequest {
                env,
                ..world.command(&["true"])
            })
            .map(drop)
            .map_err(|no| no.code)
    };
    for name in [
        "AIRLOCK_RUN_ID",
        "AIRLOCK_WORKSPACE",
        "HOME",
        "PATH",
        "TMPDIR",
        "RUN_ID",
        "CYNODE_TASK_ID",
    ] {
        assert_eq!(set(name), Err(ErrorCode::InvalidSpec), "{name}");
    }
    assert_eq!(set("LANG"), Ok(()));
}

/// One that this process lets every child inherit does not get through; a plain child has it.
fn no_descriptor_but_the_three_streams_is_open(world: &World) {
    let file = fs::File::open("/dev/null").expect("a file");
    // SAFETY: our own descriptor; without the flag it is inherited.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) };
    let child = Command::new(world.probe_folder.join("probe"))
        .arg("descriptors")
        .output()
        .expect("a child");
    let inherited = file.as_raw_fd().to_string();
    let seen = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(seen.contains(&inherited), "the control: {seen}");
    let inside = world.attempt(world.probe(&["descriptors"]));
    assert_eq!(inside, Outcome::Allowed("[0, 1, 2]".to_owned()));
}

fn the_program_is_the_user_it_should_be(world: &World) {
    let usual = world.attempt(world.probe(&["ids"]));
    assert_eq!(
        usual,
        Outcome::Allowed("[1000, 1000, 1000] [1000, 1000, 1000]".to_owned())
    );
    let user = Some(spec::User { uid: 7, gid: 8 });
    let other = world.run(RunRequest {
        user,
        ..world.probe(&[OsStr::new("ids")])
    });
    assert_eq!(
        outcome(&other),
        Outcome::Allowed("[7, 7, 7] [8, 8, 8]".to_owned())
    );
}
