//! Helpers of the image commands: the store, names from the command line, errors.

use crate::{
    cli::{Global, message::Failure},
    config::ProcessEnv,
};
use image::{ImageError, ImageStore};
use spec::{ErrorCode, ImageRef};
use std::error::Error;

/// The images' folder in the state folder.
pub(super) const FOLDER: &str = "images";

/// Opens the store in the configured state folder.
pub(super) fn open(global: &Global, env: &ProcessEnv) -> Result<ImageStore, Failure> {
    let config = global.configure(env)?;
    Ok(ImageStore::open(config.state.join(FOLDER))?)
}

/// Parses an image name.
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
        let mut message = error.to_string();
        let mut cause = error.source();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_its_causes_and_what_to_do() {
        let missing = ImageError::NotFound {
            name: "a:1".into(),
            suggestions: vec!["a:2".into()],
        };
        let failure = Failure::from(missing);
        assert_eq!(failure.code, ErrorCode::ImageMissing);
        assert_eq!(failure.hint, "did you mean `a:2`?");
        let source = std::io::Error::other("disk full");
        let failure = Failure::from(ImageError::Store {
            what: "write the image".into(),
            source,
        });
        assert_eq!(failure.message, "cannot write the image: disk full");
    }
}
