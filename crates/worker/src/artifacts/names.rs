//! The layouts, and what of strangers' names may stand in them.
//!
//! ```text
//! folder  basename(APP)/USER/SESSION/basename(NFKC(NAME))         user:NAME ─▶ …/USER/user/NAME
//! S3      strip(APP)/USER/SESSION/NFKC(NAME)                      user:NAME ─▶ …/USER/user/NAME
//! GCS     APP/USER/SESSION/NAME                                   user:NAME ─▶ …/USER/user/user:NAME
//! ```
//! Agents take the last part of whatever they are given. We do the same with a namespace, which is the operator's, and with
//! the name of a file, which stays with its owner; but a user, a session or an agent with a separator in its name is
//! refused: `a/b` and `c/b` would share a folder, and with keys one user could reach into another's. In a bucket that goes for
//! file names as well: `NAMESPACE/a/b` may be a namespace of its own. And no user, session or file is called like the
//! place of tools there (`tools/sync.rs`), or whoever may name one could write tools, of this namespace or of one beneath it.

use super::{Scope, Sharing, ShelfError};
use icu_normalizer::ComposingNormalizerBorrowed;
use std::{borrow::Cow, fmt::Write};

/// The longest name of a file system, in bytes.
const LONGEST: usize = 255;
/// The longest key of S3 and GCS, in bytes.
const LONGEST_KEY: usize = 1024;
/// A version has at most so many digits, and a separator before them.
const LONGEST_VERSION: usize = 20;
const USERS: &str = "user:";
/// Where files of no session are.
const USERS_FOLDER: &str = "user";
/// What tools in object storage are under, beside the users of a namespace.
pub(crate) const TOOLS: &str = "str-runtime";
/// Names in a base folder that are ours.
pub(super) const OURS: &str = ".airlock-";

/// One file's names, as they came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'a> {
    pub(super) sharing: &'a Sharing,
    pub(super) scope: &'a Scope,
    pub(super) filename: &'a str,
}

impl Names<'_> {
    /// The folder of its versions, beneath the base.
    pub(super) fn folder(&self) -> Result<[String; 4], ShelfError> {
        let app = match self.sharing {
            Sharing::Namespace(namespace) => last(namespace),
            Sharing::App => &self.scope.app,
        };
        segment("the scope", app)?;
        if app.starts_with(OURS) {
            return Err(refused(
                "the scope",
                app,
                "is a name that the store needs itself",
            ));
        }
        let normal = normalized(self.filename)?;
        let (session, name) = match normal.strip_prefix(USERS) {
            Some(rest) => (USERS_FOLDER, last(rest)),
            None => (self.session()?, last(&normal)),
        };
        segment("the file name", name)?;
        Ok([app, self.user()?, session, name].map(str::to_owned))
    }

    /// The key of its versions in S3, without the version.
    pub(super) fn s3(&self) -> Result<String, ShelfError> {
        let normal = normalized(self.filename)?;
        let (session, name) = match normal.strip_prefix(USERS) {
            Some(rest) => (USERS_FOLDER, rest),
            None => (self.session()?, &*normal),
        };
        self.key(self.app()?.trim_matches('/'), session, name)
    }

    /// The key of its versions in GCS, without the version.
    pub(super) fn gcs(&self) -> Result<String, ShelfError> {
        let session = match self.filename.starts_with(USERS) {
            true => USERS_FOLDER,
            false => self.session()?,
        };
        // Some agents strip it, others do not.
        if session.trim() != session {
            return Err(refused(
                "the session",
                session,
                "begins or ends with a space",
            ));
        }
        self.key(self.app()?, session, self.filename)
    }

    /// As metadata of an object: for people, and only where it is not too long for the store.
    pub(super) fn described(
        &self,
        version: i64,
    ) -> Result<[(&'static str, String); 4], ShelfError> {
        Ok([
            (
                "original_filename",
                ascii(&normalized(self.filename)?, 1000),
            ),
            ("user_id", ascii(&self.scope.user, 400)),
            ("session_id", ascii(&self.scope.session, 400)),
            ("version", version.to_string()),
        ])
    }

    fn key(&self, app: &str, session: &str, name: &str) -> Result<String, ShelfError> {
        segments("the scope", app)?;
        segment("the file name", name)?;
        let user = self.user()?;
        for (what, part) in [
            ("the user", user),
            ("the session", session),
            ("the file name", name),
        ] {
            if part == TOOLS {
                return Err(refused(what, part, "is called like the place of tools"));
            }
        }
        let key = format!("{app}/{user}/{session}/{name}");
        match key.len() + LONGEST_VERSION > LONGEST_KEY {
            true => Err(refused(
                "the file name",
                name,
                "is too long for the store, with whose it is",
            )),
            false => Ok(key),
        }
    }

    fn app(&self) -> Result<&str, ShelfError> {
        match self.sharing {
            Sharing::Namespace(namespace) => Ok(namespace),
            Sharing::App => segment("the agent", &self.scope.app),
        }
    }

    fn user(&self) -> Result<&str, ShelfError> {
        segment("the user", &self.scope.user)
    }

    fn session(&self) -> Result<&str, ShelfError> {
        segment("the session", &self.scope.session)
    }
}

/// The number of a version, written as we would: no other digits, signs or zeros.
pub(super) fn version_number(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number >= 0 && number.to_string() == text).then_some(number)
}

/// A MIME type that can be a header.
pub(super) fn mime_type(text: &str) -> Result<&str, ShelfError> {
    match is_mime_type(text) {
        true => Ok(text),
        false => Err(refused(
            "the MIME type",
            text,
            "is empty, too long or has characters that none has",
        )),
    }
}

/// What somebody else wrote down, if it is one.
pub(super) fn mime_type_or_any(text: Option<&str>) -> String {
    text.filter(|text| is_mime_type(text))
        .unwrap_or("application/octet-stream")
        .to_owned()
}

fn is_mime_type(text: &str) -> bool {
    (1..=LONGEST).contains(&text.len())
        && text.trim() == text
        && text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// A stranger's word in a message: quoted, without what would disturb it, and not too much of it.
pub(crate) fn shown(text: &str) -> String {
    let mut start: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        start.push('…');
    }
    format!("`{start}`")
}

/// Why a name cannot be one name of a file system.
pub(crate) fn unsafe_name(text: &str) -> Option<&'static str> {
    match text {
        "" => Some("is empty"),
        "." | ".." => Some("is no name"),
        text if text.len() > LONGEST => Some("is longer than 255 bytes"),
        text if text.contains('/') => Some("has a `/` in it"),
        text if text.chars().any(char::is_control) => Some("has control characters in it"),
        _ => None,
    }
}

fn segment<'a>(what: &str, text: &'a str) -> Result<&'a str, ShelfError> {
    match unsafe_name(text) {
        Some(why) => Err(refused(what, text, why)),
        None => Ok(text),
    }
}

fn segments(what: &str, text: &str) -> Result<(), ShelfError> {
    match text.split('/').find_map(unsafe_name) {
        Some(why) => Err(refused(what, text, &format!("has a part that {why}"))),
        None => Ok(()),
    }
}

fn refused(what: &str, text: &str, why: &str) -> ShelfError {
    ShelfError(format!("{what} {} {why}", shown(text)))
}

/// As `os.path.basename`.
fn last(text: &str) -> &str {
    text.rsplit('/').next().unwrap_or(text)
}

/// Before anything is looked for in it: some characters become `/`, `:` or `..`.
fn normalized(filename: &str) -> Result<Cow<'_, str>, ShelfError> {
    if filename.len() > LONGEST_KEY {
        return Err(refused("the file name", filename, "is too long"));
    }
    Ok(ComposingNormalizerBorrowed::new_nfkc().normalize(filename))
}

/// As Python's `encode("ascii", "backslashreplace")`, at most so long.
fn ascii(text: &str, most: usize) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        let before = escaped.len();
        let code = u32::from(letter);
        // Writing to a string does not fail.
        _ = match code {
            0..=0x7f => write!(escaped, "{letter}"),
            0x80..=0xff => write!(escaped, "\\x{code:02x}"),
            0x100..=0xffff => write!(escaped, "\\u{code:04x}"),
            _ => write!(escaped, "\\U{code:08x}"),
        };
        if escaped.len() > most {
            escaped.truncate(before);
            break;
        }
    }
    escaped
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
