//! Aliases of host paths: without symbolic links, and as `/proc/self/mountinfo` shows them, which
//! every tool can read. In a container that is where a folder lies on the host.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// All aliases of these paths that reveal something of this machine.
pub fn path_aliases(given: Vec<PathBuf>) -> Vec<PathBuf> {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let names = given.into_iter().flat_map(|path| {
        let real = real(&path);
        [as_mounted(&real, &mounts), Some(real), Some(path)]
            .into_iter()
            .flatten()
    });
    // Without a trailing slash, which a text need not have.
    let names = names.map(|path| path.components().collect::<PathBuf>());
    // Paths inside the sandbox are the same for every tool.
    let names = names.filter(|path| path.is_absolute() && !path.starts_with("/tools"));
    let names = names.flat_map(|path| [escaped(&path), path]);
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Octal escapes of mountinfo.
const ESCAPES: [(&str, &str); 4] = [
    ("\\", r"\134"),
    (" ", r"\040"),
    ("\t", r"\011"),
    ("\n", r"\012"),
];

fn escaped(path: &Path) -> PathBuf {
    let text = path.to_string_lossy().into_owned();
    ESCAPES
        .iter()
        .fold(text, |text, (letter, escape)| text.replace(letter, escape))
        .into()
}

fn unescaped(text: &str) -> PathBuf {
    // The backslash last: what follows one in the original text is no escape.
    ESCAPES
        .iter()
        .rev()
        .fold(text.to_owned(), |text, (letter, escape)| {
            text.replace(escape, letter)
        })
        .into()
}

/// The canonical path, also if it does not exist yet.
fn real(path: &Path) -> PathBuf {
    let real = |there: &Path| {
        Some(
            there
                .canonicalize()
                .ok()?
                .join(path.strip_prefix(there).ok()?),
        )
    };
    path.ancestors()
        .find_map(real)
        .unwrap_or_else(|| path.to_owned())
}

/// The path in the mounted file system: `/home/ana/tools` for `/tools`, or `/ana/tools` where
/// `/home` is mounted. A single component reveals nothing.
fn as_mounted(path: &Path, mounts: &str) -> Option<PathBuf> {
    // A later mount covers an earlier one at the same place.
    let places = mounts.lines().rev().filter_map(|line| {
        let mut words = line.split(' ').skip(3);
        let root = unescaped(words.next()?);
        let point = unescaped(words.next()?);
        Some((path.strip_prefix(point).ok()?, root))
    });
    let (within, root) = places.min_by_key(|(within, _)| within.as_os_str().len())?;
    let says_something = root != Path::new("/") || within.components().count() > 1;
    says_something.then(|| root.join(within))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_without_its_links_and_by_where_it_is_mounted_from() {
        let top = std::env::temp_dir().join(format!("airlock-names-{}", std::process::id()));
        let top = {
            fs::create_dir_all(top.join("real")).unwrap();
            top.canonicalize().unwrap()
        };
        std::os::unix::fs::symlink(top.join("real"), top.join("link")).unwrap();
        let given = ["link/yet/to/come", "link/"].map(|name| top.join(name));
        let names = path_aliases([&given[..], &["tools".into(), "/tools/python".into()]].concat());
        fs::remove_dir_all(&top).unwrap();
        for name in ["link", "link/yet/to/come", "real", "real/yet/to/come"] {
            let is_it = |path: &PathBuf| path.as_os_str() == top.join(name).as_os_str();
            assert!(names.iter().any(is_it), "{name} is not in {names:?}");
        }
        let is_kept = |name: &PathBuf| name.is_absolute() && !name.starts_with("/tools");
        assert!(
            names.iter().all(is_kept),
            "what is the same everywhere may be told: {names:?}"
        );
    }

    #[test]
    fn of_mounts_the_nearest_and_latest_counts() {
        let table = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
                     2 1 8:2 /var/lib/first /tools rw - ext4 /dev/b rw\n\
                     3 1 8:2 /home/ana/tools /tools rw - ext4 /dev/b rw\n\
                     4 1 8:3 / /srv rw - ext4 /dev/c rw\n\
                     5 1 8:4 / /home rw - ext4 /dev/d rw\n\
                     6 1 8:5 /her\\040own/a\\134b /srv/my\\040tools rw - ext4 /dev/e rw\n\
                     no line of a table\n";
        let found = |path: &str| as_mounted(Path::new(path), table);
        assert_eq!(found("/tools"), Some("/home/ana/tools".into()));
        assert_eq!(
            found("/tools/python"),
            Some("/home/ana/tools/python".into())
        );
        assert_eq!(found("/toolsmith"), None, "another folder");
        assert_eq!(
            found("/srv/a"),
            None,
            "what is left of it says nothing of this machine"
        );
        assert_eq!(found("/home"), None);
        assert_eq!(
            found("/home/ana/tools"),
            Some("/ana/tools".into()),
            "whose it is"
        );
        assert_eq!(found("/srv/my tools/x"), Some("/her own/a\\b/x".into()));
    }

    #[test]
    fn a_path_is_known_as_a_table_of_mounts_writes_it() {
        let names = path_aliases(vec![
            "/nowhere/my tools".into(),
            "/nowhere/back\\040".into(),
        ]);
        for name in ["my tools", r"my\040tools", r"back\040", r"back\134040"] {
            assert!(
                names.contains(&Path::new("/nowhere").join(name)),
                "{name} is not in {names:?}"
            );
        }
    }
}
