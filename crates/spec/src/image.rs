//! Names of images, and the configuration that an image carries.

use std::{collections::BTreeMap, fmt, str::FromStr};

/// The registry of a name without one.
pub const DEFAULT_REGISTRY: &str = "docker.io";
/// The folder of that registry for repositories whose name has no slash.
const OFFICIAL: &str = "library/";
const DEFAULT_TAG: &str = "latest";
/// Bytes of registry and repository.
const MAX_NAME_BYTES: usize = 255;
/// Bytes of a tag.
const MAX_TAG_BYTES: usize = 128;

/// The complete name of an image: `REGISTRY/REPOSITORY[:TAG][@DIGEST]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageRef {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

/// A text that is not the name of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadImageRef {
    text: String,
    why: &'static str,
}

/// The part of an OCI image configuration that says how to run the image. It is unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ImageConfig {
    /// `USER`, `UID` or `USER:GROUP`; empty if the image names none.
    pub user: String,
    /// Variables, `NAME=VALUE`.
    pub env: Vec<String>,
    /// The first words of the command.
    pub entrypoint: Vec<String>,
    /// Its further words, which a command of the request replaces.
    pub cmd: Vec<String>,
    /// The working directory; empty if the image names none.
    pub working_dir: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
}

impl ImageRef {
    /// The host and port of its registry.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The path within the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; none only where the name has a digest instead.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if the name has one.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The same image by its digest.
    pub fn with_digest(&self, digest: Digest) -> ImageRef {
        ImageRef {
            digest: Some(digest),
            ..self.clone()
        }
    }

    /// The short form that users write, without the default registry and folder.
    pub fn familiar(&self) -> String {
        let complete = self.to_string();
        let short = complete
            .strip_prefix(DEFAULT_REGISTRY)
            .and_then(|rest| rest.strip_prefix('/'));
        match short {
            Some(short) => short.strip_prefix(OFFICIAL).unwrap_or(short).to_owned(),
            None => complete,
        }
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

impl FromStr for ImageRef {
    type Err = BadImageRef;

    fn from_str(text: &str) -> Result<Self, BadImageRef> {
        let bad = |why| BadImageRef {
            text: text.to_owned(),
            why,
        };
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => {
                let digest = Digest::new(digest)
                    .ok_or_else(|| bad("its digest is not `sha256:` and 64 hexadecimal digits"))?;
                (name, Some(digest))
            }
            None => (text, None),
        };
        let (name, tag) = match name.rsplit_once(':') {
            // A colon before the last slash belongs to a port.
            Some((before, tag)) if !tag.contains('/') => (before, Some(tag.to_owned())),
            _ => (name, None),
        };
        let (registry, repository) = match name.split_once('/') {
            Some((host, rest)) if is_host(host) => (canonical(host), rest.to_owned()),
            _ => (DEFAULT_REGISTRY, name.to_owned()),
        };
        let official = registry == DEFAULT_REGISTRY && !repository.contains('/');
        let repository = if official {
            format!("{OFFICIAL}{repository}")
        } else {
            repository
        };
        if registry.len() + repository.len() > MAX_NAME_BYTES
            || !repository.split('/').all(is_component)
        {
            return Err(bad(
                "a name is made of a-z 0-9 and single . _ - between them, parts separated by /",
            ));
        }
        if !is_registry(registry) {
            return Err(bad("its registry is not HOST or HOST:PORT"));
        }
        if tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return Err(bad(
                "a tag is made of up to 128 of A-Z a-z 0-9 . _ - and does not begin with . or -",
            ));
        }
        let tag = tag.or_else(|| digest.is_none().then(|| DEFAULT_TAG.to_owned()));
        Ok(ImageRef {
            registry: registry.to_owned(),
            repository,
            tag,
            digest,
        })
    }
}

/// Whether the first part of a name is a registry, by the rule of Docker.
fn is_host(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':'])
}

/// The default registry under its second name.
fn canonical(host: &str) -> &str {
    match host {
        "index.docker.io" => DEFAULT_REGISTRY,
        other => other,
    }
}

fn is_registry(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    let label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(fits)
    };
    name.split('.').all(label)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Whether a part of a name is letters and digits with separators between them: `.`, `_`, `__` or
/// any number of `-`.
fn is_component(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = |byte: Option<&u8>| byte.copied().is_some_and(plain);
    let separators = part.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let separator =
        |text: &str| matches!(text, "" | "." | "_" | "__") || text.bytes().all(|byte| byte == b'-');
    ends(bytes.first()) && ends(bytes.last()) && separators.into_iter().all(separator)
}

fn is_tag(tag: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_TAG_BYTES).contains(&tag.len())
        && !tag.starts_with(['.', '-'])
        && tag.bytes().all(fits)
}

impl Digest {
    /// Checks a text.
    pub fn new(text: &str) -> Option<Digest> {
        let hex = text.strip_prefix("sha256:")?;
        let fits = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (hex.len() == 64 && hex.bytes().all(fits)).then(|| Digest(text.to_owned()))
    }

    /// The digest with its algorithm.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hexadecimal digits.
    pub fn hex(&self) -> &str {
        &self.0["sha256:".len()..]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for BadImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.text.chars().take(300).collect();
        write!(
            f,
            "`{}` is not the name of an image: {}",
            shown.escape_debug(),
            self.why
        )
    }
}

impl BadImageRef {
    /// The reason alone.
    pub(crate) fn why(&self) -> &'static str {
        self.why
    }
}

impl std::error::Error for BadImageRef {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn names_are_completed_as_docker_does() {
        let cases = [
            ("debian", "docker.io/library/debian:latest", "debian:latest"),
            ("me/tool:1.2", "docker.io/me/tool:1.2", "me/tool:1.2"),
            (
                "index.docker.io/library/debian",
                "docker.io/library/debian:latest",
                "debian:latest",
            ),
            (
                "localhost/agent",
                "localhost/agent:latest",
                "localhost/agent:latest",
            ),
            (
                "127.0.0.1:5000/a/b",
                "127.0.0.1:5000/a/b:latest",
                "127.0.0.1:5000/a/b:latest",
            ),
            ("ghcr.io/x/y_z:v1", "ghcr.io/x/y_z:v1", "ghcr.io/x/y_z:v1"),
        ];
        for (text, complete, familiar) in cases {
            let read: ImageRef = text.parse().unwrap();
            assert_eq!(
                (read.to_string().as_str(), read.familiar().as_str()),
                (complete, familiar)
            );
        }
        let pinned: ImageRef = format!("debian@{DIGEST}").parse().unwrap();
        assert_eq!(
            (pinned.tag(), pinned.digest().unwrap().as_str()),
            (None, DIGEST)
        );
        assert_eq!(
            format!("debian:12@{DIGEST}")
                .parse::<ImageRef>()
                .unwrap()
                .tag(),
            Some("12")
        );
    }

    #[test]
    fn what_is_no_name_is_refused_on_one_line() {
        let long = "a".repeat(300);
        let texts = [
            "",
            "/",
            "a//b",
            "../x",
            "a/../b",
            "Debian",
            "a b",
            "a\n",
            "a:",
            "a:.x",
            "-a",
            "a..b",
            "a___b",
            "a@sha256:00",
            "a@md5:00",
            "host.x:0/a",
            "host.x:99999/a",
            "-h.x/a",
            "a:b:c",
            &long,
        ];
        for text in texts {
            let refused = text.parse::<ImageRef>().expect_err(text).to_string();
            assert!(!refused.contains(char::is_control), "{refused:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_that_is_taken_is_the_same_when_written_and_read(text in "[a-z0-9./:@_A-Z-]{0,40}|\\PC{0,20}") {
            if let Ok(read) = text.parse::<ImageRef>() {
                prop_assert_eq!(&read.to_string().parse::<ImageRef>().unwrap(), &read);
                prop_assert_eq!(&read.familiar().parse::<ImageRef>().unwrap(), &read);
                prop_assert!(!read.repository().split('/').any(|part| part == ".." || part.is_empty()));
            }
        }
    }
}
