//! The user of the program: a name, a uid, or either with a group after a colon, looked up in the
//! image's own `/etc/passwd` and `/etc/group`. The C library's lookup does not work in a static
//! program.

use super::EntryError;
use std::{fs::File, io::Read, os::unix::fs::OpenOptionsExt};

const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_GROUPS: usize = 1024;
const MAX_NAME_BYTES: usize = 256;
const ROOT: u32 = 0;

/// A user, with the values that the kernel and the program's variables need.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramUser {
    /// The uid, never 0 unless root was named.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// All groups, the primary one first.
    pub groups: Vec<u32>,
    /// For `USER` and `LOGNAME`.
    pub name: String,
    /// For `HOME`, if there is one.
    pub home: Option<Vec<u8>>,
    /// For `SHELL`, if there is one.
    pub shell: Option<Vec<u8>>,
}

/// A line of `/etc/passwd`.
#[derive(Debug)]
struct Account<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: Option<&'a [u8]>,
    shell: Option<&'a [u8]>,
}

/// An id in decimal digits. The largest number is no id: to the kernel it means "unchanged".
fn id(text: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(text).ok()?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|id| plain && *id != u32::MAX)
}

fn lines(file: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    file.split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b':').collect())
}

fn account<'a>(fields: &[&'a [u8]]) -> Option<Account<'a>> {
    let [name, _, uid, gid, rest @ ..] = fields else {
        return None;
    };
    let field = |place: usize| {
        rest.get(place)
            .copied()
            .filter(|text| text.first() == Some(&b'/'))
    };
    Some(Account {
        name,
        uid: id(uid)?,
        gid: id(gid)?,
        home: field(1),
        shell: field(2),
    })
}

/// The first account of a name or number. A malformed line of that name is an error, not another
/// user.
fn find<'a>(passwd: &'a [u8], wanted: &str) -> Result<Option<Account<'a>>, EntryError> {
    let number = id(wanted.as_bytes());
    for fields in lines(passwd) {
        let named = number.is_none() && fields.first() == Some(&wanted.as_bytes());
        match account(&fields) {
            Some(found) if named || number == Some(found.uid) => return Ok(Some(found)),
            None if named => {
                return Err(EntryError::new(format!(
                    "the line of `{wanted}` in /etc/passwd cannot be read"
                )));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn group_number(group: &[u8], wanted: &str) -> Result<u32, EntryError> {
    if let Some(number) = id(wanted.as_bytes()) {
        return Ok(number);
    }
    let mut named = lines(group).filter(|fields| fields.first() == Some(&wanted.as_bytes()));
    let number = named.next().and_then(|fields| id(fields.get(2)?));
    number.ok_or_else(|| {
        EntryError::new(format!(
            "AGENT_USER names a group that /etc/group does not: `{wanted}`"
        ))
    })
}

/// The groups that list this user as a member.
fn memberships(group: &[u8], user: &[u8]) -> Vec<u32> {
    let is_member = |fields: &Vec<&[u8]>| {
        fields.get(3).is_some_and(|members| {
            members
                .split(|byte| *byte == b',')
                .any(|member| member == user)
        })
    };
    lines(group)
        .filter(is_member)
        .filter_map(|fields| id(fields[2]))
        .collect()
}

fn well_formed(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_NAME_BYTES
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Looks up `NAME`, `UID`, `NAME:GROUP` or `UID:GID`. A named group is the only group.
pub fn resolve(wanted: &str, passwd: &[u8], group: &[u8]) -> Result<ProgramUser, EntryError> {
    let (user, its_group) = match wanted.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (wanted, None),
    };
    if !well_formed(user)
        || its_group.is_some_and(|group| !well_formed(group) || group.contains(':'))
    {
        return Err(EntryError::new(
            "AGENT_USER must be a name, UID, NAME:GROUP or UID:GID",
        ));
    }
    let found = find(passwd, user)?;
    let uid = match (&found, id(user.as_bytes())) {
        (Some(account), _) => account.uid,
        (None, Some(uid)) => uid,
        (None, None) => return Err(unknown(user)),
    };
    if uid == ROOT && user != "root" && id(user.as_bytes()) != Some(ROOT) {
        return Err(EntryError::new(format!(
            "`{user}` is root under another name (uid 0 in /etc/passwd); root must be asked for: AGENT_USER=root"
        )));
    }
    let name = found
        .as_ref()
        .map_or_else(|| user.as_bytes(), |account| account.name);
    let (gid, groups) = match its_group {
        Some(named) => group_number(group, named).map(|gid| (gid, vec![gid]))?,
        None => {
            // A uid without an account gets a group of its own, not root's.
            let gid = found.as_ref().map_or(uid, |account| account.gid);
            (gid, [vec![gid], memberships(group, name)].concat())
        }
    };
    Ok(ProgramUser {
        uid,
        gid,
        groups: each_once(groups)?,
        name: String::from_utf8_lossy(name).into_owned(),
        home: found
            .as_ref()
            .and_then(|account| account.home)
            .map(<[u8]>::to_vec),
        shell: found
            .as_ref()
            .and_then(|account| account.shell)
            .map(<[u8]>::to_vec),
    })
}

fn unknown(user: &str) -> EntryError {
    EntryError::new(format!(
        "there is no user `{user}` in /etc/passwd; add him to the image, or set AGENT_USER to a UID or UID:GID"
    ))
}

fn each_once(groups: Vec<u32>) -> Result<Vec<u32>, EntryError> {
    let mut once: Vec<u32> = Vec::new();
    for group in groups {
        if !once.contains(&group) {
            once.push(group);
        }
        if once.len() > MAX_GROUPS {
            return Err(EntryError::new(format!(
                "the user is in more than {MAX_GROUPS} groups"
            )));
        }
    }
    Ok(once)
}

/// Reads one of the two files; an absent one is empty.
pub(super) fn read(path: &str) -> Result<Vec<u8>, EntryError> {
    let failed = |error: std::io::Error| EntryError::new(format!("cannot read {path}: {error}"));
    // A pipe in its place must not block.
    let file = match File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
    {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(EntryError::new(format!("{path} is not a file")));
    }
    let mut content = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(failed)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        Err(EntryError::new(format!("{path} is larger than 1 MiB")))
    } else {
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1001:A:/home/agent:/bin/bash\n\
        # a comment\nshort:x:7\ntoor:x:0:0::/:\nbad:x:one:1::/:\nplain:x:8:9\nagent:x:5:5::/other:\n";
    const GROUP: &[u8] = b"root:x:0:\nagent:x:1001:\naudio:x:29:other,agent\nvideo:x:44:agents\n\
        tools:x:2000:agent\nagain:x:29:agent\nbroken:x:nine:agent\n";

    fn of(wanted: &str) -> Result<ProgramUser, EntryError> {
        resolve(wanted, PASSWD, GROUP)
    }

    #[test]
    fn a_name_brings_exactly_its_groups_home_and_shell() {
        let agent = ProgramUser {
            uid: 1000,
            gid: 1001,
            groups: vec![1001, 29, 2000],
            name: "agent".into(),
            home: Some(b"/home/agent".to_vec()),
            shell: Some(b"/bin/bash".to_vec()),
        };
        assert_eq!(of("agent").unwrap(), agent);
        assert_eq!(
            of("1000").unwrap(),
            agent,
            "a number that has an account is that user"
        );
        assert_eq!(
            of("1000:50").unwrap(),
            ProgramUser {
                gid: 50,
                groups: vec![50],
                ..agent.clone()
            }
        );
        assert_eq!(
            of("agent:tools").unwrap(),
            ProgramUser {
                gid: 2000,
                groups: vec![2000],
                ..agent
            }
        );
    }

    #[test]
    fn a_number_without_an_account_stands_for_itself() {
        let nobody = of("4242").unwrap();
        assert_eq!(
            (nobody.uid, nobody.gid, nobody.groups, nobody.home),
            (4242, 4242, vec![4242], None)
        );
        assert_eq!(resolve("4242:7", b"", b"").unwrap().gid, 7);
    }

    #[test]
    fn root_is_root_only_by_its_own_name() {
        assert_eq!(of("root").unwrap().uid, 0);
        assert_eq!(of("0").unwrap().uid, 0);
        assert!(
            of("toor")
                .unwrap_err()
                .0
                .contains("root under another name")
        );
    }

    #[test]
    fn what_is_unknown_or_malformed_is_refused() {
        for wrong in [
            "nobody",
            "",
            ":",
            "agent:",
            ":1",
            "1000:x",
            "1:2:3",
            "bad",
            "short",
            "-1",
            "+1",
            "4294967295",
            "99999999999",
            "a b",
            "agent\n",
            "#",
        ] {
            assert!(of(wrong).is_err(), "{wrong:?}: {:?}", of(wrong));
        }
        assert!(of(&"9".repeat(MAX_NAME_BYTES + 1)).is_err());
    }

    proptest! {
        #[test]
        fn nobody_becomes_root_by_what_the_files_say(
            wanted in "[a-z0-9:]{1,12}",
            passwd in proptest::collection::vec("[a-z]{1,2}:x:[01]{1,2}:[01]{1,2}::/:", 0..8),
        ) {
            let passwd = passwd.join("\n");
            if let Ok(identity) = resolve(&wanted, passwd.as_bytes(), GROUP) {
                let asked = wanted.split(':').next().unwrap();
                let number = asked.bytes().all(|byte| byte == b'0');
                prop_assert!(identity.uid != 0 || asked == "root" || number, "{:?}", identity);
                prop_assert!(identity.groups.first() == Some(&identity.gid));
            }
        }
    }
}
