//! `airlock state`: disk usage of each part of the state folder.

use super::{Global, conclude, message::Failure, print_json, print_lines, size::human_size};
use crate::config::ProcessEnv;
use clap::Args;
use engine::disk_usage::StateUsage;
use spec::ErrorCode;

const EXAMPLES: &str = "\
Examples:
  airlock state
  airlock state --json

`airlock sweep` removes leftovers.
Exit status: 0, or 1 if the disk is nearly full: a server then starts nothing new.";

/// The options of `airlock state`.
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
    let config = global.configure(env)?;
    let weight = engine::disk_usage::measure(&config.state).map_err(|error| Failure {
        code: ErrorCode::StartFailed,
        message: format!("cannot read `{}`: {error}", config.state.display()),
        hint:
            "check that anything was run with this state folder, or choose another with --state DIR"
                .to_owned(),
    })?;
    if options.json {
        print_json(&weight)?
    } else {
        print_lines(lines(&weight))?
    }
    Ok(u8::from(weight.nearly_full))
}

fn lines(weight: &StateUsage) -> Vec<String> {
    let line = |name: &str, bytes: u64, about: &str| {
        format!("{name:<12}  {:>10}  {about}", human_size(bytes))
    };
    let files = |count: u64| {
        if count == 1 {
            "1 file".to_owned()
        } else {
            format!("{count} files")
        }
    };
    let parts = weight.parts.iter().map(|part| {
        line(
            &part.name,
            part.bytes,
            &format!("{}, {}", files(part.files), part.about),
        )
    });
    let left = if weight.nearly_full {
        "left on the disk: nearly full"
    } else {
        "left on the disk"
    };
    parts
        .chain([
            line("all", weight.bytes, ""),
            line("free", weight.free_bytes, left),
        ])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::disk_usage::StatePart;

    #[test]
    fn each_part_is_named_with_what_it_takes() {
        let part = StatePart {
            name: "ledger".to_owned(),
            about: "what models cost",
            files: 1,
            bytes: 4096,
        };
        let weight = StateUsage {
            parts: vec![part],
            bytes: 4096,
            free_bytes: 1 << 20,
            nearly_full: true,
        };
        assert_eq!(
            lines(&weight)
                .iter()
                .map(|line| line.trim_end())
                .collect::<Vec<_>>(),
            [
                "ledger           4.0 KiB  1 file, what models cost",
                "all              4.0 KiB",
                "free             1.0 MiB  left on the disk: nearly full"
            ]
        );
    }
}
