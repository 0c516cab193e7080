//! The first message of a tunnel (case 52): it asks for the server that the tunnel was opened to, in a way that nobody can
//! read otherwise, or nothing of it arrives; and whoever does not finish it waits for nobody. Port 7 of the world echoes, so
//! what arrived is seen byte by byte. How bytes are read: `doors/src/egress/client_hello_tests.rs`; a program that knows no proxy:
//! `unaware.rs`.
//!
//! | guard | without it fails |
//! |---|---|
//! | `check_hello` (`forward.rs`) | `a_first_message_asks_for_the_host_of_its_tunnel_or_does_not_arrive` |
//! | one name and no other (`hello.rs`) | the same, with two names |
//! | nothing but TLS at 443 | `at_443_there_is_nothing_but_tls` |
//! | `HELLO_TIME` | `who_never_finishes_is_let_go` |
//! | `check_other_name` | `by_a_bare_address_the_name_in_the_message_is_judged` |

use egress::{RAW, SERVER_V4, World};

/// Builds first messages: those of a real client, taken apart and put together again.
const HELLOS: &str = r#"
def counted(size, data):
    return len(data).to_bytes(size, 'big') + data
def extension(kind, value):
    return kind.to_bytes(2, 'big') + counted(2, value)
def named(*entries):
    return extension(0, counted(2, b''.join(bytes([kind]) + counted(2, name) for kind, name in entries)))
def parts():
    context, out = ssl.create_default_context(), ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname='a.example')
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    message = out.read()[5:]
    at = 4 + 2 + 32
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at:at + 2], 'big')
    at += 1 + message[at]
    opening, rest, extensions = message[4:at], message[at + 2:], []
    while rest:
        size = 4 + int.from_bytes(rest[2:4], 'big')
        if rest[:2] != b'\0\0':
            extensions.append(rest[:size])
        rest = rest[size:]
    return opening, extensions
def message(first, last=()):
    opening, extensions = parts()
    return b'\x01' + counted(3, opening + counted(2, b''.join([*first, *extensions, *last])))
def records(message, size=16384):
    return b''.join(b'\x16\x03\x01' + counted(2, message[at:at + size]) for at in range(0, len(message), size))
GOOD = named((0, b'a.example'))
FAR = [extension(21, bytes(3000))]
"#;

const AT_PORT_7: &str = r#"
PASS = {
    'good': records(message([GOOD])),
    'large letters': records(message([named((0, b'A.EXAMPLE'))])),
    'in the second record': records(message([], [GOOD]), 200),
    'behind large keys': records(message(FAR, [GOOD])),
    'of forty thousand bytes': records(message([extension(21, bytes(40000))], [GOOD])),
}
REFUSE = {
    'another name': records(message([named((0, b'b.example'))])),
    'another name that begins like it': records(message([named((0, b'a.example.b.example'))])),
    'a name below it': records(message([named((0, b'x.a.example'))])),
    'no name': records(message([])),
    'an empty name': records(message([named((0, b''))])),
    'no entry': records(message([named()])),
    'two names': records(message([named((0, b'a.example'), (0, b'b.example'))])),
    'two names, the good one last': records(message([named((0, b'b.example'), (0, b'a.example'))])),
    'two lists': records(message([GOOD], [named((0, b'b.example'))])),
    'a name of another kind': records(message([named((1, b'a.example'))])),
    'an address': records(message([named((0, b'93.184.216.34'))])),
    'a name with NUL': records(message([named((0, b'a.example\0b.example'))])),
    'a hidden name': records(message([GOOD], [extension(0xfe0d, bytes(200))])),
    'another name behind large keys': records(message(FAR, [named((0, b'b.example'))])),
    'another name in the second record': records(message([], [named((0, b'b.example'))]), 200),
    'of more bytes than are waited for': records(message([extension(21, bytes(65535 - 4 - len(GOOD) - sum(map(len, parts()[1]))))], [GOOD])),
    'in a hundred records': records(message([GOOD]), 4),
    'an alert before it': b'\x15\x03\x03\x00\x02\x01\x00' + records(message([GOOD])),
    'another kind of record between': records(message([GOOD])[:50]) + b'\x14\x03\x03\x00\x01\x01' + records(message([GOOD])[50:]),
    'a server\'s message': b'\x16\x03\x01' + counted(2, b'\x02' + message([GOOD])[1:]),
    'records of nothing': b'\x16\x03\x01\0\0' * 50 + records(message([GOOD])),
    'another version': b'\x16\x02' + records(message([GOOD]))[2:],
}
def sent(words, piece=1 << 20):
    told, stream = connect('a.example:7')
    assert told == '200', told
    for at in range(0, len(words), piece):
        stream.sendall(words[at:at + piece])
    back = b''
    while len(back) < len(words):
        read = stream.recv(65536)
        if not read:
            break
        back += read
    # A refusal is in words of TLS.
    return 'passes' if back == words else 'refused' if back[:1] in (b'', b'\x15') else back
for name, words in PASS.items():
    print(said(sent, words), name)
print(said(sent, PASS['good'], 1), 'byte by byte')
for name, words in REFUSE.items():
    print(said(sent, words), name)
"#;

#[test]
fn a_first_message_asks_for_the_host_of_its_tunnel_or_does_not_arrive() {
    let world = World::new();
    let ran = world.python(
        &["--allow-host", "a.example:7", "--allow-host", "b.example:7"],
        &format!("{RAW}{HELLOS}{AT_PORT_7}"),
    );
    let (passing, refused): (Vec<_>, Vec<_>) = ran
        .well()
        .lines()
        .partition(|line| line.starts_with("passes "));
    assert_eq!(passing.len(), 6, "{ran:?}");
    for line in &refused {
        assert!(
            ["refused ", "ConnectionResetError ", "BrokenPipeError "]
                .iter()
                .any(|word| line.starts_with(word)),
            "{line}"
        );
    }
    assert_eq!(refused.len(), 22);
    let arrived: Vec<_> = world
        .connections()
        .into_iter()
        .filter(|one| !one.first.is_empty())
        .collect();
    assert_eq!(
        arrived.len(),
        6,
        "nothing of the others arrived: {arrived:?}"
    );
    // A rule may allow what hides a name.
    world.configure("[[profile.restrictive.egress]]\nhost = \"a.example\"\nports = [7]\nmode = \"tunnel\"\nallow_hidden_name = true\n");
    let hidden = format!(
        "{RAW}{HELLOS}{}\nprint(sent(REFUSE['a hidden name']))",
        AT_PORT_7
            .split("for name, words in PASS")
            .next()
            .expect("it has")
    );
    assert_eq!(world.python(&[], &hidden).well(), "passes\n");
}

#[test]
fn at_443_there_is_nothing_but_tls() {
    let world = World::new();
    world.configure(
        "[[profile.restrictive.egress]]\nhost = \"inside.example\"\nmode = \"inspect\"\n",
    );
    let script = format!(
        r#"{RAW}{HELLOS}
WORDS = [b'SSH-2.0-OpenSSH_9.9\r\n', b'GET / HTTP/1.1\r\nHost: a.example\r\n\r\n', b'CONNECT b.example:443 HTTP/1.1\r\n\r\n', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', b'\x80\x2e\x01\x03\x01', b'\0' * 100, b'\x05\x01\x00', b'\xff' * 70000, b'\x17\x03\x03\x00\x10' + bytes(16)]
def sent(host, words):
    told, stream = connect(host + ':443')
    stream.sendall(words)
    back = stream.recv(65536)
    return told + (' refused' if back[:1] in (b'', b'\x15') else repr(back))
for host in ('a.example', 'inside.example'):
    for words in WORDS:
        print(said(sent, host, words))
for host in ('a.example', 'inside.example'):
    print(get(secure(connect(host + ':443')[1], host), host))"#
    );
    let ran = world.python(&["--allow-host", "a.example"], &script);
    let told: Vec<_> = ran.well().lines().collect();
    assert_eq!(
        told[18..],
        ["a.example says hello", "inside.example says hello"],
        "the control: {ran:?}"
    );
    assert!(
        told[..18]
            .iter()
            .all(|one| *one == "200 refused" || *one == "ConnectionResetError"),
        "{ran:?}"
    );
    assert_eq!(world.requests().len(), 2, "{:?}", world.requests());
    assert!(
        world
            .connections()
            .iter()
            .filter(|one| one.sni.is_some())
            .count()
            == 2
    );
}

#[test]
fn who_never_finishes_is_let_go() {
    let world = World::new();
    world.configure(
        "[[profile.restrictive.egress]]\nhost = \"inside.example\"\nmode = \"inspect\"\n",
    );
    let script = format!(
        r#"{RAW}{HELLOS}
whole = records(message([GOOD]))
def unfinished(what):
    host, words = what
    told, stream = connect(host + ':443')
    stream.sendall(words)
    stream.settimeout(30)
    began = time.time()
    while stream.recv(4096):
        pass
    return 'let go' if time.time() - began < 20 else 'held'
each(unfinished, [(host, words) for host in ('a.example', 'inside.example') for words in (b'', b'\x16', whole[:5], whole[:60], whole[:-1])])
print(get(secure(connect('a.example:443')[1], 'a.example'), 'a.example'))"#
    );
    let ran = world.python(&["--allow-host", "a.example"], &script);
    let told: Vec<_> = ran.well().lines().collect();
    assert!(
        told[..10]
            .iter()
            .all(|one| *one == "let go" || *one == "ConnectionResetError"),
        "{ran:?}"
    );
    assert_eq!(told[10], "a.example says hello", "the control");
    assert!(
        world
            .connections()
            .iter()
            .filter(|one| one.sni.is_some())
            .count()
            == 1
    );
}

#[test]
fn real_clients_that_ask_for_another_server_reach_nobody() {
    let world = World::new();
    let hosts = ["--allow-host", "a.example"];
    let client =
        "openssl s_client -quiet -verify_quiet -proxy 127.0.0.1:3128 -connect a.example:443";
    let ask = "printf 'GET / HTTP/1.0\\r\\nHost: b.example\\r\\n\\r\\n'";
    for way in [
        format!("{ask} | {client} -servername b.example"),
        format!("{ask} | {client} -noservername"),
        "curl -sS -m 8 --connect-to b.example:443:a.example:443 https://b.example/".to_owned(),
        "curl -sS -m 8 --connect-to a.example:443:b.example:443 https://a.example/".to_owned(),
        "curl -sS -m 8 --noproxy '*' --resolve b.example:443:$(getent hosts a.example | cut -d' ' -f1) https://b.example/".to_owned(),
        "curl -sS -m 8 -H 'Host: b.example' --noproxy '*' http://a.example/ --fail".to_owned(),
        "curl -sS -m 8 -H 'Host: b.example' http://a.example/ --fail".to_owned(),
    ] {
        world.clear();
        let ran = world.run(&hosts, &way);
        assert!(!ran.stdout.contains("says hello"), "{way}: {ran:?}");
        assert!(world.requests().is_empty(), "{way}: {:?}", world.requests());
        assert!(world.connections().iter().all(|one| one.sni.is_none()), "{way}: {:?}", world.connections());
    }
    let control = format!("{ask} | {client} -servername a.example");
    let ran = world.run(&hosts, &control);
    // Inside the tunnel the request is between the client and that server: only a rule that looks inside sees it.
    assert!(ran.stdout.contains("says hello"), "the control: {ran:?}");
    assert_eq!(
        world
            .connections()
            .last()
            .and_then(|one| one.sni.clone())
            .as_deref(),
        Some("a.example")
    );
}

#[test]
fn by_a_bare_address_the_name_in_the_message_is_judged() {
    let world = World::new();
    let script = format!(
        "{RAW}
for name in ('b.example', 'a.example'):
    print(said(lambda: get(secure(connect('{SERVER_V4}:443')[1], name), name)))"
    );
    let ran = world.python(
        &["--allow-host", SERVER_V4, "--allow-host", "a.example"],
        &script,
    );
    let told: Vec<_> = ran.well().lines().collect();
    assert_eq!(told[1], "a.example says hello", "the control: {ran:?}");
    assert!(!told[0].contains("hello"), "{ran:?}");
    assert!(
        world
            .connections()
            .iter()
            .all(|one| one.sni.as_deref() != Some("b.example"))
    );
}
