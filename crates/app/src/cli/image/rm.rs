//! `airlock image rm`: takes names away, and images with their last name.

use super::{remote, shared};
use crate::{
    cli::{
        Global, conclude,
        message::{Failure, printable},
        print, print_json,
    },
    config::Surroundings,
};
use clap::Args;
use image::ImageRemoval;

const EXAMPLES: &str = "\
Examples:
  airlock image rm agent:1
  airlock image rm agent:1 agent:2 --json

An image goes with its last name. One that a run is using stays, and the command says so.";

/// The options of `airlock image rm`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Names to remove
    #[arg(value_name = "REF", required = true)]
    names: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let names = options
        .names
        .iter()
        .map(|name| shared::reference(name))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(client) = global.server(surroundings)? {
        return crate::cli::runtime()?.block_on(remote::remove(
            &client,
            &options.names,
            options.json,
        ));
    }
    let images = shared::open(global, surroundings)?;
    let mut all = ImageRemoval::default();
    for name in &names {
        let removed = images.remove(name)?;
        if !options.json {
            print(&text(&removed))?;
        }
        all.names.extend(removed.names);
        all.images.extend(removed.images);
        all.freed_bytes += removed.freed_bytes;
    }
    if options.json {
        print_json(&serde_json::json!({
            "names": all.names.iter().map(|name| name.familiar()).collect::<Vec<_>>(),
            "images": all.images.iter().map(|id| id.as_str()).collect::<Vec<_>>(),
            "freed_bytes": all.freed_bytes,
        }))?;
    }
    Ok(0)
}

fn text(removed: &ImageRemoval) -> String {
    let freed = match removed.images.is_empty() {
        true => "the image has other names".to_owned(),
        false => format!("{} freed", shared::size(removed.freed_bytes)),
    };
    removed
        .names
        .iter()
        .map(|name| format!("removed {} ({freed})\n", printable(&name.familiar())))
        .collect()
}
