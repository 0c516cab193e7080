//! `airlock sandbox exec`: runs a program in a sandbox of a server. The program is started, then
//! followed by its identifier, so that a broken connection loses nothing.

use super::{path, pty, stdin_upload};
use crate::{
    cli::{
        REFUSED,
        message::{self, Failure, Message},
        print_json,
        run::{self, Delivery, OutputMode, Signals},
    },
    config::ProcessEnv,
    remote::{Client, ClientRequest, EventSource, RemoteError, segment},
};
use clap::Args;
use http::{HeaderName, Method};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use spec::{ErrorInfo, Status, Stream, Time};
use std::ffi::OsString;

const EXAMPLES: &str = "\
Examples:
  airlock sandbox exec $id -- python3 -c 'print(1)'
  airlock sandbox exec --tty $id -- bash
  tar -c src | airlock sandbox exec --stdin $id -- tar -x
  airlock sandbox exec --detach $id -- python3 -m http.server

The exit status is the program's; 124 after --timeout, 125 if it could not be started, 128+N for signal N, 130 with Ctrl-C.";

const BROKEN_PIPE: u8 = 128 + 13;
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// A program to run.
#[derive(Args, Debug)]
#[command(override_usage = "airlock sandbox exec [OPTIONS] ID -- COMMAND [ARG]...", after_help = EXAMPLES)]
pub(super) struct Options {
    /// The sandbox
    id: String,
    /// Set a variable; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The working directory inside
    #[arg(long, value_name = "DIR")]
    directory: Option<String>,
    /// The timeout, by the clock
    #[arg(long, value_name = "TIME")]
    timeout: Option<Time>,
    /// Pass standard input through [default: empty]
    #[arg(long)]
    stdin: bool,
    /// Give the program a terminal, shown in yours; every key goes to it, Ctrl-C too
    #[arg(short, long, conflicts_with_all = ["json", "stdin", "detach"])]
    tty: bool,
    /// Run it in the background, and print its identifier
    #[arg(long, conflicts_with = "stdin")]
    detach: bool,
    /// Print one JSON object instead of the program's own output
    #[arg(long)]
    pub(super) json: bool,
    /// The command and its arguments, passed on exactly as they are
    #[arg(last = true, value_name = "COMMAND", required = true)]
    command: Vec<OsString>,
}

impl Options {
    fn request_body(&self) -> Result<Map<String, Value>, Failure> {
        let env = self.env.iter().map(|text| match text.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), Value::from(value))),
            None => {
                let message = format!("`{}` is not a variable with its value", text.escape_debug());
                Err(Failure::invalid(message, "write --env NAME=VALUE"))
            }
        });
        let request_body = json!({
            "command": run::utf8_all(&self.command, "the command")?,
            "env": env.collect::<Result<Map<_, _>, _>>()?,
            "directory": self.directory,
            "timeout": self.timeout.map(|time| time.to_string()),
            "open_stdin": self.stdin,
            "background": self.detach,
        });
        match request_body {
            Value::Object(request_body) => Ok(request_body
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .collect()),
            _ => Ok(Map::new()),
        }
    }
}

/// A program's state, as the server reports it.
#[derive(Debug, Deserialize)]
pub(super) struct ExecState {
    pub(super) exec_id: String,
    status: Status,
    exit_code: Option<i32>,
    signal: Option<i32>,
    exit_status: Option<u8>,
    error: Option<ErrorInfo>,
}

impl ExecState {
    /// The exit status that a shell would report.
    pub(super) fn exit_status(&self) -> u8 {
        let by_signal = self.signal.map(|signal| 128u8.wrapping_add(signal as u8));
        match self.status {
            Status::TimedOut => 124,
            Status::Cancelled => 130,
            Status::OomKilled => 137,
            Status::Succeeded | Status::Failed => self
                .exit_code
                .and_then(|code| u8::try_from(code & 255).ok())
                .or(by_signal)
                .unwrap_or(REFUSED),
            Status::NotStarted => self.exit_status.unwrap_or(REFUSED),
            Status::Queued | Status::Running | Status::Lost => REFUSED,
        }
    }

    /// Messages about the program's end.
    pub(super) fn lines(&self) -> Vec<Message> {
        match (&self.error, self.signal) {
            (Some(error), _) => {
                vec![
                    Message::Error(error.message.clone()),
                    Message::Hint(error.hint.clone().unwrap_or_default()),
                ]
            }
            (None, Some(signal)) => vec![Message::Note(format!(
                "the program was killed by signal {signal}"
            ))],
            (None, None) => Vec::new(),
        }
    }
}

/// A started program.
#[derive(Clone)]
pub(super) struct RemoteExec {
    pub(super) client: Client,
    pub(super) sandbox: String,
    pub(super) exec: String,
}

impl RemoteExec {
    pub(super) fn path(&self) -> String {
        format!(
            "{}/exec/{}",
            path(&self.sandbox),
            segment(self.exec.as_bytes())
        )
    }

    pub(super) fn broken(&self, cause: &str) -> RemoteError {
        RemoteError::Broken {
            address: self.client.address.clone(),
            cause: cause.to_owned(),
        }
    }

    /// Cancels the program in a background task.
    pub(super) fn cancel(&self) {
        let client = self.client.clone();
        let path = self.path();
        tokio::spawn(async move {
            client
                .send(ClientRequest::new(Method::DELETE, path))
                .await
                .map(drop)
        });
    }
}

/// Carries out the command.
pub(super) async fn execute(
    options: Options,
    client: Client,
    env: &ProcessEnv,
) -> Result<u8, Failure> {
    let mut request_body = options.request_body()?;
    if options.tty {
        return pty::execute(&options.id, request_body, client, env).await;
    }
    let signals = Signals::listen()
        .map_err(|e| Failure::internal(format!("cannot wait for signals: {e}")))?;
    request_body.retain(|_, value| *value != json!(false));
    let state = start(&client, &options.id, request_body).await?;
    if options.detach {
        return detached(&state, options.json);
    }
    let exec = RemoteExec {
        client,
        sandbox: options.id,
        exec: state.exec_id,
    };
    if options.stdin {
        stdin_upload::start(&exec);
    }
    if options.json {
        exec.print_result(signals).await
    } else {
        exec.show(signals).await
    }
}

/// Starts a program, which continues if this command ends.
pub(super) async fn start(
    client: &Client,
    id: &str,
    request_body: Map<String, Value>,
) -> Result<ExecState, Failure> {
    let ask =
        ClientRequest::new(Method::POST, format!("{}/exec", path(id))).json(&request_body.into());
    Ok(client.json(ask.header(PREFER, "respond-async")).await?)
}

fn detached(state: &ExecState, json: bool) -> Result<u8, Failure> {
    if json {
        print_json(&json!({ "exec_id": state.exec_id }))?
    } else {
        crate::cli::print(&format!("{}\n", message::printable(&state.exec_id)))?
    }
    Ok(0)
}

impl RemoteExec {
    /// Follows the program's output and end.
    pub(super) fn follow(&self) -> crate::remote::EventStream {
        let path = format!("{}/events", self.path());
        let ask = move |last: Option<&str>| match last {
            None => ClientRequest::get(path.clone()),
            Some(last) => ClientRequest::get(path.clone()).header(LAST_EVENT_ID, last),
        };
        EventSource {
            ask,
            last: "exited",
        }
        .start(&self.client)
    }

    async fn print_result(self, mut signals: Signals) -> Result<u8, Failure> {
        let mut events = self.follow();
        let mut cancelled = false;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) if event.name == "exited" => break,
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error.into()),
                    None => break,
                },
                () = signals.next() => if cancelled {run::exit_now()} else { cancelled = true; self.cancel(); },
            }
        }
        let whole: Value = self.client.json(ClientRequest::get(self.path())).await?;
        let state = ExecState::deserialize(&whole)
            .map_err(|error| self.client.not_airlock(error.to_string()))?;
        print_json(&whole)?;
        Ok(state.exit_status())
    }

    async fn show(self, mut signals: Signals) -> Result<u8, Failure> {
        let (mut outlet, writer) = run::open_outlet(OutputMode::Streams).unzip();
        let mut events = self.follow();
        let mut cancelled = false;
        let mut shown = [0u64; 2];
        let mut lost = 0;
        let state = loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = signals.next() => if cancelled {run::exit_now()} else { cancelled = true; self.cancel(); continue; },
            };
            let event = match event {
                Some(Ok(event)) => event,
                Some(Err(error)) => return Err(error.into()),
                None => {
                    return Err(self
                        .client
                        .not_airlock("it reported no end of the program")
                        .into());
                }
            };
            match event.name.as_str() {
                "exited" => break serde_json::from_str::<ExecState>(&event.data),
                "output" => {
                    let event_output = run::OutputEvent::read(&event.data)
                        .map_err(|cause| self.client.not_airlock(cause))?;
                    let stream = event_output.stream();
                    let index = usize::from(stream == Stream::Stderr);
                    let (bytes, skipped) = event_output.beyond(&mut shown[index]);
                    lost += skipped;
                    if let Some(to) = &outlet
                        && to.send((stream, bytes)).await.is_err()
                    {
                        outlet = None;
                        self.cancel();
                    }
                }
                _ => {}
            }
        };
        let state = state.map_err(|error| self.client.not_airlock(error.to_string()))?;
        drop(outlet);
        let delivery = tokio::select! {
            delivery = run::wait_delivery(writer) => delivery,
            () = signals.next() => run::exit_now(),
        };
        message::print(&state.lines());
        Ok(match (delivery, lost) {
            (Delivery::Complete, 0) => state.exit_status(),
            (Delivery::NobodyReads, _) => BROKEN_PIPE,
            (Delivery::Failed(error), _) => {
                report_failure(&format!("cannot pass on the program's output: {error}"))
            }
            (Delivery::Complete, lost) => {
                report_failure(&format!("{lost} bytes of output were lost"))
            }
        })
    }
}

fn report_failure(what: &str) -> u8 {
    message::print(&[Message::Error(what.to_owned())]);
    REFUSED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_what_a_shell_would_say() {
        let of = |text: &str| {
            let state = format!(r#"{{"exec_id":"e","error":null,{text}}}"#);
            serde_json::from_str::<ExecState>(&state)
                .unwrap()
                .exit_status()
        };
        assert_eq!(of(r#""status":"succeeded","exit_code":0,"signal":null"#), 0);
        assert_eq!(of(r#""status":"failed","exit_code":3,"signal":null"#), 3);
        assert_eq!(of(r#""status":"failed","exit_code":null,"signal":9"#), 137);
        assert_eq!(
            of(r#""status":"timed_out","exit_code":null,"signal":9"#),
            124
        );
        assert_eq!(
            of(r#""status":"cancelled","exit_code":null,"signal":15"#),
            130
        );
        assert_eq!(
            of(r#""status":"not_started","exit_code":null,"signal":null"#),
            125
        );
        assert_eq!(of(r#""status":"lost","exit_code":null,"signal":null"#), 125);
    }
}
