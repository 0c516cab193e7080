//! `--network open`: all public hosts, by name and by bare address, at any port, for programs that know no proxy; and
//! nothing of this machine or its network, however it is spelled. In the world every address answers, so whoever gets
//! through is seen.

use egress::{OWN_V4, OWN_V6, SERVER_V4, SERVER_V6, World};
use spec::address::is_public;

/// Addresses that nobody inside may reach, as a program hands them to the kernel or to a resolver.
const NOT_PUBLIC: [&str; 34] = [
    "127.0.0.1",
    "127.1",
    "127.0.0.53",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "169.254.0.1",
    "169.254.169.254",
    "0xa9fea9fe",
    "2852039166",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "203.0.113.1",
    "224.0.0.1",
    "255.255.255.255",
    OWN_V4,
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fe80::1",
    "fc00::1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::1",
    OWN_V6,
];

/// Dials each, at each of some ports, in each way; prints what answered.
const DIAL: &str = "
import os, socket, sys, concurrent.futures
def dial(way, host, port):
    try:
        if way == 'itself':
            stream = socket.create_connection((host, port), timeout=5)
            stream.sendall(f'GET / HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n'.encode())
        else:
            stream = socket.create_connection(('127.0.0.1', 3128), timeout=5)
            bracketed = f'[{host}]' if ':' in host else host
            if way == 'connect':
                stream.sendall(f'CONNECT {bracketed}:{port} HTTP/1.1\\r\\nHost: {bracketed}:{port}\\r\\n\\r\\n'.encode())
                head = stream.recv(65536)
                if b' 200 ' not in head.split(b'\\r\\n')[0]:
                    return
                stream.sendall(f'GET / HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n'.encode())
            else:
                stream.sendall(f'GET http://{bracketed}:{port}/ HTTP/1.0\\r\\nHost: {bracketed}\\r\\n\\r\\n'.encode())
        answer = b''
        while piece := stream.recv(65536):
            answer += piece
        if b'says hello' in answer:
            print('reached', way, host, port)
    except OSError:
        pass
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    dialled = [pool.submit(dial, way, host, port)
        for host in HOSTS for way in ('itself', 'connect', 'forward') for port in (80, 8080)]
for one in dialled:
    one.result()
";

#[test]
fn nothing_of_this_machine_or_its_network_is_reached_however_it_is_spelled() {
    let world = World::new();
    // One that is public shows that each way would lead out.
    let (public, mut hosts) = ("1.2.3.4", NOT_PUBLIC.to_vec());
    hosts.push(public);
    let script = format!("HOSTS = {hosts:?}\n{DIAL}");
    let ran = world.python(&["--network", "open"], &script);
    let mut reached: Vec<_> = ran.well().lines().collect();
    reached.sort_unstable();
    let ways = ["connect", "forward", "itself"];
    let wanted = ways
        .iter()
        .flat_map(|way| [80, 8080].map(|port| format!("reached {way} {public} {port}")));
    assert_eq!(reached, wanted.collect::<Vec<_>>(), "{ran:?}");
    let elsewhere: Vec<_> = world.connections().into_iter().map(|one| one.to).collect();
    assert!(
        elsewhere.iter().all(|to| to.ip().to_string() == public),
        "{elsewhere:#?}"
    );
    // The control: from outside they answer, but for those that a whole network or no interface has.
    for host in NOT_PUBLIC
        .iter()
        .filter(|host| !["224.0.0.1", "255.255.255.255", "fe80::1"].contains(host))
    {
        let shown = if host.contains(':') {
            format!("[{host}]")
        } else {
            (*host).to_owned()
        };
        let output = world.outside(&format!("curl -sS -g -m 5 'http://{shown}/'"));
        assert!(
            output.status.success(),
            "{host}: {}",
            sdk_tests::said(&output)
        );
    }
}

#[test]
fn the_loopback_of_the_box_is_its_own() {
    let world = World::new();
    let script = "
import http.server, threading, urllib.request, os
server = http.server.HTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen('http://127.0.0.1:8000/').status)
print(urllib.request.urlopen('http://localhost:8000/').status)";
    assert_eq!(
        world.python(&["--network", "open"], script).well(),
        "200\n200\n"
    );
    assert!(world.connections().is_empty());
}

#[test]
fn all_public_hosts_are_reached_at_any_port() {
    let world = World::new();
    let script = format!(
        "set -e; curl='curl -sS -g --noproxy *'
$curl https://any.example/; $curl http://other.example:8080/; $curl https://third.example:8443/
$curl https://{SERVER_V4}/; $curl 'https://[{SERVER_V6}]/'; $curl http://1.2.3.4:8080/
curl -sS https://by.proxy.example/
exec 3<>/dev/tcp/ssh.example/22; head -n 1 <&3
exec 4<>/dev/tcp/5.6.7.8/6379; echo back >&4; head -n 1 <&4"
    );
    let ran = world.run(&["--network", "open"], &script);
    let wanted = [
        "any.example says hello",
        "other.example says hello",
        "third.example says hello",
        &format!("{SERVER_V4} says hello"),
        &format!("[{SERVER_V6}] says hello"),
        "1.2.3.4 says hello",
        "by.proxy.example says hello",
        "SSH-2.0-world",
        "back",
    ];
    assert_eq!(
        ran.well().replace('\r', "").lines().collect::<Vec<_>>(),
        wanted
    );
    let to: Vec<_> = world.connections().iter().map(|one| one.to).collect();
    assert!(to.iter().all(|to| is_public(to.ip())), "{to:?}");
    assert!(
        to.iter().any(|to| to.to_string() == "5.6.7.8:6379"),
        "{to:?}"
    );
}

#[test]
fn names_that_lead_inwards_lead_nowhere() {
    let world = World::new();
    for (at, address) in NOT_PUBLIC
        .iter()
        .filter(|host| host.parse::<std::net::IpAddr>().is_ok())
        .enumerate()
    {
        world.resolves(&format!("n{at}.example"), &[&[*address]]);
    }
    let names: Vec<_> = (0..NOT_PUBLIC.len())
        .map(|at| format!("n{at}.example"))
        .collect();
    for name in &names[..28] {
        assert!(
            world
                .outside(&format!("getent hosts {name}"))
                .status
                .success(),
            "the control: {name}"
        );
    }
    let ran = world.python(
        &["--network", "open"],
        &format!("HOSTS = {:?}\n{DIAL}", &names[..28]),
    );
    assert_eq!(ran.well(), "", "{ran:?}");
    assert!(world.connections().is_empty(), "{:#?}", world.connections());
    world.resolves(
        "mixed.example",
        &[&["127.0.0.1", "169.254.169.254", SERVER_V4, "10.0.0.1", "::1"]],
    );
    for way in ["", "--noproxy '*'"] {
        let ran = world.run(
            &["--network", "open"],
            &format!("curl -sS {way} http://mixed.example/"),
        );
        assert_eq!(ran.well(), "mixed.example says hello\n", "{way}");
    }
    let to: Vec<_> = world
        .connections()
        .iter()
        .map(|one| one.to.ip().to_string())
        .collect();
    assert_eq!(to, [SERVER_V4, SERVER_V4], "only the good one is dialled");
}

#[test]
fn a_name_that_changes_its_mind_is_dialled_where_it_was_looked_at() {
    let world = World::new();
    for way in ["", "--noproxy '*'"] {
        world.resolves("rebind.example", &[&[SERVER_V4], &["127.0.0.1"]]);
        world.clear();
        let script =
            format!("for i in 1 2 3 4 5 6; do curl -sS -m 5 {way} http://rebind.example/; done");
        let ran = world.run(&["--network", "open"], &script);
        assert!(
            ran.stdout.starts_with("rebind.example says hello\n"),
            "{ran:?}"
        );
        let to: Vec<_> = world
            .connections()
            .iter()
            .map(|one| one.to.ip().to_string())
            .collect();
        assert!(
            !to.is_empty() && to.iter().all(|to| to == SERVER_V4),
            "{way}: {to:?}"
        );
        assert!(
            world
                .outside("curl -sS http://rebind.example/")
                .status
                .success(),
            "the control"
        );
        let last = world.connections().pop().expect("it came");
        assert!(
            last.to.ip().is_loopback(),
            "the control: it leads inwards now"
        );
    }
}

#[test]
fn the_profiles_that_say_so_are_open() {
    let world = World::new();
    // The permissive one shows all of /etc, but not what the world laid over it: its certificates.
    for profile in ["standard", "permissive"] {
        let ran = world.run(
            &["--profile", profile],
            "curl -sSk --noproxy '*' https://any.example/; curl -sS -m 5 http://127.0.0.1/",
        );
        assert_eq!(ran.stdout, "any.example says hello\n", "{profile}: {ran:?}");
    }
    assert!(
        world
            .connections()
            .iter()
            .all(|one| !one.to.ip().is_loopback())
    );
    world.clear();
    world
        .run(&[], "curl -sS --noproxy '*' https://any.example/")
        .badly();
    assert_eq!(
        (world.queries(), world.connections().len()),
        (vec![], 0),
        "the restrictive one is not"
    );
}

/// Sends a datagram, then a question for a name, to each of these; prints who answered.
const DATAGRAMS: &str = "
import socket
question = b'\\x12\\x34\\x01\\x00\\x00\\x01' + bytes(6) + b'\\x06secret\\x07example\\x00\\x00\\x01\\x00\\x01'
for address in ('8.8.8.8', '127.0.0.1', '10.0.0.1', '2606:4700::1111', '::1'):
    for port, words in ((7, b'datagram'), (53, question)):
        one = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM)
        one.settimeout(0.3)
        try:
            one.sendto(words, (address, port))
            answer = one.recv(512)
            print(address, port, 'found' if port == 7 or answer[3] & 15 == 0 else 'nothing')
        except OSError:
            pass";

#[test]
fn datagrams_go_nowhere_and_names_are_asked_for_by_the_rules_alone() {
    let world = World::new();
    let ran = world.python(&["--network", "open"], DATAGRAMS);
    assert!(!ran.well().contains(" 7 "), "{ran:?}");
    assert_eq!(world.datagrams().len(), 0);
    world.clear();
    // A resolver of one's own is the door, too.
    let ran = world.python(&["--allow-host", "a.example"], DATAGRAMS);
    assert!(!ran.well().contains("found"), "{ran:?}");
    assert_eq!((world.queries(), world.datagrams().len()), (vec![], 0));
    world.give(
        "datagrams.py",
        &DATAGRAMS.replace("settimeout(0.3)", "settimeout(5)"),
    );
    let output = world.outside("/usr/bin/python3 datagrams.py");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        told.contains("127.0.0.1 7 found\n127.0.0.1 53 found"),
        "the control: {}",
        sdk_tests::said(&output)
    );
    assert!(
        world.datagrams().len() == 5 && !world.queries().is_empty(),
        "the control: outside they arrive"
    );
}
