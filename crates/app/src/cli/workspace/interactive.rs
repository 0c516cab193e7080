//! `--interactive`: asks for each change whether to commit it.

use super::{line, name, patch};
use crate::{
    cli::{Failure, message},
    config::ProcessEnv,
};
use engine::workspaces::{ChangeKind, FileKind, LayerChange};
use std::{
    io::{self, BufRead, IsTerminal},
    path::{Path, PathBuf},
};

const ANSWERS: &str = "\
y - commit it
n - skip it
a - commit this and all that follow
q - skip this and all that follow
d - show it as a patch
? - show this help
";

/// Refuses interaction without a terminal.
pub(super) fn require_terminal(what: &str, instead: &str) -> Result<(), Failure> {
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        return Ok(());
    }
    let words = format!("{what} needs a terminal on standard input and standard error");
    Err(Failure::invalid(words, instead))
}

/// Asks about each change and returns the chosen paths. Changes that cannot be committed are listed
/// without a question.
pub(super) async fn choose(
    changes: &[LayerChange],
    force: bool,
    env: &ProcessEnv,
    patch_of: impl AsyncFn(&Path) -> Result<Vec<u8>, Failure>,
) -> Result<Vec<PathBuf>, Failure> {
    let mut chosen = Vec::new();
    let mut all = false;
    for (number, change) in changes.iter().enumerate() {
        let next = changes.get(number + 1);
        let has_below = next.is_some_and(|it| it.path.starts_with(&change.path));
        // A new folder is created with the first change inside it.
        let is_implied = change.kind == FileKind::Folder
            && matches!(change.what, ChangeKind::Added | ChangeKind::Replaced);
        if has_below && is_implied {
            continue;
        }
        let stands_against = change.left_out.is_some() || change.conflict.is_some();
        if stands_against && !force {
            message::print_plain(&format!("not committed: {}", line(change)));
            continue;
        }
        // A held-back change is taken only by its own answer.
        if all && change.left_out.is_none() {
            chosen.push(change.path.clone());
            continue;
        }
        match ask_decision(change, env, &patch_of).await? {
            Decision::Take => chosen.push(change.path.clone()),
            Decision::Leave => {}
            Decision::TakeAll => {
                chosen.push(change.path.clone());
                all = true;
            }
            Decision::LeaveAll => break,
        }
    }
    Ok(chosen)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Take,
    Leave,
    TakeAll,
    LeaveAll,
}

async fn ask_decision(
    change: &LayerChange,
    env: &ProcessEnv,
    patch_of: &impl AsyncFn(&Path) -> Result<Vec<u8>, Failure>,
) -> Result<Decision, Failure> {
    loop {
        message::print_plain(&format!(
            "{}commit `{}`? [y,n,a,q,d,?] ",
            line(change),
            name(&change.path)
        ));
        let answer = read_line()?;
        return Ok(match answer.as_deref() {
            Some("y") => Decision::Take,
            Some("n") => Decision::Leave,
            Some("a") => Decision::TakeAll,
            // The terminal was closed.
            Some("q") | None => Decision::LeaveAll,
            Some("d") => {
                patch::print_to_stderr(&patch_of(&change.path).await?, env);
                continue;
            }
            Some(_) => {
                message::print_plain(ANSWERS);
                continue;
            }
        });
    }
}

/// Asks for a confirmation.
pub(super) fn confirm(question: &str) -> Result<bool, Failure> {
    message::print_plain(&format!("{question} [y,N] "));
    let answer = read_line()?;
    Ok(matches!(answer.as_deref(), Some("y" | "yes")))
}

/// Reads an answer; `None` at the end of input.
fn read_line() -> Result<Option<String>, Failure> {
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(line.trim().to_lowercase())),
        Err(error) => Err(Failure::internal(format!(
            "cannot read from the terminal: {error}"
        ))),
    }
}
