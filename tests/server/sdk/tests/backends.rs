//! The doors are the same whoever starts a run and whatever makes its box: an ordinary user, Docker, Podman.

use daemons::{Daemons, Kind};
use doors_tests::REAL_KEY;
use sdk_tests::{
    Live, ProviderFixture, Who, lines,
    look::{FOUND, look},
    ordinary,
};
use serde_json::{Value, json};
use std::sync::OnceLock;

const INJECTED: &str = "value-that-the-program-has";

/// Uses both doors, the second in both ways, and tells whose they are.
const USE: &str = "
from urllib.parse import unquote
place = unquote(os.environ['INFERENCE_PROXY_URL'].split('://')[1])
tell(json.loads(ask('GET', '/health')[1])['run_id'] == os.environ['AIRLOCK_RUN_ID'])
tell(ask('POST', '/v1/chat/completions', chat())[0])
tell(ask('POST', '/api/chat', chat(stream=False), port=11434)[0])
tell(ask('POST', '/api/chat', chat(stream=False), socket_path=place)[0])
tell(ask('POST', '/api/pull', {'model': 'm'}, socket_path=place)[0])
tell(os.environ['OPENAI_API_KEY'].startswith('session-'))
tell(os.environ.get('TOKEN'))";

fn used(token: Option<&str>) -> Vec<Value> {
    vec![
        json!(true),
        json!(200),
        json!(200),
        json!(200),
        json!(404),
        json!(true),
        json!(token),
    ]
}

/// Three engines for all tests here; they end with this process.
fn engines() -> &'static Daemons {
    static ENGINES: OnceLock<Daemons> = OnceLock::new();
    ENGINES.get_or_init(|| Daemons::start(&[Kind::Docker, Kind::Podman, Kind::Rootless]))
}

#[test]
fn an_ordinary_user_has_the_same_doors_and_the_key_is_nowhere() {
    let Some(who) = ordinary("doors need no root") else {
        return;
    };
    let desk = ProviderFixture::of(who, "");
    assert_eq!(
        desk.inside(&["--llm=openai", "--inference"], USE),
        used(None)
    );
    let result = desk.result(&["--llm=openai", "--inference", "--memory", "1G"], &look());
    assert_eq!(result["stdout"], format!("200\n200\n{FOUND}"), "{result:#}");
    assert!(!result.to_string().contains(REAL_KEY));
    let mut found = desk.folder.holding(REAL_KEY);
    found.retain(|path| *path != desk.folder.at("key"));
    assert_eq!(found, Vec::<std::path::PathBuf>::new());
}

/// All of it in containers of this engine.
fn the_same_in(kind: Kind, who: Who) {
    let (desk, host) = (ProviderFixture::of(who, ""), engines().host(kind));
    let engine = (kind.backend(), host.as_str());
    desk.keep("token", INJECTED);
    let options = [
        "--llm=openai",
        "--inference",
        "--profile",
        "agent",
        "--secret",
        "token=TOKEN",
    ];
    let output = desk
        .contained(engine, &options, USE)
        .output()
        .expect("airlock starts");
    assert_eq!(lines(&output), used(Some(INJECTED)), "{kind:?}");
    let script = format!("{}\ninput()", look());
    let mut run =
        Live::start(desk.contained(engine, &[&options[..], &["--stdin"]].concat(), &script));
    let told: Vec<_> = (0..4).map(|_| run.told()).collect();
    assert_eq!(
        told,
        [json!(200), json!(200), json!(["file", "memory"]), json!([])],
        "{kind:?}"
    );
    // While it runs, the engine knows all but the key.
    let containers = engines().labelled(kind, "io.airlock.run");
    assert!(!containers.is_empty(), "the control: there is a container");
    for id in containers {
        let (status, told) =
            engines().call(kind, "GET", &format!("/containers/{id}/json"), &Value::Null);
        // Another test's may be gone by now.
        let told = told.to_string();
        assert!(status == 200 || status == 404, "{kind:?}: {told}");
        assert!(
            !told.contains(REAL_KEY) && !told.contains(INJECTED),
            "{kind:?}: {told}"
        );
    }
    run.go_on();
    assert!(!run.end().contains(REAL_KEY));
    let calls = desk.provider.served().calls;
    assert!(
        calls.len() >= 5 && calls.iter().all(|call| call.keys == [REAL_KEY]),
        "{calls:#?}"
    );
    let left = std::fs::read_dir(desk.state().join("doors"))
        .expect("its folder")
        .count();
    assert_eq!(left, 0, "{kind:?}: no socket is left");
}

#[test]
fn containers_of_docker_have_the_same_doors() {
    the_same_in(Kind::Docker, Who::Myself);
}

#[test]
fn containers_of_podman_have_the_same_doors() {
    the_same_in(Kind::Podman, Who::Myself);
}

#[test]
fn containers_of_an_ordinary_users_podman_have_the_same_doors() {
    let Some(who) = ordinary("doors work in containers without root") else {
        return;
    };
    the_same_in(Kind::Rootless, who);
}
