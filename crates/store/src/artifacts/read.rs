//! Reading: in chunks, whole or a range. A complete read verifies the digest at its end.

use super::{
    ArtifactError, ArtifactOwner, Artifacts, StoredArtifact,
    bucket::BucketBackend,
    digest_cache::{DigestCache, FileStamp},
    location::StorageBackend,
    run_blocking,
    version::ArtifactVersion,
};
use crate::{BufferPool, name_encoding};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use spec::WorkspacePath;
use std::{fs::File, io, ops::Range, sync::Arc};

/// Chunk sizes: of a file, and of a bucket, where each chunk is a request.
const FILE_CHUNK_BYTES: u64 = 256 << 10;
const BUCKET_CHUNK_BYTES: u64 = 4 << 20;

/// A byte range as in HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// From the first offset to the second (inclusive), or to the end.
    From(u64, Option<u64>),
    /// The last bytes.
    Last(u64),
}

impl ByteRange {
    /// Resolves the range for this size; `None` if it is empty.
    pub fn of(self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            ByteRange::From(from, to) => from..to.map_or(size, |to| to.saturating_add(1)).min(size),
            ByteRange::Last(count) => size.saturating_sub(count)..size,
        };
        (range.start < range.end).then_some(range)
    }
}

/// A version being read.
#[derive(Debug)]
pub struct VersionReader {
    kept: StoredArtifact,
    source: Source,
    left: Range<u64>,
    /// Running digest, if the whole version is read and is not in the cache.
    digest: Option<Sha256>,
}

#[derive(Debug)]
enum Source {
    File(Arc<OpenedFile>),
    Object(BucketBackend, object_store::path::Path),
}

/// A file, and its state when it was opened.
#[derive(Debug)]
struct OpenedFile {
    file: File,
    buffers: BufferPool,
    condition: FileStamp,
    digest_cache: Arc<DigestCache>,
}

impl Artifacts {
    /// Opens one version, the newest by default.
    pub async fn open_version(
        &self,
        owner: &ArtifactOwner,
        name: &WorkspacePath,
        version: Option<u64>,
    ) -> Result<VersionReader, ArtifactError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ArtifactError::Missing {
                name: name.clone(),
                version,
            },
            _ => ArtifactError::Access {
                what: "read",
                name: name.clone(),
                source,
            },
        };
        let mut location = ArtifactVersion::new(owner, name, version.unwrap_or(0));
        if version.is_none() {
            let newest = self.versions(&location).await.map_err(failed)?.pop();
            location.version = newest.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        }
        let opened = self
            .open_at(&location)
            .await
            .map_err(|source| match source.kind() {
                io::ErrorKind::InvalidData | io::ErrorKind::Other => ArtifactError::Damaged {
                    name: name.clone(),
                    version: location.version,
                    why: source.to_string(),
                },
                _ => failed(source),
            });
        let (kept, source) = opened?;
        let known = match &source {
            Source::File(opened) => opened.digest_cache.holds(&opened.condition, &kept.sha256),
            Source::Object(..) => false,
        };
        let left = 0..kept.size_bytes;
        Ok(VersionReader {
            kept,
            source,
            left,
            digest: (!known).then(Sha256::new),
        })
    }

    async fn open_at(&self, location: &ArtifactVersion) -> io::Result<(StoredArtifact, Source)> {
        match &self.0.backend {
            StorageBackend::Folder(folder) => {
                let at = location.clone();
                let digest_cache = folder.digest_cache.clone();
                let folder = folder.clone();
                let (file, metadata) = run_blocking(move || folder.open_version_files(&at)).await?;
                let condition = FileStamp::of(&file)?;
                let buffers = BufferPool::default();
                let opened = OpenedFile {
                    file,
                    buffers,
                    condition,
                    digest_cache,
                };
                Ok((
                    metadata.into_stored(location)?,
                    Source::File(Arc::new(opened)),
                ))
            }
            StorageBackend::Bucket(bucket) => {
                let metadata = unreachable_is_not_damaged(bucket.metadata(location).await)?;
                let key = unreachable_is_not_damaged(bucket.find(location, &metadata).await)?;
                Ok((
                    metadata.into_stored(location)?,
                    Source::Object(bucket.clone(), key),
                ))
            }
        }
    }
}

/// An error response of a server does not mean that the artifact is damaged.
fn unreachable_is_not_damaged<T>(outcome: io::Result<T>) -> io::Result<T> {
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::Other => io::Error::new(io::ErrorKind::NotConnected, error),
        _ => error,
    })
}

impl VersionReader {
    /// The metadata of the version.
    pub fn artifact(&self) -> &StoredArtifact {
        &self.kept
    }

    /// Restricts the read to a range; its bytes cannot be verified.
    pub fn only(mut self, part: ByteRange) -> Result<VersionReader, ArtifactError> {
        let size_bytes = self.kept.size_bytes;
        let range = part.of(size_bytes);
        self.left = range.ok_or_else(|| ArtifactError::Range {
            name: self.kept.name.clone(),
            size_bytes,
        })?;
        self.digest = self.digest.filter(|_| self.left == (0..size_bytes));
        Ok(self)
    }

    /// The range that remains to be read.
    pub fn left(&self) -> Range<u64> {
        self.left.clone()
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ArtifactError> {
        if self.left.is_empty() {
            return self.check().map(|()| None);
        }
        let bytes = match &self.source {
            Source::File(file) => {
                let file = file.clone();
                let range = next_chunk(&self.left, FILE_CHUNK_BYTES);
                let digest = self.digest.take();
                run_blocking(move || read_chunk(&file, range, digest))
                    .await
                    .map(|(bytes, digest)| {
                        self.digest = digest;
                        bytes
                    })
            }
            Source::Object(bucket, key) => {
                let bytes = bucket
                    .read(key, next_chunk(&self.left, BUCKET_CHUNK_BYTES))
                    .await;
                if let (Some(digest), Ok(bytes)) = (&mut self.digest, &bytes) {
                    digest.update(bytes);
                }
                bytes
            }
        };
        let what = "read";
        let name = self.kept.name.clone();
        let bytes = bytes.map_err(|source| ArtifactError::Access { what, name, source })?;
        if bytes.is_empty() {
            return Err(self.damaged("it ends too early"));
        }
        self.left.start += bytes.len() as u64;
        // Verified before the last bytes are returned, not after.
        if self.left.is_empty() {
            self.check()?;
        }
        Ok(Some(bytes))
    }

    fn check(&mut self) -> Result<(), ArtifactError> {
        let Some(digest) = self.digest.take() else {
            return Ok(());
        };
        if name_encoding::hexadecimal(&digest.finalize()) == self.kept.sha256 {
            if let Source::File(opened) = &self.source {
                opened
                    .digest_cache
                    .note(opened.condition.clone(), &self.kept.sha256);
            }
            Ok(())
        } else {
            Err(self.damaged("its bytes are not those that were stored"))
        }
    }

    fn damaged(&self, why: &str) -> ArtifactError {
        let name = self.kept.name.clone();
        let version = self.kept.version;
        ArtifactError::Damaged {
            name,
            version,
            why: why.to_owned(),
        }
    }
}

fn next_chunk(left: &Range<u64>, limit: u64) -> Range<u64> {
    left.start..left.end.min(left.start.saturating_add(limit))
}

fn read_chunk(
    OpenedFile { file, buffers, .. }: &OpenedFile,
    range: Range<u64>,
    digest: Option<Sha256>,
) -> io::Result<(Bytes, Option<Sha256>)> {
    let length = usize::try_from(range.end - range.start).unwrap_or(0);
    let bytes = buffers.read(file, range.start, length)?;
    let digest = digest.map(|digest| digest.chain_update(&bytes));
    Ok((bytes, digest))
}
