//! Which hosts and ports are meant (cases 45, 46, 51, 55): every spelling is either one host, the same for the decision and
//! for the dial, or none; and CONNECT leads to that host and nowhere else. What was meant is seen at the name server and
//! at the servers.
//!
//! | guard | without it fails |
//! |---|---|
//! | the canonicaliser's alphabet (`spec/src/host.rs`) | `what_is_no_host_is_not_asked_for_and_not_dialled` |
//! | one spelling before the decision | `spellings_of_one_host_are_that_host` |
//! | patterns match whole labels | `a_pattern_is_for_what_is_below_it_and_nothing_like_it` |
//! | ports of a rule | `a_port_that_no_rule_names_is_closed_however_it_is_asked_for` |
//! | `has_body` (`front.rs`) | `what_follows_a_connect_goes_through_it_or_nowhere` |
//! | the box's own addresses are not dialled | `the_door_does_not_lead_to_itself` |

use egress::{RAW, World};

fn names(world: &World) -> Vec<String> {
    let mut all: Vec<_> = world
        .queries()
        .into_iter()
        .map(|query| query.name)
        .collect();
    all.sort();
    all.dedup();
    all
}

/// Targets of CONNECT, as Python has them.
const NO_HOSTS: &str = r"[
    b'a.example\0:443', b'a.example\0.b.example:443', b'a.example%00.b.example:443', b'a%2eexample:443',
    b'a.example :443', b'a.example\t:443', b'a.example\x0b:443', b' a.example:443', b'user@a.example:443',
    b'a.example@b.example:443', b'b.example#a.example:443', b'b.example?a.example:443', b'b.example/a.example:443',
    b'b.example\\a.example:443', b'a.example..:443', b'a..example:443', b'.a.example:443', b'.:443', b':443', b'',
    b'a.example', b'a.example:', b'a.example:0', b'a.example:65536', b'a.example:99999', b'a.example:-1', b'a.example:+443',
    b'a.example:000443', b'a.example:443:443', b'a.example:443/', b'a.example:https', b'a.example:4 43',
    b'b\xc3\xbccher.example:443', b'b\xfccher.example:443', b'a\xe3\x80\x82example:443', b'\xef\xbd\x81.example:443',
    b'-a.example:443', b'a-.example:443', b'*.example:443', b'a' * 64 + b'.example:443',
    b'a.' * 130 + b'example:443', b'a' * 70000 + b':443', b'a.example,b.example:443', b'a.example;b.example:443',
    b'http://a.example:443', b'https://a.example/', b'/', b'*', b'[a.example]:443', b'[::1:443', b'::1:443',
    b'[fe80::1%25lo]:443', b'[fe80::1%lo]:443', b'a.example:443\x00', b'1.2.3.4.5:443', b'256.1.1.1:443', b'a.0x1:443']";

#[test]
fn what_is_no_host_is_not_asked_for_and_not_dialled() {
    let world = World::new();
    // All public hosts are allowed: whatever of these were a host would be dialled.
    let script = format!(
        "{RAW}
TARGETS = {NO_HOSTS}
each(lambda target: connect(target)[0], TARGETS)
each(lambda target: status(b'GET http://' + target + b'/ HTTP/1.1\\r\\nHost: ' + target + b'\\r\\n\\r\\n'), [one for one in TARGETS if one not in (b'a.example', b'a.example:') and b'://' not in one and one[-1:] != b'/' and b'?' not in one and b'/' not in one and b'#' not in one])
each(lambda target: socks(target.rpartition(b':')[0].decode('latin-1')[:200], 443)[0] if len(target) < 200 and target.endswith(b':443') else 2, [b'a.example\\0:443', b'a b:443', b':443', b'a..b:443', b'*.example:443', b'user@a.example:443'])
print('control', connect('a.example:443')[0])"
    );
    let ran = world.python(&["--network", "open"], &script);
    let (refused, control) = ran.well().trim().rsplit_once('\n').expect("lines");
    assert_eq!(control, "control 200", "{ran:?}");
    for (at, told) in refused.lines().enumerate() {
        assert!(
            ["400", "403", "414", "421", "431", "closed", "2"].contains(&told),
            "{at}: {told}: {ran:?}"
        );
    }
    assert_eq!(names(&world), ["a.example"], "the control alone");
    assert_eq!(world.connections().len(), 1, "{:?}", world.connections());
}

#[test]
fn spellings_of_one_host_are_that_host() {
    let world = World::new();
    let script = format!(
        "{RAW}
def whole(target):
    told, stream = connect(target)
    return told if told != '200' else get(secure(stream, 'a.example'), 'a.example')
each(whole, ['a.example:443', 'A.EXAMPLE:443', 'a.example.:443', 'A.eXample.:0443', 'b.example:443', 'B.EXAMPLE.:443', 'a.example.b.example:443', 'xn--a-example:443'])
each(lambda name: socks(name, 443)[0], ['A.EXAMPLE.', 'B.EXAMPLE.'])
each(lambda host: status(f'GET http://{{host}}/ HTTP/1.1\\r\\nHost: {{host}}\\r\\nConnection: close\\r\\n\\r\\n'.encode()), ['A.EXAMPLE.', 'A.example:80', 'B.EXAMPLE.'])
print(socket.gethostbyname('A.EXAMPLE.') == socket.gethostbyname('a.example'), said(socket.gethostbyname, 'B.EXAMPLE.'))"
    );
    let ran = world.python(&["--allow-host", "a.example"], &script);
    let hello = "a.example says hello";
    let wanted = [
        hello,
        hello,
        hello,
        hello,
        "403",
        "403",
        "403",
        "403",
        "0",
        "2",
        "200",
        "200",
        "403",
        "True gaierror",
    ];
    assert_eq!(ran.well().lines().collect::<Vec<_>>(), wanted, "{ran:?}");
    assert_eq!(
        names(&world),
        ["a.example"],
        "what was decided on is what was asked for"
    );
    assert!(
        world
            .requests()
            .iter()
            .all(|request| request.host == "a.example"),
        "{:?}",
        world.requests()
    );
}

#[test]
fn other_letters_and_underscores_are_names_in_the_one_spelling_that_resolvers_have() {
    let world = World::new();
    let hosts = [
        "--allow-host",
        "xn--bcher-kva.example",
        "--allow-host",
        "_acme.a.example",
    ];
    let script = format!(
        "{RAW}
each(lambda target: connect(target)[0], ['xn--bcher-kva.example:443', 'XN--BCHER-KVA.EXAMPLE:443', 'b\\u00fccher.example:443', '_acme.a.example:443', 'acme.a.example:443'])"
    );
    let ran = world.python(&hosts, &script);
    assert_eq!(ran.well(), "200\n200\n400\n200\n403\n", "{ran:?}");
    assert_eq!(names(&world), ["_acme.a.example", "xn--bcher-kva.example"]);
}

#[test]
fn a_pattern_is_for_what_is_below_it_and_nothing_like_it() {
    let world = World::new();
    let script = format!(
        "{RAW}
HOSTS = ['a.good.example', 'A.b.good.example.', 'good.example', 'good.example.evil', 'evilgood.example', 'a.good.example.evil', 'a-good.example', 'agood.example']
each(lambda host: connect(host + ':443')[0], HOSTS)
each(lambda host: socks(host, 443)[0], HOSTS)
each(lambda host: socket.gethostbyname(host) and 'address', HOSTS)"
    );
    let ran = world.python(&["--allow-host", "*.good.example"], &script);
    let column = |good: &'static str, bad: &'static str| [&[good; 2][..], &[bad; 6]].concat();
    let wanted = [
        column("200", "403"),
        column("0", "2"),
        column("address", "gaierror"),
    ]
    .concat();
    assert_eq!(ran.well().lines().collect::<Vec<_>>(), wanted, "{ran:?}");
    assert_eq!(names(&world), ["a.b.good.example", "a.good.example"]);
}

#[test]
fn a_port_that_no_rule_names_is_closed_however_it_is_asked_for() {
    let world = World::new();
    let script = format!(
        "{RAW}
PORTS = [22, 25, 7, 5432, 6379, 8080, 8443, 1, 65535]
each(lambda port: connect(f'a.example:{{port}}')[0], PORTS)
each(lambda port: socks('a.example', port)[0], PORTS)
each(lambda port: status(f'GET http://a.example:{{port}}/ HTTP/1.1\\r\\nHost: a.example:{{port}}\\r\\n\\r\\n'.encode()), PORTS)
address = socket.gethostbyname('a.example')
def dial(port):
    stream = socket.create_connection((address, port), timeout=5)
    stream.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
    return 'reached' if stream.recv(100) else 'closed'
each(dial, PORTS)"
    );
    let ran = world.python(&["--allow-host", "a.example"], &script);
    let told: Vec<_> = ran.well().lines().collect();
    assert_eq!(told.len(), 36);
    assert!(
        told.iter()
            .all(|one| !["200", "0", "reached"].contains(one)),
        "{ran:?}"
    );
    assert!(world.connections().is_empty(), "{:?}", world.connections());
    let hosts = [22, 25, 7, 5432, 6379, 8080, 8443].map(|port| format!("a.example:{port}"));
    let options: Vec<_> = hosts
        .iter()
        .flat_map(|host| ["--allow-host", host])
        .collect();
    let ran = world.python(&options, &script);
    let told: Vec<_> = ran.well().lines().collect();
    assert!(
        told[..7].iter().all(|one| *one == "200") && told[9..16].iter().all(|one| *one == "0"),
        "the control: {ran:?}"
    );
    assert!(!world.connections().is_empty());
}

#[test]
fn what_follows_a_connect_goes_through_it_or_nowhere() {
    let world = World::new();
    let hosts = [
        "--allow-host",
        "a.example:7",
        "--allow-host",
        "a.example:8080",
    ];
    let script = format!(
        "{RAW}
# Early: a second CONNECT and a request behind the first, before its answer. They are bytes to that host.
stream = door()
stream.sendall(b'CONNECT a.example:7 HTTP/1.1\\r\\nHost: a.example:7\\r\\n\\r\\nCONNECT b.example:7 HTTP/1.1\\r\\nHost: b.example:7\\r\\n\\r\\n')
print(code(head(stream)))
print(head(stream).split(b'\\r\\n')[0].decode())
# The same behind one that is refused: nothing of it goes anywhere.
stream = door()
stream.sendall(b'CONNECT b.example:7 HTTP/1.1\\r\\nHost: b.example:7\\r\\n\\r\\nsecret')
print(code(head(stream)))
# With a body: whether that is part of it, two could read differently.
for more in (b'Content-Length: 6', b'Transfer-Encoding: chunked'):
    print(status(b'CONNECT a.example:7 HTTP/1.1\\r\\nHost: a.example:7\\r\\n' + more + b'\\r\\n\\r\\nsecret'))
# Another host in its header than in its line.
print(status(b'CONNECT a.example:7 HTTP/1.1\\r\\nHost: b.example:7\\r\\n\\r\\n'))
# Through somebody who was granted and is a proxy, too: that one is asked, not the door.
told, stream = connect('a.example:8080')
stream.sendall(b'CONNECT b.example:443 HTTP/1.1\\r\\nHost: b.example:443\\r\\n\\r\\n')
print(told, code(head(stream)))"
    );
    let ran = world.python(&hosts, &script);
    let told: Vec<_> = ran.well().lines().collect();
    assert_eq!(
        told[..5],
        ["200", "CONNECT b.example:7 HTTP/1.1", "403", "400", "400"],
        "{ran:?}"
    );
    assert_eq!(
        names(&world),
        ["a.example"],
        "nobody else was asked for: {told:?}"
    );
    let first: Vec<_> = world
        .connections()
        .into_iter()
        .map(|one| String::from_utf8_lossy(&one.first).into_owned())
        .collect();
    assert!(
        first.iter().all(|first| !first.contains("secret")),
        "{first:?}"
    );
    assert!(
        first[0].starts_with("CONNECT b.example:7"),
        "the control: early bytes pass: {first:?}"
    );
}

#[test]
fn the_door_does_not_lead_to_itself() {
    let world = World::new();
    let script = format!(
        "{RAW}
HOSTS = ['127.0.0.1', 'localhost', '[::1]', '0.0.0.0', '127.1', '[::ffff:127.0.0.1]', 'own.example']
each(lambda host: connect(host + ':3128')[0], HOSTS)
each(lambda host: connect(host + ':3129')[0], HOSTS)
each(lambda host: connect(host + ':53')[0], HOSTS)
each(lambda host: status(f'GET http://{{host}}:3128/ HTTP/1.1\\r\\nHost: {{host}}:3128\\r\\n\\r\\n'.encode()), HOSTS)
print('control', status(b'GET / HTTP/1.1\\r\\nHost: door\\r\\n\\r\\n'))"
    );
    world.resolves("own.example", &[&["127.0.0.1"]]);
    let ran = world.python(&["--network", "open"], &script);
    let (refused, control) = ran.well().trim().rsplit_once('\n').expect("lines");
    assert!(
        control.starts_with("control ") && control != "control closed",
        "{ran:?}"
    );
    assert!(refused.lines().all(|told| told == "403"), "{ran:?}");
    assert!(world.connections().is_empty());
}
