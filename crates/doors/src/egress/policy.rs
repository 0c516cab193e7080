//! Policy evaluation: what the rules say about a destination. Pure: nothing is resolved or dialled.
//! A denying rule wins. Among the others the one whose host pattern is the most specific counts; of
//! equally specific ones, an inspecting rule comes first.

use super::traffic_limits::TrafficMeter;
use spec::{Destination, EgressGrant, EgressMode, EgressRule, Host, HostPattern, Ports, address};
use std::{collections::BTreeSet, sync::Arc, time::Instant};

/// A rule in force with its traffic counters.
#[derive(Debug)]
pub(crate) struct ActiveRule {
    pub(crate) rule: EgressRule,
    /// When it expires.
    pub(crate) until: Option<Instant>,
    /// It was added at run time.
    pub(crate) added_at_runtime: bool,
    pub(crate) meter: TrafficMeter,
}

/// All rules of a door.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleSet {
    pub(crate) active: Vec<Arc<ActiveRule>>,
    within: Vec<Vec<HostPattern>>,
    learn: bool,
}

/// Why something is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The rule that refuses it, or a placeholder.
    pub(crate) rule: String,
    /// The reason, for people.
    pub(crate) reason: String,
    /// What would allow it, or `nothing`.
    pub(crate) allow_with: String,
}

/// The rules that allow something.
#[derive(Clone, Debug)]
pub(crate) struct Permission {
    /// Either one rule that does not inspect, or all matching ones that do.
    pub(crate) rules: Vec<Arc<ActiveRule>>,
    /// No rule allows it; learning mode lets it pass and logs it.
    pub(crate) learned: bool,
}

impl ActiveRule {
    pub(crate) fn new(rule: EgressRule, until: Option<Instant>) -> Arc<ActiveRule> {
        let meter = TrafficMeter::new(&rule.limits);
        Arc::new(ActiveRule {
            rule,
            until,
            added_at_runtime: false,
            meter,
        })
    }

    /// A rule that was added at run time.
    pub(crate) fn added(rule: EgressRule, until: Option<Instant>) -> Arc<ActiveRule> {
        let meter = TrafficMeter::new(&rule.limits);
        Arc::new(ActiveRule {
            rule,
            until,
            added_at_runtime: true,
            meter,
        })
    }

    fn is_active(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl Permission {
    /// Whether requests must be inspected.
    pub(crate) fn looks_inside(&self) -> bool {
        self.rules.iter().any(|active| active.rule.looks_inside())
    }

    /// The rule that is named in logs.
    pub(crate) fn first(&self) -> &Arc<ActiveRule> {
        // Never empty: see `evaluate`.
        &self.rules[0]
    }

    /// Whether private addresses are allowed.
    pub(crate) fn allows_private(&self) -> bool {
        self.rules.iter().all(|active| active.rule.allow_private)
    }

    /// When the first of its rules expires.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.rules.iter().filter_map(|active| active.until).min()
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

impl RuleSet {
    pub(crate) fn new(grant: &EgressGrant) -> RuleSet {
        let active = grant
            .rules
            .iter()
            .map(|rule| ActiveRule::new(rule.clone(), None))
            .collect();
        RuleSet {
            active,
            within: grant.within.clone(),
            learn: grant.learn,
        }
    }

    /// Evaluates the rules for a destination.
    pub(crate) fn evaluate(&self, to: &Destination, now: Instant) -> Result<Permission, Refusal> {
        refuse_metadata(&to.host)?;
        let active = || self.active.iter().filter(|active| active.is_active(now));
        let matching = || active().filter(|active| active.rule.is_about(to));
        if let Some(denied) = matching().find(|active| active.rule.mode == EgressMode::Deny) {
            let name = &denied.rule.name;
            return Err(Refusal::new(
                name,
                format!("a rule denies {}: {name}", to.host),
                "nothing",
            ));
        }
        let permission = match closest_rules(matching()) {
            Some(permission) => permission,
            None if self.learn => Permission {
                rules: vec![learned(&to.host)],
                learned: true,
            },
            None => return Err(no_rule(to, active())),
        };
        if let Host::Address(ip) = to.host
            && !address::is_public(ip)
            && !permission.allows_private()
        {
            return Err(private(&to.host.to_string()));
        }
        let is_within =
            |list: &Vec<HostPattern>| list.iter().any(|pattern| pattern.matches(&to.host));
        if self.within.iter().all(is_within) {
            Ok(permission)
        } else {
            Err(Refusal::new(
                "allow_hosts",
                format!(
                    "{} is not among the hosts that the configuration or airlock.toml limits this run to",
                    to.host
                ),
                "allow_hosts in the configuration",
            ))
        }
    }
}

/// What allows access to private addresses.
const ALLOW_PRIVATE: &str = "a rule with allow_private = true in the configuration";
/// Stands for all ports that no rule names.
const SOME_PORT: u16 = 1;

impl RuleSet {
    /// Evaluates the rules for a name lookup, where the port is not known yet: one allowed port is
    /// enough.
    pub(crate) fn evaluate_host(&self, host: &Host, now: Instant) -> Result<Permission, Refusal> {
        let evaluate = |port| {
            self.evaluate(
                &Destination {
                    host: host.clone(),
                    port,
                },
                now,
            )
        };
        let matching = self
            .active
            .iter()
            .filter(|active| active.rule.host.matches(host));
        let mut ports: BTreeSet<u16> = [443, SOME_PORT].into();
        for active in matching {
            match &active.rule.ports {
                Ports::Any => {}
                Ports::These(these) => ports.extend(these),
            }
        }
        let allowed = ports.into_iter().filter_map(|port| evaluate(port).ok());
        match allowed.max_by_key(Permission::allows_private) {
            Some(permission) => Ok(permission),
            None => evaluate(443),
        }
    }
}

/// The most specific of the matching rules.
fn closest_rules<'a>(matching: impl Iterator<Item = &'a Arc<ActiveRule>>) -> Option<Permission> {
    let mut rules: Vec<Arc<ActiveRule>> = Vec::new();
    let rank = |active: &ActiveRule| (active.rule.host.precision(), active.rule.looks_inside());
    for active in matching {
        match rules.first().map(|best| rank(active).cmp(&rank(best))) {
            None | Some(std::cmp::Ordering::Greater) => rules = vec![active.clone()],
            Some(std::cmp::Ordering::Equal) => rules.push(active.clone()),
            Some(std::cmp::Ordering::Less) => {}
        }
    }
    if !rules.first()?.rule.looks_inside() {
        rules.truncate(1);
    }
    Some(Permission {
        rules,
        learned: false,
    })
}

fn learned(host: &Host) -> Arc<ActiveRule> {
    ActiveRule::new(
        EgressRule::tunnel("--learn", HostPattern::Exactly(host.clone()), Ports::Any),
        None,
    )
}

fn no_rule<'a>(to: &Destination, mut active: impl Iterator<Item = &'a Arc<ActiveRule>>) -> Refusal {
    let is_private = matches!(to.host, Host::Address(ip) if !address::is_public(ip));
    // By name it would be refused as private in any case.
    let option = if is_private {
        format!("a rule for {to} with allow_private = true in the configuration")
    } else if spec::WEB_PORTS.contains(&to.port) {
        format!("--allow-host {}", to.host)
    } else {
        format!("--allow-host {to}")
    };
    match active
        .find(|active| active.rule.host.matches(&to.host) && active.rule.mode != EgressMode::Deny)
    {
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

/// Cloud metadata services hand out credentials to every local caller: always refused.
fn refuse_metadata(host: &Host) -> Result<(), Refusal> {
    let is_metadata = match host {
        Host::Name(name) => address::is_metadata_name(name),
        Host::Address(ip) => address::is_metadata(*ip),
    };
    if is_metadata {
        Err(Refusal::new(
            "metadata",
            format!("{host} is, or may be, a metadata service"),
            "nothing",
        ))
    } else {
        Ok(())
    }
}

/// Refusal of a non-public address.
pub(crate) fn private(host: &str) -> Refusal {
    Refusal::new(
        "private",
        format!("{host} is at a private, loopback, link-local or reserved address"),
        ALLOW_PRIVATE,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_private_is_not_said_to_be_allowed_by_an_option() {
        let rules = rules(&[("localhost:8123", EgressMode::Tunnel)]);
        let allow_with = |host: &str, port| {
            let host = host.parse().unwrap();
            let judged = rules.evaluate(&Destination { host, port }, Instant::now());
            judged.unwrap_err().allow_with
        };
        for private in ["127.0.0.1", "10.0.0.1", "::1"] {
            let words = allow_with(private, 8123);
            assert!(words.contains("with allow_private = true"), "{words}");
        }
        assert_eq!(allow_with("9.9.9.9", 443), "--allow-host 9.9.9.9");
        assert_eq!(allow_with("a.com", 8123), "--allow-host a.com:8123");
    }

    fn rules(rules: &[(&str, EgressMode)]) -> RuleSet {
        let rule = |(text, mode): &(&str, EgressMode)| {
            let (host, ports) = spec::host_and_ports(text).unwrap();
            EgressRule {
                mode: mode.clone(),
                ..EgressRule::tunnel(*text, host, ports)
            }
        };
        RuleSet::new(&EgressGrant {
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

    fn judged(rules: &RuleSet, to: &str) -> Result<Vec<String>, String> {
        let permission = rules
            .evaluate(&to.parse().unwrap(), Instant::now())
            .map_err(|refusal| refusal.rule)?;
        Ok(permission
            .rules
            .iter()
            .map(|active| active.rule.name.clone())
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
        rules.active.push(ActiveRule::new(any_port, None));
        let judged = |host: &str| rules.evaluate_host(&host.parse().unwrap(), Instant::now());
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
        let mut rules = RuleSet::default();
        let rule = EgressRule::from_option("a.com").unwrap();
        let now = Instant::now();
        rules
            .active
            .push(ActiveRule::new(rule, Some(now + Duration::from_secs(60))));
        let to = "a.com:443".parse().unwrap();
        assert!(rules.evaluate(&to, now).is_ok());
        assert!(rules.evaluate(&to, now + Duration::from_secs(61)).is_err());
    }

    #[test]
    fn lists_of_hosts_only_narrow() {
        let grant = EgressGrant {
            rules: vec![EgressRule::from_option("*.a.com").unwrap()],
            within: vec![vec!["x.a.com".parse().unwrap(), "z.com".parse().unwrap()]],
            learn: true,
            ..EgressGrant::default()
        };
        let rules = RuleSet::new(&grant);
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
