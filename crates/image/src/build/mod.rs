//! Builds images from recipes with Debian's packages and without a registry: `mmdebstrap` makes the
//! base system, the steps of the recipe run in its tree, and the result is one layer.
//!
//! A recipe and its packages are trusted with their image, not with this machine: everything runs
//! as root of a user namespace whose ids are unused on the host, with separate mounts and
//! processes. It does have the network.

mod archive;
mod environment;
mod script;

pub use archive::write_archive;
pub use environment::BuildEnvironment;

use crate::recipe::{BuildStep, Recipe, SUITE};
use sha2::{Digest as _, Sha256};
use spec::{Digest, ImageConfig};
use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::Child,
};

/// Path of the plan's CA certificates during a step of a recipe.
pub const CERTIFICATES: &str = "/tmp/airlock-build-certificates.pem";
/// Maximum size of a layer.
const MAX_LAYER_BYTES: u64 = (8 << 30) - 1;
/// Limits of the output kept from a failed build: lines, and bytes of each.
const MAX_KEPT_LINES: usize = 12;
const MAX_LINE_BYTES: u64 = 4096;

/// Platform of a built image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BuildPlatform {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

/// Everything that determines an image.
#[derive(Clone, Debug)]
pub struct BuildPlan {
    /// The recipe.
    pub recipe: Recipe,
    /// The platform.
    pub platform: BuildPlatform,
    /// Files for `COPY` steps by name: contents, and whether they are executable.
    pub files: BTreeMap<String, (Vec<u8>, bool)>,
    /// Values of the build arguments that the recipe declares.
    pub arguments: BTreeMap<String, String>,
    /// CA certificates that steps may trust, at [`CERTIFICATES`]; they do not stay in the image.
    pub certificates: Option<Vec<u8>>,
    /// Environment for package downloads, such as proxy settings.
    pub environment: BTreeMap<String, String>,
    /// Package source in a form of apt; Debian's own servers by default.
    pub sources: Option<PathBuf>,
    /// Seconds since 1970; no file of the image is newer.
    pub epoch: u64,
}

/// A built layer with its configuration.
#[derive(Clone, Debug)]
pub struct BuiltImage {
    /// Platform.
    pub platform: BuildPlatform,
    /// Configuration of the image.
    pub config: ImageConfig,
    /// Path of the layer, an uncompressed tar archive.
    pub layer: PathBuf,
    /// Digest of the layer.
    pub digest: Digest,
    /// Size of the layer in bytes.
    pub bytes: u64,
    /// `SOURCE_DATE_EPOCH` of the plan.
    pub epoch: u64,
}

/// Progress of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildProgress {
    /// A step begins.
    Step(String),
    /// A line of output of the running program; untrusted.
    Output(String),
}

/// Why an image could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A program that the build needs is not installed.
    #[error("`{program}` is not installed: apt-get install {package}")]
    Missing {
        /// Name of the program.
        program: &'static str,
        /// Debian's package with the program.
        package: &'static str,
    },
    /// The user has no subordinate ids.
    #[error(
        "user {user} has no subordinate user ids, which a tree with several owners needs: add the line `{user}:100000:65536` to /etc/subuid and /etc/subgid"
    )]
    NoSubordinateIds {
        /// Name of the user.
        user: String,
    },
    /// The user namespace could not be created.
    #[error("cannot create a user namespace for the build: {output}")]
    NoNamespace {
        /// Output of the program.
        output: String,
    },
    /// An operation of this process failed.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file that the recipe copies is missing.
    #[error("the recipe copies `{name}`, which does not exist")]
    MissingCopySource {
        /// Name of the file.
        name: String,
    },
    /// The layer is too large.
    #[error("the layer is larger than {MAX_LAYER_BYTES} bytes")]
    TooLarge,
    /// The build failed.
    #[error("the build failed ({status}); its last output: {}", .last.join(" | "))]
    Failed {
        /// Exit status.
        status: String,
        /// Last lines of output.
        last: Vec<String>,
    },
}

impl BuildError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> BuildError {
        let what = what.into();
        move |source| BuildError::Io { what, source }
    }
}

impl BuildPlatform {
    /// All platforms.
    pub const ALL: [BuildPlatform; 2] = [BuildPlatform::Amd64, BuildPlatform::Arm64];

    /// The platform of this machine, if it is supported.
    pub fn here() -> Option<BuildPlatform> {
        match std::env::consts::ARCH {
            "x86_64" => Some(BuildPlatform::Amd64),
            "aarch64" => Some(BuildPlatform::Arm64),
            _ => None,
        }
    }

    /// Name of the architecture, the same for OCI and Debian.
    pub fn architecture(self) -> &'static str {
        match self {
            BuildPlatform::Amd64 => "amd64",
            BuildPlatform::Arm64 => "arm64",
        }
    }

    /// Parses `linux/ARCHITECTURE`.
    pub fn named(text: &str) -> Option<BuildPlatform> {
        let architecture = text.strip_prefix("linux/")?;
        BuildPlatform::ALL
            .into_iter()
            .find(|platform| platform.architecture() == architecture)
    }
}

impl BuildPlan {
    /// Builds the image; reports progress to `on_progress`.
    pub fn build(
        &self,
        environment: &BuildEnvironment,
        on_progress: &mut (dyn FnMut(BuildProgress) + Send),
    ) -> Result<BuiltImage, BuildError> {
        for step in &self.recipe.steps {
            match step {
                BuildStep::Copy { from, .. } if !self.files.contains_key(from) => {
                    return Err(BuildError::MissingCopySource { name: from.clone() });
                }
                BuildStep::Copy { .. } | BuildStep::Run { .. } | BuildStep::Folder(_) => {}
            }
        }
        let steps = script::write(self, environment)?;
        on_progress(BuildProgress::Step(format!(
            "Debian {SUITE} for {}",
            self.platform.architecture()
        )));
        let mut child = environment.start(self, &steps)?;
        // Kept open until the end: closing it ends the build.
        let input = child.stdin.take();
        let layer = environment.path_of(&format!("layer-{}.tar", self.platform.architecture()));
        let (layer_result, last) = receive(&mut child, &layer, &self.titles(), on_progress);
        let status = child
            .wait()
            .map_err(BuildError::io("wait for mmdebstrap"))?;
        drop(input);
        // If the child failed, the stream ended early and our own error is only a consequence.
        let (digest, bytes) = layer_result?;
        if !status.success() {
            return Err(BuildError::Failed {
                status: status.to_string(),
                last: last.into(),
            });
        }
        let platform = self.platform;
        let config = self.recipe.config.clone();
        let epoch = self.epoch;
        Ok(BuiltImage {
            platform,
            config,
            layer,
            digest,
            bytes,
            epoch,
        })
    }

    /// A short title for each step.
    fn titles(&self) -> Vec<String> {
        let title = |step: &BuildStep| match step {
            BuildStep::Run { script, .. } => {
                format!(
                    "RUN {}",
                    script.split_whitespace().collect::<Vec<_>>().join(" ")
                )
            }
            BuildStep::Copy { from, to } => format!("COPY {from} {to}"),
            BuildStep::Folder(path) => format!("WORKDIR {path}"),
        };
        self.recipe
            .steps
            .iter()
            .map(title)
            .map(|text| text.chars().take(100).collect())
            .collect()
    }
}

type LayerResult = Result<(Digest, u64), BuildError>;

/// Writes the layer from the child's output to a file, and forwards its messages.
fn receive(
    child: &mut Child,
    layer: &std::path::Path,
    titles: &[String],
    on_progress: &mut (dyn FnMut(BuildProgress) + Send),
) -> (LayerResult, VecDeque<String>) {
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    std::thread::scope(|scope| {
        let forwarder = scope.spawn(move || match stderr {
            Some(stderr) => forward_output(stderr, titles, on_progress),
            None => VecDeque::new(),
        });
        let layer_result = match stdout {
            Some(stdout) => write_layer(stdout, layer),
            None => Err(BuildError::io("read from mmdebstrap")(
                io::ErrorKind::BrokenPipe.into(),
            )),
        };
        if layer_result.is_err() {
            // Otherwise the child would wait for a reader for ever. It may have ended already.
            let _ = child.kill();
        }
        (layer_result, forwarder.join().unwrap_or_default())
    })
}

/// Forwards messages line by line and returns the last lines.
fn forward_output(
    stderr: impl Read,
    titles: &[String],
    on_progress: &mut (dyn FnMut(BuildProgress) + Send),
) -> VecDeque<String> {
    let mut reader = BufReader::new(stderr);
    let mut last = VecDeque::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => return last,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        let step = text
            .strip_prefix(script::STEP_MARK)
            .and_then(|number| number.parse::<usize>().ok());
        match step.and_then(|number| titles.get(number)) {
            Some(title) => on_progress(BuildProgress::Step(title.clone())),
            None if text.is_empty() => {}
            None => {
                last.push_back(text.clone());
                if last.len() > MAX_KEPT_LINES {
                    last.pop_front();
                }
                on_progress(BuildProgress::Output(text));
            }
        }
    }
}

/// Writes a stream to a new file; returns its digest and size.
fn write_layer(mut from: impl Read, path: &std::path::Path) -> LayerResult {
    let failed = || BuildError::io(format!("write `{}`", path.display()));
    let mut file = File::create_new(path).map_err(failed())?;
    let mut digest = Sha256::new();
    let mut bytes = 0;
    let mut buffer = vec![0; 1 << 18];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed()(error)),
        };
        bytes += count as u64;
        if bytes > MAX_LAYER_BYTES {
            return Err(BuildError::TooLarge);
        }
        digest.update(&buffer[..count]);
        file.write_all(&buffer[..count]).map_err(failed())?;
    }
    Ok((archive::digest_of(digest), bytes))
}
