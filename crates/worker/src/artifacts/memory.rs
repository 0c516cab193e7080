//! Files in the memory of this process, gone with it. Bounded: when it is full, the oldest versions are forgotten, of whoever
//! has most; and one user has at most half of it, so that none can take the place of all others.

use super::{Failed, Version, missing, too_large};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    fmt,
    sync::{Mutex, PoisonError},
};

/// What keeping a version costs besides its bytes and names.
const APIECE: u64 = 256;

#[derive(Debug)]
pub(super) struct Memory {
    most: u64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// The versions of each key.
    files: BTreeMap<String, BTreeMap<i64, (String, Bytes)>>,
    users: BTreeMap<String, User>,
    weight: u64,
    has_forgotten: bool,
}

/// What one user has of it.
#[derive(Default)]
struct User {
    /// Keys, versions and their weights.
    oldest_first: VecDeque<(String, i64, u64)>,
    weight: u64,
}

/// Without what they hold.
impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Held {{ files: {}, weight: {} }}", self.files.len(), self.weight)
    }
}

impl Memory {
    pub(super) fn new(most: u64) -> Memory {
        Memory { most, held: Mutex::default() }
    }

    pub(super) fn load(&self, key: &str, version: Option<i64>, most: u64) -> Result<Version, Failed> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = held.files.get(key).ok_or_else(|| missing(None))?;
        let found = match version {
            Some(number) => versions.get_key_value(&number),
            None => versions.last_key_value(),
        };
        let (number, (mime_type, bytes)) = found.ok_or_else(|| missing(version))?;
        match bytes.len() as u64 {
            size if size > most => Err(too_large(size, most)),
            _ => Ok(Version { version: *number, mime_type: mime_type.clone(), bytes: bytes.clone() }),
        }
    }

    pub(super) fn size(&self, key: &str, version: Option<i64>) -> Result<(i64, u64), Failed> {
        let found = self.load(key, version, u64::MAX)?;
        Ok((found.version, found.bytes.len() as u64))
    }

    pub(super) fn save(&self, key: String, mime_type: String, bytes: Bytes) -> Result<i64, Failed> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let weight = (key.len() + mime_type.len() + bytes.len()) as u64 + APIECE;
        let share = self.most / 2;
        if weight > share {
            return Err(Failed(format!("of the memory for artifacts one user has at most {share} bytes")));
        }
        let user = user(&key).to_owned();
        while held.users.get(&user).is_some_and(|user| user.weight + weight > share) {
            held.forget_oldest(&user);
        }
        while held.weight + weight > self.most {
            let heaviest =
                held.users.iter().max_by_key(|(_, user)| user.weight).map(|(name, _)| name.clone());
            held.forget_oldest(&heaviest.unwrap_or_default());
        }
        Ok(held.add(user, key, (mime_type, bytes), weight))
    }

    /// Whether anything was ever forgotten.
    pub(super) fn has_forgotten(&self) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).has_forgotten
    }
}

impl Held {
    fn add(&mut self, name: String, key: String, (mime_type, bytes): (String, Bytes), weight: u64) -> i64 {
        let versions = self.files.entry(key.clone()).or_default();
        let number = versions.last_key_value().map_or(0, |(last, _)| last + 1);
        // A copy: what came may be a piece of something much larger.
        versions.insert(number, (mime_type, Bytes::copy_from_slice(&bytes)));
        let user = self.users.entry(name).or_default();
        user.oldest_first.push_back((key, number, weight));
        user.weight += weight;
        self.weight += weight;
        number
    }

    fn forget_oldest(&mut self, name: &str) {
        let Some(user) = self.users.get_mut(name) else { return };
        if let Some((key, number, weight)) = user.oldest_first.pop_front() {
            user.weight -= weight;
            self.weight -= weight;
            self.has_forgotten = true;
            if let Entry::Occupied(mut versions) = self.files.entry(key) {
                versions.get_mut().remove(&number);
                if versions.get().is_empty() {
                    versions.remove();
                }
            }
        }
        if user.oldest_first.is_empty() {
            self.users.remove(name);
        }
    }
}

/// Whose it is: all but the session and the name.
fn user(key: &str) -> &str {
    key.rsplitn(3, '/').last().unwrap_or(key)
}
