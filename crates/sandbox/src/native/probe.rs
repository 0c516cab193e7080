//! What this kernel and this process can do, found by asking.

use rustix::thread::CapabilitySet;

/// Whether this process may create namespaces without a user namespace first.
pub fn may_make_namespaces() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// A range of ids without owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpareIds {
    /// The first id.
    pub first: u32,
    /// The number of ids. Sandboxes with one id would share what the kernel counts per user.
    pub count: u32,
}

/// Above what distributions give to users, their containers (`/etc/subuid`) and systemd to its own;
/// below its foreign ids and the half that old programs take for negative.
const NOBODYS: SpareIds = SpareIds {
    first: 0x7000_0000,
    count: 65_536,
};
/// In a container with fewer ids: some near the end, below those of `nobody` and of dynamic users.
const BEFORE_THE_END: u32 = 8192;
const IN_A_CONTAINER: u32 = 1024;

/// Ids for programs that root starts; none if this container has too few.
pub fn spare_ids() -> Option<SpareIds> {
    let map = |path| std::fs::read_to_string(path).unwrap_or_default();
    spare(&map("/proc/self/uid_map"), &map("/proc/self/gid_map"))
}

fn spare(users: &str, groups: &str) -> Option<SpareIds> {
    let users = extents(users);
    let groups = extents(groups);
    let mapped = |ids: &SpareIds| {
        let within = |all: &[(u64, u64)]| {
            let (first, end) = (
                u64::from(ids.first),
                u64::from(ids.first) + u64::from(ids.count),
            );
            all.iter()
                .any(|(start, length)| *start <= first && end <= start + length)
        };
        within(&users) && within(&groups)
    };
    let last = users.iter().map(|(start, length)| start + length).max()?;
    let near_the_end = last
        .checked_sub(u64::from(BEFORE_THE_END))
        .filter(|first| *first > 1000);
    let near_the_end = near_the_end.and_then(|first| u32::try_from(first).ok());
    let near_the_end = near_the_end.map(|first| SpareIds {
        first,
        count: IN_A_CONTAINER,
    });
    [Some(NOBODYS), near_the_end]
        .into_iter()
        .flatten()
        .find(mapped)
}

/// Start and length of the extents of a map.
fn extents(map: &str) -> Vec<(u64, u64)> {
    let line = |line: &str| {
        let mut numbers = line
            .split_whitespace()
            .map(|number| number.parse::<u64>().ok());
        Some((numbers.next()??, numbers.nth(1)??))
    };
    map.lines().filter_map(line).collect()
}

/// The Landlock ABI version; 0 if the kernel has none.
pub fn landlock_version() -> u32 {
    init::landlock_version()
}

/// The kernel release, such as `6.1.0-13-amd64`.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Major and minor number of a kernel release.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether this process may inspect processes of other users.
pub(crate) fn may_trace() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

/// Whether this kernel lets a process be inspected by the user that it changes to.
pub(crate) fn processes_can_be_looked_into() -> bool {
    std::fs::read("/proc/sys/fs/suid_dumpable").is_ok_and(|text| text.trim_ascii() == b"1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_programs_are_mapped_and_nobodys() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(spare(whole, whole), Some(NOBODYS));
        let container = "0 100000 65536\n";
        assert_eq!(
            spare(container, container),
            Some(SpareIds {
                first: 57_344,
                count: 1024
            })
        );
        assert_eq!(spare(container, "0 100000 1\n"), None);
        assert_eq!(spare("0 1000 1\n", "0 1000 1\n"), None);
        assert_eq!(spare("", "rubbish x"), None);
    }

    #[test]
    fn kernel_releases_have_two_numbers_in_front() {
        assert_eq!(kernel_version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(kernel_version("5.14"), Some((5, 14)));
        assert_eq!(kernel_version("rc1"), None);
    }
}
