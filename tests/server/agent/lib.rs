//! The agent in the native sandbox, before a provider that answers as a test orders.

use cli::{Answer, World, repository};
use provider::{Provider, Script, Settings, Verbatim};
use serde_json::{Value, json};

/// What the provider wants to see.
pub const KEY: &str = "placeholder";

/// A workspace, a provider, and the agent between them.
#[derive(Debug)]
pub struct AgentFixture {
    /// Where commands run; the workspace is `ws` in it.
    pub world: World,
    /// What the agent talks to, on the loopback of this machine.
    pub provider: Provider,
}

impl AgentFixture {
    /// An empty workspace.
    #[allow(clippy::new_without_default, reason = "it starts a provider")]
    pub fn new() -> AgentFixture {
        let world = World::new();
        world.write("ws/start.txt", "hello\n");
        AgentFixture {
            world,
            provider: Provider::start(Settings {
                keys: vec![KEY.into()],
                ..Settings::default()
            }),
        }
    }

    /// The next answer of the model, as it is.
    pub fn answers(&self, status: u16, body: impl Into<String>) -> &AgentFixture {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        let verbatim = Verbatim {
            status,
            headers,
            body: body.into(),
            split: None,
            tokens: (0, 0),
        };
        self.provider.next(Script {
            verbatim: Some(verbatim),
            ..Script::default()
        });
        self
    }

    /// The next answer of an OpenAI model: a text, or tool calls.
    pub fn says(&self, text: &str, calls: &[(&str, Value)]) -> &AgentFixture {
        let call = |(at, (name, input)): (usize, &(&str, Value))| {
            let function = json!({ "name": name, "arguments": input.to_string() });
            json!({ "id": format!("call-{at}"), "type": "function", "function": function })
        };
        let calls: Vec<_> = calls.iter().enumerate().map(call).collect();
        let mut message = json!({ "role": "assistant", "content": text });
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let usage = json!({ "prompt_tokens": 10, "completion_tokens": 2 });
        self.answers(
            200,
            json!({ "choices": [{ "message": message }], "usage": usage }).to_string(),
        )
    }

    /// Runs the agent under a contract, with these variables beside those of the door.
    pub fn run(&self, contract: &str, variables: &[(&str, &str)]) -> Answer {
        let (agent, base) = (
            format!("{}:/agent", repository().join("images/agent").display()),
            self.provider.base(),
        );
        let mut arguments = [
            "run",
            "--json",
            "--workspace",
            "ws",
            "--network",
            "host",
            "--contract",
            contract,
        ]
        .map(str::to_owned)
        .to_vec();
        arguments.extend(["--mount".to_owned(), agent]);
        let door = [
            ("OPENAI_BASE_URL", format!("{base}/v1")),
            ("OPENAI_API_KEY", KEY.to_owned()),
            ("ANTHROPIC_BASE_URL", base.clone()),
            ("ANTHROPIC_API_KEY", KEY.to_owned()),
        ];
        let own = variables
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        for (name, value) in door.into_iter().chain(own) {
            arguments.extend(["--env".to_owned(), format!("{name}={value}")]);
        }
        arguments.extend(["--", "python3", "/agent/airlock-agent"].map(str::to_owned));
        self.world
            .run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Runs a task that names the model `m` unless it says otherwise; its result, which kept the contract.
    pub fn task(&self, task: &Value, variables: &[(&str, &str)]) -> Value {
        let payload = task.to_string();
        let answer = self.run(
            "task",
            &[&[("TASK_PAYLOAD", payload.as_str())], variables].concat(),
        );
        let result = answer.json();
        assert_eq!(result["error"], Value::Null, "{}", result["stderr"]);
        let status = match result["output"]["status"].as_str() {
            Some("completed") => 0,
            Some("failed") => 1,
            _ => 2,
        };
        assert_eq!(answer.status, Some(status), "{result:#}");
        result["output"].clone()
    }

    /// What the model was sent, call by call.
    pub fn asked(&self) -> Vec<Value> {
        let calls = self.provider.served().calls;
        calls
            .iter()
            .map(|call| serde_json::from_slice(&call.body).expect("the agent sends JSON"))
            .collect()
    }
}

/// A task for the model `m`.
pub fn task(prompt: &str) -> Value {
    json!({ "task_id": "t-1", "prompt": prompt, "model": "m" })
}
