//! Files in a bucket, one object a version, as agents of the mesh have them.
//!
//! An object appears whole or not at all, and is made only if its key is free: whoever loses takes the next number. A server
//! that cannot do that is refused, as two writers would lose one of their files in silence. When only the answer to a write is
//! lost, the same bytes may become two versions.

use super::{
    Failed, Version, cause, missing,
    names::{self, Names, version_number},
    remote::{Kind, Store},
    too_large,
};
use bytes::{Bytes, BytesMut};
use object_store::{Attribute, Attributes, Error, GetOptions, GetResult, PutMode, PutOptions};

/// Each lost race means that another writer won one.
const TRIES: usize = 1000;
/// What is looked at to find the versions of one name.
const MOST_LISTED: usize = 100_000;
/// Of agents by Google's kit: the object stands for something that is elsewhere.
const ELSEWHERE: [&str; 2] = ["adkfileuri", "file_uri"];

#[derive(Debug)]
pub(super) struct Bucket {
    store: Store,
}

impl Bucket {
    pub(super) fn new(store: Store) -> Bucket {
        Bucket { store }
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
        let key = self.key(names)?;
        let number = match version {
            Some(version) => version,
            None => self.latest(&key).await?.ok_or_else(|| missing(None))?,
        };
        let found = match self.store.get(&format!("{key}/{number}"), GetOptions::default()).await {
            Err(Error::NotFound { .. }) => return Err(missing(Some(number))),
            found => found.map_err(failed)?,
        };
        let said = |name: &'static str| found.attributes.get(&Attribute::Metadata(name.into()));
        if ELSEWHERE.into_iter().any(|name| said(name).is_some()) {
            return Err(Failed("it only names something that is elsewhere".to_owned()));
        }
        let mime_type = found.attributes.get(&Attribute::ContentType).map(|value| value.as_ref());
        let mime_type = names::mime_type_or_any(mime_type);
        let bytes = whole(found, most).await?;
        Ok(Version { version: number, mime_type, bytes })
    }

    pub(super) async fn save(&self, names: &Names<'_>, mime_type: &str, bytes: Bytes) -> Result<i64, Failed> {
        let key = self.key(names)?;
        let mut number = self.latest(&key).await?.unwrap_or(-1);
        for _ in 0..TRIES {
            number = number
                .checked_add(1)
                .ok_or_else(|| Failed("its versions have come to the highest number".to_owned()))?;
            let how = PutOptions {
                mode: PutMode::Create,
                attributes: self.attributes(names, mime_type, number)?,
                ..PutOptions::default()
            };
            match self.store.put(&format!("{key}/{number}"), bytes.clone().into(), how).await {
                Ok(()) => return Ok(number),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
                Err(error) if cannot_create(&error) => {
                    let why = "its server cannot make an object only if its key is free (`If-None-Match`), so versions could be lost";
                    return Err(Failed(why.to_owned()));
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Failed("too many others keep files of this name".to_owned()))
    }

    fn attributes(&self, names: &Names<'_>, mime_type: &str, number: i64) -> Result<Attributes, Failed> {
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
        let (mut latest, mut count) = (None, 0);
        let mut each = |rest: &str, _: &object_store::ObjectMeta| {
            latest = latest.max(version_number(rest));
            count += 1;
            count < MOST_LISTED
        };
        self.store.list(key, &mut each).await.map_err(failed)?;
        match count {
            MOST_LISTED => Err(Failed(format!("more than {MOST_LISTED} objects have its name"))),
            _ => Ok(latest),
        }
    }
}

fn failed(error: Error) -> Failed {
    Failed(cause(&error))
}

/// `NotImplemented`, as a client or a server says it.
fn cannot_create(error: &Error) -> bool {
    matches!(error, Error::NotImplemented { .. }) || error.to_string().contains("501 Not Implemented")
}

/// All of an object, if it is not larger than that, whatever its server says.
pub(crate) async fn whole(found: GetResult, most: u64) -> Result<Bytes, Failed> {
    if found.meta.size > most {
        return Err(too_large(found.meta.size, most));
    }
    let mut bytes = BytesMut::with_capacity(usize::try_from(found.meta.size).unwrap_or(0));
    let mut pieces = found.into_stream();
    while let Some(piece) = std::future::poll_fn(|context| pieces.as_mut().poll_next(context)).await {
        bytes.extend_from_slice(&piece.map_err(failed)?);
        if bytes.len() as u64 > most {
            return Err(too_large(bytes.len() as u64, most));
        }
    }
    Ok(bytes.freeze())
}
