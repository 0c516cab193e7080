//! Artifacts in the memory of this process. Bounded: when the memory is full, the oldest versions
//! of the largest user are dropped, and one user may use at most half, so that no user evicts
//! everybody else. The number of a dropped version is never reused: a stale reference gets an
//! error.

use super::{ArtifactContent, StoreFailure, missing, too_large};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, HashMap, VecDeque, btree_map::Entry},
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, PoisonError},
};

/// Overhead of a version besides its bytes and names.
const OVERHEAD_BYTES: u64 = 256;
/// Keys without versions whose next number is kept individually.
const MAX_FORGOTTEN_KEYS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Memory {
    limit: u64,
    held: Mutex<MemoryState>,
}

#[derive(Default)]
struct MemoryState {
    /// Versions by key.
    files: BTreeMap<String, BTreeMap<i64, (String, Bytes)>>,
    users: BTreeMap<String, User>,
    weight: u64,
    has_forgotten: bool,
    gone: ForgottenNumbers,
}

/// Next version numbers of keys that lost all their versions.
#[derive(Default)]
struct ForgottenNumbers {
    /// By a keyed hash of the key, which clients cannot predict.
    next: HashMap<u64, i64>,
    digests: RandomState,
    /// First number of all other keys: above 0 once the table had to be dropped.
    others: i64,
}

/// Memory of one user.
#[derive(Default)]
struct User {
    /// Keys, versions and their sizes.
    oldest_first: VecDeque<(String, i64, u64)>,
    weight: u64,
}

/// Leaves out the contents.
impl fmt::Debug for MemoryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Held {{ files: {}, weight: {} }}",
            self.files.len(),
            self.weight
        )
    }
}

impl Memory {
    pub(super) fn new(limit: u64) -> Memory {
        Memory {
            limit,
            held: Mutex::default(),
        }
    }

    pub(super) fn load(
        &self,
        key: &str,
        version: Option<i64>,
        limit: u64,
    ) -> Result<ArtifactContent, StoreFailure> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = held.files.get(key).ok_or_else(|| missing(None))?;
        let found = match version {
            Some(number) => versions.get_key_value(&number),
            None => versions.last_key_value(),
        };
        let (number, (mime_type, bytes)) = found.ok_or_else(|| missing(version))?;
        match bytes.len() as u64 {
            size if size > limit => Err(too_large(size, limit)),
            _ => Ok(ArtifactContent {
                version: *number,
                mime_type: mime_type.clone(),
                bytes: bytes.clone(),
            }),
        }
    }

    pub(super) fn size(&self, key: &str, version: Option<i64>) -> Result<(i64, u64), StoreFailure> {
        let found = self.load(key, version, u64::MAX)?;
        Ok((found.version, found.bytes.len() as u64))
    }

    pub(super) fn save(
        &self,
        key: String,
        mime_type: String,
        bytes: Bytes,
    ) -> Result<i64, StoreFailure> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let weight = (key.len() + mime_type.len() + bytes.len()) as u64 + OVERHEAD_BYTES;
        let share = self.user_quota();
        if weight > share {
            return Err(StoreFailure(format!(
                "of the memory for artifacts one user has at most {share} bytes"
            )));
        }
        let user = user(&key).to_owned();
        while held
            .users
            .get(&user)
            .is_some_and(|user| user.weight + weight > share)
        {
            held.forget_oldest(&user);
        }
        while held.weight + weight > self.limit {
            let heaviest = held
                .users
                .iter()
                .max_by_key(|(_, user)| user.weight)
                .map(|(name, _)| name.clone());
            held.forget_oldest(&heaviest.unwrap_or_default());
        }
        Ok(held.add(user, key, (mime_type, bytes), weight))
    }

    /// Memory that one user may use.
    pub(super) fn user_quota(&self) -> u64 {
        self.limit / 2
    }

    /// Whether a version was ever dropped.
    pub(super) fn has_forgotten(&self) -> bool {
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .has_forgotten
    }
}

impl MemoryState {
    fn add(
        &mut self,
        name: String,
        key: String,
        (mime_type, bytes): (String, Bytes),
        weight: u64,
    ) -> i64 {
        let versions = self.files.entry(key.clone()).or_default();
        let last = versions.last_key_value().map(|(last, _)| last + 1);
        let number = last.unwrap_or_else(|| self.gone.take(&key));
        // A copy: the slice may keep a much larger buffer alive.
        versions.insert(number, (mime_type, Bytes::copy_from_slice(&bytes)));
        let user = self.users.entry(name).or_default();
        user.oldest_first.push_back((key, number, weight));
        user.weight += weight;
        self.weight += weight;
        number
    }

    fn forget_oldest(&mut self, name: &str) {
        let Some(user) = self.users.get_mut(name) else {
            return;
        };
        if let Some((key, number, weight)) = user.oldest_first.pop_front() {
            user.weight -= weight;
            self.weight -= weight;
            self.has_forgotten = true;
            if let Entry::Occupied(mut versions) = self.files.entry(key) {
                versions.get_mut().remove(&number);
                if versions.get().is_empty() {
                    self.gone.put(versions.key(), number + 1);
                    versions.remove();
                }
            }
        }
        if user.oldest_first.is_empty() {
            self.users.remove(name);
        }
    }
}

impl ForgottenNumbers {
    /// The next version number of a key.
    fn take(&mut self, key: &str) -> i64 {
        self.next
            .remove(&self.digests.hash_one(key))
            .unwrap_or(self.others)
    }

    fn put(&mut self, key: &str, next: i64) {
        if self.next.len() >= MAX_FORGOTTEN_KEYS {
            self.others = self
                .next
                .drain()
                .map(|(_, next)| next)
                .fold(self.others, i64::max);
        }
        self.next.insert(self.digests.hash_one(key), next);
    }
}

/// The user's part of a key: everything but session and name.
fn user(key: &str) -> &str {
    key.rsplitn(3, '/').last().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_was_forgotten_is_not_given_to_other_bytes() {
        let memory = Memory::new(20_000);
        let save = |key: &str, size| {
            memory
                .save(key.to_owned(), "x/y".to_owned(), vec![1; size].into())
                .unwrap()
        };
        assert_eq!([save("a/u/s/x", 1), save("a/u/s/x", 1)], [0, 1]);
        assert!(memory.load("a/u/s/x", Some(0), 9).is_ok(), "the control");
        save("a/u/s/large", 9500);
        assert!(
            memory.load("a/u/s/x", None, 9).is_err(),
            "both are forgotten"
        );
        assert_eq!([save("a/u/s/x", 2), save("a/u/s/x", 3)], [2, 3]);
        assert!(memory.load("a/u/s/x", Some(0), 9).is_err());
        assert_eq!(
            [save("a/u/s/new", 1), save("a/other/s/x", 1)],
            [0, 0],
            "others begin as ever"
        );
    }

    #[test]
    fn numbers_of_more_keys_than_are_known_one_by_one_do_not_come_again_either() {
        let mut gone = ForgottenNumbers::default();
        gone.put("first", 7);
        for count in 1..MAX_FORGOTTEN_KEYS {
            gone.put(&count.to_string(), 1);
        }
        assert_eq!((gone.take("other"), gone.take("1")), (0, 1), "the control");
        gone.put("1", 1);
        gone.put("one more", 2);
        assert!(gone.next.len() <= MAX_FORGOTTEN_KEYS);
        assert_eq!(
            (
                gone.take("one more"),
                gone.take("first"),
                gone.take("other")
            ),
            (2, 7, 7)
        );
    }
}
