//! Artifacts in a bucket (S3 or GCS), one object per version, in the layout of the mesh's agents.
//!
//! A version is created with a conditional write (`If-None-Match`), so that a lost race takes the
//! next number. Some S3-compatible servers ignore the condition; this is detected by creating the
//! first object twice. With such a server, writers of one name take turns in this process, two
//! workers may overwrite each other's file, and [`Bucket::weakness`] reports it. When only the
//! response to a write is lost, the same bytes may become two versions.

use super::{
    ArtifactContent, StoreFailure,
    bucket_client::{BucketClient, BucketKind, RESPONSE_TIMEOUT, next_chunk},
    cause, missing,
    names::{self, ArtifactNames, version_number},
    too_large,
};
use bytes::{Bytes, BytesMut};
use object_store::{Attribute, Attributes, Error, GetOptions, GetResult, PutMode, PutOptions};
use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::OwnedMutexGuard;

/// Each failed try means that another writer won the race.
const MAX_TRIES: usize = 1000;
/// Objects that are listed to find the versions of one name.
const MAX_LISTED: usize = 100_000;
/// Metadata of Google's agent kit: the object only refers to a file elsewhere.
const FILE_REFERENCE_KEYS: [&str; 2] = ["adkfileuri", "file_uri"];

/// Largest object that is written twice to probe conditional writes.
const MAX_PROBE_BYTES: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Bucket {
    store: BucketClient,
    /// Whether the server honours conditional creation, once that is known.
    exclusive: OnceLock<bool>,
    /// Used as long as conditional creation is not known to work.
    key_locks: KeyLocks,
}

/// Locks of writers, by key: only equal keys can collide, so a slow upload delays nobody else.
/// There are as many entries as active writers.
#[derive(Debug, Default)]
struct KeyLocks(Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl KeyLocks {
    async fn take(&self, key: &str) -> OwnedMutexGuard<()> {
        self.of(key).lock_owned().await
    }

    fn of(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turn| turn.strong_count() > 0);
        let known = all.get(key).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let turn = Arc::default();
            all.insert(key.to_owned(), Arc::downgrade(&turn));
            turn
        })
    }
}

impl Bucket {
    pub(super) fn new(store: BucketClient) -> Bucket {
        let exclusive = OnceLock::new();
        if store.kind == BucketKind::Gcs {
            _ = exclusive.set(true);
        }
        Bucket {
            store,
            exclusive,
            key_locks: KeyLocks::default(),
        }
    }

    /// A guarantee that the server is known not to give.
    pub(super) fn weakness(&self) -> Option<&'static str> {
        let weak = "the server of artifacts writes over what is there (it does not honour `If-None-Match`): \
                    versions of two workers may collide";
        (self.exclusive.get() == Some(&false)).then_some(weak)
    }

    /// The key prefix of a name's versions.
    pub(super) fn key(
        &self,
        names: &ArtifactNames<'_>,
    ) -> Result<String, super::ArtifactStoreError> {
        match self.store.kind {
            BucketKind::S3 => names.s3(),
            BucketKind::Gcs => names.gcs(),
        }
    }

    pub(super) async fn load(
        &self,
        names: &ArtifactNames<'_>,
        version: Option<i64>,
        limit: u64,
    ) -> Result<ArtifactContent, StoreFailure> {
        let (number, found) = self.find(names, version, false).await?;
        let metadata = |name: &'static str| found.attributes.get(&Attribute::Metadata(name.into()));
        if FILE_REFERENCE_KEYS
            .into_iter()
            .any(|name| metadata(name).is_some())
        {
            return Err(StoreFailure(
                "it only names something that is elsewhere".to_owned(),
            ));
        }
        let mime_type = found
            .attributes
            .get(&Attribute::ContentType)
            .map(|value| value.as_ref());
        let mime_type = names::mime_type_or_any(mime_type);
        let bytes = read_all(found, limit).await?;
        Ok(ArtifactContent {
            version: number,
            mime_type,
            bytes,
        })
    }

    /// Number and size of a version, without its bytes.
    pub(super) async fn size(
        &self,
        names: &ArtifactNames<'_>,
        version: Option<i64>,
    ) -> Result<(i64, u64), StoreFailure> {
        let (number, found) = self.find(names, version, true).await?;
        Ok((number, found.meta.size))
    }

    async fn find(
        &self,
        names: &ArtifactNames<'_>,
        version: Option<i64>,
        head: bool,
    ) -> Result<(i64, GetResult), StoreFailure> {
        let key = self.key(names)?;
        let number = match version {
            Some(version) => version,
            None => self.latest(&key).await?.ok_or_else(|| missing(None))?,
        };
        let options = GetOptions {
            head,
            ..GetOptions::default()
        };
        match self.store.get(&format!("{key}/{number}"), options).await {
            Err(Error::NotFound { .. }) => Err(missing(Some(number))),
            found => Ok((number, found.map_err(failed)?)),
        }
    }

    pub(super) async fn save(
        &self,
        names: &ArtifactNames<'_>,
        mime_type: &str,
        bytes: Bytes,
        has_begun: &AtomicBool,
    ) -> Result<i64, StoreFailure> {
        let key = self.key(names)?;
        let _turn = match self.exclusive.get() {
            Some(true) => None,
            Some(false) | None => Some(self.key_locks.take(&key).await),
        };
        let mut number = self.latest(&key).await?.unwrap_or(-1);
        for _ in 0..MAX_TRIES {
            number = number.checked_add(1).ok_or_else(|| {
                StoreFailure("its versions have come to the highest number".to_owned())
            })?;
            let attributes = self.attributes(names, mime_type, number)?;
            let at = format!("{key}/{number}");
            // Another writer may have found it out meanwhile.
            let exclusive = self.exclusive.get().copied();
            has_begun.store(true, Ordering::Relaxed);
            match self.put(&at, &bytes, attributes.clone(), exclusive).await {
                Ok(()) => {
                    self.probe_exclusive_create(&at, &bytes, attributes).await;
                    return Ok(number);
                }
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
                Err(error) if exclusive.is_none() && is_create_unsupported(&error) => {
                    _ = self.exclusive.set(false);
                    // The same number again, without the condition.
                    number -= 1;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(StoreFailure(
            "too many others keep files of this name".to_owned(),
        ))
    }

    async fn put(
        &self,
        at: &str,
        bytes: &Bytes,
        attributes: Attributes,
        exclusive: Option<bool>,
    ) -> object_store::Result<()> {
        let mode = match exclusive {
            Some(false) => PutMode::Overwrite,
            Some(true) | None => PutMode::Create,
        };
        self.store
            .put(
                at,
                bytes.clone().into(),
                PutOptions {
                    mode,
                    attributes,
                    ..PutOptions::default()
                },
            )
            .await
    }

    /// Repeats the creation that just succeeded: a server that accepts it only overwrites the
    /// object with the same bytes.
    async fn probe_exclusive_create(&self, at: &str, bytes: &Bytes, attributes: Attributes) {
        if self.exclusive.get().is_some() || bytes.len() > MAX_PROBE_BYTES {
            return;
        }
        match self.put(at, bytes, attributes, None).await {
            Ok(()) => _ = self.exclusive.set(false),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                _ = self.exclusive.set(true)
            }
            // Any other error leaves it unknown.
            Err(_) => {}
        }
    }

    fn attributes(
        &self,
        names: &ArtifactNames<'_>,
        mime_type: &str,
        number: i64,
    ) -> Result<Attributes, StoreFailure> {
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::ContentType, mime_type.to_owned().into());
        if self.store.kind == BucketKind::S3 {
            for (name, value) in names.metadata(number)? {
                attributes.insert(Attribute::Metadata(name.into()), value.into());
            }
        }
        Ok(attributes)
    }

    async fn latest(&self, key: &str) -> Result<Option<i64>, StoreFailure> {
        let mut latest = None;
        let mut each = |rest: &str, _: &object_store::ObjectMeta| {
            latest = latest.max(version_number(rest));
            true
        };
        self.store
            .list(key, MAX_LISTED, RESPONSE_TIMEOUT, &mut each)
            .await
            .map_err(failed)?;
        Ok(latest)
    }
}

fn failed(error: Error) -> StoreFailure {
    StoreFailure(cause(&error))
}

/// `NotImplemented`, reported by the client or by the server.
fn is_create_unsupported(error: &Error) -> bool {
    matches!(error, Error::NotImplemented { .. })
        || error.to_string().contains("501 Not Implemented")
}

/// Reads a whole object up to a maximum size, whatever the server announces.
async fn read_all(found: GetResult, limit: u64) -> Result<Bytes, StoreFailure> {
    if found.meta.size > limit {
        return Err(too_large(found.meta.size, limit));
    }
    let mut bytes = BytesMut::with_capacity(usize::try_from(found.meta.size).unwrap_or(0));
    let mut pieces = found.into_stream();
    let mut next = async || next_chunk(poll_fn(|context| pieces.as_mut().poll_next(context))).await;
    while let Some(piece) = next().await.map_err(failed)? {
        bytes.extend_from_slice(&piece);
        if bytes.len() as u64 > limit {
            return Err(too_large(bytes.len() as u64, limit));
        }
    }
    Ok(bytes.freeze())
}
