//! The Docker API, which Podman serves, too: HTTP over a local unix socket, one connection per
//! call.

use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::net::UnixStream;

/// Bytes of a response that are read: lists of containers and images are long, nothing else is.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The latest API version that is supported.
const LATEST: (u32, u32) = (1, 53);
/// Creating and starting take a while on a busy machine; everything else is quick.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A container engine that responds.
#[derive(Clone, Debug)]
pub(super) struct EngineApi {
    socket: PathBuf,
    prefix: String,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineApiError {
    /// No HTTP response.
    #[error("`{}` does not answer: {source}", socket.display())]
    Silent { socket: PathBuf, source: io::Error },
    /// An error response.
    #[error("{message}")]
    Refused { status: u16, message: String },
}

impl EngineApiError {
    /// Whether it is a 404.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, EngineApiError::Refused { status: 404, .. })
    }
}

impl EngineApi {
    /// Connects, and agrees on a version; returns the engine's version info.
    pub(super) async fn connect(socket: &Path) -> Result<(EngineApi, Value), EngineApiError> {
        let mut api = EngineApi {
            socket: socket.to_owned(),
            prefix: String::new(),
        };
        let info = api.get("/version").await?;
        let (major, minor) = version(&info).map_or(LATEST, |theirs| theirs.min(LATEST));
        api.prefix = format!("/v{major}.{minor}");
        Ok((api, info))
    }

    /// The engine's socket.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, EngineApiError> {
        self.call(Method::GET, path, None).await
    }

    pub(super) async fn post(
        &self,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, EngineApiError> {
        self.call(Method::POST, path, body).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<Value, EngineApiError> {
        self.call(Method::DELETE, path, None).await
    }

    /// The body of a response that is not JSON.
    pub(super) async fn read(&self, path: &str) -> Result<Bytes, EngineApiError> {
        self.ask(Method::GET, path, None).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, EngineApiError> {
        let bytes = self.ask(method, path, body).await?;
        Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Bytes, EngineApiError> {
        let silent = |source| EngineApiError::Silent {
            socket: self.socket.clone(),
            source,
        };
        let answer = tokio::time::timeout(CALL_TIMEOUT, self.exchange(method, path, body)).await;
        let late = |_| io::Error::from(io::ErrorKind::TimedOut);
        let (status, bytes) = answer.map_err(late).flatten().map_err(silent)?;
        // 304: it is in the requested state already.
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            Ok(bytes)
        } else {
            let value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            Err(EngineApiError::Refused {
                status: status.as_u16(),
                message: complaint(&value, status),
            })
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<(StatusCode, Bytes)> {
        let stream = UnixStream::connect(&self.socket).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let connection = tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header("host", "engine")
            .header("content-type", "application/json")
            .body(Full::new(body.map_or_else(Bytes::new, |body| {
                Bytes::from(body.to_string())
            })))
            .map_err(io::Error::other)?;
        let answer = sender
            .send_request(request)
            .await
            .map_err(io::Error::other)?;
        let status = answer.status();
        let bytes = Limited::new(answer.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await
            .map_err(io::Error::other)?;
        connection.abort();
        Ok((status, bytes.to_bytes()))
    }
}

fn version(info: &Value) -> Option<(u32, u32)> {
    let (major, minor) = info["ApiVersion"].as_str()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The error message, on one line.
fn complaint(value: &Value, status: StatusCode) -> String {
    let text = value["message"]
        .as_str()
        .or(value["cause"].as_str())
        .unwrap_or_default();
    let text: String = text
        .chars()
        .take(500)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.is_empty() {
        format!("status {status}")
    } else {
        text
    }
}

/// Percent-encodes one segment of a path or query.
pub(super) fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_leaves_its_part_of_a_path() {
        assert_eq!(escaped("a/../b?c#d e\n%"), "a%2F..%2Fb%3Fc%23d%20e%0A%25");
        assert_eq!(escaped("Plain-1.2_3~"), "Plain-1.2_3~");
    }

    #[test]
    fn a_complaint_stays_on_one_line_and_short() {
        let long = serde_json::json!({ "message": format!("a\nb{}", "x".repeat(1000)) });
        let text = complaint(&long, StatusCode::CONFLICT);
        assert!(text.starts_with("a b") && text.len() == 500, "{text}");
        assert_eq!(
            complaint(&Value::Null, StatusCode::CONFLICT),
            "status 409 Conflict"
        );
    }

    #[test]
    fn versions_are_told_by_number() {
        assert_eq!(
            version(&serde_json::json!({ "ApiVersion": "1.9" })),
            Some((1, 9))
        );
        assert!((1, 9) < (1, 41) && version(&Value::Null).is_none());
    }
}
