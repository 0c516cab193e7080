//! `airlock worker`: serves tools to agents over a message broker, and includes a development
//! broker.

mod broker;
mod ledger_rotation;
mod sam;
mod serve;

use super::{Global, conclude};
use crate::config::ProcessEnv;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  airlock worker broker
  SAM_NAMESPACE=demo SAM_TRANSPORT=tcp://127.0.0.1:55554 airlock worker sam
  SAM_NAMESPACE=demo SAM_TRANSPORT=mqtts://broker.example:8883 airlock worker sam --check

`airlock worker COMMAND --help` describes a command.";

/// The options of `airlock worker`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run the tools of a manifest for agents of a Solace Agent Mesh, each call in a fresh sandbox
    Sam(sam::Options),
    /// Run a development broker for workers and agents on one machine; it stores nothing
    Broker(broker::Options),
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    match &options.action {
        Action::Sam(options) => conclude(sam::attempt(options, global, env), options.json),
        Action::Broker(options) => conclude(broker::attempt(options, global, env), options.json),
    }
}
