//! Many runs at once: all succeed, none sees another, nothing is left.

use robustness::{Bench, Outcome, full, host};
use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

#[test]
fn many_runs_at_once_all_succeed_and_leave_nothing() {
    let bench = Bench::new("many");
    let count = if full() { 50 } else { 20 };
    let shared = bench.workspace("shared");
    let started: Vec<_> = (0..count)
        .map(|number| {
            let run = bench.run_id("many");
            let mut command = bench.airlock("run");
            command.args(["--json", "--run-id", &run]);
            // Every other one in the same workspace.
            if number % 2 == 0 {
                command.arg("--workspace").arg(&shared);
            }
            let script = format!(
                "echo {number} > own-{number}; set -- /proc/[0-9]*; echo $#; cat own-{number}"
            );
            command.args([
                "--artifact",
                &format!("own-{number}"),
                "--",
                "sh",
                "-c",
                &script,
            ]);
            let airlock = command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("airlock starts");
            (number, run, airlock)
        })
        .collect();
    for (number, run, airlock) in started {
        let done = airlock.wait_with_output().expect("airlock ends");
        let outcome = Outcome::read(done.status.code(), &done.stdout, &done.stderr);
        outcome.expect("succeeded", 0, &[]);
        // The box's first process and the shell, however many runs there are.
        assert_eq!(outcome.stdout(), format!("2\n{number}\n"));
        assert_eq!(
            outcome.json["artifacts"][0]["name"],
            format!("own-{number}")
        );
        assert_eq!(
            (host::carrying(&run), host::cgroups_naming(&run)),
            (Vec::new(), Vec::new())
        );
    }
    let written: BTreeSet<_> = (0..count)
        .step_by(2)
        .map(|number| PathBuf::from(format!("own-{number}")))
        .collect();
    assert_eq!(host::listing(&shared), written);
    assert_eq!(
        fs::read_dir(bench.state.join("runs"))
            .expect("the records")
            .count(),
        0
    );
    assert_eq!(host::mounts_naming(&bench.folder), Vec::<String>::new());
}

/// A user of whom this machine has no process.
const NOBODY_ELSE: u32 = 64_321;

#[test]
fn where_no_process_or_thread_fits_a_run_is_refused_in_words() {
    let bench = Bench::new("full-house");
    let (state, airlock) = (bench.folder.join("theirs"), bench.folder.join("airlock"));
    fs::create_dir(&state).expect("a state folder");
    // Where anybody finds it.
    fs::copy(robustness::binary(), &airlock).expect("a copy of the binary");
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(&state, Some(NOBODY_ELSE), Some(NOBODY_ELSE))
            .expect("it is theirs");
    }
    // The limit counts all that a user has, and root is not bound by it.
    for most in ["1", "2", "3"] {
        let mut command = Command::new("setpriv");
        if root {
            let id = NOBODY_ELSE.to_string();
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
        }
        command
            .args(["prlimit", &format!("--nproc={most}:{most}")])
            .arg(&airlock);
        command
            .env("HOME", &state)
            .arg("--state")
            .arg(&state)
            .args(["run", "--", "true"]);
        let done = command.output().expect("setpriv starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(125), "{said}");
        assert!(
            said.contains("Resource temporarily unavailable") && !said.contains("panicked"),
            "{said}"
        );
    }
}
