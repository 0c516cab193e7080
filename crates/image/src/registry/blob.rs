//! Downloads one blob to disk: hashed and counted as it comes, resumed after interruptions, and
//! given its final name only if digest and size are right.

use super::{
    Event, Watcher,
    client::{self, Client},
    error::PullError,
    layout::Layout,
    patience::{Attempts, Body, Trouble},
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
const FORGIVING: u64 = 16 << 20;

/// A partially downloaded blob.
struct Part<'b> {
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
    watcher: &Watcher,
) -> Result<(), PullError> {
    let file = layout
        .part(&blob.digest)
        .map_err(|error| PullError::local(keeping(blob), error))?;
    let mut part = Part {
        blob,
        file,
        hash: Sha256::new(),
        received: 0,
    };
    let url = client.url(&format!("blobs/{}", blob.digest))?;
    let mut attempts = Attempts::new(&client.patience);
    while part.received < blob.size {
        let before = part.received;
        if let Err(trouble) = part.go_on(client, &url, watcher).await {
            if part.received.saturating_sub(before) >= FORGIVING {
                attempts.forgive();
            }
            attempts.after(trouble).await?;
        }
    }
    part.check()?;
    layout
        .keep(&blob.digest)
        .map_err(|error| PullError::local(keeping(blob), error))?;
    watcher(Event::Blob {
        digest: blob.digest.clone(),
        size: blob.size,
    });
    Ok(())
}

fn keeping(blob: &Descriptor) -> String {
    format!("keep blob {}", blob.digest)
}

impl Part<'_> {
    /// Sends one request for the missing bytes.
    async fn go_on(
        &mut self,
        client: &Client,
        url: &Url,
        watcher: &Watcher,
    ) -> Result<(), Trouble> {
        let mut headers = HeaderMap::new();
        if self.received > 0
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={}-", self.received))
        {
            headers.insert(RANGE, range);
        }
        let response = client
            .get(url, &headers, &format!("blob {}", self.blob.digest))
            .await?;
        self.begin(&response, watcher)?;
        let mut body = Body::new(response, &client.patience);
        while let Some(bytes) = body.next().await? {
            self.take(bytes.as_ref())?;
            watcher(Event::Received(bytes.as_ref().len() as u64));
        }
        match self.received == self.blob.size {
            true => Ok(()),
            false => Err(Trouble::passing(PullError::BrokenOff {
                host: client::host(url),
                what: format!("blob {}", self.blob.digest),
                why: format!("{} of {} bytes came", self.received, self.blob.size),
            })),
        }
    }

    /// Decides whether the response is the missing range, the whole blob again, or something else.
    fn begin(&mut self, response: &Response, watcher: &Watcher) -> Result<(), Trouble> {
        let refused = |why: String| Trouble::Final(PullError::corrupt(&self.blob.digest, why));
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
        self.restart(watcher)
            .map_err(|error| Trouble::Final(PullError::local(keeping(self.blob), error)))
    }

    fn restart(&mut self, watcher: &Watcher) -> std::io::Result<()> {
        if self.received > 0 {
            rustix::fs::ftruncate(&self.file, 0)?;
            rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(0))?;
            watcher(Event::Lost(self.received));
            (self.hash, self.received) = (Sha256::new(), 0);
        }
        Ok(())
    }

    /// Writes go to the page cache in small pieces, so no blocking thread is needed.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        let received = self.received + bytes.len() as u64;
        if received > self.blob.size {
            let why = format!("more than its {} bytes came", self.blob.size);
            return Err(PullError::corrupt(&self.blob.digest, why).into());
        }
        self.hash.update(bytes);
        self.file
            .write_all(bytes)
            .map_err(|error| PullError::local(keeping(self.blob), error))?;
        self.received = received;
        Ok(())
    }

    fn check(self) -> Result<(), PullError> {
        let found = hexadecimal(&self.hash.finalize());
        match found == self.blob.digest.hex() {
            true => Ok(()),
            false => Err(PullError::corrupt(
                &self.blob.digest,
                format!("its digest is sha256:{found}"),
            )),
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
