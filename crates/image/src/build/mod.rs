//! Builds images from recipes with Debian's packages and without a registry: `mmdebstrap` makes the base, the steps of
//! the recipe are done in its tree, and what comes out is one layer.
//!
//! A recipe and the packages it names are trusted with their image, not with this machine: all of it runs as root of a
//! user namespace whose ids are nobody's here, with mounts and processes of its own. It does have the network.

mod pack;
mod script;
mod workshop;

pub use pack::write_archive;
pub use workshop::Workshop;

use crate::recipe::{Recipe, SUITE, Step};
use sha2::{Digest as _, Sha256};
use spec::{Digest, ImageConfig};
use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::Child,
};

/// Where a step of a recipe finds the certificates of its plan.
pub const CERTIFICATES: &str = "/tmp/airlock-build-certificates.pem";
/// No layer is larger.
const LARGEST_LAYER: u64 = (8 << 30) - 1;
/// How much of what a failed build said is kept.
const LAST_LINES: usize = 12;
const LONGEST_LINE: u64 = 4096;

/// What an image runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are those of OCI and Debian")]
pub enum Platform {
    Amd64,
    Arm64,
}

/// Everything that decides about an image.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What to do.
    pub recipe: Recipe,
    /// For which platform.
    pub platform: Platform,
    /// What the `COPY` steps copy, by name: contents, and whether they can be executed.
    pub files: BTreeMap<String, (Vec<u8>, bool)>,
    /// Values of the arguments that the recipe declares.
    pub arguments: BTreeMap<String, String>,
    /// A bundle that a step of the recipe may trust, at [`CERTIFICATES`]; it does not stay in the image.
    pub certificates: Option<Vec<u8>>,
    /// Variables for whoever fetches packages, such as those of a proxy.
    pub environment: BTreeMap<String, String>,
    /// Where packages come from, in a form of apt; Debian's own servers if none.
    pub sources: Option<PathBuf>,
    /// Seconds since 1970; no file of the image is younger.
    pub epoch: u64,
}

/// One built layer with its configuration.
#[derive(Clone, Debug)]
pub struct Built {
    /// What it runs on.
    pub platform: Platform,
    /// What it says about itself.
    pub config: ImageConfig,
    /// The layer, an uncompressed archive.
    pub layer: PathBuf,
    /// Its digest.
    pub digest: Digest,
    /// Its size.
    pub bytes: u64,
    /// As in its plan.
    pub epoch: u64,
}

/// What a build tells while it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A step begins.
    Step(String),
    /// Something was said by what runs. Not our words.
    Said(String),
}

/// Why an image could not be built.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BuildError {
    #[error("`{program}` is not installed: apt-get install {package}")]
    Missing {
        program: &'static str,
        package: &'static str,
    },
    #[error(
        "user {user} has no further user ids of its own, which a tree with several owners needs: add the line `{user}:100000:65536` to /etc/subuid and /etc/subgid"
    )]
    NoIds { user: String },
    #[error("this kernel gives no user namespace to build in: {said}")]
    NoNamespace { said: String },
    #[error("cannot {what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("the recipe copies `{name}`, which is not there")]
    NoFile { name: String },
    #[error("the layer is larger than {LARGEST_LAYER} bytes")]
    TooLarge,
    #[error("building failed ({status}); the last it said: {}", .last.join(" | "))]
    Failed { status: String, last: Vec<String> },
}

impl BuildError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> BuildError {
        let what = what.into();
        move |source| BuildError::Io { what, source }
    }
}

impl Platform {
    /// All of them.
    pub const ALL: [Platform; 2] = [Platform::Amd64, Platform::Arm64];

    /// The one of this machine, if it is one of them.
    pub fn here() -> Option<Platform> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Platform::Amd64),
            "aarch64" => Some(Platform::Arm64),
            _ => None,
        }
    }

    /// As OCI and Debian both call it.
    pub fn architecture(self) -> &'static str {
        match self {
            Platform::Amd64 => "amd64",
            Platform::Arm64 => "arm64",
        }
    }

    /// `linux/ARCHITECTURE`.
    pub fn named(text: &str) -> Option<Platform> {
        let architecture = text.strip_prefix("linux/")?;
        Platform::ALL
            .into_iter()
            .find(|platform| platform.architecture() == architecture)
    }
}

impl Plan {
    /// Builds the image. What is said on the way goes to `told`.
    pub fn build(
        &self,
        workshop: &Workshop,
        told: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Built, BuildError> {
        for step in &self.recipe.steps {
            match step {
                Step::Copy { from, .. } if !self.files.contains_key(from) => {
                    return Err(BuildError::NoFile { name: from.clone() });
                }
                Step::Copy { .. } | Step::Run { .. } | Step::Folder(_) => {}
            }
        }
        let steps = script::write(self, workshop)?;
        told(Progress::Step(format!(
            "Debian {SUITE} for {}",
            self.platform.architecture()
        )));
        let mut child = workshop.start(self, &steps)?;
        // Held until the end: the build ends with it.
        let held = child.stdin.take();
        let layer = workshop.place(&format!("layer-{}.tar", self.platform.architecture()));
        let (received, last) = receive(&mut child, &layer, &self.titles(), told);
        let status = child
            .wait()
            .map_err(BuildError::io("wait for mmdebstrap"))?;
        drop(held);
        // An error of the child's own ends the stream early, which is none of ours.
        let (digest, bytes) = received?;
        if !status.success() {
            return Err(BuildError::Failed {
                status: status.to_string(),
                last: last.into(),
            });
        }
        let (platform, config, epoch) = (self.platform, self.recipe.config.clone(), self.epoch);
        Ok(Built {
            platform,
            config,
            layer,
            digest,
            bytes,
            epoch,
        })
    }

    /// A short text for each step.
    fn titles(&self) -> Vec<String> {
        let title = |step: &Step| match step {
            Step::Run { script, .. } => {
                format!(
                    "RUN {}",
                    script.split_whitespace().collect::<Vec<_>>().join(" ")
                )
            }
            Step::Copy { from, to } => format!("COPY {from} {to}"),
            Step::Folder(path) => format!("WORKDIR {path}"),
        };
        self.recipe
            .steps
            .iter()
            .map(title)
            .map(|text| text.chars().take(100).collect())
            .collect()
    }
}

type Received = Result<(Digest, u64), BuildError>;

/// Takes the layer from the child's output while its words are passed on.
fn receive(
    child: &mut Child,
    layer: &std::path::Path,
    titles: &[String],
    told: &mut (dyn FnMut(Progress) + Send),
) -> (Received, VecDeque<String>) {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let listener = scope.spawn(move || match stderr {
            Some(stderr) => listen(stderr, titles, told),
            None => VecDeque::new(),
        });
        let received = match stdout {
            Some(stdout) => keep(stdout, layer),
            None => Err(BuildError::io("read from mmdebstrap")(
                io::ErrorKind::BrokenPipe.into(),
            )),
        };
        if received.is_err() {
            // It would wait for a reader for ever; that it has ended already is as good.
            let _ = child.kill();
        }
        (received, listener.join().unwrap_or_default())
    })
}

/// Passes on what is said, line by line, and returns the last of it.
fn listen(
    stderr: impl Read,
    titles: &[String],
    told: &mut (dyn FnMut(Progress) + Send),
) -> VecDeque<String> {
    let mut reader = BufReader::new(stderr);
    let mut last = VecDeque::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader
            .by_ref()
            .take(LONGEST_LINE)
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
            Some(title) => told(Progress::Step(title.clone())),
            None if text.is_empty() => {}
            None => {
                last.push_back(text.clone());
                if last.len() > LAST_LINES {
                    last.pop_front();
                }
                told(Progress::Said(text));
            }
        }
    }
}

/// Writes a stream to a new file, with its digest and size.
fn keep(mut from: impl Read, path: &std::path::Path) -> Received {
    let failed = || BuildError::io(format!("write `{}`", path.display()));
    let mut file = File::create_new(path).map_err(failed())?;
    let (mut digest, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 18];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed()(error)),
        };
        bytes += count as u64;
        if bytes > LARGEST_LAYER {
            return Err(BuildError::TooLarge);
        }
        digest.update(&buffer[..count]);
        file.write_all(&buffer[..count]).map_err(failed())?;
    }
    Ok((pack::digest_of(digest), bytes))
}
