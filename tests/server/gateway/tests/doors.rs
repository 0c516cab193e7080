//! Doors of runs and sandboxes over HTTP: models that are paid for, hosts that are let through, and secrets that stay
//! outside. A provider and an internet of the test's own stand behind them.

use doors_tests::{
    REAL_KEY,
    money::{Way, dollars, price, worst},
};
use egress::World;
use gateway_tests::{Answer, Folder, Server};
use provider::{Provider, Script, Settings};
use sdk_tests::look::{FOUND, look};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// A server before a provider, and a key that may do what is tried here.
struct Payer {
    server: Server,
    provider: Provider,
    key: String,
    folder: doors_tests::Folder,
}

impl Payer {
    fn new() -> Payer {
        let provider = Provider::start(Settings {
            keys: vec![REAL_KEY.to_owned()],
            ..Settings::default()
        });
        let folder = doors_tests::Folder::new();
        let server = Server::with(&doors_tests::configuration(&provider, &folder), &[]);
        let key = server.key(&["runs", "sandboxes", "usage"]);
        Payer {
            server,
            provider,
            key,
            folder,
        }
    }
}

/// What a shell does to ask for this; it says with which status it was answered.
fn call(body: &Value) -> String {
    format!(
        "curl -sN -o /dev/null -w '%{{http_code}} ' -H \"authorization: Bearer $OPENAI_API_KEY\" \
         -H 'content-type: application/json' -d '{body}' $OPENAI_BASE_URL/chat/completions\n"
    )
}

/// A sandbox that this key makes.
fn sandbox(server: &Server, key: &str, order: &Value) -> String {
    let made = server.ask(key, "POST", "/v1/sandboxes", &[], order);
    assert_eq!(made.status, 201, "{}", made.text());
    made.json()["sandbox_id"]
        .as_str()
        .expect("an identifier")
        .to_owned()
}

fn exec(server: &Server, key: &str, sandbox: &str, command: &[&str]) -> Value {
    let path = format!("/v1/sandboxes/{sandbox}/exec");
    let answer = server.ask(key, "POST", &path, &[], &json!({ "command": command }));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The options of a run as one, or as a sandbox in which the same is run; what became of it, with the whole box's account.
fn both(server: &Server, key: &str, options: &Value, command: &[&str]) -> [Value; 2] {
    let mut order = options.clone();
    order["command"] = json!(command);
    let ran = server.ask(key, "POST", "/v1/runs", &[], &order);
    assert_eq!(ran.status, 200, "{}", ran.text());
    let id = sandbox(server, key, options);
    let mut told = exec(server, key, &id, command);
    let ended = server.ask(
        key,
        "DELETE",
        &format!("/v1/sandboxes/{id}"),
        &[],
        &Value::Null,
    );
    assert_eq!(ended.status, 200, "{}", ended.text());
    for name in ["usage", "limits_hit", "denials"] {
        told[name] = ended.json()[name].clone();
    }
    told["run_id"] = json!(id);
    [ran.json(), told]
}

#[test]
fn what_models_cost_is_counted_and_the_budget_holds_in_runs_and_in_sandboxes() {
    let payer = Payer::new();
    let (good, bad) = (
        Way::Chat.body("m", false, Some(20)),
        Way::Chat.body("other", false, Some(20)),
    );
    let length = good.to_string().len() as u64;
    payer.provider.set(Script {
        tokens: 20,
        input: Some(length),
        ..Script::default()
    });
    let limit = 2 * worst(length as usize, 20);
    let options = json!({ "llm": "openai", "allow_models": ["m*"], "budget_usd": dollars(limit) });
    let script = [&good, &bad, &good, &good].map(call).concat();
    let stranger = payer.server.key(&["runs", "sandboxes", "usage"]);
    for result in both(&payer.server, &payer.key, &options, &["sh", "-c", &script]) {
        assert_eq!(result["stdout"], "200 403 200 402 ", "{result}");
        assert_eq!(result["limits_hit"], json!(["budget"]), "{result}");
        let denial = json!({ "what": "model", "target": "other", "rule": "allow_models", "allow_with": "--allow-model 'other'" });
        assert_eq!(result["denials"], json!([denial]));
        let llm = json!({
            "calls": 2, "input_tokens": 2 * length, "output_tokens": 40, "cached_tokens": 0,
            "cost_usd": limit as f64 / 1e9,
        });
        assert_eq!(result["usage"]["llm"], llm, "{result}");
        let path = format!(
            "/v1/usage?run={}",
            result["run_id"].as_str().expect("a name")
        );
        let summed = payer
            .server
            .ask(&payer.key, "GET", &path, &[], &Value::Null);
        assert_eq!(summed.status, 200, "{}", summed.text());
        let row = &summed.json()["rows"][0];
        assert_eq!(
            (&row["calls"], &row["cost_nano_usd"]),
            (&json!(2), &json!(limit)),
            "{row}"
        );
        assert_eq!(
            payer
                .server
                .ask(&stranger, "GET", &path, &[], &Value::Null)
                .status,
            404,
            "not his"
        );
    }
    let served = payer.provider.await_served(|served| served.open == 0);
    assert_eq!(
        (served.count, price(&served.tokens)),
        (4, 2 * limit),
        "by the provider's own account"
    );
}

#[test]
fn the_budget_of_a_sandbox_is_one_for_all_its_programs_and_is_told_while_it_lives() {
    let payer = Payer::new();
    let good = Way::Chat.body("m", false, Some(20));
    let length = good.to_string().len() as u64;
    payer.provider.set(Script {
        tokens: 20,
        input: Some(length),
        ..Script::default()
    });
    let one = worst(length as usize, 20);
    let id = sandbox(
        &payer.server,
        &payer.key,
        &json!({ "llm": "openai", "allow_models": ["m"], "budget_usd": dollars(2 * one) }),
    );
    let ask =
        || exec(&payer.server, &payer.key, &id, &["sh", "-c", &call(&good)])["stdout"].clone();
    assert_eq!([ask(), ask(), ask()], ["200 ", "200 ", "402 "]);
    let path = format!("/v1/usage?run={id}");
    let row = payer
        .server
        .ask(&payer.key, "GET", &path, &[], &Value::Null)
        .json()["rows"][0]
        .clone();
    assert_eq!(
        (&row["calls"], &row["cost_nano_usd"]),
        (&json!(2), &json!(2 * one)),
        "{row}"
    );
}

#[test]
fn the_real_key_is_nowhere_inside_a_run_or_a_sandbox_and_in_no_answer() {
    let payer = Payer::new();
    let script = format!("{}\n{}", include_str!("../../sdk/ask.py"), look());
    let options = json!({ "llm": "openai", "inference": true, "memory": "1G" });
    for result in both(
        &payer.server,
        &payer.key,
        &options,
        &["python3", "-c", &script],
    ) {
        assert_eq!(result["stdout"], format!("200\n200\n{FOUND}"), "{result}");
        assert!(!result.to_string().contains(REAL_KEY));
    }
    let served = payer.provider.served();
    assert!(
        served.count > 0 && served.calls.iter().all(|call| call.keys == [REAL_KEY]),
        "it was used"
    );
    let holding = |folder| doors_tests::Folder(folder).holding(REAL_KEY);
    assert_eq!(
        holding(payer.server.folder.0.clone()),
        Vec::<std::path::PathBuf>::new()
    );
    assert_eq!(
        payer.folder.holding(REAL_KEY),
        [payer.folder.at("key")],
        "the control: its own file"
    );
}

/// A server in a world of its own; it listens at a path, since no address leads out of the world.
fn serve_in(world: &World) -> Server {
    let socket = format!("unix:{}", world.path("sock").display());
    let mut command = world.command(&[
        "serve", "--json", "--quiet", "--pool", "0", "--listen", &socket,
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Server::started(command, Folder::new(), None)
}

#[test]
fn only_hosts_that_were_asked_for_are_reached_from_runs_and_sandboxes() {
    let world = World::new();
    let server = serve_in(&world);
    let key = server.key(&["runs", "sandboxes"]);
    let script = "curl -sS https://a.example/; curl -sS https://b.example/ 2>&1 | grep -o 403; \
                  curl -sS --noproxy '*' --max-time 5 https://1.1.1.1/ >/dev/null 2>&1 || echo closed";
    let options = json!({ "allow_hosts": ["a.example"] });
    for result in both(&server, &key, &options, &["bash", "-c", script]) {
        assert_eq!(
            result["stdout"], "a.example says hello\n403\nclosed\n",
            "{result}"
        );
        let denied = &result["denials"][0];
        assert_eq!(
            (&denied["target"], &denied["allow_with"]),
            (&json!("b.example:443"), &json!("--allow-host b.example"))
        );
    }
    let asked: Vec<_> = world
        .queries()
        .into_iter()
        .map(|query| query.name)
        .collect();
    assert!(
        asked.iter().all(|name| name == "a.example"),
        "nobody asked for the other one: {asked:?}"
    );
    assert_eq!(world.requests().len(), 2);
}

#[test]
fn a_profiles_rules_hold_for_sandboxes_and_its_credential_stays_outside() {
    const VALUE: &str = "value-of-the-credential";
    let world = World::new();
    world.keep("example", VALUE);
    world.configure(
        "[profile.ci]\nbase = \"agent\"\n\
         [[profile.ci.egress]]\nhost = \"api.example\"\nmode = \"inspect\"\nallow = [\"GET /v1/**\"]\n\
         credential = \"example\"\n\
         [credential.example]\nkey = { secret = \"example\" }\ninject = \"bearer\"\nhosts = [\"api.example\"]\n",
    );
    world.requires(
        "api.example",
        "/v1/",
        "authorization",
        &format!("Bearer {VALUE}"),
    );
    let server = serve_in(&world);
    let key = server.key(&["sandboxes"]);
    let id = sandbox(&server, &key, &json!({ "profile": "ci" }));
    let status = |url: &str| {
        let command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", url];
        exec(&server, &key, &id, &command)["stdout"].clone()
    };
    assert_eq!(status("https://api.example/v1/things"), "200");
    assert_eq!(status("https://api.example/other"), "403", "another path");
    assert_ne!(status("https://b.example/v1/things"), "200", "another host");
    assert_eq!(world.requests().len(), 1);
    let (first, second) = VALUE.split_at(9);
    // Put together only inside, or the script itself would be what is found.
    let script = format!(
        "first={first}; second={second}; whole=$first$second; look() {{ grep -rls $whole /tmp /workspace /etc /run | wc -l; }}
         look; env -u whole | grep -c $whole; echo $whole > /tmp/there; look"
    );
    let looked = exec(&server, &key, &id, &["bash", "-c", &script]);
    assert_eq!(
        looked["stdout"], "0\n0\n1\n",
        "nowhere, and the control: {looked}"
    );
}

#[test]
fn a_secret_that_an_admin_injects_is_in_his_sandbox_and_in_no_answer() {
    const VALUE: &str = "value-of-the-injected-one";
    let world = World::new();
    world.keep("token", VALUE);
    let server = serve_in(&world);
    let order = json!({ "profile": "agent", "secrets": { "token": "TOKEN" } });
    let id = sandbox(&server, &server.admin, &order);
    let told = exec(&server, &server.admin, &id, &["sh", "-c", "echo ${#TOKEN}"]);
    assert_eq!(told["stdout"], format!("{}\n", VALUE.len()), "{told}");
    let shown = server.get(&format!("/v1/sandboxes/{id}"));
    let note = json!("the secret `token` was injected as TOKEN");
    assert!(
        shown.json()["notes"]
            .as_array()
            .is_some_and(|notes| notes.contains(&note)),
        "{}",
        shown.text()
    );
    assert!(!shown.text().contains(VALUE));
    let refused = server.ask(
        &server.key(&["sandboxes"]),
        "POST",
        "/v1/sandboxes",
        &[],
        &order,
    );
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (403, &json!("policy_denied"))
    );
}

/// An image of busybox whose user is root and which says more of itself, as `docker save` writes it.
const SAVE: &str = r#"
set -e
mkdir -p root/bin root/etc && cp "$(command -v busybox)" root/bin/busybox && ln -s busybox root/bin/sh
for name in id cat env touch; do ln -s busybox root/bin/$name; done
echo 'root:x:0:0::/:/bin/sh' > root/etc/passwd && echo from-the-image > root/greeting
tar --owner=0 --group=0 -C root -cf layer.tar .
digest=$(sha256sum layer.tar | cut -d' ' -f1)
case $(uname -m) in aarch64) machine=arm64;; *) machine=amd64;; esac
echo '{"architecture":"'$machine'","os":"linux","config":{"User":"0","Env":["COLOUR=green","PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:'$digest'"]}}' > config.json
echo '[{"Config":"config.json","RepoTags":["rooted:1"],"Layers":["layer.tar"]}]' > manifest.json
tar -cf image.tar manifest.json config.json layer.tar
"#;

fn load(server: &Server, folder: &Folder) -> Answer {
    let saved = Command::new("sh")
        .args(["-c", SAVE])
        .current_dir(&folder.0)
        .status();
    assert!(saved.is_ok_and(|saved| saved.success()), "an image");
    let archive = std::fs::read(folder.at("image.tar")).expect("it was saved");
    let head = format!(
        "POST /v1/images HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        server.client.host(),
        server.admin,
        archive.len()
    );
    server
        .client
        .open(&[head.as_bytes(), &archive].concat())
        .answer()
}

#[test]
fn an_image_of_the_store_is_what_runs_and_sandboxes_see_and_its_root_is_not_the_hosts() {
    let (server, folder) = (Server::new(), Folder::new());
    let loaded = load(&server, &folder);
    assert_eq!(loaded.status, 201, "{}", loaded.text());
    let key = server.key(&["runs", "sandboxes"]);
    let script = "cat /greeting; id -u; echo $COLOUR; cat /proc/self/uid_map; \
                  touch /greeting 2>/dev/null || echo kept; touch mine && echo written";
    for result in both(
        &server,
        &key,
        &json!({ "image": "rooted:1" }),
        &["sh", "-c", script],
    ) {
        let said = result["stdout"]
            .as_str()
            .unwrap_or_else(|| panic!("{result}"));
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(
            (lines[0], lines[2], &lines[4..]),
            ("from-the-image", "green", &["kept", "written"][..]),
            "{result}"
        );
        let mapped: Vec<_> = lines[3].split_whitespace().collect();
        assert_ne!(
            (lines[1], mapped[1]),
            ("0", "0"),
            "it is not root of the host: {said}"
        );
    }
    let missing = server.ask(
        &key,
        "POST",
        "/v1/sandboxes",
        &[],
        &json!({ "image": "absent:1" }),
    );
    assert_eq!(
        missing.json()["code"],
        "image_missing",
        "{}",
        missing.text()
    );
}
