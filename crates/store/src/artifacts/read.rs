//! Reading: in chunks, whole or a range. A complete read verifies the digest at its end.

use super::{
    Artifacts, Kept, Owner, StoreError,
    bucket::Bucket,
    checked::{Checked, Condition},
    kept::Spot,
    off_the_loop,
    place::Shelf,
};
use crate::{Buffers, names};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use spec::WorkspacePath;
use std::{fs::File, io, ops::Range, sync::Arc};

/// Chunk sizes: of a file, and of a bucket, where each chunk is a request.
const PIECE: u64 = 256 << 10;
const REMOTE_PIECE: u64 = 4 << 20;

/// A byte range as in HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From the first offset to the second (inclusive), or to the end.
    From(u64, Option<u64>),
    /// The last bytes.
    Last(u64),
}

impl Part {
    /// Resolves the range for this size; `None` if it is empty.
    pub fn of(self, size: u64) -> Option<Range<u64>> {
        let range = match self {
            Part::From(from, to) => from..to.map_or(size, |to| to.saturating_add(1)).min(size),
            Part::Last(count) => size.saturating_sub(count)..size,
        };
        (range.start < range.end).then_some(range)
    }
}

/// A version being read.
#[derive(Debug)]
pub struct Reading {
    kept: Kept,
    source: Source,
    left: Range<u64>,
    /// Running digest, if the whole version is read and is not in the cache.
    digest: Option<Sha256>,
}

#[derive(Debug)]
enum Source {
    File(Arc<Opened>),
    Object(Bucket, object_store::path::Path),
}

/// A file, and its state when it was opened.
#[derive(Debug)]
struct Opened {
    file: File,
    buffers: Buffers,
    condition: Condition,
    checked: Arc<Checked>,
}

impl Artifacts {
    /// Opens one version, the newest by default.
    pub async fn open_version(
        &self,
        owner: &Owner,
        name: &WorkspacePath,
        version: Option<u64>,
    ) -> Result<Reading, StoreError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => StoreError::Missing {
                name: name.clone(),
                version,
            },
            _ => StoreError::Access {
                what: "read",
                name: name.clone(),
                source,
            },
        };
        let mut spot = Spot::new(owner, name, version.unwrap_or(0));
        if version.is_none() {
            let newest = self.versions(&spot).await.map_err(failed)?.pop();
            spot.version = newest.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        }
        let opened = self
            .open_spot(&spot)
            .await
            .map_err(|source| match source.kind() {
                io::ErrorKind::InvalidData | io::ErrorKind::Other => StoreError::Damaged {
                    name: name.clone(),
                    version: spot.version,
                    why: source.to_string(),
                },
                _ => failed(source),
            });
        let (kept, source) = opened?;
        let known = match &source {
            Source::File(opened) => opened.checked.holds(&opened.condition, &kept.sha256),
            Source::Object(..) => false,
        };
        let left = 0..kept.size_bytes;
        Ok(Reading {
            kept,
            source,
            left,
            digest: (!known).then(Sha256::new),
        })
    }

    async fn open_spot(&self, spot: &Spot) -> io::Result<(Kept, Source)> {
        match &self.0.shelf {
            Shelf::Folder(folder) => {
                let (at, checked) = (spot.clone(), folder.checked.clone());
                let folder = folder.clone();
                let (file, about) = off_the_loop(move || folder.look(&at)).await?;
                let (condition, buffers) = (Condition::of(&file)?, Buffers::default());
                let opened = Opened {
                    file,
                    buffers,
                    condition,
                    checked,
                };
                Ok((about.kept(spot)?, Source::File(Arc::new(opened))))
            }
            Shelf::Bucket(bucket) => {
                let about = unreachable_is_not_damaged(bucket.about(spot).await)?;
                let place = unreachable_is_not_damaged(bucket.find(spot, &about).await)?;
                Ok((about.kept(spot)?, Source::Object(bucket.clone(), place)))
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

impl Reading {
    /// The metadata of the version.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Restricts the read to a range; its bytes cannot be verified.
    pub fn only(mut self, part: Part) -> Result<Reading, StoreError> {
        let size_bytes = self.kept.size_bytes;
        let range = part.of(size_bytes);
        self.left = range.ok_or_else(|| StoreError::Range {
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
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.left.is_empty() {
            return self.check().map(|()| None);
        }
        let bytes = match &self.source {
            Source::File(file) => {
                let (file, range) = (file.clone(), piece(&self.left, PIECE));
                let digest = self.digest.take();
                off_the_loop(move || read_piece(&file, range, digest))
                    .await
                    .map(|(bytes, digest)| {
                        self.digest = digest;
                        bytes
                    })
            }
            Source::Object(bucket, place) => {
                let bytes = bucket.read(place, piece(&self.left, REMOTE_PIECE)).await;
                if let (Some(digest), Ok(bytes)) = (&mut self.digest, &bytes) {
                    digest.update(bytes);
                }
                bytes
            }
        };
        let (what, name) = ("read", self.kept.name.clone());
        let bytes = bytes.map_err(|source| StoreError::Access { what, name, source })?;
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

    fn check(&mut self) -> Result<(), StoreError> {
        let Some(digest) = self.digest.take() else {
            return Ok(());
        };
        match names::hexadecimal(&digest.finalize()) == self.kept.sha256 {
            true => {
                if let Source::File(opened) = &self.source {
                    opened
                        .checked
                        .note(opened.condition.clone(), &self.kept.sha256);
                }
                Ok(())
            }
            false => Err(self.damaged("its bytes are not those that were stored")),
        }
    }

    fn damaged(&self, why: &str) -> StoreError {
        let (name, version) = (self.kept.name.clone(), self.kept.version);
        StoreError::Damaged {
            name,
            version,
            why: why.to_owned(),
        }
    }
}

fn piece(left: &Range<u64>, most: u64) -> Range<u64> {
    left.start..left.end.min(left.start.saturating_add(most))
}

fn read_piece(
    Opened { file, buffers, .. }: &Opened,
    range: Range<u64>,
    digest: Option<Sha256>,
) -> io::Result<(Bytes, Option<Sha256>)> {
    let length = usize::try_from(range.end - range.start).unwrap_or(0);
    let bytes = buffers.read(file, range.start, length)?;
    let digest = digest.map(|digest| digest.chain_update(&bytes));
    Ok((bytes, digest))
}
