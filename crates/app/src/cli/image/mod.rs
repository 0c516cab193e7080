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
    /// List the images of this machine
    List(list::Options),
    /// Load an image from an archive or an OCI layout
    Load(load::Options),
    /// Show an image's configuration, and how it was unpacked here
    Inspect(inspect::Options),
    /// Remove image names, and each image with its last name
    Rm(rm::Options),
    /// Build an image from a recipe and Debian packages without a registry, and check it
    Build(build::Options),
    /// Check in a sandbox that an image satisfies the image contract
    Check(check::Options),
    /// Pull an image from a registry
    Pull(pull::Options),
    /// Add images to the list of allowed images
    Allow(allow::Options),
    /// Remove images from the list of allowed images
    Disallow(disallow::Options),
    /// Show the allowed images, or the changes of the list
    Allowed(allowed::Options),
    /// Show whether an image may be used here, and why
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
