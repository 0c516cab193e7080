//! Cache of verified digests: files that were hashed when written or read, and not changed since.
//! Hashing a large file takes longer than sending it; every change of a file changes the ctime of
//! its inode, and then it is hashed again.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    sync::{Mutex, PoisonError},
};

/// Maximum entries; beyond it the cache is emptied and files are hashed again when read.
const MOST: usize = 4096;

/// Identity and state of a file.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Condition {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Condition {
    pub(crate) fn of(file: &File) -> io::Result<Condition> {
        let facts = file.metadata()?;
        let changed = (facts.ctime(), facts.ctime_nsec());
        Ok(Condition {
            device: facts.dev(),
            inode: facts.ino(),
            size: facts.len(),
            changed,
        })
    }
}

/// Digests by file stamp.
#[derive(Debug, Default)]
pub(crate) struct Checked(Mutex<HashMap<Condition, String>>);

impl Checked {
    /// Records the digest of a file in this state.
    pub(crate) fn note(&self, condition: Condition, sha256: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(condition, sha256.to_owned());
    }

    /// Whether the file in this state is known to have this digest.
    pub(crate) fn holds(&self, condition: &Condition, sha256: &str) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(condition).is_some_and(|digest| digest == sha256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_bounded_and_another_digest_or_condition_is_not_known() {
        let condition = |inode| Condition {
            device: 1,
            inode,
            size: 2,
            changed: (3, 4),
        };
        let checked = Checked::default();
        checked.note(condition(0), "a");
        assert!(checked.holds(&condition(0), "a"));
        assert!(!checked.holds(&condition(0), "b") && !checked.holds(&condition(1), "a"));
        (0..MOST as u64 + 10).for_each(|inode| checked.note(condition(inode), "a"));
        assert!(checked.0.lock().unwrap().len() <= MOST);
    }
}
