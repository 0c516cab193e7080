//! Claims about the node file: every key is honoured or refused, and no text does more than that.

use super::*;

fn parse(text: &str) -> Result<NodeFile, ConfigError> {
    super::parse(text, Path::new("/n.yaml"))
}

#[test]
fn every_key_that_is_honoured_reaches_its_field() {
    let node = parse(
        "version: 1\n\
         node: {id: n1, name: Node one, labels: {zone: a}, metadata: {rack: '7'}}\n\
         worker_api: {listen_host: 0.0.0.0, listen_port: 9, public_base_url: 'https://w.example:8443/', max_request_bytes: 1000}\n\
         sandbox:\n  mode: sandbox_only\n  runtime: podman\n  rootless: false\n  max_concurrency: 4\n  default_image: alpine:3\n  \
         allowed_images: [alpine]\n  default_network_policy: none\n  allowed_egress_domains: []\n  \
         resources: {max_cpu_cores: 1.5, max_memory_mb: 256, max_pids: 64}\n  \
         timeouts: {default_seconds: 10, max_seconds: 20}\n  \
         mounts: {allowed_host_paths: [/srv], read_only_by_default: true}\n  \
         security: {allow_privileged: false, allow_host_network: false, allow_device_mounts: false}\n\
         inference: {mode: disabled, allow_gpu: false}\n\
         storage: {state_dir: /var/lib/n}\n\
         logging: {level: info, format: json, file_path: /var/log/n}\n\
         updates: {enable_dynamic_config: false, allow_service_restart: false}\n",
    )
    .unwrap();
    let word = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let wanted = NodeFile {
        id: Some("n1".into()),
        name: Some("Node one".into()),
        labels: vec!["zone=a".into()],
        metadata: word("rack", "7"),
        listen_host: "0.0.0.0".parse().ok(),
        listen_port: Some(9),
        public_url: Some("https://w.example:8443".into()),
        max_request_bytes: Some(1000),
        mode: NodeMode::SandboxOnly,
        runtime: Some("podman".into()),
        rootless: Some(false),
        max_concurrency: Some(4),
        default_image: Some("alpine:3".into()),
        allowed_images: Some(vec!["alpine".parse().unwrap()]),
        memory: Some(Size(256 << 20)),
        cpus: Some(Cpus(1500)),
        pids: Some(64),
        default_timeout: Some(Duration::from_secs(10)),
        max_timeout: Some(Duration::from_secs(20)),
        folders: vec!["/srv".into()],
        without_inference: true,
        state: Some("/var/lib/n".into()),
        logging: NodeLogging {
            level: Some("info".into()),
            format: Some("json".into()),
            file: Some("/var/log/n".into()),
        },
    };
    assert_eq!(node, wanted);
    assert_eq!(node.listen().to_string(), "0.0.0.0:9");
    assert_eq!(node.public_name().as_deref(), Some("w.example:8443"));
    assert_eq!(
        parse("node: {labels: [gpu, fast]}").unwrap().labels,
        ["gpu", "fast"]
    );
    assert_eq!(parse("").unwrap(), NodeFile::default());
    assert_eq!(NodeFile::default().listen().to_string(), "127.0.0.1:12090");
}

#[test]
fn what_is_not_honoured_is_refused_with_its_reason() {
    for (text, key, why) in [
        ("version: 2", "version", "only 1 is known"),
        (
            "orchestrator: {url: 'http://o'}",
            "orchestrator.url",
            "does not register itself",
        ),
        (
            "orchestrator: {registration_psk_env: X}",
            "orchestrator.registration_psk_env",
            "does not register itself",
        ),
        (
            "sandbox: {default_network_policy: allowlist}",
            "sandbox.default_network_policy",
            "reach nothing",
        ),
        (
            "sandbox: {allowed_egress_domains: [a.example]}",
            "sandbox.allowed_egress_domains",
            "reach nothing",
        ),
        (
            "sandbox: {mount_root: /srv}",
            "sandbox.mount_root",
            "memory of its own sandbox",
        ),
        (
            "sandbox: {mounts: {read_only_by_default: false}}",
            "sandbox.mounts.read_only_by_default",
            "read-only",
        ),
        (
            "sandbox: {security: {allow_privileged: true}}",
            "sandbox.security.allow_privileged",
            "ever gets that",
        ),
        (
            "sandbox: {security: {allow_host_network: true}}",
            "sandbox.security.allow_host_network",
            "ever gets",
        ),
        (
            "sandbox: {security: {allow_device_mounts: true}}",
            "sandbox.security.allow_device_mounts",
            "ever gets",
        ),
        (
            "sandbox: {runtime: podman}",
            "sandbox.runtime",
            "default_image",
        ),
        (
            "sandbox: {runtime: direct}",
            "sandbox.runtime",
            "cannot be `direct`",
        ),
        (
            "sandbox: {default_image: a, allowed_images: [b]}",
            "sandbox.default_image",
            "not in",
        ),
        (
            "sandbox: {timeouts: {default_seconds: 9, max_seconds: 8}}",
            "timeouts.default_seconds",
            "more than",
        ),
        (
            "inference: {mode: require}",
            "inference.mode",
            "cannot be `require`",
        ),
        (
            "inference: {max_concurrency: 1}",
            "inference.max_concurrency",
            "runs no models",
        ),
        (
            "inference: {allow_gpu: true}",
            "inference.allow_gpu",
            "no device",
        ),
        (
            "storage: {cache_dir: /x}",
            "storage.cache_dir",
            "cannot be honoured",
        ),
        (
            "storage: {artifacts_dir: /x}",
            "storage.artifacts_dir",
            "cannot be honoured",
        ),
        ("storage: {state_dir: x}", "storage.state_dir", "absolute"),
        (
            "updates: {enable_dynamic_config: true}",
            "updates.enable_dynamic_config",
            "read once",
        ),
        (
            "updates: {poll_interval_seconds: 60}",
            "updates.poll_interval_seconds",
            "read once",
        ),
        (
            "updates: {allow_service_restart: true}",
            "updates.allow_service_restart",
            "read once",
        ),
        (
            "worker_api: {listen_port: 65536}",
            "worker_api.listen_port",
            "not a port",
        ),
        (
            "worker_api: {listen_host: here}",
            "worker_api.listen_host",
            "not an address",
        ),
        (
            "worker_api: {max_request_bytes: -1}",
            "worker_api.max_request_bytes",
            "whole number",
        ),
        (
            "worker_api: {public_base_url: 'w.example'}",
            "worker_api.public_base_url",
            "not the URL",
        ),
        (
            "logging: {level: loud}",
            "logging.level",
            "cannot be `loud`",
        ),
        (
            "sandbox: {rootless: 'yes'}",
            "sandbox.rootless",
            "`true` or `false`",
        ),
        ("sandbox: []", "sandbox", "must be a table"),
    ] {
        let refused = parse(text).expect_err(text);
        assert!(
            refused.message.contains(key) && refused.message.contains(why),
            "{text}: {}",
            refused.message
        );
        assert!(!refused.hint.is_empty());
    }
}

#[test]
fn a_key_that_is_not_known_is_named_with_the_nearest() {
    for (text, key, near) in [
        ("sandboxes: {}", "`sandboxes`", "`sandbox`"),
        (
            "sandbox: {max_concurency: 1}",
            "`sandbox.max_concurency`",
            "`max_concurrency`",
        ),
        (
            "sandbox: {resources: {max_pid: 1}}",
            "`sandbox.resources.max_pid`",
            "`max_pids`",
        ),
        ("logging: {levels: info}", "`logging.levels`", "`level`"),
        ("orchestrator: {ur: x}", "`orchestrator.ur`", "`url`"),
    ] {
        let refused = parse(text).expect_err(text);
        assert!(refused.message.contains(key), "{}", refused.message);
        assert!(refused.hint.contains(near), "{}", refused.hint);
    }
}

#[test]
fn bombs_and_tricks_of_yaml_are_not_read() {
    let deep = format!("node: {}1{}", "[".repeat(100), "]".repeat(100));
    let wide = format!("node: [{}]", "1,".repeat(10_000));
    for text in [
        "node: &a {id: x}\nsandbox: *a",
        "a: &a [1]\nb: &b [*a,*a]\nc: [*b,*b]",
        "node: {<<: {id: x}}",
        "node: {id: a, id: b}",
        "node: {id: a}\n---\nnode: {id: b}",
        "node: !!python/object:os.system x",
        "- a",
        "just words",
        "node: {id: \"\\x00\"}",
        &deep,
        &wide,
    ] {
        assert!(parse(text).is_err(), "{}", &text[..text.len().min(60)]);
    }
}
