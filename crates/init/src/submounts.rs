//! Kernel file systems below a mounted folder, such as the `/proc` of a chroot. They show the host
//! and its processes without masks, so each is covered by an empty file or folder. They are looked
//! for in the sandbox's own mount table after all of its mounts are attached and private: none can
//! appear later.

use crate::{
    pid1::{EMPTY, NOTHING, beneath},
    template,
};
use rustix::fs::CWD;
use std::{
    ffi::{CStr, CString},
    io,
};

/// File systems that are views of the kernel, its devices or its settings, and hold no files of
/// users.
const KERNEL_FILE_SYSTEMS: [&[u8]; 23] = [
    b"binder",
    b"binfmt_misc",
    b"bpf",
    b"cgroup",
    b"cgroup2",
    b"configfs",
    b"debugfs",
    b"devpts",
    b"devtmpfs",
    b"efivarfs",
    b"fusectl",
    b"hugetlbfs",
    b"mqueue",
    b"nfsd",
    b"nsfs",
    b"proc",
    b"pstore",
    b"resctrl",
    b"rpc_pipefs",
    b"securityfs",
    b"selinuxfs",
    b"sysfs",
    b"tracefs",
];
/// Bytes of paths in a report, which must fit one packet.
const MAX_REPORTED_BYTES: usize = 2048;

/// The kernel file systems below a path, in this process's mount table.
pub fn below(path: &CStr) -> io::Result<Vec<CString>> {
    find(&std::fs::read("/proc/self/mountinfo")?, &[path])
}

/// Covers the kernel file systems below these paths; returns as many of their paths as a report can
/// hold.
pub(crate) fn cover(places: &[&CStr]) -> io::Result<Vec<CString>> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let mut covered = find(&std::fs::read("/proc/self/mountinfo")?, places)?;
    for path in &covered {
        let place = beneath(&CWD, path)?;
        let by = if template::is_directory(&place)? {
            EMPTY
        } else {
            NOTHING
        };
        template::attach(&template::open_tree(&CWD, by)?, &place, c"")?;
    }
    let mut bytes = 0;
    covered.retain(|path| {
        bytes += path.as_bytes().len();
        bytes <= MAX_REPORTED_BYTES
    });
    Ok(covered)
}

/// Whether anything is mounted below a path, in this process's mount table.
pub fn any_below(path: &CStr) -> io::Result<bool> {
    let mountinfo = std::fs::read("/proc/self/mountinfo")?;
    let mut lines = mountinfo.split(|byte| *byte == b'\n');
    Ok(lines.any(|line| mount(line).is_some_and(|(point, _)| lies_below(&point, path))))
}

/// Mount points of kernel file systems strictly below the paths, parents first, without those below
/// another one. A mount at one of the paths was asked for.
fn find(mountinfo: &[u8], places: &[&CStr]) -> io::Result<Vec<CString>> {
    let mut found: Vec<CString> = Vec::new();
    for line in mountinfo.split(|byte| *byte == b'\n') {
        let Some((point, kind)) = mount(line) else {
            continue;
        };
        let asked_for = places.iter().any(|place| place.to_bytes() == point);
        let inside = places.iter().any(|place| lies_below(&point, place));
        let is_covered = found.iter().any(|above| lies_below(&point, above));
        if KERNEL_FILE_SYSTEMS.contains(&kind) && inside && !asked_for && !is_covered {
            found.push(CString::new(point)?);
        }
    }
    found.dedup();
    Ok(found)
}

fn lies_below(path: &[u8], folder: &CStr) -> bool {
    path.strip_prefix(folder.to_bytes())
        .is_some_and(|rest| rest.starts_with(b"/"))
}

/// Mount point and type: the fifth field, and the first after the dash that ends the optional ones.
fn mount(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut fields = line.split(|byte| *byte == b' ');
    let point = unescaped(fields.nth(4)?);
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    Some((point, kind))
}

/// Undoes the kernel's octal escapes of blanks and backslashes.
pub fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match (*first == b'\\').then(|| octal(tail.get(..3)?)).flatten() {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_topmost_kernel_file_systems_strictly_below_a_place_are_found() {
        let mountinfo = b"1 0 0:1 / / ro - tmpfs t ro
2 1 0:2 / /proc rw - proc proc rw
3 1 8:1 /x /workspace rw - ext4 /dev/a rw
4 3 0:2 / /workspace/a\\040b/proc rw,nosuid shared:1 master:2 - proc proc rw
5 4 0:3 / /workspace/a\\040b/proc/sys/fs/binfmt_misc rw - binfmt_misc b rw
6 3 0:4 / /workspace/tmp rw - tmpfs t rw
7 1 0:2 /sys /asked rw - proc proc rw
8 7 0:5 / /asked/deep/sys rw - sysfs s rw
9 1 0:5 / /workspacex/sys rw - sysfs s rw
";
        let found = find(mountinfo, &[c"/workspace", c"/asked"]).unwrap();
        let expected: [&CStr; 2] = [c"/workspace/a b/proc", c"/asked/deep/sys"];
        assert_eq!(found.iter().map(|it| &**it).collect::<Vec<_>>(), expected);
        assert!(find(mountinfo, &[c"/other"]).unwrap().is_empty());
    }

    #[test]
    fn octal_escapes_are_undone_and_nothing_else() {
        assert_eq!(unescaped(b"a\\040\\134\\011b\\9\\0"), b"a \\\tb\\9\\0");
    }
}
