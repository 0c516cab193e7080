//! The settings of the doors: providers, model names, prices, limits, tenants. The result is one
//! validated catalogue.

use super::{
    ConfigError, credential,
    prices::{self, Prices},
    provider::{self, Inference, Providers},
    toml_file::Section,
};
use doors::{
    budget::{AccountLevel, AccountLimits, DEFAULT_TENANT},
    catalogue::{Catalogue, DoorLimits, ModelTarget},
    ledger::Durability,
    price::{PriceBook, UnknownPricePolicy},
    secrets::KeySource,
};
use spec::{Budget, Id, ModelPattern, Money, Quota, Size, TenantQuotas, Time};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};
use toml::{Table, Value};

/// The sections that this file reads.
pub(super) const TABLES: [&str; 10] = [
    "provider",
    "model",
    "prices",
    "unknown_prices",
    "inference",
    "ledger",
    "doors",
    "tenant",
    "credential",
    "egress",
];
const MAX_TARGETS: usize = 16;
const MAX_NAME_BYTES: usize = 200;

/// The settings of the doors. The operator's prices override the built-in price book.
#[derive(Clone, Debug)]
pub(crate) struct DoorsConfig {
    /// Providers, model names, the local model server, limits.
    pub(crate) catalogue: Catalogue,
    /// The operator's own prices.
    pub(crate) prices: Prices,
    /// Allowed models of the local model server; all if empty.
    pub(crate) inference_models: Vec<ModelPattern>,
    /// The durability of the ledger.
    pub(crate) durability: Durability,
    /// How long ledgers of ended runs are kept; for ever if unset.
    pub(crate) keep_ledger: Option<Duration>,
    /// Spending limits by tenant; `*` is the default.
    pub(crate) tenants: BTreeMap<String, AccountLimits>,
    /// The other quotas of tenants.
    pub(crate) quotas: TenantQuotas,
    /// Credentials and certificate authorities of the egress door.
    pub(crate) egress: doors::egress::EgressSettings,
}

impl Default for DoorsConfig {
    fn default() -> Self {
        let mut doors = DoorsConfig {
            catalogue: Catalogue {
                providers: provider::known(),
                ..Catalogue::default()
            },
            prices: Prices::default(),
            inference_models: Vec::new(),
            durability: Durability::default(),
            keep_ledger: None,
            tenants: BTreeMap::new(),
            quotas: TenantQuotas::default(),
            egress: Default::default(),
        };
        doors.serve(Inference::default());
        doors
    }
}

impl DoorsConfig {
    /// The catalogue, with the operator's prices over the built-in book.
    pub(crate) fn catalogue_with_prices(&self) -> Catalogue {
        let unknown = self
            .prices
            .unknown
            .clone()
            .map_or(UnknownPricePolicy::Refuse, UnknownPricePolicy::Ceiling);
        let prices = Arc::new(PriceBook::new(self.prices.own.clone(), unknown));
        Catalogue {
            prices,
            ..self.catalogue.clone()
        }
    }

    /// Reads one of [`TABLES`].
    pub(super) fn read(
        &mut self,
        name: &str,
        table: &Table,
        path: &Path,
    ) -> Result<(), ConfigError> {
        match name {
            "provider" => self.catalogue.providers = provider::read(table, path)?,
            "model" => self.catalogue.models = models(table, path)?,
            "prices" => self.prices.own = prices::read(table, path)?,
            "unknown_prices" => self.prices.unknown = Some(prices::unknown(table, path)?),
            "inference" => self.serve(provider::inference(table, path)?),
            "ledger" => (self.durability, self.keep_ledger) = ledger(table, path)?,
            "doors" => door_limits(&mut self.catalogue.limits, table, path)?,
            "tenant" => (self.tenants, self.quotas) = tenants(table, path)?,
            "credential" => self.egress.credentials = credential::read(table, path)?,
            _ => credential::settings(&mut self.egress, table, path)?,
        }
        Ok(())
    }

    /// Checks references between sections.
    pub(super) fn check(&self, path: &Path) -> Result<(), ConfigError> {
        let providers = &self.catalogue.providers;
        for (name, targets) in &self.catalogue.models {
            let full_name = format!("model.{name}");
            let section = Section {
                path,
                name: &full_name,
            };
            if let Some(target) = targets
                .iter()
                .find(|target| !providers.contains_key(&target.provider))
            {
                let names: Vec<_> = providers.keys().map(String::as_str).collect();
                let what = format!(
                    "names a provider that does not exist: `{}`",
                    target.provider.escape_debug()
                );
                return Err(section.error(
                    "targets",
                    what,
                    format!("the providers are {}", names.join(", ")),
                ));
            }
        }
        Ok(())
    }

    /// The sources of all provider keys and egress credentials.
    pub(super) fn keys(&self) -> impl Iterator<Item = &KeySource> {
        let providers: &Providers = &self.catalogue.providers;
        let servers = providers.values().chain(&self.catalogue.inference);
        let credentials = self
            .egress
            .credentials
            .values()
            .map(|credential| &credential.key);
        servers
            .filter_map(|provider| provider.key.as_ref())
            .chain(credentials)
    }

    fn serve(&mut self, inference: Inference) {
        let Inference {
            server,
            models,
            time,
        } = inference;
        self.catalogue.inference = Some(Arc::new(server));
        self.inference_models = models;
        if let Some(Time(time)) = time {
            self.catalogue.limits.inference_timeout = time;
        }
    }
}

fn models(table: &Table, path: &Path) -> Result<BTreeMap<String, Vec<ModelTarget>>, ConfigError> {
    let all = Section {
        path,
        name: "model",
    };
    let one = |(name, value): (&String, &Value)| {
        if !is_model_name(name) {
            let hint = "use letters, digits and signs, without spaces and `*`";
            return Err(all.error(name, "is not a name for a model", hint));
        }
        let full_name = all.key(name);
        let section = Section {
            path,
            name: &full_name,
        };
        let table = all.table(name, value)?;
        if let Some(other) = table.keys().find(|key| *key != "targets") {
            return Err(section.unknown(other, &["targets"]));
        }
        let hint = "write targets = [\"PROVIDER/MODEL\"], in the order in which they are tried";
        let value = table
            .get("targets")
            .ok_or_else(|| section.error("targets", "is missing", hint))?;
        let targets = section.texts("targets", value)?;
        let bad = |what: &str| section.error("targets", what, hint);
        if targets.len() > MAX_TARGETS {
            return Err(bad("has more than 16 models"));
        }
        let target = |text: &str| match text.split_once('/') {
            Some((provider, model)) if is_model_name(model) => Ok(ModelTarget {
                provider: provider.to_owned(),
                model: model.to_owned(),
            }),
            _ => Err(bad("has one that is not PROVIDER/MODEL")),
        };
        Ok((
            name.clone(),
            targets.into_iter().map(target).collect::<Result<_, _>>()?,
        ))
    };
    table.iter().map(one).collect()
}

fn is_model_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"*\"\\".contains(&byte))
}

fn ledger(table: &Table, path: &Path) -> Result<(Durability, Option<Duration>), ConfigError> {
    let section = Section {
        path,
        name: "ledger",
    };
    let mut durability = Durability::default();
    let mut keep_for = None;
    for (key, value) in table {
        match key.as_str() {
            "durability" => {
                let words = [
                    ("process", Durability::Process),
                    ("power", Durability::Power),
                ];
                durability = section.word(key, value, &words)?;
            }
            "keep_for" => keep_for = Some(section.quantity::<Time>(key, value)?.0),
            other => return Err(section.unknown(other, &["durability", "keep_for"])),
        }
    }
    Ok((durability, keep_for))
}

fn door_limits(
    door_limits: &mut DoorLimits,
    table: &Table,
    path: &Path,
) -> Result<(), ConfigError> {
    let section = Section {
        path,
        name: "doors",
    };
    for (key, value) in table {
        match key.as_str() {
            "body" => door_limits.max_body_bytes = section.quantity::<Size>(key, value)?.0,
            "header_time" => door_limits.header_timeout = section.quantity::<Time>(key, value)?.0,
            "body_time" => door_limits.body_timeout = section.quantity::<Time>(key, value)?.0,
            "connections" => door_limits.max_connections = section.count(key, value)? as usize,
            "concurrent" => door_limits.max_concurrent = section.count(key, value)?,
            other => {
                let known = [
                    "body",
                    "header_time",
                    "body_time",
                    "connections",
                    "concurrent",
                ];
                return Err(section.unknown(other, &known));
            }
        }
    }
    Ok(())
}

const TENANT_KEYS: [&str; 12] = [
    "day_usd",
    "call_usd",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent",
    "runs",
    "sandboxes",
    "jobs",
    "cpu_day",
    "storage",
    "memory",
    "weight",
];
const MAX_WEIGHT: u64 = 1000;

/// Reads `[tenant.NAME]`: spending limits and quotas. `*` applies to every tenant without a
/// section.
fn tenants(
    table: &Table,
    path: &Path,
) -> Result<(BTreeMap<String, AccountLimits>, TenantQuotas), ConfigError> {
    let all = Section {
        path,
        name: "tenant",
    };
    let mut terms = BTreeMap::new();
    let mut quotas = TenantQuotas::default();
    for (name, value) in table {
        if name != DEFAULT_TENANT && Id::new(name).is_err() {
            let hint = "use 1 to 128 of A-Z a-z 0-9 . _ - and do not start with a dot, or \"*\" for all others";
            return Err(all.error(name, "is not a name for a tenant", hint));
        }
        let full_name = all.key(name);
        let section = Section {
            path,
            name: &full_name,
        };
        let mut own = AccountLimits {
            level: AccountLevel::Tenant,
            name: name.clone(),
            ..AccountLimits::default()
        };
        let mut quota = Quota::default();
        for (key, value) in all.table(name, value)? {
            tenant_key(&section, key, value, &mut own, &mut quota)?;
        }
        terms.insert(name.clone(), own);
        if name == DEFAULT_TENANT {
            quotas.other = quota
        } else {
            _ = quotas.named.insert(name.clone(), quota)
        }
    }
    Ok((terms, quotas))
}

fn tenant_key(
    section: &Section<'_>,
    key: &str,
    value: &Value,
    terms: &mut AccountLimits,
    quota: &mut Quota,
) -> Result<(), ConfigError> {
    match key {
        "day_usd" => terms.day = Some(section.quantity(key, value)?),
        "call_usd" => terms.budget.call = Some(section.quantity(key, value)?),
        "requests_per_minute" => terms.requests_per_minute = Some(section.number(key, value)?),
        "tokens_per_minute" => terms.tokens_per_minute = Some(section.number(key, value)?),
        "concurrent" => terms.budget.concurrent = Some(section.count(key, value)?),
        "runs" => quota.runs = Some(section.number(key, value)? as usize),
        "sandboxes" => quota.sandboxes = Some(section.number(key, value)? as usize),
        "jobs" => quota.jobs = Some(section.number(key, value)?),
        "cpu_day" => quota.cpu_day = Some(section.quantity(key, value)?),
        "storage" => quota.storage = Some(section.quantity(key, value)?),
        "memory" => quota.memory = Some(section.quantity(key, value)?),
        "weight" => match section.number(key, value)? {
            weight @ 1..=MAX_WEIGHT => quota.weight = weight as u32,
            _ => return Err(section.error(key, "is out of range", "give 1 to 1000")),
        },
        other => return Err(section.unknown(other, &TENANT_KEYS)),
    }
    Ok(())
}

/// Reads a budget, in every section that can have one.
pub(super) fn budget(
    section: &Section<'_>,
    key: &str,
    value: &Value,
) -> Result<Budget, ConfigError> {
    let table = value
        .as_table()
        .ok_or_else(|| section.error(key, "must be a table", "write budget = { run_usd = 2.0 }"))?;
    let full_name = section.key(key);
    let section = Section {
        path: section.path,
        name: &full_name,
    };
    let mut budget = Budget::default();
    for (key, value) in table {
        let money = || section.quantity::<Money>(key, value).map(Some);
        match key.as_str() {
            "run_usd" => budget.money = money()?,
            "call_usd" => budget.call = money()?,
            "run_tokens" => budget.tokens = Some(section.number(key, value)?),
            "requests" => budget.requests = Some(section.number(key, value)?),
            "concurrent" => budget.concurrent = Some(section.count(key, value)?),
            other => {
                let known = [
                    "run_usd",
                    "call_usd",
                    "run_tokens",
                    "requests",
                    "concurrent",
                ];
                return Err(section.unknown(other, &known));
            }
        }
    }
    Ok(budget)
}

/// The first limit in which a budget exceeds another.
pub(super) fn first_exceeded(budget: &Budget, than: &Budget) -> Option<&'static str> {
    fn over<T: Ord>(one: Option<T>, most: Option<T>, name: &'static str) -> Option<&'static str> {
        let most = most?;
        one.is_none_or(|one| one > most).then_some(name)
    }
    over(budget.money, than.money, "run_usd")
        .or_else(|| over(budget.call, than.call, "call_usd"))
        .or_else(|| over(budget.tokens, than.tokens, "run_tokens"))
        .or_else(|| over(budget.requests, than.requests, "requests"))
        .or_else(|| over(budget.concurrent, than.concurrent, "concurrent"))
}

#[cfg(test)]
mod tests;
