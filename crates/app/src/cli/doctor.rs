//! `airlock doctor`: what this host can enforce, and the command that fixes each gap.

use super::{
    Global, REFUSED,
    message::{self, Failure, printable},
    open_engine, print, print_json,
};
use crate::config::ProcessEnv;
use clap::Args;
use engine::{Check, CheckState};
use spec::ErrorCode;

const EXAMPLES: &str = "\
Examples:
  airlock doctor
  airlock doctor --json | jq '.checks[] | select(.state != \"good\")'
  airlock doctor --capability-report | jq .sandbox.features

ok: fully supported.  weaker: runs work, without these barriers or with a weaker form.  MISSING: no run is possible.
Exit status: 0 if runs are possible on this host, 1 if not, 125 if the options are invalid.";

/// Exit status on a host that cannot run anything.
const CANNOT_RUN: u8 = 1;

/// The options of `airlock doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print this machine's capability report as a node, as JSON
    #[arg(long)]
    capability_report: bool,
}

/// Carries out the command. A host that cannot run anything is a result, not a failure.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    attempt(options, global, env).unwrap_or_else(|failure| {
        message::print(&failure.lines());
        let answer = serde_json::json!({ "can_run": false, "checks": [], "error": failure.info() });
        if options.json
            && let Err(unwritten) = print_json(&answer)
        {
            message::print(&unwritten.lines());
        }
        // An invalid request, such as a wrong state folder, says nothing about this host.
        if failure.code == ErrorCode::InvalidSpec {
            REFUSED
        } else {
            CANNOT_RUN
        }
    })
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let config = global.configure(env)?;
    let runtime = super::runtime()?;
    if options.capability_report {
        let facts = super::serve::telemetry::facts(&config, None)?;
        let report = runtime.block_on(async {
            let engine = open_engine(&config, None)?;
            Ok::<_, Failure>(
                gateway::capability(
                    &engine,
                    &config.policy,
                    &facts,
                    &gateway::NodeSettings::default(),
                    None,
                )
                .await,
            )
        })?;
        print_json(&report)?;
        return Ok(if report["sandbox"]["supported"] == true {
            0
        } else {
            CANNOT_RUN
        });
    }
    let checks =
        runtime.block_on(async { Ok::<_, Failure>(open_engine(&config, None)?.doctor().await) })?;
    let can_run = checks
        .iter()
        .all(|check| check.state != CheckState::Missing);
    if options.json {
        print_json(&serde_json::json!({ "can_run": can_run, "checks": checks }))?
    } else {
        print(&text(&checks, can_run))?
    }
    Ok(if can_run { 0 } else { CANNOT_RUN })
}

fn text(checks: &[Check], can_run: bool) -> String {
    let names = checks
        .iter()
        .map(|check| check.name.chars().count())
        .max()
        .unwrap_or(0);
    let details = checks
        .iter()
        .map(|check| check.detail.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let state = match check.state {
            CheckState::Good => "ok",
            CheckState::Weaker => "weaker",
            CheckState::Missing => "MISSING",
        };
        let name = printable(&check.name);
        let detail = printable(&check.detail);
        let line = format!(
            "{state:<7}  {name:<names$}  {detail:<details$}  {}",
            check.barriers.join(", ")
        );
        text.push_str(line.trim_end());
        text.push('\n');
        if let Some(remedy) = &check.remedy {
            text.push_str(&format!("         fix with: {}\n", printable(remedy)));
        }
    }
    text.push_str(if can_run {
        "\nRuns can be made on this host.\n"
    } else {
        "\nNo run can be made on this host until what is MISSING is fixed.\n"
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_aligned_and_a_remedy_has_its_own_line() {
        let check =
            |name: &str, state, detail: &str, barriers: &[&'static str], remedy: Option<&str>| {
                Check {
                    name: name.into(),
                    state,
                    detail: detail.into(),
                    barriers: barriers.to_vec(),
                    remedy: remedy.map(str::to_owned),
                }
            };
        let checks = [
            check(
                "user namespaces",
                CheckState::Good,
                "allowed",
                &["own_user"],
                None,
            ),
            check(
                "cgroups",
                CheckState::Weaker,
                "not ours",
                &["memory_limit", "cpu_limit"],
                Some("sudo x"),
            ),
            check("kernel", CheckState::Missing, "4.9", &[], None),
        ];
        let wanted = "\
ok       user namespaces  allowed   own_user
weaker   cgroups          not ours  memory_limit, cpu_limit
         fix with: sudo x
MISSING  kernel           4.9

No run can be made on this host until what is MISSING is fixed.
";
        assert_eq!(text(&checks, false), wanted);
    }
}
