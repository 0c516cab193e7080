//! Resolves the user that an image runs as: a name or a number, looked up in the image's own files
//! with Docker's rules.

use crate::error::{ImageError, shown};
use ::fs::{Dir, Lookup};
use rustix::fs::{Mode, OFlags};
use spec::User;
use std::{
    fs::File,
    io::{self, Read},
};

/// User id in the sandbox where an image names no user, or root.
const DEFAULT_ID: u32 = 1000;
const MAX_TABLE_BYTES: u64 = 4 << 20;

/// A user with all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedUser {
    pub(crate) user: User,
    pub(crate) groups: Vec<u32>,
}

impl ResolvedUser {
    /// Shift of the mode bits that apply to this user, for a file with this owner and group.
    pub(crate) fn class(&self, (uid, gid): (u32, u32)) -> u16 {
        if uid == self.user.uid {
            6
        } else if gid == self.user.gid || self.groups.contains(&gid) {
            3
        } else {
            0
        }
    }
}

/// Resolves `wanted`; `None` if it names no user, or root, which no sandbox grants.
pub(crate) fn resolve(
    root: &Dir,
    wanted: &str,
) -> Result<(ResolvedUser, Option<User>), ImageError> {
    let nobody = ResolvedUser {
        user: User {
            uid: DEFAULT_ID,
            gid: DEFAULT_ID,
        },
        groups: Vec::new(),
    };
    let bad = |why: String| ImageError::User {
        user: shown(wanted.as_bytes()),
        why,
    };
    let (user, group) = match wanted.split_once(':') {
        Some((user, group)) => (user, (!group.is_empty()).then_some(group)),
        None => (wanted, None),
    };
    if matches!(user, "" | "0" | "root") {
        return Ok((nobody, None));
    }
    let table = |path: &str| {
        table(root, path).map_err(|error| bad(format!("its /{path} cannot be read: {error}")))
    };
    let passwd = table("etc/passwd")?;
    let groups = table("etc/group")?;
    let found = find_user(&passwd, user)
        .ok_or_else(|| bad("its /etc/passwd has no such user".to_owned()))?;
    if found.uid == 0 {
        return Ok((nobody, None));
    }
    let (gid, others) = match group {
        Some(group) => {
            let gid = find_group(&groups, group)
                .ok_or_else(|| bad("its /etc/group has no such group".to_owned()))?;
            (gid, Vec::new())
        }
        None => (
            found.gid,
            found
                .name
                .map(|name| groups_of(&groups, name))
                .unwrap_or_default(),
        ),
    };
    if found.uid >= u32::MAX - 1 || gid >= u32::MAX - 1 {
        return Err(bad("ids above 4294967293 are reserved".to_owned()));
    }
    let user = User {
        uid: found.uid,
        gid,
    };
    Ok((
        ResolvedUser {
            user,
            groups: others,
        },
        Some(user),
    ))
}

struct PasswdEntry<'a> {
    uid: u32,
    gid: u32,
    name: Option<&'a [u8]>,
}

/// Looks up a name first, then a number. A number that is not in the table has the group 0, as with
/// Docker.
fn find_user<'a>(passwd: &'a [u8], wanted: &str) -> Option<PasswdEntry<'a>> {
    let number = wanted.parse::<u32>().ok();
    let rows = || rows(passwd).filter_map(|row| Some((row[0], id(row.get(2)?)?, id(row.get(3)?)?)));
    let named = rows().find(|(name, _, _)| *name == wanted.as_bytes());
    let found = named.or_else(|| rows().find(|(_, uid, _)| Some(*uid) == number));
    match found {
        Some((name, uid, gid)) => Some(PasswdEntry {
            uid,
            gid,
            name: Some(name),
        }),
        None => number.map(|uid| PasswdEntry {
            uid,
            gid: 0,
            name: None,
        }),
    }
}

fn find_group(groups: &[u8], wanted: &str) -> Option<u32> {
    let named = rows(groups).find(|row| row[0] == wanted.as_bytes());
    named
        .and_then(|row| id(row.get(2)?))
        .or_else(|| wanted.parse().ok())
}

fn groups_of(groups: &[u8], user: &[u8]) -> Vec<u32> {
    let member = |row: &Vec<&[u8]>| {
        row.get(3)
            .is_some_and(|members| members.split(|byte| *byte == b',').any(|name| name == user))
    };
    rows(groups)
        .filter(member)
        .filter_map(|row| id(row.get(2)?))
        .collect()
}

fn rows(table: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let lines = table.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines
        .filter(|line| !line.is_empty())
        .map(|line| line.split(|byte| *byte == b':').collect())
}

fn id(text: &&[u8]) -> Option<u32> {
    str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Reads a file of the image; empty if it is absent.
fn table(root: &Dir, path: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = match root.open_at(path, flags, Mode::empty(), Lookup::LinksInRoot) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => File::from(file?),
    };
    let facts = file.metadata()?;
    if !facts.is_file() || facts.len() > MAX_TABLE_BYTES {
        return Err(io::Error::other(
            "it is not a regular file, or is longer than 4 MiB",
        ));
    }
    let mut bytes = Vec::new();
    file.take(MAX_TABLE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
