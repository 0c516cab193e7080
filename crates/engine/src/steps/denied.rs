//! What a job of steps was denied: its steps by us, its programs by their box. Each is listed once.

use super::files::Wrong;
use spec::Denial;
use std::collections::HashSet;

/// More are not listed: a result is kept whole.
const MOST: usize = 256;
/// By what a path that leads out is denied.
const WORKSPACE: &str = "workspace";

/// What was denied so far.
#[derive(Debug, Default)]
pub(super) struct Denied {
    list: Vec<Denial>,
    known: HashSet<(String, String, String)>,
}

impl Denied {
    pub(super) fn add(&mut self, all: impl IntoIterator<Item = Denial>) {
        for denial in all {
            if self.list.len() >= MOST {
                return;
            }
            let words = (
                denial.what.clone(),
                denial.target.clone(),
                denial.rule.clone(),
            );
            if self.known.insert(words) {
                self.list.push(denial);
            }
        }
    }

    pub(super) fn into_list(self) -> Vec<Denial> {
        self.list
    }
}

/// A step of this kind was to use a path that leads out of the workspace, if that is what was wrong.
pub(super) fn outside(kind: &str, wrong: &Wrong) -> Option<Denial> {
    let target = wrong.outside.clone()?;
    let [rule, allow_with] = [WORKSPACE, "nothing"].map(str::to_owned);
    Some(Denial {
        what: kind.to_owned(),
        target,
        rule,
        allow_with,
    })
}
