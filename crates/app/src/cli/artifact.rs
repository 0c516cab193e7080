//! `airlock artifact`: lists, fetches and removes what runs have kept.

mod remote;

pub(super) use remote::{Out, pour};

use super::{
    Global, conclude,
    message::{self, Failure, Line, printable},
    open_engine, print, print_json,
    screen::{Level, Screen},
};
use crate::{config::Surroundings, remote::Client};
use clap::{Args, Subcommand};
use engine::Engine;
use spec::{ErrorCode, WorkspacePath};
use std::{
    fs::{File, OpenOptions},
    io::{self, IsTerminal, Read, Write},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Examples:
  airlock run --artifact out.txt -- sh -c 'date > out.txt'
  airlock artifact list
  airlock artifact get out.txt
  airlock artifact get out.txt@1 --output first.txt
  airlock artifact rm out.txt@1";

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
    /// List every version of everything kept
    List,
    /// Write an artifact to standard output, or to a new file
    Get {
        /// The newest version, unless @VERSION says another
        #[arg(value_name = "NAME[@VERSION]")]
        which: PathBuf,
        /// The file to make; one that exists is not overwritten
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Remove an artifact: all versions, unless @VERSION names one
    Rm {
        /// What to remove
        #[arg(value_name = "NAME[@VERSION]")]
        which: PathBuf,
    },
}

/// One artifact as named on the command line.
#[derive(Debug, PartialEq, Eq)]
struct Which {
    name: WorkspacePath,
    version: Option<u64>,
}

/// One kept version, as it is shown.
#[derive(Debug, serde::Deserialize, serde::Serialize)]
struct Row {
    name: String,
    version: u64,
    size_bytes: u64,
    sha256: String,
    kept_at: String,
    run_id: Option<String>,
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    let json = options.json;
    conclude(attempt(options, global, surroundings), json)
}

fn attempt(options: Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    if let Some(client) = global.server(surroundings)? {
        return super::runtime()?.block_on(at_server(options, &client));
    }
    let config = global.configure(surroundings)?;
    let runtime = super::runtime()?;
    let _within = runtime.enter();
    let open = || open_engine(&config, None);
    match options.action {
        Action::List => {
            let (rows, notes) = kept::list(&open()?);
            match options.json {
                true => print_json(&serde_json::json!({ "artifacts": rows, "notes": notes }))?,
                false => {
                    print(&text(&rows))?;
                    message::say(&notes.into_iter().map(Line::Note).collect::<Vec<_>>());
                }
            }
        }
        Action::Get { which, output } => {
            let which = which_of(&which)?;
            get(&open()?, &which, output.as_deref(), options.json)?;
        }
        Action::Rm { which } => {
            let which = which_of(&which)?;
            let removed = kept::remove(&open()?, &which)?;
            match options.json {
                true => print_json(&serde_json::json!({ "removed": removed }))?,
                false => print(&format!("{removed} removed\n"))?,
            }
        }
    }
    Ok(0)
}

/// Keeps a file of this machine at a server.
pub(super) async fn upload(client: &Client, name: &str, path: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let message = format!("cannot read `{}`: {error}", path.display());
        Failure::invalid(message, "name a file of this machine")
    };
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    remote::put(client, name.as_bytes(), file, Some(length), None).await.map(drop)
}

/// The same through a server.
async fn at_server(options: Options, client: &Client) -> Result<u8, Failure> {
    match options.action {
        Action::List => {
            let (rows, notes) = remote::list(client, None).await?;
            match options.json {
                true => print_json(&serde_json::json!({ "artifacts": rows, "notes": notes }))?,
                false => {
                    let rows = rows.into_iter().map(serde_json::from_value);
                    let rows: Vec<Row> = rows
                        .collect::<Result<_, _>>()
                        .map_err(|error| client.foreign(format!("its list cannot be read: {error}")))?;
                    print(&text(&rows))?;
                    message::say(&notes.into_iter().map(Line::Note).collect::<Vec<_>>());
                }
            }
        }
        Action::Get { which, output } => {
            remote::get(client, &which_of(&which)?, output.as_deref(), options.json).await?;
        }
        Action::Rm { which } => {
            let removed = remote::remove(client, &which_of(&which)?).await?;
            match options.json {
                true => print_json(&serde_json::json!({ "removed": removed }))?,
                false => print(&format!("{removed} removed\n"))?,
            }
        }
    }
    Ok(0)
}

/// `NAME[@VERSION]`; an `@` that no number follows belongs to the name.
fn which_of(text: &Path) -> Result<Which, Failure> {
    let (name, version) = match text.to_str().and_then(|text| text.rsplit_once('@')) {
        Some((name, digits)) => match digits.parse() {
            Ok(version) => (Path::new(name), Some(version)),
            Err(_) => (text, None),
        },
        None => (text, None),
    };
    let hint = "`airlock artifact list` shows the names";
    let name = WorkspacePath::new(name).map_err(|bad| Failure::invalid(bad.to_string(), hint))?;
    Ok(Which { name, version })
}

/// Copies the bytes to a new file, or to standard output, which then carries nothing else.
fn get(engine: &Engine, which: &Which, output: Option<&Path>, json: bool) -> Result<(), Failure> {
    let mut from = kept::open(engine, which)?;
    let Some(path) = output else {
        if json {
            return Err(Failure::invalid("--json needs a file for the bytes", "add --output FILE"));
        }
        return match write_out(&mut from) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(failed(which, &error)),
            Ok(()) | Err(_) => Ok(()),
        };
    };
    let mut to = OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| {
        let message = format!("cannot make `{}`: {error}", path.display());
        Failure { code: ErrorCode::InvalidSpec, message, hint: "give --output a new file".to_owned() }
    })?;
    let size = io::copy(&mut from, &mut to).map_err(|error| failed(which, &error))?;
    match json {
        true => print_json(&serde_json::json!({ "name": which.name.as_path(), "size_bytes": size })),
        false => {
            let note = format!("wrote `{}` ({size} bytes)", path.display());
            message::say(&[Line::Note(note)]);
            Ok(())
        }
    }
}

/// Unchanged, but for a terminal: a kept file is as hostile as the output of the run that left it.
fn write_out(from: &mut File) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if !stdout.is_terminal() {
        return io::copy(from, &mut stdout).map(drop);
    }
    let mut screen = Screen::new(Level::Lines);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => break,
            count => stdout.write_all(&screen.show(&buffer[..count]))?,
        }
    }
    stdout.write_all(&screen.finish())?;
    stdout.flush()
}

fn failed(which: &Which, error: &io::Error) -> Failure {
    Failure::internal(format!("cannot copy `{}`: {error}", which.name.as_path().display()))
}

/// Name and version, size, when, and by which run.
fn text(rows: &[Row]) -> String {
    let name = |row: &Row| format!("{}@{}", printable(&row.name), row.version);
    let width = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(0);
    let size = rows.iter().map(|row| row.size_bytes.to_string().len()).max().unwrap_or(0);
    let line = |row: &Row| {
        let run = printable(row.run_id.as_deref().unwrap_or_default());
        let text = format!("{:<width$}  {:>size$}  {}  {run}", name(row), row.size_bytes, row.kept_at);
        format!("{}\n", text.trim_end())
    };
    rows.iter().map(line).collect()
}

/// The few words this command needs of the store.
mod kept {
    use super::{Engine, ErrorCode, Failure, File, Row, Which};
    use std::error::Error;
    use store::{Kept, StoreError};

    /// What is kept, and what a reader should know about the list.
    pub(super) fn list(engine: &Engine) -> (Vec<Row>, Vec<String>) {
        let listing = engine.artifacts().list();
        let mut notes = listing.problems;
        if listing.cut {
            notes.push("there is more than this list shows".to_owned());
        }
        (listing.kept.into_iter().map(row).collect(), notes)
    }

    pub(super) fn open(engine: &Engine, which: &Which) -> Result<File, Failure> {
        let (bytes, _) = engine.artifacts().open_version(&which.name, which.version).map_err(failure)?;
        Ok(bytes)
    }

    /// The number of versions removed.
    pub(super) fn remove(engine: &Engine, which: &Which) -> Result<usize, Failure> {
        engine.artifacts().remove(&which.name, which.version).map_err(failure)
    }

    fn row(kept: Kept) -> Row {
        Row {
            name: kept.name.as_path().display().to_string(),
            version: kept.version,
            size_bytes: kept.size_bytes,
            sha256: kept.sha256,
            kept_at: kept.kept_at.to_string(),
            run_id: kept.run_id,
        }
    }

    fn failure(error: StoreError) -> Failure {
        let message = match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        let hint = "`airlock artifact list` shows what is kept".to_owned();
        Failure { code: ErrorCode::InvalidSpec, message, hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_number_after_the_last_at_sign() {
        let named = |name: &str| WorkspacePath::new(Path::new(name)).unwrap();
        let of = |text: &str| which_of(Path::new(text)).unwrap();
        assert_eq!(of("out.txt"), Which { name: named("out.txt"), version: None });
        assert_eq!(of("a/b@c@12"), Which { name: named("a/b@c"), version: Some(12) });
        assert_eq!(of("a@b"), Which { name: named("a@b"), version: None });
        assert!(which_of(Path::new("../x")).is_err());
    }

    #[test]
    fn a_list_is_aligned() {
        let row = |name: &str, version, size_bytes, run: Option<&str>| Row {
            name: name.into(),
            version,
            size_bytes,
            sha256: "ab".into(),
            kept_at: "T".into(),
            run_id: run.map(str::to_owned),
        };
        let rows = [row("a", 1, 5, None), row("long", 12, 100, Some("r"))];
        assert_eq!(text(&rows), "a@1        5  T\nlong@12  100  T  r\n");
    }
}
