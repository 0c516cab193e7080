//! Which addresses are dialled (cases 47 to 49): every spelling of an address is that address, a name is where it leads, and
//! nothing of this machine, its network or its cloud is dialled by any of the door's ways. Every address of the world
//! answers, so whatever is dialled is seen. `open.rs` shows the same for `--network open`, by CONNECT, by whole requests
//! and by dialling; here are SOCKS, rules that name hosts, rules that look inside, and the odder spellings.
//!
//! | guard | without it fails |
//! |---|---|
//! | `may_dial`: what a name leads to is public (`dial.rs`) | `a_granted_name_that_leads_inwards_leads_nowhere` and others |
//! | the same of bare addresses, by the rules (`policy.rs`) | none alone: `may_dial` stands behind it; without both, `no_spelling_…` |
//! | `is_own` (`dial.rs`) | `a_granted_name_that_leads_inwards_leads_nowhere` (its own addresses) |
//! | only what was looked at is dialled | `a_name_with_good_and_bad_addresses_is_dialled_at_the_good_ones` |
//! | one look for decision and dial | `a_name_that_changes_its_mind_is_dialled_where_it_was_looked_at` |

use egress::{OWN_V4, OWN_V6, RAW, SERVER_V4, SERVER_V6, World};

/// Spellings of addresses that are nobody's business inside. A resolver or a kernel takes most of them.
const SPELLINGS: [&str; 58] = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "127.0.1",
    "127.255.255.254",
    "2130706433",
    "0x7f000001",
    "0X7F.1",
    "0x7f.0x0.0x0.0x1",
    "017700000001",
    "0177.1",
    "0177.0.0.01",
    "0",
    "0x0",
    "0.0.0.0",
    "0.0.0.1",
    "10.0.0.1",
    "10.1",
    "0xa.0.0.1",
    "012.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    "192.168.1",
    "3232235521",
    "100.64.0.1",
    "100.127.255.255",
    "169.254.1.1",
    "169.254.169.254",
    "169.254.43518",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "2852039166",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::127.0.0.1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:0:7f00:1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[2002:7f00:1::1]",
    "[2001:0:7f00:1::1]",
    "[fe80::1]",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "[fc00::1]",
    "[ff02::1]",
];

#[test]
fn no_spelling_of_an_address_leads_inwards_by_any_way_of_the_door() {
    let world = World::new();
    let script = format!(
        "{RAW}
HOSTS = {SPELLINGS:?}
each(lambda host: connect(host + ':80')[0], HOSTS)
each(lambda host: connect(host + ':443')[0], HOSTS)
each(lambda host: socks(host, 443)[0], HOSTS)
each(lambda host: socks(host.strip('[]'), 443)[0], HOSTS)
def packed(host):
    return socket.inet_pton(socket.AF_INET6, host[1:-1]) if host[0] == '[' else socket.inet_aton(host.rstrip('.'))
each(lambda host: socks(packed(host), 443)[0], HOSTS)
each(lambda host: status(f'GET http://{{host}}:8080/ HTTP/1.1\\r\\nHost: {{host}}:8080\\r\\n\\r\\n'.encode()), HOSTS)
for zone in ('[fe80::1%lo]', '[fe80::1%25lo]', '[::1%1]'):
    print(connect(zone + ':443')[0])
print('control', connect('{SERVER_V4}:443')[0], socks(packed('{SERVER_V4}'), 443)[0], socks('[{SERVER_V6}]', 443)[0])"
    );
    let ran = world.python(&["--network", "open"], &script);
    let (refused, control) = ran.well().trim().rsplit_once('\n').expect("lines");
    assert_eq!(control, "control 200 0 0");
    // At port 80 each request is judged by itself.
    let (at_80, others) = refused.split_at(
        refused
            .match_indices('\n')
            .nth(SPELLINGS.len() - 1)
            .expect("lines")
            .0,
    );
    assert!(
        at_80
            .lines()
            .all(|told| ["200", "403", "400"].contains(&told)),
        "{ran:?}"
    );
    for (at, told) in others.trim().lines().enumerate() {
        let host = SPELLINGS.get(at % SPELLINGS.len());
        assert!(
            ["403", "400", "2", "1"].contains(&told),
            "{host:?}: {told}: {ran:?}"
        );
    }
    let to: Vec<_> = world
        .connections()
        .iter()
        .map(|one| one.to.ip().to_string())
        .collect();
    assert!(
        to.iter()
            .all(|to| [SERVER_V4, SERVER_V6].contains(&to.as_str())),
        "{to:?}"
    );
    assert_eq!(world.connections().len(), 3, "the controls");
    assert!(
        world.queries().is_empty(),
        "no spelling was asked for as a name: {:?}",
        world.queries()
    );
}

#[test]
fn a_rule_that_names_such_an_address_does_not_open_it() {
    let world = World::new();
    for host in ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", OWN_V4] {
        let ran = world.run(
            &["--allow-host", host],
            &format!(
                "curl -sS -g --fail-with-body -x http://127.0.0.1:3128 --noproxy '' http://{host}/"
            ),
        );
        // Refused before the run, or by the door.
        assert_ne!(ran.status, Some(0), "{host}: {ran:?}");
        assert!(
            world.connections().is_empty(),
            "{host}: {:?}",
            world.connections()
        );
    }
    // The operator may, but for metadata.
    let private = |host: &str| {
        world.configure(&format!(
            "[[profile.restrictive.egress]]\nhost = \"{host}\"\nmode = \"tunnel\"\nallow_private = true\n"
        ));
        world.run(
            &[],
            &format!(
                "curl -sS --fail-with-body -x http://127.0.0.1:3128 --noproxy '' http://{host}/"
            ),
        )
    };
    assert_eq!(
        private("10.0.0.1").well(),
        "10.0.0.1 says hello\n",
        "the control"
    );
    world.clear();
    for host in [
        "169.254.169.254",
        "100.100.100.200",
        "metadata.google.internal",
    ] {
        assert_ne!(private(host).status, Some(0), "{host}");
    }
    assert!(world.connections().is_empty() && world.queries().is_empty());
}

const INWARDS: [&str; 27] = [
    "127.0.0.1",
    "127.0.0.53",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "169.254.1.1",
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    OWN_V4,
    OWN_V6,
    "::1",
    "::",
    "fe80::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "ff02::1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::1",
    "2001:0:7f00:1::1",
];

/// Names under `tunnel.example` are tunnels, those under `inside.example` are looked into.
fn two_kinds() -> World {
    let world = World::new();
    world.configure(
        "[[profile.restrictive.egress]]\nhost = \"*.tunnel.example\"\nmode = \"tunnel\"
[[profile.restrictive.egress]]\nhost = \"*.inside.example\"\nmode = \"inspect\"\n",
    );
    world
}

/// Asks a host in every way that there is; prints what came of each, `-` for nothing.
const EVERY_WAY: &str = r#"
def tried(call):
    try:
        return call()
    except Exception as error:
        return '-'
def ways(host):
    def tunnel(opened):
        told, stream = opened
        if told not in ('200', 0):
            return '-'
        return get(secure(stream, host), host)
    def forward():
        stream = door()
        stream.sendall(f'GET http://{host}/ HTTP/1.0\r\nHost: {host}\r\n\r\n'.encode())
        return code(head(stream))
    def itself(port):
        stream = socket.create_connection((host, port), timeout=12)
        return get(secure(stream, host) if port == 443 else stream, host)
    all = [lambda: tunnel(connect(host + ':443')), lambda: tunnel(socks(host, 443)), lambda: itself(443), lambda: itself(80), forward]
    return ' | '.join(tried(one).replace('\n', ' ') for one in all)
"#;

#[test]
fn a_granted_name_that_leads_inwards_leads_nowhere() {
    let world = two_kinds();
    let mut hosts = Vec::new();
    for (at, address) in INWARDS.iter().enumerate() {
        for kind in ["tunnel", "inside"] {
            hosts.push(format!("n{at}.{kind}.example"));
            world.resolves(hosts.last().expect("just now"), &[&[*address]]);
        }
    }
    // By another name it is the same.
    world.resolves("secret.internal", &[&["10.0.0.1"]]);
    world.is_alias("alias.tunnel.example", "secret.internal");
    hosts.push("alias.tunnel.example".to_owned());
    let script = format!(
        "{RAW}{EVERY_WAY}\neach(ways, {hosts:?})\nprint(ways('good.tunnel.example'))\nprint(ways('good.inside.example'))"
    );
    let ran = world.python(&[], &script);
    let told: Vec<_> = ran.well().lines().collect();
    let (controls, refused) = (&told[hosts.len()..], &told[..hosts.len()]);
    for (host, told) in hosts.iter().zip(refused) {
        assert!(
            !told.contains("says hello") && !told.ends_with("200"),
            "{host}: {told}"
        );
    }
    assert_eq!(controls.len(), 2);
    assert!(
        controls[0].matches("says hello").count() == 4 && controls[0].ends_with("200"),
        "{controls:?}"
    );
    assert!(
        controls[1].matches("says hello").count() >= 3,
        "{controls:?}"
    );
    let to: Vec<_> = world
        .connections()
        .iter()
        .map(|one| one.to.ip().to_string())
        .collect();
    assert!(
        to.iter()
            .all(|to| [SERVER_V4, SERVER_V6].contains(&to.as_str())),
        "{to:?}"
    );
}

#[test]
fn a_name_with_good_and_bad_addresses_is_dialled_at_the_good_ones() {
    let world = two_kinds();
    let bad = [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        OWN_V4,
        "::1",
        "fd00:ec2::254",
    ];
    for host in ["mixed.tunnel.example", "mixed.inside.example"] {
        for good in [SERVER_V4, SERVER_V6] {
            // Whichever comes first.
            let mut first = vec![good];
            first.extend(bad);
            let mut last = bad.to_vec();
            last.push(good);
            for answer in [first, last] {
                world.resolves(host, &[&answer]);
                world.clear();
                let ran = world.python(&[], &format!("{RAW}{EVERY_WAY}\nprint(ways('{host}'))"));
                assert!(
                    ran.well().matches("says hello").count() >= 3,
                    "the control: {host} {ran:?}"
                );
                let to: Vec<_> = world
                    .connections()
                    .iter()
                    .map(|one| one.to.ip().to_string())
                    .collect();
                assert!(to.iter().all(|to| to == good), "{host}: {to:?}");
            }
        }
    }
}

#[test]
fn a_name_that_changes_its_mind_is_dialled_where_it_was_looked_at() {
    let world = two_kinds();
    for host in ["rebind.tunnel.example", "rebind.inside.example"] {
        for turns in [
            &[&[SERVER_V4][..], &["127.0.0.1"]][..],
            &[
                &[SERVER_V4],
                &["169.254.169.254"],
                &[SERVER_V4],
                &["10.0.0.1"],
            ],
        ] {
            world.resolves(host, turns);
            world.clear();
            let ran = world.python(
                &[],
                &format!("{RAW}{EVERY_WAY}\nfor turn in range(3): print(ways('{host}'))"),
            );
            assert!(ran.well().contains("says hello"), "the control: {ran:?}");
            let to: Vec<_> = world
                .connections()
                .iter()
                .map(|one| one.to.ip().to_string())
                .collect();
            assert!(
                !to.is_empty() && to.iter().all(|to| to == SERVER_V4),
                "{host}: {to:?}"
            );
        }
    }
}
