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
//! | stack | 8 MiB | 16 MiB | 32 MiB |
//! | locked memory | 64 KiB | 256 KiB | 1 MiB |
//! | message queues | 819 200 bytes | the same | twice that |
//! | niceness | 15 | 10 | 5 |
//! | network | none | public addresses, through the egress door | the same |

use crate::tools;
use spec::{ExtraMounts, Limits, Maximum, Policy, Size, Time};

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

/// What each process has at most, in bytes, and how far it stands back. Where the machine gives less, that counts.
struct Further {
    stack: u64,
    locked_memory: u64,
    message_queues: u64,
    nice: u32,
}

fn further(profile: Profile) -> Further {
    let (kib, mib) = (1 << 10, 1 << 20);
    let queues = Limits::MESSAGE_QUEUES.0;
    let (stack, locked_memory, message_queues, nice) = match profile {
        Profile::Restrictive => (8 * mib, 64 * kib, queues, 15),
        Profile::Standard => (16 * mib, 256 * kib, queues, 10),
        Profile::Permissive => (32 * mib, mib, 2 * queues, 5),
    };
    Further {
        stack,
        locked_memory,
        message_queues,
        nice,
    }
}

/// The profile's limits, made narrower by what the tool says.
pub(crate) fn limits(policy: &Policy, profile: Profile, own: &tools::Limits) -> Maximum {
    let Some(usual) = policy
        .profile(profile.name())
        .map(|profile| &profile.limits)
    else {
        return Maximum::default();
    };
    let narrower = |own: Option<u32>, usual: u32| own.map_or(usual, |own| own.clamp(1, usual));
    let cpu_time = usual
        .cpu_time
        .map(|usual| own.cpu_time.map_or(usual, |own| Time(own.min(usual.0))));
    let file_size = own
        .file_bytes
        .map_or(usual.file_size, |own| Size(own.min(usual.file_size.0)));
    let Further {
        stack,
        locked_memory,
        message_queues,
        nice,
    } = further(profile);
    let stack = own.stack_bytes.map_or(stack, |own| {
        own.clamp(Limits::SMALLEST_STACK.0.min(stack), stack)
    });
    Maximum {
        stack: Some(Size(stack)),
        locked_memory: Some(Size(locked_memory)),
        message_queues: Some(Size(message_queues)),
        nice: Some(nice),
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
            assert_eq!(
                (limits.memory.0, limits.file_size.0),
                (memory << 20, file << 20)
            );
            assert_eq!(limits.cpu_time, Some(Time(Duration::from_secs(cpu))));
            assert_eq!((limits.open_files, limits.pids), (open_files, pids));
        }
    }

    #[test]
    fn what_a_tool_says_only_makes_them_narrower() {
        let own = tools::Limits {
            cpu_time: Some(Duration::from_secs(5)),
            file_bytes: Some(u64::MAX),
            open_files: Some(0),
            processes: Some(7),
            stack_bytes: Some(1),
        };
        let limits = limits(&policy(), Profile::Standard, &own);
        assert_eq!(limits.cpu_time, Some(Time(Duration::from_secs(5))));
        assert_eq!(limits.file_size, Some(Size(256 << 20)));
        assert_eq!((limits.open_files, limits.pids), (Some(1), Some(7)));
        assert_eq!(
            (limits.stack, limits.nice),
            (Some(Limits::SMALLEST_STACK), Some(10))
        );
    }
}
