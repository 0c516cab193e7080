//! Which images may be used, and by whom the list of them may be changed. Decides on data alone: who keeps the list
//! and who knows the image are others.

use crate::{
    image::{Digest, ImageRef},
    image_pattern::ImagePattern,
    result::{ErrorCode, ErrorInfo, Timestamp},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The label by which an image says that agents may run in it; its value is `true`.
pub const AGENT_LABEL: &str = "io.cynodeai.sandbox.agent-compatible";
/// In the words of one refusal.
const MOST_PINS_TOLD: usize = 3;
const LONGEST_CAPABILITY: usize = 64;

/// What the operator says about images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePolicy {
    /// Which images may be used.
    pub rule: ImageRule,
    /// For what an image must carry [`AGENT_LABEL`]. Nothing is asked of it while every image may be used.
    pub mark: RequireMark,
    /// Users, by name or number, who may change the list; without a list only the owner of the state folder.
    pub may_add: Option<Vec<String>>,
    /// Registries that images may be pulled from; without a list any that is named.
    pub registries: Option<Vec<String>>,
}

impl ImagePolicy {
    /// Whether an image may be pulled from where it lies.
    pub fn may_pull(&self, name: &ImageRef) -> bool {
        self.registries
            .as_ref()
            .is_none_or(|allowed| allowed.iter().any(|one| one == name.registry()))
    }
}

/// Which images may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageRule {
    /// Every one.
    #[default]
    Open,
    /// Those on the list.
    Allowed,
}

/// For what an image must be marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequireMark {
    /// For sessions of agents.
    #[default]
    Sessions,
    /// For runs, too.
    Always,
    /// For nothing.
    Never,
}

/// What an image is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageUse {
    /// One command.
    Run,
    /// A sandbox that an agent lives in.
    Session,
}

/// A person, as the system knows him.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// His number.
    pub uid: u32,
    /// His name, if he has one.
    pub name: Option<String>,
}

/// What is known of the image that is asked for. What is not known counts as not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFacts {
    /// The name it was asked for by; a folder has none.
    pub reference: Option<ImageRef>,
    /// Its digest, verified by whoever holds the image; never merely what the caller wrote.
    pub digest: Option<Digest>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// One entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedImage {
    /// Which images it means.
    pub pattern: ImagePattern,
    /// The one digest they may have.
    pub pin: Option<Digest>,
    /// What they are declared to be good for.
    pub capabilities: BTreeSet<Capability>,
    /// Whether the image carried [`AGENT_LABEL`] when it was added, if it was known then. For readers: what decides is
    /// the label of the image that is run.
    pub marked: Option<bool>,
    /// Why it is there.
    pub note: String,
    /// Who put it there.
    pub added_by: String,
    /// And when.
    pub added_at: Timestamp,
}

/// What an image is good for: `python-tools`, or a word of one's own. 1 to 64 of a-z 0-9 and -.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability(String);

/// Why an image may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Every image may.
    Unrestricted,
    /// By this entry.
    By(Box<AllowedImage>),
}

/// Why an image may not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What is wrong, on one line.
    pub message: String,
    /// What to do, on one line.
    pub hint: String,
}

/// Whether an image may be used.
///
/// Of the entries that mean the image only the nearest count: a tag before a repository before the longer path, and of
/// equal ones those with a pin before those without. So a pin holds although a wider entry has none.
pub fn decide(
    policy: &ImagePolicy,
    entries: &[AllowedImage],
    image: &ImageFacts,
    use_: ImageUse,
    needed: &[Capability],
) -> Result<Admitted, Refused> {
    match policy.rule {
        ImageRule::Open => return Ok(Admitted::Unrestricted),
        ImageRule::Allowed => {}
    }
    let Some(reference) = &image.reference else {
        return refuse(
            "this image is a folder, and only images on the list of allowed ones may be used",
            "load it as an image with a name; `airlock image allowed` shows the list",
        );
    };
    let entry = nearest(entries, reference, image.digest.as_ref())?;
    check_mark(policy.mark, reference, image, use_)?;
    match needed.iter().find(|one| !entry.capabilities.contains(*one)) {
        Some(lacking) => refuse(
            format!("image `{reference}` is not declared to have `{lacking}`"),
            format!(
                "`airlock image allow {} --capability {lacking}` declares it",
                entry.pattern
            ),
        ),
        None => Ok(Admitted::By(Box::new(entry.clone()))),
    }
}

/// The entry that lets the image in.
fn nearest<'a>(
    entries: &'a [AllowedImage],
    image: &ImageRef,
    digest: Option<&Digest>,
) -> Result<&'a AllowedImage, Refused> {
    let meant: Vec<_> = entries
        .iter()
        .filter(|entry| entry.pattern.matches(image))
        .collect();
    let certain = |entry: &&AllowedImage| entry.is_about_what_is_run(image);
    let Some(rank) = meant
        .iter()
        .copied()
        .filter(certain)
        .map(AllowedImage::rank)
        .max()
    else {
        return match meant.first() {
            None => refuse(
                format!("image `{image}` is not on the list of allowed images"),
                "`airlock image allowed` shows the list, `airlock image allow` adds to it",
            ),
            Some(entry) => refuse(
                format!(
                    "image `{image}` is not allowed: `{}` is, but a digest may be any image",
                    entry.pattern
                ),
                "ask for it by its tag alone, or pin it: `airlock image allow REF --digest DIGEST`",
            ),
        };
    };
    let nearest: Vec<_> = meant
        .into_iter()
        .filter(|entry| certain(entry) && entry.rank() == rank)
        .collect();
    let fits = |entry: &&&AllowedImage| entry.pin.is_none() || entry.pin.as_ref() == digest;
    match nearest.iter().find(fits) {
        Some(entry) => Ok(entry),
        None => {
            let found = digest.map_or("not known", Digest::as_str);
            let pins = told(nearest.iter().filter_map(|entry| entry.pin.as_ref()));
            refuse(
                format!("image `{image}` is not allowed: its digest is {found}, allowed is {pins}"),
                "get the image that was allowed, or allow this one: `airlock image allow REF --digest DIGEST`",
            )
        }
    }
}

/// The first few, and how many more there are.
fn told<'a>(pins: impl Iterator<Item = &'a Digest>) -> String {
    let mut pins = pins.map(Digest::as_str);
    let first: Vec<_> = pins.by_ref().take(MOST_PINS_TOLD).collect();
    match pins.count() {
        0 => first.join(" or "),
        more => format!("{} or one of {more} more", first.join(" or ")),
    }
}

fn check_mark(
    required: RequireMark,
    reference: &ImageRef,
    image: &ImageFacts,
    use_: ImageUse,
) -> Result<(), Refused> {
    let needed = match (required, use_) {
        (RequireMark::Never, _) | (RequireMark::Sessions, ImageUse::Run) => false,
        (RequireMark::Always, _) | (RequireMark::Sessions, ImageUse::Session) => true,
    };
    if !needed || image.is_marked() {
        return Ok(());
    }
    let purpose = match use_ {
        ImageUse::Run => "runs",
        ImageUse::Session => "sessions",
    };
    refuse(
        format!("image `{reference}` is not marked for agents, which {purpose} need"),
        format!("build it with the label {AGENT_LABEL}=\"true\", if agents may run in it"),
    )
}

fn refuse<T>(message: impl Into<String>, hint: impl Into<String>) -> Result<T, Refused> {
    Err(Refused {
        message: message.into(),
        hint: hint.into(),
    })
}

impl ImageFacts {
    /// Whether it says of itself that agents may run in it.
    pub fn is_marked(&self) -> bool {
        self.labels
            .get(AGENT_LABEL)
            .is_some_and(|value| value == "true")
    }
}

impl AllowedImage {
    fn rank(&self) -> ((u8, usize), bool) {
        (self.pattern.rank(), self.pin.is_some())
    }

    /// A tag beside a digest is decoration: what is run is the digest. Only a pin says something about that.
    fn is_about_what_is_run(&self, image: &ImageRef) -> bool {
        !(self.pattern.is_tag() && image.digest().is_some()) || self.pin.is_some()
    }
}

impl ImagePolicy {
    /// Whether somebody may change the list that lies in a folder of `owner`.
    pub fn may_change(&self, who: &Who, owner: u32) -> bool {
        match &self.may_add {
            None => who.uid == owner,
            Some(listed) => listed
                .iter()
                .any(|one| *one == who.uid.to_string() || Some(one) == who.name.as_ref()),
        }
    }
}

impl Capability {
    /// Checks a word.
    pub fn new(text: &str) -> Option<Capability> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let good = (1..=LONGEST_CAPABILITY).contains(&text.len())
            && !text.starts_with('-')
            && text.bytes().all(fits);
        good.then(|| Capability(text.to_owned()))
    }

    /// The word.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} (uid {})", self.uid),
            None => write!(f, "uid {}", self.uid),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refused {}

impl From<Refused> for ErrorInfo {
    fn from(refused: Refused) -> Self {
        ErrorInfo {
            code: ErrorCode::ImageRefused,
            message: refused.message,
            hint: Some(refused.hint),
        }
    }
}

#[cfg(test)]
#[path = "image_policy_tests.rs"]
mod tests;
