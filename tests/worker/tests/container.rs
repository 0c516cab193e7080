//! The worker as a container, by the scripts that operators use, in a Docker and a Podman of the test's own. What lies below the
//! image is made once from Debian's packages, and kept in `target/worker-base.tar`.

use daemons::{Daemons, Kind};
use serde_json::json;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};
use worker_tests::{Agent, Ask, Folder, Mosquitto, NAMESPACE, Tools, Way, free_port, until};

const BASE: &str = "localhost/airlock-worker-base:latest";

/// Debian with Python, bash and bubblewrap.
fn base() -> Vec<u8> {
    let path = cli::repository().join("target/worker-base.tar");
    if !path.exists() {
        let part = path.with_extension("part");
        let listed = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().filter_map(Result::ok);
        let mut sources: Vec<PathBuf> = listed.map(|entry| entry.path()).collect();
        sources.push("/etc/apt/sources.list".into());
        sources.retain(|path| {
            path.is_file() && path.extension().is_some_and(|end| end == "list" || end == "sources")
        });
        let mut command = Command::new("mmdebstrap");
        command.args([
            "--variant=minbase",
            "--format=tar",
            "--include=python3,bubblewrap,ca-certificates",
            "bookworm",
        ]);
        let done = command.arg(&part).args(sources).output().expect("mmdebstrap starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        fs::rename(&part, &path).expect("it is kept");
    }
    fs::read(path).expect("it can be read")
}

/// A script of operators, with an engine of the test's own.
fn script(name: &str, folder: &Folder, kind: Kind, daemons: &Daemons) -> Command {
    let mut command = Command::new(cli::repository().join("container").join(name));
    let engine = folder.at(kind.backend());
    let program = match kind {
        Kind::Docker => format!("#!/bin/sh\nexec docker --host {} \"$@\"\n", daemons.host(kind)),
        Kind::Podman | Kind::Rootless => {
            format!("#!/bin/sh\nexec podman --remote --url {} \"$@\"\n", daemons.host(kind))
        }
    };
    fs::write(&engine, program).expect("a program");
    fs::set_permissions(&engine, fs::Permissions::from_mode(0o755)).expect("it can be started");
    command.env("CONTAINER_CMD", engine).stdin(Stdio::null()).current_dir(folder.path());
    command
}

fn carried_out(command: &mut Command) -> String {
    let done = command.output().expect("bash starts");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    said
}

fn serves_in(kind: Kind) {
    let folder = Folder::new();
    let daemons = Daemons::start(&[kind]);
    daemons.import(kind, &base(), BASE, &[]);
    let broker = Mosquitto::start(&folder);
    let tools = Tools::usual(&folder);
    let agent = Agent::join(&Way::mqtt5(broker.port), "Tester");
    let tag = "localhost/airlock-worker:test";
    let mut build = script("build.sh", &folder, kind, &daemons);
    carried_out(build.arg(tag).env("BASE", BASE).env("AIRLOCK_BINARY", cli::airlock()));
    let shelf = folder.at("shelf");
    fs::create_dir(&shelf).expect("a folder");
    fs::set_permissions(&shelf, fs::Permissions::from_mode(0o777))
        .expect("the worker's user may write there");
    let mut start = script("run.sh", &folder, kind, &daemons);
    start.arg(tag).env("DETACH", "1").env("CONTAINER_NETWORK", "host").env("TOOLS_MOUNT", tools.path());
    start.env("ARTIFACT_MOUNT", &shelf).env("SAM_NAMESPACE", NAMESPACE).env("SAM_TRANSPORT", broker.url());
    start.env("HEALTH_PORT", free_port().to_string()).env("SANDBOX_PYTHON_BIN", "/usr/bin/python3");
    let said = carried_out(&mut start);
    assert!(!said.contains("--privileged"), "{said}");
    agent.wait("init", "echo");
    assert_eq!(
        agent.call(&Ask::new("echo", json!({"text": "contained"}))).tool_result()["text"],
        "contained"
    );
    let who = agent.call(&Ask::new("who", json!({})).profile("restrictive"));
    assert_eq!(who.tool_result()["capabilities"], "0000000000000000");
    let made = agent.call(&Ask::new("writes", json!({"files": {"a.txt": "one"}})));
    assert_eq!(made.created()[0].0, "a.txt");
    until("it is in the mounted folder", || shelf.join("test/ana/web-77/a.txt/0").exists().then_some(()));
}

#[test]
fn the_image_that_build_makes_serves_in_docker_by_run() {
    serves_in(Kind::Docker);
}

#[test]
fn the_image_that_build_makes_serves_in_podman_by_run() {
    serves_in(Kind::Podman);
}
