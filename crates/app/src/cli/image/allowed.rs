//! `airlock image allowed`: lists the allowed images, or the changes of the list.

use super::allowed_entry;
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Message, printable},
        print, print_json,
    },
    config::{Config, ProcessEnv},
};
use clap::Args;
use serde_json::{Value, json};
use spec::{AllowedImage, Capability, Digest};
use store::ImageTrailEntry;

const EXAMPLES: &str = "\
Examples:
  airlock image allowed
  airlock image allowed --json
  airlock image allowed --trail";

/// The options of `airlock image allowed`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Show the changes of the list and refused ones instead, newest first
    #[arg(long)]
    trail: bool,
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
    let images = allowed_entry::open(&config)?;
    match (options.trail, options.json) {
        (false, true) => print_json(&list_json(&config, &images.list()?))?,
        (false, false) => print(&table(images.list()?.iter().map(row)))?,
        (true, true) => print_json(
            &json!({ "trail": images.trail()?.iter().map(line_json).collect::<Vec<_>>() }),
        )?,
        (true, false) => print(&table(images.trail()?.iter().map(line)))?,
    }
    if allowed_entry::is_policy_open(&config) && !options.json {
        message::print(&[Message::Note(allowed_entry::POLICY_IS_OPEN.to_owned())]);
    }
    Ok(0)
}

fn list_json(config: &Config, list: &[AllowedImage]) -> Value {
    let policy = if allowed_entry::is_policy_open(config) {
        "open"
    } else {
        "allowed"
    };
    let row = |entry: &AllowedImage| {
        json!({
            "image": entry.pattern.to_string(),
            "digest": entry.pin.as_ref().map(Digest::as_str),
            "capabilities": entry.capabilities.iter().map(Capability::as_str).collect::<Vec<_>>(),
            "agent_compatible": entry.marked,
            "note": entry.note,
            "added_by": entry.added_by,
            "added_at": entry.added_at.to_string(),
        })
    };
    json!({ "policy": policy, "images": list.iter().map(row).collect::<Vec<_>>() })
}

fn line_json(line: &ImageTrailEntry) -> Value {
    let ImageTrailEntry {
        at,
        who,
        what,
        image,
        about,
    } = line;
    json!({ "at": at.to_string(), "who": who, "what": what, "image": image, "about": about })
}

/// The columns of an entry: name as `disallow` takes it, capabilities, time, user, note.
fn row(entry: &AllowedImage) -> Vec<String> {
    let words: Vec<_> = entry.capabilities.iter().map(Capability::as_str).collect();
    let words = if words.is_empty() {
        "-".to_owned()
    } else {
        words.join(",")
    };
    let name = allowed_entry::entry_name(&entry.pattern, entry.pin.as_ref());
    vec![
        name,
        words,
        entry.added_at.to_string(),
        entry.added_by.clone(),
        entry.note.clone(),
    ]
}

fn line(line: &ImageTrailEntry) -> Vec<String> {
    let ImageTrailEntry {
        at,
        who,
        what,
        image,
        about,
    } = line;
    vec![
        at.to_string(),
        what.clone(),
        image.clone(),
        who.clone(),
        about.clone(),
    ]
}

/// Aligns columns and escapes control characters.
fn table(rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = rows
        .map(|row| row.iter().map(|cell| printable(cell)).collect())
        .collect();
    let length = |cell: Option<&String>| cell.map_or(0, |cell| cell.chars().count());
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .map(|row| length(row.get(column)))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<_> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_steers_no_terminal() {
        let cells = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [cells(["a", "ää", "x\n\u{1b}[2J"]), cells(["long", "b", ""])];
        assert_eq!(
            table(rows.into_iter()),
            "a     ää  x\\n\\u{1b}[2J\nlong  b\n"
        );
        assert_eq!(table([].into_iter()), "");
    }
}
