//! `airlock grant`: changes the rules of the egress door of a running run.

use super::{
    Global, conclude,
    message::{Failure, printable},
    print, print_json,
};
use crate::config::ProcessEnv;
use clap::Args;
use engine::control::{self, ControlError, ControlRequest, MAX_GRANT, RuleInfo};
use serde_json::json;
use spec::{ErrorCode, Id, Time};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  airlock grant job-1 pypi.org
  airlock grant job-1 '*.pythonhosted.org' --for 1h
  airlock grant job-1 db.example.com:5432
  airlock grant job-1 --list
  airlock grant job-1 tracker.example.com --deny
  airlock grant job-1 pypi.org --revoke

RUN is the value of --run-id, or `run_id` of its result. It needs an egress door: start it with --allow-host,
--learn or --profile agent. Hosts outside of `allow_hosts` of the configuration or of airlock.toml cannot be granted.
The result of the run lists changes (64 at most), the ledger has all of them.";

/// The options of `airlock grant`.
#[derive(Args, Debug)]
#[command(override_usage = "airlock grant RUN HOST[:PORT] [OPTIONS]\n       airlock grant RUN --list", after_help = EXAMPLES)]
pub(super) struct Options {
    /// The running run
    #[arg(value_name = "RUN")]
    run: String,
    /// A host as for --allow-host; ports 80 and 443 unless one is named
    #[arg(
        value_name = "HOST[:PORT]",
        required_unless_present = "list",
        conflicts_with = "list"
    )]
    host: Option<String>,
    /// How long the host is allowed, at most 24h
    #[arg(long = "for", value_name = "TIME", default_value = "15m", conflicts_with_all = ["deny", "revoke", "list"])]
    time: Time,
    /// Deny the host from now on, whatever other rules allow
    #[arg(long, conflicts_with_all = ["revoke", "list"])]
    deny: bool,
    /// Remove all rules for the host, including denials; name it as in the rule
    #[arg(long, conflicts_with = "list")]
    revoke: bool,
    /// List the rules, change nothing
    #[arg(long)]
    list: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let request = control_request(options)?;
    let run = Id::new(&options.run)
        .map_err(|bad| Failure::invalid(bad.to_string(), "name a run by its identifier"))?;
    let config = global.configure(env)?;
    let rules = control::send_request(&config.state, &run, &request)?;
    if options.json {
        print_json(&json!({ "run_id": run, "rules": rules }))?
    } else {
        print(&text(&rules))?
    }
    Ok(0)
}

fn control_request(options: &Options) -> Result<ControlRequest, Failure> {
    let Some(host) = options.host.clone() else {
        return Ok(ControlRequest::List {});
    };
    if options.deny {
        return Ok(ControlRequest::Deny { host });
    }
    if options.revoke {
        return Ok(ControlRequest::Revoke { host });
    }
    match options.time.0 {
        time if time < Duration::from_secs(1) || time > MAX_GRANT => {
            let message = format!("a grant cannot have a duration of {}", options.time);
            Err(Failure::invalid(
                message,
                "give --for a duration from 1s to 24h",
            ))
        }
        time => Ok(ControlRequest::Grant {
            host,
            seconds: time.as_secs(),
        }),
    }
}

/// The rules as a table: mode, host, remaining time, origin.
fn text(rules: &[RuleInfo]) -> String {
    if rules.is_empty() {
        return "no rules: no connection is allowed\n".to_owned();
    }
    let cells: Vec<[String; 4]> = rules.iter().map(cells).collect();
    let width = |column: usize| {
        cells
            .iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let mode = width(0);
    let host = width(1);
    let time = width(2);
    let row = |row: &[String; 4]| {
        format!(
            "{:<mode$}  {:<host$}  {:<time$}  {}\n",
            row[0], row[1], row[2], row[3]
        )
    };
    cells.iter().map(row).collect()
}

fn cells(rule: &RuleInfo) -> [String; 4] {
    let ports = match &rule.ports {
        Some(ports) => ports
            .iter()
            .map(u16::to_string)
            .collect::<Vec<_>>()
            .join(","),
        None => "*".to_owned(),
    };
    let time = match rule.expires_in {
        Some(seconds) => format!("for {}", Time(Duration::from_secs(seconds))),
        None => "always".to_owned(),
    };
    [
        printable(&rule.mode),
        format!("{}:{ports}", printable(&rule.host)),
        time,
        printable(&rule.name),
    ]
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let message = error.to_string();
        match error {
            ControlError::NoSuchRun { others, .. } => {
                let hint = match &others[..] {
                    [] => {
                        "no run with an egress door is running here; --state selects another folder"
                            .to_owned()
                    }
                    others => format!("the runs that accept grants are {}", others.join(", ")),
                };
                Failure::invalid(message, hint)
            }
            ControlError::NoDoor { .. } => Failure::invalid(
                message,
                "start it with --allow-host, --learn or --profile agent",
            ),
            ControlError::Refused(info) => Failure::from(info),
            ControlError::Unreached { .. } => {
                let hint =
                    "try again; only the user who started the run, or root, may change its rules"
                        .to_owned();
                Failure {
                    code: ErrorCode::Internal,
                    message,
                    hint,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Cli, *};
    use crate::cli::Command;
    use clap::Parser;

    fn parsed(words: &[&str]) -> Result<ControlRequest, Failure> {
        let words = ["airlock", "grant", "r"].iter().chain(words);
        match Cli::try_parse_from(words)
            .map_err(|error| Failure::invalid(error.to_string(), ""))?
            .command
        {
            Command::Grant(options) => control_request(&options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_options_become_one_question() {
        let grant = |host: &str, seconds| {
            Ok(ControlRequest::Grant {
                host: host.to_owned(),
                seconds,
            })
        };
        assert_eq!(parsed(&["a.com"]), grant("a.com", 900));
        assert_eq!(
            parsed(&["a.com:22", "--for", "24h"]),
            grant("a.com:22", 86_400)
        );
        assert_eq!(
            parsed(&["a.com", "--deny"]),
            Ok(ControlRequest::Deny {
                host: "a.com".to_owned()
            })
        );
        assert_eq!(
            parsed(&["a.com", "--revoke"]),
            Ok(ControlRequest::Revoke {
                host: "a.com".to_owned()
            })
        );
        assert_eq!(parsed(&["--list"]), Ok(ControlRequest::List {}));
        for words in [
            &[][..],
            &["a.com", "--list"],
            &["a.com", "--deny", "--revoke"],
            &["a.com", "--deny", "--for", "1h"],
            &["a.com", "--for", "25h"],
            &["a.com", "--for", "10ms"],
        ] {
            assert!(parsed(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn rules_are_shown_in_columns_and_steer_no_terminal() {
        let rule =
            |name: &str, host: &str, ports: Option<Vec<u16>>, mode: &str, expires_in| RuleInfo {
                name: name.to_owned(),
                host: host.to_owned(),
                ports,
                mode: mode.to_owned(),
                expires_in,
            };
        let rules = [
            rule(
                "--allow-host pypi.org",
                "pypi.org",
                Some(vec![80, 443]),
                "tunnel",
                None,
            ),
            rule(
                "airlock grant --deny \u{1b}[2J",
                "evil.com",
                None,
                "deny",
                None,
            ),
            rule(
                "airlock grant a.com",
                "a.com",
                Some(vec![22]),
                "tunnel",
                Some(61),
            ),
        ];
        let table = "\
tunnel  pypi.org:80,443  always   --allow-host pypi.org
deny    evil.com:*       always   airlock grant --deny \\u{1b}[2J
tunnel  a.com:22         for 61s  airlock grant a.com
";
        assert_eq!(text(&rules), table);
        assert_eq!(text(&[]), "no rules: no connection is allowed\n");
    }
}
