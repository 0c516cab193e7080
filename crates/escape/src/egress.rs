//! Group C with an egress door: whom a program behind it reaches, however it asks. In the control the same hosts are
//! granted. Whatever a case forbids, it also sees that what is allowed arrives by the same ways.

use crate::{
    Case, Control, Finding, Outcome, POWER, Peer, Trouble, case,
    internet::{ELSEWHERE, Internet},
    network::{lend, own_address},
    probe::{
        ALLOWED, PROXY, Probe, arrives, every_host, get, itself, judged, open, proxied, rule, said,
        socks_request, ways,
    },
    world::Ground,
};
use spec::{EgressRule, Network, RunRequest};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why bwrap is not attacked by these.
pub(crate) const NO_DOOR: Peer =
    Peer::Nothing("bwrap has no door: a box has all of the network or none");

const fn door(id: &'static str, title: &'static str, run: fn(&Ground<'_>) -> Outcome) -> Case {
    case(id, title, run, Control::Given, NO_DOOR)
}

pub(crate) const CASES: &[Case] = &[
    door(
        "C49d",
        "past an egress door: hosts, addresses and ports that no rule names",
        beyond,
    ),
    door(
        "C50d",
        "past an egress door: UDP, QUIC, questions to other name servers",
        datagrams,
    ),
    door(
        "C53d",
        "past an open door: this machine's loopback and own address, in every spelling",
        inwards,
    ),
    door(
        "C54d",
        "past a door that may lead inwards: metadata services of clouds",
        metadata,
    ),
    door(
        "C55",
        "a name that is public when it is looked at, and the host's loopback when it is dialled",
        rebinding,
    ),
    door("C56", "secrets in names that are looked up", exfiltration),
    door(
        "C57",
        "hosts with NUL, line ends, users and other bytes that parsers read differently",
        disguised,
    ),
    door("C58", "names that look like an allowed one", lookalikes),
    door(
        "C64",
        "a relay inside that asks the door for others",
        relayed,
    ),
    door(
        "C65",
        "the door's own rules, its control socket, and what listens beside it",
        own_rules,
    ),
];

/// Cases of our own about what leads to the door.
pub(crate) const OWN: &[Case] = &[
    case(
        "X9",
        "routes, tables and places by which programs are led to the egress door",
        tampered,
        Control::Without(POWER),
        NO_DOOR,
    ),
    door(
        "X10",
        "made-up addresses: others' names, other ports, all of them",
        made_up,
    ),
    door(
        "X11",
        "past an open door: this machine by a public address of its own",
        own_public,
    ),
];

/// What the control is given.
fn rules(ground: &Ground<'_>, attacked: &[&str]) -> Result<Vec<EgressRule>, Trouble> {
    match ground.is_control() {
        true => Ok(vec![every_host(false)]),
        false => attacked.iter().map(|text| rule(text)).collect(),
    }
}

fn beyond(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, rules(ground, &[ALLOWED])?);
    let good = ways("allowed", ALLOWED, 80);
    let mut bad = ways("name", "name.denied.example", 80);
    bad.extend(ways("address", "93.184.216.77", 80));
    bad.extend(proxied("port", ALLOWED, 8080));
    bad.extend(proxied("six", "[2606:4700:4700::77]", 80));
    if !ground.is_control() {
        // What else the control needs, a kernel may not have.
        bad.extend([
            itself("port", ALLOWED, 8080),
            itself("six", "[2606:4700:4700::77]", 80),
        ]);
    }
    said(ground, "speak", &[], &[&good[..], &bad].concat())?;
    judged(ground, &internet, &good, &bad)
}

/// The control has the host's network, and stays on this host.
fn datagrams(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![every_host(true)]);
    let mut places = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
    places.extend(own_address());
    let mut words = vec!["datagram-mark".to_owned()];
    for place in places {
        words.push(format!("{place}:{}", internet.listen_for_datagrams(place)?));
    }
    if !ground.is_control() {
        let elsewhere = [
            "8.8.8.8:53",
            "93.184.216.77:443",
            "127.0.0.1:53",
            "[2606:4700:4700::77]:443",
        ];
        words.extend(elsewhere.map(str::to_owned));
    }
    let attack = ground.attack("datagrams", words);
    let network = ground.is_control().then_some(Network::Host);
    ground.run(RunRequest { network, ..attack })?.finished()?;
    judged(ground, &internet, &[], &[Probe::mark("datagram-mark")])
}

/// The control may reach the operator's own network.
fn inwards(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![every_host(ground.is_control())]);
    let four = internet.listen((Ipv4Addr::LOCALHOST, 0))?;
    let spelled = [
        "127.0.0.1",
        "2130706433",
        "0177.0.0.1",
        "0x7f.1",
        "127.1",
        "[::ffff:127.0.0.1]",
    ];
    let mut bad: Vec<_> = (0..)
        .zip(spelled)
        .flat_map(|(number, host)| proxied(&format!("spelled{number}"), host, four))
        .collect();
    internet.resolves("localhost", &[Ipv4Addr::LOCALHOST.into()]);
    bad.extend(proxied("localhost", "localhost", four));
    internet.resolves("inward.example", &[Ipv4Addr::LOCALHOST.into()]);
    bad.extend(proxied("inward", "inward.example", four));
    if let Ok(own) = own_address() {
        let port = internet.listen((own, 0))?;
        internet.resolves("lan.example", &[own]);
        bad.extend(proxied("lan", "lan.example", port));
        bad.extend(proxied("own", &own.to_string(), port));
    }
    if let Ok(six) = internet.listen((Ipv6Addr::LOCALHOST, 0)) {
        internet.resolves("six.example", &[Ipv6Addr::LOCALHOST.into()]);
        bad.extend(
            [
                proxied("six", "[::1]", six),
                proxied("six-name", "six.example", six),
            ]
            .concat(),
        );
    }
    if !ground.is_control() {
        bad.extend(
            ["127.0.0.1", "0.0.0.0", "inward.example", "localhost"]
                .map(|host| itself(host, host, four)),
        );
        bad.extend(proxied("zero", "0.0.0.0", four));
    }
    let good = ways("allowed", ALLOWED, 80);
    said(ground, "speak", &[], &[&good[..], &bad].concat())?;
    judged(ground, &internet, &good, &bad)
}

/// No rule allows these. The control is after an ordinary private address instead, which that rule does allow.
fn metadata(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![every_host(true)]);
    let (hosts, named): (&[&str], IpAddr) = match ground.is_control() {
        true => (
            &["10.11.12.13", "[fd00:aaaa::254]", "168430090"],
            Ipv4Addr::new(10, 11, 12, 13).into(),
        ),
        false => (
            &[
                "169.254.169.254",
                "[fd00:ec2::254]",
                "2852039166",
                "0xa9.0xfe.0xa9.0xfe",
                "[::ffff:169.254.169.254]",
                "100.100.100.200",
                "168.63.129.16",
                "169.254.170.2",
                "metadata.google.internal",
            ],
            Ipv4Addr::new(169, 254, 169, 254).into(),
        ),
    };
    internet.resolves("named.example", &[named]);
    let mut bad = proxied("named", "named.example", 80);
    bad.extend(
        (0..)
            .zip(hosts)
            .flat_map(|(number, host)| proxied(&format!("host{number}"), host, 80)),
    );
    if !ground.is_control() {
        bad.extend(
            ["169.254.169.254", "metadata.google.internal"].map(|host| itself(host, host, 80)),
        );
    }
    bad.push(itself("named", "named.example", 80));
    let good = ways("allowed", ALLOWED, 80);
    said(ground, "speak", &[], &[&good[..], &bad].concat())?;
    judged(ground, &internet, &good, &bad)
}

/// More names than a door remembers, so that each connection is looked up anew.
const FORGETTABLE: &str = "300";

/// The control may reach the operator's own network.
fn rebinding(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![every_host(ground.is_control())]);
    let port = internet.listen((Ipv4Addr::LOCALHOST, 0))?;
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let answers = [ELSEWHERE, loopback]
        .into_iter()
        .cycle()
        .take(19)
        .collect::<Vec<_>>();
    internet.resolves("rebind.example", &answers);
    let probes: Vec<_> = (0..4)
        .flat_map(|_| ways("rebind", "rebind.example", port))
        .collect();
    said(
        ground,
        "ask-then-speak",
        &["many.example", FORGETTABLE],
        &probes,
    )?;
    let dialled = internet.dialled();
    if !dialled.iter().any(|address| address.ip() == ELSEWHERE) {
        return Err(Trouble::Broken(
            "it is never dialled while it is public".to_owned(),
        ));
    }
    Ok(Finding::when(
        dialled.iter().any(|address| address.ip().is_loopback()),
        "the host's loopback was dialled",
    ))
}

fn exfiltration(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    let allowed = if ground.is_control() {
        vec![ALLOWED, "*.denied.example"]
    } else {
        vec![ALLOWED]
    };
    open(
        ground,
        &internet,
        allowed.into_iter().map(rule).collect::<Result<_, _>>()?,
    );
    let good = ways("allowed", ALLOWED, 80);
    let long = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789";
    let mut bad = vec![Probe::mark("asked-mark")];
    bad.extend(ways("spoken", &format!("{long}.spoken.denied.example"), 80));
    let stem = format!("{long}.{long}.asked-mark.denied.example");
    said(
        ground,
        "ask-then-speak",
        &[&stem, "3"],
        &[&good[..], &bad].concat(),
    )?;
    if !ground.is_control() {
        bad.push(Probe::mark("text-mark"));
        ground
            .run(ground.attack("datagrams", ["text-mark", "127.0.0.1:53", "8.8.8.8:53"]))?
            .finished()?;
    }
    judged(ground, &internet, &good, &bad)
}

/// Who is asked for by these must be the allowed host or nobody.
const DISGUISES: [&[u8]; 16] = [
    b"evil.example\0.allowed.example",
    b"evil.example%00.allowed.example",
    b"evil.example\t.allowed.example",
    b"evil.example .allowed.example",
    b"evil.example\r\n.allowed.example",
    b"evil.example#.allowed.example",
    b"evil.example?.allowed.example",
    b"evil.example/.allowed.example",
    b"evil.example\\.allowed.example",
    b"allowed.example@evil.example",
    b"allowed.example:80@evil.example",
    b"evil.example:80#@allowed.example",
    b"allowed.example\xe3\x80\x82evil.example",
    b"evil\xef\xbc\x8eexample",
    b"xn--evil-.example",
    b"allowed.example..evil.example",
];

fn disguised(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, rules(ground, &[ALLOWED])?);
    let mut probes = Vec::new();
    for host in DISGUISES {
        let around = |before: &[u8], after: &str| [before, host, after.as_bytes()].concat();
        let connect = around(
            b"CONNECT ",
            ":80 HTTP/1.1\r\nHost: allowed.example:80\r\n\r\n",
        );
        let plain = around(
            b"GET http://",
            "/ HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n",
        );
        let then = get("/", ALLOWED);
        probes.push(Probe::new("connect", PROXY, &[&connect, then.as_bytes()]));
        probes.push(Probe::new("plain", PROXY, &[&plain]));
        probes.push(Probe::new(
            "socks",
            PROXY,
            &[&[5, 1, 0], &socks_request(host, 80), then.as_bytes()],
        ));
    }
    let good = [
        ways("dot", "Allowed.EXAMPLE.", 80),
        ways("allowed", ALLOWED, 80),
    ]
    .concat();
    probes.extend(ways("bare", "evil.example", 80));
    said(ground, "speak", &[], &[&good[..], &probes].concat())?;
    arrives(&internet, &good)?;
    let others = internet.asked().into_iter().find(|name| name != ALLOWED);
    Ok(others.map_or(Finding::Nothing, |name| {
        Finding::Escape(format!("`{}` was asked for", name.escape_debug()))
    }))
}

fn lookalikes(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(
        ground,
        &internet,
        rules(ground, &["exact.example", "*.wild.example"])?,
    );
    let allowed = ["exact.example", "a.wild.example", "b.a.wild.example"];
    let denied = [
        "evil-exact.example",
        "exact.example.evil.test",
        "a.exact.example",
        "xact.example",
        "exact.exampl",
        "wild.example",
        "evilwild.example",
        "a.wild.example.evil.test",
        "a-wild.example",
    ];
    let numbered = |stem: &str, hosts: &[&str]| {
        let all = hosts.iter().enumerate();
        all.flat_map(|(number, host)| ways(&format!("{stem}{number}"), host, 80))
            .collect::<Vec<_>>()
    };
    let (good, bad) = (numbered("good", &allowed), numbered("bad", &denied));
    said(ground, "speak", &[], &[&good[..], &bad].concat())?;
    judged(ground, &internet, &good, &bad)
}

fn relayed(ground: &Ground<'_>) -> Outcome {
    const RELAY: &str = "127.0.0.1:3130";
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, rules(ground, &[ALLOWED])?);
    let by_relay = |mark: &str, host: &str| {
        proxied(mark, host, 80)
            .into_iter()
            .map(|probe| probe.by(RELAY))
            .collect::<Vec<_>>()
    };
    let (good, bad) = (
        by_relay("allowed", ALLOWED),
        by_relay("denied", "denied.example"),
    );
    said(ground, "speak-by-relay", &[], &[&good[..], &bad].concat())?;
    judged(ground, &internet, &good, &bad)
}

/// The run that asks for more; its socket has this name.
const RUN: &str = "escape-own-rules";

/// In the control it is granted all that it asks for.
fn own_rules(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    let granted = every_host(true);
    open(
        ground,
        &internet,
        if ground.is_control() {
            vec![granted]
        } else {
            vec![rule(ALLOWED)?]
        },
    );
    let port = internet.listen((Ipv4Addr::LOCALHOST, 0))?;
    let socket = ground.state().join("doors").join(format!("{RUN}.control"));
    let (good, mut bad) = (
        ways("allowed", ALLOWED, 80),
        ways("granted", "denied.example", 80),
    );
    bad.extend(proxied("beside", "127.0.0.1", port));
    let probes = [&good[..], &bad].concat();
    let mut words = vec!["denied.example".to_owned(), socket.display().to_string()];
    words.extend(probes.iter().flat_map(Probe::words));
    let attack = ground.attack("grant-oneself", words);
    let report = ground
        .run(RunRequest {
            run_id: Some(RUN.to_owned()),
            ..attack
        })?
        .finished()?;
    judged(ground, &internet, &good, &bad).map(|found| found.or(|| report.claims()))
}

/// The control has power over its network, as far as that goes.
fn tampered(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![rule(ALLOWED)?]);
    let bad = [
        ways("name", "denied.example", 80),
        ways("address", "93.184.216.77", 80),
    ]
    .concat();
    let report = said(ground, "tamper", &[], &bad)?;
    let reached = bad.iter().find(|probe| internet.heard(&probe.mark));
    let reached = reached.map_or(Finding::Nothing, |probe| {
        Finding::Escape(format!("`{}` arrived", probe.mark))
    });
    Ok(reached.or(|| report.claims()))
}

/// More names than a run may have, and the last of them.
const TOO_MANY: &str = "4200";
const LAST: &str = "n4199.wild.example";

/// In the control all hosts and ports are granted.
fn made_up(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(
        ground,
        &internet,
        rules(ground, &[ALLOWED, "*.wild.example"])?,
    );
    // The first name has the first address, in boxes of ours or in containers.
    let good = [
        ways("first", "first.wild.example", 80),
        ways("allowed", ALLOWED, 80),
    ]
    .concat();
    let denied = ways("denied", "denied.example", 80);
    let mut bad = denied.clone();
    for (number, address) in ["198.18.0.1", "127.64.0.1"].into_iter().enumerate() {
        let unasked = address.replace(".0.1", ".77.77");
        let probe = |what: &str, to: &str, host: &str| {
            let mark = format!("{what}{number}");
            Probe::new(&mark, to, &[get(&format!("/{mark}"), host).as_bytes()])
        };
        bad.push(probe("name", &format!("{address}:80"), "denied.example"));
        bad.push(probe(
            "port",
            &format!("{address}:8080"),
            "first.wild.example:8080",
        ));
        bad.push(probe("unasked", &format!("{unasked}:80"), "denied.example"));
    }
    said(ground, "speak", &[], &[&good[..], &bad].concat())?;
    if ground.is_control() {
        return judged(ground, &internet, &good, &denied);
    }
    match judged(ground, &internet, &good, &bad)? {
        Finding::Nothing => exhausted(ground, &internet),
        found => Ok(found),
    }
}

/// All addresses taken: those that were given stay whose they were, and nobody gets another's.
fn exhausted(ground: &Ground<'_>, internet: &Internet) -> Outcome {
    let kept = itself("kept", "n0.wild.example", 80);
    let one_more = itself("one-more", LAST, 80);
    let good = [vec![kept], proxied("late", LAST, 80)].concat();
    let probes = [&good[..], std::slice::from_ref(&one_more)].concat();
    let names = ["wild.example", TOO_MANY].map(str::to_owned);
    let mut attack = ground.attack(
        "ask-then-speak",
        names
            .into_iter()
            .chain(probes.iter().flat_map(Probe::words)),
    );
    // Thousands of questions, one after the other.
    attack.limits.wall_time = "150s".parse().ok();
    ground.run(attack)?.finished()?;
    judged(ground, internet, &good, &[one_more])
}

/// For a machine of its own that has none.
const LENT: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 200);

/// The control may reach the operator's own network.
fn own_public(ground: &Ground<'_>) -> Outcome {
    if let Some(own) = own_address()
        .ok()
        .filter(|own| spec::address::is_public(*own))
    {
        return by_public(ground, own);
    }
    if !(ground.world.root && ground.world.settings.dangerously_harm_this_machine) {
        return Err(Trouble::Missing(
            "a public address of this machine's own".to_owned(),
        ));
    }
    lend(LENT, "add")?;
    let found = by_public(ground, LENT.into());
    lend(LENT, "del")?;
    found
}

fn by_public(ground: &Ground<'_>, own: IpAddr) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![every_host(ground.is_control())]);
    let port = internet.listen((own, 0))?;
    internet.resolves("own.example", &[own]);
    let bad = [
        proxied("address", &own.to_string(), port),
        proxied("name", "own.example", port),
    ]
    .concat();
    let good = ways("allowed", ALLOWED, 80);
    said(ground, "speak", &[], &[&good[..], &bad].concat())?;
    judged(ground, &internet, &good, &bad)
}
