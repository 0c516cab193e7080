//! A model for a tool without a key: newline-delimited JSON-RPC on a unix socket in its work folder, carried to the LLM door of
//! its run, which checks, counts and pays.

use std::sync::Arc;

/// Through which models are asked.
#[derive(Clone, Debug)]
pub struct Models(#[expect(dead_code, reason = "comes with the calls")] Arc<()>);
