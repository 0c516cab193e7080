//! Paths below the workspace in URLs: bytes, decoded once, that cannot escape the workspace.

use crate::{Problem, problem::Answer};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

/// Maximum depth, and the maximum path length of the kernel.
const MAX_DEPTH: usize = 64;
const MAX_PATH: usize = 4095;
const MAX_NAME: usize = 255;

/// What a file URL names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileLocation {
    /// Id of the sandbox.
    pub(super) sandbox: String,
    /// Relative to the workspace; empty for the workspace itself.
    pub(super) path: PathBuf,
    /// The URL ends with a slash, so only a folder is meant.
    pub(super) folder: bool,
}

/// Decodes percent-encoding; `None` if it is malformed.
pub(in super::super) fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let digits = digits
            .bytes()
            .all(|digit| digit.is_ascii_hexdigit())
            .then_some(digits)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

/// Parses `/v1/sandboxes/{id}/files[/{path}]` before decoding: an encoded slash is not a separator.
pub(super) fn parse_location(address: &str) -> Answer<FileLocation> {
    parse_below("/v1/sandboxes/", address)
}

/// The same for `/v1/workspaces/{id}/files/{path}`: the workspace, and the path in it.
pub(crate) fn parse_workspace_location(address: &str) -> Answer<(String, PathBuf)> {
    let location = parse_below("/v1/workspaces/", address)?;
    Ok((location.sandbox, location.path))
}

fn parse_below(above: &str, address: &str) -> Answer<FileLocation> {
    let rest = address.strip_prefix(above).unwrap_or_default();
    let (sandbox, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let rest = rest.strip_prefix("files").unwrap_or_default();
    let rest = rest.strip_prefix('/').unwrap_or(rest);
    let (rest, folder) = match rest.strip_suffix('/') {
        Some(rest) => (rest, true),
        None => (rest, rest.is_empty()),
    };
    let names = match rest {
        "" if folder => Vec::new(),
        _ => rest
            .split('/')
            .map(name)
            .collect::<Answer<Vec<OsString>>>()?,
    };
    let path: PathBuf = names.iter().collect();
    if names.len() > MAX_DEPTH || path.as_os_str().len() > MAX_PATH {
        let hint = format!("a path has up to {MAX_DEPTH} names and {MAX_PATH} bytes");
        return Err(Problem::invalid("this path is too long", hint));
    }
    Ok(FileLocation {
        sandbox: sandbox.to_owned(),
        path,
        folder,
    })
}

fn name(text: &str) -> Answer<OsString> {
    let bad = |why: &str| Problem::invalid("this path cannot be used", why);
    let name = decoded(text).ok_or_else(|| bad("a `%` stands before two hexadecimal digits"))?;
    match name.as_slice() {
        b"" => Err(bad(
            "it has an empty name; it is relative to the workspace and begins with no slash",
        )),
        b"." | b".." => Err(bad("`.` and `..` are not resolved")),
        name if name.contains(&0) => Err(bad("a name has no NUL")),
        name if name.contains(&b'/') => Err(bad("a name has no slash")),
        name if name.len() > MAX_NAME => Err(bad("a name has up to 255 bytes")),
        _ => Ok(OsString::from_vec(name)),
    }
}

/// Percent-encodes a path.
pub(super) fn encoded(path: &OsStr) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let bytes = path.as_bytes().iter();
    bytes
        .map(|&byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str) -> Option<(PathBuf, bool)> {
        parse_location(&format!("/v1/sandboxes/box/files{path}"))
            .ok()
            .map(|location| {
                assert_eq!(location.sandbox, "box");
                (location.path, location.folder)
            })
    }

    #[test]
    fn a_path_is_bytes_and_decoded_once() {
        assert_eq!(at("/a/b.txt"), Some(("a/b.txt".into(), false)));
        assert_eq!(at("/a/"), Some(("a".into(), true)));
        assert_eq!(at(""), Some(("".into(), true)));
        assert_eq!(at("/"), Some(("".into(), true)));
        assert_eq!(at("/a%2520b"), Some(("a%20b".into(), false)));
        let bytes = OsString::from_vec(b"\xff\xfe\n".to_vec());
        assert_eq!(at("/%ff%FE%0a"), Some((PathBuf::from(&bytes), false)));
        assert_eq!(encoded(&bytes), "%FF%FE%0A");
    }

    #[test]
    fn what_could_point_elsewhere_is_refused() {
        let long = format!("/{}", "a".repeat(256));
        let deep = "/a".repeat(65);
        for path in [
            "/..",
            "/a/../b",
            "/%2e%2e/b",
            "/.%2e",
            "/.",
            "/a//b",
            "//etc/passwd",
            "/a%2fb",
            "/%2Fetc",
            "/a%00",
            "/a%",
            "/a%4",
            "/a%zz",
            "/a%+1",
            "/a//",
            &long,
            &deep,
        ] {
            assert_eq!(at(path), None, "{path}");
        }
    }
}
