//! Sandboxes: sessions, their programs, files and terminals.
//!
//! `registry` knows which there are and whose they are; every route finds its sandbox there first. `lifecycle` makes
//! and ends them; `exec`, `input`, `output`, `events` and `pty` are about programs, `files` and `artifacts` about the workspace.

mod artifacts;
mod body;
mod cursor;
mod events;
mod exec;
mod files;
mod input;
mod lifecycle;
mod output;
mod pty;
mod registry;
mod wire;

pub(crate) use body::{Asked, parsed, to_the_end};
pub(crate) use exec::{For, begin};
pub(crate) use output::longer;
pub(crate) use pty::Viewers;
pub(crate) use registry::{Entry, Opening, Sandboxes};
pub(crate) use wire::{Labels, Order, reason};

use crate::Gateway;
use utoipa_axum::router::OpenApiRouter;

pub(crate) fn routes() -> OpenApiRouter<Gateway> {
    OpenApiRouter::new()
        .merge(lifecycle::routes())
        .merge(exec::routes())
        .merge(input::routes())
        .merge(output::routes())
        .merge(events::routes())
        .merge(pty::routes())
        .merge(files::routes())
        .merge(artifacts::routes())
}
