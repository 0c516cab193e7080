//! The engine served over HTTP: runs, sessions with their files and terminals, artifacts, keys.
//!
//! A request is known by its key before anything is read of it ([`caller`]); then one file a kind of thing maps HTTP to
//! the engine's words and back. Nothing here knows how a box is made or what a rule means.

mod artifacts;
mod caller;
mod health;
mod images;
mod keys;
mod problem;
mod runs;
mod sandboxes;
mod usage;
mod wire;
mod workspaces;

pub use caller::{Caller, Scope};
pub use problem::Problem;

use engine::Engine;
use spec::Policy;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

/// What a gateway is given; it reads neither environment nor home.
#[derive(Debug)]
pub struct Settings {
    /// Carries out what is asked.
    pub engine: Engine,
    /// What requests are measured against.
    pub policy: Policy,
}

/// A gateway. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Gateway(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    policy: Policy,
    sandboxes: sandboxes::Sandboxes,
}

impl Gateway {
    /// A gateway to an engine.
    pub fn new(settings: Settings) -> Gateway {
        let Settings { engine, policy } = settings;
        Gateway(Arc::new(Inner { engine, policy, sandboxes: sandboxes::Sandboxes::default() }))
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.0.policy
    }
}

/// Every route, with its description.
fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .merge(health::routes())
        .merge(runs::routes())
        .merge(sandboxes::routes())
        .merge(workspaces::routes())
        .merge(artifacts::routes())
        .merge(images::routes())
        .merge(usage::routes())
        .merge(keys::routes())
}
