//! `airlock image inspect`: an image's configuration, and how it was unpacked here.

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
use image::StoredImage;

const EXAMPLES: &str = "\
Examples:
  airlock image inspect agent:1
  airlock image inspect agent:1 --json";

/// The options of `airlock image inspect`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The image
    #[arg(value_name = "REF")]
    name: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let name = image_store::reference(&options.name)?;
    if let Some(client) = global.server(env)? {
        return crate::cli::runtime()?.block_on(remote::inspect(
            &client,
            &options.name,
            options.json,
        ));
    }
    let image = image_store::open(global, env)?.get(&name)?;
    if options.json {
        print_json(&object(&image))?
    } else {
        print(&text(&image))?
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

/// One field a line, escaped: the image's texts are untrusted.
fn text(image: &StoredImage) -> String {
    let config = image.config();
    let names: Vec<_> = image.names().iter().map(spec::ImageRef::familiar).collect();
    let user_name = if config.user.is_empty() {
        "not set"
    } else {
        &config.user
    };
    let user = match image.user() {
        Some(user) => format!("{user_name} (uid {}, gid {})", user.uid, user.gid),
        None => format!("{user_name} (in a sandbox: uid 1000)"),
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
                human_size(image.size_bytes()),
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
