//! Downloads one blob to disk: hashed and counted as it comes, resumed after interruptions, and
//! given its final name only if digest and size are right.

use super::{
    PullEvent, PullObserver,
    client::{self, Client},
    error::PullError,
    layout::Layout,
    timeouts::{AttemptError, RetryState, TimedBody},
};
use crate::document::Descriptor;
use reqwest::{
    Response, StatusCode, Url,
    header::{CONTENT_RANGE, HeaderMap, HeaderValue, RANGE},
};
use sha2::{Digest as _, Sha256};
use spec::Digest;
use std::{fs::File, io::Write};

/// Progress that resets the count of failed attempts. Large enough that a blob of the maximum size
/// cannot be delayed for ever.
const FORGIVE_AFTER_BYTES: u64 = 16 << 20;

/// A partially downloaded blob.
struct BlobDownload<'b> {
    blob: &'b Descriptor,
    file: File,
    hash: Sha256,
    received: u64,
}

/// Downloads a blob into the layout.
pub(super) async fn fetch(
    client: &Client,
    layout: &Layout,
    blob: &Descriptor,
    observer: &PullObserver,
) -> Result<(), PullError> {
    let file = layout
        .create_partial(&blob.digest)
        .map_err(|error| PullError::local(storing(blob), error))?;
    let mut download = BlobDownload {
        blob,
        file,
        hash: Sha256::new(),
        received: 0,
    };
    let url = client.url(&format!("blobs/{}", blob.digest))?;
    let mut retries = RetryState::new(&client.timeouts);
    while download.received < blob.size {
        let before = download.received;
        if let Err(error) = download.resume(client, &url, observer).await {
            if download.received.saturating_sub(before) >= FORGIVE_AFTER_BYTES {
                retries.reset();
            }
            retries.wait_after(error).await?;
        }
    }
    download.check()?;
    layout
        .finish_blob(&blob.digest)
        .map_err(|error| PullError::local(storing(blob), error))?;
    observer(PullEvent::Blob {
        digest: blob.digest.clone(),
        size: blob.size,
    });
    Ok(())
}

fn storing(blob: &Descriptor) -> String {
    format!("keep blob {}", blob.digest)
}

impl BlobDownload<'_> {
    /// Sends one request for the missing bytes.
    async fn resume(
        &mut self,
        client: &Client,
        url: &Url,
        observer: &PullObserver,
    ) -> Result<(), AttemptError> {
        let mut headers = HeaderMap::new();
        if self.received > 0
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={}-", self.received))
        {
            headers.insert(RANGE, range);
        }
        let response = client
            .get(url, &headers, &format!("blob {}", self.blob.digest))
            .await?;
        self.check_response(&response, observer)?;
        let mut body = TimedBody::new(response, &client.timeouts);
        while let Some(bytes) = body.next().await? {
            self.take(bytes.as_ref())?;
            observer(PullEvent::Received(bytes.as_ref().len() as u64));
        }
        if self.received == self.blob.size {
            Ok(())
        } else {
            Err(AttemptError::transient(PullError::Interrupted {
                host: client::host(url),
                what: format!("blob {}", self.blob.digest),
                why: format!("{} of {} bytes came", self.received, self.blob.size),
            }))
        }
    }

    /// Decides whether the response is the missing range, the whole blob again, or something else.
    fn check_response(
        &mut self,
        response: &Response,
        observer: &PullObserver,
    ) -> Result<(), AttemptError> {
        let refused =
            |why: String| AttemptError::Permanent(PullError::corrupt(&self.blob.digest, why));
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = response
                .headers()
                .get(CONTENT_RANGE)
                .and_then(|value| value.to_str().ok());
            return match range.and_then(first_byte) {
                Some(first) if first == self.received && first > 0 => Ok(()),
                _ => Err(refused("it is not the requested range".to_owned())),
            };
        }
        if let Some(size) = response
            .content_length()
            .filter(|size| *size != self.blob.size)
        {
            return Err(refused(format!(
                "it should have {} bytes and has {size}",
                self.blob.size
            )));
        }
        self.restart(observer)
            .map_err(|error| AttemptError::Permanent(PullError::local(storing(self.blob), error)))
    }

    fn restart(&mut self, observer: &PullObserver) -> std::io::Result<()> {
        if self.received > 0 {
            rustix::fs::ftruncate(&self.file, 0)?;
            rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(0))?;
            observer(PullEvent::Lost(self.received));
            (self.hash, self.received) = (Sha256::new(), 0);
        }
        Ok(())
    }

    /// Writes go to the page cache in small pieces, so no blocking thread is needed.
    fn take(&mut self, bytes: &[u8]) -> Result<(), AttemptError> {
        let received = self.received + bytes.len() as u64;
        if received > self.blob.size {
            let why = format!("more than its {} bytes came", self.blob.size);
            return Err(PullError::corrupt(&self.blob.digest, why).into());
        }
        self.hash.update(bytes);
        self.file
            .write_all(bytes)
            .map_err(|error| PullError::local(storing(self.blob), error))?;
        self.received = received;
        Ok(())
    }

    fn check(self) -> Result<(), PullError> {
        let found = hexadecimal(&self.hash.finalize());
        if found == self.blob.digest.hex() {
            Ok(())
        } else {
            Err(PullError::corrupt(
                &self.blob.digest,
                format!("its digest is sha256:{found}"),
            ))
        }
    }
}

/// N of `bytes N-M/SIZE`.
fn first_byte(range: &str) -> Option<u64> {
    range
        .strip_prefix("bytes ")?
        .split_once('-')?
        .0
        .trim()
        .parse()
        .ok()
}

/// Digest of bytes.
pub(super) fn digest_of(bytes: &[u8]) -> Option<Digest> {
    Digest::new(&format!("sha256:{}", hexadecimal(&Sha256::digest(bytes))))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
