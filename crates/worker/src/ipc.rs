//! Model access for tools without an API key: JSON-RPC lines on a unix socket in the work folder,
//! proxied to an LLM door of the call, which checks, counts and pays.
//!
//! ```text
//! tool ─▶ ipc.sock ─▶ bounded line ─▶ llm/call ─▶ door, opened by the first request ─▶ provider
//!            └── closed with the call              └── one request at a time
//! ```
//! Input is untrusted: it is bounded, and every line gets a response or ends its connection.

mod llm;

use crate::wire::untrusted_json;
use doors::{
    catalogue::{Catalogue, ModelTarget},
    dialect::Dialect,
};
use engine::{Engine, ModelDoor};
use llm::TextError;
use rustix::fs::{AtFlags, Gid, Uid, chownat};
use serde::Deserialize;
use serde_json::{Value, json};
use spec::{Budget, ErrorInfo, Id, LlmGrant, ModelPattern};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Mutex, Semaphore, oneshot},
    task::{JoinHandle, JoinSet},
};

/// Tenant under which all calls of a worker are recorded in the ledger.
pub const TENANT: &str = "worker";
/// Default budget of one call, in dollars.
pub const DEFAULT_BUDGET: &str = "1.00";
/// Name of the socket in the work folder.
pub const SOCKET: &str = "ipc.sock";
/// Maximum length of a line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Maximum number of connections per call.
const MAX_CONNECTIONS: usize = 4;
/// Timeout of a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(300);
/// Delay after a failed accept (out of file descriptors), against a busy loop.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// The model and its limits.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// Name of the provider in the configuration; the only one if none is given.
    pub provider: Option<String>,
    /// Name of the model at the provider.
    pub model: String,
    /// Budget of one call.
    pub budget: Budget,
    /// Maximum number of requests of one call.
    pub questions: u32,
    /// Maximum length of a response, in tokens.
    pub output_tokens: u32,
}

impl ModelSettings {
    /// This model with the default limits.
    pub fn new(provider: Option<String>, model: impl Into<String>) -> ModelSettings {
        ModelSettings {
            provider,
            model: model.into(),
            budget: Budget {
                money: DEFAULT_BUDGET.parse().ok(),
                ..Budget::default()
            },
            questions: 64,
            output_tokens: 4096,
        }
    }
}

/// Gives tools access to a model.
#[derive(Clone, Debug)]
pub struct ModelProxy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    settings: ModelSettings,
    pattern: ModelPattern,
}

/// A JSON-RPC error.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RpcError {
    code: i32,
    message: String,
    /// The error comes from the door, not the model: the operator has to fix it, so the log names
    /// it.
    is_from_door: bool,
}

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
/// The model is not available.
const MODEL_UNAVAILABLE: i32 = -32000;
const MODEL_UNAVAILABLE_MESSAGE: &str = "no model can be asked; the log of the worker says why";
/// The budget or the number of requests is used up.
const BUDGET_EXHAUSTED: i32 = -32001;
/// Name of the door's daily limit of all calls.
const DAY_LIMIT: &str = "tenant_day_usd";
/// The provider does not respond or refuses.
const PROVIDER_ERROR: i32 = -32002;
/// A request or response is too large.
const MESSAGE_TOO_LARGE: i32 = -32003;

fn rpc_error(code: i32, message: impl Into<String>) -> RpcError {
    RpcError {
        code,
        message: message.into(),
        is_from_door: false,
    }
}

/// Parameters of `llm/call`.
#[derive(Debug, Deserialize)]
struct LlmRequest {
    #[serde(default)]
    system_prompt: String,
    user_prompt: String,
    #[serde(default = "default_temperature")]
    temperature: f64,
}

fn default_temperature() -> f64 {
    0.7
}

/// Creates the socket in a work folder and gives it to the folder's owner. Symbolic links are not
/// followed, because processes inside may already be running.
pub fn bind(workspace: BorrowedFd<'_>, owner: Option<(u32, u32)>) -> io::Result<UnixListener> {
    let place = Path::new("/proc/self/fd")
        .join(workspace.as_raw_fd().to_string())
        .join(SOCKET);
    let listener = UnixListener::bind(place)?;
    if let Some((user, group)) = owner {
        let user = Uid::from_raw(user);
        let group = Gid::from_raw(group);
        chownat(
            workspace,
            SOCKET,
            Some(user),
            Some(group),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
    }
    Ok(listener)
}

impl ModelProxy {
    /// Validates that the settings name one model and no pattern.
    pub fn new(engine: Engine, settings: ModelSettings) -> Result<ModelProxy, String> {
        if settings.model.is_empty() || settings.model.contains('*') {
            return Err(format!(
                "`{}` names no model: say the whole name of one",
                settings.model
            ));
        }
        let pattern = settings
            .model
            .parse::<ModelPattern>()
            .map_err(|error| error.to_string())?;
        Ok(ModelProxy(Arc::new(Inner {
            engine,
            settings,
            pattern,
        })))
    }

    /// Serves a socket for one call, which the ledger knows by this id, until the listener is
    /// closed.
    pub fn listen(&self, call: &Id, listener: UnixListener) -> ModelListener {
        let (stop, stopped) = oneshot::channel();
        let models = Arc::new(CallModels {
            models: self.0.clone(),
            call: door_id(call),
            state: Mutex::new(DoorState {
                door: None,
                asked: 0,
                warning: None,
            }),
        });
        let task = tokio::spawn(serve(models, listener, stopped));
        ModelListener {
            stop: Some(stop),
            task,
        }
    }
}

/// Why every request to this model would be refused, as far as the configuration shows.
pub fn unusable_model(catalogue: &Catalogue, provider: &str, model: &str) -> Option<String> {
    if !catalogue.providers.contains_key(provider) {
        return Some(format!(
            "SAM_LLM_PROVIDER: the configuration file has no provider `{provider}`: every question of a tool will be refused"
        ));
    }
    let own = [ModelTarget {
        provider: provider.to_owned(),
        model: model.to_owned(),
    }];
    let targets = catalogue.models.get(model).map_or(&own[..], Vec::as_slice);
    let is_priced = |target: &ModelTarget| {
        catalogue
            .prices
            .price(&target.provider, &target.model)
            .is_some()
    };
    (!targets.iter().any(is_priced)).then(|| {
        format!(
            "SAM_LLM_MODEL: the price of `{model}` is not known, so that no budget can pay for it: every question of a tool \
             will be refused; say it under [prices.\"{model}\"] in the configuration file"
        )
    })
}

/// The ledger id of the door: usage of the sandbox's own doors is a separate account.
fn door_id(call: &Id) -> Id {
    let cut: String = call.as_str().chars().take(120).collect();
    Id::new(&format!("{cut}-llm")).unwrap_or_else(|_| call.clone())
}

/// A served socket. Dropped, it is closed, and open requests get no response.
#[derive(Debug)]
pub struct ModelListener {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<ModelUsage>,
}

/// Model usage of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelUsage {
    /// Number of requests.
    pub questions: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Cost in dollars.
    pub usd: String,
    /// Why the model was not available, or that the budget is used up; for the log only, because it
    /// may contain host paths.
    pub warning: Option<String>,
}

impl ModelListener {
    /// Closes the socket and returns the usage.
    pub async fn close(mut self) -> ModelUsage {
        drop(self.stop.take());
        (&mut self.task).await.unwrap_or_default()
    }
}

/// State that the connections of one call share.
#[derive(Debug)]
struct CallModels {
    models: Arc<Inner>,
    call: Id,
    state: Mutex<DoorState>,
}

/// The door and its request count; the lock serializes requests.
#[derive(Debug)]
struct DoorState {
    door: Option<ModelDoor>,
    asked: u32,
    warning: Option<String>,
}

async fn serve(
    models: Arc<CallModels>,
    listener: UnixListener,
    stopped: oneshot::Receiver<()>,
) -> ModelUsage {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut lines = JoinSet::new();
    let accepting = async {
        loop {
            // Further connections wait in the kernel's backlog.
            let Ok(place) = places.clone().acquire_owned().await else {
                return;
            };
            while lines.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, _)) => {
                    let models = models.clone();
                    lines.spawn(async move {
                        // A broken connection does not affect the others.
                        _ = serve_connection(&models, stream).await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = stopped => {}
    }
    lines.shutdown().await;
    let (door, warning) = {
        let mut state = models.state.lock().await;
        (state.door.take(), state.warning.take())
    };
    let Some(door) = door else {
        return ModelUsage {
            warning,
            ..ModelUsage::default()
        };
    };
    let used = door.close().await.used;
    ModelUsage {
        questions: used.calls,
        input_tokens: used.input_tokens,
        output_tokens: used.output_tokens,
        usd: used.money.to_string(),
        warning,
    }
}

/// Answers lines until one is too long or the input ends.
async fn serve_connection(models: &CallModels, stream: UnixStream) -> io::Result<()> {
    let (reading, mut writing) = stream.into_split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut line = Vec::new();
        let limit = MAX_LINE_BYTES as u64 + 1;
        (&mut reading)
            .take(limit)
            .read_until(b'\n', &mut line)
            .await?;
        if line.last() != Some(&b'\n') {
            if line.len() > MAX_LINE_BYTES {
                let message = format!("a line may have {MAX_LINE_BYTES} bytes");
                let encoded =
                    encode_response(&Value::Null, &Err(rpc_error(MESSAGE_TOO_LARGE, message)));
                writing.write_all(&encoded).await?;
            }
            return Ok(());
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let (id, answer) = match parse_request(&line) {
            Ok((id, question)) => {
                let answer = models.ask(&question).await;
                (id, answer)
            }
            Err((id, rpc_error)) => (id, Err(rpc_error)),
        };
        writing.write_all(&encode_response(&id, &answer)).await?;
    }
}

/// Parses a line into id and request.
fn parse_request(line: &[u8]) -> Result<(Value, LlmRequest), (Value, RpcError)> {
    let bad = |code, message: String| (Value::Null, rpc_error(code, message));
    let request = untrusted_json::read(line)
        .map_err(|error| bad(PARSE_ERROR, format!("no JSON: {error}")))?;
    let Value::Object(mut request) = request else {
        return Err(bad(
            INVALID_REQUEST,
            "a request is an object; lists of them are not taken".to_owned(),
        ));
    };
    let id = match request.remove("id") {
        Some(id @ (Value::String(_) | Value::Number(_))) => id,
        _ => {
            return Err(bad(
                INVALID_REQUEST,
                "a request has an `id`, a text or a number".to_owned(),
            ));
        }
    };
    match request.get("method").and_then(Value::as_str) {
        Some("llm/call") => {}
        Some(_) => {
            return Err((
                id,
                rpc_error(METHOD_NOT_FOUND, "there is one method: llm/call"),
            ));
        }
        None => return Err((id, rpc_error(INVALID_REQUEST, "a request has a `method`"))),
    }
    let params = request.remove("params").unwrap_or_default();
    match serde_json::from_value(params) {
        Ok(question) => Ok((id, question)),
        Err(error) => Err((
            id,
            rpc_error(
                INVALID_PARAMS,
                format!("the parameters of llm/call: {error}"),
            ),
        )),
    }
}

fn encode_response(id: &Value, answer: &Result<String, RpcError>) -> Vec<u8> {
    let mut encoded = match answer {
        Ok(text) => json!({"jsonrpc": "2.0", "id": id, "result": {"text": text}}),
        Err(RpcError { code, message, .. }) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
        }
    }
    .to_string()
    .into_bytes();
    encoded.push(b'\n');
    encoded
}

impl CallModels {
    /// Sends a request to the model, one at a time.
    async fn ask(&self, question: &LlmRequest) -> Result<String, RpcError> {
        let settings = &self.models.settings;
        let mut state = self.state.lock().await;
        if state.asked >= settings.questions {
            let message = format!(
                "this call has asked {} questions, which is all it may",
                settings.questions
            );
            state.warning = Some(message.clone());
            return Err(rpc_error(BUDGET_EXHAUSTED, message));
        }
        state.asked += 1;
        if state.door.is_none() {
            match self.open().await {
                Ok(door) => state.door = Some(door),
                Err(error) => {
                    state.warning = Some(error.message);
                    return Err(rpc_error(MODEL_UNAVAILABLE, MODEL_UNAVAILABLE_MESSAGE));
                }
            }
        }
        let Some(door) = &state.door else {
            return Err(rpc_error(MODEL_UNAVAILABLE, MODEL_UNAVAILABLE_MESSAGE));
        };
        let asking = ask_door(door, settings, question);
        let answer = match tokio::time::timeout(RESPONSE_TIMEOUT, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(rpc_error(
                PROVIDER_ERROR,
                "the model did not answer in time",
            )),
        };
        if let Err(RpcError {
            message,
            is_from_door: true,
            ..
        }) = &answer
        {
            state.warning = Some(format!("model `{}`: {message}", settings.model));
        }
        answer
    }

    /// Opens the door; a later try may succeed.
    async fn open(&self) -> Result<ModelDoor, ErrorInfo> {
        let Inner {
            engine,
            settings,
            pattern,
        } = &*self.models;
        let grant = LlmGrant {
            provider: settings.provider.clone(),
            models: vec![vec![pattern.clone()]],
        };
        engine
            .model_door(&self.call, &grant, settings.budget.clone(), TENANT)
            .await
    }
}

/// Sends one request through the door.
async fn ask_door(
    door: &ModelDoor,
    settings: &ModelSettings,
    question: &LlmRequest,
) -> Result<String, RpcError> {
    let dialect: Dialect = door.dialect();
    let asked = llm::request((dialect, door.output_cap()), settings, question);
    let stream = door.connect().await.map_err(|error| not_answered(&error))?;
    let llm::LlmResponse {
        status,
        body,
        is_from_door,
    } = llm::exchange(stream, asked)
        .await
        .map_err(|error| match error {
            llm::ExchangeError::TooLarge => rpc_error(
                MESSAGE_TOO_LARGE,
                "the model's answer is larger than may be",
            ),
            llm::ExchangeError::Connection(error) => not_answered(&*error),
        })?;
    if status == 200 {
        return llm::text(dialect, &body).map_err(|why| match why {
            TextError::InvalidJson => rpc_error(
                PROVIDER_ERROR,
                "the model's answer is not what its dialect says",
            ),
            TextError::Empty => rpc_error(PROVIDER_ERROR, "the model's answer has no text"),
        });
    }
    let message = llm::complaint(&body);
    let refused = match status {
        402 => rpc_error(BUDGET_EXHAUSTED, message),
        // The door reports the daily limit as 429.
        429 if is_from_door && message.contains(DAY_LIMIT) => {
            rpc_error(BUDGET_EXHAUSTED, day_budget_held())
        }
        413 => rpc_error(MESSAGE_TOO_LARGE, message),
        _ => rpc_error(PROVIDER_ERROR, format!("{message} (status {status})")),
    };
    Err(RpcError {
        is_from_door,
        ..refused
    })
}

fn day_budget_held() -> String {
    format!(
        "calls under way hold all that may still be spent today (limit `{DAY_LIMIT}`); what they leave of it comes back as they end"
    )
}

fn not_answered(error: &dyn std::error::Error) -> RpcError {
    rpc_error(
        PROVIDER_ERROR,
        format!("the model's door does not answer: {error}"),
    )
}

#[cfg(test)]
#[path = "ipc_tests.rs"]
mod tests;
