//! A session made from another one: the same box, with a copy of its workspace.

use super::{Session, Shared, actor::Order, conflict};
use crate::{
    Engine,
    making::internal,
    tree::{Copied, CopyBounds},
};
use spec::{ErrorCode, ErrorInfo, SessionSpec};
use std::{sync::Arc, time::Instant};
use tokio::sync::oneshot;

/// Names that a copy has at most.
const MOST_ENTRIES: usize = 1_000_000;
/// Folders within folders that a copy has at most.
const DEEPEST: usize = 64;
/// What was left out and is told by name.
const MOST_TOLD: usize = 32;

impl Engine {
    /// Makes a session like this one, with a copy of its workspace. The original is stopped meanwhile, if it can be; a note
    /// says so if it could not.
    pub async fn fork_session(
        &self,
        of: &Session,
        spec: SessionSpec,
    ) -> Result<Session, ErrorInfo> {
        if spec.run.sandbox.workspace.is_some() {
            let message =
                "a session whose workspace is a folder of the host cannot have a copy of it there";
            return Err(conflict(
                message,
                "fork it without the workspace: the copy gets a fresh one",
            ));
        }
        of.touch();
        of.workspace()?;
        let (engine, of) = (self.clone(), of.clone());
        let (ready, copy) = oneshot::channel();
        // In a task of its own: whoever does not wait must not leave the original stopped, nor a copy that nobody knows.
        tokio::spawn(async move {
            let opened = engine.open_session(spec).await;
            // The copy ends with the engine, so this task must not hold it.
            drop(engine);
            let filled = match opened {
                Ok(copy) => fill(&of, &copy)
                    .await
                    .map_err(|error| (Some(copy.clone()), error))
                    .map(|()| copy),
                Err(error) => Err((None, error)),
            };
            let unwanted = match filled {
                Ok(copy) => ready.send(Ok(copy)).err().and_then(Result::ok),
                Err((copy, error)) => {
                    // Nobody may be there to hear it.
                    _ = ready.send(Err(error));
                    copy
                }
            };
            if let Some(copy) = unwanted {
                copy.end().await;
            }
        });
        copy.await
            .unwrap_or_else(|_| Err(internal("the task of the copy failed".to_owned())))
    }
}

/// A session that is being copied, or filled: it is not idle meanwhile.
struct Copying(Arc<Shared>);

impl Copying {
    fn begin(session: &Session) -> Copying {
        session.shared.book().copies += 1;
        Copying(session.shared.clone())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        {
            let mut book = self.0.book();
            book.copies = book.copies.saturating_sub(1);
            book.used = Instant::now();
        }
        // So that its task looks when it is idle from now on. With more orders than fit it does so anyway.
        _ = self.0.orders.try_send(Order::Ended);
    }
}

async fn fill(of: &Session, copy: &Session) -> Result<(), ErrorInfo> {
    let _both = [Copying::begin(of), Copying::begin(copy)];
    // Its own stop, not a pause: one that is asked for meanwhile stays.
    let stopped = of.ask(Order::Hold).await;
    let copied = copied(of, copy).await;
    if stopped.is_ok() {
        // One that has ended meanwhile does not go on, and need not.
        _ = of.ask(Order::LetGo).await;
    }
    let copied = copied?;
    let mut book = copy.shared.book();
    let notes = &mut book.state.notes;
    if let Err(error) = stopped {
        notes.push(format!(
            "the workspace was copied while programs could change it: {}",
            error.message
        ));
    }
    notes.extend(
        copied
            .left_out
            .into_iter()
            .map(|left_out| format!("not copied: {left_out}")),
    );
    if copied.more_left_out > 0 {
        notes.push(format!("{} more were not copied", copied.more_left_out));
    }
    Ok(())
}

async fn copied(of: &Session, copy: &Session) -> Result<Copied, ErrorInfo> {
    let (from, to) = (of.tree()?, copy.tree()?);
    let bytes = copy.shared.spec.run.sandbox.limits.disk.0;
    let bounds = CopyBounds {
        entries: MOST_ENTRIES,
        bytes,
        depth: DEEPEST,
        told: MOST_TOLD,
    };
    let done = tokio::task::spawn_blocking(move || from.copy_into(&to, bounds)).await;
    let done = done.map_err(|error| internal(error.to_string()))?;
    done.map_err(|error| match error.kind() {
        std::io::ErrorKind::StorageFull => ErrorInfo {
            code: ErrorCode::QuotaExceeded,
            message: "the workspace does not fit into that of the copy".to_owned(),
            hint: Some("give the copy more disk and memory, or remove something first".to_owned()),
        },
        _ => internal(format!("the workspace cannot be copied: {error}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, SessionEnd, Settings};
    use spec::{Policy, SessionRequest};
    use std::time::Duration;

    #[tokio::test]
    async fn a_session_that_is_being_copied_is_not_idle_and_is_again_behind_it() {
        let state = std::env::temp_dir().join(format!("airlock-copying-{}", std::process::id()));
        let engine = Engine::open(Settings::new(&state)).unwrap();
        let mut spec = Policy::default()
            .admit_session(SessionRequest::default())
            .unwrap();
        spec.idle = Duration::from_millis(300);
        let session = engine.open_session(spec).await.unwrap();
        let copying = Copying::begin(&session);
        session.ask(Order::Hold).await.unwrap();
        let early = tokio::time::timeout(Duration::from_secs(2), session.ended()).await;
        assert!(early.is_err(), "it ended in the middle");
        drop(copying);
        let ended = tokio::time::timeout(Duration::from_secs(20), session.ended())
            .await
            .unwrap();
        assert_eq!(ended.ended, Some(SessionEnd::Idle), "the positive control");
        engine.close().await;
        std::fs::remove_dir_all(state).unwrap();
    }
}
