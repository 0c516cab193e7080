//! A program of the box: started, followed, and stopped where it writes or takes more than it may.

use super::{
    bench::{Bench, Done, Failure},
    files::{self, Wrong, checked},
};
use crate::{Exec, tree::EntryKind};
use spec::{ExecRequest, Status, Stream};
use std::{path::Path, time::Duration};

/// What a program gets to end by itself once it is to end.
const GRACE: Duration = Duration::from_millis(500);

/// What a program wrote to one or both of its streams.
pub(super) struct Followed {
    pub(super) bytes: Vec<u8>,
    pub(super) too_much: bool,
}

pub(super) async fn run(bench: &Bench<'_>, argv: &[String], cwd: Option<&str>) -> Done {
    if let Some(wrong) = wrong_folder(bench, cwd).await {
        return Done::from(Err(wrong));
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
        timeout: Some(bench.time_left().max(Duration::from_millis(1))),
        ..ExecRequest::default()
    };
    let exec = match bench.session.exec(request).await {
        Ok(exec) => exec,
        Err(error) => {
            return Done {
                failure: Some(Failure::Lost(super::told(&error))),
                ..Done::default()
            };
        }
    };
    let Followed { bytes, too_much } =
        follow(&exec, &[Stream::Stdout, Stream::Stderr], bench.room).await;
    let ended = exec.wait().await;
    let failure = match ended.status {
        _ if too_much => Some(Failure::TooMuch),
        Status::Succeeded => None,
        Status::TimedOut => Some(Failure::TimedOut),
        Status::Failed => Some(Failure::failed(match ended.signal {
            Some(signal) => format!("the program was killed by signal {signal}"),
            None => format!(
                "the program exited with {}",
                ended.exit_code.unwrap_or_default()
            ),
        })),
        Status::Lost => Some(Failure::Lost("the program is lost with its box".to_owned())),
        Status::NotStarted
        | Status::OomKilled
        | Status::Cancelled
        | Status::Queued
        | Status::Running => {
            let why = ended
                .error
                .as_ref()
                .map_or_else(|| ended.status.name().to_owned(), super::told);
            Some(Failure::failed(why))
        }
    };
    let exit_code = match ended.status {
        Status::TimedOut => None,
        _ if too_much => None,
        // What it would have been nobody knows, unless it said so itself.
        Status::Cancelled => ended.exit_code,
        _ => Some(
            ended
                .exit_code
                .unwrap_or_else(|| i32::from(ended.exit_status)),
        ),
    };
    let output = Some(String::from_utf8_lossy(&bytes).into_owned());
    Done {
        exit_code,
        output,
        failure,
        denials: ended.denials,
    }
}

/// Where a program starts must be a folder of the workspace. What becomes of it afterwards cannot harm: it is the box
/// that holds the program, not this.
async fn wrong_folder(bench: &Bench<'_>, cwd: Option<&str>) -> Option<Wrong> {
    let cwd = cwd?.to_owned();
    if let Err(wrong) = checked(&cwd) {
        return Some(wrong);
    }
    let tree = bench.session.tree().ok()?;
    let looked = tokio::task::spawn_blocking(move || match tree.stat(Path::new(&cwd)) {
        Ok(found) => match found.kind {
            EntryKind::Folder => None,
            EntryKind::Link => Some(files::by_link(&cwd)),
            EntryKind::File | EntryKind::Special => {
                Some(format!("`{}` is not a folder", cwd.escape_debug()).into())
            }
        },
        Err(error) => Some(files::told(&error)),
    });
    looked
        .await
        .unwrap_or_else(|broken| Some(broken.to_string().into()))
}

/// Takes what a program writes, until it has ended or has written more than `room`; then it is stopped.
pub(super) async fn follow(exec: &Exec, streams: &[Stream], room: usize) -> Followed {
    let (feed, mut bytes, mut seen) = (exec.output(), Vec::new(), [0; 2]);
    loop {
        let more = feed.grown(seen).await;
        for stream in streams {
            let place = usize::from(*stream == Stream::Stderr);
            loop {
                let piece = feed.read(*stream, seen[place], 64 << 10);
                // What the feed has forgotten was more than it keeps, and that is more than any room.
                let forgotten = piece.from > seen[place];
                if forgotten || bytes.len() + piece.bytes.len() > room {
                    bytes.extend(piece.bytes);
                    bytes.truncate(room + 1);
                    exec.stop(GRACE).await;
                    return Followed {
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
            return Followed {
                bytes,
                too_much: false,
            };
        }
        // Of a stream that is not asked for, only that it grew is taken note of.
        let lengths = feed.lengths();
        for (place, stream) in [Stream::Stdout, Stream::Stderr].iter().enumerate() {
            if !streams.contains(stream) {
                seen[place] = lengths[place];
            }
        }
    }
}
