//! What calls cost by the provider's own account: priced here once more, from nothing that the doors know. And the ways in
//! which models are called, one a dialect and layout.

use crate::{Answer, House, Session, request};
use provider::{Served, Tokens};
use serde_json::{Value, json};
use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

/// Nano-dollars a token, as [`crate::configuration`] has them in dollars a million.
pub const INPUT: u64 = 1_000;
/// The same of what is written.
pub const OUTPUT: u64 = 2_000;

/// What was served costs so many nano-dollars. What has no price of its own costs what input does.
pub fn price(tokens: &Tokens) -> u64 {
    tokens.prompt() * INPUT + tokens.generated() * OUTPUT
}

/// The worst case of a request of so many bytes with this cap.
pub fn worst(bytes: usize, cap: u64) -> u64 {
    bytes as u64 * INPUT + cap * OUTPUT
}

/// As the admin API and the configuration take it, exactly.
pub fn dollars(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

/// What the service says of a session. Money in nano-dollars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ReportedUsage {
    pub calls: u64,
    pub input: u64,
    pub output: u64,
    pub cached: u64,
    pub money: u64,
    pub overrun: u64,
    pub held: u64,
}

impl ReportedUsage {
    /// Reads it out of an answer that has it.
    pub fn of(told: &Value) -> ReportedUsage {
        let number = |name: &str| {
            told[name]
                .as_u64()
                .unwrap_or_else(|| panic!("`{name}`: {told}"))
        };
        let nanos = |name: &str| {
            let dollars = told[name]
                .as_f64()
                .unwrap_or_else(|| panic!("`{name}`: {told}"));
            (dollars * 1e9).round() as u64
        };
        ReportedUsage {
            calls: number("calls"),
            input: number("input_tokens"),
            output: number("output_tokens"),
            cached: number("cached_tokens"),
            money: nanos("cost_usd"),
            overrun: nanos("overrun_usd"),
            held: nanos("reserved_usd"),
        }
    }

    /// What it has to be, by the provider's account.
    pub fn exactly(calls: u64, tokens: &Tokens) -> ReportedUsage {
        ReportedUsage {
            calls,
            input: tokens.prompt(),
            output: tokens.generated(),
            cached: tokens.cache_read,
            money: price(tokens),
            overrun: 0,
            held: 0,
        }
    }
}

/// How a model is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Way {
    Chat,
    Responses,
    Messages,
    Gemini,
    GeminiArray,
    OllamaChat,
    OllamaGenerate,
}

impl Way {
    /// Every one.
    pub const ALL: [Way; 7] = [
        Way::Chat,
        Way::Responses,
        Way::Messages,
        Way::Gemini,
        Way::GeminiArray,
        Way::OllamaChat,
        Way::OllamaGenerate,
    ];

    /// Whose it is, in the configuration of all tests.
    pub fn provider(self) -> &'static str {
        match self {
            Way::Chat | Way::Responses => "openai",
            Way::Messages => "claude",
            Way::Gemini | Way::GeminiArray => "gemini",
            Way::OllamaChat | Way::OllamaGenerate => "ollama",
        }
    }

    /// Where it is called.
    pub fn path(self, model: &str, stream: bool) -> String {
        match (self, stream) {
            (Way::Chat, _) => "/v1/chat/completions".to_owned(),
            (Way::Responses, _) => "/v1/responses".to_owned(),
            (Way::Messages, _) => "/v1/messages".to_owned(),
            (Way::Gemini | Way::GeminiArray, false) => {
                format!("/v1beta/models/{model}:generateContent")
            }
            (Way::Gemini, true) => format!("/v1beta/models/{model}:streamGenerateContent?alt=sse"),
            (Way::GeminiArray, true) => format!("/v1beta/models/{model}:streamGenerateContent"),
            (Way::OllamaChat, _) => "/api/chat".to_owned(),
            (Way::OllamaGenerate, _) => "/api/generate".to_owned(),
        }
    }

    /// What it is asked.
    pub fn body(self, model: &str, stream: bool, cap: Option<u64>) -> Value {
        let messages =
            json!([{ "role": "user", "content": "hello, this is a prompt of some length" }]);
        let mut body = match self {
            Way::Chat | Way::Messages | Way::OllamaChat => {
                json!({ "model": model, "messages": messages })
            }
            Way::Responses => json!({ "model": model, "input": "hello" }),
            Way::OllamaGenerate => json!({ "model": model, "prompt": "hello" }),
            Way::Gemini | Way::GeminiArray => {
                json!({ "contents": [{ "role": "user", "parts": [{ "text": "hello" }] }] })
            }
        };
        if !matches!(self, Way::Gemini | Way::GeminiArray) {
            body["stream"] = stream.into();
        }
        if let Some(cap) = cap {
            self.set_cap(&mut body, cap);
        }
        body
    }

    fn set_cap(self, body: &mut Value, cap: u64) {
        match self {
            Way::Chat => body["max_completion_tokens"] = cap.into(),
            Way::Responses => body["max_output_tokens"] = cap.into(),
            Way::Messages => body["max_tokens"] = cap.into(),
            Way::Gemini | Way::GeminiArray => {
                body["generationConfig"]["maxOutputTokens"] = cap.into()
            }
            Way::OllamaChat | Way::OllamaGenerate => body["options"]["num_predict"] = cap.into(),
        }
    }

    /// The cap that a body has, by the name that this dialect has for it.
    pub fn cap(self, body: &[u8]) -> Value {
        let body: Value = serde_json::from_slice(body).expect("a body is JSON");
        let place = match self {
            Way::Chat => &body["max_completion_tokens"],
            Way::Responses => &body["max_output_tokens"],
            Way::Messages => &body["max_tokens"],
            Way::Gemini | Way::GeminiArray => &body["generationConfig"]["maxOutputTokens"],
            Way::OllamaChat | Way::OllamaGenerate => &body["options"]["num_predict"],
        };
        place.clone()
    }

    /// The whole request, as a client with this credential sends it.
    pub fn request(self, token: &str, model: &str, stream: bool, body: &Value) -> Vec<u8> {
        let bearer = format!("Bearer {token}");
        let headers: &[_] = match self.provider() {
            "claude" => &[("x-api-key", token), ("content-type", "application/json")],
            "gemini" => &[
                ("x-goog-api-key", token),
                ("content-type", "application/json"),
            ],
            _ => &[
                ("authorization", &bearer),
                ("content-type", "application/json"),
            ],
        };
        request("POST", &self.path(model, stream), headers, body)
    }
}

impl House {
    /// A session of this way's provider with this budget.
    pub fn session(&self, way: Way, budget: &Value) -> Session {
        self.register(&json!({ "provider": way.provider(), "budget": budget }))
    }

    /// Calls the model `m`.
    pub fn ask(&self, session: &Session, way: Way, stream: bool, cap: Option<u64>) -> Answer {
        let body = way.body("m", stream, cap);
        self.proxy
            .listen
            .ask(&way.request(&session.token, "m", stream, &body))
    }

    /// What the service says of a session once nothing of it is under way. Nothing tells when that is.
    pub fn told(&self, session: &Session) -> ReportedUsage {
        let patience = Instant::now() + Duration::from_secs(40);
        loop {
            let answer = self.admin(
                "GET",
                &format!("/v1/sessions/{}/usage", session.id),
                &Value::Null,
            );
            let told = ReportedUsage::of(&answer.json());
            if told.held == 0 {
                return told;
            }
            assert!(Instant::now() < patience, "it is not settled: {told:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the provider has nothing under way, and what it served by then.
    pub fn all_served(&self) -> Served {
        self.provider.await_served(|served| served.open == 0)
    }

    /// Changes the configuration while it serves. Sessions that are open stay as they are.
    pub fn reconfigure(&self, change: impl FnOnce(String) -> String) {
        let path = self.folder.at("config.toml");
        let text = fs::read_to_string(&path).expect("a configuration");
        fs::write(&path, change(text)).expect("it is ours");
        let answer = self.admin("POST", "/v1/reload", &Value::Null);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// `airlock usage --json` on the same state; panics if it is not content with the ledger.
    pub fn books(&self, options: &[&str]) -> Value {
        let mut command = Command::new(cli::airlock());
        command.env_clear().args(["usage", "--json"]).args(options);
        command
            .arg("--config")
            .arg(self.folder.at("config.toml"))
            .arg("--state")
            .arg(self.folder.at("state"));
        let output = command.output().expect("airlock starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The rows of the service's ledger of this kind.
    pub fn rows(&self, kind: &str) -> Vec<Value> {
        let text =
            fs::read_to_string(self.folder.at("state/ledger/owner.jsonl")).expect("a ledger");
        // Of the last the reader may see a part while it is written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let rows = whole
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("a record is JSON"));
        rows.filter(|row| row["kind"] == kind).collect()
    }
}

/// How often a claim is put to the test: more often with `AIRLOCK_FULL=1`.
pub fn times(quick: u64, full: u64) -> u64 {
    if std::env::var_os("AIRLOCK_FULL").is_some_and(|value| value == "1") {
        full
    } else {
        quick
    }
}

/// Numbers without a pattern; the same ones for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// From `AIRLOCK_SEED`, else from the clock; says which, so that it can be done again.
    pub fn new() -> Dice {
        let clock = std::time::UNIX_EPOCH
            .elapsed()
            .expect("it is later")
            .as_nanos() as u64;
        let seed = std::env::var("AIRLOCK_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(clock);
        eprintln!("AIRLOCK_SEED={seed}");
        Dice(seed | 1)
    }

    /// Below this.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

impl Default for Dice {
    fn default() -> Dice {
        Dice::new()
    }
}
