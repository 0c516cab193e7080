//! `airlock image`: the images that runs start from. One file per subcommand.

mod build;
mod check;
mod list;
mod recipe;

use super::Global;
use crate::config::Surroundings;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  airlock image list
  airlock image check ./rootfs --profile python-tools
  airlock image build python-tools --output python-tools.tar";

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
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    match options.action {
        Action::List(options) => list::execute(&options, global, surroundings),
        Action::Check(options) => check::execute(&options, global, surroundings),
        Action::Build(options) => build::execute(&options, global, surroundings),
    }
}
