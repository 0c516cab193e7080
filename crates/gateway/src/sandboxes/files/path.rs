//! Paths below the workspace as they stand in addresses: bytes, decoded once, never pointing anywhere else.

use crate::{Problem, problem::Answer};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

/// As deep as a path may go, and as long as the kernel takes one.
const DEEPEST: usize = 64;
const LONGEST: usize = 4095;
const LONGEST_NAME: usize = 255;

/// What an address says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The sandbox.
    pub(super) sandbox: String,
    /// Relative to the workspace; empty for the workspace itself.
    pub(super) path: PathBuf,
    /// Whether it ends with a slash: only a folder can.
    pub(super) folder: bool,
}

/// Decodes `%41`. `None` if that is not what stands there.
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

/// Reads `/v1/sandboxes/{id}/files[/{path}]` as it came, since a decoded slash is no slash.
pub(super) fn place(address: &str) -> Answer<Place> {
    let rest = address.strip_prefix("/v1/sandboxes/").unwrap_or_default();
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
    if names.len() > DEEPEST || path.as_os_str().len() > LONGEST {
        let hint = format!("a path has up to {DEEPEST} names and {LONGEST} bytes");
        return Err(Problem::invalid("this path is too long", hint));
    }
    Ok(Place {
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
        name if name.len() > LONGEST_NAME => Err(bad("a name has up to 255 bytes")),
        _ => Ok(OsString::from_vec(name)),
    }
}

/// As it is written in an address.
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
        place(&format!("/v1/sandboxes/box/files{path}"))
            .ok()
            .map(|place| {
                assert_eq!(place.sandbox, "box");
                (place.path, place.folder)
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
