//! What the environment may say and may not: a worker that would be weaker than asked does not start.

use worker_tests::{Folder, Mesh, Mosquitto, Sam, Tools, variables};

/// What a worker says that does not start with these.
fn refusal(changes: &[(&str, Option<&str>)]) -> String {
    let folder = Folder::new();
    Tools::usual(&folder);
    let mut environment = variables(&folder, "mqtt://127.0.0.1:1");
    for (name, value) in changes {
        match value {
            Some(value) => environment.insert((*name).to_owned(), (*value).to_owned()),
            None => environment.remove(*name),
        };
    }
    let mut sam = Sam::begin(&folder, environment);
    let end = sam.await_end();
    assert!(
        end.code().is_some_and(|code| code != 0),
        "{changes:?}: {end:?}"
    );
    sam.await_log("hint: ");
    sam.log()
}

#[test]
fn what_would_be_weaker_or_cannot_be_meant_is_refused_by_name() {
    let refused: [(&str, &str); 11] = [
        ("SANDBOX_MODE", "direct"),
        ("STR_SANDBOX_MODE", "prlimit-only"),
        ("SAM_TRANSPORT", "smf://host:55555"),
        ("SAM_TRANSPORT", "nonsense"),
        ("SANDBOX_DEFAULT_PROFILE", "lax"),
        ("ARTIFACT_SERVICE_TYPE", "floppy"),
        ("SAM_NAMESPACE", "a/../b"),
        ("SAM_NAMESPACE", "a b"),
        ("SAM_WORKER_ID", "a/b"),
        ("SAM_POOL", "everybody"),
        ("SANDBOX_PYTHON_BIN", "python3"),
    ];
    for (name, value) in refused {
        let said = refusal(&[(name, Some(value))]);
        assert!(said.contains(name), "{name} in {said}");
    }
}

#[test]
fn what_needs_a_second_variable_names_it() {
    let said = refusal(&[("ARTIFACT_SERVICE_TYPE", Some("s3"))]);
    assert!(said.contains("ARTIFACT_S3_BUCKET"), "{said}");
    let said = refusal(&[("SAM_LLM_PROVIDER", Some("test"))]);
    assert!(said.contains("SAM_LLM_MODEL"), "{said}");
    let said = refusal(&[("SAM_TRANSPORT", None)]);
    assert!(
        said.contains("SAM_TRANSPORT") || said.contains("SOLACE_BROKER_URL"),
        "{said}"
    );
    let said = refusal(&[
        ("SAM_TRANSPORT", None),
        ("SOLACE_HOST", Some("localhost:55555")),
    ]);
    assert!(said.contains("mqtt://"), "{said}");
}

#[test]
fn what_has_no_meaning_here_is_told_once_and_a_number_that_is_none_falls_back() {
    let mesh = Mesh::new("Tester", |set| {
        set.insert("SANDBOX_BWRAP_BIN".to_owned(), "/usr/bin/bwrap".to_owned());
        set.insert("SANDBOX_MAX_CONCURRENT".to_owned(), "many".to_owned());
    });
    mesh.agent.settle();
    let log = mesh.sam.log();
    for name in ["SANDBOX_BWRAP_BIN", "SANDBOX_MAX_CONCURRENT"] {
        assert_eq!(log.matches(name).count(), 1, "{name} in {log}");
    }
}

#[test]
fn the_default_profile_and_time_are_used_where_nobody_says_one() {
    let mesh = Mesh::new("Tester", |set| {
        set.insert(
            "SANDBOX_DEFAULT_PROFILE".to_owned(),
            "restrictive".to_owned(),
        );
        set.insert("DEFAULT_TIMEOUT_SECONDS".to_owned(), "1".to_owned());
    });
    let without = |mut ask: worker_tests::Ask, names: &[&str]| {
        for name in names {
            ask.body["params"]
                .as_object_mut()
                .expect("an object")
                .remove(*name);
        }
        ask
    };
    let ask = worker_tests::Ask::new("limits", serde_json::json!({}));
    let answer = mesh.agent.call(&without(ask, &["sandbox_profile"]));
    assert_eq!(answer.tool_result()["limits"]["NOFILE"][1], 128);
    let ask = worker_tests::Ask::new("sleeps", serde_json::json!({"seconds": 30}));
    let answer = mesh.agent.call(&without(ask, &["timeout_seconds"]));
    assert_eq!(answer.result()["timed_out"], true);
}

#[test]
fn a_broker_that_is_not_there_yet_is_waited_for() {
    let folder = Folder::new();
    let mut broker = Mosquitto::start(&folder);
    broker.kill();
    Tools::usual(&folder);
    let sam = Sam::begin(&folder, variables(&folder, &broker.url()));
    worker_tests::until("it lives and is not ready", || {
        sam.get("/readyz")
            .is_some_and(|(status, _)| status == 503)
            .then_some(())
    });
    broker.start_again();
    sam.await_ready();
}
