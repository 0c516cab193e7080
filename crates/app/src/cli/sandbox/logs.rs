//! `airlock sandbox logs`: a program's output so far, or until it ends.

use super::{exec::RemoteExec, path};
use crate::{
    cli::{
        artifact::{OutputTarget, copy_body},
        message::{self, Failure, Message},
        run::OutputEvent,
    },
    remote::{Client, ClientRequest, ClientResponse, query},
};
use clap::{Args, ValueEnum};
use spec::StdStream;
use std::io;

/// The options of `airlock sandbox logs`.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// The sandbox
    id: String,
    /// The program [default: the newest]
    #[arg(long, value_name = "ID")]
    exec: Option<String>,
    /// The stream: stdout or stderr
    #[arg(
        long,
        value_name = "NAME",
        default_value = "stdout",
        hide_possible_values = true
    )]
    stream: StreamName,
    /// Follow the output until the program ends
    #[arg(long)]
    follow: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StreamName {
    Stdout,
    Stderr,
}

impl Options {
    fn stream(&self) -> (StdStream, &'static str) {
        match self.stream {
            StreamName::Stdout => (StdStream::Stdout, "stdout"),
            StreamName::Stderr => (StdStream::Stderr, "stderr"),
        }
    }

    async fn fetch(
        &self,
        client: &Client,
        exec: Option<String>,
        more: (&str, u64),
    ) -> Result<ClientResponse, Failure> {
        let stream = self.stream().1.to_owned();
        let parameters = [
            ("exec", exec),
            ("stream", Some(stream)),
            (more.0, Some(more.1.to_string())),
        ];
        Ok(client
            .send(ClientRequest::get(format!(
                "{}/logs{}",
                path(&self.id),
                query(&parameters)
            )))
            .await?)
    }
}

/// Carries out the command.
pub(super) async fn show(options: Options, client: Client) -> Result<u8, Failure> {
    if options.follow {
        follow(options, client).await
    } else {
        print_kept(options, client).await
    }
}

/// Prints the output that exists at the start, piece by piece.
async fn print_kept(options: Options, client: Client) -> Result<u8, Failure> {
    let mut answer = options
        .fetch(&client, options.exec.clone(), ("offset", 0))
        .await?;
    let exec = exec_id(&client, &answer)?;
    let total = answer.number("airlock-total").unwrap_or(0);
    let mut out = OutputTarget::stdout();
    loop {
        let from = answer.number("airlock-offset").unwrap_or(0);
        let size = copy_body(answer, &mut out).await?;
        let next = from.saturating_add(size);
        if size == 0 || next >= total {
            return Ok(0);
        }
        answer = options
            .fetch(&client, Some(exec.clone()), ("offset", next))
            .await?;
    }
}

fn exec_id(client: &Client, answer: &ClientResponse) -> Result<String, Failure> {
    let exec = answer.header("airlock-exec").map(str::to_owned);
    exec.ok_or_else(|| {
        client
            .not_airlock("its response does not name the program")
            .into()
    })
}

/// Follows the events, because the server sends keep-alives while the program is silent.
async fn follow(options: Options, client: Client) -> Result<u8, Failure> {
    let exec = exec_id(
        &client,
        &options
            .fetch(&client, options.exec.clone(), ("limit", 1))
            .await?,
    )?;
    let (stream, _) = options.stream();
    let exec = RemoteExec {
        client,
        sandbox: options.id,
        exec,
    };
    let failed = |error: io::Error| Failure::internal(format!("cannot write the output: {error}"));
    let mut events = exec.follow();
    let mut out = OutputTarget::stdout();
    let mut at = 0;
    let mut lost = 0;
    while let Some(event) = events.next().await {
        let event = event?;
        if event.name != "output" {
            continue;
        }
        let piece =
            OutputEvent::read(&event.data).map_err(|cause| exec.client.not_airlock(cause))?;
        if piece.stream() != stream {
            continue;
        }
        let (bytes, skipped) = piece.beyond(&mut at);
        lost += skipped;
        match out.write(&bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(0),
            written => written.map_err(failed)?,
        }
    }
    out.finish().map_err(failed)?;
    if lost > 0 {
        message::print(&[Message::Note(format!(
            "{lost} bytes of output are no longer stored"
        ))]);
    }
    Ok(0)
}
