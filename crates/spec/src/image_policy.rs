//! The image policy: which images may be used, and which users may change the list of them. The
//! functions decide on values alone; the list and the image are read elsewhere.

use crate::{
    image::{Digest, ImageRef},
    image_pattern::ImagePattern,
    result::{ErrorCode, ErrorInfo},
    timestamp::Timestamp,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The label with which an image declares that agents may run in it; its value is `true`.
pub const AGENT_LABEL: &str = "io.cynodeai.sandbox.agent-compatible";
/// Pinned digests that one message lists.
const MAX_LISTED_PINS: usize = 3;
/// Bytes of a capability.
const MAX_CAPABILITY_BYTES: usize = 64;

/// The image policy of an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePolicy {
    /// Which images may be used.
    pub rule: ImageRule,
    /// For which uses an image must carry [`AGENT_LABEL`]; without effect while every image may be
    /// used.
    pub mark: LabelRequirement,
    /// Users, by name or number, who may change the list; without it only the owner of the state
    /// folder.
    pub may_add: Option<Vec<String>>,
    /// Registries from which images may be pulled; without it any registry.
    pub registries: Option<Vec<String>>,
}

impl ImagePolicy {
    /// Whether an image may be pulled from its registry.
    pub fn may_pull(&self, name: &ImageRef) -> bool {
        self.registries
            .as_ref()
            .is_none_or(|allowed| allowed.iter().any(|one| one == name.registry()))
    }
}

/// Which images may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageRule {
    /// All images.
    #[default]
    Open,
    /// Images on the list.
    Allowed,
}

/// The uses for which an image must carry [`AGENT_LABEL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelRequirement {
    /// Sessions of agents.
    #[default]
    Sessions,
    /// Sessions and runs.
    Always,
    /// None.
    Never,
}

/// The use of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageUse {
    /// One command.
    Run,
    /// A sandbox that an agent lives in.
    Session,
}

/// A user of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalUser {
    /// The user id.
    pub uid: u32,
    /// The name, if the id has one.
    pub name: Option<String>,
}

/// The image that a request names. An unknown property counts as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CandidateImage {
    /// The name in the request; a folder has none.
    pub reference: Option<ImageRef>,
    /// Its digest as the image store verified it, never only as the caller wrote it.
    pub digest: Option<Digest>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// An entry of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedImage {
    /// The images that it allows.
    pub pattern: ImagePattern,
    /// The only digest that they may have.
    pub pin: Option<Digest>,
    /// Their declared capabilities.
    pub capabilities: BTreeSet<Capability>,
    /// Whether the image carried [`AGENT_LABEL`] when the entry was added, if it was present then.
    /// It is information only: the label of the image that is run decides.
    pub marked: Option<bool>,
    /// A note.
    pub note: String,
    /// The user who added it.
    pub added_by: String,
    /// When it was added.
    pub added_at: Timestamp,
}

/// A declared capability of an image, such as `python-tools`: 1 to 64 of a-z 0-9 and -.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability(String);

/// Why an image may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageAdmission {
    /// The policy allows every image.
    Unrestricted,
    /// An entry of the list allows it.
    By(Box<AllowedImage>),
}

/// Why an image may not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRefusal {
    /// What is wrong, on one line.
    pub message: String,
    /// What to do, on one line.
    pub hint: String,
}

/// Decides whether an image may be used.
///
/// Of the entries that match the image only the most precise count: a tag before a repository
/// before the longer path, and of equal ones those with a pin before those without. So a pin holds
/// even where a wider entry has none.
pub fn admit_image(
    policy: &ImagePolicy,
    entries: &[AllowedImage],
    image: &CandidateImage,
    use_: ImageUse,
    needed: &[Capability],
) -> Result<ImageAdmission, ImageRefusal> {
    if policy.rule == ImageRule::Open {
        return Ok(ImageAdmission::Unrestricted);
    }
    let Some(reference) = &image.reference else {
        return refuse(
            "this image is a folder, and only images on the list of allowed ones may be used",
            "load it as an image with a name; `airlock image allowed` shows the list",
        );
    };
    let entry = matching_entry(entries, reference, image.digest.as_ref())?;
    check_label(policy.mark, reference, image, use_)?;
    match needed.iter().find(|one| !entry.capabilities.contains(*one)) {
        Some(lacking) => refuse(
            format!("image `{reference}` is not declared to have `{lacking}`"),
            format!(
                "`airlock image allow {} --capability {lacking}` declares it",
                entry.pattern
            ),
        ),
        None => Ok(ImageAdmission::By(Box::new(entry.clone()))),
    }
}

/// The entry that allows the image.
fn matching_entry<'a>(
    entries: &'a [AllowedImage],
    image: &ImageRef,
    digest: Option<&Digest>,
) -> Result<&'a AllowedImage, ImageRefusal> {
    let matching: Vec<_> = entries
        .iter()
        .filter(|entry| entry.pattern.matches(image))
        .collect();
    let is_certain = |entry: &&AllowedImage| entry.names_content_of(image);
    let Some(rank) = matching
        .iter()
        .copied()
        .filter(is_certain)
        .map(AllowedImage::rank)
        .max()
    else {
        return match matching.first() {
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
    let most_precise: Vec<_> = matching
        .into_iter()
        .filter(|entry| is_certain(entry) && entry.rank() == rank)
        .collect();
    let fits = |entry: &&&AllowedImage| entry.pin.is_none() || entry.pin.as_ref() == digest;
    match most_precise.iter().find(fits) {
        Some(entry) => Ok(entry),
        None => {
            let found = digest.map_or("not known", Digest::as_str);
            let pins = list_pins(most_precise.iter().filter_map(|entry| entry.pin.as_ref()));
            refuse(
                format!("image `{image}` is not allowed: its digest is {found}, allowed is {pins}"),
                "get the image that was allowed, or allow this one: `airlock image allow REF --digest DIGEST`",
            )
        }
    }
}

/// The first few pins, and the number of further ones.
fn list_pins<'a>(pins: impl Iterator<Item = &'a Digest>) -> String {
    let mut pins = pins.map(Digest::as_str);
    let first: Vec<_> = pins.by_ref().take(MAX_LISTED_PINS).collect();
    match pins.count() {
        0 => first.join(" or "),
        more => format!("{} or one of {more} more", first.join(" or ")),
    }
}

fn check_label(
    required: LabelRequirement,
    reference: &ImageRef,
    image: &CandidateImage,
    use_: ImageUse,
) -> Result<(), ImageRefusal> {
    let needed = match (required, use_) {
        (LabelRequirement::Never, _) | (LabelRequirement::Sessions, ImageUse::Run) => false,
        (LabelRequirement::Always, _) | (LabelRequirement::Sessions, ImageUse::Session) => true,
    };
    if !needed || image.has_agent_label() {
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

fn refuse<T>(message: impl Into<String>, hint: impl Into<String>) -> Result<T, ImageRefusal> {
    Err(ImageRefusal {
        message: message.into(),
        hint: hint.into(),
    })
}

impl CandidateImage {
    /// Whether it carries [`AGENT_LABEL`].
    pub fn has_agent_label(&self) -> bool {
        self.labels
            .get(AGENT_LABEL)
            .is_some_and(|value| value == "true")
    }
}

impl AllowedImage {
    fn rank(&self) -> ((u8, usize), bool) {
        (self.pattern.rank(), self.pin.is_some())
    }

    /// Whether the entry says anything about the content that is run. Of a name with tag and digest
    /// the digest is run, so that an entry for the tag needs a pin.
    fn names_content_of(&self, image: &ImageRef) -> bool {
        !(self.pattern.is_tag() && image.digest().is_some()) || self.pin.is_some()
    }
}

impl ImagePolicy {
    /// Whether a user may change the list in a state folder of `owner`.
    pub fn may_change(&self, who: &LocalUser, owner: u32) -> bool {
        match &self.may_add {
            None => who.uid == owner,
            Some(listed) => listed
                .iter()
                .any(|one| *one == who.uid.to_string() || Some(one) == who.name.as_ref()),
        }
    }
}

impl Capability {
    /// Checks a text.
    pub fn new(text: &str) -> Option<Capability> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let good = (1..=MAX_CAPABILITY_BYTES).contains(&text.len())
            && !text.starts_with('-')
            && text.bytes().all(fits);
        good.then(|| Capability(text.to_owned()))
    }

    /// The capability as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for LocalUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} (uid {})", self.uid),
            None => write!(f, "uid {}", self.uid),
        }
    }
}

impl fmt::Display for ImageRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ImageRefusal {}

impl From<ImageRefusal> for ErrorInfo {
    fn from(refused: ImageRefusal) -> Self {
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
