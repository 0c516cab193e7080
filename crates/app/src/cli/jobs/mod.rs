//! `airlock jobs`: jobs of a server: submit, list, wait, cancel, retry.

mod submit;
mod wait;

use super::{
    Global, REFUSED,
    artifact::{OutputTarget, copy_body},
    conclude,
    message::{self, Failure, printable},
    print, print_json, print_lines,
};
use crate::{
    config::ProcessEnv,
    remote::{Client, ClientRequest, query, segment},
};
use clap::{Args, Subcommand, ValueEnum};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  export AIRLOCK_URL=http://localhost:7070 AIRLOCK_KEY_FILE=~/.airlock-admin
  id=$(airlock jobs submit --retries 2 --timeout 10m -- make test)
  airlock jobs wait $id
  airlock jobs submit --agent 'Write a haiku to poem.txt' --model claude-sonnet-4-5 --artifact poem.txt --wait
  airlock jobs list --status running
  airlock jobs logs $id
  airlock jobs cancel $id

Jobs need a server, started with `airlock serve`, and are kept across its restarts.";

/// The options of `airlock jobs`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Submit a job, and print its identifier
    #[command(override_usage = submit::USAGE, after_help = submit::EXAMPLES, after_long_help = submit::EXAMPLES, mut_args = submit::hide_run_options)]
    Submit(Box<submit::Options>),
    /// List jobs, newest first
    List(ListOptions),
    /// Show a job
    Show(JobArgs),
    /// Wait for a job and print its output; the exit status is its program's
    Wait(JobArgs),
    /// Cancel jobs that have not ended, and jobs that depend on them
    Cancel(JobsArgs),
    /// Run ended jobs again
    Retry(JobsArgs),
    /// Show the output of a job's last attempt
    Logs(LogsOptions),
    /// Follow a job's events, one JSON object a line
    Events(JobArgs),
}

/// Arguments of the commands for one job.
#[derive(Args, Debug)]
struct JobArgs {
    /// The job
    id: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments of the commands for several jobs.
#[derive(Args, Debug)]
struct JobsArgs {
    /// The jobs
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The options of `airlock jobs list`.
#[derive(Args, Debug)]
struct ListOptions {
    /// Only jobs with this status: queued, running, succeeded, failed, timed_out, oom_killed,
    /// cancelled, not_started, lost
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only jobs with this name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only jobs with this label
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    /// The maximum of jobs, up to 200 [default: 50]
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u32>,
    /// Only jobs older than this cursor, which --json shows
    #[arg(long, value_name = "CURSOR")]
    before: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The options of `airlock jobs logs`.
#[derive(Args, Debug)]
struct LogsOptions {
    /// The job
    id: String,
    /// The stream: stdout or stderr
    #[arg(
        long,
        value_name = "NAME",
        default_value = "stdout",
        hide_possible_values = true
    )]
    stream: Stream,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Stream {
    Stdout,
    Stderr,
}

impl Action {
    fn json(&self) -> bool {
        match self {
            Action::Submit(options) => options.json(),
            Action::List(list) => list.json,
            Action::Show(args) | Action::Wait(args) => args.json,
            Action::Cancel(args) | Action::Retry(args) => args.json,
            Action::Events(_) | Action::Logs(_) => false,
        }
    }
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    let json = options.action.json();
    conclude(attempt(options, global, env), json)
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let hint = "start one with `airlock serve`, then give --server URL or AIRLOCK_URL";
    let none = || Failure::invalid("jobs need a server, and none is given", hint);
    let client = global.server(env)?.ok_or_else(none)?;
    let runtime = super::runtime()?;
    let status = runtime.block_on(carry_out(options.action, client, env));
    // A pending read of standard input must not delay the exit.
    runtime.shutdown_background();
    status
}

async fn carry_out(action: Action, client: Client, env: &ProcessEnv) -> Result<u8, Failure> {
    match action {
        Action::Submit(options) => submit::execute(*options, client, env).await,
        Action::List(list) => list.show(&client).await,
        Action::Show(args) => show(&client, &args).await,
        Action::Wait(args) => wait::execute(client, args.id, args.json).await,
        Action::Cancel(args) => change(&client, &args, Method::DELETE, "").await,
        Action::Retry(args) => change(&client, &args, Method::POST, "/retry").await,
        Action::Logs(logs) => logs.show(&client).await,
        Action::Events(args) => wait::print_events(&client, &args.id).await,
    }
}

/// The path of a job in the API.
fn path(id: &str) -> String {
    format!("/v1/jobs/{}", segment(id.as_bytes()))
}

/// Applies the action to every job, even if one fails.
async fn change(
    client: &Client,
    args: &JobsArgs,
    method: Method,
    what: &str,
) -> Result<u8, Failure> {
    let mut jobs = Vec::new();
    let mut errors = Vec::new();
    for id in &args.ids {
        match client
            .json::<Value>(ClientRequest::new(
                method.clone(),
                format!("{}{what}", path(id)),
            ))
            .await
        {
            Ok(job) => jobs.push(job),
            Err(error) if args.ids.len() == 1 => return Err(error.into()),
            Err(error) => {
                let failure = Failure::from(error);
                let message = format!("{id}: {}", failure.message);
                errors.push(json!({ "job_id": id, "error": failure.info() }));
                message::print(&Failure { message, ..failure }.lines());
            }
        }
    }
    let status = if errors.is_empty() { 0 } else { REFUSED };
    if args.json {
        let mut all = json!({ "jobs": jobs });
        if !errors.is_empty() {
            all["errors"] = errors.into();
        }
        print_json(&all)?;
    }
    Ok(status)
}

impl LogsOptions {
    async fn show(&self, client: &Client) -> Result<u8, Failure> {
        let stream = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let parameters = query(&[("stream", Some(stream.to_owned()))]);
        let answer = client
            .send(ClientRequest::get(format!(
                "{}/logs{parameters}",
                path(&self.id)
            )))
            .await?;
        copy_body(answer, &mut OutputTarget::stdout()).await?;
        Ok(0)
    }
}

/// A server's default limit.
const DEFAULT_LIST_LIMIT: u32 = 50;

#[derive(Deserialize)]
struct JobPage {
    jobs: Vec<Value>,
    before: Option<String>,
}

impl ListOptions {
    async fn show(self, client: &Client) -> Result<u8, Failure> {
        let mut jobs = Vec::new();
        let mut before = self.before;
        let most = self.limit.unwrap_or(DEFAULT_LIST_LIMIT);
        // A server scans a bounded number of jobs: a short page is not always the last.
        loop {
            let left = (most as usize).saturating_sub(jobs.len());
            let limit = if jobs.is_empty() {
                self.limit.map(|limit| limit.to_string())
            } else {
                Some(left.to_string())
            };
            let parameters = query(&[
                ("status", self.status.clone()),
                ("name", self.name.clone()),
                ("label", self.label.clone()),
                ("limit", limit),
                ("before", before.clone()),
            ]);
            let page: JobPage = client
                .json(ClientRequest::get(format!("/v1/jobs{parameters}")))
                .await?;
            jobs.extend(page.jobs);
            before = page.before;
            if before.is_none() || jobs.len() >= most as usize {
                break;
            }
        }
        if self.json {
            print_json(&json!({ "jobs": jobs, "before": before }))?
        } else {
            print_lines(jobs.iter().map(list_line))?
        }
        Ok(0)
    }
}

fn text<'a>(job: &'a Value, name: &str) -> &'a str {
    job[name].as_str().unwrap_or_default()
}

/// One line of the list: identifier, state, time, name, labels.
fn list_line(job: &Value) -> String {
    let state = match (text(job, "status"), text(job, "waiting_for")) {
        ("queued", waiting @ ("time" | "jobs" | "quota")) => format!("queued ({waiting})"),
        (status, _) => status.to_owned(),
    };
    let labels = job["labels"].as_object().into_iter().flatten();
    let labels: Vec<_> = labels
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    let id = text(job, "job_id");
    let since = text(job, "accepted_at");
    format!(
        "{id}  {state:<14}  {since}  {} {}",
        text(job, "name"),
        labels.join(" ")
    )
}

async fn show(client: &Client, args: &JobArgs) -> Result<u8, Failure> {
    let job: Value = client.json(ClientRequest::get(path(&args.id))).await?;
    if args.json {
        print_json(&job)?
    } else {
        print_lines(description_lines(&job))?
    }
    Ok(0)
}

/// The description of a job, one field a line; empty fields are omitted.
fn description_lines(job: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |name: &str, value: &str| {
        if !value.is_empty() {
            lines.push(format!("{name:<12}{value}"));
        }
    };
    add("job", text(job, "job_id"));
    add("name", text(job, "name"));
    add("status", text(job, "status"));
    add("waits for", text(job, "waiting_for"));
    add(
        "attempt",
        &format!("{} of {}", job["attempt"], job["most_attempts"]),
    );
    add("run", text(job, "run_id"));
    for (word, name) in [
        ("accepted", "accepted_at"),
        ("not before", "not_before"),
        ("next try", "next_try_at"),
        ("started", "started_at"),
        ("ended", "ended_at"),
    ] {
        add(word, text(job, name));
    }
    let webhook = &job["webhook"];
    if webhook.is_object() {
        add(
            "webhook",
            &format!(
                "{} ({}, {} requests)",
                text(webhook, "url"),
                text(webhook, "state"),
                webhook["attempts"]
            ),
        );
        add("", text(webhook, "error"));
    }
    for (word, name) in [("exit code", "exit_code"), ("signal", "signal")] {
        if let Some(number) = job["result"][name].as_i64() {
            add(word, &number.to_string());
        }
    }
    add("error", text(&job["error"], "message"));
    add("hint", text(&job["error"], "hint"));
    let model = &job["result"]["usage"]["llm"];
    if model["calls"].as_u64().is_some_and(|calls| calls > 0) {
        let [calls, input, output] =
            ["calls", "input_tokens", "output_tokens"].map(|name| &model[name]);
        add(
            "models",
            &format!(
                "{calls} calls, {input} tokens in, {output} out, {} USD",
                model["cost_usd"]
            ),
        );
    }
    for kept in job["result"]["artifacts"].as_array().into_iter().flatten() {
        add(
            "kept",
            &format!("{}@{}", text(kept, "name"), kept["version"]),
        );
    }
    lines
}

/// Prints a new job: its identifier, or all data with `--json`.
fn print_submitted(job: &Value, json: bool) -> Result<u8, Failure> {
    if json {
        print_json(job)?
    } else {
        print(&format!("{}\n", printable(text(job, "job_id"))))?
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_one_line_and_a_name_stays_within_its_part_of_an_address() {
        let job = json!({ "job_id": "01J", "status": "queued", "waiting_for": "jobs", "accepted_at": "T",
            "name": "nightly", "labels": { "a": "b" } });
        assert_eq!(list_line(&job), "01J  queued (jobs)   T  nightly a=b");
        assert_eq!(path("a/../b?c"), "/v1/jobs/a%2F..%2Fb%3Fc");
    }

    #[test]
    fn what_there_is_not_is_not_said() {
        let job = json!({ "job_id": "j", "name": null, "status": "failed", "attempt": 2, "most_attempts": 3,
            "webhook": { "url": "https://x", "state": "given_up", "attempts": 12, "error": "down" },
            "result": { "exit_code": 3, "signal": null, "usage": { "llm": { "calls": 0 } }, "artifacts": [{ "name": "a", "version": 1 }] } });
        let lines = description_lines(&job);
        assert_eq!(
            lines,
            [
                "job         j",
                "status      failed",
                "attempt     2 of 3",
                "webhook     https://x (given_up, 12 requests)",
                "            down",
                "exit code   3",
                "kept        a@1"
            ]
        );
    }
}
