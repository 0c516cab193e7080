//! Barriers: the named protections. A result lists those that the steps of containment reported.

use std::{fmt, str::FromStr};

macro_rules! barriers {
    ($($variant:ident = $name:literal, $meaning:literal;)*) => {
        /// One named protection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Barrier { $(#[doc = $meaning] $variant,)* }

        impl Barrier {
            /// Every barrier there is, in the order of the contract.
            pub const ALL: &'static [Barrier] = &[$(Barrier::$variant,)*];

            /// The public name.
            pub const fn name(self) -> &'static str {
                match self { $(Barrier::$variant => $name,)* }
            }

            /// The protection, in one line.
            pub const fn meaning(self) -> &'static str {
                match self { $(Barrier::$variant => $meaning,)* }
            }
        }
    };
}

barriers! {
    OwnUser = "own_user", "own user namespace: ids inside are nobody's outside";
    OwnPid = "own_pid", "own process table: no other process can be seen or signalled";
    OwnMount = "own_mount", "own mount table behind a new root";
    OwnNet = "own_net", "own network namespace";
    OwnIpc = "own_ipc", "own System V and POSIX IPC";
    OwnUts = "own_uts", "own host name";
    OwnCgroup = "own_cgroup", "own view of the control groups";
    NoNetwork = "no_network", "only the loopback interface, nothing listening for us";
    DoorsOnly = "doors_only", "only the loopback interface, with the granted doors on it";
    ReadOnlyRoot = "read_only_root", "every file system but the granted ones is read-only";
    NoCapabilities = "no_capabilities", "no capability in any set";
    NoNewPrivileges = "no_new_privileges", "set-id and file capabilities gain nothing";
    SyscallFilter = "syscall_filter", "dangerous system calls and foreign ABIs refused";
    PathRules = "path_rules", "Landlock: writes only below granted paths, no foreign abstract sockets";
    MemoryLimit = "memory_limit", "memory of the whole tree is limited";
    PidsLimit = "pids_limit", "number of processes and threads is limited";
    CpuLimit = "cpu_limit", "CPU time of the whole tree is limited or rationed";
    DiskLimit = "disk_limit", "everything writable is limited in size";
    EmptyEnvironment = "empty_environment", "nothing of the caller's environment passes unnamed";
    NotHostRoot = "not_host_root", "the program is not uid 0 of the host";
    OwnKernel = "own_kernel", "a kernel of its own (microvm)";
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Barrier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Barrier::ALL
            .iter()
            .copied()
            .find(|barrier| barrier.name() == text)
            .ok_or_else(|| {
                let names: Vec<_> = Barrier::ALL.iter().map(|barrier| barrier.name()).collect();
                format!(
                    "no barrier is called `{}`; there are {}",
                    text.escape_debug(),
                    names.join(", ")
                )
            })
    }
}

impl serde::Serialize for Barrier {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
