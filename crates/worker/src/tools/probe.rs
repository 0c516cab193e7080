//! Asks tools for their schemas, in sandboxes, and caches them.

use super::{
    EntryPoint, Tool, ToolCode,
    problem::{ToolProblem, reason},
    schema::{self, ToolSchema},
};
use crate::{
    call::{CallRunner, paths},
    wire::{
        answer::ToolCard,
        code::{CallRefusal, MeshErrorCode as ErrorCode},
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

/// Timeout of a probe: some tools import a lot.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout while an agent waits, which does so for 5 s.
const INTERACTIVE_TIMEOUT: Duration = Duration::from_millis(4500);
/// Capacity of the cache.
const MAX_KNOWN: usize = 256;
/// Concurrent probes.
const MAX_PARALLEL: usize = 2;

/// A command that asks a tool's code for its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeRequest {
    /// The code.
    pub code: ToolCode,
    /// The command, with paths inside.
    pub command: Vec<OsString>,
    /// Content of `config.json` in the work folder: the operator's configuration of the tool, with
    /// secrets.
    pub config: Option<Vec<u8>>,
    /// Timeout.
    pub time: Duration,
}

/// Runs a program of a tool's code in a sandbox and returns its output. A refusal has the reason,
/// with the beginning of standard error.
pub trait SchemaProbe: Send + Sync + 'static {
    /// Runs the command.
    fn ask(
        &self,
        question: ProbeRequest,
    ) -> impl Future<Output = Result<Vec<u8>, CallRefusal>> + Send;
}

impl SchemaProbe for CallRunner {
    async fn ask(&self, question: ProbeRequest) -> Result<Vec<u8>, CallRefusal> {
        let ProbeRequest {
            code,
            command,
            config,
            time,
        } = question;
        match config {
            None => CallRunner::ask(self, &code, command, time).await,
            Some(config) => {
                self.probe_with(&code, command, &[(CONFIG, &config)], time)
                    .await
            }
        }
    }
}

/// Name of the configuration file.
const CONFIG: &str = "config.json";

fn config_inside() -> OsString {
    Path::new(paths::WORK_FOLDER).join(CONFIG).into()
}

/// Asks a program for its tools.
pub(crate) async fn describe_program(
    probe: &impl SchemaProbe,
    code: &ToolCode,
    program: &Path,
    config: Option<Vec<u8>>,
    time: Duration,
) -> Result<schema::ProgramTools, ToolProblem> {
    let mut command = vec![
        Path::new(paths::TOOL_FOLDER).join(program).into(),
        "--schema".into(),
    ];
    if config.is_some() {
        command.extend(["--config".into(), config_inside()]);
    }
    let question = ProbeRequest {
        code: code.clone(),
        command,
        config,
        time,
    };
    schema::read(&probe.ask(question).await.map_err(unanswered)?)
}

/// Asks the runner to describe a Python function.
pub(crate) async fn describe_function(
    probe: &impl SchemaProbe,
    python: &Path,
    code: &ToolCode,
    (module, function): (&str, &str),
) -> Result<ToolSchema, ToolProblem> {
    let command = [paths::RUNNER, "--describe", module, function].map(OsString::from);
    let command = [python.into()].into_iter().chain(command).collect();
    let question = ProbeRequest {
        code: code.clone(),
        command,
        config: None,
        time: PROBE_TIMEOUT,
    };
    schema::read_one(&probe.ask(question).await.map_err(unanswered)?)
}

/// Asks the runner to describe a class, which may depend on its configuration.
pub(crate) async fn describe_class(
    probe: &impl SchemaProbe,
    python: &Path,
    code: &ToolCode,
    (module, class_name): (&str, &str),
    config: Option<Vec<u8>>,
    time: Duration,
) -> Result<ToolSchema, ToolProblem> {
    let command = [paths::RUNNER, "--schema-class", module, class_name].map(OsString::from);
    let command = [python.into()].into_iter().chain(command);
    let command = command
        .chain(config.is_some().then(config_inside))
        .collect();
    let question = ProbeRequest {
        code: code.clone(),
        command,
        config,
        time,
    };
    schema::read_one(&probe.ask(question).await.map_err(unanswered)?)
}

fn unanswered(refusal: CallRefusal) -> ToolProblem {
    let message = format!("it does not say what it is: {}", reason(&refusal.message));
    ToolProblem::new(
        message,
        "it is asked again after a while, and as soon as its code changes",
    )
}

/// Cache key: a hash of the tool's name, code and configuration. The secrets themselves are not
/// stored.
type Key = [u8; 32];

/// Describes tools with a configuration, and caches the result.
#[derive(Debug)]
pub struct ToolCardCache<A> {
    probe: Arc<A>,
    python: PathBuf,
    known: Mutex<HashMap<Key, ToolCard>>,
    turns: Semaphore,
}

impl<A: SchemaProbe> ToolCardCache<A> {
    /// With this probe, and the path of the interpreter inside.
    pub fn new(probe: Arc<A>, python: PathBuf) -> ToolCardCache<A> {
        ToolCardCache {
            probe,
            python,
            known: Mutex::default(),
            turns: Semaphore::new(MAX_PARALLEL),
        }
    }

    /// Describes a tool with a configuration in less than 5 s. Functions do not depend on it.
    pub async fn describe(
        &self,
        tool: &Tool,
        config: &Map<String, Value>,
    ) -> Result<ToolCard, CallRefusal> {
        let is_plain = matches!(tool.what, EntryPoint::Function { .. });
        if is_plain || config.is_empty() {
            return Ok(tool.card.clone());
        }
        let bytes = serde_json::to_vec(config).unwrap_or_default();
        let key = key(tool, &bytes);
        if let Some(card) = self.known().get(&key) {
            return Ok(card.clone());
        }
        let asked = tokio::time::timeout(INTERACTIVE_TIMEOUT, async {
            let _turn = self.turns.acquire().await;
            self.ask(tool, bytes).await
        });
        let late = || ToolProblem::new("it does not say in time what it is", "let it import less");
        match asked.await.unwrap_or_else(|_| Err(late())) {
            Ok(schema) => {
                let card = with_known(schema.card(&tool.name), &tool.card);
                let mut known = self.known();
                if known.len() >= MAX_KNOWN {
                    known.clear();
                }
                known.insert(key, card.clone());
                Ok(card)
            }
            // Programs need not support a configuration; then the description without one is used.
            Err(_) if matches!(tool.what, EntryPoint::Executable { .. }) => Ok(tool.card.clone()),
            Err(problem) => Err(CallRefusal::new(ErrorCode::InitError, problem.message)),
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Key, ToolCard>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, tool: &Tool, config: Vec<u8>) -> Result<ToolSchema, ToolProblem> {
        let probe = &*self.probe;
        let code = &tool.code;
        let config = Some(config);
        match &tool.what {
            EntryPoint::Function { module, function } => {
                describe_function(probe, &self.python, code, (module, function)).await
            }
            EntryPoint::Class { module, class_name } => {
                describe_class(
                    probe,
                    &self.python,
                    code,
                    (module, class_name),
                    config,
                    INTERACTIVE_TIMEOUT,
                )
                .await
            }
            EntryPoint::Executable { path, tool: name } => {
                let mut tools =
                    describe_program(probe, code, path, config, INTERACTIVE_TIMEOUT).await?;
                // A configuration may rename a single tool.
                let found = match tools.len() {
                    1 => tools.pop_first().map(|(_, schema)| schema),
                    _ => tools.remove(name),
                };
                found.unwrap_or_else(|| {
                    Err(ToolProblem::new(
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

/// Fills missing parts of a description from the known one.
pub(super) fn with_known(schema: ToolCard, known: &ToolCard) -> ToolCard {
    let known = known.clone();
    let artifact_params = if schema.artifact_params.is_empty() {
        known.artifact_params
    } else {
        schema.artifact_params
    };
    ToolCard {
        tool_name: schema.tool_name,
        description: schema.description.or(known.description),
        parameters: schema.parameters.or(known.parameters),
        artifact_params,
        instructions: schema.instructions.or(known.instructions),
        config_schema: schema.config_schema.or(known.config_schema),
        ctx_facade_param_name: schema.ctx_facade_param_name.or(known.ctx_facade_param_name),
    }
}
