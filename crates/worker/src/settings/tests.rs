use super::*;
use crate::transport::{
    self, BrokerTls, ClientCertificate, ReconnectPolicy, Trust, mqtt::MqttVersions,
};
use std::{cell::RefCell, collections::BTreeSet};

type Environment<'a> = &'a [(&'a str, &'a str)];

fn tried(
    environment: Environment<'_>,
) -> Result<(WorkerSettings, Vec<SettingNotice>), SettingError> {
    read(|name| {
        environment
            .iter()
            .rev()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value.into())
    })
}

/// With a broker, which everything needs.
fn given(environment: Environment<'_>) -> (WorkerSettings, Vec<SettingNotice>) {
    let mut whole = vec![
        ("SAM_TRANSPORT", "mqtt://broker"),
        ("SAM_NAMESPACE", "acme/dev"),
        (MEMORY, "filesystem"),
    ];
    whole.extend_from_slice(environment);
    tried(&whole).unwrap()
}

const MEMORY: &str = "ARTIFACT_SERVICE_TYPE";

fn refused(environment: Environment<'_>) -> SettingError {
    let mut whole = vec![
        ("SAM_TRANSPORT", "mqtt://broker"),
        ("SAM_NAMESPACE", "acme/dev"),
    ];
    whole.extend_from_slice(environment);
    tried(&whole).unwrap_err()
}

/// What a variable does when it has this value, as seen in the settings.
enum Does {
    /// They show it.
    Shows(&'static str),
    /// They are as they were, and one notice names it.
    SettingNotice,
    /// There are none.
    Refuses,
}
use Does::{Refuses, SettingNotice as Tells, Shows};

/// Every variable of the specification, in its order: name, value, what else must be set, what it does.
const SPECIFIED: &[(&str, &str, Environment<'static>, Does)] = &[
    (
        "SAM_NAMESPACE",
        "other/mesh",
        &[],
        Shows("base: other/mesh/a2a/v1"),
    ),
    (
        "SAM_WORKER_ID",
        "pool-7",
        &[],
        Shows("worker_id: \"pool-7\""),
    ),
    (
        "SOLACE_HOST",
        "h.example:1883",
        MESH,
        Shows("host: \"h.example\""),
    ),
    (
        "SOLACE_VPN",
        "blue",
        USER,
        Shows("Credentials(ana@blue, ..)"),
    ),
    ("SOLACE_USERNAME", "bob", &[], Shows("Credentials(bob, ..)")),
    (
        "SOLACE_PASSWORD",
        "canary",
        USER,
        Shows("Credentials(ana, ..)"),
    ),
    (
        "SOLACE_BROKER_URL",
        "tcps://h.example:8883",
        MESH,
        Shows("host: \"h.example\""),
    ),
    (
        "SOLACE_BROKER_VPN",
        "blue",
        USER,
        Shows("Credentials(ana@blue, ..)"),
    ),
    (
        "SOLACE_BROKER_USERNAME",
        "bob",
        &[],
        Shows("Credentials(bob, ..)"),
    ),
    (
        "SOLACE_BROKER_PASSWORD",
        "canary",
        USER,
        Shows("Credentials(ana, ..)"),
    ),
    (
        "SOLACE_TRUST_STORE_PATH",
        "/ca.pem",
        TLS,
        Shows("Store(\"/ca.pem\")"),
    ),
    (
        "SOLACE_CLIENT_CERT_PATH",
        "/c.pem",
        &[
            ("SAM_TRANSPORT", "mqtts://b"),
            ("SOLACE_CLIENT_KEY_PATH", "/k.pem"),
        ],
        Shows("chain: \"/c.pem\""),
    ),
    (
        "SOLACE_CLIENT_KEY_PATH",
        "/k.pem",
        &[
            ("SAM_TRANSPORT", "mqtts://b"),
            ("SOLACE_CLIENT_CERT_PATH", "/c.pem"),
        ],
        Shows("key: \"/k.pem\""),
    ),
    ("SOLACE_RECONNECT_RETRIES", "77", &[], Shows("tries: 77")),
    (
        "SOLACE_RECONNECT_DELAY_MS",
        "1234",
        &[],
        Shows("pause: 1.234s"),
    ),
    (
        "DEV_BROKER_HOST",
        "dev.example",
        MESH,
        Shows("host: \"dev.example\""),
    ),
    (
        "DEV_BROKER_PORT",
        "4321",
        &[("SAM_TRANSPORT", ""), ("DEV_BROKER_HOST", "d")],
        Shows("port: 4321"),
    ),
    (
        "CONNECT_RETRIES",
        "88",
        &[("SAM_TRANSPORT", ""), ("DEV_BROKER_HOST", "d")],
        Shows("tries: 88"),
    ),
    (
        "CONNECT_RETRY_DELAY_MS",
        "4321",
        &[("SAM_TRANSPORT", ""), ("DEV_BROKER_HOST", "d")],
        Shows("pause: 4.321s"),
    ),
    (
        "MANIFEST_PATH",
        "/m.yaml",
        &[],
        Shows("manifest: \"/m.yaml\""),
    ),
    ("TOOLS_PYTHON_DIR", "/py", &[], Shows("python: \"/py\"")),
    (
        "DEFAULT_TIMEOUT_SECONDS",
        "45",
        &[],
        Shows("default_timeout: 45s"),
    ),
    ("SANDBOX_MODE", "direct", &[], Refuses),
    ("SANDBOX_BWRAP_BIN", "/usr/bin/bwrap", &[], Tells),
    (
        "SANDBOX_PYTHON_BIN",
        "/opt/python3",
        &[],
        Shows("python: Some(\"/opt/python3\")"),
    ),
    ("SANDBOX_WORK_DIR", "/work", &[], Tells),
    (
        "SANDBOX_DEFAULT_PROFILE",
        "restrictive",
        &[],
        Shows("default_profile: Restrictive"),
    ),
    ("SANDBOX_MAX_CONCURRENT", "9", &[], Shows("slots: 9")),
    (
        "ARTIFACT_SERVICE_TYPE",
        "memory",
        &[],
        Shows("store: Memory"),
    ),
    ("ARTIFACT_BASE_PATH", "/art", &[], Shows("Files(\"/art\")")),
    (
        "ARTIFACT_S3_BUCKET",
        "jar",
        &[(MEMORY, "s3")],
        Shows("bucket: \"jar\""),
    ),
    (
        "ARTIFACT_S3_REGION",
        "eu-west-9",
        S3_STORE,
        Shows("region: \"eu-west-9\""),
    ),
    (
        "ARTIFACT_GCS_BUCKET",
        "jar",
        &[(MEMORY, "gcs")],
        Shows("Gcs { bucket: \"jar\""),
    ),
    (
        "S3_ENDPOINT_URL",
        "http://minio:9000",
        S3_STORE,
        Shows("endpoint: Some(\"http://minio:9000\")"),
    ),
    ("ARTIFACT_SCOPE", "app", &[], Shows("scope: App")),
    (
        "ARTIFACT_SCOPE_VALUE",
        "ours",
        &[("ARTIFACT_SCOPE", "custom")],
        Shows("scope: Custom(\"ours\")"),
    ),
    (
        "TOOL_SYNC_ENABLED",
        "yes",
        &[("STR_S3_BUCKET_NAME", "t")],
        Shows("sync: Some("),
    ),
    ("TOOL_SYNC_INTERVAL", "99", SYNC, Shows("interval: 99s")),
    ("OBJECT_STORAGE_TYPE", "azure", SYNC, Refuses),
    (
        "STR_S3_BUCKET_NAME",
        "jar",
        &[("TOOL_SYNC_ENABLED", "1")],
        Shows("S3 { bucket: \"jar\""),
    ),
    (
        "STR_S3_BUCKET",
        "jar",
        &[("TOOL_SYNC_ENABLED", "1")],
        Shows("S3 { bucket: \"jar\""),
    ),
    (
        "OBJECT_STORAGE_BUCKET_NAME",
        "jar",
        &[("TOOL_SYNC_ENABLED", "1")],
        Shows("S3 { bucket: \"jar\""),
    ),
    (
        "S3_BUCKET_NAME",
        "jar",
        &[("TOOL_SYNC_ENABLED", "1")],
        Shows("S3 { bucket: \"jar\""),
    ),
    (
        "AWS_REGION",
        "eu-west-9",
        SYNC,
        Shows("region: \"eu-west-9\""),
    ),
    (
        "S3_REGION",
        "eu-west-9",
        SYNC,
        Shows("region: \"eu-west-9\""),
    ),
    (
        "AWS_ACCESS_KEY_ID",
        "AKIA",
        &[SYNC[0], SYNC[1], ("AWS_SECRET_ACCESS_KEY", "canary")],
        Shows("id: \"AKIA\""),
    ),
    (
        "AWS_SECRET_ACCESS_KEY",
        "canary",
        &[SYNC[0], SYNC[1], ("AWS_ACCESS_KEY_ID", "AKIA")],
        Shows("secret: Secret(..)"),
    ),
    (
        "AWS_SESSION_TOKEN",
        "canary",
        &[
            SYNC[0],
            SYNC[1],
            ("AWS_ACCESS_KEY_ID", "A"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
        ],
        Shows("token: Some(Secret(..))"),
    ),
    (
        "GCS_BUCKET_NAME",
        "jar",
        &[("TOOL_SYNC_ENABLED", "1"), ("OBJECT_STORAGE_TYPE", "gcs")],
        Shows("Gcs { bucket: \"jar\""),
    ),
    ("GCS_PROJECT", "p", &[], Tells),
    (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "/key.json",
        &[(MEMORY, "gcs"), ("ARTIFACT_GCS_BUCKET", "b")],
        Shows("credentials: Some(\"/key.json\")"),
    ),
    ("AZURE_CONTAINER_NAME", "c", &[], Tells),
    ("AZURE_STORAGE_CONNECTION_STRING", "canary", &[], Tells),
    ("AZURE_STORAGE_ACCOUNT_NAME", "a", &[], Tells),
    ("AZURE_STORAGE_ACCOUNT_KEY", "canary", &[], Tells),
    ("HEALTH_PORT", "9090", &[], Shows("health_port: Some(9090)")),
    ("_SAM_SANDBOX_LIGHT", "1", &[], Tells),
    (
        "NAMESPACE",
        "other/mesh",
        &[("SAM_NAMESPACE", "")],
        Shows("base: other/mesh/a2a/v1"),
    ),
    (
        "SOLACE_DEV_MODE",
        "true",
        MESH,
        Shows("transport: Dev, host: \"127.0.0.1\", port: 55554"),
    ),
    (
        "SAM_DEV_BROKER_HOST",
        "dev.example",
        MESH,
        Shows("host: \"dev.example\", port: 55554"),
    ),
    (
        "SAM_DEV_BROKER_PORT",
        "4321",
        &[("SAM_TRANSPORT", ""), ("SOLACE_DEV_MODE", "on")],
        Shows("port: 4321"),
    ),
    (
        "SOLACE_TLS_TRUST_STORE_DIR",
        "/cas",
        TLS,
        Shows("Store(\"/cas\")"),
    ),
    ("STR_SANDBOX_MODE", "direct", &[], Refuses),
    ("STR_WORK_BASE_DIR", "/work", &[], Tells),
    ("STR_RECONCILE_INTERVAL", "1h30m", &[], Tells),
    (
        "PIP_INDEX_URL",
        "https://index.example/simple",
        &[],
        Shows("index: Some(\"https://index.example/simple\")"),
    ),
    (
        "PIP_TRUSTED_HOST",
        "index.example",
        &[],
        Shows("trusted_host: Some(\"index.example\")"),
    ),
    ("STR_SECCOMP_BIND_DENY", "1", &[], Tells),
    (
        "SAM_STR_PYTHON",
        "/opt/python3",
        &[],
        Shows("python: Some(\"/opt/python3\")"),
    ),
    (
        "SAM_TOOLS_DIR",
        "/kit",
        &[],
        Shows("manifest: \"/kit/manifest.yaml\", python: \"/kit/python\""),
    ),
    ("SAM_SKILLS_DIR", "/s", &[], Tells),
    ("SAM_BUILTIN_SKILLS_DIR", "/s", &[], Tells),
    ("SAM_VOLUME_ROOT", "/v", &[], Tells),
    ("SAM_DATA_DIR", "/d", &[], Tells),
    ("LOG_FORMAT", "text", &[], Shows("log: Text")),
    ("SAM_DISABLE_EMBEDDED_STR", "1", &[], Tells),
];

const MESH: Environment<'static> = &[("SAM_TRANSPORT", "")];
const USER: Environment<'static> = &[("SOLACE_USERNAME", "ana")];
const TLS: Environment<'static> = &[("SAM_TRANSPORT", "mqtts://b")];
const S3_STORE: Environment<'static> = &[(MEMORY, "s3"), ("ARTIFACT_S3_BUCKET", "b")];
const SYNC: &[(&str, &str); 2] = &[("TOOL_SYNC_ENABLED", "true"), ("STR_S3_BUCKET_NAME", "b")];

#[test]
fn every_specified_variable_does_something_that_can_be_seen() {
    for (name, value, beside, does) in SPECIFIED {
        let mut environment = beside.to_vec();
        environment.push((*name, *value));
        match does {
            Shows(text) => {
                let (settings, notices) = given(&environment);
                let shown = format!("{settings:?}");
                assert!(shown.contains(text), "{name}: {text} is not in {shown}");
                assert!(
                    !shown.contains("canary") && !format!("{notices:?}").contains("canary"),
                    "{name}"
                );
            }
            Tells => {
                let (settings, notices) = given(&environment);
                let (plain, _) = given(&environment[..environment.len() - 1]);
                assert_eq!(format!("{settings:?}"), format!("{plain:?}"), "{name}");
                assert_eq!(
                    notices
                        .iter()
                        .filter(|notice| notice.variable == *name)
                        .count(),
                    1,
                    "{name}"
                );
                assert!(!format!("{notices:?}").contains("canary"), "{name}");
            }
            Refuses => {
                let mistake = refused(&environment);
                assert_eq!(mistake.variable, *name);
                assert!(!mistake.hint.is_empty(), "{mistake:?}");
            }
        }
    }
}

#[test]
fn the_table_has_every_variable_once_and_every_one_of_them_is_read() {
    let mut names: Vec<&str> = descriptions().iter().map(|(name, ..)| *name).collect();
    for (name, ..) in SPECIFIED {
        assert!(names.contains(name), "{name} is not described");
    }
    let asked = RefCell::new(BTreeSet::new());
    let look = |environment: Environment<'_>| {
        let outcome = read(|name| {
            asked.borrow_mut().insert(name.to_owned());
            environment
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.into())
        });
        outcome.unwrap();
    };
    let sync = [
        ("SOLACE_DEV_MODE", "1"),
        ("TOOL_SYNC_ENABLED", "1"),
        ("STR_S3_BUCKET", "b"),
    ];
    look(
        &[
            &sync[..],
            &[
                (MEMORY, "gcs"),
                ("ARTIFACT_GCS_BUCKET", "b"),
                ("OBJECT_STORAGE_TYPE", "gcs"),
            ],
        ]
        .concat(),
    );
    look(
        &[
            &sync[..],
            &[
                (MEMORY, "s3"),
                ("ARTIFACT_S3_BUCKET", "b"),
                ("SAM_TRANSPORT", "amqps://b"),
            ],
        ]
        .concat(),
    );
    look(
        &[
            &sync[..],
            &[(MEMORY, "filesystem"), ("SAM_DEV_BROKER_PORT", "1")],
        ]
        .concat(),
    );
    let asked = asked.into_inner();
    for name in &names {
        assert!(
            asked.contains(*name),
            "{name} is described, and nobody reads it"
        );
    }
    for name in &asked {
        assert!(
            names.contains(&name.as_str()),
            "{name} is read, and not described"
        );
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(
        descriptions()
            .iter()
            .all(|(_, _, meaning)| !meaning.is_empty())
    );
}

#[test]
fn what_an_image_sets_to_nothing_is_as_if_it_were_not_set() {
    let unset = given(&[]);
    let empty: Vec<(&str, &str)> = SPECIFIED
        .iter()
        .map(|(name, ..)| (*name, ""))
        .filter(|(name, _)| !["SAM_NAMESPACE", MEMORY].contains(name))
        .collect();
    let empty = given(&empty);
    assert_eq!(format!("{unset:?}"), format!("{empty:?}"));
}

#[test]
fn defaults_are_those_of_the_workers_before() {
    let (settings, notices) = tried(&[("SOLACE_BROKER_URL", "broker:1883")]).unwrap();
    let WorkerSettings {
        broker,
        base,
        worker_id,
        tools,
        calls,
        health_port,
        log,
        ..
    } = settings;
    assert_eq!(
        (base.namespace(), worker_id.as_str()),
        ("solace-agent-mesh", "sandbox-worker-001")
    );
    assert_eq!(
        broker.reconnect,
        ReconnectPolicy {
            tries: 10,
            pause: Duration::from_secs(3)
        }
    );
    assert_eq!(
        (broker.pool, broker.speaks),
        (PoolMode::Shared, MqttVersions::FiveOrThree)
    );
    let credentials = broker.credentials.unwrap();
    assert_eq!(
        (
            credentials.user.as_str(),
            credentials.password.unwrap().expose()
        ),
        ("admin", b"admin".as_slice())
    );
    assert_eq!(tools.manifest, Path::new("/tools/manifest.yaml"));
    assert_eq!(tools.python, Path::new("/tools/python"));
    assert!(tools.sync.is_none());
    assert_eq!((calls.slots, calls.waiting, calls.max_warm), (4, 256, 8));
    assert_eq!(
        (calls.default_timeout, calls.default_profile),
        (Duration::from_secs(300), ToolProfile::Standard)
    );
    assert_eq!((health_port, log), (Some(8081), LogFormat::Json));
    let told: Vec<&str> = notices
        .iter()
        .map(|notice| notice.variable.as_str())
        .collect();
    assert_eq!(
        told,
        [
            "SAM_NAMESPACE",
            "SOLACE_BROKER_USERNAME",
            "ARTIFACT_SERVICE_TYPE"
        ]
    );
}

#[test]
fn an_address_says_how_to_speak() {
    let plain = |transport, host: &str, port| (transport, host.to_owned(), port, false);
    let encrypted = |transport, host: &str, port| (transport, host.to_owned(), port, true);
    for (name, value, expected) in [
        (
            "SOLACE_HOST",
            "h:1883",
            plain(TransportKind::Mqtt, "h", 1883),
        ),
        (
            "SOLACE_HOST",
            "h:8883",
            encrypted(TransportKind::Mqtt, "h", 8883),
        ),
        (
            "SOLACE_HOST",
            "h:5672",
            plain(TransportKind::Amqp, "h", 5672),
        ),
        (
            "SOLACE_HOST",
            "h:5671",
            encrypted(TransportKind::Amqp, "h", 5671),
        ),
        (
            "SOLACE_HOST",
            "h:55554",
            plain(TransportKind::Dev, "h", 55554),
        ),
        (
            "SOLACE_HOST",
            "[::1]:1883",
            plain(TransportKind::Mqtt, "::1", 1883),
        ),
        (
            "SOLACE_BROKER_URL",
            "tcp://h:8883",
            encrypted(TransportKind::Mqtt, "h", 8883),
        ),
        (
            "SOLACE_BROKER_URL",
            "tcps://h:1883/",
            encrypted(TransportKind::Mqtt, "h", 1883),
        ),
        (
            "SOLACE_BROKER_URL",
            "mqtt://h",
            plain(TransportKind::Mqtt, "h", 1883),
        ),
        (
            "SOLACE_BROKER_URL",
            "mqtts://h:18883",
            encrypted(TransportKind::Mqtt, "h", 18883),
        ),
        (
            "SOLACE_BROKER_URL",
            "amqp://h:5555",
            plain(TransportKind::Amqp, "h", 5555),
        ),
        (
            "SOLACE_BROKER_URL",
            "AMQPS://h",
            encrypted(TransportKind::Amqp, "h", 5671),
        ),
        (
            "SAM_TRANSPORT",
            "tcp://h:1",
            plain(TransportKind::Dev, "h", 1),
        ),
        (
            "SAM_TRANSPORT",
            "tcp://[fe80::1]",
            plain(TransportKind::Dev, "fe80::1", 55554),
        ),
    ] {
        let (WorkerSettings { broker, .. }, _) = tried(&[(name, value)]).unwrap();
        let read = (
            broker.transport,
            broker.host.clone(),
            broker.port,
            broker.tls.is_some(),
        );
        assert_eq!(read, expected, "{name}={value}");
        let said = broker.to_string();
        let (again, _) = tried(&[("SAM_TRANSPORT", &said)]).unwrap();
        assert_eq!(again.broker.to_string(), said);
    }
}

#[test]
fn an_address_that_does_not_is_refused_with_one_that_would() {
    for (name, value, hint) in [
        (
            "SOLACE_BROKER_URL",
            "tcp://h:55555",
            "mqtt://HOST:1883 or amqp://HOST:5672",
        ),
        (
            "SOLACE_BROKER_URL",
            "tcps://h:55443",
            "mqtts://HOST:8883 or amqps://HOST:5671",
        ),
        ("SOLACE_HOST", "h", "mqtts://HOST:8883"),
        ("SOLACE_HOST", "h:1234", "tcp://HOST:55554"),
        ("SOLACE_HOST", "tcps://h:55554", "SAM_TRANSPORT"),
        ("SOLACE_HOST", "wss://h:443", "SAM_TRANSPORT"),
        ("SAM_TRANSPORT", "h:1883", "mqtt://HOST:1883"),
        ("SAM_TRANSPORT", "tcps://h:55443", "mqtt://HOST:1883"),
        ("SAM_TRANSPORT", "mqtt://", "mqtt://HOST:1883"),
        ("SAM_TRANSPORT", "mqtt://h:0", "mqtt://HOST:1883"),
        ("SAM_TRANSPORT", "mqtt://h:99999", "mqtt://HOST:1883"),
        (
            "SAM_TRANSPORT",
            "mqtt://user:canary@h:1883",
            "mqtt://HOST:1883",
        ),
        ("SAM_TRANSPORT", "mqtt://[::1", "mqtt://HOST:1883"),
    ] {
        let mistake = tried(&[(name, value)]).unwrap_err();
        assert_eq!(mistake.variable, name);
        assert!(mistake.hint.contains(hint), "{value}: {mistake:?}");
        assert!(!format!("{mistake:?}").contains("canary"), "{mistake:?}");
    }
    assert!(
        tried(&[])
            .unwrap_err()
            .hint
            .contains("airlock worker broker")
    );
}

#[test]
fn two_names_of_one_thing_must_agree() {
    for (one, other, first, second) in [
        ("SAM_NAMESPACE", "NAMESPACE", "a", "b"),
        ("SOLACE_BROKER_USERNAME", "SOLACE_USERNAME", "a", "b"),
        (
            "SOLACE_BROKER_PASSWORD",
            "SOLACE_PASSWORD",
            "canary-1",
            "canary-2",
        ),
        ("SOLACE_BROKER_VPN", "SOLACE_VPN", "a", "b"),
        ("SANDBOX_PYTHON_BIN", "SAM_STR_PYTHON", "/a", "/b"),
        ("SAM_DEV_BROKER_HOST", "DEV_BROKER_HOST", "a", "b"),
        ("SAM_DEV_BROKER_PORT", "DEV_BROKER_PORT", "1", "2"),
    ] {
        let mistake = refused(&[(one, first), (other, second)]);
        assert!(
            mistake.message.contains(one) && mistake.message.contains(other),
            "{mistake:?}"
        );
        assert!(!format!("{mistake:?}").contains("canary"), "{mistake:?}");
        given(&[(one, first), (other, first)]);
    }
}

#[test]
fn there_is_one_broker() {
    let both = [("SOLACE_HOST", "mesh:1883"), ("DEV_BROKER_HOST", "dev")];
    assert!(tried(&both).unwrap_err().hint.contains("SOLACE_DEV_MODE"));
    let chosen = |mode| {
        tried(&[both[0], both[1], ("SOLACE_DEV_MODE", mode)])
            .unwrap()
            .0
            .broker
            .host
    };
    assert_eq!(
        (chosen("true").as_str(), chosen("false").as_str()),
        ("dev", "mesh")
    );
    let (settings, notices) = given(&both);
    assert_eq!(settings.broker.host, "broker");
    assert!(
        notices
            .iter()
            .any(|notice| notice.variable == "SAM_TRANSPORT")
    );
}

#[test]
fn the_older_development_broker_has_its_older_port() {
    let port = |environment: Environment<'_>| tried(environment).unwrap().0.broker.port;
    assert_eq!(port(&[("DEV_BROKER_HOST", "d")]), 55555);
    assert_eq!(port(&[("SAM_DEV_BROKER_HOST", "d")]), 55554);
}

#[test]
fn numbers_that_are_none_are_told_and_the_default_stays() {
    for (name, value) in [
        ("SANDBOX_MAX_CONCURRENT", "four"),
        ("SANDBOX_MAX_CONCURRENT", "0"),
        ("SANDBOX_MAX_CONCURRENT", "-1"),
        ("DEFAULT_TIMEOUT_SECONDS", "99999999999999999999999"),
        ("HEALTH_PORT", "70000"),
        ("TOOL_SYNC_ENABLED", "perhaps"),
        ("SOLACE_RECONNECT_DELAY_MS", "0"),
    ] {
        let (settings, notices) = given(&[(name, value)]);
        assert_eq!(
            format!("{settings:?}"),
            format!("{:?}", given(&[]).0),
            "{name}={value}"
        );
        let told: Vec<&str> = notices
            .iter()
            .map(|notice| notice.variable.as_str())
            .collect();
        assert_eq!(told, [name]);
    }
    assert_eq!(given(&[("HEALTH_PORT", "0")]).0.health_port, None);
    assert_eq!(
        given(&[("SOLACE_RECONNECT_RETRIES", "0")])
            .0
            .broker
            .reconnect
            .tries,
        0
    );
}

#[test]
fn what_counts_otherwise_than_it_was_written_is_told() {
    let told = |environment: Environment<'_>| {
        let (settings, notices) = given(environment);
        (
            settings,
            notices
                .into_iter()
                .map(|notice| notice.to_string())
                .collect::<Vec<_>>(),
        )
    };
    let (settings, notices) = told(&[("SOLACE_RECONNECT_RETRIES", "-1")]);
    assert_eq!(settings.broker.reconnect.tries, 0);
    assert_eq!(
        notices,
        ["SOLACE_RECONNECT_RETRIES: -1 is taken for 0, which is for ever"]
    );
    let (settings, notices) = told(&[("SOLACE_RECONNECT_RETRIES", "ten")]);
    assert_eq!((settings.broker.reconnect.tries, notices.len()), (10, 1));
    for scope in ["app", "namespace"] {
        let (_, notices) = told(&[("ARTIFACT_SCOPE", scope), ("ARTIFACT_SCOPE_VALUE", "ours")]);
        assert_eq!(
            notices,
            ["ARTIFACT_SCOPE_VALUE: it has no meaning without `ARTIFACT_SCOPE=custom`"]
        );
    }
    let rabbit = ("SAM_AMQP_ADDRESSES", "rabbitmq");
    let (_, notices) = told(&[("SAM_TRANSPORT", "amqp://broker"), rabbit]);
    assert!(
        notices.len() == 1 && notices[0].contains("leaves a queue `amq.gen-…`"),
        "{notices:?}"
    );
    assert_eq!(told(&[rabbit]).1, [""; 0], "elsewhere it means nothing");
    let (settings, notices) = told(&[("OBJECT_STORAGE_TYPE", "azure")]);
    assert!(settings.tools.sync.is_none());
    assert!(
        notices.len() == 1 && notices[0].starts_with("OBJECT_STORAGE_TYPE: "),
        "{notices:?}"
    );
}

#[test]
fn an_index_that_may_have_a_secret_in_it_is_refused_and_not_repeated() {
    for url in [
        "https://ana:canary@h/simple",
        "https://h/simple?token=canary",
        "https://h/simple#canary",
    ] {
        let mistake = refused(&[("PIP_INDEX_URL", url)]);
        assert_eq!(mistake.variable, "PIP_INDEX_URL");
        assert!(!format!("{mistake:?}").contains("canary"), "{mistake:?}");
    }
    assert_eq!(
        given(&[("PIP_INDEX_URL", "https://h/simple")])
            .0
            .tools
            .index
            .as_deref(),
        Some("https://h/simple")
    );
}

#[test]
fn a_model_comes_with_a_budget() {
    let model = |more: &[(&'static str, &'static str)]| {
        let asked = [&[("SAM_LLM_PROVIDER", "p"), ("SAM_LLM_MODEL", "m")], more].concat();
        let model = given(&asked).0.calls.model.unwrap();
        (
            model.budget.to_string(),
            model.day.map(|day| day.to_string()),
        )
    };
    let dollars = |text: &str| text.parse::<spec::Money>().unwrap().to_string();
    assert_eq!(model(&[]), (dollars("1"), None));
    let said = [
        ("SAM_LLM_BUDGET_USD", "0.25"),
        ("SAM_LLM_BUDGET_DAY_USD", "20"),
    ];
    assert_eq!(model(&said), (dollars("0.25"), Some(dollars("20"))));
}

#[test]
fn what_would_be_weaker_or_half_is_refused() {
    for (environment, variable) in [
        (&[("SANDBOX_MODE", "prlimit-only")][..], "SANDBOX_MODE"),
        (
            &[("SANDBOX_DEFAULT_PROFILE", "restrictve")],
            "SANDBOX_DEFAULT_PROFILE",
        ),
        (
            &[
                ("SAM_TRANSPORT", "mqtts://b"),
                ("SOLACE_CLIENT_CERT_PATH", "/c"),
            ],
            "SOLACE_CLIENT_KEY_PATH",
        ),
        (
            &[
                ("AWS_ACCESS_KEY_ID", "a"),
                (MEMORY, "s3"),
                ("ARTIFACT_S3_BUCKET", "b"),
            ],
            "AWS_SECRET_ACCESS_KEY",
        ),
        (&[("TOOL_SYNC_ENABLED", "true")], "STR_S3_BUCKET_NAME"),
        (&[(MEMORY, "s3")], "ARTIFACT_S3_BUCKET"),
        (&[(MEMORY, "azure")], MEMORY),
        (&[("ARTIFACT_SCOPE", "custom")], "ARTIFACT_SCOPE_VALUE"),
        (&[("SAM_LLM_PROVIDER", "openai")], "SAM_LLM_MODEL"),
        (
            &[
                ("SAM_LLM_PROVIDER", "p"),
                ("SAM_LLM_MODEL", "m"),
                ("SAM_LLM_BUDGET_USD", "lots"),
            ],
            "SAM_LLM_BUDGET_USD",
        ),
        (&[("SAM_WORKER_ID", "a/b")], "SAM_WORKER_ID"),
        (&[("SAM_WORKER_ID", "a#")], "SAM_WORKER_ID"),
        (&[("SAM_NAMESPACE", "/a")], "SAM_NAMESPACE"),
        (&[("SANDBOX_PYTHON_BIN", "python3")], "SANDBOX_PYTHON_BIN"),
        (&[("LOG_FORMAT", "xml")], "LOG_FORMAT"),
        (&[("SAM_POOL", "none")], "SAM_POOL"),
        (&[("SAM_MQTT_VERSION", "4")], "SAM_MQTT_VERSION"),
        (
            &[
                ("S3_ENDPOINT_URL", "http://u:p@h"),
                (MEMORY, "s3"),
                ("ARTIFACT_S3_BUCKET", "b"),
            ],
            "S3_ENDPOINT_URL",
        ),
    ] {
        assert_eq!(refused(environment).variable, variable, "{environment:?}");
    }
    given(&[("SANDBOX_MODE", "bwrap"), ("STR_SANDBOX_MODE", "native")]);
}

#[test]
fn a_broker_that_encrypts_is_known_by_its_certificate_alone() {
    let environment = [
        ("SOLACE_BROKER_URL", "tcps://b:8883"),
        ("SOLACE_CLIENT_CERT_PATH", "/c.pem"),
        ("SOLACE_CLIENT_KEY_PATH", "/k.pem"),
    ];
    let (settings, _) = tried(&environment).unwrap();
    let certificate = ClientCertificate {
        chain: "/c.pem".into(),
        key: "/k.pem".into(),
    };
    let expected = BrokerTls {
        trust: Trust::Platform,
        certificate: Some(certificate),
        server_name: None,
    };
    assert_eq!(settings.broker.tls, Some(expected));
    assert!(settings.broker.credentials.is_none());
}

#[test]
fn names_that_look_like_ours_are_told_with_the_nearest() {
    let names = [
        "SAM_NAMESPCE",
        "SANDBOX_MAX_CONCURRENCY",
        "SAM_NAMESPACE",
        "PATH",
        "SAM_ZZZZZZZZ",
    ];
    let told: Vec<String> = unknown_variables(names)
        .iter()
        .map(SettingNotice::to_string)
        .collect();
    assert_eq!(
        told,
        [
            "SAM_NAMESPCE: nobody knows it; was `SAM_NAMESPACE` meant?",
            "SAM_ZZZZZZZZ: nobody knows it",
            "SANDBOX_MAX_CONCURRENCY: nobody knows it; was `SANDBOX_MAX_CONCURRENT` meant?",
        ]
    );
}

#[test]
fn the_interpreter_is_where_images_of_python_have_it() {
    let calls = given(&[]).0.calls;
    assert_eq!(
        calls.interpreter(|_| true),
        Path::new("/usr/local/bin/python3")
    );
    assert_eq!(calls.interpreter(|_| false), Path::new("/usr/bin/python3"));
}

#[test]
fn paths_are_from_the_folder_where_the_worker_was_started() {
    let settings = given(&[("SAM_TOOLS_DIR", "kit"), ("ARTIFACT_BASE_PATH", "art")]).0;
    let settings = settings.from_folder(Path::new("/home/ana"));
    assert_eq!(
        settings.tools.manifest,
        Path::new("/home/ana/kit/manifest.yaml")
    );
    assert_eq!(settings.tools.python, Path::new("/home/ana/kit/python"));
    assert!(
        matches!(settings.artifacts.store, ArtifactBackend::Files(folder) if folder == Path::new("/home/ana/art"))
    );
}

#[test]
fn the_container_is_given_every_variable_and_the_document_tells_of_it() {
    let script = include_str!("../../../../images/worker/run.sh");
    let (_, list) = script.split_once("variables=(").unwrap();
    let mut passed: Vec<&str> = list.split_once(')').unwrap().0.split_whitespace().collect();
    let mut known: Vec<&str> = descriptions().iter().map(|(name, ..)| *name).collect();
    passed.sort_unstable();
    known.sort_unstable();
    assert_eq!(passed, known);
    let document = include_str!("../../../../docs/worker.md");
    for (name, default, meaning) in descriptions() {
        let row = format!("| `{name}` | {default} | {meaning} |");
        assert!(document.contains(&row), "docs/worker.md lacks: {row}");
    }
}

#[test]
fn the_pool_is_a_shared_subscription_a_session_or_a_queue() {
    let broker = |environment: Environment<'_>| given(environment).0.transport();
    let transport::BrokerProtocol::Mqtt(shared) = broker(&[]) else {
        panic!("MQTT was asked for")
    };
    assert_eq!(shared.pool.as_deref(), Some("sandbox-worker-001"));
    assert!(matches!(
        shared.client_id,
        transport::mqtt::ClientId::Unique(_)
    ));
    let transport::BrokerProtocol::Mqtt(session) = broker(&[("SAM_POOL", "session")]) else {
        panic!("MQTT was asked for")
    };
    assert_eq!(session.pool, None);
    let id = "acme/dev/q/str/sandbox-worker-001".to_owned();
    assert_eq!(
        session.client_id,
        transport::mqtt::ClientId::Exactly(id.clone())
    );
    let amqp = [
        ("SAM_TRANSPORT", "amqps://b"),
        ("SOLACE_USERNAME", "ana"),
        ("SOLACE_VPN", "blue"),
    ];
    let transport::BrokerProtocol::Amqp(queue) = broker(&amqp) else {
        panic!("AMQP was asked for")
    };
    assert_eq!(
        (queue.queue, queue.credentials.unwrap().user),
        (id, "ana".to_owned())
    );
    assert!(
        given(&amqp)
            .1
            .iter()
            .any(|notice| notice.variable == "SOLACE_BROKER_VPN")
    );
    let (settings, _) = given(&[
        ("SAM_TRANSPORT", "amqp://b"),
        ("SAM_QUEUE", "mine"),
        ("SAM_AMQP_ADDRESSES", "rabbitmq"),
    ]);
    let transport::BrokerProtocol::Amqp(queue) = settings.transport() else {
        panic!("AMQP was asked for")
    };
    assert_eq!(queue.queue, "mine");
    let transport::BrokerProtocol::Dev(dev) = broker(&[("SAM_TRANSPORT", "tcp://[::1]:7")]) else {
        panic!("a development broker")
    };
    assert_eq!(dev.address, "[::1]:7");
}

#[test]
fn stores_are_opened_by_what_was_said() {
    use crate::artifacts::{ArtifactLocation, BucketCredentials, BucketKind, Sharing};
    let keys = [
        ("AWS_ACCESS_KEY_ID", "AKIA"),
        ("AWS_SECRET_ACCESS_KEY", "canary"),
        S3_STORE[0],
        S3_STORE[1],
    ];
    let store = given(&keys).0.artifact_store();
    assert_eq!(store.sharing, Sharing::Namespace("acme/dev".to_owned()));
    let ArtifactLocation::Bucket(remote) = store.place else {
        panic!("a bucket was asked for")
    };
    assert_eq!(
        (remote.kind, remote.bucket.as_str(), remote.region.as_str()),
        (BucketKind::S3, "b", "us-east-1")
    );
    assert!(
        matches!(remote.credentials, BucketCredentials::Keys { secret, .. } if secret == "canary")
    );
    let role = [
        S3_STORE[0],
        S3_STORE[1],
        ("AWS_ROLE_ARN", "r"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"),
    ];
    let ArtifactLocation::Bucket(remote) = given(&role).0.artifact_store().place else {
        panic!("a bucket was asked for")
    };
    assert!(matches!(
        remote.credentials,
        BucketCredentials::WebIdentity { .. }
    ));
    assert!(given(&[]).0.tool_sync().is_none());
    let gcs = [
        ("TOOL_SYNC_ENABLED", "1"),
        ("OBJECT_STORAGE_TYPE", "gcs"),
        ("GCS_BUCKET_NAME", "jar"),
    ];
    let sync = given(&gcs).0.tool_sync().unwrap();
    assert_eq!(
        (sync.namespace.as_str(), sync.folder.as_path()),
        ("acme/dev", Path::new("/tools"))
    );
    assert!(matches!(
        (sync.remote.kind, sync.remote.credentials),
        (BucketKind::Gcs, BucketCredentials::Machine)
    ));
    let custom = [
        ("ARTIFACT_SCOPE", "custom"),
        ("ARTIFACT_SCOPE_VALUE", "ours"),
    ];
    assert_eq!(
        given(&custom).0.artifact_store().sharing,
        Sharing::Namespace("ours".to_owned())
    );
}

proptest::proptest! {
    #[test]
    fn no_value_of_any_variable_makes_it_panic(name in 0..descriptions().len(), value in "\\PC{0,40}", beside in "[a-z]{2,5}s?://\\PC{0,20}") {
        let name = descriptions()[name].0;
        let environment = [("SAM_TRANSPORT", beside.as_str()), (name, value.as_str())];
        _ = tried(&environment);
        _ = tried(&environment[1..]);
    }
}
