//! Artifacts at a server: listed by page, streamed in both directions, removed.

use super::{Row, VersionedName};
use crate::{
    cli::{
        message::{self, Failure, Message},
        print_json,
        terminal_filter::{FilterLevel, TerminalFilter},
    },
    remote::{Client, ClientRequest, ClientResponse, query, segments, upload},
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

/// How long a server may take to store an upload.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3600);
/// Artifacts in one page.
const PAGE_SIZE: usize = 1000;
/// Bounds for one list: pages requested, and bytes of their answers.
const MAX_PAGES: usize = 1000;
const MAX_LIST_BYTES: usize = 256 << 20;

#[derive(Deserialize)]
struct ArtifactPage {
    artifacts: Vec<Row>,
    next: Option<String>,
    #[serde(default)]
    unreadable: u64,
}

fn path(name: &[u8]) -> String {
    // A last segment `versions` would match the route that lists versions.
    match name.strip_suffix(b"/versions") {
        Some(folder) => format!("/v1/artifacts/{}%2Fversions", segments(folder)),
        None => format!("/v1/artifacts/{}", segments(name)),
    }
}

fn version_path(which: &VersionedName) -> String {
    let version = query(&[("version", which.version.map(|version| version.to_string()))]);
    format!(
        "{}{version}",
        path(which.name.as_path().as_os_str().as_bytes())
    )
}

/// All matching artifacts, with notes about an incomplete list.
pub(super) async fn list(
    client: &Client,
    name: Option<&str>,
    run: Option<&str>,
) -> Result<(Vec<Row>, Vec<String>), Failure> {
    let mut all = Vec::new();
    let mut notes = Vec::new();
    let mut after = None;
    let mut seen = HashSet::new();
    let mut bytes = 0;
    while seen.len() < MAX_PAGES && bytes <= MAX_LIST_BYTES {
        let parameters = [
            ("name", name.map(str::to_owned)),
            ("run_id", run.map(str::to_owned)),
            ("limit", Some(PAGE_SIZE.to_string())),
            ("after", after.clone()),
        ];
        let text = client
            .send(ClientRequest::get(format!(
                "/v1/artifacts{}",
                query(&parameters)
            )))
            .await?
            .text()
            .await?;
        bytes += text.len();
        let page: ArtifactPage = client.read(&text)?;
        all.extend(page.artifacts);
        if page.unreadable > 0 {
            notes.push(format!("{} versions could not be read", page.unreadable));
        }
        let Some(next) = page.next else {
            return Ok((all, notes));
        };
        if !seen.insert(next.clone()) {
            return Err(client.not_airlock("its list repeats pages").into());
        }
        after = Some(next);
    }
    notes.push("the list is incomplete".to_owned());
    Ok((all, notes))
}

/// The data of one version; the newest unless one is named.
pub(super) async fn find(client: &Client, which: &VersionedName) -> Result<Row, Failure> {
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
    which: &VersionedName,
    output: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    if output.is_none() && json {
        return Err(Failure::invalid(
            "--json needs a file for the bytes",
            "add --output FILE",
        ));
    }
    let answer = client.send(ClientRequest::get(version_path(which))).await?;
    let Some(path) = output else {
        return copy_body(answer, &mut OutputTarget::stdout())
            .await
            .map(drop);
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
    if json {
        print_json(&json!({ "name": which.name.as_path(), "size_bytes": size }))
    } else {
        message::print(&[Message::Note(format!(
            "wrote `{}` ({size} bytes)",
            path.display()
        ))]);
        Ok(())
    }
}

/// Where a response body is written.
pub(in crate::cli) enum OutputTarget {
    File(File),
    Stdout,
    /// A terminal, behind the terminal filter.
    Terminal(Box<TerminalFilter>),
}

impl OutputTarget {
    /// Standard output, filtered if it is a terminal.
    pub(in crate::cli) fn stdout() -> OutputTarget {
        if io::stdout().is_terminal() {
            OutputTarget::Terminal(Box::new(TerminalFilter::new(FilterLevel::Lines)))
        } else {
            OutputTarget::Stdout
        }
    }

    pub(in crate::cli) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            OutputTarget::File(file) => file.write_all(bytes),
            OutputTarget::Stdout => io::stdout().lock().write_all(bytes),
            OutputTarget::Terminal(filter) => io::stdout().lock().write_all(&filter.show(bytes)),
        }
    }

    /// Flushes, although more output may follow.
    pub(in crate::cli) fn flush(&mut self) -> io::Result<()> {
        match self {
            OutputTarget::File(_) => Ok(()),
            OutputTarget::Stdout | OutputTarget::Terminal(_) => io::stdout().lock().flush(),
        }
    }

    pub(in crate::cli) fn finish(&mut self) -> io::Result<()> {
        match self {
            OutputTarget::File(_) => Ok(()),
            OutputTarget::Stdout => io::stdout().lock().flush(),
            OutputTarget::Terminal(filter) => {
                io::stdout().lock().write_all(&filter.finish())?;
                io::stdout().lock().flush()
            }
        }
    }
}

/// Copies a response body as it arrives and returns its size. A closed pipe is no error.
pub(in crate::cli) async fn copy_body(
    mut answer: ClientResponse,
    out: &mut OutputTarget,
) -> Result<u64, Failure> {
    let failed = |error: io::Error| Failure::internal(format!("cannot write the output: {error}"));
    let mut size = 0;
    while let Some(chunk) = answer.chunk().await? {
        match out.write(&chunk) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(size),
            written => written.map_err(failed)?,
        }
        size += chunk.len() as u64;
    }
    out.finish().map_err(failed)?;
    Ok(size)
}

/// Removes versions and returns how many there were.
pub(super) async fn remove(client: &Client, which: &VersionedName) -> Result<u64, Failure> {
    #[derive(Deserialize)]
    struct RemoveResponse {
        removed: u64,
    }
    let RemoveResponse { removed } = client
        .json(ClientRequest::new(Method::DELETE, version_path(which)))
        .await?;
    Ok(removed)
}

/// Uploads bytes as the next version of a name.
pub(super) async fn put(
    client: &Client,
    name: &[u8],
    from: impl Read + Send + 'static,
    length: Option<u64>,
    content_type: Option<&str>,
) -> Result<Row, Failure> {
    let ask = ClientRequest::new(Method::PUT, path(name))
        .body(upload(from, length))
        .response_timeout(UPLOAD_TIMEOUT);
    let ask = match content_type {
        Some(kind) => ask.header(CONTENT_TYPE, kind),
        None => ask,
    };
    Ok(client.json(ask).await?)
}
