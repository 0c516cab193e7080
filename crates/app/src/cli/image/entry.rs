//! What the commands about allowed images share: how an entry is written, who is asking, and how errors are told.

use crate::{cli::message::Failure, config::Config};
use rustix::process::getuid;
use spec::{Digest, ErrorCode, ImagePattern, ImageRule, Who};
use std::{
    fs::File,
    io::{self, Read},
};
use store::{AllowedImages, AllowedImagesError, DatabaseError};

/// Where names of users are looked up; those that a directory service knows have numbers only.
const USERS: &str = "/etc/passwd";
const LONGEST_USERS: u64 = 4 << 20;

/// Said where a list exists that nobody looks at.
pub(super) const POLICY_IS_OPEN: &str = "every image may be used: images.policy is \"open\" (docs/configuration.md shows how to change it)";

/// `PATTERN[@DIGEST]`, with the digest of an option.
pub(super) fn parse(
    text: &str,
    option: Option<&Digest>,
) -> Result<(ImagePattern, Option<Digest>), Failure> {
    let hint =
        "write REPOSITORY, REPOSITORY:TAG or PATH/*, and a pin as @sha256:… or with --digest";
    let (pattern, written) = match text.split_once('@') {
        Some((pattern, digest)) => (
            pattern,
            Some(digest_of(digest).map_err(|why| Failure::invalid(why, hint))?),
        ),
        None => (text, None),
    };
    let pin = match (written, option) {
        (Some(written), Some(option)) if written != *option => {
            let message = format!("two digests for `{pattern}`: {written} and {option}");
            return Err(Failure::invalid(message, "give one of them"));
        }
        (written, option) => written.or_else(|| option.cloned()),
    };
    let pattern = pattern
        .parse::<ImagePattern>()
        .map_err(|bad| Failure::invalid(bad.to_string(), hint))?;
    Ok((pattern, pin))
}

/// An entry as it is written.
pub(super) fn name(pattern: &ImagePattern, pin: Option<&Digest>) -> String {
    match pin {
        Some(pin) => format!("{pattern}@{pin}"),
        None => pattern.to_string(),
    }
}

/// For options that take a digest.
pub(super) fn digest_of(text: &str) -> Result<Digest, String> {
    let bad = || {
        format!(
            "`{}` is not `sha256:` and 64 hexadecimal digits",
            text.escape_debug()
        )
    };
    Digest::new(text).ok_or_else(bad)
}

/// The list of the configured state folder.
pub(super) fn open(config: &Config) -> Result<AllowedImages, Failure> {
    Ok(AllowedImages::open(&config.state)?)
}

/// Whether nobody looks at the list.
pub(super) fn is_open(config: &Config) -> bool {
    config.policy.images.rule == ImageRule::Open
}

/// Whoever started this command.
pub(super) fn who() -> Who {
    let uid = getuid().as_raw();
    // Without a name he is known by his number.
    let name = users().ok().and_then(|users| name_in(&users, uid));
    Who { uid, name }
}

fn users() -> io::Result<String> {
    let mut text = String::new();
    File::open(USERS)?
        .take(LONGEST_USERS)
        .read_to_string(&mut text)?;
    Ok(text)
}

fn name_in(users: &str, uid: u32) -> Option<String> {
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (!name.is_empty() && number.parse() == Ok(uid)).then(|| name.to_owned())
    };
    users.lines().find_map(of_line)
}

impl From<AllowedImagesError> for Failure {
    fn from(error: AllowedImagesError) -> Self {
        let code = match &error {
            AllowedImagesError::Database(_) | AllowedImagesError::Unreadable { .. } => {
                ErrorCode::Internal
            }
            AllowedImagesError::NotPermitted { .. } => ErrorCode::PolicyDenied,
            AllowedImagesError::Entry { .. } | AllowedImagesError::Missing { .. } => {
                ErrorCode::InvalidSpec
            }
        };
        Failure {
            code,
            message: error.to_string(),
            hint: error.hint().to_owned(),
        }
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        AllowedImagesError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn a_pin_is_written_behind_the_name_or_given_as_an_option() {
        let pin = Digest::new(A);
        let written = |text: &str, option: Option<&Digest>| {
            parse(text, option)
                .map(|(pattern, pin)| (pattern.to_string(), pin))
                .map_err(|failure| failure.message)
        };
        let name = "docker.io/library/python:3.12".to_owned();
        assert_eq!(written("python:3.12", None), Ok((name.clone(), None)));
        for (text, option) in [
            (format!("python:3.12@{A}"), None),
            ("python:3.12".into(), pin.as_ref()),
        ] {
            assert_eq!(written(&text, option), Ok((name.clone(), pin.clone())));
        }
        assert_eq!(
            written(&format!("python:3.12@{A}"), pin.as_ref()),
            Ok((name, pin))
        );
        let other = Digest::new(&A.replace("aaaa", "bbbb"));
        assert!(
            written(&format!("python@{A}"), other.as_ref())
                .unwrap_err()
                .starts_with("two digests for `python`")
        );
        assert!(
            written("python@md5:0", None)
                .unwrap_err()
                .starts_with("`md5:0` is not `sha256:`")
        );
        assert!(written("py*", None).is_err());
    }

    #[test]
    fn a_user_is_found_by_his_whole_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\n:x:7::\nalice:x:1000:1000::/:\nbob:x:100:1::/:\n";
        assert_eq!(name_in(users, 1000).as_deref(), Some("alice"));
        assert_eq!(name_in(users, 100).as_deref(), Some("bob"));
        assert_eq!((name_in(users, 7), name_in(users, 10)), (None, None));
    }
}
