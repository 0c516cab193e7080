//! Boxes without a call: one that shows at the start what is wrong, and compiles the runner; and those in which a tool's code is
//! asked what it is, which reach nobody.

use super::{
    Inner, places,
    profile::Profile,
    room::{self, Kind, NoRoom, Room},
    run::{excuse, internal, no_room, printed},
};
use crate::{
    tools::{Code, What},
    wire::code::{self, Refusal},
};
use spec::{Status, Stream};
use std::{
    ffi::OsString,
    os::fd::AsFd,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// What a program that is asked for a schema may print.
const LARGEST_ANSWER: u64 = 4 << 20;
/// How long compiling may take.
const LONGEST_COMPILING: Duration = Duration::from_secs(60);
const LARGEST_COMPILED: u64 = 4 << 20;
/// Written for every Python there is.
const COMPILE: &str = "import sys, py_compile; py_compile.compile(sys.argv[1], cfile=sys.argv[2], dfile='runner.py', \
                       doraise=True)";

/// Has the runner compiled behind the first call, if nobody did before.
pub(super) fn prepare_behind(inner: &Arc<Inner>) {
    let rooms = &inner.rooms;
    if rooms.compiled.get().is_none() && !rooms.is_compiling.swap(true, Ordering::Relaxed) {
        let inner = inner.clone();
        // Calls say what is wrong, if something is.
        rooms.behind(async move { _ = compile(&inner, asking(&Code::default())).await });
    }
}

/// A box as tools of this profile have it, with its network: shows what is wrong here, tells what holds in it, and compiles the
/// runner.
pub(super) async fn prepare(inner: &Inner, profile: Profile) -> Result<Vec<String>, Refusal> {
    let what = What::Function {
        module: String::new(),
        function: String::new(),
    };
    let room = compile(
        inner,
        Kind {
            profile,
            what: Some(what),
            ..asking(&Code::default())
        },
    )
    .await?;
    let barriers = room.state().map(|state| state.barriers).unwrap_or_default();
    let barriers = barriers.iter().map(ToString::to_string);
    Ok(barriers.chain(inner.news_of(&room, profile)).collect())
}

/// Compiles the runner in such a box.
async fn compile(inner: &Inner, kind: Kind) -> Result<Room, Refusal> {
    let open = inner.rooms.open(&kind).await;
    let room = open.map_err(|why| Refusal::new(code::Code::SandboxFailed, why.to_string()))?;
    inner.rooms.is_compiling.store(true, Ordering::Relaxed);
    if inner.rooms.compiled.get().is_none() {
        let compiled = places::inside(places::COMPILED);
        let words = [COMPILE, places::RUNNER, &compiled].map(OsString::from);
        let command = [inner.settings.python.as_os_str().to_owned(), "-c".into()]
            .into_iter()
            .chain(words);
        let command = room::bare(&kind, command.collect());
        answer_of(inner, &room, command, LONGEST_COMPILING).await?;
        let workspace = room.workspace().map_err(|why| internal(why.to_string()))?;
        let read = workspace.read(workspace.folder(), places::COMPILED, LARGEST_COMPILED);
        // Without it the runner is used as it was written.
        if let Ok(bytes) = read {
            _ = inner.rooms.compiled.set(bytes.into());
        }
    }
    inner.warm.try_to_stop(&room).await;
    Ok(room)
}

/// The box of who asks what a tool is.
fn asking(code: &Code) -> Kind {
    Kind {
        code: code.clone(),
        profile: Profile::Standard,
        limits: Default::default(),
        what: None,
    }
}

pub(super) async fn ask(
    inner: &Inner,
    code: &Code,
    command: Vec<OsString>,
    files: &[(&str, &[u8])],
    time: Duration,
) -> Result<Vec<u8>, Refusal> {
    let kind = asking(code);
    let work = async {
        let room = inner.rooms.open(&kind).await.map_err(|_| no_room())?;
        lay_out(&room, files).map_err(|why| internal(why.to_string()))?;
        answer_of(inner, &room, room::bare(&kind, command), time).await
    };
    let late = || {
        Refusal::new(
            code::Code::InitError,
            format!("there was no answer within {} s", time.as_secs()),
        )
    };
    tokio::time::timeout(time, work)
        .await
        .unwrap_or_else(|_| Err(late()))
}

/// The runner as it was written, and what else is to be there.
fn lay_out(room: &Room, files: &[(&str, &[u8])]) -> Result<(), NoRoom> {
    let workspace = room.workspace()?;
    let own = workspace.enter_folder(workspace.folder(), places::OWN)?;
    match workspace.make_file(own.as_fd(), places::SOURCE, 0o444, room::RUNNER) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    for (name, bytes) in files {
        workspace.make_file(workspace.folder(), name, 0o600, bytes)?;
    }
    Ok(())
}

/// All that a program printed, if it ended well.
async fn answer_of(
    inner: &Inner,
    room: &Room,
    command: Vec<OsString>,
    time: Duration,
) -> Result<Vec<u8>, Refusal> {
    let bad = |message: String| Refusal::new(code::Code::InitError, message);
    let exec = room.start(command, false).await.map_err(|_| no_room())?;
    let Ok(result) = tokio::time::timeout(time, exec.wait()).await else {
        return Err(bad(format!(
            "there was no answer within {} s",
            time.as_secs()
        )));
    };
    if result.status != Status::Succeeded {
        let said = excuse(&printed(&exec, Stream::Stderr), &inner.settings.hidden);
        let why = result.error.map(|error| error.message);
        let why = why.unwrap_or_else(|| format!("it ended with status {}", result.exit_status));
        return Err(bad(if said.is_empty() { why } else { said }));
    }
    let total = exec.output().lengths()[0];
    if total > LARGEST_ANSWER {
        return Err(bad(format!(
            "the answer has {total} bytes, and may have {LARGEST_ANSWER}"
        )));
    }
    let mut said = Vec::new();
    while (said.len() as u64) < total {
        let piece = exec
            .output()
            .read(Stream::Stdout, said.len() as u64, 1 << 20);
        if piece.from != said.len() as u64 || piece.bytes.is_empty() {
            return Err(bad("some of the answer is lost".to_owned()));
        }
        said.extend(piece.bytes);
    }
    Ok(said)
}
