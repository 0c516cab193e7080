//! Sandboxes: sessions with their programs, files and terminals.
//!
//! `registry` knows all sandboxes and their owners; every route finds its sandbox there first.
//! `lifecycle` creates and ends them; `exec`, `input`, `output`, `events` and `pty` are about
//! programs, `files` and `artifacts` about the workspace.

mod artifacts;
mod body;
mod events;
mod exec;
mod files;
mod input;
mod lifecycle;
mod output;
mod output_cursor;
mod pty;
mod registry;
mod wire;

pub(crate) use body::{QueryParams, parse_json, run_to_completion};
pub(crate) use exec::{ExecContext, start_exec};
pub(crate) use files::{contents, parse_workspace_location};
pub(crate) use output::wait_for_output;
pub(crate) use pty::PtyViewers;
pub(crate) use registry::{NewSandbox, SandboxEntry, SandboxRegistry};
pub(crate) use wire::{ExecStart, Labels, end_reason};

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
