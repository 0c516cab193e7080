//! Client of HashiCorp Vault (or OpenBao), key-value engine version 2: one GET per secret, with
//! size and time limits, without redirects, and the token only over verified TLS.

use super::{KeySource, SecretsError};
use crate::{secret::Secret, tls};
use bytes::Buf;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use spec::address;
use std::{borrow::Cow, collections::BTreeMap, io, path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

/// Address and authentication of a Vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vault {
    /// Scheme and authority; no path.
    pub address: Uri,
    /// Mount path of the engine; usually `secret`.
    pub mount: String,
    /// Source of the token: a stored secret, an environment variable or a file.
    pub token: KeySource,
    /// The namespace, if the Vault has them.
    pub namespace: Option<String>,
    /// Allows http://, which sends the token unencrypted.
    pub allow_plain_http: bool,
    /// CA certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
}

const MAX_RESPONSE_BYTES: usize = 1 << 20;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request failed.
type FetchFailure = Cow<'static, str>;

impl Vault {
    /// Reads one field of a secret.
    pub(super) async fn fetch(
        &self,
        token: &Secret,
        path: &str,
        field: &str,
    ) -> Result<Secret, SecretsError> {
        let host = self
            .address
            .authority()
            .map_or("", |authority| authority.as_str());
        let failed = |why: &str, hint: &str| {
            SecretsError::new(
                format!("the Vault at `{host}` did not give `{path}`: {why}"),
                hint,
            )
        };
        let fetched = tokio::time::timeout(REQUEST_TIMEOUT, self.request_secret(token, path)).await;
        let (status, body) = fetched
            .unwrap_or(Err(Cow::Borrowed("it took longer than 10 seconds")))
            .map_err(|why| {
                failed(
                    &why,
                    "look at [vault] in the configuration, and whether it is reachable from here",
                )
            })?;
        match status {
            StatusCode::OK => {}
            StatusCode::FORBIDDEN => {
                return Err(failed(
                    "the token is refused",
                    "its policy must allow to read this path",
                ));
            }
            StatusCode::NOT_FOUND => {
                return Err(failed(
                    "there is no such secret",
                    "mend the path, or [vault] mount",
                ));
            }
            other if other.is_redirection() => {
                return Err(failed(
                    "it points elsewhere, which is not followed",
                    "name the active node as address",
                ));
            }
            other => {
                return Err(failed(
                    &format!("it answered {other}"),
                    "look at the log of the Vault",
                ));
            }
        }
        let found = extract_field(&body, field).ok_or_else(|| {
            failed(
                &format!("it has no text in the field `{}`", field.escape_debug()),
                "name the field: { vault = \"PATH\", field = \"NAME\" }",
            )
        })?;
        Secret::new(found.as_bytes().to_vec())
            .map_err(|bad| failed(&bad.to_string(), "write it to the Vault anew"))
    }

    async fn request_secret(
        &self,
        token: &Secret,
        path: &str,
    ) -> Result<(StatusCode, Zeroizing<Vec<u8>>), FetchFailure> {
        let request = self.request(token, path)?;
        let host = self.address.host().unwrap_or_default();
        let plain = match self.address.scheme_str() {
            Some("https") => false,
            Some("http") if self.allow_plain_http => true,
            _ => return Err(Cow::Borrowed("its address is not https")),
        };
        let socket = connect(
            host,
            self.address
                .port_u16()
                .unwrap_or(if plain { 80 } else { 443 }),
        )
        .await?;
        if plain {
            return exchange(socket, request).await;
        }
        let config = tls::client_config(self.ca.as_deref())
            .map_err(|error| Cow::Owned(error.to_string()))?;
        let name = host.trim_matches(['[', ']']).to_owned();
        let name = name
            .try_into()
            .map_err(|_| Cow::Borrowed("its name cannot be verified"))?;
        let stream = TlsConnector::from(config).connect(name, socket).await;
        exchange(
            stream.map_err(|error| with_cause("no verified connection", &error))?,
            request,
        )
        .await
    }

    fn request(
        &self,
        token: &Secret,
        path: &str,
    ) -> Result<Request<Empty<bytes::Bytes>>, FetchFailure> {
        let bad = |_| Cow::Borrowed("no request can be made of its path, token or namespace");
        let mut secret = HeaderValue::from_bytes(token.expose())
            .map_err(|_| Cow::Borrowed("the token is no header"))?;
        secret.set_sensitive(true);
        let authority = self
            .address
            .authority()
            .map_or("", |authority| authority.as_str());
        let mut request = Request::get(format!("/v1/{}/data/{path}", self.mount))
            .header(header::HOST, authority)
            .header("x-vault-token", secret)
            .header("x-vault-request", "true");
        if let Some(namespace) = &self.namespace {
            request = request.header("x-vault-namespace", namespace);
        }
        request.body(Empty::new()).map_err(bad)
    }
}

/// The operator named the host, so private addresses are allowed; metadata services are not.
async fn connect(host: &str, port: u16) -> Result<TcpStream, FetchFailure> {
    let host = host.trim_matches(['[', ']']);
    let addresses = tokio::net::lookup_host((host, port))
        .await
        .map_err(|error| with_cause("its name is unknown", &error))?;
    let mut last = Cow::Borrowed("its name has no address that may be dialled");
    for address in addresses.filter(|address| !address::is_metadata(address.ip())) {
        match TcpStream::connect(address).await {
            Ok(socket) => return Ok(socket),
            Err(error) => last = with_cause("no connection", &error),
        }
    }
    Err(last)
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<bytes::Bytes>>,
) -> Result<(StatusCode, Zeroizing<Vec<u8>>), FetchFailure> {
    let broken = |error: hyper::Error| Cow::Owned(format!("the connection broke: {error}"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(broken)?;
        let status = answer.status();
        let mut body = Zeroizing::new(Vec::with_capacity(MAX_RESPONSE_BYTES));
        let mut pieces = Limited::new(answer.into_body(), MAX_RESPONSE_BYTES);
        while let Some(piece) = pieces.frame().await {
            let piece =
                piece.map_err(|error| Cow::Owned(format!("its answer cannot be read: {error}")))?;
            if let Ok(mut bytes) = piece.into_data() {
                body.extend_from_slice(bytes.chunk());
                bytes.advance(bytes.remaining());
            }
        }
        Ok((status, body))
    };
    // Both futures are polled here; if the connection ends first, the response says why.
    tokio::pin!(answer, connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}

fn with_cause(what: &str, error: &io::Error) -> FetchFailure {
    Cow::Owned(format!("{what}: {error}"))
}

/// Only the wanted field is copied; everything else stays in the body, which is wiped.
fn extract_field(body: &[u8], field: &str) -> Option<Zeroizing<String>> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        data: Version<'a>,
    }
    #[derive(Deserialize)]
    struct Version<'a> {
        #[serde(borrow)]
        data: BTreeMap<Cow<'a, str>, &'a RawValue>,
    }
    let answer: Answer<'_> = serde_json::from_slice(body).ok()?;
    let value = answer.data.data.get(field)?;
    serde_json::from_str(value.get()).ok().map(Zeroizing::new)
}

#[cfg(test)]
mod tests;
