//! What a node says that it can do, held against what can be seen of this machine.

use gateway_tests::serve;
use node_tests::{Folder, Server, key_of};
use serde_json::{Value, json};
use std::{fs, net::TcpListener, process::Command};

fn report(server: &Server) -> Value {
    let answer = server.get("/v1/worker/capability");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

#[test]
fn the_report_has_what_this_machine_has() {
    let server = Server::with("[node]\nslug = \"node-7\"\n[serve]\nruns = 9\n", &[]);
    let report = report(&server);
    assert_eq!(
        (&report["version"], &report["node"]["node_slug"]),
        (&json!(1), &json!("node-7"))
    );
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux");
    assert_eq!(report["platform"]["kernel_version"], kernel.trim());
    let memory = fs::read_to_string("/proc/meminfo").expect("Linux");
    let kib: u64 = memory
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .expect("MemTotal");
    assert_eq!(report["compute"]["ram_mb"], kib >> 10);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    assert_eq!(report["compute"]["cpu_cores"], cores);
    assert!(
        report["compute"]["storage_free_mb"]
            .as_u64()
            .is_some_and(|mb| mb > 0)
    );
    assert_eq!(
        (
            &report["sandbox"]["supported"],
            &report["sandbox"]["max_concurrency"]
        ),
        (&json!(true), &json!(9))
    );
    assert_eq!(report["network"]["outbound_policy"], "none");
    assert_eq!(report["inference"]["supported"], false);
    let address = format!("http://{}", server.client.host());
    assert_eq!(report["worker_api"]["base_url"], address);
    assert!(
        report["gpu"]["present"].is_boolean() && report["container_runtime"]["runtime"] == "native"
    );
    assert!(report["tls"].is_null());
}

/// The features are those that a run has, not those that a list has.
#[test]
fn features_are_the_barriers_of_a_real_run() {
    let server = Server::new();
    let ran = server
        .post("/v1/runs", &json!({ "command": ["true"] }))
        .json();
    let stands = |barrier: &str| {
        ran["barriers"]
            .as_array()
            .expect("a list")
            .contains(&json!(barrier))
    };
    let features = report(&server)["sandbox"]["features"].clone();
    let has = |feature: &str| {
        features
            .as_array()
            .expect("a list")
            .contains(&json!(feature))
    };
    for (feature, barrier) in [
        ("netns", "own_net"),
        ("userns", "own_user"),
        ("seccomp", "syscall_filter"),
        ("landlock", "path_rules"),
    ] {
        assert_eq!(has(feature), stands(barrier), "{feature}: {features}");
    }
    let by = |version: &str| {
        ran["enforced_by"]
            .as_object()
            .is_some_and(|all| all.values().any(|by| by == version))
    };
    assert_eq!(
        (has("cgroups_v2"), has("cgroups_v1")),
        (by("cgroup_v2"), by("cgroup_v1"))
    );
}

#[test]
fn a_model_server_counts_once_it_can_be_reached() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let settings = format!("[inference]\nbase = \"http://127.0.0.1:{port}\"\n");
    let server = Server::with(&settings, &[]);
    assert_eq!(report(&server)["inference"]["supported"], true);
    drop(listener);
    assert_eq!(report(&server)["inference"]["supported"], false);
}

#[test]
fn only_an_admin_is_told() {
    let server = Server::new();
    let key = key_of(&server, "acme", &["runs"]);
    let refused = server.ask(&key, "GET", "/v1/worker/capability", &[], &Value::Null);
    assert_eq!(
        (refused.status, &refused.json()["type"]),
        (403, &json!("urn:cynodeai:error:authorization"))
    );
}

#[test]
fn the_command_says_the_same_without_a_server() {
    let server = Server::new();
    let told = Command::new(cli::airlock())
        .args(["doctor", "--capability-report", "--state"])
        .arg(server.folder.at("other"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .expect("it starts");
    assert!(
        told.status.success(),
        "{}",
        String::from_utf8_lossy(&told.stderr)
    );
    let (told, report): (Value, _) = (
        serde_json::from_slice(&told.stdout).expect("JSON"),
        report(&server),
    );
    for part in ["platform", "gpu"] {
        assert_eq!(told[part], report[part], "{part}");
    }
    assert_eq!(told["sandbox"]["features"], report["sandbox"]["features"]);
}

/// With a node file, and nothing where a container engine would be.
fn node(yaml: &str, configuration: &str) -> Server {
    let folder = Folder::new();
    let file = folder.at("node.yaml");
    fs::write(&file, yaml).expect("a node file");
    let options = ["--node", &file.to_string_lossy()];
    let mut command = serve(&folder, configuration, &options);
    command.env(
        "CONTAINER_HOST",
        format!("unix://{}", folder.at("nobody.sock").display()),
    );
    Server::started(command, folder, None)
}

#[test]
fn the_report_has_what_the_node_file_says() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let settings = format!("[inference]\nbase = \"http://127.0.0.1:{port}\"\n");
    let named = "node: {id: n1, name: Nice Name, labels: [gpu, fast], metadata: {owner: ops}}\n\
                 worker_api: {public_base_url: 'https://node.example:9443/'}\n";
    let told = report(&node(named, &settings));
    let wanted = json!({
        "node_slug": "n1", "name": "Nice Name", "labels": ["gpu", "fast"], "metadata": { "owner": "ops" },
    });
    assert_eq!(told["node"], wanted);
    assert_eq!(told["worker_api"]["base_url"], "https://node.example:9443");
    assert_eq!(
        (&told["sandbox"]["supported"], &told["inference"]["mode"]),
        (&json!(true), &json!("allow"))
    );
    let closed = node(
        "sandbox: {mode: disabled}\ninference: {mode: disabled}\n",
        &settings,
    );
    let told = report(&closed);
    assert_eq!(
        (&told["sandbox"]["supported"], &told["sandbox"]["features"]),
        (&json!(false), &json!([]))
    );
    let disabled = json!({ "supported": false, "mode": "disabled" });
    assert_eq!(
        told["inference"], disabled,
        "the server is there, and nobody gets to it"
    );
}

#[test]
fn a_node_whose_container_engine_is_not_there_says_so() {
    let server = node(
        "sandbox: {runtime: podman, default_image: 'alpine:3'}\n",
        "",
    );
    let told = report(&server);
    assert_eq!(told["container_runtime"], json!({ "runtime": "podman" }));
    assert_eq!(
        (&told["sandbox"]["supported"], &told["sandbox"]["features"]),
        (&json!(false), &json!([]))
    );
    let stats = server.get("/v1/worker/telemetry/node:stats").json();
    assert_eq!(stats["container_runtime"]["runtime"], "podman");
}
