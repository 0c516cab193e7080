//! What the tests of the tool worker share: brokers, `airlock worker sam`, tools, and an agent written from the description of
//! the wire (`client.py`). Whatever is started here ends with this process, however that ends.
//!
//! ```no_run
//! use worker_tests::{Ask, Mesh};
//! let mesh = Mesh::new("example", |_| ());
//! let answer = mesh.agent.call(&Ask::new("echo", serde_json::json!({"text": "hello"})));
//! assert_eq!(answer.tool_result()["text"], "hello");
//! ```
//!
//! Settings: `AIRLOCK_FULL=1` (full counts).

mod agent;
mod brokers;
mod place;
mod rabbit;
mod sam;
mod tools;

pub use agent::{Agent, Ask, Message, Way, uuid};
pub use brokers::{DevBroker, Mosquitto, Persistence};
pub use place::{Folder, free_port, start, until};
pub use rabbit::Rabbit;
pub use sam::{Sam, Variables, variables, with_model};
pub use tools::{Tools, USUAL};

use std::path::PathBuf;

/// What all of it is called by. Of several levels, since a store has only the last.
pub const NAMESPACE: &str = "airlock/test";

/// Full counts, or those that a change must wait for.
pub fn count(full: usize, usual: usize) -> usize {
    if std::env::var_os("AIRLOCK_FULL").is_some() {
        full
    } else {
        usual
    }
}

/// How many living processes go by this name; tools take one with `marked`.
pub fn marks(name: &str) -> usize {
    let entries = std::fs::read_dir("/proc")
        .expect("it is mounted")
        .filter_map(Result::ok);
    let is_called = |path: &PathBuf| {
        std::fs::read_to_string(path.join("comm"))
            .unwrap_or_default()
            .trim_end()
            == name
    };
    let found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(is_called)
        .collect();
    // Whoever is still there lived at once with the others, which a first look alone does not say.
    found.iter().filter(|path| is_called(path)).count()
}

/// A broker, a worker with the usual tools, and an agent.
#[derive(Debug)]
pub struct Mesh {
    /// Who asks.
    pub agent: Agent,
    /// Who answers.
    pub sam: Sam,
    /// Between them.
    pub broker: Mosquitto,
    /// What there is to be called.
    pub tools: Tools,
    /// All that they write.
    pub folder: Folder,
}

impl Mesh {
    /// One of its own; the worker's variables may be changed before it starts.
    pub fn new(agent: &str, change: impl FnOnce(&mut Variables)) -> Mesh {
        let folder = Folder::new();
        let broker = Mosquitto::start(&folder);
        let tools = Tools::usual(&folder);
        let mut environment = variables(&folder, &broker.url());
        change(&mut environment);
        // First, so that it hears what there is from the beginning.
        let agent = Agent::join(&Way::mqtt5(broker.port), agent);
        let sam = Sam::start(&folder, environment);
        let is_usual = sam.variables.contains_key("MANIFEST_PATH");
        // Whoever is told of a tool can call it.
        for tool in USUAL
            .iter()
            .filter(|tool| is_usual && **tool != "absent_module")
        {
            agent.wait("init", tool);
        }
        Mesh {
            agent,
            sam,
            broker,
            tools,
            folder,
        }
    }

    /// Where the worker keeps artifacts of the usual asker.
    pub fn shelf(&self) -> PathBuf {
        self.folder.at("artifacts/test/ana/web-77")
    }
}
