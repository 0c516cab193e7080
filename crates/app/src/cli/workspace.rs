//! `airlock workspace`: shows, commits or discards changes of staged workspaces, and entries held
//! back from mounted ones.

mod file_viewer;
mod interactive;
mod pager;
mod patch;
mod remote;

use super::{
    Global, conclude,
    message::{self, Failure, Message, printable},
    open_engine, print, print_json,
};
use crate::config::ProcessEnv;
use clap::{Args, Subcommand};
use engine::{
    BroughtCommits, Engine, KeptCommits,
    workspaces::{
        self, ChangeKind, CommitOptions, CommitOutcome, Diff, FileKind, Layer, LayerChange,
        LayerError, MAX_PATCH_BYTES, ProgramFile, UnappliedChange, held::HeldEntry,
    },
};
use file_viewer::FileViewer;
use spec::{ErrorInfo, Id};
use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Examples:
  airlock run --workspace . --copy-on-write --run-id try -- touch made
  airlock workspace list
  airlock workspace diff try
  airlock workspace diff --patch
  airlock workspace show try made
  airlock workspace commit try --only made
  airlock run --workspace . --copy-on-write --run-id other -- rm made
  airlock workspace discard other
  airlock workspace held

Without an ID, the newest workspace is used.
In `diff`: + added, - removed, ~ changed, ! another file type, m other permissions, * a git commit of the program.
A commit is refused, and nothing is changed, if a change cannot be applied or conflicts with one in the folder.
Exit status: 0; 1 if a commit or a patch is incomplete; 125 if it was refused.";

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
    /// List workspaces with kept changes
    List,
    /// Show what the program changed, or has changed so far
    Diff {
        /// The run or session [default: the newest]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Only count the changes
        #[arg(long, conflicts_with = "patch")]
        stat: bool,
        /// Print a patch for `git apply` and `patch -p1`; changes that a commit would omit stand
        /// after `#`
        #[arg(short, long)]
        patch: bool,
        /// Only this path and everything below it; repeatable
        #[arg(long, value_name = "PATH")]
        only: Vec<PathBuf>,
    },
    /// Write a file of the program's workspace to standard output
    #[command(allow_missing_positional = true)]
    Show {
        /// The run or session [default: the newest]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// A path in the workspace
        #[arg(value_name = "FILE", conflicts_with = "json")]
        file: PathBuf,
    },
    /// Commit the changes to the folder, then remove the workspace
    Commit {
        /// The run or session [default: the newest]
        #[arg(value_name = "ID")]
        id: Option<String>,
        #[command(flatten)]
        args: CommitArgs,
    },
    /// Show files that were held back from mounted workspaces when programs ended
    Held {
        /// Only files of this run
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Put this file back where it was
        #[arg(long, value_name = "PATH", requires = "id")]
        take: Option<PathBuf>,
        /// Remove the run's held-back files
        #[arg(long, requires = "id", conflicts_with = "take")]
        drop: bool,
    },
    /// Discard the changes
    Discard {
        /// The run or session [default: the newest, after a confirmation]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Do not ask for a confirmation
        #[arg(long)]
        yes: bool,
    },
}

/// The options of a commit.
#[derive(Args, Debug)]
struct CommitArgs {
    /// Overwrite conflicting changes in the folder
    #[arg(long)]
    force: bool,
    /// Commit what can be committed, and list the rest
    #[arg(long)]
    partial: bool,
    /// Keep the workspace even if nothing is left in it
    #[arg(long)]
    keep: bool,
    /// Only this path and everything below it; repeatable
    #[arg(long, value_name = "PATH")]
    only: Vec<PathBuf>,
    /// Ask about each change
    #[arg(short, long, conflicts_with = "json")]
    interactive: bool,
}

impl CommitArgs {
    fn options(&self) -> CommitOptions {
        CommitOptions {
            force: self.force,
            partial: self.partial,
            keep: self.keep,
            only: patch::clean_paths(&self.only),
            exactly: false,
        }
    }
}

/// Carries out the command.
pub(super) fn execute(options: Options, global: &Global, env: &ProcessEnv) -> u8 {
    let json = options.json;
    conclude(attempt(options, global, env), json)
}

fn attempt(options: Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let json = options.json;
    if let Action::Commit { args, .. } = &options.action
        && args.interactive
    {
        let instead = "select changes with --only, or omit --interactive";
        interactive::require_terminal("--interactive", instead)?;
    }
    if let Some(client) = global.server(env)? {
        let acted = remote::execute(&client, options.action, json, env);
        return super::runtime()?.block_on(acted);
    }
    let config = global.configure(env)?;
    let runtime = super::runtime()?;
    let _within = runtime.enter();
    // Opening the engine sweeps: a sandbox whose engine was killed no longer uses its workspace.
    let engine = open_engine(&config, None)?;
    let state = engine.state_folder();
    match options.action {
        Action::List => {
            let layers = workspaces::list(state).map_err(failure)?;
            let kept = engine.kept_commits();
            if json {
                print_json(&listed(&layers, &kept))?
            } else {
                print(&(list(&layers) + &list_commits(&kept)))?
            }
            Ok(0)
        }
        Action::Diff {
            id,
            stat,
            patch: false,
            only,
        } => {
            let diff = workspaces::diff(state, &workspace_id(state, id)?).map_err(failure)?;
            show(&diff.only(&patch::clean_paths(&only)), stat, json)
        }
        Action::Diff { id, only, .. } => {
            let id = workspace_id(state, id)?;
            let only = patch::clean_paths(&only);
            let (diff, patch) =
                workspaces::patch(state, &id, &only, MAX_PATCH_BYTES).map_err(failure)?;
            show_patch(&diff, patch, json, env)
        }
        Action::Show { id, file } => {
            let path = workspace_path(file)?;
            let id = workspace_id(state, id)?;
            show_file(workspaces::open_file(state, &id, &path).map_err(failure)?)
        }
        Action::Commit { id, args } => {
            let id = workspace_id(state, id)?;
            let mut options = args.options();
            if args.interactive {
                let choosing = choose(state, &id, &options, env);
                options.only = runtime.block_on(choosing)?;
                options.exactly = true;
                if options.only.is_empty() {
                    return nothing_done();
                }
            }
            let brings = options.only.is_empty();
            let committed = match workspaces::commit(state, &id, options) {
                Err(LayerError::Refused { left }) => return refused(left, json),
                // A live workspace has no layer, only commits.
                Err(LayerError::Absent { .. }) if has_commits(&engine, &id) => {
                    CommitOutcome::default()
                }
                committed => committed.map_err(failure)?,
            };
            let brought = if brings {
                runtime.block_on(bring_commits(&engine, &id))
            } else {
                Ok(None)
            };
            runtime.block_on(engine.close());
            report(&committed, brought, json)
        }
        Action::Held { id, take, drop } => {
            let id = id.as_deref().map(parse_id).transpose()?;
            held(state, id.as_ref(), take.as_deref(), drop, json)
        }
        Action::Discard { id, yes } => {
            let asks = id.is_none() && !yes;
            if asks {
                require_id_or_terminal()?;
            }
            let id = workspace_id(state, id)?;
            if asks && !interactive::confirm(&format!("discard all changes of `{id}`?"))? {
                return nothing_done();
            }
            match workspaces::discard(state, &id) {
                Err(LayerError::Absent { .. }) if has_commits(&engine, &id) => {}
                discarded => discarded.map_err(failure)?,
            }
            engine.discard_commits(&id).map_err(|error| {
                Failure::internal(format!(
                    "the commits of `{id}` cannot be discarded: {error}"
                ))
            })?;
            discarded(id.as_str(), json)
        }
    }
}

/// Imports the kept git commits. Where their files are must be known, so that the advice is right.
async fn bring_commits(engine: &Engine, id: &Id) -> Result<Option<BroughtCommits>, ErrorInfo> {
    let is_layer_kept =
        workspaces::exists(engine.state_folder(), id).map_err(|error| error.info())?;
    engine.bring_commits(id, is_layer_kept).await
}

fn has_commits(engine: &Engine, id: &Id) -> bool {
    let kept = engine.kept_commits();
    kept.iter().any(|kept| kept.run == *id)
}

/// The newest workspace is discarded only after a confirmation.
fn require_id_or_terminal() -> Result<(), Failure> {
    let instead = "name the workspace (`airlock workspace list` shows them), or add --yes";
    interactive::require_terminal("discarding the newest workspace without its ID", instead)
}

fn discarded(id: &str, json: bool) -> Result<u8, Failure> {
    if json {
        print_json(&serde_json::json!({ "discarded": id }))?
    } else {
        print("discarded\n")?
    }
    Ok(0)
}

fn nothing_done() -> Result<u8, Failure> {
    message::print(&[Message::Note(
        "nothing was changed; the workspace is kept".to_owned(),
    )]);
    Ok(0)
}

/// The workspace with this id, or the newest, which a note names.
fn workspace_id(state: &Path, id: Option<String>) -> Result<Id, Failure> {
    if let Some(id) = id {
        return parse_id(&id);
    }
    let newest = workspaces::find_newest(state).map_err(failure)?;
    let newest = newest.ok_or_else(no_workspace)?;
    note_newest(newest.id.as_str(), &newest.folder);
    Ok(newest.id)
}

fn no_workspace() -> Failure {
    Failure::invalid(
        "there is no workspace with kept changes",
        "`airlock run --workspace DIR --copy-on-write` keeps them",
    )
}

fn note_newest(id: &str, folder: &Path) {
    let folder = name(folder);
    message::print(&[Message::Note(format!(
        "the newest workspace: `{id}`, of `{folder}`"
    ))]);
}

fn workspace_path(file: PathBuf) -> Result<PathBuf, Failure> {
    let hint = "give its path as `airlock workspace diff` shows it";
    let file = patch::clean_paths(&[file]).pop();
    file.ok_or_else(|| Failure::invalid("this is not a file of a workspace", hint))
}

/// Asks which changes to commit.
async fn choose(
    state: &Path,
    id: &Id,
    options: &CommitOptions,
    env: &ProcessEnv,
) -> Result<Vec<PathBuf>, Failure> {
    let diff = workspaces::diff(state, id).map_err(failure)?;
    let diff = diff.only(&options.only);
    if workspaces::find(state, id).is_ok_and(|layer| layer.in_use) {
        message::print(&[Message::Note(
            "a program is still running there: its changes to the selected files are committed, too"
                .to_owned(),
        )]);
    }
    let patch_of = async |path: &Path| {
        let only = [path.to_owned()];
        let patch = workspaces::patch(state, id, &only, MAX_PATCH_BYTES);
        Ok(patch.map_err(failure)?.1.text)
    };
    interactive::choose(&diff.changes, options.force, env, patch_of).await
}

fn show_file(file: ProgramFile) -> Result<u8, Failure> {
    let mut viewer = FileViewer::new();
    match file {
        ProgramFile::Link(target) => {
            viewer.write(target.as_encoded_bytes())?;
        }
        ProgramFile::Contents(mut file, _) => {
            let mut buffer = vec![0; 128 << 10];
            loop {
                let count = match file.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => {
                        let words = format!("cannot read what the program left: {error}");
                        return Err(Failure::internal(words));
                    }
                };
                if !viewer.write(&buffer[..count])? {
                    break;
                }
            }
        }
    }
    viewer.finish()?;
    Ok(0)
}

fn held(
    state: &Path,
    run: Option<&Id>,
    take: Option<&Path>,
    drop: bool,
    json: bool,
) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| {
        let hint = "`airlock workspace held` shows what is held back, and where each file is kept";
        Failure::invalid(format!("cannot do this: {error}"), hint)
    };
    match (run, take) {
        (Some(run), Some(path)) => workspaces::held::take(state, run, path).map_err(failed)?,
        (Some(run), None) if drop => workspaces::held::discard(state, run).map_err(failed)?,
        _ => {
            let held = workspaces::held::list(state, run).map_err(failed)?;
            if let Some(run) = run.filter(|_| held.is_empty()) {
                let hint = "`airlock workspace held` shows what is held back from all runs";
                let message = format!("nothing is held back from a run `{run}`");
                return Err(Failure::invalid(message, hint));
            }
            return show_held(&held, json);
        }
    }
    if json {
        print_json(&serde_json::json!({ "taken": take, "dropped": drop }))?
    } else {
        print(if drop { "dropped\n" } else { "taken back\n" })?
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
        let path = name(&held.path);
        let why = held.why.words();
        format!(
            "{}  {}/{path}: {why}  ({kept})\n",
            held.run,
            name(&held.workspace)
        )
    };
    print(&held.iter().map(line).collect::<String>())?;
    Ok(0)
}

fn parse_id(id: &str) -> Result<Id, Failure> {
    let hint = "`airlock workspace list` shows what there is";
    Id::new(id).map_err(|bad| Failure::invalid(bad.to_string(), hint))
}

fn failure(error: LayerError) -> Failure {
    error.info().into()
}

/// Reports a refused commit with its conflicts, before the error or as a part of it.
fn refused(left: Vec<UnappliedChange>, json: bool) -> Result<u8, Failure> {
    message::print(&notes(&left));
    let named = json.then(|| serde_json::json!(left));
    let failure = failure(LayerError::Refused { left });
    match named {
        None => Err(failure),
        Some(left) => {
            message::print(&failure.lines());
            print_json(&serde_json::json!({ "error": failure.info(), "left_out": left }))?;
            Ok(super::REFUSED)
        }
    }
}

fn notes(left: &[UnappliedChange]) -> Vec<Message> {
    left.iter()
        .map(|left| Message::Note(format!("`{}`: {}", name(&left.path), left.reason)))
        .collect()
}

fn show(diff: &Diff, stat: bool, json: bool) -> Result<u8, Failure> {
    let unknown = unknown(diff);
    if json {
        print_json(&value(diff, &unknown))?;
        return Ok(0);
    }
    if stat {
        print(&counts(&diff.changes))?
    } else {
        print(&lines(&diff.changes, &diff.commits))?
    }
    note_unknown(&unknown, diff.compared);
    Ok(0)
}

fn show_patch(
    diff: &Diff,
    mut patch: workspaces::Patch,
    json: bool,
    env: &ProcessEnv,
) -> Result<u8, Failure> {
    let unknown = unknown(diff);
    if json {
        let mut value = value(diff, &unknown);
        value["patch"] = patch::value(&patch);
        print_json(&value)?;
        return Ok(u8::from(patch.omitted_total > 0));
    }
    patch
        .text
        .splice(0..0, commits(&diff.commits, "# * ").into_bytes());
    let status = patch::write(&patch, env)?;
    note_unknown(&unknown, diff.compared);
    Ok(status)
}

fn unknown(diff: &Diff) -> Vec<UnappliedChange> {
    let left = |(path, reason): &(PathBuf, String)| UnappliedChange {
        path: path.clone(),
        reason: reason.clone(),
        conflict: false,
        why: None,
    };
    diff.unknown.iter().map(left).collect()
}

fn value(diff: &Diff, unknown: &[UnappliedChange]) -> serde_json::Value {
    serde_json::json!({
        "changes": diff.changes, "not_looked_into": unknown, "compared": diff.compared, "commits": diff.commits,
    })
}

fn lines(changes: &[LayerChange], made: &[String]) -> String {
    changes.iter().map(line).collect::<String>() + &commits(made, "* ")
}

fn commits(commits: &[String], sign: &str) -> String {
    let line = |commit: &String| format!("{sign}{}\n", printable(commit));
    commits.iter().map(line).collect()
}

fn note_unknown(unknown: &[UnappliedChange], compared: bool) {
    let mut lines = notes(unknown);
    if !compared {
        lines.push(Message::Note(
            "the folder is missing, so that conflicts are unknown".to_owned(),
        ));
    }
    message::print(&lines);
}

/// Reports a commit: applied and omitted changes, and imported git commits.
fn report(
    committed: &CommitOutcome,
    brought: Result<Option<BroughtCommits>, ErrorInfo>,
    json: bool,
) -> Result<u8, Failure> {
    let CommitOutcome {
        applied,
        left,
        discarded,
        ..
    } = committed;
    if !json {
        print(&applied.iter().map(line).collect::<String>())?;
        message::print(&notes(left));
    }
    // The applied changes are reported even if the import of commits failed.
    let brought = brought?;
    let imports = brought.as_ref().map(|brought| &brought.imports);
    if json {
        let mut answer =
            serde_json::json!({ "applied": applied, "left_out": left, "discarded": discarded });
        if let Some(imports) = imports {
            answer["git"] = serde_json::json!(imports);
        }
        print_json(&answer)?;
    } else if let Some(brought) = &brought {
        let notes = brought.notes.iter().cloned().map(Message::Note);
        message::print(&notes.collect::<Vec<_>>());
    }
    let has_failed = brought.as_ref().is_some_and(BroughtCommits::has_failed);
    let is_left = !left.is_empty() || has_failed;
    Ok(u8::from(is_left))
}

fn listed(layers: &[Layer], kept: &[KeptCommits]) -> serde_json::Value {
    let mut answer = serde_json::json!({ "workspaces": layers });
    let one = |kept: &KeptCommits| {
        serde_json::json!({
            "id": kept.run, "folder": name(&kept.folder), "made_at": kept.made_at,
            "command": format!("airlock workspace commit {}", kept.run),
        })
    };
    if !kept.is_empty() {
        answer["commits_not_brought"] = kept.iter().map(one).collect();
    }
    answer
}

/// Commits that were not imported, one run a line.
fn list_commits(kept: &[KeptCommits]) -> String {
    let line = |kept: &KeptCommits| {
        let KeptCommits {
            run,
            folder,
            made_at,
        } = kept;
        let folder = name(folder);
        format!(
            "{run}  {made_at}  {folder}  commits that were not imported: `airlock workspace commit {run}` imports them\n"
        )
    };
    kept.iter().map(line).collect()
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

fn line(change: &LayerChange) -> String {
    let sign = match change.what {
        ChangeKind::Added => '+',
        ChangeKind::Changed => '~',
        ChangeKind::Removed => '-',
        ChangeKind::Replaced => '!',
        ChangeKind::Mode => 'm',
    };
    let folder = if change.kind == FileKind::Folder {
        "/"
    } else {
        ""
    };
    let target = change.target.as_ref().map_or(String::new(), |target| {
        format!(" -> {}", name(Path::new(target)))
    });
    let against = change.left_out.as_ref().or(change.conflict.as_ref());
    let against = against.map_or(String::new(), |reason| format!("  ({})", printable(reason)));
    format!("{sign} {}{folder}{target}{against}\n", name(&change.path))
}

fn counts(changes: &[LayerChange]) -> String {
    let count = |wanted: &[ChangeKind]| {
        changes
            .iter()
            .filter(|change| wanted.contains(&change.what))
            .count()
    };
    format!(
        "{} added, {} changed, {} removed\n",
        count(&[ChangeKind::Added]),
        count(&[ChangeKind::Changed, ChangeKind::Replaced, ChangeKind::Mode]),
        count(&[ChangeKind::Removed])
    )
}

/// Escapes one line of a program's text for a terminal.
fn escaped(line: &[u8], shown: &mut String) {
    for chunk in line.utf8_chunks() {
        for (number, part) in chunk.valid().split('\t').enumerate() {
            if number > 0 {
                shown.push('\t');
            }
            shown.push_str(&printable(part));
        }
        shown.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
}

/// Escapes a path to one line.
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
