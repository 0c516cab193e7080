//! Patterns of the list of allowed images: one tag, one repository, or all repositories below a
//! path. There is nothing else, so that an operator sees at a glance which images an entry allows.

use crate::image::ImageRef;
use std::{fmt, str::FromStr};

/// `REPOSITORY:TAG` (that tag), `REPOSITORY` (any tag or digest) or `PATH/*` (every repository
/// below).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImagePattern {
    /// In lower case, because the letter case of hosts does not count.
    registry: String,
    scope: PatternScope,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PatternScope {
    /// Ends with a slash, so that `a/` is never the beginning of `a-evil/x`; empty for a whole
    /// registry.
    Below(String),
    Repository(String),
    Tag {
        repository: String,
        tag: String,
    },
}

/// A text that is not a pattern of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadImagePattern {
    text: String,
    why: String,
}

/// A placeholder: the parser adds no default tag to a name with a digest.
const ANY_DIGEST: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
/// A placeholder for a repository below a path; two parts, because the parser completes a single
/// one.
const ANY_BELOW: &str = "x/x";

impl ImagePattern {
    /// Whether an image matches. A tag beside a digest counts as that tag.
    pub fn matches(&self, image: &ImageRef) -> bool {
        self.registry.eq_ignore_ascii_case(image.registry())
            && match &self.scope {
                PatternScope::Below(path) => image.repository().starts_with(path),
                PatternScope::Repository(repository) => image.repository() == repository,
                PatternScope::Tag { repository, tag } => {
                    image.repository() == repository && image.tag() == Some(tag)
                }
            }
    }

    /// The precision: a tag ranks above a repository, that above a path, a longer path above a
    /// shorter.
    pub(crate) fn rank(&self) -> (u8, usize) {
        match &self.scope {
            PatternScope::Below(path) => (0, path.len()),
            PatternScope::Repository(_) => (1, 0),
            PatternScope::Tag { .. } => (2, 0),
        }
    }

    /// Whether the pattern is one tag.
    pub(crate) fn is_tag(&self) -> bool {
        matches!(self.scope, PatternScope::Tag { .. })
    }

    /// Whether the pattern is several repositories, which one digest cannot pin.
    pub fn is_path(&self) -> bool {
        matches!(self.scope, PatternScope::Below(_))
    }
}

impl FromStr for ImagePattern {
    type Err = BadImagePattern;

    fn from_str(text: &str) -> Result<Self, BadImagePattern> {
        let bad = |why: String| BadImagePattern {
            text: text.to_owned(),
            why,
        };
        let plain = |why: &str| bad(why.to_owned());
        if text.contains('@') {
            return Err(plain("a digest is not part of it, but a pin beside it"));
        }
        let path = text.strip_suffix("/*");
        if path.unwrap_or(text).contains('*') {
            return Err(plain(
                "`*` stands only at the end, after a slash, for every repository below",
            ));
        }
        let example = match path {
            Some(path) => format!("{path}/{ANY_BELOW}@{ANY_DIGEST}"),
            None => format!("{text}@{ANY_DIGEST}"),
        };
        let image: ImageRef = example
            .parse()
            .map_err(|_| match text.parse::<ImageRef>() {
                Err(error) if path.is_none() => bad(error.why().to_owned()),
                _ => plain("it is not REPOSITORY, REPOSITORY:TAG or PATH/*"),
            })?;
        let repository = image.repository();
        let scope = match (path, image.tag()) {
            (Some(_), _) => {
                let below = repository.strip_suffix(ANY_BELOW).unwrap_or(repository);
                PatternScope::Below(below.to_owned())
            }
            (None, None) => PatternScope::Repository(repository.to_owned()),
            (None, Some(tag)) => PatternScope::Tag {
                repository: repository.to_owned(),
                tag: tag.to_owned(),
            },
        };
        Ok(ImagePattern {
            registry: image.registry().to_ascii_lowercase(),
            scope,
        })
    }
}

impl fmt::Display for ImagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.registry)?;
        match &self.scope {
            PatternScope::Below(path) => write!(f, "{path}*"),
            PatternScope::Repository(repository) => f.write_str(repository),
            PatternScope::Tag { repository, tag } => write!(f, "{repository}:{tag}"),
        }
    }
}

impl fmt::Display for BadImagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.text.chars().take(300).collect();
        write!(
            f,
            "`{}` does not say which images: {}",
            shown.escape_debug(),
            self.why
        )
    }
}

impl std::error::Error for BadImagePattern {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> ImagePattern {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn matches(text: &str, image: &str) -> bool {
        pattern(text).matches(&image.parse().expect(image))
    }

    #[test]
    fn an_entry_is_completed_as_names_are() {
        let cases = [
            ("python", "docker.io/library/python"),
            ("python:3.12", "docker.io/library/python:3.12"),
            ("index.docker.io/me/tool", "docker.io/me/tool"),
            ("GHCR.io/x/y:Z", "ghcr.io/x/y:Z"),
            ("127.0.0.1:5000/a", "127.0.0.1:5000/a"),
            ("me/*", "docker.io/me/*"),
            ("library/*", "docker.io/library/*"),
            ("docker.io/*", "docker.io/*"),
            ("ghcr.io/a/b/*", "ghcr.io/a/b/*"),
            ("localhost:5000/*", "localhost:5000/*"),
        ];
        for (text, complete) in cases {
            assert_eq!(pattern(text).to_string(), complete);
        }
    }

    #[test]
    fn an_entry_means_its_own_images_and_no_neighbours() {
        let digest = ANY_DIGEST.replace('0', "a");
        let cases = [
            ("python", "python", true),
            ("python", "python:3.12", true),
            ("python", &format!("python@{digest}"), true),
            ("python", "python-evil", false),
            ("python", "evil/python", false),
            ("python", "library/python", true),
            ("python", "docker.io.evil.example/library/python", false),
            ("python", "localhost/python", false),
            ("python", "docker.io:443/library/python", false),
            ("python:3.12", "python:3.12", true),
            ("python:3.12", "python:3.12-evil", false),
            ("python:3.12", "python:3.1", false),
            ("python:3.12", "python", false),
            ("python:latest", "python", true),
            ("python:3.12", &format!("python@{digest}"), false),
            ("python:V1", "python:v1", false),
            ("a/b", "a/b", true),
            ("a/b", "a/bc", false),
            ("a/b", "a/b/c", false),
            ("a/*", "a/b", true),
            ("a/*", "a/b/c:1", true),
            ("a/*", "a-evil/b", false),
            ("a/*", "library/a", false),
            ("a/*", "ghcr.io/a/b", false),
            ("a/b/*", "a/b", false),
            ("a/b/*", "a/bc/d", false),
            ("ghcr.io/*", "ghcr.io/x", true),
            ("ghcr.io/*", "ghcr.io.evil.example/x", false),
            ("ghcr.io/*", "ghcr.io:444/x", false),
            ("ghcr.io/x", "GHCR.IO/x", true),
        ];
        for (entry, image, means) in cases {
            assert_eq!(matches(entry, image), means, "{entry} {image}");
        }
    }

    #[test]
    fn what_means_no_images_is_refused_on_one_line() {
        let pinned = format!("a@{ANY_DIGEST}");
        let long = format!("{}/*", "a".repeat(300));
        let texts = [
            "", "*", "/*", "//*", "a*", "a/*/b", "a/**", "*/a", "a:*", "a:/*", "a:b/*", "a/b:c/*",
            "A/*", "../*", "a/../*", "a\n/*", "Python", "a:", &pinned, &long, "a@/*", "a/*@x",
        ];
        for text in texts {
            let refused = text.parse::<ImagePattern>().expect_err(text).to_string();
            assert!(!refused.contains(char::is_control), "{refused:?}");
        }
    }

    #[test]
    fn what_means_fewer_images_ranks_higher() {
        let ranked = [
            "ghcr.io/*",
            "ghcr.io/a/*",
            "ghcr.io/a/b/*",
            "ghcr.io/a/b/c",
            "ghcr.io/a/b/c:1",
        ];
        let ranks: Vec<_> = ranked.map(|text| pattern(text).rank()).into();
        assert!(ranks.windows(2).all(|pair| pair[0] < pair[1]), "{ranks:?}");
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_taken_reads_back(text in "[a-z0-9./:@*_A-Z-]{0,40}|\\PC{0,20}") {
            if let Ok(read) = text.parse::<ImagePattern>() {
                prop_assert_eq!(&read.to_string().parse::<ImagePattern>().unwrap(), &read);
            }
        }

        #[test]
        fn an_entry_never_means_a_name_it_is_only_the_beginning_of(
            entry in "(ghcr\\.io/)?[a-z]{1,4}(/[a-z]{1,4}){0,2}(/\\*|:[a-z0-9]{1,3})?",
            image in "(ghcr\\.io/)?[a-z]{1,4}(/[a-z]{1,4}){0,3}(:[a-z0-9]{1,3})?",
        ) {
            let image: ImageRef = image.parse().unwrap();
            let said = pattern(&entry);
            // By whole parts, worked out another way: from the complete texts.
            let (complete, name) = (said.to_string(), format!("{}/{}", image.registry(), image.repository()));
            let expected = match (complete.strip_suffix("/*"), complete.rsplit_once(':')) {
                (Some(path), _) => {
                    let (path, name): (Vec<_>, Vec<_>) = (path.split('/').collect(), name.split('/').collect());
                    name.len() > path.len() && name[..path.len()] == path
                }
                (None, Some((repository, tag))) => repository == name && image.tag() == Some(tag),
                (None, None) => complete == name,
            };
            prop_assert_eq!(said.matches(&image), expected);
        }
    }
}
