//! `airlock.toml` in the current folder. It may come from a hostile clone, so that it can only
//! narrow: a wider value is an error.

use super::{
    ConfigError, doors, egress, images, provider,
    toml_file::{LIMITS, Section},
    workspace,
};
use spec::{
    Budget, ExtraMounts, HostPattern, LimitSet, Limits, ModelPattern, Network, Policy, Profile,
};
use std::path::Path;
use toml::Table;

/// Keys that only the operator's file may have.
const OPERATOR_KEYS: [&str; 6] = [
    "maximum",
    "env",
    "secrets",
    "vault",
    "default_profile",
    "base",
];
pub(super) const NARROW_HINT: &str =
    "a local airlock.toml can only narrow; put this into the configuration file";

/// The settings of a local file.
#[derive(Debug, Default)]
struct LocalSettings {
    limits: LimitSet,
    network: Option<Network>,
    models: Vec<ModelPattern>,
    budget: Budget,
    hosts: Option<Vec<HostPattern>>,
}

/// Narrows the profile of this run: the requested one, otherwise the file's choice, otherwise the
/// default.
pub(super) fn narrow(
    policy: &mut Policy,
    requested: Option<&str>,
    file: &Table,
    path: &Path,
) -> Result<(), ConfigError> {
    let section = Section { path, name: "" };
    let mut local = LocalSettings::default();
    let mut choice = None;
    for (key, value) in file {
        match key.as_str() {
            "profile" => choice = Some(section.text(key, value)?),
            "images" => images::narrow(&mut policy.images, section.table(key, value)?, path)?,
            "workspace" => {
                workspace::narrow(&mut policy.workspace, section.table(key, value)?, path)?
            }
            "network" => local.network = Some(section.network(key, value)?),
            "allow_models" => local.models = provider::models(&section, key, value)?,
            "budget" => local.budget = doors::budget(&section, key, value)?,
            "allow_hosts" => local.hosts = Some(egress::hosts(&section, key, value)?),
            limit if LIMITS.contains(&limit) => section.limit(&mut local.limits, limit, value)?,
            word if OPERATOR_KEYS.contains(&word) || doors::TABLES.contains(&word) => {
                return Err(section.error(word, "cannot be set here", NARROW_HINT));
            }
            other => return Err(section.unknown(other, &known_keys())),
        }
    }
    if let Some(choice) = choice {
        choose(policy, choice, &section)?;
    }
    let name = requested.unwrap_or(&policy.default_profile).to_owned();
    // An unknown profile is refused with the request.
    match policy.profiles.get_mut(&name) {
        Some(profile) => apply(profile, &name, local, &section),
        None => Ok(()),
    }
}

fn known_keys() -> Vec<&'static str> {
    [
        "profile",
        "network",
        "workspace",
        "images",
        "allow_models",
        "budget",
        "allow_hosts",
    ]
    .into_iter()
    .chain(LIMITS)
    .collect()
}

/// Makes another profile the default if it is not wider in anything.
fn choose(policy: &mut Policy, choice: &str, section: &Section<'_>) -> Result<(), ConfigError> {
    let Some(chosen) = policy.profile(choice) else {
        let names: Vec<_> = policy.profiles.keys().map(String::as_str).collect();
        let what = format!(
            "names a profile that does not exist: `{}`",
            choice.escape_debug()
        );
        return Err(section.error(
            "profile",
            what,
            format!("the profiles are {}", names.join(", ")),
        ));
    };
    let default = policy.profile(&policy.default_profile);
    match default.map_or(Some("profile"), |default| {
        first_wider_value(chosen, default)
    }) {
        Some(value) => {
            let what = format!(
                "chooses `{choice}`, which is wider than `{}` in {value}",
                policy.default_profile
            );
            Err(section.error(
                "profile",
                what,
                format!("choose it on the command line: --profile {choice}"),
            ))
        }
        None => {
            policy.default_profile = choice.to_owned();
            Ok(())
        }
    }
}

/// The first key in which a profile allows more than another.
fn first_wider_value(profile: &Profile, than: &Profile) -> Option<&'static str> {
    if rank(profile.network) > rank(than.network) {
        return Some("network");
    }
    if profile
        .env_inherit
        .iter()
        .any(|name| !than.env_inherit.contains(name))
    {
        return Some("env.inherit");
    }
    if profile.extra_mounts != ExtraMounts::None && than.extra_mounts == ExtraMounts::None {
        return Some("its mounts");
    }
    if than.limits_terminals && !profile.limits_terminals {
        return Some("wall_time");
    }
    if profile.allow_secrets && !than.allow_secrets {
        return Some("allow_secrets");
    }
    if !are_subset(&profile.allow_models, &than.allow_models) {
        return Some("allow_models");
    }
    if doors::first_exceeded(&profile.budget, &than.budget).is_some() {
        return Some("budget");
    }
    if egress::is_wider(profile, than) {
        return Some("egress");
    }
    if profile.egress_limits.within(&than.egress_limits) != profile.egress_limits {
        return Some("egress_limits");
    }
    let unlimited = |is: bool, was: bool, name| (is && !was).then_some(name);
    let limits = &profile.limits;
    let most = &than.limits;
    unlimited(
        limits.cpu_time.is_none(),
        most.cpu_time.is_none(),
        "cpu_time",
    )
    .or_else(|| unlimited(limits.cpus.is_none(), most.cpus.is_none(), "cpus"))
    .or_else(|| unlimited(limits.stack.is_none(), most.stack.is_none(), "stack"))
    .or_else(|| {
        as_maximum(most)
            .exceeded_by(&as_maximum(limits))
            .map(|(name, _, _)| name)
    })
}

/// Whether patterns match only names that the others match. Undecided cases count as wider.
fn are_subset(models: &[ModelPattern], others: &[ModelPattern]) -> bool {
    let is_among = |model: &ModelPattern| {
        let name = !model.as_str().contains('*');
        others
            .iter()
            .any(|other| other == model || name && other.matches(model.as_str()))
    };
    others.is_empty() || !models.is_empty() && models.iter().all(is_among)
}

fn apply(
    profile: &mut Profile,
    name: &str,
    local: LocalSettings,
    section: &Section<'_>,
) -> Result<(), ConfigError> {
    let LocalSettings {
        limits,
        network: requested,
        models,
        budget,
        hosts,
    } = local;
    if let Some((key, requested, most)) = as_maximum(&profile.limits).exceeded_by(&limits) {
        let what = format!("would widen: {requested} is over the {most} of profile `{name}`");
        return Err(section.error(key, what, NARROW_HINT));
    }
    if let Some(requested) = requested {
        if rank(requested) > rank(profile.network) {
            let wide = requested.name();
            let strict = profile.network.name();
            let what = format!(
                "would widen: `{wide}` allows more than the `{strict}` of profile `{name}`"
            );
            return Err(section.error("network", what, NARROW_HINT));
        }
        // The egress rules stay: if the command line opens the door again, their denials must still
        // apply.
        profile.network = requested;
    }
    let budget = with_defaults(&budget, &profile.budget);
    if let Some(limit) = doors::first_exceeded(&budget, &profile.budget) {
        let what = format!("would widen: {limit} is over that of profile `{name}`");
        return Err(section.error("budget", what, NARROW_HINT));
    }
    profile.budget = budget;
    profile.local_models = models;
    profile.local_hosts = hosts;
    profile.limits = profile.limits.clone().at_most(&limits);
    profile.limits_terminals |= limits.wall_time.is_some();
    Ok(())
}

/// A budget with defaults for unset limits.
fn with_defaults(budget: &Budget, otherwise: &Budget) -> Budget {
    Budget {
        money: budget.money.or(otherwise.money),
        call: budget.call.or(otherwise.call),
        tokens: budget.tokens.or(otherwise.tokens),
        requests: budget.requests.or(otherwise.requests),
        concurrent: budget.concurrent.or(otherwise.concurrent),
    }
}

fn as_maximum(limits: &Limits) -> LimitSet {
    LimitSet {
        memory: Some(limits.memory),
        cpu_time: limits.cpu_time,
        cpus: limits.cpus,
        wall_time: Some(limits.wall_time),
        pids: Some(limits.pids),
        file_size: Some(limits.file_size),
        open_files: Some(limits.open_files),
        disk: Some(limits.disk),
        output: Some(limits.output),
        stack: limits.stack,
        locked_memory: Some(
            limits
                .locked_memory
                .unwrap_or(Limits::DEFAULT_LOCKED_MEMORY),
        ),
        message_queues: Some(
            limits
                .message_queues
                .unwrap_or(Limits::DEFAULT_MESSAGE_QUEUES),
        ),
        nice: Some(limits.nice.unwrap_or(0)),
    }
}

/// Orders network modes by how much they allow.
fn rank(network: Network) -> u8 {
    match network {
        Network::None => 0,
        Network::Doors => 1,
        Network::Open => 2,
        Network::Host => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrowed(
        policy: &Policy,
        requested: Option<&str>,
        text: &str,
    ) -> Result<Policy, ConfigError> {
        let mut policy = policy.clone();
        narrow(
            &mut policy,
            requested,
            &text.parse().unwrap(),
            Path::new("/p/airlock.toml"),
        )?;
        Ok(policy)
    }

    #[test]
    fn smaller_limits_and_a_stricter_network_are_taken() {
        let text = "memory = \"64M\"\ncpu_time = \"5s\"\ncpus = 1\nnetwork = \"none\"\n";
        let policy = narrowed(&Policy::default(), Some("agent"), text).unwrap();
        let mut agent = Policy::default().profile("agent").unwrap().clone();
        agent.limits.memory = "64M".parse().unwrap();
        (agent.limits.cpu_time, agent.limits.cpus) = ("5s".parse().ok(), "1".parse().ok());
        agent.network = Network::None;
        assert_eq!(policy.profile("agent"), Some(&agent));
    }

    #[test]
    fn equal_values_do_not_widen() {
        assert!(
            narrowed(
                &Policy::default(),
                None,
                "memory = \"512M\"\nnetwork = \"none\""
            )
            .is_ok()
        );
    }

    #[test]
    fn every_value_that_would_widen_is_named() {
        let cases = [
            (
                "memory = \"513M\"",
                "`memory` in `/p/airlock.toml` would widen: 513M is over the 512M",
            ),
            (
                "cpu_time = \"2h\"",
                "`cpu_time` in `/p/airlock.toml` would widen",
            ),
            (
                "wall_time = \"2h\"",
                "`wall_time` in `/p/airlock.toml` would widen",
            ),
            ("pids = 33", "`pids` in `/p/airlock.toml` would widen"),
            (
                "file_size = \"1G\"",
                "`file_size` in `/p/airlock.toml` would widen",
            ),
            (
                "open_files = 129",
                "`open_files` in `/p/airlock.toml` would widen",
            ),
            (
                r#"locked_memory = "65K""#,
                "`locked_memory` in `/p/airlock.toml` would widen",
            ),
            ("disk = \"1G\"", "`disk` in `/p/airlock.toml` would widen"),
            (
                "output = \"1G\"",
                "`output` in `/p/airlock.toml` would widen",
            ),
            (
                "network = \"doors\"",
                "`network` in `/p/airlock.toml` would widen: `doors` allows more",
            ),
            (
                "network = \"host\"",
                "`network` in `/p/airlock.toml` cannot be `host`",
            ),
            (
                "profile = \"standard\"",
                "`profile` in `/p/airlock.toml` chooses `standard`, which is wider",
            ),
        ];
        for (text, start) in cases {
            let error = narrowed(&Policy::default(), None, text).expect_err(text);
            assert!(error.message.starts_with(start), "{}", error.message);
        }
    }

    #[test]
    fn what_only_the_operator_may_say_is_refused() {
        for text in [
            "[maximum]\nmemory = \"1M\"",
            "env.inherit = [\"AWS_SECRET_ACCESS_KEY\"]",
            "[provider.x]",
            "[model.x]",
            "[prices.x]",
            "[unknown_prices]",
            "[inference]",
            "[secrets]",
            "[vault]",
            "[ledger]",
            "[doors]",
            "[tenant.x]",
            "[credential.x]",
            "[egress]",
            "[[egress]]\nhost = \"x\"",
            "[profile.ci]\nmemory = \"1M\"",
        ] {
            assert!(narrowed(&Policy::default(), None, text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_stricter_profile_can_be_chosen_and_a_flag_is_over_it() {
        let mut policy = Policy::default();
        let mut strict = policy.profile("restrictive").unwrap().clone();
        strict.limits.pids = 4;
        policy.profiles.insert("strict".into(), strict.clone());
        let chosen = narrowed(&policy, None, "profile = \"strict\"\npids = 3").unwrap();
        assert_eq!(chosen.default_profile, "strict");
        assert_eq!(chosen.profile("strict").unwrap().limits.pids, 3);
        let requested = narrowed(
            &policy,
            Some("restrictive"),
            "profile = \"strict\"\npids = 30",
        )
        .unwrap();
        assert_eq!(requested.profile("restrictive").unwrap().limits.pids, 30);
        strict.env_inherit = vec!["TOKEN".into()];
        policy.profiles.insert("strict".into(), strict);
        let error = narrowed(&policy, None, "profile = \"strict\"").unwrap_err();
        assert!(
            error
                .message
                .ends_with("wider than `restrictive` in env.inherit"),
            "{}",
            error.message
        );
    }

    #[test]
    fn a_profile_without_a_limit_is_wider_than_one_with_it() {
        let mut policy = Policy::default();
        let mut endless = policy.profile("restrictive").unwrap().clone();
        endless.limits.cpu_time = None;
        policy.profiles.insert("endless".into(), endless);
        let error = narrowed(&policy, None, "profile = \"endless\"").unwrap_err();
        assert!(error.message.ends_with("in cpu_time"), "{}", error.message);
    }

    #[test]
    fn models_and_money_can_only_become_fewer() {
        let mut policy = Policy::default();
        let agent = policy.profiles.get_mut("agent").unwrap();
        agent.budget = Budget {
            money: Some(spec::Money(2_000_000_000)),
            requests: Some(5),
            ..Budget::default()
        };
        agent.allow_models = vec!["claude-*".parse().unwrap()];
        let text = "allow_models = [\"*\"]\nbudget = { run_usd = 1.5, run_tokens = 9 }";
        let narrow = narrowed(&policy, Some("agent"), text).unwrap();
        let was = policy.profile("agent").unwrap();
        let is = narrow.profile("agent").unwrap();
        let budget = Budget {
            money: Some(spec::Money(1_500_000_000)),
            tokens: Some(9),
            ..was.budget.clone()
        };
        assert_eq!((&is.budget, &is.allow_models), (&budget, &was.allow_models));
        assert_eq!(
            is.local_models,
            ["*".parse().unwrap()],
            "a model must be in both lists"
        );
        for (text, limit) in [("run_usd = 2.1", "run_usd"), ("requests = 6", "requests")] {
            let refused =
                narrowed(&policy, Some("agent"), &format!("budget = {{ {text} }}")).unwrap_err();
            let start = format!(
                "`budget` in `/p/airlock.toml` would widen: {limit} is over that of profile `agent`"
            );
            assert!(refused.message.starts_with(&start), "{}", refused.message);
        }
    }

    #[test]
    fn a_profile_with_other_models_or_more_money_is_wider() {
        let patterns = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| text.parse().unwrap())
                .collect::<Vec<_>>()
        };
        for (chosen, than, among) in [
            (&["claude-x"][..], &["claude-*"][..], true),
            (&["claude-*"], &["claude-*", "gpt"], true),
            (&["*"], &[], true),
            (&[], &[], true),
            (&[], &["claude-*"], false),
            (&["*"], &["claude-*"], false),
            (&["claude-a*"], &["claude-*"], false),
            (&["gpt"], &["claude-*"], false),
        ] {
            assert_eq!(
                are_subset(&patterns(chosen), &patterns(than)),
                among,
                "{chosen:?} {than:?}"
            );
        }
        let mut policy = Policy::default();
        let mut rich = policy.profile("restrictive").unwrap().clone();
        policy
            .profiles
            .get_mut("restrictive")
            .unwrap()
            .budget
            .requests = Some(5);
        rich.budget.requests = Some(6);
        policy.profiles.insert("rich".into(), rich);
        let refused = narrowed(&policy, None, "profile = \"rich\"").unwrap_err();
        assert!(
            refused
                .message
                .ends_with("wider than `restrictive` in budget"),
            "{}",
            refused.message
        );
    }

    #[test]
    fn hosts_can_only_become_fewer() {
        let policy = narrowed(
            &Policy::default(),
            Some("agent"),
            "allow_hosts = [\"*.a.com\"]",
        )
        .unwrap();
        let agent = policy.profile("agent").unwrap();
        assert_eq!(
            agent.local_hosts,
            Some(vec!["*.a.com".parse().unwrap()]),
            "beside the rules, not instead"
        );
        assert_eq!(
            agent.egress,
            Policy::default().profile("agent").unwrap().egress
        );
        let none = narrowed(&Policy::default(), Some("agent"), "allow_hosts = []").unwrap();
        assert_eq!(none.profile("agent").unwrap().local_hosts, Some(Vec::new()));
        assert!(narrowed(&Policy::default(), None, "allow_hosts = [\"a b\"]").is_err());
    }

    #[test]
    fn a_profile_with_other_rules_or_fewer_limits_is_wider() {
        let mut policy = Policy::default();
        let mut out = policy.profile("restrictive").unwrap().clone();
        let rule = spec::EgressRule::from_option("pypi.org").unwrap();
        (out.network, out.egress) = (Network::Doors, Some(vec![rule.clone()]));
        policy.profiles.insert("out".into(), out.clone());
        let refused = |policy: &Policy| {
            narrowed(policy, None, "profile = \"out\"")
                .unwrap_err()
                .message
        };
        assert!(
            refused(&policy).ends_with("in network"),
            "{}",
            refused(&policy)
        );
        let default = policy.profiles.get_mut("restrictive").unwrap();
        (default.network, default.egress) = (Network::Doors, Some(Vec::new()));
        assert!(
            refused(&policy).ends_with("in egress"),
            "{}",
            refused(&policy)
        );
        let default = policy.profiles.get_mut("restrictive").unwrap();
        default.egress = Some(vec![rule]);
        default.egress_limits.per_minute = Some(5);
        assert!(
            refused(&policy).ends_with("in egress_limits"),
            "{}",
            refused(&policy)
        );
        policy
            .profiles
            .get_mut("out")
            .unwrap()
            .egress_limits
            .per_minute = Some(5);
        assert!(narrowed(&policy, None, "profile = \"out\"").is_ok());
    }

    /// A profile that may reach `*.example.com`, but not one host of it; and one without rules.
    fn with_a_denial() -> (Policy, spec::EgressRule) {
        let denied = spec::EgressRule::from_option("evil.example.com").unwrap();
        let denied = spec::EgressRule {
            mode: spec::EgressMode::Deny,
            ..denied
        };
        let mut policy = Policy::default();
        policy.profiles.insert(
            "small".into(),
            policy.profile("restrictive").unwrap().clone(),
        );
        let default = policy.profiles.get_mut("restrictive").unwrap();
        let allowed = spec::EgressRule::from_option("*.example.com").unwrap();
        (default.network, default.egress) = (Network::Doors, Some(vec![allowed, denied.clone()]));
        (policy, denied)
    }

    fn request() -> spec::RunRequest {
        spec::RunRequest {
            command: vec!["true".into()],
            ..Default::default()
        }
    }

    #[test]
    fn a_project_that_wants_no_network_gets_none_whatever_rules_there_are() {
        let (policy, _) = with_a_denial();
        let narrow = narrowed(&policy, None, "network = \"none\"").unwrap();
        for llm in [None, Some(None)] {
            let admitted = narrow
                .admit(spec::RunRequest {
                    llm: llm.clone(),
                    ..request()
                })
                .unwrap();
            assert_eq!(admitted.grants.egress, None, "{llm:?}");
        }
        assert_eq!(
            narrow.admit(request()).unwrap().sandbox.network,
            Network::None
        );
        assert!(
            narrowed(&policy, None, "network = \"doors\"").is_ok(),
            "that is what it has"
        );
    }

    #[test]
    fn a_project_that_wants_no_network_takes_no_denial_away_from_who_opens_it_again() {
        let (policy, denied) = with_a_denial();
        let narrow = narrowed(&policy, None, "network = \"none\"").unwrap();
        let ways = [
            spec::RunRequest {
                allow_hosts: vec!["*.example.com".to_owned()],
                ..request()
            },
            spec::RunRequest {
                network: Some(Network::Open),
                ..request()
            },
            spec::RunRequest {
                learn: true,
                ..request()
            },
        ];
        for way in ways {
            let rules = narrow
                .admit(way.clone())
                .unwrap()
                .grants
                .egress
                .unwrap()
                .rules;
            assert!(rules.contains(&denied), "{way:?}");
        }
    }

    #[test]
    fn a_project_cannot_choose_a_profile_that_lacks_a_denial() {
        let (policy, denied) = with_a_denial();
        let refused = narrowed(&policy, None, "profile = \"small\"")
            .unwrap_err()
            .message;
        assert!(
            refused.ends_with("wider than `restrictive` in egress"),
            "{refused}"
        );
        let mut policy = policy;
        policy.profiles.get_mut("small").unwrap().egress = Some(vec![denied]);
        assert!(narrowed(&policy, None, "profile = \"small\"").is_ok());
    }
}
