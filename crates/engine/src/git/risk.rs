//! Finds risky changes in new commits: git or a tool would obey the file, or write elsewhere
//! through it, as soon as the commit is checked out.

use crate::files;
use ::git::import::ChangedPath;
use rustix::fs::OFlags;
use sandbox::native::protect;
use spec::ProtectedNames;
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

const LINK: &[u8] = b"120000";
/// The names that turn a folder with the other parts of a repository into one.
const HEADS: [&str; 2] = ["HEAD", "commondir"];

/// The risk check for one repository. The folder is accessed with the caller's credentials.
pub(super) struct RiskCheck<'a> {
    names: &'a ProtectedNames,
    worktree: &'a Path,
    workspace: BorrowedFd<'a>,
    /// Folders of the workspace, and whether git takes them for repositories.
    looked_at: RefCell<BTreeMap<PathBuf, bool>>,
}

/// The tree of a reference, as far as it matters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RefTree {
    /// The symbolic links.
    links: BTreeSet<PathBuf>,
    /// The folders with a file named `HEAD`.
    repositories: BTreeSet<PathBuf>,
    /// The targets of new links, by object name.
    targets: BTreeMap<Vec<u8>, OsString>,
}

impl RefTree {
    /// Parses the output of `git ls-tree -z` for links and files named `HEAD`, and of `git cat-file
    /// --batch` for new links.
    pub(super) fn parse(listed: &[u8], targets: &[u8]) -> Option<RefTree> {
        let mut tip = RefTree::default();
        for entry in listed.split(|byte| *byte == 0) {
            if entry.is_empty() {
                continue;
            }
            let at = entry.iter().position(|byte| *byte == b'\t')?;
            let path = Path::new(OsStr::from_bytes(&entry[at + 1..]));
            if entry.starts_with(LINK) {
                tip.links.insert(path.to_owned());
            }
            if is_head(path) {
                tip.repositories.extend(path.parent().map(Path::to_owned));
            }
        }
        let mut rest = targets;
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            let mut words = line.split(|byte| *byte == b' ');
            let (id, size) = (words.next()?, words.nth(1)?);
            let size: usize = std::str::from_utf8(size).ok()?.parse().ok()?;
            let target = OsString::from_vec(after.get(..size)?.to_vec());
            tip.targets.insert(id.to_vec(), target);
            rest = after.get(size..)?.strip_prefix(b"\n")?;
        }
        Some(tip)
    }
}

fn is_head(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    HEADS.iter().any(|head| name.eq_ignore_ascii_case(head))
}

impl<'a> RiskCheck<'a> {
    /// The check for a repository with this worktree in the workspace.
    pub(super) fn new(
        names: &'a ProtectedNames,
        worktree: &'a Path,
        workspace: BorrowedFd<'a>,
    ) -> RiskCheck<'a> {
        RiskCheck {
            names,
            worktree,
            workspace,
            looked_at: RefCell::default(),
        }
    }

    /// Whether a change is a risk. Without a tree the targets of links are not known, and every
    /// link is a risk.
    pub(super) fn is_risky(&self, change: &ChangedPath<'_>, tip: Option<&RefTree>) -> bool {
        let path = Path::new(OsStr::from_bytes(change.path));
        let is_plain_link =
            |id: &[u8]| tip.is_some_and(|tip| self.leads_to_plain(path, id, tip) == Some(true));
        change.is_new_gitlink
            || self.is_protected(path)
            || self.is_of_repository(path, tip)
            || change.link.is_some_and(|id| !is_plain_link(id))
    }

    fn is_protected(&self, path: &Path) -> bool {
        protect::protects(&self.worktree.join(path), self.names).is_some()
    }

    /// Whether a link leads lexically to a place in the worktree, through no other link, that no
    /// tool obeys.
    fn leads_to_plain(&self, path: &Path, id: &[u8], tip: &RefTree) -> Option<bool> {
        let at = self.worktree.join(path);
        if protect::find_below(&at, self.names).is_some() && !self.names.allows(&at) {
            return Some(false);
        }
        let inside = protect::resolve_inside(path, tip.targets.get(id)?)?;
        let is_through_link = inside.ancestors().any(|above| tip.links.contains(above));
        let is_obeyed = self.is_protected(&inside) || self.is_of_repository(&inside, Some(tip));
        Some(!is_through_link && !is_obeyed)
    }

    /// Whether a path lies in a repository that is not a submodule, or turns its folder into one.
    fn is_of_repository(&self, path: &Path, tip: Option<&RefTree>) -> bool {
        if self.names.allows(&self.worktree.join(path)) {
            return false;
        }
        let mut folders = path.ancestors().skip(1);
        // At the top of a worktree git looks for `.git` first.
        (is_head(path) && path.parent() != Some(Path::new("")))
            || folders.any(|folder| {
                let is_known = tip.is_some_and(|tip| tip.repositories.contains(folder));
                !folder.as_os_str().is_empty() && (is_known || self.is_repository_here(folder))
            })
    }

    fn is_repository_here(&self, folder: &Path) -> bool {
        if let Some(known) = self.looked_at.borrow().get(folder) {
            return *known;
        }
        let place = self.worktree.join(folder);
        let has = |name: &str| {
            files::open(self.workspace.as_fd(), place.join(name), OFlags::PATH).is_ok()
        };
        let is_one = protect::is_repository(has);
        self.looked_at
            .borrow_mut()
            .insert(folder.to_owned(), is_one);
        is_one
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::WorkspacePath;
    use std::fs::{self, File};

    const TARGETS: &[u8] =
        b"aa blob 4\nlib1\nbb blob 10\n../secrets\nc1 blob 10\nsrc/.git/x\ncc blob 5\nthere\ndd blob 6\nlink/x\n";
    const LISTED: &[u8] =
        b"120000 blob 1\tlink\x00100644 blob 2\tfixture/HEAD\x00100644 blob 3\tHEAD\x00";

    fn is_risky(path: &str, link: Option<&str>, names: &ProtectedNames, worktree: &str) -> bool {
        let top = std::env::temp_dir().join(format!("airlock-risk-{}", crate::fresh_id()));
        for below in ["own.git/objects", "own.git/refs"] {
            fs::create_dir_all(top.join(below)).unwrap();
        }
        fs::write(top.join("own.git/HEAD"), "").unwrap();
        let workspace = File::open(&top).unwrap();
        let risk = RiskCheck::new(names, Path::new(worktree), workspace.as_fd());
        let tip = RefTree::parse(LISTED, TARGETS).unwrap();
        let change = ChangedPath {
            path: path.as_bytes(),
            is_new_gitlink: false,
            link: link.map(str::as_bytes),
            gitlink: None,
        };
        let is_risky = risk.is_risky(&change, Some(&tip));
        fs::remove_dir_all(top).unwrap();
        is_risky
    }

    fn plain(path: &str, link: Option<&str>) -> bool {
        !is_risky(path, link, &ProtectedNames::default(), "")
    }

    #[test]
    fn a_link_is_plain_where_it_leads_to_a_plain_place() {
        assert!(plain("newest", Some("aa")));
        assert!(plain("src/newest", Some("cc")));
        for (path, link) in [
            ("newest", "bb"),
            ("newest", "c1"),
            ("newest", "dd"),
            ("newest", "unknown"),
            (".github", "aa"),
            (".vscode", "aa"),
        ] {
            assert!(!plain(path, Some(link)), "{path} {link}");
        }
    }

    #[test]
    fn what_lies_in_a_repository_or_makes_one_is_a_risk() {
        for path in ["HEAD", "fixture-2/config", "src/objects/x", "config"] {
            assert!(plain(path, None), "{path}");
        }
        for path in [
            "fixture/config",
            "fixture/hooks/x",
            "own.git/config",
            "new/HEAD",
            "new/head",
            "new/commondir",
        ] {
            assert!(!plain(path, None), "{path}");
        }
    }

    #[test]
    fn names_are_lifted_and_those_of_a_submodule_begin_at_the_workspace() {
        let path = |path: &str| WorkspacePath::new(path.as_ref()).unwrap();
        let named = ProtectedNames {
            paths: vec![path("sub/tools")],
            allowed: vec![path(".envrc"), path("fixture")],
            ..ProtectedNames::default()
        };
        assert!(is_risky("tools/x", None, &named, "sub"));
        assert!(!is_risky("tools/x", None, &named, ""));
        assert!(!is_risky(".envrc", None, &named, ""));
        assert!(is_risky(".envrc", None, &named, "sub"));
        assert!(!is_risky("fixture/config", None, &named, ""));
    }

    #[test]
    fn half_of_what_git_says_is_refused() {
        assert!(RefTree::parse(LISTED, TARGETS).is_some());
        let cut = &TARGETS[..TARGETS.len() - 1];
        assert_eq!(RefTree::parse(LISTED, cut), None);
        assert_eq!(RefTree::parse(b"120000 blob", TARGETS), None);
        assert_eq!(RefTree::parse(LISTED, b"aa missing\n"), None);
    }
}
