//! What this kernel and this process can do, found by asking.

use rustix::thread::CapabilitySet;

/// Whether this process may make namespaces without a user namespace first.
pub fn may_make_namespaces() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// The version of Landlock; 0 if the kernel has none.
pub fn landlock_version() -> u32 {
    init::landlock_version()
}

/// The kernel's release, such as `6.1.0-13-amd64`.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Major and minor number of a kernel release.
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_have_two_numbers_in_front() {
        assert_eq!(kernel_version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(kernel_version("5.14"), Some((5, 14)));
        assert_eq!(kernel_version("rc1"), None);
    }
}
