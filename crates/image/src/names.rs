//! Names of images: one small file each, replaced and removed atomically.

use crate::{
    error::ImageError,
    metadata::NameRecord,
    source::digest_of,
    store::{ImageStore, MAX_METADATA_BYTES},
};
use ::fs::Dir;
use rustix::fs::{Mode, OFlags};
use spec::ImageRef;
use std::{
    io::{self, Read, Write},
    path::Path,
};

impl ImageStore {
    /// The names that a reference selects: one, or with a digest those of its repository that have
    /// it.
    pub(crate) fn matching(&self, reference: &ImageRef) -> Result<Vec<NameRecord>, ImageError> {
        let Some(digest) = reference.digest() else {
            return Ok(self.named(&reference.to_string())?.into_iter().collect());
        };
        let same = |named: &NameRecord| {
            let name = named.name.parse::<ImageRef>().ok();
            named.has(digest)
                && name.is_some_and(|name| {
                    (name.registry(), name.repository())
                        == (reference.registry(), reference.repository())
                })
        };
        Ok(self
            .all_names(&mut Vec::new())?
            .into_iter()
            .filter(same)
            .collect())
    }

    fn named(&self, name: &str) -> Result<Option<NameRecord>, ImageError> {
        let failed = || ImageError::store("read a name of an image");
        match read_json(&self.names, name_file(name)) {
            Ok(named) => Ok(Some(named).filter(|named: &NameRecord| named.name == name)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(failed()(source)),
        }
    }

    pub(crate) fn all_names(
        &self,
        problems: &mut Vec<String>,
    ) -> Result<Vec<NameRecord>, ImageError> {
        let failed = || ImageError::store("list the names of images");
        let mut all = Vec::new();
        for entry in self.names.entries().map_err(failed())? {
            match read_json(&self.names, entry.map_err(failed())?.name) {
                Ok(named) => all.push(named),
                Err(source) if source.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    problems.push(format!("a name of an image cannot be read: {source}"))
                }
            }
        }
        Ok(all)
    }

    /// Gives an image a name, which another image may have had. The caller holds the lock.
    pub(crate) fn name(&self, draft: &Dir, named: &NameRecord) -> Result<(), ImageError> {
        let write = || -> io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
            let mut file = draft.open_file("name", flags, Mode::RUSR | Mode::WUSR)?;
            file.write_all(&serde_json::to_vec(named)?)?;
            file.sync_all()?;
            draft.rename("name", &self.names, name_file(&named.name))
        };
        write().map_err(ImageError::store("name an image"))
    }

    pub(crate) fn remove_name(&self, name: &str) -> Result<(), ImageError> {
        let removed = self.names.remove_file(name_file(name));
        removed
            .map(drop)
            .map_err(ImageError::store("remove a name of an image"))
    }
}

fn read_json<T: serde::de::DeserializeOwned>(
    folder: &Dir,
    name: impl AsRef<Path>,
) -> io::Result<T> {
    let file = folder.read_file(name)?;
    let mut bytes = Vec::new();
    file.take(MAX_METADATA_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// The file of a name: image names contain slashes and exceed file name limits, so it is their
/// digest.
fn name_file(name: &str) -> String {
    digest_of(name.as_bytes()).hex().to_owned()
}
