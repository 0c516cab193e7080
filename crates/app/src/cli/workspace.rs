//! `airlock workspace`: shows, takes over or drops what programs changed in workspaces that are copied on writing, and
//! what was taken out of mounted ones.

mod remote;

use super::{
    Global, conclude,
    message::{self, Failure, Line, printable},
    open_engine, print, print_json,
};
use crate::config::Surroundings;
use clap::{Args, Subcommand};
use engine::workspaces::{
    self, Change, CommitOptions, Committed, Diff, Kind, Layer, LayerError, Left, What,
    held::HeldEntry,
};
use spec::Id;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  airlock run --workspace . --copy-on-write --run-id try -- touch made
  airlock workspace list
  airlock workspace diff try
  airlock workspace commit try
  airlock run --workspace . --copy-on-write --run-id other -- rm made
  airlock workspace discard other
  airlock workspace held

In `diff`: + added, - removed, ~ changed, ! of another kind now, m other permissions.
A commit is refused, and nothing done, if a change has no place in the folder or the folder has changed there, too.
Exit status: 0; 1 if a commit left something out; 125 if it was refused.";

/// The options of `airlock workspace`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the workspaces whose changes are kept
    List,
    /// Show what the program changed
    Diff {
        /// Its run or session
        #[arg(value_name = "ID")]
        id: String,
        /// Only count the changes
        #[arg(long)]
        stat: bool,
    },
    /// Take the changes over into the folder, then drop the workspace
    Commit {
        /// Its run or session
        #[arg(value_name = "ID")]
        id: String,
        /// Also where the folder has changed meanwhile
        #[arg(long)]
        force: bool,
        /// What can be taken over, and name the rest
        #[arg(long)]
        partial: bool,
        /// Keep the workspace although nothing is left in it
        #[arg(long)]
        keep: bool,
    },
    /// Show what was taken out of mounted workspaces when programs ended
    Held {
        /// Only what the end of this run took out
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Put this name back where it was
        #[arg(long, value_name = "PATH", requires = "id")]
        take: Option<PathBuf>,
        /// Remove what is kept of it
        #[arg(long, requires = "id", conflicts_with = "take")]
        drop: bool,
    },
    /// Drop the changes
    Discard {
        /// Its run or session
        #[arg(value_name = "ID")]
        id: String,
    },
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, surroundings: &Surroundings) -> u8 {
    let json = options.json;
    conclude(attempt(options, global, surroundings), json)
}

fn attempt(options: Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    if let Some(client) = global.server(surroundings)? {
        return super::runtime()?.block_on(remote::act(&client, options.action, options.json));
    }
    let config = global.configure(surroundings)?;
    let runtime = super::runtime()?;
    let _within = runtime.enter();
    // Opening sweeps: a box whose engine was killed does not keep its workspace.
    let engine = open_engine(&config, None)?;
    let (state, json) = (engine.state_folder(), options.json);
    match options.action {
        Action::List => {
            let layers = workspaces::list(state).map_err(failure)?;
            match json {
                true => print_json(&serde_json::json!({ "workspaces": layers }))?,
                false => print(&list(&layers))?,
            }
            Ok(0)
        }
        Action::Diff { id, stat } => {
            let diff = workspaces::diff(state, &known(&id)?).map_err(failure)?;
            show(&diff, stat, json)
        }
        Action::Commit {
            id,
            force,
            partial,
            keep,
        } => {
            let options = CommitOptions {
                force,
                partial,
                keep,
            };
            match workspaces::commit(state, &known(&id)?, options) {
                Ok(committed) => report(&committed, json),
                Err(LayerError::Refused { left }) => refused(left, json),
                Err(error) => Err(failure(error)),
            }
        }
        Action::Held { id, take, drop } => {
            let id = id.as_deref().map(known).transpose()?;
            held(state, id.as_ref(), take.as_deref(), drop, json)
        }
        Action::Discard { id } => {
            workspaces::discard(state, &known(&id)?).map_err(failure)?;
            match json {
                true => print_json(&serde_json::json!({ "discarded": id }))?,
                false => print("discarded\n")?,
            }
            Ok(0)
        }
    }
}

fn held(
    state: &Path,
    run: Option<&Id>,
    take: Option<&Path>,
    drop: bool,
    json: bool,
) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| {
        let hint = "`airlock workspace held` shows what is held, and where each thing is kept";
        Failure::invalid(format!("this cannot be done: {error}"), hint)
    };
    match (run, take) {
        (Some(run), Some(path)) => workspaces::held::take(state, run, path).map_err(failed)?,
        (Some(run), None) if drop => workspaces::held::discard(state, run).map_err(failed)?,
        _ => return show_held(&workspaces::held::list(state, run).map_err(failed)?, json),
    }
    match json {
        true => print_json(&serde_json::json!({ "taken": take, "dropped": drop }))?,
        false => print(if drop { "dropped\n" } else { "taken back\n" })?,
    }
    Ok(0)
}

fn show_held(held: &[HeldEntry], json: bool) -> Result<u8, Failure> {
    if json {
        let value = |held: &HeldEntry| {
            serde_json::json!({
                "run_id": held.run, "workspace": name(&held.workspace), "path": name(&held.path),
                "why": held.why, "kept": held.kept.as_deref().map(name),
            })
        };
        let all: Vec<_> = held.iter().map(value).collect();
        print_json(&serde_json::json!({ "held_back": all }))?;
        return Ok(0);
    }
    let line = |held: &HeldEntry| {
        let kept = held.kept.as_deref().map_or("not kept".to_owned(), name);
        let (path, why) = (name(&held.path), held.why.words());
        format!(
            "{}  {}/{path}: {why}  ({kept})\n",
            held.run,
            name(&held.workspace)
        )
    };
    print(&held.iter().map(line).collect::<String>())?;
    Ok(0)
}

fn known(id: &str) -> Result<Id, Failure> {
    let hint = "`airlock workspace list` shows what there is";
    Id::new(id).map_err(|bad| Failure::invalid(bad.to_string(), hint))
}

fn failure(error: LayerError) -> Failure {
    error.info().into()
}

/// What stands against it is named, before the failure itself or as a part of it.
fn refused(left: Vec<Left>, json: bool) -> Result<u8, Failure> {
    message::say(&notes(&left));
    let named = json.then(|| serde_json::json!(left));
    let failure = failure(LayerError::Refused { left });
    match named {
        None => Err(failure),
        Some(left) => {
            message::say(&failure.lines());
            print_json(&serde_json::json!({ "error": failure.info(), "left_out": left }))?;
            Ok(super::REFUSED)
        }
    }
}

fn notes(left: &[Left]) -> Vec<Line> {
    left.iter()
        .map(|left| Line::Note(format!("`{}`: {}", name(&left.path), left.reason)))
        .collect()
}

fn show(diff: &Diff, stat: bool, json: bool) -> Result<u8, Failure> {
    let unknown: Vec<_> = diff
        .unknown
        .iter()
        .map(|(path, reason)| Left {
            path: path.clone(),
            reason: reason.clone(),
            conflict: false,
        })
        .collect();
    if json {
        let value = serde_json::json!({
            "changes": diff.changes, "not_looked_into": unknown, "compared": diff.compared,
        });
        print_json(&value)?;
        return Ok(0);
    }
    match stat {
        true => print(&counts(&diff.changes))?,
        false => print(&diff.changes.iter().map(line).collect::<String>())?,
    }
    say_unknown(&unknown, diff.compared);
    Ok(0)
}

fn say_unknown(unknown: &[Left], compared: bool) {
    let mut said = notes(unknown);
    if !compared {
        said.push(Line::Note(
            "the folder is not there: conflicts are not known".to_owned(),
        ));
    }
    message::say(&said);
}

fn report(committed: &Committed, json: bool) -> Result<u8, Failure> {
    let Committed {
        applied,
        left,
        discarded,
    } = committed;
    match json {
        true => print_json(
            &serde_json::json!({ "applied": applied, "left_out": left, "discarded": discarded }),
        )?,
        false => {
            print(&applied.iter().map(line).collect::<String>())?;
            message::say(&notes(left));
        }
    }
    Ok(u8::from(!left.is_empty()))
}

fn list(layers: &[Layer]) -> String {
    let line = |layer: &Layer| {
        let used = if layer.in_use { "  in use" } else { "" };
        format!(
            "{}  {}  {}{used}\n",
            layer.id,
            layer.made_at,
            name(&layer.folder)
        )
    };
    layers.iter().map(line).collect()
}

fn line(change: &Change) -> String {
    let sign = match change.what {
        What::Added => '+',
        What::Changed => '~',
        What::Removed => '-',
        What::Replaced => '!',
        What::Mode => 'm',
    };
    let folder = if change.kind == Kind::Folder { "/" } else { "" };
    let target = change.target.as_ref().map_or(String::new(), |target| {
        format!(" -> {}", name(Path::new(target)))
    });
    let against = change.left_out.as_ref().or(change.conflict.as_ref());
    let against = against.map_or(String::new(), |reason| format!("  ({})", printable(reason)));
    format!("{sign} {}{folder}{target}{against}\n", name(&change.path))
}

fn counts(changes: &[Change]) -> String {
    let count = |wanted: &[What]| {
        changes
            .iter()
            .filter(|change| wanted.contains(&change.what))
            .count()
    };
    format!(
        "{} added, {} changed, {} removed\n",
        count(&[What::Added]),
        count(&[What::Changed, What::Replaced, What::Mode]),
        count(&[What::Removed])
    )
}

/// A name on one line, whatever bytes it has.
fn name(path: &Path) -> String {
    let mut shown = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        shown.push_str(&printable(&chunk.valid().replace('\\', "\\\\")));
        shown.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    #[test]
    fn a_name_takes_one_line_and_no_two_names_look_alike() {
        let shown = |bytes: &[u8]| name(Path::new(OsStr::from_bytes(bytes)));
        assert_eq!(shown(b"a b/\xc3\xa4"), "a b/ä");
        assert_eq!(shown(b"a\nb\x1b[2J"), "a\\nb\\u{1b}[2J");
        assert_eq!(shown(b"\xff"), "\\xff");
        assert_eq!(shown(b"\\xff"), "\\\\xff");
    }
}
