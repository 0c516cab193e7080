//! Validation of credentials that come from elsewhere: the machine's metadata service, or a token
//! exchange. The object store client panics on values that cannot be part of a header or URL, and
//! on lifetimes that overflow a clock, so everything is checked before the client sees it:
//! intermediate responses by [`check_metadata_response`], the final credentials by
//! [`ValidatingProvider`].

use bytes::Bytes;
use hyper::Uri;
use object_store::{
    Error, Result,
    aws::AwsCredential,
    client::{CredentialProvider, HttpError, HttpErrorKind},
    gcp::GcpCredential,
};
use std::{fmt, pin::Pin, sync::Arc};

/// A hundred years. A longer lifetime is not plausible.
const MAX_LIFETIME_SECONDS: u64 = 100 * 365 * 24 * 60 * 60;
/// No role name and no metadata token is longer.
const MAX_HEADER_VALUE_BYTES: usize = 8 << 10;
/// A URL has at most 64 KiB, and an encoded byte takes up to three.
const MAX_TOKEN_FILE_BYTES: u64 = 16 << 10;

/// The credentials cannot be used. Names the problem, never the value.
#[derive(Debug, thiserror::Error)]
#[error("its credentials cannot be used: {0}")]
pub(super) struct InvalidCredentials(&'static str);

/// Whether the text is valid in a header.
fn is_header_value(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Why an S3 access key cannot be used.
pub(super) fn s3_keys_flaw(key: &str, secret: &str, token: Option<&str>) -> Option<&'static str> {
    if !is_header_value(key) {
        return Some("the name of its access key has a letter that none has");
    }
    if secret.contains(char::is_control) {
        return Some("its secret access key has a line break or another control character");
    }
    (!token.is_none_or(is_header_value))
        .then_some("its session token has a line break or another letter that none has")
}

/// Why AWS credentials cannot be used.
pub(super) fn aws_credential_flaw(found: &AwsCredential) -> Option<&'static str> {
    s3_keys_flaw(&found.key_id, &found.secret_key, found.token.as_deref())
}

/// Why GCP credentials cannot be used.
pub(super) fn gcp_credential_flaw(found: &GcpCredential) -> Option<&'static str> {
    (!is_header_value(&found.bearer))
        .then_some("its access token has a line break or another letter that none has")
}

/// Passes a response of the metadata service on, or says why it cannot be used.
pub(super) fn check_metadata_response(
    path: &str,
    said: Bytes,
) -> std::result::Result<Bytes, HttpError> {
    // The first becomes a header of the next request, the second a part of its URL.
    let is_asked_with =
        path.ends_with("/latest/api/token") || path.ends_with("/security-credentials/");
    let fits = |text: &str| {
        text.len() <= MAX_HEADER_VALUE_BYTES
            && is_header_value(text)
            && format!("/{text}").parse::<Uri>().is_ok()
    };
    let flaw = match str::from_utf8(&said) {
        Ok(text) if is_asked_with && !fits(text) => Some(
            "what the metadata service says has a line break or another letter that none has, or is too long",
        ),
        Ok(_) if is_lifetime_too_long(&said) => {
            Some("they are said to hold for longer than a hundred years")
        }
        // The client would deserialize the fields from a list, by their order.
        Ok(text) if text.trim_start().starts_with('[') => Some("they are said as a list"),
        Ok(_) => None,
        // The client searches only for what it needs and would accept it.
        Err(_) => Some("what says them is no text"),
    };
    flaw.map_or(Ok(said), |flaw| {
        Err(HttpError::new(
            HttpErrorKind::Decode,
            InvalidCredentials(flaw),
        ))
    })
}

fn is_lifetime_too_long(said: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Lifetime {
        expires_in: u64,
    }
    serde_json::from_slice(said)
        .is_ok_and(|Lifetime { expires_in }| expires_in > MAX_LIFETIME_SECONDS)
}

/// Provides only credentials that the client can handle.
pub(super) struct ValidatingProvider<C> {
    pub(super) from: Arc<dyn CredentialProvider<Credential = C>>,
    pub(super) flaw: fn(&C) -> Option<&'static str>,
    /// A file whose content becomes part of a URL.
    pub(super) file: Option<String>,
}

/// Leaves out the credentials.
impl<C> fmt::Debug for ValidatingProvider<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checked(..)")
    }
}

impl<C> ValidatingProvider<C> {
    async fn give(&self) -> Result<Arc<C>> {
        let invalid = |flaw| Error::Generic {
            store: "bucket",
            source: InvalidCredentials(flaw).into(),
        };
        let length = |file: &String| std::fs::metadata(file).map_or(0, |about| about.len());
        if self
            .file
            .as_ref()
            .is_some_and(|file| length(file) > MAX_TOKEN_FILE_BYTES)
        {
            return Err(invalid("the file with its web identity token is too long"));
        }
        let found = self.from.get_credential().await?;
        (self.flaw)(&found).map_or(Ok(found), |flaw| Err(invalid(flaw)))
    }
}

impl<C: Send + Sync> CredentialProvider for ValidatingProvider<C> {
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
#[path = "credentials_tests.rs"]
mod tests;
