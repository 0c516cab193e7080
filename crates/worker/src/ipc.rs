//! A model for a tool without a key: newline-delimited JSON-RPC on a unix socket in its work folder, carried to an LLM door of
//! its call, which checks, counts and pays.
//!
//! ```text
//! tool ─▶ ipc.sock ─▶ line, bounded ─▶ llm/call ─▶ door, opened at the first question ─▶ provider
//!            └── gone with the call              └── one question at a time
//! ```
//! What comes in at the socket is a stranger's: it is read within bounds, and every line has an answer or ends its line.

mod speech;

use crate::wire::plain;
use doors::{
    catalogue::{Catalogue, Target},
    dialect::Dialect,
};
use engine::{Engine, ModelDoor};
use rustix::fs::{AtFlags, Gid, Uid, chownat};
use serde::Deserialize;
use serde_json::{Value, json};
use spec::{Budget, ErrorInfo, Id, LlmGrant, ModelPattern};
use speech::NoText;
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

/// Under this name all calls of a worker spend, where there is a ledger of all.
pub const TENANT: &str = "worker";
/// What one call may spend unless it is said, in dollars.
pub const USUAL_BUDGET: &str = "1.00";
/// The socket's name in the work folder.
pub const SOCKET: &str = "ipc.sock";
/// The longest line, in bytes.
const LONGEST_LINE: usize = 1 << 20;
/// Lines to the socket at the same time.
const MOST_CONNECTIONS: usize = 4;
/// What one answer may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// After a failed accept (no descriptors left): long enough not to spin.
const BREATH: Duration = Duration::from_millis(20);

/// Which model is asked, and how much.
#[derive(Clone, Debug)]
pub struct Settings {
    /// By its name in the configuration; the only one there is if none is named.
    pub provider: Option<String>,
    /// The model, as the provider calls it.
    pub model: String,
    /// What one call of a tool may spend.
    pub budget: Budget,
    /// Questions that one call of a tool may ask.
    pub questions: u32,
    /// The longest answer, in tokens.
    pub output_tokens: u32,
}

impl Settings {
    /// This model, and the usual bounds.
    pub fn new(provider: Option<String>, model: impl Into<String>) -> Settings {
        Settings {
            provider,
            model: model.into(),
            budget: Budget {
                money: USUAL_BUDGET.parse().ok(),
                ..Budget::default()
            },
            questions: 64,
            output_tokens: 4096,
        }
    }
}

/// Through which models are asked.
#[derive(Clone, Debug)]
pub struct Models(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    settings: Settings,
    pattern: ModelPattern,
}

/// Why no answer is given: what JSON-RPC calls it, and words.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    code: i32,
    message: String,
    /// The door says so, not the model: it is somebody's to mend, and the log names it.
    is_of_door: bool,
}

const NO_JSON: i32 = -32700;
const NO_REQUEST: i32 = -32600;
const NO_METHOD: i32 = -32601;
const BAD_PARAMS: i32 = -32602;
/// There is no model to be had.
const NO_MODEL: i32 = -32000;
const NO_DOOR: &str = "no model can be asked; the log of the worker says why";
/// The budget, or the number of questions, is spent.
const SPENT: i32 = -32001;
/// What the door calls the limit of all calls of a day.
const OF_A_DAY: &str = "tenant_day_usd";
/// The provider does not answer, or refuses.
const NOT_ANSWERED: i32 = -32002;
/// A question or an answer is larger than may be.
const TOO_LARGE: i32 = -32003;

fn refusal(code: i32, message: impl Into<String>) -> Refusal {
    Refusal {
        code,
        message: message.into(),
        is_of_door: false,
    }
}

/// What a tool asks of a model.
#[derive(Debug, Deserialize)]
struct Question {
    #[serde(default)]
    system_prompt: String,
    user_prompt: String,
    #[serde(default = "usual_temperature")]
    temperature: f64,
}

fn usual_temperature() -> f64 {
    0.7
}

/// Makes the socket in a work folder, for whoever owns what is in it. Nothing goes by a name twice but what cannot be led
/// astray by a link: somebody inside may be at work there already.
pub fn bind(workspace: BorrowedFd<'_>, owner: Option<(u32, u32)>) -> io::Result<UnixListener> {
    let place = Path::new("/proc/self/fd")
        .join(workspace.as_raw_fd().to_string())
        .join(SOCKET);
    let listener = UnixListener::bind(place)?;
    if let Some((user, group)) = owner {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
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

impl Models {
    /// Models of this engine's doors. That the model's name is no pattern is checked: one model is meant.
    pub fn new(engine: Engine, settings: Settings) -> Result<Models, String> {
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
        Ok(Models(Arc::new(Inner {
            engine,
            settings,
            pattern,
        })))
    }

    /// Serves a socket for one call of a tool, under this name in the ledger. Ends with what it gives back.
    pub fn listen(&self, call: &Id, listener: UnixListener) -> Listening {
        let (stop, stopped) = oneshot::channel();
        let desk = Arc::new(Desk {
            models: self.0.clone(),
            call: door_id(call),
            way: Mutex::new(Way {
                door: None,
                asked: 0,
                trouble: None,
            }),
        });
        let task = tokio::spawn(serve(desk, listener, stopped));
        Listening {
            stop: Some(stop),
            task,
        }
    }
}

/// Why every question to this model would be refused, as far as that is seen from what is configured.
pub fn refused_anyway(catalogue: &Catalogue, provider: &str, model: &str) -> Option<String> {
    if !catalogue.providers.contains_key(provider) {
        return Some(format!(
            "SAM_LLM_PROVIDER: the configuration file has no provider `{provider}`: every question of a tool will be refused"
        ));
    }
    let own = [Target {
        provider: provider.to_owned(),
        model: model.to_owned(),
    }];
    let targets = catalogue.models.get(model).map_or(&own[..], Vec::as_slice);
    let is_priced = |target: &Target| {
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

/// A name of its own: what the box of the call spends at its doors is another account.
fn door_id(call: &Id) -> Id {
    let cut: String = call.as_str().chars().take(120).collect();
    Id::new(&format!("{cut}-llm")).unwrap_or_else(|_| call.clone())
}

/// A socket that is served. Dropped, it is served no more, and nobody who asked has an answer.
#[derive(Debug)]
pub struct Listening {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Spent>,
}

/// What a call's questions came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Spent {
    pub questions: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub usd: String,
    /// Why no model could be asked, or that nothing was left to spend; for the log alone: it may name files of this machine.
    pub trouble: Option<String>,
}

impl Listening {
    /// Ends it, and says what was spent.
    pub async fn close(mut self) -> Spent {
        drop(self.stop.take());
        (&mut self.task).await.unwrap_or_default()
    }
}

/// What lines of one call share.
#[derive(Debug)]
struct Desk {
    models: Arc<Inner>,
    call: Id,
    way: Mutex<Way>,
}

/// The way to the model: whoever has it asks, others wait.
#[derive(Debug)]
struct Way {
    door: Option<ModelDoor>,
    asked: u32,
    trouble: Option<String>,
}

async fn serve(desk: Arc<Desk>, listener: UnixListener, stopped: oneshot::Receiver<()>) -> Spent {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut lines = JoinSet::new();
    let accepting = async {
        loop {
            // The others wait in the kernel until somebody leaves.
            let Ok(place) = places.clone().acquire_owned().await else {
                return;
            };
            while lines.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((line, _)) => {
                    let desk = desk.clone();
                    lines.spawn(async move {
                        // A line that breaks concerns nobody else.
                        _ = converse(&desk, line).await;
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(BREATH).await,
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = stopped => {}
    }
    lines.shutdown().await;
    let (door, trouble) = {
        let mut way = desk.way.lock().await;
        (way.door.take(), way.trouble.take())
    };
    let Some(door) = door else {
        return Spent {
            trouble,
            ..Spent::default()
        };
    };
    let used = door.close().await.used;
    Spent {
        questions: used.calls,
        input_tokens: used.input_tokens,
        output_tokens: used.output_tokens,
        usd: used.money.to_string(),
        trouble,
    }
}

/// Answers lines until one is too long, or there are no more.
async fn converse(desk: &Desk, line: UnixStream) -> io::Result<()> {
    let (reading, mut writing) = line.into_split();
    let mut reading = BufReader::new(reading);
    loop {
        let mut line = Vec::new();
        let most = LONGEST_LINE as u64 + 1;
        (&mut reading)
            .take(most)
            .read_until(b'\n', &mut line)
            .await?;
        if line.last() != Some(&b'\n') {
            if line.len() > LONGEST_LINE {
                let message = format!("a line may have {LONGEST_LINE} bytes");
                let said = told(&Value::Null, &Err(refusal(TOO_LARGE, message)));
                writing.write_all(&said).await?;
            }
            return Ok(());
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let (id, answer) = match understood(&line) {
            Ok((id, question)) => {
                let answer = desk.ask(&question).await;
                (id, answer)
            }
            Err((id, refusal)) => (id, Err(refusal)),
        };
        writing.write_all(&told(&id, &answer)).await?;
    }
}

/// What a line asks, with its name.
fn understood(line: &[u8]) -> Result<(Value, Question), (Value, Refusal)> {
    let bad = |code, message: String| (Value::Null, refusal(code, message));
    let said = plain::read(line).map_err(|error| bad(NO_JSON, format!("no JSON: {error}")))?;
    let Value::Object(mut said) = said else {
        return Err(bad(
            NO_REQUEST,
            "a request is an object; lists of them are not taken".to_owned(),
        ));
    };
    let id = match said.remove("id") {
        Some(id @ (Value::String(_) | Value::Number(_))) => id,
        _ => {
            return Err(bad(
                NO_REQUEST,
                "a request has an `id`, a text or a number".to_owned(),
            ));
        }
    };
    match said.get("method").and_then(Value::as_str) {
        Some("llm/call") => {}
        Some(_) => return Err((id, refusal(NO_METHOD, "there is one method: llm/call"))),
        None => return Err((id, refusal(NO_REQUEST, "a request has a `method`"))),
    }
    let params = said.remove("params").unwrap_or_default();
    match serde_json::from_value(params) {
        Ok(question) => Ok((id, question)),
        Err(error) => Err((
            id,
            refusal(BAD_PARAMS, format!("the parameters of llm/call: {error}")),
        )),
    }
}

fn told(id: &Value, answer: &Result<String, Refusal>) -> Vec<u8> {
    let mut said = match answer {
        Ok(text) => json!({"jsonrpc": "2.0", "id": id, "result": {"text": text}}),
        Err(Refusal { code, message, .. }) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
        }
    }
    .to_string()
    .into_bytes();
    said.push(b'\n');
    said
}

impl Desk {
    /// Asks the model, when it is this one's turn.
    async fn ask(&self, question: &Question) -> Result<String, Refusal> {
        let settings = &self.models.settings;
        let mut way = self.way.lock().await;
        if way.asked >= settings.questions {
            let message = format!(
                "this call has asked {} questions, which is all it may",
                settings.questions
            );
            way.trouble = Some(message.clone());
            return Err(refusal(SPENT, message));
        }
        way.asked += 1;
        if way.door.is_none() {
            match self.open().await {
                Ok(door) => way.door = Some(door),
                Err(error) => {
                    way.trouble = Some(error.message);
                    return Err(refusal(NO_MODEL, NO_DOOR));
                }
            }
        }
        let Some(door) = &way.door else {
            return Err(refusal(NO_MODEL, NO_DOOR));
        };
        let asking = through(door, settings, question);
        let answer = match tokio::time::timeout(PATIENCE, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(refusal(NOT_ANSWERED, "the model did not answer in time")),
        };
        if let Err(Refusal {
            message,
            is_of_door: true,
            ..
        }) = &answer
        {
            way.trouble = Some(format!("model `{}`: {message}", settings.model));
        }
        answer
    }

    /// Opens the door; that it cannot be opened may change.
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

/// One question through the door.
async fn through(
    door: &ModelDoor,
    settings: &Settings,
    question: &Question,
) -> Result<String, Refusal> {
    let dialect: Dialect = door.dialect();
    let asked = speech::request((dialect, door.output_cap()), settings, question);
    let line = door.connect().await.map_err(|error| not_answered(&error))?;
    let speech::Answer {
        status,
        body,
        is_of_door,
    } = speech::exchange(line, asked)
        .await
        .map_err(|error| match error {
            speech::Broken::TooLarge => {
                refusal(TOO_LARGE, "the model's answer is larger than may be")
            }
            speech::Broken::Line(error) => not_answered(&*error),
        })?;
    if status == 200 {
        return speech::text(dialect, &body).map_err(|why| match why {
            NoText::NoJson => refusal(
                NOT_ANSWERED,
                "the model's answer is not what its dialect says",
            ),
            NoText::Empty => refusal(NOT_ANSWERED, "the model's answer has no text"),
        });
    }
    let message = speech::complaint(&body);
    let refused = match status {
        402 => refusal(SPENT, message),
        // Which the door calls too much at once.
        429 if is_of_door && message.contains(OF_A_DAY) => refusal(SPENT, held()),
        413 => refusal(TOO_LARGE, message),
        _ => refusal(NOT_ANSWERED, format!("{message} (status {status})")),
    };
    Err(Refusal {
        is_of_door,
        ..refused
    })
}

fn held() -> String {
    format!(
        "calls under way hold all that may still be spent today (limit `{OF_A_DAY}`); what they leave of it comes back as they end"
    )
}

fn not_answered(error: &dyn std::error::Error) -> Refusal {
    refusal(
        NOT_ANSWERED,
        format!("the model's door does not answer: {error}"),
    )
}

#[cfg(test)]
#[path = "ipc_tests.rs"]
mod tests;
