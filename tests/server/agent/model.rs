//! The whole way with a real model: SmolLM2-135M behind the LLM door, the agent in the native sandbox, a file that is
//! wrong, and a check that neither of them has seen.
//!
//! So small a model makes no tool calls and follows no long orders. It acts by JSON that its server holds to the
//! agent's schema, learns from two examples what a repair looks like, and is left to decide which action is next, what to
//! write, and when it is done. What to write stands in a file that it must read first: neither task nor agent says it.

use cli::{Answer, World, repository};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

const KEY: &str = "the-real-key-of-the-model";

/// A model of this machine that answers only to its key; ends with the test.
struct Model {
    process: Child,
    base: String,
}

impl Model {
    fn start() -> Model {
        let mut command = Command::new(repository().join("tests/server/agent/serve-model"));
        command
            .env("MODEL_KEY", KEY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = command.spawn().expect("the script starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it speaks");
        let base = line
            .strip_prefix("ready ")
            .expect("python3-venv and PyPI give the model")
            .trim()
            .to_owned();
        Model { process, base }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Its input ends, and with it the script.
        drop(self.process.stdin.take());
        self.process.wait().expect("it ends");
    }
}

/// A folder with a file that is wrong, one that says what is right, and the model as a provider.
fn world(base: &str, wrong: &str, right: &str) -> World {
    let world = World::new();
    let provider = format!(
        "[provider.local]\ndialect = \"openai\"\nbase = \"{base}\"\nallow_plain_http = true\nallow_private = true\n\
         key = {{ env = \"MODEL_KEY\" }}\n[prices.\"local/*\"]\ninput = 0.0\noutput = 0.0\n"
    );
    world.write("airlock-doors.toml", &provider);
    world
        .write("ws/settings.txt", wrong)
        .write("ws/wanted.txt", right);
    world
}

fn repair(bad: &str, good: &str) -> String {
    format!("Repair {bad}: it must be as {good} says.")
}

/// One whole repair, as the model is to do it.
fn example(bad: &str, good: &str, line: &str) -> Vec<Value> {
    let user = |text: String| json!({ "role": "user", "content": text });
    let acts = |action: String| json!({ "role": "assistant", "content": action });
    vec![
        user(repair(bad, good)),
        acts(format!(r#"{{"action": "read_file", "path": "{good}"}}"#)),
        user(line.to_owned()),
        acts(format!(
            r#"{{"action": "write_file", "path": "{bad}", "content": "{line}"}}"#
        )),
        user(format!("wrote {} characters to {bad}", line.len())),
        acts(format!(
            r#"{{"action": "done", "answer": "{bad} is repaired"}}"#
        )),
    ]
}

fn task() -> Value {
    let examples = [
        example("box.txt", "note.txt", "size = 7"),
        example("door.txt", "plan.txt", "width = 90"),
    ];
    let tools = json!([
        { "name": "read_file", "arguments": { "path": ["wanted.txt"] } },
        { "name": "write_file", "arguments": { "path": ["settings.txt"] } },
    ]);
    json!({ "task_id": "repair", "model": "smollm2", "prompt": repair("settings.txt", "wanted.txt"),
        "context": examples.concat(), "tools": tools, "max_iterations": 6 })
}

/// The agent in the sandbox, with the door and without any other way out.
fn run_agent(world: &World) -> Answer {
    let (agent, payload) = (
        format!("{}:/agent", repository().join("images/agent").display()),
        format!("TASK_PAYLOAD={}", task()),
    );
    #[rustfmt::skip]
    let mut command = world.command(&[
        "--config", "airlock-doors.toml", "run", "--json", "--llm=local", "--contract", "task", "--workspace", "ws", "--timeout", "20m",
        "--mount", &agent, "--env", &payload, "--env", "AIRLOCK_AGENT_ACTIONS=json", "--env", "AIRLOCK_AGENT_TEMPERATURE=0",
        "--env", "AIRLOCK_AGENT_MAX_TOKENS=100", "--", "python3", "/agent/airlock-agent",
    ]);
    world.answer(
        &command
            .env("MODEL_KEY", KEY)
            .output()
            .expect("airlock starts"),
    )
}

/// The hidden check: on the host, after the run, of what neither task nor agent was told.
fn is_repaired(world: &World, right: &str) -> bool {
    fs::read_to_string(world.here("ws/settings.txt"))
        .expect("the file is there")
        .trim()
        == right
        && fs::read_to_string(world.here("ws/wanted.txt")).expect("the file is there") == right
}

#[test]
fn a_real_model_repairs_a_file_through_the_door_so_that_a_hidden_check_passes() {
    let model = Model::start();
    for (wrong, right) in [
        ("colour = red", "colour = green"),
        ("port = 80", "port = 8080"),
    ] {
        let world = world(&model.base, wrong, right);
        assert!(
            !is_repaired(&world, right),
            "the check sees that it is wrong"
        );
        let answer = run_agent(&world);
        let result = answer.json();
        let seen = (
            answer.status,
            &result["output"]["status"],
            result["error"].clone(),
        );
        assert_eq!(
            seen,
            (Some(0), &"completed".into(), Value::Null),
            "{result:#}"
        );
        assert!(is_repaired(&world, right), "{result:#}");
        let calls = result["output"]["tool_calls"].as_array().expect("calls");
        assert_eq!(
            (&calls[0]["tool"], &calls[0]["output"]),
            (&"read_file".into(), &right.into()),
            "it looked first"
        );
        let llm = &result["usage"]["llm"];
        assert_eq!(
            llm["calls"],
            calls.len() + 1,
            "the door counted what the agent asked"
        );
        let told = &result["output"]["tokens_used"];
        assert_eq!(
            (&llm["input_tokens"], &llm["output_tokens"]),
            (&told["input"], &told["output"])
        );
        assert!(!answer.stdout.contains(KEY), "the key stays outside");
    }
}

#[test]
fn without_the_door_the_same_agent_repairs_nothing_and_says_why() {
    let world = world("http://127.0.0.1:9", "colour = red", "colour = green");
    let agent = format!("{}:/agent", repository().join("images/agent").display());
    let payload = format!("TASK_PAYLOAD={}", task());
    #[rustfmt::skip]
    let answer = world.run(&["run", "--json", "--contract", "task", "--workspace", "ws", "--mount", &agent,
        "--env", &payload, "--env", "OPENAI_BASE_URL=http://127.0.0.1:8080/v1", "--", "python3", "/agent/airlock-agent"]);
    let result = answer.json();
    assert_eq!(
        (answer.status, &result["output"]["status"]),
        (Some(1), &"failed".into()),
        "{result:#}"
    );
    let error = result["output"]["error"].as_str().expect("an error");
    assert!(
        error.starts_with("llm_error: no answer from the model"),
        "{error}"
    );
    assert!(!is_repaired(&world, "colour = green"));
}
