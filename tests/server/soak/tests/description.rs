//! The description of the API held against the API: schemathesis makes requests of all kinds from `/openapi.json`, good
//! and bad, and looks whether each answer is one that the description has.
//!
//! It is installed once, in this version, in `target/schemathesis`. Few examples of each route; with `AIRLOCK_FULL=1`
//! many, and routes one after the other as their answers lead on. `AIRLOCK_SEED` repeats it.

use gateway_tests::{Folder, Server};
use robustness::{full, random::fresh_seed};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const VERSION: &str = "4.32.5";
/// Routes that are not asked, and why.
const LEFT_OUT: [(&str, &str); 2] = [
    (
        "/events$",
        "a stream that ends when its run does; read in tests/server/gateway",
    ),
    ("/pty$", "a WebSocket; spoken in tests/server/gateway"),
];
/// The one that is left out by its whole name: it finds the key that it asks with in the list, and revokes that.
const REVOKES: &str = "DELETE /v1/keys/{id}";
/// Checks that are not made, and why.
const UNCHECKED: [(&str, &str); 2] = [
    (
        "positive_data_acceptance",
        "a description cannot say that an image, a folder or a program must be there, nor how a size is written",
    ),
    (
        "allow_header_conformance",
        "names of artifacts have slashes: one route stands for them and for `/versions`",
    ),
];

/// The program, installed if it is not there.
fn schemathesis() -> PathBuf {
    let folder = cli::repository().join("target/schemathesis");
    let (program, mark) = (folder.join("bin/st"), folder.join(VERSION));
    if mark.is_file() {
        return program;
    }
    let run = |program: &Path, arguments: &[&str]| {
        let done = Command::new(program)
            .args(arguments)
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "prerequisite: schemathesis {VERSION} from PyPI: {said}"
        );
    };
    let text = folder.display().to_string();
    run(Path::new("python3"), &["-m", "venv", "--clear", &text]);
    run(
        &folder.join("bin/pip"),
        &["install", "--quiet", &format!("schemathesis=={VERSION}")],
    );
    fs::write(mark, "").expect("a mark");
    program
}

fn seed() -> u64 {
    let fixed = std::env::var("AIRLOCK_SEED")
        .ok()
        .map(|text| text.parse().expect("AIRLOCK_SEED is a number"));
    let seed = fixed.unwrap_or_else(fresh_seed) % (1 << 32);
    println!("AIRLOCK_SEED={seed}");
    seed
}

#[test]
fn every_answer_is_one_that_the_description_has() {
    let program = schemathesis();
    let (server, folder) = (Server::with("", &["--pool", "2"]), Folder::new());
    // Something to be found, so that not all is missing.
    let made = server.post(
        "/v1/runs",
        &json!({ "run_id": "known", "command": ["echo", "hello"] }),
    );
    assert_eq!(made.status, 200, "{}", made.text());
    let url = format!("http://{}/openapi.json", server.client.host());
    let mut command = Command::new(program);
    command.args([
        "run",
        &url,
        "--checks",
        "all",
        "--generation-database",
        "none",
        "--no-shrink",
    ]);
    command.args([
        "--suppress-health-check",
        "all",
        "--warnings",
        "off",
        "--continue-on-failure",
    ]);
    command.args(["--request-timeout", "30", "--seed", &seed().to_string()]);
    command
        .arg("--header")
        .arg(format!("Authorization: Bearer {}", server.admin));
    command
        .arg("--exclude-checks")
        .arg(UNCHECKED.map(|(check, _)| check).join(","));
    command
        .arg("--exclude-path-regex")
        .arg(LEFT_OUT.map(|(path, _)| path).join("|"));
    command.args(["--exclude-name", REVOKES]);
    match full() {
        true => command.args([
            "--phases",
            "coverage,fuzzing,stateful",
            "--max-examples",
            "200",
        ]),
        false => command.args(["--phases", "coverage,fuzzing", "--max-examples", "6"]),
    };
    let done = command
        .current_dir(&folder.0)
        .env("PYTHONHASHSEED", "0")
        .output()
        .expect("it starts");
    let told = String::from_utf8_lossy(&done.stdout);
    println!("{told}");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(told.contains("passed"), "it asked for something");
    assert_eq!(
        server.get("/v1/keys").status,
        200,
        "the server lives, and the key was good to the end"
    );
}
