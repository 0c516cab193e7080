//! `airlock image build`: builds an image from a recipe and Debian packages without a registry,
//! then checks it.

use super::{
    check::{self, Subject},
    image_store,
    recipe::{self, Source},
};
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Message},
        print, print_json,
    },
    config::{Config, ProcessEnv},
};
use clap::Args;
use image::build::{
    BuildEnvironment, BuildError, BuildPlan, BuildPlatform, BuildProgress, BuiltImage,
    CERTIFICATES, write_archive,
};
use image::{ImageStore, contract::ImageProfile};
use spec::{ErrorCode, ImageRef};
use std::{
    collections::BTreeMap,
    error::Error,
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

const EXAMPLES: &str = "\
Examples:
  airlock image build base-tools
  airlock image build python-tools --output python-tools.tar
  airlock image build base-tools --platform linux/amd64,linux/arm64 --output both.tar
  airlock image build ./my-image --name localhost/my-image:1

Profiles: base-tools, python-tools, node-tools, go-tools, secops-tools, agent, runtime.
docs/images.md describes how to write a recipe.";

/// The caller's proxy variables, passed to the step that fetches packages.
const PROXY_VARIABLES: [&str; 6] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
];

/// The options of `airlock image build`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Options {
    /// A built-in recipe, or a folder with a Containerfile
    #[arg(value_name = "PROFILE|DIR")]
    what: PathBuf,
    /// Also write the image to an archive; an existing one is not overwritten
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// linux/amd64, linux/arm64 or both [default: this machine's]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = platform)]
    platform: Vec<BuildPlatform>,
    /// The image's name [default: localhost/PROFILE or localhost/DIR]
    #[arg(long, value_name = "REF")]
    name: Option<ImageRef>,
    /// Package sources, as an apt sources file [default: this machine's Debian sources]
    #[arg(long, value_name = "FILE")]
    sources: Option<PathBuf>,
    /// The static airlock-init for linux/arm64, for recipes that copy it
    #[arg(long, value_name = "FILE")]
    init_arm64: Option<PathBuf>,
    /// Show the build's output
    #[arg(long)]
    verbose: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn platform(text: &str) -> Result<BuildPlatform, String> {
    BuildPlatform::named(text)
        .ok_or_else(|| "the platforms are linux/amd64 and linux/arm64".to_owned())
}

/// Carries out the command.
pub(super) fn execute(options: &Options, global: &Global, env: &ProcessEnv) -> u8 {
    conclude(attempt(options, global, env), options.json)
}

fn attempt(options: &Options, global: &Global, env: &ProcessEnv) -> Result<u8, Failure> {
    let config = global.configure(env)?;
    options.refuse_impossible()?;
    let source = Source::find(&options.what)?;
    let name = match &options.name {
        Some(name) => name.clone(),
        None => source.default_name()?,
    };
    let plans = plans(options, &source, env)?;
    let temporary = env
        .variable("TMPDIR")
        .map_or(Path::new("/var/tmp"), Path::new);
    let images = image_store::open(global, env)?;
    let workshop = BuildEnvironment::open(temporary).map_err(build_failure)?;
    let archive = build_archive(&plans, &workshop, &name, options);
    let kept =
        archive.and_then(|archive| load_and_check(&archive, options, &config, &name, &images));
    // The workshop is closed after a failure, too: its files may belong to subordinate ids that
    // only it can remove.
    let closed = workshop.close().map_err(build_failure);
    let status = kept?;
    closed.map(|()| status)
}

impl Options {
    /// Whether the image can run on this machine.
    fn is_for_here(&self) -> bool {
        self.platform.is_empty()
            || self
                .platform
                .iter()
                .any(|one| BuildPlatform::here() == Some(*one))
    }

    /// Refuses options that would fail only after minutes.
    fn refuse_impossible(&self) -> Result<(), Failure> {
        if self.output.is_none() && !self.is_for_here() {
            let message = "an image for another platform cannot be used in this machine's store";
            return Err(Failure::invalid(message, "add --output FILE"));
        }
        match &self.output {
            Some(path) if path.symlink_metadata().is_ok() => {
                let message = format!("cannot create `{}`: it exists already", path.display());
                Err(Failure::invalid(message, "choose another --output"))
            }
            _ => Ok(()),
        }
    }
}

/// The caller's variables that recipes may read: where Python packages come from.
const PIP_VARIABLES: [&str; 3] = ["PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT"];

/// The build plans, one for each platform.
fn plans(options: &Options, source: &Source, env: &ProcessEnv) -> Result<Vec<BuildPlan>, Failure> {
    let recipe = source.recipe()?;
    let mut platforms = options.platform.clone();
    if platforms.is_empty() {
        platforms.extend(BuildPlatform::here());
    }
    platforms.sort_unstable();
    platforms.dedup();
    let variables = |names: &[&str]| -> BTreeMap<String, String> {
        let value = |name: &str| {
            env.variable(name)
                .and_then(|value| value.to_str())
                .map(str::to_owned)
        };
        names
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), value(name)?)))
            .collect()
    };
    // A recipe may be untrusted and its steps have the network, so that it gets none of the
    // caller's other variables.
    let arguments: Vec<_> = recipe
        .arguments
        .iter()
        .map(String::as_str)
        .filter(|name| PIP_VARIABLES.contains(name))
        .collect();
    let mut values = variables(&arguments);
    let pip_certificates = pip_certificates(&mut values)?;
    let source_date = source_date(env)?;
    let sources = options.sources.clone().or_else(recipe::host_apt_sources);
    let sources = sources.map(std::path::absolute).transpose();
    let sources = sources.map_err(|error| {
        Failure::internal(format!("the current folder cannot be read: {error}"))
    })?;
    let plan = |platform: BuildPlatform| {
        Ok(BuildPlan {
            files: source.files(&recipe, platform, options.init_arm64.as_deref())?,
            arguments: values.clone(),
            certificates: pip_certificates.clone(),
            environment: variables(&PROXY_VARIABLES),
            sources: sources.clone(),
            recipe: recipe.clone(),
            platform,
            epoch: source_date,
        })
    };
    platforms.into_iter().map(plan).collect()
}

/// Reads the file that `PIP_CERT` names; it is shown in the tree during the build.
fn pip_certificates(arguments: &mut BTreeMap<String, String>) -> Result<Option<Vec<u8>>, Failure> {
    let Some(path) = arguments.get_mut("PIP_CERT") else {
        return Ok(None);
    };
    let bytes = std::fs::read(&*path).map_err(|error| {
        Failure::invalid(
            format!("cannot read `{path}`: {error}"),
            "set PIP_CERT to a bundle, or unset it",
        )
    })?;
    CERTIFICATES.clone_into(path);
    Ok(Some(bytes))
}

/// The newest modification time in the image: now, or `SOURCE_DATE_EPOCH` for a reproducible image.
fn source_date(env: &ProcessEnv) -> Result<u64, Failure> {
    match env.variable("SOURCE_DATE_EPOCH") {
        Some(text) => text
            .to_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                Failure::invalid(
                    "SOURCE_DATE_EPOCH is not a number of seconds",
                    "unset it, or set it to such a number",
                )
            }),
        None => Ok(SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())),
    }
}

/// Builds every plan and writes the archive.
fn build_archive(
    plans: &[BuildPlan],
    workshop: &BuildEnvironment,
    name: &ImageRef,
    options: &Options,
) -> Result<PathBuf, Failure> {
    let mut tell = |progress: BuildProgress| match progress {
        BuildProgress::Step(text) => message::print(&[Message::Note(text)]),
        BuildProgress::Output(text) if options.verbose => {
            message::print(&[Message::Note(format!("  {text}"))])
        }
        BuildProgress::Output(_) => {}
    };
    let built = plans
        .iter()
        .map(|plan| plan.build(workshop, &mut tell))
        .collect::<Result<Vec<BuiltImage>, _>>();
    let built = built.map_err(build_failure)?;
    let path = options
        .output
        .clone()
        .unwrap_or_else(|| workshop.path_of("image.tar"));
    let file = File::create_new(&path).map_err(|error| {
        Failure::invalid(
            format!("cannot create `{}`: {error}", path.display()),
            "choose another --output",
        )
    })?;
    match write_archive(&mut BufWriter::new(file), name, &built) {
        Ok(()) => Ok(path),
        Err(error) => {
            // A partial archive is removed; an error of the removal is ignored.
            let _ = std::fs::remove_file(&path);
            Err(build_failure(error))
        }
    }
}

/// Loads the image into the store and checks it, if it is for this machine.
fn load_and_check(
    archive: &Path,
    options: &Options,
    config: &Config,
    name: &ImageRef,
    images: &ImageStore,
) -> Result<u8, Failure> {
    if !options.is_for_here() {
        let text = format!(
            "{name} is for another platform: it was written, but neither loaded nor checked"
        );
        message::print(&[Message::Note(text)]);
        if options.json {
            print_json(
                &serde_json::json!({ "image": name.familiar(), "archive": archive, "lines": [] }),
            )?;
        }
        return Ok(0);
    }
    message::print(&[Message::Note(format!(
        "loading and checking {}",
        name.familiar()
    ))]);
    let loaded = images.load(
        image::ImageSource::Path(archive.to_owned()),
        Some(name.clone()),
        &image::ImageLimits::default(),
        &mut |_| {},
    )?;
    let subject = Subject::of(name.familiar(), loaded.image);
    let answer = check::check(
        config,
        &subject,
        &ImageProfile::declared(&subject.config.clone().unwrap_or_default()),
    )?;
    if options.json {
        print_json(&answer)?
    } else {
        print(&answer.text())?
    }
    Ok(answer.status())
}

fn build_failure(error: BuildError) -> Failure {
    let cause = error
        .source()
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    let hint = match &error {
        BuildError::Failed { .. } => "add --verbose to see the build's output",
        BuildError::MissingCopySource { .. } => {
            "put the file into the recipe's folder; for airlock-init see --init-arm64"
        }
        _ => "docs/images.md lists what a build needs",
    };
    let message = format!("{error}{cause}");
    Failure {
        code: ErrorCode::StartFailed,
        message,
        hint: hint.to_owned(),
    }
}
