//! The root file system of a sandbox.

use super::{SpecError, invalid};
use crate::ImageRef;
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The root file system inside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Root {
    /// The host's `/usr` and what it needs, read-only.
    Host,
    /// A folder that holds a root file system, read-only.
    Folder(PathBuf),
    /// An image by its name, read-only.
    Image(ImageRef),
}

/// The root that the option `--image` names. A folder must begin with `/` or `.`, so that it is
/// never mistaken for the name of an image.
pub(super) fn root_of(image: Option<&Path>) -> Result<Root, SpecError> {
    let Some(image) = image else {
        return Ok(Root::Host);
    };
    if image.as_os_str().as_bytes().starts_with(b"/")
        || image.as_os_str().as_bytes().starts_with(b".")
    {
        return Ok(Root::Folder(image.to_owned()));
    }
    let text = image.to_str().unwrap_or("\u{fffd}");
    let hint = "write REPOSITORY[:TAG] or HOST/REPOSITORY[:TAG], or begin a folder with / or ./";
    text.parse()
        .map(Root::Image)
        .map_err(|bad: crate::BadImageRef| invalid(bad, hint))
}
