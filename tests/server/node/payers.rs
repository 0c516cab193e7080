//! A server before a provider that keeps its own account, for tenants who pay.

use crate::{Answer, Server};
use doors_tests::{
    REAL_KEY,
    money::{Way, worst},
};
use provider::{Provider, Script, Settings};
use serde_json::{Value, json};

/// Output tokens of each call.
pub const CAP: u64 = 20;

/// A server, and who stands behind its doors.
#[derive(Debug)]
pub struct Payers {
    /// The server.
    pub server: Server,
    /// Its provider.
    pub provider: Provider,
    /// With everything that it is told.
    pub configuration: String,
    _folder: doors_tests::Folder,
}

impl Payers {
    /// With these lines behind the configuration of all tests of doors. Each call costs [`cost`].
    pub fn new(more: &str) -> Payers {
        let provider = Provider::start(Settings {
            keys: vec![REAL_KEY.to_owned()],
            ..Settings::default()
        });
        let folder = doors_tests::Folder::new();
        let configuration = doors_tests::configuration(&provider, &folder) + more;
        let server = Server::with(&configuration, &[]);
        let input = Some(body("m").to_string().len() as u64);
        provider.set(Script {
            tokens: CAP,
            input,
            ..Script::default()
        });
        Payers {
            server,
            provider,
            configuration,
            _folder: folder,
        }
    }

    /// The answers to as many calls, by the statuses that the program saw.
    pub fn call(&self, key: &str, models: &[&str]) -> Value {
        let answer = self.ask(key, models);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// The same, whatever the server says of it.
    pub fn ask(&self, key: &str, models: &[&str]) -> Answer {
        self.server
            .ask(key, "POST", "/v1/runs", &[], &order(models))
    }
}

/// A run that calls these models, one after the other.
pub fn order(models: &[&str]) -> Value {
    let script: String = models.iter().map(|model| call(&body(model))).collect();
    json!({ "command": ["sh", "-c", script], "llm": "openai" })
}

/// What is asked of a model.
pub fn body(model: &str) -> Value {
    Way::Chat.body(model, false, Some(CAP))
}

/// What a call to a model of a name of one letter costs, which is also the worst that it can.
pub fn cost() -> u64 {
    worst(body("m").to_string().len(), CAP)
}

/// What a shell does to ask for this; it says with which status it was answered, and which limit was named.
fn call(body: &Value) -> String {
    format!(
        "curl -sN -o answer -w '%{{http_code}} ' -H \"authorization: Bearer $OPENAI_API_KEY\" \
         -H 'content-type: application/json' -d '{body}' $OPENAI_BASE_URL/chat/completions\n\
         grep -o 'limit `[a-z_]*`' answer\n"
    )
}
