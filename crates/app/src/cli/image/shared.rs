//! What the subcommands share: the store, names from the command line, and failures in words.

use crate::{
    cli::{Global, message::Failure},
    config::Surroundings,
};
use image::{ImageError, ImageStore};
use spec::{ErrorCode, ImageRef};
use std::error::Error;

/// Where the images lie in the state folder.
pub(super) const FOLDER: &str = "images";

/// The store of the configured state folder.
pub(super) fn open(global: &Global, surroundings: &Surroundings) -> Result<ImageStore, Failure> {
    let config = global.configure(surroundings)?;
    Ok(ImageStore::open(config.state.join(FOLDER))?)
}

/// A name as somebody wrote it.
pub(super) fn reference(text: &str) -> Result<ImageRef, Failure> {
    let hint =
        "write NAME, NAME:TAG or NAME@sha256:DIGEST; `airlock image list` shows those there are";
    text.parse::<ImageRef>()
        .map_err(|bad| Failure::invalid(bad.to_string(), hint))
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        let code = match &error {
            ImageError::NotFound { .. } => ErrorCode::ImageMissing,
            ImageError::Store { .. } | ImageError::Write { .. } => ErrorCode::Internal,
            ImageError::Read { .. }
            | ImageError::Unnamed
            | ImageError::Several { .. }
            | ImageError::InUse(_) => ErrorCode::InvalidSpec,
            ImageError::Malformed { .. }
            | ImageError::Tar { .. }
            | ImageError::Digest { .. }
            | ImageError::Missing(_)
            | ImageError::Unsupported { .. }
            | ImageError::Platform { .. }
            | ImageError::Limit { .. }
            | ImageError::Entry { .. }
            | ImageError::User { .. } => ErrorCode::ImageRefused,
        };
        let (mut message, mut cause) = (error.to_string(), error.source());
        while let Some(next) = cause {
            message.push_str(&format!(": {next}"));
            cause = next.source();
        }
        Failure {
            code,
            message,
            hint: error.hint(),
        }
    }
}

/// A number of bytes for people.
pub(in crate::cli) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let unit = (0..units.len())
        .rev()
        .find(|unit| bytes >> (10 * unit) > 0)
        .unwrap_or(0);
    match unit {
        0 => format!("{bytes} B"),
        _ => {
            // In tenths, by whole numbers: rounding up to the next unit would be a lie of its own.
            let tenths = (bytes * 10) >> (10 * unit);
            format!("{}.{} {}", tenths / 10, tenths % 10, units[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_600_000, "1.5 MiB"),
            (3 << 30, "3.0 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_failure_has_its_causes_and_what_to_do() {
        let missing = ImageError::NotFound {
            name: "a:1".into(),
            suggestions: vec!["a:2".into()],
        };
        let told = Failure::from(missing);
        assert_eq!(told.code, ErrorCode::ImageMissing);
        assert_eq!(told.hint, "did you mean `a:2`?");
        let source = std::io::Error::other("disk full");
        let told = Failure::from(ImageError::Store {
            what: "write the image".into(),
            source,
        });
        assert_eq!(told.message, "cannot write the image: disk full");
    }
}
