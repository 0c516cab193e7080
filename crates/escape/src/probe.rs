//! What an attack on the egress door says inside, marked, so that the host sees what of it arrived anywhere.

use crate::{
    Finding, Outcome, Trouble,
    internet::Internet,
    world::{Door, Ground, Report, each},
};
use spec::{EgressRule, HostPattern, Ports};

/// Where programs find the door.
pub(crate) const PROXY: &str = "127.0.0.1:3128";
/// The one host that boxes with a door may reach, unless a case says otherwise.
pub(crate) const ALLOWED: &str = "allowed.example";

/// Something that is said inside.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    /// Stands in what is said, and nowhere else.
    pub(crate) mark: String,
    to: String,
    /// Each is said when the one before was answered.
    parts: Vec<Vec<u8>>,
}

impl Probe {
    pub(crate) fn new(mark: &str, to: &str, parts: &[&[u8]]) -> Probe {
        let parts = parts.iter().map(|part| part.to_vec()).collect();
        Probe {
            mark: mark.to_owned(),
            to: to.to_owned(),
            parts,
        }
    }

    /// Something that the attack says by itself.
    pub(crate) fn mark(mark: &str) -> Probe {
        Probe::new(mark, "", &[])
    }

    /// The same, said to somebody else.
    pub(crate) fn by(self, to: &str) -> Probe {
        Probe {
            to: to.to_owned(),
            ..self
        }
    }

    /// As an attack takes it.
    pub(crate) fn words(&self) -> [String; 3] {
        let hex = |part: &Vec<u8>| {
            part.iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let parts: Vec<_> = self.parts.iter().map(hex).collect();
        [self.mark.clone(), self.to.clone(), parts.join(",")]
    }
}

/// A request that is the last of its connection.
pub(crate) fn get(target: &str, host: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

/// A host as URLs have it, with a port that is not the usual one.
fn at(host: &str, port: u16) -> String {
    if port == 80 {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    }
}

/// Without knowing of the door: look up, and dial.
pub(crate) fn itself(mark: &str, host: &str, port: u16) -> Probe {
    let mark = format!("{mark}-itself");
    let request = get(&format!("/{mark}"), &at(host, port));
    Probe::new(&mark, &format!("{host}:{port}"), &[request.as_bytes()])
}

/// By asking the door in each of its languages.
pub(crate) fn proxied(mark: &str, host: &str, port: u16) -> Vec<Probe> {
    let shown = at(host, port);
    let [plain, connect, socks] = ["plain", "connect", "socks"].map(|way| format!("{mark}-{way}"));
    let asked = get(&format!("http://{shown}/{plain}"), &shown);
    let opening = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n");
    let [in_tunnel, in_socks] = [&connect, &socks].map(|mark| get(&format!("/{mark}"), &shown));
    let greeting = socks_request(host.as_bytes(), port);
    vec![
        Probe::new(&plain, PROXY, &[asked.as_bytes()]),
        Probe::new(&connect, PROXY, &[opening.as_bytes(), in_tunnel.as_bytes()]),
        Probe::new(&socks, PROXY, &[&[5, 1, 0], &greeting, in_socks.as_bytes()]),
    ]
}

/// The request of SOCKS 5 for a host by its name, whatever that is.
pub(crate) fn socks_request(host: &[u8], port: u16) -> Vec<u8> {
    [&[5, 1, 0, 3, host.len() as u8], host, &port.to_be_bytes()].concat()
}

/// By every way that a program has.
pub(crate) fn ways(mark: &str, host: &str, port: u16) -> Vec<Probe> {
    [vec![itself(mark, host, port)], proxied(mark, host, port)].concat()
}

/// A rule as `--allow-host` has it.
pub(crate) fn rule(text: &str) -> Result<EgressRule, Trouble> {
    EgressRule::from_option(text).map_err(|bad| Trouble::Broken(bad.to_string()))
}

/// All hosts at all ports, those of the operator's own network, too, if it is said.
pub(crate) fn every_host(allow_private: bool) -> EgressRule {
    let rule = EgressRule::tunnel("every host", HostPattern::Any, Ports::Any);
    EgressRule {
        allow_private,
        allow_hidden_name: true,
        ..rule
    }
}

/// Gives the boxes here a door with these rules.
pub(crate) fn open(ground: &Ground<'_>, internet: &Internet, rules: Vec<EgressRule>) {
    ground.open_door(Door {
        rules,
        settings: internet.settings(),
        ..Door::default()
    });
}

/// Lets an attack say all of it: what it says first, and then these.
pub(crate) fn said(
    ground: &Ground<'_>,
    attack: &str,
    first: &[&str],
    probes: &[Probe],
) -> Result<Report, Trouble> {
    let first = first.iter().map(|word| (*word).to_owned());
    let words: Vec<_> = first.chain(probes.iter().flat_map(Probe::words)).collect();
    ground.run(ground.attack(attack, words))?.finished()
}

/// What of it arrived. What may must have: else nothing is proved.
pub(crate) fn judged(
    ground: &Ground<'_>,
    internet: &Internet,
    good: &[Probe],
    bad: &[Probe],
) -> Outcome {
    arrives(internet, good)?;
    each(
        ground,
        bad.iter().map(|probe| {
            let arrived = internet.heard(&probe.mark);
            (
                probe.mark.clone(),
                Finding::when(arrived, &format!("`{}` arrived", probe.mark)),
            )
        }),
    )
}

/// All of these arrived.
pub(crate) fn arrives(internet: &Internet, good: &[Probe]) -> Result<(), Trouble> {
    match good.iter().find(|probe| !internet.heard(&probe.mark)) {
        Some(lost) => Err(Trouble::Broken(format!(
            "`{}` does not arrive, though it may",
            lost.mark
        ))),
        None => Ok(()),
    }
}
