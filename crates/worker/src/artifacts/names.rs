//! Layouts of artifact stores, and which untrusted names are allowed in them.
//!
//! ```text
//! folder  basename(APP)/USER/SESSION/basename(NFKC(NAME))         user:NAME ─▶ …/USER/user/NAME
//! S3      strip(APP)/USER/SESSION/NFKC(NAME)                      user:NAME ─▶ …/USER/user/NAME
//! GCS     APP/USER/SESSION/NAME                                   user:NAME ─▶ …/USER/user/user:NAME
//! ```
//! Agents take the basename of every part. We do that for a namespace, which the operator chooses,
//! and for a file name, which stays with its owner. A user, session or agent with a separator is
//! refused: `a/b` and `c/b` would share a folder, and with keys one user could reach into
//! another's. In a bucket file names with a separator are refused as well: `NAMESPACE/a/b` may be a
//! namespace of its own. No user, session or file may have the name of the tools folder
//! (`tools/sync.rs`): whoever chooses such a name could write tools of this namespace or of one
//! below it.

use super::{ArtifactScope, ArtifactStoreError, Sharing};
use icu_normalizer::ComposingNormalizerBorrowed;
use std::{borrow::Cow, fmt::Write};

/// NAME_MAX of file systems.
const MAX_NAME_BYTES: usize = 255;
/// Longest key of S3 and GCS.
const MAX_KEY_BYTES: usize = 1024;
/// Digits of a version and a separator.
const MAX_VERSION_BYTES: usize = 20;
const USER_PREFIX: &str = "user:";
/// The folder of files that belong to no session.
const USER_FOLDER: &str = "user";
/// The folder of synced tools in a bucket, next to the users of a namespace.
pub(crate) const TOOLS_FOLDER: &str = "str-runtime";
/// Prefix of our own names in a base folder.
pub(super) const RESERVED_PREFIX: &str = ".airlock-";

/// The names of one artifact, unchecked.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArtifactNames<'a> {
    pub(super) sharing: &'a Sharing,
    pub(super) scope: &'a ArtifactScope,
    pub(super) filename: &'a str,
}

impl ArtifactNames<'_> {
    /// The folder of its versions, relative to the base.
    pub(super) fn folder(&self) -> Result<[String; 4], ArtifactStoreError> {
        let app = match self.sharing {
            Sharing::Namespace(namespace) => basename(namespace),
            Sharing::App => &self.scope.app,
        };
        segment("the scope", app)?;
        if app.starts_with(RESERVED_PREFIX) {
            return Err(refused(
                "the scope",
                app,
                "is a name that the store needs itself",
            ));
        }
        let normal = normalize(self.filename)?;
        let (session, name) = match normal.strip_prefix(USER_PREFIX) {
            Some(rest) => (USER_FOLDER, basename(rest)),
            None => (self.session()?, basename(&normal)),
        };
        segment("the file name", name)?;
        Ok([app, self.user()?, session, name].map(str::to_owned))
    }

    /// The key of its versions in S3, without the version.
    pub(super) fn s3(&self) -> Result<String, ArtifactStoreError> {
        let normal = normalize(self.filename)?;
        let (session, name) = match normal.strip_prefix(USER_PREFIX) {
            Some(rest) => (USER_FOLDER, rest),
            None => (self.session()?, &*normal),
        };
        self.key(self.app()?.trim_matches('/'), session, name)
    }

    /// The key of its versions in GCS, without the version.
    pub(super) fn gcs(&self) -> Result<String, ArtifactStoreError> {
        let session = if self.filename.starts_with(USER_PREFIX) {
            USER_FOLDER
        } else {
            self.session()?
        };
        // Some agents strip spaces, others do not.
        if session.trim() != session {
            return Err(refused(
                "the session",
                session,
                "begins or ends with a space",
            ));
        }
        self.key(self.app()?, session, self.filename)
    }

    /// Object metadata, for people to read; truncated to what the store takes.
    pub(super) fn metadata(
        &self,
        version: i64,
    ) -> Result<[(&'static str, String); 4], ArtifactStoreError> {
        Ok([
            (
                "original_filename",
                escape_ascii(&normalize(self.filename)?, 1000),
            ),
            ("user_id", escape_ascii(&self.scope.user, 400)),
            ("session_id", escape_ascii(&self.scope.session, 400)),
            ("version", version.to_string()),
        ])
    }

    fn key(&self, app: &str, session: &str, name: &str) -> Result<String, ArtifactStoreError> {
        segments("the scope", app)?;
        segment("the file name", name)?;
        let user = self.user()?;
        for (what, part) in [
            ("the user", user),
            ("the session", session),
            ("the file name", name),
        ] {
            if part == TOOLS_FOLDER {
                return Err(refused(what, part, "is called like the place of tools"));
            }
        }
        let key = format!("{app}/{user}/{session}/{name}");
        if key.len() + MAX_VERSION_BYTES > MAX_KEY_BYTES {
            Err(refused(
                "the file name",
                name,
                "is too long for the store, with whose it is",
            ))
        } else {
            Ok(key)
        }
    }

    fn app(&self) -> Result<&str, ArtifactStoreError> {
        match self.sharing {
            Sharing::Namespace(namespace) => Ok(namespace),
            Sharing::App => segment("the agent", &self.scope.app),
        }
    }

    fn user(&self) -> Result<&str, ArtifactStoreError> {
        segment("the user", &self.scope.user)
    }

    fn session(&self) -> Result<&str, ArtifactStoreError> {
        segment("the session", &self.scope.session)
    }
}

/// Parses a version number in canonical form: no other digits, signs or leading zeros.
pub(super) fn version_number(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number >= 0 && number.to_string() == text).then_some(number)
}

/// Validates a MIME type for use in a header.
pub(super) fn mime_type(text: &str) -> Result<&str, ArtifactStoreError> {
    if is_mime_type(text) {
        Ok(text)
    } else {
        Err(refused(
            "the MIME type",
            text,
            "is empty, too long or has characters that none has",
        ))
    }
}

/// A MIME type that somebody else stored, or the generic one if it is invalid.
pub(super) fn mime_type_or_any(text: Option<&str>) -> String {
    text.filter(|text| is_mime_type(text))
        .unwrap_or("application/octet-stream")
        .to_owned()
}

fn is_mime_type(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len())
        && text.trim() == text
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Quotes an untrusted name for a message: escaped and truncated.
pub(crate) fn shown(text: &str) -> String {
    let mut start: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        start.push('…');
    }
    format!("`{start}`")
}

/// Why a name is not safe as one file name.
pub(crate) fn unsafe_name(text: &str) -> Option<&'static str> {
    match text {
        "" => Some("is empty"),
        "." | ".." => Some("is no name"),
        text if text.len() > MAX_NAME_BYTES => Some("is longer than 255 bytes"),
        text if text.contains('/') => Some("has a `/` in it"),
        text if text.chars().any(char::is_control) => Some("has control characters in it"),
        _ => None,
    }
}

fn segment<'a>(what: &str, text: &'a str) -> Result<&'a str, ArtifactStoreError> {
    match unsafe_name(text) {
        Some(why) => Err(refused(what, text, why)),
        None => Ok(text),
    }
}

fn segments(what: &str, text: &str) -> Result<(), ArtifactStoreError> {
    match text.split('/').find_map(unsafe_name) {
        Some(why) => Err(refused(what, text, &format!("has a part that {why}"))),
        None => Ok(()),
    }
}

fn refused(what: &str, text: &str, why: &str) -> ArtifactStoreError {
    ArtifactStoreError(format!("{what} {} {why}", shown(text)))
}

/// As `os.path.basename`.
fn basename(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}

/// NFKC, before any check: some characters normalize to `/`, `:` or `..`.
fn normalize(filename: &str) -> Result<Cow<'_, str>, ArtifactStoreError> {
    if filename.len() > MAX_KEY_BYTES {
        return Err(refused("the file name", filename, "is too long"));
    }
    Ok(ComposingNormalizerBorrowed::new_nfkc().normalize(filename))
}

/// As Python's `encode("ascii", "backslashreplace")`, truncated.
fn escape_ascii(text: &str, limit: usize) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        let before = escaped.len();
        let code = u32::from(letter);
        // Writing to a string cannot fail.
        _ = match code {
            0..=0x7f => write!(escaped, "{letter}"),
            0x80..=0xff => write!(escaped, "\\x{code:02x}"),
            0x100..=0xffff => write!(escaped, "\\u{code:04x}"),
            _ => write!(escaped, "\\U{code:08x}"),
        };
        if escaped.len() > limit {
            escaped.truncate(before);
            break;
        }
    }
    escaped
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
