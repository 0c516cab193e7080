//! Identifiers from outside, which become names of files, cgroups and hosts.

use std::fmt;

/// A checked identifier: 1 to 128 characters of `A-Z a-z 0-9 . _ -`, not starting with a dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(String);

/// A text that is not an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadId {
    /// The text as given, shortened.
    pub given: String,
}

impl Id {
    /// Checks a text.
    pub fn new(text: &str) -> Result<Self, BadId> {
        let fits = (1..=128).contains(&text.len())
            && !text.starts_with('.')
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !fits {
            return Err(BadId {
                given: text.chars().take(40).collect(),
            });
        }
        Ok(Id(text.to_owned()))
    }

    /// The identifier as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not an identifier: use 1 to 128 of A-Z a-z 0-9 . _ - and do not start with a dot",
            self.given.escape_debug()
        )
    }
}

impl std::error::Error for BadId {}

impl serde::Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_that_could_name_another_place_are_refused() {
        for bad in [
            "",
            ".",
            "..",
            ".x",
            "../x",
            "a/b",
            "a b",
            "a\0",
            "a\n",
            "ä",
            "%2e",
            &"x".repeat(129),
        ] {
            assert!(Id::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "A-1_b.c", "-x", &"x".repeat(128)] {
            assert!(Id::new(good).is_ok(), "{good:?}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_id_is_one_plain_file_name(text in ".{0,140}") {
            if let Ok(id) = Id::new(&text) {
                let path = std::path::Path::new(id.as_str());
                let parts: Vec<_> = path.components().collect();
                prop_assert_eq!(parts.len(), 1);
                prop_assert!(matches!(parts[0], std::path::Component::Normal(_)));
                prop_assert_eq!(id.as_str(), text);
            }
        }
    }
}
