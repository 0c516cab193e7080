//! Odd requests in the clear (cases 37, 54, 57): the same corpus through the door and through squid, to the same servers,
//! which write down what arrives. Through the door at most what was asked for arrives, once, at the host that was asked
//! for; never what somebody hid in a body or a header, unless squid, too, takes it for a request of its own. Where the two
//! differ, the table says why. Inside TLS: `doors/src/egress/requests/tests/framing.rs`.
//!
//! | guard | without it fails |
//! |---|---|
//! | `check_host` (`target.rs`) | `nothing_arrives_that_was_hidden` (another host in the header) |
//! | lengths in one way (`head.rs`, hyper) | `nothing_arrives_that_was_hidden` |

use egress::{RAW, Request, World};
use std::collections::{BTreeMap, BTreeSet};

/// Name and bytes; `~` is its number. What is hidden asks for `/hidden/~`.
const CORPUS: &str = r#"
HIDDEN = b'GET http://a.example/hidden/~ HTTP/1.1\r\nHost: a.example\r\n\r\n'
def get_with(more=b'', line=b'GET http://a.example/case/~ HTTP/1.1', host=b'Host: a.example\r\n', end=b'\r\n'):
    return line + b'\r\n' + host + more + end
def post(headers, body):
    return b'POST http://a.example/case/~ HTTP/1.1\r\nHost: a.example\r\n' + headers + b'\r\n\r\n' + body
def chunked(body, headers=b'Transfer-Encoding: chunked'):
    return post(headers, body)
CORPUS = [
    ('plain', get_with()),
    ('a length', post(b'Content-Length: 4', b'body')),
    ('chunks', chunked(b'4\r\nbody\r\n0\r\n\r\n')),
    ('a length and chunks', post(b'Content-Length: 4\r\nTransfer-Encoding: chunked', b'0\r\n\r\n' + HIDDEN)),
    ('chunks and a length', post(b'Transfer-Encoding: chunked\r\nContent-Length: 5', b'0\r\n\r\n' + HIDDEN)),
    ('the same length twice', post(b'Content-Length: 4\r\nContent-Length: 4', b'body')),
    ('two lengths', post(b'Content-Length: 4\r\nContent-Length: 0', b'body' + HIDDEN)),
    ('a list of lengths', post(b'Content-Length: 4, 4', b'body' + HIDDEN)),
    ('a length with a sign', post(b'Content-Length: +4', b'body' + HIDDEN)),
    ('a negative length', post(b'Content-Length: -1', HIDDEN)),
    ('a length in hexadecimal', post(b'Content-Length: 0x4', b'body' + HIDDEN)),
    ('a length beyond numbers', post(b'Content-Length: 18446744073709551620', b'body' + HIDDEN)),
    ('a length in two words', post(b'Content-Length: 4 4', b'body' + HIDDEN)),
    ('chunks by another name', post(b'Transfer-Encoding: xchunked', b'0\r\n\r\n' + HIDDEN)),
    ('chunks and identity', post(b'Transfer-Encoding: chunked, identity', b'0\r\n\r\n' + HIDDEN)),
    ('chunks and another', post(b'Transfer-Encoding: chunked\r\nTransfer-Encoding: x', b'0\r\n\r\n' + HIDDEN)),
    ('chunks twice', post(b'Transfer-Encoding: chunked, chunked', b'0\r\n\r\n' + HIDDEN)),
    ('a space before the colon of chunks', post(b'Transfer-Encoding : chunked\r\nContent-Length: 4', b'0\r\n\r\n' + HIDDEN)),
    ('folded chunks', post(b'Transfer-Encoding:\r\n chunked\r\nContent-Length: 4', b'0\r\n\r\n' + HIDDEN)),
    ('a folded header', get_with(b'X: a\r\n b\r\n')),
    ('a folded first header', b'GET http://a.example/case/~ HTTP/1.1\r\n X: a\r\nHost: a.example\r\n\r\n'),
    ('line feeds alone', b'GET http://a.example/case/~ HTTP/1.1\nHost: a.example\n\n'),
    ('a line feed alone in a header', get_with(b'X: a\nContent-Length: 70\r\n') + HIDDEN),
    ('a carriage return alone in a header', get_with(b'X: a\rContent-Length: 70\r\n') + HIDDEN),
    ('NUL in a header', get_with(b'X: a\0b\r\n')),
    ('a space before a colon', get_with(b'X : a\r\n')),
    ('a header without a colon', get_with(b'X\r\n')),
    ('a header without a name', get_with(b': x\r\n')),
    ('a space in a name', get_with(b'X Y: z\r\n')),
    ('a chunk with a sign', chunked(b'+4\r\nbody\r\n0\r\n\r\n' + HIDDEN)),
    ('a chunk with spaces', chunked(b' 4 \r\nbody\r\n0\r\n\r\n')),
    ('a chunk with a prefix', chunked(b'0x4\r\nbody\r\n0\r\n\r\n' + HIDDEN)),
    ('a chunk beyond numbers', chunked(b'10000000000000004\r\nbody\r\n0\r\n\r\n' + HIDDEN)),
    ('a chunk with a large extension', chunked(b'4;x=' + b'y' * 60000 + b'\r\nbody\r\n0\r\n\r\n')),
    ('a chunk that is longer than it says', chunked(b'4\r\nbodybody\r\n0\r\n\r\n' + HIDDEN)),
    ('chunks with line feeds alone', chunked(b'4\nbody\n0\n\n' + HIDDEN)),
    ('chunks that break off', chunked(b'4\r\nbo')),
    ('trailers', chunked(b'4\r\nbody\r\n0\r\nHost: b.example\r\nContent-Length: 9\r\n\r\n')),
    ('another host in the header', get_with(host=b'Host: b.example\r\n')),
    ('two hosts', get_with(b'Host: b.example\r\n')),
    ('two hosts, the good one last', get_with(b'Host: a.example\r\n', host=b'Host: b.example\r\n')),
    ('no host', get_with(host=b'')),
    ('a user before the host', get_with(line=b'GET http://a.example@b.example/case/~ HTTP/1.1')),
    ('a user before the good host', get_with(line=b'GET http://user@a.example/case/~ HTTP/1.1')),
    ('a host with a path in the header', get_with(host=b'Host: a.example/b.example\r\n')),
    ('no host in the line', get_with(line=b'GET /case/~ HTTP/1.1')),
    ('a header of 70 KiB', get_with(b'X: ' + b'x' * 70000 + b'\r\n')),
    ('two hundred headers', get_with(b''.join(b'X-%d: x\r\n' % number for number in range(200)))),
    ('a path of 100 KiB', get_with(line=b'GET http://a.example/case/~?' + b'x' * 100000 + b' HTTP/1.1')),
    ('no version', b'GET http://a.example/case/~\r\n\r\n'),
    ('version 1.0 without a host', b'GET http://a.example/case/~ HTTP/1.0\r\n\r\n'),
    ('version 1.0 with chunks', b'POST http://a.example/case/~ HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n' + HIDDEN),
    ('version 1.9', get_with(line=b'GET http://a.example/case/~ HTTP/1.9')),
    ('version 2.0', get_with(line=b'GET http://a.example/case/~ HTTP/2.0')),
    ('an unknown method', get_with(line=b'BREW http://a.example/case/~ HTTP/1.1')),
    ('a small method', get_with(line=b'get http://a.example/case/~ HTTP/1.1')),
    ('a method that is none', get_with(line=b'G(T http://a.example/case/~ HTTP/1.1')),
    ('a second request', get_with() + b'GET http://a.example/second/~ HTTP/1.1\r\nHost: a.example\r\n\r\n'),
    ('a second request to somebody else', get_with() + b'GET http://b.example/second/~ HTTP/1.1\r\nHost: b.example\r\n\r\n'),
    ('a body of a GET', get_with(b'Content-Length: %d\r\n' % (len(HIDDEN) + 1)) + b'x' * (len(HIDDEN) + 1)),
    ('lines before it', b'\r\n\r\n' + get_with()),
    ('two spaces', get_with(line=b'GET  http://a.example/case/~  HTTP/1.1')),
    ('a tab', get_with(line=b'GET\thttp://a.example/case/~\tHTTP/1.1')),
    ('a fragment', get_with(line=b'GET http://a.example/case/~#x HTTP/1.1')),
    ('another scheme', get_with(line=b'GET ftp://a.example/case/~ HTTP/1.1')),
    ('https in the clear', get_with(line=b'GET https://a.example/case/~ HTTP/1.1')),
    ('dots in the path', get_with(line=b'GET http://a.example/x/../case/~ HTTP/1.1')),
    ('an unknown expectation', get_with(b'Expect: the-unexpected\r\n')),
    ('HTTP/2 in the clear', get_with(b'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n')),
    ('a connection that names a length', post(b'Connection: Content-Length\r\nContent-Length: %d' % (len(HIDDEN)), HIDDEN.replace(b'~', b'0'))),
    ('trace', get_with(line=b'TRACE http://a.example/case/~ HTTP/1.1')),
    ('the preface of HTTP/2', b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + HIDDEN),
]
def sent(number):
    stream = socket.create_connection(('127.0.0.1', PORT), timeout=2)
    answer = b''
    try:
        stream.sendall(CORPUS[number][1].replace(b'~', b'%d' % number))
        while piece := stream.recv(65536):
            answer += piece
    except OSError:
        pass
    return f'{number} {code(answer)} {CORPUS[number][0]}'
with concurrent.futures.ThreadPoolExecutor(24) as pool:
    print('\n'.join(pool.map(sent, range(len(CORPUS)))))
"#;

/// Where what arrives through the door differs from what arrives through squid, and why that is right.
const DIFFERENT: &[(&str, &str)] = &[
    (
        "a body of a GET",
        "a body is a body, whatever the method; squid wants none there",
    ),
    (
        "a carriage return alone in a header",
        "two could see two headers there: refused",
    ),
    (
        "a folded first header",
        "folded headers are refused, as RFC 9112 allows",
    ),
    ("a folded header", "the same"),
    (
        "folded chunks",
        "the same; squid unfolds, and takes what was hidden for a request",
    ),
    (
        "a host with a path in the header",
        "the header must name the host of the line; squid writes it anew",
    ),
    ("another host in the header", "the same"),
    ("two hosts", "a request names its host once"),
    ("two hosts, the good one last", "the same"),
    ("no host", "a request of HTTP/1.1 has one"),
    (
        "a length and chunks",
        "chunks count and the connection ends; squid goes on with what follows",
    ),
    ("chunks and a length", "the same"),
    (
        "a line feed alone in a header",
        "a line feed ends a line, so there is a length; what follows is that body",
    ),
    ("a list of lengths", "one length is one number"),
    (
        "a second request to somebody else",
        "the second is judged by itself: nobody granted that host",
    ),
    (
        "a tab",
        "between the parts of a first line there is one space",
    ),
    ("two spaces", "the same"),
    (
        "a user before the good host",
        "a user before the host is refused: it is there to mislead",
    ),
    (
        "a user before the host",
        "the same; that host was not granted either",
    ),
    (
        "an unknown expectation",
        "expectations are met here, and do not go on",
    ),
    (
        "https in the clear",
        "asked for by CONNECT, so that the encryption is the client's own",
    ),
    ("no version", "HTTP/0.9 is not spoken"),
    (
        "version 1.0 with chunks",
        "HTTP/1.0 has none: two could read it differently",
    ),
    ("version 1.9", "an unknown version is refused"),
];

/// Bodies that break off or make no sense: by then the head may have gone out, or not. It is never taken for a whole one.
const BROKEN: &[&str] = &[
    "a chunk beyond numbers",
    "a chunk that is longer than it says",
    "a chunk with a large extension",
    "a chunk with a prefix",
    "a chunk with a sign",
    "a chunk with spaces",
    "chunks that break off",
    "chunks with line feeds alone",
];

/// It ends with this, also when the test fails.
struct Squid<'a>(&'a World);

impl Drop for Squid<'_> {
    fn drop(&mut self) {
        _ = self.0.outside("kill -9 $(cat own.pid)");
    }
}

/// Squid, at port 8888 of the world's machine, until it is told to end.
fn with_squid<T>(world: &World, then: impl FnOnce() -> T) -> T {
    world.give(
        "squid.conf",
        &format!(
            "http_port 127.0.0.1:8888\nhttp_access allow all\ncache deny all\ncache_mem 8 MB\naccess_log none\ncache_log /dev/null
pid_filename {0}/squid.pid\ncoredump_dir /tmp\nvisible_hostname oracle\nshutdown_lifetime 0 seconds\npinger_enable off\nnetdb_filename none\nmax_filedescriptors 1024\n",
            world.path("").display()
        ),
    );
    let wait = |until: &str| {
        format!(
            "for turn in $(seq 100); do (exec 3<>/dev/tcp/127.0.0.1/8888) 2>/dev/null {until} exit 0; sleep 0.1; done; exit 1"
        )
    };
    let start = "setsid squid -N -f squid.conf >/dev/null 2>&1 </dev/null & echo $! >own.pid";
    let started = world.outside(&format!("{start}; {}", wait("&&")));
    assert!(
        started.status.success(),
        "prerequisite: squid of Debian: {}",
        sdk_tests::said(&started)
    );
    let squid = Squid(world);
    let told = then();
    drop(squid);
    let ended = world.outside(&wait("||"));
    assert!(
        ended.status.success(),
        "squid ends: {}",
        sdk_tests::said(&ended)
    );
    told
}

/// The number of the case that a request belongs to.
fn case(request: &Request) -> Option<usize> {
    let path = request.target.split(['?', '#']).next().unwrap_or_default();
    path.rsplit('/').next()?.parse().ok()
}

/// What arrived, by case: host and path.
fn arrived(world: &World) -> BTreeMap<usize, Vec<(String, String)>> {
    let mut all: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for request in world.requests() {
        let case = case(&request).unwrap_or_else(|| panic!("whose is it? {request:?}"));
        let path = request.target.split(['?', '#']).next().unwrap_or_default();
        all.entry(case)
            .or_default()
            .push((request.host.clone(), path.to_owned()));
    }
    all
}

fn names(told: &str) -> BTreeMap<usize, (String, String)> {
    let read = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let number = words.next()?.parse().ok()?;
        Some((number, (words.next()?.to_owned(), words.next()?.to_owned())))
    };
    told.lines().filter_map(read).collect()
}

#[test]
fn nothing_arrives_that_was_hidden() {
    let world = World::new();
    let script = |port: u16| format!("PORT = {port}\n{RAW}{CORPUS}");
    let ran = world.python(
        &["--allow-host", "a.example", "--timeout", "2m"],
        &script(3128),
    );
    let (told, ours) = (names(ran.well()), arrived(&world));
    world.clear();
    world.give("corpus.py", &script(8888));
    let (theirs, said) = with_squid(&world, || {
        let output = world.outside("python3 corpus.py");
        (
            arrived(&world),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    });
    let by_squid = names(&said);
    assert!(
        told.len() > 60 && by_squid.len() == told.len(),
        "{ran:?} {said}"
    );
    let (mut different, mut wrong) = (BTreeSet::new(), Vec::new());
    for (number, (status, name)) in &told {
        let of = |all: &BTreeMap<usize, Vec<_>>| all.get(number).cloned().unwrap_or_default();
        let (own, other): (Vec<(String, String)>, Vec<_>) = (of(&ours), of(&theirs));
        let asked_for = |(host, path): &(String, String)| {
            let paths = ["case", "second"].map(|part| format!("/{part}/{number}"));
            host == "a.example"
                && (paths.contains(path) || other.contains(&(host.clone(), path.clone())))
        };
        if own.len() > other.len().max(1) || !own.iter().all(asked_for) {
            wrong.push(format!("{name} ({status}): {own:?}, squid: {other:?}"));
        }
        if own != other && !BROKEN.contains(&name.as_str()) {
            different.insert(name.as_str());
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    let expected: BTreeSet<_> = DIFFERENT.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        different, expected,
        "{told:?}\n{by_squid:?}\n{ours:?}\n{theirs:?}"
    );
    assert_eq!(
        (ours[&0].len(), ours[&1].len(), ours[&2].len()),
        (1, 1, 1),
        "the control: good ones arrive"
    );
}
