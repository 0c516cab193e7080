//! `airlock image inspect`: what an image says of itself, and what became of it here.

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
use image::StoredImage;

const EXAMPLES: &str = "\
Examples:
  airlock image inspect agent:1
  airlock image inspect agent:1 --json";

/// The options of `airlock image inspect`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Which image
    #[arg(value_name = "REF")]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let name = shared::reference(&options.name)?;
    if let Some(client) = global.server(surroundings)? {
        return crate::cli::runtime()?.block_on(remote::inspect(
            &client,
            &options.name,
            options.json,
        ));
    }
    let image = shared::open(global, surroundings)?.get(&name)?;
    match options.json {
        true => print_json(&object(&image))?,
        false => print(&text(&image))?,
    }
    Ok(0)
}

fn object(image: &StoredImage) -> serde_json::Value {
    serde_json::json!({
        "names": image.names().iter().map(spec::ImageRef::familiar).collect::<Vec<_>>(),
        "digest": image.digest().as_str(), "id": image.id().as_str(), "diff_ids": image.diff_ids(),
        "platform": image.platform().to_string(), "created": image.created(),
        "size_bytes": image.size_bytes(), "files": image.files(), "left_out": image.left_out(),
        "user": image.user().map(|user| serde_json::json!({ "uid": user.uid, "gid": user.gid })),
        "config": image.config(), "root": image.root(),
    })
}

/// A line each; every word of the image's own is a stranger's.
fn text(image: &StoredImage) -> String {
    let config = image.config();
    let names: Vec<_> = image.names().iter().map(spec::ImageRef::familiar).collect();
    let said = if config.user.is_empty() {
        "nobody in particular"
    } else {
        &config.user
    };
    let user = match image.user() {
        Some(user) => format!("{said} (uid {}, gid {})", user.uid, user.gid),
        None => format!("{said} (in a box: uid 1000)"),
    };
    let mut lines = vec![
        ("name", names.join(", ")),
        ("digest", image.digest().to_string()),
        ("id", image.id().to_string()),
        ("platform", image.platform().to_string()),
        ("created", image.created().unwrap_or_default().to_owned()),
        (
            "size",
            format!(
                "{} in {} files",
                shared::size(image.size_bytes()),
                image.files()
            ),
        ),
        ("layers", image.diff_ids().len().to_string()),
        ("user", user),
        ("workdir", config.working_dir.clone()),
        ("entrypoint", words(&config.entrypoint)),
        ("cmd", words(&config.cmd)),
    ];
    lines.extend(config.env.iter().map(|variable| ("env", variable.clone())));
    lines.extend(
        config
            .labels
            .iter()
            .map(|(key, value)| ("label", format!("{key}={value}"))),
    );
    lines.push(("root", image.root().display().to_string()));
    let shown = lines.iter().filter(|(_, value)| !value.is_empty());
    shown
        .map(|(key, value)| format!("{key:<10}  {}\n", printable(value)))
        .collect()
}

fn words(all: &[String]) -> String {
    all.iter()
        .map(|word| format!("{word:?}"))
        .collect::<Vec<_>>()
        .join(" ")
}
