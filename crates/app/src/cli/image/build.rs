//! `airlock image build`: an image from a recipe and Debian packages, without a registry; then it is checked.

use super::{
    check::{self, Subject},
    recipe::{self, Source},
    shared,
};
use crate::{
    cli::{
        Global, conclude,
        message::{self, Failure, Line},
        print, print_json,
    },
    config::{Config, Surroundings},
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
docs/images.md tells how to write a recipe of one's own.";

/// Variables of the caller that whoever fetches packages gets.
const FETCHING: [&str; 6] = [
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
    /// A recipe of Airlock's own, or a folder with a Containerfile
    #[arg(value_name = "PROFILE|DIR")]
    what: PathBuf,
    /// Also keep the image as an archive; one that exists is not overwritten
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// linux/amd64, linux/arm64 or both [default: this machine's]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = platform)]
    platform: Vec<BuildPlatform>,
    /// What to call the image [default: localhost/PROFILE or localhost/DIR]
    #[arg(long, value_name = "REF")]
    name: Option<ImageRef>,
    /// Where packages come from, as a file of apt [default: this machine's Debian sources]
    #[arg(long, value_name = "FILE")]
    sources: Option<PathBuf>,
    /// The static airlock-init for linux/arm64, for recipes that copy it
    #[arg(long, value_name = "FILE")]
    init_arm64: Option<PathBuf>,
    /// Show what the build says
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
pub(super) fn execute(options: &Options, global: &Global, surroundings: &Surroundings) -> u8 {
    conclude(attempt(options, global, surroundings), options.json)
}

fn attempt(options: &Options, global: &Global, surroundings: &Surroundings) -> Result<u8, Failure> {
    let config = global.configure(surroundings)?;
    options.refuse_impossible()?;
    let source = Source::find(&options.what)?;
    let name = match &options.name {
        Some(name) => name.clone(),
        None => source.default_name()?,
    };
    let plans = plans(options, &source, surroundings)?;
    let temporary = surroundings
        .variable("TMPDIR")
        .map_or(Path::new("/var/tmp"), Path::new);
    let images = shared::open(global, surroundings)?;
    let workshop = BuildEnvironment::open(temporary).map_err(failure)?;
    let archive = make(&plans, &workshop, &name, options);
    let kept = archive.and_then(|archive| keep(&archive, options, &config, &name, &images));
    // Also where it failed: what is in there may belong to ids that its owner cannot remove.
    let closed = workshop.close().map_err(failure);
    let status = kept?;
    closed.map(|()| status)
}

impl Options {
    /// Whether the image can be run on this machine.
    fn is_for_here(&self) -> bool {
        self.platform.is_empty()
            || self
                .platform
                .iter()
                .any(|one| BuildPlatform::here() == Some(*one))
    }

    /// What would fail only after minutes.
    fn refuse_impossible(&self) -> Result<(), Failure> {
        if self.output.is_none() && !self.is_for_here() {
            let message = "an image for another machine is of no use in this one's store";
            return Err(Failure::invalid(message, "add --output FILE"));
        }
        match &self.output {
            Some(path) if path.symlink_metadata().is_ok() => {
                let message = format!("cannot make `{}`: it is there already", path.display());
                Err(Failure::invalid(message, "choose another --output"))
            }
            _ => Ok(()),
        }
    }
}

/// Where Python packages are fetched from.
const PASSED: [&str; 3] = ["PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT"];

/// One plan for each platform that was asked for.
fn plans(
    options: &Options,
    source: &Source,
    surroundings: &Surroundings,
) -> Result<Vec<BuildPlan>, Failure> {
    let recipe = source.recipe()?;
    let mut platforms = options.platform.clone();
    if platforms.is_empty() {
        platforms.extend(BuildPlatform::here());
    }
    platforms.sort_unstable();
    platforms.dedup();
    let given = |names: &[&str]| -> BTreeMap<String, String> {
        let value = |name: &str| {
            surroundings
                .variable(name)
                .and_then(|value| value.to_str())
                .map(str::to_owned)
        };
        names
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), value(name)?)))
            .collect()
    };
    // A recipe may be a stranger's, and its steps have the network: nothing else of the caller's is theirs to ask for.
    let arguments: Vec<_> = recipe
        .arguments
        .iter()
        .map(String::as_str)
        .filter(|name| PASSED.contains(name))
        .collect();
    let mut values = given(&arguments);
    let certificates = certificates(&mut values)?;
    let epoch = epoch(surroundings)?;
    let sources = options
        .sources
        .clone()
        .or_else(recipe::sources_of_this_machine);
    let sources = sources.map(std::path::absolute).transpose();
    let sources = sources
        .map_err(|error| Failure::internal(format!("there is no current folder: {error}")))?;
    let plan = |platform: BuildPlatform| {
        Ok(BuildPlan {
            files: source.files(&recipe, platform, options.init_arm64.as_deref())?,
            arguments: values.clone(),
            certificates: certificates.clone(),
            environment: given(&FETCHING),
            sources: sources.clone(),
            recipe: recipe.clone(),
            platform,
            epoch,
        })
    };
    platforms.into_iter().map(plan).collect()
}

/// The file that `PIP_CERT` names is not in the tree: it is brought there for the time of the build.
fn certificates(arguments: &mut BTreeMap<String, String>) -> Result<Option<Vec<u8>>, Failure> {
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

/// No file of the image is younger: now, unless the caller wants the same image again.
fn epoch(surroundings: &Surroundings) -> Result<u64, Failure> {
    match surroundings.variable("SOURCE_DATE_EPOCH") {
        Some(text) => text
            .to_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                Failure::invalid(
                    "SOURCE_DATE_EPOCH is no number of seconds",
                    "unset it, or give it such a number",
                )
            }),
        None => Ok(SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())),
    }
}

/// Builds every plan, and writes the archive.
fn make(
    plans: &[BuildPlan],
    workshop: &BuildEnvironment,
    name: &ImageRef,
    options: &Options,
) -> Result<PathBuf, Failure> {
    let mut tell = |progress: BuildProgress| match progress {
        BuildProgress::Step(text) => message::say(&[Line::Note(text)]),
        BuildProgress::Output(text) if options.verbose => {
            message::say(&[Line::Note(format!("  {text}"))])
        }
        BuildProgress::Output(_) => {}
    };
    let built = plans
        .iter()
        .map(|plan| plan.build(workshop, &mut tell))
        .collect::<Result<Vec<BuiltImage>, _>>();
    let built = built.map_err(failure)?;
    let path = options
        .output
        .clone()
        .unwrap_or_else(|| workshop.path_of("image.tar"));
    let file = File::create_new(&path).map_err(|error| {
        Failure::invalid(
            format!("cannot make `{}`: {error}", path.display()),
            "choose another --output",
        )
    })?;
    match write_archive(&mut BufWriter::new(file), name, &built) {
        Ok(()) => Ok(path),
        Err(error) => {
            // A part of an image is of no use to anybody.
            let _ = std::fs::remove_file(&path);
            Err(failure(error))
        }
    }
}

/// Takes the image into the store, and checks it there if it is for this machine.
fn keep(
    archive: &Path,
    options: &Options,
    config: &Config,
    name: &ImageRef,
    images: &ImageStore,
) -> Result<u8, Failure> {
    if !options.is_for_here() {
        let text = format!(
            "{name} is for another machine: it was written, and neither loaded nor checked"
        );
        message::say(&[Line::Note(text)]);
        if options.json {
            print_json(
                &serde_json::json!({ "image": name.familiar(), "archive": archive, "lines": [] }),
            )?;
        }
        return Ok(0);
    }
    message::say(&[Line::Note(format!(
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
    match options.json {
        true => print_json(&answer)?,
        false => print(&answer.text())?,
    }
    Ok(answer.status())
}

fn failure(error: BuildError) -> Failure {
    let cause = error
        .source()
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    let hint = match &error {
        BuildError::Failed { .. } => "add --verbose to see all that the build says",
        BuildError::MissingCopySource { .. } => {
            "put the file beside the recipe; for airlock-init see --init-arm64"
        }
        _ => "docs/images.md tells what building needs",
    };
    let message = format!("{error}{cause}");
    Failure {
        code: ErrorCode::StartFailed,
        message,
        hint: hint.to_owned(),
    }
}
