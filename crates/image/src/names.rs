//! Names of images: a small file each, replaced and removed as a whole.

use crate::{
    about::Named,
    beneath,
    error::ImageError,
    parts::digest_of,
    store::{Images, LONGEST_ABOUT, c_text},
};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use spec::ImageRef;
use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
};

impl Images {
    /// The names that a reference means: one, or with a digest those of its repository that have it.
    pub(crate) fn matching(&self, reference: &ImageRef) -> Result<Vec<Named>, ImageError> {
        let Some(digest) = reference.digest() else {
            return Ok(self.named(&reference.to_string())?.into_iter().collect());
        };
        let same = |named: &Named| {
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

    fn named(&self, name: &str) -> Result<Option<Named>, ImageError> {
        let failed = || ImageError::store("read a name of an image");
        match read_json(&self.names, &name_file(name)) {
            Ok(named) => Ok(Some(named).filter(|named: &Named| named.name == name)),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(failed()(source)),
        }
    }

    pub(crate) fn all_names(&self, problems: &mut Vec<String>) -> Result<Vec<Named>, ImageError> {
        let failed = || ImageError::store("list the names of images");
        let mut all = Vec::new();
        let listed = beneath::open_folder(&*self.names, c".").map_err(failed())?;
        let read = beneath::for_each(&listed, |file, _| {
            match read_json(&self.names, file) {
                Ok(named) => all.push(named),
                Err(source) if source.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    problems.push(format!("a name of an image cannot be read: {source}"))
                }
            }
            Ok(())
        });
        read.map_err(failed())?;
        Ok(all)
    }

    /// Gives an image a name, which another may have had. The caller holds the lock.
    pub(crate) fn name(&self, draft: &OwnedFd, named: &Named) -> Result<(), ImageError> {
        let write = || -> io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
            let mut file = File::from(beneath::open(draft, "name", flags)?);
            file.write_all(&serde_json::to_vec(named)?)?;
            file.sync_all()?;
            Ok(rustix::fs::renameat(
                draft,
                "name",
                &*self.names,
                &*name_file(&named.name),
            )?)
        };
        write().map_err(ImageError::store("name an image"))
    }

    pub(crate) fn unname(&self, name: &str) -> Result<(), ImageError> {
        match rustix::fs::unlinkat(&*self.names, &*name_file(name), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(ImageError::store("remove a name of an image")(errno.into())),
        }
    }
}

fn read_json<T: serde::de::DeserializeOwned>(folder: &OwnedFd, name: &CStr) -> io::Result<T> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?);
    let mut bytes = Vec::new();
    file.take(LONGEST_ABOUT).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// The file of a name: names have slashes, and are longer than file names may be.
fn name_file(name: &str) -> CString {
    c_text(digest_of(name.as_bytes()).hex().to_owned())
}
