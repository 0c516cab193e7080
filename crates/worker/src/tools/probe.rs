//! Asks tools what they are, in sandboxes, and remembers it.

use super::{
    Code, Tool, What,
    card::{self, Said},
    problem::{Problem, reason},
};
use crate::{
    call::{Caller, places},
    wire::{
        answer::ToolCard,
        code::{Code as ErrorCode, Refusal},
    },
};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::Semaphore;

/// What a tool may take to say what it is: some import much.
pub(crate) const PROBE: Duration = Duration::from_secs(30);
/// The same when an agent waits for it; it waits for 5 s.
const PROMPT: Duration = Duration::from_millis(4500);
/// Cards for configurations that are remembered.
const MOST_KNOWN: usize = 256;
/// Askers that are served at once.
const MOST_ASKED: usize = 2;

/// Something that is to be asked of a tool's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Whose code.
    pub code: Code,
    /// What is run, as it is seen inside.
    pub command: Vec<OsString>,
    /// What is to lie in the work folder as `config.json`: what an operator set for the tool, with secrets.
    pub config: Option<Vec<u8>>,
    /// How long it may take.
    pub time: Duration,
}

/// Whoever runs a program of a tool's code in a sandbox, and gives what it printed. A refusal says how it failed, with the
/// beginning of what it wrote to standard error.
pub trait Asker: Send + Sync + 'static {
    /// Asks.
    fn ask(&self, question: Question) -> impl Future<Output = Result<Vec<u8>, Refusal>> + Send;
}

impl Asker for Caller {
    async fn ask(&self, question: Question) -> Result<Vec<u8>, Refusal> {
        let Question {
            code,
            command,
            config,
            time,
        } = question;
        match config {
            None => Caller::ask(self, &code, command, time).await,
            Some(config) => {
                self.ask_with(&code, command, &[(CONFIG, &config)], time)
                    .await
            }
        }
    }
}

/// The name of that file, and where it is inside.
const CONFIG: &str = "config.json";

fn config_inside() -> OsString {
    Path::new(places::WORK).join(CONFIG).into()
}

/// Asks a program for its tools.
pub(crate) async fn tools_of(
    asker: &impl Asker,
    code: &Code,
    program: &Path,
    config: Option<Vec<u8>>,
    time: Duration,
) -> Result<card::Tools, Problem> {
    let mut command = vec![
        Path::new(places::FOLDER).join(program).into(),
        "--schema".into(),
    ];
    if config.is_some() {
        command.extend(["--config".into(), config_inside()]);
    }
    let question = Question {
        code: code.clone(),
        command,
        config,
        time,
    };
    card::read(&asker.ask(question).await.map_err(unanswered)?)
}

/// Asks our runner what a Python function is.
pub(crate) async fn of_function(
    asker: &impl Asker,
    python: &Path,
    code: &Code,
    (module, function): (&str, &str),
) -> Result<Said, Problem> {
    let command = [places::RUNNER, "--describe", module, function].map(OsString::from);
    let command = [python.into()].into_iter().chain(command).collect();
    let question = Question {
        code: code.clone(),
        command,
        config: None,
        time: PROBE,
    };
    card::read_one(&asker.ask(question).await.map_err(unanswered)?)
}

/// The same of a class, which may depend on what is set for it.
pub(crate) async fn of_class(
    asker: &impl Asker,
    python: &Path,
    code: &Code,
    (module, class_name): (&str, &str),
    config: Option<Vec<u8>>,
    time: Duration,
) -> Result<Said, Problem> {
    let command = [places::RUNNER, "--schema-class", module, class_name].map(OsString::from);
    let command = [python.into()].into_iter().chain(command);
    let command = command
        .chain(config.is_some().then(config_inside))
        .collect();
    let question = Question {
        code: code.clone(),
        command,
        config,
        time,
    };
    card::read_one(&asker.ask(question).await.map_err(unanswered)?)
}

fn unanswered(refusal: Refusal) -> Problem {
    let message = format!("it does not say what it is: {}", reason(&refusal.message));
    Problem::new(
        message,
        "it is asked again after a while, and as soon as its code changes",
    )
}

/// What a card depends on: the tool's name, its code, and what is set for it. Never the secrets themselves.
type Key = [u8; 32];

/// Answers what a tool is for a configuration.
#[derive(Debug)]
pub struct Cards<A> {
    asker: Arc<A>,
    python: PathBuf,
    known: Mutex<HashMap<Key, ToolCard>>,
    turns: Semaphore,
}

impl<A: Asker> Cards<A> {
    /// With this asker, and this interpreter inside.
    pub fn new(asker: Arc<A>, python: PathBuf) -> Cards<A> {
        Cards {
            asker,
            python,
            known: Mutex::default(),
            turns: Semaphore::new(MOST_ASKED),
        }
    }

    /// What the tool is with this configuration, in less than 5 s. Functions are the same with any.
    pub async fn describe(
        &self,
        tool: &Tool,
        config: &Map<String, Value>,
    ) -> Result<ToolCard, Refusal> {
        let is_plain = matches!(tool.what, What::Function { .. });
        if is_plain || config.is_empty() {
            return Ok(tool.card.clone());
        }
        let bytes = serde_json::to_vec(config).unwrap_or_default();
        let key = key(tool, &bytes);
        if let Some(card) = self.known().get(&key) {
            return Ok(card.clone());
        }
        let asked = tokio::time::timeout(PROMPT, async {
            let _turn = self.turns.acquire().await;
            self.ask(tool, bytes).await
        });
        let late = || Problem::new("it does not say in time what it is", "let it import less");
        match asked.await.unwrap_or_else(|_| Err(late())) {
            Ok(said) => {
                let card = with_known(said.card(&tool.name), &tool.card);
                let mut known = self.known();
                if known.len() >= MOST_KNOWN {
                    known.clear();
                }
                known.insert(key, card.clone());
                Ok(card)
            }
            // Programs need not take a configuration; what they say without one is theirs, too.
            Err(_) if matches!(tool.what, What::Executable { .. }) => Ok(tool.card.clone()),
            Err(problem) => Err(Refusal::new(ErrorCode::InitError, problem.message)),
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Key, ToolCard>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, tool: &Tool, config: Vec<u8>) -> Result<Said, Problem> {
        let (asker, code, config) = (&*self.asker, &tool.code, Some(config));
        match &tool.what {
            What::Function { module, function } => {
                of_function(asker, &self.python, code, (module, function)).await
            }
            What::Class { module, class_name } => {
                of_class(
                    asker,
                    &self.python,
                    code,
                    (module, class_name),
                    config,
                    PROMPT,
                )
                .await
            }
            What::Executable { path, tool: name } => {
                let mut tools = tools_of(asker, code, path, config, PROMPT).await?;
                // A configuration may change the name of the only one.
                let found = match tools.len() {
                    1 => tools.pop_first().map(|(_, said)| said),
                    _ => tools.remove(name),
                };
                found.unwrap_or_else(|| {
                    Err(Problem::new(
                        "it has no such tool with this configuration",
                        "",
                    ))
                })
            }
        }
    }
}

fn key(tool: &Tool, config: &[u8]) -> Key {
    let mut digest = Sha256::new();
    let code = format!("{:?}{:?}{:?}", tool.name, tool.what, tool.code);
    digest.update((code.len() as u64).to_le_bytes());
    digest.update(code);
    digest.update(config);
    digest.finalize().into()
}

/// What is left unsaid is as it was known: for a configuration, as without one.
pub(super) fn with_known(said: ToolCard, known: &ToolCard) -> ToolCard {
    let known = known.clone();
    let artifact_params = if said.artifact_params.is_empty() {
        known.artifact_params
    } else {
        said.artifact_params
    };
    ToolCard {
        tool_name: said.tool_name,
        description: said.description.or(known.description),
        parameters: said.parameters.or(known.parameters),
        artifact_params,
        instructions: said.instructions.or(known.instructions),
        config_schema: said.config_schema.or(known.config_schema),
        ctx_facade_param_name: said.ctx_facade_param_name.or(known.ctx_facade_param_name),
    }
}
