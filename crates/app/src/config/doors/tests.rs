use super::*;
use ::doors::price::Price;
use std::time::Duration;

fn read(text: &str) -> Result<DoorsConfig, ConfigError> {
    let file = text.parse::<Table>().unwrap();
    let path = Path::new("/c.toml");
    super::super::operator_file::read(&file, path).map(|settings| settings.doors)
}

#[test]
fn without_a_file_there_are_the_known_providers_and_the_models_of_this_machine() {
    let doors = read("").unwrap();
    assert_eq!(
        doors.catalogue.providers.keys().collect::<Vec<_>>(),
        ["anthropic", "gemini", "openai"]
    );
    assert_eq!(
        doors.catalogue.inference.as_ref().unwrap().base,
        "http://127.0.0.1:11434"
    );
    assert_eq!(
        (doors.catalogue.limits, doors.durability),
        (DoorLimits::default(), Durability::Process)
    );
    assert_eq!(
        (doors.prices, doors.tenants.len()),
        (Prices::default(), 0),
        "an unknown price is refused"
    );
}

#[test]
fn everything_that_the_file_says_is_in_the_catalogue() {
    let doors = read(
        "[provider.anthropic]\n[provider.bedrock]\ndialect = \"anthropic\"\nbase = \"https://b.example\"\n\
         [model.sonnet]\ntargets = [\"anthropic/claude-sonnet-4-5\", \"bedrock/eu/claude\"]\n\
         [unknown_prices]\ninput = 20\noutput = 100\n[ledger]\ndurability = \"power\"\nkeep_for = \"8760h\"\n\
         [doors]\nbody = \"1M\"\nheader_time = 1\nbody_time = 2\nconnections = 3\nconcurrent = 4\n\
         [inference]\ntime = \"30s\"\nmodels = [\"llama*\"]\n\
         [tenant.acme]\nday_usd = 50.0\ncall_usd = 0.5\nrequests_per_minute = 60\ntokens_per_minute = 400000\nconcurrent = 8\n\
         runs = 2\nsandboxes = 3\njobs = 4\ncpu_day = \"5s\"\nstorage = \"6K\"\nmemory = \"8K\"\nweight = 7\n\
         [tenant.\"*\"]\nruns = 1\nday_usd = 1\n",
    )
    .unwrap();
    let target = |provider: &str, model: &str| ModelTarget {
        provider: provider.into(),
        model: model.into(),
    };
    let targets = vec![
        target("anthropic", "claude-sonnet-4-5"),
        target("bedrock", "eu/claude"),
    ];
    assert_eq!(
        doors.catalogue.models,
        [("sonnet".to_owned(), targets)].into()
    );
    let ceiling = Price {
        input: 20_000_000_000,
        output: 100_000_000_000,
        ..Price::default()
    };
    assert_eq!(
        (doors.prices.unknown, doors.durability),
        (Some(ceiling), Durability::Power)
    );
    assert_eq!(
        doors.keep_ledger,
        Some(std::time::Duration::from_secs(8760 * 3600))
    );
    let seconds = Duration::from_secs;
    let bounds = DoorLimits {
        max_body_bytes: 1 << 20,
        header_timeout: seconds(1),
        body_timeout: seconds(2),
        max_connections: 3,
        max_concurrent: 4,
        inference_timeout: seconds(30),
    };
    assert_eq!(
        doors.catalogue.limits, bounds,
        "in whatever order the tables come"
    );
    assert_eq!(doors.inference_models, ["llama*".parse().unwrap()]);
    let budget = Budget {
        call: Some(Money(500_000_000)),
        concurrent: Some(8),
        ..Budget::default()
    };
    let acme = AccountLimits {
        level: AccountLevel::Tenant,
        name: "acme".into(),
        budget,
        day: Some(Money(50_000_000_000)),
        requests_per_minute: Some(60),
        tokens_per_minute: Some(400_000),
    };
    let other = AccountLimits {
        level: AccountLevel::Tenant,
        name: "*".into(),
        day: Some(Money(1_000_000_000)),
        ..AccountLimits::default()
    };
    assert_eq!(
        doors.tenants,
        [("acme".to_owned(), acme), ("*".to_owned(), other)].into()
    );
    let acme = Quota {
        runs: Some(2),
        sandboxes: Some(3),
        jobs: Some(4),
        cpu_day: Some(Time(seconds(5))),
        storage: Some(Size(6 << 10)),
        memory: Some(Size(8 << 10)),
        weight: 7,
    };
    let other = Quota {
        runs: Some(1),
        ..Quota::default()
    };
    assert_eq!(
        doors.quotas,
        TenantQuotas {
            named: [("acme".to_owned(), acme)].into(),
            other,
            default_memory: None,
        }
    );
}

#[test]
fn what_is_no_quota_is_refused_by_its_name() {
    for (bad, named) in [
        ("[tenant.\"a b\"]\nruns = 1\n", "is not a name for a tenant"),
        ("[tenant.a]\nweight = 0\n", "weight"),
        ("[tenant.a]\nweight = 1001\n", "weight"),
        ("[tenant.a]\nruns = -1\n", "runs"),
        ("[tenant.a]\ncpu_day = \"soon\"\n", "cpu_day"),
        ("[tenant.a]\nstorrage = \"1G\"\n", "storrage"),
    ] {
        let refused = read(bad).unwrap_err();
        assert!(refused.message.contains(named), "{refused:?}");
    }
}

#[test]
fn a_budget_is_read_exactly_and_compared_limit_by_limit() {
    let text = "[profile.ci]\nbudget = { run_usd = 2.0, call_usd = 0.1, run_tokens = 5, requests = 6, concurrent = 7 }\n\
                allow_models = [\"claude-*\"]\n[profile.sub]\nbase = \"ci\"\n[maximum]\nbudget = { run_usd = 10 }\n";
    let policy = super::super::operator_file::read(&text.parse().unwrap(), Path::new("/c.toml"))
        .unwrap()
        .policy;
    let budget = Budget {
        money: Some(Money(2_000_000_000)),
        call: Some(Money(100_000_000)),
        tokens: Some(5),
        requests: Some(6),
        concurrent: Some(7),
    };
    for name in ["ci", "sub"] {
        let profile = policy.profile(name).unwrap();
        assert_eq!(
            (&profile.budget, profile.allow_models.len()),
            (&budget, 1),
            "{name}"
        );
    }
    assert_eq!(
        policy.maximum_budget,
        Budget {
            money: Some(Money(10_000_000_000)),
            ..Budget::default()
        }
    );
    assert_eq!(first_exceeded(&budget, &budget), None);
    assert_eq!(first_exceeded(&budget, &Budget::default()), None);
    assert_eq!(first_exceeded(&Budget::default(), &budget), Some("run_usd"));
    assert_eq!(
        first_exceeded(
            &Budget {
                requests: Some(9),
                ..budget.clone()
            },
            &budget
        ),
        Some("requests")
    );
}

#[test]
fn mistakes_name_the_key_the_file_and_the_remedy() {
    for (text, message, hint) in [
        (
            "[model.a]\ntargets = [\"x/y\"]",
            "`model.a.targets` in `/c.toml` names a provider that does not exist: `x`",
            "the providers are anthropic",
        ),
        (
            "[model.a]\ntargets = [\"openai\"]",
            "`model.a.targets` in `/c.toml` has one that is not PROVIDER/MODEL",
            "write targets",
        ),
        (
            "[model.a]\ntargets = []",
            "`model.a.targets` in `/c.toml` must be a list",
            "such as",
        ),
        (
            "[model.a]",
            "`model.a.targets` in `/c.toml` is missing",
            "write targets",
        ),
        (
            "[model.a]\ntarget = []",
            "`model.a.target` in `/c.toml` is not a known key",
            "did you mean `targets`?",
        ),
        (
            "[model.\"a*\"]\ntargets = [\"openai/x\"]",
            "`model.a*` in `/c.toml` is not a name for a model",
            "use letters",
        ),
        (
            "[ledger]\ndurability = \"none\"",
            "`ledger.durability` in `/c.toml` is not a known word",
            "write \"process\" or \"power\"",
        ),
        (
            "[doors]\nbodi = 1",
            "`doors.bodi` in `/c.toml` is not a known key",
            "did you mean `body`?",
        ),
        (
            "[tenant.a]\nday = 1",
            "`tenant.a.day` in `/c.toml` is not a known key",
            "the keys here are",
        ),
        (
            "[tenant.\"a b\"]",
            "`tenant.a b` in `/c.toml` is not a name for a tenant",
            "use 1 to 128",
        ),
        (
            "[profile.a]\nbudget = 2.0",
            "`profile.a.budget` in `/c.toml` must be a table",
            "write budget",
        ),
        (
            "[profile.a]\nbudget = { run = 2.0 }",
            "`profile.a.budget.run` in `/c.toml` is not a known key",
            "the keys here",
        ),
        (
            "[profile.a]\nbudget = { run_usd = -1 }",
            "`profile.a.budget.run_usd` in `/c.toml` has a bad value",
            "write it",
        ),
        (
            "[profile.a]\nallow_models = []",
            "`profile.a.allow_models` in `/c.toml` must be a list",
            "such as",
        ),
        (
            "[price.\"m\"]",
            "`price` in `/c.toml` is not a known key",
            "did you mean `prices`?",
        ),
        (
            "[providers.x]",
            "`providers` in `/c.toml` is not a known key",
            "did you mean `provider`?",
        ),
    ] {
        let refused = read(text).expect_err(text);
        assert!(refused.message.starts_with(message), "{}", refused.message);
        assert!(refused.hint.starts_with(hint), "{text}: {}", refused.hint);
    }
}
