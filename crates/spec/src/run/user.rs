//! The user inside a sandbox, and the size of its terminal.

use super::{SpecError, invalid};
use std::str::FromStr;

/// The user and group id inside.
pub const DEFAULT_ID: u32 = 1000;

/// User and group inside, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        let number = |part: &str| part.parse::<u32>().ok();
        match (number(uid), number(gid)) {
            (Some(uid), Some(gid)) => Ok(User { uid, gid }),
            _ => Err(format!(
                "`{}` is not a user: write UID or UID:GID, in numbers",
                text.escape_debug()
            )),
        }
    }
}

pub(super) fn check_user(user: Option<User>) -> Result<User, SpecError> {
    let user = user.unwrap_or(User {
        uid: DEFAULT_ID,
        gid: DEFAULT_ID,
    });
    // The kernel takes the id of all ones for "unchanged", and the one below it for the user
    // `nobody` of 16-bit systems.
    if user.uid >= u32::MAX - 1 || user.gid >= u32::MAX - 1 {
        return Err(invalid(
            "this user id cannot be used",
            "choose one below 4294967294",
        ));
    }
    Ok(user)
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}
