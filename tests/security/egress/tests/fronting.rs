//! Another request than the one that was judged (cases 53, 54, 56, 57): another host inside a connection that was opened to
//! a granted one, another protocol, the same in the clear. What was understood is what the servers wrote down. `inspect.rs`
//! has more: each request of a connection, bad certificates, upgrades, bodies.
//!
//! | guard | without it fails |
//! |---|---|
//! | `check_host` (`target.rs`) | `inside_tls_that_ends_here_each_request_is_for_the_host_of_the_connection` |
//! | the same judge for requests in the clear | `in_the_clear_the_same_is_judged_by_every_way` |
//! | paths in one spelling (`request_path.rs`) | the same |

use egress::{RAW, World};

/// Sends these bytes inside TLS to `inside.example` and reads to the end; the statuses of all answers.
const INSIDE: &str = r#"
def statuses(words):
    stream = secure(connect('inside.example:443')[1], 'inside.example')
    stream.settimeout(3)
    answer = b''
    try:
        stream.sendall(words)
        while piece := stream.recv(65536):
            answer += piece
    except OSError:
        pass
    return ' '.join(part.split(b' ')[0].decode() for part in answer.split(b'HTTP/1.1 ')[1:]) or 'closed'
def request(host, path='/', line=None, more=b''):
    return (line or b'GET ' + path.encode() + b' HTTP/1.1') + b'\r\nHost: ' + host.encode() + b'\r\n' + more + b'\r\n'
GOOD = request('inside.example')
CLOSE = b'Connection: close\r\n'
"#;

fn looked_into(more: &str) -> World {
    let world = World::new();
    world.configure(&format!(
        "[[profile.restrictive.egress]]\nhost = \"inside.example\"\nmode = \"inspect\"\n{more}\n"
    ));
    world
}

#[test]
fn inside_tls_that_ends_here_each_request_is_for_the_host_of_the_connection() {
    let world = looked_into("");
    let script = format!(
        r#"{RAW}{INSIDE}
each(lambda words: statuses(words.replace(b'\r\n\r\n', b'\r\nConnection: close\r\n\r\n', 1)), [
    request('b.example'),
    request('inside.example.b.example'),
    request('inside.example:80'),
    request('inside.example@b.example'),
    request('inside.example, b.example'),
    request(''),
    request('inside.example', more=b'Host: b.example\r\n'),
    request('b.example', more=b'Host: inside.example\r\n'),
    request('inside.example', line=b'GET https://b.example/ HTTP/1.1'),
    request('inside.example', line=b'GET http://inside.example/ HTTP/1.1'),
    request('inside.example', line=b'GET https://inside.example:8443/ HTTP/1.1'),
    request('b.example:443', line=b'CONNECT b.example:443 HTTP/1.1'),
    request('inside.example:443', line=b'CONNECT inside.example:443 HTTP/1.1'),
    b'GET / HTTP/1.1\r\n\r\n',
    b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
])
print('second', statuses(GOOD + request('b.example') + request('inside.example', more=CLOSE)))
print('control', statuses(GOOD + request('INSIDE.example.:443', more=CLOSE)))
context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])
context.set_alpn_protocols(['h2', 'http/1.1'])
print(context.wrap_socket(connect('inside.example:443')[1], server_hostname='inside.example').selected_alpn_protocol())
context.set_alpn_protocols(['h2'])
print(said(lambda: context.wrap_socket(connect('inside.example:443')[1], server_hostname='inside.example').selected_alpn_protocol()))"#
    );
    let ran = world.python(&["--allow-host", "b.example"], &script);
    let told: Vec<_> = ran.well().lines().collect();
    for (at, line) in told[..15].iter().enumerate() {
        assert!(
            ["421", "400", "403", "closed"].contains(line),
            "{at}: {line}: {ran:?}"
        );
    }
    assert!(told[15].starts_with("second 200 421"), "{ran:?}");
    assert_eq!(told[16], "control 200 200", "{ran:?}");
    assert_ne!(told[17], "h2", "nobody looks into HTTP/2: {ran:?}");
    assert_ne!(told[18], "h2", "{ran:?}");
    assert!(
        world
            .requests()
            .iter()
            .all(|one| one.host == "inside.example" && one.target == "/"),
        "{:?}",
        world.requests()
    );
    // The third behind the second may pass: it is judged by itself.
    assert!(
        (3..=4).contains(&world.requests().len()),
        "{:?}",
        world.requests()
    );
    assert!(
        world
            .queries()
            .iter()
            .all(|query| query.name == "inside.example"),
        "{:?}",
        world.queries()
    );
}

#[test]
fn in_the_clear_the_same_is_judged_by_every_way() {
    let script = format!(
        r#"{RAW}
REQUESTS = [('GET', '/v1/a'), ('POST', '/v1/a'), ('GET', '/v2'), ('GET', '/v1/../v2'), ('GET', '/v1/%2e%2e/v2'), ('GET', '//v2'), ('GET', '/v1%2f..%2fv2'), ('DELETE', '/v1/a'), ('BREW', '/v1/a')]
def words(method, path, host='inside.example'):
    return f'{{method}} {{path}} HTTP/1.1\r\nHost: {{host}}\r\nConnection: close\r\n\r\n'.encode()
def asked(stream, words):
    stream.sendall(words)
    return code(head(stream))
for method, path in REQUESTS:
    forward = words(method, 'http://inside.example' + path)
    print(status(forward),
          said(lambda: asked(connect('inside.example:80')[1], words(method, path))),
          said(lambda: asked(socks('inside.example', 80)[1], words(method, path))),
          said(lambda: asked(socket.create_connection(('inside.example', 80), timeout=8), words(method, path))))
for host in ('b.example', 'inside.example:8080', ''):
    print(said(lambda: asked(connect('inside.example:80')[1], words('GET', '/v1/a', host))),
          said(lambda: asked(socket.create_connection(('inside.example', 80), timeout=8), words('GET', '/v1/a', host))))"#
    );
    let rule = "allow = [\"GET /v1/**\"]\n";
    let world = looked_into(&format!("{rule}allow_plain_http = true"));
    let ran = world.python(&[], &script);
    let told: Vec<_> = ran.well().lines().collect();
    assert_eq!(told[0], "200 200 200 200", "the control: {ran:?}");
    for line in &told[1..] {
        assert!(
            line.split(' ')
                .all(|one| ["403", "400", "421", "closed", "ConnectionResetError"].contains(&one)),
            "{line}: {ran:?}"
        );
    }
    let came: Vec<_> = world
        .requests()
        .into_iter()
        .map(|one| (one.method, one.target, one.host))
        .collect();
    assert_eq!(came.len(), 4, "{came:?}");
    assert!(
        came.iter().all(|(method, target, host)| method == "GET"
            && target == "/v1/a"
            && host == "inside.example"),
        "{came:?}"
    );
    // Without that word, nothing at all in the clear.
    let world = looked_into(rule);
    let ran = world.python(&[], &script);
    assert!(!ran.well().contains("200"), "{ran:?}");
    assert!(world.requests().is_empty(), "{:?}", world.requests());
}

#[test]
fn what_a_connection_becomes_is_judged_too() {
    let world = looked_into("allow = [\"GET /socket\", \"POST /echo\", \"GET /v1/**\"]");
    let script = format!(
        r#"{RAW}{INSIDE}
upgrade = b'Connection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n'
# A switch leaves no connection behind by which anything could pass.
for kind in (b'websocket', b'h2c', b'TLS/1.0', b'x'):
    print(statuses(request('inside.example', '/socket', more=upgrade % kind) + request('inside.example', '/v2', more=CLOSE)))
# Who waits to be told to go on is told, or refused; the body is never taken for a request.
hidden = request('inside.example', '/v1/hidden')
print(statuses(request('inside.example', line=b'POST /echo HTTP/1.1', more=b'Expect: 100-continue\r\nContent-Length: %d\r\nConnection: close\r\n' % len(hidden)) + hidden))
print(statuses(request('inside.example', line=b'POST /v2 HTTP/1.1', more=b'Expect: 100-continue\r\nContent-Length: %d\r\nConnection: close\r\n' % len(hidden)) + hidden))
# Trailers are no headers, and HTTP/1.0 no way around the rule.
print(statuses(request('inside.example', line=b'POST /echo HTTP/1.1', more=b'Transfer-Encoding: chunked\r\nTrailer: X-Late\r\nConnection: close\r\n') + b'2\r\nhi\r\n0\r\nX-Late: late\r\nHost: b.example\r\n\r\n'))
for path in (b'/v2', b'/v1/a'):
    stream = secure(connect('inside.example:443')[1], 'inside.example')
    stream.sendall(b'GET ' + path + b' HTTP/1.0\r\nConnection: keep-alive\r\n\r\n')
    print(code(head(stream)))"#
    );
    let ran = world.python(&[], &script);
    let told: Vec<_> = ran.well().lines().collect();
    // A WebSocket is refused; other offers are not passed on, and the request is answered as if they were not there.
    assert_eq!(
        told[..4],
        ["403 403", "200 403", "200 403", "200 403"],
        "{ran:?}"
    );
    assert!(
        told[4].ends_with("200") && told[5].ends_with("403"),
        "{ran:?}"
    );
    assert_eq!(told[6..], ["200", "403", "200"], "{ran:?}");
    let came: Vec<_> = world
        .requests()
        .into_iter()
        .map(|one| format!("{} {}", one.method, one.target))
        .collect();
    let plain = ["GET /socket"; 3];
    assert_eq!(
        came,
        [&plain[..], &["POST /echo", "POST /echo", "GET /v1/a"]].concat()
    );
    assert!(
        world
            .requests()
            .iter()
            .all(|one| one.header("upgrade").is_none())
    );
    assert!(
        world
            .requests()
            .iter()
            .all(|one| one.header("x-late").is_none() && one.host == "inside.example")
    );
}

#[test]
fn the_authority_of_a_run_ends_with_it() {
    let world = looked_into("");
    let mut run = world.begin(
        &["--run-id", "mine"],
        "cat $SSL_CERT_FILE; echo; echo END; read",
    );
    let mut text = String::new();
    loop {
        match run.line() {
            line if line == "END" => break,
            line => text.push_str(&format!("{line}\n")),
        }
    }
    assert!(world.path("state/doors/mine.pem").exists(), "the control");
    run.go_on();
    run.end();
    assert!(
        !world.path("state/doors/mine.pem").exists(),
        "it is nowhere on the host"
    );
    // Another run's door has another authority: who trusts the old one alone trusts nobody.
    let own = text
        .rsplit("-----BEGIN CERTIFICATE-----")
        .next()
        .expect("a certificate");
    let script = format!(
        "cat >old.pem <<'END'\n-----BEGIN CERTIFICATE-----{own}END\ntac $SSL_CERT_FILE | sed '/BEGIN CERT/q' | tac >own.pem
for file in old own; do curl -sS --cacert $file.pem https://inside.example/ 2>&- ; echo $?; done"
    );
    let ran = world.run(&[], &script);
    // 60: the certificate cannot be trusted.
    assert_eq!(ran.well(), "60\ninside.example says hello\n0\n", "{ran:?}");
    assert_eq!(world.requests().len(), 1);
}
