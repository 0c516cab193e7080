//! The grants of a run at its doors, and the network mode that follows from them.

use super::{EnvName, Network, RunRequest, SpecError, error::shown, invalid};
use crate::{
    Budget, EgressGrant, EgressRule, ErrorCode, Grants, HostPattern, Id, LlmGrant, ModelPattern,
    Policy, Profile,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
};

/// Secrets of one request.
const MAX_SECRETS: usize = 32;
/// Hosts of one request.
const MAX_HOSTS: usize = 256;
/// Doors of one run, of every kind.
const MAX_DOORS: usize = 8;

/// The grants, and the network mode for them. A door needs a network namespace of its own, so that
/// a request for a door is a request for one.
pub(super) fn granted(
    policy: &Policy,
    request: &RunRequest,
    profile: &Profile,
) -> Result<(Grants, Network), SpecError> {
    let grants = grants_of(request, profile, &policy.maximum_budget)?;
    let requests_egress = !request.allow_hosts.is_empty() || request.learn;
    let network = match request.network {
        Some(network) => network,
        // A request that names hosts allows these and no others, also where the profile is open.
        None if requests_egress => Network::Doors,
        None if grants.ports().is_empty() || profile.network == Network::Open => profile.network,
        None => Network::Doors,
    };
    // The egress rules of a profile without a network apply only where the request names a mode.
    let has_egress = profile.egress.is_some()
        && (profile.network != Network::None || request.network.is_some())
        || requests_egress;
    let has_rules = has_egress
        && profile
            .egress
            .as_ref()
            .is_some_and(|rules| !rules.is_empty());
    let joins_network = joins_internal_network(request, network, requests_egress || has_rules)?;
    let has_egress = has_egress && !joins_network;
    let needs_doors = |option: &str, hint: &str| {
        Err(invalid(
            format!("{option} needs the network mode `doors`"),
            hint,
        ))
    };
    match network {
        Network::None | Network::Host if requests_egress => needs_doors(
            "a host that may be reached",
            "leave --network away, or say --network doors",
        ),
        Network::Open if request.learn => needs_doors(
            "--learn",
            "leave --network away: in `open` there is nothing to learn",
        ),
        Network::None | Network::Host => Ok((grants, network)),
        Network::Doors if !has_egress => Ok((grants, network)),
        Network::Doors | Network::Open => {
            let egress = Some(egress_of(policy, request, profile, network)?);
            Ok((Grants { egress, ..grants }, network))
        }
    }
}

/// Whether the run joins an internal network of a container engine, which takes the place of the
/// egress door: there, DNS and neighbours are those of the network. A door without rules is dropped
/// silently, because it lets nothing out; any other is refused together with the network.
fn joins_internal_network(
    request: &RunRequest,
    network: Network,
    door_has_rules: bool,
) -> Result<bool, SpecError> {
    let would_open = match network {
        Network::None | Network::Host => false,
        Network::Doors => door_has_rules,
        Network::Open => true,
    };
    let joins = request.internal_network.is_some();
    if joins && would_open {
        return Err(invalid(
            "--internal-network and an egress door do not go together",
            "choose one: leave --internal-network away, or say --network none and name no hosts",
        ));
    }
    Ok(joins)
}

/// The rules of the profile, then those of the request.
fn egress_of(
    policy: &Policy,
    request: &RunRequest,
    profile: &Profile,
    network: Network,
) -> Result<EgressGrant, SpecError> {
    if request.allow_hosts.len() > MAX_HOSTS {
        return Err(invalid(
            format!("more than {MAX_HOSTS} hosts"),
            "use patterns: --allow-host '*.example.com'",
        ));
    }
    let hint = "write --allow-host pypi.org, '*.pythonhosted.org' or db.example.com:5432";
    let requested = request
        .allow_hosts
        .iter()
        .map(|text| EgressRule::from_option(text))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|bad| invalid(bad, hint))?;
    if let Some(allowed) = &policy.maximum_hosts
        && let Some(beyond) = requested
            .iter()
            .find(|rule| !is_within_any(&rule.host, allowed))
    {
        return Err(SpecError {
            code: ErrorCode::PolicyDenied,
            message: format!("{} is beyond the operator's maximum", beyond.host),
            hint: "ask for less, or add it to `allow_hosts` under [maximum] in the configuration"
                .to_owned(),
        });
    }
    let mut rules = profile.egress.clone().unwrap_or_default();
    rules.extend(requested);
    if network == Network::Open {
        rules.push(EgressRule::open());
    }
    let within = policy
        .maximum_hosts
        .iter()
        .chain(&profile.local_hosts)
        .cloned()
        .collect();
    Ok(EgressGrant {
        rules,
        within,
        limits: profile.egress_limits.clone(),
        learn: request.learn,
    })
}

fn is_within_any(pattern: &HostPattern, others: &[HostPattern]) -> bool {
    others.iter().any(|other| pattern.is_within(other))
}

/// The grants at the doors to models.
fn grants_of(
    request: &RunRequest,
    profile: &Profile,
    maximum: &Budget,
) -> Result<Grants, SpecError> {
    let hint = "write a model's name, with * for any characters: --allow-model 'claude-*'";
    let models = request.allow_models.iter().map(|text| text.parse());
    let models: Vec<ModelPattern> = models
        .collect::<Result<_, crate::BadModelPattern>>()
        .map_err(|bad| invalid(bad, hint))?;
    let has_model_door = request.llm.is_some() || request.inference;
    if !has_model_door && (!models.is_empty() || request.budget != Budget::default()) {
        let message = "a budget or a list of models needs a door";
        return Err(invalid(message, "add --llm=PROVIDER, or --inference"));
    }
    let requested = request.budget.or(maximum);
    if requested.within(maximum) != requested {
        let hint = "ask for less, or raise `budget` under [maximum] in the configuration";
        return Err(invalid("the budget is over the operator's maximum", hint));
    }
    let models = vec![
        models,
        profile.allow_models.clone(),
        profile.local_models.clone(),
    ];
    let inference = request.inference.then(|| models.clone());
    let budget = request.budget.or(&profile.budget).within(maximum);
    let llm = request
        .llm
        .clone()
        .map(|provider| LlmGrant { provider, models });
    Ok(Grants {
        llm,
        inference,
        budget,
        ..Grants::default()
    })
}

/// Secrets that the program gets as variables: each variable once, and only where the profile
/// allows secrets.
pub(super) fn secrets(
    texts: &[OsString],
    env: &BTreeMap<EnvName, OsString>,
    name: &str,
    profile: &Profile,
) -> Result<Vec<(String, EnvName)>, SpecError> {
    if !texts.is_empty() && !profile.allow_secrets {
        return Err(SpecError {
            code: ErrorCode::PolicyDenied,
            message: format!("the profile `{name}` lets no secret in"),
            hint: "use --llm, so that the key stays outside, or another profile: --profile agent"
                .to_owned(),
        });
    }
    if texts.len() > MAX_SECRETS {
        return Err(invalid(
            format!("more than {MAX_SECRETS} secrets"),
            "let fewer in",
        ));
    }
    let mut seen: BTreeSet<_> = env.keys().cloned().collect();
    texts
        .iter()
        .map(|text| {
            let (secret, variable) = secret(text)?;
            if !seen.insert(variable.clone()) {
                return Err(invalid(
                    format!(
                        "the variable `{}` is set twice",
                        shown(variable.as_os_str())
                    ),
                    "give each --secret and --env its own variable",
                ));
            }
            Ok((secret, variable))
        })
        .collect()
}

fn secret(text: &OsStr) -> Result<(String, EnvName), SpecError> {
    let hint = "write --secret NAME=VARIABLE; `airlock secrets list` shows the names";
    let (name, variable) = text
        .to_str()
        .and_then(|text| text.split_once('='))
        .ok_or_else(|| {
            invalid(
                format!("`{}` is not a secret with its variable", shown(text)),
                hint,
            )
        })?;
    let name = Id::new(name).map_err(|bad| invalid(bad, hint))?;
    Ok((name.to_string(), EnvName::new(OsStr::new(variable))?))
}

/// The ports of all doors.
pub(super) fn ports(ports: &[u16], network: Network) -> Result<Vec<u16>, SpecError> {
    let mut seen = BTreeSet::new();
    if ports.len() > MAX_DOORS || ports.iter().any(|port| *port == 0 || !seen.insert(*port)) {
        return Err(invalid(
            "doors need up to eight different ports, none of them 0",
            "give each door its own port",
        ));
    }
    let has_doors = matches!(network, Network::Doors | Network::Open);
    if !ports.is_empty() && !has_doors {
        return Err(invalid(
            "a door needs the network mode `doors`",
            "add --network doors",
        ));
    }
    Ok(ports.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ports;

    fn request(change: impl FnOnce(&mut RunRequest)) -> RunRequest {
        let mut request = RunRequest {
            command: vec!["true".into()],
            ..RunRequest::default()
        };
        change(&mut request);
        request
    }

    fn admitted(
        change: impl FnOnce(&mut RunRequest),
    ) -> (Network, Option<EgressGrant>, Option<Ports>) {
        let spec = Policy::default().admit(request(change)).unwrap();
        (
            spec.sandbox.network,
            spec.grants.egress,
            spec.sandbox.transparent_ports,
        )
    }

    #[test]
    fn who_names_hosts_gets_these_and_no_others() {
        for profile in ["restrictive", "standard", "agent"] {
            let (network, egress, transparent_ports) = admitted(|r| {
                r.profile = Some(profile.to_owned());
                r.allow_hosts = vec!["pypi.org".to_owned(), "db.example.com:5432".to_owned()];
            });
            let names: Vec<_> = egress
                .unwrap()
                .rules
                .into_iter()
                .map(|rule| rule.name)
                .collect();
            assert_eq!(
                names,
                ["--allow-host pypi.org", "--allow-host db.example.com:5432"],
                "{profile}"
            );
            assert_eq!(
                (network, transparent_ports),
                (Network::Doors, Some(Ports::These(vec![80, 443, 5432])))
            );
        }
    }

    #[test]
    fn open_is_a_rule_for_all_hosts_and_none_has_no_door() {
        for profile in ["standard", "permissive"] {
            let (network, egress, transparent_ports) =
                admitted(|r| r.profile = Some(profile.to_owned()));
            assert_eq!(egress.unwrap().rules, [EgressRule::open()]);
            assert_eq!(
                (network, transparent_ports),
                (Network::Open, Some(Ports::Any))
            );
        }
        assert_eq!(admitted(|_| {}), (Network::None, None, None));
        let (network, egress, _) = admitted(|r| r.profile = Some("agent".to_owned()));
        assert_eq!(
            (network, egress),
            (Network::Doors, Some(EgressGrant::default())),
            "a door that lets nothing out"
        );
    }

    #[test]
    fn an_internal_network_is_joined_instead_of_an_egress_door() {
        let ask = |change: fn(&mut RunRequest)| {
            let mut asked = request(change);
            (asked.backend, asked.image) = (Some("docker".to_owned()), Some("tool".into()));
            asked.internal_network = Some("services".to_owned());
            asked.profile.get_or_insert("agent".to_owned());
            Policy::default().admit(asked)
        };
        let spec = ask(|_| {}).unwrap();
        assert_eq!(
            (spec.grants.egress, spec.sandbox.transparent_ports),
            (None, None),
            "its rules allow nothing"
        );
        assert!(ask(|r| r.llm = Some(None)).is_ok());
        let ways: [fn(&mut RunRequest); 4] = [
            |r| r.allow_hosts = vec!["a.b".to_owned()],
            |r| r.learn = true,
            |r| r.network = Some(Network::Open),
            |r| r.profile = Some("standard".to_owned()),
        ];
        for both in ways {
            assert!(ask(both).unwrap_err().hint.starts_with("choose one"));
        }
        assert!(
            ask(|r| {
                (r.profile, r.network) = (Some("standard".to_owned()), Some(Network::None));
            })
            .is_ok()
        );
    }

    #[test]
    fn hosts_need_doors_and_stay_within_the_maximum() {
        let refused = |network, learn| {
            let asked = request(|r| {
                (r.network, r.learn, r.allow_hosts) = (Some(network), learn, vec!["a.b".to_owned()])
            });
            Policy::default().admit(asked).unwrap_err().message
        };
        assert!(
            refused(Network::None, false).contains("`doors`")
                && refused(Network::Host, false).contains("`doors`")
        );
        assert!(refused(Network::Open, true).contains("--learn"));
        let maximum_hosts = Some(vec!["*.example.com".parse().unwrap()]);
        let policy = Policy {
            maximum_hosts,
            ..Policy::default()
        };
        let ask = |host: &str| policy.admit(request(|r| r.allow_hosts = vec![host.to_owned()]));
        assert_eq!(
            ask("a.example.com")
                .unwrap()
                .grants
                .egress
                .unwrap()
                .within
                .len(),
            1
        );
        for beyond in ["example.com", "*", "evil.com", "*.com"] {
            assert_eq!(
                ask(beyond).unwrap_err().code,
                ErrorCode::PolicyDenied,
                "{beyond}"
            );
        }
        assert!(
            ask("https://a.example.com")
                .unwrap_err()
                .hint
                .contains("--allow-host")
        );
    }
}
