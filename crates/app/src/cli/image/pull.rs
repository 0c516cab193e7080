//! `airlock image pull`: an image from a registry, by way of a layout in the store's own folder.

use super::progress::{Meter, amount};
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Line},
        print, print_json,
        run::Signals,
    },
    config::{Config, Surroundings},
};
use clap::Args;
use image::{
    Images, Limits, Source,
    registry::{self, CredentialsError, Kind, Patience, Platform, PullError, Pulled, Request, Sources, Transport},
};
use spec::{ErrorCode, ImageRef};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// As after Ctrl-C everywhere.
const CANCELLED: u8 = 130;
/// Configuration and layers as they come, compressed.
const MOST_BYTES: u64 = 16 << 30;

const EXAMPLES: &str = "\
Examples:
  airlock image pull debian:12
  airlock image pull ghcr.io/team/tool@sha256:…
  airlock image pull 127.0.0.1:5000/agent --json

Credentials are those of `docker login` and `podman login`. Every byte is checked against its digest as it comes.
Registries are asked over TLS; those on 127.0.0.0/8, ::1 and localhost may do without.";

/// The options of `airlock image pull`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// The image; without a registry it is one of docker.io
    #[arg(value_name = "[REGISTRY/]NAME[:TAG][@DIGEST]")]
    name: String,
    /// The machine it must be made for [default: linux on this one]
    #[arg(long, value_name = "linux/ARCH")]
    platform: Option<Platform>,
    /// Ask the registry over plain http: anybody on the way can read the password
    #[arg(long)]
    plain_http: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was pulled, as it is shown.
#[derive(Debug, serde::Serialize)]
struct Report {
    name: String,
    digest: String,
    manifest: String,
    platform: String,
    bytes: u64,
    layers: usize,
    duration_ms: u64,
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    let status = match attempt(options, global, surroundings) {
        // Not what failed before a program started, and told like it.
        Err(failure) if failure.code == ErrorCode::Cancelled => {
            conclude(Err(failure), options.json);
            return CANCELLED;
        }
        other => other,
    };
    conclude(status, options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let config = global.configure(surroundings)?;
    let name: ImageRef = options.name.parse().map_err(|error: spec::BadImageRef| {
        Failure::invalid(error.to_string(), "write it as for `docker pull`, such as debian:12")
    })?;
    check_registry(&config, &name)?;
    let began = Instant::now();
    let pulled = super::super::runtime()?.block_on(async {
        let mut signals =
            Signals::listen().map_err(|error| Failure::internal(format!("cannot await signals: {error}")))?;
        tokio::select! {
            pulled = pull(options, name.clone(), &config, surroundings) => pulled,
            () = signals.next() => Err(cancelled()),
        }
    })?;
    let report = report(&name, pulled, began.elapsed());
    match options.json {
        true => print_json(&report)?,
        false => print(&text(&report))?,
    }
    Ok(0)
}

fn check_registry(config: &Config, name: &ImageRef) -> Result<(), Failure> {
    if config.policy.images.may_pull(name) {
        return Ok(());
    }
    let allowed = config.policy.images.registries.as_deref().unwrap_or_default().join(", ");
    let message = format!("images are not pulled from `{}` here", name.registry());
    let hint = match allowed.as_str() {
        "" => "`images.registries` of the configuration allows none".to_owned(),
        some => format!("`images.registries` of the configuration allows {some}"),
    };
    Err(Failure { code: ErrorCode::PolicyDenied, message, hint })
}

fn cancelled() -> Failure {
    let (message, hint) = ("the pull was cancelled".to_owned(), "nothing of it was kept".to_owned());
    Failure { code: ErrorCode::Cancelled, message, hint }
}

/// Everything between the name and the image in the store.
async fn pull(
    options: &Options,
    name: ImageRef,
    config: &Config,
    surroundings: &Surroundings,
) -> Result<Pulled, Failure> {
    let sources = Sources { files: credential_files(surroundings), search_path: surroundings.variable("PATH") };
    let credentials = sources.find(&name).await?;
    let request = Request {
        name,
        platform: options.platform.clone().unwrap_or_else(Platform::of_this_machine),
        transport: if options.plain_http { Transport::PlainHttp } else { Transport::Secure },
        credentials,
        most_bytes: MOST_BYTES,
        patience: Patience::default(),
    };
    let images = super::open(config)?;
    let scratch = images.scratch()?;
    let meter = Arc::new(Meter::new());
    let watcher = Arc::clone(&meter);
    let pulled = registry::pull(&request, scratch.path(), Arc::new(move |event| watcher.tell(event))).await;
    meter.clear();
    let kept = match pulled {
        Ok(pulled) => keep(&images, &request.name, scratch.path().to_owned()).map(|()| pulled),
        Err(error) => Err(error.into()),
    };
    scratch.discard();
    kept
}
