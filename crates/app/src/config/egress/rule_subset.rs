//! Whether one profile's egress rules allow more than another's, decided without trying every host.

use spec::{EgressMode, EgressRule, HostPattern, Network, Ports, Profile};

/// Whether a profile's rules may allow something that the other's do not. Undecided cases count as
/// wider.
pub(in super::super) fn is_wider(profile: &Profile, than: &Profile) -> bool {
    let rules = all_rules(profile);
    let others = all_rules(than);
    let mut allowing = rules.iter().filter(|rule| rule.mode != EgressMode::Deny);
    // Rules that deny or inspect must be kept: hosts granted on the command line are subject to
    // them.
    let mut narrowing = others
        .iter()
        .filter(|rule| rule.mode == EgressMode::Deny || rule.looks_inside());
    narrowing.any(|rule| !contains(rule, &rules))
        || allowing.any(|rule| !is_covered(rule, &rules, &others))
}

fn all_rules(profile: &Profile) -> Vec<EgressRule> {
    let open = (profile.network == Network::Open).then(EgressRule::open);
    profile
        .egress
        .iter()
        .flatten()
        .cloned()
        .chain(open)
        .collect()
}

/// Whether the others allow everything that a rule allows. The most specific rule decides, so that
/// removing a rule can widen: the other profile's rules for the same hosts must exist here, too,
/// unless there is only one plain tunnel.
fn is_covered(rule: &EgressRule, own: &[EgressRule], others: &[EgressRule]) -> bool {
    let (denying, allowing): (Vec<_>, Vec<_>) = others
        .iter()
        .filter(|other| overlap(&other.host, &rule.host))
        .partition(|other| other.mode == EgressMode::Deny);
    let denied_as_well = denying.iter().all(|other| contains(other, own));
    let said_as_well = contains(rule, others) && allowing.iter().all(|other| contains(other, own));
    denied_as_well
        && (said_as_well || matches!(&allowing[..], [only] if is_narrower_tunnel(rule, only)))
}

/// Compares rules regardless of their names.
fn contains(rule: &EgressRule, rules: &[EgressRule]) -> bool {
    rules.iter().any(|other| {
        EgressRule {
            name: other.name.clone(),
            ..rule.clone()
        } == *other
    })
}

fn overlap(one: &HostPattern, other: &HostPattern) -> bool {
    one.is_within(other) || other.is_within(one)
}

/// Whether a tunnel is narrower than another one without limits. Several narrower tunnels could use
/// such a limit several times.
fn is_narrower_tunnel(rule: &EgressRule, whole: &EgressRule) -> bool {
    let ports = match (&rule.ports, &whole.ports) {
        (_, Ports::Any) => true,
        (Ports::Any, Ports::These(_)) => false,
        (Ports::These(ports), whole) => ports.iter().all(|port| whole.has(*port)),
    };
    let tunnels = rule.mode == EgressMode::Tunnel && whole.mode == EgressMode::Tunnel;
    tunnels
        && ports
        && rule.host.is_within(&whole.host)
        && rule.allow_private <= whole.allow_private
        && rule.allow_hidden_name <= whole.allow_hidden_name
        && whole.limits == Default::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::{EgressLimits, Policy, host_and_ports};

    fn profile(network: Network, rules: &[(&str, EgressMode)]) -> Profile {
        let rule = |(index, (text, mode)): (usize, &(&str, EgressMode))| {
            let (host, ports) = host_and_ports(text).unwrap();
            EgressRule {
                mode: mode.clone(),
                ..EgressRule::tunnel(format!("rule {index}"), host, ports)
            }
        };
        let egress = Some(rules.iter().enumerate().map(rule).collect());
        Profile {
            network,
            egress,
            ..Policy::default().profile("restrictive").unwrap().clone()
        }
    }

    fn inspect() -> EgressMode {
        EgressMode::Inspect {
            allow: Vec::new(),
            credential: None,
            allow_upgrade: false,
        }
    }

    #[test]
    fn fewer_and_closer_rules_are_no_wider() {
        use EgressMode::{Deny, Tunnel};
        let doors = |rules: &[(&str, EgressMode)]| profile(Network::Doors, rules);
        let than = doors(&[
            ("*.a.com", Tunnel),
            ("b.com:443", inspect()),
            ("evil.a.com", Deny),
        ]);
        let fine = [
            doors(&[("b.com:443", inspect()), ("evil.a.com", Deny)]),
            doors(&[
                ("x.a.com:443", Tunnel),
                ("b.com:443", inspect()),
                ("evil.a.com", Deny),
            ]),
            doors(&[
                ("*.a.com", Tunnel),
                ("b.com:443", inspect()),
                ("evil.a.com", Deny),
                ("*.b.a.com", Deny),
            ]),
        ];
        for (number, rules) in fine.iter().enumerate() {
            assert!(!is_wider(rules, &than), "{number}");
        }
        let open = profile(Network::Open, &[]);
        assert!(!is_wider(&doors(&[("pypi.org", Tunnel)]), &open) && !is_wider(&open, &open));
    }

    #[test]
    fn more_other_and_missing_rules_are_wider() {
        use EgressMode::{Deny, Tunnel};
        let doors = |rules: &[(&str, EgressMode)]| profile(Network::Doors, rules);
        let than = doors(&[
            ("*.a.com", Tunnel),
            ("b.com:443", inspect()),
            ("evil.a.com", Deny),
        ]);
        let wide = [
            doors(&[]),
            Profile {
                egress: None,
                ..doors(&[])
            },
            doors(&[("evil.a.com", Deny)]),
            doors(&[("b.com:443", inspect())]),
            doors(&[
                ("c.com", Tunnel),
                ("b.com:443", inspect()),
                ("evil.a.com", Deny),
            ]),
            doors(&[
                ("b.com:443", Tunnel),
                ("b.com:443", inspect()),
                ("evil.a.com", Deny),
            ]),
            doors(&[("*.a.com", Tunnel), ("b.com:443", inspect())]),
            doors(&[
                ("x.a.com:22", Tunnel),
                ("b.com:443", inspect()),
                ("evil.a.com", Deny),
            ]),
            doors(&[
                ("*", Tunnel),
                ("b.com:443", inspect()),
                ("evil.a.com", Deny),
            ]),
        ];
        for (number, rules) in wide.iter().enumerate() {
            assert!(is_wider(rules, &than), "{number}");
        }
        let looked_into = doors(&[("*", Tunnel), ("api.com:443", inspect())]);
        assert!(
            is_wider(&doors(&[("*", Tunnel)]), &looked_into),
            "what was looked into is a tunnel now"
        );
        let mut limited = doors(&[("a.com", Tunnel)]);
        limited.egress.as_mut().unwrap()[0].limits = EgressLimits {
            per_minute: Some(1),
            ..Default::default()
        };
        assert!(is_wider(&doors(&[("a.com", Tunnel)]), &limited) && !is_wider(&limited, &limited));
    }
}
