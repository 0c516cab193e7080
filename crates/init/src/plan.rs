//! Everything containment will do, as data. Made by the backend, carried out by the launcher, printable.

use crate::{
    step::Steps,
    wire::{DecodeError, Wire},
    wire_enum, wire_struct,
};
use std::ffi::{CStr, CString};

/// The root that all boxes of one launcher start from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TemplatePlan {
    /// Which steps to take (all of them, outside of tests).
    pub steps: Steps,
    /// A folder that holds a root file system; without it the root is built from `entries`.
    pub image: Option<ImageRoot>,
    /// What stands in the root, in the order in which it is put there.
    pub entries: Vec<RootEntry>,
}

/// A folder that holds the root file system of an image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageRoot {
    /// Where it is outside.
    pub path: CString,
    /// The very folder that was meant: another one of that name is another image.
    pub id: FileId,
}

/// One thing in the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RootEntry {
    /// Where, without a leading slash. Its parents stand before it in the list.
    pub path: CString,
    /// What.
    pub kind: RootEntryKind,
    /// Host path of a bind, a device or what is host_mounts; target of a link; contents of a file.
    pub content: CString,
}

/// What stands in a place.
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
    /// A host directory, read-only, through our own at that place: what we have there wins, and its sockets
    /// answer nobody.
    HostOverlay,
    /// Hides what a host_mounts directory has there, also when it comes later.
    Whiteout,
}

/// What is tried when a layer is laid over the folder of a workspace, as a failure names it.
pub const WORKSPACE_OVERLAY: &str = "a layer over the folder of the workspace";

/// The folders of an overlay's layer: what is written goes to the first, and the kernel works in the other.
pub const UPPER: &CStr = c"upper";
/// See [`UPPER`].
pub const WORK: &CStr = c"work";

/// One box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxPlan {
    /// Which steps to take.
    pub steps: Steps,
    /// Who the program is.
    pub ids: Ids,
    /// Whether any other id outside that is as good will do: namespaces made warm have theirs.
    pub any_outer_id: bool,
    /// Whether it is made warm of its program. A lane that has made one hands it to the launcher and ends.
    pub warm: bool,
    /// The host name inside.
    pub hostname: CString,
    /// Whether the box has a network of its own; otherwise it is on the launcher's, the host's.
    pub own_network: bool,
    /// Ports on the loopback inside at which the host listens.
    pub doors: Vec<u16>,
    /// Whether whatever is dialled inside arrives at the host.
    pub intercept: Option<InterceptPlan>,
    /// Whether the box has a terminal of its own.
    pub terminal: bool,
    /// Whether it outlives its programs, of which each may get a terminal.
    pub stays: bool,
    /// Bytes that may be written to scratch space.
    pub scratch_bytes: u64,
    /// Files and folders that may be made there.
    pub scratch_files: u64,
    /// Folders of the root that the program may change: a layer in scratch space lies over each.
    pub writable_folders: Vec<CString>,
    /// A host folder for `/workspace`; else it is in scratch space.
    pub workspace: Option<HostPath>,
    /// What takes all that is written to that folder: a folder that holds [`UPPER`] and [`WORK`], on the same mount.
    pub overlay: Option<HostPath>,
    /// What in that folder is read-only, relative to it, parents first.
    pub protected: Vec<WorkspaceName>,
    /// Whether the engine watches the mount table, because tools of the host can detach what lies in that folder.
    pub watch_mounts: bool,
    /// What in that folder is covered by something empty, relative to it.
    pub hidden: Vec<WorkspaceName>,
    /// Directories to make in a fresh workspace, parents first, as entries for mounts.
    pub workspace_directories: Vec<CString>,
    /// The same in the home.
    pub home_directories: Vec<CString>,
    /// ExecChild mounts, parents first.
    pub mounts: Vec<HostPath>,
}

/// Names of a workspace whose mounts are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemountPlan {
    /// Protected and hidden ones.
    pub names: Vec<RemountName>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemountName {
    /// Relative to the workspace.
    pub path: CString,
    /// Whether it is covered by something that nobody may open; otherwise it is mounted onto itself, read-only.
    pub hidden: bool,
}

/// What makes a file or folder itself, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

/// What the first process of a container looks for and hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlan {
    /// The host's namespaces, by number, in the order of [`crate::container_init::NAMESPACES`]; its own must be others.
    pub namespaces: Vec<u64>,
    /// Ports on the loopback inside at which the host listens.
    pub doors: Vec<u16>,
    /// Whether what is dialled on the loopback inside arrives at the host.
    pub intercept: Option<InterceptPlan>,
    /// Whether it is on a network with others, by its caller's wish.
    pub shared_network: bool,
    /// Whether it opens a terminal.
    pub terminal: bool,
    /// Bytes that may be written to scratch space.
    pub scratch_bytes: u64,
    /// Whether the workspace is scratch space, too.
    pub fresh_workspace: bool,
    /// Who it must be, with no further group.
    pub user: Owner,
    /// What of the host must be host_mounts where: an engine looks paths up once more.
    pub host_mounts: Vec<ContainerMount>,
    /// Places at and below which nothing may be writable, as the kernel writes them in a list of mounts.
    pub read_only: Vec<CString>,
    /// Directories to make in a fresh workspace, parents first.
    pub workspace_directories: Vec<CString>,
}

/// How what is dialled inside arrives at the host, by programs that know of no door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptPlan {
    /// At these ports of every address.
    pub ports: Vec<u16>,
    /// Or all of it at this one, where the kernel can redirect.
    pub redirect_port: Option<u16>,
    /// Where names are asked for, on the loopback.
    pub dns_port: u16,
}

/// What to do in the network of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerNetworkPlan {
    /// How everything is to arrive.
    pub intercept: InterceptPlan,
    /// Ports of doors, which stay theirs.
    pub doors: Vec<u16>,
}

/// A file or folder of the host in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerMount {
    /// Where it appears.
    pub inside: CString,
    /// Which one it is.
    pub id: FileId,
}

/// A host path that appears in the box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath {
    /// Where it is outside.
    pub host: CString,
    /// Device and inode that were checked; the launcher finds the same ones or refuses.
    pub device: u64,
    /// See `device`.
    pub inode: u64,
    /// Where it appears inside, absolute.
    pub inside: CString,
    /// Whether it may be written.
    pub writable: bool,
    /// The owner outside whose files appear as the program's own, by an idmapped mount.
    pub owner: Option<Owner>,
}

/// A user and a group outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Who the program is, inside and outside.
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
    /// Whether supplementary groups can and must be dropped: not in a user's own namespace, where the
    /// kernel forbids it.
    pub drop_groups: bool,
}

/// One program in a box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramPlan {
    /// Which steps to take.
    pub steps: Steps,
    /// Who it is.
    pub ids: Ids,
    /// What to run; without it the process stands by, with everything given up, until it is told.
    pub exec_args: Option<ExecArgs>,
    /// Whether the box ends with it.
    pub last: bool,
    /// Working directory.
    pub directory: CString,
    /// Resource limits: the kernel's number, soft, hard.
    pub rlimits: Vec<ResourceLimit>,
    /// Directories below which Landlock allows everything.
    pub writable: Vec<CString>,
    /// Whom else in its box Landlock lets it reach.
    pub landlock_scope: LandlockScope,
    /// How many CPUs it is told of, if there is a limit.
    pub cpus: Option<u32>,
    /// How far it stands back when CPUs are short.
    pub nice: Option<u32>,
    /// Whether its standard streams are a terminal, which becomes its controlling one.
    pub terminal: bool,
}

/// Other programs of the same box, as far as a program may reach them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LandlockScope {
    /// There are none.
    Isolated,
    /// By signals. The box is on the host's network, whose abstract sockets stay out of reach.
    Signals,
    /// By signals and by abstract sockets.
    SignalsAndSockets,
}

/// What a process is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecArgs {
    /// Exact arguments, never empty.
    pub argv: Vec<CString>,
    /// Exact environment, `NAME=VALUE`.
    pub env: Vec<CString>,
    /// Files to try, in order.
    pub candidates: Vec<CString>,
}

/// Namespaces that a launcher makes warm of need: networks, and users of these ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespacePoolPlan {
    /// How many of each are kept ready.
    pub depth: u32,
    /// Who the programs are: the first of them outside.
    pub ids: Ids,
    /// How many ids outside there are to take turns.
    pub outer_count: u32,
    /// Whose turn it is first.
    pub first_turn: u32,
}

/// A name in a workspace, and what must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceName {
    /// Relative to the workspace.
    pub path: CString,
    /// What it must turn out to be: another program may exchange names there.
    pub inode: u64,
}

/// One resource limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ResourceLimit {
    pub resource: u32,
    pub soft: u64,
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
wire_struct!(Owner { uid, gid });
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
        let owner = any::<(u32, u32)>().prop_map(|(uid, gid)| Owner { uid, gid });
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

    /// It reads back as it was; with any number of bytes missing, or one too many, it does not read at all.
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

    /// Whatever the bytes: an answer, and one that reads back if it is a value.
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

        /// Random bytes seldom get past the first length; a whole plan with one byte changed goes deep.
        #[test]
        fn no_changed_byte_makes_a_plan_panic(plan in sandbox_plan(), place: prop::sample::Index, byte: u8) {
            let mut bytes = encode(&plan);
            let place = place.index(bytes.len());
            bytes[place] = byte;
            answers::<SandboxPlan>(&bytes)?;
        }
    }
}
