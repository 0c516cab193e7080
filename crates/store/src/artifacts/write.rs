//! Writing: chunks are counted and hashed as they come, and become a version at the end or never.

use super::{
    ArtifactError, Artifacts, ChunkBuffer, NewArtifact, StoredArtifact,
    bucket::{ABANDONED_AGE, Upload},
    draft::Draft,
    location::StorageBackend,
    metadata::{ContentDigest, Metadata},
    now,
    quota::Amount,
    run_blocking,
    version::{self, ArtifactVersion},
};
use crate::name_encoding;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use spec::WorkspacePath;
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

/// Chunks are collected up to this size before they are written; the next ones are collected
/// meanwhile.
const FLUSH_BYTES: usize = 256 << 10;
/// Maximum time of a write. A slower one would race with the sweep.
const WRITE_TIMEOUT: Duration = Duration::from_secs(12 * 3600);
const _: () = assert!(WRITE_TIMEOUT.as_secs() < ABANDONED_AGE.as_secs());

/// An artifact being written. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub struct VersionWriter {
    artifacts: Artifacts,
    new: NewArtifact,
    location: ArtifactVersion,
    began: Instant,
    buffered: ChunkBuffer,
    digest: Sha256,
    size_bytes: u64,
    /// The quota reserved so far, possibly including a name.
    reservation: Amount,
    sink: Option<Sink>,
}

#[derive(Debug)]
enum Sink {
    Draft(Draft),
    /// A draft that is being written to.
    PendingWrite(JoinHandle<io::Result<(Draft, Sha256)>>),
    Upload(Box<Upload>),
}

/// Whether the name has a meaning in references: `NAME/versions` lists the versions of `NAME`, and
/// `NAME@N` is one of them.
fn is_taken(name: &WorkspacePath) -> bool {
    let name = name.as_path().to_string_lossy();
    let version = name.rsplit_once('@').map(|(_, version)| version);
    name.ends_with("/versions") || version.is_some_and(|text| text.parse::<u64>().is_ok())
}

impl Artifacts {
    /// Starts writing the next version of a name.
    pub async fn begin(&self, mut new: NewArtifact) -> Result<VersionWriter, ArtifactError> {
        if is_taken(&new.name) {
            return Err(ArtifactError::Name { name: new.name });
        }
        let failed = |source| ArtifactError::Write {
            name: new.name.clone(),
            source,
        };
        if new
            .content_type
            .as_deref()
            .is_some_and(|text| !version::is_content_type(text))
        {
            return Err(ArtifactError::ContentType { name: new.name });
        }
        let location = ArtifactVersion::new(&new.owner, &new.name, 0);
        let sink = match &self.0.backend {
            StorageBackend::Folder(folder) => {
                let folder = folder.clone();
                Sink::Draft(run_blocking(move || folder.draft()).await.map_err(failed)?)
            }
            StorageBackend::Bucket(bucket) => Sink::Upload(Box::new(
                bucket
                    .begin(&location.owner, &location.entry)
                    .map_err(failed)?,
            )),
        };
        let reservation = self.check_counts(&new, &location).await?;
        new.limit_bytes = new.limit_bytes.min(self.0.limits.bytes);
        Ok(VersionWriter {
            artifacts: self.clone(),
            new,
            location,
            began: Instant::now(),
            buffered: ChunkBuffer::default(),
            digest: Sha256::new(),
            size_bytes: 0,
            reservation,
            sink: Some(sink),
        })
    }

    /// Checks the limits of names and versions; bytes are counted as they come. Returns the
    /// reservation: concurrent writers share the quota.
    async fn check_counts(
        &self,
        new: &NewArtifact,
        location: &ArtifactVersion,
    ) -> Result<Amount, ArtifactError> {
        let failed = |source| ArtifactError::Write {
            name: new.name.clone(),
            source,
        };
        let quota = |what, limit| {
            Err(ArtifactError::Quota {
                name: new.name.clone(),
                what,
                limit,
            })
        };
        let limits = self.0.limits;
        self.measure().await.map_err(failed)?;
        let versions = self.versions(location).await.map_err(failed)?.len() as u64;
        if versions == 0 {
            let reservation = self.reserve_name(&new.owner).map(|()| Amount::NAME);
            return reservation.or_else(|(what, limit)| quota(what, limit));
        }
        // Retention makes room after each new version.
        let removed = self
            .0
            .retention
            .keep_versions
            .is_some_and(|kept| kept <= limits.versions);
        if versions >= limits.versions && !removed {
            return quota("versions of this name", limits.versions);
        }
        Ok(Amount::default())
    }
}

impl Artifacts {
    /// The new version exists whatever happens to the old ones; the next sweep tries again.
    async fn apply_retention(&self, location: ArtifactVersion) {
        if self.0.retention == spec::Retention::default() {
            return;
        }
        if let Ok(versions) = self.versions(&location).await {
            let locations: Vec<_> = versions
                .into_iter()
                .map(|version| ArtifactVersion {
                    version,
                    ..location.clone()
                })
                .collect();
            _ = self.expire(&locations).await;
        }
    }
}

impl VersionWriter {
    /// Appends bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), ArtifactError> {
        if bytes.len() as u64 > self.new.limit_bytes.saturating_sub(self.size_bytes) {
            self.sink = None;
            return Err(ArtifactError::TooLarge {
                name: self.new.name.clone(),
                limit_bytes: self.new.limit_bytes,
            });
        }
        self.reserve_bytes(bytes.len() as u64)?;
        self.size_bytes += bytes.len() as u64;
        self.buffered.push(bytes);
        if self.buffered.size_bytes() >= FLUSH_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Publishes the version, if its digest matches the expected one.
    pub async fn finish(mut self, expected: Option<&str>) -> Result<StoredArtifact, ArtifactError> {
        self.flush().await?;
        self.await_pending_write().await?;
        let sha256 = name_encoding::hexadecimal(&std::mem::take(&mut self.digest).finalize());
        if let Some(expected) = expected.filter(|expected| !expected.eq_ignore_ascii_case(&sha256))
        {
            let name = self.new.name.clone();
            let expected = expected.to_owned();
            return Err(ArtifactError::Mismatch {
                name,
                expected,
                found: sha256,
            });
        }
        let metadata = Metadata::new(
            &self.new,
            ContentDigest {
                size_bytes: self.size_bytes,
                sha256,
            },
            now(),
        );
        let version = self
            .publish(metadata.clone())
            .await
            .map_err(|source| self.failed(source))?;
        self.commit(version);
        let location = ArtifactVersion {
            version,
            ..self.location.clone()
        };
        let kept = metadata
            .into_stored(&location)
            .map_err(|source| self.failed(source))?;
        self.artifacts.clone().apply_retention(location).await;
        Ok(kept)
    }

    async fn publish(&mut self, metadata: Metadata) -> io::Result<u64> {
        let owner = self.location.owner.clone();
        let entry = self.location.entry.clone();
        match (self.sink.take(), &self.artifacts.0.backend) {
            (Some(Sink::Draft(draft)), StorageBackend::Folder(folder)) => {
                let folder = folder.clone();
                run_blocking(move || folder.publish(draft, &owner, &entry, &metadata)).await
            }
            (Some(Sink::Upload(upload)), StorageBackend::Bucket(bucket)) => {
                bucket.publish(*upload, &owner, &entry, metadata).await
            }
            _ => Err(io::Error::other("it has ended")),
        }
    }

    fn reserve_bytes(&mut self, bytes: u64) -> Result<(), ArtifactError> {
        if let Err((what, limit)) = self.artifacts.reserve_bytes(&self.new.owner, bytes) {
            self.sink = None;
            return Err(ArtifactError::Quota {
                name: self.new.name.clone(),
                what,
                limit,
            });
        }
        self.reservation.bytes += bytes;
        Ok(())
    }

    /// Commits the reservation. If another writer was the first of this name, the name belongs to
    /// that one.
    fn commit(&mut self, version: u64) {
        let mut kept = std::mem::take(&mut self.reservation);
        if version != 1 {
            self.reservation.names = std::mem::take(&mut kept.names);
        }
        self.artifacts.commit(&self.new.owner, kept);
    }

    async fn flush(&mut self) -> Result<(), ArtifactError> {
        if self.began.elapsed() > WRITE_TIMEOUT {
            self.sink = None;
            return Err(self.failed(io::Error::new(
                io::ErrorKind::TimedOut,
                "it took longer than twelve hours",
            )));
        }
        self.await_pending_write().await?;
        let chunks = self.buffered.take();
        let digest = std::mem::take(&mut self.digest);
        match self.sink.take() {
            Some(Sink::Draft(draft)) => {
                let work = move || append(draft, &chunks, digest);
                self.sink = Some(Sink::PendingWrite(tokio::task::spawn_blocking(work)));
            }
            Some(Sink::Upload(mut upload)) => {
                let digest = chunks
                    .iter()
                    .fold(digest, |digest, piece| digest.chain_update(piece));
                for piece in chunks {
                    upload
                        .write(piece)
                        .await
                        .map_err(|source| self.failed(source))?;
                }
                (self.sink, self.digest) = (Some(Sink::Upload(upload)), digest);
            }
            _ => return Err(self.failed(io::Error::other("it has ended"))),
        }
        Ok(())
    }

    /// Waits for the pending write.
    async fn await_pending_write(&mut self) -> Result<(), ArtifactError> {
        match self.sink.take() {
            Some(Sink::PendingWrite(writing)) => {
                let await_pending_write = writing.await.map_err(io::Error::from).flatten();
                let (draft, digest) = await_pending_write.map_err(|source| self.failed(source))?;
                (self.sink, self.digest) = (Some(Sink::Draft(draft)), digest);
            }
            sink => self.sink = sink,
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> ArtifactError {
        ArtifactError::Write {
            name: self.new.name.clone(),
            source,
        }
    }
}

fn append(draft: Draft, chunks: &[Bytes], digest: Sha256) -> io::Result<(Draft, Sha256)> {
    chunks
        .iter()
        .try_for_each(|piece| draft.bytes().write_all(piece))?;
    Ok((
        draft,
        chunks
            .iter()
            .fold(digest, |digest, piece| digest.chain_update(piece)),
    ))
}

/// Releases the reservation of what was not published.
impl Drop for VersionWriter {
    fn drop(&mut self) {
        self.artifacts.release(&self.new.owner, self.reservation);
    }
}
