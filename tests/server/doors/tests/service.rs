//! `airlock proxy` as a process: one owner, a clean end, nothing left, and nobody else at the admin's socket.

use doors_tests::{
    Answer, Door, Ending, Folder, House, OWN_KEY, Proxy, REAL_KEY, chat, configuration,
    last_record, proxy, request,
};
use provider::{Fault, Provider, Settings};
use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::Command,
};

fn openai() -> Value {
    json!({ "provider": "openai" })
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path)
        .expect("it is there")
        .permissions()
        .mode()
        & 0o777
}

#[test]
fn a_signal_ends_it_in_order_and_nothing_is_left() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut house = House::new();
        let session = house.register(&json!({ "provider": "openai", "socket": true }));
        house.provider.next(Fault::Hold(2));
        let mut stream = house.stream(&session.token, "m");
        stream.until("tok1");
        let (status, said) = house.proxy.end(signal);
        assert_eq!((status.code(), said.as_str()), (Some(0), ""));
        let answer = stream.finish_at_once();
        assert!(
            answer.ending == Ending::Short && answer.text().contains("The session was ended"),
            "{answer:?}"
        );
        assert_eq!(
            fs::read_dir(house.folder.at("state/doors"))
                .expect("a folder")
                .count(),
            0
        );
        assert_eq!(last_record(&house.folder.at("state"))["kind"], "close");
    }
}

#[test]
fn after_a_crash_the_next_one_sweeps_and_serves() {
    let mut house = House::new();
    let session = house.register(&json!({ "provider": "openai", "socket": true }));
    let folder = session
        .socket
        .as_ref()
        .and_then(|socket| socket.parent())
        .expect("a folder")
        .to_owned();
    house.provider.next(Fault::Hold(2));
    let mut stream = house.stream(&session.token, "m");
    stream.until("tok1");
    assert!(folder.is_dir());
    house.restart(Signal::KILL);
    assert!(!folder.exists(), "what a dead owner left is gone");
    assert_eq!(
        house.status(&session.token),
        401,
        "sessions do not outlive their service"
    );
    let session = house.register(&openai());
    assert_eq!(house.status(&session.token), 200);
}

#[test]
fn a_state_folder_has_one_owner() {
    let mut house = House::new();
    let second = proxy(&house.folder, &[]).output().expect("airlock starts");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(125), "{said}");
    assert!(
        said.contains("belongs to another process") && said.contains("--state"),
        "{said}"
    );
    let elsewhere = Folder::new();
    fs::copy(house.folder.at("config.toml"), elsewhere.at("config.toml")).expect("a configuration");
    drop(Proxy::start(&mut proxy(&elsewhere, &[])));
    let session = house.register(&openai());
    assert_eq!(
        house.status(&session.token),
        200,
        "the first one has not noticed"
    );
    house.restart(Signal::TERM);
}

#[test]
fn a_damaged_ledger_says_what_is_damaged_and_what_setting_it_aside_costs() {
    let folder = House::new().folder;
    let ledger = folder.at("state/ledger/owner.jsonl");
    let whole = fs::read_to_string(&ledger).expect("a ledger");
    fs::write(&ledger, whole.replacen("open", "shut", 1)).expect("damage");
    let refused = proxy(&folder, &[]).output().expect("airlock starts");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125), "{said}");
    for words in [
        "owner.jsonl`, line 1: ",
        "airlock usage --verify",
        "today's spending of tenants from zero",
    ] {
        assert!(said.contains(words), "{said}");
    }
    assert!(!said.contains("stop the other"), "{said}");
    fs::rename(&ledger, folder.at("aside")).expect("it can be set aside");
    drop(Proxy::start(&mut proxy(&folder, &[])));
}

#[test]
fn other_machines_are_not_let_in_by_accident() {
    let folder = Folder::new();
    fs::write(folder.at("config.toml"), "").expect("a configuration");
    let refused = proxy(&folder, &["--listen", "0.0.0.0:0"])
        .output()
        .expect("airlock starts");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125));
    assert!(said.contains("is reachable from other machines"), "{said}");
    assert!(!folder.at("state").exists(), "and nothing was made");
    let options = ["--listen", "0.0.0.0:0", "--dangerously-listen-publicly"];
    drop(Proxy::start(&mut proxy(&folder, &options)));
}

#[test]
fn sockets_and_token_are_nobody_elses() {
    let house = House::with(
        "",
        &[
            "--admin-listen",
            "127.0.0.1:0",
            "--admin-token-file",
            "admin-token",
        ],
    );
    let session = house.register(&json!({ "provider": "openai", "socket": true }));
    let socket = session.socket.expect("a socket");
    let state = house.folder.at("state");
    assert_eq!(mode(&state.join("doors")), 0o700);
    assert_eq!(mode(&state.join("doors/admin.sock")), 0o600);
    assert_eq!(
        (mode(socket.parent().expect("a folder")), mode(&socket)),
        (0o700, 0o600)
    );
    assert_eq!(mode(&house.folder.at("admin-token")), 0o600);
    let limits =
        fs::read_to_string(format!("/proc/{}/limits", house.proxy.pid)).expect("its limits");
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .expect("one for dumps");
    assert_eq!(
        core.split_whitespace().filter(|word| *word == "0").count(),
        2,
        "{core}"
    );
}

/// A request of another user, by curl: its exit status and the answer's.
fn as_user(user: u32, socket: &Path, method: &str) -> (Option<i32>, String) {
    let mut curl = Command::new("curl");
    curl.args([
        "-s",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-X",
        method,
        "--unix-socket",
    ]);
    curl.arg(socket)
        .arg("http://admin/v1/sessions")
        .uid(user)
        .gid(user);
    let output = curl.output().expect("prerequisite: curl");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// What only root can show. Nobody else is told that it was shown.
fn is_root(claim: &str) -> bool {
    let root = geteuid().is_root();
    assert!(
        root || std::env::var_os("AIRLOCK_TEST_ALL").is_none(),
        "prerequisite: root, to show that {claim}"
    );
    if !root {
        eprintln!("NOT SHOWN without root: {claim}");
    }
    root
}

#[test]
fn another_user_is_no_admin_even_with_the_socket_in_hand() {
    if !is_root("another user is no admin") {
        return;
    }
    let folder = Folder::new();
    let path = folder.at("admin.sock");
    let house = House::with("", &["--admin-socket", path.to_str().expect("text")]);
    assert_eq!(as_user(0, &path, "GET"), (Some(0), "200".into()));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("it is ours");
    let (status, answer) = as_user(65534, &path, "GET");
    assert!(status != Some(0) && answer == "000", "{status:?} {answer}");
    assert_eq!(house.admin("GET", "/v1/sessions", &Value::Null).status, 200);
    drop(house);
}

#[test]
fn a_container_of_another_user_reaches_its_socket_and_can_put_nothing_beside_it() {
    if !is_root("a socket can be another user's") {
        return;
    }
    let house = House::new();
    let session =
        house.register(&json!({ "provider": "openai", "socket": true, "socket_uid": 65534 }));
    let socket = session.socket.expect("a socket");
    let (found, beside) = (
        fs::metadata(&socket).expect("a socket"),
        socket.parent().expect("a folder"),
    );
    assert_eq!(
        (found.uid(), mode(&socket), mode(beside)),
        (65534, 0o600, 0o711)
    );
    assert_eq!(fs::metadata(beside).expect("a folder").uid(), 0);
    // As a container sees it: the session's folder and nothing above.
    let shown = Folder::new();
    let script = format!(
        "mount --bind {} {} && exec setpriv --reuid=65534 --regid=65534 --clear-groups curl -s -o /dev/null \
         -w '%{{http_code}}' --unix-socket {}/llm.sock http://door/health",
        beside.display(),
        shown.0.display(),
        shown.0.display()
    );
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .output()
        .expect("prerequisite: unshare");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "200",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn an_ordinary_user_can_serve() {
    if !is_root("the service needs no root") {
        return;
    }
    const USER: u32 = 65534;
    let provider = Provider::start(Settings {
        keys: vec![REAL_KEY.into()],
        ..Settings::default()
    });
    let folder = Folder::new();
    fs::write(folder.at("config.toml"), configuration(&provider, &folder))
        .expect("a configuration");
    fs::copy(cli::airlock(), folder.at("airlock")).expect("a copy");
    for path in ["key", "config.toml", ""] {
        chown(folder.at(path), Some(USER), Some(USER)).expect("it is theirs");
    }
    let mut command = Command::new(folder.at("airlock"));
    command
        .args(["proxy", "--json", "--listen", "127.0.0.1:0"])
        .env_clear()
        .uid(USER)
        .gid(USER);
    command
        .arg("--config")
        .arg(folder.at("config.toml"))
        .arg("--state")
        .arg(folder.at("state"));
    let mut proxy = Proxy::start(&mut command);
    let order = json!({ "provider": "openai", "socket": true });
    let told = proxy
        .admin
        .ask(&request("POST", "/v1/sessions", &[], &order));
    assert_eq!(told.status, 201, "{}", told.text());
    let socket = Door::Unix(told.json()["socket"].as_str().expect("a socket").into());
    assert_eq!(
        socket
            .ask(&request("POST", "/v1/chat/completions", &[], &chat("m")))
            .status,
        200
    );
    let other = json!({ "provider": "openai", "socket": true, "socket_uid": 0 });
    let refused = proxy
        .admin
        .ask(&request("POST", "/v1/sessions", &[], &other));
    assert!(
        refused.status == 422 && refused.text().contains("needs root"),
        "{}",
        refused.text()
    );
    let (status, said) = proxy.end(Signal::TERM);
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
    assert_eq!(
        fs::read_dir(folder.at("state/doors"))
            .expect("a folder")
            .count(),
        0,
        "nothing is left"
    );
}

/// The status, the code and the detail of a refusal.
fn problem(answer: &Answer) -> (u16, String, String) {
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json"),
        "{}",
        answer.text()
    );
    let told = answer.json();
    assert_eq!(told["status"], answer.status);
    let text = |name: &str| told[name].as_str().expect("a text").to_owned();
    (answer.status, text("code"), text("detail"))
}

#[test]
fn the_admin_explains_what_it_refuses() {
    let house = House::with("[tenant.acme]\nday_usd = 5.0\n", &[]);
    for (body, status, words) in [
        (
            json!({ "provider": "nobody" }),
            400,
            "no provider is called `nobody`",
        ),
        (
            json!({ "provider": "openai", "upstream_url": "http://169.254.169.254" }),
            400,
            "`upstream_url` is not taken",
        ),
        (
            json!({ "provider": "openai", "modles": [] }),
            400,
            "unknown field `modles`",
        ),
        (
            json!({ "provider": "openai", "tenant": "acne" }),
            400,
            "no tenant is called `acne`",
        ),
        (
            json!({ "provider": "openai", "api_key": "a\r\nb: c" }),
            400,
            "no HTTP header can carry",
        ),
        (json!({}), 400, "missing field `provider`"),
        (
            json!({ "provider": "a".repeat(70_000) }),
            413,
            "larger than 65536 bytes",
        ),
    ] {
        let (got, _, detail) = problem(&house.admin("POST", "/v1/sessions", &body));
        assert!(got == status && detail.contains(words), "{got} {detail}");
    }
    for (method, path, status) in [
        ("GET", "/nowhere", 404),
        ("GET", "/", 404),
        ("PUT", "/v1/sessions", 405),
        ("GET", "/v1/reload", 405),
        ("GET", "/v1/sessions/nobody", 404),
        ("GET", "/v1/sessions/nobody/usage", 404),
        ("POST", "/v1/chat/completions", 404),
    ] {
        assert_eq!(
            problem(&house.admin(method, path, &Value::Null)).0,
            status,
            "{method} {path}"
        );
    }
    let acme = house.register(&json!({ "provider": "openai", "tenant": "acme" }));
    assert_eq!(house.status(&acme.token), 200, "the positive control");
    let usage = house.admin("GET", "/v1/usage", &Value::Null).json();
    assert_eq!(usage["tenants"]["acme"]["calls"], 1, "{usage}");
}

#[test]
fn limits_of_a_session_are_its_own() {
    let house = House::new();
    let models = house.register(&json!({ "provider": "openai", "models": ["allowed-*"] }));
    let ask = |token: &str, model: &str| {
        house
            .call(token, "/v1/chat/completions", &chat(model))
            .status
    };
    assert_eq!(
        (ask(&models.token, "allowed-1"), ask(&models.token, "other")),
        (200, 403)
    );
    let requests = house.register(&json!({ "provider": "openai", "budget": { "requests": 1 } }));
    assert_eq!(
        (ask(&requests.token, "m"), ask(&requests.token, "m")),
        (200, 402)
    );
    let key = house.register(&json!({ "provider": "openai", "api_key": OWN_KEY }));
    assert_eq!(ask(&key.token, "m"), 200);
    let keys: Vec<_> = house
        .provider
        .served()
        .calls
        .iter()
        .flat_map(|call| call.keys.clone())
        .collect();
    assert_eq!(keys, [REAL_KEY, REAL_KEY, OWN_KEY]);
    let inference = house.register(&json!({ "inference": true, "socket": true }));
    let socket = Door::Unix(inference.socket.expect("a socket"));
    assert_eq!(
        socket
            .ask(&request("GET", "/api/tags", &[], &Value::Null))
            .status,
        200
    );
    assert_eq!(
        socket
            .ask(&request("POST", "/api/pull", &[], &json!({ "model": "m" })))
            .status,
        404
    );
}

#[test]
fn what_would_be_decided_can_be_asked_beforehand() {
    let house = House::new();
    let session = house.register(
        &json!({ "provider": "openai", "models": ["good-*"], "budget": { "usd": "0.50" } }),
    );
    let check = |method: &str, path: &str, model: &str| {
        let body =
            json!({ "session": session.token, "method": method, "path": path, "model": model });
        let answer = house.admin("POST", "/v1/check", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        (
            answer.json()["decision"].clone(),
            answer.json()["rule"].clone(),
        )
    };
    assert_eq!(
        check("POST", "/v1/chat/completions", "good-1"),
        (json!("allow"), Value::Null)
    );
    assert_eq!(
        check("POST", "/v1/chat/completions", "bad"),
        (json!("deny"), json!("allow_models"))
    );
    assert_eq!(
        check("POST", "/v1/files", "good-1"),
        (json!("deny"), json!("routes"))
    );
    assert_eq!(
        check("GET", "/v1/chat/completions", "good-1"),
        (json!("deny"), json!("routes"))
    );
    assert_eq!(
        check("POST", "/v1/messages", "good-1"),
        (json!("deny"), json!("dialect"))
    );
    assert_eq!(
        house.provider.served().count,
        0,
        "nothing was asked of the provider"
    );
}

#[test]
fn a_changed_configuration_is_read_on_request_and_a_broken_one_changes_nothing() {
    let house = House::new();
    let reload = || house.admin("POST", "/v1/reload", &Value::Null).status;
    let register = |provider: &str| {
        house
            .admin("POST", "/v1/sessions", &json!({ "provider": provider }))
            .status
    };
    let (path, session) = (house.folder.at("config.toml"), house.register(&openai()));
    let text = fs::read_to_string(&path).expect("a configuration");
    let renamed = text.replace("[provider.claude]", "[provider.renamed]");
    assert_eq!((register("claude"), register("renamed")), (201, 400));
    fs::write(&path, "[provider.claude\n").expect("it is ours");
    assert_eq!(
        (reload(), register("claude"), register("renamed")),
        (422, 201, 400),
        "the last good one is in force"
    );
    fs::write(&path, renamed).expect("it is ours");
    assert_eq!(
        (reload(), register("claude"), register("renamed")),
        (200, 400, 201)
    );
    assert_eq!(house.status(&session.token), 200, "who was there stays");
}
