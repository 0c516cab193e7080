//! Artifacts of a server: listed page by page, streamed both ways, removed.

use super::{Row, Which};
use crate::{
    cli::{
        message::{self, Failure, Line},
        print_json,
        screen::{Level, Screen},
    },
    remote::{Answer, Ask, Client, query, segments, upload},
};
use http::{Method, header::CONTENT_TYPE};
use serde::Deserialize;
use serde_json::json;
use std::{
    collections::HashSet,
    fs::{File, OpenOptions},
    io::{self, IsTerminal, Read, Write},
    os::unix::ffi::OsStrExt,
    path::Path,
    time::Duration,
};

/// How long a server may take to keep what was sent.
const LONGEST_KEEPING: Duration = Duration::from_secs(3600);
/// What one question may list.
const PAGE: usize = 1000;
/// What is asked for one list at most, and kept of the answers.
const MOST_PAGES: usize = 1000;
const MOST_BYTES: usize = 256 << 20;

#[derive(Deserialize)]
struct Page {
    artifacts: Vec<Row>,
    next: Option<String>,
    #[serde(default)]
    unreadable: u64,
}

fn path(name: &[u8]) -> String {
    // A last part that is `versions` would be a question of its own.
    match name.strip_suffix(b"/versions") {
        Some(folder) => format!("/v1/artifacts/{}%2Fversions", segments(folder)),
        None => format!("/v1/artifacts/{}", segments(name)),
    }
}

fn path_of(which: &Which) -> String {
    let version = query(&[("version", which.version.map(|version| version.to_string()))]);
    format!(
        "{}{version}",
        path(which.name.as_path().as_os_str().as_bytes())
    )
}

/// All of them that fit, and what a reader should know about the list.
pub(super) async fn list(
    client: &Client,
    name: Option<&str>,
    run: Option<&str>,
) -> Result<(Vec<Row>, Vec<String>), Failure> {
    let (mut all, mut notes, mut after) = (Vec::new(), Vec::new(), None);
    let (mut seen, mut bytes) = (HashSet::new(), 0);
    while seen.len() < MOST_PAGES && bytes <= MOST_BYTES {
        let asked = [
            ("name", name.map(str::to_owned)),
            ("run_id", run.map(str::to_owned)),
            ("limit", Some(PAGE.to_string())),
            ("after", after.clone()),
        ];
        let text = client
            .ask(Ask::get(format!("/v1/artifacts{}", query(&asked))))
            .await?
            .text()
            .await?;
        bytes += text.len();
        let page: Page = client.read(&text)?;
        all.extend(page.artifacts);
        if page.unreadable > 0 {
            notes.push(format!("{} versions could not be read", page.unreadable));
        }
        let Some(next) = page.next else {
            return Ok((all, notes));
        };
        if !seen.insert(next.clone()) {
            return Err(client.foreign("its list goes in circles").into());
        }
        after = Some(next);
    }
    notes.push("there is more than this list shows".to_owned());
    Ok((all, notes))
}

/// What is known of one version.
pub(super) async fn one(client: &Client, which: &Which) -> Result<Row, Failure> {
    let name = which.name.as_path().to_string_lossy();
    let (rows, _) = list(client, Some(&name), None).await?;
    let mut fits = rows
        .into_iter()
        .filter(|row| which.version.is_none_or(|version| row.version == version));
    let missing = || {
        Failure::invalid(
            format!("no artifact is called `{name}`"),
            "`airlock artifact list` shows the names",
        )
    };
    fits.next_back().ok_or_else(missing)
}

/// Copies the bytes to a new file, or to standard output, which then carries nothing else.
pub(super) async fn get(
    client: &Client,
    which: &Which,
    output: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    if output.is_none() && json {
        return Err(Failure::invalid(
            "--json needs a file for the bytes",
            "add --output FILE",
        ));
    }
    let answer = client.ask(Ask::get(path_of(which))).await?;
    let Some(path) = output else {
        return pour(answer, &mut Out::stdout()).await.map(drop);
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
    match json {
        true => print_json(&json!({ "name": which.name.as_path(), "size_bytes": size })),
        false => {
            message::say(&[Line::Note(format!(
                "wrote `{}` ({size} bytes)",
                path.display()
            ))]);
            Ok(())
        }
    }
}

/// Where bytes go.
pub(in crate::cli) enum Out {
    File(File),
    Stdout,
    /// A terminal, which gets only what is fit for it.
    Screen(Box<Screen>),
}

impl Out {
    /// Standard output, whatever it is.
    pub(in crate::cli) fn stdout() -> Out {
        match io::stdout().is_terminal() {
            true => Out::Screen(Box::new(Screen::new(Level::Lines))),
            false => Out::Stdout,
        }
    }

    pub(in crate::cli) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Out::File(file) => file.write_all(bytes),
            Out::Stdout => io::stdout().lock().write_all(bytes),
            Out::Screen(screen) => io::stdout().lock().write_all(&screen.show(bytes)),
        }
    }

    /// Shows what was written, though more will come.
    pub(in crate::cli) fn flush(&mut self) -> io::Result<()> {
        match self {
            Out::File(_) => Ok(()),
            Out::Stdout | Out::Screen(_) => io::stdout().lock().flush(),
        }
    }

    pub(in crate::cli) fn finish(&mut self) -> io::Result<()> {
        match self {
            Out::File(_) => Ok(()),
            Out::Stdout => io::stdout().lock().flush(),
            Out::Screen(screen) => {
                io::stdout().lock().write_all(&screen.finish())?;
                io::stdout().lock().flush()
            }
        }
    }
}

/// Writes the body of an answer as it comes; how much it was. Nobody to read it is no failure of ours.
pub(in crate::cli) async fn pour(mut answer: Answer, out: &mut Out) -> Result<u64, Failure> {
    let failed = |error: io::Error| Failure::internal(format!("cannot write what came: {error}"));
    let mut size = 0;
    while let Some(piece) = answer.piece().await? {
        match out.write(&piece) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(size),
            written => written.map_err(failed)?,
        }
        size += piece.len() as u64;
    }
    out.finish().map_err(failed)?;
    Ok(size)
}

/// Removes versions; how many.
pub(super) async fn remove(client: &Client, which: &Which) -> Result<u64, Failure> {
    #[derive(Deserialize)]
    struct Removed {
        removed: u64,
    }
    let Removed { removed } = client
        .json(Ask::new(Method::DELETE, path_of(which)))
        .await?;
    Ok(removed)
}

/// Keeps bytes as the next version of a name.
pub(super) async fn put(
    client: &Client,
    name: &[u8],
    from: impl Read + Send + 'static,
    length: Option<u64>,
    content_type: Option<&str>,
) -> Result<Row, Failure> {
    let ask = Ask::new(Method::PUT, path(name))
        .body(upload(from, length))
        .patience(LONGEST_KEEPING);
    let ask = match content_type {
        Some(kind) => ask.header(CONTENT_TYPE, kind),
        None => ask,
    };
    Ok(client.json(ask).await?)
}
