//! The index of a repository, versions 2 to 4: the tracked paths, and the check of an index that a
//! sandboxed git has written, before it becomes the host's.

use crate::{GitError, ObjectFormat, pack::hash, snapshot::GitFolders};
use std::{ffi::OsString, os::unix::ffi::OsStringExt};
use std::{io, path::PathBuf};

/// Bytes of an index.
const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Bytes of one path.
const MAX_PATH_BYTES: usize = 4096;
/// Bytes of an entry before the name of its object.
const STAT_BYTES: usize = 40;
/// The flag that says that more flags follow.
const EXTENDED_FLAG: u16 = 0x4000;
/// The side of a merge; zero for an entry that is merged.
const STAGE_FLAGS: u16 = 0x3000;
/// The offset of an entry's mode, and the known modes: files, links, submodules, and folders
/// outside a sparse checkout.
const MODE_AT: usize = 24;
const MODES: [u32; 5] = [0o100644, 0o100755, 0o120000, 0o160000, SPARSE_FOLDER];
const SPARSE_FOLDER: u32 = 0o040000;
/// Extensions that are dropped: the file system monitor's state, which does not hold for files that
/// were applied meanwhile, and the two tables of offsets.
const DROPPED_EXTENSIONS: [&[u8]; 3] = [b"FSMN", b"EOIE", b"IEOT"];

/// The tracked paths that `wanted` selects. Entries of a shared index file are left out.
pub fn tracked_paths(
    folders: &GitFolders,
    format: ObjectFormat,
    wanted: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<PathBuf>> {
    let Some(bytes) = crate::openat::read(&folders.git, "index", MAX_INDEX_BYTES)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    let keep = |entry: IndexEntry<'_>| {
        if wanted(entry.path) {
            found.push(PathBuf::from(OsString::from_vec(entry.path.to_owned())));
        }
    };
    match read(&bytes, format, keep) {
        Some(_) => Ok(found),
        None => Err(io::Error::other(
            "the index is damaged, or of a newer version",
        )),
    }
}

/// One entry.
struct IndexEntry<'a> {
    path: &'a [u8],
    mode: u32,
    is_unmerged: bool,
}

/// Reads all entries, and returns the bytes behind them.
fn read(bytes: &[u8], format: ObjectFormat, mut keep: impl FnMut(IndexEntry<'_>)) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(b"DIRC")?;
    let version = number(rest)?;
    let count = number(rest.get(4..)?)?;
    if !(2..=4).contains(&version) {
        return None;
    }
    let mut rest = rest.get(8..)?;
    let mut path = Vec::new();
    for _ in 0..count {
        let fixed = STAT_BYTES + format.id_bytes();
        let flags = rest.get(fixed..fixed + 2)?;
        let flags = u16::from_be_bytes([flags[0], flags[1]]);
        let mut at = fixed + if flags & EXTENDED_FLAG != 0 { 4 } else { 2 };
        if version == 4 {
            let (dropped, length) = varint(rest.get(at..)?)?;
            at += length;
            path.truncate(path.len().checked_sub(dropped)?);
        } else {
            path.clear();
        }
        let name = rest.get(at..)?;
        let end = name
            .iter()
            .take(MAX_PATH_BYTES)
            .position(|byte| *byte == 0)?;
        path.extend_from_slice(&name[..end]);
        if path.len() > MAX_PATH_BYTES {
            return None;
        }
        keep(IndexEntry {
            path: &path,
            mode: number(&rest[MODE_AT..])?,
            is_unmerged: flags & STAGE_FLAGS != 0,
        });
        let length = match version {
            4 => at + end + 1,
            // One to eight zeros pad an entry to a multiple of eight.
            _ => (at + end) / 8 * 8 + 8,
        };
        rest = rest.get(length..)?;
    }
    Some(rest)
}

/// Whether an index has unresolved conflicts; none if it cannot be read.
pub(crate) fn has_conflicts(bytes: &[u8], format: ObjectFormat) -> Option<bool> {
    let mut found = false;
    read(bytes, format, |entry| found |= entry.is_unmerged)?;
    Some(found)
}

/// Checks an index from a sandboxed git: it must be complete, without unmerged entries, and each
/// path must lie in the worktree and outside git folders. Extensions that do not hold on the host
/// are dropped from the result.
pub fn check(bytes: &[u8], format: ObjectFormat) -> Result<Vec<u8>, GitError> {
    let refused = |why: &str| GitError::Refused(format!("the new index is refused: {why}"));
    let end = bytes.len().checked_sub(format.id_bytes());
    let end = end.ok_or_else(|| refused("it is too short"))?;
    let (body, checksum) = bytes.split_at(end);
    if hash(format, body).as_bytes() != checksum {
        return Err(refused("its checksum is wrong"));
    }
    let mut bad = None;
    let check_entry = |entry: IndexEntry<'_>| {
        let path = match entry.mode {
            SPARSE_FOLDER => entry.path.strip_suffix(b"/").unwrap_or(entry.path),
            _ => entry.path,
        };
        if entry.is_unmerged {
            bad = Some("an entry is unmerged");
        } else if !MODES.contains(&entry.mode) {
            bad = Some("an entry is of no known kind");
        } else if !path.split(|byte| *byte == b'/').all(is_plain) {
            bad = Some("a path leads out of the worktree");
        }
    };
    let rest = read(body, format, check_entry).ok_or_else(|| refused("it cannot be read"))?;
    if let Some(why) = bad {
        return Err(refused(why));
    }
    let mut checked = body[..body.len() - rest.len()].to_vec();
    let mut rest = rest;
    while !rest.is_empty() {
        let size = rest.get(4..).and_then(number).map(|size| size as usize + 8);
        let part = size.and_then(|size| rest.split_at_checked(size));
        let (part, after) = part.ok_or_else(|| refused("a part of it cannot be read"))?;
        if part.starts_with(b"link") {
            return Err(refused("it needs another file"));
        }
        if !DROPPED_EXTENSIONS.iter().any(|name| part.starts_with(name)) {
            checked.extend_from_slice(part);
        }
        rest = after;
    }
    let checksum = hash(format, &checked);
    checked.extend_from_slice(checksum.as_bytes());
    Ok(checked)
}

/// Whether a part of a path leads neither out of the worktree nor into a git folder.
fn is_plain(part: &[u8]) -> bool {
    !part.is_empty() && part != b"." && part != b".." && !part.eq_ignore_ascii_case(b".git")
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// The number of bytes that are dropped from the previous path, and the length of that number.
fn varint(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0_usize;
    for (place, byte) in bytes.iter().take(5).enumerate() {
        value = value << 7 | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, place + 1));
        }
        value += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(version: u32, dropped: u8, name: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; STAT_BYTES + 20];
        bytes[MODE_AT..MODE_AT + 4].copy_from_slice(&0o100644_u32.to_be_bytes());
        bytes.extend([0, name.len() as u8]);
        if version == 4 {
            bytes.push(dropped);
        }
        bytes.extend(name);
        let zeros = if version == 4 { 1 } else { 8 - bytes.len() % 8 };
        bytes.extend(vec![0; zeros]);
        bytes
    }

    fn index(version: u32, entries: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = b"DIRC".to_vec();
        bytes.extend(version.to_be_bytes());
        bytes.extend((entries.len() as u32).to_be_bytes());
        for (dropped, name) in entries {
            bytes.extend(entry(version, *dropped, name));
        }
        bytes
    }

    fn paths(bytes: &[u8]) -> Option<Vec<String>> {
        let mut found = Vec::new();
        read(bytes, ObjectFormat::Sha1, |entry| {
            found.push(String::from_utf8(entry.path.to_vec()).unwrap());
        })?;
        Some(found)
    }

    #[test]
    fn the_names_of_every_version_are_read() {
        let all = Some(vec![
            ".env".to_owned(),
            ".envrc".to_owned(),
            "a/b".to_owned(),
        ]);
        let whole: [(u8, &[u8]); 3] = [(0, b".env"), (0, b".envrc"), (0, b"a/b")];
        assert_eq!(paths(&index(2, &whole)), all);
        assert_eq!(paths(&index(3, &whole)), all);
        let parts: [(u8, &[u8]); 3] = [(0, b".env"), (0, b"rc"), (6, b"a/b")];
        assert_eq!(paths(&index(4, &parts)), all);
    }

    #[test]
    fn half_an_index_is_none() {
        let bytes = index(2, &[(0, b"a"), (0, b"b")]);
        assert!(paths(&bytes).is_some());
        for end in 0..bytes.len() {
            assert_eq!(paths(&bytes[..end]), None, "{end}");
        }
        assert_eq!(
            paths(&index(4, &[(3, b"a")])),
            None,
            "nothing can be dropped"
        );
        assert_eq!(paths(&index(5, &[])), None);
    }

    fn signed(mut bytes: Vec<u8>, parts: &[(&[u8], &[u8])]) -> Vec<u8> {
        for (name, content) in parts {
            bytes.extend_from_slice(name);
            bytes.extend((content.len() as u32).to_be_bytes());
            bytes.extend_from_slice(content);
        }
        let checksum = hash(ObjectFormat::Sha1, &bytes);
        bytes.extend(checksum.as_bytes());
        bytes
    }

    fn why(bytes: &[u8]) -> String {
        check(bytes, ObjectFormat::Sha1).unwrap_err().to_string()
    }

    #[test]
    fn what_the_watcher_of_files_knows_is_left_out_of_a_new_index() {
        let entries = index(2, &[(0, b"a"), (0, b"b/c")]);
        let all = signed(
            entries.clone(),
            &[(b"TREE", b"x"), (b"FSMN", b"yy"), (b"EOIE", b"z")],
        );
        let left = signed(entries, &[(b"TREE", b"x")]);
        assert_eq!(check(&all, ObjectFormat::Sha1).unwrap(), left);
    }

    #[test]
    fn a_new_index_that_means_something_else_is_refused() {
        for name in [".git/x", "a/.GIT", "../x", "/x", "a//b", "a/./b", "a/"] {
            let one = signed(index(2, &[(0, name.as_bytes())]), &[]);
            assert!(why(&one).contains("out of the worktree"), "{name}");
        }
        let mut unmerged = index(2, &[(0, b"a")]);
        unmerged[12 + STAT_BYTES + 20] = 0x10;
        let conflicts = |bytes: &[u8]| has_conflicts(bytes, ObjectFormat::Sha1);
        assert_eq!(conflicts(&unmerged), Some(true));
        assert_eq!(conflicts(&index(2, &[(0, b"a")])), Some(false));
        assert_eq!(conflicts(b"DIRC"), None);
        assert!(why(&signed(unmerged, &[])).contains("unmerged"));
        let mut device = index(2, &[(0, b"a")]);
        device[12 + MODE_AT..12 + MODE_AT + 4].copy_from_slice(&0o60000_u32.to_be_bytes());
        assert!(why(&signed(device, &[])).contains("kind"));
        let split = signed(index(2, &[]), &[(b"link", b"x")]);
        assert!(why(&split).contains("another file"));
        let mut torn = signed(index(2, &[(0, b"a")]), &[]);
        torn[20] ^= 1;
        assert!(why(&torn).contains("checksum"));
    }
}
