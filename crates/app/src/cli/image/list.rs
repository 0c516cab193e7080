//! `airlock image list`: the images of this machine.

use crate::{
    cli::{Global, conclude, message::Failure, print_json},
    config::Surroundings,
};
use clap::Args;

/// The options of `airlock image list`.
#[derive(Args, Debug)]
pub(super) struct Options {
    /// Print one JSON list
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    global.configure(surroundings)?;
    if options.json {
        print_json(&serde_json::json!([]))?;
    }
    Ok(0)
}
