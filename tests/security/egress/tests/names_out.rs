//! A question for a name is a message, too (case 50): of a name that the rules do not allow not one packet leaves, whoever
//! asks for it in whatever way. Counted at the world's name server and at its servers.
//!
//! | guard | without it fails |
//! |---|---|
//! | rules before the lookup (`forward::open`, `dns.rs`) | `nothing_is_asked_outside_for_a_name_that_is_not_allowed` |
//! | only addresses are asked for outside | `a_granted_name_carries_no_other_questions` |
//! | the `within` list (`policy.rs`) | `what_the_project_left_out_is_not_asked_for_either` |

use egress::{RAW, World};

/// Asks in each way for each of these; prints one line a way.
const EVERY_WAY: &str = r#"
def packet(name, kind, number=0x1234):
    labels = b''.join(bytes([len(part)]) + part.encode() for part in name.split('.'))
    return struct.pack('>HHHHHH', number, 0x100, 1, 0, 0, 0) + labels + b'\0' + struct.pack('>HH', kind, 1)
def question(name, kind, server='127.0.0.1'):
    one = socket.socket(socket.AF_INET6 if ':' in server else socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(0.5)
    try:
        one.sendto(packet(name, kind), (server, 53))
        answer = one.recv(4096)
        return 'answer' if answer[3] & 15 == 0 and answer[7] else 'nothing'
    except OSError:
        return 'nothing'
def by_tcp(name, server='127.0.0.1'):
    stream = socket.create_connection((server, 53), timeout=2)
    words = packet(name, 16)
    stream.sendall(struct.pack('>H', len(words)) + words)
    return 'answer' if stream.recv(512) else 'nothing'
def forward(name):
    return status(f'GET http://{name}/ HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n'.encode())
def plain(name):
    # To an allowed host by its address, with this one in its header.
    stream = socket.create_connection((socket.gethostbyname('a.example'), 80), timeout=8)
    stream.sendall(f'GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n'.encode())
    return code(head(stream))
def greeted(name):
    stream = socket.create_connection((socket.gethostbyname('a.example'), 443), timeout=8)
    return get(secure(stream, name), name)
def ways(name):
    told = []
    told.append(('CONNECT', connect(name + ':443')[0], connect(name + ':80')[0], connect(name + ':22')[0]))
    told.append(('SOCKS', socks(name, 443)[0], socks(name, 80)[0]))
    told.append(('forward', forward(name)))
    told.append(('library', said(socket.getaddrinfo, name, 443)))
    told.append(('questions', *(question(name, kind) for kind in (1, 28, 16, 15, 5, 2, 6, 33, 65, 255))))
    told.append(('elsewhere', question(name, 1, '8.8.8.8'), question(name, 16, '1.1.1.1'), question(name, 1, '2606:4700::1111')))
    told.append(('tcp', said(by_tcp, name), said(by_tcp, name, '8.8.8.8')))
    return '\n'.join(' '.join(str(word) for word in line) for line in told)
"#;

/// Names as those have them who carry something out in them.
fn telling() -> Vec<String> {
    let label = "0123456789abcdef".repeat(3);
    vec![
        "b.example".to_owned(),
        "B.Example".to_owned(),
        format!("{label}.{label}.{label}.{label}.evil.example"),
        format!("{}.evil.example", "x".repeat(63)),
        "a.example.evil.example".to_owned(),
        "secret.a.example".to_owned(),
        "1.0.0.127.in-addr.arpa".to_owned(),
        "169.254.169.254.nip.example".to_owned(),
        "metadata.google.internal".to_owned(),
        "localhost.localdomain".to_owned(),
    ]
}

#[test]
fn nothing_is_asked_outside_for_a_name_that_is_not_allowed() {
    let world = World::new();
    let script = format!("{RAW}{EVERY_WAY}\neach(ways, {:?})", telling());
    let ran = world.python(&["--allow-host", "a.example"], &script);
    let told = ran.well();
    assert!(
        !told.contains("200") && !told.contains("answer") && !told.contains("SOCKS 0"),
        "{ran:?}"
    );
    assert_eq!(
        (
            world.queries(),
            world.connections().len(),
            world.datagrams().len()
        ),
        (vec![], 0, 0)
    );
    // The control: with the rule the same leaves, and only then.
    let ran = world.python(
        &["--allow-host", "b.example"],
        &format!("{RAW}{EVERY_WAY}\nprint(ways('b.example'))"),
    );
    let told = ran.well();
    assert!(
        told.contains("CONNECT 200 200 403\nSOCKS 0 0\nforward 200\n"),
        "{ran:?}"
    );
    assert!(told.contains("questions answer"), "{ran:?}");
    assert!(
        !world.queries().is_empty()
            && world
                .queries()
                .iter()
                .all(|query| query.name == "b.example")
    );
}

#[test]
fn a_name_inside_a_connection_to_somebody_else_is_not_asked_for() {
    let world = World::new();
    let script = format!(
        "{RAW}{EVERY_WAY}\nfor name in {:?}: print(said(plain, name), said(greeted, name))\nprint(plain('a.example'), greeted('a.example'))",
        telling()
    );
    let ran = world.python(&["--allow-host", "a.example"], &script);
    let (refused, control) = ran.well().trim().rsplit_once('\n').expect("lines");
    assert_eq!(control, "200 a.example says hello", "the control: {ran:?}");
    assert!(
        !refused.contains("200") && !refused.contains("hello"),
        "{ran:?}"
    );
    assert!(
        world
            .queries()
            .iter()
            .all(|query| query.name == "a.example"),
        "{:?}",
        world.queries()
    );
    assert!(
        world
            .requests()
            .iter()
            .all(|request| request.host == "a.example")
    );
}

#[test]
fn a_granted_name_carries_no_other_questions() {
    let world = World::new();
    let script = format!("{RAW}{EVERY_WAY}\nprint(*(question('a.example', kind) for kind in (1, 28, 16, 15, 5, 2, 33, 65, 255)))
# Twenty thousand that are none, or more than one.
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(20000):
    one.sendto(os.urandom(number % 40) if number % 2 else packet('a.example', 16, number) + os.urandom(30), ('127.0.0.1', 53))
print('answer' if any(question('a.example', 1) == 'answer' for turn in range(20)) else 'nothing')");
    let ran = world.python(&["--allow-host", "a.example"], &script);
    assert!(ran.well().starts_with("answer "), "the control: {ran:?}");
    assert!(
        ran.well().ends_with("\nanswer\n"),
        "it goes on answering: {ran:?}"
    );
    let asked = world.queries();
    assert!(
        asked
            .iter()
            .all(|query| query.name == "a.example" && ["A", "AAAA"].contains(&query.kind.as_str())),
        "{asked:?}"
    );
    assert!(
        asked.len() < 20,
        "what was asked for is remembered: {}",
        asked.len()
    );
}

#[test]
fn what_the_project_left_out_is_not_asked_for_either() {
    let world = World::new();
    world.configure("[[profile.restrictive.egress]]\nhost = \"*.example\"\nmode = \"tunnel\"\n");
    world.give("airlock.toml", "allow_hosts = [\"a.example\"]\n");
    let script = format!(
        "{RAW}{EVERY_WAY}\nprint(ways('b.example'))\nprint('control', connect('a.example:443')[0])"
    );
    let ran = world.python(&[], &script);
    assert!(ran.well().ends_with("control 200\n"), "{ran:?}");
    assert_eq!(ran.well().matches("200").count(), 1, "{ran:?}");
    assert!(
        world
            .queries()
            .iter()
            .all(|query| query.name == "a.example"),
        "{:?}",
        world.queries()
    );
    // Nor is it granted later.
    let mut run = world.begin(
        &["--run-id", "mine"],
        "echo ready; read; curl -s -o /dev/null -w '%{http_connect}\\n' https://b.example/",
    );
    assert_eq!(run.line(), "ready");
    assert!(
        !world
            .airlock(&["grant", "mine", "b.example", "--for", "1m"])
            .status
            .success()
    );
    run.go_on();
    assert_eq!(run.line(), "403");
    run.end();
    assert!(
        world
            .queries()
            .iter()
            .all(|query| query.name == "a.example"),
        "{:?}",
        world.queries()
    );
    std::fs::remove_file(world.path("airlock.toml")).expect("it was there");
    assert!(
        world.python(&[], &script).well().starts_with("CONNECT 200"),
        "the control: without the list it may"
    );
}
