//! Paths inside the sandbox. Their form is checked here; they are resolved by handle elsewhere.

use std::{
    fmt,
    path::{Component, Path, PathBuf},
};

/// A mount point: an absolute, normalised path inside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InsidePath(PathBuf);

/// A relative, normalised path below `/workspace`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspacePath(PathBuf);

/// Why a path cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPath {
    /// The path as text.
    pub given: String,
    /// The reason.
    pub why: &'static str,
}

/// Paths that Airlock mounts itself: a mount there would replace one of its protections.
const RESERVED: [&str; 7] = [
    "/proc",
    "/sys",
    "/dev",
    "/tmp",
    "/run",
    "/etc/passwd",
    "/etc/group",
];
/// Components of a path: more than a real tree has, and few enough that a walk stays cheap.
const MAX_DEPTH: usize = 64;

impl InsidePath {
    /// Checks a mount point.
    pub fn new(path: &Path) -> Result<Self, BadPath> {
        let bad = |why| BadPath {
            given: path.display().to_string(),
            why,
        };
        let clean = normalize(path, true).map_err(bad)?;
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

    /// The path.
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
        let clean = normalize(relative, false).map_err(bad)?;
        if clean.as_os_str().is_empty() {
            return Err(bad("it names the whole workspace"));
        }
        Ok(WorkspacePath(clean))
    }

    /// The path, relative to `/workspace`.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

/// An absolute folder inside; a relative path lies below `/workspace`. It is no mount point, so
/// that paths of Airlock are allowed.
pub(crate) fn folder_inside(path: &Path) -> Result<PathBuf, BadPath> {
    let bad = |why| BadPath {
        given: path.display().to_string(),
        why,
    };
    if path.is_absolute() {
        return normalize(path, true).map_err(bad);
    }
    let relative = normalize(path, false).map_err(bad)?;
    Ok(Path::new(crate::WORKSPACE).join(relative))
}

/// Removes `.` and repeated slashes. A path that could lead elsewhere is an error.
fn normalize(path: &Path, absolute: bool) -> Result<PathBuf, &'static str> {
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
    if path.as_os_str().len() > 4000 || path.components().count() > MAX_DEPTH {
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
