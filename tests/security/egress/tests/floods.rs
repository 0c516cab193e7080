//! One sandbox that floods its door, and another one in the same process that does not notice (cases 39 and 69). Times are
//! compared with the other one's own, quiet, and generously: what a flood could do to it is to let it wait for ever.
//!
//! | guard | without it fails |
//! |---|---|
//! | `MOST_CONNECTIONS` of a run (`egress/mod.rs`) | `more_connections_than_there_may_be` (its name, the descriptors) |
//! | `HEAD_TIME` (`front.rs`) | `a_head_that_does_not_end_is_let_go` |
//! | `LARGEST_HEAD` | `heads_that_are_too_large` |
//! | rules before questions, and what was asked is remembered (`dial.rs`) | `a_flood_of_questions` |

use egress::{RAW, World};
use serde_json::Value;
use std::time::Duration;

/// Fifty requests, one after the other, by tunnel and in the clear, and how long each took.
const POLITE: &str = r#"
took = []
for turn in range(50):
    began = time.time()
    if turn % 2:
        body = get(secure(connect('a.example:443')[1], 'a.example'), 'a.example')
    else:
        stream = door()
        stream.sendall(b'GET http://a.example/ HTTP/1.0\r\nHost: a.example\r\n\r\n')
        body = 'a.example says hello' if code(head(stream)) == '200' else 'no'
    assert body == 'a.example says hello', body
    took.append(time.time() - began)
took.sort()
print(took[25], took[-1])
"#;

/// The middle and the longest of a polite run's times.
fn times(of: &Value) -> (Duration, Duration) {
    let text = of["stdout"].as_str().expect("what it said");
    let mut all = text
        .split_ascii_whitespace()
        .map(|time| Duration::from_secs_f64(time.parse().expect("a time")));
    (
        all.next().expect("the middle"),
        all.next().expect("the longest"),
    )
}

/// Runs both; what came of the hostile one, how many descriptors and how much memory were held.
#[track_caller]
fn beside(hostile: &str) -> (World, Value) {
    let world = World::new();
    world.give("polite.py", &format!("{RAW}{POLITE}"));
    world.give("hostile.py", &format!("{RAW}{hostile}"));
    let program = env!("CARGO_BIN_EXE_neighbours");
    let output = world.outside(&format!(
        "ulimit -n $(ulimit -Hn); timeout 120 {program} state polite.py hostile.py"
    ));
    let told: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", sdk_tests::said(&output)));
    for run in ["quiet", "beside"] {
        assert_eq!(told[run]["stderr"], "", "{told:#}");
    }
    let ((quiet, _), (middle, longest)) = (times(&told["quiet"]), times(&told["beside"]));
    assert!(longest < Duration::from_secs(10), "none waits: {told:#}");
    // How much slower is the machine's business; that everybody is served is ours.
    println!("{quiet:?} became {middle:?}");
    let memory = told["memory"][1].as_u64().expect("a size");
    assert!(memory < 600 << 10, "{memory} KiB: {told:#}");
    let descriptors: Vec<u64> = told["descriptors"]
        .as_array()
        .expect("three")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    assert!(descriptors[1] < 2 * 2048 + 200, "{told:#}");
    assert!(
        descriptors[2] <= descriptors[0] + 10,
        "they are given back: {told:#}"
    );
    (world, told)
}

#[test]
fn more_connections_than_there_may_be() {
    let (_, told) = beside(
        "
held = []
for number in range(3000):
    try:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(('127.0.0.1', 3128))
        held.append(one)
    except OSError:
        break
print(len(held), file=sys.stderr)
print('ready', flush=True)
while True:
    for one in held:
        try: one.send(b'C')
        except OSError: pass
    time.sleep(1)
",
    );
    assert_eq!(
        told["hostile"]["limits_hit"],
        serde_json::json!(["Egress"]),
        "it is named: {told:#}"
    );
    assert_eq!(told["beside"]["limits_hit"], serde_json::json!([]));
}

#[test]
fn tunnels_that_are_opened_and_left() {
    let (world, told) = beside(
        "
held = []
def more(number):
    told, stream = connect('a.example:443')
    held.append(stream)
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    list(pool.map(lambda number: said(more, number), range(600)))
print('ready', flush=True)
while True:
    time.sleep(1)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: said(more, number), range(100)))
",
    );
    assert!(
        told["hostile"]["passed"].as_u64().expect("a number") >= 600,
        "the control: {told:#}"
    );
    assert!(world.connections().len() >= 600);
}

#[test]
fn heads_that_never_end() {
    beside(
        "
held = [door() for number in range(400)]
print('ready', flush=True)
while True:
    for one in held:
        said(one.sendall, b'G')
    time.sleep(0.2)
",
    );
}

#[test]
fn a_head_that_does_not_end_is_let_go() {
    let world = World::new();
    let script = format!(
        r#"{RAW}
def trickle(words):
    stream, began = door(), time.time()
    stream.settimeout(0.5)
    while time.time() - began < 40:
        try:
            stream.sendall(words)
            words = words[-1:]
            if not stream.recv(4096):
                return 'let go'
        except TimeoutError:
            pass
        except OSError:
            return 'let go'
    return 'held'
each(trickle, [b'', b'G', b'GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nX: x', b'CONNECT a.example:443 HTTP/1.1\r\nX: x', b'\x05'])"#
    );
    let ran = world.python(&["--allow-host", "a.example", "--timeout", "2m"], &script);
    assert_eq!(ran.well(), "let go\n".repeat(5), "{ran:?}");
    assert!(world.connections().is_empty(), "nothing of them arrived");
}

#[test]
fn heads_that_are_too_large() {
    let (world, _) = beside(
        "
def large(number):
    while True:
        stream = door()
        said(stream.sendall, b'GET http://a.example/ HTTP/1.1\\r\\nHost: a.example\\r\\n' + b'X: ' + b'x' * (8 << 20) + b'\\r\\n\\r\\n')
        stream.close()
for number in range(8):
    threading.Thread(target=large, args=[number], daemon=True).start()
time.sleep(0.5)
print('ready', flush=True)
time.sleep(600)
",
    );
    let polite = world
        .requests()
        .iter()
        .filter(|request| request.header("x").is_none())
        .count();
    assert_eq!(world.requests().len(), polite, "not one of them arrived");
}

#[test]
fn a_flood_of_questions() {
    let (world, _) = beside(
        "
def packet(name, number):
    labels = b''.join(bytes([len(part)]) + part.encode() for part in name.split('.'))
    return struct.pack('>HHHHHH', number & 0xffff, 0x100, 1, 0, 0, 0) + labels + b'\\0' + struct.pack('>HH', 1, 1)
def flood(which):
    one, number = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0
    while True:
        number += 1
        said(one.sendto, packet('a.example' if number % 2 else f'n{number}.denied.example', number), ('127.0.0.1', 53))
for number in range(4):
    threading.Thread(target=flood, args=[number], daemon=True).start()
time.sleep(0.5)
print('ready', flush=True)
time.sleep(600)
",
    );
    let asked = world.queries();
    assert!(
        asked.iter().all(|query| query.name == "a.example") && asked.len() < 200,
        "{}",
        asked.len()
    );
}
