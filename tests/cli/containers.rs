//! Containers as a user meets them: what is refused, in which words, and that the same command works when nothing is
//! wrong with it. With a Docker of the tests' own.

use airlock_cli_tests::{Answer, World};
use daemons::{Daemons, IMAGE, Kind};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt, process::Output, sync::OnceLock};

/// One for all tests here; it ends with this process.
fn docker() -> &'static Daemons {
    static DOCKER: OnceLock<Daemons> = OnceLock::new();
    DOCKER.get_or_init(|| Daemons::start(&[Kind::Docker]))
}

fn run_at(host: &str, options: &[&str]) -> Output {
    let world = World::new();
    let arguments = [&["run", "--json"], options, &["--", "id", "-u"]].concat();
    let mut command = world.command(&arguments);
    command
        .env("DOCKER_HOST", host)
        .env("CONTAINER_HOST", "unix:///nonexistent/socket");
    command.output().expect("airlock starts")
}

/// Code and message of a refusal.
#[track_caller]
fn refusal(output: &Output) -> (String, String) {
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert_eq!(
        output.status.code(),
        Some(125),
        "{told} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = |name: &str| told["error"][name].as_str().unwrap_or_default().to_owned();
    assert!(!text("hint").is_empty(), "{told}");
    (text("code"), text("message"))
}

/// Refused by a Docker that answers.
#[track_caller]
fn refused(options: &[&str], code: &str, message: &str) {
    let all = [&["--backend", "docker", "--image", IMAGE], options].concat();
    assert_eq!(
        refusal(&run_at(&docker().host(Kind::Docker), &all)),
        (code.to_owned(), message.to_owned())
    );
}

#[track_caller]
fn works(options: &[&str], said: &str) {
    let all = [&["--backend", "docker"], options].concat();
    let output = run_at(&docker().host(Kind::Docker), &all);
    let told: Value = serde_json::from_slice(&output.stdout).expect("a result");
    assert_eq!(
        (&told["status"], &told["stdout"]),
        (&json!("succeeded"), &json!(said)),
        "{told}"
    );
}

#[test]
fn the_same_command_works_when_nothing_is_wrong_with_it() {
    works(&["--image", IMAGE], "1000\n");
    works(&["--image", IMAGE, "--user", "7:8"], "7\n");
}

#[test]
fn a_remote_engine_is_refused() {
    for host in [
        "tcp://192.0.2.1:2375",
        "ssh://user@host",
        "http://localhost:2375",
    ] {
        let output = run_at(host, &["--backend", "docker", "--image", "x"]);
        let message = format!("`{host}` is not a socket of this machine");
        assert_eq!(
            refusal(&output),
            ("backend_unavailable".to_owned(), message)
        );
    }
}

#[test]
fn an_engine_that_does_not_answer_is_said_to_be_missing() {
    let output = run_at(
        "unix:///nonexistent/socket",
        &["--backend", "docker", "--image", "x"],
    );
    let (code, message) = refusal(&output);
    assert_eq!(code, "backend_unavailable");
    assert!(
        message.ends_with("`/nonexistent/socket` is not there"),
        "{message}"
    );
}

#[test]
fn what_only_one_kind_of_box_has_is_refused_for_the_other() {
    let nowhere = "unix:///nonexistent/socket";
    let rows: [(&[&str], &str); 3] = [
        (
            &["--backend", "docker", "--image", "./root"],
            "a folder is not an image of a container engine",
        ),
        (
            &["--volume", "cache:/cache"],
            "--volume needs a container engine",
        ),
        (
            &["--internal-network", "inner"],
            "--internal-network needs a container engine",
        ),
    ];
    for (options, message) in rows {
        assert_eq!(
            refusal(&run_at(nowhere, options)),
            ("invalid_spec".to_owned(), message.to_owned())
        );
    }
}

#[test]
fn an_image_that_the_engine_does_not_have_is_never_fetched() {
    let output = run_at(
        &docker().host(Kind::Docker),
        &["--backend", "docker", "--image", "nobody/has:this"],
    );
    assert_eq!(
        refusal(&output),
        (
            "image_missing".to_owned(),
            "docker has no image `nobody/has:this`".to_owned()
        )
    );
}

#[test]
fn what_a_container_cannot_hold_is_refused() {
    let root = "a container's root would be the host's (`not_host_root`)";
    refused(&["--user", "0:0"], "barrier_missing", root);
    refused(
        &["--network", "host"],
        "barrier_missing",
        "a container on the host's network is not made",
    );
    let writable = "nothing would limit what a container writes to its root (`disk_limit`)";
    refused(&["--writable-root"], "barrier_missing", writable);
}

#[test]
fn an_image_that_wants_storage_of_its_own_is_refused_until_it_gets_some() {
    let name = "localhost/airlock-volume:latest";
    docker().import(Kind::Docker, &Daemons::archive(), name, &["VOLUME /data"]);
    let options = ["--backend", "docker", "--image", name];
    let output = run_at(&docker().host(Kind::Docker), &options);
    let message = "the image wants storage at `/data` that nothing would limit";
    assert_eq!(
        refusal(&output),
        ("image_refused".to_owned(), message.to_owned())
    );
    works(&["--image", name, "--volume", "data:/data"], "1000\n");
}

#[test]
fn an_image_may_name_its_user_and_its_root_is_nobodys() {
    let import = |tag: &str, user: &str| {
        let name = format!("localhost/airlock-user:{tag}");
        docker().import(
            Kind::Docker,
            &Daemons::archive(),
            &name,
            &[&format!("USER {user}")],
        );
        name
    };
    works(&["--image", &import("name", "nobody")], "65534\n");
    works(&["--image", &import("number", "12:34")], "12\n");
    works(&["--image", &import("root", "0")], "1000\n");
}

/// A network of the Docker's, removed with this.
struct Network(&'static str);

impl Network {
    fn make(name: &'static str, internal: bool) -> Network {
        let body = json!({ "Name": name, "Driver": "bridge", "Internal": internal });
        let (status, told) = docker().call(Kind::Docker, "POST", "/networks/create", &body);
        assert_eq!(status, 201, "prerequisite: bridges can be made: {told}");
        Network(name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        docker().call(
            Kind::Docker,
            "DELETE",
            &format!("/networks/{}", self.0),
            &Value::Null,
        );
    }
}

#[test]
fn only_a_network_that_leads_nowhere_can_be_joined() {
    let (_inner, _outer) = (
        Network::make("airlock-inner", true),
        Network::make("airlock-outer", false),
    );
    let leads_out = |name: &str| format!("the network `{name}` is not internal: it leads out");
    refused(
        &["--internal-network", "airlock-outer"],
        "barrier_missing",
        &leads_out("airlock-outer"),
    );
    refused(
        &["--internal-network", "host"],
        "barrier_missing",
        &leads_out("host"),
    );
    works(
        &["--image", IMAGE, "--internal-network", "airlock-inner"],
        "1000\n",
    );
}

/// Files in and out, a volume that lasts, and labels for whoever looks.
#[test]
fn files_volumes_and_labels() {
    let world = World::new();
    fs::create_dir(world.here("w")).expect("a folder");
    std::os::unix::fs::chown(world.here("w"), Some(12345), Some(12345)).expect("an owner");
    fs::set_permissions(world.here("w"), fs::Permissions::from_mode(0o755)).expect("a mode");
    let run = |options: &[&str], script: &str| -> Answer {
        let base = ["run", "--backend", "docker", "--image", IMAGE];
        let mut command = world.command(&[&base, options, &["--", "sh", "-c", script]].concat());
        let output = command
            .env("DOCKER_HOST", docker().host(Kind::Docker))
            .output()
            .expect("airlock starts");
        world.answer(&output)
    };
    let written = run(&["--workspace", "w"], "id -u; echo made > made");
    assert_eq!(
        (written.status, written.stdout.as_str()),
        (Some(0), "12345\n"),
        "{}",
        written.stderr
    );
    assert_eq!(
        fs::read_to_string(world.here("w/made")).expect("a file"),
        "made\n"
    );
    let label = "io.airlock.task=task-7";
    let mut held = world.command(&["run", "--backend", "docker", "--image", IMAGE, "--stdin"]);
    held.args(["--task-id", "task-7", "--", "sh", "-c", "echo ready; cat"]);
    held.env("DOCKER_HOST", docker().host(Kind::Docker));
    let piped = std::process::Stdio::piped;
    let mut held = held
        .stdin(piped())
        .stdout(piped())
        .spawn()
        .expect("airlock starts");
    let mut word = [0; 6];
    std::io::Read::read_exact(held.stdout.as_mut().expect("piped"), &mut word).expect("a word");
    assert_eq!(docker().labelled(Kind::Docker, label).len(), 1);
    drop(held.stdin.take());
    assert!(held.wait().expect("airlock ends").success());
    assert_eq!(docker().labelled(Kind::Docker, label), Vec::<String>::new());
}
