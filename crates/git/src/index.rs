//! The names in a repository's index, of versions 2 to 4: what a program can read from the objects.

use crate::{ObjectFormat, snapshot::GitFolders};
use std::{ffi::OsString, os::unix::ffi::OsStringExt};
use std::{io, path::PathBuf};

/// Bytes of an index.
const MAX_INDEX: u64 = 256 << 20;
/// Bytes of one path.
const MAX_PATH: usize = 4096;
/// Of an entry before the name of its object.
const STAT_BYTES: usize = 40;
/// That more flags follow.
const EXTENDED: u16 = 0x4000;

/// The paths in the index that are wanted. Those of a part that lies in another file are not among them.
pub fn tracked(
    folders: &GitFolders,
    format: ObjectFormat,
    wanted: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<PathBuf>> {
    let Some(bytes) = crate::handle::read(&folders.git, "index", MAX_INDEX)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    let keep = |path: &[u8]| {
        if wanted(path) {
            found.push(PathBuf::from(OsString::from_vec(path.to_owned())));
        }
    };
    match read(&bytes, format, keep) {
        Some(()) => Ok(found),
        None => Err(io::Error::other(
            "the index is damaged, or of a newer version",
        )),
    }
}

fn read(bytes: &[u8], format: ObjectFormat, mut keep: impl FnMut(&[u8])) -> Option<()> {
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
        let is_extended = u16::from_be_bytes([flags[0], flags[1]]) & EXTENDED != 0;
        let mut at = fixed + if is_extended { 4 } else { 2 };
        if version == 4 {
            let (dropped, length) = varint(rest.get(at..)?)?;
            at += length;
            path.truncate(path.len().checked_sub(dropped)?);
        } else {
            path.clear();
        }
        let name = rest.get(at..)?;
        let end = name.iter().take(MAX_PATH).position(|byte| *byte == 0)?;
        path.extend_from_slice(&name[..end]);
        if path.len() > MAX_PATH {
            return None;
        }
        keep(&path);
        let length = match version {
            4 => at + end + 1,
            // With one to eight zeros a multiple of eight.
            _ => (at + end) / 8 * 8 + 8,
        };
        rest = rest.get(length..)?;
    }
    Some(())
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// As git writes how much of the path before is dropped, and in how many bytes.
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
        read(bytes, ObjectFormat::Sha1, |path| {
            found.push(String::from_utf8(path.to_vec()).unwrap());
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
}
