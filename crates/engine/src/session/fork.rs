//! A session made from another one: the same box, with a copy of its workspace.

use super::Session;
use crate::{Engine, making::internal};
use spec::{ErrorInfo, SessionSpec};

impl Engine {
    /// Makes a session like this one, with a copy of its workspace.
    pub async fn fork_session(&self, of: &Session, spec: SessionSpec) -> Result<Session, ErrorInfo> {
        let _ = (of, spec);
        Err(internal("not built".to_owned()))
    }
}
