//! Finds Unix sockets of the host in folders that a program sees. Network namespaces and read-only
//! mounts do not restrict path sockets, and Landlock of most kernels has no right for them: a
//! program that sees the path can connect. In a workspace they are covered at the start
//! (`sandbox::native::protect`); of other folders each is named in the result.

use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

/// The number of sockets that are named.
const MAX_NAMED: usize = 4;
/// `__SO_ACCEPTCON`: the socket listens.
const LISTENING: u64 = 1 << 16;
/// `SOCK_DGRAM`: a process that knows the path can send to it.
const DATAGRAM: u64 = 2;

/// The notes for sockets below these folders, each folder with its option.
pub(crate) fn notes(shown: &[(&'static str, &Path)]) -> Vec<String> {
    if shown.is_empty() {
        return Vec::new();
    }
    // If the list cannot be read, there are no notes.
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
    let count = found.len();
    let rest = found.len().saturating_sub(MAX_NAMED);
    let note = |(option, socket): (&str, PathBuf)| {
        format!(
            "{option} shows the socket `{}`: the program can talk to whoever listens there, whatever its network is",
            socket.display()
        )
    };
    let mut notes: Vec<_> = found.into_iter().take(MAX_NAMED).map(note).collect();
    if rest > 0 {
        notes.push(format!("{rest} more of {count} such sockets are not named"));
    }
    notes
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// The absolute paths of sockets that accept connections or messages.
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
        // The inode number is padded with spaces.
        (*field, rest) = rest.trim_start().split_once(' ')?;
    }
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let flags = number(fields[3])?;
    let kind = number(fields[4])?;
    let reachable = flags & LISTENING != 0 || kind == DATAGRAM;
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
