//! The door to the model server of this machine: where it is, what passes, and what the program is told when nothing can.

use doors_tests::REAL_KEY;
use provider::{Fault, Operation};
use sdk_tests::ProviderFixture;
use serde_json::{Value, json};
use std::net::TcpListener;

/// Finds the socket by the variable that announces it, as a client of `http+unix://` does.
const FIND_SOCKET: &str = "
from urllib.parse import unquote
scheme, place = os.environ['INFERENCE_PROXY_URL'].split('://')
assert scheme == 'http+unix', scheme
place = unquote(place)
";

#[test]
fn the_words_of_the_manual_work() {
    let desk = ProviderFixture::new();
    let mut command = desk.command(&[
        "run",
        "--inference",
        "--",
        "curl",
        "-s",
        "localhost:11434/api/tags",
    ]);
    let output = command.output().expect("airlock starts");
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(told["models"][0]["name"], "mock:latest", "{told}");
    assert_eq!(desk.provider.served().calls[0].keys, [REAL_KEY]);
}

#[test]
fn it_is_found_by_port_and_by_the_socket_that_a_variable_announces() {
    let desk = ProviderFixture::new();
    let script = format!(
        "{FIND_SOCKET}
tell(ask('POST', '/api/chat', chat(stream=False), port=11434)[0])
tell(ask('POST', '/api/chat', chat(stream=False), socket_path=place)[0])
tell([os.environ[name] for name in ('OLLAMA_HOST', 'OLLAMA_BASE_URL')])
tell(json.loads(ask('GET', '/health', socket_path=place)[1])['run_id'] == os.environ['AIRLOCK_RUN_ID'])"
    );
    let here = "http://127.0.0.1:11434";
    let told = desk.inside(&["--inference"], &script);
    assert_eq!(
        told,
        [json!(200), json!(200), json!([here, here]), json!(true)]
    );
    assert_eq!(desk.provider.served().of(Operation::OllamaChat).count(), 2);
    let left = std::fs::read_dir(desk.state().join("doors"))
        .expect("its folder")
        .count();
    assert_eq!(left, 0, "the socket is gone with the run");
}

#[test]
fn nothing_but_inference_passes() {
    let desk = ProviderFixture::new();
    let script = format!(
        "{FIND_SOCKET}
routes = [('POST', '/api/pull'), ('DELETE', '/api/delete'), ('POST', '/api/create'), ('POST', '/api/push'),
          ('POST', '/api/copy'), ('POST', '/api/blobs/sha256:0'), ('HEAD', '/api/blobs/sha256:0'),
          ('POST', '/api//pull'), ('POST', '/api/%70ull'), ('POST', '/api/chat/../pull'), ('POST', '/API/PULL'),
          ('POST', '/v1/messages'), ('GET', '/metrics')]
for method, path in routes:
    for where in (None, place):
        tell(ask(method, path, {{'model': 'm'}}, port=11434, socket_path=where)[0])
tell(ask('POST', '/api/generate', {{'model': 'm', 'prompt': 'x', 'stream': False}}, port=11434)[0])"
    );
    let mut told = desk.inside(&["--inference"], &script);
    assert_eq!(
        told.pop(),
        Some(json!(200)),
        "the control: a route of inference passes"
    );
    let refused = |status: &Value| [400, 404, 405].iter().any(|one| status == one);
    assert!(told.len() == 26 && told.iter().all(refused), "{told:?}");
    assert_eq!(
        told[..14],
        vec![json!(404); 14],
        "what changes models is not there at all"
    );
    let calls = desk.provider.served().calls;
    assert_eq!(
        calls.iter().map(|call| call.operation).collect::<Vec<_>>(),
        [Operation::OllamaGenerate]
    );
}

#[test]
fn only_allowed_models_are_used() {
    let desk = ProviderFixture::with("models = [\"small-*\", \"big\"]\n");
    let script = "
for model in ('small-1', 'big', 'other'):
    tell(ask('POST', '/api/chat', chat(model, stream=False), port=11434)[0])";
    assert_eq!(desk.inside(&["--inference"], script), [200, 200, 403]);
    // A run can only have less.
    assert_eq!(
        desk.inside(&["--inference", "--allow-model", "small-*"], script),
        [200, 403, 403]
    );
    assert_eq!(
        desk.inside(&["--inference", "--allow-model", "*"], script),
        [200, 200, 403]
    );
    let models: Vec<_> = desk
        .provider
        .served()
        .calls
        .into_iter()
        .map(|call| call.model)
        .collect();
    assert_eq!(models, ["small-1", "big", "small-1", "small-1", "big"]);
}

#[test]
fn a_server_that_is_down_is_told_as_502_with_words() {
    let desk = ProviderFixture::new();
    // Nobody listens where somebody listened a moment ago.
    let gone = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("its address");
    desk.give(
        "config.toml",
        &format!("[inference]\nbase = \"http://{gone}\"\n"),
    );
    let script = "
status, body = ask('POST', '/api/chat', chat(stream=False), port=11434)
tell([status, body])
tell(ask('GET', '/health', port=11434)[0])";
    let told = desk.inside(&["--inference"], script);
    assert_eq!(
        (&told[0][0], &told[1]),
        (&json!(502), &json!(200)),
        "{told:?}"
    );
    let body = told[0][1].as_str().expect("text");
    let words: Value = serde_json::from_str(body).expect("an error as Ollama tells one");
    let words = words["error"].as_str().expect("words");
    assert!(words.contains("cannot be reached"), "{words}");
    assert!(
        !body.contains(&gone.port().to_string()),
        "where it is, is nobody's business inside: {body}"
    );
}

#[test]
fn a_body_has_a_bound() {
    let desk = ProviderFixture::with("[doors]\nbody = \"64K\"\n");
    let script = "
for length in (60_000, 70_000):
    tell(ask('POST', '/api/chat', chat(stream=False, padding='x' * length), port=11434)[0])";
    assert_eq!(desk.inside(&["--inference"], script), [200, 413]);
    assert_eq!(desk.provider.served().count, 1);
}

#[test]
fn a_call_has_a_time() {
    let desk = ProviderFixture::with("time = \"1s\"\n");
    desk.provider.set_model("silent", Fault::Silence);
    desk.provider.set_model("stalls", Fault::Stall(2));
    let script = "
import time
began = time.monotonic()
tell(ask('POST', '/api/chat', chat('silent', stream=False), port=11434)[0])
try:
    status, body = ask('POST', '/api/chat', chat('stalls', stream=True), port=11434)
except http.client.IncompleteRead as short:
    body = short.partial.decode()
tell(json.loads(body.splitlines()[-1]))
tell(time.monotonic() - began < 30)
tell(ask('POST', '/api/chat', chat('m', stream=False), port=11434)[0])";
    let told = desk.inside(&["--inference"], script);
    assert_eq!(
        (&told[0], &told[2], &told[3]),
        (&json!(504), &json!(true), &json!(200)),
        "{told:?}"
    );
    assert!(
        told[1]["error"].is_string() && told[1]["done"] != true,
        "half an answer says so: {}",
        told[1]
    );
}
