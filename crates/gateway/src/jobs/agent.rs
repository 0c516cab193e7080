//! Agent jobs: a prompt, tools and a budget become a run of an agent in its sandbox.
//!
//! The task is JSON in `TASK_PAYLOAD`, or on standard input if it is too long for a variable; the
//! result is a task result. The agent is the reference agent, which any image with python3 can run,
//! or a command of the user.
//!
//! The reference agent is `images/agent/airlock-agent`.

use crate::{
    Problem,
    problem::Answer,
    wire::{Input, Llm, RunOrder},
};
use image::recipe::REFERENCE_AGENT;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The variable with the task.
const TASK_VARIABLE: &str = "TASK_PAYLOAD";
/// Maximum size of the task in a variable: Linux allows 128 KiB for a variable with its name.
const MAX_VARIABLE_BYTES: usize = 100 << 10;
/// Maximum task size of the reference agent.
const MAX_TASK_BYTES: usize = 4 << 20;
const MAX_ITERATIONS: u32 = 100;
const MAX_MESSAGES: usize = 1000;
const MAX_TOOLS: usize = 256;
/// Path of the reference agent below `/workspace`, and its command.
const AGENT_PATH: &str = ".airlock/agent";
const AGENT_COMMAND: [&str; 3] = ["python3", "/workspace/.airlock/agent", "task"];

/// An agent and what it shall do.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AgentOrder {
    /// What it shall do.
    prompt: String,
    /// What it is told before.
    system_prompt: Option<String>,
    /// Which model it uses; else `AIRLOCK_AGENT_MODEL` of its environment.
    model: Option<String>,
    /// Which tools it has; all of its own unless said.
    tools: Option<Vec<Tool>>,
    /// What was said before the prompt.
    context: Vec<Message>,
    /// How often it may ask the model: 10 unless said, at most 100, which is also what 0 means.
    #[schema(maximum = 100)]
    max_iterations: Option<u32>,
    /// An agent of one's own, which takes `TASK_PAYLOAD` (or standard input, for a task of more than 100 KiB) and prints a task result.
    command: Vec<String>,
    /// Everything else of the run, but its command: image, budget, limits, inputs, artifacts. The profile is `agent`, `llm`
    /// is true and the contract `task`, unless said.
    run: RunOrder,
}

/// A tool that an agent has.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Tool {
    /// `shell`, `read_file`, `write_file`, `list_files`, or one of an agent of one's own.
    name: String,
    /// For a parameter, the values that it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    arguments: Option<BTreeMap<String, Box<RawValue>>>,
}

/// Something that was said.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Message {
    /// `user` or `assistant`.
    role: String,
    content: String,
}

/// The task document that an agent reads.
#[derive(Serialize)]
struct Task<'a> {
    task_id: &'a str,
    prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a [Tool]>,
    #[serde(skip_serializing_if = "<[Message]>::is_empty")]
    context: &'a [Message],
    #[serde(skip_serializing_if = "Option::is_none")]
    max_iterations: Option<u32>,
}

impl AgentOrder {
    /// Converts to the run of the agent.
    pub(crate) fn into_run(self, job_id: &str) -> Answer<RunOrder> {
        self.check()?;
        let task = self.task(job_id)?;
        let AgentOrder {
            command, mut run, ..
        } = self;
        run.profile.get_or_insert_with(|| "agent".to_owned());
        run.llm.get_or_insert(Llm::Open(true));
        run.contract.get_or_insert_with(|| "task".to_owned());
        if task.len() <= MAX_VARIABLE_BYTES {
            drop(run.env.insert(TASK_VARIABLE.to_owned(), task))
        } else {
            run.stdin = Some(task)
        }
        run.command = if command.is_empty() {
            let text = Some(REFERENCE_AGENT.1.to_owned());
            run.inputs.push(Input {
                name: AGENT_PATH.to_owned(),
                artifact: None,
                text,
                base64: None,
            });
            AGENT_COMMAND.map(str::to_owned).to_vec()
        } else {
            command
        };
        Ok(run)
    }

    fn check(&self) -> Answer<()> {
        let run = &self.run;
        let refused = |title: &str, hint: &str| Err(Problem::invalid(title, hint));
        if self.prompt.trim().is_empty() {
            return refused(
                "the agent has no prompt",
                "say in `agent.prompt` what it shall do",
            );
        }
        if !run.command.is_empty() {
            return refused(
                "`agent.run` has a command",
                "give an agent of your own as `agent.command`",
            );
        }
        if run.env.contains_key(TASK_VARIABLE) || run.stdin.is_some() || run.stdin_base64.is_some()
        {
            let hint = "give what it shall do as `agent.prompt`, and files as `agent.run.inputs`";
            return refused(
                "an agent has its task in `TASK_PAYLOAD` or on standard input",
                hint,
            );
        }
        if self.command.is_empty()
            && run
                .contract
                .as_deref()
                .is_some_and(|contract| contract != "task")
        {
            let hint =
                "leave `agent.run.contract` away, or give an agent of your own as `agent.command`";
            return refused("the reference agent has the contract `task`", hint);
        }
        let many = self
            .tools
            .as_ref()
            .is_some_and(|tools| tools.len() > MAX_TOOLS);
        if many
            || self.context.len() > MAX_MESSAGES
            || self.max_iterations.is_some_and(|max| max > MAX_ITERATIONS)
        {
            let hint = "there may be 256 tools, 1,000 messages of context and 100 iterations";
            return refused("the agent is given too much", hint);
        }
        Ok(())
    }

    /// The task as JSON.
    fn task(&self, job_id: &str) -> Answer<String> {
        let task = Task {
            task_id: self.run.task_id.as_deref().unwrap_or(job_id),
            prompt: &self.prompt,
            system_prompt: self.system_prompt.as_deref(),
            model: self.model.as_deref(),
            tools: self.tools.as_deref(),
            context: &self.context,
            max_iterations: self.max_iterations,
        };
        let too_long = || {
            Problem::invalid(
                "the task is too long",
                "give at most 4 MiB, and the rest as `agent.run.inputs`",
            )
        };
        let text = serde_json::to_string(&task).map_err(|_| too_long())?;
        if text.len() <= MAX_TASK_BYTES {
            Ok(text)
        } else {
            Err(too_long())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(order: Value) -> Answer<RunOrder> {
        serde_json::from_value::<AgentOrder>(order)
            .unwrap()
            .into_run("job-1")
    }

    fn task(run: &RunOrder) -> Value {
        serde_json::from_str(&run.env[TASK_VARIABLE]).unwrap()
    }

    #[test]
    fn a_prompt_becomes_a_run_of_the_reference_agent() {
        let tools = json!([{ "name": "shell", "arguments": { "command": ["make"] } }, { "name": "read_file" }]);
        let made = run(
            json!({ "prompt": "do", "model": "m", "tools": tools, "run": { "budget_usd": 1 } }),
        )
        .unwrap();
        assert_eq!(made.command, AGENT_COMMAND);
        assert_eq!(
            (made.profile.as_deref(), made.contract.as_deref()),
            (Some("agent"), Some("task"))
        );
        assert!(matches!(made.llm, Some(Llm::Open(true))) && made.stdin.is_none());
        assert_eq!(
            task(&made),
            json!({ "task_id": "job-1", "prompt": "do", "model": "m", "tools": tools })
        );
        assert_eq!(
            (made.inputs.len(), made.inputs[0].name.as_str()),
            (1, ".airlock/agent")
        );
        assert!(
            made.inputs[0]
                .text
                .as_ref()
                .is_some_and(|text| text.starts_with("#!/usr/bin/env python3"))
        );
        assert!(made.into_request().is_ok());
    }

    #[test]
    fn what_is_said_stays_and_a_command_of_ones_own_gets_the_same_task() {
        let said = json!({ "profile": "ci", "llm": "p", "contract": "raw", "task_id": "t" });
        let made = run(json!({ "prompt": "do", "command": ["mine"], "run": said })).unwrap();
        assert_eq!(
            (made.profile.as_deref(), made.contract.as_deref()),
            (Some("ci"), Some("raw"))
        );
        assert!(matches!(&made.llm, Some(Llm::Provider(name)) if name == "p"));
        assert_eq!(
            (made.command.as_slice(), made.inputs.len()),
            (&["mine".to_owned()][..], 0)
        );
        assert_eq!(task(&made), json!({ "task_id": "t", "prompt": "do" }));
    }

    #[test]
    fn arguments_are_handed_over_as_they_were_written() {
        let quoted = r#"{"$serde_json::private::RawValue":"[\"rm\"]"}"#;
        let usual: Value = serde_json::from_str(quoted).unwrap();
        assert_eq!(
            usual,
            json!(["rm"]),
            "the control: the parser takes it for what it quotes"
        );
        let numbers = "[100000000000000000000, 0.10]";
        let tools =
            format!(r#"[{{"name":"shell","arguments":{{"command":{quoted},"n":{numbers}}}}}]"#);
        let order: AgentOrder =
            serde_json::from_str(&format!(r#"{{"prompt":"do","tools":{tools}}}"#)).unwrap();
        let made = order.into_run("job-1").unwrap();
        assert_eq!(
            made.env[TASK_VARIABLE],
            format!(r#"{{"task_id":"job-1","prompt":"do","tools":{tools}}}"#),
            "as it was written"
        );
    }

    #[test]
    fn a_long_task_goes_in_on_standard_input() {
        let prompt = "x".repeat(MAX_VARIABLE_BYTES);
        let made = run(json!({ "prompt": prompt })).unwrap();
        assert!(!made.env.contains_key(TASK_VARIABLE));
        let read: Value = serde_json::from_str(made.stdin.as_deref().unwrap()).unwrap();
        assert_eq!(read["prompt"], prompt);
        assert!(run(json!({ "prompt": "x".repeat(MAX_TASK_BYTES) })).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_runs() {
        for order in [
            json!({}),
            json!({ "prompt": "  " }),
            json!({ "prompt": "do", "run": { "command": ["sh"] } }),
            json!({ "prompt": "do", "run": { "env": { "TASK_PAYLOAD": "{}" } } }),
            json!({ "prompt": "do", "run": { "stdin": "{}" } }),
            json!({ "prompt": "do", "run": { "contract": "raw" } }),
            json!({ "prompt": "do", "max_iterations": 101 }),
        ] {
            assert!(run(order.clone()).is_err(), "{order}");
        }
        for unknown in [
            json!({ "prompt": "do", "promt": 1 }),
            json!({ "prompt": "do", "tools": [{ "nam": "x" }] }),
        ] {
            assert!(serde_json::from_value::<AgentOrder>(unknown).is_err());
        }
    }
}
