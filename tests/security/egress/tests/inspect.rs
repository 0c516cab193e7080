//! Rules that look inside: each request is judged, the real key is put in outside and is nowhere inside, and what the
//! server says back is looked at, too.

use doors_tests::REAL_KEY;
use egress::{Ran, SERVER_V4, World};
use sdk_tests::look::{FOUND, look};

/// A host whose requests are looked at and have the key put in, by these words of the rule.
fn with_rule(more: &str) -> World {
    let world = World::new();
    world.keep("api", REAL_KEY);
    world.configure(&format!(
        "[[profile.restrictive.egress]]\nhost = \"api.example\"\nmode = \"inspect\"\ncredential = \"api\"\n{more}
[credential.api]\nkey = {{ secret = \"api\" }}\ninject = \"bearer\"\nhosts = [\"api.example\"]\n"
    ));
    world
}

/// The key of each request that came, as the server saw it.
fn keys(world: &World) -> Vec<Option<String>> {
    world
        .requests()
        .iter()
        .map(|request| request.header("authorization").map(str::to_owned))
        .collect()
}

fn real() -> Option<String> {
    Some(format!("Bearer {REAL_KEY}"))
}

#[track_caller]
fn has_no_key(ran: &Ran) {
    assert!(
        !ran.json.to_string().contains(REAL_KEY) && !ran.said.contains(REAL_KEY),
        "{ran:?}"
    );
}

#[test]
fn the_key_is_put_in_outside_whatever_the_program_sends() {
    let world = with_rule("");
    world.requires(
        "api.example",
        "/",
        "authorization",
        &format!("Bearer {REAL_KEY}"),
    );
    let ways = [
        "",
        "-H 'Authorization: Bearer mine'",
        "--noproxy '*'",
        "-u user:password",
        "-H 'authorization: a' -H 'Authorization: b'",
    ];
    for way in ways {
        let ran = world.run(
            &[],
            &format!("curl -sS --fail-with-body {way} https://api.example/v1/things"),
        );
        assert_eq!(ran.well(), "api.example says hello\n", "{way}");
        has_no_key(&ran);
    }
    assert_eq!(keys(&world), vec![real(); ways.len()]);
    let refused = world.outside("curl -sS https://api.example/v1/things");
    assert_eq!(
        String::from_utf8_lossy(&refused.stdout),
        "who are you?\n",
        "the control"
    );
}

#[test]
fn other_ways_to_put_a_key_in() {
    let world = World::new();
    world.keep("api", REAL_KEY);
    world.configure(
        "[[profile.restrictive.egress]]\nhost = \"h.example\"\nmode = \"inspect\"\ncredential = \"h\"
[[profile.restrictive.egress]]\nhost = \"b.example\"\nmode = \"inspect\"\ncredential = \"b\"
[credential.h]\nkey = { secret = \"api\" }\ninject = \"header:x-api-key\"\nhosts = [\"h.example\"]
[credential.b]\nkey = { secret = \"api\" }\ninject = \"basic:me\"\nhosts = [\"b.example\"]\n",
    );
    world
        .run(
            &[],
            "curl -sS -H 'x-api-key: mine' https://h.example/ && curl -sS https://b.example/",
        )
        .well();
    let [first, second] = &world.requests()[..] else {
        panic!("two requests")
    };
    assert_eq!(
        (first.header("x-api-key"), first.header("authorization")),
        (Some(REAL_KEY), None)
    );
    // base64 of `me:` and the key.
    assert_eq!(
        second.header("authorization"),
        Some("Basic bWU6c2stY2FuYXJ5LTRmMWU3YQ==")
    );
}

#[test]
fn the_key_is_nowhere_inside() {
    let world = with_rule("");
    let used: String = look()
        .lines()
        .filter(|line| !line.starts_with("tell(ask"))
        .map(|line| format!("{line}\n"))
        .collect();
    let script = format!(
        "import json, os, subprocess
def tell(what): print(json.dumps(what))
subprocess.run(['curl', '-sS', '-o', '/workspace/answer', 'https://api.example/echo'], check=True)
{used}"
    );
    let ran = world.python(&["--memory", "1G"], &script);
    assert_eq!(ran.well(), FOUND, "{ran:?}");
    assert_eq!(keys(&world), [real()], "the control: it was used");
    has_no_key(&ran);
    let left = world.outside(&format!("grep -rl {REAL_KEY} state"));
    assert_eq!(
        String::from_utf8_lossy(&left.stdout),
        "",
        "nor in what is written down"
    );
}

#[test]
fn only_requests_that_the_rule_allows_pass() {
    let world = with_rule("allow = [\"GET /v1/**\", \"POST /v1/items\"]");
    let status = "curl -s -o /dev/null -w '%{http_code}\\n' --path-as-is";
    for (request, allowed) in [
        ("https://api.example/v1/things", true),
        ("-I https://api.example/v1/things", true),
        ("-d x https://api.example/v1/items", true),
        ("-d x https://api.example/v1/things", false),
        ("-X DELETE https://api.example/v1/items", false),
        ("https://api.example/v2/things", false),
        ("https://api.example/v1/../v2/things", false),
        ("https://api.example/v1/%2e%2e/v2/things", false),
        ("https://api.example/v1%2f..%2fv2/things", false),
        ("https://api.example//v2/v1/", false),
        (
            "-X POST -H 'X-HTTP-Method-Override: DELETE' https://api.example/v1/items",
            true,
        ),
        ("https://api.example/", false),
    ] {
        world.clear();
        let ran = world.run(&[], &format!("{status} {request}"));
        let wanted = if allowed { "200\n" } else { "403\n" };
        let came = world.requests();
        let same = ran.stdout == wanted || !allowed && ran.stdout == "400\n";
        assert!(
            same && came.len() == usize::from(allowed),
            "{request}: {ran:?} {came:?}"
        );
        let good = |one: &egress::Request| {
            one.target.starts_with("/v1/") && one.header("x-http-method-override").is_none()
        };
        assert!(came.iter().all(good), "{request}: {came:?}");
    }
}

#[test]
fn a_refused_request_is_told_in_words_and_in_the_result() {
    let world = with_rule("allow = [\"GET /v1/**\"]");
    let ran = world.run(
        &[],
        "curl -sSi --suppress-connect-headers -X DELETE https://api.example/v1/things",
    );
    assert!(
        ran.stdout.starts_with("HTTP/1.1 403 ") && ran.stdout.contains("x-airlock-rule: "),
        "{ran:?}"
    );
    assert!(
        ran.stdout.contains("DELETE") && ran.denied()[0].contains("api.example"),
        "{ran:?}"
    );
    assert!(world.requests().is_empty());
}

#[test]
fn every_request_of_a_connection_is_judged() {
    let world = with_rule("allow = [\"GET /v1/**\"]");
    let script = "
import socket, ssl, os
stream = socket.create_connection(('127.0.0.1', 3128))
stream.sendall(b'CONNECT api.example:443 HTTP/1.1\\r\\nHost: api.example:443\\r\\n\\r\\n')
print(stream.recv(4096).split(b'\\r\\n')[0].decode())
stream = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE']).wrap_socket(stream, server_hostname='api.example')
file = stream.makefile('rb')
def ask(line, host):
    stream.sendall(f'{line} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n'.encode())
    status, size = file.readline(), 0
    while (header := file.readline()) not in (b'\\r\\n', b''):
        if header.lower().startswith(b'content-length:'):
            size = int(header.split(b':')[1])
    file.read(size)
    print(status[9:12].decode() or 'closed')
for line, host in (('GET /v1/a', 'api.example'), ('GET /v2', 'api.example'), ('GET /v1/b', 'api.example'), ('GET /v1/c', 'other.example')):
    try:
        ask(line, host)
    except OSError as error:
        print('closed')";
    let ran = world.python(&["--allow-host", "other.example"], script);
    let told: Vec<_> = ran.well().lines().skip(1).map(str::to_owned).collect();
    assert_eq!(told[..3], ["200", "403", "200"], "{ran:?}");
    assert!(
        ["421", "403", "400", "closed"].contains(&told[3].as_str()),
        "{told:?}"
    );
    let came: Vec<_> = world
        .requests()
        .into_iter()
        .map(|one| (one.host, one.target))
        .collect();
    assert_eq!(
        came,
        ["/v1/a", "/v1/b"].map(|path| ("api.example".to_owned(), path.to_owned()))
    );
}

#[test]
fn a_key_that_the_server_says_back_does_not_come_in() {
    let world = with_rule("");
    for path in [
        "/echo",
        "/echo/chunked",
        "/echo/error",
        "/echo/headers",
        "/echo/trailers",
    ] {
        // Trailers are seen only in what is raw.
        let raw = if path == "/echo/trailers" {
            "--raw"
        } else {
            ""
        };
        let ran = world.run(
            &[],
            &format!("curl -sSi {raw} -H 'TE: trailers' https://api.example{path}"),
        );
        // Trailers do not come in at all.
        let control = if raw.is_empty() {
            "host: api.example"
        } else {
            "see below"
        };
        assert!(ran.well().contains(control), "the control: {path}: {ran:?}");
        has_no_key(&ran);
    }
    let ran = world.run(&[], "curl -sS --compressed https://api.example/echo/gzip");
    assert!(
        !ran.stdout.contains(REAL_KEY),
        "what is packed is unpacked or refused: {ran:?}"
    );
    assert_eq!(keys(&world), vec![real(); 6]);
    world.says(
        "api.example",
        format!("HTTP/1.1 302 Found\r\nlocation: https://a.example/?{REAL_KEY}\r\ncontent-length: 0\r\n\r\n"),
    );
    has_no_key(&world.run(&[], "curl -sSi https://api.example/"));
}

#[test]
fn a_server_that_cannot_prove_who_it_is_gets_nothing() {
    let world = World::new();
    world.keep("api", REAL_KEY);
    world.configure(
        "[[profile.restrictive.egress]]\nhost = \"*.example\"\nmode = \"inspect\"\ncredential = \"api\"
[credential.api]\nkey = { secret = \"api\" }\ninject = \"bearer\"\nhosts = [\"*.example\"]\n",
    );
    for name in ["self-signed", "wrong-name", "expired", "stranger"] {
        for way in ["", "-k", "--noproxy '*'"] {
            let ran = world.run(
                &[],
                &format!(
                    "curl -s -o /dev/null -w '%{{http_code}}\\n' {way} https://{name}.example/"
                ),
            );
            assert_eq!(ran.stdout, "502\n", "{name} {way}: {ran:?}");
        }
    }
    assert!(world.requests().is_empty());
    assert_eq!(
        world.run(&[], "curl -sS https://good.example/").well(),
        "good.example says hello\n"
    );
}

#[test]
fn its_authority_is_for_this_run_and_these_hosts_and_its_key_is_not_inside() {
    let world = with_rule("");
    let script = "python3 - <<'END'
import os, re
text = open(os.environ['SSL_CERT_FILE']).read()
print(re.findall('-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----', text, re.S)[-1])
END
grep -rlas 'PRIVATE KEY' /airlock /etc /workspace /tmp /run /proc/*/environ >&2";
    let certificates = [0, 1].map(|_| {
        let ran = world.run(&[], script);
        assert_eq!(ran.stderr, "", "{ran:?}");
        ran.stdout
    });
    assert_ne!(certificates[0], certificates[1], "each run has its own");
    world.give("own.pem", &certificates[0]);
    let told = world.outside("openssl x509 -in own.pem -noout -text");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let constraints = told
        .split("Name Constraints")
        .nth(1)
        .expect("it has constraints");
    let permitted: Vec<_> = constraints
        .lines()
        .filter(|line| line.contains("DNS:"))
        .map(str::trim)
        .collect();
    assert_eq!(permitted, ["DNS:api.example"], "{told}");
    assert!(
        told.contains("CA:TRUE") && told.contains("Certificate Sign"),
        "{told}"
    );
    let variables = "for name in SSL_CERT_FILE REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS CURL_CA_BUNDLE GIT_SSL_CAINFO; do test -r ${!name} && echo $name; done";
    assert_eq!(world.run(&[], variables).well().lines().count(), 5);
    let ran = world.run(
        &["--allow-host", "other.example"],
        "curl -sS https://other.example/",
    );
    assert_eq!(
        ran.well(),
        "other.example says hello\n",
        "tunnels are as they were"
    );
}

#[test]
fn real_clients_trust_it_by_the_variables_alone() {
    let world = World::new();
    let rule = |host| {
        format!(
            "[[profile.agent.egress]]\nhost = \"{host}\"\nmode = \"inspect\"\nallow = [\"GET /**\"]\n"
        )
    };
    let hosts = [
        "pypi.org",
        "files.pythonhosted.org",
        "registry.npmjs.org",
        "a.example",
    ];
    world.configure(&hosts.map(rule).concat());
    world.python_package("requests", "2.99.0");
    world.node_package("left-pad", "1.99.0");
    for command in [
        "pip install --retries 0 --target lib requests",
        "npm install --no-fund --no-audit --fetch-retries 0 left-pad",
        "python3 -c 'import urllib.request; urllib.request.urlopen(\"https://a.example/\")'",
        "curl -sS -f https://a.example/ && curl -sS -f --noproxy '*' https://a.example/",
    ] {
        // Settings that this machine has for npm are not the door's.
        world
            .run(
                &[
                    "--profile",
                    "agent",
                    "--env",
                    "NPM_CONFIG_GLOBALCONFIG=/dev/null",
                ],
                command,
            )
            .well();
    }
    let came = |host: &str| {
        world
            .requests()
            .iter()
            .any(|request| request.host == host && request.tls)
    };
    assert!(hosts.into_iter().all(came), "{:?}", world.requests());
    // Whatever npm may be set to believe: Node itself, with the variable and without.
    let node = "node -e 'require(\"https\").get(\"https://a.example/\", r => process.exit(r.statusCode == 200 ? 0 : 9))'";
    world.run(&["--profile", "agent"], node).well();
    let ran = world.run(
        &["--profile", "agent"],
        &format!("unset NODE_EXTRA_CA_CERTS SSL_CERT_FILE; {node}"),
    );
    assert!(ran.badly().contains("certificate"), "{ran:?}");
}

#[test]
fn the_key_goes_nowhere_else() {
    let world = with_rule("");
    world.publish("api.example", "/moved", "text/plain", "");
    let follow = "curl -sS -L --location-trusted 'https://api.example/redirect?https://b.example/'";
    assert_eq!(
        world.run(&["--allow-host", "b.example"], follow).well(),
        "b.example says hello\n"
    );
    assert_eq!(keys(&world), [real(), None]);
    world.clear();
    // Not in the clear, and not to whoever the name leads to inside.
    world
        .run(&[], "curl -sS --fail-with-body http://api.example/")
        .badly();
    world
        .run(
            &[],
            "curl -sS --fail-with-body --noproxy '*' http://api.example/",
        )
        .badly();
    world.resolves("api.example", &[&["127.0.0.1"]]);
    world
        .run(&[], "curl -sS --fail-with-body https://api.example/")
        .badly();
    assert!(world.requests().is_empty(), "{:?}", world.requests());
    world.resolves("api.example", &[&[SERVER_V4]]);
    world
        .run(&[], "curl -sS --fail-with-body https://api.example/")
        .well();
}

/// Asks for a WebSocket; prints the status.
const UPGRADE: &str = "curl -s -o /dev/null -w '%{http_code}\\n' -m 3 --http1.1 -H 'Connection: Upgrade' \
-H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==' https://api.example/socket";

#[test]
fn a_connection_becomes_something_else_only_where_the_rule_says_so_and_has_no_key() {
    let without_key = |more: &str| {
        let world = World::new();
        let rule = "[[profile.restrictive.egress]]\nhost = \"api.example\"\nmode = \"inspect\"\n";
        world.configure(&format!("{rule}{more}\n"));
        world
    };
    for (world, status) in [
        (with_rule(""), "403\n"),
        (without_key(""), "403\n"),
        (without_key("allow_upgrade = true"), "101\n"),
    ] {
        let ran = world.run(&[], UPGRADE);
        assert_eq!(ran.stdout, status, "{ran:?}");
        assert_eq!(world.requests().len(), usize::from(status == "101\n"));
    }
}

#[test]
fn bodies_pass_as_they_are() {
    let world = with_rule("");
    let script = "set -e; head -c 3000000 /dev/zero | tr '\\0' x > big
curl -sS -H 'Expect: 100-continue' -T big https://api.example/echo | tail -n 1 | wc -c
curl -sS -H 'Transfer-Encoding: chunked' -T big https://api.example/bytes/5000000 | wc -c
curl -sS -0 --no-alpn https://api.example/bytes/10 | wc -c
curl -sS https://api.example/slow/3/50";
    // An echo keeps a mebibyte.
    let ran = world.run(&[], script);
    assert!(
        ran.well()
            .ends_with("\n5000000\n10\npiece 0\npiece 1\npiece 2\n"),
        "{ran:?}"
    );
    let sizes: Vec<_> = world
        .requests()
        .iter()
        .map(|request| request.body_bytes)
        .collect();
    assert_eq!(sizes, [3_000_000, 3_000_000, 0, 0]);
}
