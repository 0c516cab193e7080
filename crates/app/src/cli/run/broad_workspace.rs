//! Folders that are no project: homes and system folders. As a workspace they are shown completely
//! and writable, with keys and start-up files, so that they need `--confirm-workspace`.

use super::super::message::Failure;
use crate::config::ProcessEnv;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const SYSTEM_FOLDERS: [&str; 4] = ["/etc", "/root", "/usr", "/var"];
/// The conventional parent of homes, including those of unlisted accounts.
const HOME_ROOT: &str = "/home";
const PASSWD: &str = "/etc/passwd";
/// User ids of persons. Homes of service accounts may be what they serve.
const PERSON_UIDS: std::ops::Range<u32> = 1000..65534;

/// Refuses a home, the root, a system folder, or a parent of one.
pub(in crate::cli) fn refuse_broad_workspace(
    workspace: Option<&Path>,
    env: &ProcessEnv,
) -> Result<(), Failure> {
    let Some(workspace) = workspace else {
        return Ok(());
    };
    // Compared by identity: a bind mount or a link may give the same folder another path.
    let identity = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let Some(workspace_id) = identity(workspace) else {
        return Ok(());
    };
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let home = env.home().map(|home| ("your home", real(home)));
    let system = SYSTEM_FOLDERS.map(|path| ("a folder of the system", PathBuf::from(path)));
    // An unreadable list is ignored: accounts come from elsewhere then.
    let accounts = fs::read_to_string(PASSWD).unwrap_or_default();
    let others = homes(&accounts)
        .into_iter()
        .map(|home| ("a home", real(&home)));
    let all_homes = [("the folder of all homes", PathBuf::from(HOME_ROOT))];
    let own = home.into_iter().chain(system);
    for (what, path) in own.chain(all_homes).chain(others) {
        let mut ways = path.ancestors();
        if let Some(way) = ways.find(|way| identity(way) == Some(workspace_id)) {
            let is = if way == path { "is" } else { "holds" };
            return Err(Failure::invalid(
                format!("--workspace `{}` {is} {what}", workspace.display()),
                "give --workspace the folder of one project, or add --confirm-workspace to show all of it to the program",
            ));
        }
    }
    Ok(())
}

/// The homes of persons in `/etc/passwd` (`NAME:PASSWORD:UID:GID:COMMENT:HOME:SHELL`).
fn homes(accounts: &str) -> Vec<PathBuf> {
    let home = |line: &str| {
        let mut fields = line.split(':');
        let uid: u32 = fields.nth(2)?.parse().ok()?;
        let home = PathBuf::from(fields.nth(2)?);
        let is_one = PERSON_UIDS.contains(&uid) && home.is_absolute() && home.parent().is_some();
        is_one.then_some(home)
    };
    accounts.lines().filter_map(home).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_those_of_people() {
        let accounts = "root:x:0:0:root:/root:/bin/bash
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
ann:x:1000:1000:Ann,,,:/home/ann:/bin/bash
ben:x:1001:1001::/srv/people/ben:/bin/sh
top:x:1002:1002::/:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
rubbish
";
        let expected = ["/home/ann", "/srv/people/ben"].map(PathBuf::from);
        assert_eq!(homes(accounts), expected);
    }
}
