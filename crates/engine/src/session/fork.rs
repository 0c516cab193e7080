//! Forks a session: a new session with a copy of the workspace.

use super::{Session, Shared, actor::SessionCommand, conflict};
use crate::{
    Engine,
    provision::internal,
    tree::{CopyLimits, CopyReport},
};
use spec::{ErrorCode, ErrorInfo, SessionSpec};
use std::{sync::Arc, time::Instant};
use tokio::sync::oneshot;

/// The most names in a copy.
const MAX_ENTRIES: usize = 1_000_000;
/// The greatest depth of a copy.
const MAX_DEPTH: usize = 64;
/// The most skipped names that are listed.
const MAX_LISTED: usize = 32;

impl Engine {
    /// Creates a session with a copy of this session's workspace. The original is frozen meanwhile
    /// if possible; otherwise a note says so.
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
        let engine = self.clone();
        let of = of.clone();
        let (ready, copy) = oneshot::channel();
        // In a task of its own: a caller that drops the future must not leave the original frozen,
        // or the copy unowned.
        tokio::spawn(async move {
            let opened = engine.open_session(spec).await;
            // The copy ends with the engine, so this task must not hold a clone.
            drop(engine);
            let filled = match opened {
                Ok(copy) => copy_workspace(&of, &copy)
                    .await
                    .map_err(|error| (Some(copy.clone()), error))
                    .map(|()| copy),
                Err(error) => Err((None, error)),
            };
            let unwanted = match filled {
                Ok(copy) => ready.send(Ok(copy)).err().and_then(Result::ok),
                Err((copy, error)) => {
                    // The caller may be gone.
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

/// Marks a session as being copied or filled, so that it is not idle.
struct CopyGuard(Arc<Shared>);

impl CopyGuard {
    fn begin(session: &Session) -> CopyGuard {
        session.shared.data().copies += 1;
        CopyGuard(session.shared.clone())
    }
}

impl Drop for CopyGuard {
    fn drop(&mut self) {
        {
            let mut data = self.0.data();
            data.copies = data.copies.saturating_sub(1);
            data.used = Instant::now();
        }
        // Makes the task recompute its idle timeout. A full queue does so anyway.
        _ = self.0.commands.try_send(SessionCommand::Ended);
    }
}

async fn copy_workspace(of: &Session, copy: &Session) -> Result<(), ErrorInfo> {
    let _both = [CopyGuard::begin(of), CopyGuard::begin(copy)];
    // A freeze of its own and not a pause: a pause that is requested meanwhile stays.
    let stopped = of.ask(SessionCommand::FreezeForCopy).await;
    let copied = copy_tree(of, copy).await;
    if stopped.is_ok() {
        // An ended session need not be thawed.
        _ = of.ask(SessionCommand::ThawAfterCopy).await;
    }
    let copied = copied?;
    let mut data = copy.shared.data();
    let notes = &mut data.state.notes;
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

async fn copy_tree(of: &Session, copy: &Session) -> Result<CopyReport, ErrorInfo> {
    let from = of.tree()?;
    let to = copy.tree()?;
    let bytes = copy.shared.spec.run.sandbox.workspace_bytes();
    let bounds = CopyLimits {
        entries: MAX_ENTRIES,
        bytes,
        depth: MAX_DEPTH,
        listed: MAX_LISTED,
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
        let guard = CopyGuard::begin(&session);
        session.ask(SessionCommand::FreezeForCopy).await.unwrap();
        let early = tokio::time::timeout(Duration::from_secs(2), session.ended()).await;
        assert!(early.is_err(), "it ended in the middle");
        drop(guard);
        let ended = tokio::time::timeout(Duration::from_secs(20), session.ended())
            .await
            .unwrap();
        assert_eq!(ended.ended, Some(SessionEnd::Idle), "the positive control");
        engine.close().await;
        std::fs::remove_dir_all(state).unwrap();
    }
}
