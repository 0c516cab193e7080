//! `airlock sandbox logs`: what a program of a sandbox wrote until now, or until it ends.

use super::{exec::Started, path};
use crate::{
    cli::{
        artifact::{Out, pour},
        message::{self, Failure, Line},
        run::Output,
    },
    remote::{Answer, Ask, Client, query},
};
use clap::{Args, ValueEnum};
use spec::StdStream;
use std::io;

/// Whose output.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// The sandbox
    id: String,
    /// Which program [default: the newest]
    #[arg(long, value_name = "ID")]
    exec: Option<String>,
    /// Which stream: stdout or stderr
    #[arg(
        long,
        value_name = "NAME",
        default_value = "stdout",
        hide_possible_values = true
    )]
    stream: Name,
    /// Go on until the program ends
    #[arg(long)]
    follow: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    Stdout,
    Stderr,
}

impl Options {
    fn stream(&self) -> (StdStream, &'static str) {
        match self.stream {
            Name::Stdout => (StdStream::Stdout, "stdout"),
            Name::Stderr => (StdStream::Stderr, "stderr"),
        }
    }

    async fn ask(
        &self,
        client: &Client,
        exec: Option<String>,
        more: (&str, u64),
    ) -> Result<Answer, Failure> {
        let stream = self.stream().1.to_owned();
        let asked = [
            ("exec", exec),
            ("stream", Some(stream)),
            (more.0, Some(more.1.to_string())),
        ];
        Ok(client
            .ask(Ask::get(format!(
                "{}/logs{}",
                path(&self.id),
                query(&asked)
            )))
            .await?)
    }
}

/// Carries out the command.
pub(super) async fn show(options: Options, client: Client) -> Result<u8, Failure> {
    match options.follow {
        true => follow(options, client).await,
        false => all(options, client).await,
    }
}

/// What there is when it begins, one piece after another.
async fn all(options: Options, client: Client) -> Result<u8, Failure> {
    let mut answer = options
        .ask(&client, options.exec.clone(), ("offset", 0))
        .await?;
    let (exec, total) = (
        exec_of(&client, &answer)?,
        answer.number("airlock-total").unwrap_or(0),
    );
    let mut out = Out::stdout();
    loop {
        let from = answer.number("airlock-offset").unwrap_or(0);
        let size = pour(answer, &mut out).await?;
        let next = from.saturating_add(size);
        if size == 0 || next >= total {
            return Ok(0);
        }
        answer = options
            .ask(&client, Some(exec.clone()), ("offset", next))
            .await?;
    }
}

fn exec_of(client: &Client, answer: &Answer) -> Result<String, Failure> {
    let exec = answer.header("airlock-exec").map(str::to_owned);
    exec.ok_or_else(|| {
        client
            .foreign("it does not say of which program this is")
            .into()
    })
}

/// By its events, of which the server sends some sign even while the program is silent.
async fn follow(options: Options, client: Client) -> Result<u8, Failure> {
    let exec = exec_of(
        &client,
        &options
            .ask(&client, options.exec.clone(), ("limit", 1))
            .await?,
    )?;
    let (wanted, _) = options.stream();
    let started = Started {
        client,
        sandbox: options.id,
        exec,
    };
    let failed = |error: io::Error| Failure::internal(format!("cannot write what came: {error}"));
    let (mut followed, mut out, mut at, mut lost) = (started.follow(), Out::stdout(), 0, 0);
    while let Some(event) = followed.next().await {
        let event = event?;
        if event.name != "output" {
            continue;
        }
        let piece = Output::read(&event.data).map_err(|cause| started.client.foreign(cause))?;
        if piece.stream() != wanted {
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
        message::say(&[Line::Note(format!(
            "{lost} bytes of output are not kept any more"
        ))]);
    }
    Ok(0)
}
