//! What opens a bucket and is found elsewhere: at the machine's metadata service, or at whoever gives keys for a platform's token.
//! The client does not survive what cannot be in a header or an address, nor a time that no clock can tell: so all of it is
//! looked at before the client has it. Words that it asks further with are looked at by [`answer`], what it opens the bucket
//! with by [`Checked`].

use bytes::Bytes;
use hyper::Uri;
use object_store::{
    Error, Result,
    aws::AwsCredential,
    client::{CredentialProvider, HttpError, HttpErrorKind},
    gcp::GcpCredential,
};
use std::{fmt, pin::Pin, sync::Arc};

/// Whoever says for longer that something holds says nothing: a hundred years.
const LONGEST_LIFE: u64 = 100 * 365 * 24 * 60 * 60;
/// No name of a role and no token of a metadata service is longer.
const LONGEST_WORD: usize = 8 << 10;
/// An address cannot be longer than 64 KiB, and in it a letter takes up to three.
const LONGEST_TOKEN: u64 = 16 << 10;

/// What was found cannot be used. Says what of it, and not what it is.
#[derive(Debug, thiserror::Error)]
#[error("its credentials cannot be used: {0}")]
pub(super) struct Unfit(&'static str);

/// Whether a text can be a part of a header.
fn is_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Why keys of S3 cannot be used.
pub(super) fn flaw_of_keys(key: &str, secret: &str, token: Option<&str>) -> Option<&'static str> {
    if !is_word(key) {
        return Some("the name of its access key has a letter that none has");
    }
    if secret.contains(char::is_control) {
        return Some("its secret access key has a line break or another control character");
    }
    (!token.is_none_or(is_word))
        .then_some("its session token has a line break or another letter that none has")
}

/// Of S3.
pub(super) fn flaw_of_aws(found: &AwsCredential) -> Option<&'static str> {
    flaw_of_keys(&found.key_id, &found.secret_key, found.token.as_deref())
}

/// Of GCS.
pub(super) fn flaw_of_google(found: &GcpCredential) -> Option<&'static str> {
    (!is_word(&found.bearer))
        .then_some("its access token has a line break or another letter that none has")
}

/// What a metadata service answered, or why it cannot be used.
pub(super) fn answer(path: &str, said: Bytes) -> std::result::Result<Bytes, HttpError> {
    // With S3's, the one becomes a header of what is asked next, the other a part of its address.
    let is_asked_with =
        path.ends_with("/latest/api/token") || path.ends_with("/security-credentials/");
    let fits = |text: &str| {
        text.len() <= LONGEST_WORD && is_word(text) && format!("/{text}").parse::<Uri>().is_ok()
    };
    let flaw = match str::from_utf8(&said) {
        Ok(text) if is_asked_with && !fits(text) => Some(
            "what the metadata service says has a line break or another letter that none has, or is too long",
        ),
        Ok(_) if lives_for_ever(&said) => {
            Some("they are said to hold for longer than a hundred years")
        }
        // The client would take the fields of a document from it, by their order.
        Ok(text) if text.trim_start().starts_with('[') => Some("they are said as a list"),
        Ok(_) => None,
        // The client looks only at what it needs, and may find it.
        Err(_) => Some("what says them is no text"),
    };
    flaw.map_or(Ok(said), |flaw| {
        Err(HttpError::new(HttpErrorKind::Decode, Unfit(flaw)))
    })
}

fn lives_for_ever(said: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Life {
        expires_in: u64,
    }
    serde_json::from_slice(said).is_ok_and(|Life { expires_in }| expires_in > LONGEST_LIFE)
}

/// Gives only what the client survives.
pub(super) struct Checked<C> {
    pub(super) from: Arc<dyn CredentialProvider<Credential = C>>,
    pub(super) flaw: fn(&C) -> Option<&'static str>,
    /// A file whose text goes into an address.
    pub(super) file: Option<String>,
}

/// Without what opens anything.
impl<C> fmt::Debug for Checked<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checked(..)")
    }
}

impl<C> Checked<C> {
    async fn give(&self) -> Result<Arc<C>> {
        let unfit = |flaw| Error::Generic {
            store: "bucket",
            source: Unfit(flaw).into(),
        };
        let length = |file: &String| std::fs::metadata(file).map_or(0, |about| about.len());
        if self
            .file
            .as_ref()
            .is_some_and(|file| length(file) > LONGEST_TOKEN)
        {
            return Err(unfit("the file with its web identity token is too long"));
        }
        let found = self.from.get_credential().await?;
        (self.flaw)(&found).map_or(Ok(found), |flaw| Err(unfit(flaw)))
    }
}

impl<C: Send + Sync> CredentialProvider for Checked<C> {
    type Credential = C;

    fn get_credential<'a, 'b>(&'a self) -> Pin<Box<dyn Future<Output = Result<Arc<C>>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.give())
    }
}

#[cfg(test)]
#[path = "found_tests.rs"]
mod tests;
