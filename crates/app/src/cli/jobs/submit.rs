//! `airlock jobs submit`: submits a run or an agent, with schedule, retries and dependencies.

use super::{print_submitted, text, wait};
use crate::{
    cli::{
        message::{self, Failure, Message},
        run,
    },
    config::ProcessEnv,
    remote::{Client, ClientRequest, RETRY_DELAYS_MS, RemoteError},
};
use clap::Args;
use http::{HeaderName, Method};
use serde_json::{Map, Value, json};
use spec::Time;
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

pub(super) const USAGE: &str = "airlock jobs submit [OPTIONS] -- COMMAND [ARG]...
       airlock jobs submit [OPTIONS] --agent PROMPT [-- COMMAND [ARG]...]
       airlock jobs submit [OPTIONS] --file FILE";

pub(super) const EXAMPLES: &str = "\
Examples:
  airlock jobs submit --name nightly --retries 2 --timeout 10m -- make test
  airlock jobs submit --not-before 2030-01-01T03:00:00Z --priority -10 -- ./clean-up
  airlock jobs submit --after $first --webhook https://example.com/hook -- ./report
  airlock jobs submit --agent 'Make the tests pass.' --llm=anthropic --model claude-sonnet-4-5 --budget-usd 0.50 --wait
  airlock jobs submit --file job.json

It prints the job's identifier; with --wait, the program's output, and exits like the program. Ctrl-C stops waiting, not the job.";

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The maximum size of a job file, above every server's limit.
const MAX_FILE_BYTES: u64 = 16 << 20;
const JOB_HEADING: &str = "The job";
const AGENT_HEADING: &str = "The agent";

/// The options of `airlock jobs submit`.
#[derive(Args, Debug)]
pub(super) struct Options {
    #[command(flatten)]
    run: run::Options,
    /// Run an agent with this task; a COMMAND replaces the built-in agent, and reads TASK_PAYLOAD
    #[arg(long, value_name = "PROMPT", help_heading = AGENT_HEADING)]
    agent: Option<String>,
    /// The agent's model
    #[arg(long, value_name = "NAME", requires = "agent", help_heading = AGENT_HEADING)]
    model: Option<String>,
    /// The agent's system prompt
    #[arg(long, value_name = "TEXT", requires = "agent", help_heading = AGENT_HEADING)]
    system_prompt: Option<String>,
    /// A tool of the agent; repeatable [default: all]
    #[arg(long, value_name = "NAME", requires = "agent", help_heading = AGENT_HEADING)]
    tool: Vec<String>,
    /// The maximum of model calls of the agent [default: 10]
    #[arg(long, value_name = "NUMBER", requires = "agent", help_heading = AGENT_HEADING)]
    max_iterations: Option<u32>,
    /// Read the job from this file, or from standard input if it is -; other job options override
    /// it
    #[arg(long, value_name = "FILE", conflicts_with = "agent", help_heading = JOB_HEADING)]
    file: Option<PathBuf>,
    /// The job's name
    #[arg(long, value_name = "NAME", help_heading = JOB_HEADING)]
    name: Option<String>,
    /// A label of the job; repeatable
    #[arg(long, value_name = "NAME=VALUE", help_heading = JOB_HEADING)]
    label: Vec<String>,
    /// Priority among your jobs: -100 to 100, higher first [default: 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, help_heading = JOB_HEADING)]
    priority: Option<i32>,
    /// Start not before this time, such as 2030-01-01T03:00:00Z
    #[arg(long, value_name = "TIME", help_heading = JOB_HEADING)]
    not_before: Option<String>,
    /// Retries if the job does not succeed
    #[arg(long, value_name = "NUMBER", help_heading = JOB_HEADING)]
    retries: Option<u32>,
    /// Retry only after these statuses: failed, timed_out, oom_killed, lost
    #[arg(long, value_name = "STATUS,…", value_delimiter = ',', requires = "retries", help_heading = JOB_HEADING)]
    retry_on: Vec<String>,
    /// Pause before the first retry; doubles each time [default: 10s]
    #[arg(long, value_name = "TIME", requires = "retries", help_heading = JOB_HEADING)]
    retry_pause: Option<Time>,
    /// If the server ends first: rerun, or lost [default: lost]
    #[arg(long, value_name = "WORD", help_heading = JOB_HEADING)]
    on_lost: Option<String>,
    /// Start only after this job has succeeded; repeatable
    #[arg(long, value_name = "ID", help_heading = JOB_HEADING)]
    after: Vec<String>,
    /// Notify this URL by a signed request when the job has ended
    #[arg(long, value_name = "URL", help_heading = JOB_HEADING)]
    webhook: Option<String>,
    /// Events to notify: running, final [default: final]
    #[arg(long, value_name = "EVENT,…", value_delimiter = ',', requires = "webhook", help_heading = JOB_HEADING)]
    webhook_on: Vec<String>,
    /// How long the ended job is kept
    #[arg(long, value_name = "TIME", help_heading = JOB_HEADING)]
    keep_for: Option<Time>,
    /// Wait for the job's end, and print its output
    #[arg(long, help_heading = JOB_HEADING)]
    wait: bool,
}

/// Hides options of a run that do not apply to a job.
pub(super) fn hide_run_options(argument: clap::Arg) -> clap::Arg {
    if ["tty", "explain", "run_id", "job_id"].contains(&argument.get_id().as_str()) {
        argument.hide(true)
    } else {
        argument
    }
}

impl Options {
    pub(super) fn json(&self) -> bool {
        self.run.json
    }

    /// The body of the request.
    fn request_body(self, env: &ProcessEnv) -> Result<Value, Failure> {
        let job_fields = self.job_fields()?;
        let mut request_body = match &self.file {
            Some(file) => read(file, &env.current_folder)?,
            None => Map::new(),
        };
        let file = self.file.is_some();
        let Options {
            run,
            agent,
            model,
            system_prompt,
            tool,
            max_iterations,
            ..
        } = self;
        let mut run = run::job_run_request(run, env)?;
        match (file, agent) {
            (true, _) if run.is_empty() => {}
            (true, _) => {
                let hint = "put the command and the options of the run into the file";
                return Err(Failure::invalid(
                    "--file and options of a run exclude each other",
                    hint,
                ));
            }
            (false, None) if !run.contains_key("command") => {
                let hint = "write: airlock jobs submit [OPTIONS] -- COMMAND, or --agent PROMPT, or --file FILE";
                return Err(Failure::invalid("there is nothing to run", hint));
            }
            (false, None) => drop(request_body.insert("run".to_owned(), run.into())),
            (false, Some(prompt)) => {
                let tools: Vec<_> = tool.iter().map(|name| json!({ "name": name })).collect();
                let agent = without_unset(json!({
                    "prompt": prompt, "model": model, "system_prompt": system_prompt, "tools": tools,
                    "max_iterations": max_iterations, "command": run.remove("command"), "run": run,
                }));
                request_body.insert("agent".to_owned(), agent.into());
            }
        }
        request_body.extend(job_fields);
        Ok(request_body.into())
    }

    /// The fields of the job itself.
    fn job_fields(&self) -> Result<Map<String, Value>, Failure> {
        let labels = self.label.iter().map(|text| match text.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), Value::from(value))),
            None => {
                let message = format!("`{}` is not a label with its value", text.escape_debug());
                Err(Failure::invalid(message, "write --label NAME=VALUE"))
            }
        });
        let labels = labels.collect::<Result<Map<_, _>, _>>()?;
        let time = |time: Option<Time>| time.map(|time| time.to_string());
        let retries = self.retries.map(|most| {
            without_unset(
                json!({ "most": most, "on": self.retry_on, "pause": time(self.retry_pause) }),
            )
        });
        let webhook = self
            .webhook
            .as_ref()
            .map(|url| without_unset(json!({ "url": url, "events": self.webhook_on })));
        Ok(without_unset(json!({
            "name": self.name, "labels": labels, "priority": self.priority, "not_before": self.not_before,
            "retries": retries, "on_lost": self.on_lost, "after": self.after, "webhook": webhook,
            "keep_for": time(self.keep_for),
        })))
    }
}

/// Removes unset fields.
fn without_unset(value: Value) -> Map<String, Value> {
    let Value::Object(map) = value else {
        return Map::new();
    };
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    };
    map.into_iter().filter(|(_, value)| is_set(value)).collect()
}

/// Reads a job from a file.
fn read(file: &Path, folder: &Path) -> Result<Map<String, Value>, Failure> {
    let hint = "give a file with one JSON object, as POST /v1/jobs takes it";
    let bad = |why: String| {
        Failure::invalid(
            format!("cannot read the job in `{}`: {why}", file.display()),
            hint,
        )
    };
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        io::stdin()
            .lock()
            .take(MAX_FILE_BYTES + 1)
            .read_to_end(&mut bytes)
    } else {
        File::open(folder.join(file))
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| bad(error.to_string()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(bad(format!(
            "it is longer than {} MiB",
            MAX_FILE_BYTES >> 20
        )));
    }
    serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))
}

/// Carries out the command.
pub(super) async fn execute(
    options: Options,
    client: Client,
    env: &ProcessEnv,
) -> Result<u8, Failure> {
    let json = options.json();
    let waits = options.wait;
    let request_body = options.request_body(env)?;
    let job = submit(&client, &request_body).await?;
    if !waits {
        return print_submitted(&job, json);
    }
    let id = text(&job, "job_id").to_owned();
    message::print(&[Message::Note(format!("the job is {id}"))]);
    wait::execute(client, id, json).await
}

/// Submits the job. Retries carry the same idempotency key, so that it is one job.
async fn submit(client: &Client, request_body: &Value) -> Result<Value, RemoteError> {
    let idempotency_key = engine::fresh_id().to_string();
    let mut delays = RETRY_DELAYS_MS.iter();
    loop {
        let ask = ClientRequest::new(Method::POST, "/v1/jobs")
            .json(request_body)
            .header(IDEMPOTENCY_KEY, &idempotency_key);
        match (client.json(ask).await, delays.next()) {
            (Err(RemoteError::Broken { .. } | RemoteError::TimedOut { .. }), Some(delay)) => {
                tokio::time::sleep(Duration::from_millis(*delay)).await;
            }
            (answer, _) => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        options: Options,
    }

    fn request_body(words: &[&str]) -> Result<Value, String> {
        let words = Words::try_parse_from([&["submit"], words].concat())
            .map_err(|error| error.to_string())?;
        words
            .options
            .request_body(&ProcessEnv::default())
            .map_err(|failure| failure.message)
    }

    #[test]
    fn a_command_with_its_options_is_a_job_of_a_run() {
        let words = [
            "--timeout",
            "5s",
            "--priority",
            "-3",
            "--retries",
            "2",
            "--retry-on",
            "failed,lost",
            "--label",
            "a=b=c",
        ];
        let body = request_body(
            &[
                &words[..],
                &[
                    "--after",
                    "x",
                    "--webhook",
                    "https://h",
                    "--",
                    "sh",
                    "-c",
                    "true",
                ],
            ]
            .concat(),
        );
        let wanted = json!({
            "run": { "command": ["sh", "-c", "true"], "timeout": "5s" }, "priority": -3,
            "retries": { "most": 2, "on": ["failed", "lost"] }, "labels": { "a": "b=c" }, "after": ["x"],
            "webhook": { "url": "https://h" },
        });
        assert_eq!(body, Ok(wanted));
    }

    #[test]
    fn a_prompt_is_a_job_of_an_agent_and_a_command_is_its_own() {
        let body = request_body(&[
            "--agent",
            "do",
            "--model",
            "m",
            "--tool",
            "shell",
            "--llm=p",
            "--contract",
            "raw",
            "--",
            "mine",
        ]);
        let wanted = json!({ "agent": {
            "prompt": "do", "model": "m", "tools": [{ "name": "shell" }], "command": ["mine"],
            "run": { "llm": "p", "contract": "raw" },
        } });
        assert_eq!(body, Ok(wanted));
        assert_eq!(
            request_body(&["--agent", "do"]),
            Ok(json!({ "agent": { "prompt": "do" } }))
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert!(request_body(&[]).unwrap_err().contains("nothing to run"));
        assert!(
            request_body(&["--model", "m", "--", "x"])
                .unwrap_err()
                .contains("--agent")
        );
        assert!(request_body(&["--agent", "a", "--file", "f"]).is_err());
        assert!(request_body(&["--retry-on", "lost", "--", "x"]).is_err());
        assert!(
            request_body(&["--label", "a", "--", "x"])
                .unwrap_err()
                .contains("not a label")
        );
        assert!(
            request_body(&["--run-id", "a", "--", "x"])
                .unwrap_err()
                .contains("--run-id")
        );
        assert!(
            request_body(&["--tty", "--", "x"])
                .unwrap_err()
                .contains("--tty")
        );
    }

    #[test]
    fn a_file_has_a_job_and_options_about_it_win() {
        let file = std::env::temp_dir().join(format!("airlock-job-{}.json", std::process::id()));
        std::fs::write(&file, r#"{"run":{"command":["true"]},"priority":1}"#).unwrap();
        let name = file.to_str().unwrap();
        assert_eq!(
            request_body(&["--file", name, "--priority", "2"]),
            Ok(json!({ "run": { "command": ["true"] }, "priority": 2 }))
        );
        assert!(
            request_body(&["--file", name, "--", "x"])
                .unwrap_err()
                .contains("exclude each other")
        );
        std::fs::write(&file, "[]").unwrap();
        assert!(
            request_body(&["--file", name])
                .unwrap_err()
                .contains("cannot read the job")
        );
        std::fs::remove_file(&file).unwrap();
    }
}
