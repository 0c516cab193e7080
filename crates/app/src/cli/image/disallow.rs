//! `airlock image disallow`: removes images from the list of allowed images.

use super::allowed_entry;
use crate::{
    cli::{Global, conclude, message::Failure, print, print_json},
    config::ProcessEnv,
};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  airlock image allow python:3.12
  airlock image disallow python:3.12

Running sandboxes are not stopped.";

/// The options of `airlock image disallow`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The entry as it was allowed; without @DIGEST, all digests of it
    #[arg(value_name = "REF[@DIGEST]")]
    reference: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let config = global.configure(env)?;
    let (pattern, pin) = allowed_entry::parse(&options.reference, None)?;
    let policy = &config.policy.images;
    let who = allowed_entry::current_user();
    let removed = allowed_entry::open(&config)?.disallow(policy, &pattern, pin.as_ref(), &who)?;
    if options.json {
        print_json(&serde_json::json!({ "removed": removed }))?
    } else {
        print(&format!("{removed} removed\n"))?
    }
    Ok(0)
}
