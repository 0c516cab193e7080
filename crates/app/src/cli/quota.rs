//! `airlock quota`: a tenant's limits and current usage.

use super::{Global, conclude, message::Failure, print_json, print_lines};
use crate::{
    config::ProcessEnv,
    remote::{ClientRequest, query},
};
use clap::Args;
use serde_json::Value;
use spec::Money;

const EXAMPLES: &str = "\
Examples:
  airlock quota --server http://localhost:7070
  airlock quota --tenant acme --json

A key can show its own tenant, an admin's key every tenant. Quotas are set under [tenant.NAME] in the server's configuration.";

/// The options of `airlock quota`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The tenant, for an admin's key [default: the key's own]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let client = global.require_server(env)?;
    let path = format!("/v1/quota{}", query(&[("tenant", options.tenant.clone())]));
    let quota: Value = super::runtime()?.block_on(client.json(ClientRequest::get(path)))?;
    if options.json {
        print_json(&quota)?
    } else {
        print_lines(lines(&quota))?
    }
    Ok(0)
}

/// One line a quota: name, usage, limit.
fn lines(quota: &Value) -> Vec<String> {
    let line = |name: &str, now: String, most: String| format!("{name:<14}{now:>16}  of {most}");
    let count = |value: &Value| {
        value
            .as_u64()
            .map_or_else(|| "any".to_owned(), |count| count.to_string())
    };
    let seconds = |value: &Value| {
        value.as_u64().map_or_else(
            || "any".to_owned(),
            |ms| format!("{}.{:03} s", ms / 1000, ms % 1000),
        )
    };
    let money = |value: &Value| {
        value
            .as_u64()
            .map_or_else(|| "any".to_owned(), |nanos| format!("{} USD", Money(nanos)))
    };
    let bound = |name: &str, shown: &dyn Fn(&Value) -> String, label: &str| {
        line(
            label,
            shown(&quota[name]["now"]),
            shown(&quota[name]["most"]),
        )
    };
    let day = &quota["money_of_day"];
    vec![
        format!("tenant {}", quota["tenant"].as_str().unwrap_or_default()),
        bound("runs", &count, "runs"),
        bound("sandboxes", &count, "sandboxes"),
        bound("cpu_day_ms", &seconds, "CPU today"),
        bound("storage_bytes", &count, "bytes stored"),
        bound("memory_bytes", &count, "bytes of memory"),
        line(
            "spent today",
            money(&day["spent_nano_usd"]),
            money(&day["most_nano_usd"]),
        ),
        format!(
            "the day ends at {}",
            quota["day_ends_at"].as_str().unwrap_or_default()
        ),
    ]
}
