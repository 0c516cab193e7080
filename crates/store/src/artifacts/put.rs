//! Writing: chunks are counted and hashed as they come, and become a version at the end or never.

use super::{
    Artifacts, Kept, New, Pieces, StoreError,
    about::{About, Content},
    bucket::{ABANDONED, Upload},
    draft::Draft,
    kept::{self, Spot},
    now, off_the_loop,
    place::Shelf,
    weight::Share,
};
use crate::names;
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
const GATHERED: usize = 256 << 10;
/// Maximum time of a write. A slower one would race with the sweep.
const LONGEST: Duration = Duration::from_secs(12 * 3600);
const _: () = assert!(LONGEST.as_secs() < ABANDONED.as_secs());

/// An artifact being written. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub struct Putting {
    artifacts: Artifacts,
    new: New,
    spot: Spot,
    began: Instant,
    gathered: Pieces,
    digest: Sha256,
    size_bytes: u64,
    /// The quota reserved so far, possibly including a name.
    taken: Share,
    sink: Option<Sink>,
}

#[derive(Debug)]
enum Sink {
    Draft(Draft),
    /// A draft that is being written to.
    Writing(JoinHandle<io::Result<(Draft, Sha256)>>),
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
    pub async fn begin(&self, mut new: New) -> Result<Putting, StoreError> {
        if is_taken(&new.name) {
            return Err(StoreError::Name { name: new.name });
        }
        let failed = |source| StoreError::Keep {
            name: new.name.clone(),
            source,
        };
        if new
            .content_type
            .as_deref()
            .is_some_and(|text| !kept::is_content_type(text))
        {
            return Err(StoreError::ContentType { name: new.name });
        }
        let spot = Spot::new(&new.owner, &new.name, 0);
        let sink = match &self.0.shelf {
            Shelf::Folder(folder) => {
                let folder = folder.clone();
                Sink::Draft(off_the_loop(move || folder.draft()).await.map_err(failed)?)
            }
            Shelf::Bucket(bucket) => Sink::Upload(Box::new(
                bucket.begin(&spot.owner, &spot.entry).map_err(failed)?,
            )),
        };
        let taken = self.check_counts(&new, &spot).await?;
        new.limit_bytes = new.limit_bytes.min(self.0.limits.bytes);
        Ok(Putting {
            artifacts: self.clone(),
            new,
            spot,
            began: Instant::now(),
            gathered: Pieces::default(),
            digest: Sha256::new(),
            size_bytes: 0,
            taken,
            sink: Some(sink),
        })
    }

    /// Checks the limits of names and versions; bytes are counted as they come. Returns the
    /// reservation: concurrent writers share the quota.
    async fn check_counts(&self, new: &New, spot: &Spot) -> Result<Share, StoreError> {
        let failed = |source| StoreError::Keep {
            name: new.name.clone(),
            source,
        };
        let quota = |what, limit| {
            Err(StoreError::Quota {
                name: new.name.clone(),
                what,
                limit,
            })
        };
        let limits = self.0.limits;
        self.weigh().await.map_err(failed)?;
        let versions = self.versions(spot).await.map_err(failed)?.len() as u64;
        if versions == 0 {
            let taken = self.take_name(&new.owner).map(|()| Share::NAME);
            return taken.or_else(|(what, limit)| quota(what, limit));
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
        Ok(Share::default())
    }
}

impl Artifacts {
    /// The new version exists whatever happens to the old ones; the next sweep tries again.
    async fn retain(&self, spot: Spot) {
        if self.0.retention == spec::Retention::default() {
            return;
        }
        if let Ok(versions) = self.versions(&spot).await {
            let spots: Vec<_> = versions
                .into_iter()
                .map(|version| Spot {
                    version,
                    ..spot.clone()
                })
                .collect();
            _ = self.expire(&spots).await;
        }
    }
}

impl Putting {
    /// Appends bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), StoreError> {
        if bytes.len() as u64 > self.new.limit_bytes.saturating_sub(self.size_bytes) {
            self.sink = None;
            return Err(StoreError::TooLarge {
                name: self.new.name.clone(),
                limit_bytes: self.new.limit_bytes,
            });
        }
        self.take_room(bytes.len() as u64)?;
        self.size_bytes += bytes.len() as u64;
        self.gathered.push(bytes);
        if self.gathered.size_bytes() >= GATHERED {
            self.flush().await?;
        }
        Ok(())
    }

    /// Publishes the version, if its digest matches the expected one.
    pub async fn finish(mut self, expected: Option<&str>) -> Result<Kept, StoreError> {
        self.flush().await?;
        self.written().await?;
        let sha256 = names::hexadecimal(&std::mem::take(&mut self.digest).finalize());
        if let Some(expected) = expected.filter(|expected| !expected.eq_ignore_ascii_case(&sha256))
        {
            let (name, expected) = (self.new.name.clone(), expected.to_owned());
            return Err(StoreError::Mismatch {
                name,
                expected,
                found: sha256,
            });
        }
        let about = About::new(
            &self.new,
            Content {
                size_bytes: self.size_bytes,
                sha256,
            },
            now(),
        );
        let version = self
            .publish(about.clone())
            .await
            .map_err(|source| self.failed(source))?;
        self.is_there(version);
        let spot = Spot {
            version,
            ..self.spot.clone()
        };
        let kept = about.kept(&spot).map_err(|source| self.failed(source))?;
        self.artifacts.clone().retain(spot).await;
        Ok(kept)
    }

    async fn publish(&mut self, about: About) -> io::Result<u64> {
        let (owner, entry) = (self.spot.owner.clone(), self.spot.entry.clone());
        match (self.sink.take(), &self.artifacts.0.shelf) {
            (Some(Sink::Draft(draft)), Shelf::Folder(folder)) => {
                let folder = folder.clone();
                off_the_loop(move || folder.publish(draft, &owner, &entry, &about)).await
            }
            (Some(Sink::Upload(upload)), Shelf::Bucket(bucket)) => {
                bucket.publish(*upload, &owner, &entry, about).await
            }
            _ => Err(io::Error::other("it has ended")),
        }
    }

    fn take_room(&mut self, bytes: u64) -> Result<(), StoreError> {
        if let Err((what, limit)) = self.artifacts.take_room(&self.new.owner, bytes) {
            self.sink = None;
            return Err(StoreError::Quota {
                name: self.new.name.clone(),
                what,
                limit,
            });
        }
        self.taken.bytes += bytes;
        Ok(())
    }

    /// Commits the reservation. If another writer was the first of this name, the name belongs to
    /// that one.
    fn is_there(&mut self, version: u64) {
        let mut kept = std::mem::take(&mut self.taken);
        if version != 1 {
            self.taken.names = std::mem::take(&mut kept.names);
        }
        self.artifacts.is_there(&self.new.owner, kept);
    }

    async fn flush(&mut self) -> Result<(), StoreError> {
        if self.began.elapsed() > LONGEST {
            self.sink = None;
            return Err(self.failed(io::Error::new(
                io::ErrorKind::TimedOut,
                "it took longer than twelve hours",
            )));
        }
        self.written().await?;
        let (pieces, digest) = (self.gathered.take(), std::mem::take(&mut self.digest));
        match self.sink.take() {
            Some(Sink::Draft(draft)) => {
                let work = move || append(draft, &pieces, digest);
                self.sink = Some(Sink::Writing(tokio::task::spawn_blocking(work)));
            }
            Some(Sink::Upload(mut upload)) => {
                let digest = pieces
                    .iter()
                    .fold(digest, |digest, piece| digest.chain_update(piece));
                for piece in pieces {
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
    async fn written(&mut self) -> Result<(), StoreError> {
        match self.sink.take() {
            Some(Sink::Writing(writing)) => {
                let written = writing.await.map_err(io::Error::from).flatten();
                let (draft, digest) = written.map_err(|source| self.failed(source))?;
                (self.sink, self.digest) = (Some(Sink::Draft(draft)), digest);
            }
            sink => self.sink = sink,
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::Keep {
            name: self.new.name.clone(),
            source,
        }
    }
}

fn append(draft: Draft, pieces: &[Bytes], digest: Sha256) -> io::Result<(Draft, Sha256)> {
    pieces
        .iter()
        .try_for_each(|piece| draft.bytes().write_all(piece))?;
    Ok((
        draft,
        pieces
            .iter()
            .fold(digest, |digest, piece| digest.chain_update(piece)),
    ))
}

/// Releases the reservation of what was not published.
impl Drop for Putting {
    fn drop(&mut self) {
        self.artifacts.give_back(&self.new.owner, self.taken);
    }
}
