//! Paths as the sandbox sees them: checked for shape here, resolved by handle elsewhere.

use std::{
    fmt,
    path::{Component, Path, PathBuf},
};

/// An absolute, normalised path inside at which something is mounted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InsidePath(PathBuf);

/// A relative, normalised path below `/workspace`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspacePath(PathBuf);

/// Why a path cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPath {
    /// The path as given, made printable.
    pub given: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Airlock's own places: a mount there would undo what it puts up.
const RESERVED: [&str; 7] = [
    "/proc",
    "/sys",
    "/dev",
    "/tmp",
    "/run",
    "/etc/passwd",
    "/etc/group",
];
/// Deeper than any sane tree, and small enough that a walk cannot be made to cost much.
const DEEPEST: usize = 64;

impl InsidePath {
    /// Checks a mount point.
    pub fn new(path: &Path) -> Result<Self, BadPath> {
        let bad = |why| BadPath {
            given: path.display().to_string(),
            why,
        };
        let clean = normal(path, true).map_err(bad)?;
        if clean == Path::new("/") || clean == Path::new("/workspace") {
            return Err(bad(
                "the root and /workspace are mounted by --image and --workspace",
            ));
        }
        if RESERVED.iter().any(|place| clean.starts_with(place)) {
            return Err(bad("this place inside belongs to Airlock"));
        }
        Ok(InsidePath(clean))
    }

    /// The path itself.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl WorkspacePath {
    /// Checks a path relative to `/workspace`; a leading `/workspace/` is accepted and dropped.
    pub fn new(path: &Path) -> Result<Self, BadPath> {
        let relative = path.strip_prefix("/workspace").unwrap_or(path);
        let bad = |why| BadPath {
            given: path.display().to_string(),
            why,
        };
        let clean = normal(relative, false).map_err(bad)?;
        match clean.as_os_str().is_empty() {
            true => Err(bad("it names the whole workspace")),
            false => Ok(WorkspacePath(clean)),
        }
    }

    /// The path itself, relative.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

/// A folder inside, absolute; a relative one lies below `/workspace`. Nothing is mounted there, so it may be anybody's.
pub(crate) fn folder_inside(path: &Path) -> Result<PathBuf, BadPath> {
    let bad = |why| BadPath {
        given: path.display().to_string(),
        why,
    };
    match path.is_absolute() {
        true => normal(path, true).map_err(bad),
        false => Ok(Path::new(crate::WORKSPACE).join(normal(path, false).map_err(bad)?)),
    }
}

fn normal(path: &Path, absolute: bool) -> Result<PathBuf, &'static str> {
    use std::os::unix::ffi::OsStrExt;
    if path.is_absolute() != absolute {
        return Err(if absolute {
            "it must begin with /"
        } else {
            "it must be relative to /workspace"
        });
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err("it contains a NUL byte");
    }
    if path.as_os_str().len() > 4000 || path.components().count() > DEEPEST {
        return Err("it is too long");
    }
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::RootDir => clean.push("/"),
            Component::Normal(name) if name.len() > 255 => {
                return Err("one of its names is too long");
            }
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir => return Err("it contains `..`"),
            Component::Prefix(_) => return Err("it has a prefix"),
        }
    }
    Ok(clean)
}

impl fmt::Display for BadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` cannot be used as a path: {}",
            self.given.escape_debug(),
            self.why
        )
    }
}

impl std::error::Error for BadPath {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mount_points_are_absolute_and_nobody_elses() {
        for bad in [
            "",
            "data",
            "/",
            "/workspace",
            "/proc/x",
            "/dev",
            "/tmp/x",
            "/a/../etc",
            "/etc/passwd",
            "/a\0b",
        ] {
            assert!(InsidePath::new(Path::new(bad)).is_err(), "{bad:?}");
        }
        assert_eq!(
            InsidePath::new(Path::new("/data//x/./y/"))
                .unwrap()
                .as_path(),
            Path::new("/data/x/y")
        );
        assert!(InsidePath::new(Path::new("/workspace/sub")).is_ok());
    }

    #[test]
    fn workspace_paths_stay_below_it() {
        for bad in [
            "",
            ".",
            "/etc/x",
            "../x",
            "a/../../x",
            "/workspace",
            "/workspacex/a",
        ] {
            assert!(WorkspacePath::new(Path::new(bad)).is_err(), "{bad:?}");
        }
        assert_eq!(
            WorkspacePath::new(Path::new("/workspace/a/b"))
                .unwrap()
                .as_path(),
            Path::new("a/b")
        );
    }

    proptest! {
        #[test]
        fn an_accepted_path_has_only_plain_names(text in "[a-z./\\\\ \u{0}-\u{7f}é]{0,40}") {
            if let Ok(path) = WorkspacePath::new(Path::new(&text)) {
                prop_assert!(path.as_path().components().all(|part| matches!(part, Component::Normal(_))));
            }
            if let Ok(path) = InsidePath::new(Path::new(&text)) {
                prop_assert!(path.as_path().components().skip(1).all(|part| matches!(part, Component::Normal(_))));
            }
        }
    }
}
