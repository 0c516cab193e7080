//! Two boxes with egress doors side by side: neither reaches the other, the other's door, or its share of the host.

use crate::{
    Case, Control, Finding, Outcome, Trouble, case,
    egress::NO_DOOR,
    internet::Internet,
    network::{own_address, reachable},
    probe::{ALLOWED, Probe, arrives, every_host, get, judged, open, proxied, rule, said, ways},
    world::{Door, Ground},
};
use spec::{EgressLimits, Network, RunRequest};
use std::net::{Ipv4Addr, TcpListener};

const fn door(id: &'static str, title: &'static str, run: fn(&Ground<'_>) -> Outcome) -> Case {
    case(id, title, run, Control::Given, NO_DOOR)
}

pub(crate) const CASES: &[Case] = &[
    // A door has no token: who reaches it is in its box.
    door(
        "C66",
        "another run's door, and the addresses that it made up",
        anothers_door,
    ),
    door(
        "C67d",
        "with an egress door: listening on all addresses inside",
        published,
    ),
    door("C68", "from one sandbox to another", to_another),
    door(
        "C69",
        "half-open connections and heads without end, while another run works",
        flood,
    ),
];

/// In the control the other's host is granted here, too.
fn anothers_door(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![rule("first.example")?]);
    let first = ways("first", "first.example", 80);
    let held = ground.hold(ground.attack("speak-and-wait", first.iter().flat_map(Probe::words)))?;
    let mut rules = vec![rule("second.example")?];
    if ground.is_control() {
        rules.push(rule("first.example")?);
    }
    open(ground, &internet, rules);
    let mut bad = ways("other", "first.example", 80);
    let asked = get("/made-up", "first.example");
    bad.push(Probe::new("/made-up", "198.18.0.1:80", &[asked.as_bytes()]));
    let good = ways("second", "second.example", 80);
    said(ground, "speak", &[], &[&bad[..], &good].concat())?;
    held.finish()?;
    arrives(&internet, &first)?;
    judged(ground, &internet, &good, &bad)
}

/// The control has the host's network.
fn published(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![every_host(true)]);
    reachable(ground, ground.is_control().then_some(Network::Host))
}

/// In the control both have the host's network.
fn to_another(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    open(ground, &internet, vec![every_host(true)]);
    let port = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?
        .local_addr()?
        .port();
    let (secret, network) = (
        ground.world.secret(),
        ground.is_control().then_some(Network::Host),
    );
    let serving = ground.attack("serve", [port.to_string(), secret.clone()]);
    let held = ground.hold(RunRequest { network, ..serving })?;
    let mut hosts = vec!["127.0.0.1".to_owned()];
    if !ground.is_control() {
        hosts.extend(
            ["0.0.0.0", "198.18.0.1", "127.64.0.1", "10.0.0.1", "[::1]"].map(str::to_owned),
        );
        hosts.extend(own_address().map(|own| own.to_string()));
    }
    let probes: Vec<_> = hosts
        .iter()
        .flat_map(|host| match ground.is_control() {
            true => vec![Probe::new("itself", &format!("{host}:{port}"), &[b"hello"])],
            false => [
                vec![Probe::new("itself", &format!("{host}:{port}"), &[b"hello"])],
                proxied(host, host, port),
            ]
            .concat(),
        })
        .collect();
    let speaking = ground.attack("speak", probes.iter().flat_map(Probe::words));
    let report = ground
        .run(RunRequest {
            network,
            ..speaking
        })?
        .finished()?;
    held.finish()?;
    Ok(Finding::when(
        report.says(&secret),
        "it reached the other sandbox",
    ))
}

const FLOODED: &str = "90";
const REQUESTS: u32 = 40;
/// Enough for one.
const PER_MINUTE: u32 = 60;
/// On a busy machine; a door that waits for others takes ten times as long.
const SLOWEST_MS: u64 = 3000;

/// In the control whoever floods and whoever works are the same run, with one share.
fn flood(ground: &Ground<'_>) -> Outcome {
    let internet = Internet::new(ground.world)?;
    let limits = EgressLimits {
        per_minute: Some(PER_MINUTE),
        ..EgressLimits::default()
    };
    ground.open_door(Door {
        rules: vec![rule(ALLOWED)?],
        limits,
        settings: internet.settings(),
    });
    let work = |count: u32| ground.attack("time", [count.to_string(), ALLOWED.to_owned()]);
    if ground.is_control() {
        let (_, answered) = worked(ground, work(PER_MINUTE + REQUESTS))?;
        return Ok(Finding::when(
            answered < PER_MINUTE + REQUESTS,
            "its share is spent",
        ));
    }
    let held = ground.hold(ground.attack("flood-door", [FLOODED]))?;
    let (slowest, answered) = worked(ground, work(REQUESTS))?;
    held.finish()?;
    Ok(Finding::when(
        answered < REQUESTS,
        &format!("only {answered} of {REQUESTS} requests were answered"),
    )
    .or(|| {
        Finding::when(
            slowest > SLOWEST_MS,
            &format!("a request took {slowest} ms"),
        )
    }))
}

/// The slowest, and how many were answered.
fn worked(ground: &Ground<'_>, work: RunRequest) -> Result<(u64, u32), Trouble> {
    let report = ground.run(work)?.finished()?;
    let number = |name: &str| report.value(name).and_then(|text| text.parse::<u64>().ok());
    match (number("slowest"), number("answered")) {
        (Some(slowest), Some(answered)) => Ok((slowest, answered as u32)),
        _ => Err(Trouble::Broken(
            "it does not say how long it took".to_owned(),
        )),
    }
}
