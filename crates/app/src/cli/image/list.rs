//! `airlock image list`: lists the images of this machine.

use super::{image_store, remote};
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Message, printable},
        print, print_json,
        size::human_size,
    },
    config::ProcessEnv,
};
use clap::Args;
use image::ImageSummary;

const EXAMPLES: &str = "\
Examples:
  airlock image list
  airlock image list --json";

/// The options of `airlock image list`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    if let Some(client) = global.server(env)? {
        return crate::cli::runtime()?.block_on(remote::list(&client, options.json));
    }
    let listing = image_store::open(global, env)?.list()?;
    if options.json {
        let images: Vec<_> = listing.images.iter().map(object).collect();
        print_json(&serde_json::json!({ "images": images, "notes": listing.problems }))?;
    } else {
        print(&table(listing.images.iter().map(row).collect()))?;
        message::print(
            &listing
                .problems
                .into_iter()
                .map(Message::Note)
                .collect::<Vec<_>>(),
        );
    }
    Ok(0)
}

fn object(listed: &ImageSummary) -> serde_json::Value {
    serde_json::json!({
        "name": listed.name.familiar(), "digest": listed.digest.as_str(), "id": listed.id.as_str(),
        "size_bytes": listed.size_bytes, "platform": listed.platform.to_string(), "created": listed.created,
    })
}

/// Aligns columns and escapes the image's texts, which are untrusted.
pub(super) fn table(images: Vec<[String; 5]>) -> String {
    let titles = ["NAME", "DIGEST", "SIZE", "PLATFORM", "CREATED"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(titles).chain(images).collect();
    let widths: [usize; 5] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    let line = |row: &[String; 5]| {
        let cells: Vec<_> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn row(listed: &ImageSummary) -> [String; 5] {
    let created = listed.created.as_deref().unwrap_or_default();
    let name = listed.name.familiar();
    let platform = listed.platform.to_string();
    cells(
        &name,
        listed.digest.hex(),
        listed.size_bytes,
        &platform,
        created,
    )
}

/// The columns of one image.
pub(super) fn cells(
    name: &str,
    digest: &str,
    size: u64,
    platform: &str,
    created: &str,
) -> [String; 5] {
    [
        printable(name),
        printable(&digest.chars().take(12).collect::<String>()),
        human_size(size),
        printable(platform),
        // The time is cut to seconds.
        printable(&created.chars().take(19).collect::<String>()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Platform;

    #[test]
    fn a_list_is_aligned_and_steers_no_terminal() {
        let digest =
            spec::Digest::new(&format!("sha256:{}", "0123456789abcdef".repeat(4))).unwrap();
        let listed = ImageSummary {
            name: "agent:1".parse().unwrap(),
            digest: digest.clone(),
            id: digest,
            size_bytes: 2048,
            platform: Platform {
                os: "linux".into(),
                architecture: "a\x1b[2J".into(),
                variant: "v8".into(),
            },
            created: Some("2026-01-02T03:04:05.678Z".into()),
        };
        let shown = table(vec![row(&listed)]);
        let expected = "\
NAME     DIGEST        SIZE     PLATFORM             CREATED
agent:1  0123456789ab  2.0 KiB  linux/a\\u{1b}[2J/v8  2026-01-02T03:04:05
";
        assert_eq!(shown, expected);
        assert!(!shown.contains('\x1b'));
    }
}
