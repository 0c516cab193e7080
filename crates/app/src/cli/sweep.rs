//! `airlock sweep`: removes leftovers of killed or crashed runs.

use super::{
    Global, conclude,
    message::{self, Failure, Message},
    open_engine, print, print_json,
};
use crate::config::ProcessEnv;
use clap::Args;
use engine::{KeptCommits, SweepReport};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  airlock sweep
  airlock sweep --json

Runs with a living owner are not touched. Every other command sweeps, too, when it starts.
Exit status: 0, or 1 if something could not be removed.";

/// The options of `airlock sweep`.
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
    let runtime = super::runtime()?;
    let _within = runtime.enter();
    // Opening the engine sweeps; its report is printed here.
    let engine = open_engine(&config, None)?;
    let mut swept = engine.swept_at_opening().clone();
    swept.problems.extend(sweep_images(&config));
    // Expired artifacts are removed here only: a run should not scan every artifact.
    swept
        .problems
        .extend(runtime.block_on(engine.artifacts().tidy()).1);
    swept.problems.extend(retire_ledgers(&config));
    let swept = &swept;
    let kept = engine.kept_commits();
    if options.json {
        print_json(&SweepOutput {
            swept,
            commits_not_brought: kept.iter().map(|kept| kept.run.as_str()).collect(),
        })?
    } else {
        print(&text(swept))?;
        let notes = swept.notes.iter().cloned().map(Message::Note);
        let problems = swept.problems.iter().cloned().map(Message::Error);
        let kept = kept.iter().map(kept_note).map(Message::Note);
        message::print(&notes.chain(problems).chain(kept).collect::<Vec<_>>());
    }
    Ok(u8::from(!swept.problems.is_empty()))
}

/// The JSON output: the sweep's report, and runs that were killed before their commits were
/// imported.
#[derive(Serialize)]
struct SweepOutput<'a> {
    #[serde(flatten)]
    swept: &'a SweepReport,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    commits_not_brought: Vec<&'a str>,
}

fn kept_note(kept: &KeptCommits) -> String {
    let KeptCommits { run, folder, .. } = kept;
    let folder = folder.to_string_lossy();
    format!(
        "the run `{run}` was killed before its commits were imported into `{folder}`: `airlock workspace commit {run}` imports \
         them, `airlock workspace discard {run}` discards them"
    )
}

/// Removes ledgers older than `keep_for`.
fn retire_ledgers(config: &crate::config::Config) -> Option<String> {
    let keep_for = config.doors.keep_ledger?;
    let now = engine::now().0;
    let before = now.saturating_sub(u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX));
    let usage = engine::usage::UsageProjection::open(&config.state);
    let retired = usage.and_then(|usage| {
        usage.refresh()?;
        usage.retire(&config.state, before, now)
    });
    retired.err().map(|error| error.to_string())
}

/// Removes leftovers of killed loads and pulls. Done here only: a run should not scan every image.
fn sweep_images(config: &crate::config::Config) -> Vec<String> {
    let folder = config.state.join("images");
    if folder.is_dir() {
        image::ImageStore::open(folder).map_or_else(
            |error| vec![error.to_string()],
            |sweep_images| sweep_images.sweep(),
        )
    } else {
        Vec::new()
    }
}

fn text(swept: &SweepReport) -> String {
    let mut text: String = swept
        .runs
        .iter()
        .map(|run| format!("removed  {}\n", message::printable(run)))
        .collect();
    text.push_str(&format!(
        "{} removed, {} left alone because their owner lives\n",
        swept.runs.len(),
        swept.live
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_names_what_it_removed_and_counts_what_it_left() {
        let swept = SweepReport {
            runs: vec!["01J".into()],
            live: 2,
            notes: Vec::new(),
            problems: vec!["x".into()],
        };
        assert_eq!(
            text(&swept),
            "removed  01J\n1 removed, 2 left alone because their owner lives\n"
        );
    }
}
