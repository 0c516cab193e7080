//! Everything containment will do, as data. Made by the backend, carried out by the launcher, printable.

use crate::{
    step::Steps,
    wire::{Malformed, Wire},
    wire_enum, wire_struct,
};
use std::ffi::CString;

/// The root that all boxes of one launcher start from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TemplatePlan {
    /// Which steps to take (all of them, outside of tests).
    pub steps: Steps,
    /// A folder that holds a root file system; without it the root is built from `places`.
    pub image: Option<CString>,
    /// What stands in the root, in the order in which it is put there.
    pub places: Vec<Place>,
}

/// One thing in the root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Where, without a leading slash. Its parents stand before it in the list.
    pub path: CString,
    /// What.
    pub kind: PlaceKind,
    /// Host path of a bind, a device or what is masked; target of a link; contents of a file.
    pub content: CString,
}

/// What stands in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaceKind {
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
    /// Something empty over what must not be seen.
    Mask,
}

/// One box.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxPlan {
    /// Which steps to take.
    pub steps: Steps,
    /// Who the program is.
    pub ids: Ids,
    /// The host name inside.
    pub hostname: CString,
    /// Whether the box has a network of its own; otherwise it is on the launcher's, the host's.
    pub own_network: bool,
    /// Ports on the loopback inside at which the host listens.
    pub doors: Vec<u16>,
    /// Bytes that may be written to scratch space.
    pub scratch_bytes: u64,
    /// Files and folders that may be made there.
    pub scratch_files: u64,
    /// A host folder for `/workspace`; else it is in scratch space.
    pub workspace: Option<HostPath>,
    /// What in that folder is protected, parents first.
    pub protected: Vec<Protected>,
    /// Directories to make in a fresh workspace, parents first, as places for mounts.
    pub workspace_directories: Vec<CString>,
    /// Further mounts, parents first.
    pub mounts: Vec<HostPath>,
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

/// A protected name in a mounted workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protected {
    /// Relative to the workspace.
    pub path: CString,
    /// How.
    pub kind: ProtectedKind,
}

/// How a name is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectedKind {
    /// Bound onto itself, so that it cannot be renamed away with what is protected in it.
    Guard,
    /// Read-only.
    ReadOnly,
    /// Covered by a folder in scratch space.
    Scratch,
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
    /// Exact arguments, never empty.
    pub argv: Vec<CString>,
    /// Exact environment, `NAME=VALUE`.
    pub env: Vec<CString>,
    /// Files to try, in order.
    pub candidates: Vec<CString>,
    /// Working directory.
    pub directory: CString,
    /// Resource limits: the kernel's number, soft, hard.
    pub rlimits: Vec<ResourceLimit>,
    /// Directories below which Landlock allows everything.
    pub writable: Vec<CString>,
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
    fn get(input: &mut &[u8]) -> Result<Self, Malformed> {
        u64::get(input).map(Steps::from_bits)
    }
}

wire_struct!(TemplatePlan { steps, image, places });
wire_struct!(Place { path, kind, content });
wire_enum!(PlaceKind { Directory = 0, File = 1, Link = 2, Bind = 3, Device = 4, Mask = 5 });
wire_struct!(BoxPlan {
    steps,
    ids,
    hostname,
    own_network,
    doors,
    scratch_bytes,
    scratch_files,
    workspace,
    protected,
    workspace_directories,
    mounts,
});
wire_struct!(HostPath { host, device, inode, inside, writable, owner });
wire_struct!(Owner { uid, gid });
wire_struct!(Protected { path, kind });
wire_enum!(ProtectedKind { Guard = 0, ReadOnly = 1, Scratch = 2 });
wire_struct!(Ids { uid, gid, outer_uid, outer_gid, drop_groups });
wire_struct!(ProgramPlan { steps, ids, argv, env, candidates, directory, rlimits, writable });
wire_struct!(ResourceLimit { resource, soft, hard });
