//! `airlock sweep`: removes what killed or crashed runs left behind.

use super::{
    Global, conclude,
    message::{self, Failure, Line},
    open_engine, print, print_json,
};
use crate::config::Surroundings;
use clap::Args;
use engine::{KeptCommits, SweepReport};
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  airlock sweep
  airlock sweep --json

Runs whose owner lives are left alone. Every other command sweeps, too, when it starts.
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
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let config = global.configure(surroundings)?;
    let runtime = super::runtime()?;
    let _within = runtime.enter();
    // Opening sweeps: what is left to say is what that did.
    let engine = open_engine(&config, None)?;
    let mut swept = engine.swept_at_opening().clone();
    swept.problems.extend(images(&config));
    // What is not to be kept any longer, too; a run has no use for looking at every artifact.
    swept
        .problems
        .extend(runtime.block_on(engine.artifacts().tidy()).1);
    swept.problems.extend(ledgers(&config));
    let (swept, kept) = (&swept, engine.kept_commits());
    match options.json {
        true => print_json(&Report {
            swept,
            commits_not_brought: kept.iter().map(|kept| kept.run.as_str()).collect(),
        })?,
        false => {
            print(&text(swept))?;
            let notes = swept.notes.iter().cloned().map(Line::Note);
            let problems = swept.problems.iter().cloned().map(Line::Error);
            let kept = kept.iter().map(kept_note).map(Line::Note);
            message::say(&notes.chain(problems).chain(kept).collect::<Vec<_>>());
        }
    }
    Ok(u8::from(!swept.problems.is_empty()))
}

/// What was done, and which runs were killed before what they committed arrived.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    swept: &'a SweepReport,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    commits_not_brought: Vec<&'a str>,
}

fn kept_note(kept: &KeptCommits) -> String {
    let KeptCommits { run, folder, .. } = kept;
    let folder = folder.to_string_lossy();
    format!(
        "the run `{run}` was killed before its commits arrived in `{folder}`: `airlock workspace commit {run}` brings \
         them, `airlock workspace discard {run}` drops them"
    )
}

/// Ledgers that are older than is wanted.
fn ledgers(config: &crate::config::Config) -> Option<String> {
    let (keep_for, now) = (config.doors.keep_ledger?, engine::now().0);
    let before = now.saturating_sub(u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX));
    let books = engine::usage::UsageProjection::open(&config.state);
    let retired = books.and_then(|books| {
        books.refresh()?;
        books.retire(&config.state, before, now)
    });
    retired.err().map(|error| error.to_string())
}

/// What killed loads and pulls left. Only here: a run has no use for looking at every image.
fn images(config: &crate::config::Config) -> Vec<String> {
    let folder = config.state.join("images");
    match folder.is_dir() {
        true => image::ImageStore::open(folder)
            .map_or_else(|error| vec![error.to_string()], |images| images.sweep()),
        false => Vec::new(),
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
