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
const MAX_ENTRIES: usize = 4096;

/// Identity and state of a file.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl FileStamp {
    pub(crate) fn of(file: &File) -> io::Result<FileStamp> {
        let facts = file.metadata()?;
        let changed = (facts.ctime(), facts.ctime_nsec());
        Ok(FileStamp {
            device: facts.dev(),
            inode: facts.ino(),
            size: facts.len(),
            changed,
        })
    }
}

/// Digests by file stamp.
#[derive(Debug, Default)]
pub(crate) struct DigestCache(Mutex<HashMap<FileStamp, String>>);

impl DigestCache {
    /// Records the digest of a file in this state.
    pub(crate) fn note(&self, condition: FileStamp, sha256: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_ENTRIES {
            known.clear();
        }
        known.insert(condition, sha256.to_owned());
    }

    /// Whether the file in this state is known to have this digest.
    pub(crate) fn holds(&self, condition: &FileStamp, sha256: &str) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(condition).is_some_and(|digest| digest == sha256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_bounded_and_another_digest_or_condition_is_not_known() {
        let condition = |inode| FileStamp {
            device: 1,
            inode,
            size: 2,
            changed: (3, 4),
        };
        let digest_cache = DigestCache::default();
        digest_cache.note(condition(0), "a");
        assert!(digest_cache.holds(&condition(0), "a"));
        assert!(!digest_cache.holds(&condition(0), "b") && !digest_cache.holds(&condition(1), "a"));
        (0..MAX_ENTRIES as u64 + 10).for_each(|inode| digest_cache.note(condition(inode), "a"));
        assert!(digest_cache.0.lock().unwrap().len() <= MAX_ENTRIES);
    }
}
