//! The key stays outside: whatever a provider sends back, whatever a program sends along, and whoever looks at the service.

use doors_tests::{
    Answer, Door, Folder, House, Proxy, REAL_KEY, chat, configuration, proxy, request,
    streamed_chat,
};
use provider::{Fault, Provider, Script, Settings, Tls, Verbatim};
use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const CHAT: &str = "/v1/chat/completions";

fn openai() -> Value {
    json!({ "provider": "openai" })
}

/// One of each way to ask: the provider's name here, the path, the body.
fn ways() -> Vec<(&'static str, &'static str, Value)> {
    let contents = json!({ "contents": [{ "parts": [{ "text": "hello" }] }] });
    let messages = json!([{ "role": "user", "content": "hello" }]);
    vec![
        ("openai", CHAT, chat("m")),
        ("openai", CHAT, streamed_chat("m")),
        (
            "openai",
            "/v1/responses",
            json!({ "model": "m", "input": "hello" }),
        ),
        (
            "openai",
            "/v1/responses",
            json!({ "model": "m", "input": "hello", "stream": true }),
        ),
        (
            "claude",
            "/v1/messages",
            json!({ "model": "m", "max_tokens": 9, "messages": messages }),
        ),
        (
            "claude",
            "/v1/messages",
            json!({ "model": "m", "max_tokens": 9, "stream": true, "messages": messages }),
        ),
        (
            "gemini",
            "/v1beta/models/m:generateContent",
            contents.clone(),
        ),
        (
            "gemini",
            "/v1beta/models/m:streamGenerateContent?alt=sse",
            contents.clone(),
        ),
        ("gemini", "/v1beta/models/m:streamGenerateContent", contents),
        (
            "ollama",
            "/api/chat",
            json!({ "model": "m", "messages": messages }),
        ),
        (
            "ollama",
            "/api/chat",
            json!({ "model": "m", "messages": messages, "stream": false }),
        ),
    ]
}

/// Calls each way in turn, with a session of its own; the answers.
fn call_all_ways(house: &House, order: impl Fn() -> Option<Script>) -> Vec<Answer> {
    let call = |(provider, path, body): (&str, &str, Value)| {
        let session = house.register(&json!({ "provider": provider }));
        if let Some(script) = order() {
            house.provider.next(script);
        }
        house.call(&session.token, path, &body)
    };
    ways().into_iter().map(call).collect()
}

fn has_key(answer: &Answer) -> bool {
    answer
        .raw
        .windows(REAL_KEY.len())
        .any(|part| part == REAL_KEY.as_bytes())
}

/// A file's text is in the configuration of the provider `openai`, and that alone.
fn only_openai(folder: &Folder, base: &str, key: &[u8], more: &str) {
    fs::write(folder.at("key"), key).expect("a key");
    fs::set_permissions(folder.at("key"), fs::Permissions::from_mode(0o600)).expect("its rights");
    let text = format!(
        "[provider.openai]\ndialect = \"openai\"\nbase = \"{base}\"\nkey = {{ file = \"{}\" }}\nretries = 0\n{more}\n\
         [prices.\"*\"]\ninput = 1.0\noutput = 2.0\n",
        folder.at("key").display()
    );
    fs::write(folder.at("config.toml"), text).expect("a configuration");
}

#[test]
fn a_key_that_the_provider_sends_back_is_blanked_in_every_dialect_and_however_it_is_split() {
    let house = House::new();
    for split in [None, Some(1), Some(3), Some(7), Some(64)] {
        let script = Script {
            split,
            ..Fault::EchoHeaders.into()
        };
        for (answer, (.., path, _)) in call_all_ways(&house, || Some(script.clone()))
            .iter()
            .zip(ways())
        {
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            assert!(
                !has_key(answer),
                "{path} in pieces of {split:?}: {}",
                answer.text()
            );
        }
    }
    let served = house.provider.served();
    assert!(
        served.calls.iter().all(|call| call.keys == [REAL_KEY]),
        "each had the key to send back"
    );
    // The control: without a door between, the same answer has the key in it.
    house.provider.next(Fault::EchoHeaders);
    let bearer = format!("Bearer {REAL_KEY}");
    let direct = Door::Tcp(house.provider.address());
    assert!(has_key(&direct.ask(&request(
        "POST",
        CHAT,
        &[("authorization", &bearer)],
        &chat("m")
    ))));
}

#[test]
fn a_key_in_an_error_or_in_a_header_of_the_provider_does_not_pass() {
    let house = House::with_patience("retries = 0");
    let session = house.register(&openai());
    for status in [400, 401, 403, 404, 413, 422, 429, 500, 503, 529] {
        house.provider.next(Fault::ErrorWithKey(status));
        let answer = house.call(&session.token, CHAT, &chat("m"));
        assert!(
            !has_key(&answer) && !answer.text().contains("sk-canary"),
            "{status}: {}",
            answer.text()
        );
        // Of a refused credential nobody inside is told anything but that.
        let hidden = [401, 403].contains(&status);
        assert_eq!(
            answer.status,
            if hidden { 502 } else { status },
            "{}",
            answer.text()
        );
        assert_eq!(
            answer.json()["error"]["code"] == "upstream_credentials",
            hidden,
            "{}",
            answer.text()
        );
    }
    house.provider.next(Script {
        verbatim: Some(Verbatim {
            headers: vec![
                ("content-type".into(), "application/json".into()),
                ("x-request-id".into(), format!("req-{REAL_KEY}")),
                ("x-ratelimit-limit-requests".into(), REAL_KEY.into()),
                ("request-id".into(), "req-harmless".into()),
            ],
            body: json!({ "choices": [], "usage": { "prompt_tokens": 1, "completion_tokens": 1 } })
                .to_string(),
            ..Verbatim::default()
        }),
        ..Script::default()
    });
    let answer = house.call(&session.token, CHAT, &chat("m"));
    assert!(answer.status == 200 && !has_key(&answer), "{answer:?}");
    assert_eq!(
        answer.header("request-id"),
        Some("req-harmless"),
        "others pass"
    );
}

#[test]
fn a_redirect_is_not_followed_and_not_told() {
    let house = House::new();
    let elsewhere = Provider::start(Settings::default());
    let session = house.register(&openai());
    let same = format!("{}/v1/chat/completions", house.provider.base());
    let other = format!("{}/v1/chat/completions", elsewhere.base());
    for (code, location) in [301, 302, 303, 307, 308]
        .into_iter()
        .flat_map(|code| [(code, same.as_str()), (code, other.as_str())])
    {
        house.provider.reset();
        house.provider.next(Fault::Redirect {
            code,
            location: location.to_owned(),
        });
        let answer = house.call(&session.token, CHAT, &chat("m"));
        assert_eq!(
            (answer.status, answer.header("location")),
            (502, None),
            "{code} {location}"
        );
        assert!(
            !String::from_utf8_lossy(&answer.raw).contains("127.0.0.1"),
            "{}",
            answer.text()
        );
        assert_eq!(answer.json()["error"]["code"], "upstream_redirect");
        assert_eq!(
            house.provider.served().count,
            1,
            "{code}: nobody went there, and nobody asked again"
        );
    }
    assert_eq!(elsewhere.served().connections, 0);
    assert_eq!(house.status(&session.token), 200, "the positive control");
}

#[test]
fn what_a_provider_says_to_browsers_is_not_passed_on() {
    let house = House::new();
    for answer in call_all_ways(&house, || Some(Fault::Cookies.into())) {
        let names: Vec<_> = answer
            .headers
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let known = [
            "content-type",
            "content-length",
            "x-request-id",
            "transfer-encoding",
            "connection",
            "date",
        ];
        assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
        assert_eq!(
            answer.header("x-request-id"),
            Some("req_mock"),
            "what may pass does"
        );
    }
}

/// What a program might try to be, or to lead astray, by headers.
const HOSTILE: [(&str, &str); 30] = [
    ("x-api-key", "sk-theirs"),
    ("api-key", "sk-theirs"),
    ("x-goog-api-key", "sk-theirs"),
    ("cookie", "session=theirs"),
    ("forwarded", "for=theirs;host=theirs"),
    ("x-forwarded-for", "theirs"),
    ("x-forwarded-host", "theirs"),
    ("x-forwarded-proto", "theirs"),
    ("x-real-ip", "theirs"),
    ("via", "1.1 theirs"),
    ("proxy-authorization", "Basic theirs"),
    ("proxy-connection", "keep-alive"),
    ("x-foo", "nominated-theirs"),
    ("te", "trailers"),
    ("trailer", "x-theirs"),
    ("keep-alive", "timeout=1"),
    ("upgrade", "h2c"),
    ("http2-settings", "AAMAAABkAAQCAAAAAAIAAAAA"),
    ("x-litellm-end-user-id", "theirs"),
    ("x-litellm-tags", "theirs"),
    ("x-portkey-custom-host", "http://127.0.0.1:1"),
    ("x-portkey-api-key", "theirs"),
    ("helicone-target-url", "http://127.0.0.1:1"),
    ("openai-organization", "theirs"),
    ("openai-project", "theirs"),
    ("x-http-method-override", "DELETE"),
    ("accept-encoding", "gzip"),
    ("content-encoding", "identity"),
    ("user-agent", "theirs"),
    ("range", "bytes=0-9"),
];

#[test]
fn only_headers_of_a_list_reach_the_provider() {
    let house = House::new();
    let own = |name: &'static str| {
        [
            "host",
            "accept-encoding",
            "user-agent",
            "content-type",
            "content-length",
            name,
        ]
        .map(str::to_owned)
    };
    for (provider, path, body, expected, beta) in [
        (
            "openai",
            CHAT,
            chat("m"),
            own("authorization"),
            "openai-beta",
        ),
        (
            "claude",
            "/v1/messages",
            json!({ "model": "m", "max_tokens": 9, "messages": [] }),
            own("x-api-key"),
            "anthropic-beta",
        ),
        (
            "gemini",
            "/v1beta/models/m:generateContent",
            json!({ "contents": [] }),
            own("x-goog-api-key"),
            "",
        ),
        (
            "ollama",
            "/api/chat",
            json!({ "model": "m", "messages": [] }),
            own("authorization"),
            "",
        ),
    ] {
        let session = house.register(&json!({ "provider": provider, "socket": true }));
        let token = format!("Bearer {}", session.token);
        let first = [
            ("authorization", token.as_str()),
            ("content-type", "application/json"),
            ("openai-beta", "theirs-and-harmless"),
            ("anthropic-beta", "theirs-and-harmless"),
        ];
        let headers = [first.as_slice(), &HOSTILE].concat();
        house.provider.reset();
        // Hop by hop, and nominated to be so.
        let asked = request("POST", path, &headers, &body);
        let asked = String::from_utf8(asked).expect("text").replacen(
            "\r\n",
            "\r\nconnection: close, x-foo, authorization, content-type\r\n",
            1,
        );
        let answer = house.proxy.listen.open(asked.as_bytes()).finish();
        assert_eq!(answer.status, 200, "{provider}: {}", answer.text());
        let served = house.provider.served();
        let call = &served.calls[0];
        let mut names: Vec<_> = call.headers.iter().map(|(name, _)| name.clone()).collect();
        let mut expected = expected.to_vec();
        expected.extend((!beta.is_empty()).then(|| beta.to_owned()));
        names.sort();
        expected.sort();
        assert_eq!(names, expected, "{provider}");
        let values = call
            .headers
            .iter()
            .filter(|(name, _)| !name.ends_with("-beta"));
        let values: Vec<_> = values.map(|(_, value)| value.as_str()).collect();
        assert!(
            !values.iter().any(|value| value.contains("theirs")),
            "{values:?}"
        );
        assert_eq!(
            (call.keys.clone(), call.header("accept-encoding")),
            (vec![REAL_KEY.into()], Some("identity"))
        );
        assert_eq!(
            call.header("host"),
            Some(house.provider.address().to_string().as_str())
        );
    }
}

#[test]
fn a_key_that_is_no_header_opens_no_session() {
    let provider = Provider::start(Settings::default());
    for (key, good) in [
        (b"sk-good".as_slice(), true),
        (b"sk-good\n", true),
        (b"sk-a\r\nx-injected: yes", false),
        (b"sk-a\nb", false),
        (b"sk-a\rb", false),
        (b"sk-a\0b", false),
        ("sk-\u{fc}ber".as_bytes(), false),
        (b"", false),
    ] {
        provider.reset();
        let folder = Folder::new();
        only_openai(
            &folder,
            &provider.base(),
            key,
            "allow_plain_http = true\nallow_private = true",
        );
        let running = Proxy::start(&mut proxy(&folder, &[]));
        let told = running
            .admin
            .ask(&request("POST", "/v1/sessions", &[], &openai()));
        assert_eq!(told.status == 201, good, "{key:?}: {}", told.text());
        assert!(
            good || !String::from_utf8_lossy(&told.raw).contains("sk-"),
            "{}",
            told.text()
        );
        if good {
            let bearer = format!("Bearer {}", told.json()["token"].as_str().expect("a token"));
            let asked = request("POST", CHAT, &[("authorization", &bearer)], &chat("m"));
            assert_eq!(running.listen.ask(&asked).status, 200);
            assert_eq!(provider.served().calls[0].keys, ["sk-good"]);
        }
    }
}

/// What an openssl command makes in this folder.
fn openssl(folder: &Path, arguments: &[&str]) {
    let done = Command::new("openssl")
        .args(arguments)
        .current_dir(folder)
        .stderr(Stdio::null())
        .status();
    assert!(
        done.expect("prerequisite: openssl").success(),
        "openssl {arguments:?}"
    );
}

/// An authority of the test's own, and a certificate it gave for this name that was good from one date to another.
fn issued(name: &str, from: &str, to: &str) -> (Tls, Vec<u8>) {
    let folder = Folder::new();
    let settings = format!(
        "[ca]\ndefault_ca=own\n[own]\nnew_certs_dir=.\ndatabase=index\nserial=serial\nprivate_key=ca.key\n\
         certificate=ca.pem\ndefault_md=sha256\npolicy=any\nx509_extensions=leaf\n[any]\ncommonName=supplied\n\
         [leaf]\nsubjectAltName={name}\nbasicConstraints=critical,CA:FALSE\n"
    );
    for (file, text) in [
        ("settings", settings.as_str()),
        ("index", ""),
        ("serial", "01"),
    ] {
        fs::write(folder.at(file), text).expect("a file");
    }
    let curve = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ];
    let authority = [
        "-days",
        "2",
        "-subj",
        "/CN=authority",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
    ];
    let constraints = ["-addext", "basicConstraints=critical,CA:TRUE"];
    openssl(
        &folder.0,
        &[
            &["req", "-x509"],
            &curve[..],
            &authority[..],
            &constraints[..],
        ]
        .concat(),
    );
    let asked = [
        "-subj",
        "/CN=server",
        "-keyout",
        "server.key",
        "-out",
        "server.csr",
    ];
    openssl(&folder.0, &[&["req"], &curve[..], &asked[..]].concat());
    let signed = [
        "-in",
        "server.csr",
        "-out",
        "server.pem",
        "-startdate",
        from,
        "-enddate",
        to,
    ];
    openssl(
        &folder.0,
        &[
            &["ca", "-batch", "-notext", "-config", "settings"],
            &signed[..],
        ]
        .concat(),
    );
    let read = |file: &str| fs::read(folder.at(file)).expect("openssl wrote it");
    (
        Tls {
            certificates: read("server.pem"),
            key: read("server.key"),
        },
        read("ca.pem"),
    )
}

/// What a call is answered by a provider with these certificates, trusted by these; and what the provider saw.
fn over_tls(tls: Tls, trusted: Option<&[u8]>, host: &str) -> (Answer, provider::Served) {
    let provider = Provider::start(Settings {
        tls: Some(tls),
        ..Settings::default()
    });
    let folder = Folder::new();
    let mut more = "allow_private = true\n".to_owned();
    if let Some(certificates) = trusted {
        fs::write(folder.at("ca.pem"), certificates).expect("certificates");
        more += &format!("ca = \"{}\"\n", folder.at("ca.pem").display());
    }
    let base = format!("https://{host}:{}", provider.address().port());
    only_openai(&folder, &base, REAL_KEY.as_bytes(), &more);
    let running = Proxy::start(&mut proxy(&folder, &[]));
    let told = running
        .admin
        .ask(&request("POST", "/v1/sessions", &[], &openai()));
    assert_eq!(told.status, 201, "{}", told.text());
    let bearer = format!("Bearer {}", told.json()["token"].as_str().expect("a token"));
    let answer = running.listen.ask(&request(
        "POST",
        CHAT,
        &[("authorization", &bearer)],
        &chat("m"),
    ));
    (answer, provider.served())
}

#[test]
fn the_key_travels_only_to_whom_a_certificate_names() {
    const LONG_AGO: &str = "20200101000000Z";
    const SOON: &str = "20980101000000Z";
    let (good, authority) = issued("IP:127.0.0.1", LONG_AGO, SOON);
    let (answer, served) = over_tls(good.clone(), Some(&authority), "127.0.0.1");
    assert_eq!(
        (answer.status, served.calls[0].keys.clone()),
        (200, vec![REAL_KEY.to_owned()]),
        "the control"
    );
    let (expired, of_expired) = issued("IP:127.0.0.1", LONG_AGO, "20200201000000Z");
    let (future, of_future) = issued("IP:127.0.0.1", "20970101000000Z", SOON);
    let (misnamed, of_misnamed) = issued("DNS:provider.example", LONG_AGO, SOON);
    let (_, stranger) = issued("IP:127.0.0.1", LONG_AGO, SOON);
    let own = Tls::self_signed("IP:127.0.0.1");
    for (what, tls, trusted) in [
        ("signed by a stranger", good.clone(), Some(&stranger)),
        ("signed by nobody this system knows", good, None),
        ("signed by itself", own, Some(&authority)),
        ("expired", expired, Some(&of_expired)),
        ("not good yet", future, Some(&of_future)),
        ("for another name", misnamed, Some(&of_misnamed)),
    ] {
        let (answer, served) = over_tls(tls, trusted.map(Vec::as_slice), "127.0.0.1");
        assert_eq!(answer.status, 502, "{what}: {}", answer.text());
        assert_eq!(
            answer.json()["error"]["code"],
            "upstream_unreachable",
            "{what}"
        );
        assert!(
            !answer.text().contains("127.0.0.1"),
            "{what}: {}",
            answer.text()
        );
        assert!(
            served.connections > 0 && served.count == 0,
            "{what}: it was called, and told nothing"
        );
    }
}

#[test]
fn an_address_without_tls_gets_no_key_unless_the_operator_says_so() {
    let provider = Provider::start(Settings::default());
    for (more, serves) in [("", false), ("allow_plain_http = true\n", true)] {
        let folder = Folder::new();
        only_openai(
            &folder,
            &provider.base(),
            b"sk-key",
            &format!("allow_private = true\n{more}"),
        );
        if serves {
            drop(Proxy::start(&mut proxy(&folder, &[])));
            continue;
        }
        let said = Proxy::refusal(&mut proxy(&folder, &[]));
        assert!(said.contains("is not encrypted"), "{said}");
    }
    assert_eq!(provider.served().connections, 0);
}

#[test]
fn after_all_kinds_of_traffic_the_key_is_nowhere_but_in_its_file() {
    let mut house = House::with_patience("retries = 0\nidle = \"300ms\"\nttfb = \"2s\"");
    let faults = [
        Fault::EchoHeaders,
        Fault::ErrorWithKey(400),
        Fault::ErrorWithKey(401),
        Fault::ErrorWithKey(500),
        Fault::Cut(2),
        Fault::Stall(2),
        Fault::BadFraming(1),
        Fault::Reset,
        Fault::HeaderFlood(200),
        Fault::Poison,
        Fault::NoUsage,
    ];
    for fault in faults {
        for answer in call_all_ways(&house, || Some(fault.clone().into())) {
            assert!(!has_key(&answer), "{fault:?}: {}", answer.text());
        }
    }
    for path in ["/v1/sessions", "/v1/usage", "/v1/health"] {
        let answer = house.admin("GET", path, &Value::Null);
        assert!(answer.status == 200 && !has_key(&answer), "{path}");
    }
    let calls = house.provider.served().calls.len();
    assert!(
        house
            .provider
            .served()
            .calls
            .iter()
            .filter(|call| call.keys == [REAL_KEY])
            .count()
            > 99,
        "{calls}"
    );
    for part in ["environ", "cmdline"] {
        let told = fs::read(format!("/proc/{}/{part}", house.proxy.pid)).expect("root reads it");
        assert!(!String::from_utf8_lossy(&told).contains(REAL_KEY), "{part}");
    }
    let (status, said) = house.proxy.end(Signal::TERM);
    assert!(status.success() && !said.contains("canary"), "{said}");
    assert_eq!(
        house.folder.holding(REAL_KEY),
        [house.folder.at("key")],
        "the test sees what files hold"
    );
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

/// Whether this user can read that file of a process.
fn can_read(user: u32, path: PathBuf) -> bool {
    let mut head = Command::new("head");
    head.args(["-c", "1"])
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    head.uid(user)
        .gid(user)
        .status()
        .expect("head starts")
        .success()
}

#[test]
fn the_services_own_user_cannot_look_into_it() {
    if !is_root("the service's own user cannot look into it") {
        return;
    }
    const USER: u32 = 65534;
    let provider = Provider::start(Settings::default());
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
    let running = Proxy::start(&mut command);
    let mut other = Command::new("cat");
    let mut other = other
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .uid(USER)
        .gid(USER)
        .spawn()
        .expect("cat");
    for part in ["environ", "maps", "fd/0"] {
        let of = |pid: u32| PathBuf::from(format!("/proc/{pid}/{part}"));
        assert!(!can_read(USER, of(running.pid)), "{part}");
    }
    assert!(
        can_read(USER, format!("/proc/{}/maps", other.id()).into()),
        "the control: a process like others"
    );
    drop(other.stdin.take());
    other.wait().expect("it ends with its input");
}
