//! Tells an address of the caller's how a job is getting on. The caller at this machine names it; no job can.

use super::super::{Global, message::Failure};
use crate::{
    config::Surroundings,
    remote::{Address, Ask, Client},
};
use http::{Method, Uri};
use serde_json::Value;
use std::time::Duration;

/// How long one message may take in all.
const LONGEST: Duration = Duration::from_secs(10);

pub(super) struct Callback {
    client: Client,
    path: String,
}

impl Callback {
    pub(super) fn to(
        url: &str,
        global: &Global,
        surroundings: &Surroundings,
    ) -> Result<Callback, Failure> {
        let bad = |why: &str| {
            let message = format!("`{}` cannot be told of the job: {why}", url.escape_debug());
            Failure::invalid(message, "write http://HOST:PORT/PATH or https://HOST/PATH")
        };
        let uri: Uri = url.parse().map_err(|_| bad("it is no URL"))?;
        let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
        let base = format!("{}://{authority}", uri.scheme_str().unwrap_or_default());
        let address = Address::parse(&base).map_err(|why| bad(&why))?;
        let tls = matches!(address, Address::Encrypted(_))
            .then(|| global.tls(surroundings))
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
                silence: LONGEST,
            },
            path,
        })
    }

    /// The error says that it was not told.
    pub(super) async fn tell(&self, what: &Value) -> Result<(), String> {
        let ask = Ask::new(Method::POST, &self.path)
            .json(what)
            .patience(LONGEST);
        let untold =
            |why: String| format!("{} was not told of the job: {why}", self.client.address);
        match tokio::time::timeout(LONGEST, self.client.ask(ask)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(untold(error.to_string())),
            Err(_) => Err(untold("it took too long".to_owned())),
        }
    }
}
