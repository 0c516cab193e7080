//! Unix sockets of the host in folders that a program is shown. A path socket knows neither network namespaces nor read-only
//! mounts, and Landlock has no right for it yet: whoever sees the path can connect. So each is named in the result.

use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

/// How many are named.
const MOST_NAMED: usize = 4;
/// `__SO_ACCEPTCON`: it listens.
const LISTENS: u64 = 1 << 16;
/// `SOCK_DGRAM`: whoever knows the path can send to it.
const DATAGRAM: u64 = 2;

/// What to say of sockets below these folders, each with the option that shows it.
pub(crate) fn notes(shown: &[(&'static str, &Path)]) -> Vec<String> {
    if shown.is_empty() {
        return Vec::new();
    }
    // Where the kernel lists none, there is nothing to say.
    let listed = fs::read("/proc/net/unix").unwrap_or_default();
    let sockets = reachable(&String::from_utf8_lossy(&listed));
    let mut found: Vec<(&str, PathBuf)> = Vec::new();
    for (option, folder) in shown {
        let Ok(real) = fs::canonicalize(folder) else {
            continue;
        };
        let below = sockets.iter().filter(|socket| socket.starts_with(&real));
        found.extend(
            below
                .filter(|socket| is_socket(socket))
                .map(|it| (*option, it.clone())),
        );
    }
    let (count, rest) = (found.len(), found.len().saturating_sub(MOST_NAMED));
    let note = |(option, socket): (&str, PathBuf)| {
        format!(
            "{option} shows the socket `{}`: the program can talk to whoever listens there, whatever its network is",
            socket.display()
        )
    };
    let mut notes: Vec<_> = found.into_iter().take(MOST_NAMED).map(note).collect();
    if rest > 0 {
        notes.push(format!("{rest} more of {count} such sockets are not named"));
    }
    notes
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Absolute paths of sockets that take connections or messages.
fn reachable(listed: &str) -> Vec<PathBuf> {
    let mut paths: Vec<_> = listed.lines().filter_map(path_of).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// `Num RefCount Protocol Flags Type St Inode Path`, the numbers in hexadecimal.
fn path_of(line: &str) -> Option<PathBuf> {
    let mut rest = line;
    let mut fields = [""; 7];
    for field in &mut fields {
        // The number of the inode is padded.
        (*field, rest) = rest.trim_start().split_once(' ')?;
    }
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (flags, kind) = (number(fields[3])?, number(fields[4])?);
    let reachable = flags & LISTENS != 0 || kind == DATAGRAM;
    (reachable && rest.starts_with('/')).then(|| PathBuf::from(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_with_a_path_that_listen_or_take_messages_are_found() {
        let listed = "Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 20312 /run/a b.sock
0000000000000000: 00000003 00000000 00000000 0001 03 20313 /run/connected
0000000000000000: 00000002 00000000 00000000 0002 01 20314 /run/log
0000000000000000: 00000002 00000000 00010000 0001 01 20315 @abstract
0000000000000000: 00000003 00000000 00000000 0001 03 20316
";
        let expected = ["/run/a b.sock", "/run/log"].map(PathBuf::from);
        assert_eq!(reachable(listed), expected);
    }
}
