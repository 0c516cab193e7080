//! Where the cgroup trees are mounted and where in them this process is. Pure: from the texts of
//! `/proc/self/cgroup` and `/proc/self/mountinfo` to paths.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Component, Path, PathBuf},
};

/// A mounted tree and the directory of our own cgroup in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupTree {
    /// The mount point: as far up as we can see.
    pub(super) top: PathBuf,
    /// Our own cgroup: what we create is below it, so that limits on us apply to runs, too.
    pub(super) own: PathBuf,
    /// The v1 controllers mounted here; empty for v2.
    pub(super) controllers: Vec<String>,
}

/// The trees that contain our own cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CgroupTrees {
    pub(super) v1: Vec<CgroupTree>,
    pub(super) v2: Option<CgroupTree>,
}

/// A line of `/proc/self/cgroup`.
#[derive(Debug, PartialEq, Eq)]
struct Membership {
    controllers: Vec<String>,
    path: PathBuf,
}

/// A cgroup line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct CgroupMount {
    v2: bool,
    /// The directory of the tree that is visible at `point`: a container often gets only its own.
    root: PathBuf,
    point: PathBuf,
    controllers: Vec<String>,
}

/// Parses both files; malformed lines are skipped.
pub(super) fn trees(cgroup: &[u8], mountinfo: &[u8]) -> CgroupTrees {
    let members: Vec<_> = lines(cgroup).filter_map(membership).collect();
    let mut trees = CgroupTrees::default();
    for mounted in lines(mountinfo).filter_map(mounted) {
        // The first mount that contains us counts; a second mount of a tree shows the same.
        let member = members.iter().find(|member| {
            if mounted.v2 {
                member.controllers.is_empty()
            } else {
                member
                    .controllers
                    .iter()
                    .any(|name| mounted.controllers.contains(name))
            }
        });
        let Some(own) = member.and_then(|member| reach(&mounted, &member.path)) else {
            continue;
        };
        let known = trees
            .v1
            .iter()
            .any(|tree| tree.controllers == mounted.controllers);
        let tree = CgroupTree {
            top: mounted.point,
            own,
            controllers: mounted.controllers,
        };
        if mounted.v2 {
            trees.v2 = trees.v2.or(Some(tree));
        } else if !known {
            trees.v1.push(tree);
        }
    }
    trees
}

/// Our cgroup as seen through this mount, unless the mount shows another part of the tree.
fn reach(mounted: &CgroupMount, path: &Path) -> Option<PathBuf> {
    let below = path.strip_prefix(&mounted.root).ok()?;
    // `..` is how the kernel writes a path outside of our cgroup namespace.
    let plain = below
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    plain.then(|| {
        mounted
            .point
            .components()
            .chain(below.components())
            .collect()
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
}

/// `4:memory:/some/path`, `0::/some/path`; the path may hold colons.
fn membership(line: &[u8]) -> Option<Membership> {
    let mut parts = line.splitn(3, |byte| *byte == b':');
    let number = parts.next()?;
    let controllers = parts.next()?;
    let path = parts.next()?;
    if controllers.is_empty() != (number == b"0") || !path.starts_with(b"/") {
        return None;
    }
    Some(Membership {
        controllers: names(controllers),
        path: bytes(path.to_vec()),
    })
}

/// `35 31 0:32 ROOT POINT options [optional…] - cgroup source options,memory`.
fn mounted(line: &[u8]) -> Option<CgroupMount> {
    let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
    let root = words.get(3)?;
    let point = words.get(4)?;
    let dash = 6 + words.get(6..)?.iter().position(|word| *word == b"-")?;
    let v2 = match *words.get(dash + 1)? {
        b"cgroup2" => true,
        b"cgroup" => false,
        _ => return None,
    };
    let options = names(words.get(dash + 3)?);
    let root = bytes(unescaped(root));
    let point = bytes(unescaped(point));
    let controllers = if v2 { Vec::new() } else { options };
    (root.is_absolute() && point.is_absolute()).then_some(CgroupMount {
        v2,
        root,
        point,
        controllers,
    })
}

fn names(list: &[u8]) -> Vec<String> {
    let names = list
        .split(|byte| *byte == b',')
        .filter(|name| !name.is_empty());
    names
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

fn bytes(path: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(path))
}

/// Undoes the kernel's octal escapes such as `\040`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(octal);
        out.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    out
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

/// The cgroup to divide: if this process moved into `leaf` before, the one above it.
pub(super) fn above_leaf(own: &Path, leaf: &str) -> PathBuf {
    match (own.file_name(), own.parent()) {
        (Some(name), Some(parent)) if name.as_bytes() == leaf.as_bytes() => parent.to_owned(),
        _ => own.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(top: &str, own: &str, controllers: &[&str]) -> CgroupTree {
        let controllers = controllers.iter().map(|name| (*name).to_owned()).collect();
        CgroupTree {
            top: top.into(),
            own: own.into(),
            controllers,
        }
    }

    #[test]
    fn each_mounted_tree_is_found_with_our_place_in_it() {
        let cgroup = b"9:name=systemd:/\n4:memory:/jobs/a:b\n2:cpu,cpuacct:/\n0::/\n";
        let mountinfo = b"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:7 master:1 - cgroup cgroup rw,cpu,cpuacct\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = trees(cgroup, mountinfo);
        let expected = CgroupTrees {
            v1: vec![
                tree(
                    "/sys/fs/cgroup/cpu",
                    "/sys/fs/cgroup/cpu",
                    &["rw", "cpu", "cpuacct"],
                ),
                tree(
                    "/sys/fs/cgroup/memory",
                    "/sys/fs/cgroup/memory/jobs/a:b",
                    &["rw", "memory"],
                ),
            ],
            v2: Some(tree(
                "/sys/fs/cgroup/unified",
                "/sys/fs/cgroup/unified",
                &[],
            )),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_mount_that_shows_only_part_of_the_tree_counts_if_we_are_in_that_part() {
        let mountinfo = br"35 31 0:32 /docker/ab\040c /sys/fs/my\134cgroup rw - cgroup2 none rw";
        let inside = trees(b"0::/docker/ab c/x", mountinfo).v2;
        assert_eq!(
            inside,
            Some(tree(r"/sys/fs/my\cgroup", r"/sys/fs/my\cgroup/x", &[]))
        );
        assert_eq!(trees(b"0::/docker/other", mountinfo).v2, None);
        assert_eq!(trees(b"0::/docker/ab c2", mountinfo).v2, None);
    }

    #[test]
    fn a_cgroup_outside_of_our_namespace_is_out_of_reach() {
        let mount = b"35 31 0:32 / /c rw - cgroup2 none rw";
        assert_eq!(trees(b"0::/../up", mount).v2, None);
        assert_eq!(
            trees(b"0::/down", mount).v2,
            Some(tree("/c", "/c/down", &[]))
        );
    }

    #[test]
    fn odd_contents_are_passed_over() {
        let good = b"35 31 0:32 / /c rw - cgroup2 none rw";
        for cgroup in [
            &b""[..],
            b"0",
            b"0:",
            b"0::",
            b"0::relative",
            b"::/",
            b"0:memory:/x",
            b"\xff\n:::\n",
        ] {
            assert_eq!(trees(cgroup, good), CgroupTrees::default(), "{cgroup:?}");
        }
        for mount in [
            &b""[..],
            b"-",
            b"1 2 3 / /c",
            b"1 2 3 / /c rw -",
            b"1 2 3 / /c rw - cgroup2",
            b"1 2 3 / /c rw - cgroup2 none",
            b"1 2 3 rel /c rw - cgroup2 none rw",
            b"1 2 3 4 5 6 7 8 9 \xff",
        ] {
            assert_eq!(trees(b"0::/", mount), CgroupTrees::default(), "{mount:?}");
        }
    }

    #[test]
    fn escapes_are_undone_and_broken_ones_left_alone() {
        assert_eq!(unescaped(br"a\040b\134\011"), b"a b\\\t");
        assert_eq!(unescaped(br"\04"), br"\04");
        assert_eq!(unescaped(br"\999\777\"), br"\999\777\");
    }

    #[test]
    fn a_process_that_stepped_aside_still_divides_the_cgroup_above() {
        assert_eq!(
            above_leaf(Path::new("/c/a/leaf"), "leaf"),
            Path::new("/c/a")
        );
        assert_eq!(above_leaf(Path::new("/c/a"), "leaf"), Path::new("/c/a"));
    }
}
