//! The three profiles and their numbers. They are those of [`spec::Policy`], which has them from the same source; a tool's own
//! limits only make them narrower.
//!
//! | | restrictive | standard | permissive |
//! |---|---|---|---|
//! | memory, of the whole box | 512 MiB | 1 GiB | 4 GiB |
//! | CPU time, of the whole box | 60 s | 300 s | 600 s |
//! | largest file | 64 MiB | 256 MiB | 1 GiB |
//! | open files | 128 | 512 | 1024 |
//! | processes and threads | 32 | 128 | 512 |
//! | network | none | public addresses, through the egress door | the same |

use crate::tools::Limits;
use spec::{ExtraMounts, Maximum, Policy, Size, Time};

/// How far a tool is shut in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Profile {
    Restrictive,
    Standard,
    Permissive,
}

impl Profile {
    /// By its name; none if nobody knows it.
    pub fn named(name: &str) -> Option<Profile> {
        match name {
            "restrictive" => Some(Profile::Restrictive),
            "standard" => Some(Profile::Standard),
            "permissive" => Some(Profile::Permissive),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Restrictive => "restrictive",
            Profile::Standard => "standard",
            Profile::Permissive => "permissive",
        }
    }
}

/// What boxes of tools are admitted by: no profile shows more of the machine than another, and none gives stored secrets away.
pub(crate) fn policy() -> Policy {
    let mut policy = Policy::default();
    for profile in policy.profiles.values_mut() {
        profile.extra_mounts = ExtraMounts::None;
        profile.allow_secrets = false;
    }
    policy
}

/// The profile's limits, made narrower by what the tool says.
pub(crate) fn limits(policy: &Policy, profile: Profile, own: &Limits) -> Maximum {
    let Some(usual) = policy.profile(profile.name()).map(|profile| &profile.limits) else {
        return Maximum::default();
    };
    let narrower = |own: Option<u32>, usual: u32| own.map_or(usual, |own| own.clamp(1, usual));
    let cpu_time = usual.cpu_time.map(|usual| own.cpu_time.map_or(usual, |own| Time(own.min(usual.0))));
    let file_size = own.file_bytes.map_or(usual.file_size, |own| Size(own.min(usual.file_size.0)));
    // The stack, locked memory, message queues and niceness go here, as soon as `spec` has limits of these names.
    Maximum {
        cpu_time,
        file_size: Some(file_size),
        open_files: Some(narrower(own.open_files, usual.open_files)),
        pids: Some(narrower(own.processes, usual.pids)),
        ..Maximum::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn profiles_are_known_by_their_names() {
        for profile in [Profile::Restrictive, Profile::Standard, Profile::Permissive] {
            assert_eq!(Profile::named(profile.name()), Some(profile));
            assert!(policy().profile(profile.name()).is_some());
        }
        assert_eq!(Profile::named("Standard"), None);
    }

    #[test]
    fn the_numbers_are_those_of_the_table() {
        let policy = policy();
        let rows = [
            (Profile::Restrictive, 512, 60, 64, 128, 32),
            (Profile::Standard, 1024, 300, 256, 512, 128),
            (Profile::Permissive, 4096, 600, 1024, 1024, 512),
        ];
        for (profile, memory, cpu, file, open_files, pids) in rows {
            let limits = &policy.profile(profile.name()).unwrap().limits;
            assert_eq!((limits.memory.0, limits.file_size.0), (memory << 20, file << 20));
            assert_eq!(limits.cpu_time, Some(Time(Duration::from_secs(cpu))));
            assert_eq!((limits.open_files, limits.pids), (open_files, pids));
        }
    }

    #[test]
    fn what_a_tool_says_only_makes_them_narrower() {
        let own = Limits {
            cpu_time: Some(Duration::from_secs(5)),
            file_bytes: Some(u64::MAX),
            open_files: Some(0),
            processes: Some(7),
            stack_bytes: None,
        };
        let limits = limits(&policy(), Profile::Standard, &own);
        assert_eq!(limits.cpu_time, Some(Time(Duration::from_secs(5))));
        assert_eq!(limits.file_size, Some(Size(256 << 20)));
        assert_eq!((limits.open_files, limits.pids), (Some(1), Some(7)));
    }
}
