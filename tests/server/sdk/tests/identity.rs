//! Whose door it is: the listener is the identity, so nobody else reaches it, and what a request says of who is asking
//! changes nothing.

use doors_tests::{REAL_KEY, chat, request};
use sdk_tests::{ProviderFixture, lacking};
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Tells whose door answers at 8080, then waits.
const WHOSE: &str = "
tell(json.loads(ask('GET', '/health')[1])['run_id'])
input()
tell(json.loads(ask('GET', '/health')[1])['run_id'])";

#[test]
fn of_two_runs_at_once_each_has_its_own_door_and_the_host_has_none() {
    let desk = ProviderFixture::new();
    let mut runs =
        ["first", "second"].map(|id| desk.begin(&["--llm=openai", "--run-id", id], WHOSE));
    assert_eq!(
        runs.each_mut().map(|run| run.told()),
        ["first", "second"],
        "at the same address"
    );
    // Both live: on this machine nobody listens there, unless somebody else does, who is none of ours.
    let here = doors_tests::Door::Tcp(SocketAddr::from(([127, 0, 0, 1], 8080)));
    let answered = here.is_open().then(|| {
        here.ask(&request("GET", "/health", &[], &Value::Null))
            .text()
    });
    assert!(!answered.is_some_and(|text| text.contains("first") || text.contains("second")));
    runs.iter_mut().for_each(|run| run.go_on());
    assert_eq!(runs.each_mut().map(|run| run.told()), ["first", "second"]);
    runs.into_iter().for_each(|run| drop(run.end()));
}

#[test]
fn the_ports_of_the_host_and_of_the_provider_are_not_to_be_reached_from_inside() {
    let desk = ProviderFixture::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let ports = [
        listener.local_addr().expect("its address"),
        desk.provider.address(),
    ];
    assert!(
        ports.iter().all(|port| TcpStream::connect(port).is_ok()),
        "the control: the host reaches them"
    );
    let [own, provider] = ports.map(|port| port.port());
    let script = format!(
        "
for port in ({own}, {provider}, 11434, 8080):
    try:
        socket.create_connection(('127.0.0.1', port), 5).close()
        tell('open')
    except ConnectionRefusedError:
        tell('refused')"
    );
    assert_eq!(
        desk.inside(&["--llm=openai"], &script),
        ["refused", "refused", "refused", "open"]
    );
}

/// This network, by a process that is in it.
fn entered(network: &Value) -> Option<std::path::PathBuf> {
    let wanted = network.as_str().expect("a name");
    let mut all = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .map(|one| one.path().join("ns/net"));
    all.find(|path| std::fs::read_link(path).is_ok_and(|found| found.as_os_str() == wanted))
}

/// Case 78 of the escape suite: a virtual key after the end of its sandbox, or from another place.
#[test]
fn when_a_run_is_over_nothing_of_its_door_is_left_and_its_key_opens_nothing() {
    let desk = ProviderFixture::new();
    let script = "
tell(os.environ['OPENAI_API_KEY'])
tell(ask('POST', '/v1/chat/completions', chat())[0])
tell(os.readlink('/proc/self/ns/net'))
input()";
    let mut run = desk.begin(&["--llm=openai", "--inference"], script);
    let (placeholder, status, network) = (run.told(), run.told(), run.told());
    assert_eq!(status, 200, "the control: it is good inside");
    let bearer = format!("Bearer {}", placeholder.as_str().expect("a key"));
    let direct = doors_tests::Door::Tcp(desk.provider.address());
    let ask = |bearer: &str| {
        direct
            .ask(&request(
                "POST",
                "/v1/chat/completions",
                &[("authorization", bearer)],
                &chat("m"),
            ))
            .status
    };
    // Case 71: worth nothing at the provider either, while the run lives and after.
    assert_eq!(
        (ask(&bearer), ask(&format!("Bearer {REAL_KEY}"))),
        (401, 200)
    );
    let root = rustix::process::geteuid().is_root();
    lacking(!root, "root", "the network of a run is gone with it");
    let there = entered(&network);
    assert!(!root || there.is_some(), "the control: somebody is in it");
    // As long as somebody has it open, no other network gets its name.
    let _held = there.map(std::fs::File::open);
    run.go_on();
    run.end();
    assert!(
        entered(&network).is_none(),
        "its listeners are gone with its network"
    );
    assert_eq!(ask(&bearer), 401);
    let left = std::fs::read_dir(desk.state().join("doors"))
        .expect("its folder")
        .count();
    assert_eq!(left, 0, "no socket");
    // Another run has another key, and that of an earlier one is refused there: it is somebody else's.
    let script = "
tell(os.environ['OPENAI_API_KEY'])
tell(ask('POST', '/v1/chat/completions', chat(), {'authorization': 'Bearer ' + KEY})[0])
tell(ask('POST', '/v1/chat/completions', chat(), {'authorization': 'Bearer anything'})[0])";
    let before = desk.provider.served().count;
    let told = desk.inside(&["--llm=openai"], &format!("KEY = {placeholder}\n{script}"));
    assert_ne!(told[0], placeholder);
    assert_eq!(
        (&told[1], &told[2]),
        (&json!(401), &json!(200)),
        "the listener says who is calling"
    );
    let served = desk.provider.served();
    let keys = served.calls.last().map(|call| call.keys.clone());
    assert_eq!(
        (served.count - before, keys),
        (1, Some(vec![REAL_KEY.to_owned()]))
    );
}

/// Case 71 of the escape suite, for the doors there are: what stands for the key is replaced nowhere but by the door.
#[test]
fn a_placeholder_in_other_places_is_sent_as_it_is_or_not_at_all() {
    let desk = ProviderFixture::new();
    let script = "
key = os.environ['OPENAI_API_KEY']
tell(key)
body = chat()
body['messages'][0]['content'] = key
tell(ask('POST', '/v1/chat/completions?key=' + key, body, {'x-other': key, 'x-api-key': key, 'cookie': key})[0])";
    let told = desk.inside(&["--llm=openai"], script);
    assert_eq!(told[1], 200, "{told:?}");
    let placeholder = told[0].as_str().expect("a key");
    let call = &desk.provider.served().calls[0];
    let body = String::from_utf8_lossy(&call.body);
    assert!(
        body.contains(placeholder) && !body.contains(REAL_KEY),
        "{body}"
    );
    assert_eq!(call.keys, [REAL_KEY]);
    let elsewhere = call
        .headers
        .iter()
        .find(|(_, value)| value.contains(placeholder));
    assert_eq!(
        (elsewhere, call.path.contains(placeholder)),
        (None, false),
        "{call:#?}"
    );
}

#[test]
fn what_a_request_says_of_who_is_asking_is_overwritten() {
    let desk = ProviderFixture::new();
    let script = "
headers = {'x-litellm-end-user-id': 'mallory', 'x-litellm-tags': 'mallory', 'openai-organization': 'mallory',
           'x-forwarded-for': 'mallory', 'x-user': 'mallory', 'cookie': 'mallory', 'host': 'mallory'}
body = chat(user='mallory', safety_identifier='mallory', metadata={'user_id': 'mallory'})
tell(ask('POST', '/v1/chat/completions', body, headers)[0])";
    assert_eq!(
        desk.inside(&["--llm=openai", "--run-id", "this-run"], script),
        [200]
    );
    let call = &desk.provider.served().calls[0];
    let said: Vec<_> = call
        .headers
        .iter()
        .filter(|(_, value)| value.contains("mallory"))
        .collect();
    assert!(said.is_empty(), "{said:?}");
    let body: Value = serde_json::from_slice(&call.body).expect("JSON");
    let told = [&body["user"], &body["safety_identifier"]];
    assert_eq!(told, ["this-run", "this-run"], "{body}");
    assert!(!body.to_string().contains("mallory"), "{body}");
}

#[test]
fn anthropics_user_is_the_run_too() {
    let desk = ProviderFixture::new();
    let script = "
body = chat(max_tokens=9, metadata={'user_id': 'mallory'})
tell(ask('POST', '/v1/messages', body, {'anthropic-version': '2023-06-01'})[0])";
    assert_eq!(
        desk.inside(&["--llm=anthropic", "--run-id", "this-run"], script),
        [200]
    );
    let call = &desk.provider.served().calls[0];
    let body: Value = serde_json::from_slice(&call.body).expect("JSON");
    assert_eq!(body["metadata"], json!({ "user_id": "this-run" }));
}
