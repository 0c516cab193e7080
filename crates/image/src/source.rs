//! The files of an image source: a folder, or an archive that is indexed once by its headers and
//! then read in place. Input that cannot be read twice (a pipe, a compressed archive) is first
//! written to a file of the draft.

use crate::{
    error::{ImageError, shown},
    layer::Decompressor,
    limits::{ImageLimits, MAX_DOCUMENT_BYTES},
    tar::{TarEntryKind, TarReader},
};
use ::fs::Dir;
use sha2::{Digest as _, Sha256};
use spec::{Digest, Size};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read},
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::PathBuf,
    sync::Arc,
};

/// Maximum files of an archive; each layer has only a few.
const MAX_FILES: usize = 1 << 14;
const MAX_FILE_NAME_BYTES: usize = 512;
/// Maximum links followed: old versions of Docker store shared layers as links.
const MAX_LINKS: usize = 8;

/// Source of an image.
#[derive(Debug)]
pub enum ImageSource {
    /// Path of an archive, or of a folder in OCI layout.
    Path(PathBuf),
    /// An open archive: a pipe or standard input.
    File(File),
}

/// An opened source.
#[derive(Debug)]
pub(crate) enum SourceFiles {
    Folder(Dir),
    Archive {
        file: Arc<File>,
        index: BTreeMap<Vec<u8>, ArchiveEntry>,
    },
}

#[derive(Clone, Debug)]
pub(crate) enum ArchiveEntry {
    Data { offset: u64, size: u64 },
    Link(Vec<u8>),
}

/// One file of the source.
#[derive(Clone, Debug)]
pub(crate) struct SourceFile {
    file: Arc<File>,
    offset: u64,
    left: u64,
}

impl SourceFile {
    pub(crate) fn size(&self) -> u64 {
        self.left
    }
}

impl Read for SourceFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..most], self.offset)?;
        self.offset += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

impl SourceFiles {
    /// `spool` creates the file for input that cannot be read twice.
    pub(crate) fn open(
        source: ImageSource,
        limits: &ImageLimits,
        spool: impl FnOnce() -> Result<File, ImageError>,
    ) -> Result<SourceFiles, ImageError> {
        let file = match source {
            ImageSource::File(file) => file,
            ImageSource::Path(path) => {
                let what = format!("`{}`", shown(path.as_os_str().as_encoded_bytes()));
                // Opening a pipe does not wait for its writer; reading then does.
                let file = File::open(&path).map_err(ImageError::read(&what))?;
                if file.metadata().map_err(ImageError::read(&what))?.is_dir() {
                    return Ok(SourceFiles::Folder(OwnedFd::from(file).into()));
                }
                file
            }
        };
        let seekable = file
            .metadata()
            .map_err(ImageError::read("the archive"))?
            .is_file();
        let whole = SourceFile {
            file: Arc::new(file),
            offset: 0,
            left: u64::MAX,
        };
        let plain = if seekable {
            Decompressor::new(Box::new(whole.clone()))
        } else {
            Decompressor::new(Box::new(UnseekableReader(whole.file.clone())))
        };
        let plain = plain.map_err(ImageError::read("the archive"))?;
        let file = if seekable && !plain.is_compressed() {
            whole.file
        } else {
            Arc::new(copy(plain, spool()?, limits)?)
        };
        index(&file).map(|index| SourceFiles::Archive { file, index })
    }

    /// Whether there is a file of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.file(name).is_ok()
    }

    /// The file of this name.
    pub(crate) fn file(&self, name: &str) -> Result<SourceFile, ImageError> {
        let missing = || ImageError::Missing(format!("`{}`", shown(name.as_bytes())));
        match self {
            SourceFiles::Folder(folder) => {
                let file = match folder.read_file(name) {
                    Err(source) if source.kind() == io::ErrorKind::NotFound => {
                        return Err(missing());
                    }
                    file => {
                        file.map_err(ImageError::read(format!("`{}`", shown(name.as_bytes()))))?
                    }
                };
                let facts = file
                    .metadata()
                    .map_err(ImageError::read("a part of the image"))?;
                if !facts.is_file() {
                    return Err(missing());
                }
                Ok(SourceFile {
                    file: Arc::new(file),
                    offset: 0,
                    left: facts.len(),
                })
            }
            SourceFiles::Archive { file, index } => {
                let mut name = normalize(name.as_bytes(), &[]).ok_or_else(missing)?;
                for _ in 0..MAX_LINKS {
                    match index.get(&name).ok_or_else(missing)? {
                        ArchiveEntry::Data { offset, size } => {
                            return Ok(SourceFile {
                                file: file.clone(),
                                offset: *offset,
                                left: *size,
                            });
                        }
                        ArchiveEntry::Link(to) => name.clone_from(to),
                    }
                }
                Err(missing())
            }
        }
    }

    /// Reads a whole document.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let what = format!("`{}`", shown(name.as_bytes()));
        let part = self.file(name)?;
        if part.size() > MAX_DOCUMENT_BYTES {
            return Err(ImageError::Limit {
                what,
                limit: Size(MAX_DOCUMENT_BYTES).to_string(),
            });
        }
        let mut bytes = Vec::new();
        part.clone()
            .read_to_end(&mut bytes)
            .map_err(ImageError::read(&what))?;
        if bytes.len() as u64 != part.size() {
            return Err(ImageError::malformed(what, "it ends early"));
        }
        Ok(bytes)
    }

    /// Reads a document and verifies its digest and size.
    pub(crate) fn read_blob(&self, digest: &Digest, size: u64) -> Result<Vec<u8>, ImageError> {
        let name = blob_path(digest);
        let bytes = self.read(&name)?;
        if bytes.len() as u64 != size {
            let why = format!("it has {} bytes, and should have {size}", bytes.len());
            return Err(ImageError::malformed(name, why));
        }
        check_digest(&name, digest, &digest_of(&bytes))?;
        Ok(bytes)
    }
}

/// A pipe, which has no offsets.
struct UnseekableReader(Arc<File>);

impl Read for UnseekableReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buffer)
    }
}

fn copy(plain: Decompressor, mut to: File, limits: &ImageLimits) -> Result<File, ImageError> {
    let mut bounded = plain.take(limits.unpacked_bytes.saturating_add(1));
    let count = io::copy(&mut bounded, &mut to).map_err(ImageError::read("the archive"))?;
    if count > limits.unpacked_bytes {
        let limit = Size(limits.unpacked_bytes).to_string();
        return Err(ImageError::Limit {
            what: "the archive".to_owned(),
            limit,
        });
    }
    Ok(to)
}

/// Path of a blob in an OCI layout.
pub(crate) fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Digest of bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> Digest {
    digest_from(Sha256::new_with_prefix(bytes))
}

pub(crate) fn digest_from(hash: Sha256) -> Digest {
    let hex: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Digest::new(&format!("sha256:{hex}")).unwrap_or_else(|| unreachable!("64 digits"))
}

pub(crate) fn check_digest(
    what: &str,
    expected: &Digest,
    found: &Digest,
) -> Result<(), ImageError> {
    if expected == found {
        Ok(())
    } else {
        Err(ImageError::Digest {
            what: what.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        })
    }
}

fn index(file: &Arc<File>) -> Result<BTreeMap<Vec<u8>, ArchiveEntry>, ImageError> {
    let what = || "the archive".to_owned();
    let whole = file.metadata().map_err(ImageError::read(what()))?.len();
    let mut tar = TarReader::new(BufReader::with_capacity(
        4096,
        OffsetReader { file, offset: 0 },
    ));
    let mut index = BTreeMap::new();
    while let Some(header) = tar.next().map_err(|source| ImageError::Tar {
        what: what(),
        source,
    })? {
        let Some(name) = normalize(&header.path, &[]) else {
            continue;
        };
        let folder: Vec<_> = name.rsplitn(2, |byte| *byte == b'/').skip(1).collect();
        let entry = match header.kind {
            TarEntryKind::File => Some(ArchiveEntry::Data {
                offset: tar.position(),
                size: header.size,
            }),
            TarEntryKind::HardLink => normalize(&header.link, &[]).map(ArchiveEntry::Link),
            TarEntryKind::SymbolicLink => {
                normalize(&header.link, folder.first().copied().unwrap_or_default())
                    .map(ArchiveEntry::Link)
            }
            TarEntryKind::Folder | TarEntryKind::Special => None,
        };
        // A sparse entry would make the offset wrong; no archive of images has any.
        let inside = tar
            .position()
            .checked_add(header.size)
            .is_some_and(|end| end <= whole);
        if !inside || header.segments.is_some() {
            return Err(ImageError::malformed(what(), "it ends early"));
        }
        entry.map(|entry| index.insert(name, entry));
        if index.len() > MAX_FILES {
            return Err(ImageError::Limit {
                what: what(),
                limit: format!("{MAX_FILES} files"),
            });
        }
    }
    Ok(index)
}

/// Reads and seeks with its own offset, without moving the shared file position.
#[derive(Debug)]
struct OffsetReader<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for OffsetReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

impl io::Seek for OffsetReader<'_> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let moved = match to {
            io::SeekFrom::Start(at) => Some(at),
            io::SeekFrom::Current(by) => self.offset.checked_add_signed(by),
            io::SeekFrom::End(_) => None,
        };
        self.offset = moved.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.offset)
    }
}

/// Normalizes a path in the archive; `None` if it is empty or leads outside.
fn normalize(name: &[u8], folder: &[u8]) -> Option<Vec<u8>> {
    let folder = if name.starts_with(b"/") {
        &[][..]
    } else {
        folder
    };
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in folder
        .split(|byte| *byte == b'/')
        .chain(name.split(|byte| *byte == b'/'))
    {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    let joined = parts.join(&b'/');
    (!joined.is_empty() && joined.len() <= MAX_FILE_NAME_BYTES).then_some(joined)
}
