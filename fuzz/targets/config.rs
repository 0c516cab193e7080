//! Settings files: the operator's, then an `airlock.toml` that may come from a hostile clone. No text makes
//! reading them panic, and the second never widens what the first gave.
//!
//! The two are separated by a NUL, which TOML cannot hold. The command is no library, so that this target takes
//! the module from its file.

#![no_main]

#[path = "../../crates/app/src/config/mod.rs"]
#[allow(dead_code, reason = "what the command alone uses")]
mod config;

use config::{Config, Flags, ProcessEnv};
use libfuzzer_sys::fuzz_target;
use spec::{EgressMode, EgressRule, ImagePolicy, ImageRule, Limits, Network, Profile};
use std::{fs, path::PathBuf, sync::LazyLock};

/// `fuzz/run` names one and removes it afterwards.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    std::env::var_os("AIRLOCK_FUZZ_FOLDER")
        .expect("AIRLOCK_FUZZ_FOLDER names an empty folder")
        .into()
});

fuzz_target!(|input: &[u8]| {
    let middle = input
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(input.len());
    let (operators, local) = input.split_at(middle);
    let env = ProcessEnv {
        current_folder: FOLDER.clone(),
        ..ProcessEnv::default()
    };
    let flags = Flags {
        config: Some("config.toml".into()),
        state: Some("state".into()),
    };
    fs::write(FOLDER.join("config.toml"), operators).expect("the operator's file is written");
    fs::write(
        FOLDER.join("airlock.toml"),
        local.get(1..).unwrap_or_default(),
    )
    .expect("and the local one");
    let Ok(mut config) = config::load(&flags, &env) else {
        return;
    };
    let (before, images) = (default_profile(&config), config.policy.images.clone());
    if config::narrow(&mut config, None, &env).is_ok() {
        check_no_wider(&default_profile(&config), &before);
        let may = ImagePolicy {
            rule: config.policy.images.rule,
            ..images.clone()
        };
        assert_eq!(config.policy.images, may, "only the rule can change");
        assert!(may == images || may.rule == ImageRule::Allowed);
    }
});

fn default_profile(config: &Config) -> Profile {
    config
        .policy
        .profile(&config.policy.default_profile)
        .expect("the default profile is there")
        .clone()
}

fn check_no_wider(now: &Profile, before: &Profile) {
    assert!(freedom(now.network) <= freedom(before.network));
    assert!(
        now.env_inherit
            .iter()
            .all(|name| before.env_inherit.contains(name))
    );
    assert!(now.extra_mounts == before.extra_mounts || now.extra_mounts == spec::ExtraMounts::None);
    assert!(now.allow_secrets <= before.allow_secrets);
    assert_eq!(
        now.allow_models, before.allow_models,
        "a second list is laid over the first"
    );
    let budget = now.budget.within(&before.budget);
    assert_eq!(
        now.budget, budget,
        "no limit of it is higher, and none is gone"
    );
    assert_eq!(
        now.egress_limits,
        now.egress_limits.within(&before.egress_limits)
    );
    assert!(allowing(now).iter().all(|rule| {
        allowing(before)
            .iter()
            .any(|other| is_no_wider(rule, other))
    }));
    let (now, before) = (numbers(&now.limits), numbers(&before.limits));
    assert!(
        now.iter().zip(&before).all(|(now, before)| now <= before),
        "{now:?} {before:?}"
    );
}

/// What lets something out.
fn allowing(profile: &Profile) -> Vec<EgressRule> {
    let open = (profile.network == Network::Open).then(EgressRule::open);
    let rules = profile.egress.iter().flatten().cloned().chain(open);
    rules.filter(|rule| rule.mode != EgressMode::Deny).collect()
}

fn is_no_wider(rule: &EgressRule, other: &EgressRule) -> bool {
    rule.host.is_within(&other.host)
        && rule.mode == other.mode
        && rule.allow_private <= other.allow_private
}

/// No limit is the largest of all.
fn numbers(limits: &Limits) -> [u128; 9] {
    [
        limits.memory.0.into(),
        limits.cpu_time.map_or(u128::MAX, |time| time.0.as_nanos()),
        limits.cpus.map_or(u128::MAX, |cpus| cpus.0.into()),
        limits.wall_time.0.as_nanos(),
        limits.pids.into(),
        limits.file_size.0.into(),
        limits.open_files.into(),
        limits.disk.0.into(),
        limits.output.0.into(),
    ]
}

fn freedom(network: Network) -> u8 {
    match network {
        Network::None => 0,
        Network::Doors => 1,
        Network::Open => 2,
        Network::Host => 3,
    }
}
