//! Steps that run a program in the sandbox, with its output limit and timeout.

use super::{
    execution::{JobExecution, StepFailure, StepOutcome},
    files::{self, FileStepError, check_path},
};
use crate::{Exec, tree::EntryKind};
use spec::{ExecRequest, Status, StdStream};
use std::{path::Path, time::Duration};

/// The grace between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_millis(500);

/// The output of one or both streams of a program.
pub(super) struct FollowedOutput {
    pub(super) bytes: Vec<u8>,
    pub(super) too_much: bool,
}

pub(super) async fn run(
    execution: &JobExecution<'_>,
    argv: &[String],
    cwd: Option<&str>,
) -> StepOutcome {
    if let Some(wrong) = check_working_folder(execution, cwd).await {
        return StepOutcome::from(Err(wrong));
    }
    let request = ExecRequest {
        command: argv.iter().map(Into::into).collect(),
        directory: cwd.map(|cwd| {
            if cwd.is_empty() {
                ".".into()
            } else {
                cwd.into()
            }
        }),
        timeout: Some(execution.time_left().max(Duration::from_millis(1))),
        ..ExecRequest::default()
    };
    let exec = match execution.session.exec(request).await {
        Ok(exec) => exec,
        Err(error) => {
            return StepOutcome {
                failure: Some(StepFailure::Lost(super::message_with_hint(&error))),
                ..StepOutcome::default()
            };
        }
    };
    let FollowedOutput { bytes, too_much } = follow(
        &exec,
        &[StdStream::Stdout, StdStream::Stderr],
        execution.room,
    )
    .await;
    let ended = exec.wait().await;
    let failure = match ended.status {
        _ if too_much => Some(StepFailure::TooMuch),
        Status::Succeeded => None,
        Status::TimedOut => Some(StepFailure::TimedOut),
        Status::Failed => Some(StepFailure::failed(match ended.signal {
            Some(signal) => format!("the program was killed by signal {signal}"),
            None => format!(
                "the program exited with {}",
                ended.exit_code.unwrap_or_default()
            ),
        })),
        Status::Lost => Some(StepFailure::Lost(
            "the program is lost with its box".to_owned(),
        )),
        Status::NotStarted
        | Status::OomKilled
        | Status::Cancelled
        | Status::Queued
        | Status::Running => {
            let why = ended
                .error
                .as_ref()
                .map_or_else(|| ended.status.name().to_owned(), super::message_with_hint);
            Some(StepFailure::failed(why))
        }
    };
    let exit_code = match ended.status {
        Status::TimedOut => None,
        _ if too_much => None,
        // The exit status of a cancelled program is only known if it exited by itself.
        Status::Cancelled => ended.exit_code,
        _ => Some(
            ended
                .exit_code
                .unwrap_or_else(|| i32::from(ended.exit_status)),
        ),
    };
    let output = Some(String::from_utf8_lossy(&bytes).into_owned());
    StepOutcome {
        exit_code,
        output,
        failure,
        denials: ended.denials,
    }
}

/// Checks that the working folder is a folder of the workspace. A later change of it is harmless:
/// containment is the sandbox's and not this check's.
async fn check_working_folder(
    execution: &JobExecution<'_>,
    cwd: Option<&str>,
) -> Option<FileStepError> {
    let cwd = cwd?.to_owned();
    if let Err(wrong) = check_path(&cwd) {
        return Some(wrong);
    }
    let tree = execution.session.tree().ok()?;
    let looked = tokio::task::spawn_blocking(move || match tree.stat(Path::new(&cwd)) {
        Ok(found) => match found.kind {
            EntryKind::Folder => None,
            EntryKind::Link => Some(files::link_error(&cwd)),
            EntryKind::File | EntryKind::Special => {
                Some(format!("`{}` is not a folder", cwd.escape_debug()).into())
            }
        },
        Err(error) => Some(files::step_error(&error)),
    });
    looked
        .await
        .unwrap_or_else(|broken| Some(broken.to_string().into()))
}

/// Collects the output of a program until it ends; stops it if it writes more than `room` bytes.
pub(super) async fn follow(exec: &Exec, streams: &[StdStream], room: usize) -> FollowedOutput {
    let log = exec.output();
    let mut bytes = Vec::new();
    let mut seen = [0; 2];
    loop {
        let more = log.wait_for_more(seen).await;
        for stream in streams {
            let place = usize::from(*stream == StdStream::Stderr);
            loop {
                let piece = log.read(*stream, seen[place], 64 << 10);
                // A gap means more output than the log keeps, which is more than any limit.
                let forgotten = piece.from > seen[place];
                if forgotten || bytes.len() + piece.bytes.len() > room {
                    bytes.extend(piece.bytes);
                    bytes.truncate(room + 1);
                    exec.stop(GRACE).await;
                    return FollowedOutput {
                        bytes,
                        too_much: true,
                    };
                }
                if piece.bytes.is_empty() {
                    break;
                }
                seen[place] = piece.from + piece.bytes.len() as u64;
                bytes.extend(piece.bytes);
            }
        }
        if !more {
            return FollowedOutput {
                bytes,
                too_much: false,
            };
        }
        // For a stream that is not collected, only its length is tracked.
        let lengths = log.lengths();
        for (place, stream) in [StdStream::Stdout, StdStream::Stderr].iter().enumerate() {
            if !streams.contains(stream) {
                seen[place] = lengths[place];
            }
        }
    }
}
