//! Terminal of a program over a WebSocket. Binary frames are terminal input and output; text frames
//! are JSON messages.
//!
//! Closing the socket leaves the program running; a client returns with `?exec=ID&offset=N`. A slow
//! client falls behind in the kept output, and is told what it missed; the program never waits for
//! it.

use super::{
    exec,
    files::decoded,
    output_cursor::{OutputCursor, OutputItem},
    wire::{ExecStart, ExecState, SignalName, TtySize},
};
use crate::{Caller, Gateway, Problem, middleware::ConnectionUse, path::Path, problem::Answer};
use axum::{
    Extension,
    extract::{
        State,
        ws::{
            CloseFrame, Message, WebSocket, WebSocketUpgrade,
            close_code::{AGAIN, POLICY},
            rejection::WebSocketUpgradeRejection,
        },
    },
    response::Response,
};
use bytes::Bytes;
use engine::{Exec, Session};
use http::{StatusCode, Uri};
use serde::{Deserialize, Serialize};
use spec::{ExecRequest, StdStream};
use std::{
    collections::HashMap,
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::AbortHandle,
    time::Instant,
};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Maximum size of a message.
const MAX_MESSAGE_BYTES: usize = 256 << 10;
const OUTPUT_CHUNK: usize = 32 << 10;
/// Input buffer while the program does not read, bytes written at a time, and how long input waits
/// for space before the socket is closed; until then no other message is read.
const INPUT_BUFFER: usize = 1 << 20;
const INPUT_CHUNK: usize = 4 << 10;
const INPUT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of sockets of a sandbox.
const MAX_VIEWERS: usize = 16;
/// Ping interval, and timeout of a peer that sends nothing.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PEER_TIMEOUT: Duration = Duration::from_secs(60);
const DEFAULT_SIZE: TtySize = TtySize {
    rows: 24,
    columns: 80,
};

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(pty))
}

/// The query parameters.
#[derive(Debug, Default)]
struct PtyQuery {
    command: Vec<OsString>,
    rows: Option<u16>,
    columns: Option<u16>,
    exec: Option<String>,
    offset: u64,
    kill: bool,
}

/// Opens a terminal: starts `command` (repeated for its arguments), or comes back to `exec` at `offset`.
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/pty", tag = "programs",
    params(
        ("id" = String, Path),
        ("command" = Option<Vec<String>>, Query, description = "What to start; `/bin/sh` unless said"),
        ("rows" = Option<u16>, Query), ("columns" = Option<u16>, Query),
        ("exec" = Option<String>, Query, description = "A program that runs already"),
        ("offset" = Option<u64>, Query, description = "What of its output is known already"),
        ("kill" = Option<bool>, Query, description = "Ends the program when the socket is closed"),
    ),
    responses(
        (status = 101, description = "A WebSocket"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "The program has no terminal, or the sandbox is paused"),
        (status = "default", description = "Refused", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn pty(
    State(gateway): State<Gateway>,
    caller: Caller,
    Path(id): Path<String>,
    uri: Uri,
    connection_use: Option<Extension<ConnectionUse>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    let session = gateway.session(&caller, &id)?;
    let query = parse_query(uri.query().unwrap_or_default())?;
    let upgrade = upgrade
        .map_err(|error| Problem::invalid("this route speaks WebSocket only", error.body_text()))?;
    let viewer_guard = gateway.pty_viewers().admit(&id)?;
    let exec = match &query.exec {
        Some(exec) => session
            .find_exec(exec)
            .ok_or_else(|| Problem::not_found("program"))?,
        None => {
            let session = gateway.session_for_work(&caller, &id)?;
            exec::start_exec(
                session,
                exec_start(&query)?,
                exec::ExecContext::of(&gateway, &caller),
            )
            .await?
        }
    };
    if exec.request().tty.is_none() {
        return Err(Problem::conflict(
            "this program has no terminal",
            "start it with `tty`, or with `command`",
        ));
    }
    let upgrade = upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let over = caller.validity.expired();
        PtySocket::new(socket, session, exec.clone())
            .serve(query.offset, over)
            .await;
        if query.kill {
            exec.stop(Duration::ZERO).await;
        }
        drop((viewer_guard, connection_use));
    }))
}

fn parse_query(text: &str) -> Answer<PtyQuery> {
    let bad = |name: &str| {
        Problem::invalid(
            format!("`{name}` is not what this route takes"),
            "see /openapi.json",
        )
    };
    let mut query = PtyQuery::default();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(&value.replace('+', " "))
            .filter(|value| !value.contains(&0))
            .ok_or_else(|| bad(name))?;
        let text = String::from_utf8(value.clone()).map_err(|_| bad(name));
        match name {
            "command" => query.command.push(OsString::from_vec(value)),
            "rows" => query.rows = Some(text?.parse().map_err(|_| bad(name))?),
            "columns" => query.columns = Some(text?.parse().map_err(|_| bad(name))?),
            "exec" => query.exec = Some(text?),
            "offset" => query.offset = text?.parse().map_err(|_| bad(name))?,
            "kill" => query.kill = text?.parse().map_err(|_| bad(name))?,
            other => return Err(bad(&other.chars().take(40).collect::<String>())),
        }
    }
    if query.exec.is_some() && !query.command.is_empty() {
        Err(Problem::invalid(
            "`exec` and `command` exclude each other",
            "give one of them",
        ))
    } else {
        Ok(query)
    }
}

fn exec_start(query: &PtyQuery) -> Answer<ExecStart> {
    let size = TtySize {
        rows: query.rows.unwrap_or(DEFAULT_SIZE.rows),
        columns: query.columns.unwrap_or(DEFAULT_SIZE.columns),
    };
    let command = if query.command.is_empty() {
        vec!["/bin/sh".into()]
    } else {
        query.command.clone()
    };
    // The program lives as long as its sandbox; a forgotten shell does not keep the sandbox from
    // being idle, only a connected client does.
    let tty = Some(size.validate()?);
    let background = true;
    let request = ExecRequest {
        command,
        stdin: true,
        tty,
        background,
        ..ExecRequest::default()
    };
    Ok(ExecStart {
        request,
        typed: Vec::new(),
        stays_open: true,
    })
}

/// A text frame from the client.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ClientFrame {
    Resize(TtySize),
    Signal(SignalName),
}

/// A text frame to the client.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum ServerFrame<'a> {
    Started {
        exec_id: &'a str,
        offset: u64,
    },
    /// Offset of the next binary frame.
    Offset(u64),
    Gap {
        from: u64,
        to: u64,
    },
    Exited(Box<ExecState>),
    Error(Problem),
}

/// One WebSocket.
struct PtySocket {
    socket: WebSocket,
    session: Session,
    exec: Exec,
    /// To the task that writes the input, which may wait for the program.
    input: mpsc::UnboundedSender<(Bytes, OwnedSemaphorePermit)>,
    input_task: AbortHandle,
    input_space: Arc<Semaphore>,
    /// Input that waits for buffer space, and its deadline.
    waiting: Option<(Bytes, Instant)>,
    last_heard: Instant,
}

/// Why the socket is closed.
enum CloseReason {
    /// The client closed it, or is gone.
    PeerGone,
    /// The program does not read its input.
    InputTimeout,
}

/// Number of sockets per sandbox.
#[derive(Debug, Default)]
pub(crate) struct PtyViewers(Arc<Mutex<HashMap<String, usize>>>);

/// Counts one socket until it is dropped.
struct ViewerGuard {
    all: Arc<Mutex<HashMap<String, usize>>>,
    sandbox: String,
}

impl PtyViewers {
    fn admit(&self, sandbox: &str) -> Answer<ViewerGuard> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(sandbox.to_owned()).or_default();
        if *count >= MAX_VIEWERS {
            let title = "too many terminals of this sandbox are open";
            let hint = "close one, or try later";
            return Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "quota_exceeded",
                title,
                Some(hint.into()),
            ));
        }
        *count += 1;
        Ok(ViewerGuard {
            all: self.0.clone(),
            sandbox: sandbox.to_owned(),
        })
    }
}

impl Drop for ViewerGuard {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.sandbox) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.sandbox);
            }
        }
    }
}

impl PtySocket {
    fn new(socket: WebSocket, session: Session, exec: Exec) -> PtySocket {
        let (input, typed) = mpsc::unbounded_channel();
        let input_task = tokio::spawn(write_input(exec.clone(), typed)).abort_handle();
        let input_space = Arc::new(Semaphore::new(INPUT_BUFFER));
        PtySocket {
            socket,
            session,
            exec,
            input,
            input_task,
            input_space,
            waiting: None,
            last_heard: Instant::now(),
        }
    }

    async fn serve(mut self, offset: u64, over: impl Future<Output = ()>) {
        let goodbye = tokio::select! {
            ended = self.run(offset) => match ended {
                Ok(()) => None,
                Err(CloseReason::PeerGone) => return,
                Err(CloseReason::InputTimeout) => Some((AGAIN, "the program does not read what is typed")),
            },
            () = over => {
                // Buffered input is discarded.
                self.input_task.abort();
                Some((POLICY, "the key has ended"))
            }
        };
        let why = goodbye.map(|(code, reason)| CloseFrame {
            code,
            reason: reason.into(),
        });
        // Sends a close frame; the peer may answer it or not.
        let _ = tokio::time::timeout(PEER_TIMEOUT, self.socket.send(Message::Close(why))).await;
    }

    async fn run(&mut self, offset: u64) -> Result<(), CloseReason> {
        let exec = self.exec.clone();
        self.send_frame(&ServerFrame::Started {
            exec_id: exec.id(),
            offset,
        })
        .await?;
        self.send_frame(&ServerFrame::Offset(offset)).await?;
        let mut cursor = OutputCursor::new(
            exec.output(),
            [offset, 0],
            &[StdStream::Stdout],
            OUTPUT_CHUNK,
        );
        let mut ping = tokio::time::interval(PING_INTERVAL);
        loop {
            tokio::select! {
                next = cursor.next() => match next {
                    OutputItem::Chunk(_, _, bytes) => self.send(Message::Binary(bytes.into())).await?,
                    OutputItem::Gap(_, from, to) => {
                        self.send_frame(&ServerFrame::Gap { from, to }).await?;
                        self.send_frame(&ServerFrame::Offset(to)).await?;
                    }
                    OutputItem::End => break,
                },
                event = next_event(&self.input_space, &self.waiting, &mut self.socket) => self.handle(event?).await?,
                _ = ping.tick() => {
                    if self.last_heard.elapsed() > PEER_TIMEOUT {
                        return Err(CloseReason::PeerGone);
                    }
                    self.send(Message::Ping(Bytes::new())).await?;
                }
            }
        }
        exec.wait().await;
        self.send_frame(&ServerFrame::Exited(Box::new(ExecState::brief(&exec))))
            .await
    }

    async fn handle(&mut self, event: SocketEvent) -> Result<(), CloseReason> {
        self.last_heard = Instant::now();
        self.session.touch();
        let message = match event {
            SocketEvent::InputSpace(permit) => {
                if let Some((bytes, _)) = self.waiting.take() {
                    // The program has ended, which is reported next.
                    _ = self.input.send((bytes, permit));
                }
                return Ok(());
            }
            SocketEvent::Message(message) => message,
        };
        match message {
            Message::Binary(bytes) => {
                self.waiting = Some((bytes, Instant::now() + INPUT_TIMEOUT));
                Ok(())
            }
            Message::Text(text) => match self.control(text.as_str()) {
                Ok(()) => Ok(()),
                Err(problem) => self.send_frame(&ServerFrame::Error(problem)).await,
            },
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => Err(CloseReason::PeerGone),
        }
    }

    fn control(&self, text: &str) -> Answer<()> {
        let frame: ClientFrame = serde_json::from_str(text).map_err(|error| {
            Problem::invalid(
                "this text frame is none that is known here",
                error.to_string(),
            )
        })?;
        match frame {
            // A program that has just ended cannot be resized.
            ClientFrame::Resize(size) => drop(self.exec.resize(size.validate()?)),
            ClientFrame::Signal(name) => self.exec.signal(name.number()?),
        }
        Ok(())
    }

    async fn send_frame(&mut self, frame: &ServerFrame<'_>) -> Result<(), CloseReason> {
        let text = serde_json::to_string(frame).map_err(|_| CloseReason::PeerGone)?;
        self.send(Message::Text(text.into())).await
    }

    /// Sends a frame; a client that does not read it within the timeout is gone, and may return.
    async fn send(&mut self, message: Message) -> Result<(), CloseReason> {
        match tokio::time::timeout(PEER_TIMEOUT, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(CloseReason::PeerGone),
        }
    }
}

/// The next thing to handle.
enum SocketEvent {
    Message(Message),
    /// Buffer space for the waiting input.
    InputSpace(OwnedSemaphorePermit),
}

/// The next message; or, while input waits, the buffer space for it.
async fn next_event(
    input_space: &Arc<Semaphore>,
    waiting: &Option<(Bytes, Instant)>,
    socket: &mut WebSocket,
) -> Result<SocketEvent, CloseReason> {
    let Some((bytes, until)) = waiting else {
        let message = socket.recv().await.and_then(Result::ok);
        return message
            .map(SocketEvent::Message)
            .ok_or(CloseReason::PeerGone);
    };
    // The maximum message is smaller than the buffer.
    let permit = input_space.clone().acquire_many_owned(bytes.len() as u32);
    match tokio::time::timeout_at(*until, permit).await {
        Ok(Ok(permit)) => Ok(SocketEvent::InputSpace(permit)),
        Ok(Err(_)) => Err(CloseReason::PeerGone),
        Err(_) => Err(CloseReason::InputTimeout),
    }
}

async fn write_input(
    exec: Exec,
    mut typed: mpsc::UnboundedReceiver<(Bytes, OwnedSemaphorePermit)>,
) {
    while let Some((bytes, mut permit)) = typed.recv().await {
        for part in bytes.chunks(INPUT_CHUNK) {
            if exec.write(part).await.is_err() {
                return;
            }
            drop(permit.split(part.len()));
        }
    }
}
