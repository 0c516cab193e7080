//! Files in a folder, as agents of the mesh have them, by handles.
//!
//! ```text
//! BASE/.airlock-drafts-UID/…                     in the making; each has a lock that dies with its writer
//! BASE/APP/USER/SESSION/NAME/VERSION.meta        {"mime_type": "…"}, comes first: whoever makes it has the number
//! BASE/APP/USER/SESSION/NAME/VERSION             the bytes: with them the version is there
//! ```
//! Both are whole and on the disk before they have these names, and neither ever replaces another. A writer that dies between
//! the two leaves a number that nobody uses.

use super::{
    Failed, Version, beneath, missing,
    names::{self, OURS, version_number},
    too_large,
};
use ::fs::{Dir, Draft};
use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

/// Each lost race means that another writer won one.
const TRIES: usize = 10_000;
/// What one name may have beside each other, and one sweep looks at.
const MOST_ENTRIES: usize = 200_000;
/// What stands beside the bytes is a line.
const LONGEST_META: u64 = 64 << 10;
const META: &str = ".meta";

#[derive(Debug)]
pub(super) struct Folder {
    base: Dir,
    drafts: Dir,
}

impl Folder {
    /// Opens it; makes it if absent. Drafts of writers that are gone are removed.
    pub(super) fn open(base: &Path) -> io::Result<Folder> {
        let base = beneath::base(base)?;
        // Of a user's own: workers of several users may share the folder.
        let name = format!("{OURS}drafts-{}", rustix::process::geteuid().as_raw());
        let drafts = beneath::own_folder(&base, &name)?;
        sweep(&drafts)?;
        Ok(Folder { base, drafts })
    }

    pub(super) fn load(
        &self,
        place: &[String; 4],
        version: Option<i64>,
        most: u64,
    ) -> Result<Version, Failed> {
        let (folder, number) = self.find(place, version)?;
        let mime_type = mime_type(opened(&folder, number, META)?)?;
        let bytes = whole(opened(&folder, number, "")?, most)?;
        Ok(Version {
            version: number,
            mime_type,
            bytes: bytes.into(),
        })
    }

    /// Which version it is, and how large, without its bytes.
    pub(super) fn size(
        &self,
        place: &[String; 4],
        version: Option<i64>,
    ) -> Result<(i64, u64), Failed> {
        let (folder, number) = self.find(place, version)?;
        Ok((number, opened(&folder, number, "")?.metadata()?.len()))
    }

    fn find(&self, place: &[String; 4], version: Option<i64>) -> Result<(Dir, i64), Failed> {
        let folder = match beneath::open_folder(&self.base, place.join("/")) {
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => {
                return Err(missing(version));
            }
            folder => folder?,
        };
        let number = match version {
            Some(version) => version,
            None => Numbers::of(&folder)?
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
    ) -> Result<i64, Failed> {
        let mut folder = beneath::make_folder(&self.base, &place[0])?;
        for name in &place[1..] {
            folder = beneath::make_folder(&folder, name)?;
        }
        let mut data = self.draft(bytes)?;
        // As Python's `json.dump` writes it; a MIME type has nothing that would be escaped but these two.
        let quoted = mime_type.replace('\\', "\\\\").replace('"', "\\\"");
        let meta = format!("{{\"mime_type\": \"{quoted}\"}}");
        for _ in 0..TRIES {
            let number = Numbers::of(&folder)?.next()?;
            // A new one each time: an agent may have taken the number, and be writing into the one of before.
            let mut beside = self.draft(meta.as_bytes())?;
            if !became(&mut beside, &folder, &format!("{number}{META}"))? {
                continue;
            }
            if !became(&mut data, &folder, &number.to_string())? {
                continue;
            }
            return Ok(number);
        }
        Err(Failed("too many others keep files of this name".to_owned()))
    }

    /// A file that nobody sees yet, whole and on the disk.
    fn draft(&self, bytes: &[u8]) -> io::Result<Draft<'_>> {
        let draft = self.drafts.draft(beneath::unique()?, beneath::FILE)?;
        draft.file().write_all(bytes)?;
        draft.file().sync_all()?;
        Ok(draft)
    }
}

/// Gives a draft its name, unless something has that; what has it then is what was written.
fn became(draft: &mut Draft<'_>, folder: &Dir, name: &str) -> Result<bool, Failed> {
    match draft.publish_new(folder, name) {
        Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        published => published?,
    }
    match folder.is_entry(name, draft.file())? {
        true => Ok(true),
        false => Err(Failed("somebody put another file in its place".to_owned())),
    }
}

fn opened(folder: &Dir, number: i64, ending: &str) -> Result<File, Failed> {
    match beneath::read(folder, format!("{number}{ending}")) {
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => Err(missing(Some(number))),
        opened => Ok(opened?),
    }
}

/// Removes what has no lock, and with it no writer.
fn sweep(drafts: &Dir) -> io::Result<()> {
    for entry in drafts.entries()?.take(MOST_ENTRIES) {
        let name = entry?.name;
        // What cannot be opened or removed is in nobody's way: names are never used twice.
        _ = drafts.sweep_draft(&name);
    }
    Ok(())
}

/// The numbers in the folder of a name.
#[derive(Debug, Default)]
struct Numbers {
    bytes: BTreeSet<i64>,
    metas: BTreeSet<i64>,
}

impl Numbers {
    fn of(folder: &Dir) -> Result<Numbers, Failed> {
        let mut numbers = Numbers::default();
        for (count, entry) in folder.entries()?.enumerate() {
            if count >= MOST_ENTRIES {
                return Err(Failed(format!(
                    "it has more than {} versions",
                    MOST_ENTRIES / 2
                )));
            }
            let name = entry?.name;
            let Some(name) = name.to_str() else { continue };
            match name.strip_suffix(META) {
                Some(number) => numbers.metas.extend(version_number(number)),
                None => numbers.bytes.extend(version_number(name)),
            }
        }
        Ok(numbers)
    }

    /// The latest that is whole: one without its other half is still being written, or never will be.
    fn latest(&self) -> Option<i64> {
        self.bytes
            .iter()
            .rev()
            .find(|number| self.metas.contains(number))
            .copied()
    }

    fn next(&self) -> Result<i64, Failed> {
        let highest = self.bytes.last().max(self.metas.last());
        let next = highest.map_or(Some(0), |highest| highest.checked_add(1));
        next.ok_or_else(|| Failed("its versions have come to the highest number".to_owned()))
    }
}

fn mime_type(file: File) -> Result<String, Failed> {
    let damaged = || Failed("what stands beside it about its MIME type is damaged".to_owned());
    let text = whole(file, LONGEST_META).map_err(|_| damaged())?;
    let meta: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&text).map_err(|_| damaged())?;
    Ok(names::mime_type_or_any(
        meta.get("mime_type").and_then(serde_json::Value::as_str),
    ))
}

/// All of a regular file, if it is not larger than that, nor becomes so.
fn whole(file: File, most: u64) -> Result<Vec<u8>, Failed> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(Failed("what is in its place is no file".to_owned()));
    }
    if found.len() > most {
        return Err(too_large(found.len(), most));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(found.len()).unwrap_or(0));
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        size if size > most => Err(too_large(size, most)),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
