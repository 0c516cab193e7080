//! Files of a workspace that are hidden from its program, and sockets that it must not reach: an
//! empty file or folder is mounted over each, so that they can neither be opened nor changed.

use super::{
    beneath,
    snapshot::WorkspaceSnapshot,
    walk::{self, WalkEntry, WalkStep},
};
use rustix::fs::{FileType, OFlags};
use spec::{HiddenFiles, HideDecision, ProtectedNames};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixDatagram,
    },
    path::{Path, PathBuf},
};

/// Files that one sandbox can have covered.
pub const MAX_HIDDEN: usize = 4096;
/// The part of a file that is searched for a key.
const MAX_KEY_BYTES: u64 = 64 << 10;
/// The first line of any private key has this.
const PRIVATE_KEY: &[u8] = b"PRIVATE KEY-----";
/// The repository of the workspace itself: the program gets a view of it, without credentials.
const OWN_REPOSITORY: &str = ".git";
/// Folders of a repository that have many files and no settings.
const GIT_CONTENTS: [&str; 5] = ["objects", "refs", "logs", "hooks", "lfs"];

/// The files to cover.
pub(super) struct HiddenFileCover<'a> {
    hide: &'a HiddenFiles,
    /// Relative to the workspace.
    pub(super) found: Vec<PathBuf>,
    /// Sockets of any owner.
    sockets: Vec<PathBuf>,
}

impl<'a> HiddenFileCover<'a> {
    pub(super) fn new(hide: &'a HiddenFiles) -> HiddenFileCover<'a> {
        HiddenFileCover {
            hide,
            found: Vec::new(),
            sockets: Vec::new(),
        }
    }

    /// Scans a workspace for hidden files alone.
    pub(super) fn look(&mut self, workspace: BorrowedFd<'_>) -> io::Result<()> {
        self.look_below(workspace, Path::new(""))
    }

    /// Scans the folders that are protected as a whole.
    pub(super) fn look_into(
        &mut self,
        workspace: BorrowedFd<'_>,
        start: &WorkspaceSnapshot,
    ) -> io::Result<()> {
        for path in start.settings_folders() {
            if let Ok(folder) = beneath::open_folder(workspace, path) {
                self.look_below(folder.as_fd(), path)?;
            }
        }
        for path in start.repositories() {
            if path == Path::new(OWN_REPOSITORY) {
                continue;
            }
            if let Ok(folder) = beneath::open_folder(workspace, path) {
                self.look_into_repository(folder.as_fd(), path)?;
            }
        }
        Ok(())
    }

    fn look_into_repository(&mut self, folder: BorrowedFd<'_>, above: &Path) -> io::Result<()> {
        walk::walk(folder, |visit| {
            if GIT_CONTENTS.iter().any(|name| visit.name == *name) {
                return Ok(WalkStep::Pass);
            }
            let path = above.join(visit.path);
            let is_settings = self.hide.decide(&path) == HideDecision::IfCredentials;
            if is_settings || visit.kind == FileType::Socket {
                self.hides(visit, &path)?;
            }
            Ok(WalkStep::Enter)
        })
        .map(drop)
    }

    fn look_below(&mut self, folder: BorrowedFd<'_>, above: &Path) -> io::Result<()> {
        walk::walk(folder, |visit| {
            let hides = self.hides(visit, &above.join(visit.path))?;
            Ok(if hides {
                WalkStep::Pass
            } else {
                WalkStep::Enter
            })
        })
        .map(drop)
    }

    /// Whether the visited file, which has this path in the workspace, is hidden.
    pub(super) fn hides(&mut self, visit: &WalkEntry<'_>, path: &Path) -> io::Result<bool> {
        let is_file = visit.kind == FileType::RegularFile;
        let hides = match self.hide.decide(path) {
            HideDecision::Yes => true,
            HideDecision::No => false,
            // A file that cannot be read may be a key.
            HideDecision::IfPrivateKey => {
                is_file && holds_key(visit.folder, visit.name).unwrap_or(true)
            }
            HideDecision::IfCredentials => {
                is_file && holds_credentials(visit.folder, visit.name).unwrap_or(true)
            }
        };
        let is_socket = visit.kind == FileType::Socket;
        if !hides && !is_socket {
            return Ok(false);
        }
        if self.found.len() + self.sockets.len() >= MAX_HIDDEN {
            let message = format!(
                "it has more than {MAX_HIDDEN} files that are to be hidden; `--hide none` hides none but your own and \
                 sockets"
            );
            return Err(io::Error::other(message));
        }
        if hides {
            self.found.push(path.to_owned())
        } else {
            self.sockets.push(path.to_owned())
        }
        Ok(hides)
    }

    /// The sockets that a process listens on, except allowed ones. A socket without a listener
    /// leads nowhere.
    pub(super) fn reachable_sockets(
        &self,
        workspace: BorrowedFd<'_>,
        names: &ProtectedNames,
    ) -> Vec<PathBuf> {
        let sockets = self.sockets.iter().filter(|path| !names.allows(path));
        let sockets = sockets.filter(|path| is_bound(workspace, path));
        sockets.cloned().collect()
    }
}

/// Whether a process listens on a socket; an unclear answer counts as yes. The kernel compares
/// socket types before it connects, so a listener is not disturbed.
fn is_bound(workspace: BorrowedFd<'_>, path: &Path) -> bool {
    let connected = beneath::open(workspace, path, OFlags::PATH).and_then(|socket| {
        // Its path may be too long for a socket address.
        UnixDatagram::unbound()?.connect(beneath::link_of(&socket))
    });
    !connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Whether a file is a private key, or has one near its beginning.
pub fn holds_key(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    let bytes = read_beginning(folder, name)?;
    Ok(bytes
        .windows(PRIVATE_KEY.len())
        .any(|window| window == PRIVATE_KEY))
}

/// Whether git settings hold a credential: a user or password in a URL, headers, credential
/// sections.
pub fn holds_credentials(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<bool> {
    let bytes = read_beginning(folder, name)?;
    let is_whole = (bytes.len() as u64) < MAX_KEY_BYTES;
    let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    Ok(!is_whole || text.lines().any(is_credential))
}

/// One line of settings, in lower case.
fn is_credential(line: &str) -> bool {
    let line = line.trim_start();
    let key = line.split(['=', ']', '"']).next().unwrap_or(line);
    let words = ["[credential", "extraheader", "token", "pass", "secret"];
    words.iter().any(|word| key.contains(word)) || line.split("://").skip(1).any(has_userinfo)
}

/// Whether the text after `://` names a user. `git@` names a service, and is no secret.
fn has_userinfo(rest: &str) -> bool {
    let end = rest.find(['/', '"', ' ', '\t']).unwrap_or(rest.len());
    let user = rest[..end].rsplit_once('@').map(|(user, _)| user);
    user.is_some_and(|user| user != "git")
}

fn read_beginning(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = beneath::open(folder, Path::new(name), flags)?;
    let mut bytes = Vec::new();
    File::from(file)
        .take(MAX_KEY_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_with_a_secret_are_told_from_those_without() {
        for line in [
            "\turl = https://x-access-token:abc@github.com/a/b",
            "url = https://abc@dev.example.com/a",
            "[url \"https://abc:x@host/\"]",
            "extraHeader = AUTHORIZATION: basic abc",
            "http.https://host/.extraheader = x",
            "[credential \"https://host\"]",
            "[credential]",
            "\ttoken = abc",
            "smtpPass = abc",
        ] {
            assert!(is_credential(&line.to_ascii_lowercase()), "{line}");
        }
        for line in [
            "url = ssh://git@github.com/a/b",
            "url = git@github.com:a/b",
            "url = https://github.com/a/b@c",
            "[remote \"token\"]",
            "\tmerge = refs/heads/token",
            "email = a@b",
        ] {
            assert!(!is_credential(&line.to_ascii_lowercase()), "{line}");
        }
    }
}
