//! `airlock image`: the images that runs start from. One file per subcommand.

mod inspect;
mod list;
mod load;
mod rm;
mod shared;

use super::Global;
use crate::config::Surroundings;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
Examples:
  airlock image list
  docker save agent:1 | airlock image load -
  airlock image inspect agent:1
  airlock image rm agent:1";

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
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    match options.action {
        Action::List(options) => list::execute(&options, global, surroundings),
        Action::Load(options) => load::execute(&options, global, surroundings),
        Action::Inspect(options) => inspect::execute(&options, global, surroundings),
        Action::Rm(options) => rm::execute(&options, global, surroundings),
    }
}
