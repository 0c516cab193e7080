//! The client of a run's control socket.

use super::{
    ControlRequest, ControlResponse, EXTENSION, IO_TIMEOUT, MAX_LINE_BYTES, RuleInfo, by_handle,
};
use crate::{doors::door_file_name, record};
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

/// The longest response; a longer list of rules is not an answer.
const MAX_RESPONSE_BYTES: u64 = 16 * MAX_LINE_BYTES;

/// Why the rules of a run cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no such run.
    #[error("no run is called `{run}`, or it has ended")]
    NoSuchRun {
        /// The id.
        run: Id,
        /// Runs with a control socket.
        others: Vec<String>,
    },
    /// The run has no egress door.
    #[error("the run `{run}` has no egress door")]
    NoDoor {
        /// The run.
        run: Id,
    },
    /// The request was refused, or the response was invalid.
    #[error("{}", .0.message)]
    Refused(ErrorInfo),
    /// The socket could not be used.
    #[error("cannot ask the run `{run}`: {source}")]
    Unreached {
        /// The run.
        run: Id,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Sends a request to a run of this state folder; returns the rules that hold then.
pub fn send_request(
    state: &Path,
    run: &Id,
    request: &ControlRequest,
) -> Result<Vec<RuleInfo>, ControlError> {
    let unreached = |source| ControlError::Unreached {
        run: run.clone(),
        source,
    };
    let answer = match connect(state, run) {
        Ok(stream) => exchange(stream, request).map_err(unreached)?,
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
    let socket = open_at(&folder, &door_file_name(run, EXTENSION), OFlags::PATH)?;
    let stream = UnixStream::connect(by_handle(&socket))?;
    // Root may connect for other users: a symbolic link that they placed must not lead to another
    // user's run.
    let owner = state.metadata()?.uid();
    let own = folder.metadata()?.uid();
    let answers = sockopt::socket_peercred(&stream)?.uid.as_raw();
    if (own, answers) != (owner, owner) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "who answers is not the owner of the state folder",
        ));
    }
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    Ok(stream)
}

/// Opens a name in a folder without following a symbolic link.
fn open_at(folder: &File, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?.into())
}

fn exchange(mut stream: UnixStream, request: &ControlRequest) -> io::Result<ControlResponse> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream)
        .take(MAX_RESPONSE_BYTES)
        .read_until(b'\n', &mut answer)?;
    if answer.is_empty() {
        Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it ended meanwhile",
        ))
    } else {
        Ok(serde_json::from_slice(&answer)?)
    }
}

/// A socket that does not exist or on which nobody listens has one of three causes.
fn absent(state: &Path, run: &Id, error: io::Error) -> ControlError {
    let run = run.clone();
    match error.kind() {
        io::ErrorKind::NotFound if record::has_owner(state, &run) => ControlError::NoDoor { run },
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let others = others(state);
            ControlError::NoSuchRun { run, others }
        }
        _ => ControlError::Unreached { run, source: error },
    }
}

/// The runs whose control socket answers and whose names are not hashed.
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
