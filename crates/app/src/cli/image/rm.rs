//! `airlock image rm`: removes image names, and each image with its last name.

use super::{image_store, remote};
use crate::{
    cli::{
        Global, conclude,
        message::{Failure, printable},
        print, print_json,
        size::human_size,
    },
    config::ProcessEnv,
};
use clap::Args;
use image::ImageRemoval;

const EXAMPLES: &str = "\
Examples:
  airlock image rm agent:1
  airlock image rm agent:1 agent:2 --json

An image is removed with its last name. An image that a run uses is kept, and the command reports it.";

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
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let names = options
        .names
        .iter()
        .map(|name| image_store::reference(name))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(client) = global.server(env)? {
        return crate::cli::runtime()?.block_on(remote::remove(
            &client,
            &options.names,
            options.json,
        ));
    }
    let images = image_store::open(global, env)?;
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
    let freed = if removed.images.is_empty() {
        "the image has other names".to_owned()
    } else {
        format!("{} freed", human_size(removed.freed_bytes))
    };
    removed
        .names
        .iter()
        .map(|name| format!("removed {} ({freed})\n", printable(&name.familiar())))
        .collect()
}
