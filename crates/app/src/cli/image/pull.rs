//! `airlock image pull`: pulls an image from a registry into a layout in the store's own folder,
//! then unpacks it.

use super::{image_store, pull_progress::PullProgress};
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Message},
        print, print_json,
        run::Signals,
        size::human_size,
    },
    config::{Config, ProcessEnv},
};
use clap::Args;
use image::{
    ImageLimits, ImageSource, ImageStore, Platform,
    registry::{
        self, CredentialSources, CredentialsError, PullError, PullErrorKind, PullOptions,
        PulledImage, RegistryTimeouts, Transport,
    },
};
use spec::{ErrorCode, ImageRef};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// Exit status after Ctrl-C.
const CANCELLED_STATUS: u8 = 130;
/// The maximum size of configuration and compressed layers.
const MAX_IMAGE_BYTES: u64 = 16 << 30;

const EXAMPLES: &str = "\
Examples:
  airlock image pull debian:12
  airlock image pull ghcr.io/team/tool@sha256:…
  airlock image pull 127.0.0.1:5000/agent --json

Every byte is checked against its digest while it arrives. Credentials are those of `docker login`
and `podman login`. Registries need TLS, except on loopback addresses.";

/// The options of `airlock image pull`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    // Not a doc comment: rustdoc would take the brackets for a link.
    #[arg(
        value_name = "REF",
        help = "[REGISTRY/]NAME[:TAG][@DIGEST]; without a registry it is one of docker.io"
    )]
    name: String,
    /// The platform [default: linux on this machine's architecture]
    #[arg(long, value_name = "linux/ARCH")]
    platform: Option<Platform>,
    /// Use plain HTTP: the password can then be read on the network
    #[arg(long)]
    plain_http: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The result of a pull, as `--json` prints it.
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
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    let outcome = attempt(options, global, env);
    let cancelled = outcome
        .as_ref()
        .is_err_and(|failure| failure.code == ErrorCode::Cancelled);
    let status = conclude(outcome, options.json);
    if cancelled { CANCELLED_STATUS } else { status }
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let config = global.configure(env)?;
    let name = image_store::reference(&options.name)?;
    check_registry(&config, &name)?;
    let began = Instant::now();
    let pulled = cancellable(options, &name, &config, env)?;
    let report = report(&name, pulled, began.elapsed());
    if options.json {
        print_json(&report)?
    } else {
        print(&text(&report))?
    }
    Ok(0)
}

/// Pulls until a signal arrives. Partial downloads are removed in every case.
fn cancellable(
    options: &Options,
    name: &ImageRef,
    config: &Config,
    env: &ProcessEnv,
) -> Result<PulledImage, Failure> {
    let images = ImageStore::open(config.state.join(image_store::FOLDER))?;
    message::print(
        &images
            .sweep()
            .into_iter()
            .map(Message::Note)
            .collect::<Vec<_>>(),
    );
    let runtime = crate::cli::runtime()?;
    let scratch = images.scratch()?;
    let meter = Arc::new(PullProgress::new());
    let pulled = runtime.block_on(async {
        let unheard = |error| Failure::internal(format!("cannot wait for signals: {error}"));
        let mut signals = Signals::listen().map_err(unheard)?;
        let request = request(options, name, env).await?;
        let watcher = Arc::clone(&meter);
        let pulling = async {
            let pulled = registry::pull(
                &request,
                scratch.path(),
                Arc::new(move |event| watcher.update(event)),
            )
            .await?;
            unpack(&images, name, scratch.path().to_owned()).await?;
            Ok(pulled)
        };
        tokio::select! {
            pulled = pulling => pulled,
            () = signals.next() => Err(cancelled()),
        }
    });
    meter.clear();
    // An interrupted unpacking is not awaited; the next command sweeps its leftovers.
    runtime.shutdown_background();
    scratch.discard();
    pulled
}

fn check_registry(config: &Config, name: &ImageRef) -> Result<(), Failure> {
    if config.policy.images.may_pull(name) {
        return Ok(());
    }
    let allowed = config
        .policy
        .images
        .registries
        .as_deref()
        .unwrap_or_default()
        .join(", ");
    let message = format!(
        "pulling images from `{}` is not allowed here",
        name.registry()
    );
    let hint = match allowed.as_str() {
        "" => "`images.registries` of the configuration allows none".to_owned(),
        some => format!("`images.registries` of the configuration allows {some}"),
    };
    Err(Failure {
        code: ErrorCode::PolicyDenied,
        message,
        hint,
    })
}

fn cancelled() -> Failure {
    let message = "the pull was cancelled".to_owned();
    let hint = "nothing was stored".to_owned();
    Failure {
        code: ErrorCode::Cancelled,
        message,
        hint,
    }
}

async fn request(
    options: &Options,
    name: &ImageRef,
    env: &ProcessEnv,
) -> Result<PullOptions, Failure> {
    let sources = CredentialSources {
        files: credential_files(env),
        search_path: env.variable("PATH"),
    };
    Ok(PullOptions {
        name: name.clone(),
        platform: options.platform.clone().unwrap_or_else(Platform::here),
        transport: if options.plain_http {
            Transport::PlainHttp
        } else {
            Transport::Secure
        },
        credentials: sources.find(name).await?,
        max_bytes: MAX_IMAGE_BYTES,
        timeouts: RegistryTimeouts::default(),
    })
}

/// Unpacks the layout in a blocking task, so that signals are handled meanwhile.
async fn unpack(images: &ImageStore, name: &ImageRef, layout: PathBuf) -> Result<(), Failure> {
    let images = images.clone();
    let name = name.clone();
    let loading = tokio::task::spawn_blocking(move || {
        images
            .load(
                ImageSource::Path(layout),
                Some(name),
                &ImageLimits::default(),
                &mut |_| {},
            )
            .map(drop)
    });
    let loaded = loading
        .await
        .map_err(|error| Failure::internal(format!("cannot unpack: {error}")))?;
    Ok(loaded?)
}

/// The files that `docker login` and `podman login` write, by this user's environment.
fn credential_files(env: &ProcessEnv) -> Vec<PathBuf> {
    let path = |name: &str| env.variable(name).map(PathBuf::from);
    if let Some(named) = path("REGISTRY_AUTH_FILE") {
        return vec![named];
    }
    let podman = path("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json"));
    let home = || env.home().map(|home| home.join(".docker"));
    let docker = path("DOCKER_CONFIG")
        .or_else(home)
        .map(|folder| folder.join("config.json"));
    // Relative paths are ignored: the current folder may be a hostile clone.
    podman
        .into_iter()
        .chain(docker)
        .filter(|path| path.is_absolute())
        .collect()
}

fn report(name: &ImageRef, pulled: PulledImage, took: Duration) -> Report {
    Report {
        name: name.to_string(),
        digest: pulled.digest.to_string(),
        manifest: pulled.manifest.to_string(),
        platform: pulled.platform.to_string(),
        bytes: pulled.bytes,
        layers: pulled.layers,
        duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}

fn text(report: &Report) -> String {
    let Report {
        name,
        digest,
        platform,
        bytes,
        layers,
        duration_ms,
        ..
    } = report;
    let seconds = *duration_ms as f64 / 1000.0;
    let counted = if *layers == 1 {
        "1 layer".to_owned()
    } else {
        format!("{layers} layers")
    };
    let line = format!(
        "pulled {name} for {platform}: {counted}, {} in {seconds:.1} s",
        human_size(*bytes)
    );
    format!("{}\n{digest}\n", message::printable(&line))
}

impl From<CredentialsError> for Failure {
    fn from(error: CredentialsError) -> Self {
        let hint = "fix it, or set REGISTRY_AUTH_FILE to a file without it".to_owned();
        Failure {
            code: ErrorCode::InvalidSpec,
            message: error.to_string(),
            hint,
        }
    }
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        let code = match error.kind() {
            PullErrorKind::Missing => ErrorCode::ImageMissing,
            PullErrorKind::Refused => ErrorCode::ImageRefused,
            PullErrorKind::Unavailable => ErrorCode::BackendUnavailable,
            PullErrorKind::Local => ErrorCode::Internal,
        };
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(next) = cause {
            message.push_str(&format!(": {next}"));
            cause = next.source();
        }
        Failure {
            code,
            message,
            hint: error.hint().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn credentials_are_looked_for_where_login_writes_them_and_never_in_the_current_folder() {
        let files = |variables: &[(&str, &str)]| {
            let variables = variables
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect();
            credential_files(&ProcessEnv {
                variables,
                ..ProcessEnv::default()
            })
        };
        assert_eq!(
            files(&[("HOME", "/h")]),
            [Path::new("/h/.docker/config.json")]
        );
        let both = files(&[
            ("HOME", "/h"),
            ("DOCKER_CONFIG", "/d"),
            ("XDG_RUNTIME_DIR", "/run/user/1"),
        ]);
        assert_eq!(
            both,
            [
                Path::new("/run/user/1/containers/auth.json"),
                Path::new("/d/config.json")
            ]
        );
        assert_eq!(
            files(&[("HOME", "/h"), ("REGISTRY_AUTH_FILE", "/a.json")]),
            [Path::new("/a.json")]
        );
        assert!(
            files(&[
                ("HOME", "h"),
                ("DOCKER_CONFIG", "."),
                ("XDG_RUNTIME_DIR", "")
            ])
            .is_empty()
        );
    }

    #[test]
    fn what_was_pulled_is_told_on_two_lines() {
        let report = Report {
            name: "docker.io/library/x:1".into(),
            digest: "sha256:00".into(),
            manifest: "sha256:11".into(),
            platform: "linux/amd64".into(),
            bytes: 3 << 20,
            layers: 1,
            duration_ms: 1250,
        };
        let expected =
            "pulled docker.io/library/x:1 for linux/amd64: 1 layer, 3.0 MiB in 1.2 s\nsha256:00\n";
        assert_eq!(text(&report), expected);
    }
}
