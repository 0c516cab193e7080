//! `airlock image`: the images that runs start from. One file per subcommand.

mod admit;
mod allow;
mod allowed;
mod allowed_entry;
mod build;
mod check;
mod disallow;
pub(super) mod image_store;
mod inspect;
mod list;
mod load;
mod pull;
mod pull_progress;
mod recipe;
mod remote;
mod rm;

use super::Global;
use crate::config::ProcessEnv;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  airlock image list
  docker save agent:1 | airlock image load -
  airlock image inspect agent:1
  airlock image rm agent:1
  airlock image build python-tools
  airlock image check localhost/python-tools
  airlock image allow python:3.12
  airlock image allowed
  airlock image admit python:3.12";

/// The options of `airlock image`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the images of this machine
    List(list::Options),
    /// Take an image from an archive or an OCI layout
    Load(load::Options),
    /// Show what an image says of itself, and what became of it here
    Inspect(inspect::Options),
    /// Take names away, and images with their last name
    Rm(rm::Options),
    /// Build an image from a recipe and Debian packages, without a registry, and check it
    Build(build::Options),
    /// Show in the sandbox that an image keeps the image contract
    Check(check::Options),
    /// Fetch an image from a registry
    Pull(pull::Options),
    /// Put images on the list of those that may be used
    Allow(allow::Options),
    /// Take images off the list of those that may be used
    Disallow(disallow::Options),
    /// Show the images that may be used, or who changed the list
    Allowed(allowed::Options),
    /// Say whether an image may be used here, and why
    Admit(admit::Options),
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    match options.action {
        Action::List(options) => list::execute(&options, global, env),
        Action::Check(options) => check::execute(&options, global, env),
        Action::Build(options) => build::execute(&options, global, env),
        Action::Load(options) => load::execute(&options, global, env),
        Action::Inspect(options) => inspect::execute(&options, global, env),
        Action::Rm(options) => rm::execute(&options, global, env),
        Action::Pull(options) => pull::execute(&options, global, env),
        Action::Allow(options) => allow::execute(options, global, env),
        Action::Disallow(options) => disallow::execute(&options, global, env),
        Action::Allowed(options) => allowed::execute(&options, global, env),
        Action::Admit(options) => admit::execute(options, global, env),
    }
}
