//! Pushes by hand (cases 58 and 59): bodies that no git would send, to the real server program of git, with rules for
//! reading or for `refs/heads/agent/*`. Seen: which requests arrived, and what became of the refs. Real git, like names
//! and other protocols: `git.rs`; how lists are read: `doors/src/egress/git/push_tests.rs`.
//!
//! | guard | without it fails |
//! |---|---|
//! | refs by pattern (`spec/src/egress.rs`) | `a_list_with_a_ref_that_is_not_allowed_does_not_arrive` |
//! | the list is whole before anything goes on | the same |
//! | git's own services alone (`git/route.rs`) | `another_spelling_of_a_service_is_that_service` |
//! | bodies are streamed | `a_large_pack_passes_in_little_memory` |

use egress::{RAW, Repository, World};

fn with_rule(repository: &str) -> (World, Repository) {
    let world = World::new();
    world.configure(&format!(
        "[[profile.restrictive.egress]]\nhost = \"git.example\"\nmode = \"git\"\nrepos = [{{ repo = \"acme/app\"{repository} }}]\n"
    ));
    let app = world.repository("acme/app");
    world.repository("acme/app-evil");
    (world, app)
}

const AGENTS: &str = ", push = [\"refs/heads/agent/*\"]";

/// A push of a commit that the server has already: the pack is empty.
const PUSH: &str = r#"
import hashlib, subprocess
NONE = '0' * 40
PACK = b'PACK' + struct.pack('>II', 2, 0)
PACK += hashlib.sha1(PACK).digest()
def line(text):
    text = text if isinstance(text, bytes) else text.encode()
    return b'%04x' % (len(text) + 4) + text
def pushed(body, path='/acme/app.git/git-receive-pack', headers='', method='POST', wait=True):
    stream = secure(connect('git.example:443')[1], 'git.example')
    length = '' if 'Transfer-Encoding' in headers else f'Content-Length: {len(body)}\r\n'
    stream.sendall(f'{method} {path} HTTP/1.1\r\nHost: git.example\r\nContent-Type: application/x-git-receive-pack-request\r\n{length}{headers}Connection: close\r\n\r\n'.encode() + body)
    answer = b''
    while piece := stream.recv(65536):
        answer += piece
    first, _, rest = answer.partition(b'\r\n\r\n')
    word = 'ng' if b'ng ' in rest else 'ok' if b'ok refs' in rest else ''
    return (code(first) + ' ' + word).strip()
HEAD = subprocess.run(['git', 'ls-remote', 'https://git.example/acme/app.git', 'refs/heads/main'], capture_output=True, text=True).stdout.split()[0]
CAPABILITIES = '\0 report-status side-band-64k agent=x'
def command(name, old=NONE, new=HEAD, more=''):
    return line(f'{old} {new} {name}{more}')
"#;

#[test]
fn a_list_with_a_ref_that_is_not_allowed_does_not_arrive() {
    let (world, app) = with_rule(AGENTS);
    let script = format!(
        r#"{RAW}{PUSH}
first = command('refs/heads/agent/one', more=CAPABILITIES)
main = command('refs/heads/main', HEAD, NONE)
BAD = {{
    'main': command('refs/heads/main', HEAD, NONE, CAPABILITIES) + b'0000',
    'main without capabilities': main + b'0000',
    'main second': first + main + b'0000' + PACK,
    'main behind the end of the list': first + b'0000' + main + b'0000',
    'main behind an empty list': b'0000' + main + b'0000',
    'main in a line of another length': b'%04X' % 0x67 + main[4:] + b'0000',
    'a length with a sign': b'+' + main[1:] + b'0000',
    'a length of three': b'0003' + main + b'0000',
    'a delimiter': b'0001' + main + b'0000',
    'an end of answers': b'0002' + main + b'0000',
    'a second NUL': line(HEAD + ' ' + NONE + ' refs/heads/agent/x\0report-status\0' + HEAD + ' ' + NONE + ' refs/heads/main') + main + b'0000',
    'a line break in a name': command('refs/heads/agent/x\n' + HEAD + ' ' + NONE + ' refs/heads/main', more=CAPABILITIES) + b'0000',
    'a name that goes up': command('refs/heads/agent/../main', HEAD, NONE, CAPABILITIES) + b'0000',
    'a name with two slashes': command('refs/heads/agent//../main', HEAD, NONE, CAPABILITIES) + b'0000',
    'the pattern itself': command('refs/heads/agent/', more=CAPABILITIES) + b'0000' + PACK,
    'large letters': command('REFS/heads/agent/x', more=CAPABILITIES) + b'0000' + PACK,
    'a tag': command('refs/tags/agent/x', more=CAPABILITIES) + b'0000' + PACK,
    'HEAD': command('HEAD', more=CAPABILITIES) + b'0000' + PACK,
    'removing': command('refs/heads/agent/here', HEAD, NONE, CAPABILITIES) + b'0000',
    'one twice': first + command('refs/heads/agent/one') + b'0000' + PACK,
    'push options': command('refs/heads/agent/one', more=CAPABILITIES + ' push-options') + b'0000' + line('x') + b'0000' + PACK,
    'a certificate': line('push-cert\0report-status') + line('nonce x') + line('push-cert-end') + b'0000' + PACK,
    'another form of objects': command('refs/heads/agent/one', more=CAPABILITIES + ' object-format=sha256') + b'0000' + PACK,
    'shallow lines behind': first + line('shallow ' + HEAD) + main + b'0000',
    'no end of the list': first + main,
    'a list of two mebibytes': first + command('refs/heads/agent/' + 'x' * 60000) * 40 + b'0000' + PACK,
    'nothing': b'',
}}
for name, body in BAD.items():
    print(said(pushed, body), '|', name)
import gzip
print(said(pushed, gzip.compress(BAD['main']), '/acme/app.git/git-receive-pack', 'Content-Encoding: gzip\r\n'), '| packed')
print(said(pushed, gzip.compress(BAD['main']), '/acme/app.git/git-receive-pack', 'Content-Encoding: x-gzip\r\n'), '| packed in another word')
chunk = b'%x;x=y\r\n' % len(BAD['main']) + BAD['main'] + b'\r\n0\r\n\r\n'
print(said(pushed, chunk, '/acme/app.git/git-receive-pack', 'Transfer-Encoding: chunked\r\n'), '| in chunks')
good = first + b'0000' + PACK
print(pushed(b'%x\r\n' % 5 + good[:5] + b'\r\n%x\r\n' % (len(good) - 5) + good[5:] + b'\r\n0\r\n\r\n', headers='Transfer-Encoding: chunked\r\n'), '| control')
"#
    );
    let main = app.refs()["refs/heads/main"].clone();
    app.git(&["update-ref", "refs/heads/agent/here", &main], "");
    let ran = world.python(&[], &script);
    let (refused, control) = ran.well().trim().rsplit_once('\n').expect("lines");
    assert_eq!(control, "200 ok | control", "{ran:?}");
    for line in refused.lines() {
        let good = [
            "200 ng |",
            "200 |",
            "400",
            "403",
            "415",
            "closed",
            "ConnectionResetError",
            "BrokenPipeError",
        ];
        assert!(
            good.iter().any(|word| line.starts_with(word)),
            "{line}: {ran:?}"
        );
    }
    let wanted = [
        "refs/heads/agent/here",
        "refs/heads/agent/one",
        "refs/heads/main",
    ];
    assert_eq!(app.refs().keys().collect::<Vec<_>>(), wanted);
    assert!(app.refs().values().all(|id| *id == main));
    let pushes: Vec<_> = world
        .requests()
        .into_iter()
        .filter(|one| {
            one.method == "POST" && one.target.ends_with("git-receive-pack") && one.body_bytes > 4
        })
        .collect();
    // What follows an allowed list is the pack, whatever it looks like; git finds that it is none.
    assert_eq!(
        pushes.len(),
        2,
        "only the control arrived, and that: {pushes:?}"
    );
}

#[test]
fn another_spelling_of_a_service_is_that_service() {
    let script = format!(
        r#"{RAW}{PUSH}
body = command('refs/heads/agent/one', more=CAPABILITIES) + b'0000' + PACK
for path in ('/acme/app.git/git-receive-pack', '/acme/app/git-receive-pack', '/acme/app.git/%67it-receive-pack', '/acme/app.git/git-receive-pac%6b', '/acme/app.git/./git-receive-pack', '/acme/app.git//git-receive-pack', '/acme/app.git/x/../git-receive-pack', '/acme/app.git/git-receive-pack/', '/acme/app.git/git-receive-pack;x', '/acme/app.git/git-receive-pack?service=git-upload-pack', '/acme/app.git/git-upload-pack/../git-receive-pack', '/acme/app.git%2fgit-receive-pack', '/acme%2fapp.git/git-receive-pack', '/acme/app-evil.git/git-receive-pack', '/acme/app.git/../app-evil.git/git-receive-pack', '/acme/APP.git/git-receive-pack'):
    print(said(pushed, body, path), path)
for more in ('X-HTTP-Method-Override: POST', 'X-Original-URL: /acme/app.git/git-receive-pack', 'X-Rewrite-URL: /acme/app.git/git-receive-pack', 'Git-Protocol: version=2'):
    print(said(pushed, body, '/acme/app.git/git-receive-pack', more + '\r\n'), more)"#
    );
    let (world, app) = with_rule("");
    let before = app.refs();
    let ran = world.python(&[], &script);
    assert!(
        ran.well()
            .lines()
            .all(|line| ["400", "403"].contains(&&line[..3])),
        "{ran:?}"
    );
    assert_eq!(app.refs(), before);
    assert!(
        world
            .requests()
            .iter()
            .all(|one| one.method == "GET" || one.target.ends_with("git-upload-pack")),
        "{:?}",
        world.requests()
    );
    let (world, app) = with_rule(AGENTS);
    let ran = world.python(&[], &script);
    assert!(ran.well().starts_with("200 ok "), "the control: {ran:?}");
    assert_eq!(app.refs().len(), 2);
    assert!(
        world
            .requests()
            .iter()
            .all(|one| one.target.starts_with("/acme/app.git/")
                || one.target.starts_with("/acme/app/")),
        "what arrives is in its one spelling: {:?}",
        world.requests()
    );
}

/// The largest resident size of a process and its own children's, in KiB.
fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .expect("its peak");
    line.split_ascii_whitespace()
        .nth(1)
        .and_then(|size| size.parse().ok())
        .expect("a size")
}

#[test]
fn a_large_pack_passes_in_little_memory() {
    let (world, app) = with_rule(AGENTS);
    // 2 GB where it is asked for; a tenth shows the same: what holds a body would hold it.
    let full = std::env::var_os("AIRLOCK_FULL").is_some();
    let size: u64 = if full { 2_000_000_000 } else { 200_000_000 };
    // Stored, not packed: a pack of one object by hand, since git would take minutes to make it.
    let script = format!(
        r#"python3 - <<'END'
{RAW}{PUSH}
import zlib
SIZE, PIECE = {size}, bytes(1 << 20)
first, rest = (3 << 4) | (SIZE & 15), SIZE >> 4
entry = []
byte = first
while rest:
    entry.append(byte | 0x80)
    byte, rest = rest & 0x7f, rest >> 7
entry.append(byte)
packer, digest = zlib.compressobj(0), hashlib.sha1()
stream = secure(connect('git.example:443')[1], 'git.example')
stream.settimeout(300)
def send(data, of_pack=True):
    if of_pack:
        digest.update(data)
    if data:
        stream.sendall(b'%x\r\n' % len(data) + data + b'\r\n')
stream.sendall(b'POST /acme/app.git/git-receive-pack HTTP/1.1\r\nHost: git.example\r\nContent-Type: application/x-git-receive-pack-request\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n')
send(command('refs/heads/agent/big', more=CAPABILITIES) + b'0000', False)
send(b'PACK' + struct.pack('>II', 2, 1) + bytes(entry))
left = SIZE
while left:
    piece = PIECE[:min(left, len(PIECE))]
    send(packer.compress(piece))
    left -= len(piece)
send(packer.flush())
send(digest.digest(), False)
stream.sendall(b'0\r\n\r\n')
answer = b''
while piece := stream.recv(65536):
    answer += piece
print('ok' if b'ok refs/heads/agent/big' in answer else answer, flush=True)
END
read"#
    );
    let mut run = world.begin(&["--timeout", "10m", "--memory", "1G"], &script);
    assert_eq!(run.line(), "ok");
    let held = peak(run.pid());
    run.go_on();
    run.end();
    assert!(app.refs().contains_key("refs/heads/agent/big"));
    let arrived = world
        .requests()
        .iter()
        .map(|one| one.body_bytes)
        .max()
        .expect("it came");
    assert!(arrived > size, "the control: {arrived}");
    assert!(held < 100 << 10, "{held} KiB were held of {arrived} bytes");
}
