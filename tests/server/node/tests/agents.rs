//! Agents as jobs: a prompt becomes an agent in its sandbox, and what it did, used and kept is told. The model is a
//! provider of the test's own, with its own account.

use doors_tests::{REAL_KEY, money::price};
use node_tests::Server;
use provider::{Provider, Script, Settings, Verbatim};
use serde_json::{Value, json};

/// A server before a provider, and a key that may do what is tried here.
struct ServerFixture {
    server: Server,
    provider: Provider,
    key: String,
    _folder: doors_tests::Folder,
}

impl ServerFixture {
    fn new() -> ServerFixture {
        let provider = Provider::start(Settings {
            keys: vec![REAL_KEY.to_owned()],
            ..Settings::default()
        });
        let folder = doors_tests::Folder::new();
        let server = Server::with(&doors_tests::configuration(&provider, &folder), &[]);
        let key = server.key(&["runs", "artifacts"]);
        ServerFixture {
            server,
            provider,
            key,
            _folder: folder,
        }
    }

    /// The next answer of the model: a text, or the call of a tool.
    fn says(&self, text: &str, call: Option<(&str, Value)>) {
        let mut message = json!({ "role": "assistant", "content": text });
        if let Some((name, input)) = call {
            let function = json!({ "name": name, "arguments": input.to_string() });
            message["tool_calls"] =
                json!([{ "id": "call-0", "type": "function", "function": function }]);
        }
        let usage = json!({ "prompt_tokens": 10, "completion_tokens": 2 });
        let body = json!({ "choices": [{ "message": message }], "usage": usage }).to_string();
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        let verbatim = Verbatim {
            status: 200,
            headers,
            body,
            split: None,
            tokens: (10, 2),
        };
        self.provider.next(Script {
            verbatim: Some(verbatim),
            ..Script::default()
        });
    }

    /// Submits a job, and follows it to its end; its events by name, and the job.
    fn job(&self, agent: &Value) -> (Vec<String>, Value) {
        let made = self.server.ask(
            &self.key,
            "POST",
            "/v1/jobs",
            &[],
            &json!({ "agent": agent }),
        );
        assert_eq!(made.status, 202, "{}", made.text());
        let path = format!(
            "/v1/jobs/{}",
            made.json()["job_id"].as_str().expect("a name")
        );
        let told = self
            .server
            .ask(
                &self.key,
                "GET",
                &format!("{path}/events"),
                &[],
                &Value::Null,
            )
            .text();
        let kinds = told
            .lines()
            .filter_map(|line| line.strip_prefix("event: "))
            .map(str::to_owned)
            .collect();
        (
            kinds,
            self.server
                .ask(&self.key, "GET", &path, &[], &Value::Null)
                .json(),
        )
    }
}

#[test]
fn a_prompt_becomes_an_agent_that_acts_and_what_it_did_used_and_kept_is_told() {
    let desk = ServerFixture::new();
    desk.says(
        "",
        Some(("shell", json!({ "command": "echo roses > poem.txt" }))),
    );
    desk.says("It is written.", None);
    let run = json!({ "llm": "openai", "artifacts": ["poem.txt"], "budget_usd": 1 });
    let (kinds, job) = desk
        .job(&json!({ "prompt": "Write a poem.", "model": "m", "tools": [{ "name": "shell" }], "run": run }));
    let result = &job["result"];
    assert_eq!(
        (&job["status"], &result["exit_code"]),
        (&json!("succeeded"), &json!(0)),
        "{job:#}"
    );
    let output = &result["output"];
    assert_eq!(
        (&output["status"], &output["result"]),
        (&json!("completed"), &json!("It is written.")),
        "{job:#}"
    );
    assert_eq!(output["task_id"], job["job_id"]);
    assert_eq!(output["tool_calls"][0]["tool"], "shell");
    let served = desk.provider.await_served(|served| served.open == 0);
    let llm = &result["usage"]["llm"];
    assert_eq!(served.count, 2);
    assert_eq!(
        (&llm["calls"], &llm["input_tokens"], &llm["output_tokens"]),
        (&json!(2), &json!(20), &json!(4))
    );
    assert_eq!(
        llm["cost_usd"],
        json!(price(&served.tokens) as f64 / 1e9),
        "by the provider's own account"
    );
    assert_eq!(
        (
            &result["artifacts"][0]["name"],
            &result["artifacts"][0]["size_bytes"]
        ),
        (&json!("poem.txt"), &json!(6))
    );
    assert!(
        served.calls.iter().all(|call| call.keys == [REAL_KEY])
            && !job.to_string().contains(REAL_KEY)
    );
    let tools: Value = serde_json::from_slice(&served.calls[0].body).expect("JSON");
    assert_eq!(
        tools["tools"].as_array().map(Vec::len),
        Some(1),
        "the tools that were granted: {tools}"
    );
    for kind in ["job", "started", "output", "finished", "end"] {
        assert!(kinds.iter().any(|told| told == kind), "{kind} of {kinds:?}");
    }
}

#[test]
fn a_spent_budget_ends_the_call_and_is_named() {
    let desk = ServerFixture::new();
    let run = json!({ "llm": "openai", "budget_tokens": 1 });
    let (_, job) = desk.job(&json!({ "prompt": "Do.", "model": "m", "run": run }));
    assert_eq!(job["status"], "failed", "{job:#}");
    assert_eq!(job["result"]["limits_hit"], json!(["budget"]), "{job:#}");
    assert_eq!(job["result"]["output"]["status"], "failed");
    assert_eq!(desk.provider.served().count, 0, "nothing was served");
}

/// An agent of a user's own: says what it was given.
const OWN: &str = r#"
import json, os, sys
payload = os.environ.get("TASK_PAYLOAD")
task = json.loads(payload if payload is not None else sys.stdin.read())
print(json.dumps({"task_id": task["task_id"], "status": "completed", "result": "%s %d" % (payload is None, len(task["prompt"])), "error": None}))
"#;

#[test]
fn an_agent_of_ones_own_has_the_same_task_and_a_long_one_comes_on_standard_input() {
    let desk = ServerFixture::new();
    for (length, result) in [(5, "False 5"), (200_000, "True 200000")] {
        let run = json!({ "llm": false, "task_id": "t-7" });
        let agent =
            json!({ "prompt": "x".repeat(length), "command": ["python3", "-c", OWN], "run": run });
        let (_, job) = desk.job(&agent);
        assert_eq!(job["status"], "succeeded", "{job:#}");
        let output = &job["result"]["output"];
        assert_eq!(
            (&output["result"], &output["task_id"]),
            (&json!(result), &json!("t-7"))
        );
    }
    let raw = json!({ "prompt": "x", "command": ["echo", "hello"], "run": { "llm": false, "contract": "raw" } });
    assert_eq!(desk.job(&raw).1["result"]["stdout"], "hello\n");
    let broken = json!({ "prompt": "x", "command": ["echo", "hello"], "run": { "llm": false } });
    assert_eq!(
        desk.job(&broken).1["status"],
        "failed",
        "the contract is `task` unless said"
    );
}

#[test]
fn a_long_prompt_reaches_the_model_whole() {
    let desk = ServerFixture::new();
    desk.says("Read.", None);
    let prompt = format!("{} the end", "word ".repeat(30_000));
    let (_, job) = desk.job(&json!({ "prompt": prompt, "model": "m", "run": { "llm": "openai" } }));
    assert_eq!(job["result"]["output"]["result"], "Read.", "{job:#}");
    let served = desk.provider.served();
    let asked: Value = serde_json::from_slice(&served.calls[0].body).expect("JSON");
    let messages = asked["messages"].as_array().expect("messages");
    assert_eq!(
        messages.last().map(|message| &message["content"]),
        Some(&json!(prompt))
    );
}

#[test]
fn what_cannot_be_is_refused_before_it_is_a_job() {
    let server = Server::new();
    for agent in [
        json!({}),
        json!({ "prompt": "x", "promt": "y" }),
        json!({ "prompt": "x", "run": { "command": ["sh"] } }),
        json!({ "prompt": "x", "run": { "env": { "TASK_PAYLOAD": "{}" } } }),
        json!({ "prompt": "x", "run": { "contract": "envelope" } }),
        json!({ "prompt": "x", "max_iterations": 1000 }),
    ] {
        let answer = server.post("/v1/jobs", &json!({ "agent": agent }));
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (400, &json!("invalid_spec")),
            "{agent}"
        );
    }
    assert_eq!(server.get("/v1/jobs").json()["jobs"], json!([]));
}
