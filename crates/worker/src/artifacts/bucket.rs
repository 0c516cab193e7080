//! Files in a bucket, one object a version, as agents of the mesh have them.
//!
//! An object appears whole or not at all, and is made only if its key is free: whoever loses takes the next number. Some servers
//! of others cannot do that, or do not care; which is found out by making the first object a second time. With those, writers
//! of one name take turns in this process, those of two workers may lose a file to each other, and [`Bucket::weakness`] says so. When only
//! the answer to a write is lost, the same bytes may become two versions.

use super::{
    Failed, Version, cause, missing,
    names::{self, Names, version_number},
    remote::{ANSWER, Kind, Store, in_motion},
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

/// Each lost race means that another writer won one.
const TRIES: usize = 1000;
/// What is looked at to find the versions of one name.
const MOST_LISTED: usize = 100_000;
/// Of agents by Google's kit: the object stands for something that is elsewhere.
const ELSEWHERE: [&str; 2] = ["adkfileuri", "file_uri"];

/// What is made a second time to see what the server does is not larger.
const LARGEST_TRIAL: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Bucket {
    store: Store,
    /// Whether the server makes an object only if its key is free, once that is known.
    exclusive: OnceLock<bool>,
    /// For as long as it is not known to do so.
    turns: Turns,
}

/// Who writes versions of a key, by the key: only equal ones can collide, so nobody waits for a stranger's slow upload. There
/// are as many as there are writers.
#[derive(Debug, Default)]
struct Turns(Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
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
    pub(super) fn new(store: Store) -> Bucket {
        let exclusive = OnceLock::new();
        if store.kind == Kind::Gcs {
            _ = exclusive.set(true);
        }
        Bucket {
            store,
            exclusive,
            turns: Turns::default(),
        }
    }

    /// What this store does not hold to, if it is known.
    pub(super) fn weakness(&self) -> Option<&'static str> {
        let weak = "the server of artifacts writes over what is there (it does not honour `If-None-Match`): \
                    versions of two workers may collide";
        (self.exclusive.get() == Some(&false)).then_some(weak)
    }

    /// The key of a name's versions.
    pub(super) fn key(&self, names: &Names<'_>) -> Result<String, super::ShelfError> {
        match self.store.kind {
            Kind::S3 => names.s3(),
            Kind::Gcs => names.gcs(),
        }
    }

    pub(super) async fn load(
        &self,
        names: &Names<'_>,
        version: Option<i64>,
        most: u64,
    ) -> Result<Version, Failed> {
        let (number, found) = self.find(names, version, false).await?;
        let said = |name: &'static str| found.attributes.get(&Attribute::Metadata(name.into()));
        if ELSEWHERE.into_iter().any(|name| said(name).is_some()) {
            return Err(Failed(
                "it only names something that is elsewhere".to_owned(),
            ));
        }
        let mime_type = found
            .attributes
            .get(&Attribute::ContentType)
            .map(|value| value.as_ref());
        let mime_type = names::mime_type_or_any(mime_type);
        let bytes = whole(found, most).await?;
        Ok(Version {
            version: number,
            mime_type,
            bytes,
        })
    }

    /// Which version it is, and how large, without its bytes.
    pub(super) async fn size(
        &self,
        names: &Names<'_>,
        version: Option<i64>,
    ) -> Result<(i64, u64), Failed> {
        let (number, found) = self.find(names, version, true).await?;
        Ok((number, found.meta.size))
    }

    async fn find(
        &self,
        names: &Names<'_>,
        version: Option<i64>,
        head: bool,
    ) -> Result<(i64, GetResult), Failed> {
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
        names: &Names<'_>,
        mime_type: &str,
        bytes: Bytes,
        has_begun: &AtomicBool,
    ) -> Result<i64, Failed> {
        let key = self.key(names)?;
        let _turn = match self.exclusive.get() {
            Some(true) => None,
            Some(false) | None => Some(self.turns.take(&key).await),
        };
        let mut number = self.latest(&key).await?.unwrap_or(-1);
        for _ in 0..TRIES {
            number = number
                .checked_add(1)
                .ok_or_else(|| Failed("its versions have come to the highest number".to_owned()))?;
            let attributes = self.attributes(names, mime_type, number)?;
            let at = format!("{key}/{number}");
            // Others may find it out meanwhile.
            let exclusive = self.exclusive.get().copied();
            has_begun.store(true, Ordering::Relaxed);
            match self.put(&at, &bytes, attributes.clone(), exclusive).await {
                Ok(()) => {
                    self.try_out(&at, &bytes, attributes).await;
                    return Ok(number);
                }
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
                Err(error) if exclusive.is_none() && cannot_create(&error) => {
                    _ = self.exclusive.set(false);
                    // The same number again, in the other way.
                    number -= 1;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Failed("too many others keep files of this name".to_owned()))
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

    /// Makes what was just made a second time: a server that lets us writes the same bytes over themselves.
    async fn try_out(&self, at: &str, bytes: &Bytes, attributes: Attributes) {
        if self.exclusive.get().is_some() || bytes.len() > LARGEST_TRIAL {
            return;
        }
        match self.put(at, bytes, attributes, None).await {
            Ok(()) => _ = self.exclusive.set(false),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                _ = self.exclusive.set(true)
            }
            // Whatever else it is: it is still not known.
            Err(_) => {}
        }
    }

    fn attributes(
        &self,
        names: &Names<'_>,
        mime_type: &str,
        number: i64,
    ) -> Result<Attributes, Failed> {
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::ContentType, mime_type.to_owned().into());
        if self.store.kind == Kind::S3 {
            for (name, value) in names.described(number)? {
                attributes.insert(Attribute::Metadata(name.into()), value.into());
            }
        }
        Ok(attributes)
    }

    async fn latest(&self, key: &str) -> Result<Option<i64>, Failed> {
        let mut latest = None;
        let mut each = |rest: &str, _: &object_store::ObjectMeta| {
            latest = latest.max(version_number(rest));
            true
        };
        self.store
            .list(key, MOST_LISTED, ANSWER, &mut each)
            .await
            .map_err(failed)?;
        Ok(latest)
    }
}

fn failed(error: Error) -> Failed {
    Failed(cause(&error))
}

/// `NotImplemented`, as a client or a server says it.
fn cannot_create(error: &Error) -> bool {
    matches!(error, Error::NotImplemented { .. })
        || error.to_string().contains("501 Not Implemented")
}

/// All of an object, if it is not larger than that, whatever its server says.
async fn whole(found: GetResult, most: u64) -> Result<Bytes, Failed> {
    if found.meta.size > most {
        return Err(too_large(found.meta.size, most));
    }
    let mut bytes = BytesMut::with_capacity(usize::try_from(found.meta.size).unwrap_or(0));
    let mut pieces = found.into_stream();
    let mut next = async || in_motion(poll_fn(|context| pieces.as_mut().poll_next(context))).await;
    while let Some(piece) = next().await.map_err(failed)? {
        bytes.extend_from_slice(&piece);
        if bytes.len() as u64 > most {
            return Err(too_large(bytes.len() as u64, most));
        }
    }
    Ok(bytes.freeze())
}
