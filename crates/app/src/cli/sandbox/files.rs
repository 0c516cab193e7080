//! Files into a sandbox's workspace and out of it, streamed.

use super::{file_path, own_name};
use crate::{
    cli::{
        artifact::{Out, pour},
        message::{self, Failure, Line},
    },
    remote::{Ask, Client, upload},
};
use clap::Args;
use http::Method;
use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    path::PathBuf,
    time::Duration,
};

/// How long a large file may take.
const LONGEST_UPLOAD: Duration = Duration::from_secs(3600);

/// A file to put there.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  airlock sandbox put $id main.py\n  date | airlock sandbox put $id - --name now.txt"
)]
pub(super) struct Put {
    /// The sandbox
    id: String,
    /// The file; - is standard input, which needs --name
    file: PathBuf,
    /// Where, below /workspace [default: the name of the file]
    #[arg(long, value_name = "PATH")]
    name: Option<PathBuf>,
}

/// A file to fetch.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  airlock sandbox get $id result.txt\n  airlock sandbox get $id result.txt --output here.txt"
)]
pub(super) struct Get {
    /// The sandbox
    id: String,
    /// The file, below /workspace
    name: PathBuf,
    /// The file to make; one that exists is not overwritten [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn put(options: &Put, client: &Client) -> Result<u8, Failure> {
    let is_stdin = options.file.as_os_str() == "-";
    let own = (!is_stdin).then(|| own_name(&options.file)).flatten();
    let name = options.name.clone().or(own).ok_or_else(|| {
        Failure::invalid(
            "what comes from standard input has no name",
            "add --name PATH",
        )
    })?;
    let failed = |error: io::Error| {
        Failure::invalid(
            format!("cannot read `{}`: {error}", options.file.display()),
            "give a file of this machine",
        )
    };
    let (from, length): (Box<dyn Read + Send>, _) = match is_stdin {
        true => (Box::new(io::stdin()), None),
        false => {
            let file = File::open(&options.file).map_err(failed)?;
            let about = file.metadata().map_err(failed)?;
            if about.is_dir() {
                return Err(failed(io::ErrorKind::IsADirectory.into()));
            }
            (Box::new(file), about.is_file().then_some(about.len()))
        }
    };
    let ask = Ask::new(Method::PUT, file_path(&options.id, &name)?);
    client
        .ask(ask.body(upload(from, length)).patience(LONGEST_UPLOAD))
        .await?;
    Ok(0)
}

pub(super) async fn get(options: &Get, client: &Client) -> Result<u8, Failure> {
    let answer = client
        .ask(Ask::get(file_path(&options.id, &options.name)?))
        .await?;
    let Some(path) = &options.output else {
        pour(answer, &mut Out::stdout()).await?;
        return Ok(0);
    };
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| {
            Failure::invalid(
                format!("cannot make `{}`: {error}", path.display()),
                "give --output a new file",
            )
        })?;
    let size = pour(answer, &mut Out::File(file)).await?;
    message::say(&[Line::Note(format!(
        "wrote `{}` ({size} bytes)",
        path.display()
    ))]);
    Ok(0)
}
