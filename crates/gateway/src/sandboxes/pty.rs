//! A program at a terminal, over a WebSocket. Binary frames are what is typed and shown; text frames are JSON about it.
//!
//! The socket only looks: who closes it leaves the program running, and comes back with `?exec=ID&offset=N`. A viewer
//! who reads slowly falls behind in what is kept, and is told what he missed; the program never waits for him.

use super::{
    cursor::{Cursor, Next},
    exec,
    files::decoded,
    wire::{ExecState, Order, SignalName, Size},
};
use crate::{Caller, Gateway, Problem, gate::Place, path::Path, problem::Answer};
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
use spec::{ExecRequest, Stream};
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

/// What one message may carry.
const LARGEST_MESSAGE: usize = 256 << 10;
const SHOWN_AT_ONCE: usize = 32 << 10;
/// What may wait while the program does not read, how much of it is typed at a time, and how long more waits for room
/// before the socket is closed: until then nothing else is heard.
const ROOM: usize = 1 << 20;
const TYPED_AT_ONCE: usize = 4 << 10;
const STUCK: Duration = Duration::from_secs(10);
/// Sockets of one sandbox.
const MOST_VIEWERS: usize = 16;
/// So often it is asked whether anybody is there, and after so long without any word nobody is.
const PING: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(60);
const USUAL_SIZE: Size = Size {
    rows: 24,
    columns: 80,
};

pub(super) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new().routes(routes!(pty))
}

/// What is asked for.
#[derive(Debug, Default)]
struct View {
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
    place: Option<Extension<Place>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    let session = gateway.session(&caller, &id)?;
    let view = view(uri.query().unwrap_or_default())?;
    let upgrade = upgrade
        .map_err(|error| Problem::invalid("this route speaks WebSocket only", error.body_text()))?;
    let viewing = gateway.viewers().admit(&id)?;
    let exec = match &view.exec {
        Some(exec) => session
            .find_exec(exec)
            .ok_or_else(|| Problem::not_found("program"))?,
        None => {
            let session = gateway.session_to_work_in(&caller, &id)?;
            exec::begin(session, order(&view)?, exec::For::of(&gateway, &caller)).await?
        }
    };
    if exec.request().tty.is_none() {
        return Err(Problem::conflict(
            "this program has no terminal",
            "start it with `tty`, or with `command`",
        ));
    }
    let upgrade = upgrade
        .max_message_size(LARGEST_MESSAGE)
        .max_frame_size(LARGEST_MESSAGE);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let over = caller.validity.over();
        Viewer::new(socket, session, exec.clone())
            .serve(view.offset, over)
            .await;
        if view.kill {
            exec.stop(Duration::ZERO).await;
        }
        drop((viewing, place));
    }))
}

fn view(query: &str) -> Answer<View> {
    let bad = |name: &str| {
        Problem::invalid(
            format!("`{name}` is not what this route takes"),
            "see /openapi.json",
        )
    };
    let mut view = View::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(&value.replace('+', " "))
            .filter(|value| !value.contains(&0))
            .ok_or_else(|| bad(name))?;
        let text = String::from_utf8(value.clone()).map_err(|_| bad(name));
        match name {
            "command" => view.command.push(OsString::from_vec(value)),
            "rows" => view.rows = Some(text?.parse().map_err(|_| bad(name))?),
            "columns" => view.columns = Some(text?.parse().map_err(|_| bad(name))?),
            "exec" => view.exec = Some(text?),
            "offset" => view.offset = text?.parse().map_err(|_| bad(name))?,
            "kill" => view.kill = text?.parse().map_err(|_| bad(name))?,
            other => return Err(bad(&other.chars().take(40).collect::<String>())),
        }
    }
    match view.exec.is_some() && !view.command.is_empty() {
        true => Err(Problem::invalid(
            "`exec` and `command` exclude each other",
            "give one of them",
        )),
        false => Ok(view),
    }
}

fn order(view: &View) -> Answer<Order> {
    let size = Size {
        rows: view.rows.unwrap_or(USUAL_SIZE.rows),
        columns: view.columns.unwrap_or(USUAL_SIZE.columns),
    };
    let command = match view.command.is_empty() {
        true => vec!["/bin/sh".into()],
        false => view.command.clone(),
    };
    // It lives as long as its sandbox; what keeps that from being idle is somebody who looks, not a forgotten shell.
    let (tty, background) = (Some(size.checked()?), true);
    let request = ExecRequest {
        command,
        stdin: true,
        tty,
        background,
        ..ExecRequest::default()
    };
    Ok(Order {
        request,
        typed: Vec::new(),
        stays_open: true,
    })
}

/// What a viewer says in a text frame.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Said {
    Resize(Size),
    Signal(SignalName),
}

/// What he is told in one.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Told<'a> {
    Started {
        exec_id: &'a str,
        offset: u64,
    },
    /// Where the next binary frame begins.
    Offset(u64),
    Gap {
        from: u64,
        to: u64,
    },
    Exited(Box<ExecState>),
    Error(Problem),
}

/// One socket.
struct Viewer {
    socket: WebSocket,
    session: Session,
    exec: Exec,
    /// To the task that types, which may have to wait for the program.
    typing: mpsc::UnboundedSender<(Bytes, OwnedSemaphorePermit)>,
    typist: AbortHandle,
    room: Arc<Semaphore>,
    /// What was typed and finds no room yet.
    waiting: Option<(Bytes, Instant)>,
    heard: Instant,
}

/// Why a socket is closed.
enum Closed {
    /// The other side did it, or is as good as gone.
    Gone,
    /// The program does not read what is typed.
    Unread,
}

/// How many look at each sandbox.
#[derive(Debug, Default)]
pub(crate) struct Viewers(Arc<Mutex<HashMap<String, usize>>>);

/// One of them, until it is dropped.
struct Viewing {
    all: Arc<Mutex<HashMap<String, usize>>>,
    sandbox: String,
}

impl Viewers {
    fn admit(&self, sandbox: &str) -> Answer<Viewing> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(sandbox.to_owned()).or_default();
        if *count >= MOST_VIEWERS {
            let (title, hint) = (
                "too many terminals of this sandbox are open",
                "close one, or try later",
            );
            return Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                "quota_exceeded",
                title,
                Some(hint.into()),
            ));
        }
        *count += 1;
        Ok(Viewing {
            all: self.0.clone(),
            sandbox: sandbox.to_owned(),
        })
    }
}

impl Drop for Viewing {
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

impl Viewer {
    fn new(socket: WebSocket, session: Session, exec: Exec) -> Viewer {
        let (typing, typed) = mpsc::unbounded_channel();
        let typist = tokio::spawn(type_in(exec.clone(), typed)).abort_handle();
        let room = Arc::new(Semaphore::new(ROOM));
        Viewer {
            socket,
            session,
            exec,
            typing,
            typist,
            room,
            waiting: None,
            heard: Instant::now(),
        }
    }

    async fn serve(mut self, offset: u64, over: impl Future<Output = ()>) {
        let goodbye = tokio::select! {
            talked = self.talk(offset) => match talked {
                Ok(()) => None,
                Err(Closed::Gone) => return,
                Err(Closed::Unread) => Some((AGAIN, "the program does not read what is typed")),
            },
            () = over => {
                // What was typed and not read yet is not typed any more.
                self.typist.abort();
                Some((POLICY, "the key has ended"))
            }
        };
        let why = goodbye.map(|(code, reason)| CloseFrame {
            code,
            reason: reason.into(),
        });
        // A proper goodbye; the other side answers it, or does not.
        let _ = tokio::time::timeout(SILENCE, self.socket.send(Message::Close(why))).await;
    }

    async fn talk(&mut self, offset: u64) -> Result<(), Closed> {
        let exec = self.exec.clone();
        self.tell(&Told::Started {
            exec_id: exec.id(),
            offset,
        })
        .await?;
        self.tell(&Told::Offset(offset)).await?;
        let mut cursor = Cursor::new(exec.output(), [offset, 0], &[Stream::Stdout], SHOWN_AT_ONCE);
        let mut ping = tokio::time::interval(PING);
        loop {
            tokio::select! {
                next = cursor.next() => match next {
                    Next::Piece(_, _, bytes) => self.send(Message::Binary(bytes.into())).await?,
                    Next::Gap(_, from, to) => {
                        self.tell(&Told::Gap { from, to }).await?;
                        self.tell(&Told::Offset(to)).await?;
                    }
                    Next::End => break,
                },
                heard = listen(&self.room, &self.waiting, &mut self.socket) => self.hear(heard?).await?,
                _ = ping.tick() => {
                    if self.heard.elapsed() > SILENCE {
                        return Err(Closed::Gone);
                    }
                    self.send(Message::Ping(Bytes::new())).await?;
                }
            }
        }
        exec.wait().await;
        self.tell(&Told::Exited(Box::new(ExecState::brief(&exec))))
            .await
    }

    async fn hear(&mut self, heard: Heard) -> Result<(), Closed> {
        self.heard = Instant::now();
        self.session.touch();
        let message = match heard {
            Heard::Room(permit) => {
                if let Some((bytes, _)) = self.waiting.take() {
                    // A program that reads no more has ended, which is about to be told.
                    _ = self.typing.send((bytes, permit));
                }
                return Ok(());
            }
            Heard::Message(message) => message,
        };
        match message {
            Message::Binary(bytes) => {
                self.waiting = Some((bytes, Instant::now() + STUCK));
                Ok(())
            }
            Message::Text(text) => match self.control(text.as_str()) {
                Ok(()) => Ok(()),
                Err(problem) => self.tell(&Told::Error(problem)).await,
            },
            Message::Ping(_) | Message::Pong(_) => Ok(()),
            Message::Close(_) => Err(Closed::Gone),
        }
    }

    fn control(&self, text: &str) -> Answer<()> {
        let said: Said = serde_json::from_str(text).map_err(|error| {
            Problem::invalid(
                "this text frame is none that is known here",
                error.to_string(),
            )
        })?;
        match said {
            // A program that has just ended needs no size any more.
            Said::Resize(size) => drop(self.exec.resize(size.checked()?)),
            Said::Signal(name) => self.exec.signal(name.number()?),
        }
        Ok(())
    }

    async fn tell(&mut self, told: &Told<'_>) -> Result<(), Closed> {
        let text = serde_json::to_string(told).map_err(|_| Closed::Gone)?;
        self.send(Message::Text(text.into())).await
    }

    /// A viewer who takes nothing for so long is gone; he can come back.
    async fn send(&mut self, message: Message) -> Result<(), Closed> {
        match tokio::time::timeout(SILENCE, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Closed::Gone),
        }
    }
}

/// What there is for a viewer's task to do.
enum Heard {
    Message(Message),
    /// For what waits to be typed.
    Room(OwnedSemaphorePermit),
}

/// The next message; while something that was typed finds no room, that room.
async fn listen(
    room: &Arc<Semaphore>,
    waiting: &Option<(Bytes, Instant)>,
    socket: &mut WebSocket,
) -> Result<Heard, Closed> {
    let Some((bytes, until)) = waiting else {
        let message = socket.recv().await.and_then(Result::ok);
        return message.map(Heard::Message).ok_or(Closed::Gone);
    };
    // A message is smaller than the room.
    let permit = room.clone().acquire_many_owned(bytes.len() as u32);
    match tokio::time::timeout_at(*until, permit).await {
        Ok(Ok(permit)) => Ok(Heard::Room(permit)),
        Ok(Err(_)) => Err(Closed::Gone),
        Err(_) => Err(Closed::Unread),
    }
}

async fn type_in(exec: Exec, mut typed: mpsc::UnboundedReceiver<(Bytes, OwnedSemaphorePermit)>) {
    while let Some((bytes, mut permit)) = typed.recv().await {
        for part in bytes.chunks(TYPED_AT_ONCE) {
            if exec.write(part).await.is_err() {
                return;
            }
            drop(permit.split(part.len()));
        }
    }
}
