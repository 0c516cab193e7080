//! `airlock sandbox exec --tty`: the caller's terminal at a program of a server, over a WebSocket.
//! Binary frames carry keys and output, text frames carry JSON. A broken connection is resumed at
//! the same offset.

use super::exec::{self, ExecState, RemoteExec};
use crate::{
    cli::{
        message::{self, Failure},
        run::{self, OutputChunk, OutputMode, terminal},
    },
    config::ProcessEnv,
    remote::{Client, Connection, RemoteError, query},
};
use futures_util::{SinkExt, StreamExt, stream::SplitSink};
use http::{Request, header};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, json};
use spec::StdStream;
use std::time::Duration;
use tokio::{io::AsyncReadExt, sync::mpsc, time::timeout};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Error, Message, handshake::client::generate_key, protocol::WebSocketConfig},
};

/// The maximum size of one message.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Servers send a ping every 20 seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_DELAYS_MS: [u64; 5] = [100, 300, 1000, 2000, 4000];

type Socket = WebSocketStream<Box<dyn Connection>>;

/// A text frame of the server.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ServerMessage {
    Started(IgnoredAny),
    Offset(u64),
    Gap { to: u64 },
    Exited(Box<ExecState>),
    Error(IgnoredAny),
}

/// Starts the program, shows its terminal, and returns its exit status.
pub(super) async fn execute(
    id: &str,
    mut order: Map<String, Value>,
    client: Client,
    env: &ProcessEnv,
) -> Result<u8, Failure> {
    let (size, kind) = terminal::caller_terminal(env)?;
    order.insert(
        "tty".to_owned(),
        json!({ "rows": size.rows, "columns": size.columns }),
    );
    order.retain(|_, value| *value != json!(false));
    if let Some(Value::Object(env)) = order.get_mut("env") {
        env.entry("TERM")
            .or_insert_with(|| kind.to_string_lossy().into());
    }
    let state = exec::start(&client, id, order).await?;
    let started = RemoteExec {
        client,
        sandbox: id.to_owned(),
        exec: state.exec_id,
    };
    let taken = terminal::RawTerminal::enter()?;
    let (outlet, writer) = run::open_outlet(OutputMode::Terminal).unzip();
    let ended = PtySession {
        started: &started,
        bytes_shown: 0,
    }
    .run(outlet.as_ref())
    .await;
    if ended.is_err() {
        started.cancel();
    }
    drop(outlet);
    run::wait_delivery(writer).await;
    // The terminal is restored before messages are printed.
    drop(taken);
    let state = ended?;
    message::print(&state.lines());
    Ok(state.exit_status())
}

/// The caller's terminal, connected to a program.
struct PtySession<'a> {
    started: &'a RemoteExec,
    /// Bytes of output shown so far.
    bytes_shown: u64,
}

impl PtySession<'_> {
    /// Runs to the end of the program, over as many connections as needed.
    async fn run(
        mut self,
        outlet: Option<&mpsc::Sender<OutputChunk>>,
    ) -> Result<ExecState, Failure> {
        let mut terminal_input = terminal_input();
        let mut delays = RETRY_DELAYS_MS.iter();
        loop {
            let before = self.bytes_shown;
            let broken = match self.run_connection(&mut terminal_input, outlet).await {
                Ok(state) => return Ok(state),
                Err(error) => error,
            };
            if self.bytes_shown != before {
                delays = RETRY_DELAYS_MS.iter();
            }
            match (broken.is_transient(), delays.next()) {
                (true, Some(delay)) => tokio::time::sleep(Duration::from_millis(*delay)).await,
                _ => return Err(broken.into()),
            }
        }
    }

    /// Runs one connection.
    async fn run_connection(
        &mut self,
        terminal_input: &mut mpsc::Receiver<TerminalInput>,
        outlet: Option<&mpsc::Sender<OutputChunk>>,
    ) -> Result<ExecState, RemoteError> {
        let (mut to, mut from) = self.open().await?.split();
        let started = self.started;
        let broken = |error: Error| started.broken(&error.to_string());
        send(&mut to, terminal::size().map(TerminalInput::Size))
            .await
            .map_err(broken)?;
        loop {
            let message = tokio::select! {
                message = timeout(IDLE_TIMEOUT, from.next()) => message,
                // Output continues after the end of input.
                Some(input) = terminal_input.recv() => {
                    send(&mut to, Some(input)).await.map_err(broken)?;
                    continue;
                }
            };
            let message = message.map_err(|_| started.broken("nothing comes"))?;
            match message
                .ok_or_else(|| started.broken("the stream ended too early"))?
                .map_err(broken)?
            {
                Message::Binary(bytes) => {
                    self.bytes_shown += bytes.len() as u64;
                    if let Some(outlet) = outlet {
                        // A closed output is ignored: the program continues as on a detached
                        // terminal.
                        _ = outlet.send((StdStream::Stdout, bytes.to_vec())).await;
                    }
                }
                Message::Text(text) => match serde_json::from_str(text.as_str()) {
                    Ok(ServerMessage::Exited(state)) => return Ok(*state),
                    Ok(ServerMessage::Offset(at) | ServerMessage::Gap { to: at }) => {
                        self.bytes_shown = at
                    }
                    Ok(ServerMessage::Started(_) | ServerMessage::Error(_)) => {}
                    Err(error) => return Err(self.started.client.not_airlock(error.to_string())),
                },
                Message::Close(_) => return Err(started.broken("it was closed")),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    async fn open(&self) -> Result<Socket, RemoteError> {
        let client = &self.started.client;
        let parameters = [
            ("exec", Some(self.started.exec.clone())),
            ("offset", Some(self.bytes_shown.to_string())),
        ];
        let path = format!(
            "{}/pty{}",
            super::path(&self.started.sandbox),
            query(&parameters)
        );
        let mut request = Request::builder()
            // Only the path is sent; the WebSocket library requires a full URL.
            .uri(format!("ws://{}{path}", client.address.authority()))
            .header(header::HOST, client.address.authority())
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, generate_key());
        if let Some(key) = client.authorization()? {
            request = request.header(header::AUTHORIZATION, key);
        }
        let request = request
            .body(())
            .map_err(|error| RemoteError::Local(error.to_string()))?;
        let bounds = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let shaken = client_async_with_config(request, client.dial().await?, Some(bounds));
        match timeout(HANDSHAKE_TIMEOUT, shaken).await {
            Ok(Ok((socket, _))) => Ok(socket),
            Ok(Err(Error::Http(answer))) => {
                Err(client.not_airlock(format!("it responds with {}", answer.status())))
            }
            Ok(Err(error)) => Err(self.started.broken(&error.to_string())),
            Err(_) => Err(RemoteError::TimedOut {
                address: client.address.clone(),
            }),
        }
    }
}

/// Input from the terminal.
enum TerminalInput {
    Keys(Vec<u8>),
    Size(spec::TerminalSize),
}

async fn send(
    to: &mut SplitSink<Socket, Message>,
    input: Option<TerminalInput>,
) -> Result<(), Error> {
    match input {
        Some(TerminalInput::Keys(bytes)) => to.send(Message::Binary(bytes.into())).await,
        Some(TerminalInput::Size(size)) => {
            let text = json!({ "resize": { "rows": size.rows, "columns": size.columns } });
            to.send(Message::Text(text.to_string().into())).await
        }
        None => Ok(()),
    }
}

/// Reads keys and window sizes until the receiver is dropped.
fn terminal_input() -> mpsc::Receiver<TerminalInput> {
    let (sender, input) = mpsc::channel(4);
    let sizes = sender.clone();
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0; 4096];
        while let Ok(count @ 1..) = stdin.read(&mut buffer).await {
            if sender
                .send(TerminalInput::Keys(buffer[..count].to_vec()))
                .await
                .is_err()
            {
                return;
            }
        }
    });
    tokio::spawn(async move {
        terminal::watch_size(move |size| {
            let sizes = sizes.clone();
            let open = !sizes.is_closed();
            tokio::spawn(async move { sizes.send(TerminalInput::Size(size)).await.is_ok() });
            open
        })
        .await
    });
    input
}
