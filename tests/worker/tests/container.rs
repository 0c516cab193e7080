//! The worker as a container, by the scripts that operators use, in a Docker and a Podman of the test's own. What lies below the
//! image is made once from Debian's packages, and kept in `target/worker-base.tar`.

use daemons::{Daemons, Kind};
use serde_json::json;
use std::{
    fs,
    io::{Read, Write},
    net::{Ipv6Addr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
};
use worker_tests::{Agent, Ask, Folder, Mosquitto, NAMESPACE, Tools, Way, free_port};

const BASE: &str = "localhost/airlock-worker-base:latest";

/// Debian with Python, bash and bubblewrap.
fn base() -> Vec<u8> {
    // Once, not once for each test.
    static MADE: Mutex<()> = Mutex::new(());
    let _made = MADE.lock();
    let path = cli::repository().join("target/worker-base.tar");
    if !path.exists() {
        let part = path.with_extension("part");
        let listed = fs::read_dir("/etc/apt/sources.list.d")
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        let mut sources: Vec<PathBuf> = listed.map(|entry| entry.path()).collect();
        sources.push("/etc/apt/sources.list".into());
        sources.retain(|path| {
            path.is_file()
                && path
                    .extension()
                    .is_some_and(|end| end == "list" || end == "sources")
        });
        let mut command = Command::new("mmdebstrap");
        command.args([
            "--variant=minbase",
            "--format=tar",
            "--include=python3,bubblewrap,ca-certificates",
            "bookworm",
        ]);
        let done = command
            .arg(&part)
            .args(sources)
            .output()
            .expect("mmdebstrap starts");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        fs::rename(&part, &path).expect("it is kept");
    }
    fs::read(path).expect("it can be read")
}

/// The program under test, without what only a debugger wants: it goes through an engine several times.
fn program(folder: &Folder) -> PathBuf {
    let path = folder.at("airlock");
    let done = Command::new("strip")
        .arg("-o")
        .arg(&path)
        .arg(cli::airlock())
        .status()
        .expect("strip starts");
    assert!(done.success());
    path
}

/// A program that stands for an engine.
fn engine(folder: &Folder, name: &str, lines: &str) -> PathBuf {
    let path = folder.at(name);
    fs::write(&path, format!("#!/bin/sh\n{lines}\n")).expect("a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be started");
    path
}

/// A script of operators, with this engine and none of our own variables.
fn script(name: &str, folder: &Folder, engine: &Path) -> Command {
    bound(
        Command::new(cli::repository().join("images/worker").join(name)),
        folder,
        engine,
    )
}

/// One of the functions that are to be sourced, and its arguments.
fn sourced(folder: &Folder, engine: &Path) -> Command {
    let mut command = Command::new("bash");
    let file = cli::repository().join("images/worker/container-runtime.sh");
    command.args(["-euc", ". \"$0\"; \"$@\""]).arg(file);
    bound(command, folder, engine)
}

fn bound(mut command: Command, folder: &Folder, engine: &Path) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", folder.path())
        .env("CONTAINER_CMD", engine);
    command.stdin(Stdio::null()).current_dir(folder.path());
    command
}

/// What was said on both ways.
fn carried_out(command: &mut Command) -> String {
    let done = command.output().expect("bash starts");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&done.stderr),
        String::from_utf8_lossy(&done.stdout)
    );
    assert!(done.status.success(), "{said}");
    said
}

/// An engine of the test's own, with the image in it, and a mesh outside.
struct Outside {
    folder: Folder,
    engine: PathBuf,
    broker: Mosquitto,
    tools: Tools,
    shelf: PathBuf,
    _daemons: Daemons,
}

const HOUSE: &str =
    "[provider.house]\ndialect = \"openai\"\nbase = \"https://models.example/api\"\n";
const TAG: &str = "localhost/airlock-worker:test";

impl Outside {
    fn with(kind: Kind) -> Outside {
        let folder = Folder::new();
        let daemons = Daemons::start(&[kind]);
        daemons.import(kind, &base(), BASE, &[]);
        let host = daemons.host(kind);
        let lines = match kind {
            // The newer way to build needs a plugin and a newer engine.
            Kind::Docker => format!("DOCKER_BUILDKIT=0 exec docker --host {host} \"$@\""),
            Kind::Podman | Kind::Rootless => format!("exec podman --remote --url {host} \"$@\""),
        };
        let engine = engine(&folder, kind.backend(), &lines);
        let mut build = script("build.sh", &folder, &engine);
        build
            .arg(TAG)
            .env("BASE", BASE)
            .env("AIRLOCK_BINARY", program(&folder));
        // The base has everything: nothing is fetched.
        carried_out(build.env("CONTAINER_BUILD_OPTIONS", "--network=none"));
        let (broker, tools) = (Mosquitto::start(&folder), Tools::usual(&folder));
        let shelf = folder.at("shelf");
        fs::create_dir(&shelf).expect("a folder");
        fs::set_permissions(&shelf, fs::Permissions::from_mode(0o777))
            .expect("the worker's user may write there");
        Outside {
            folder,
            engine,
            broker,
            tools,
            shelf,
            _daemons: daemons,
        }
    }

    /// Serves by `run.sh`, is asked, and ends by `container_stop`.
    fn serves(&self, name: &str, root: bool) {
        let agent = Agent::join(&Way::mqtt5(self.broker.port), name);
        let port = free_port();
        let mut start = script("run.sh", &self.folder, &self.engine);
        start
            .arg(TAG)
            .env("DETACH", "1")
            .env("CONTAINER_NETWORK", "host")
            .env("CONTAINER_NAME", name);
        start
            .env("TOOLS_MOUNT", self.tools.path())
            .env("ARTIFACT_MOUNT", &self.shelf);
        // A file that is named must be there: where it is not, the worker does not start.
        fs::write(self.folder.at("house.toml"), HOUSE).expect("a file");
        start
            .env("AIRLOCK_CONFIG", "house.toml")
            .env("SAM_LLM_PROVIDER", "house")
            .env("SAM_LLM_MODEL", "small");
        // More than this no request may wish.
        start.env("SANDBOX_DEFAULT_PROFILE", "permissive");
        start
            .env("SAM_NAMESPACE", NAMESPACE)
            .env("SAM_TRANSPORT", self.broker.url());
        start
            .env("HEALTH_PORT", port.to_string())
            .env("CONTAINER_ROOT", if root { "1" } else { "" });
        let said = carried_out(&mut start);
        assert!(
            !said.contains("--privileged") && said.contains("--cap-drop ALL"),
            "{said}"
        );
        assert_eq!(said.contains("--cap-add"), root, "{said}");
        agent.wait("init", "echo");
        let profiles = ["restrictive", "standard", "permissive"];
        for profile in profiles {
            let echoed = agent.call(&Ask::new("echo", json!({"text": profile})).profile(profile));
            assert_eq!(echoed.tool_result()["text"], profile);
        }
        let who = agent.call(&Ask::new("who", json!({})));
        assert_eq!(who.tool_result()["capabilities"], "0000000000000000");
        let file = format!("{name}.txt");
        let made = agent.call(&Ask::new("writes", json!({"files": {&file: "one"}})));
        assert_eq!(made.created()[0].0, file);
        assert!(
            self.shelf
                .join("test/ana/web-77")
                .join(&file)
                .join("0")
                .exists()
        );
        let told = healthy(port);
        assert!(
            told.contains(" 200 OK\r\n") && told.contains("\"connected\""),
            "{told}"
        );
        carried_out(sourced(&self.folder, &self.engine).args(["container_stop", name]));
        let state = Command::new(&self.engine)
            .args([
                "inspect",
                "--format",
                "{{.State.Status}} {{.State.ExitCode}}",
                name,
            ])
            .output()
            .expect("the engine answers");
        assert_eq!(String::from_utf8_lossy(&state.stdout).trim(), "exited 0");
    }
}

fn healthy(port: u16) -> String {
    let mut stream = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).expect("it listens");
    stream
        .write_all(b"GET /healthz HTTP/1.0\r\n\r\n")
        .expect("it takes a question");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn the_image_serves_in_docker_as_a_user_and_as_root() {
    let outside = Outside::with(Kind::Docker);
    outside.serves("docker-user", false);
    outside.serves("docker-root", true);
}

#[test]
fn the_image_serves_in_podman_as_a_user_and_as_root() {
    let outside = Outside::with(Kind::Podman);
    outside.serves("podman-user", false);
    outside.serves("podman-root", true);
}

/// Tells what it is asked for, each argument on a line of its own.
const TELLS: &str =
    r#"[ "$1" = --version ] && echo docker && exit; printf '%s\n' "$@"; env | sed 's/^/env /'"#;

/// What `run.sh` asks of an engine with these variables.
fn asked(folder: &Folder, variables: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let engine = engine(folder, "tells", TELLS);
    let done = script("run.sh", folder, &engine)
        .envs(variables.iter().copied())
        .output()
        .expect("bash starts");
    let (told, said) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    match done.status.success() {
        true => Ok(told
            .lines()
            .chain(said.lines())
            .map(str::to_owned)
            .collect()),
        false => Err(said.into_owned()),
    }
}

#[test]
fn run_takes_what_the_worker_takes_and_says_what_it_does_with_it() {
    let folder = Folder::new();
    fs::create_dir(folder.at("certificates")).expect("a folder");
    fs::write(folder.at("certificates/ca.pem"), "").expect("a file");
    let whole = folder.at("certificates/ca.pem");
    let whole = whole.to_str().expect("plain");
    let has = |variables: &[(&str, &str)], line: &str| {
        let told = asked(&folder, variables).expect("it starts");
        assert!(
            told.iter().any(|told| told.contains(line)),
            "{variables:?} lacks {line}: {told:#?}"
        );
    };
    has(&[], "127.0.0.1:8081:8081");
    has(&[("HEALTH_PORT", "abc")], "127.0.0.1:8081:8081");
    has(
        &[("HEALTH_PORT", "abc")],
        "run.sh: HEALTH_PORT is no port: 8081 is used",
    );
    has(&[("HEALTH_PORT", "70000")], "env HEALTH_PORT=8081");
    has(&[("HEALTH_PORT", "09000")], "127.0.0.1:9000:9000");
    has(
        &[("CONTAINER_NETWORK", "host")],
        "anybody who reaches this machine may ask port 8081",
    );
    for variable in ["SANDBOX_WORK_DIR", "STR_WORK_BASE_DIR"] {
        has(
            &[(variable, "/elsewhere")],
            &format!("env {variable}=/elsewhere"),
        );
    }
    for variable in [
        "SOLACE_TRUST_STORE_PATH",
        "SAM_SITE_PACKAGES",
        "AIRLOCK_CONFIG",
    ] {
        has(
            &[(variable, "certificates/ca.pem")],
            &format!("{whole}:{whole}:ro"),
        );
        has(
            &[(variable, "certificates/../certificates/ca.pem")],
            &format!("env {variable}={whole}"),
        );
    }
    has(&[("AIRLOCK_CONFIG", whole)], "AIRLOCK_CONFIG");
    has(
        &[("SAM_LLM_PROVIDER", "house")],
        "SAM_LLM_PROVIDER without AIRLOCK_CONFIG",
    );
    has(
        &[
            ("TOOL_SYNC_ENABLED", "true"),
            ("SAM_TOOLS_DIR", "/kit"),
            ("CONTAINER_ROOT", "1"),
        ],
        "/kit",
    );
    let fetched = [
        ("TOOL_SYNC_ENABLED", "true"),
        ("TOOLS_MOUNT", "certificates"),
        ("SAM_TOOLS_DIR", "/kit"),
    ];
    has(&fetched, "certificates:/kit:rw");
    has(
        &[("CONTAINER_OPTIONS", "--memory 1g --env certific*")],
        "certific*",
    );
    let refused = |variables: &[(&str, &str)], words: &str| {
        let said = asked(&folder, variables).expect_err("it does not start");
        assert!(said.contains(words), "{variables:?}: {said}");
    };
    refused(
        &fetched[..1]
            .iter()
            .chain(&fetched[2..])
            .copied()
            .collect::<Vec<_>>(),
        "TOOLS_MOUNT",
    );
    // Not the folder of that name at the root.
    refused(
        &[("SOLACE_TRUST_STORE_PATH", "absent/tmp")],
        "there is no `absent/tmp`",
    );
    refused(
        &[("TOOLS_MOUNT", "certificates"), ("SAM_TOOLS_DIR", "kit")],
        "from the root on",
    );
    refused(
        &[
            ("ARTIFACT_MOUNT", "certificates"),
            ("ARTIFACT_BASE_PATH", "/a:/etc"),
        ],
        "colon",
    );
}

#[test]
fn stop_waits_longer_than_the_worker_and_carries_nothing_out() {
    let folder = Folder::new();
    let engine = engine(&folder, "tells", TELLS);
    let stopped = |words: &[&str], drain: &str| {
        let mut stop = sourced(&folder, &engine);
        let done = stop
            .arg("container_stop")
            .args(words)
            .env("SAM_DRAIN_SECONDS", drain)
            .output();
        let done = done.expect("bash starts");
        let told = String::from_utf8_lossy(&done.stdout)
            .lines()
            .take(4)
            .collect::<Vec<_>>()
            .join(" ");
        (done.status.success(), told)
    };
    assert_eq!(stopped(&["one"], ""), (true, "stop -t 35 one".to_owned()));
    assert_eq!(
        stopped(&["one"], "090"),
        (true, "stop -t 100 one".to_owned())
    );
    assert_eq!(
        stopped(&["one", "3"], ""),
        (true, "stop -t 3 one".to_owned())
    );
    for hostile in ["a[$(touch made)]", "-1", "1+1", "x"] {
        assert_eq!(
            stopped(&["one"], hostile),
            (true, "stop -t 35 one".to_owned()),
            "{hostile}"
        );
        assert!(!stopped(&["one", hostile], "").0);
    }
    assert!(!folder.at("made").exists());
}
