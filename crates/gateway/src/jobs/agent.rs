//! Jobs whose program is an agent: a prompt, tools and a budget become the run of an agent in its sandbox.

use crate::{Problem, problem::Answer, wire::RunOrder};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An agent and what it shall do.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentOrder {
    /// What it shall do.
    prompt: String,
}

impl AgentOrder {
    /// The run that it is.
    pub(crate) fn into_run(self, _job_id: &str) -> Answer<RunOrder> {
        let _ = self.prompt;
        Err(Problem::invalid("`agent` cannot be run yet", "use `run` with a command"))
    }
}
