//! The operator's file: profiles, the maximum of every run, and the settings of doors and servers.

use super::{
    ConfigError, artifacts,
    artifacts::ArtifactsConfig,
    audit, doors,
    doors::DoorsConfig,
    egress, images, jobs, provider, secrets, serve,
    serve::ServeConfig,
    telemetry,
    telemetry::TelemetryConfig,
    toml_file::{LIMITS, Section},
    webhooks, workspace,
};
use spec::{
    Budget, EgressLimits, EgressRule, EnvName, Id, JobQueueLimits, LimitSet, ModelPattern, Network,
    Policy, PoolSettings, Profile,
};
use std::{collections::BTreeMap, ffi::OsStr, path::Path};
use toml::{Table, Value};

/// The maximum depth of profiles based on profiles.
const MAX_BASES: usize = 16;

/// The settings of the file, over the defaults.
#[derive(Debug)]
pub(super) struct OperatorSettings {
    pub(super) policy: Policy,
    pub(super) pool: PoolSettings,
    pub(super) serve: ServeConfig,
    pub(super) webhooks: webhooks::WebhooksConfig,
    pub(super) jobs: JobQueueLimits,
    pub(super) doors: DoorsConfig,
    pub(super) secrets: secrets::SecretSettings,
    pub(super) artifacts: ArtifactsConfig,
    pub(super) audit: audit::AuditConfig,
    pub(super) telemetry: TelemetryConfig,
}

impl Default for OperatorSettings {
    fn default() -> Self {
        let policy = Policy::default();
        let doors = DoorsConfig::default();
        let secrets = secrets::SecretSettings::default();
        let artifacts = ArtifactsConfig::default();
        OperatorSettings {
            policy,
            pool: PoolSettings::OFF,
            serve: ServeConfig::default(),
            jobs: JobQueueLimits::default(),
            webhooks: webhooks::WebhooksConfig::default(),
            doors,
            secrets,
            artifacts,
            audit: Default::default(),
            telemetry: TelemetryConfig::default(),
        }
    }
}

/// One profile section; unset keys come from its base.
#[derive(Debug, Default)]
struct ProfileSection {
    base: Option<String>,
    network: Option<Network>,
    limits: LimitSet,
    inherit: Option<Vec<String>>,
    allow_secrets: Option<bool>,
    allow_models: Option<Vec<ModelPattern>>,
    budget: Option<Budget>,
    egress: Option<Vec<EgressRule>>,
    egress_limits: Option<EgressLimits>,
}

/// Reads the file over the built-in settings.
pub(super) fn read(file: &Table, path: &Path) -> Result<OperatorSettings, ConfigError> {
    let top = Section { path, name: "" };
    let OperatorSettings {
        mut policy,
        mut doors,
        mut secrets,
        mut artifacts,
        mut audit,
        ..
    } = OperatorSettings::default();
    let mut pool = PoolSettings::OFF;
    let mut serve = ServeConfig::default();
    let mut jobs = JobQueueLimits::default();
    let mut telemetry = TelemetryConfig::default();
    let mut webhooks = webhooks::WebhooksConfig::default();
    let mut sections = BTreeMap::new();
    for (key, value) in file {
        match key.as_str() {
            "profile" => {
                for (name, value) in top.table(key, value)? {
                    sections.insert(name.clone(), profile(name, value, path)?);
                }
            }
            "workspace" => policy.workspace = workspace::read(top.table(key, value)?, path)?,
            "maximum" => maximum(&mut policy, top.table(key, value)?, path)?,
            "pool" => pool = read_pool(top.table(key, value)?, path)?,
            "artifacts" => artifacts = artifacts::read(top.table(key, value)?, path)?,
            "audit" => audit = audit::read(top.table(key, value)?, path)?,
            "serve" => serve = serve::read(top.table(key, value)?, path)?,
            "webhooks" => webhooks = webhooks::read(top.table(key, value)?, path)?,
            "jobs" => jobs = jobs::read(top.table(key, value)?, path)?,
            "images" => policy.images = images::read(top.table(key, value)?, path)?,
            "secrets" => secrets.read(top.table(key, value)?, path)?,
            "vault" => secrets.read_vault(top.table(key, value)?, path)?,
            table if telemetry::TABLES.contains(&table) => {
                telemetry.read(table, top.table(key, value)?, path)?
            }
            table if doors::TABLES.contains(&table) => {
                doors.read(table, top.table(key, value)?, path)?
            }
            other => return Err(top.unknown(other, &known_keys())),
        }
    }
    let builtin = policy.profiles.clone();
    for (name, section) in &sections {
        egress::check(
            name,
            section.egress.as_deref().unwrap_or_default(),
            &doors.egress.credentials,
            &top,
        )?;
        let resolved = resolve(name, &sections, &builtin, &mut Vec::new(), path)?;
        policy.profiles.insert(name.clone(), resolved);
    }
    doors.check(path)?;
    Ok(OperatorSettings {
        policy,
        pool,
        serve,
        jobs,
        webhooks,
        doors,
        secrets,
        artifacts,
        audit,
        telemetry,
    })
}

fn known_keys() -> Vec<&'static str> {
    [
        "profile",
        "workspace",
        "maximum",
        "pool",
        "serve",
        "jobs",
        "webhooks",
        "artifacts",
        "audit",
        "images",
        "secrets",
        "vault",
    ]
    .into_iter()
    .chain(telemetry::TABLES)
    .chain(doors::TABLES)
    .collect()
}

/// Reads `[pool]`: what servers create ahead of runs.
fn read_pool(table: &Table, path: &Path) -> Result<PoolSettings, ConfigError> {
    let section = Section { path, name: "pool" };
    let mut pool = PoolSettings::OFF;
    for (key, value) in table {
        match key.as_str() {
            "parked" => pool.warm_sandboxes = section.count(key, value)? as usize,
            "berths" => pool.prepared_namespaces = section.count(key, value)? as usize,
            "memory" => pool.memory = section.quantity(key, value)?,
            other => return Err(section.unknown(other, &["parked", "berths", "memory"])),
        }
    }
    Ok(pool)
}

fn maximum(policy: &mut Policy, table: &Table, path: &Path) -> Result<(), ConfigError> {
    let section = Section {
        path,
        name: "maximum",
    };
    for (key, value) in table {
        match key.as_str() {
            "budget" => policy.maximum_budget = doors::budget(&section, key, value)?,
            "allow_hosts" => policy.maximum_hosts = Some(egress::hosts(&section, key, value)?),
            limit if LIMITS.contains(&limit) => section.limit(&mut policy.maximum, limit, value)?,
            other => {
                let known_keys: Vec<_> = LIMITS
                    .into_iter()
                    .chain(["budget", "allow_hosts"])
                    .collect();
                return Err(section.unknown(other, &known_keys));
            }
        }
    }
    Ok(())
}

fn profile(name: &str, value: &Value, path: &Path) -> Result<ProfileSection, ConfigError> {
    let all = Section {
        path,
        name: "profile",
    };
    if Id::new(name).is_err() {
        let hint = "use 1 to 128 of A-Z a-z 0-9 . _ - and do not start with a dot";
        return Err(all.error(name, "is not a name for a profile", hint));
    }
    let table = all.table(name, value)?;
    let full_name = all.key(name);
    let section = Section {
        path,
        name: &full_name,
    };
    let mut profile = ProfileSection::default();
    for (key, value) in table {
        match key.as_str() {
            "base" => profile.base = Some(section.text(key, value)?.to_owned()),
            "network" => profile.network = Some(section.network(key, value)?),
            "env" => profile.inherit = inherit(section.table(key, value)?, &section)?,
            limit if LIMITS.contains(&limit) => section.limit(&mut profile.limits, limit, value)?,
            "allow_secrets" => profile.allow_secrets = Some(section.flag(key, value)?),
            "allow_models" => profile.allow_models = Some(provider::models(&section, key, value)?),
            "budget" => profile.budget = Some(doors::budget(&section, key, value)?),
            "egress" => profile.egress = Some(egress::rules(name, &section, key, value)?),
            "egress_limits" => profile.egress_limits = Some(egress::limits(&section, key, value)?),
            other => return Err(section.unknown(other, &known_profile_keys())),
        }
    }
    if profile.egress.is_some() && profile.network == Some(Network::None) {
        let hint = "write network = \"doors\", or remove the rules";
        return Err(section.error(
            "network",
            "is `none`, but there are rules for the egress door",
            hint,
        ));
    }
    Ok(profile)
}

fn known_profile_keys() -> Vec<&'static str> {
    let words = [
        "base",
        "network",
        "env",
        "allow_secrets",
        "allow_models",
        "budget",
        "egress",
        "egress_limits",
    ];
    words.into_iter().chain(LIMITS).collect()
}

fn inherit(table: &Table, section: &Section<'_>) -> Result<Option<Vec<String>>, ConfigError> {
    let name = section.key("env");
    let section = Section {
        path: section.path,
        name: &name,
    };
    let mut names = None;
    for (key, value) in table {
        match key.as_str() {
            "inherit" => {
                let list = value.as_array().ok_or_else(|| {
                    section.error(
                        key,
                        "must be a list of names",
                        "write env.inherit = [\"LANG\"]",
                    )
                })?;
                names = Some(
                    list.iter()
                        .map(|name| variable(key, name, &section))
                        .collect::<Result<_, _>>()?,
                );
            }
            other => return Err(section.unknown(other, &["inherit"])),
        }
    }
    Ok(names)
}

fn variable(key: &str, value: &Value, section: &Section<'_>) -> Result<String, ConfigError> {
    let name = section.text(key, value)?;
    match EnvName::new(OsStr::new(name)) {
        Ok(_) => Ok(name.to_owned()),
        Err(error) => Err(section.error(
            key,
            format_args!("has a bad name: {}", error.message),
            error.hint,
        )),
    }
}

/// Resolves a profile with its bases. A section with a built-in name and without a base changes the
/// built-in profile.
fn resolve(
    name: &str,
    sections: &BTreeMap<String, ProfileSection>,
    builtin: &BTreeMap<String, Profile>,
    seen: &mut Vec<String>,
    path: &Path,
) -> Result<Profile, ConfigError> {
    let own_name = format!("profile.{}", seen.last().map_or(name, String::as_str));
    let section = Section {
        path,
        name: &own_name,
    };
    if seen.iter().any(|earlier| earlier == name) || seen.len() >= MAX_BASES {
        return Err(section.error(
            "base",
            "forms a cycle, or is too deep",
            "name a built-in profile as base",
        ));
    }
    let Some(own) = sections.get(name) else {
        return builtin.get(name).cloned().ok_or_else(|| {
            let names: Vec<_> = builtin
                .keys()
                .chain(sections.keys())
                .map(String::as_str)
                .collect();
            let what = format!(
                "names a profile that does not exist: `{}`",
                name.escape_debug()
            );
            section.error(
                "base",
                what,
                format!("the profiles are {}", names.join(", ")),
            )
        });
    };
    seen.push(name.to_owned());
    let base = match (&own.base, builtin.get(name)) {
        (Some(_), Some(_)) => {
            let hint = "remove it, or give the profile a name of its own";
            return Err(Section {
                path,
                name: &format!("profile.{name}"),
            }
            .error("base", "cannot be given for a built-in profile", hint));
        }
        (None, Some(itself)) => itself.clone(),
        (base, None) => resolve(
            base.as_deref().unwrap_or("restrictive"),
            sections,
            builtin,
            seen,
            path,
        )?,
    };
    let egress = match own.network {
        // An explicit `none` removes the rules of the base.
        Some(Network::None) => None,
        _ => egress::inherited(
            base.egress,
            own.egress.as_ref(),
            &Section {
                path,
                name: &format!("profile.{name}"),
            },
        )?,
    };
    Ok(Profile {
        network: egress::network(own.network.unwrap_or(base.network), egress.as_ref()),
        limits: base.limits.with(&own.limits),
        limits_terminals: base.limits_terminals || own.limits.wall_time.is_some(),
        env_inherit: own.inherit.clone().unwrap_or(base.env_inherit),
        extra_mounts: base.extra_mounts,
        allow_secrets: own.allow_secrets.unwrap_or(base.allow_secrets),
        allow_models: own.allow_models.clone().unwrap_or(base.allow_models),
        local_models: base.local_models,
        budget: own.budget.clone().unwrap_or(base.budget),
        egress,
        egress_limits: own.egress_limits.clone().unwrap_or(base.egress_limits),
        local_hosts: base.local_hosts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Policy, ConfigError> {
        super::read(&text.parse().unwrap(), Path::new("/c.toml")).map(|sections| sections.policy)
    }

    #[test]
    fn a_pool_is_off_unless_the_file_says_what_to_make_ahead() {
        let pool = |text: &str| {
            super::read(&text.parse().unwrap(), Path::new("/c.toml")).map(|sections| sections.pool)
        };
        assert_eq!(pool(""), Ok(PoolSettings::OFF));
        let sections = PoolSettings {
            warm_sandboxes: 8,
            prepared_namespaces: 2,
            memory: "64M".parse().unwrap(),
        };
        assert_eq!(
            pool("[pool]\nparked = 8\nberths = 2\nmemory = \"64M\""),
            Ok(sections)
        );
        assert_eq!(
            pool("[pool]\nparked = 3"),
            Ok(PoolSettings {
                warm_sandboxes: 3,
                ..PoolSettings::OFF
            })
        );
        let wrong = pool("[pool]\nparkd = 3").unwrap_err();
        assert_eq!(
            (wrong.message.as_str(), wrong.hint.as_str()),
            (
                "`pool.parkd` in `/c.toml` is not a known key",
                "did you mean `parked`?",
            )
        );
    }

    #[test]
    fn a_profile_of_ones_own_is_its_base_with_what_it_says() {
        let policy = read(
            "[profile.ci]\nbase = \"agent\"\nmemory = \"2G\"\ncpus = 1.5\nwall_time = 90\nnetwork = \"none\"\n\
             env.inherit = [\"LANG\"]\n[profile.small]\npids = 4\n[profile.tiny]\nbase = \"small\"\ndisk = \"1M\"\n\
             [maximum]\nmemory = \"8G\"\nwall_time = \"1h\"\n",
        )
        .unwrap();
        let builtin = Policy::default();
        let mut ci = builtin.profile("agent").unwrap().clone();
        (ci.limits.memory, ci.limits.cpus) = ("2G".parse().unwrap(), "1.5".parse().ok());
        (ci.limits.wall_time, ci.network) = ("90s".parse().unwrap(), Network::None);
        ci.limits_terminals = true;
        (ci.env_inherit, ci.egress) = (vec!["LANG".into()], None);
        assert_eq!(policy.profile("ci"), Some(&ci));
        let mut tiny = builtin.profile("restrictive").unwrap().clone();
        (tiny.limits.pids, tiny.limits.disk) = (4, "1M".parse().unwrap());
        assert_eq!(policy.profile("tiny"), Some(&tiny));
        let maximum = LimitSet {
            memory: "8G".parse().ok(),
            wall_time: "1h".parse().ok(),
            ..LimitSet::default()
        };
        assert_eq!(policy.maximum, maximum);
        assert_eq!(
            policy.profile("restrictive"),
            builtin.profile("restrictive")
        );
    }

    #[test]
    fn an_operator_can_change_a_built_in_profile_and_what_builds_on_it() {
        let text =
            "[profile.standard]\nenv.inherit = [\"LANG\"]\n[profile.mine]\nbase = \"standard\"\n";
        let policy = read(text).unwrap();
        for name in ["standard", "mine"] {
            assert_eq!(
                policy.profile(name).unwrap().env_inherit,
                ["LANG"],
                "{name}"
            );
        }
    }

    #[test]
    fn mistakes_name_the_key_the_file_and_the_remedy() {
        let cases = [
            (
                "profil = 1",
                "`profil` in `/c.toml` is not a known key",
                "did you mean `profile`?",
            ),
            (
                "[profile.ci]\nmemroy = 1",
                "`profile.ci.memroy` in `/c.toml` is not a known key",
                "did you mean `memory`?",
            ),
            (
                "[profile.ci.env]\ninherits = []",
                "`profile.ci.env.inherits` in `/c.toml` is not a known key",
                "did you mean `inherit`?",
            ),
            (
                "[maximum]\npid = 3",
                "`maximum.pid` in `/c.toml` is not a known key",
                "did you mean `pids`?",
            ),
            (
                "[maximum]\nmemory = \"lots\"",
                "`maximum.memory` in `/c.toml` has a bad value: `lots` is not a size",
                "write it as on the command line",
            ),
            (
                "[maximum]\npids = 0",
                "`maximum.pids` in `/c.toml` must be a whole number of at least 1",
                "write it without quotes",
            ),
            (
                "profile = \"x\"",
                "`profile` in `/c.toml` must be a table",
                "write [profile.NAME]",
            ),
            (
                "[profile.a]\nbase = \"b\"",
                "`profile.a.base` in `/c.toml` names a profile that does not exist: `b`",
                "the profiles are",
            ),
            (
                "[profile.a]\nbase = \"b\"\n[profile.b]\nbase = \"a\"",
                "`profile.b.base` in `/c.toml` forms a cycle",
                "name a built-in profile",
            ),
            (
                "[profile.agent]\nbase = \"standard\"",
                "`profile.agent.base` in `/c.toml` cannot be given",
                "remove it",
            ),
            (
                "[profile.\"a b\"]",
                "`profile.a b` in `/c.toml` is not a name for a profile",
                "use 1 to 128",
            ),
            (
                "[profile.a]\nnetwork = \"host\"",
                "`profile.a.network` in `/c.toml` cannot be `host`",
                "ask for it per run",
            ),
            (
                "[profile.a]\nenv.inherit = [\"PATH\"]",
                "`profile.a.env.inherit` in `/c.toml` has a bad name: ",
                "",
            ),
        ];
        for (text, message, hint) in cases {
            let error = read(text).expect_err(text);
            assert!(error.message.starts_with(message), "{}", error.message);
            assert!(
                error.hint.starts_with(hint) && !error.hint.is_empty(),
                "{text}: {}",
                error.hint
            );
        }
    }
}
