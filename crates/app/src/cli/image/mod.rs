//! `airlock image`: the images that runs start from. One file per subcommand.

mod admit;
mod allow;
mod allowed;
mod build;
mod check;
mod disallow;
mod entry;
mod list;
mod recipe;

use super::Global;
use crate::config::Surroundings;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  airlock image list
  airlock image check ./rootfs --profile python-tools
  airlock image build python-tools --output python-tools.tar
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
    /// Show in the sandbox that an image keeps the image contract
    Check(check::Options),
    /// Build an image from a recipe and Debian packages, without a registry, and check it
    Build(build::Options),
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
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    match options.action {
        Action::List(options) => list::execute(&options, global, surroundings),
        Action::Check(options) => check::execute(&options, global, surroundings),
        Action::Build(options) => build::execute(&options, global, surroundings),
        Action::Allow(options) => allow::execute(options, global, surroundings),
        Action::Disallow(options) => disallow::execute(&options, global, surroundings),
        Action::Allowed(options) => allowed::execute(&options, global, surroundings),
        Action::Admit(options) => admit::execute(options, global, surroundings),
    }
}
