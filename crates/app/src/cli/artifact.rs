//! `airlock artifact`: lists, shows, fetches, stores and removes artifacts.

mod remote;

pub(super) use remote::{OutputTarget, copy_body};

use super::{
    Global, conclude,
    message::{self, Failure, Message, printable},
    open_engine, print, print_json, print_lines,
    terminal_filter::{FilterLevel, TerminalFilter},
};
use crate::{config::ProcessEnv, remote::Client};
use bytes::Bytes;
use clap::{Args, Subcommand};
use engine::Engine;
use spec::{ErrorCode, WorkspacePath};
use std::{
    error::Error,
    fs::{File, OpenOptions},
    io::{self, IsTerminal, Read, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};
use store::{
    ArtifactError, ArtifactOwner, ArtifactQuery, Lineage, NewArtifact, StoredArtifact,
    VersionReader,
};

const EXAMPLES: &str = "\
Examples:
  airlock run --artifact out.txt -- sh -c 'date > out.txt'
  airlock artifact list
  airlock artifact list --name '*.txt' --json
  airlock artifact show out.txt
  airlock artifact get out.txt
  airlock artifact get out.txt@1 --output first.txt
  airlock artifact put first.txt --name copies/first.txt
  airlock artifact rm out.txt@1";

/// Bytes read from a file at once.
const CHUNK_BYTES: usize = 256 << 10;

/// The options of `airlock artifact`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List all versions of all artifacts
    List {
        /// Only these names; `*` matches any characters
        #[arg(long, value_name = "GLOB")]
        name: Option<String>,
        /// Only artifacts of this run
        #[arg(long, value_name = "ID")]
        run: Option<String>,
    },
    /// Show where an artifact comes from
    Show {
        /// The newest version, unless @VERSION says another
        #[arg(value_name = "NAME[@VERSION]")]
        which: PathBuf,
    },
    /// Write an artifact to standard output or to a new file
    Get {
        /// The newest version, unless @VERSION says another
        #[arg(value_name = "NAME[@VERSION]")]
        which: PathBuf,
        /// The file to create; an existing one is not overwritten
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Store a file as the next version of an artifact
    Put {
        /// The file; `-` is standard input, which needs --name
        file: PathBuf,
        /// The artifact's name [default: the name of the file]
        #[arg(long, value_name = "NAME")]
        name: Option<PathBuf>,
        /// Its content type [default: guessed from the name]
        #[arg(long, value_name = "TYPE")]
        content_type: Option<String>,
    },
    /// Remove an artifact: all versions, unless @VERSION selects one
    Rm {
        /// The artifact to remove
        #[arg(value_name = "NAME[@VERSION]")]
        which: PathBuf,
    },
}

/// An artifact name with an optional version, as given on the command line.
#[derive(Debug, PartialEq, Eq)]
struct VersionedName {
    name: WorkspacePath,
    version: Option<u64>,
}

/// One stored version, as `--json` prints it.
#[derive(Debug, serde::Deserialize, serde::Serialize)]
struct Row {
    name: String,
    version: u64,
    size_bytes: u64,
    sha256: String,
    content_type: String,
    kept_at: String,
    #[serde(flatten)]
    lineage: Lineage,
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    let json = options.json;
    conclude(attempt(options, global, env), json)
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    if let Some(client) = global.server(env)? {
        return super::runtime()?.block_on(at_server(options, &client));
    }
    let config = global.configure(env)?;
    let runtime = super::runtime()?;
    let _within = runtime.enter();
    let open = || open_engine(&config, None);
    let json = options.json;
    match options.action {
        Action::List { name, run } => {
            let engine = open()?;
            runtime.block_on(list(&engine, name.as_deref(), run.as_deref(), json))?;
        }
        Action::Show { which } => {
            let which = parse_name(&which)?;
            let engine = open()?;
            let reading = runtime.block_on(open_version(&engine, &which))?;
            show(row(reading.artifact().clone()), json)?;
        }
        Action::Get { which, output } => {
            let which = parse_name(&which)?;
            let engine = open()?;
            runtime.block_on(get(&engine, &which, output.as_deref(), json))?;
        }
        Action::Put {
            file,
            name,
            content_type,
        } => {
            let (new, source) = open_source(&file, name.as_deref(), content_type)?;
            let engine = open()?;
            show_kept(row(runtime.block_on(put(&engine, new, source))?), json)?;
        }
        Action::Rm { which } => {
            let which = parse_name(&which)?;
            let engine = open()?;
            let owner = ArtifactOwner::local();
            let removing = engine
                .artifacts()
                .remove(&owner, &which.name, which.version);
            show_removed(runtime.block_on(removing).map_err(failure)? as u64, json)?;
        }
    }
    Ok(0)
}

/// Uploads a local file as an artifact of a server.
pub(super) async fn upload(client: &Client, name: &str, path: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let message = format!("cannot read `{}`: {error}", path.display());
        Failure::invalid(message, "name a file of this machine")
    };
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    remote::put(client, name.as_bytes(), file, Some(length), None)
        .await
        .map(drop)
}

/// Carries out the command at a server.
async fn at_server(options: Options, client: &Client) -> Result<u8, Failure> {
    let json = options.json;
    match options.action {
        Action::List { name, run } => {
            let pattern = pattern(name.as_deref())?;
            let (mut rows, notes) = remote::list(client, None, run.as_deref()).await?;
            rows.retain(|row: &Row| {
                pattern
                    .as_ref()
                    .is_none_or(|pattern| pattern.matches(&row.name))
            });
            show_list(&rows, notes, json)?;
        }
        Action::Show { which } => show(remote::find(client, &parse_name(&which)?).await?, json)?,
        Action::Put {
            file,
            name,
            content_type,
        } => {
            let (new, source) = open_source(&file, name.as_deref(), content_type)?;
            let name = new.name.as_path().as_os_str().as_bytes().to_owned();
            let kept =
                remote::put(client, &name, source, None, new.content_type.as_deref()).await?;
            show_kept(kept, json)?;
        }
        Action::Get { which, output } => {
            remote::get(client, &parse_name(&which)?, output.as_deref(), json).await?;
        }
        Action::Rm { which } => {
            show_removed(remote::remove(client, &parse_name(&which)?).await?, json)?;
        }
    }
    Ok(0)
}

/// `NAME[@VERSION]`; an `@` that no number follows belongs to the name.
fn parse_name(text: &Path) -> Result<VersionedName, Failure> {
    let (name, version) = match text.to_str().and_then(|text| text.rsplit_once('@')) {
        Some((name, digits)) => match digits.parse() {
            Ok(version) => (Path::new(name), Some(version)),
            Err(_) => (text, None),
        },
        None => (text, None),
    };
    let hint = "`airlock artifact list` shows the names";
    let name = WorkspacePath::new(name).map_err(|bad| Failure::invalid(bad.to_string(), hint))?;
    Ok(VersionedName { name, version })
}

/// Lists artifacts of local runs. Artifacts of server keys are listed through the server.
async fn list(
    engine: &Engine,
    glob: Option<&str>,
    run_id: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let pattern = pattern(glob)?;
    let fits = |name: &WorkspacePath| {
        pattern
            .as_ref()
            .is_none_or(|pattern| pattern.matches(&name.as_path().to_string_lossy()))
    };
    let owner = ArtifactOwner::local();
    let wanted = ArtifactQuery {
        name: &fits,
        run_id,
        ..ArtifactQuery::all(Some(&owner))
    };
    let listing = engine.artifacts().list(wanted).await;
    let mut notes = listing.problems;
    if listing.truncated {
        notes.push("the list is incomplete".to_owned());
    }
    let rows: Vec<_> = listing.kept.into_iter().map(row).collect();
    show_list(&rows, notes, json)
}

fn pattern(glob: Option<&str>) -> Result<Option<spec::ModelPattern>, Failure> {
    let pattern = glob
        .map(|glob| glob.parse::<spec::ModelPattern>())
        .transpose();
    pattern
        .map_err(|_| Failure::invalid("--name is not a valid pattern", "write a name, or '*.txt'"))
}

fn show_list(rows: &[Row], notes: Vec<String>, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&serde_json::json!({ "artifacts": rows, "notes": notes }));
    }
    print_lines(text(rows))?;
    message::print(&notes.into_iter().map(Message::Note).collect::<Vec<_>>());
    Ok(())
}

fn show_removed(removed: u64, json: bool) -> Result<(), Failure> {
    if json {
        print_json(&serde_json::json!({ "removed": removed }))
    } else {
        print(&format!("{removed} removed\n"))
    }
}

async fn open_version(engine: &Engine, which: &VersionedName) -> Result<VersionReader, Failure> {
    engine
        .artifacts()
        .open_version(&ArtifactOwner::local(), &which.name, which.version)
        .await
        .map_err(failure)
}

/// Copies the bytes to a new file, or to standard output, which then carries nothing else.
async fn get(
    engine: &Engine,
    which: &VersionedName,
    output: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let mut from = open_version(engine, which).await?;
    let Some(path) = output else {
        if json {
            return Err(Failure::invalid(
                "--json needs a file for the bytes",
                "add --output FILE",
            ));
        }
        return write_out(&mut from, which).await;
    };
    let mut to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| {
            let message = format!("cannot create `{}`: {error}", path.display());
            Failure {
                code: ErrorCode::InvalidSpec,
                message,
                hint: "give --output a new file".to_owned(),
            }
        })?;
    let mut size = 0;
    while let Some(bytes) = from.next().await.map_err(failure)? {
        to.write_all(&bytes)
            .map_err(|error| failed(which, &error))?;
        size += bytes.len();
    }
    if json {
        print_json(&serde_json::json!({ "name": which.name.as_path(), "size_bytes": size }))
    } else {
        let note = format!("wrote `{}` ({size} bytes)", path.display());
        message::print(&[Message::Note(note)]);
        Ok(())
    }
}

/// Bytes pass unchanged, except to a terminal: an artifact is as hostile as the run that wrote it.
async fn write_out(from: &mut VersionReader, which: &VersionedName) -> Result<(), Failure> {
    let mut filter = io::stdout()
        .is_terminal()
        .then(|| TerminalFilter::new(FilterLevel::Lines));
    let write = |bytes: &[u8]| {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(which, &error)),
            Err(_) => Ok(false),
            Ok(()) => Ok(true),
        }
    };
    while let Some(bytes) = from.next().await.map_err(failure)? {
        let goes_on = match &mut filter {
            Some(filter) => write(&filter.show(&bytes))?,
            None => write(&bytes)?,
        };
        if !goes_on {
            return Ok(());
        }
    }
    if let Some(filter) = &mut filter {
        write(&filter.finish())?;
    }
    Ok(())
}

fn open_source(
    file: &Path,
    name: Option<&Path>,
    content_type: Option<String>,
) -> Result<(NewArtifact, Box<dyn Read + Send>), Failure> {
    let stdin = file == Path::new("-");
    let named = name.or_else(|| file.file_name().filter(|_| !stdin).map(Path::new));
    let named =
        named.ok_or_else(|| Failure::invalid("the artifact needs a name", "add --name NAME"))?;
    let bad = |bad: spec::BadPath| {
        Failure::invalid(bad.to_string(), "give --name a relative name without `..`")
    };
    let new = NewArtifact {
        content_type,
        ..NewArtifact::local(WorkspacePath::new(named).map_err(bad)?)
    };
    if stdin {
        return Ok((new, Box::new(io::stdin())));
    }
    let open_version = File::open(file).map_err(|error| {
        Failure::invalid(
            format!("cannot read `{}`: {error}", file.display()),
            "name a file that you may read",
        )
    })?;
    Ok((new, Box::new(open_version)))
}

async fn put(
    engine: &Engine,
    new: NewArtifact,
    mut source: Box<dyn Read + Send>,
) -> Result<StoredArtifact, Failure> {
    let mut putting = engine.artifacts().begin(new).await.map_err(failure)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(again) if again.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Failure::invalid(
                    format!("the file cannot be read: {error}"),
                    "name another file",
                ));
            }
        };
        putting
            .write(Bytes::copy_from_slice(&buffer[..count]))
            .await
            .map_err(failure)?;
    }
    putting.finish(None).await.map_err(failure)
}

fn show_kept(row: Row, json: bool) -> Result<(), Failure> {
    if json {
        print_json(&row)
    } else {
        print_lines([format!(
            "{}@{}  {}  {}",
            row.name, row.version, row.size_bytes, row.sha256
        )])
    }
}

/// Prints one version's data, one field a line.
fn show(row: Row, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(&row);
    }
    let command = row.lineage.command.as_ref().map(|words| words.join(" "));
    let lines = [
        ("name", Some(row.name)),
        ("version", Some(row.version.to_string())),
        ("size", Some(format!("{} bytes", row.size_bytes))),
        ("sha256", Some(row.sha256)),
        ("content type", Some(row.content_type)),
        ("kept at", Some(row.kept_at)),
        ("run", row.lineage.run_id),
        ("session", row.lineage.session_id),
        ("command", command),
        ("policy hash", row.lineage.policy_hash),
    ];
    let line = |(name, value): (&str, Option<String>)| Some(format!("{name:<12}  {}", value?));
    print_lines(lines.into_iter().filter_map(line))
}

fn failed(which: &VersionedName, error: &io::Error) -> Failure {
    Failure::internal(format!(
        "cannot copy `{}`: {error}",
        which.name.as_path().display()
    ))
}

fn row(kept: StoredArtifact) -> Row {
    Row {
        name: kept.name.as_path().display().to_string(),
        version: kept.version,
        size_bytes: kept.size_bytes,
        sha256: kept.sha256,
        content_type: kept.content_type,
        kept_at: kept.kept_at.to_string(),
        lineage: kept.lineage,
    }
}

fn failure(error: ArtifactError) -> Failure {
    let message = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let (code, hint) = match error {
        ArtifactError::Quota { .. } | ArtifactError::TooLarge { .. } => (
            ErrorCode::QuotaExceeded,
            "remove what is not needed, or raise the limits in [artifacts]",
        ),
        ArtifactError::ContentType { .. } => {
            (ErrorCode::InvalidSpec, "write a type such as text/plain")
        }
        ArtifactError::Name { .. } => (ErrorCode::InvalidSpec, "choose another name with --name"),
        _ => (
            ErrorCode::InvalidSpec,
            "`airlock artifact list` shows the artifacts",
        ),
    };
    Failure {
        code,
        message,
        hint: hint.to_owned(),
    }
}

/// The list as a table: name and version, size, time, run.
fn text(rows: &[Row]) -> Vec<String> {
    let name = |row: &Row| format!("{}@{}", printable(&row.name), row.version);
    let width = rows
        .iter()
        .map(|row| name(row).chars().count())
        .max()
        .unwrap_or(0);
    let size = rows
        .iter()
        .map(|row| row.size_bytes.to_string().len())
        .max()
        .unwrap_or(0);
    let line = |row: &Row| {
        let run = row.lineage.run_id.as_deref().unwrap_or_default();
        format!(
            "{:<width$}  {:>size$}  {}  {run}",
            name(row),
            row.size_bytes,
            row.kept_at
        )
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_number_after_the_last_at_sign() {
        let named = |name: &str| WorkspacePath::new(Path::new(name)).unwrap();
        let of = |text: &str| parse_name(Path::new(text)).unwrap();
        assert_eq!(
            of("out.txt"),
            VersionedName {
                name: named("out.txt"),
                version: None
            }
        );
        assert_eq!(
            of("a/b@c@12"),
            VersionedName {
                name: named("a/b@c"),
                version: Some(12)
            }
        );
        assert_eq!(
            of("a@b"),
            VersionedName {
                name: named("a@b"),
                version: None
            }
        );
        assert!(parse_name(Path::new("../x")).is_err());
    }

    #[test]
    fn a_list_is_aligned() {
        let row = |name: &str, version, size_bytes, run: Option<&str>| Row {
            name: name.into(),
            version,
            size_bytes,
            sha256: "ab".into(),
            kept_at: "T".into(),
            content_type: "t/t".into(),
            lineage: Lineage {
                run_id: run.map(str::to_owned),
                ..Lineage::default()
            },
        };
        let rows = [row("a", 1, 5, None), row("long", 12, 100, Some("r"))];
        assert_eq!(text(&rows), ["a@1        5  T  ", "long@12  100  T  r"]);
    }
}
