//! Uploads files to and downloads files from a sandbox's workspace.

use super::{file_name, file_path};
use crate::{
    cli::{
        artifact::{OutputTarget, copy_body},
        message::{self, Failure, Message},
    },
    remote::{Client, ClientRequest, upload},
};
use clap::Args;
use http::Method;
use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    path::PathBuf,
    time::Duration,
};

/// How long an upload may take.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);

/// The options of `airlock sandbox put`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  airlock sandbox put $id main.py\n  date | airlock sandbox put $id - --name now.txt"
)]
pub(super) struct PutOptions {
    /// The sandbox
    id: String,
    /// The file; - is standard input, which needs --name
    file: PathBuf,
    /// The path below /workspace [default: the name of the file]
    #[arg(long, value_name = "PATH")]
    name: Option<PathBuf>,
}

/// The options of `airlock sandbox get`.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  airlock sandbox get $id result.txt\n  airlock sandbox get $id result.txt --output here.txt"
)]
pub(super) struct GetOptions {
    /// The sandbox
    id: String,
    /// The file, below /workspace
    name: PathBuf,
    /// The file to create; an existing one is not overwritten [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn put(options: &PutOptions, client: &Client) -> Result<u8, Failure> {
    let is_stdin = options.file.as_os_str() == "-";
    let own = (!is_stdin).then(|| file_name(&options.file)).flatten();
    let name =
        options.name.clone().or(own).ok_or_else(|| {
            Failure::invalid("standard input has no file name", "add --name PATH")
        })?;
    let failed = |error: io::Error| {
        Failure::invalid(
            format!("cannot read `{}`: {error}", options.file.display()),
            "give a file of this machine",
        )
    };
    let (from, length): (Box<dyn Read + Send>, _) = if is_stdin {
        (Box::new(io::stdin()), None)
    } else {
        let file = File::open(&options.file).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        (Box::new(file), metadata.is_file().then_some(metadata.len()))
    };
    let ask = ClientRequest::new(Method::PUT, file_path(&options.id, &name)?);
    client
        .send(
            ask.body(upload(from, length))
                .response_timeout(UPLOAD_TIMEOUT),
        )
        .await?;
    Ok(0)
}

pub(super) async fn get(options: &GetOptions, client: &Client) -> Result<u8, Failure> {
    let answer = client
        .send(ClientRequest::get(file_path(&options.id, &options.name)?))
        .await?;
    let Some(path) = &options.output else {
        copy_body(answer, &mut OutputTarget::stdout()).await?;
        return Ok(0);
    };
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| {
            Failure::invalid(
                format!("cannot create `{}`: {error}", path.display()),
                "give --output a new file",
            )
        })?;
    let size = copy_body(answer, &mut OutputTarget::File(file)).await?;
    message::print(&[Message::Note(format!(
        "wrote `{}` ({size} bytes)",
        path.display()
    ))]);
    Ok(0)
}
