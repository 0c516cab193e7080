//! `airlock jobs`: runs that outlast whoever asked for them, in a server: submit, watch, wait for, cancel, try again.

mod submit;
mod wait;

use super::{
    Global, REFUSED,
    artifact::{Out, pour},
    conclude,
    message::{self, Failure, printable},
    print, print_json, print_lines,
};
use crate::{
    config::Surroundings,
    remote::{Ask, Client, query, segment},
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

Jobs live in a server, started with `airlock serve`, and outlast it.";

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
    #[command(override_usage = submit::USAGE, after_help = submit::EXAMPLES, after_long_help = submit::EXAMPLES, mut_args = submit::hidden)]
    Submit(Box<submit::Options>),
    /// List jobs, the newest first
    List(List),
    /// Show a job
    Show(One),
    /// Wait for a job, passing its output on; the exit status is its program's
    Wait(One),
    /// Cancel jobs that have not ended, with those that come after them
    Cancel(Several),
    /// Let jobs that have ended begin again
    Retry(Several),
    /// Show what a job's last attempt wrote
    Logs(Logs),
    /// Follow what happens to a job, one JSON object a line
    Events(One),
}

/// One job.
#[derive(Args, Debug)]
struct One {
    /// The job
    id: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Some jobs.
#[derive(Args, Debug)]
struct Several {
    /// The jobs
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Which jobs.
#[derive(Args, Debug)]
struct List {
    /// Only those of this status: queued, running, succeeded, failed, timed_out, oom_killed, cancelled, not_started, lost
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only those of this name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only those with this label
    #[arg(long, value_name = "NAME=VALUE")]
    label: Option<String>,
    /// At most so many, up to 200 [default: 50]
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u32>,
    /// Only older ones than this cursor, which --json shows
    #[arg(long, value_name = "CURSOR")]
    before: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Whose output.
#[derive(Args, Debug)]
struct Logs {
    /// The job
    id: String,
    /// Which stream: stdout or stderr
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
            Action::Show(one) | Action::Wait(one) => one.json,
            Action::Cancel(several) | Action::Retry(several) => several.json,
            Action::Events(_) | Action::Logs(_) => false,
        }
    }
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    let json = options.action.json();
    conclude(attempt(options, global, surroundings), json)
}

fn attempt(options: Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let hint = "start one with `airlock serve`, then name it with --server URL or AIRLOCK_URL";
    let none = || Failure::invalid("jobs live in a server, and none is named", hint);
    let client = global.server(surroundings)?.ok_or_else(none)?;
    let runtime = super::runtime()?;
    let status = runtime.block_on(carry_out(options.action, client, surroundings));
    // A read of standard input may still be waiting; it must not hold us.
    runtime.shutdown_background();
    status
}

async fn carry_out(
    action: Action,
    client: Client,
    surroundings: &Surroundings,
) -> Result<u8, Failure> {
    match action {
        Action::Submit(options) => submit::execute(*options, client, surroundings).await,
        Action::List(list) => list.show(&client).await,
        Action::Show(one) => show(&client, &one).await,
        Action::Wait(one) => wait::execute(client, one.id, one.json).await,
        Action::Cancel(several) => change(&client, &several, Method::DELETE, "").await,
        Action::Retry(several) => change(&client, &several, Method::POST, "/retry").await,
        Action::Logs(logs) => logs.show(&client).await,
        Action::Events(one) => wait::print_events(&client, &one.id).await,
    }
}

/// The address of a job.
fn path(id: &str) -> String {
    format!("/v1/jobs/{}", segment(id.as_bytes()))
}

/// Each of them, whatever becomes of the others.
async fn change(
    client: &Client,
    several: &Several,
    method: Method,
    what: &str,
) -> Result<u8, Failure> {
    let (mut jobs, mut errors) = (Vec::new(), Vec::new());
    for id in &several.ids {
        match client
            .json::<Value>(Ask::new(method.clone(), format!("{}{what}", path(id))))
            .await
        {
            Ok(job) => jobs.push(job),
            Err(error) if several.ids.len() == 1 => return Err(error.into()),
            Err(error) => {
                let failure = Failure::from(error);
                let message = format!("{id}: {}", failure.message);
                errors.push(json!({ "job_id": id, "error": failure.info() }));
                message::say(&Failure { message, ..failure }.lines());
            }
        }
    }
    let status = if errors.is_empty() { 0 } else { REFUSED };
    if several.json {
        let mut all = json!({ "jobs": jobs });
        if !errors.is_empty() {
            all["errors"] = errors.into();
        }
        print_json(&all)?;
    }
    Ok(status)
}

impl Logs {
    async fn show(&self, client: &Client) -> Result<u8, Failure> {
        let stream = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let asked = query(&[("stream", Some(stream.to_owned()))]);
        let answer = client
            .ask(Ask::get(format!("{}/logs{asked}", path(&self.id))))
            .await?;
        pour(answer, &mut Out::stdout()).await?;
        Ok(0)
    }
}

/// What a server lists unless said.
const USUALLY_LISTED: u32 = 50;

#[derive(Deserialize)]
struct Page {
    jobs: Vec<Value>,
    before: Option<String>,
}

impl List {
    async fn show(self, client: &Client) -> Result<u8, Failure> {
        let (mut jobs, mut before) = (Vec::new(), self.before);
        let most = self.limit.unwrap_or(USUALLY_LISTED);
        // A server looks through so many at a time: a page may have few, and not be the last.
        loop {
            let left = (most as usize).saturating_sub(jobs.len());
            let limit = if jobs.is_empty() {
                self.limit.map(|limit| limit.to_string())
            } else {
                Some(left.to_string())
            };
            let asked = query(&[
                ("status", self.status.clone()),
                ("name", self.name.clone()),
                ("label", self.label.clone()),
                ("limit", limit),
                ("before", before.clone()),
            ]);
            let page: Page = client.json(Ask::get(format!("/v1/jobs{asked}"))).await?;
            jobs.extend(page.jobs);
            before = page.before;
            if before.is_none() || jobs.len() >= most as usize {
                break;
            }
        }
        match self.json {
            true => print_json(&json!({ "jobs": jobs, "before": before }))?,
            false => print_lines(jobs.iter().map(line))?,
        }
        Ok(0)
    }
}

fn text<'a>(job: &'a Value, name: &str) -> &'a str {
    job[name].as_str().unwrap_or_default()
}

/// Identifier, how it is, since when, what it is called.
fn line(job: &Value) -> String {
    let state = match (text(job, "status"), text(job, "waiting_for")) {
        ("queued", waiting @ ("time" | "jobs" | "quota")) => format!("queued ({waiting})"),
        (status, _) => status.to_owned(),
    };
    let labels = job["labels"].as_object().into_iter().flatten();
    let labels: Vec<_> = labels
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    let (id, since) = (text(job, "job_id"), text(job, "accepted_at"));
    format!(
        "{id}  {state:<14}  {since}  {} {}",
        text(job, "name"),
        labels.join(" ")
    )
}

async fn show(client: &Client, one: &One) -> Result<u8, Failure> {
    let job: Value = client.json(Ask::get(path(&one.id))).await?;
    match one.json {
        true => print_json(&job)?,
        false => print_lines(described(&job))?,
    }
    Ok(0)
}

/// What there is to say of a job, a line each; what there is not is left out.
fn described(job: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let mut say = |name: &str, said: &str| {
        if !said.is_empty() {
            lines.push(format!("{name:<12}{said}"));
        }
    };
    say("job", text(job, "job_id"));
    say("name", text(job, "name"));
    say("status", text(job, "status"));
    say("waits for", text(job, "waiting_for"));
    say(
        "attempt",
        &format!("{} of {}", job["attempt"], job["most_attempts"]),
    );
    say("run", text(job, "run_id"));
    for (word, name) in [
        ("accepted", "accepted_at"),
        ("not before", "not_before"),
        ("next try", "next_try_at"),
        ("started", "started_at"),
        ("ended", "ended_at"),
    ] {
        say(word, text(job, name));
    }
    let webhook = &job["webhook"];
    if webhook.is_object() {
        say(
            "webhook",
            &format!(
                "{} ({}, {} requests)",
                text(webhook, "url"),
                text(webhook, "state"),
                webhook["attempts"]
            ),
        );
        say("", text(webhook, "error"));
    }
    for (word, name) in [("exit code", "exit_code"), ("signal", "signal")] {
        if let Some(number) = job["result"][name].as_i64() {
            say(word, &number.to_string());
        }
    }
    say("error", text(&job["error"], "message"));
    say("hint", text(&job["error"], "hint"));
    let model = &job["result"]["usage"]["llm"];
    if model["calls"].as_u64().is_some_and(|calls| calls > 0) {
        let [calls, input, output] =
            ["calls", "input_tokens", "output_tokens"].map(|name| &model[name]);
        say(
            "models",
            &format!(
                "{calls} calls, {input} tokens in, {output} out, {} USD",
                model["cost_usd"]
            ),
        );
    }
    for kept in job["result"]["artifacts"].as_array().into_iter().flatten() {
        say(
            "kept",
            &format!("{}@{}", text(kept, "name"), kept["version"]),
        );
    }
    lines
}

/// A new job: its identifier, or all about it.
fn submitted(job: &Value, json: bool) -> Result<u8, Failure> {
    match json {
        true => print_json(job)?,
        false => print(&format!("{}\n", printable(text(job, "job_id"))))?,
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
        assert_eq!(line(&job), "01J  queued (jobs)   T  nightly a=b");
        assert_eq!(path("a/../b?c"), "/v1/jobs/a%2F..%2Fb%3Fc");
    }

    #[test]
    fn what_there_is_not_is_not_said() {
        let job = json!({ "job_id": "j", "name": null, "status": "failed", "attempt": 2, "most_attempts": 3,
            "webhook": { "url": "https://x", "state": "given_up", "attempts": 12, "error": "down" },
            "result": { "exit_code": 3, "signal": null, "usage": { "llm": { "calls": 0 } }, "artifacts": [{ "name": "a", "version": 1 }] } });
        let said = described(&job);
        assert_eq!(
            said,
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
