//! `airlock sandbox exec --tty`: our terminal at a program far away, over a WebSocket. Binary frames are keys and what is
//! shown, text frames are JSON about it. A connection that breaks is made again where it was.

use super::exec::{self, Started, State};
use crate::{
    cli::{
        message::{self, Failure},
        run::{self, Piece, Show, terminal},
    },
    config::Surroundings,
    remote::{Client, RemoteError, Stream as Wire, query},
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

/// What one message may carry.
const LARGEST_MESSAGE: usize = 1 << 20;
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(10);
/// Servers ask every 20 seconds whether we are there.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
const PAUSES: [u64; 5] = [100, 300, 1000, 2000, 4000];

type Socket = WebSocketStream<Box<dyn Wire>>;

/// What a server says in a text frame.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Started(IgnoredAny),
    Offset(u64),
    Gap { to: u64 },
    Exited(Box<State>),
    Error(IgnoredAny),
}

/// Starts the program, shows it, and gives its status.
pub(super) async fn execute(
    id: &str,
    mut order: Map<String, Value>,
    client: Client,
    surroundings: &Surroundings,
) -> Result<u8, Failure> {
    let (size, kind) = terminal::ours(surroundings)?;
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
    let started = Started {
        client,
        sandbox: id.to_owned(),
        exec: state.exec_id,
    };
    let taken = terminal::Taken::take()?;
    let (outlet, writer) = run::open_outlet(Show::Terminal).unzip();
    let ended = View {
        started: &started,
        shown: 0,
    }
    .watch(outlet.as_ref())
    .await;
    if ended.is_err() {
        started.cancel();
    }
    drop(outlet);
    run::delivered(writer).await;
    // Before anything is said there.
    drop(taken);
    let state = ended?;
    message::say(&state.lines());
    Ok(state.exit_status())
}

/// Our terminal at a program.
struct View<'a> {
    started: &'a Started,
    /// How much of its output was shown.
    shown: u64,
}

impl View<'_> {
    /// To the end of the program, over as many connections as it takes.
    async fn watch(mut self, outlet: Option<&mpsc::Sender<Piece>>) -> Result<State, Failure> {
        let (mut keys, mut pauses) = (keys(), PAUSES.iter());
        loop {
            let before = self.shown;
            let broken = match self.once(&mut keys, outlet).await {
                Ok(state) => return Ok(state),
                Err(error) => error,
            };
            if self.shown != before {
                pauses = PAUSES.iter();
            }
            match (broken.may_pass(), pauses.next()) {
                (true, Some(pause)) => tokio::time::sleep(Duration::from_millis(*pause)).await,
                _ => return Err(broken.into()),
            }
        }
    }

    /// One connection.
    async fn once(
        &mut self,
        keys: &mut mpsc::Receiver<Typed>,
        outlet: Option<&mpsc::Sender<Piece>>,
    ) -> Result<State, RemoteError> {
        let (mut to, mut from) = self.open().await?.split();
        let started = self.started;
        let broken = |error: Error| started.broken(&error.to_string());
        send(&mut to, terminal::size().map(Typed::Size))
            .await
            .map_err(broken)?;
        loop {
            let message = tokio::select! {
                message = timeout(LONGEST_SILENCE, from.next()) => message,
                // Once nobody types any more, what is shown is still worth seeing.
                Some(typed) = keys.recv() => {
                    send(&mut to, Some(typed)).await.map_err(broken)?;
                    continue;
                }
            };
            let message = message.map_err(|_| started.broken("nothing comes"))?;
            match message
                .ok_or_else(|| started.broken("it ended too early"))?
                .map_err(broken)?
            {
                Message::Binary(bytes) => {
                    self.shown += bytes.len() as u64;
                    if let Some(outlet) = outlet {
                        // Nobody to see it; the program goes on as it would behind a curtain.
                        _ = outlet.send((StdStream::Stdout, bytes.to_vec())).await;
                    }
                }
                Message::Text(text) => match serde_json::from_str(text.as_str()) {
                    Ok(Told::Exited(state)) => return Ok(*state),
                    Ok(Told::Offset(at) | Told::Gap { to: at }) => self.shown = at,
                    Ok(Told::Started(_) | Told::Error(_)) => {}
                    Err(error) => return Err(self.started.client.foreign(error.to_string())),
                },
                Message::Close(_) => return Err(started.broken("it was closed")),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    async fn open(&self) -> Result<Socket, RemoteError> {
        let client = &self.started.client;
        let asked = [
            ("exec", Some(self.started.exec.clone())),
            ("offset", Some(self.shown.to_string())),
        ];
        let path = format!(
            "{}/pty{}",
            super::path(&self.started.sandbox),
            query(&asked)
        );
        let mut request = Request::builder()
            // Only its path is sent; a name is asked for.
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
            .max_message_size(Some(LARGEST_MESSAGE))
            .max_frame_size(Some(LARGEST_MESSAGE));
        let shaken = client_async_with_config(request, client.dial().await?, Some(bounds));
        match timeout(LONGEST_HANDSHAKE, shaken).await {
            Ok(Ok((socket, _))) => Ok(socket),
            Ok(Err(Error::Http(answer))) => {
                Err(client.foreign(format!("it says {}", answer.status())))
            }
            Ok(Err(error)) => Err(self.started.broken(&error.to_string())),
            Err(_) => Err(RemoteError::Silent {
                address: client.address.clone(),
            }),
        }
    }
}

/// What is to be sent.
enum Typed {
    Keys(Vec<u8>),
    Size(spec::TerminalSize),
}

async fn send(to: &mut SplitSink<Socket, Message>, typed: Option<Typed>) -> Result<(), Error> {
    match typed {
        Some(Typed::Keys(bytes)) => to.send(Message::Binary(bytes.into())).await,
        Some(Typed::Size(size)) => {
            let text = json!({ "resize": { "rows": size.rows, "columns": size.columns } });
            to.send(Message::Text(text.to_string().into())).await
        }
        None => Ok(()),
    }
}

/// What is typed here, and how large our window is, until nobody listens.
fn keys() -> mpsc::Receiver<Typed> {
    let (sender, typed) = mpsc::channel(4);
    let sizes = sender.clone();
    tokio::spawn(async move {
        let (mut stdin, mut buffer) = (tokio::io::stdin(), vec![0; 4096]);
        while let Ok(count @ 1..) = stdin.read(&mut buffer).await {
            if sender
                .send(Typed::Keys(buffer[..count].to_vec()))
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
            tokio::spawn(async move { sizes.send(Typed::Size(size)).await.is_ok() });
            open
        })
        .await
    });
    typed
}
