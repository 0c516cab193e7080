//! Log, traces and node facts of a server, from the configuration.

use crate::{
    cli::message::Failure,
    config::{Config, ConfigError},
};
use ::doors::secrets::{KeySource, Secrets};
use gateway::{NodeFacts, TraceSettings};
use spec::{ErrorCode, LogFormat};
use std::path::Path;
use tokio::signal::unix::Signal;

/// Opens the log of this process.
pub(super) fn open_log(
    config: &Config,
    quiet: bool,
    format: Option<LogFormat>,
) -> Result<(), Failure> {
    let mut settings = config.telemetry.log.clone();
    settings.format = format.unwrap_or(settings.format);
    settings.quiet = quiet;
    let place = settings
        .file
        .as_ref()
        .map_or_else(String::new, |file| file.path.display().to_string());
    gateway::log::open(settings).map_err(|error| Failure {
        code: ErrorCode::StartFailed,
        message: format!("cannot write the log `{place}`: {error}"),
        hint: "name a plain file of yours, in a folder that you may write, as file under [log]"
            .to_owned(),
    })
}

/// Log rotation sends SIGHUP after it has moved the file.
pub(super) fn reopen_on(mut hangup: Signal) {
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            gateway::log::reopen();
        }
    });
}

/// The trace exporter's settings, with the values of its headers read.
pub(super) fn trace(config: &Config) -> Result<Option<TraceSettings>, Failure> {
    let Some(trace) = &config.telemetry.trace else {
        return Ok(None);
    };
    let secret_value = |(name, source): &(String, KeySource)| {
        Ok((name.clone(), secret_value(source, &config.secrets)?.into()))
    };
    let headers = trace
        .headers
        .iter()
        .map(secret_value)
        .collect::<Result<_, ConfigError>>()?;
    Ok(Some(TraceSettings {
        endpoint: trace.endpoint.clone(),
        sample: trace.sample,
        headers,
    }))
}

/// Reads a secret on a separate thread: the calling thread may already run an event loop.
fn secret_value(source: &KeySource, secrets: &Secrets) -> Result<String, ConfigError> {
    let broken = |why: &str| {
        ConfigError::new(
            format!("a header of [trace] cannot be read: {why}"),
            "try again",
        )
    };
    let look = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let secret_value = runtime
            .map_err(|_| broken("no event loop"))?
            .block_on(secrets.find(source));
        secret_value.map_err(|error| {
            ConfigError::new(format!("for [trace]: {}", error.message), error.hint)
        })
    };
    let secret_value = std::thread::scope(|scope| scope.spawn(look).join());
    let secret_value = secret_value.unwrap_or_else(|_| Err(broken("looking for it failed")))?;
    String::from_utf8(secret_value.expose().to_vec()).map_err(|_| broken("it is no text"))
}

/// Facts about this node that are known before it serves.
pub(in crate::cli) fn facts(
    config: &Config,
    certificate: Option<&Path>,
) -> Result<NodeFacts, Failure> {
    let unreadable =
        |error: std::io::Error| Failure::internal(format!("cannot read the certificate: {error}"));
    let certificate = certificate
        .map(std::fs::read_to_string)
        .transpose()
        .map_err(unreadable)?;
    let server = config.doors.catalogue.inference.as_ref();
    let inference = server.and_then(|server| {
        let port = match server.base.scheme_str() {
            Some("https") => 443,
            _ => 80,
        };
        Some((
            server.base.host()?.to_owned(),
            server.base.port_u16().unwrap_or(port),
        ))
    });
    let max_concurrency = config.serve.bounds.runs;
    let named = NodeFacts::new(config.telemetry.slug.clone());
    Ok(NodeFacts {
        max_concurrency,
        inference,
        certificate,
        ..named
    })
}
