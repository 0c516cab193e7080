//! What the rules say of a destination. Pure: nothing is looked up, and nothing is dialled.
//!
//! A rule that denies wins. Of the others the one that names the host most closely counts; at equal closeness one that
//! looks inside comes before one that does not.

use super::limits::Meter;
use spec::{Destination, EgressGrant, EgressMode, EgressRule, Host, HostPattern, Ports, address};
use std::{collections::BTreeSet, sync::Arc, time::Instant};

/// A rule that stands, with what passed by it.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) rule: EgressRule,
    /// It falls then.
    pub(crate) until: Option<Instant>,
    /// It came while the run went on.
    pub(crate) is_added: bool,
    pub(crate) meter: Meter,
}

/// All rules of a door.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) standing: Vec<Arc<Standing>>,
    within: Vec<Vec<HostPattern>>,
    learn: bool,
}

/// Why something does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The rule that says so, or what stands in for one.
    pub(crate) rule: String,
    /// In words.
    pub(crate) reason: String,
    /// What would allow it, or `nothing`.
    pub(crate) allow_with: String,
}

/// Something may pass.
#[derive(Clone, Debug)]
pub(crate) struct Passage {
    /// By these rules: one that does not look inside, or all that do.
    pub(crate) rules: Vec<Arc<Standing>>,
    /// No rule allows it; it passes to be written down.
    pub(crate) learned: bool,
}

impl Standing {
    pub(crate) fn new(rule: EgressRule, until: Option<Instant>) -> Arc<Standing> {
        let meter = Meter::new(&rule.limits);
        Arc::new(Standing {
            rule,
            until,
            is_added: false,
            meter,
        })
    }

    /// One that came while the run went on.
    pub(crate) fn added(rule: EgressRule, until: Option<Instant>) -> Arc<Standing> {
        let meter = Meter::new(&rule.limits);
        Arc::new(Standing {
            rule,
            until,
            is_added: true,
            meter,
        })
    }

    fn stands(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl Passage {
    /// Whether requests must be looked at.
    pub(crate) fn looks_inside(&self) -> bool {
        self.rules
            .iter()
            .any(|standing| standing.rule.looks_inside())
    }

    /// The one that is named where one is.
    pub(crate) fn first(&self) -> &Arc<Standing> {
        // There is one at least: see `judge`.
        &self.rules[0]
    }

    /// Whether the host may be one of the operator's own network.
    pub(crate) fn may_be_private(&self) -> bool {
        self.rules
            .iter()
            .all(|standing| standing.rule.allow_private)
    }

    /// When the first of its rules falls.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.rules
            .iter()
            .filter_map(|standing| standing.until)
            .min()
    }
}

impl Refusal {
    pub(crate) fn new(
        rule: &str,
        reason: impl Into<String>,
        allow_with: impl Into<String>,
    ) -> Refusal {
        Refusal {
            rule: rule.to_owned(),
            reason: reason.into(),
            allow_with: allow_with.into(),
        }
    }
}

impl Rules {
    pub(crate) fn new(grant: &EgressGrant) -> Rules {
        let standing = grant
            .rules
            .iter()
            .map(|rule| Standing::new(rule.clone(), None))
            .collect();
        Rules {
            standing,
            within: grant.within.clone(),
            learn: grant.learn,
        }
    }

    /// What they say of a destination now.
    pub(crate) fn judge(&self, to: &Destination, now: Instant) -> Result<Passage, Refusal> {
        refuse_metadata(&to.host)?;
        let standing = || self.standing.iter().filter(|standing| standing.stands(now));
        let about = || standing().filter(|standing| standing.rule.is_about(to));
        if let Some(denied) = about().find(|standing| standing.rule.mode == EgressMode::Deny) {
            let name = &denied.rule.name;
            return Err(Refusal::new(
                name,
                format!("a rule denies {}: {name}", to.host),
                "nothing",
            ));
        }
        let passage = match passage(about()) {
            Some(passage) => passage,
            None if self.learn => Passage {
                rules: vec![learned(&to.host)],
                learned: true,
            },
            None => return Err(no_rule(to, standing())),
        };
        if let Host::Address(ip) = to.host
            && !address::is_public(ip)
            && !passage.may_be_private()
        {
            return Err(private(&to.host.to_string()));
        }
        let is_within =
            |list: &Vec<HostPattern>| list.iter().any(|pattern| pattern.matches(&to.host));
        match self.within.iter().all(is_within) {
            true => Ok(passage),
            false => Err(Refusal::new(
                "allow_hosts",
                format!(
                    "{} is not among the hosts that the configuration or airlock.toml limits this run to",
                    to.host
                ),
                "allow_hosts in the configuration",
            )),
        }
    }
}

/// Stands for the ports that no rule names.
const SOME_PORT: u16 = 1;

impl Rules {
    /// What they say of a host whose address is asked for, before anybody says which port is wanted: one that may be
    /// reached is enough.
    pub(crate) fn judge_host(&self, host: &Host, now: Instant) -> Result<Passage, Refusal> {
        let judge = |port| {
            self.judge(
                &Destination {
                    host: host.clone(),
                    port,
                },
                now,
            )
        };
        let about = self
            .standing
            .iter()
            .filter(|standing| standing.rule.host.matches(host));
        let mut ports: BTreeSet<u16> = [443, SOME_PORT].into();
        for standing in about {
            match &standing.rule.ports {
                Ports::Any => {}
                Ports::These(these) => ports.extend(these),
            }
        }
        let allowed = ports.into_iter().filter_map(|port| judge(port).ok());
        match allowed.max_by_key(Passage::may_be_private) {
            Some(passage) => Ok(passage),
            None => judge(443),
        }
    }
}

/// Those that name it most closely.
fn passage<'a>(about: impl Iterator<Item = &'a Arc<Standing>>) -> Option<Passage> {
    let mut rules: Vec<Arc<Standing>> = Vec::new();
    let rank = |standing: &Standing| (standing.rule.host.precision(), standing.rule.looks_inside());
    for standing in about {
        match rules.first().map(|best| rank(standing).cmp(&rank(best))) {
            None | Some(std::cmp::Ordering::Greater) => rules = vec![standing.clone()],
            Some(std::cmp::Ordering::Equal) => rules.push(standing.clone()),
            Some(std::cmp::Ordering::Less) => {}
        }
    }
    if !rules.first()?.rule.looks_inside() {
        rules.truncate(1);
    }
    Some(Passage {
        rules,
        learned: false,
    })
}

fn learned(host: &Host) -> Arc<Standing> {
    Standing::new(
        EgressRule::tunnel("--learn", HostPattern::Exactly(host.clone()), Ports::Any),
        None,
    )
}

fn no_rule<'a>(to: &Destination, mut standing: impl Iterator<Item = &'a Arc<Standing>>) -> Refusal {
    let option = match spec::WEB_PORTS.contains(&to.port) {
        true => format!("--allow-host {}", to.host),
        false => format!("--allow-host {to}"),
    };
    match standing.find(|standing| {
        standing.rule.host.matches(&to.host) && standing.rule.mode != EgressMode::Deny
    }) {
        Some(other) => Refusal::new(
            &other.rule.name,
            format!(
                "the rule for {} does not name port {}: {}",
                to.host, to.port, other.rule.name
            ),
            option,
        ),
        None => Refusal::new("no rule", format!("no rule allows {}", to.host), option),
    }
}

/// Whoever gives credentials to everybody on this machine is nobody's destination.
fn refuse_metadata(host: &Host) -> Result<(), Refusal> {
    let is_metadata = match host {
        Host::Name(name) => address::is_metadata_name(name),
        Host::Address(ip) => address::is_metadata(*ip),
    };
    match is_metadata {
        true => Err(Refusal::new(
            "metadata",
            format!("{host} is, or may be, a metadata service"),
            "nothing",
        )),
        false => Ok(()),
    }
}

/// An address that is not public, of a host that may not have one.
pub(crate) fn private(host: &str) -> Refusal {
    Refusal::new(
        "private",
        format!("{host} is at a private, loopback, link-local or reserved address"),
        "a rule with allow_private = true in the configuration",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn rules(rules: &[(&str, EgressMode)]) -> Rules {
        let rule = |(text, mode): &(&str, EgressMode)| {
            let (host, ports) = spec::host_and_ports(text).unwrap();
            EgressRule {
                mode: mode.clone(),
                ..EgressRule::tunnel(*text, host, ports)
            }
        };
        Rules::new(&EgressGrant {
            rules: rules.iter().map(rule).collect(),
            ..EgressGrant::default()
        })
    }

    fn inspect() -> EgressMode {
        EgressMode::Inspect {
            allow: Vec::new(),
            credential: None,
            allow_upgrade: false,
        }
    }

    fn judged(rules: &Rules, to: &str) -> Result<Vec<String>, String> {
        let passage = rules
            .judge(&to.parse().unwrap(), Instant::now())
            .map_err(|refusal| refusal.rule)?;
        Ok(passage
            .rules
            .iter()
            .map(|standing| standing.rule.name.clone())
            .collect())
    }

    #[test]
    fn denial_wins_then_closeness_then_looking_inside() {
        use EgressMode::{Deny, Tunnel};
        let rules = rules(&[
            ("*", Tunnel),
            ("*.a.com", Tunnel),
            ("x.a.com", Tunnel),
            ("x.a.com:443", inspect()),
            ("*.b.a.com", Tunnel),
            ("evil.a.com", Deny),
        ]);
        assert_eq!(judged(&rules, "x.a.com:443").unwrap(), ["x.a.com:443"]);
        assert_eq!(judged(&rules, "x.a.com:80").unwrap(), ["x.a.com"]);
        assert_eq!(judged(&rules, "y.b.a.com:443").unwrap(), ["*.b.a.com"]);
        assert_eq!(judged(&rules, "a.com:443").unwrap(), ["*"]);
        assert_eq!(judged(&rules, "EVIL.a.com.:443").unwrap_err(), "evil.a.com");
        assert_eq!(
            judged(&rules, "a.com:22").unwrap_err(),
            "*",
            "a port must be named"
        );
    }

    #[test]
    fn private_and_metadata_addresses_are_refused_in_every_spelling() {
        let any = rules(&[("*", EgressMode::Tunnel)]);
        for host in [
            "127.0.0.1",
            "0x7f.1",
            "[::1]",
            "[::ffff:10.0.0.1]",
            "192.168.1.1",
            "0",
            "[fe80::1]",
        ] {
            let rule = judged(&any, &format!("{host}:443")).unwrap_err();
            assert!(
                ["private", "metadata"].contains(&rule.as_str()),
                "{host}: {rule}"
            );
        }
        for host in [
            "169.254.169.254",
            "2852039166",
            "metadata.google.internal",
            "[fd00:ec2::254]",
        ] {
            assert_eq!(
                judged(&any, &format!("{host}:80")).unwrap_err(),
                "metadata",
                "{host}"
            );
        }
        assert!(judged(&any, "1.1.1.1:443").is_ok());
    }

    #[test]
    fn a_host_may_be_asked_for_if_one_of_its_ports_may_be_reached() {
        use EgressMode::{Deny, Tunnel};
        let mut rules = rules(&[
            ("a.com:22", Tunnel),
            ("b.com:443", Deny),
            ("c.com:22", Tunnel),
            ("c.com", Deny),
            ("c.com:22", Deny),
        ]);
        let any_port = EgressRule::tunnel("b.com", "b.com".parse().unwrap(), Ports::Any);
        rules.standing.push(Standing::new(any_port, None));
        let judged = |host: &str| rules.judge_host(&host.parse().unwrap(), Instant::now());
        assert!(judged("a.com").is_ok() && judged("b.com").is_ok());
        assert_eq!(judged("c.com").unwrap_err().rule, "c.com");
        assert_eq!(
            judged("x.a.com").unwrap_err().allow_with,
            "--allow-host x.a.com"
        );
        assert_eq!(
            judged("metadata.google.internal").unwrap_err().rule,
            "metadata"
        );
    }

    #[test]
    fn a_grant_falls_when_its_time_is_over() {
        let mut rules = Rules::default();
        let rule = EgressRule::from_option("a.com").unwrap();
        let now = Instant::now();
        rules
            .standing
            .push(Standing::new(rule, Some(now + Duration::from_secs(60))));
        let to = "a.com:443".parse().unwrap();
        assert!(rules.judge(&to, now).is_ok());
        assert!(rules.judge(&to, now + Duration::from_secs(61)).is_err());
    }

    #[test]
    fn lists_of_hosts_only_narrow() {
        let grant = EgressGrant {
            rules: vec![EgressRule::from_option("*.a.com").unwrap()],
            within: vec![vec!["x.a.com".parse().unwrap(), "z.com".parse().unwrap()]],
            learn: true,
            ..EgressGrant::default()
        };
        let rules = Rules::new(&grant);
        assert!(
            judged(&rules, "x.a.com:443").is_ok()
                && judged(&rules, "z.com:443").unwrap() == ["--learn"]
        );
        assert_eq!(judged(&rules, "y.a.com:443").unwrap_err(), "allow_hosts");
        assert_eq!(
            judged(&rules, "10.0.0.1:443").unwrap_err(),
            "private",
            "nothing private is learned"
        );
    }
}
