//! A run that has passed all checks.

use crate::{Contract, Grants, Id, ImagePolicy, InputSource, Network, SandboxSpec, WorkspacePath};
use std::ffi::OsString;

/// A checked run. Only [`Policy::admit`](crate::Policy::admit) makes one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunSpec {
    /// Given by the caller, or chosen by the engine.
    pub run_id: Option<Id>,
    /// The caller's task.
    pub task_id: Option<Id>,
    /// The caller's job.
    pub job_id: Option<Id>,
    /// The API key that owns what the run stores; none for a user of the machine itself. The
    /// server fills it in.
    pub owner: Option<Id>,
    /// The argument list; empty only where the image may name the program.
    pub command: Vec<OsString>,
    /// Replaces the entrypoint of the image; empty for none.
    pub entrypoint: Option<OsString>,
    /// Whether the image chooses the user, because the request names none.
    pub image_chooses_user: bool,
    /// Which images may be used.
    pub images: ImagePolicy,
    /// Whether standard input is passed through; otherwise it is empty, or the terminal.
    pub stdin: bool,
    /// The format of standard output.
    pub contract: Contract,
    /// Files that are put into the workspace before the run.
    pub inputs: Vec<(WorkspacePath, InputSource)>,
    /// Files that are stored after the run.
    pub artifacts: Vec<WorkspacePath>,
    /// Whether the changes in a layer are applied to the workspace's folder when the program has
    /// ended.
    pub apply_changes: bool,
    /// Whether artifacts are stored. The server sets it to false for a key without the right.
    pub keep_artifacts: bool,
    /// Grants beyond the sandbox.
    pub grants: Grants,
    /// The program's trace as W3C's `traceparent`. The server fills it in.
    pub traceparent: Option<String>,
    /// The sandbox.
    pub sandbox: SandboxSpec,
}

impl RunSpec {
    /// Whether the program can reach any host outside.
    pub fn reaches_out(&self) -> bool {
        let egress = self
            .grants
            .egress
            .as_ref()
            .is_some_and(|egress| egress.learn || !egress.rules.is_empty());
        egress || self.sandbox.network == Network::Host
    }

    /// Closes every way out but the doors to models. An internal network of a container engine
    /// stays: it has no way out.
    pub fn close_egress(&mut self) {
        self.grants.egress = None;
        let sandbox = &mut self.sandbox;
        sandbox.transparent_ports = None;
        sandbox.reaches_any_host = false;
        sandbox.doors.retain(|port| *port != crate::EGRESS_PORT);
        sandbox.network = if sandbox.doors.is_empty() {
            Network::None
        } else {
            Network::Doors
        };
    }
}
