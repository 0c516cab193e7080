//! Reports a job's progress to a URL. The caller chooses it; the job cannot.

use super::super::{Global, message::Failure};
use crate::{
    config::ProcessEnv,
    remote::{Client, ClientRequest, ServerAddress},
};
use http::{Method, Uri};
use serde_json::Value;
use std::time::Duration;

/// The timeout of one callback.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Callback {
    client: Client,
    path: String,
}

impl Callback {
    pub(super) fn to(url: &str, global: &Global, env: &ProcessEnv) -> Result<Callback, Failure> {
        let bad = |why: &str| {
            let message = format!(
                "`{}` cannot be notified of the job: {why}",
                url.escape_debug()
            );
            Failure::invalid(message, "write http://HOST:PORT/PATH or https://HOST/PATH")
        };
        let uri: Uri = url.parse().map_err(|_| bad("it is not a URL"))?;
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        let base = format!("{}://{authority}", uri.scheme_str().unwrap_or_default());
        let address = ServerAddress::parse(&base).map_err(|why| bad(&why))?;
        let tls = matches!(address, ServerAddress::Encrypted(_))
            .then(|| global.tls(env))
            .transpose()?;
        let path = uri
            .path_and_query()
            .map_or("/", |path| path.as_str())
            .to_owned();
        Ok(Callback {
            client: Client {
                address,
                key: None,
                tls,
                idle_timeout: CALLBACK_TIMEOUT,
            },
            path,
        })
    }

    /// Sends a message; the error text says that it was not delivered.
    pub(super) async fn send(&self, what: &Value) -> Result<(), String> {
        let ask = ClientRequest::new(Method::POST, &self.path)
            .json(what)
            .response_timeout(CALLBACK_TIMEOUT);
        let untold =
            |why: String| format!("{} was not notified of the job: {why}", self.client.address);
        match tokio::time::timeout(CALLBACK_TIMEOUT, self.client.send(ask)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(untold(error.to_string())),
            Err(_) => Err(untold("it took too long".to_owned())),
        }
    }
}
