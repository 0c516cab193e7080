//! Helpers of the commands for allowed images: parsing of entries, the current user, errors.

use crate::{cli::message::Failure, config::Config};
use rustix::process::getuid;
use spec::{Digest, ErrorCode, ImagePattern, ImageRule, LocalUser};
use std::{
    fs::File,
    io::{self, Read},
};
use store::{AllowedImages, AllowedImagesError, DatabaseError};

/// The list of users. Users of a directory service are not in it and are known by number only.
const PASSWD: &str = "/etc/passwd";
const MAX_PASSWD_BYTES: u64 = 4 << 20;

/// The note of a list that is not enforced.
pub(super) const POLICY_IS_OPEN: &str = "every image may be used: images.policy is \"open\" (docs/configuration.md shows how to change it)";

/// Parses `PATTERN[@DIGEST]`, or takes the digest from the option.
pub(super) fn parse(
    text: &str,
    option: Option<&Digest>,
) -> Result<(ImagePattern, Option<Digest>), Failure> {
    let hint =
        "write REPOSITORY, REPOSITORY:TAG or PATH/*, and a pin as @sha256:… or with --digest";
    let (pattern, written) = match text.split_once('@') {
        Some((pattern, digest)) => (
            pattern,
            Some(parse_digest(digest).map_err(|why| Failure::invalid(why, hint))?),
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

/// An entry as text.
pub(super) fn entry_name(pattern: &ImagePattern, pin: Option<&Digest>) -> String {
    match pin {
        Some(pin) => format!("{pattern}@{pin}"),
        None => pattern.to_string(),
    }
}

/// Parses a digest, for options.
pub(super) fn parse_digest(text: &str) -> Result<Digest, String> {
    let bad = || {
        format!(
            "`{}` is not `sha256:` and 64 hexadecimal digits",
            text.escape_debug()
        )
    };
    Digest::new(text).ok_or_else(bad)
}

/// Opens the list in the configured state folder.
pub(super) fn open(config: &Config) -> Result<AllowedImages, Failure> {
    Ok(AllowedImages::open(&config.state)?)
}

/// Whether the policy ignores the list.
pub(super) fn is_policy_open(config: &Config) -> bool {
    config.policy.images.rule == ImageRule::Open
}

/// The user who started this command.
pub(super) fn current_user() -> LocalUser {
    let uid = getuid().as_raw();
    // A user without a name is identified by number.
    let name = passwd().ok().and_then(|passwd| user_name(&passwd, uid));
    LocalUser { uid, name }
}

fn passwd() -> io::Result<String> {
    let mut text = String::new();
    File::open(PASSWD)?
        .take(MAX_PASSWD_BYTES)
        .read_to_string(&mut text)?;
    Ok(text)
}

fn user_name(passwd: &str, uid: u32) -> Option<String> {
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number = fields.nth(1)?;
        (!name.is_empty() && number.parse() == Ok(uid)).then(|| name.to_owned())
    };
    passwd.lines().find_map(of_line)
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
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\n:x:7::\nalice:x:1000:1000::/:\nbob:x:100:1::/:\n";
        assert_eq!(user_name(passwd, 1000).as_deref(), Some("alice"));
        assert_eq!(user_name(passwd, 100).as_deref(), Some("bob"));
        assert_eq!((user_name(passwd, 7), user_name(passwd, 10)), (None, None));
    }
}
