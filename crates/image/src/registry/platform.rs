//! Parsing and matching of platforms: `linux/ARCHITECTURE[/VARIANT]`.

use crate::document::Platform;
use std::{fmt, str::FromStr};

/// An invalid platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPlatform(String);

impl Platform {
    /// Whether an image's platform satisfies a requested one. Without a requested variant, only the
    /// baseline variant of the architecture is accepted.
    pub fn takes(&self, image: &Platform) -> bool {
        let baseline = match image.architecture.as_str() {
            "amd64" => "v1",
            "arm64" => "v8",
            "arm" => "v7",
            _ => "",
        };
        let wanted = if self.variant.is_empty() {
            baseline
        } else {
            &self.variant
        };
        let variant = image.variant.is_empty() || image.variant == wanted;
        self.os == image.os && self.architecture == image.architecture && variant
    }
}

impl FromStr for Platform {
    type Err = BadPlatform;

    fn from_str(text: &str) -> Result<Self, BadPlatform> {
        let fits = |part: &&str| {
            (1..=32).contains(&part.len())
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let parts: Vec<_> = text.split('/').collect();
        match parts.as_slice() {
            ["linux", rest @ ..] if (1..=2).contains(&rest.len()) && rest.iter().all(fits) => {
                Ok(Platform {
                    os: "linux".to_owned(),
                    architecture: rest[0].to_owned(),
                    variant: rest.get(1).copied().unwrap_or_default().to_owned(),
                })
            }
            _ => Err(BadPlatform(text.chars().take(100).collect())),
        }
    }
}

impl fmt::Display for BadPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.escape_debug();
        write!(
            f,
            "`{shown}` is not a platform: write linux/amd64, linux/arm64 or linux/ARCHITECTURE/VARIANT"
        )
    }
}

impl std::error::Error for BadPlatform {}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().unwrap()
    }

    #[test]
    fn a_platform_is_written_as_it_is_read() {
        for text in ["linux/amd64", "linux/arm64/v8"] {
            assert_eq!(platform(text).to_string(), text);
        }
        for text in [
            "",
            "linux",
            "linux/",
            "windows/amd64",
            "linux/a/b/c",
            "linux/AMD64",
            "linux/../x",
        ] {
            assert!(text.parse::<Platform>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_variant_is_taken_only_when_asked_for_or_when_everybody_has_it() {
        let takes = |asked: &str, image: &str| platform(asked).takes(&platform(image));
        assert!(takes("linux/arm64", "linux/arm64/v8") && takes("linux/arm64/v8", "linux/arm64"));
        assert!(
            takes("linux/amd64/v3", "linux/amd64/v3") && !takes("linux/amd64", "linux/amd64/v3")
        );
        assert!(!takes("linux/amd64", "linux/arm64"));
    }
}
