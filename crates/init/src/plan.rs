//! Plans: everything that containment will do, as data. Made by the backend, executed by the
//! launcher.

use crate::{
    step::Steps,
    wire::{DecodeError, Wire},
    wire_enum, wire_struct,
};
use std::ffi::{CStr, CString};

/// The root file system that all sandboxes of one launcher start from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TemplatePlan {
    /// The steps to take: all of them, except in tests.
    pub steps: Steps,
    /// The folder of an image; without it the root is built from `entries` alone.
    pub image: Option<ImageRoot>,
    /// The files of the root, in the order of their creation.
    pub entries: Vec<RootEntry>,
}

/// A folder that holds the root file system of an image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageRoot {
    /// Its path on the host.
    pub path: CString,
    /// The identity of the admitted folder: another folder of that name is another image.
    pub id: FileId,
}

/// One file of the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RootEntry {
    /// Its path, without a leading slash. Its parents come before it in the list.
    pub path: CString,
    /// What it is.
    pub kind: RootEntryKind,
    /// Host path of a bind mount, device or overlay; target of a link; contents of a file.
    pub content: CString,
}

/// The kind of a file in the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RootEntryKind {
    /// An empty directory.
    Directory,
    /// A small file.
    File,
    /// A symbolic link.
    Link,
    /// A host file or directory, read-only, no devices.
    Bind,
    /// A host device node.
    Device,
    /// A host directory, read-only, merged below our own directory there: our files win, and its
    /// sockets cannot be connected to.
    HostOverlay,
    /// An overlay whiteout: hides a file of a host directory, also one that is created later.
    Whiteout,
}

/// What is tried when an overlay is mounted on the workspace, as a failure names it.
pub const WORKSPACE_OVERLAY: &str = "a layer over the folder of the workspace";

/// The folders of an overlay's layer: writes go to `upper`, the kernel uses `work`.
pub const UPPER: &CStr = c"upper";
/// See [`UPPER`].
pub const WORK: &CStr = c"work";

/// One sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxPlan {
    /// Which steps to take.
    pub steps: Steps,
    /// The ids of its programs.
    pub ids: Ids,
    /// Whether any other spare id on the host will do: pooled namespaces have their own.
    pub any_outer_id: bool,
    /// Whether it is created before its run. A cgroup v1 forker hands it to the launcher and ends.
    pub warm: bool,
    /// The host name inside.
    pub hostname: CString,
    /// Whether it has a network namespace of its own; otherwise it shares the host's.
    pub own_network: bool,
    /// Ports on loopback inside at which the host listens.
    pub doors: Vec<u16>,
    /// Transparent proxying, if asked for.
    pub intercept: Option<InterceptPlan>,
    /// Whether it has a terminal of its own.
    pub terminal: bool,
    /// Whether it is a session: it outlives its programs, each of which may get a terminal.
    pub stays: bool,
    /// Size limit of scratch space.
    pub scratch_bytes: u64,
    /// Limit of files and folders in scratch space.
    pub scratch_files: u64,
    /// Folders of the root that the program may change, each by an overlay with its layer in
    /// scratch space.
    pub writable_folders: Vec<CString>,
    /// A host folder for `/workspace`; without it the workspace is in scratch space.
    pub workspace: Option<HostPath>,
    /// The layer that takes all writes to that folder: a folder with [`UPPER`] and [`WORK`], on the
    /// same mount.
    pub overlay: Option<HostPath>,
    /// Read-only names in that folder, relative to it, parents first.
    pub protected: Vec<WorkspaceName>,
    /// Whether the engine watches the mount table, because host tools can detach mounts in that
    /// folder.
    pub watch_mounts: bool,
    /// Names in that folder that are covered by an empty file or folder, relative to it.
    pub hidden: Vec<WorkspaceName>,
    /// Directories to create in a fresh workspace as mount points, parents first.
    pub workspace_directories: Vec<CString>,
    /// The same in the home folder.
    pub home_directories: Vec<CString>,
    /// ExecChild mounts, parents first.
    pub mounts: Vec<HostPath>,
}

/// Names of a workspace whose mounts were detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemountPlan {
    /// Protected and hidden names.
    pub names: Vec<RemountName>,
}

/// One name whose mount was detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemountName {
    /// Relative to the workspace.
    pub path: CString,
    /// Whether an unreadable file covers it; otherwise it is mounted onto itself, read-only.
    pub hidden: bool,
}

/// The identity of a file or folder, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device of its file system.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// What the first process of a container checks and hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlan {
    /// Inode numbers of the host's namespaces, in the order of
    /// [`crate::container_init::NAMESPACES`]; the container's must differ.
    pub namespaces: Vec<u64>,
    /// Ports on loopback inside at which the host listens.
    pub doors: Vec<u16>,
    /// Transparent proxying of connections to loopback, if asked for.
    pub intercept: Option<InterceptPlan>,
    /// Whether the container shares its network with other containers, as its caller asked.
    pub shared_network: bool,
    /// Whether it opens a terminal.
    pub terminal: bool,
    /// Size limit of scratch space.
    pub scratch_bytes: u64,
    /// Whether the workspace is scratch space, too.
    pub fresh_workspace: bool,
    /// The user that the process must have, without supplementary groups.
    pub user: HostOwner,
    /// The host files that must be mounted: the engine resolved their paths a second time.
    pub host_mounts: Vec<ContainerMount>,
    /// Paths at and below which no mount may be writable, as the kernel writes them in `mountinfo`.
    pub read_only: Vec<CString>,
    /// Directories to create in a fresh workspace, parents first.
    pub workspace_directories: Vec<CString>,
}

/// How transparent proxying intercepts connections of programs that do not use a door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptPlan {
    /// Listens at these ports of every address.
    pub ports: Vec<u16>,
    /// Redirects all connections to this port, where the kernel has nf_tables.
    pub redirect_port: Option<u16>,
    /// The port of the DNS sockets, on loopback.
    pub dns_port: u16,
}

/// Transparent proxying in the network namespace of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerNetworkPlan {
    /// What to intercept.
    pub intercept: InterceptPlan,
    /// Ports of doors, which keep their listeners.
    pub doors: Vec<u16>,
}

/// A host file or folder that a container must show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerMount {
    /// Its path inside.
    pub inside: CString,
    /// Its identity on the host.
    pub id: FileId,
}

/// A host path that is mounted in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath {
    /// Its path on the host.
    pub host: CString,
    /// Device and inode that were checked; the launcher opens the same file or refuses.
    pub device: u64,
    /// See `device`.
    pub inode: u64,
    /// Its absolute path inside.
    pub inside: CString,
    /// Whether it may be written.
    pub writable: bool,
    /// The owner on the host whose files appear as the program's own, by an idmapped mount.
    pub owner: Option<HostOwner>,
}

/// A user and a group on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOwner {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

/// The ids of a program, inside and on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// User inside.
    pub uid: u32,
    /// Group inside.
    pub gid: u32,
    /// User as the launcher's user namespace sees it.
    pub outer_uid: u32,
    /// Group as the launcher's user namespace sees it.
    pub outer_gid: u32,
    /// Whether supplementary groups can and must be dropped: the kernel forbids it in an ordinary
    /// user's own namespace.
    pub drop_groups: bool,
}

/// One program of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramPlan {
    /// Which steps to take.
    pub steps: Steps,
    /// Its ids.
    pub ids: Ids,
    /// What to execute; without it the process is a prepared child that waits for its exec
    /// arguments.
    pub exec_args: Option<ExecArgs>,
    /// Whether the sandbox ends with it.
    pub last: bool,
    /// Working directory.
    pub directory: CString,
    /// Resource limits: resource, soft, hard.
    pub rlimits: Vec<ResourceLimit>,
    /// Directories below which Landlock allows all access.
    pub writable: Vec<CString>,
    /// The other processes of the sandbox that Landlock lets it reach.
    pub landlock_scope: LandlockScope,
    /// The size of its CPU affinity, if CPUs are limited.
    pub cpus: Option<u32>,
    /// Its nice value, if one is set.
    pub nice: Option<u32>,
    /// Whether its standard streams are a terminal, which becomes its controlling terminal.
    pub terminal: bool,
}

/// The Landlock scope of a program: which other processes of its sandbox it may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LandlockScope {
    /// No other process.
    Isolated,
    /// By signals only: the sandbox is on the host's network, whose abstract sockets stay out of
    /// reach.
    Signals,
    /// By signals and by abstract sockets.
    SignalsAndSockets,
}

/// The arguments of `execve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecArgs {
    /// Exact arguments, never empty.
    pub argv: Vec<CString>,
    /// Exact environment, `NAME=VALUE`.
    pub env: Vec<CString>,
    /// Paths to try, in order.
    pub candidates: Vec<CString>,
}

/// Namespaces that a launcher creates in advance: network namespaces, and user namespaces for these
/// ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespacePoolPlan {
    /// The number of each that are kept ready.
    pub depth: u32,
    /// The ids of the programs; on the host the first of the range.
    pub ids: Ids,
    /// The number of ids in the range on the host, used in turn.
    pub outer_count: u32,
    /// The first one to use.
    pub first_turn: u32,
}

/// A name in a workspace, and the inode that was found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceName {
    /// Relative to the workspace.
    pub path: CString,
    /// The expected inode: another program may replace the file.
    pub inode: u64,
}

/// One resource limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// The kernel's number of the resource.
    pub resource: u32,
    /// The soft limit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

impl Wire for Steps {
    fn put(&self, out: &mut Vec<u8>) {
        self.bits().put(out);
    }
    fn get(input: &mut &[u8]) -> Result<Self, DecodeError> {
        u64::get(input).map(Steps::from_bits)
    }
}

wire_struct!(TemplatePlan {
    steps,
    image,
    entries
});
wire_struct!(RootEntry {
    path,
    kind,
    content
});
wire_enum!(RootEntryKind { Directory = 0, File = 1, Link = 2, Bind = 3, Device = 4, HostOverlay = 5, Whiteout = 6 });
wire_struct!(WorkspaceName { path, inode });
wire_struct!(SandboxPlan {
    steps,
    ids,
    any_outer_id,
    warm,
    hostname,
    own_network,
    doors,
    intercept,
    terminal,
    stays,
    scratch_bytes,
    scratch_files,
    writable_folders,
    workspace,
    overlay,
    protected,
    watch_mounts,
    hidden,
    workspace_directories,
    home_directories,
    mounts,
});
wire_struct!(RemountPlan { names });
wire_struct!(RemountName { path, hidden });
wire_struct!(InterceptPlan {
    ports,
    redirect_port,
    dns_port
});
wire_struct!(ContainerNetworkPlan { intercept, doors });
wire_struct!(FileId { device, inode });
wire_struct!(ImageRoot { path, id });
wire_struct!(ContainerMount { inside, id });
wire_struct!(ContainerPlan {
    namespaces,
    doors,
    intercept,
    shared_network,
    terminal,
    scratch_bytes,
    fresh_workspace,
    user,
    host_mounts,
    read_only,
    workspace_directories
});
wire_struct!(HostPath {
    host,
    device,
    inode,
    inside,
    writable,
    owner
});
wire_struct!(HostOwner { uid, gid });
wire_struct!(Ids {
    uid,
    gid,
    outer_uid,
    outer_gid,
    drop_groups
});
wire_struct!(ProgramPlan {
    steps,
    ids,
    exec_args,
    last,
    directory,
    rlimits,
    writable,
    landlock_scope,
    cpus,
    nice,
    terminal
});
wire_enum!(LandlockScope { Isolated = 0, Signals = 1, SignalsAndSockets = 2 });
wire_struct!(ExecArgs {
    argv,
    env,
    candidates
});
wire_struct!(NamespacePoolPlan {
    depth,
    ids,
    outer_count,
    first_turn
});
wire_struct!(ResourceLimit {
    resource,
    soft,
    hard
});

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::{decode, encode};
    use proptest::{collection::vec, option, prelude::*};
    use std::fmt::Debug;

    fn text() -> impl Strategy<Value = CString> {
        vec(1u8.., 0..8).prop_map(|bytes| CString::new(bytes).unwrap())
    }

    fn texts() -> impl Strategy<Value = Vec<CString>> {
        vec(text(), 0..4)
    }

    fn steps() -> impl Strategy<Value = Steps> {
        any::<u64>().prop_map(Steps::from_bits)
    }

    pub(crate) fn ids() -> impl Strategy<Value = Ids> {
        any::<(u32, u32, u32, u32, bool)>().prop_map(
            |(uid, gid, outer_uid, outer_gid, drop_groups)| Ids {
                uid,
                gid,
                outer_uid,
                outer_gid,
                drop_groups,
            },
        )
    }

    fn root_entry() -> impl Strategy<Value = RootEntry> {
        use RootEntryKind::*;
        let kind = proptest::sample::select(vec![
            Directory,
            File,
            Link,
            Bind,
            Device,
            HostOverlay,
            Whiteout,
        ]);
        (text(), kind, text()).prop_map(|(path, kind, content)| RootEntry {
            path,
            kind,
            content,
        })
    }

    fn template() -> impl Strategy<Value = TemplatePlan> {
        let parts = (steps(), option::of(text()), vec(root_entry(), 0..4));
        let of = |path| ImageRoot {
            path,
            id: FileId {
                device: 1,
                inode: u64::MAX,
            },
        };
        parts.prop_map(move |(steps, image, entries)| TemplatePlan {
            steps,
            image: image.map(of),
            entries,
        })
    }

    fn host_path() -> impl Strategy<Value = HostPath> {
        let owner = any::<(u32, u32)>().prop_map(|(uid, gid)| HostOwner { uid, gid });
        (text(), any::<(u64, u64, bool)>(), text(), option::of(owner)).prop_map(
            |(host, (device, inode, writable), inside, owner)| HostPath {
                host,
                device,
                inode,
                inside,
                writable,
                owner,
            },
        )
    }

    fn intercept() -> impl Strategy<Value = InterceptPlan> {
        let parts = (
            vec(any::<u16>(), 0..4),
            option::of(any::<u16>()),
            any::<u16>(),
        );
        parts.prop_map(|(ports, redirect_port, dns_port)| InterceptPlan {
            ports,
            redirect_port,
            dns_port,
        })
    }

    fn workspace_names() -> impl Strategy<Value = Vec<WorkspaceName>> {
        let name = (text(), any::<u64>()).prop_map(|(path, inode)| WorkspaceName { path, inode });
        vec(name, 0..3)
    }

    fn sandbox_plan() -> impl Strategy<Value = SandboxPlan> {
        let network = (vec(any::<u16>(), 0..4), option::of(intercept()));
        let numbers = (any::<([bool; 6], u64, u64)>(), network);
        let paths = (
            texts(),
            vec(option::of(host_path()), 2),
            (workspace_names(), workspace_names()),
            (texts(), texts()),
            vec(host_path(), 0..3),
        );
        (steps(), ids(), text(), numbers, paths).prop_map(
            |(steps, ids, hostname, numbers, paths)| {
                let (
                    (
                        [
                            any_outer_id,
                            warm,
                            own_network,
                            terminal,
                            stays,
                            watch_mounts,
                        ],
                        scratch_bytes,
                        scratch_files,
                    ),
                    network,
                ) = numbers;
                let (doors, intercept) = network;
                let (writable_folders, mut of_workspace, protected, directories, mounts) = paths;
                let overlay = of_workspace.pop().flatten();
                let workspace = of_workspace.pop().flatten();
                let (workspace_directories, home_directories) = directories;
                let (protected, hidden) = protected;
                SandboxPlan {
                    steps,
                    ids,
                    any_outer_id,
                    warm,
                    hostname,
                    own_network,
                    doors,
                    intercept,
                    terminal,
                    stays,
                    scratch_bytes,
                    scratch_files,
                    writable_folders,
                    workspace,
                    overlay,
                    protected,
                    watch_mounts,
                    hidden,
                    workspace_directories,
                    home_directories,
                    mounts,
                }
            },
        )
    }

    fn program() -> impl Strategy<Value = ProgramPlan> {
        let limit = any::<(u32, u64, u64)>();
        let limit = limit.prop_map(|(resource, soft, hard)| ResourceLimit {
            resource,
            soft,
            hard,
        });
        let landlock_scope = proptest::sample::select(vec![
            LandlockScope::Isolated,
            LandlockScope::Signals,
            LandlockScope::SignalsAndSockets,
        ]);
        let exec_args = (texts(), texts(), texts());
        let exec_args = exec_args.prop_map(|(argv, env, candidates)| ExecArgs {
            argv,
            env,
            candidates,
        });
        (
            steps(),
            ids(),
            option::of(exec_args),
            any::<bool>(),
            text(),
            vec(limit, 0..4),
            texts(),
            (
                landlock_scope,
                option::of(any::<u32>()),
                option::of(any::<u32>()),
                any::<bool>(),
            ),
        )
            .prop_map(
                |(
                    steps,
                    ids,
                    exec_args,
                    last,
                    directory,
                    rlimits,
                    writable,
                    (landlock_scope, cpus, nice, terminal),
                )| {
                    ProgramPlan {
                        steps,
                        ids,
                        exec_args,
                        last,
                        directory,
                        rlimits,
                        writable,
                        landlock_scope,
                        cpus,
                        nice,
                        terminal,
                    }
                },
            )
    }

    /// The value survives a round trip; with bytes missing or one too many, decoding fails.
    fn travels_whole_or_not_at_all<T: Wire + PartialEq + Debug>(
        value: &T,
    ) -> Result<(), TestCaseError> {
        let mut bytes = encode(value);
        let read = decode::<T>(&bytes);
        prop_assert_eq!(read.as_ref(), Ok(value));
        for end in 0..bytes.len() {
            prop_assert_eq!(
                decode::<T>(&bytes[..end]),
                Err(DecodeError),
                "cut at {}",
                end
            );
        }
        bytes.push(0);
        prop_assert_eq!(decode::<T>(&bytes), Err(DecodeError));
        Ok(())
    }

    /// Decoding arbitrary bytes never panics, and a decoded value survives a round trip.
    fn answers<T: Wire + PartialEq + Debug>(bytes: &[u8]) -> Result<(), TestCaseError> {
        if let Ok(value) = decode::<T>(bytes) {
            prop_assert_eq!(decode::<T>(&encode(&value)), Ok(value));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn a_template_travels_whole_or_not_at_all(plan in template()) {
            travels_whole_or_not_at_all(&plan)?;
        }

        #[test]
        fn a_box_travels_whole_or_not_at_all(plan in sandbox_plan()) {
            travels_whole_or_not_at_all(&plan)?;
        }

        #[test]
        fn a_program_travels_whole_or_not_at_all(plan in program()) {
            travels_whole_or_not_at_all(&plan)?;
        }

        #[test]
        fn no_bytes_make_a_plan_panic(bytes in vec(any::<u8>(), 0..200)) {
            answers::<TemplatePlan>(&bytes)?;
            answers::<SandboxPlan>(&bytes)?;
            answers::<ProgramPlan>(&bytes)?;
        }

        /// Random bytes seldom get past the first length; a whole plan with one changed byte does.
        #[test]
        fn no_changed_byte_makes_a_plan_panic(plan in sandbox_plan(), place: prop::sample::Index, byte: u8) {
            let mut bytes = encode(&plan);
            let place = place.index(bytes.len());
            bytes[place] = byte;
            answers::<SandboxPlan>(&bytes)?;
        }
    }
}
