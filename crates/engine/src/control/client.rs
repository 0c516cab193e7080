//! Who asks: finds the socket of a run, and says why there is none.

use super::{Answer, Ask, EXTENSION, LONGEST_LINE, PATIENCE, Told, by_handle};
use crate::record;
use spec::{ErrorCode, ErrorInfo, Id};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

/// More rules than a line can tell of, at their longest, are no answer.
const LONGEST_ANSWER: u64 = 16 * LONGEST_LINE;

/// Why the rules of a run cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody knows it.
    #[error("no run is called `{run}`, or it has ended")]
    NoSuchRun {
        /// What it was called.
        run: Id,
        /// Runs whose rules can be changed.
        others: Vec<String>,
    },
    /// It has no egress door.
    #[error("the run `{run}` has no egress door")]
    NoDoor {
        /// The run.
        run: Id,
    },
    /// It was refused, or the door did not answer as one.
    #[error("{}", .0.message)]
    Refused(ErrorInfo),
    /// It could not be asked.
    #[error("cannot ask the run `{run}`: {source}")]
    Unreached {
        /// The run.
        run: Id,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Asks a running run of this state folder, and waits for the answer: the rules as they stand then.
pub fn ask(state: &Path, run: &Id, ask: &Ask) -> Result<Vec<Told>, ControlError> {
    let unreached = |source| ControlError::Unreached { run: run.clone(), source };
    let answer = match connect(state, run) {
        Ok(stream) => exchange(stream, ask).map_err(unreached)?,
        Err(error) => return Err(absent(state, run, error)),
    };
    if answer.ok {
        return Ok(answer.rules);
    }
    let code = match answer.code.as_deref() {
        Some("invalid_spec") => ErrorCode::InvalidSpec,
        Some("policy_denied") => ErrorCode::PolicyDenied,
        _ => ErrorCode::Internal,
    };
    let message = answer.message.unwrap_or_else(|| "the run refused, and did not say why".to_owned());
    Err(ControlError::Refused(ErrorInfo { code, message, hint: answer.hint }))
}

fn connect(state: &Path, run: &Id) -> io::Result<UnixStream> {
    let folder = File::open(state.join("doors"))?;
    let stream = UnixStream::connect(by_handle(&folder).join(format!("{run}.{EXTENSION}")))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn exchange(mut stream: UnixStream, ask: &Ask) -> io::Result<Answer> {
    let mut line = serde_json::to_vec(ask)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream).take(LONGEST_ANSWER).read_until(b'\n', &mut answer)?;
    match answer.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended meanwhile")),
        false => Ok(serde_json::from_slice(&answer)?),
    }
}

/// A socket that is not there, or at which nobody listens, means one of three things.
fn absent(state: &Path, run: &Id, error: io::Error) -> ControlError {
    let run = run.clone();
    match error.kind() {
        io::ErrorKind::NotFound if record::lives(state, &run) => ControlError::NoDoor { run },
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let others = others(state);
            ControlError::NoSuchRun { run, others }
        }
        _ => ControlError::Unreached { run, source: error },
    }
}

/// The runs of which somebody listens.
fn others(state: &Path) -> Vec<String> {
    let Ok(folder) = File::open(state.join("doors")) else { return Vec::new() };
    let place = by_handle(&folder);
    let Ok(entries) = fs::read_dir(&place) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let listens = |name: &String| UnixStream::connect(place.join(name)).is_ok();
    let is_control = |name: &String| Path::new(name).extension().is_some_and(|end| end == EXTENSION);
    let mut runs: Vec<String> = names
        .filter(|name| is_control(name) && listens(name))
        .map(|name| name[..name.len() - EXTENSION.len() - 1].to_owned())
        .collect();
    runs.sort();
    runs
}
