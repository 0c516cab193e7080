//! Artifacts in a folder, in the layout of the mesh's agents, opened by file descriptors.
//!
//! ```text
//! BASE/.airlock-drafts-UID/…                     drafts; each is locked until its writer is gone
//! BASE/APP/USER/SESSION/NAME/VERSION.meta        {"mime_type": "…"}, written first: its creator owns the number
//! BASE/APP/USER/SESSION/NAME/VERSION             the bytes: with them the version exists
//! ```
//! Both files are complete and synced before they get these names, and neither ever replaces
//! another. A writer that dies between the two leaves an unused number.

use super::{
    ArtifactContent, StoreFailure, missing,
    names::{self, RESERVED_PREFIX, version_number},
    openat, too_large,
};
use ::fs::{Dir, Draft};
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

/// Each failed try means that another writer won the race.
const MAX_TRIES: usize = 10_000;
/// Directory entries of one name, and of one sweep.
const MAX_ENTRIES: usize = 200_000;
/// A metadata file is one line.
const MAX_META_BYTES: u64 = 64 << 10;
const META_SUFFIX: &str = ".meta";

#[derive(Debug)]
pub(super) struct Folder {
    base: Dir,
    drafts: Dir,
}

impl Folder {
    /// Opens the folder, creates it if absent, and removes the drafts of dead writers.
    pub(super) fn open(base: &Path) -> io::Result<Folder> {
        let base = openat::open_base(base)?;
        // Per user: workers of several users may share the folder.
        let name = format!(
            "{RESERVED_PREFIX}drafts-{}",
            rustix::process::geteuid().as_raw()
        );
        let drafts = openat::ensure_private_folder(&base, &name)?;
        sweep(&drafts)?;
        Ok(Folder { base, drafts })
    }

    pub(super) fn load(
        &self,
        place: &[String; 4],
        version: Option<i64>,
        limit: u64,
    ) -> Result<ArtifactContent, StoreFailure> {
        let (folder, number) = self.find(place, version)?;
        let mime_type = mime_type(open_version_file(&folder, number, META_SUFFIX)?)?;
        let bytes = read_all(open_version_file(&folder, number, "")?, limit)?;
        Ok(ArtifactContent {
            version: number,
            mime_type,
            bytes: bytes.into(),
        })
    }

    /// Number and size of a version, without its bytes.
    pub(super) fn size(
        &self,
        place: &[String; 4],
        version: Option<i64>,
    ) -> Result<(i64, u64), StoreFailure> {
        let (folder, number) = self.find(place, version)?;
        Ok((
            number,
            open_version_file(&folder, number, "")?.metadata()?.len(),
        ))
    }

    fn find(&self, place: &[String; 4], version: Option<i64>) -> Result<(Dir, i64), StoreFailure> {
        let folder = match openat::open_folder(&self.base, place.join("/")) {
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => {
                return Err(missing(version));
            }
            folder => folder?,
        };
        let number = match version {
            Some(version) => version,
            None => VersionNumbers::of(&folder)?
                .latest()
                .ok_or_else(|| missing(None))?,
        };
        Ok((folder, number))
    }

    pub(super) fn save(
        &self,
        place: &[String; 4],
        mime_type: &str,
        bytes: &[u8],
    ) -> Result<i64, StoreFailure> {
        let mut folder = openat::ensure_folder(&self.base, &place[0])?;
        for name in &place[1..] {
            folder = openat::ensure_folder(&folder, name)?;
        }
        let mut data = self.draft(bytes)?;
        // As Python's `json.dump` writes it; in a MIME type only these two characters need
        // escaping.
        let quoted = mime_type.replace('\\', "\\\\").replace('"', "\\\"");
        let meta = format!("{{\"mime_type\": \"{quoted}\"}}");
        for _ in 0..MAX_TRIES {
            let number = VersionNumbers::of(&folder)?.next()?;
            // A new draft for each try: an agent may have taken the number and be writing to the
            // previous file.
            let mut beside = self.draft(meta.as_bytes())?;
            if !publish(&mut beside, &folder, &format!("{number}{META_SUFFIX}"))? {
                continue;
            }
            if !publish(&mut data, &folder, &number.to_string())? {
                continue;
            }
            return Ok(number);
        }
        Err(StoreFailure(
            "too many others keep files of this name".to_owned(),
        ))
    }

    /// An unpublished file, complete and synced.
    fn draft(&self, bytes: &[u8]) -> io::Result<Draft<'_>> {
        let draft = self
            .drafts
            .draft(openat::random_name()?, openat::FILE_MODE)?;
        draft.file().write_all(bytes)?;
        draft.file().sync_all()?;
        Ok(draft)
    }
}

/// Publishes a draft under a name that is free, and verifies that the name refers to the draft.
fn publish(draft: &mut Draft<'_>, folder: &Dir, name: &str) -> Result<bool, StoreFailure> {
    match draft.publish_new(folder, name) {
        Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        published => published?,
    }
    if folder.is_entry(name, draft.file())? {
        Ok(true)
    } else {
        Err(StoreFailure(
            "somebody put another file in its place".to_owned(),
        ))
    }
}

fn open_version_file(folder: &Dir, number: i64, ending: &str) -> Result<File, StoreFailure> {
    match openat::open_file(folder, format!("{number}{ending}")) {
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => Err(missing(Some(number))),
        open_version_file => Ok(open_version_file?),
    }
}

/// Removes drafts without a lock: their writers are gone.
fn sweep(drafts: &Dir) -> io::Result<()> {
    for entry in drafts.entries()?.take(MAX_ENTRIES) {
        let name = entry?.name;
        // What cannot be removed does no harm: draft names are unique.
        _ = drafts.sweep_draft(&name);
    }
    Ok(())
}

/// The version numbers in the folder of a name.
#[derive(Debug, Default)]
struct VersionNumbers {
    bytes: BTreeSet<i64>,
    metas: BTreeSet<i64>,
}

impl VersionNumbers {
    fn of(folder: &Dir) -> Result<VersionNumbers, StoreFailure> {
        let mut numbers = VersionNumbers::default();
        for (count, entry) in folder.entries()?.enumerate() {
            if count >= MAX_ENTRIES {
                return Err(StoreFailure(format!(
                    "it has more than {} versions",
                    MAX_ENTRIES / 2
                )));
            }
            let name = entry?.name;
            let Some(name) = name.to_str() else { continue };
            match name.strip_suffix(META_SUFFIX) {
                Some(number) => numbers.metas.extend(version_number(number)),
                None => numbers.bytes.extend(version_number(name)),
            }
        }
        Ok(numbers)
    }

    /// The latest complete version. A number with one file only is being written, or was abandoned.
    fn latest(&self) -> Option<i64> {
        self.bytes
            .iter()
            .rev()
            .find(|number| self.metas.contains(number))
            .copied()
    }

    fn next(&self) -> Result<i64, StoreFailure> {
        let highest = self.bytes.last().max(self.metas.last());
        let next = highest.map_or(Some(0), |highest| highest.checked_add(1));
        next.ok_or_else(|| StoreFailure("its versions have come to the highest number".to_owned()))
    }
}

fn mime_type(file: File) -> Result<String, StoreFailure> {
    let damaged =
        || StoreFailure("what stands beside it about its MIME type is damaged".to_owned());
    let text = read_all(file, MAX_META_BYTES).map_err(|_| damaged())?;
    let meta: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&text).map_err(|_| damaged())?;
    Ok(names::mime_type_or_any(
        meta.get("mime_type").and_then(serde_json::Value::as_str),
    ))
}

/// Reads a regular file up to a maximum size, also if it grows meanwhile.
fn read_all(file: File, limit: u64) -> Result<Vec<u8>, StoreFailure> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(StoreFailure("what is in its place is no file".to_owned()));
    }
    if found.len() > limit {
        return Err(too_large(found.len(), limit));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(found.len()).unwrap_or(0));
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        size if size > limit => Err(too_large(size, limit)),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
