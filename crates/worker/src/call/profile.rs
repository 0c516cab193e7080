//! The three profiles of tools and their limits. The numbers are those of [`spec::Policy`]; a
//! tool's own limits can only lower them.
//!
//! | | restrictive | standard | permissive |
//! |---|---|---|---|
//! | memory, whole sandbox | 512 MiB | 1 GiB | 4 GiB |
//! | CPU time, whole sandbox | 60 s | 300 s | 600 s |
//! | largest file | 64 MiB | 256 MiB | 1 GiB |
//! | open files | 128 | 512 | 1024 |
//! | processes and threads | 32 | 128 | 512 |
//! | stack | 8 MiB | 16 MiB | 32 MiB |
//! | locked memory | 64 KiB | 256 KiB | 1 MiB |
//! | message queues | 819 200 bytes | the same | twice that |
//! | niceness | 15 | 10 | 5 |
//! | network | none | public addresses, through the egress door | the same |

use crate::tools;
use spec::{ExtraMounts, LimitSet, Limits, Policy, Size, Time};

/// How strictly a tool is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToolProfile {
    /// No network, lowest limits.
    Restrictive,
    /// Public network through the egress door, medium limits.
    Standard,
    /// Public network through the egress door, highest limits.
    Permissive,
}

impl ToolProfile {
    /// Parses a profile's name.
    pub fn named(name: &str) -> Option<ToolProfile> {
        match name {
            "restrictive" => Some(ToolProfile::Restrictive),
            "standard" => Some(ToolProfile::Standard),
            "permissive" => Some(ToolProfile::Permissive),
            _ => None,
        }
    }

    /// The profile's name.
    pub fn name(self) -> &'static str {
        match self {
            ToolProfile::Restrictive => "restrictive",
            ToolProfile::Standard => "standard",
            ToolProfile::Permissive => "permissive",
        }
    }
}

/// Admission policy for sandboxes of tools: no profile mounts more of the machine than another, and
/// none gets stored secrets.
pub(crate) fn policy() -> Policy {
    let mut policy = Policy::default();
    for profile in policy.profiles.values_mut() {
        profile.extra_mounts = ExtraMounts::None;
        profile.allow_secrets = false;
    }
    policy
}

/// Limits of each process, in bytes, and its niceness. A lower limit of the machine wins.
struct ProcessLimits {
    stack: u64,
    locked_memory: u64,
    message_queues: u64,
    nice: u32,
}

fn process_limits(profile: ToolProfile) -> ProcessLimits {
    let kib = 1 << 10;
    let mib = 1 << 20;
    let queues = Limits::DEFAULT_MESSAGE_QUEUES.0;
    let (stack, locked_memory, message_queues, nice) = match profile {
        ToolProfile::Restrictive => (8 * mib, 64 * kib, queues, 15),
        ToolProfile::Standard => (16 * mib, 256 * kib, queues, 10),
        ToolProfile::Permissive => (32 * mib, mib, 2 * queues, 5),
    };
    ProcessLimits {
        stack,
        locked_memory,
        message_queues,
        nice,
    }
}

/// The profile's limits, lowered by those of the tool.
pub(crate) fn limits(policy: &Policy, profile: ToolProfile, own: &tools::ToolLimits) -> LimitSet {
    let Some(usual) = policy
        .profile(profile.name())
        .map(|profile| &profile.limits)
    else {
        return LimitSet::default();
    };
    let narrower = |own: Option<u32>, usual: u32| own.map_or(usual, |own| own.clamp(1, usual));
    let cpu_time = usual
        .cpu_time
        .map(|usual| own.cpu_time.map_or(usual, |own| Time(own.min(usual.0))));
    let file_size = own
        .file_bytes
        .map_or(usual.file_size, |own| Size(own.min(usual.file_size.0)));
    let ProcessLimits {
        stack,
        locked_memory,
        message_queues,
        nice,
    } = process_limits(profile);
    let stack = own.stack_bytes.map_or(stack, |own| {
        own.clamp(Limits::MIN_STACK.0.min(stack), stack)
    });
    LimitSet {
        stack: Some(Size(stack)),
        locked_memory: Some(Size(locked_memory)),
        message_queues: Some(Size(message_queues)),
        nice: Some(nice),
        cpu_time,
        file_size: Some(file_size),
        open_files: Some(narrower(own.open_files, usual.open_files)),
        pids: Some(narrower(own.processes, usual.pids)),
        ..LimitSet::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn profiles_are_known_by_their_names() {
        for profile in [
            ToolProfile::Restrictive,
            ToolProfile::Standard,
            ToolProfile::Permissive,
        ] {
            assert_eq!(ToolProfile::named(profile.name()), Some(profile));
            assert!(policy().profile(profile.name()).is_some());
        }
        assert_eq!(ToolProfile::named("Standard"), None);
    }

    #[test]
    fn the_numbers_are_those_of_the_table() {
        let policy = policy();
        let rows = [
            (ToolProfile::Restrictive, 512, 60, 64, 128, 32),
            (ToolProfile::Standard, 1024, 300, 256, 512, 128),
            (ToolProfile::Permissive, 4096, 600, 1024, 1024, 512),
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
        let own = tools::ToolLimits {
            cpu_time: Some(Duration::from_secs(5)),
            file_bytes: Some(u64::MAX),
            open_files: Some(0),
            processes: Some(7),
            stack_bytes: Some(1),
        };
        let limits = limits(&policy(), ToolProfile::Standard, &own);
        assert_eq!(limits.cpu_time, Some(Time(Duration::from_secs(5))));
        assert_eq!(limits.file_size, Some(Size(256 << 20)));
        assert_eq!((limits.open_files, limits.pids), (Some(1), Some(7)));
        assert_eq!(
            (limits.stack, limits.nice),
            (Some(Limits::MIN_STACK), Some(10))
        );
    }
}
