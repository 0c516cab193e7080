//! The machine that an image is made for: `linux/ARCHITECTURE[/VARIANT]`.

use std::{fmt, str::FromStr};

/// An operating system, an architecture and perhaps a variant of it, by the names that images use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// `linux` for all that can run here.
    pub os: String,
    /// `amd64`, `arm64`, …
    pub architecture: String,
    /// `v8`, …; none means that nothing special is needed.
    pub variant: Option<String>,
}

/// Why a text names no platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPlatform(String);

impl Platform {
    /// Linux on this machine.
    pub fn of_this_machine() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Platform { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// Whether what is made for `image` is what was asked for. Who asks for no variant gets none that every machine
    /// of the architecture might lack.
    pub fn takes(&self, image: &Platform) -> bool {
        let baseline = match image.architecture.as_str() {
            "amd64" => Some("v1"),
            "arm64" => Some("v8"),
            "arm" => Some("v7"),
            _ => None,
        };
        let variant = match (&self.variant, &image.variant) {
            (_, None) => true,
            (None, Some(its)) => Some(its.as_str()) == baseline,
            (Some(asked), Some(its)) => asked == its,
        };
        self.os == image.os && self.architecture == image.architecture && variant
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Platform {
    type Err = BadPlatform;

    fn from_str(text: &str) -> Result<Self, BadPlatform> {
        let fits = |part: &&str| {
            (1..=32).contains(&part.len())
                && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let parts: Vec<_> = text.split('/').collect();
        match parts.as_slice() {
            ["linux", rest @ ..] if (1..=2).contains(&rest.len()) && rest.iter().all(fits) => Ok(Platform {
                os: "linux".to_owned(),
                architecture: rest[0].to_owned(),
                variant: rest.get(1).map(|variant| (*variant).to_owned()),
            }),
            _ => Err(BadPlatform(text.chars().take(100).collect())),
        }
    }
}

impl fmt::Display for BadPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.escape_debug();
        write!(f, "`{shown}` is not a platform: write linux/amd64, linux/arm64 or linux/ARCHITECTURE/VARIANT")
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
        for text in ["", "linux", "linux/", "windows/amd64", "linux/a/b/c", "linux/AMD64", "linux/../x"] {
            assert!(text.parse::<Platform>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_variant_is_taken_only_when_asked_for_or_when_everybody_has_it() {
        let takes = |asked: &str, image: &str| platform(asked).takes(&platform(image));
        assert!(takes("linux/arm64", "linux/arm64/v8") && takes("linux/arm64/v8", "linux/arm64"));
        assert!(takes("linux/amd64/v3", "linux/amd64/v3") && !takes("linux/amd64", "linux/amd64/v3"));
        assert!(!takes("linux/amd64", "linux/arm64"));
    }
}
