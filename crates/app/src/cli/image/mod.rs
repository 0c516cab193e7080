//! `airlock image`: the images that runs start from. One file per subcommand.

mod check;
mod list;

use super::Global;
use crate::config::Surroundings;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  airlock image list
  airlock image check ./rootfs --profile python-tools";

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
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    match options.action {
        Action::List(options) => list::execute(&options, global, surroundings),
        Action::Check(options) => check::execute(&options, global, surroundings),
    }
}
