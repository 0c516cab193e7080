//! The denials of a job of steps: those of the steps by Airlock, and those of their programs by the
//! sandbox. Duplicates are removed.

use super::files::FileStepError;
use spec::Denial;
use std::collections::HashSet;

/// The most denials that are listed: a result is kept in memory.
const MAX_DENIALS: usize = 256;
/// The rule for paths that lead out of the workspace.
const WORKSPACE: &str = "workspace";

/// The denials so far.
#[derive(Debug, Default)]
pub(super) struct DenialList {
    list: Vec<Denial>,
    seen: HashSet<(String, String, String)>,
}

impl DenialList {
    pub(super) fn add(&mut self, all: impl IntoIterator<Item = Denial>) {
        for denial in all {
            if self.list.len() >= MAX_DENIALS {
                return;
            }
            let words = (
                denial.what.clone(),
                denial.target.clone(),
                denial.rule.clone(),
            );
            if self.seen.insert(words) {
                self.list.push(denial);
            }
        }
    }

    pub(super) fn into_list(self) -> Vec<Denial> {
        self.list
    }
}

/// The denial of a step whose path leads out of the workspace, if that was the error.
pub(super) fn outside(kind: &str, wrong: &FileStepError) -> Option<Denial> {
    let target = wrong.outside.clone()?;
    let [rule, allow_with] = [WORKSPACE, "nothing"].map(str::to_owned);
    Some(Denial {
        what: kind.to_owned(),
        target,
        rule,
        allow_with,
    })
}
