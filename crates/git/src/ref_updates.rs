//! Decides which references may be updated or created on the host under their own names, from the
//! names and the state of the host's repository. Whether an update is a fast-forward is decided
//! elsewhere.

use crate::{HostState, ObjectId, PlannedRef, RefMap};
use std::collections::BTreeSet;

/// References that one import may update.
pub const MAX_UPDATED_REFS: usize = 100;

const HEADS: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";

/// The state against which all references of one import are checked.
#[derive(Debug)]
pub struct RefUpdateContext<'a> {
    /// The host's repository as it is now.
    pub now: &'a HostState,
    /// The names of its remotes.
    pub remotes: &'a [String],
    /// The names of all references that the program has created or changed.
    pub imported: &'a BTreeSet<String>,
}

/// Whether a reference that the program created or updated may be so on the host, too; otherwise
/// the reason.
pub fn check_ref_update(
    planned: &PlannedRef,
    context: &RefUpdateContext<'_>,
) -> Result<(), String> {
    let name = planned.name.as_str();
    let Some(short) = [HEADS, TAGS].iter().find_map(|top| name.strip_prefix(top)) else {
        return Err("only branches and new tags come under their own names".to_owned());
    };
    if let Some(operation) = context.now.operation {
        return Err(format!("{operation} is in progress"));
    }
    if context.now.refs.symbolic.contains_key(name) {
        return Err("here it leads to another reference".to_owned());
    }
    let here = context.now.refs.direct.get(name);
    if here != planned.old.as_ref() {
        return Err(match (here, &planned.old) {
            (Some(_), None) => "it was made here, too".to_owned(),
            _ => "it was moved here meanwhile".to_owned(),
        });
    }
    if context.now.open_elsewhere.contains(name) {
        return Err("it is open in another worktree".to_owned());
    }
    if here.is_none() {
        return match ambiguous_with(name, short, context) {
            None => Ok(()),
            Some(other) => Err(format!(
                "its name could be taken for {}",
                crate::escape(&other)
            )),
        };
    }
    if name.starts_with(TAGS) {
        return Err("a tag that was moved".to_owned());
    }
    if context.now.refs.has(&format!("{TAGS}{short}")) {
        return Err("a tag of its name stands before it".to_owned());
    }
    Ok(())
}

/// The existing name with which a new one would be ambiguous: git finds both by the short name,
/// they differ in letter case only, or one of them would have to be a folder.
fn ambiguous_with(name: &str, short: &str, context: &RefUpdateContext<'_>) -> Option<String> {
    if let Some(remote) = context.remotes.iter().find(|remote| *remote == short) {
        return Some(format!("the remote {remote}"));
    }
    // The order in which `git rev-parse` looks up a short name.
    let found = ["", "tags/", "heads/", "remotes/"];
    let found: Vec<_> = found
        .iter()
        .map(|top| format!("refs/{top}{short}"))
        .collect();
    let as_remote = format!("refs/remotes/{short}/");
    let lower = name.to_lowercase();
    let clashes = |other: &&String| {
        let is_below = |one: &str, of: &str| {
            one.strip_prefix(of)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        let other = other.as_str();
        other != name
            && (found.iter().any(|found| found == other)
                || other.starts_with(&as_remote)
                || other.to_lowercase() == lower
                || is_below(other, name)
                || is_below(name, other))
    };
    let RefMap { direct, symbolic } = &context.now.refs;
    let all = direct.keys().chain(symbolic.keys()).chain(context.imported);
    let mut all = all.filter(|other| !other.starts_with("refs/airlock/"));
    all.find(clashes).cloned()
}

/// A line of git's reflog: old and new object, identity, time, reason.
pub fn reflog_line(
    (old, new): (Option<&ObjectId>, &ObjectId),
    who: &str,
    seconds: u64,
    why: &str,
) -> String {
    let none = "0".repeat(new.as_bytes().len() * 2);
    let old = old.map_or(none, ToString::to_string);
    format!("{old} {new} {who} {seconds} +0000\t{why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Head, ObjectFormat};

    fn id(digit: &str) -> ObjectId {
        ObjectId::parse(&digit.repeat(40), ObjectFormat::Sha1).unwrap()
    }

    fn host() -> HostState {
        let names = [
            "refs/heads/main",
            "refs/heads/feat/x",
            "refs/heads/open",
            "refs/heads/v0",
            "refs/tags/v0",
            "refs/tags/v1",
            "refs/remotes/origin/HEAD",
            "refs/remotes/origin/dev",
            "refs/airlock/r/heads/free",
        ];
        HostState {
            head: Head::Branch("refs/heads/main".to_owned()),
            refs: RefMap {
                direct: names.map(|name| (name.to_owned(), id("1"))).into(),
                symbolic: [("refs/heads/sym".to_owned(), "refs/heads/main".to_owned())].into(),
            },
            operation: None,
            open_elsewhere: ["refs/heads/open".to_owned()].into(),
        }
    }

    fn judge(host: &HostState, name: &str, old: Option<&str>) -> Result<(), String> {
        let planned = PlannedRef {
            name: name.to_owned(),
            old: old.map(id),
            new: id("2"),
            below: String::new(),
        };
        let imported = [name.to_owned(), "refs/tags/both".to_owned()].into();
        let context = RefUpdateContext {
            now: host,
            remotes: &["up".to_owned()],
            imported: &imported,
        };
        check_ref_update(&planned, &context)
    }

    #[test]
    fn what_is_as_it_was_moves_and_what_is_new_is_made() {
        for (name, old) in [
            ("refs/heads/main", Some("1")),
            ("refs/heads/free", None),
            ("refs/heads/feat/y", None),
            ("refs/tags/v2", None),
        ] {
            assert_eq!(judge(&host(), name, old), Ok(()), "{name}");
        }
    }

    #[test]
    fn what_means_something_else_here_stays_aside() {
        for (name, old, why) in [
            ("refs/heads/main", Some("3"), "moved here meanwhile"),
            ("refs/heads/main", None, "made here, too"),
            ("refs/heads/gone", Some("1"), "moved here meanwhile"),
            ("refs/heads/open", Some("1"), "open in another worktree"),
            ("refs/heads/sym", None, "leads to another reference"),
            ("refs/heads/v0", Some("1"), "a tag of its name"),
            ("refs/tags/v1", Some("1"), "a tag that was moved"),
            ("refs/stash", None, "only branches"),
            ("HEAD", None, "only branches"),
            ("refs/tags/main", None, "refs/heads/main"),
            ("refs/heads/v1", None, "refs/tags/v1"),
            ("refs/heads/both", None, "refs/tags/both"),
            ("refs/heads/origin", None, "refs/remotes/origin"),
            ("refs/heads/origin/dev", None, "refs/remotes/origin/dev"),
            ("refs/tags/origin/dev", None, "refs/remotes/origin/dev"),
            ("refs/heads/heads/main", None, "refs/heads/main"),
            ("refs/heads/Main", None, "refs/heads/main"),
            ("refs/heads/feat", None, "refs/heads/feat/x"),
            ("refs/heads/main/x", None, "refs/heads/main"),
            ("refs/heads/up", None, "the remote up"),
        ] {
            let told = judge(&host(), name, old).unwrap_err();
            assert!(told.contains(why), "{name}: {told}");
        }
    }

    #[test]
    fn nothing_moves_during_an_operation_of_the_user() {
        let busy = HostState {
            operation: Some("a merge"),
            ..host()
        };
        let told = judge(&busy, "refs/heads/main", Some("1"));
        assert_eq!(told, Err("a merge is in progress".to_owned()));
    }

    #[test]
    fn a_line_of_a_reflog_is_as_git_writes_it() {
        assert_eq!(
            reflog_line((None, &id("2")), "n <a@b>", 5, "airlock: run r"),
            format!(
                "{} {} n <a@b> 5 +0000\tairlock: run r",
                "0".repeat(40),
                "2".repeat(40)
            )
        );
    }
}
