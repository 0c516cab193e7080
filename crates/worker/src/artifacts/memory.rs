//! Files in the memory of this process, gone with it. Bounded: what does not fit is refused, nothing is forgotten for it.

use super::{Failed, Version, missing, too_large};
use bytes::Bytes;
use std::{
    collections::BTreeMap,
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
    files: BTreeMap<String, Vec<(String, Bytes)>>,
    weight: u64,
}

/// Without what they hold.
impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
        let number = version.unwrap_or(versions.len() as i64 - 1);
        let found = usize::try_from(number).ok().and_then(|number| versions.get(number));
        let (mime_type, bytes) = found.ok_or_else(|| missing(version))?;
        match bytes.len() as u64 {
            size if size > most => Err(too_large(size, most)),
            _ => Ok(Version { version: number, mime_type: mime_type.clone(), bytes: bytes.clone() }),
        }
    }

    pub(super) fn size(&self, key: &str, version: Option<i64>) -> Result<(i64, u64), Failed> {
        let found = self.load(key, version, u64::MAX)?;
        Ok((found.version, found.bytes.len() as u64))
    }

    pub(super) fn save(&self, key: String, mime_type: String, bytes: Bytes) -> Result<i64, Failed> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let weight = (key.len() + mime_type.len() + bytes.len()) as u64 + APIECE;
        let heavier = held.weight.saturating_add(weight);
        if heavier > self.most {
            return Err(Failed(format!("the memory for artifacts is full: {} bytes at most", self.most)));
        }
        held.weight = heavier;
        let versions = held.files.entry(key).or_default();
        // A copy: what came may be a piece of something much larger.
        versions.push((mime_type, Bytes::copy_from_slice(&bytes)));
        Ok(versions.len() as i64 - 1)
    }
}
