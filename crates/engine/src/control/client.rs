//! Who asks: finds the socket of a run, and says why there is none.

use super::{Answer, Ask, EXTENSION, LONGEST_LINE, PATIENCE, Told, by_handle};
use crate::{doors::called, record};
use rustix::{
    fs::{Mode, OFlags},
    net::sockopt,
};
use spec::{ErrorCode, ErrorInfo, Id};
use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
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
    let unreached = |source| ControlError::Unreached {
        run: run.clone(),
        source,
    };
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
    let message = answer
        .message
        .unwrap_or_else(|| "the run refused, and did not say why".to_owned());
    Err(ControlError::Refused(ErrorInfo {
        code,
        message,
        hint: answer.hint,
    }))
}

fn connect(state: &Path, run: &Id) -> io::Result<UnixStream> {
    let state = File::open(state)?;
    let folder = open_at(&state, "doors", OFlags::DIRECTORY)?;
    let socket = open_at(&folder, &called(run, EXTENSION), OFlags::PATH)?;
    let stream = UnixStream::connect(by_handle(&socket))?;
    // Root asks for others: what they put there may lead to a run that is not theirs.
    let (owner, own) = (state.metadata()?.uid(), folder.metadata()?.uid());
    let answers = sockopt::socket_peercred(&stream)?.uid.as_raw();
    if (own, answers) != (owner, owner) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "who answers is not the owner of the state folder",
        ));
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// What is in a folder by this name, and not what it leads to.
fn open_at(folder: &File, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?.into())
}

fn exchange(mut stream: UnixStream, ask: &Ask) -> io::Result<Answer> {
    let mut line = serde_json::to_vec(ask)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream)
        .take(LONGEST_ANSWER)
        .read_until(b'\n', &mut answer)?;
    match answer.is_empty() {
        true => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it ended meanwhile",
        )),
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

/// The runs of which somebody listens, and whose names can be told.
fn others(state: &Path) -> Vec<String> {
    let Ok(folder) = File::open(state.join("doors")) else {
        return Vec::new();
    };
    let place = by_handle(&folder);
    let Ok(entries) = fs::read_dir(&place) else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let listens = |name: &String| UnixStream::connect(place.join(name)).is_ok();
    let is_control = |name: &String| {
        Path::new(name)
            .extension()
            .is_some_and(|end| end == EXTENSION)
    };
    let mut runs: Vec<String> = names
        .filter(|name| is_control(name) && listens(name))
        .map(|name| name[..name.len() - EXTENSION.len() - 1].to_owned())
        .filter(|name| Id::new(name).is_ok())
        .collect();
    runs.sort();
    runs
}
